//! How fast `f32` views are read from the page cache: bytes of output per second of one core's time,
//! beside a cast of BF16 and a plain copy in memory, measured in the same round. The time is the
//! thread's own, so that a busy machine distorts it less.
//!
//! The output of every format is binary32, so a ratio to the cast is one of values per second, too. `as bf16` is the
//! rate of the same values cast to BF16, counted in values, beside that of `f32`.
//!
//! `cargo bench --bench dequant [-- NAME…]`; a format is a line of [`CASES`], and each of GGUF's
//! block types is one, too. With `GGML_QUANTS=FILE`, a library of ggml's C as `benches/ggml.sh`
//! builds it, these are also compared with it: the bits, and the time of decoding in memory.

use std::ffi::{CString, c_void};
use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Dtype as D, TensorView, serialize_to_file};
use stfs::catalog::{Catalog, OpenOptions};
use stfs::dtype::{Block, Dtype, ElementType, ggml};
use stfs::quant;
use stfs::view::{Cast, Narrow, SharedView, View};

#[path = "common/clock.rs"]
mod clock;

use clock::{cpu, in_order, median};

/// Outputs and inputs of every layer here.
const N: usize = 4096;
const K: usize = 4096;
const ROUNDS: usize = 9;
/// Bytes that the readers request at a time.
const REQUESTS: [usize; 2] = [128 << 10, 1 << 20];

type Tensors = Vec<(&'static str, D, Vec<usize>, Vec<u8>)>;

/// A name, and the tensors of one layer.
type Layer = (&'static str, fn() -> Tensors);

/// A format: its name, and what it is written from.
struct Case {
    name: String,
    model: Model,
}

#[derive(Clone, Copy)]
enum Model {
    /// The tensors of one layer, in safetensors.
    Layer(fn() -> Tensors),
    /// A tensor of a block type in a GGUF, with the type's number.
    Blocks(u32, &'static Block),
}

#[rustfmt::skip]
const CASES: &[Layer] = &[
    ("bf16 cast",           || vec![("w", D::BF16, vec![N, K], noise(2 * N * K))]),
    ("gptq 4 bits g128",    || gptq(4, 128, false)),
    ("gptq 4 act-order",    || gptq(4, 128, true)),
    ("gptq 2 bits g64",     || gptq(2, 64, false)),
    ("gptq 3 bits g128",    || gptq(3, 128, false)),
    ("gptq 8 bits g32",     || gptq(8, 32, false)),
    ("awq 4 bits g128",     || awq(128)),
    ("mlx 4 bits g64",      || mlx(4, 64)),
    ("mlx 2 bits g32",      || mlx(2, 32)),
    ("mlx 3 bits g32",      || mlx(3, 32)),
    ("mlx 5 bits g64",      || mlx(5, 64)),
    ("mlx 6 bits g128",     || mlx(6, 128)),
    ("mlx 8 bits g128",     || mlx(8, 128)),
    ("mlx mxfp4",           || mlx_float(4, 32)),
    ("mlx mxfp8",           || mlx_float(8, 32)),
    ("mlx nvfp4",           || mlx_float(4, 16)),
    ("gpt-oss",             || gpt_oss(5760, 2880)),
    ("fp8 cast",            || vec![("w", D::F8_E4M3, vec![N, K], noise(N * K))]),
    ("fp8 one scale",       || codes(D::F8_E4M3, 1, D::F32, vec![])),
    ("fp8 rows",            || codes(D::F8_E4M3, 1, D::F32, vec![N])),
    ("fp8 blocks of 128",   || codes(D::F8_E4M3, 1, D::F32, vec![N / 128, K / 128])),
    ("e5m2 blocks of 128",  || codes(D::F8_E5M2, 1, D::F32, vec![N / 128, K / 128])),
    ("fnuz blocks of 128",  || codes(D::F8_E4M3FNUZ, 1, D::F32, vec![N / 128, K / 128])),
    ("mxfp8",               || codes(D::F8_E4M3, 1, D::U8, vec![N, K / 32])),
    ("int8 rows",           || codes(D::I8, 1, D::F32, vec![N])),
    ("int8 asymmetric g128", || asymmetric(128)),
    ("mxfp4",               || codes(D::U8, 2, D::U8, vec![N, K / 32])),
    ("nvfp4",               || nvfp4()),
    ("bitsandbytes nf4",    || nf4(64, false)),
    ("bitsandbytes nested", || nf4(64, true)),
    ("bitsandbytes int8",   || int8()),
    ("packed 4 bits g128",  || packed(4, 128, false)),
    ("packed 4 asymmetric", || packed(4, 128, true)),
    ("packed 3 bits g128",  || packed(3, 128, false)),
    ("packed 8 bits g128",  || packed(8, 128, false)),
    ("packed nvfp4",        || packed_nvfp4()),
    ("packed mxfp4",        || packed_mx(4)),
    ("packed mxfp6",        || packed_mx(6)),
];

/// All formats: the layers of [`CASES`], and the block types that ggml's table has.
fn cases() -> Vec<Case> {
    let layers = CASES.iter().map(|(name, tensors)| Case {
        name: name.to_string(),
        model: Model::Layer(*tensors),
    });
    let blocks = (0..=255).filter_map(|number| match ggml::from_number(number)? {
        ElementType::Block(block) if block.decode.is_some() => Some(Case {
            name: format!("gguf {}", block.name),
            model: Model::Blocks(number, block),
        }),
        _ => None,
    });
    layers.chain(blocks).collect()
}

/// A layer as GPTQ stores it; act-order scatters the groups.
fn gptq(bits: usize, size: usize, act_order: bool) -> Tensors {
    let groups = K / size;
    let group = |k: usize| {
        if act_order {
            k * 1237 % K / size
        } else {
            k / size
        }
    };
    vec![
        (
            "l.qweight",
            D::I32,
            vec![K * bits / 32, N],
            noise(K * bits / 8 * N),
        ),
        (
            "l.qzeros",
            D::I32,
            vec![groups, N * bits / 32],
            noise(groups * N * bits / 8),
        ),
        ("l.scales", D::F16, vec![groups, N], scales(groups * N)),
        (
            "l.g_idx",
            D::I32,
            vec![K],
            (0..K)
                .flat_map(|k| (group(k) as i32).to_le_bytes())
                .collect(),
        ),
    ]
}

/// A layer as AWQ stores it.
fn awq(size: usize) -> Tensors {
    let groups = K / size;
    vec![
        ("l.qweight", D::I32, vec![K, N / 8], noise(K * N / 2)),
        (
            "l.qzeros",
            D::I32,
            vec![groups, N / 8],
            noise(groups * N / 2),
        ),
        ("l.scales", D::F16, vec![groups, N], scales(groups * N)),
    ]
}

/// An affine layer as MLX stores it, of bits and groups that need no config.
fn mlx(bits: usize, size: usize) -> Tensors {
    let per_group = |name| (name, D::F16, vec![N, K / size], scales(N * K / size));
    vec![
        (
            "l.weight",
            D::U32,
            vec![N, K * bits / 32],
            noise(N * K * bits / 8),
        ),
        per_group("l.scales"),
        per_group("l.biases"),
    ]
}

/// A layer of one of MLX's modes without biases.
fn mlx_float(bits: usize, size: usize) -> Tensors {
    vec![
        (
            "l.weight",
            D::U32,
            vec![N, K * bits / 32],
            noise(N * K * bits / 8),
        ),
        (
            "l.scales",
            D::U8,
            vec![N, K / size],
            vec![0x38; N * K / size],
        ),
    ]
}

/// One expert as gpt-oss stores it.
fn gpt_oss(n: usize, k: usize) -> Tensors {
    vec![
        ("x_blocks", D::U8, vec![1, n, k / 32, 16], noise(n * k / 2)),
        ("x_scales", D::U8, vec![1, n, k / 32], vec![120; n * k / 32]),
    ]
}

/// Codes, `per_byte` of them in each byte, and scales, under the weight's own name.
fn codes(code: D, per_byte: usize, scale: D, shape: Vec<usize>) -> Tensors {
    let count = shape.iter().product::<usize>();
    let scales = match scale {
        D::F32 => floats(count),
        // E8M0 near 1.
        _ => noise(count).iter().map(|b| 120 + b % 16).collect(),
    };
    vec![
        (
            "w.weight",
            code,
            vec![N, K / per_byte],
            noise(N * K / per_byte),
        ),
        ("w.weight_scale", scale, shape, scales),
    ]
}

fn asymmetric(group: usize) -> Tensors {
    let shape = vec![N, K / group];
    let zeros = noise(N * K / group);
    let mut tensors = codes(D::I8, 1, D::F32, shape.clone());
    tensors.push(("w.weight_zero_point", D::I8, shape, zeros));
    tensors
}

fn nvfp4() -> Tensors {
    let mut tensors = codes(D::U8, 2, D::F8_E4M3, vec![N, K / 16]);
    tensors.push(("w.weight_scale_2", D::F32, vec![], floats(1)));
    tensors
}

/// A layer as bitsandbytes stores it; nested: with statistics that are quantized themselves.
fn nf4(block: usize, nested: bool) -> Tensors {
    let blocks = N * K / block;
    let mut state = format!(r#"{{"quant_type": "nf4", "blocksize": {block}, "shape": [{N}, {K}]"#);
    let mut tensors = vec![
        ("w.weight", D::U8, vec![N * K / 2, 1], noise(N * K / 2)),
        ("w.weight.quant_map", D::F32, vec![16], floats(16)),
    ];
    if nested {
        state += r#", "nested_blocksize": 256, "nested_offset": 0.05"#;
        let outer = blocks.div_ceil(256);
        tensors.push(("w.weight.absmax", D::U8, vec![blocks], noise(blocks)));
        tensors.push(("w.weight.nested_absmax", D::F32, vec![outer], floats(outer)));
        tensors.push(("w.weight.nested_quant_map", D::F32, vec![256], floats(256)));
    } else {
        tensors.push(("w.weight.absmax", D::F32, vec![blocks], floats(blocks)));
    }
    state += "}";
    let state = state.into_bytes();
    let name = "w.weight.quant_state.bitsandbytes__nf4";
    tensors.push((name, D::U8, vec![state.len()], state));
    tensors
}

fn int8() -> Tensors {
    vec![
        ("w.weight", D::I8, vec![N, K], noise(N * K)),
        ("w.SCB", D::F32, vec![N], floats(N)),
    ]
}

/// A pack-quantized layer of compressed-tensors.
fn packed(bits: usize, size: usize, asymmetric: bool) -> Tensors {
    let groups = K / size;
    let shape = [N as i64, K as i64].map(i64::to_le_bytes).concat();
    let mut layer = vec![
        (
            "l.weight_packed",
            D::I32,
            vec![N, K * bits / 32],
            noise(N * K * bits / 8),
        ),
        (
            "l.weight_scale",
            D::F16,
            vec![N, groups],
            scales(groups * N),
        ),
        ("l.weight_shape", D::I64, vec![2], shape),
    ];
    if asymmetric {
        let words = vec![N * bits / 32, groups];
        layer.push((
            "l.weight_zero_point",
            D::I32,
            words,
            noise(groups * N * bits / 8),
        ));
    }
    layer
}

/// An nvfp4 layer of compressed-tensors.
fn packed_nvfp4() -> Tensors {
    vec![
        ("l.weight_packed", D::U8, vec![N, K / 2], noise(N * K / 2)),
        (
            "l.weight_scale",
            D::F8_E4M3,
            vec![N, K / 16],
            noise(N * K / 16),
        ),
        (
            "l.weight_global_scale",
            D::F32,
            vec![1],
            448f32.to_le_bytes().to_vec(),
        ),
    ]
}

/// An mxfp4 or mxfp6 layer of compressed-tensors.
fn packed_mx(bits: usize) -> Tensors {
    let bytes = K * bits / 8;
    let exponents = noise(N * K / 32).iter().map(|b| 120 + b % 8).collect();
    vec![
        ("l.weight_packed", D::U8, vec![N, bytes], noise(N * bytes)),
        ("l.weight_scale", D::U8, vec![N, K / 32], exponents),
    ]
}

/// `values` values of a block type: random bytes, but usual scales.
fn blocks(block: &Block, values: usize) -> Vec<u8> {
    let size = block.bytes as usize;
    let mut bytes = noise(values / block.elements as usize * size);
    let scales: &[usize] = match block.name {
        "Q4_1" | "Q5_1" | "Q4_K" | "Q5_K" => &[0, 2],
        "Q2_K" => &[80, 82],
        "Q3_K" => &[108],
        "Q6_K" => &[208],
        "TQ1_0" => &[52],
        "TQ2_0" => &[64],
        "MXFP4" | "NVFP4" | "IQ1_M" => &[],
        _ => &[0],
    };
    for block_bytes in bytes.chunks_mut(size) {
        for &at in scales {
            block_bytes[at + 1] = 0x34 | block_bytes[at + 1] & 3;
        }
        if block.name == "MXFP4" {
            block_bytes[0] = 120 + block_bytes[0] % 16;
        }
    }
    bytes
}

/// Bytes without a pattern.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len.div_ceil(8))
        .flat_map(|_| next().to_le_bytes())
        .take(len)
        .collect()
}

/// F16 between 0.25 and 0.5.
fn scales(count: usize) -> Vec<u8> {
    let bits = noise(2 * count);
    let halves = bits
        .chunks(2)
        .map(|b| 0x3400 | u16::from_le_bytes([b[0], b[1]]) & 0x3ff);
    halves.flat_map(u16::to_le_bytes).collect()
}

/// F32 between 0.25 and 0.5.
fn floats(count: usize) -> Vec<u8> {
    let bits = noise(4 * count);
    let words = bits.as_chunks::<4>().0;
    let floats = words
        .iter()
        .map(|&b| 0x3E80_0000 | u32::from_le_bytes(b) & 0x7F_FFFF);
    floats.flat_map(u32::to_le_bytes).collect()
}

/// Writes the case's model into `dir` and opens it.
fn open(dir: &Path, case: &Case) -> Catalog {
    let path = match case.model {
        Model::Layer(tensors) => {
            let path = dir.join(format!("{}.safetensors", case.name));
            let tensors = tensors();
            let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
                let view = TensorView::new(*dtype, shape.clone(), bytes);
                (*name, view.expect("shape and bytes agree"))
            });
            serialize_to_file(views, None, &path).expect("the model can be written");
            path
        }
        Model::Blocks(number, block) => {
            let path = dir.join(format!("{}.gguf", case.name));
            write_gguf(&path, number, &blocks(block, N * K)).expect("the model can be written");
            path
        }
    };
    Catalog::open(&path, OpenOptions::default()).expect("a model")
}

/// A GGUF of one tensor and no keys.
fn write_gguf(path: &Path, number: u32, bytes: &[u8]) -> std::io::Result<()> {
    let mut header = b"GGUF\x03\0\0\0".to_vec();
    // The numbers of tensors and of keys; the name; its dimensions, innermost first.
    for count in [1u64, 0, 1] {
        header.extend(count.to_le_bytes());
    }
    header.extend(b"w\x02\0\0\0");
    for dimension in [K as u64, N as u64] {
        header.extend(dimension.to_le_bytes());
    }
    header.extend(number.to_le_bytes());
    header.extend(0u64.to_le_bytes());
    header.resize(header.len().next_multiple_of(32), 0);
    let mut file = std::fs::File::create(path)?;
    file.write_all(&header)?;
    file.write_all(bytes)
}

/// The first quantized layer's values, or else the first tensor's.
fn view(catalog: &Catalog) -> SharedView {
    if let Some(found) = quant::recognize(catalog).first() {
        let layer = found.resolve(catalog).expect("a layer that can be decoded");
        return layer
            .kernel
            .view(&found.raw_parts(catalog))
            .expect("a view");
    }
    let dtype = catalog.tensors.get(0).dtype.clone();
    Cast::view(catalog.bytes(0), dtype).expect("it has values")
}

/// ggml's `dequantize_row_…` of a block type.
type Dequantize = unsafe extern "C" fn(*const c_void, *mut f32, i64);

/// ggml's C, from the library that `GGML_QUANTS` names.
struct Ggml(*mut c_void);

impl Ggml {
    fn load() -> Option<Ggml> {
        let path = std::env::var("GGML_QUANTS").ok()?;
        let path = CString::new(path).expect("a path");
        // SAFETY: the library's initializers are the C compiler's. It is never closed.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
        assert!(!library.is_null(), "{path:?} cannot be loaded");
        Some(Ggml(library))
    }

    fn dequantize(&self, block: &Block) -> Option<Dequantize> {
        let kind = block.name.to_lowercase().replace("_k", "_K");
        let name = CString::new(format!("dequantize_row_{kind}")).expect("a name");
        // SAFETY: the library is open. Its functions of that name have this type (ggml-quants.h).
        unsafe {
            let found = libc::dlsym(self.0, name.as_ptr());
            (!found.is_null()).then(|| std::mem::transmute::<*mut c_void, Dequantize>(found))
        }
    }

    /// Checks that its bits are the decoder's (NaN payloads aside), then returns how much less time
    /// the decoder takes, in memory: the median of the rounds' ratios.
    fn compare(&self, block: &Block) -> Option<f64> {
        let (decode, theirs) = (block.decode?, self.dequantize(block)?);
        let (size, values) = (block.bytes as usize, block.elements as usize);
        let dequantize = |bytes: &[u8], out: &mut [f32]| {
            assert_eq!(bytes.len() / size * values, out.len());
            // SAFETY: the bytes are whole blocks, and their values fit.
            unsafe { theirs(bytes.as_ptr().cast(), out.as_mut_ptr(), out.len() as i64) }
        };
        let bits = |f: &dyn Fn(&[u8], &mut [f32]), bytes: &[u8]| {
            let mut out = vec![0f32; bytes.len() / size * values];
            f(bytes, &mut out);
            let same = |v: f32| if v.is_nan() { u32::MAX } else { v.to_bits() };
            out.into_iter().map(same).collect::<Vec<_>>()
        };
        let random = noise(20_000 * size);
        let same = bits(&decode, &random) == bits(&dequantize, &random);
        assert!(same, "{}: other values than ggml's", block.name);

        let mut out = vec![0f32; REQUESTS[0] / 4];
        let bytes = blocks(block, N * K);
        let mut time = |f: &dyn Fn(&[u8], &mut [f32])| {
            let start = cpu();
            for piece in bytes.chunks(out.len() / values * size) {
                f(piece, std::hint::black_box(&mut out));
            }
            cpu() - start
        };
        let mut ratios: Vec<f64> = (0..ROUNDS)
            .map(|_| time(&dequantize) / time(&decode))
            .collect();
        Some(median(&mut ratios))
    }
}

/// Microseconds for a page at a random offset of a view that has not been read before.
fn page(catalog: &Catalog, seed: usize) -> f64 {
    let view = view(catalog);
    let mut buf = [0; 4096];
    let at = (seed * 7919 % (N * K / 1024) * 4096) as u64;
    let start = cpu();
    view.read_at(at, &mut buf).expect("readable");
    (cpu() - start) * 1e6
}

fn copy(buf: &mut [u8], from: &[u8]) -> f64 {
    let start = cpu();
    for piece in from.chunks(buf.len()) {
        std::hint::black_box(&mut *buf)[..piece.len()].copy_from_slice(piece);
    }
    from.len() as f64 / (cpu() - start) / 1e9
}

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let dir = tempfile::tempdir().expect("a directory");
    let cases = cases();
    let base = open(dir.path(), &cases[0]);
    let ggml = Ggml::load();
    let memory = vec![1u8; 64 << 20];
    println!(
        "{N} x {K}, GB/s of f32; medians of {ROUNDS} rounds; ratios to BF16 and memcpy of the same round"
    );
    if ggml.is_some() {
        println!("/ggml: how many times as fast as ggml's C, blocks and values in memory");
    }
    println!(
        "{:<20}{:>10}{:>8}{:>8}{:>8}{:>9}{:>14}{:>8}",
        "",
        "request",
        "GB/s",
        "/bf16",
        "/copy",
        "as bf16",
        "random 4 KiB",
        ggml.as_ref().map_or("", |_| "/ggml")
    );
    let chosen = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str()));
    for case in cases.iter().filter(|c| chosen(&c.name)) {
        let catalog = open(dir.path(), case);
        let of_ggml = match (&ggml, case.model) {
            (Some(ggml), Model::Blocks(_, block)) => ggml.compare(block),
            _ => None,
        };
        for request in REQUESTS {
            let mut buf = vec![0; request];
            let (mut speed, mut of_base, mut of_copy, mut pages) = (vec![], vec![], vec![], vec![]);
            let mut narrowed = vec![];
            for round in 0..ROUNDS {
                let copied = copy(&mut buf, &memory);
                let cast = in_order(&*view(&base), &mut buf);
                let this = in_order(&*view(&catalog), &mut buf);
                let narrow = Narrow::view(view(&catalog), Dtype::BF16).expect("a cast");
                // Two bytes for a value instead of four.
                narrowed.push(2.0 * in_order(&*narrow, &mut buf) / this);
                speed.push(this);
                of_base.push(this / cast);
                of_copy.push(this / copied);
                pages.extend((0..9).map(|i| page(&catalog, 9 * round + i)));
            }
            println!(
                "{:<20}{:>7} KiB{:>8.2}{:>8.2}{:>8.2}{:>9.2}{:>11.0} us{:>8}",
                case.name,
                request >> 10,
                median(&mut speed),
                median(&mut of_base),
                median(&mut of_copy),
                median(&mut narrowed),
                median(&mut pages),
                of_ggml.map_or(String::new(), |ratio| format!("{ratio:.2}"))
            );
        }
    }
}
