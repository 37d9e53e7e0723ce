//! `stfs info`.

use std::path::Path;

use safetensors::Dtype;
use serde_json::{Value, json};

use crate::common::{ModelDir, T, stfs, tensor};

/// A mixture of four experts, two of them visited, with a tied head.
fn mixture() -> ModelDir {
    let mut all = vec![
        tensor("model.embed_tokens.weight", Dtype::BF16, &[100, 16]),
        tensor("model.norm.weight", Dtype::F32, &[16]),
    ];
    let layer = |name: &str, shape: &[usize]| {
        tensor(&format!("model.layers.0.{name}.weight"), Dtype::BF16, shape)
    };
    for p in ["q_proj", "k_proj", "v_proj"] {
        all.push(layer(&format!("self_attn.{p}"), &[16, 16]));
    }
    all.push(layer("block_sparse_moe.gate", &[4, 16]));
    for e in 0..4 {
        for w in ["w1", "w2", "w3"] {
            all.push(layer(
                &format!("block_sparse_moe.experts.{e}.{w}"),
                &[16, 16],
            ));
        }
    }
    let dir = ModelDir::of(&all);
    dir.json(
        "config.json",
        &json!({"architectures": ["MixtralForCausalLM"], "tie_word_embeddings": true,
            "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2,
            "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
            "vocab_size": 100, "max_position_embeddings": 2048}),
    );
    dir
}

fn info(dir: &Path) -> Value {
    stfs(["info".as_ref(), dir, "--json".as_ref()]).ok().json()
}

#[test]
fn a_model_at_a_glance() {
    let dir = mixture();
    let info = info(dir.path());
    assert_eq!(info["architecture"], "MixtralForCausalLM");
    let numbers = json!({"layers": 1, "hidden": 16, "heads": 2, "kv_heads": 2, "experts": 4,
        "experts_per_token": 2, "vocab": 100, "context": 2048});
    assert_eq!(info["config"], numbers);
    let (embedding, norm, attention, router, experts) = (1600, 16, 768, 64, 12 * 256);
    let all = embedding + norm + attention + router + experts;
    assert_eq!(info["tensors"], 18);
    assert_eq!(info["parameters"], all);
    assert_eq!(info["active_parameters"], all - experts / 2);
    let bytes = 2 * all + 2 * norm;
    assert_eq!(info["bytes"], bytes);
    let memory = json!({"stored": bytes, "bf16": 2 * all, "f32": 4 * all});
    assert_eq!(info["memory"], memory);
    let part = |name: &str, tensors: u32, parameters: u32, bytes: u32| json!({"name": name, "tensors": tensors, "parameters": parameters, "bytes": bytes});
    let parts = [
        part("embedding", 1, embedding, 2 * embedding),
        part("attention", 3, attention, 2 * attention),
        part("experts", 12, experts, 2 * experts),
        part("norm", 1, norm, 4 * norm),
        part("other", 1, router, 2 * router),
    ];
    assert_eq!(info["parts"], json!(parts));
    assert_eq!(info["quantization"], Value::Null);
    assert_eq!(info["tied"], json!(["lm_head.weight"]));
    // qkv, and the stacked gate_up and down.
    assert_eq!((&info["fused"], &info["left_out"]), (&json!(3), &json!(0)));
    assert_eq!(info["files"][0]["name"], "model.safetensors");
}

#[test]
fn it_fits_on_one_screen() {
    let dir = mixture();
    let page = stfs(["info".as_ref(), dir.path()]).ok().out;
    assert!(page.lines().count() <= 24, "{page}");
    for text in [
        "MixtralForCausalLM  safetensors, 1 file",
        "experts 4, experts per token 2, vocab 100",
        "active per token",
        "tied            lm_head.weight",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
}

#[test]
fn what_is_not_known_is_null() {
    let hostile: T = tensor("\x1b[31mx", Dtype::F16, &[2]);
    let dir = ModelDir::of(&[hostile]);
    let info = info(dir.path());
    assert_eq!(info["architecture"], Value::Null);
    assert!(
        info["config"]
            .as_object()
            .unwrap()
            .values()
            .all(Value::is_null)
    );
    assert_eq!(info["active_parameters"], 2);
    dir.json(
        "config.json",
        &json!({"architectures": ["\x1b[31m"], "hidden_size": "\x1b"}),
    );
    let page = stfs(["info".as_ref(), dir.path()]).ok().out;
    assert!(!page.contains('\x1b'), "{page}");
    let empty = ModelDir::of(&[]);
    assert_eq!(self::info(empty.path())["parts"], json!([]));
}
