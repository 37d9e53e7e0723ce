//! A build without the feature `gpu`: the mount is the same, and the GPU ioctl fails with ENODEV.
#![cfg(not(feature = "gpu"))]

mod common;

use std::fs::File;
use std::os::fd::AsFd;

use common::{ModelDir, Mounted, stfs, tensor};
use safetensors::Dtype;
use stfs::ioctl::{self, GpuIo, Header};

#[test]
fn the_ioctl_answers_enodev_and_the_command_says_why() {
    let dir = ModelDir::of(&[tensor("a", Dtype::F16, &[3, 4])]);
    let m = Mounted::new(dir.path());
    let raw = m.join("tensors/a/raw");
    let file = File::open(&raw).unwrap();
    let mut io = GpuIo {
        device: -1,
        timeout_ms: 1000,
        ..GpuIo::request()
    };
    let refused = ioctl::upload(file.as_fd(), &mut io).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENODEV));
    let refused = ioctl::devices(file.as_fd()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENODEV));
    // Nothing is resident, and no GPU is needed to know that.
    assert!(ioctl::list(file.as_fd()).unwrap().is_empty());
    let upload = ["gpu", "upload", raw.to_str().unwrap()];
    stfs(upload).fails(&["built without GPU support", "feature 'gpu'"]);
    assert_eq!(m.read("tensors/a/f32").len(), 48);
}
