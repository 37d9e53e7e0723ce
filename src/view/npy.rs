//! NumPy's `.npy`: a header, then the array.
//!
//! Format: NEP 1 and `numpy/lib/_format_impl.py`; the header is byte for byte what `np.save` writes.

use std::ops::Range;

use super::{SharedView, View};
use crate::catalog::Piece;
use crate::error::Result;

/// How many digits NumPy leaves room for, so that an array can grow along its first axis in place.
const GROWTH_AXIS_MAX_DIGITS: usize = 21;

/// The header of a C-order array: magic, version 1.0, length, the dictionary, then spaces and a
/// newline up to a multiple of 64 bytes. (Version 2.0 if the header is over 65,535 bytes long.)
pub fn npy_header(descr: &str, shape: &[u64]) -> Vec<u8> {
    let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
    let tuple = match dims.len() {
        1 => format!("({},)", dims[0]),
        _ => format!("({})", dims.join(", ")),
    };
    let mut dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple}, }}");
    if let Some(first) = dims.first() {
        let room = GROWTH_AXIS_MAX_DIGITS.saturating_sub(first.len());
        dict.push_str(&" ".repeat(room));
    }
    let long = dict.len() + 1 + 64 > usize::from(u16::MAX);
    let prefix = if long { 12 } else { 10 };
    let pad = 64 - (prefix + dict.len() + 1) % 64; // 1 to 64, as np.save does it
    let header_len = dict.len() + pad + 1;
    let mut out = b"\x93NUMPY".to_vec();
    if long {
        out.extend_from_slice(&[2, 0]);
        out.extend_from_slice(&(header_len as u32).to_le_bytes());
    } else {
        out.extend_from_slice(&[1, 0]);
        out.extend_from_slice(&(header_len as u16).to_le_bytes());
    }
    out.extend_from_slice(dict.as_bytes());
    out.resize(out.len() + pad, b' ');
    out.push(b'\n');
    out
}

/// A `.npy` file: header + any view of the array's bytes.
pub struct Npy {
    header: Vec<u8>,
    body: SharedView,
}

impl Npy {
    /// `body` as an array with that `descr` and shape.
    pub fn new(descr: &str, shape: &[u64], body: SharedView) -> Self {
        Npy {
            header: npy_header(descr, shape),
            body,
        }
    }
}

impl View for Npy {
    fn len(&self) -> u64 {
        self.header.len() as u64 + self.body.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let header_len = self.header.len() as u64;
        let head = header_len.saturating_sub(offset).min(buf.len() as u64) as usize;
        if head > 0 {
            let start = offset as usize;
            buf[..head].copy_from_slice(&self.header[start..start + head]);
        }
        if head < buf.len() {
            self.body
                .read_at(offset.max(header_len) - header_len, &mut buf[head..])?;
        }
        Ok(())
    }

    fn piece(&self, offset: u64, len: usize) -> Option<Piece<'_>> {
        let at = offset.checked_sub(self.header.len() as u64)?;
        self.body.piece(at, len)
    }

    fn will_need(&self, ranges: &[Range<u64>]) {
        let header_len = self.header.len() as u64;
        let in_body = |at: u64| at.saturating_sub(header_len);
        let body = ranges.iter().map(|r| in_body(r.start)..in_body(r.end));
        let body: Vec<_> = body.filter(|r| !r.is_empty()).collect();
        if !body.is_empty() {
            self.body.will_need(&body);
        }
    }

    fn grain(&self) -> u64 {
        self.body.grain()
    }
}
