//! GGUF's block types in device memory: the blocks, and their values.

use stfs::ioctl;

use crate::gguf::{Gguf, Q4_K, Q8_0};
use crate::mounted::*;
use crate::support::*;

/// Blocks of noise, of that many bytes each, whose scales are finite: the bits of an F16 that is less
/// than 2.
fn blocks(count: usize, bytes: usize, seed: u64) -> Vec<u8> {
    let mut all = noise(count * bytes, seed);
    for block in all.chunks_mut(bytes) {
        block[1] &= 0x3f;
        block[3] &= 0x3f;
    }
    all
}

#[test]
fn blocks_and_values_are_uploaded() {
    let (q, k, v) = (
        blocks(4 * 2, 144, 1),
        blocks(2 * 2, 144, 2),
        blocks(2 * 16, 34, 3),
    );
    let mut mount = Mounted::with(&[], &[], |model| {
        std::fs::remove_dir_all(model).unwrap();
        std::fs::create_dir(model).unwrap();
        let file = Gguf::new()
            .tensor("blk.0.attn_q.weight", &[512, 4], Q4_K, q.clone())
            .tensor("blk.0.attn_k.weight", &[512, 2], Q4_K, k.clone())
            .tensor("blk.0.attn_v.weight", &[512, 2], Q8_0, v.clone())
            .tensor("blk.1.attn_q.weight", &[512, 4], Q4_K, q.clone())
            .tensor("blk.1.attn_k.weight", &[512, 2], Q4_K, k.clone())
            .tensor("blk.1.attn_v.weight", &[512, 2], Q4_K, k.clone());
        std::fs::write(model.join("model.gguf"), file.bytes()).unwrap();
    });
    // 256 plus ggml's number; 18 is F32. Shapes and strides count values.
    let files = [
        ("tensors/blk.0.attn_q.weight/raw", 256 + Q4_K, 4),
        ("tensors/blk.0.attn_q.weight/f32", 18, 4),
        ("tensors/blk.0.attn_v.weight/raw", 256 + Q8_0, 2),
        ("tensors/blk.0.attn_v.weight/f32", 18, 2),
        ("npy/blk.0.attn_v.weight.npy", 18, 2),
        // Of different types, and of one.
        ("tensors/blk.0.attn_qkv.weight/raw", 18, 8),
        ("tensors/blk.1.attn_qkv.weight/raw", 256 + Q4_K, 8),
        ("tensors/blk.1.attn_qkv.weight/f32", 18, 8),
    ];
    for (name, dtype, rows) in files {
        let io = upload(&mount.open(name)).unwrap();
        assert_eq!((io.state, io.dtype), (ioctl::RESIDENT, dtype), "{name}");
        assert_eq!((io.ndim, &io.shape[..2]), (2, &[rows, 512][..]), "{name}");
        assert_eq!(io.strides[..2], [512, 1], "{name}");
        let shown = std::fs::read(mount.path(name)).unwrap();
        let header = if name.starts_with("npy/") { 128 } else { 0 };
        assert!(seen_by_another_process(&io) == shown[header..], "{name}");
    }
    let raw = |name: &str| std::fs::read(mount.path(&format!("tensors/{name}/raw"))).unwrap();
    assert!(raw("blk.0.attn_q.weight") == q && raw("blk.0.attn_v.weight") == v);
    assert!(raw("blk.1.attn_qkv.weight") == [&*q, &k, &k].concat());
    let io = upload(&mount.open("export/model.gguf")).unwrap();
    assert_eq!((io.dtype, io.ndim), (0, 1));
    let whole = std::fs::read(mount.model().join("model.gguf")).unwrap();
    assert!(seen_by_another_process(&io) == whole);
    assert!(mount.end().is_empty());
}
