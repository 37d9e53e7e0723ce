//! What does not fit, and what is known of results.

use std::sync::Arc;

use super::*;
use crate::dtype::ggml;
use crate::model::Operation;

/// Tensors of zeros; the second model is `tuned`.
fn model(tensors: &[(&str, ElementType, &[u64])]) -> (Sources, Vec<Derived>) {
    let rows = || {
        let rows = tensors.iter().map(|(name, dtype, shape)| {
            let bytes = vec![0; dtype.nbytes(shape).unwrap() as usize];
            row(name, dtype.clone(), shape, Arc::new(Bytes(bytes.into())))
        });
        rows.collect()
    };
    let sources = sources(vec![("model", b"", rows()), ("tuned", b"", rows())]);
    let leaves = tensors
        .iter()
        .map(|(name, ..)| leaf(&sources, 0, name))
        .collect();
    (sources, leaves)
}

fn one(dtype: impl Into<ElementType>, shape: &[u64]) -> Derived {
    model(&[("a.weight", dtype.into(), shape)]).1.remove(0)
}

fn f32(shape: &[u64]) -> Derived {
    one(Dtype::F32, shape)
}

fn why(made: Made) -> String {
    made.unwrap_err()
}

fn add(a: &Derived, b: &Derived) -> Made {
    let [a, b] = [a, b].map(|x| Operand::Tensor(x.clone()));
    arithmetic(Arithmetic::Add, a, b)
}

#[test]
fn both_numbers_and_both_names() {
    let (sources, all) = model(&[
        ("a.weight", Dtype::F32.into(), &[4, 6]),
        ("b", Dtype::BF16.into(), &[4, 7]),
    ]);
    let (a, b) = (&all[0], &all[1]);
    let tuned = leaf(&sources, 1, "b");
    assert_eq!(
        why(add(a, &tuned)),
        "shapes differ: [4, 6] ('a.weight') and [4, 7] (tuned:'b')"
    );
    assert_eq!(
        why(part(a, 1, 4, 1)),
        "axis 1 of 'a.weight' is 6, which 4 does not divide"
    );
    assert_eq!(
        why(part(a, 4, 4, 0)),
        "there is no part 4 of 4: they are 0 to 3"
    );
    assert_eq!(why(part(a, 0, 0, 0)), "0 parts: there must be at least 1");
    assert_eq!(
        why(concat(&[a.clone(), b.clone()], 0)),
        "dtypes differ: 'a.weight' is F32, 'b' is BF16; f32(…) of both has one"
    );
    let b = values(b).unwrap();
    assert_eq!(
        why(concat(&[a.clone(), b.clone()], 0)),
        "only axis 0 may differ: [4, 6] ('a.weight') and [4, 7] (f32 of 'b')"
    );
    assert!(concat(&[a.clone(), b.clone()], 1).is_ok());
    assert_eq!(
        why(stack(&[a.clone(), b.clone()], 0)),
        "shapes differ: [4, 6] ('a.weight') and [4, 7] (f32 of 'b')"
    );
    assert_eq!(
        why(product(a, &b)),
        "inner dimensions differ, 6 and 4: [4, 6] ('a.weight') and [4, 7] (f32 of 'b')"
    );
    assert_eq!(
        why(reshape(a, &[5, 5])),
        "[4, 6] ('a.weight') has 24 elements, [5, 5] has 25"
    );
    assert_eq!(why(pad(a, 5, 1)), "axis 1 of 'a.weight' is 6, more than 5");
    assert_eq!(why(concat(&[], 0)), "nothing to join");
    let scalar = f32(&[]);
    assert_eq!(
        why(concat(std::slice::from_ref(&scalar), 0)),
        "[] ('a.weight') has no axis to join along: stack(…) makes one"
    );
    assert_eq!(
        why(transpose(&f32(&[3]))),
        "[3] ('a.weight') has fewer than two axes"
    );
    assert_eq!(
        why(permute(a, &[0, 0])),
        "[0, 0] is not an order of all axes of [4, 6] ('a.weight')"
    );
    let three = f32(&[2, 2, 2]);
    assert_eq!(
        why(product(&three, a)),
        "needs two matrices: [2, 2, 2] ('a.weight') and [4, 6] ('a.weight')"
    );
    let long = f32(&[2, 1025]);
    assert!(
        why(product(&long, &transpose(&long).unwrap()))
            .starts_with("the inner dimension is 1025, at most 1024")
    );
    assert_eq!(
        why(arithmetic(
            Arithmetic::Divide,
            Operand::Tensor(long),
            Operand::Number(-0.0)
        )),
        "division by 0"
    );
    let huge = pad(&f32(&[1, 1]), i64::MAX as u64 / 4 + 1, 0);
    assert_eq!(
        why(huge),
        "more than 9223372036854775807 bytes (made of 'a.weight')"
    );
    assert!(pad(&f32(&[1, 1]), i64::MAX as u64 / 4, 0).is_ok());
}

#[test]
fn types_without_values_and_packed_ones() {
    assert_eq!(
        why(values(&one(Dtype::C64, &[2]))),
        "'a.weight' is C64, which has no values"
    );
    let f4 = one(Dtype::F4, &[4, 6]);
    let index = |start, stop| Range {
        start,
        stop,
        step: 1,
        is_index: false,
    };
    assert!(slice(&f4, &[index(1, 3), index(2, 4)]).is_ok());
    assert_eq!(
        why(slice(&f4, &[index(0, 4), index(1, 3)])),
        "[4, 6] ('a.weight') is in bytes (2 F4 each 1), and can be cut only between them"
    );
    assert_eq!(
        why(transpose(&f4)),
        "'a.weight' is F4, which can be cut and joined, not permuted: f32(…) of it can be"
    );
    assert!(why(part(&f4, 0, 6, 1)).contains("only between"));
    assert!(pad(&f4, 8, 1).is_ok());
    assert!(why(pad(&f4, 7, 1)).contains("not whole bytes"));
    let f6 = one(Dtype::F6_E2M3, &[4, 6]);
    assert!(why(slice(&f6, &[index(0, 1)])).contains("only between"));
    assert!(slice(&f6, &[index(0, 2)]).is_ok());
    let odd = one(Dtype::F4, &[2, 3]);
    assert!(
        why(concat(&[odd.clone(), odd.clone()], 1))
            .contains("rows [3] of 'a.weight' are not whole")
    );
    assert!(concat(&[odd.clone(), odd], 0).is_ok());
    // Q8_0 has 32 values in 34 bytes.
    let q8 = ElementType::Block(match ggml::from_number(8).unwrap() {
        ElementType::Block(block) => block,
        _ => unreachable!(),
    });
    let q8 = one(q8, &[4, 2, 64]);
    let turned = permute(&q8, &[1, 0, 2]).unwrap();
    assert_eq!((&*turned.shape, turned.nbytes), (&[2, 4, 64][..], 8 * 68));
    assert!(why(transpose(&q8)).contains("not permuted along its last axis"));
    assert!(
        why(slice(&q8, &[index(0, 4), index(0, 2), index(0, 33)]))
            .contains("rows of 33 are not whole blocks of 32 Q8_0")
    );
    assert!(why(reshape(&q8, &[32, 16])).contains("rows of 16 are not whole blocks"));
    assert!(slice(&q8, &[index(1, 3), index(0, 1), index(32, 64)]).is_ok());
}

/// Elements that nothing tells the length of stay where they are: of a file with other tensors, their bytes could
/// be those of another one.
#[test]
fn elements_of_unknown_length_are_not_moved() {
    let unknown = |shape: &[u64], nbytes| Derived {
        dtype: ElementType::Other("WEIRD".into()),
        shape: shape.into(),
        nbytes,
        ..f32(&[2, 3])
    };
    let first = Range {
        is_index: true,
        ..Range::all(1)
    };
    for (shape, nbytes) in [([2, 3], 0), ([0, 3], 0), ([0, 3], 5), ([2, 3], 7)] {
        let x = unknown(&shape, nbytes);
        let all: [(&str, Made); 6] = [
            ("slice", slice(&x, &[Range::all(shape[0])])),
            ("index", slice(&x, &[Range::all(shape[0]), first])),
            ("part", part(&x, 0, 1, 0)),
            ("t", transpose(&x)),
            ("pad", pad(&x, 9, 0)),
            ("concat", concat(&[x.clone(), x.clone()], 0)),
        ];
        for (by, made) in all {
            let why = why(made);
            assert!(
                why.contains("does not know the dtype 'WEIRD'"),
                "{by}: {why}"
            );
            let both = format!(
                "{nbytes} bytes do not tell how long each of its {} ",
                x.numel()
            );
            assert!(why.contains(&both), "{by}: {why}");
        }
    }
    let x = unknown(&[2, 3], 12);
    assert_eq!(slice(&x, &[first]).unwrap().nbytes, 6);
    let longer = unknown(&[2, 3], 24);
    assert_eq!(
        why(stack(&[x, longer], 0)),
        "elements of the unknown dtype 'WEIRD' have 2 bytes in 'a.weight', 4 in 'a.weight'"
    );
}

/// Where bytes and shape disagree nothing is moved either, whatever the reason.
#[test]
fn bytes_that_are_not_those_of_the_shape_are_not_moved() {
    let x = Derived {
        nbytes: 0,
        ..f32(&[2, 3])
    };
    assert_eq!(why(transpose(&x)), "[2, 3] ('a.weight') has 0 bytes");
}

#[test]
fn rules_of_several_tensors_are_listed_once_in_their_order() {
    let of = |rules: &[(u16, u16)]| Derived {
        rules: rules.into(),
        ..f32(&[1])
    };
    let (a, b) = (of(&[(0, 0), (2, 1), (5, 0)]), of(&[(1, 0), (2, 1), (2, 3)]));
    let both = [(0, 0), (1, 0), (2, 1), (2, 3), (5, 0)];
    assert_eq!(*all_rules([&a, &b]), both);
    assert_eq!(*all_rules([&of(&[]), &a, &b, &a]), both);
    assert_eq!(*all_rules([]), []);
    // What has all of them is shared.
    let c = of(&[(2, 1)]);
    assert!(Arc::ptr_eq(&all_rules([&a, &c, &a]), &a.rules));
    assert!(Arc::ptr_eq(&all_rules([&c, &a]), &a.rules));
}

#[test]
fn a_number_or_one_element_meets_every_value() {
    let (x, one, scalar) = (f32(&[2, 3]), f32(&[1, 1, 1]), f32(&[]));
    for (a, b) in [(&x, &one), (&one, &x), (&x, &scalar), (&scalar, &x)] {
        assert_eq!(*add(a, b).unwrap().shape, [2, 3]);
    }
    assert_eq!(*add(&scalar, &one).unwrap().shape, [1, 1, 1]);
    assert_eq!(add(&one, &f32(&[0])).unwrap().nbytes, 0);
    assert!(add(&f32(&[3]), &x).is_err());
}

#[test]
fn depth_and_reach_end() {
    let x = f32(&[4]);
    let twice = |x: Derived| add(&x, &x);
    let doubled = (0..12).try_fold(x.clone(), |x, _| twice(x)).unwrap();
    assert_eq!(doubled.reach, 4096);
    assert_eq!(
        why(twice(doubled)),
        "one element would depend on 8192 source elements, at most 4096 are possible"
    );
    let more = |x: Derived| arithmetic(Arithmetic::Add, Operand::Tensor(x), Operand::Number(1.0));
    let deep = (0..64).try_fold(x.clone(), |x, _| more(x)).unwrap();
    assert!(why(more(deep)).starts_with("more than 64 views on top of one another"));
    // Slices of slices are no deeper than one.
    let cut = |x: Derived| part(&x, 0, 1, 0);
    assert_eq!((0..1000).try_fold(x, |x, _| cut(x)).unwrap().depth, 0);
}

#[test]
fn casts_to_what_holds_all_values_are_exact() {
    let exact = |from: Dtype, to: Dtype| cast(&one(from, &[4]), to).unwrap().exact;
    assert!(exact(Dtype::BF16, Dtype::F32) && exact(Dtype::F8_E4M3, Dtype::BF16));
    assert!(exact(Dtype::BF16, Dtype::BF16) && exact(Dtype::U8, Dtype::F16));
    assert!(!exact(Dtype::F16, Dtype::BF16) && !exact(Dtype::BF16, Dtype::F16));
    assert!(!exact(Dtype::F32, Dtype::BF16) && !exact(Dtype::I64, Dtype::F32));
    let x = one(Dtype::BF16, &[4, 4]);
    assert!(transpose(&x).unwrap().exact && pad(&x, 9, 0).unwrap().exact);
    assert!(!add(&x, &x).unwrap().exact && !negate(&x).unwrap().exact);
    // Of that very type: the same bytes.
    assert!(matches!(cast(&x, Dtype::BF16).unwrap().expr, Expr::Raw(_)));
}

#[test]
fn doubling_a_join_takes_little_memory() {
    let x = f32(&[0]);
    let twice = |x: Derived| concat(&[x.clone(), x], 0);
    let all = (0..60).try_fold(x, |x, _| twice(x)).unwrap();
    assert_eq!((all.nbytes, all.depth < 64), (0, true));
    let (sources, _) = model(&[("a.weight", Dtype::F32.into(), &[0])]);
    assert_eq!(sources.parts(&all.expr), [(0, 0)]);
    assert_eq!(sources.view(&all.expr, "x").unwrap().len(), 0);
}

/// The product of an adapter that has it the other way around is computed the other way around.
#[test]
fn a_product_is_transposed_by_its_operands() {
    let (sources, all) = model(&[
        ("b", Dtype::F32.into(), &[5, 3]),
        ("a", Dtype::BF16.into(), &[3, 4]),
    ]);
    let turned = transpose(&product(&all[0], &all[1]).unwrap()).unwrap();
    let Expr::Computed(computed) = &turned.expr else {
        panic!("{turned:?}");
    };
    assert_eq!(computed.operation, Operation::Product { m: 4, k: 3, n: 5 });
    assert_eq!(
        (&*turned.shape, turned.nbytes, turned.reach),
        (&[4, 5][..], 80, 6)
    );
    assert_eq!(sources.parts(&turned.expr), [(0, 0), (0, 1)]);
    // Of another shape it is not that.
    let shaped = reshape(&product(&all[0], &all[1]).unwrap(), &[4, 5]).unwrap();
    assert!(matches!(transpose(&shaped).unwrap().expr, Expr::Gather(_)));
}
