//! How fast tensors are read that are not contiguous in their storage, or stored big-endian: in order
//! from the page cache, beside the stored bytes of a contiguous tensor of the same size, measured in the
//! same round, and 4 KiB at random. The time is the thread's own, so that a busy machine distorts it less.
//!
//! `cargo bench --bench strided [-- NAME…]`; a layout is a line of [`CASES`].

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stfs::catalog::{Extent, LocalFile};
use stfs::view::{Gathered, SharedView, StoredBytes, StridedLayout, Swap, View};

#[path = "common/clock.rs"]
mod clock;

use clock::{cpu, in_order, median};

const ROUNDS: usize = 9;
/// Bytes that the reader requests at a time: as the kernel does for a reader in order.
const REQUEST: usize = 128 << 10;
const MIB: usize = 1 << 20;

/// A name, the bytes of an element, shape, strides, and the bytes that are swapped.
type Case = (&'static str, u32, &'static [u64], &'static [u64], u32);

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("transposed F32",        4, &[4096, 4096], &[1, 4096], 1),
    ("transposed BF16",       2, &[8192, 4096], &[1, 8192], 1),
    ("transposed U8",         1, &[8192, 8192], &[1, 8192], 1),
    ("transposed F64",        8, &[4096, 2048], &[1, 4096], 1),
    ("transposed C128",      16, &[2048, 2048], &[1, 2048], 1),
    ("transposed, wide",      4, &[131072, 128], &[1, 131072], 1),
    ("transposed, tall",      4, &[128, 131072], &[1, 128], 1),
    ("experts transposed",    2, &[8, 1024, 4096], &[4194304, 1, 1024], 1),
    ("channels_last F32",     4, &[2048, 1024, 3, 3], &[9216, 1, 3072, 1024], 1),
    ("HWIO of OIHW F32",      4, &[3, 3, 1024, 1024], &[3, 1, 9, 9216], 1),
    ("half of each row",      4, &[4096, 2048], &[4096, 1], 1),
    ("64 of each row",        4, &[65536, 64], &[256, 1], 1),
    ("every second element",  4, &[2048, 4096], &[8192, 2], 1),
    ("every second column of BF16", 2, &[4096, 4096], &[1, 8192], 1),
    ("expanded bias",         2, &[8192, 4096], &[0, 1], 1),
    ("expanded element",      4, &[4096, 4096], &[0, 0], 1),
    ("big-endian F32",        4, &[4096, 4096], &[4096, 1], 4),
    ("big-endian BF16",       2, &[8192, 4096], &[4096, 1], 2),
    ("big-endian, transposed", 4, &[4096, 4096], &[1, 4096], 4),
];

/// Counts what is read.
struct Counting(SharedView, AtomicU64);

impl View for Counting {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> stfs::Result<()> {
        self.1.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.0.read_at(offset, buf)
    }
    fn will_need(&self, ranges: &[Range<u64>]) {
        self.0.will_need(ranges);
    }
}

/// Bytes of the source that a layout reaches over.
fn span(case: &Case) -> u64 {
    let dims = case.2.iter().zip(case.3);
    let last: u64 = dims.map(|(size, stride)| (size - 1) * stride).sum();
    (last + 1) * u64::from(case.1)
}

fn stored(path: &Path, len: u64) -> SharedView {
    let file = LocalFile::open(path).expect("opens");
    let offset = 0;
    Arc::new(StoredBytes(Extent { file, offset, len }))
}

fn gathered(source: SharedView, (_, element, shape, strides, swap): &Case) -> Gathered {
    let layout = StridedLayout {
        element: *element,
        shape: (*shape).into(),
        strides: (*strides).into(),
        swap: match swap {
            1 => Swap::Nothing,
            width => Swap::Groups(*width),
        },
    };
    Gathered::new(source, layout)
}

/// Microseconds of a read of 4 KiB, through a reader of its own.
fn page(view: &dyn View, i: usize) -> f64 {
    let mut buf = [0; 4096];
    let at = i as u64 * 7_368_787 % (view.len() / 4096) * 4096;
    let reader = view.opened().expect("keeps tiles");
    let start = cpu();
    reader.read_at(at, &mut buf).expect("reads");
    (cpu() - start) * 1e6
}

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let chosen = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str()));
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("storage");
    let longest = CASES.iter().map(span).max().unwrap_or_default() as usize;
    let bytes: Vec<u8> = (0..longest).map(|i| (i * i / 251 + i) as u8).collect();
    std::fs::write(&path, bytes).expect("writes");
    println!("medians of {ROUNDS} rounds; source: bytes read for a byte of what is stored there");
    println!(
        "{:<30}{:>8}{:>8}{:>8}{:>8}{:>14}",
        "", "MiB", "GB/s", "/raw", "source", "random 4 KiB"
    );
    let mut buf = vec![0; REQUEST];
    for case in CASES.iter().filter(|case| chosen(case.0)) {
        let source = stored(&path, span(case));
        let view = gathered(source.clone(), case);
        let raw = stored(&path, view.len().min(longest as u64));
        let (mut speed, mut of_raw, mut pages) = (vec![], vec![], vec![]);
        for round in 0..ROUNDS {
            let base = in_order(&*raw, &mut buf);
            let reader = view.opened().expect("keeps tiles");
            let this = in_order(&*reader, &mut buf);
            speed.push(this);
            of_raw.push(this / base);
            pages.extend((0..9).map(|i| page(&view, 9 * round + i)));
        }
        let counting = Arc::new(Counting(source, AtomicU64::new(0)));
        in_order(&gathered(counting.clone(), case), &mut buf);
        let read = counting.1.load(Ordering::Relaxed) as f64;
        println!(
            "{:<30}{:>8}{:>8.2}{:>8.2}{:>8.2}{:>11.0} us",
            case.0,
            view.len() as usize / MIB,
            median(&mut speed),
            median(&mut of_raw),
            read / span(case) as f64,
            median(&mut pages),
        );
    }
}
