use super::*;

#[test]
fn opens_what_torch_writes() {
    let bytes = TORCH_LEGACY;
    assert!(open(bytes).is_ok());
}
