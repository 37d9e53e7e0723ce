//! Whatever happens to a file: no panic, and one line that says what is wrong.

use super::*;

fn survives(bytes: &[u8]) {
    if let Err(error) = open(bytes) {
        assert!(
            !error.contains('\n') && error.starts_with("memory/m.pt: "),
            "{error}"
        );
    }
    problems(bytes);
}

#[test]
fn cut_anywhere() {
    for file in [TORCH, TORCH_LEGACY] {
        for len in 0..file.len() {
            survives(&file[..len]);
            assert!(open(&file[..len]).is_err(), "{len} of {}", file.len());
        }
    }
}

#[test]
fn every_byte_changed() {
    for file in [TORCH, TORCH_LEGACY] {
        for at in 0..file.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut changed = file.to_vec();
                changed[at] ^= change;
                survives(&changed);
            }
        }
    }
}
