//! Keys, and how they are shown. `tests/attacks/gguf.rs` has what can be wrong.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::header::Header;
use super::value::{Kind, ValueType};
use crate::catalog::gguf_file::{F32, Gguf, V, s, strings};
use crate::catalog::{Catalog, LocalFile, MemoryStore, Object, OpenOptions, Store};

/// The file as an object that has no mapping.
fn object(file: &Gguf) -> Arc<dyn Object> {
    let store = MemoryStore::new(&[("m.gguf", &file.bytes())]);
    store.open(OsStr::new("m.gguf")).unwrap()
}

fn catalog(file: &Gguf) -> Catalog {
    let store = MemoryStore::new(&[("m.gguf", &file.bytes())]);
    Catalog::read(&store.source(None), OpenOptions::default()).unwrap()
}

fn metadata_json(catalog: &Catalog) -> String {
    let make = catalog.metadata_json.as_ref().unwrap();
    String::from_utf8(make().unwrap()).unwrap()
}

/// One key of every type.
fn every_type() -> Gguf {
    Gguf::new()
        .key("uint8", V::U8(255))
        .key("int8", V::I8(-128))
        .key("uint16", V::U16(65535))
        .key("int16", V::I16(-32768))
        .key("uint32", V::U32(u32::MAX))
        .key("int32", V::I32(i32::MIN))
        .key("float32", V::F32(0.1))
        .key("bool", V::Bool(true))
        .key("string", s("a\"\\\n\u{1}ü"))
        .key("uint64", V::U64(u64::MAX))
        .key("int64", V::I64(i64::MIN))
        .key("float64", V::F64(0.1))
}

#[test]
fn metadata_json_has_every_key_in_the_files_order() {
    let strange = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        -0.0,
        1e-5,
        f32::MAX,
    ];
    let file = every_type()
        .key("general.alignment", V::U32(32))
        .key("floats", V::Array(6, strange.map(V::F32).to_vec()))
        .key("bools", V::Array(7, vec![V::U8(0), V::U8(2)]))
        .key("none", V::Array(8, vec![]))
        .key("no text", V::Bytes(b"a\xff\xc3".to_vec()))
        .key("long", V::Array(4, (0..65).map(V::U32).collect()))
        .key("tokens", strings((0..65).map(|i| format!("t{i}"))))
        .key("\"\n", V::F64(f64::NAN));
    let numbers: Vec<String> = (0..65).map(|i| i.to_string()).collect();
    let tokens: Vec<String> = (0..65).map(|i| format!("\"t{i}\"")).collect();
    let expected = [
        r#"{"#,
        r#"  "uint8": {"type": "uint8", "value": 255},"#,
        r#"  "int8": {"type": "int8", "value": -128},"#,
        r#"  "uint16": {"type": "uint16", "value": 65535},"#,
        r#"  "int16": {"type": "int16", "value": -32768},"#,
        r#"  "uint32": {"type": "uint32", "value": 4294967295},"#,
        r#"  "int32": {"type": "int32", "value": -2147483648},"#,
        r#"  "float32": {"type": "float32", "value": 0.10000000149011612},"#,
        r#"  "bool": {"type": "bool", "value": true},"#,
        r#"  "string": {"type": "string", "value": "a\"\\\n\u0001ü"},"#,
        r#"  "uint64": {"type": "uint64", "value": 18446744073709551615},"#,
        r#"  "int64": {"type": "int64", "value": -9223372036854775808},"#,
        r#"  "float64": {"type": "float64", "value": 0.1},"#,
        r#"  "general.alignment": {"type": "uint32", "value": 32},"#,
        r#"  "floats": {"type": "array", "of": "float32", "value": [null, null, null, -0.0, 9.999999747378752e-6, 3.4028234663852886e+38]},"#,
        r#"  "bools": {"type": "array", "of": "bool", "value": [false, true]},"#,
        r#"  "none": {"type": "array", "of": "string", "value": []},"#,
        "  \"no text\": {\"type\": \"string\", \"value\": \"a\u{fffd}\u{fffd}\"},",
        &format!(
            r#"  "long": {{"type": "array", "of": "uint32", "value": [{}]}},"#,
            numbers.join(", ")
        ),
        &format!(
            r#"  "tokens": {{"type": "array", "of": "string", "value": [{}]}},"#,
            tokens.join(", ")
        ),
        r#"  "\"\n": {"type": "float64", "value": null}"#,
        "}\n",
    ];
    let catalog = catalog(&file);
    assert_eq!(metadata_json(&catalog), expected.join("\n"));
    // What model.json has is plain, and without long arrays.
    let keys: Vec<&String> = catalog.metadata.keys().collect();
    assert_eq!(keys.len(), file.keys.len() - 2);
    assert_eq!(
        (keys[0].as_str(), keys[12].as_str()),
        ("uint8", "general.alignment")
    );
    assert_eq!(catalog.metadata["float32"], json!(0.1f32));
    assert_eq!(catalog.metadata["floats"][4], json!(1e-5f32));
    assert_eq!(catalog.metadata["bools"], json!([false, true]));
    assert_eq!(catalog.metadata["no text"], "a\u{fffd}\u{fffd}");
    assert!(!catalog.metadata.contains_key("tokens"));
    let config = catalog.configs.config.as_ref().unwrap();
    assert_eq!(config.as_object(), Some(&catalog.metadata));
}

#[test]
fn an_empty_file_has_empty_metadata() {
    assert_eq!(metadata_json(&catalog(&Gguf::new())), "{}\n");
}

#[test]
fn spans_are_the_keys_bytes() {
    let file = every_type()
        .key("array", strings(["a", "bc"]))
        .tensor("t", &[3], F32, [0; 12]);
    let bytes = file.bytes();
    let header = Header::read(&*object(&file), u64::MAX).unwrap();
    assert_eq!(header.alignment, 32);
    let mut at = 24;
    for (key, (name, _)) in header.keys.iter().zip(&file.keys) {
        assert_eq!((key.name.as_bytes(), key.span.start), (&name[..], at));
        at = key.span.end;
    }
    let array = header.key("array").unwrap();
    let (of, count) = (ValueType::String, 2);
    assert_eq!(array.kind, Kind::Array { of, count });
    let value = &bytes[array.value_start() as usize..array.span.end as usize];
    assert_eq!(value, b"\x01\0\0\0\0\0\0\0a\x02\0\0\0\0\0\0\0bc");
    let [t] = &header.tensors[..] else {
        panic!("one tensor");
    };
    let at = file.data_start();
    assert_eq!((&*t.name, t.offset, t.nbytes), ("t", at, 12));
}

/// A vocabulary is longer than what is fetched at once, and its strings lie across the seams.
#[test]
fn long_arrays_are_passed_over_at_any_length() {
    for n in [65, 4000, 60_000] {
        let tokens: Vec<String> = (0..n).map(|i| "x".repeat(i * 7 % 50)).collect();
        let file = Gguf::new()
            .key("tokens", strings(tokens.clone()))
            .key(
                "scores",
                V::Array(6, (0..n).map(|i| V::F32(i as f32)).collect()),
            )
            .key("long", s("y".repeat(n * 40)))
            .key("last", V::U8(7))
            .tensor("t", &[1], F32, [1; 4]);
        let catalog = catalog(&file);
        assert_eq!(catalog.metadata["last"], 7);
        assert_eq!(catalog.metadata["long"].as_str().unwrap().len(), n * 40);
        assert_eq!(catalog.extent(0).unwrap().offset, file.data_start());
        let json: serde_json::Value = serde_json::from_str(&metadata_json(&catalog)).unwrap();
        assert_eq!(json["tokens"]["value"], json!(tokens));
        assert_eq!(json["scores"]["value"][n - 1], (n - 1) as f64);
    }
}

fn local(path: &Path) -> Catalog {
    Catalog::open(path, OpenOptions::default()).unwrap()
}

/// The values are read again each time. What is no longer there is an error, never made-up values.
#[test]
fn metadata_json_of_a_file_that_changed_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let of = |tokens: &[&str]| {
        let tokens = tokens.iter().cycle().take(100).copied();
        Gguf::new().key("tokens", strings(tokens)).bytes()
    };
    std::fs::write(&path, of(&["one"])).unwrap();
    let catalog = local(&path);
    let make = catalog.metadata_json.as_ref().unwrap();
    assert!(make().is_ok());
    // Written to in place, so that the open file changes.
    for other in [of(&["o"]), of(&["three"]), of(&["o", "three"])] {
        std::fs::write(&path, &other).unwrap();
        let error = make().err();
        let valid = other.len() == of(&["one"]).len();
        assert_eq!(error.is_none(), valid, "{error:?}");
        assert!(error.is_none_or(|e| e.errno() == libc::EIO));
    }
    std::fs::write(&path, b"GGUF").unwrap();
    assert_eq!(make().err().unwrap().errno(), libc::EIO);
}

#[test]
fn check_gguf_lists_all_problems() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let file = Gguf::small()
        .tensor("t", &[1], F32, [0; 4])
        .tensor("u", &[1], 99, [0; 4])
        .tensor("v", &[1 << 40], F32, []);
    std::fs::write(&path, file.bytes()).unwrap();
    let problems = super::check_gguf(&*LocalFile::open(&path).unwrap()).unwrap();
    let tensors: Vec<_> = problems
        .iter()
        .filter_map(|p| p.tensor.as_deref())
        .collect();
    assert_eq!(tensors, ["t", "u", "v"]);
}
