use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::dtype::Dtype;
use crate::statistics::Wide;
use crate::view::{Bytes, SharedView, View};

/// Values in memory that count the bytes read of them.
struct Counted {
    bytes: Bytes,
    read: AtomicU64,
    grain: u64,
}

impl Counted {
    fn new(values: &[f32]) -> Counted {
        Counted {
            bytes: Bytes(bytemuck::cast_slice(values).into()),
            read: AtomicU64::new(0),
            grain: 4,
        }
    }
}

impl View for Counted {
    fn len(&self) -> u64 {
        self.bytes.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.bytes.read_at(offset, buf)
    }
    fn grain(&self) -> u64 {
        self.grain
    }
}

fn subject(values: SharedView, shape: &[u64], stored_bytes: u64) -> Subject {
    Subject {
        name: "a.weight".into(),
        stored_as: "F32".into(),
        shape: shape.into(),
        values,
        wide: None,
        stored_bytes,
    }
}

/// Some values without any pattern that cells could hide.
fn noise(n: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    (0..n).map(|_| next() + next()).collect()
}

fn decode(file: &[u8]) -> (u32, u32, Vec<u8>, Vec<u8>) {
    let mut reader = ::png::Decoder::new(std::io::Cursor::new(file))
        .read_info()
        .unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    let palette = reader.info().palette.as_deref().unwrap().to_vec();
    reader.finish().unwrap();
    (info.width, info.height, palette, pixels)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Cells against the definition, one value at a time.
    #[test]
    fn cells_are_means(
        shape in prop::collection::vec(1u64..40, 0..4),
        max_rows in 1u32..20,
        max_cols in 1u32..20,
        bad in prop::collection::vec((0usize..5000, 0usize..3), 0..4),
    ) {
        let n: u64 = shape.iter().product();
        let mut values = noise(n as usize);
        for (at, kind) in bad {
            values[at % n as usize] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][kind];
        }
        let view = Arc::new(Counted::new(&values));
        let picture =
            Picture::read(&subject(view.clone(), &shape, n * 4), max_rows, max_cols).unwrap();
        let cols = shape.last().copied().unwrap_or(1);
        let rows = n / cols;
        let (r, c) = (rows.min(max_rows.into()), cols.min(max_cols.into()));
        prop_assert_eq!(picture.cells.len() as u64, r * c);
        prop_assert!(!picture.is_sample());
        for i in 0..r {
            for j in 0..c {
                let mut sum = 0.0;
                let mut count = 0.0;
                for row in i * rows / r..(i + 1) * rows / r {
                    for col in j * cols / c..(j + 1) * cols / c {
                        sum += f64::from(values[(row * cols + col) as usize]);
                        count += 1.0;
                    }
                }
                let want = sum / count;
                let got = picture.cells[(i * c + j) as usize].unwrap();
                prop_assert!(
                    (got.is_nan() && want.is_nan()) || got == want || (got - want).abs() < 1e-6,
                    "cell {i}, {j}: {got}, {want}"
                );
            }
        }
    }

    #[test]
    fn the_size_is_known_from_the_shape(shape in prop::collection::vec(0u64..1200, 0..3)) {
        let n: u64 = shape.iter().product();
        let values = noise(n as usize);
        let view = Arc::new(Counted::new(&values));
        let png = render(&subject(view.clone(), &shape, n * 4)).unwrap();
        prop_assert_eq!(png.len() as u64, png_len(&shape));
    }
}

/// A tensor that is too large to read: the budget is kept, every cell gets some values, and the means
/// are right, because equal columns have equal cells.
#[test]
fn a_sample_stays_in_its_budget_and_shows_the_same() {
    let (rows, cols) = (1500usize, 2000usize);
    let values: Vec<f32> = (0..rows * cols).map(|k| (k % cols / 40) as f32).collect();
    // 3 million values that claim to take a gigabyte: a sixteenth of them may be read.
    for grain in [4, 4 * cols as u64, 4 * 7 * cols as u64] {
        let view = Arc::new(Counted {
            grain,
            ..Counted::new(&values)
        });
        let shape = [rows as u64, cols as u64];
        let picture = Picture::read(&subject(view.clone(), &shape, 1 << 30), 50, 50).unwrap();
        assert!(picture.is_sample());
        let read = view.read.load(Ordering::Relaxed) / 4;
        assert!(read <= (rows * cols / 16) as u64, "{read} values");
        assert_eq!(read, picture.summary.count);
        for (k, cell) in picture.cells.iter().enumerate() {
            // Tiles of seven rows are too large for one in every band: some cells stay blank.
            let blank = cell.is_none() && grain > 4 * cols as u64;
            let right = *cell == Some((k % 50) as f64);
            assert!(right || blank, "grain {grain}, cell {k}: {cell:?}");
        }
    }
}

#[test]
fn the_picture_shows_what_is_there() {
    let mut values = vec![0.0f32; 64 * 64];
    for (k, v) in values.iter_mut().enumerate() {
        *v = if k % 64 < 32 { -1.0 } else { 1.0 };
    }
    values[0] = f32::NAN;
    let view = Arc::new(Counted::new(&values));
    let shape = [64, 64];
    let (width, height, palette, pixels) =
        decode(&render(&subject(view.clone(), &shape, 1)).unwrap());
    assert!(width >= 512 && height > 512);
    let color = |x: usize, y: usize| {
        let i = usize::from(pixels[y * width as usize + x]);
        [palette[3 * i], palette[3 * i + 1], palette[3 * i + 2]]
    };
    // Eight pixels a cell, from (16, 16) on.
    assert_eq!(color(17, 17), color::NAN);
    assert_eq!(color(16 + 100, 16 + 100), color::diverging(-1.0));
    assert_eq!(color(16 + 400, 16 + 400), color::diverging(1.0));
}

/// Neither the caption nor a color shows a finite value as NaN or Inf.
#[test]
fn binary64_beyond_binary32_is_finite() {
    let values = [1e300f64, -1e300, 1e-300, 0.5];
    let raw: SharedView = Arc::new(Bytes(bytemuck::cast_slice(&values).into()));
    let seen = values.map(|v| v as f32);
    let subject = Subject {
        wide: Wide::of(raw, Dtype::F64),
        ..subject(Arc::new(Counted::new(&seen)), &[2, 2], 32)
    };
    let picture = Picture::read(&subject, 2, 2).unwrap();
    assert_eq!(picture.cells, values.map(Some));
    assert_eq!((picture.summary.inf, picture.summary.zeros), (0, 0));
    let range = caption::range(&picture.summary);
    assert!(range.starts_with("min −1e300  max 1e300"), "{range}");
    render(&subject).unwrap();
}

#[test]
fn a_vast_tensor_takes_no_time_and_little_memory() {
    /// Ten gigabytes of values, generated on read.
    struct Vast;
    impl View for Vast {
        fn len(&self) -> u64 {
            10_000_000_000
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            let value = (offset / 4 / 50_000) as f32;
            buf.as_chunks_mut::<4>().0.fill(value.to_le_bytes());
            Ok(())
        }
    }
    for shape in [
        &[50_000, 50_000][..],
        &[2_500_000_000],
        &[2_500_000_000, 1],
        &[16, 156_250_000],
    ] {
        let png = render(&subject(Arc::new(Vast), shape, 5_000_000_000)).unwrap();
        assert_eq!(png.len() as u64, png_len(shape));
    }
}

#[test]
fn what_cannot_be_read_is_an_error() {
    struct Broken;
    impl View for Broken {
        fn len(&self) -> u64 {
            4000
        }
        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<()> {
            Err(crate::Error::data("a.weight", "g_idx 7 is out of range"))
        }
    }
    assert!(render(&subject(Arc::new(Broken), &[1000], 4000)).is_err());
}
