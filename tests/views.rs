//! Compares every view with an eager model that computes the whole naively: any range of the view
//! must equal the same range of the model.

mod common;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{DTYPES, ModelDir, T, naive, noise, tensor};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use safetensors::Dtype;
use stfs::catalog::{Extent, LocalFile, OpenOptions};
use stfs::model::{Model, ModelOptions};
use stfs::view::{Bytes, Cast, Concat, Npy, SharedView, StoredBytes, View, read_all};

/// Each read's start, which of the odd lengths it has, and the misalignment of its buffer.
type Reads = Vec<(Index, Index, usize)>;

fn reads() -> impl Strategy<Value = Reads> {
    prop::collection::vec((any::<Index>(), any::<Index>(), 0..4usize), 12)
}

/// Compares a view with its bytes, for those reads and as a whole.
fn check(view: &dyn View, want: &[u8], reads: &Reads) {
    assert_eq!(view.len(), want.len() as u64);
    assert_eq!(view.is_empty(), want.is_empty());
    assert!(view.grain() >= 1);
    assert_eq!(read_all(view).unwrap(), want);
    for (at, len, shift) in reads {
        let from = at.index(want.len() + 1);
        let len = [1, 7, 70_000, len.index(300), len.index(want.len() + 1)][len.index(5)];
        let range = from..want.len().min(from + len);
        let mut buffer = vec![0xAA; range.len() + shift];
        view.read_at(from as u64, &mut buffer[*shift..]).unwrap();
        assert_eq!(buffer[*shift..], want[range.clone()], "{range:?}");
        check_piece(view, want, range);
    }
}

/// Checks that a zero-copy piece, if there is one, holds the same bytes.
fn check_piece(view: &dyn View, want: &[u8], range: Range<usize>) {
    if let Some(piece) = view.piece(range.start as u64, range.len()) {
        let mut file = tempfile::tempfile().unwrap();
        piece.write_to(&file, "the test's file").unwrap();
        let mut got = Vec::new();
        std::io::Seek::rewind(&mut file).unwrap();
        std::io::Read::read_to_end(&mut file, &mut got).unwrap();
        assert_eq!(got, want[range.clone()], "piece {range:?}");
    }
}

/// Bytes as an extent of a file, after `before` others.
fn stored(dir: &Path, before: usize, data: &[u8]) -> SharedView {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let path = dir.join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
    let mut bytes = noise(1, before);
    bytes.extend_from_slice(data);
    bytes.extend_from_slice(&noise(2, 9));
    std::fs::write(&path, bytes).unwrap();
    Arc::new(StoredBytes(Extent {
        file: LocalFile::open(&path).unwrap(),
        offset: before as u64,
        len: data.len() as u64,
    }))
}

fn ours(dtype: Dtype) -> stfs::dtype::Dtype {
    stfs::dtype::Dtype::from_name(&dtype.to_string()).unwrap()
}

/// Checks the `f32` of stored bytes.
fn check_f32(view: &dyn View, dtype: Dtype, data: &[u8], reads: &Reads) {
    let want = naive::f32_bytes(dtype, data).unwrap();
    let got = read_all(view).unwrap();
    assert!(naive::same_f32(dtype, &got, &want), "{dtype}");
    check(view, &got, reads);
}

/// Elements of sub-byte dtypes come four at a time.
fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 1..200usize, 20_000..50_000usize].prop_map(|n| n * 4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn stored_bytes_and_casts(dtype in select(&DTYPES[..]), n in sizes(), before in 0..99usize, reads in reads()) {
        let dir = tempfile::tempdir().unwrap();
        let data = noise(n as u64, n * dtype.bitsize() / 8);
        let raw = stored(dir.path(), before, &data);
        check(&*raw, &data, &reads);
        check(&Bytes(data.clone().into()), &data, &reads);
        match Cast::view(raw, ours(dtype)) {
            Some(view) => check_f32(&*view, dtype, &data, &reads),
            None => prop_assert_eq!(dtype, Dtype::C64),
        }
    }

    #[test]
    fn concat_along_any_axis(
        dims in prop::collection::vec(1..5usize, 1..4),
        axis in any::<Index>(),
        extents in prop::collection::vec(0..6usize, 1..5),
        width in select(&[1usize, 2, 4, 8][..]),
        reads in reads(),
    ) {
        let axis = axis.index(dims.len());
        let dir = tempfile::tempdir().unwrap();
        let arrays: Vec<Array> = extents.iter().enumerate().map(|(i, &e)| {
            let mut shape = dims.clone();
            shape[axis] = e;
            Array::noise(i as u64, shape, width)
        }).collect();
        let want = Array::concatenate(&arrays, axis);
        let views = |arrays: &[Array]| -> Vec<SharedView> {
            arrays.iter().enumerate().map(|(i, a)| stored(dir.path(), i, &a.data)).collect()
        };
        let outer = dims[..axis].iter().product::<usize>() as u64;
        let concat: SharedView = Arc::new(Concat::new(views(&arrays), outer));
        check(&*concat, &want.data, &reads);
        // Joins of joins: the last part is itself one, of two halves.
        let nested: Vec<SharedView> = vec![
            Arc::new(Concat::new(views(&arrays[..1]), outer)),
            Arc::new(Concat::new(views(&arrays[1..]), outer)),
        ];
        check(&Concat::new(nested, outer), &want.data, &reads);
        // Stacked, and with a header before.
        let twice: SharedView = Arc::new(Concat::new(vec![concat.clone(), concat], 1));
        let mut whole = naive::npy_header("|u1", &[2, want.data.len()]);
        whole.extend_from_slice(&want.data);
        whole.extend_from_slice(&want.data);
        check(&Npy::new("|u1", &[2, want.data.len() as u64], twice), &whole, &reads);
    }

    #[test]
    fn npy_over_cast_over_concat(dtype in select(&DTYPES[..]), rows in prop::collection::vec(0..40usize, 1..4), reads in reads()) {
        prop_assume!(dtype != Dtype::C64);
        let dir = tempfile::tempdir().unwrap();
        let parts: Vec<Vec<u8>> = rows.iter().map(|r| noise(*r as u64, r * 16 * dtype.bitsize() / 8)).collect();
        let views = parts.iter().enumerate().map(|(i, p)| stored(dir.path(), i, p)).collect();
        let cast = Cast::view(Arc::new(Concat::new(views, 1)), ours(dtype)).unwrap();
        check_f32(&*cast, dtype, &parts.concat(), &reads);
        let n = rows.iter().sum::<usize>();
        let mut want = naive::npy_header("<f4", &[n, 16]);
        want.extend_from_slice(&read_all(&*cast).unwrap());
        check(&Npy::new("<f4", &[n as u64, 16], cast), &want, &reads);
    }
}

/// An array, element by element.
struct Array {
    shape: Vec<usize>,
    width: usize,
    data: Vec<u8>,
}

impl Array {
    fn noise(seed: u64, shape: Vec<usize>, width: usize) -> Array {
        let data = noise(seed, shape.iter().product::<usize>() * width);
        Array { shape, width, data }
    }

    fn element(&self, index: &[usize]) -> &[u8] {
        let flat = index.iter().zip(&self.shape).fold(0, |n, (i, d)| n * d + i);
        &self.data[flat * self.width..][..self.width]
    }

    /// Each element of the result, looked up where it comes from.
    fn concatenate(parts: &[Array], axis: usize) -> Array {
        let mut shape = parts[0].shape.clone();
        shape[axis] = parts.iter().map(|p| p.shape[axis]).sum();
        let mut data = Vec::new();
        for flat in 0..shape.iter().product() {
            let (mut rest, mut index) = (flat, vec![0; shape.len()]);
            for d in (0..shape.len()).rev() {
                (index[d], rest) = (rest % shape[d], rest / shape[d]);
            }
            let mut part = 0;
            while index[axis] >= parts[part].shape[axis] {
                index[axis] -= parts[part].shape[axis];
                part += 1;
            }
            data.extend_from_slice(parts[part].element(&index));
        }
        let width = parts[0].width;
        Array { shape, width, data }
    }
}

/// A layer's projections: dtype, rows of q, k, v (or gate and up), columns, experts.
#[derive(Debug, Clone)]
struct Layer {
    dtype: Dtype,
    rows: [usize; 3],
    columns: usize,
    experts: usize,
    bias: bool,
}

fn layer() -> impl Strategy<Value = Layer> {
    let dtype = select(&DTYPES[..]);
    (dtype, any::<[u8; 3]>(), 1..9usize, 0..4usize, any::<bool>()).prop_map(
        |(dtype, rows, columns, experts, bias)| Layer {
            dtype,
            // Multiples of 4, so that every dtype's rows and biases are whole bytes.
            rows: rows.map(|r| usize::from(r % 10) * 4),
            columns: columns * 4,
            experts,
            bias,
        },
    )
}

/// The layer's stored tensors, and the names and arrays of what is to be made of them.
fn tensors(at: usize, l: &Layer) -> (Vec<T>, Vec<T>) {
    let (mut all, mut made) = (Vec::new(), Vec::new());
    let join = |name: String, parts: &[T]| {
        // In C order, joined rows simply follow one another.
        let mut shape = parts[0].shape.clone();
        shape[0] = parts.iter().map(|p| p.shape[0]).sum();
        let data = parts.iter().flat_map(|p| p.data.clone()).collect();
        let dtype = l.dtype;
        T {
            name,
            dtype,
            shape,
            data,
        }
    };
    for s in if l.bias {
        &["weight", "bias"][..]
    } else {
        &["weight"]
    } {
        let shape = |rows| {
            if *s == "weight" {
                vec![rows, l.columns]
            } else {
                vec![rows]
            }
        };
        let parts: Vec<T> = ["q", "k", "v"]
            .iter()
            .zip(l.rows)
            .map(|(p, r)| tensor(&format!("l.{at}.{p}_proj.{s}"), l.dtype, &shape(r)))
            .collect();
        made.push(join(format!("l.{at}.qkv_proj.{s}"), &parts));
        all.extend(parts);
    }
    let (mut ups, mut downs) = (Vec::new(), Vec::new());
    for e in 0..l.experts {
        let name = |p: &str| format!("l.{at}.experts.{e}.{p}.weight");
        let shape = [l.rows[0], l.columns];
        let pair = ["gate_proj", "up_proj"].map(|p| tensor(&name(p), l.dtype, &shape));
        let down = tensor(&name("down_proj"), l.dtype, &[l.columns, l.rows[0]]);
        ups.push(join(name("gate_up_proj"), &pair));
        downs.push(down.clone());
        all.extend(pair);
        all.push(down);
    }
    for (what, parts) in [("gate_up_proj", &ups), ("down_proj", &downs)] {
        if let Some(first) = parts.first() {
            let mut stack = join(format!("l.{at}.experts.{what}"), parts);
            stack.shape = [&[l.experts], &first.shape[..]].concat();
            made.push(stack);
        }
    }
    made.extend(ups);
    (all, made)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn all_tensors_of_a_random_model(layers in prop::collection::vec(layer(), 1..4), shards in 1..4usize, reads in reads()) {
        let (mut stored, mut want) = (Vec::new(), BTreeMap::new());
        for (at, l) in layers.iter().enumerate() {
            let (all, made) = tensors(at, l);
            want.extend(made.into_iter().chain(all.clone()).map(|t| (t.name.clone(), t)));
            stored.extend(all);
        }
        let dir = ModelDir::new();
        for s in 0..shards {
            let part: Vec<T> = stored.iter().skip(s).step_by(shards).cloned().collect();
            dir.shard(&format!("m-{s}.safetensors"), &part);
        }
        let model = Model::open(dir.path(), OpenOptions::default(), ModelOptions::default()).unwrap();
        let mut names: Vec<&str> = model.listing().iter().map(|&id| model.name(id)).collect();
        names.sort_unstable();
        prop_assert_eq!(names, want.keys().map(String::as_str).collect::<Vec<_>>());
        for &id in model.listing() {
            let t = &want[model.name(id)];
            let got = model.tensor(id).unwrap();
            let shape: Vec<usize> = got.shape.iter().map(|&d| d as usize).collect();
            prop_assert_eq!(&shape, &t.shape, "{}", t.name);
            check(&*model.raw(id).unwrap(), &t.data, &reads);
            let f32 = model.f32(id).unwrap();
            if let Some(view) = &f32 {
                check_f32(&**view, t.dtype, &t.data, &reads);
            }
            prop_assert_eq!(f32.is_none(), t.dtype == Dtype::C64);
            let npy = model.npy(id).unwrap().unwrap();
            let (descr, body) = match naive::descr(t.dtype) {
                Some(d) => (d, t.data.clone()),
                None => ("<f4", read_all(&*f32.unwrap()).unwrap()),
            };
            check(&*npy, &[naive::npy_header(descr, &t.shape), body].concat(), &reads);
        }
    }
}

/// Counts the bytes that are read from it.
struct Counting(Arc<AtomicU64>, u64);

impl View for Counting {
    fn len(&self) -> u64 {
        self.1
    }
    fn read_at(&self, _offset: u64, buf: &mut [u8]) -> stfs::Result<()> {
        self.0.fetch_add(buf.len() as u64, Ordering::Relaxed);
        buf.fill(0);
        Ok(())
    }
}

#[test]
fn nothing_is_read_before_it_is_asked_for_nor_beside_it() {
    let counts: Vec<Arc<AtomicU64>> = (0..3).map(|_| Arc::default()).collect();
    let parts = counts
        .iter()
        .map(|c| Arc::new(Counting(c.clone(), 1 << 20)) as SharedView)
        .collect();
    let joined: SharedView = Arc::new(Concat::new(parts, 1));
    let cast = Cast::view(joined, stfs::dtype::Dtype::BF16).unwrap();
    let npy = Npy::new("<f4", &[3 << 19], cast);
    let read = || -> Vec<u64> { counts.iter().map(|c| c.load(Ordering::Relaxed)).collect() };
    assert_eq!(npy.len(), 128 + (6 << 20));
    assert_eq!(read(), [0, 0, 0]);
    npy.read_at(0, &mut [0; 128]).unwrap();
    assert_eq!(read(), [0, 0, 0]);
    // 4 KiB of the second part's floats, and one byte of the last.
    npy.read_at(128 + (2 << 20), &mut vec![0; 4096]).unwrap();
    assert_eq!(read(), [0, 2048, 0]);
    npy.read_at(127 + (6 << 20), &mut [0]).unwrap();
    assert_eq!(read(), [0, 2048, 2]);
}
