//! What configs decide: the convention of zero points, what is refused, the group size.

use serde_json::{Value, json};

use super::super::config::{Config, Stored as Convention};
use super::Sample;
use crate::catalog::Configuration;
use crate::dtype::Dtype;
use crate::quant::testing::TestModel;

fn configs(files: &[(&str, Value)]) -> Configuration {
    let mut configs = Configuration::default();
    for (name, value) in files {
        let value = Some(value.clone());
        match *name {
            "config.json" => configs.config = value,
            "quantize_config.json" => configs.quantize_config = value,
            "quant_config.json" => configs.quant_config = value,
            "quantization_config.json" => configs.quantization_config = value,
            _ => unreachable!(),
        }
    }
    configs
}

fn of(quantization: Value) -> Config {
    Config::new(&configs(&[(
        "config.json",
        json!({"quantization_config": quantization}),
    )]))
}

fn refused(config: &Config) -> Option<&'static str> {
    match &config.stored {
        Convention::Refused { method, .. } => Some(method),
        _ => None,
    }
}

#[test]
fn the_convention_of_zero_points() {
    use Convention::{AsIs, LessOne, Planar};
    let cases = [
        (json!({}), LessOne),
        (json!({"quant_method": "gptq", "bits": 4}), LessOne),
        (json!({"checkpoint_format": "gptq"}), LessOne),
        (
            json!({"quant_method": "GPTQ", "checkpoint_format": "GPTQ_v2"}),
            AsIs,
        ),
        (json!({"method": "gptq", "format": "gptq_v2"}), AsIs),
        (
            json!({"checkpoint_format": null, "format": "gptq_v2"}),
            AsIs,
        ),
        (
            json!({"quant_method": "gptqmodel", "format": "gptq_p"}),
            Planar,
        ),
        // Release numbers under AWQ's key are ignored.
        (json!({"version": "0.7.1", "quant_method": "gptq"}), LessOne),
        (json!({"version": "gemm", "quant_method": "awq"}), LessOne),
        // AutoRound: what it writes as GPTQ, and what it writes as its own.
        (
            json!({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}),
            LessOne,
        ),
        (
            json!({"quant_method": "intel/auto-round", "backend": "auto_round:gptq:exllamav2"}),
            LessOne,
        ),
        (
            json!({"quant_method": "intel/auto-round", "backend": "auto_round:exllamav2"}),
            AsIs,
        ),
        (
            json!({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "backend": "auto_round:exllamav2"}),
            LessOne,
        ),
        (json!({"quant_method": "auto-round"}), LessOne),
        (
            json!({"quant_method": "gptq", "backend": "auto_round:exllamav2"}),
            LessOne,
        ),
    ];
    for (config, want) in cases {
        assert_eq!(of(config.clone()).stored, want, "{config}");
    }
    assert_eq!(Config::new(&Configuration::default()).stored, LessOne);
}

#[test]
fn what_is_refused() {
    let cases = [
        (json!({"quant_method": "paroquant"}), "paroquant"),
        (json!({"quant_method": "Marlin"}), "marlin"),
        (
            json!({"quant_method": "gptq", "checkpoint_format": "marlin"}),
            "marlin",
        ),
        (
            json!({"quant_method": "gptq", "is_marlin_format": true}),
            "marlin",
        ),
        (
            json!({"quant_method": "gptq", "checkpoint_format": "bitblas"}),
            "bitblas",
        ),
        (json!({"quant_method": "qqq"}), "qqq"),
        (json!({"quant_method": "squeezellm"}), "unknown"),
        (
            json!({"quant_method": "gptq", "format": "tomorrow"}),
            "unknown",
        ),
    ];
    for (config, method) in cases {
        assert_eq!(refused(&of(config.clone())), Some(method), "{config}");
        let sample = Sample::random((false, 4, false), [32, 32, 1], Dtype::F16, &mut 1);
        let model =
            TestModel::safetensors(&sample.tensors(), json!({"quantization_config": config}));
        let reason = model.reason("l.weight");
        assert!(reason.contains("not decoded"), "{reason}");
        assert_eq!(model.recognized("l.weight").unwrap().method, method);
    }
    assert_eq!(refused(&of(json!({"is_marlin_format": false}))), None);
}

#[test]
fn awq_layouts_that_are_not_gemm() {
    let sample = Sample::random((true, 4, false), [64, 64, 2], Dtype::F16, &mut 2);
    let cases = [
        json!({"quant_method": "awq", "version": "gemv_fast"}),
        json!({"quant_method": "awq", "version": "GEMV"}),
        json!({"quant_method": "awq", "version": "gemm", "backend": "llm-awq"}),
    ];
    for config in cases {
        let config = json!({"quantization_config": config});
        let reason = TestModel::safetensors(&sample.tensors(), config).reason("l.weight");
        assert!(reason.contains("only 'gemm' is decoded"), "{reason}");
    }
    let gemm = json!({"quantization_config": {"quant_method": "awq", "version": "GEMM"}});
    TestModel::safetensors(&sample.tensors(), gemm).layer("l.weight");
}

#[test]
fn planar_is_decoded_where_it_is_no_different() {
    let config = json!({"quantization_config": {"quant_method": "gptq", "format": "gptq_p"}});
    for bits in [2, 3, 4, 8] {
        let sample = Sample::random((false, bits, true), [32, 32, 1], Dtype::F16, &mut 3);
        let model = TestModel::safetensors(&sample.tensors(), config.clone());
        if bits == 3 {
            assert!(model.reason("l.weight").contains("bit planes"));
        } else {
            let same = model.values("l.weight").into_iter().map(f32::to_bits);
            assert!(same.eq(sample.values(32).into_iter().map(f32::to_bits)));
        }
    }
}

/// For each key separately, the first place that has it counts.
#[test]
fn the_order_of_places() {
    let format = |format: &str| json!({"checkpoint_format": format});
    let all = [
        (
            "config.json",
            json!({"quantization_config": format("gptq_v2")}),
        ),
        ("quantize_config.json", format("gptq")),
        ("quant_config.json", format("marlin")),
        ("quantization_config.json", format("bitblas")),
    ];
    let wants = [
        Some("AsIs"),
        Some("LessOne"),
        Some("marlin"),
        Some("bitblas"),
        None,
    ];
    for (skip, want) in wants.into_iter().enumerate() {
        let config = Config::new(&configs(&all[skip..]));
        match want {
            Some("AsIs") => assert_eq!(config.stored, Convention::AsIs),
            Some("LessOne") | None => assert_eq!(config.stored, Convention::LessOne),
            refusal => assert_eq!(refused(&config), refusal),
        }
    }
    let text = json!({"text_config": {"quantization_config": format("gptq_v2")}});
    let config = configs(&[
        ("config.json", text),
        ("quantize_config.json", format("gptq")),
    ]);
    assert_eq!(Config::new(&config).stored, Convention::AsIs);
    // One place has the method, another the format.
    let config = configs(&[
        (
            "config.json",
            json!({"quantization_config": {"quant_method": "gptq"}}),
        ),
        (
            "quantize_config.json",
            json!({"quant_method": "paroquant", "format": "gptq_v2"}),
        ),
    ]);
    assert_eq!(Config::new(&config).stored, Convention::AsIs);
}

/// The files contradict each other (as `itdevwu/Genz-70b-GPTQ`'s do): the first that fits counts.
#[test]
fn the_group_size_that_fits() {
    let config = Config::new(&configs(&[
        (
            "config.json",
            json!({"quantization_config": {"group_size": -1}}),
        ),
        ("quantize_config.json", json!({"group_size": 128})),
        ("quant_config.json", json!({"q_group_size": 64})),
        ("quantization_config.json", json!({"group_size": 0})),
    ]));
    assert_eq!(config.group_size(256, 1), Some(256));
    assert_eq!(config.group_size(256, 2), Some(128));
    assert_eq!(config.group_size(160, 2), Some(128));
    assert_eq!(config.group_size(160, 3), Some(64));
    assert_eq!(config.group_size(256, 5), None);
}

/// A manifest's tensors are described by the manifest alone.
#[test]
fn a_manifest_has_no_config() {
    let mut configs = configs(&[("quantize_config.json", json!({"format": "gptq_v2"}))]);
    configs.manifest = Some(serde_json::Map::new());
    assert_eq!(Config::new(&configs), Config::default());
}

#[test]
fn files_are_read_by_name() {
    let sample = Sample::random((false, 4, true), [32, 64, 2], Dtype::F16, &mut 4);
    for name in [
        "quantize_config.json",
        "quant_config.json",
        "quantization_config.json",
    ] {
        let model =
            TestModel::with_configs(&sample.tensors(), &[(name, json!({"format": "gptq_v2"}))]);
        let got = model.values("l.weight").into_iter().map(f32::to_bits);
        assert!(
            got.eq(sample.values(32).into_iter().map(f32::to_bits)),
            "{name}"
        );
    }
}
