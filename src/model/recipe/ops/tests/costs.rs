//! What is read of the sources: the table of section 4.

use std::sync::Arc;

use super::*;
use crate::model::recipe::testing::Counted;
use crate::view::{SharedView, View};

/// A tensor of a model, and what is read of it.
struct Source {
    sources: Sources,
    counted: Vec<Arc<Counted>>,
}

impl Source {
    fn of(tensors: &[(Dtype, &[u64])]) -> Source {
        let mut counted = Vec::new();
        let rows = tensors.iter().enumerate().map(|(i, (dtype, shape))| {
            let view = Counted::new(dtype.bytes(shape.iter().product()).unwrap());
            counted.push(view.clone());
            row(&format!("t{i}"), *dtype, shape, view)
        });
        let rows = rows.collect();
        Source {
            sources: sources(vec![("model", b"", rows)]),
            counted,
        }
    }

    fn leaf(&self, number: usize) -> Derived {
        leaf(&self.sources, 0, &format!("t{number}"))
    }

    fn view(&self, x: &Derived) -> SharedView {
        let view = self.sources.view(&x.expr, "x").unwrap();
        assert_eq!(view.len(), x.nbytes);
        view
    }

    /// Reads and bytes of each source for 4 KiB of a fresh view: the most of several places.
    fn random(&self, x: &Derived) -> Vec<(u64, u64)> {
        let mut most = vec![(0, 0); self.counted.len()];
        for i in 0..9u64 {
            let view = self.view(x);
            let at = (x.nbytes - 4096) / 8 * i;
            view.read_at(at, &mut vec![0; 4096]).unwrap();
            for (most, counted) in most.iter_mut().zip(&self.counted) {
                let (reads, bytes) = counted.count();
                *most = (most.0.max(reads), most.1.max(bytes));
            }
        }
        most
    }

    /// Bytes of each source for all of it, 128 KiB at a time.
    fn in_order(&self, x: &Derived) -> Vec<u64> {
        let view = self.view(x);
        let mut buf = vec![0; 128 << 10];
        for at in (0..x.nbytes).step_by(buf.len()) {
            let n = (x.nbytes - at).min(buf.len() as u64) as usize;
            view.read_at(at, &mut buf[..n]).unwrap();
        }
        self.counted
            .iter()
            .map(|counted| counted.count().1)
            .collect()
    }
}

const KIB4: u64 = 4096;

fn range(start: u64, stop: u64) -> Range {
    Range {
        start,
        stop,
        step: 1,
        is_index: false,
    }
}

#[test]
fn rows_reshapes_and_joins_of_rows_read_what_is_asked_for() {
    let source = Source::of(&[(Dtype::BF16, &[1024, 512]), (Dtype::BF16, &[64, 512])]);
    let (x, y) = (source.leaf(0), source.leaf(1));
    let rows = slice(&x, &[range(100, 300)]).unwrap();
    let shaped = reshape(&rows, &[25, 8, 512]).unwrap();
    for x in [&x, &rows, &shaped] {
        assert_eq!(source.random(x)[0], (1, KIB4));
    }
    assert_eq!(source.in_order(&shaped), [rows.nbytes, 0]);
    let joined = concat(&[shaped, reshape(&y, &[8, 8, 512]).unwrap()], 0).unwrap();
    let padded = pad(&joined, 40, 0).unwrap();
    let most = source.random(&padded);
    assert!(
        most.iter()
            .all(|&(reads, bytes)| reads == 1 && bytes == KIB4),
        "{most:?}"
    );
    assert_eq!(source.in_order(&padded), [rows.nbytes, y.nbytes]);
    // A join in a join is one, and so is its padding.
    assert_eq!((joined.depth, padded.depth), (2, 2));
}

#[test]
fn slices_and_joins_along_later_axes_read_their_runs() {
    let source = Source::of(&[(Dtype::BF16, &[2048, 4096]), (Dtype::BF16, &[2048, 4096])]);
    let (x, y) = (source.leaf(0), source.leaf(1));
    let cut = slice(&x, &[range(0, 2048), range(1000, 3000)]).unwrap();
    // A run is 4000 bytes.
    assert_eq!(source.random(&cut)[0], (2, KIB4));
    assert_eq!(source.in_order(&cut)[0], cut.nbytes);
    let part = part(&x, 3, 4, 1).unwrap();
    assert_eq!(source.random(&part)[0], (3, KIB4));
    assert_eq!(source.in_order(&part)[0], part.nbytes);
    let joined = concat(&[x, y.clone()], 1).unwrap();
    let most = source.random(&joined);
    assert!(
        most.iter()
            .all(|&(reads, bytes)| reads <= 1 && bytes <= KIB4),
        "{most:?}"
    );
    assert_eq!(source.in_order(&joined), [y.nbytes, y.nbytes]);
}

#[test]
fn a_permutation_that_keeps_the_last_axis_reads_rows() {
    let source = Source::of(&[(Dtype::BF16, &[4096, 1024])]);
    let heads = reshape(&source.leaf(0), &[32, 2, 64, 1024]).unwrap();
    let turned = permute(&heads, &[0, 2, 1, 3]).unwrap();
    // Rows of 2 KiB.
    assert_eq!(source.random(&turned)[0], (3, KIB4));
    assert_eq!(source.in_order(&turned)[0], turned.nbytes);
}

#[test]
fn a_transposition_reads_a_band_of_columns() {
    let source = Source::of(&[(Dtype::BF16, &[2048, 4096])]);
    let turned = transpose(&source.leaf(0)).unwrap();
    let (_, bytes) = source.random(&turned)[0];
    assert!(bytes <= 8 << 20, "{bytes}");
    let read = source.in_order(&turned)[0];
    assert!(read <= turned.nbytes / 8 * 9, "{read} of {}", turned.nbytes);
}

#[test]
fn arithmetic_and_casts_read_as_many_values_of_each_operand() {
    let source = Source::of(&[(Dtype::F32, &[512, 512]), (Dtype::BF16, &[512, 512])]);
    let (x, y) = (source.leaf(0), source.leaf(1));
    let [a, b] = [&x, &y].map(|x| Operand::Tensor(x.clone()));
    let half = arithmetic(Arithmetic::Multiply, b, Operand::Number(0.5)).unwrap();
    let sum = arithmetic(Arithmetic::Add, a, Operand::Tensor(half)).unwrap();
    assert_eq!(source.random(&sum), [(1, KIB4), (1, KIB4 / 2)]);
    assert_eq!(source.in_order(&sum), [x.nbytes, y.nbytes]);
    let narrow = cast(&sum, Dtype::BF16).unwrap();
    let most = source.random(&narrow);
    assert_eq!((most[0].1, most[1].1), (2 * KIB4, KIB4));
    assert_eq!(source.in_order(&narrow), [x.nbytes, y.nbytes]);
}

#[test]
fn a_merged_adapter_reads_the_weight_once() {
    let source = Source::of(&[
        (Dtype::F32, &[1024, 2048]),
        (Dtype::F32, &[1024, 16]),
        (Dtype::F32, &[16, 2048]),
    ]);
    let (w, b, a) = (source.leaf(0), source.leaf(1), source.leaf(2));
    let product = product(&b, &a).unwrap();
    let product = Operand::Tensor(product);
    let scaled = arithmetic(Arithmetic::Multiply, Operand::Number(0.5), product).unwrap();
    let merged = arithmetic(
        Arithmetic::Add,
        Operand::Tensor(w.clone()),
        Operand::Tensor(scaled),
    );
    let merged = merged.unwrap();
    assert_eq!((merged.reach, merged.depth), (33, 3));
    let most = source.random(&merged);
    assert_eq!(most[0], (1, KIB4));
    // The rows of B that 4 KiB need, and A, which is small, as a whole.
    assert!(most[1].1 <= 2 * 64 && most[2].1 <= a.nbytes, "{most:?}");
    let all = source.in_order(&merged);
    assert_eq!(all[0], w.nbytes);
    assert!(all[1] <= b.nbytes / 8 * 9 && all[2] <= a.nbytes, "{all:?}");
}

/// Zero-copy: a range of a file stays one, however it is cut, joined and shaped.
#[test]
fn ranges_of_files_are_served_without_a_copy() {
    let file: Vec<u8> = (0..=255).collect();
    let extent = |offset| crate::catalog::RowBytes::Extent { file: 0, offset };
    let x = of_bytes("x", Dtype::U8, &[10, 10], extent(3));
    let y = of_bytes("y", Dtype::U8, &[10, 10], extent(120));
    let sources = sources(vec![
        ("model", b"none", vec![]),
        ("other", &file, vec![x, y]),
    ]);
    let [x, y] = ["x", "y"].map(|name| leaf(&sources, 1, name));
    let rows = slice(&x, &[range(2, 8)]).unwrap();
    let row = slice(
        &rows,
        &[Range {
            is_index: true,
            ..range(1, 2)
        }],
    )
    .unwrap();
    let shaped = reshape(&row, &[5, 2]).unwrap();
    assert_eq!(sources.extent(&shaped.expr), Some((1, 3 + 30)));
    assert_eq!(
        (&*shaped.shape, shaped.nbytes, shaped.depth),
        (&[5, 2][..], 10, 1)
    );
    assert!(sources.extent(&transpose(&x).unwrap().expr).is_none());
    let joined = concat(&[rows, y], 0).unwrap();
    let padded = pad(&joined, 20, 0).unwrap();
    let view = sources.view(&padded.expr, "x").unwrap();
    for (at, len, first) in [
        (0, 60, Some(23)),
        (60, 100, Some(120)),
        (59, 2, None),
        (159, 2, None),
    ] {
        let piece = view.piece(at, len);
        assert_eq!(piece.is_some(), first.is_some(), "{at}");
        if let Some((piece, first)) = piece.zip(first) {
            // SAFETY: the bytes of this file are in memory.
            assert_eq!(unsafe { piece.for_kernel() }, &file[first..first + len]);
        }
    }
}
