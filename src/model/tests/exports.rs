//! Which exports a model of block types has.

use super::*;
use crate::dtype::Opaque;
use crate::export::Absent;

/// A recipe's own files must not have these names.
#[test]
fn built_in_names_are_known_to_those_who_name_further_files() {
    let known = crate::catalog::BUILT_IN_EXPORTS;
    for export in Export::ALL {
        assert!(known.contains(&export.name()), "{}", export.name());
        assert_eq!(Export::from_number(export.number()), Some(export));
    }
    let further = Export::Further(3);
    assert_eq!(Export::from_number(further.number()), Some(further));
    assert_eq!(further.position(), Export::ALL.len() + 3);
}

#[test]
fn block_types_are_the_models_quantization_and_not_in_safetensors() {
    let quantization = |m: &Model| -> Value {
        let json: Value = serde_json::from_slice(&crate::meta::model_json(m)).unwrap();
        json["quantization"].clone()
    };
    let reason = |m: &Model, export: Export| match export.exists(m) {
        Err(Absent::Because(why)) => Some(why.to_string()),
        Err(Absent::OfOtherModels) => Some("other".into()),
        Ok(()) => None,
    };
    let floats = model(vec![of("a", Dtype::F32, &[1])]);
    assert_eq!(quantization(&floats), Value::Null);
    assert_eq!(reason(&floats, Export::Fused), None);
    assert_eq!(reason(&floats, Export::Gguf).unwrap(), "other");
    assert!(Export::reasons(&floats).is_empty());

    let m = model(vec![of("a", Dtype::F32, &[1]), blocks("b", &[1, 4], 0)]);
    let gguf = json!({"method": "gguf", "bits": null, "group_size": null});
    assert_eq!(quantization(&m), gguf);
    for export in [Export::Merged, Export::Fused] {
        let why = reason(&m, export).unwrap();
        assert!(why.contains("'b' is Q8_TEST"), "{why}");
        assert!(export.plan(&m).is_err_and(|e| e.errno() == libc::ENOENT));
    }
    let there = [Export::Floats, Export::Bin, Export::Manifest];
    assert!(there.iter().all(|&export| reason(&m, export).is_none()));
    let m = Arc::new(m);
    let file = read_all(&*Export::Floats.view(&m).unwrap()).unwrap();
    let got = safetensors::SafeTensors::deserialize(&file).unwrap();
    let b = got.tensor("b").unwrap();
    assert_eq!(
        (b.dtype(), b.shape()),
        (safetensors::Dtype::F32, &[1, 4][..])
    );
    assert_eq!(
        b.data(),
        bytemuck::cast_slice::<f32, u8>(&[10., 11., 12., 13.])
    );

    let no_values = of("c", ElementType::Block(&SCRATCH), &[1, 4]);
    let why = reason(&model(vec![no_values]), Export::Floats).unwrap();
    assert!(why.contains("'c' is Q8_SCRATCH"), "{why}");
    // A dtype that stfs does not know is exported as plain bytes, as ever.
    let mut unknown = of("d", Dtype::U8, &[3]);
    unknown.dtype = ElementType::Other("Q9_9".into());
    let file = Export::Merged
        .view(&Arc::new(model(vec![unknown])))
        .unwrap();
    let file = read_all(&*file).unwrap();
    let got = safetensors::SafeTensors::deserialize(&file).unwrap();
    assert_eq!(got.tensor("d").unwrap().dtype(), safetensors::Dtype::U8);
}

/// PyTorch's types that safetensors lacks: plain bytes would lose what they are.
#[test]
fn a_type_that_safetensors_lacks_is_left_out_of_its_files() {
    let opaque = |name| ElementType::Opaque(Opaque::from_name(name).unwrap());
    let m = Arc::new(model(vec![
        of("a", opaque("C128"), &[1]),
        of("b", opaque("BITS16"), &[2, 2]),
        of("c", Dtype::F32, &[2]),
    ]));
    for export in [Export::Merged, Export::Floats, Export::Fused] {
        let file = read_all(&*export.view(&m).unwrap()).unwrap();
        let got = safetensors::SafeTensors::deserialize(&file).unwrap();
        assert_eq!(got.names(), ["c"], "{}", export.name());
    }
    let manifest = read_all(&*Export::Manifest.view(&m).unwrap()).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let b = &manifest["tensors"]["b"];
    assert_eq!((&b["dtype"], &b["size"]), (&json!("BITS16"), &json!(8)));
    let bin = read_all(&*Export::Bin.view(&m).unwrap()).unwrap();
    assert_eq!(&bin[..16], &FILE[..16]);

    let reasons = m.reasons();
    let remark = "safetensors does not have C128, so exports in that format leave the tensor out";
    assert_eq!((reasons[0].0, &*reasons[0].1), ("a", remark));
    assert_eq!(reasons.len(), 2);
    let meta = meta(&m, "a");
    assert_eq!(meta["dtype"], "C128");
    assert_eq!(meta["views"]["npy"]["descr"], "<c16");
    assert!(meta["views"].get("f32").is_none());
}
