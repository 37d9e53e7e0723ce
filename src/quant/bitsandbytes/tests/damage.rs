//! Every kind of damage to a bitsandbytes layer, permanent and transient.

use super::*;

#[test]
fn damaged_four_bit_layers_have_a_reason() {
    // 128 values in two blocks, statistics nested.
    let whole = || {
        FourBit {
            codes: vec![0; 64],
            shape: vec![2, 64],
            block: 64,
            map: NF4,
            absmax: vec![],
            nested: Some(Nested {
                codes: vec![0, 1],
                map: vec![0.0; 256],
                absmax: vec![1.0],
                block: 256,
                offset: 0.5,
            }),
        }
        .tensors()
    };
    let says = |json: Value| state("nf4", json);
    let plain = json!({"quant_type": "nf4", "blocksize": 64, "shape": [2, 64]});
    let nested = |shape: Value, block: u64| {
        json!({"quant_type": "nf4", "blocksize": block, "shape": shape,
            "nested_blocksize": 256, "nested_offset": 0.5, "nested_dtype": "float32"})
    };
    let without = |end: &str| -> Vec<Stored> {
        whole()
            .into_iter()
            .filter(|t| !t.name.ends_with(end))
            .collect()
    };
    let with = |new: Stored| -> Vec<Stored> {
        let mut tensors = whole();
        let old = tensors.iter_mut().find(|t| t.name == new.name);
        *old.expect("a tensor to replace") = new;
        tensors
    };
    let cases: Vec<(Vec<Stored>, &str)> = vec![
        (without("__nf4"), "__nf4' (or __fp4) is missing"),
        (without("weight.absmax"), "'m.weight.absmax' is missing"),
        (
            without("weight.quant_map"),
            "'m.weight.quant_map' is missing",
        ),
        (
            without("nested_absmax"),
            "nested_absmax or nested_quant_map is missing",
        ),
        (
            without("nested_quant_map"),
            "nested_absmax or nested_quant_map is missing",
        ),
        (
            with(f32s("quant_map", &[0.0; 15])),
            "quant_map has 15 values",
        ),
        (with(bytes("quant_map", &[0; 16])), "U8, not F32"),
        (
            with(f32s("nested_quant_map", &[0.0; 16])),
            "nested_quant_map is 16 long",
        ),
        (
            with(f32s("nested_absmax", &[0.0; 2])),
            "nested_absmax is 2 long",
        ),
        (with(bytes("absmax", &[0; 3])), "absmax is 3 long"),
        (with(f32s("absmax", &[0.0; 2])), "absmax is not U8"),
        (with(says(plain)), "no nested statistics"),
        (with(says(nested(json!([2, 65]), 64))), "needs 65"),
        (with(says(nested(json!([2, 64]), 32))), "needs 4"),
        (with(says(nested(json!([2, -64]), 64))), "-64"),
        (
            with(says(nested(json!([1u64 << 40, 1u64 << 40]), 64))),
            "64 bits",
        ),
        (with(says(json!({"quant_type": "nf5"}))), "nf5"),
        (with(bytes("quant_state.bitsandbytes__nf4", b"{")), "JSON"),
        (
            with(bytes("quant_state.bitsandbytes__nf4", &[b' '; 70_000])),
            "70000 bytes",
        ),
    ];
    for (tensors, part) in cases {
        let model = TestModel::safetensors(&tensors, Value::Null);
        let reason = model.reason("m.weight");
        assert!(reason.contains(part), "{part}: {reason}");
        let model = Model::new(model.catalog, ModelOptions::default());
        let (id, tensor) = model.find("m.weight").unwrap();
        assert!(tensor.values.is_none(), "{part}");
        assert_eq!(read_all(&*model.raw(id).unwrap()).unwrap().len(), 64);
    }
    assert_eq!(
        TestModel::safetensors(&whole(), Value::Null)
            .values("m.weight")
            .len(),
        128
    );
}

#[test]
fn damaged_eight_bit_layers_have_a_reason() {
    let weight = |shape: &[u64]| stored("m.weight", Dtype::I8, shape, [1; 8]);
    let scb = |n: u64| stored("m.SCB", Dtype::F32, &[n], floats(&vec![1.0; n as usize]));
    let format = |byte: u8| stored("m.weight_format", Dtype::U8, &[], [byte]);
    let half = stored("m.SCB", Dtype::F16, &[2], [0; 4]);
    let cases: Vec<(Vec<Stored>, &str)> = vec![
        (vec![weight(&[2, 4]), scb(3)], "[3]"),
        (vec![weight(&[2, 4]), half], "F16"),
        (vec![weight(&[2, 2, 2]), scb(2)], "[2, 2, 2]"),
        (vec![weight(&[2, 4]), format(0)], "'m.SCB' is missing"),
        (
            vec![weight(&[2, 4]), scb(2), format(1)],
            "weight_format is 1",
        ),
        (
            vec![weight(&[2, 4]), scb(2), format(3)],
            "weight_format is 3",
        ),
        (
            vec![
                weight(&[2, 4]),
                scb(2),
                stored("m.weight_format", Dtype::U8, &[2], [0; 2]),
            ],
            "not one U8",
        ),
        (vec![weight(&[2, 4]), scb(3), format(0)], "[3]"),
    ];
    for (tensors, part) in cases {
        let reason = TestModel::safetensors(&tensors, Value::Null).reason("m.weight");
        assert!(reason.contains(part), "{reason}");
    }
}

/// The state is read after the mount is ready. A state that can no longer be read is a reason, not
/// a panic.
#[test]
fn a_state_in_a_truncated_file_is_a_reason() {
    let four = FourBit {
        codes: vec![0; 32],
        shape: vec![64],
        block: 64,
        map: NF4,
        absmax: vec![1.0],
        nested: None,
    };
    let model = TestModel::safetensors(&four.tensors(), Value::Null);
    let path = model.catalog.files[0]
        .location()
        .path()
        .unwrap()
        .to_path_buf();
    let catalog = Catalog::open(&path, OpenOptions::default()).unwrap();
    let len = std::fs::metadata(&path).unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(len - 1).unwrap();
    let found = crate::quant::recognize(&catalog).remove(0);
    let reason = found.resolve(&catalog).err().unwrap();
    assert!(
        matches!(&reason, Missing::Unread(why) if why.contains("truncated")),
        "{reason}"
    );
}

/// A disk or network that fails for a moment must not make a tensor unavailable for the life of the
/// mount.
#[test]
fn a_state_that_cannot_be_read_is_asked_for_again() {
    let four = |module: &str| {
        let sample = FourBit {
            codes: vec![0x21; 32],
            shape: vec![8, 8],
            block: 64,
            map: NF4,
            absmax: vec![1.0],
            nested: None,
        };
        let mut tensors = sample.tensors();
        for t in &mut tensors {
            t.name = t.name.replacen("m.", module, 1);
        }
        tensors
    };
    let tensors: Vec<Stored> = ["q_proj.", "k_proj.", "v_proj."]
        .into_iter()
        .flat_map(four)
        .collect();
    let model = TestModel::safetensors(&tensors, Value::Null);
    let path = model.catalog.files[0]
        .location()
        .path()
        .unwrap()
        .to_path_buf();
    let whole = std::fs::read(&path).unwrap();
    let catalog = Catalog::open(&path, OpenOptions::default()).unwrap();
    let layout = Layout::new(Arc::new(Model::new(catalog, ModelOptions::default())));
    let model = &layout.model;
    let id = |name: &str| model.id(name).unwrap();
    let (weight, fused) = (id("q_proj.weight"), id("qkv_proj.weight"));
    // Cut to the length field: no tensor data can be read.
    let cut = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    cut.set_len(8).unwrap();

    for _ in 0..2 {
        let tensor = model.tensor(weight).unwrap();
        assert!(tensor.values.is_none());
        assert!(model.remark(weight).unwrap().contains("truncated"));
        assert!(!model.is_settled(weight) && !model.is_settled(fused));
        assert_eq!(
            model.find("qkv_proj.weight").err().unwrap().errno(),
            libc::EIO
        );
        assert!(
            layout
                .try_exists(Node::TensorFile(TensorFile::Raw, weight))
                .unwrap()
        );
        for node in [
            Node::TensorFile(TensorFile::F32, weight),
            Node::TensorFile(TensorFile::Npy, weight),
            Node::TensorFile(TensorFile::Meta, weight),
            Node::TensorDir(fused),
            Node::Top(Top::ModelJson),
        ] {
            assert_eq!(
                layout.try_exists(node).unwrap_err().errno(),
                libc::EIO,
                "{node:?}"
            );
        }
    }
    std::fs::write(&path, whole).unwrap();
    for node in [
        Node::TensorFile(TensorFile::F32, weight),
        Node::TensorFile(TensorFile::Npy, weight),
        Node::TensorDir(fused),
        Node::Top(Top::ModelJson),
    ] {
        assert!(layout.try_exists(node).unwrap(), "{node:?}");
    }
    assert!(model.find("qkv_proj.weight").unwrap().1.values.is_some());
    assert!(model.is_settled(weight) && model.is_settled(fused));
    assert!(model.listing().contains(&fused));
}
