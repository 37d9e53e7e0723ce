//! Worked examples, recognition by names, every kind of damage, and fusions.

use serde_json::{Value, json};

use crate::dtype::Dtype;
use crate::model::{Model, ModelOptions};
use crate::quant::testing::{Stored, TestModel, stored};
use crate::view::read_all;

mod fusions;

fn fp8(block: Value) -> Value {
    json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": block}})
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// An E4M3 weight of ones and a scale of 1 everywhere.
fn ones(name: &str, weight: &[u64], scale: &str, dtype: Dtype, shape: &[u64]) -> [Stored; 2] {
    let count = |shape: &[u64]| shape.iter().product::<u64>() as usize;
    let one: &[u8] = match dtype {
        Dtype::F32 => &[0, 0, 0x80, 0x3F],
        Dtype::BF16 => &[0x80, 0x3F],
        Dtype::F16 => &[0, 0x3C],
        Dtype::F64 => &[0, 0, 0, 0, 0, 0, 0xF0, 0x3F],
        Dtype::I32 => &[1, 0, 0, 0],
        Dtype::I8 => &[1],
        _ => &[127],
    };
    [
        stored(name, Dtype::F8_E4M3, weight, vec![0x38; count(weight)]),
        stored(scale, dtype, shape, one.repeat(count(shape))),
    ]
}

#[test]
fn the_worked_examples_come_out() {
    let weight = || {
        stored(
            "w.weight",
            Dtype::F8_E4M3,
            &[1, 4],
            [0x38, 0xB8, 0x7E, 0x01],
        )
    };
    let scale = |dtype, shape: &[u64], bytes: &[u8]| stored("w.weight_scale", dtype, shape, bytes);
    let f32_scale = [0x0A, 0xD7, 0x23, 0x3C];
    let model = TestModel::safetensors(
        &[weight(), scale(Dtype::F32, &[1], &f32_scale)],
        Value::Null,
    );
    assert_eq!(
        bits(&model.values("w.weight")),
        [0x3C23_D70A, 0xBC23_D70A, 0x408F_5C29, 0x37A3_D70A]
    );
    let bf16 = scale(Dtype::BF16, &[1, 1], &[0xC0, 0x3C]);
    let model = TestModel::safetensors(&[weight(), bf16], Value::Null);
    let exact = 0.023_437_5;
    let want = [exact, -exact, 448.0 * exact, exact / 512.0];
    assert_eq!(model.values("w.weight"), want);
}

#[test]
fn u8_scales_are_exponents_subnormals_included() {
    for dtype in [Dtype::U8, Dtype::F8_E8M0] {
        let codes: Vec<u8> = [0x38, 0x01, 0x80, 0x7E].repeat(24);
        let model = TestModel::safetensors(
            &[
                stored("w.weight", Dtype::F8_E4M3, &[1, 96], codes),
                stored("w.weight_scale_inv", dtype, &[1, 3], [130, 0, 255]),
            ],
            Value::Null,
        );
        let layer = model.layer("w.weight");
        assert!(layer.exact);
        assert_eq!(layer.group_size, Some(32));
        let values = model.values("w.weight");
        assert_eq!(bits(&values[..4]), bits(&[8.0, 8.0 / 512.0, -0.0, 3584.0]));
        // 2^-127, 2^-136, -0, 448 · 2^-127.
        assert_eq!(
            bits(&values[32..36]),
            [0x0040_0000, 0x0000_2000, 0x8000_0000, 0x0460_0000]
        );
        assert!(values[64..].iter().all(|v| v.is_nan()));
    }
}

#[test]
fn the_scale_has_many_names_and_the_first_wins() {
    for scale in ["weight_scale_inv", "weight_scale", "scale", "qscale_weight"] {
        for prefix in ["m.", ""] {
            let names = [format!("{prefix}weight"), format!("{prefix}{scale}")];
            let model = TestModel::safetensors(
                &ones(&names[0], &[4, 4], &names[1], Dtype::F32, &[]),
                Value::Null,
            );
            let layer = model.layer(&names[0]);
            assert_eq!((layer.bits, layer.exact), (8, false), "{scale}");
            assert_eq!(model.values(&names[0]), [1.0; 16]);
        }
    }
    let [weight, first] = ones("m.weight", &[4, 4], "m.weight_scale_inv", Dtype::F32, &[]);
    let [_, second] = ones("m.weight", &[4, 4], "m.scale", Dtype::I32, &[]);
    let model = TestModel::safetensors(&[weight, second, first], Value::Null);
    assert_eq!(model.values("m.weight"), [1.0; 16]);
    // Tensors that are not named like weights are plain.
    let [weight, scale] = ones("m.xweight", &[4, 4], "m.xweight_scale", Dtype::F32, &[]);
    let model = TestModel::safetensors(&[weight, scale], fp8(Value::Null));
    assert!(model.recognized("m.xweight").is_none());
    assert!(model.recognized("m.xweight_scale").is_none());
}

#[test]
fn every_float_is_a_scale() {
    for dtype in [
        Dtype::F64,
        Dtype::F32,
        Dtype::BF16,
        Dtype::F16,
        Dtype::F8_E8M0,
        Dtype::U8,
    ] {
        let tensors = ones("m.weight", &[2, 2], "m.scale", dtype, &[2]);
        let model = TestModel::safetensors(&tensors, Value::Null);
        assert_eq!(model.values("m.weight"), [1.0; 4], "{dtype}");
    }
}

#[test]
fn a_hundred_and_thirty_six_rows_with_two_rows_of_scales_are_128_and_8() {
    let codes = vec![0x38; 136 * 2];
    let scales: Vec<u8> = [1f32, 2.0].iter().flat_map(|s| s.to_le_bytes()).collect();
    let model = TestModel::safetensors(
        &[
            stored("m.weight", Dtype::F8_E4M3, &[136, 2], codes),
            stored("m.weight_scale_inv", Dtype::F32, &[2, 1], scales),
        ],
        fp8(json!([128, 128])),
    );
    let values = model.values("m.weight");
    assert!(values[..256].iter().all(|&v| v == 1.0));
    assert!(values[256..].iter().all(|&v| v == 2.0));
    let layer = model.layer("m.weight");
    assert_eq!(layer.group_size, Some(128));
    assert!(!layer.components[1].whole);
}

#[test]
fn the_block_is_the_matching_groups() {
    let model = |block: Value| {
        TestModel::safetensors(
            &ones(
                "m.weight",
                &[200, 200],
                "m.weight_scale",
                Dtype::BF16,
                &[2, 4],
            ),
            json!({"quantization_config": {"quant_method": "compressed-tensors",
                "format": "float-quantized", "config_groups": {"g": {"targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "float", "strategy": "block",
                            "block_structure": block}}}}}),
        )
    };
    let declared = model(json!([150, 60])).layer("m.weight");
    assert!(
        declared.compatible.contains("blocks of 150 x 60"),
        "{}",
        declared.compatible
    );
    let derived = model(Value::Null).layer("m.weight");
    assert!(
        derived.compatible.contains("blocks of 100 x 50"),
        "{}",
        derived.compatible
    );
}

#[test]
fn stacked_experts_need_no_weight_in_their_name() {
    let name = "m.experts.gate_up_proj";
    let scale = "m.experts.gate_up_proj_scale_inv";
    let tensors = ones(name, &[2, 130, 256], scale, Dtype::F32, &[2, 2, 2]);
    let model = TestModel::safetensors(&tensors, fp8(json!([128, 128])));
    let layer = model.layer(name);
    assert!(layer.components.is_empty());
    assert_eq!(*layer.shape, [2, 130, 256]);
    assert_eq!(model.values(name), vec![1.0; 2 * 130 * 256]);
    // Without its scale it is damaged in an FP8 model, plain in any other.
    let [alone, _] = tensors;
    let model = TestModel::safetensors(&[alone], fp8(Value::Null));
    let reason = model.reason(name);
    assert!(
        reason.contains("m.experts.gate_up_proj.weight_scale_inv"),
        "{reason}"
    );
    let [alone, _] = ones(name, &[2, 2, 2], scale, Dtype::F32, &[2, 1, 1]);
    assert!(
        TestModel::safetensors(&[alone], Value::Null)
            .recognized(name)
            .is_none()
    );
}

#[test]
fn a_lone_f8_tensor_is_plain_unless_the_config_wants_a_scale() {
    let model = |config: Value| {
        let [weight, _] = ones("m.q.weight", &[4, 4], "", Dtype::F32, &[]);
        TestModel::safetensors(&[weight], config)
    };
    for plain in [
        Value::Null,
        json!({"quantization_config": {"quant_method": "gptq"}}),
        json!({"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["m.q"]}}),
        json!({"quantization_config": {"quant_method": "fp8", "ignored_layers": ["q"]}}),
        json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8",
            "ignore": ["m.*"]}}),
        json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}),
        json!({"quantization_config": {"quant_method": "compressed-tensors",
            "format": "float-quantized", "ignore": ["re:.*q$"],
            "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8}}}}}),
    ] {
        assert!(
            model(plain.clone()).recognized("m.q.weight").is_none(),
            "{plain}"
        );
    }
    for (torn, said) in [
        (json!({"quant_method": "fp8"}), "quant_method fp8"),
        (
            json!({"quant_method": "fbgemm_fp8"}),
            "quant_method fbgemm_fp8",
        ),
        (
            json!({"quant_method": "modelopt", "quant_algo": "FP8"}),
            "quant_algo FP8",
        ),
        (
            json!({"quant_method": "compressed-tensors", "format": "float-quantized",
                "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8}}}}),
            "float-quantized",
        ),
    ] {
        let reason = model(json!({ "quantization_config": torn })).reason("m.q.weight");
        assert!(reason.contains(said), "{reason}");
        assert!(reason.contains("m.q.weight_scale_inv"), "{reason}");
    }
}

#[test]
fn damage_has_a_reason_with_numbers() {
    type Case = (
        &'static [u64],
        Dtype,
        &'static [u64],
        &'static [&'static str],
    );
    let cases: [Case; 6] = [
        (
            &[136, 256],
            Dtype::F32,
            &[3, 2],
            &["[3, 2]", "[136, 256]", "128 x 128"],
        ),
        (&[136, 256], Dtype::F32, &[2, 2, 2], &["3 dimensions"]),
        (&[136, 256], Dtype::F32, &[135], &["[135]"]),
        (&[136, 256], Dtype::I32, &[2, 2], &["I32", "not a float"]),
        (&[136, 256], Dtype::I8, &[2, 2], &["I8", "not a float"]),
        (&[2, 136, 256], Dtype::F32, &[3, 2, 2], &["experts"]),
    ];
    for (weight, dtype, scale, parts) in cases {
        let tensors = ones("m.weight", weight, "m.weight_scale", dtype, scale);
        let model = TestModel::safetensors(&tensors, Value::Null);
        let reason = model.reason("m.weight");
        assert!(parts.iter().all(|p| reason.contains(p)), "{reason}");
        // `raw` stays, the values are unavailable, and meta.json shows why.
        let model = Model::new(model.catalog, ModelOptions::default());
        let (id, tensor) = model.find("m.weight").unwrap();
        assert!(tensor.values.is_none());
        let len = weight.iter().product::<u64>();
        assert_eq!(
            read_all(&*model.raw(id).unwrap()).unwrap().len() as u64,
            len
        );
        assert!(model.f32(id).unwrap().is_none());
        let meta =
            String::from_utf8(crate::meta::meta_json(&model, id, Default::default())).unwrap();
        assert!(meta.contains("\"error\""), "{meta}");
    }
}

#[test]
fn fp4_pairs_are_found_in_fp8_models_only() {
    let tensors = || {
        [
            stored(
                "m.experts.0.w1.weight",
                Dtype::I8,
                &[2, 32],
                [0x10, 0x9F].repeat(32),
            ),
            stored(
                "m.experts.0.w1.scale",
                Dtype::F8_E8M0,
                &[2, 2],
                [127, 128, 0, 255],
            ),
        ]
    };
    let name = "m.experts.0.w1.weight";
    let model = TestModel::safetensors(&tensors(), fp8(json!([128, 128])));
    let layer = model.layer(name);
    assert_eq!(
        (layer.bits, layer.group_size, layer.exact),
        (4, Some(32), true)
    );
    assert_eq!(*layer.shape, [2, 64]);
    assert_eq!(model.recognized(name).unwrap().parameters, Some(128));
    let values = model.values(name);
    assert_eq!(values[..4], [0.0, 0.5, -6.0, -0.5]);
    assert_eq!(values[32..36], [0.0, 1.0, -12.0, -1.0]);
    assert_eq!(values[65].to_bits(), 0x0020_0000);
    assert!(values[96].is_nan());
    // In other models I8 is plain I8.
    assert!(
        TestModel::safetensors(&tensors(), Value::Null)
            .recognized(name)
            .is_none()
    );
    // One scale for every 16 values: neither such pairs nor plain.
    let [weight, _] = tensors();
    let wrong = stored("m.experts.0.w1.scale", Dtype::F8_E8M0, &[2, 4], [127; 8]);
    let reason = TestModel::safetensors(&[weight, wrong], fp8(Value::Null)).reason(name);
    assert!(
        reason.contains("[2, 4]") && reason.contains("[2, 64]"),
        "{reason}"
    );
    // Without a scale it is damaged only if the config declares that experts are pairs.
    let [weight, _] = tensors();
    let torn = json!({"quantization_config": {"quant_method": "fp8", "expert_dtype": "fp4"}});
    let reason = TestModel::safetensors(&[weight], torn).reason(name);
    assert!(
        reason.contains("m.experts.0.w1.weight_scale_inv"),
        "{reason}"
    );
    let [weight, _] = tensors();
    assert!(
        TestModel::safetensors(&[weight], fp8(Value::Null))
            .recognized(name)
            .is_none()
    );
}
