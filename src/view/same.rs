//! Parts that must be equal, and are shown as one (`g_idx` of a fused layer).

use std::sync::OnceLock;

use super::{SharedView, View};
use crate::error::{Error, Result};
use crate::patience;

/// The first of several views, once all are known to hold the same bytes. Compared on first read.
pub struct Same {
    name: String,
    parts: Vec<SharedView>,
    equal: OnceLock<bool>,
}

impl Same {
    /// `parts` (at least one) of equal length; `name` is for the error.
    pub fn new(name: String, parts: Vec<SharedView>) -> Self {
        Same {
            name,
            parts,
            equal: OnceLock::new(),
        }
    }

    fn are_equal(&self) -> Result<bool> {
        if let Some(&known) = self.equal.get() {
            return Ok(known);
        }
        patience::take_long()?;
        let mut equal = true;
        let (mut a, mut b) = (vec![0u8; 64 << 10], vec![0u8; 64 << 10]);
        for other in &self.parts[1..] {
            let mut at = 0;
            while equal && at < self.len() {
                let n = (self.len() - at).min(a.len() as u64) as usize;
                self.parts[0].read_at(at, &mut a[..n])?;
                other.read_at(at, &mut b[..n])?;
                equal = a[..n] == b[..n];
                at += n as u64;
            }
        }
        Ok(*self.equal.get_or_init(|| equal))
    }
}

impl View for Same {
    fn len(&self) -> u64 {
        self.parts.first().map_or(0, |p| p.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if !self.are_equal()? {
            return Err(Error::data(
                &self.name,
                "the parts of this fusion differ, so it has no one value; read the parts themselves",
            ));
        }
        match self.parts.first() {
            Some(first) => first.read_at(offset, buf),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::patience::{Patience, attempt, with};
    use crate::view::Bytes;

    #[test]
    fn parts_are_not_compared_on_a_request_thread() {
        let part = |bytes: &[u8]| Arc::new(Bytes(bytes.into())) as SharedView;
        let read = |same: &Same| same.read_at(1, &mut [0; 2]).map_err(|e| e.errno());
        let impatient = |same: &Same| with(Patience::Sources, || attempt(|| read(same)).1);
        let same = Same::new("a".into(), vec![part(b"123"), part(b"123")]);
        assert!(impatient(&same));
        assert_eq!(read(&same), Ok(()));
        assert!(!impatient(&same));
        let other = Same::new("b".into(), vec![part(b"123"), part(b"124")]);
        assert!(impatient(&other));
        assert_eq!(read(&other), Err(libc::EIO));
    }
}
