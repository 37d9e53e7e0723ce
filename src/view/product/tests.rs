//! The product of matrices is the sum from the front, whatever part of it is read, and the bytes that it takes of
//! its operands are counted.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::patience::{Patience, attempt, with};
use crate::simd::plainly;
use crate::view::{Bytes, read_all};

/// Values that count the bytes that are read of them.
struct Counting(Bytes, Arc<AtomicU64>);

impl View for Counting {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.1.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.0.read_at(offset, buf)
    }
}

struct Matrix {
    values: Vec<f32>,
    read: Arc<AtomicU64>,
}

impl Matrix {
    fn new(rows: usize, columns: usize, seed: u32) -> Matrix {
        let value = |i: u32| {
            let bits = i.wrapping_add(seed).wrapping_mul(0x9E37_79B1);
            f32::from_bits(bits & 0x80ff_ffff | 0x3e00_0000)
        };
        Matrix {
            values: (0..(rows * columns) as u32).map(value).collect(),
            read: Arc::default(),
        }
    }

    fn view(&self) -> SharedView {
        let bytes = Bytes(bytemuck::cast_slice(&self.values).into());
        Arc::new(Counting(bytes, self.read.clone()))
    }

    /// Bytes that were read since the last call.
    fn taken(&self) -> u64 {
        self.read.swap(0, Ordering::Relaxed)
    }
}

fn naive(a: &Matrix, b: &Matrix, k: usize, n: usize) -> Vec<f32> {
    let row = |a: &[f32]| -> Vec<f32> {
        let value = |column: usize| {
            let terms = a.iter().zip(b.values[column..].iter().step_by(n));
            terms.fold(-0.0, |sum, (a, b)| sum + a * b)
        };
        (0..n).map(value).collect()
    };
    a.values.chunks(k).flat_map(row).collect()
}

fn product_of(a: &Matrix, b: &Matrix, m: usize, k: usize, n: usize) -> SharedView {
    Product::view(a.view(), b.view(), m as u64, k as u64, n as u64).unwrap()
}

#[test]
fn products_are_added_from_the_front() {
    let shapes = [
        (1, 1, 1),
        (3, 2, 5),
        (9, 16, 33),
        (4, 64, 16),
        (130, 7, 100),
        (6, 1024, 20),
        (40, 3, 1),
    ];
    for (m, k, n) in shapes {
        let (a, b) = (Matrix::new(m, k, 1), Matrix::new(k, n, 777));
        let want = naive(&a, &b, k, n);
        let view = product_of(&a, &b, m, k, n);
        let all = read_all(&*view).unwrap();
        assert!(all == bytemuck::cast_slice::<f32, u8>(&want), "{m} {k} {n}");
        let again = plainly(|| read_all(&*product_of(&a, &b, m, k, n)).unwrap());
        assert!(again == all, "{m} {k} {n}");
        // Each of a view that keeps nothing yet, and of one that keeps all.
        let ends = [
            0,
            1,
            4 * n - 4,
            4 * n,
            4 * n + 8,
            all.len() / 2 + 2,
            all.len(),
        ];
        for from in ends {
            for to in ends.into_iter().filter(|&to| from < to && to <= all.len()) {
                for view in [&view, &product_of(&a, &b, m, k, n)] {
                    let mut got = vec![0xAA; to - from];
                    view.read_at(from as u64, &mut got).unwrap();
                    assert!(got == all[from..to], "{m} {k} {n}: {from}..{to}");
                }
            }
        }
    }
}

#[test]
fn sums_begin_with_plus_zero_and_are_not_fused() {
    let of = |a: &[f32], b: &[f32]| {
        let [a, b] = [a, b].map(|v| Arc::new(Bytes(bytemuck::cast_slice(v).into())));
        let k = a.len() / 4;
        let view = Product::view(a, b, 1, k, 1).unwrap();
        let bytes = read_all(&*view).unwrap();
        f32::from_le_bytes(bytes.try_into().unwrap())
    };
    assert_eq!(of(&[-0.0], &[1.0]).to_bits(), (-0.0f32).to_bits());
    assert_eq!(of(&[1e30, 1.0, -1e30], &[1.0; 3]), 0.0, "from the front");
    // 1 + 2^-12 squared is rounded before 1 is subtracted.
    let near = 1.0 + 2f32.powi(-12);
    assert_eq!(of(&[near, -1.0], &[near, 1.0]), near * near - 1.0);
    assert_eq!(of(&[], &[]).to_bits(), 0);
}

/// A row of the result takes the row of `a`; `b` is kept when what was read of it comes to all of it.
#[test]
fn a_small_read_takes_columns_and_a_reader_in_order_reads_once() {
    let (m, k, n) = (64, 16, 4096);
    let (a, b) = (Matrix::new(m, k, 1), Matrix::new(k, n, 2));
    let view = product_of(&a, &b, m, k, n);
    let read = |at: usize, count: usize| {
        let mut buf = vec![0; 4 * count];
        view.read_at(4 * at as u64, &mut buf).unwrap();
        (a.taken(), b.taken())
    };
    // 4 KiB in the middle of a row.
    let (of_a, of_b) = (4 * k as u64, 4 * (k * 1024) as u64);
    assert_eq!(read(5 * n + 1024, 1024), (of_a, of_b));
    assert_eq!(read(7 * n, 1024), (of_a, of_b));
    assert_eq!(read(9 * n, 1024), (of_a, of_b));
    assert_eq!(read(3 * n, 1024), (of_a, 4 * of_b), "all of it");
    for row in 0..m {
        assert_eq!(read(row * n, n), (of_a, 0));
    }
    let opened = view.opened().unwrap();
    let all = read_all(&*opened).unwrap();
    assert_eq!((a.taken(), b.taken()), (4 * (m * k) as u64, 4 * of_b));
    assert!(all == read_all(&*view).unwrap());
}

#[test]
fn a_large_matrix_is_not_kept() {
    let (m, k, n) = (3, 1024, 4200);
    let (a, b) = (Matrix::new(m, k, 1), Matrix::new(k, n, 2));
    let view = product_of(&a, &b, m, k, n);
    let all = read_all(&*view).unwrap();
    assert_eq!(
        (a.taken(), b.taken()),
        (4 * (m * k) as u64, 4 * (k * n) as u64)
    );
    assert!(all == bytemuck::cast_slice::<f32, u8>(&naive(&a, &b, k, n)));
    let mut one = [0; 4];
    view.read_at(4 * 5000, &mut one).unwrap();
    assert_eq!(one, all[4 * 5000..][..4]);
    assert_eq!(b.taken(), 4 * k as u64);
}

#[test]
fn a_request_thread_makes_no_large_product() {
    let (a, b) = (Matrix::new(512, 64, 1), Matrix::new(64, 512, 2));
    let view = product_of(&a, &b, 512, 64, 512);
    let read = |len: usize| {
        let mut buf = vec![0; len];
        let read = || view.read_at(0, &mut buf).is_ok();
        with(Patience::Sources, || attempt(read))
    };
    assert_eq!(read(4096), (true, false));
    assert_eq!(read(512 * 512 * 4), (false, true));
}

#[test]
fn matrices_must_fit() {
    let bytes = |n: usize| -> SharedView { Arc::new(Bytes(vec![0; 4 * n].into())) };
    let of = |a, b, m, k, n| Product::view(bytes(a), bytes(b), m, k, n).is_some();
    assert!(of(6, 12, 2, 3, 4) && of(0, 12, 0, 3, 4) && of(0, 0, 2, 0, 4));
    assert!(!of(6, 12, 2, 4, 3) && !of(5, 12, 2, 3, 4));
    assert!(
        !of(0, 0, 1 << 40, 0, 1 << 40),
        "more values than there can be"
    );
    assert!(!of(1025, 1025, 1, 1025, 1) && of(1024, 1024, 1, 1024, 1));
    let empty = Product::view(bytes(0), bytes(0), 2, 0, 4).unwrap();
    assert_eq!(read_all(&*empty).unwrap(), [0; 32]);
}
