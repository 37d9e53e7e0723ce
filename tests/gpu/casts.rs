//! Values as narrower floats in device memory.

use std::collections::HashMap;
use std::process::Command;

use safetensors::tensor::{Dtype, TensorView};
use stfs::ioctl;

use crate::mounted::*;
use crate::support::*;

/// A GPTQ layer of 128 inputs and 64 outputs, and a tensor of F32.
fn quantized() -> Mounted {
    let halves = [0x00, 0x2e].repeat(64);
    let (words, zeros, floats) = (noise(16 * 64 * 4, 1), noise(8 * 4, 2), noise(24 * 4, 3));
    let tensors = [
        ("l.qweight", Dtype::I32, vec![16, 64], &words),
        ("l.qzeros", Dtype::I32, vec![1, 8], &zeros),
        ("l.scales", Dtype::F16, vec![1, 64], &halves),
        ("norm", Dtype::F32, vec![2, 3, 4], &floats),
    ];
    let views = tensors
        .map(|(name, dtype, shape, bytes)| (name, TensorView::new(dtype, shape, bytes).unwrap()));
    Mounted::with(&[], &[], |model| {
        std::fs::remove_dir_all(model).unwrap();
        std::fs::create_dir(model).unwrap();
        safetensors::serialize_to_file(views, None, &model.join("model.safetensors")).unwrap();
        let config = r#"{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false}}"#;
        std::fs::write(model.join("config.json"), config).unwrap();
    })
}

#[test]
fn the_casts_of_a_layer_are_uploaded_as_what_they_are() {
    let mut mount = quantized();
    // The ABI's numbers: 14 is F16, 15 BF16.
    let files: HashMap<&str, (u32, &[u64])> = HashMap::from([
        ("tensors/l.weight/bf16", (15, &[64, 128][..])),
        ("tensors/l.weight/f16", (14, &[64, 128])),
        ("tensors/norm/bf16", (15, &[2, 3, 4])),
        ("export/model-bf16.safetensors", (0, &[])),
    ]);
    for (name, (dtype, shape)) in files {
        let io = upload(&mount.open(name)).unwrap();
        assert_eq!((io.state, io.dtype), (ioctl::RESIDENT, dtype), "{name}");
        assert_eq!(&io.shape[..shape.len()], shape, "{name}");
        let shown = std::fs::read(mount.path(name)).unwrap();
        assert!(seen_by_another_process(&io) == shown, "{name}");
    }
    assert!(mount.end().is_empty(), "everything is returned at unmount");
}

#[test]
fn the_command_uploads_the_bf16_of_a_layer() {
    let mount = quantized();
    let path = mount.path("tensors/l.weight/bf16");
    let mut command = Command::new(env!("CARGO_BIN_EXE_stfs"));
    let out = command.args(["gpu", "upload"]).arg(&path).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(text, format!("{}: 16.4 kB on GPU 0\n", path.display()));
    let io = query(&mount.open("tensors/l.weight/bf16"));
    assert_eq!(
        (io.state, io.dtype, io.nbytes),
        (ioctl::RESIDENT, 15, 64 * 128 * 2)
    );
}
