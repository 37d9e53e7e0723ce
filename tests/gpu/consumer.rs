//! A second process, which opens the handle that the first one shares.

use std::process::Command;

use stfs::ioctl::{self, GpuIo, Header};

use crate::support::{CHILD, double, finish};

/// The tensor's bytes, as a second process sees them through the handle.
pub fn seen_by_another_process(io: &GpuIo) -> Vec<u8> {
    assert_eq!(io.handle_kind, ioctl::HANDLE_CUDA_IPC);
    assert_eq!(io.handle_len, 64);
    let scratch = tempfile::tempdir().unwrap();
    let (request, bytes) = (scratch.path().join("io"), scratch.path().join("bytes"));
    std::fs::write(&request, bytemuck::bytes_of(io)).unwrap();
    let driver = match std::env::var_os(CHILD) {
        Some(_) => std::env::var_os("LD_LIBRARY_PATH").unwrap(),
        None => double().into(),
    };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["consumer::consumer", "--exact", "--nocapture"])
        .env("STFS_GPU_CONSUME", &request)
        .env("STFS_GPU_CONSUMED", &bytes)
        .env("LD_LIBRARY_PATH", driver)
        .env_remove("STFS_CUDA_DOUBLE_LEDGER")
        .env_remove("STFS_CUDA_DOUBLE_FAIL");
    let (ok, output) = finish(command);
    assert!(ok, "{output}");
    std::fs::read(&bytes).unwrap()
}

/// The body of the second process, not a test.
#[test]
fn consumer() {
    use cudarc::driver::{result, sys};
    let Some(request) = std::env::var_os("STFS_GPU_CONSUME") else {
        return;
    };
    let io = GpuIo::decode(&std::fs::read(request).unwrap()).unwrap();
    let mut bytes = vec![0u8; io.nbytes as usize];
    result::init().unwrap();
    let device = result::device::get(io.device_ordinal).unwrap();
    let handle = sys::CUipcMemHandle {
        reserved: io.handle.map(|b| b as std::ffi::c_char),
    };
    let mut base = 0;
    // SAFETY: the device is one of the driver's, the context stays retained to the end, and the
    // copy stays inside the mapping, whose size the exporter reports.
    unsafe {
        result::ctx::set_current(result::primary_ctx::retain(device).unwrap()).unwrap();
        sys::cuIpcOpenMemHandle_v2(&mut base, handle, 1)
            .result()
            .unwrap();
        assert!(io.base_offset + io.nbytes <= io.alloc_bytes);
        result::memcpy_dtoh_sync(&mut bytes, base + io.base_offset).unwrap();
        sys::cuIpcCloseMemHandle(base).result().unwrap();
    }
    std::fs::write(std::env::var_os("STFS_GPU_CONSUMED").unwrap(), bytes).unwrap();
}
