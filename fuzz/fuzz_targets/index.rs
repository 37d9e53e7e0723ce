//! Indexes of sharded models: whatever the bytes are, stfs never panics, opens nothing but the shards of
//! the directory, and serves each tensor from the one that the index names.
#![no_main]

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::Value;
use stfs::catalog::{Catalog, OpenOptions};

mod served;

/// The shards, and which tensors each holds. `b` and `c` are in two.
const SHARDS: [(&str, &[&str]); 3] = [
    ("1.safetensors", &["a", "b"]),
    ("2.safetensors", &["b", "c", "l.q_proj.weight"]),
    (
        "3.safetensors",
        &["c", "l.k_proj.weight", "l.v_proj.weight"],
    ),
];

/// The directory. Beside it lies a shard that no index may lead to.
static MODEL: LazyLock<PathBuf> = LazyLock::new(|| {
    let directory = served::DIRECTORY.join("model");
    std::fs::create_dir_all(&directory).unwrap();
    for (shard, names) in SHARDS {
        std::fs::write(directory.join(shard), shard_of(shard, names)).unwrap();
    }
    served::file("outside.safetensors", &shard_of("outside", &["outside"]));
    directory
});

/// A shard whose tensors hold its name's first byte.
fn shard_of(name: &str, names: &[&str]) -> Vec<u8> {
    let data = [name.as_bytes()[0]; 48];
    let views = names
        .iter()
        .map(|&n| (n, TensorView::new(Dtype::BF16, vec![4, 6], &data).unwrap()));
    serialize(views, None).unwrap()
}

/// Which shard the index names for each tensor, as JSON's own library reads it. `None` if that refuses it:
/// what stfs skips, as an index's unknown keys, may hold bytes that are no UTF-8.
fn weight_map(index: &[u8]) -> Option<HashMap<String, String>> {
    let index: Value = serde_json::from_slice(index).ok()?;
    let map = index.get("weight_map")?.as_object()?;
    let pair = |(k, v): (&String, &Value)| Some((k.clone(), v.as_str()?.to_string()));
    map.iter().map(pair).collect()
}

fuzz_target!(|input: &[u8]| {
    let index = MODEL.join("model.safetensors.index.json");
    std::fs::write(&index, input).unwrap();
    let map = weight_map(input);
    for allow_missing in [false, true] {
        let Ok(catalog) = Catalog::open(&index, OpenOptions { allow_missing }) else {
            continue;
        };
        let Some(map) = &map else {
            assert!(
                std::str::from_utf8(input).is_err(),
                "an index that is served has a map"
            );
            continue;
        };
        for (i, tensor) in (0..).zip(&catalog.tensors) {
            let extent = catalog.extent(i).unwrap();
            let (shard, names) = SHARDS.iter().find(|s| s.0 == extent.file.name()).unwrap();
            assert!(names.contains(&tensor.name));
            // A tensor that the map leaves out is served if one shard of the map has it.
            assert!(map.get(tensor.name).is_none_or(|named| named == shard));
            let bytes = stfs::view::read_all(&*catalog.bytes(i)).unwrap();
            assert!(bytes == [shard.as_bytes()[0]; 48]);
        }
        for (name, shard) in map {
            let served = catalog.find(name).is_some();
            assert!(
                served || allow_missing,
                "{name} in {shard} is missing, and was not missed"
            );
        }
    }
    served::examine(&index, input.len());
});
