//! Other models, parameters, the configuration.

use super::*;

fn gqa() -> Case {
    Case::with_config(
        &matrices(&["a", "b"]),
        json!({"num_key_value_heads": 2, "scale": 0.5, "kind": "llama", "tied": true, "none": null,
            "text_config": {"hidden_size": 64, "none": 7, "rope": {"theta": 10000.0}}, "list": [1]}),
    )
}

#[test]
fn parameters_follow_from_those_above_and_the_configuration() {
    let recipe = r#"set = { tp = 4, rank = 0, kvs = "min(tp, config.num_key_value_heads)", h = "config.hidden_size // 2", n = "config.none" }
rules = [{ keep = "a" }, { on = "a", to = "{kvs}.{h}.{n}.{rank}" }]"#;
    assert_eq!(gqa().names(recipe), ["2.32.7.0"]);
    let case = gqa().set("tp", "1").set("rank", "tp + 2");
    assert_eq!(case.names(recipe), ["1.32.7.3"]);
    // The last one counts.
    let case = gqa().set("rank", "1").set("rank", "3");
    assert_eq!(case.names(recipe), ["2.32.7.3"]);
}

#[test]
fn mistakes_in_parameters() {
    let wrong = gqa()
        .wrong("set = { a = \"config.num_kv_heads\", b = \"a + 1\", c = \"1 // 0\" }\nrules = []");
    assert_eq!(wrong.len(), 2, "{wrong:#?}");
    assert!(
        wrong[0].starts_with("r.toml:2:14: config.num_kv_heads is not in config.json"),
        "{wrong:#?}"
    );
    assert!(wrong[1].starts_with("r.toml:2:"), "{wrong:#?}");
    let wrong = gqa()
        .set("rnak", "1")
        .wrong("set = { rank = 0 }\nrules = []");
    assert!(
        wrong[0].ends_with("--set rnak: there is no such parameter; did you mean 'rank'?"),
        "{wrong:#?}"
    );
    let wrong = gqa()
        .set("rank", "1 +")
        .wrong("set = { rank = 0 }\nrules = []");
    assert!(wrong[0].contains("--set rank=1 +: "), "{wrong:#?}");
    let wrong = gqa().wrong("set = { l = \"config.list\" }\nrules = []");
    assert!(wrong[0].contains("config.list is an array"), "{wrong:#?}");
}

#[test]
fn the_configuration_in_conditions() {
    let rule = |condition: &str| {
        format!("rules = [{{ keep = \"a\", optional = true, where = \"{condition}\" }}]")
    };
    for holds in [
        "config.kind == 'llama'",
        "config.scale < 1",
        "config.rope.theta == 10000",
        "config.hidden_size == 64 and config.num_key_value_heads == 2",
    ] {
        assert_eq!(gqa().names(&rule(holds)), ["a"], "{holds}");
    }
    assert!(gqa().names(&rule("config.kind == 'qwen'")).is_empty());
    let wrong = Case::of_names(&["a"]).wrong(&rule("config.kind == 'llama'"));
    assert!(
        wrong[0].contains("config.kind: the model has no config.json"),
        "{wrong:?}"
    );
}

#[test]
fn tensors_of_models_are_as_the_models_have_them() {
    let case = Case::with_config(
        &[
            zeros("model.embed_tokens.weight", Dtype::BF16, &[8, 4]),
            zeros("x", Dtype::BF16, &[8, 4]),
        ],
        json!({"tie_word_embeddings": true}),
    )
    .and("tuned", &[zeros("y", Dtype::F32, &[2, 2])], Json::Null);
    let rest = |rules: &str| format!("models = {{ tuned = \"t\" }}\nrules = [{rules}]");
    // The tied head is synthetic: it is not among the names, and the model has it.
    assert_eq!(
        case.left(&rest(r#"{ drop = "model.*" }, { on = "x", to = { h = "model:'lm_head.weight'", e = "model:'model.embed_tokens.weight'[0:1]" } }"#)),
        ["e BF16 [1, 4]", "h BF16 [8, 4]"]
    );
    // `it` under its present name.
    assert_eq!(
        case.left(&rest(
            r#"{ keep = "x" }, { on = "x", to = "y" }, { on = "y", is = "tuned:it" }"#
        )),
        ["y F32 [2, 2]"]
    );
    let wrong = case.wrong(&rest(
        r#"{ on = "x", is = "concat(it, 'lm_head.weight')" }"#,
    ));
    assert!(
        wrong[0].ends_with(
            "'lm_head.weight' is not there; the model has it besides: model:'lm_head.weight'"
        ),
        "{wrong:?}"
    );
}

#[test]
fn floats_start_with_the_values() {
    // An FP8 layer with blocks of 2 × 2.
    let tensors = [
        zeros("l.weight", Dtype::F8_E4M3, &[2, 4]),
        zeros("l.weight_scale_inv", Dtype::F32, &[1, 2]),
        zeros("norm", Dtype::BF16, &[4]),
        zeros("ids", Dtype::I64, &[4]),
    ];
    let config =
        json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [2, 2]}});
    let stored = Case::with_config(&tensors, config.clone());
    assert_eq!(stored.names("rules = []").len(), 4);
    let case = Case::with_config(&tensors, config).floats();
    assert_eq!(
        case.left("rules = []"),
        ["ids I64 [4]", "l.weight F32 [2, 4]", "norm F32 [4]"]
    );
    assert_eq!(
        case.left(r#"rules = [{ on = "norm", is = "model:'l.weight'[0:1]" }, { keep = "norm" }]"#),
        ["norm F32 [1, 4]"]
    );
}
