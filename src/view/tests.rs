//! Announced ranges reach the file below, whatever views are in between; a join reads its parts in few
//! pieces; values in blocks are those of the blocks, and read from them alone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{Bytes, Cast, Concat, Npy, SharedView, Slice, StoredBytes, View, npy_header};
use crate::catalog::{Extent, MemoryObject, MemoryStore};
use crate::dtype::{ElementType, ggml};
use crate::error::Result;

/// Bytes `10..10 + len` of a file, and the file.
fn stored(len: u64) -> (SharedView, Arc<MemoryObject>) {
    let store = MemoryStore::new(&[("x", &vec![0; 10 + len as usize])]);
    let object = store.object("x").unwrap();
    let file = object.clone();
    let view = StoredBytes(Extent {
        file,
        offset: 10,
        len,
    });
    (Arc::new(view), object)
}

/// What was announced since the last call.
fn announced(object: &MemoryObject) -> Vec<(u64, u64)> {
    let ranges = std::mem::take(&mut *object.announced.lock().unwrap());
    ranges.into_iter().map(|r| (r.start, r.end)).collect()
}

#[test]
fn slices_shift_what_is_announced() {
    let (view, object) = stored(100);
    view.will_need(&[0..5, 90..100]);
    assert_eq!(announced(&object), [(10, 15), (100, 110)]);
    let inner = Slice::new(Arc::new(Slice::new(view, 20, 50)), 5, 10);
    inner.will_need(&[0..10, 3..4]);
    assert_eq!(announced(&object), [(35, 45), (38, 39)]);
}

#[test]
fn the_header_of_an_npy_is_not_in_the_file() {
    let (view, object) = stored(100);
    let header = npy_header("|u1", &[100]).len() as u64;
    let npy = Npy::new("|u1", &[100], view);
    npy.will_need(&[0..header, 5..header + 7, header + 50..header + 60]);
    assert_eq!(announced(&object), [(10, 17), (60, 70)]);
    npy.will_need(std::slice::from_ref(&(0..5)));
    assert_eq!(announced(&object), []);
}

#[test]
fn a_join_announces_to_each_part_what_it_needs_of_it() {
    let ((a, file_a), (b, file_b)) = (stored(6), stored(12));
    let empty: SharedView = Arc::new(Bytes(Arc::new([])));
    // One after another: 6 bytes of a, 12 of b.
    let follow = Concat::new(vec![a.clone(), empty.clone(), b.clone()], 1);
    follow.will_need(&[4..8, 17..18]);
    assert_eq!(announced(&file_a), [(14, 16)]);
    assert_eq!(announced(&file_b), [(10, 12), (21, 22)]);
    follow.will_need(std::slice::from_ref(&(0..6)));
    assert_eq!(
        (announced(&file_a), announced(&file_b)),
        (vec![(10, 16)], vec![])
    );
    // Side by side in three rows: 2 bytes of a, 4 of b.
    let beside = Concat::new(vec![a, empty, b], 3);
    beside.will_need(&[1..9, 12..18]);
    assert_eq!(announced(&file_a), [(11, 14), (14, 16)]);
    assert_eq!(announced(&file_b), [(10, 15), (18, 22)]);
    Concat::new(Vec::new(), 1).will_need(&[]);
}

/// The ranges of a join are those that a read of it asks its parts for.
#[test]
fn a_join_announces_what_it_reads() {
    for outer in [1, 2, 3] {
        let (a, file_a) = stored(6);
        let (b, file_b) = stored(12);
        let join = Concat::new(vec![a, b], outer);
        let row = 18 / outer;
        for start in 0..18 {
            for end in start..=18 {
                join.will_need(std::slice::from_ref(&(start..end)));
                let covered =
                    |ranges: Vec<(u64, u64)>| -> u64 { ranges.iter().map(|r| r.1 - r.0).sum() };
                let in_a = (start..end).filter(|at| at % row < 6 / outer).count() as u64;
                assert_eq!(covered(announced(&file_a)), in_a, "{outer} {start}..{end}");
                assert_eq!(covered(announced(&file_b)), end - start - in_a);
            }
        }
    }
}

/// Counts the reads of the bytes.
struct Counting(Bytes, Arc<AtomicUsize>);

impl View for Counting {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read_at(offset, buf)
    }
}

/// Parts side by side: rows shorter than a piece, and rows that are read one by one.
#[test]
fn a_join_of_short_rows_reads_many_at_a_time() {
    for (widths, outer, most_reads) in [
        ([3000, 0, 5001], 70, 8),
        ([1, 2, 3], 100_000, 12),
        ([20_000, 7, 0], 5, 10),
    ] {
        let part = |(i, width): (usize, &usize)| -> Vec<u8> {
            let byte = |at: usize| (at * 31 + at / 251 + i * 7) as u8;
            (0..width * outer).map(byte).collect()
        };
        let parts: Vec<Vec<u8>> = widths.iter().enumerate().map(part).collect();
        let rows = (0..outer).flat_map(|row| {
            let of_row = parts.iter().zip(widths);
            of_row.flat_map(move |(part, width)| &part[row * width..][..width])
        });
        let want: Vec<u8> = rows.copied().collect();
        let reads = Arc::new(AtomicUsize::new(0));
        let counting = |part: &Vec<u8>| -> SharedView {
            Arc::new(Counting(Bytes(part.as_slice().into()), reads.clone()))
        };
        let join = Concat::new(parts.iter().map(counting).collect(), outer as u64);
        let row: usize = widths.iter().sum();
        let len = want.len();
        for (from, to) in [
            (0, len),
            (1, len - 1),
            (row - 1, row + 1),
            (len - 1, len),
            (row, 2 * row),
            (2 * row + 5, 4 * row + 3),
            (len / 2, len / 2),
        ] {
            reads.store(0, Ordering::Relaxed);
            let mut got = vec![0xAA; to - from];
            join.read_at(from as u64, &mut got).unwrap();
            assert!(got == want[from..to], "{widths:?} {from}..{to}");
            assert!(reads.load(Ordering::Relaxed) <= most_reads, "{widths:?}");
        }
    }
}

/// The ranges that are read of some bytes.
struct Recording(Bytes, Arc<Mutex<Vec<(u64, u64)>>>);

impl View for Recording {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let range = (offset, offset + buf.len() as u64);
        self.1.lock().unwrap().push(range);
        self.0.read_at(offset, buf)
    }
}

/// Any range of bytes of an `f32`, of more blocks than are decoded at a time.
#[test]
fn a_range_of_values_reads_the_blocks_that_it_touches() {
    for (number, count) in [(8, 5000), (14, 700)] {
        let Some(ElementType::Block(block)) = ggml::from_number(number) else {
            panic!("type {number} has blocks");
        };
        let (elements, size) = (block.elements as usize, block.bytes as usize);
        let bytes: Vec<u8> = (0..count * size).map(|i| (i * i / 7 + i) as u8).collect();
        let mut whole = vec![0.0; count * elements];
        block.decode.unwrap()(&bytes, &mut whole);
        let want: &[u8] = bytemuck::cast_slice(&whole);

        let reads = Arc::new(Mutex::new(Vec::new()));
        let source = Recording(Bytes(bytes.into()), reads.clone());
        let view = Cast::view(Arc::new(source), ElementType::Block(block)).unwrap();
        assert_eq!(view.len(), want.len() as u64);
        let of_block = 4 * elements;
        let lengths = [1, 3, 4, of_block - 4, of_block, of_block + 8, 4096, 300_000];
        for at in [0, 1, 4, of_block - 1, of_block, 7 * of_block + 12, 250_001] {
            for len in lengths {
                let end = (at + len).min(want.len());
                // At an odd address, too.
                for shift in [0, 1] {
                    let mut got = vec![0; shift + end - at];
                    view.read_at(at as u64, &mut got[shift..]).unwrap();
                    assert!(got[shift..] == want[at..end], "{} {at}..{end}", block.name);
                    let mut ranges = std::mem::take(&mut *reads.lock().unwrap());
                    ranges.sort();
                    let touched = (at / of_block * size, end.div_ceil(of_block) * size);
                    let touched = (touched.0 as u64, touched.1 as u64);
                    let found = (ranges[0].0, ranges[ranges.len() - 1].1);
                    assert_eq!(found, touched, "{} {at}..{end}", block.name);
                }
            }
        }
    }
}
