//! Random chains of operations, read at random places.

use std::sync::Arc;

use proptest::prelude::*;

use super::eager::Eager;
use super::models::{Both, Random, model};
use super::*;
use crate::view::{View, read_all};

/// The largest tensor that is made.
const MAX_NUMEL: u64 = 3000;

fn numel(shape: &[usize]) -> u64 {
    shape.iter().product::<usize>() as u64
}

fn words(shape: &[usize]) -> Vec<u64> {
    shape.iter().map(|&n| n as u64).collect()
}

/// A result both ways; `None` if the operation does not fit, which is only allowed to happen to packed types.
fn both(made: Made, eager: impl FnOnce() -> Eager, what: &str) -> Option<Both> {
    match made {
        Ok(made) => Some((made, eager())),
        Err(why) => {
            let is_packed = ["whole", "is in b", "permuted"]
                .iter()
                .any(|w| why.contains(w));
            assert!(is_packed, "{what}: {why}");
            None
        }
    }
}

fn structure(random: &mut Random, (x, e): &Both, others: &[Both]) -> Option<Both> {
    let rank = e.shape.len();
    let axis = random.below(rank as u64) as usize;
    let size = |random: &mut Random, n: usize| random.below(n as u64 + 1) as usize;
    match random.below(9) {
        0 | 1 => {
            let mut ranges = Vec::new();
            for &n in &e.shape {
                ranges.push(match random.below(4) {
                    0 if n > 0 => (random.below(n as u64) as usize, 1, 1, true),
                    1 => (0, n, 1, false),
                    2 => {
                        // Packed types: often whole units.
                        let start = size(random, n) / 4 * 4;
                        (start, (n - start) / 4 * 4, 1, false)
                    }
                    _ => {
                        let (a, b) = (size(random, n), size(random, n));
                        let (start, step) = (a.min(b), 1 + random.below(3) as usize);
                        (start, (a.max(b) - start).div_ceil(step), step, false)
                    }
                });
            }
            let range = |&(start, count, step, is_index): &(usize, usize, usize, bool)| {
                let stop = if count == 0 {
                    start
                } else {
                    start + (count - 1) * step + 1
                };
                Range {
                    start: start as u64,
                    stop: stop as u64,
                    step: step as u64,
                    is_index,
                }
            };
            let all: Vec<Range> = ranges.iter().map(range).collect();
            both(slice(x, &all), || e.slice(&ranges), "slice")
        }
        2 if rank > 0 && e.shape[axis] > 0 => {
            let n = e.shape[axis];
            let count = *random.of(&(1..=n).filter(|c| n % c == 0).collect::<Vec<_>>());
            let index = random.below(count as u64) as usize;
            let mut ranges: Vec<_> = e.shape.iter().map(|&n| (0, n, 1, false)).collect();
            ranges[axis] = (index * (n / count), n / count, 1, false);
            let made = part(x, index as i64, count as i64, axis);
            both(made, || e.slice(&ranges), "part")
        }
        3 => {
            let mut axes: Vec<usize> = (0..rank).collect();
            for i in (1..rank).rev() {
                axes.swap(i, random.below(i as u64 + 1) as usize);
            }
            both(permute(x, &axes), || e.permute(&axes), "permute")
        }
        4 if rank > 1 => {
            let mut axes: Vec<usize> = (0..rank).collect();
            axes.swap(rank - 1, rank - 2);
            both(transpose(x), || e.permute(&axes), "t")
        }
        5 => {
            let mut left = numel(&e.shape);
            let mut shape = Vec::new();
            while left > 1 {
                let factors: Vec<u64> = (1..=left).filter(|f| left.is_multiple_of(*f)).collect();
                let factor = *random.of(&factors);
                shape.push(factor as usize);
                left /= factor;
            }
            if left == 0 {
                shape = vec![2, 0];
            }
            both(reshape(x, &words(&shape)), || e.reshape(&shape), "reshape")
        }
        6.. => joined(random, (x, e), others),
        _ => None,
    }
}

fn joined(random: &mut Random, (x, e): (&Derived, &Eager), others: &[Both]) -> Option<Both> {
    let rank = e.shape.len();
    let axis = random.below(rank as u64) as usize;
    match random.below(3) {
        0 if rank > 0 => {
            let fits = |(o, other): &&Both| {
                let same = |d: usize| d == axis || other.shape[d] == e.shape[d];
                o.dtype == x.dtype && other.shape.len() == rank && (0..rank).all(same)
            };
            let fitting: Vec<&Both> = others.iter().filter(fits).collect();
            let mut parts = vec![(x.clone(), e.clone())];
            for _ in 0..random.below(3) {
                parts.push((*random.of(&fitting)).clone());
            }
            let (tensors, eagers): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
            both(
                concat(&tensors, axis),
                || Eager::concat(&eagers, axis),
                "concat",
            )
        }
        1 => {
            let fits = |(o, _): &&Both| o.dtype == x.dtype && o.shape == x.shape;
            let fitting: Vec<&Both> = others.iter().filter(fits).collect();
            let mut parts = vec![(x.clone(), e.clone())];
            for _ in 0..random.below(3) {
                parts.push((*random.of(&fitting)).clone());
            }
            let axis = random.below(rank as u64 + 1) as usize;
            let (tensors, eagers): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
            both(
                stack(&tensors, axis),
                || Eager::stack(&eagers, axis),
                "stack",
            )
        }
        2 if rank > 0 => {
            let size = e.shape[axis] + 4 * random.below(3) as usize;
            both(pad(x, size as u64, axis), || e.pad(size, axis), "pad")
        }
        _ => None,
    }
}

fn computed(random: &mut Random, (x, e): &Both, others: &[Both]) -> Option<Both> {
    if !x.dtype.has_f32() {
        let why = values(x).unwrap_err();
        assert!(why.ends_with("has no values"), "{why}");
        return None;
    }
    let ops = [
        Arithmetic::Add,
        Arithmetic::Subtract,
        Arithmetic::Multiply,
        Arithmetic::Divide,
    ];
    let narrow = [
        Dtype::F32,
        Dtype::F16,
        Dtype::BF16,
        Dtype::F8_E4M3,
        Dtype::F8_E5M2,
    ];
    let op = *random.of(&ops);
    match random.below(6) {
        0 => {
            let dtype = *random.of(&narrow);
            Some((cast(x, dtype).unwrap(), e.cast(dtype)))
        }
        1 => Some((negate(x).unwrap(), e.negate())),
        2 => {
            let number = *random.of(&[0.1f32, -3.0, 1e30, 1e-40]);
            let other = Eager::of_values(&[], &[number]);
            let tensor = Operand::Tensor(x.clone());
            let number = Operand::Number(number);
            Some(match random.below(2) {
                0 => (
                    arithmetic(op, tensor, number).unwrap(),
                    Eager::arithmetic(op, e, &other),
                ),
                _ => (
                    arithmetic(op, number, tensor).unwrap(),
                    Eager::arithmetic(op, &other, e),
                ),
            })
        }
        3 | 4 => {
            let fits = |(o, _): &&Both| {
                let is_one = o.numel() == 1 || x.numel() == 1;
                o.dtype.has_f32() && (o.shape == x.shape || is_one)
            };
            let fitting: Vec<&Both> = others.iter().filter(fits).collect();
            let (o, other) = random.of(&fitting);
            let pair = [x, o].map(|x| Operand::Tensor(x.clone()));
            let [a, b] = pair;
            Some((
                arithmetic(op, a, b).unwrap(),
                Eager::arithmetic(op, e, other),
            ))
        }
        _ if e.shape.len() == 2 => {
            let fits = |(o, other): &&Both| {
                let inner = other.shape.first() == e.shape.get(1) && other.shape.len() == 2;
                inner && o.dtype.has_f32()
            };
            let turned = (
                transpose(&values(x).unwrap()).unwrap(),
                e.cast(Dtype::F32).permute(&[1, 0]),
            );
            let mut fitting: Vec<&Both> = others.iter().filter(fits).collect();
            fitting.push(&turned);
            let (o, other) = random.of(&fitting);
            match product(x, o) {
                Ok(made) => Some((made, e.product(other))),
                Err(why) => {
                    assert!(why.contains("source elements"), "{why}");
                    None
                }
            }
        }
        _ => None,
    }
}

/// Whether bytes are the same, where NaN is NaN.
fn same(dtype: &ElementType, got: &[u8], want: &[u8]) -> bool {
    let is_nan = |bytes: &[u8]| {
        let mut value = [0f32];
        let dtype = dtype
            .known()
            .filter(|dtype| dtype.has_f32() && dtype.bits() >= 8);
        dtype.is_some_and(|dtype| {
            crate::dtype::decode::decode(dtype, bytes, 0, &mut value);
            value[0].is_nan()
        })
    };
    let width = dtype
        .known()
        .map_or(1, |dtype| (dtype.bits() as usize / 8).max(1));
    let chunks = got.chunks(width).zip(want.chunks(width));
    got.len() == want.len()
        && chunks
            .into_iter()
            .all(|(a, b)| a == b || is_nan(a) && is_nan(b))
}

fn check(random: &mut Random, sources: &Sources, (x, e): &Both) {
    let want = e
        .bytes()
        .unwrap_or_else(|| panic!("not whole: {:?} {:?}", x.dtype, x.shape));
    assert_eq!(
        (&*x.shape, x.nbytes),
        (&*words(&e.shape), want.len() as u64)
    );
    assert_eq!(x.dtype, e.dtype);
    let view = sources.view(&x.expr, "x").unwrap();
    assert_eq!(view.len(), x.nbytes);
    let all = read_all(&view).unwrap();
    assert!(same(&x.dtype, &all, &want), "{x:?}\n{all:?}\n{want:?}");
    for _ in 0..6 {
        let (a, b) = (random.below(x.nbytes + 1), random.below(x.nbytes + 1));
        let (start, end) = (a.min(b), a.max(b));
        view.will_need(std::slice::from_ref(&(start..end)));
        let mut got = vec![0xAA; (end - start) as usize];
        view.read_at(start, &mut got).unwrap();
        // The same NaN, too.
        assert!(
            got == all[start as usize..end as usize],
            "{start}..{end} of {x:?}"
        );
        if let Some(piece) = view.piece(start, got.len()) {
            // SAFETY: the bytes of these files are in memory.
            assert_eq!(unsafe { piece.for_kernel() }, got);
        }
    }
    if let Some((file, offset)) = sources.extent(&x.expr) {
        let file = &sources.models[0].model.catalog.files[file as usize];
        let mut got = vec![0; want.len()];
        file.read_at(offset, &mut got).unwrap();
        assert_eq!(got, want);
    }
    assert!(!sources.parts(&x.expr).is_empty());
    assert_eq!(sources.files_of(&x.expr), [0]);
}

/// A chain of operations on tensors of a model; the results are checked as they come.
fn chain(seed: u64, with_values: bool) {
    let mut random = Random(seed);
    let (sources, mut all) = model(&mut random);
    for _ in 0..12 {
        if all.is_empty() {
            return;
        }
        // The latest ones, so that chains get long.
        let recent = all.len().min(4) as u64;
        let at = all.len() - 1 - random.below(recent) as usize;
        let made = match with_values && random.below(2) == 0 {
            true => computed(&mut random, &all[at], &all),
            false => structure(&mut random, &all[at], &all),
        };
        if let Some(made) = made.filter(|(_, e)| numel(&e.shape) <= MAX_NUMEL) {
            check(&mut random, &sources, &made);
            all.push(made);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn structure_of_structure(seed in any::<u64>()) {
        chain(seed, false);
    }

    #[test]
    fn values_of_structure_of_values(seed in any::<u64>()) {
        chain(seed, true);
    }
}

/// Slices and permutations of one another are one strided array over the file.
#[test]
fn a_chain_of_slices_is_one_gather() {
    let bytes: Vec<u8> = (0..=255).collect();
    let x = row("x", Dtype::U8, &[4, 8, 8], Arc::new(Bytes(bytes.into())));
    let sources = sources(vec![("model", b"", vec![x])]);
    let x = leaf(&sources, 0, "x");
    let turned = permute(&x, &[1, 2, 0]).unwrap();
    let cut = slice(
        &turned,
        &[Range {
            start: 2,
            stop: 7,
            step: 2,
            is_index: false,
        }],
    )
    .unwrap();
    let again = transpose(&part(&cut, 1, 2, 1).unwrap()).unwrap();
    // An axis of two halves is still one of strides.
    let split = permute(&reshape(&again, &[3, 2, 2, 4]).unwrap(), &[2, 0, 1, 3]).unwrap();
    for made in [&turned, &cut, &again, &split] {
        let Expr::Gather(gather) = &made.expr else {
            panic!("{made:?}");
        };
        assert!(matches!(gather.of, Expr::Raw(_)), "{made:?}");
        assert_eq!(made.depth, 1);
    }
    // Back again: the tensor itself.
    let back = permute(&turned, &[2, 0, 1]).unwrap();
    assert!(matches!(back.expr, Expr::Raw(_)) && back.depth == 0);
    // Axes that follow one another are one, too.
    let three = Range {
        stop: 3,
        ..Range::all(64)
    };
    let rows = slice(&reshape(&turned, &[64, 4]).unwrap(), &[three]).unwrap();
    assert_eq!((rows.depth, &*rows.shape), (1, &[3, 4][..]));
    // An axis of one and a half runs is not: it is gathered from what was gathered.
    let odd = permute(&reshape(&again, &[8, 6]).unwrap(), &[1, 0]).unwrap();
    assert_eq!(odd.depth, 2);
}
