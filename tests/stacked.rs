//! `export/model-fused.safetensors` of quantized experts is a model again, with the same values.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};
use stfs::catalog::OpenOptions;
use stfs::export::Export;
use stfs::model::{Model, ModelOptions};
use stfs::view::read_all;

const EXPERTS: usize = 3;
/// Outputs and inputs of each expert's projections.
const PROJECTIONS: [(&str, [usize; 2]); 3] = [
    ("gate_proj", [128, 256]),
    ("up_proj", [128, 256]),
    ("down_proj", [256, 128]),
];

/// What a tensor holds.
enum Data {
    /// Any bits.
    Codes,
    /// Any bits that are not NaN.
    F8,
    F16,
    Bf16,
    F32,
    /// Exponents about 2^0.
    E8M0,
    /// The group of each input, which differs from expert to expert.
    Order,
}

/// The end of a tensor's name, its dtype, its shape for N outputs and K inputs, and its contents.
type Part = (&'static str, Dtype, fn(usize, usize) -> Vec<usize>, Data);

struct Case {
    name: &'static str,
    parts: Vec<Part>,
    config: Value,
}

fn case(name: &'static str, config: Value, parts: Vec<Part>) -> Case {
    Case {
        name,
        parts,
        config,
    }
}

fn compressed_tensors(format: &str) -> Value {
    json!({"quantization_config": {"quant_method": "compressed-tensors", "format": format,
        "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8}}}}})
}

fn fp8() -> Value {
    json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})
}

/// Every format whose stored words stack.
fn cases() -> Vec<Case> {
    use Data::*;
    use Dtype::*;
    let mlx = |mode: &str, group_size: u32| json!({"quantization": {"mode": mode, "bits": 4, "group_size": group_size}});
    let blocks: fn(usize, usize) -> Vec<usize> = |n, k| vec![n / 128, k / 128];
    vec![
        case(
            "gptq",
            json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}),
            vec![
                ("qweight", I32, |n, k| vec![k / 8, n], Codes),
                ("qzeros", I32, |n, k| vec![k / 32, n / 8], Codes),
                ("scales", Dtype::F16, |n, k| vec![k / 32, n], Data::F16),
                ("g_idx", I32, |_, k| vec![k], Order),
            ],
        ),
        case(
            "awq",
            json!({"quantization_config": {"quant_method": "awq", "version": "gemm"}}),
            vec![
                ("qweight", I32, |n, k| vec![k, n / 8], Codes),
                ("qzeros", I32, |n, k| vec![k / 32, n / 8], Codes),
                ("scales", BF16, |n, k| vec![k / 32, n], Bf16),
            ],
        ),
        case(
            "mlx affine",
            mlx("affine", 64),
            vec![
                ("weight", U32, |n, k| vec![n, k / 8], Codes),
                ("scales", BF16, |n, k| vec![n, k / 64], Bf16),
                ("biases", BF16, |n, k| vec![n, k / 64], Bf16),
            ],
        ),
        case(
            "mlx mxfp4",
            mlx("mxfp4", 32),
            vec![
                ("weight", U32, |n, k| vec![n, k / 8], Codes),
                ("scales", U8, |n, k| vec![n, k / 32], E8M0),
            ],
        ),
        case(
            "fp8 blocks",
            fp8(),
            vec![
                ("weight", F8_E4M3, |n, k| vec![n, k], F8),
                ("weight_scale_inv", Dtype::F32, blocks, Data::F32),
            ],
        ),
        case(
            "fp8 blocks on four axes",
            Value::Null,
            vec![
                ("weight", F8_E4M3, |n, k| vec![n, k], F8),
                (
                    "weight_scale",
                    Dtype::F32,
                    |n, k| vec![n / 128, 1, k / 128, 1],
                    Data::F32,
                ),
            ],
        ),
        case(
            "fp8 rows",
            compressed_tensors("float-quantized"),
            vec![
                ("weight", F8_E4M3, |n, k| vec![n, k], F8),
                ("weight_scale", BF16, |n, _| vec![n, 1], Bf16),
            ],
        ),
        case(
            "fp8 rows of one axis",
            Value::Null,
            vec![
                ("weight", F8_E4M3, |n, k| vec![n, k], F8),
                ("weight_scale", Dtype::F32, |n, _| vec![n], Data::F32),
            ],
        ),
        case(
            "fp4 pairs",
            fp8(),
            vec![
                ("weight", I8, |n, k| vec![n, k / 2], Codes),
                ("scale", F8_E8M0, |n, k| vec![n, k / 32], E8M0),
            ],
        ),
        case(
            "int8",
            compressed_tensors("int-quantized"),
            vec![
                ("weight", I8, |n, k| vec![n, k], Codes),
                ("weight_scale", Dtype::F32, |n, _| vec![n, 1], Data::F32),
                ("weight_zero_point", I8, |n, _| vec![n, 1], Codes),
            ],
        ),
        case(
            "mxfp4",
            compressed_tensors("mxfp4-pack-quantized"),
            vec![
                ("weight_packed", U8, |n, k| vec![n, k / 2], Codes),
                ("weight_scale", U8, |n, k| vec![n, k / 32], E8M0),
            ],
        ),
        case(
            "mxfp6",
            compressed_tensors("mxfp6-pack-quantized"),
            vec![
                ("weight_packed", U8, |n, k| vec![n, 3 * k / 4], Codes),
                ("weight_scale", U8, |n, k| vec![n, k / 32], E8M0),
            ],
        ),
        case(
            "modelopt mxfp4",
            json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "MXFP4"}}),
            vec![
                ("weight", U8, |n, k| vec![n, k / 2], Codes),
                ("weight_scale", U8, |n, k| vec![n, k / 32], E8M0),
            ],
        ),
    ]
}

/// The contents of a tensor of `n` elements, determined by `seed` and, for an order, by `expert`.
fn data(kind: &Data, dtype: Dtype, n: usize, seed: usize, expert: usize) -> Vec<u8> {
    let noise = |i: usize| ((i + 31 * seed).wrapping_mul(2_654_435_761) >> 16) as u32;
    let values = (0..n).map(noise);
    match kind {
        Data::Codes => (0..n * dtype.bitsize() / 8)
            .map(|i| noise(i) as u8)
            .collect(),
        Data::F8 => values.map(|v| (v as u8) & 0xBF).collect(),
        Data::F16 => values
            .flat_map(|v| (0x2000 + v as u16 % 0x1000).to_le_bytes())
            .collect(),
        Data::Bf16 => values
            .flat_map(|v| (0x3C00 + v as u16 % 0x200).to_le_bytes())
            .collect(),
        Data::F32 => values
            .flat_map(|v| (0.01 + v as f32 / 1e6).to_le_bytes())
            .collect(),
        Data::E8M0 => values.map(|v| 117 + v as u8 % 20).collect(),
        Data::Order => {
            let groups = n / 32;
            let group = |k: usize| ((k / 32 + expert) % groups) as i32;
            (0..n).flat_map(|k| group(k).to_le_bytes()).collect()
        }
    }
}

fn write(dir: &Path, case: &Case) {
    let mut tensors = BTreeMap::new();
    for e in 0..EXPERTS {
        for (p, (projection, [n, k])) in PROJECTIONS.into_iter().enumerate() {
            for (i, (last, dtype, shape, kind)) in case.parts.iter().enumerate() {
                let shape = shape(n, k);
                let seed = 100 * e + 10 * p + i + 1;
                let bytes = data(kind, *dtype, shape.iter().product(), seed, e);
                let name = format!("m.experts.{e}.{projection}.{last}");
                tensors.insert(name, (*dtype, shape, bytes));
            }
        }
    }
    let views = tensors
        .iter()
        .map(|(name, (d, s, b))| (name, TensorView::new(*d, s.clone(), b).unwrap()));
    serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
    configure(dir, case);
}

fn configure(dir: &Path, case: &Case) {
    if !case.config.is_null() {
        std::fs::write(dir.join("config.json"), case.config.to_string()).unwrap();
    }
}

fn open(path: &Path) -> Arc<Model> {
    Arc::new(Model::open(path, OpenOptions::default(), ModelOptions::default()).unwrap())
}

/// Shape and bytes of a tensor's values.
fn values(model: &Model, name: &str) -> (Vec<u64>, Vec<u8>) {
    let (id, tensor) = model.find(name).unwrap();
    let values = tensor
        .values
        .as_ref()
        .unwrap_or_else(|| panic!("{name}: {:?}", model.remark(id)));
    let bytes = read_all(&*model.f32(id).unwrap().unwrap()).unwrap();
    (values.shape.to_vec(), bytes)
}

#[test]
fn the_fused_export_of_experts_is_a_model_again() {
    for case in cases() {
        let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(dir.path(), &case);
        let model = open(dir.path());
        let export = read_all(&*Export::Fused.view(&model).unwrap()).unwrap();
        std::fs::write(out.path().join("model.safetensors"), export).unwrap();
        configure(out.path(), &case);
        let again = open(out.path());
        let whole = again.catalog.tensors.iter().all(|t| {
            t.name.starts_with("m.experts.gate_up") || t.name.starts_with("m.experts.down")
        });
        assert!(whole, "{}: not stacked", case.name);
        for (stack, shape) in [
            ("gate_up_proj", [3, 256, 256]),
            ("down_proj", [3, 256, 128]),
        ] {
            let name = format!("m.experts.{stack}");
            let (got, want) = (values(&again, &name), values(&model, &name));
            assert_eq!(got.0, shape, "{}, {name}", case.name);
            assert!(got == want, "{}, {name}: other values", case.name);
        }
        // A float model has the two stacks and no trace of how they were stored.
        let floats = stfs::export::float_model(&again);
        assert_eq!(floats.len(), 2, "{}", case.name);
        assert!(floats.iter().all(|(_, values)| *values), "{}", case.name);
        let count = |m: &Model| {
            (0..m.catalog.tensors.len() as u32)
                .map(|id| m.parameters(id))
                .sum::<u64>()
        };
        assert_eq!(count(&again), count(&model), "{}", case.name);
    }
}
