//! Gathering: the elements are those of a naive gather, for any layout and any reader, and the reads that it
//! takes are counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use proptest::prelude::*;

use super::*;
use crate::patience::{Patience, attempt, with};
use crate::view::tile_cache::FILLED;
use crate::view::{Bytes, read_all};

/// Bytes that count what is read of them, and record what is announced.
struct Source {
    bytes: Vec<u8>,
    read: AtomicU64,
    reads: AtomicU64,
    announced: Mutex<Vec<Range<u64>>>,
}

impl Source {
    fn new(len: usize) -> Arc<Source> {
        Arc::new(Source {
            bytes: (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect(),
            read: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            announced: Mutex::default(),
        })
    }

    /// Bytes and reads since the last call.
    fn taken(&self) -> (u64, u64) {
        (
            self.read.swap(0, Ordering::Relaxed),
            self.reads.swap(0, Ordering::Relaxed),
        )
    }
}

impl View for Source {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
        let start = offset as usize;
        buf.copy_from_slice(&self.bytes[start..start + buf.len()]);
        Ok(())
    }

    fn will_need(&self, ranges: &[Range<u64>]) {
        assert!(ranges.iter().all(|range| range.end <= self.len()));
        self.announced.lock().unwrap().extend_from_slice(ranges);
    }
}

fn layout(element: u32, shape: &[u64], strides: &[u64]) -> Layout {
    Layout {
        element,
        shape: shape.into(),
        strides: strides.into(),
        swap: Swap::Nothing,
    }
}

/// Bytes of a source that the layout needs.
fn needs(layout: &Layout) -> usize {
    if layout.shape.contains(&0) {
        return 0;
    }
    let dims = layout.shape.iter().zip(&*layout.strides);
    let last: u64 = dims.map(|(size, stride)| (size - 1) * stride).sum();
    ((last + 1) * u64::from(layout.element)) as usize
}

/// Element by element, in C order.
fn naive(source: &[u8], layout: &Layout) -> Vec<u8> {
    let numel: u64 = layout.shape.iter().product();
    let mut out = Vec::new();
    for i in 0..numel {
        let (mut left, mut at) = (i, 0);
        for (&size, &stride) in layout.shape.iter().zip(&*layout.strides).rev() {
            at += left % size * stride;
            left /= size;
        }
        let element = layout.element as usize;
        let mut bytes = source[at as usize * element..][..element].to_vec();
        if let Swap::Groups(width) = layout.swap {
            bytes.chunks_mut(width as usize).for_each(<[u8]>::reverse);
        }
        out.extend(bytes);
    }
    out
}

/// A gathered view, its source, and the bytes that it must have.
fn gathered(layout: &Layout) -> (Gathered, Arc<Source>, Vec<u8>) {
    let source = Source::new(needs(layout));
    let want = naive(&source.bytes, layout);
    (Gathered::new(source.clone(), layout.clone()), source, want)
}

/// Any layout of up to some 10,000 elements: permuted, sliced, expanded, overlapping, in any mixture.
fn any_layout() -> impl Strategy<Value = Layout> {
    let swaps = [(1, 1), (2, 1), (2, 2), (4, 1), (4, 4), (4, 2)];
    let more = [(8, 1), (8, 8), (8, 4), (16, 1), (16, 8)];
    let element = prop::sample::select([&swaps[..], &more[..]].concat());
    let sizes = prop::sample::select(vec![1u64, 1, 2, 3, 5, 8, 9, 17, 40]);
    let dims = prop::collection::vec((sizes, any::<(u8, u16)>()), 0..6);
    (element, dims, any::<u64>()).prop_map(|((element, swap), dims, order)| {
        let mut numel = 1;
        let dims = dims.into_iter().filter(|(size, _)| {
            numel *= size;
            numel <= 10_000
        });
        let dims: Vec<_> = dims.collect();
        // Distances are those of a contiguous tensor with its dimensions in any order, with gaps.
        let mut places: Vec<usize> = (0..dims.len()).collect();
        places.sort_by_key(|&i| (order.rotate_left(7 * i as u32)) % 101);
        let (mut strides, mut next) = (vec![0; dims.len()], 1u64);
        for i in places {
            let (size, (kind, any)) = dims[i];
            let gap = match kind % 8 {
                0 => u64::from(any % 30),
                1 => u64::from(any % 900),
                _ => 0,
            };
            next += gap;
            strides[i] = match kind / 8 % 8 {
                0 => 0,
                1 => u64::from(any) % 7,
                _ => next,
            };
            if size == 1 {
                strides[i] = u64::from(any);
            } else if strides[i] == next && next * size < 1 << 21 {
                next *= size;
            }
        }
        let strides: Vec<u64> = strides;
        let shape: Vec<u64> = dims.iter().map(|(size, _)| *size).collect();
        let strides = strides
            .iter()
            .zip(&shape)
            .map(|(&stride, &size)| match size {
                1 => stride % 1000,
                _ => stride % (1 << 18),
            });
        Layout {
            element,
            strides: strides.collect(),
            shape: shape.into(),
            swap: match swap {
                1 => Swap::Nothing,
                width => Swap::Groups(width),
            },
        }
    })
}

proptest! {
    #[test]
    fn any_range_of_any_layout(
        layout in any_layout(),
        ranges in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 8),
    ) {
        let (view, _, want) = gathered(&layout);
        prop_assert_eq!(view.len(), want.len() as u64);
        prop_assert!(read_all(&view).unwrap() == want);
        for (a, b) in ranges {
            let (a, b) = (a.index(want.len() + 1), b.index(want.len() + 1));
            let (start, end) = (a.min(b), a.max(b));
            let mut got = vec![0xAA; end - start];
            view.read_at(start as u64, &mut got).unwrap();
            prop_assert!(got == want[start..end], "{start}..{end}");
            view.will_need(std::slice::from_ref(&(start as u64..end as u64)));
        }
    }

    /// A tile is the same bytes as what is read without it.
    #[test]
    fn tiles_of_any_layout(layout in any_layout(), parts in 1u64..9) {
        let (view, _, want) = gathered(&layout);
        let form = &view.of.form;
        let bytes = (form.len / parts).max(form.element);
        let tile = plan::tile_of(form, bytes);
        let step = (want.len() / 23 + 1).next_multiple_of(layout.element as usize);
        for start in (0..want.len()).step_by(step) {
            let end = (start + step).min(want.len());
            let mut got = vec![0xAA; end - start];
            view.read_tiles(tile, start as u64, &mut got).unwrap();
            prop_assert!(got == want[start..end], "{start}..{end} of {tile:?}");
        }
    }
}

#[test]
fn what_is_contiguous_is_a_piece() {
    let bytes: Arc<[u8]> = (0..240).collect();
    let piece = |layout: &Layout, at: u64, len: usize| -> Option<Vec<u8>> {
        let view = Gathered::new(Arc::new(Bytes(bytes.clone())), layout.clone());
        let piece = view.piece(at, len)?;
        // SAFETY: the bytes are in memory that nothing changes.
        Some(unsafe { piece.for_kernel() }.to_vec())
    };
    let whole = layout(4, &[3, 1, 5], &[5, 99, 1]);
    assert_eq!(piece(&whole, 7, 50).unwrap(), bytes[7..57]);
    // Rows of 8 bytes, 12 bytes apart.
    let rows = layout(4, &[5, 2], &[3, 1]);
    assert_eq!(piece(&rows, 9, 7).unwrap(), bytes[13..20]);
    assert_eq!(piece(&rows, 8, 9), None);
    assert_eq!(piece(&rows, 8, 0), None);
    let turned = layout(4, &[3, 5], &[1, 3]);
    assert_eq!(piece(&turned, 4, 4).unwrap(), bytes[12..16]);
    assert_eq!(piece(&turned, 4, 5), None);
    let swapped = Layout {
        swap: Swap::Groups(4),
        ..whole
    };
    assert_eq!(piece(&swapped, 7, 50), None);
}

/// 4096 × 4096 F32 and the like: in order, 128 KiB at a time.
#[test]
fn in_order_the_source_is_read_once() {
    let _shared = FILLED.read().unwrap_or_else(PoisonError::into_inner);
    for (element, shape, strides) in [
        (4, [1024, 2048], [1, 1024]),
        (2, [4096, 1000], [1, 4096]),
        (1, [5000, 1111], [1, 5000]),
        (16, [1000, 777], [1, 1000]),
        (4, [100_000, 60], [1, 100_000]),
        // Every second column; every second element of every second row.
        (4, [1000, 1000], [2000, 2]),
        (2, [1000, 1000], [4000, 2]),
        // One column of many.
        (4, [1, 3000], [1, 300]),
    ] {
        let layout = layout(element, &shape, &strides);
        let (view, source, want) = gathered(&layout);
        for (start, got) in [(0, 128 << 10), (0, 100_000), (0, 1 << 20)] {
            let view = view.opened().unwrap();
            source.taken();
            let mut all = Vec::new();
            let mut at = start;
            while at < want.len() {
                let mut buf = vec![0; got.min(want.len() - at)];
                view.read_at(at as u64, &mut buf).unwrap();
                all.extend(buf);
                at += got;
            }
            assert!(all == want);
            let (bytes, _) = source.taken();
            let most = source.len();
            assert!(bytes * 10 <= most * 11, "{layout:?}: {bytes} of {most}");
        }
    }
}

#[test]
fn a_small_read_at_random_reads_little() {
    let shape = [4096, 4096];
    let turned = layout(4, &shape, &[1, 4096]);
    let source = Source::new(needs(&turned));
    let view = Gathered::new(source.clone(), turned);
    for i in 0..50u64 {
        let at = i * 7_368_787 % (1 << 14) * 4096;
        let mut page = [0; 4096];
        view.read_at(at, &mut page).unwrap();
        assert_eq!(
            page[..4],
            source.bytes[view.of.form.place(at) as usize..][..4]
        );
        let (bytes, reads) = source.taken();
        assert!(bytes <= 8192 && reads <= 1024, "{bytes} in {reads}");
    }
}

#[test]
fn one_view_keeps_so_much_and_another_reader_has_its_own() {
    let _shared = FILLED.read().unwrap_or_else(PoisonError::into_inner);
    let turned = layout(8, &[4096, 4096], &[1, 4096]);
    let source = Source::new(needs(&turned));
    let row = Gathered::new(source, turned);
    let view = Gathered::open(row.of.clone());
    let kept = |view: &Gathered| view.tiles.get().map_or(0, TileCache::bytes);
    let mut buf = vec![0; 1 << 20];
    let mut most = 0;
    for at in (0..view.len()).step_by(buf.len()) {
        view.read_at(at, &mut buf).unwrap();
        most = most.max(kept(&view));
    }
    assert!((1..=64 << 20).contains(&most), "{most}");
    assert_eq!((kept(&row), view.grain()), (0, row.grain()));
}

#[test]
fn a_request_thread_makes_no_tile() {
    let _shared = FILLED.read().unwrap_or_else(PoisonError::into_inner);
    let turned = layout(4, &[2048, 2048], &[1, 2048]);
    let (view, _, want) = gathered(&turned);
    let mut buf = vec![0; 64 << 10];
    let mut impatient = |at: u64| {
        let read = || attempt(|| view.read_at(at, &mut buf)).1;
        let refused = with(Patience::Sources, read);
        (refused, !refused && buf == want[at as usize..][..64 << 10])
    };
    // A small read by itself is short work. The next one begins to read in order.
    assert_eq!(impatient(0), (false, true));
    assert_eq!(impatient(64 << 10), (true, false));
    let mut again = vec![0; 64 << 10];
    view.read_at(64 << 10, &mut again).unwrap();
    assert!(again == want[64 << 10..128 << 10]);
    // Now the tile is there, and the next read is a copy.
    assert_eq!(impatient(64 << 10), (false, true));
    assert_eq!(impatient(128 << 10), (false, true));
}

#[test]
fn one_element_fills_any_length() {
    let source = Source::new(4);
    let view = Gathered::new(source.clone(), layout(4, &[1 << 20, 1 << 20], &[0, 0]));
    assert_eq!(view.len(), 1 << 42);
    let mut buf = vec![0; 1 << 20];
    view.read_at((1 << 41) + 3, &mut buf).unwrap();
    assert!(
        buf.iter()
            .enumerate()
            .all(|(i, &b)| b == source.bytes[(i + 3) % 4])
    );
    let (bytes, reads) = source.taken();
    assert!(bytes <= 12 && reads <= 3);
    let none = Gathered::new(source, layout(4, &[3, 0], &[7, 7]));
    assert!(none.is_empty() && none.piece(0, 0).is_none());
    none.read_at(0, &mut []).unwrap();
}

#[test]
fn what_is_announced_is_what_is_read() {
    let turned = layout(4, &[300, 200], &[1, 5000]);
    let (view, source, _) = gathered(&turned);
    // Two rows: 8 bytes of each column.
    view.will_need(std::slice::from_ref(&(0..1600)));
    let announced = std::mem::take(&mut *source.announced.lock().unwrap());
    let want: Vec<_> = (0..200).map(|i| i * 20_000..i * 20_000 + 8).collect();
    assert_eq!(announced, want);
    // Reading announces what it reads, and announcing is bounded.
    view.read_at(0, &mut [0; 1600]).unwrap();
    assert_eq!(std::mem::take(&mut *source.announced.lock().unwrap()), want);
    view.will_need(&[0..240_000, 3..10_000]);
    assert!(source.announced.lock().unwrap().len() <= ANNOUNCED);
    let whole = Gathered::new(source.clone(), layout(4, &[50, 4], &[4, 1]));
    source.announced.lock().unwrap().clear();
    whole.will_need(&[5..11, 100..102]);
    assert_eq!(*source.announced.lock().unwrap(), [4..12, 100..104]);
}
