//! Fused and stacked tensors, and what leaves them out.

use safetensors::Dtype;
use serde_json::{Value, json};

use crate::common::{ModelDir, Mounted, T, stfs, tensor};

fn names(model: &std::path::Path) -> Vec<String> {
    let all = stfs([std::path::Path::new("ls"), "--json".as_ref(), model])
        .ok()
        .json();
    let name = |t: &Value| t["name"].as_str().unwrap().to_string();
    all.as_array().unwrap().iter().map(name).collect()
}

fn why(model: &std::path::Path, name: &str) -> String {
    let args = ["ls", "--why", "--json"].map(std::path::Path::new);
    let all = stfs(args.into_iter().chain([model, name.as_ref()]))
        .ok()
        .json();
    assert_eq!(all.as_array().unwrap().len(), 1, "{name}: {all}");
    all[0]["reason"].as_str().unwrap().to_string()
}

fn join(parts: &[&T]) -> Vec<u8> {
    parts.iter().flat_map(|p| p.data.clone()).collect()
}

#[test]
fn parts_are_joined_along_rows() {
    let t = |n: &str, shape: &[usize]| tensor(&format!("l.{n}"), Dtype::BF16, shape);
    let [q, k, v] = ["q", "k", "v"].map(|p| t(&format!("{p}_proj.weight"), &[p.len() * 3, 8]));
    let k = T {
        shape: vec![1, 8],
        data: k.data[..16].to_vec(),
        ..k
    };
    let [qb, kb, vb] = ["q", "k", "v"].map(|p| t(&format!("{p}_proj.bias"), &[3]));
    let (gate, up) = (
        t("mlp.gate_proj.weight", &[4, 2, 8]),
        t("mlp.up_proj.weight", &[4, 3, 8]),
    );
    let (qa, kva) = (
        t("q_a_proj.weight", &[5, 8]),
        t("kv_a_proj_with_mqa.weight", &[2, 8]),
    );
    let dir = ModelDir::of(&[&q, &k, &v, &qb, &kb, &vb, &gate, &up, &qa, &kva].map(T::clone));
    let m = Mounted::new(dir.path());
    let is = |name: &str, shape: Value, data: &[u8]| {
        let meta = m.json(&format!("tensors/{name}/meta.json"));
        assert_eq!(
            (&meta["shape"], &meta["dtype"]),
            (&shape, &json!("BF16")),
            "{name}"
        );
        assert_eq!(meta["origin"]["kind"], "fused");
        assert!(m.read(&format!("tensors/{name}/raw")) == data, "{name}");
        meta["origin"].clone()
    };
    let origin = is("l.qkv_proj.weight", json!([7, 8]), &join(&[&q, &k, &v]));
    let part = |n: &str, a, b| json!({"name": format!("l.{n}_proj.weight"), "range": [a, b]});
    let want = json!({"kind": "fused", "axis": 0,
        "parts": [part("q", 0, 3), part("k", 3, 4), part("v", 4, 7)]});
    assert_eq!(origin, want);
    is("l.qkv_proj.bias", json!([9]), &join(&[&qb, &kb, &vb]));
    is(
        "l.fused_qkv_a_proj.weight",
        json!([7, 8]),
        &join(&[&qa, &kva]),
    );
    // Expert-stacked: joined within each expert, along axis -2.
    let within: Vec<u8> = (0..4)
        .flat_map(|e| [&gate.data[e * 32..][..32], &up.data[e * 48..][..48]].concat())
        .collect();
    let origin = is("l.mlp.gate_up_proj.weight", json!([4, 5, 8]), &within);
    assert_eq!(origin["axis"], 1);
}

#[test]
fn experts_are_stacked() {
    let shapes = [
        ("gate_proj", [2, 4]),
        ("up_proj", [2, 4]),
        ("down_proj", [4, 2]),
    ];
    let mixtral = [("w1", [2, 4]), ("w3", [2, 4]), ("w2", [4, 2])];
    for spelling in [shapes, mixtral] {
        let t = |e: usize, i: usize| {
            let name = format!("l.experts.{e}.{}.weight", spelling[i].0);
            tensor(&name, Dtype::F16, &spelling[i].1)
        };
        // Twelve: 10 and 11 come after 9.
        let all: Vec<T> = (0..12).flat_map(|e| (0..3).map(move |i| t(e, i))).collect();
        let dir = ModelDir::of(&all);
        let m = Mounted::new(dir.path());
        let ups: Vec<u8> = (0..12).flat_map(|e| join(&[&t(e, 0), &t(e, 1)])).collect();
        let downs: Vec<u8> = (0..12).flat_map(|e| t(e, 2).data).collect();
        let meta = m.json("tensors/l.experts.gate_up_proj/meta.json");
        assert_eq!(meta["shape"], json!([12, 4, 4]));
        assert_eq!(meta["origin"]["kind"], "stacked");
        assert_eq!(meta["origin"]["axis"], 0);
        let part = &meta["origin"]["parts"][7];
        let name = format!("l.experts.3.{}.weight", spelling[1].0);
        assert_eq!(*part, json!({"name": name, "index": 3, "range": [2, 4]}));
        assert!(m.read("tensors/l.experts.gate_up_proj/raw") == ups);
        let meta = m.json("tensors/l.experts.down_proj/meta.json");
        assert_eq!(meta["shape"], json!([12, 4, 2]));
        let name = format!("l.experts.11.{}.weight", spelling[2].0);
        assert_eq!(
            meta["origin"]["parts"][11],
            json!({"name": name, "index": 11})
        );
        assert!(m.read("tensors/l.experts.down_proj/raw") == downs);
    }
}

#[test]
fn parts_that_do_not_fit_make_nothing_and_ls_says_why() {
    let t = tensor;
    let dir = ModelDir::of(&[
        t("a.q_proj.weight", Dtype::BF16, &[2, 4]),
        t("a.k_proj.weight", Dtype::F16, &[2, 4]),
        t("a.v_proj.weight", Dtype::BF16, &[2, 4]),
        t("b.gate_proj.weight", Dtype::BF16, &[2, 4]),
        t("b.up_proj.weight", Dtype::BF16, &[2, 5]),
        t("c.gate_proj.weight", Dtype::BF16, &[2, 4]),
        t("d.experts.0.down_proj.weight", Dtype::BF16, &[2, 4]),
        t("d.experts.2.down_proj.weight", Dtype::BF16, &[2, 4]),
        t("e.experts.0.down_proj.weight", Dtype::BF16, &[2, 4]),
        t("e.experts.1.down_proj.weight", Dtype::BF16, &[3, 4]),
        t("f.gate_proj.weight", Dtype::F32, &[]),
        t("f.up_proj.weight", Dtype::F32, &[]),
        t("g.gate_proj.weight", Dtype::F4, &[1, 3, 2]),
        t("g.up_proj.weight", Dtype::F4, &[1, 1, 2]),
    ]);
    let listed = names(dir.path());
    for (name, words) in [
        ("a.qkv_proj.weight", ["BF16", "F16"]),
        ("b.gate_up_proj.weight", ["[2, 4]", "[2, 5]"]),
        ("c.gate_up_proj.weight", ["c.up_proj.weight", "needs"]),
        (
            "d.experts.down_proj",
            ["d.experts.1.down_proj.weight", "needs"],
        ),
        ("e.experts.down_proj", ["e.experts.1.down_proj.weight", "3"]),
        ("f.gate_up_proj.weight", ["scalar", ""]),
    ] {
        assert!(!listed.contains(&name.to_string()), "{name}");
        let reason = why(dir.path(), name);
        for word in words {
            assert!(reason.contains(word), "{name}: {reason}");
        }
    }
    // Rows of half bytes that together are whole ones.
    assert!(listed.contains(&"g.gate_up_proj.weight".to_string()));
}

#[test]
fn a_stored_tensor_of_the_name_wins() {
    let own = tensor("l.qkv_proj.weight", Dtype::F32, &[1]);
    let mut all: Vec<T> = ["q", "k", "v"]
        .map(|p| tensor(&format!("l.{p}_proj.weight"), Dtype::BF16, &[2, 4]))
        .into();
    all.push(own.clone());
    let dir = ModelDir::of(&all);
    let m = Mounted::new(dir.path());
    assert_eq!(m.read("tensors/l.qkv_proj.weight/raw"), own.data);
    assert_eq!(
        m.json("index.json")["l.qkv_proj.weight"]["origin"],
        "stored"
    );
}

#[test]
fn no_synthetic_leaves_stored_ones_alone() {
    let mut all: Vec<T> = ["q", "k", "v"]
        .map(|p| tensor(&format!("l.{p}_proj.weight"), Dtype::BF16, &[2, 4]))
        .into();
    all.push(tensor("model.embed_tokens.weight", Dtype::BF16, &[4, 4]));
    let dir = ModelDir::of(&all);
    dir.json("config.json", &json!({"tie_word_embeddings": true}));
    let mut with = names(dir.path());
    with.retain(|n| !all.iter().any(|t| t.name == *n));
    assert_eq!(with, ["l.qkv_proj.weight", "lm_head.weight"]);
    for option in [&["--no-synthetic"][..], &["-o", "no_synthetic"]] {
        let m = Mounted::with(dir.path(), option);
        assert_eq!(m.list("tensors").len(), 4);
        assert!(!m.join("tensors/l.qkv_proj.weight").exists());
        assert!(!m.join("npy/lm_head.weight.npy").exists());
        assert_eq!(m.json("index.json").as_object().unwrap().len(), 4);
    }
}
