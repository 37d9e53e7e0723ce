//! The group of each input, and the groups' scales and zero points.

use std::ops::Range;

use super::geometry::{Geometry, GroupIndex};
use super::strips::Matrix;
use crate::dtype::decode::decode;
use crate::error::{Error, Result};
use crate::quant::g_idx::{integers, out_of_range};
use crate::quant::read::zeroed;
use crate::view::{SharedView, read_all};

/// Scale and zero point of one group of one output, in one word because they are looked up
/// together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Group(u64);

impl Group {
    fn new(scale: f32, zero: u8) -> Group {
        Group(u64::from(zero) << 32 | u64::from(scale.to_bits()))
    }

    #[inline(always)]
    pub fn scale(self) -> f32 {
        f32::from_bits(self.0 as u32)
    }

    #[inline(always)]
    pub fn zero(self) -> i32 {
        (self.0 >> 32) as i32
    }
}

/// Rows of scales and zero points read at a time.
const AT_ONCE: usize = 16;

/// The scales and zero points of the outputs `rows`: `[rows][groups]`.
///
/// # Errors
/// The parts cannot be read, or ENOMEM.
pub(super) fn table(
    geometry: &Geometry,
    scales: &Matrix,
    zeros: &Matrix,
    rows: Range<usize>,
) -> Result<Vec<Group>> {
    let (count, groups) = (rows.len(), geometry.groups);
    let mut table = zeroed::<Group>(count * groups)?;
    let size = geometry.scales.bits() as usize / 8;
    let words = geometry.packing.zero_words(rows.clone());
    let mut scale_bytes = zeroed::<u8>(AT_ONCE.min(groups) * count * size)?;
    let mut zero_words = zeroed::<u32>(AT_ONCE.min(groups) * words.len())?;
    let (mut scale, mut zero) = (zeroed::<f32>(count)?, zeroed::<u8>(count)?);
    let scale_columns = rows.start * size..rows.end * size;
    let zero_columns = words.start * 4..words.end * 4;
    scales.announce(0..groups, &scale_columns);
    zeros.announce(0..groups, &zero_columns);
    for first in (0..groups).step_by(AT_ONCE) {
        let these = first..groups.min(first + AT_ONCE);
        let scale_bytes = &mut scale_bytes[..these.len() * count * size];
        let zero_words = &mut zero_words[..these.len() * words.len()];
        scales.read(these.clone(), scale_columns.clone(), scale_bytes)?;
        let zero_bytes = bytemuck::cast_slice_mut(zero_words);
        zeros.read(these.clone(), zero_columns.clone(), zero_bytes)?;
        let strips = scale_bytes.chunks_exact(count * size);
        for ((group, scales), zeros) in these
            .zip(strips)
            .zip(zero_words.chunks_exact_mut(words.len()))
        {
            decode(geometry.scales, scales, 0, &mut scale);
            geometry.packing.zeros(zeros, &mut zero);
            for (row, (&scale, &zero)) in scale.iter().zip(&zero).enumerate() {
                table[row * groups + group] = Group::new(scale, zero);
            }
        }
    }
    Ok(table)
}

/// The group of each input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Grouping {
    /// Input k belongs to group k / size.
    Even(usize),
    /// From `g_idx` (act-order).
    Stored {
        /// The group of each input; [`BAD`] if its index is out of range.
        of: Vec<u32>,
        /// Whether any is [`BAD`].
        bad: bool,
    },
}

/// Replaces a group index that is out of range.
pub(super) const BAD: u32 = u32::MAX;

impl Grouping {
    /// Reads a stored `g_idx` of `geometry.k` integers.
    ///
    /// # Errors
    /// It cannot be read. Values out of range are not an error until their inputs are wanted.
    pub fn read(geometry: &Geometry, index: &GroupIndex, bytes: &SharedView) -> Result<Grouping> {
        let bytes = read_all(bytes)?;
        let last = (geometry.groups as i64).min(i64::from(BAD));
        let mut of = zeroed::<u32>(geometry.k)?;
        let mut bad = false;
        for (of, value) in of.iter_mut().zip(integers(index.dtype, &bytes)) {
            let fits = (0..last).contains(&value);
            *of = if fits { value as u32 } else { BAD };
            bad |= !fits;
        }
        let size = of.iter().position(|g| *g != of[0]).unwrap_or(of.len());
        let even = of.iter().enumerate().all(|(k, &g)| k / size == g as usize);
        Ok(match even {
            true => Grouping::Even(size),
            false => Grouping::Stored { of, bad },
        })
    }

    /// Checks that each of the inputs `k` has a group.
    ///
    /// # Errors
    /// [`Error::Data`], naming the first input that has none.
    pub fn check(&self, geometry: &Geometry, k: Range<usize>) -> Result<()> {
        let Grouping::Stored { of, bad: true } = self else {
            return Ok(());
        };
        let name = geometry.index.as_ref().map_or("g_idx", |i| &i.name);
        match of[k.clone()].iter().position(|&g| g == BAD) {
            None => Ok(()),
            Some(i) => Err(Error::data(
                name,
                format!(
                    "the group of input {} is out of range: there are groups 0 to {}; download the file again",
                    k.start + i,
                    geometry.groups - 1
                ),
            )),
        }
    }
}

/// What is wrong with a stored `g_idx`, as one sentence.
///
/// # Errors
/// It cannot be read.
pub(super) fn problems(
    geometry: &Geometry,
    index: &GroupIndex,
    bytes: &SharedView,
) -> Result<Option<String>> {
    let bytes = read_all(bytes)?;
    let problem = out_of_range(integers(index.dtype, &bytes), geometry.groups as u64);
    Ok(problem.map(|problem| format!("{}: {problem}", index.name)))
}
