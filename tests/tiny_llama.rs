//! The example model in the repository is what its program writes.

#[path = "../examples/make_tiny_llama.rs"]
#[allow(missing_docs)]
mod make_tiny_llama;

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn the_committed_model_is_what_the_example_writes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny-llama");
    let mut names = BTreeSet::new();
    for (name, expected) in make_tiny_llama::files().unwrap() {
        let found = std::fs::read(dir.join(&name)).unwrap();
        assert!(
            found == expected,
            "{name} differs: cargo run --example make_tiny_llama"
        );
        names.insert(name);
    }
    let found: BTreeSet<String> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, names, "files that the example does not write");
}
