//! Rules with `lora`.

use super::*;
use crate::view::read_all;

fn floats(name: &str, shape: &[u64], values: &[f32]) -> Stored {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    stored(name, Dtype::F32, shape, bytes)
}

/// A base of one module of ones, `[2, 3]`, and an adapter of rank 2 with alpha 16: a factor of 8.
fn case(module: &str) -> Case {
    let base = [
        floats("m.weight", &[2, 3], &[1.0; 6]),
        zeros("other", Dtype::BF16, &[4]),
    ];
    let named = |side: &str| format!("base_model.model.{module}.lora_{side}.weight");
    let adapter = [
        floats(&named("A"), &[2, 3], &[1.0, 2.0, 3.0, 0.0, 1.0, 0.0]),
        floats(&named("B"), &[2, 2], &[1.0, 0.0, 0.0, 2.0]),
    ];
    let config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 16});
    let adapter = TestModel::with_configs(&adapter, &[("adapter_config.json", config)]);
    Case::new(&base).and_model("ad", adapter)
}

fn rest(rule: &str) -> String {
    format!("models = {{ ad = \"a\" }}\nset = {{ half = 0.5 }}\nrules = [{rule}]")
}

fn values(case: &Case, results: &Results, name: &str) -> Vec<f32> {
    let found = results.tensors.iter().find(|o| &*o.name == name).unwrap();
    assert!(found.tensor.dtype.is(Dtype::F32));
    let view = case.sources.view(&found.tensor.expr, name).unwrap();
    let bytes = read_all(&*view).unwrap();
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|v| f32::from_le_bytes(*v))
        .collect()
}

#[test]
fn the_product_is_added_in_place() {
    let case = case("m");
    let results = case
        .run(&rest(r#"{ lora = "ad" }"#))
        .unwrap_or_else(|m| panic!("{m:?}"));
    // B @ A is [[1, 2, 3], [0, 2, 0]].
    assert_eq!(
        values(&case, &results, "m.weight"),
        [9.0, 17.0, 25.0, 1.0, 17.0, 1.0]
    );
    assert_eq!(results.applied[0].matches, 1);
    assert_eq!(&*results.applied[0].example.as_ref().unwrap().0, "m.weight");
    assert_eq!(results.tensors.len(), 2);
    let scaled = case.run(&rest(
        r#"{ lora = "ad", scale = "half" }, { on = "m.weight", to = "n.weight" }"#,
    ));
    let scaled = scaled.unwrap_or_else(|m| panic!("{m:?}"));
    assert_eq!(
        values(&case, &scaled, "n.weight"),
        [5.0, 9.0, 13.0, 1.0, 9.0, 1.0]
    );
}

#[test]
fn an_adapter_of_another_base() {
    let wrong = case("n").wrong(&rest(r#"{ lora = "ad" }"#));
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(
        wrong[0].starts_with("r.toml:4:20: adapter 'ad': module 'n': 'n.weight' is not there"),
        "{wrong:?}"
    );
    let sliced = case("m").wrong(&rest(
        r#"{ on = "m.weight", is = "it[0:1, 0:2]" }, { lora = "ad" }"#,
    ));
    assert_eq!(sliced.len(), 1, "{sliced:?}");
    assert!(
        sliced[0].contains("adapter 'ad': module 'm': "),
        "{sliced:?}"
    );
    assert!(
        sliced[0].contains("[1, 2]") && sliced[0].contains("[2, 3]"),
        "{sliced:?}"
    );
    // A tensor of which nothing is known is not a second mistake.
    let wrong = case("m").wrong(&rest(
        r#"{ on = "m.weight", is = "it[9]" }, { lora = "ad" }"#,
    ));
    assert_eq!(wrong.len(), 1, "{wrong:?}");
}

#[test]
fn what_is_not_an_adapter() {
    let base = Case::of_names(&["a"]).and("ad", &matrices(&["b"]), Json::Null);
    let wrong = base.wrong(&rest(r#"{ lora = "ad" }"#));
    assert!(
        wrong[0].starts_with("r.toml:4:20: adapter 'ad': "),
        "{wrong:?}"
    );
    let wrong = case("m").wrong(&rest(r#"{ lora = "ad", scale = "1 // 0" }"#));
    assert!(wrong[0].contains("division by 0"), "{wrong:?}");
}

/// One element meets every value in an expression. An adapter's product is of a weight of its own shape.
#[test]
fn the_product_has_the_weights_shape() {
    for (weight, product) in [("it[0:1, 0:1]", "[2, 3]"), ("it[0:1]", "[2, 3]")] {
        let wrong = case("m").wrong(&rest(&format!(
            r#"{{ on = "m.weight", is = "{weight}" }}, {{ lora = "ad" }}"#
        )));
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        let has = |text: &str| assert!(wrong[0].contains(text), "{wrong:?}");
        has("adapter 'ad': module 'm': B @ A is ");
        has(product);
        has(if weight.contains(',') {
            "[1, 1]"
        } else {
            "[1, 3]"
        });
    }
}

#[test]
fn a_quantized_layer_needs_floats() {
    let zeros = |name: &str, dtype, shape: &[u64]| zeros(&format!("m.{name}"), dtype, shape);
    let base = [
        zeros("qweight", Dtype::I32, &[4, 32]),
        zeros("qzeros", Dtype::I32, &[1, 4]),
        zeros("scales", Dtype::F16, &[1, 32]),
    ];
    let config = json!({"quantization_config": {
        "quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false, "sym": true
    }});
    let adapter = [
        floats("base_model.model.m.lora_A.weight", &[1, 32], &[0.0; 32]),
        floats("base_model.model.m.lora_B.weight", &[32, 1], &[0.0; 32]),
    ];
    let of_adapter = json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1});
    let base = || {
        let adapter =
            TestModel::with_configs(&adapter, &[("adapter_config.json", of_adapter.clone())]);
        Case::with_config(&base, config.clone()).and_model("ad", adapter)
    };
    let wrong = base().wrong(&rest(r#"{ lora = "ad" }"#));
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(
        wrong[0].contains("module 'm': 'm.weight' is not there")
            && wrong[0].ends_with("as = \"floats\""),
        "{wrong:?}"
    );
    let left = base().floats().left(&rest(r#"{ lora = "ad" }"#));
    assert_eq!(left, ["m.weight F32 [32, 32]"]);
}
