//! Configurations of quantized models: whatever the bytes are, beside layers of every format, stfs never
//! panics, and any range of each file of each tensor is that range of the whole.
//!
//! The first byte of the input chooses a model among those of `tests/golden` that have a configuration, the
//! second one of the files that may hold it, and the rest is that file.
#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

mod served;

/// The files that a configuration may stand in.
const FILES: [&str; 5] = [
    "config.json",
    "quantize_config.json",
    "quant_config.json",
    "quantization_config.json",
    "hf_quant_config.json",
];

/// Copies of the models, in the order of their names: the seeds count on it.
static MODELS: LazyLock<Vec<PathBuf>> = LazyLock::new(|| {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let cases = std::fs::read_dir(golden)
        .unwrap()
        .map(|e| e.unwrap().path());
    let mut cases: Vec<PathBuf> = cases
        .filter(|case| case.join("model/config.json").exists())
        .collect();
    cases.sort();
    let copy = |case: PathBuf| {
        let to = served::DIRECTORY.join(case.file_name().unwrap());
        std::fs::create_dir_all(&to).unwrap();
        for file in std::fs::read_dir(case.join("model")).unwrap() {
            let file = file.unwrap();
            let name = file.file_name();
            if !FILES.iter().any(|f| name == *f) {
                std::fs::copy(file.path(), to.join(name)).unwrap();
            }
        }
        to
    };
    cases.into_iter().map(copy).collect()
});

fuzz_target!(|input: &[u8]| {
    let &[model, file, ref json @ ..] = input else {
        return;
    };
    let model = &MODELS[usize::from(model) % MODELS.len()];
    let path = model.join(FILES[usize::from(file) % FILES.len()]);
    std::fs::write(&path, json).unwrap();
    served::examine(model, json.len());
    std::fs::remove_file(path).unwrap();
});
