//! The synthetic tensors of llama.cpp's names.

use super::*;

fn why_not(model: &Model, name: &str) -> String {
    model.find(name).expect_err(name).to_string()
}

#[test]
fn llama_cpps_names_fuse_and_a_stored_tensor_of_the_name_wins() {
    let m = model(vec![
        blocks("blk.0.attn_q.weight", &[2, 4], 0),
        blocks("blk.0.attn_k.weight", &[1, 4], 10),
        blocks("blk.0.attn_v.weight", &[1, 4], 15),
        of("blk.0.attn_q_norm.weight", Dtype::F32, &[1]),
        of("blk.0.attn_k_norm.weight", Dtype::F32, &[1]),
        of("blk.1.attn_q.weight", Dtype::U8, &[1, 4]),
        of("blk.1.attn_k.weight", Dtype::U8, &[1, 4]),
        of("blk.1.attn_v.weight", Dtype::U8, &[1, 4]),
        of("blk.1.attn_qkv.weight", Dtype::U8, &[2, 4]),
        of("blk.2.attn_q.weight", Dtype::U8, &[1, 4]),
    ]);
    let (id, fused) = m.find("blk.0.attn_qkv.weight").unwrap();
    assert_eq!((fused.dtype.name(), fused.shape), ("Q8_TEST", &[4, 4][..]));
    assert_eq!(read_all(&*m.raw(id).unwrap()).unwrap(), FILE);
    assert_eq!(m.remark(id), None);
    let (id, stored) = m.find("blk.1.attn_qkv.weight").unwrap();
    assert!(m.is_stored(id) && stored.shape == [2, 4]);
    let why = why_not(&m, "blk.2.attn_qkv.weight");
    assert!(why.contains("needs 'blk.2.attn_k.weight'"), "{why}");
    let reasons = m.reasons();
    let names: Vec<&str> = reasons.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["blk.2.attn_qkv.weight"]);
}

#[test]
fn experts_join_within_each_expert() {
    // Two experts of one block each, and of one bias each.
    let m = model(vec![
        blocks("blk.0.ffn_gate_exps.weight", &[2, 1, 4], 0),
        blocks("blk.0.ffn_up_exps.weight", &[2, 1, 4], 10),
        of("blk.0.ffn_gate_exps.bias", Dtype::U8, &[2, 1]),
        of("blk.0.ffn_up_exps.bias", Dtype::U8, &[2, 2]),
    ]);
    let name = "blk.0.ffn_gate_up_exps.weight";
    let (id, fused) = m.find(name).unwrap();
    assert_eq!(fused.shape, [2, 2, 4]);
    let want = [&FILE[..5], &FILE[10..15], &FILE[5..10], &FILE[15..]].concat();
    assert_eq!(read_all(&*m.raw(id).unwrap()).unwrap(), want);
    assert_eq!(values(&m, name)[4..8], [30.0, 31.0, 32.0, 33.0]);
    let (id, bias) = m.find("blk.0.ffn_gate_up_exps.bias").unwrap();
    assert_eq!(bias.shape, [2, 3]);
    let want = [FILE[0], FILE[0], FILE[1], FILE[1], FILE[2], FILE[3]];
    assert_eq!(read_all(&*m.raw(id).unwrap()).unwrap(), want);
    assert_eq!(meta(&m, name)["origin"]["axis"], 1);
}

#[test]
fn parts_of_different_types_join_as_values_if_the_rule_says_so() {
    let m = model(vec![
        blocks("blk.0.attn_q.weight", &[1, 4], 0),
        of("blk.0.attn_k.weight", Dtype::I8, &[1, 4]),
        blocks("blk.0.attn_v.weight", &[1, 4], 10),
        of("blk.0.attn_q.bias", Dtype::I8, &[2]),
        of("blk.0.attn_k.bias", Dtype::I8, &[1]),
        of("blk.0.attn_v.bias", Dtype::U8, &[1]),
        // Along the last axis: within each expert.
        of("blk.0.ffn_gate_exps.bias", Dtype::I8, &[2, 1]),
        of("blk.0.ffn_up_exps.bias", Dtype::U8, &[2, 1]),
        // The rule of these names says otherwise.
        blocks("l.q_proj.weight", &[1, 4], 0),
        of("l.k_proj.weight", Dtype::I8, &[1, 4]),
        blocks("l.v_proj.weight", &[1, 4], 10),
    ]);
    let name = "blk.0.attn_qkv.weight";
    let (id, fused) = m.find(name).unwrap();
    assert_eq!((fused.dtype.name(), fused.shape), ("F32", &[3, 4][..]));
    assert_eq!(fused.nbytes, 48);
    let want = [10, 11, 12, 13, 10, 0, 1, 2, 30, 31, 32, 33].map(|v| v as f32);
    assert_eq!(values(&m, name), want);
    assert_eq!(
        read_all(&*m.raw(id).unwrap()).unwrap(),
        bytemuck::cast_slice::<f32, u8>(&want)
    );
    let why = m.remark(id).unwrap();
    let dtypes = "dtypes differ: 'blk.0.attn_q.weight' is Q8_TEST, 'blk.0.attn_k.weight' is I8";
    assert!(why.contains(dtypes), "{why}");
    let meta = meta(&m, name);
    assert_eq!(meta["origin"]["kind"], "fused");
    let v = json!({"name": "blk.0.attn_v.weight", "range": [2, 3]});
    assert_eq!(meta["origin"]["parts"][2], v);
    assert_eq!(meta.get("quantization"), None);
    assert_eq!(values(&m, "blk.0.attn_qkv.bias"), [10.0, 0.0, 10.0, 10.0]);
    let biases = "blk.0.ffn_gate_up_exps.bias";
    assert_eq!(m.find(biases).unwrap().1.shape, [2, 2]);
    assert_eq!(values(&m, biases), [10.0, 10.0, 0.0, 0.0]);
    let why = why_not(&m, "l.qkv_proj.weight");
    assert!(why.contains("dtypes differ"), "{why}");
}

#[test]
fn types_without_values_join_as_bytes_or_not_at_all() {
    let scratch = |name: &str, offset| {
        let extent = RowBytes::Extent { file: 0, offset };
        row(name, ElementType::Block(&SCRATCH), &[1, 4], extent)
    };
    let m = model(vec![
        scratch("blk.0.attn_q.weight", 0),
        scratch("blk.0.attn_k.weight", 5),
        scratch("blk.0.attn_v.weight", 10),
        scratch("blk.1.attn_q.weight", 0),
        scratch("blk.1.attn_k.weight", 5),
        blocks("blk.1.attn_v.weight", &[1, 4], 10),
    ]);
    let (id, fused) = m.find("blk.0.attn_qkv.weight").unwrap();
    assert!(fused.dtype.name() == "Q8_SCRATCH" && fused.values.is_none());
    assert_eq!(read_all(&*m.raw(id).unwrap()).unwrap(), FILE[..15]);
    let why = why_not(&m, "blk.1.attn_qkv.weight");
    for part in ["dtypes differ", "'blk.1.attn_q.weight' has no values"] {
        assert!(why.contains(part), "{why}");
    }
}

/// NVFP4 has a factor for each whole weight, in a tensor beside it. It is no part of the blocks.
#[test]
fn blocks_join_beside_factors_that_do_not() {
    let mut all = Vec::new();
    for part in ["attn_q", "attn_k", "attn_v"] {
        all.push(blocks(&format!("blk.0.{part}.weight"), &[1, 4], 0));
        all.push(of(&format!("blk.0.{part}.scale"), Dtype::F32, &[1]));
    }
    let m = model(all);
    assert!(m.find("blk.0.attn_qkv.weight").is_ok());
    let why = why_not(&m, "blk.0.attn_qkv.scale");
    assert!(why.contains("'scale' joins only"), "{why}");
}

#[test]
fn llama_cpps_head_is_tied_if_the_file_has_none() {
    let embedding = || blocks("token_embd.weight", &[2, 4], 0);
    let norm = || of("output_norm.weight", Dtype::F32, &[1]);
    let m = model(vec![embedding(), norm()]);
    let (id, head) = m.find("output.weight").unwrap();
    assert_eq!((m.kind(&head.raw), head.dtype.name()), ("tied", "Q8_TEST"));
    assert_eq!(read_all(&*m.raw(id).unwrap()).unwrap(), FILE[..10]);
    assert_eq!(values(&m, "output.weight")[..2], [10.0, 11.0]);
    let tied = json!({"kind": "tied", "parts": ["token_embd.weight"]});
    assert_eq!(meta(&m, "output.weight")["origin"], tied);
    // Without the norm no head is expected, nor if one is stored.
    assert_eq!(model(vec![embedding()]).id("output.weight"), None);
    let stored = of("output.weight", Dtype::F32, &[1]);
    let m = model(vec![embedding(), norm(), stored]);
    assert!(m.is_stored(m.find("output.weight").unwrap().0));
    // Only the whole name is the embedding's.
    let other = of("dec.token_embd.weight", Dtype::F32, &[1]);
    assert_eq!(model(vec![other, norm()]).id("output.weight"), None);
}

#[test]
fn llama_cpps_head_is_not_inferred_of_a_part_of_a_model() {
    let with = |absent: &[&str], missing: bool| {
        let mut catalog = catalog(vec![blocks("token_embd.weight", &[2, 4], 0)]);
        catalog
            .absent
            .extend(absent.iter().map(|name| Arc::from(*name)));
        catalog.shards_missing = missing;
        Model::new(catalog, ModelOptions::default())
    };
    // A name that is known to be in the rest counts.
    assert!(
        with(&["output_norm.weight"], false)
            .find("output.weight")
            .is_ok()
    );
    let both = with(&["output_norm.weight", "output.weight"], false);
    assert_eq!(both.id("output.weight"), None);
    let why = why_not(&with(&["output_norm.weight"], true), "output.weight");
    assert!(why.contains("shards are missing"), "{why}");
}
