//! Reads many short pieces of a file. A checkpoint may have 40,000 members, each with a header of its own
//! in front.

use std::ops::Range;

use crate::catalog::Object;
use crate::error::Result;

/// How many pieces are announced to the store at a time.
const ANNOUNCED: usize = 4096;

/// Pieces that are no further apart than this are read together, with what lies between them. A call costs
/// as much as copying about 2 KiB.
const GAP: u64 = 1024;

/// How many bytes are read at a time.
const MOST: u64 = 256 << 10;

/// Reads the ranges of `file` (in ascending order, none past its end) and passes each, with its number,
/// to `each`, until that returns `false`.
///
/// # Errors
/// The file cannot be read, or the error that `each` returned.
pub(super) fn each(
    file: &dyn Object,
    ranges: impl Iterator<Item = Range<u64>>,
    mut each: impl FnMut(usize, &[u8]) -> Result<bool>,
) -> Result<()> {
    let mut ranges = ranges.peekable();
    let mut batch: Vec<Range<u64>> = Vec::new();
    let mut bytes = Vec::new();
    let mut number = 0;
    while ranges.peek().is_some() {
        batch.clear();
        batch.extend(ranges.by_ref().take(ANNOUNCED));
        file.will_need(&batch);
        let mut rest = batch.as_slice();
        while let Some(first) = rest.first() {
            let (start, mut end) = (first.start, first.end);
            let near = rest.iter().take_while(|range| {
                let together = range.start <= end.saturating_add(GAP)
                    && range.end.max(end) - start <= MOST.max(first.end - start);
                if together {
                    end = end.max(range.end);
                }
                together
            });
            let (near, far) = rest.split_at(near.count());
            bytes.resize((end - start) as usize, 0);
            file.read_at(start, &mut bytes)?;
            for range in near {
                let (from, to) = (range.start - start, range.end - start);
                let piece = bytes.get(from as usize..to as usize).unwrap_or_default();
                if !each(number, piece)? {
                    return Ok(());
                }
                number += 1;
            }
            rest = far;
        }
    }
    Ok(())
}
