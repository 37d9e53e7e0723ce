//! Small models as the formats' own libraries save them, and float32 values as those libraries
//! dequantize them: `tests/golden/CASE/model` and `tests/golden/CASE/expected.safetensors`, whose
//! metadata state what made them and how closely they must agree (`tests/golden/make.sh` makes
//! them).

use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::SafeTensors;
use serde_json::Value;

/// How closely stfs must agree with a library.
#[derive(Clone, Copy)]
enum Compare {
    /// Bit for bit; a NaN equals any NaN.
    Bits,
    /// Bit for bit, except for the sign of zero.
    Values,
}

impl Compare {
    fn new(rule: &str) -> Compare {
        match rule {
            "bits" => Compare::Bits,
            "values" => Compare::Values,
            other => panic!("unknown rule '{other}'"),
        }
    }

    fn same(self, a: f32, b: f32) -> bool {
        let zeros = matches!(self, Compare::Values) && a == 0.0 && b == 0.0;
        a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()) || zeros
    }
}

/// Float32 values and their shape.
struct Values {
    shape: Vec<u64>,
    values: Vec<f32>,
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn cases() -> Vec<String> {
    let mut cases: Vec<String> = std::fs::read_dir(golden())
        .unwrap()
        .map(|e| e.unwrap())
        .filter(|e| e.path().join("expected.safetensors").exists())
        .map(|e| e.file_name().into_string().unwrap())
        .collect();
    cases.sort();
    cases
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    assert_eq!(bytes.len() % 4, 0);
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

fn stfs(args: &[&str]) -> Result<Vec<u8>, String> {
    let out = Command::new(env!("CARGO_BIN_EXE_stfs"))
        .args(args)
        .output()
        .unwrap();
    match out.status.success() {
        true => Ok(out.stdout),
        false => Err(String::from_utf8_lossy(&out.stderr).trim().to_string()),
    }
}

/// The values that stfs returns for a name.
fn found(model: &str, name: &str) -> Result<Values, String> {
    let meta = stfs(&["cat", model, name, "--view", "meta"])?;
    let meta: Value = serde_json::from_slice(&meta).map_err(|e| e.to_string())?;
    let shape = meta["views"]["f32"]["shape"]
        .as_array()
        .ok_or_else(|| format!("has no f32: {}", meta["quantization"]))?;
    Ok(Values {
        shape: shape.iter().map(|d| d.as_u64().unwrap()).collect(),
        values: floats(&stfs(&["cat", model, name, "--view", "f32"])?),
    })
}

fn compare(found: &Values, expected: &Values, rule: Compare) -> Result<(), String> {
    if found.shape != expected.shape {
        return Err(format!(
            "shape {:?}, the library has {:?}",
            found.shape, expected.shape
        ));
    }
    assert_eq!(found.values.len(), expected.values.len());
    let pairs = || found.values.iter().zip(&expected.values);
    let different = pairs().filter(|&(&a, &b)| !rule.same(a, b)).count();
    let Some(at) = pairs().position(|(&a, &b)| !rule.same(a, b)) else {
        return Ok(());
    };
    let (a, b) = (found.values[at], expected.values[at]);
    Err(format!(
        "{different} of {} values differ; the first at {at}: {a:e} ({:08x}), the library has {b:e} ({:08x})",
        found.values.len(),
        a.to_bits(),
        b.to_bits()
    ))
}

/// The values from one case's library, and the fusions that follow from them.
fn expected(bytes: &[u8]) -> Vec<(String, Values)> {
    let file = SafeTensors::deserialize(bytes).unwrap();
    let mut all: Vec<(String, Values)> = file
        .tensors()
        .into_iter()
        .map(|(name, tensor)| {
            let shape = tensor.shape().iter().map(|&d| d as u64).collect();
            let values = floats(tensor.data());
            (name, Values { shape, values })
        })
        .collect();
    let prefixes = ["q", "k", "v"].map(|x| format!("model.layers.0.self_attn.{x}_proj.weight"));
    let parts: Vec<&Values> = prefixes
        .iter()
        .filter_map(|p| all.iter().find(|(n, _)| n == p).map(|(_, v)| v))
        .collect();
    if parts.len() == 3 {
        let joined = Values {
            shape: vec![parts.iter().map(|p| p.shape[0]).sum(), parts[0].shape[1]],
            values: parts.iter().flat_map(|p| p.values.clone()).collect(),
        };
        all.push(("model.layers.0.self_attn.qkv_proj.weight".into(), joined));
    }
    all
}

fn problems(case: &str) -> Vec<String> {
    let dir = golden().join(case);
    let bytes = std::fs::read(dir.join("expected.safetensors")).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().as_ref().unwrap();
    let rule = Compare::new(&metadata["compare"]);
    let model = dir.join("model");
    let model = model.to_str().unwrap();
    let expected = expected(&bytes);
    assert!(!expected.is_empty(), "{case}: nothing to compare");
    expected
        .iter()
        .filter_map(|(name, values)| {
            let problem = found(model, name)
                .and_then(|f| compare(&f, values, rule))
                .err()?;
            Some(format!("{case}: {name}: {problem}"))
        })
        .collect()
}

#[test]
fn every_library_has_the_same_values() {
    let cases = cases();
    assert!(cases.len() >= 35, "only {} cases are there", cases.len());
    let problems: Vec<String> = cases.iter().flat_map(|c| problems(c)).collect();
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}
