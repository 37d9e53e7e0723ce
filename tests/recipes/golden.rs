//! Results that peft and mergekit got from the same models (`tests/golden/recipes`, made by `tests/golden/make.sh`), held
//! to the bounds that were written down with them.

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

use crate::common::stfs;

fn cases(starting: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/recipes");
    let all = std::fs::read_dir(root).unwrap().map(|e| e.unwrap().path());
    let mut all: Vec<PathBuf> = all
        .filter(|p| {
            p.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(starting)
        })
        .collect();
    all.sort();
    all
}

fn values(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    let f32s = |bytes: &[u8]| -> Vec<f64> {
        let all = bytes.chunks_exact(4);
        all.map(|b| f32::from_le_bytes(b.try_into().unwrap()).into())
            .collect()
    };
    match dtype {
        Dtype::F32 => f32s(bytes),
        Dtype::BF16 => {
            let wide = bytes.chunks_exact(2).flat_map(|b| [0, 0, b[0], b[1]]);
            f32s(&wide.collect::<Vec<u8>>())
        }
        other => panic!("{other} is not compared"),
    }
}

/// How many tensors of a case were compared. Those without a tolerance are the same, bit for bit.
fn compare(case: &Path) -> usize {
    let recipe = case.join("recipe.toml");
    let recipe = recipe.to_str().unwrap();
    let expected = std::fs::read(case.join("expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&expected).unwrap();
    let bounds = std::fs::read(case.join("tolerance.safetensors")).ok();
    let bounds = bounds
        .as_ref()
        .map(|b| SafeTensors::deserialize(b).unwrap());
    for (name, want) in expected.tensors() {
        let meta = stfs(["cat", recipe, &name, "--view", "meta"]).ok().json();
        assert_eq!(
            meta["dtype"],
            format!("{}", want.dtype()),
            "{recipe}: {name}"
        );
        assert_eq!(
            meta["shape"],
            serde_json::json!(want.shape()),
            "{recipe}: {name}"
        );
        let ran = crate::common::mount::command(["cat", recipe, &name, "--view", "raw"])
            .output()
            .unwrap();
        assert!(ran.status.success(), "{ran:?}");
        let bound = bounds.as_ref().and_then(|b| b.tensor(&name).ok());
        let Some(bound) = bound else {
            assert!(ran.stdout == want.data(), "{recipe}: {name} differs");
            continue;
        };
        let bound = values(bound.dtype(), bound.data());
        let found = values(want.dtype(), &ran.stdout);
        let want = values(want.dtype(), want.data());
        assert_eq!(
            (found.len(), bound.len()),
            (want.len(), want.len()),
            "{recipe}: {name}"
        );
        for (i, ((f, w), b)) in found.iter().zip(&want).zip(&bound).enumerate() {
            let off = (f - w).abs();
            assert!(
                off <= *b,
                "{recipe}: {name}[{i}] is {f:e}, the library has {w:e}; {off:e} is over {b:e}"
            );
        }
    }
    expected.len()
}

#[test]
fn adapters_are_merged_as_peft_merges_them() {
    let compared: Vec<usize> = cases("peft-").iter().map(|case| compare(case)).collect();
    assert_eq!(compared, [2, 4, 14, 4, 14]);
}

#[test]
fn models_are_merged_as_mergekit_merges_them() {
    let compared: Vec<usize> = cases("mergekit-")
        .iter()
        .map(|case| compare(case))
        .collect();
    assert_eq!(compared, [12, 12, 12, 12]);
}
