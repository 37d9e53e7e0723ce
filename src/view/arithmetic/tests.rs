//! Each operation is IEEE's, in the order written, wherever a read begins and ends.

use super::*;
use crate::error::Error;
use crate::patience::{Patience, attempt, with};
use crate::simd::plainly;
use crate::view::{Bytes, Gathered, StridedLayout, Swap, read_all};

const ALL: [Arithmetic; 4] = [
    Arithmetic::Add,
    Arithmetic::Subtract,
    Arithmetic::Multiply,
    Arithmetic::Divide,
];

fn of_values(values: &[f32]) -> SharedView {
    Arc::new(Bytes(bytemuck::cast_slice(values).into()))
}

fn read(view: &SharedView) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(&read_all(&**view).unwrap())
}

fn naive(op: Arithmetic, a: f32, b: f32) -> f32 {
    match op {
        Arithmetic::Add => a + b,
        Arithmetic::Subtract => a - b,
        Arithmetic::Multiply => a * b,
        Arithmetic::Divide => a / b,
    }
}

/// NaN is any NaN.
fn same(a: &[f32], b: &[f32]) -> bool {
    let is_same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    a.len() == b.len() && a.iter().zip(b).all(is_same)
}

fn two() -> (Vec<f32>, Vec<f32>) {
    let n = 2 * PIECE as u32 + 77;
    let special = [
        0.0,
        -0.0,
        1.0,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
        1e-45,
        -1e-40,
    ];
    let any = |i: u32, seed: u32| f32::from_bits(i.wrapping_add(seed).wrapping_mul(0x9E37_79B1));
    let mut a: Vec<f32> = (0..n).map(|i| any(i, 0)).collect();
    let mut b: Vec<f32> = (0..n).map(|i| any(i, 12_345)).collect();
    for (i, (a, b)) in a.iter_mut().zip(&mut b).take(64).enumerate() {
        (*a, *b) = (special[i / 8], special[i % 8]);
    }
    (a, b)
}

#[test]
fn operations_are_rounded_one_by_one() {
    let (a, b) = two();
    for op in ALL {
        let values = [&a, &b].map(|v| Operand::Values(of_values(v)));
        let [va, vb] = values;
        let view = op.view(va.clone(), vb.clone()).unwrap();
        let pairs = a.iter().zip(&b);
        let want: Vec<f32> = pairs.map(|(&a, &b)| naive(op, a, b)).collect();
        assert!(same(&read(&view), &want), "{op:?}");
        assert!(same(&plainly(|| read(&view)), &want), "{op:?}");

        let one = Operand::Values(of_values(&[0.3]));
        for with in [Operand::Number(0.3), one] {
            let right = op.view(va.clone(), with.clone()).unwrap();
            let want: Vec<f32> = a.iter().map(|&a| naive(op, a, 0.3)).collect();
            assert!(same(&read(&right), &want), "{op:?} 0.3");
            let left = op.view(with, vb.clone()).unwrap();
            let want: Vec<f32> = b.iter().map(|&b| naive(op, 0.3, b)).collect();
            assert!(same(&read(&left), &want), "0.3 {op:?}");
        }
    }
}

#[test]
fn any_range_of_bytes_is_that_of_the_whole() {
    let (a, b) = two();
    let [a, b] = [a, b].map(|v| of_values(&v));
    let sum = Arithmetic::Add.view(Operand::Values(a), Operand::Values(b));
    let view = Negated::view(sum.unwrap());
    let all = read_all(&*view).unwrap();
    let ends = [0, 1, 6, 4096, 4 * PIECE - 1, 4 * PIECE + 3, all.len()];
    for (i, &from) in ends.iter().enumerate() {
        for &to in &ends[i..] {
            let mut got = vec![0xAA; to - from];
            view.read_at(from as u64, &mut got).unwrap();
            assert!(got == all[from..to], "{from}..{to}");
        }
    }
}

#[test]
fn the_sign_is_that_of_the_other_side() {
    let view = Negated::view(of_values(&[0.0, -0.0, 1.5, f32::NEG_INFINITY]));
    assert!(same(&read(&view), &[-0.0, 0.0, -1.5, f32::INFINITY]));
    assert_eq!(read(&view)[0].to_bits(), 0x8000_0000);
}

#[test]
fn operands_must_fit_each_other() {
    let view = |n: usize| Operand::Values(of_values(&vec![2.0; n]));
    let add = |a, b| Arithmetic::Add.view(a, b);
    assert!(add(view(2), view(3)).is_none());
    assert!(add(Operand::Number(1.0), Operand::Number(1.0)).is_none());
    assert_eq!(read(&add(view(1), view(1)).unwrap()), [4.0]);
    assert_eq!(read(&add(view(1), view(3)).unwrap()), [4.0; 3]);
    assert!(add(view(0), view(1)).unwrap().is_empty());
    assert!(add(view(0), Operand::Number(1.0)).unwrap().is_empty());
}

/// As `it + it` doubled: a read of a few values of many operations.
#[test]
fn a_request_thread_is_spared_many_operations() {
    let mut view = of_values(&vec![1.0; PIECE]);
    for _ in 0..10 {
        let it = Operand::Values(view);
        view = Arithmetic::Add.view(it.clone(), it).unwrap();
    }
    let read = |len: usize| {
        let mut bytes = vec![0u8; len];
        let read = || view.read_at(0, &mut bytes).map_err(|e: Error| e.errno());
        with(Patience::Sources, || attempt(read))
    };
    assert_eq!(read(64), (Ok(()), false));
    assert_eq!(read(4 * PIECE), (Err(libc::EAGAIN), true));
}

/// Each reader has tiles of its own, however deep they are.
#[test]
fn readers_open_what_keeps_something() {
    let layout = StridedLayout {
        element: 4,
        shape: [64, 64].into(),
        strides: [1, 64].into(),
        swap: Swap::Nothing,
    };
    let stored = of_values(&vec![1.0; 64 * 64]);
    let turned: SharedView = Arc::new(Gathered::new(stored.clone(), layout));
    let add = |a: &SharedView, b| Arithmetic::Add.view(Operand::Values(a.clone()), b);
    let of_stored = add(&stored, Operand::Number(1.0)).unwrap();
    assert!(of_stored.opened().is_none());
    let of_turned = add(&of_stored, Operand::Values(turned)).unwrap();
    let opened = Negated::view(of_turned).opened().unwrap();
    assert_eq!(read(&opened), vec![-3.0; 64 * 64]);
}
