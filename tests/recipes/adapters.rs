//! Adapters that cannot be merged: of another base, of another kind, damaged.

use safetensors::Dtype;
use serde_json::{Value, json};

use crate::common::{ModelDir, T, stfs, tensor};
use crate::{ls, model, models, refused};

const RULES: &str = "model = 'm'\nmodels = { ad = 'ad' }\nrules = [{ lora = 'ad' }]\n";

fn factors(module: &str, a: &[usize], b: &[usize]) -> [T; 2] {
    let of = |x: &str, shape| {
        tensor(
            &format!("base_model.model.{module}.lora_{x}.weight"),
            Dtype::F32,
            shape,
        )
    };
    [of("A", a), of("B", b)]
}

/// An adapter with these tensors and more keys in its config.
fn adapter(dir: &ModelDir, tensors: &[T], more: Value) {
    model(dir, "ad", tensors);
    let mut config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4});
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    dir.json("ad/adapter_config.json", &config);
}

const Q: &str = "model.layers.0.self_attn.q_proj";

#[test]
fn one_that_fits_changes_its_tensors_alone() {
    let dir = models();
    adapter(&dir, &factors(Q, &[2, 4], &[8, 2]), json!({}));
    let path = dir.file("recipe.toml", RULES);
    let all = ls(&path);
    assert_eq!(all.len(), ls(&dir.join("m")).len());
    for (name, dtype, shape) in all {
        let is_changed = name == format!("{Q}.weight");
        if is_changed || name.contains("q_proj") {
            assert_eq!(
                (&*dtype, shape),
                (if is_changed { "F32" } else { "BF16" }, vec![8, 4]),
                "{name}"
            );
        }
    }
}

/// The whole adapter is of another model: a module is named that this one does not have.
#[test]
fn an_adapter_of_another_base_is_refused_with_its_module() {
    let dir = models();
    let path = dir.file("recipe.toml", RULES);
    adapter(
        &dir,
        &factors("model.layers.31.self_attn.q_proj", &[2, 4], &[8, 2]),
        json!({}),
    );
    refused(
        &path,
        &["recipe.toml:3:", "model.layers.31.self_attn.q_proj"],
    );
    adapter(&dir, &factors(Q, &[2, 5], &[8, 2]), json!({}));
    refused(&path, &["recipe.toml:3:", Q, "[8, 4]", "[8, 5]"]);
    adapter(&dir, &factors(Q, &[2, 8], &[4, 2]), json!({}));
    refused(&path, &["recipe.toml:3:", Q, "[8, 4]", "[4, 8]"]);
    // The same turned around is what fan_in_fan_out is for.
    adapter(
        &dir,
        &factors(Q, &[2, 8], &[4, 2]),
        json!({"fan_in_fan_out": true}),
    );
    ls(&path);
    adapter(&dir, &factors("nothing", &[2, 4], &[8, 2]), json!({}));
    refused(&path, &["'nothing'", "nothing.weight"]);
}

#[test]
fn what_is_more_than_lora_is_refused_by_name() {
    let dir = models();
    let path = dir.file("recipe.toml", RULES);
    for (more, word) in [
        (json!({"use_dora": true}), "DoRA"),
        (json!({"lora_bias": true}), "lora_bias"),
        (json!({"use_qalora": true}), "QALoRA"),
        (
            json!({"target_parameters": ["experts.gate_up_proj"]}),
            "target_parameters",
        ),
        (json!({"peft_type": "IA3"}), "IA3"),
        (json!({"peft_type": "ADALORA"}), "ADALORA"),
        (json!({"lora_alpha": null}), "lora_alpha"),
        (json!({"alpha_pattern": {"q_proj": "x"}}), "q_proj"),
        (json!({"alpha_pattern": {"(": 2}}), "alpha_pattern"),
        (json!({"init_lora_weights": "pissa"}), "pissa"),
    ] {
        adapter(&dir, &factors(Q, &[2, 4], &[8, 2]), more);
        refused(&path, &["recipe.toml:3:", "'ad'", word]);
    }
    let convolution = factors(Q, &[2, 4, 3, 3], &[8, 2, 1, 1]);
    adapter(&dir, &convolution, json!({}));
    refused(&path, &[Q, "convolution"]);
    let [a, b] = factors(Q, &[2, 4], &[8, 2]);
    let magnitude = tensor(
        &format!("base_model.model.{Q}.lora_magnitude_vector"),
        Dtype::F32,
        &[8],
    );
    adapter(&dir, &[a.clone(), b.clone(), magnitude], json!({}));
    refused(&path, &["DoRA"]);
    let bias = tensor(
        &format!("base_model.model.{Q}.lora_B.bias"),
        Dtype::F32,
        &[8],
    );
    adapter(&dir, &[a.clone(), b, bias], json!({}));
    refused(&path, &["lora_bias"]);
    adapter(&dir, &[a], json!({}));
    refused(&path, &[Q, "lora_B"]);
    adapter(&dir, &factors(Q, &[2, 4], &[8, 3]), json!({}));
    refused(&path, &[Q, "2", "3"]);
    adapter(&dir, &factors(Q, &[1025, 4], &[8, 1025]), json!({}));
    refused(&path, &[Q, "1025", "1024"]);
    adapter(&dir, &factors(Q, &[0, 4], &[8, 0]), json!({}));
    refused(&path, &[Q, "0"]);
}

#[test]
fn an_adapter_without_its_config_or_with_a_damaged_one() {
    let dir = models();
    let path = dir.file("recipe.toml", RULES);
    model(&dir, "ad", &factors(Q, &[2, 4], &[8, 2]));
    refused(&path, &["'ad'", "adapter_config.json"]);
    for text in ["{", "[]", "5", "{\"peft_type\": 5}"] {
        dir.file("ad/adapter_config.json", text);
        refused(&path, &["'ad'", "adapter_config.json"]);
    }
    // A model is not an adapter.
    let of_model = dir.file(
        "other.toml",
        RULES.replace("'ad' }\nrules", "'tuned' }\nrules"),
    );
    refused(&of_model, &["'ad'", "adapter_config.json"]);
}

/// Two adapters one after another, and each half: the factor is rounded once.
#[test]
fn adapters_add_up_in_the_order_of_their_rules() {
    let dir = models();
    adapter(&dir, &factors(Q, &[2, 4], &[8, 2]), json!({}));
    let text = "model = 'm'\nmodels = { ad = 'ad', it2 = 'ad' }\nset = { half = 0.5 }\n\
        rules = [{ lora = 'ad', scale = 'half' }, { lora = 'it2', scale = -0.5 }]\n";
    let path = dir.file("recipe.toml", text);
    let json = stfs([
        "ls".as_ref(),
        "--rules".as_ref(),
        "--json".as_ref(),
        path.as_os_str(),
    ]);
    let rules = json.ok().json();
    assert_eq!(
        (&rules[0]["matches"], &rules[1]["matches"]),
        (&json!(1), &json!(1)),
        "{rules}"
    );
    assert_eq!(rules[0]["from"], format!("{Q}.weight"), "{rules}");
    assert_eq!(rules[0]["dtype"], "F32", "{rules}");
}
