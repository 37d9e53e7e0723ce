//! The tied output head: when `lm_head.weight` is the embedding under a second name.

use std::path::Path;

use safetensors::Dtype;
use serde_json::{Value, json};

use crate::common::{ModelDir, Mounted, stfs, sys, tensor};

const EMBED: &str = "model.embed_tokens.weight";

/// The origin of `lm_head.weight` as `ls` reports it without a mount, if there is one.
fn head(model: &Path) -> Option<String> {
    let args = [
        Path::new("cat"),
        "--view".as_ref(),
        "meta".as_ref(),
        model,
        "lm_head.weight".as_ref(),
    ];
    let ran = stfs(args);
    if ran.code != 0 {
        ran.fails(&["lm_head.weight"]);
        return None;
    }
    let meta = ran.ok().json();
    match meta["origin"]["kind"].as_str() {
        Some("tied") => Some(meta["origin"]["parts"][0].as_str().unwrap().to_string()),
        kind => kind.map(String::from),
    }
}

fn model(names: &[&str], config: Option<Value>) -> ModelDir {
    let all: Vec<_> = names
        .iter()
        .map(|n| tensor(n, Dtype::BF16, &[8, 4]))
        .collect();
    let dir = ModelDir::of(&all);
    if let Some(config) = config {
        dir.json("config.json", &config);
    }
    dir
}

#[test]
fn every_branch_of_the_rule() {
    let causal = || json!({"architectures": ["LlamaForCausalLM"]});
    let yes = || json!({"tie_word_embeddings": true});
    let no = || json!({"tie_word_embeddings": false, "architectures": ["LlamaForCausalLM"]});
    let cases: &[(&[&str], Option<Value>, Option<&str>)] = &[
        (&[EMBED], Some(yes()), Some(EMBED)),
        (&[EMBED], Some(no()), None),
        (&[EMBED], None, None),
        (&[EMBED], Some(causal()), Some(EMBED)),
        (&[EMBED], Some(json!({})), None),
        (
            &[EMBED],
            Some(json!({"architectures": ["BertForMaskedLM"]})),
            None,
        ),
        (&[EMBED], Some(json!({"architectures": []})), None),
        (
            &[EMBED],
            Some(json!({"tie_word_embeddings": null, "architectures": ["GemmaForCausalLM"]})),
            Some(EMBED),
        ),
        // Multimodal: the text model's own config counts if the root has none.
        (
            &["language_model.model.embed_tokens.weight"],
            Some(json!({"text_config": yes()})),
            Some("language_model.model.embed_tokens.weight"),
        ),
        (
            &[EMBED],
            Some(json!({"architectures": ["X"], "text_config": no()})),
            None,
        ),
        // GPT-2's names.
        (
            &["transformer.wte.weight"],
            Some(json!({"architectures": ["GPT2LMHeadModel"]})),
            Some("transformer.wte.weight"),
        ),
        (
            &["wte.weight", "wpe.weight"],
            Some(json!({"architectures": ["GPT2LMHeadModel"]})),
            Some("wte.weight"),
        ),
        (
            &["embed_tokens.weight"],
            Some(yes()),
            Some("embed_tokens.weight"),
        ),
        // A head is stored, under this name or another.
        (&[EMBED, "lm_head.weight"], Some(yes()), Some("stored")),
        (&[EMBED, "model.lm_head.weight"], Some(yes()), None),
        (
            &["gpt_neox.embed_in.weight", "embed_out.weight"],
            Some(causal()),
            None,
        ),
        // There must be exactly one embedding.
        (&[EMBED, "decoder.embed_tokens.weight"], Some(yes()), None),
        (&["model.norm.weight"], Some(yes()), None),
        // A name that only ends like one.
        (&["model.not_embed_tokens.weight"], Some(yes()), None),
    ];
    for (names, config, want) in cases {
        let dir = model(names, config.clone());
        assert_eq!(head(dir.path()).as_deref(), *want, "{names:?} {config:?}");
    }
    // A lone shard: its head may be in another.
    let dir = model(&[EMBED], Some(yes()));
    assert_eq!(head(&dir.join("model.safetensors")), None);
    // A config that is not JSON counts as none.
    dir.file("config.json", "{");
    assert_eq!(head(dir.path()), None);
}

#[test]
fn it_is_the_embedding_in_every_view() {
    let embed = tensor(EMBED, Dtype::F16, &[9, 4]);
    let dir = ModelDir::of(std::slice::from_ref(&embed));
    dir.json("config.json", &json!({"tie_word_embeddings": true}));
    let m = Mounted::new(dir.path());
    assert_eq!(m.read("tensors/lm_head.weight/raw"), embed.data);
    for (a, b) in [
        ("tensors/lm_head.weight/f32", format!("tensors/{EMBED}/f32")),
        ("npy/lm_head.weight.npy", format!("npy/{EMBED}.npy")),
    ] {
        assert_eq!(m.read(a), m.read(&b));
    }
    let meta = m.json("tensors/lm_head.weight/meta.json");
    assert_eq!(meta["origin"], json!({"kind": "tied", "parts": [EMBED]}));
    assert_eq!(
        (&meta["dtype"], &meta["shape"]),
        (&json!("F16"), &json!([9, 4]))
    );
    let raw = m.join("tensors/lm_head.weight/raw");
    assert_eq!(sys::getxattr(&raw, "user.stfs.origin").unwrap(), b"tied");
    assert_eq!(
        sys::getxattr(&raw, "user.stfs.name").unwrap(),
        b"lm_head.weight"
    );
    // Stored tensors only.
    assert_eq!(m.json("model.json")["parameters"], 36);
}
