//! A tensor in GPU memory that stfs has put there, used by a Rust program: no copy.
//!
//! ```console
//! $ cargo run --example gpu_consume -- /tmp/model/tensors/model.norm.weight/raw
//! ```
//!
//! Prints where the tensor is and its first bytes.

use std::error::Error;
use std::fs::File;
use std::os::fd::AsFd;

use cudarc::driver::{result, sys};
use stfs::ioctl::{self, GpuIo, Header};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os()
        .nth(1)
        .ok_or("usage: gpu_consume TENSOR/raw")?;
    let file = File::open(path)?;
    let io = upload(&file)?;
    println!(
        "{} bytes on GPU {}, dtype {}, {} dimensions",
        io.nbytes, io.device_ordinal, io.dtype, io.ndim
    );
    if io.handle_kind != ioctl::HANDLE_CUDA_IPC {
        return Ok(()); // a tensor without elements
    }
    let tensor = open_handle(&io)?; // what kernels take
    let mut head = vec![0u8; io.nbytes.min(16) as usize];
    // SAFETY: the mapping holds `nbytes` bytes from there on.
    unsafe { result::memcpy_dtoh_sync(&mut head, tensor) }?;
    let hex: Vec<String> = head.iter().map(|b| format!("{b:02x}")).collect();
    println!(" {}", hex.join(" "));
    Ok(()) // the open file held a lease until here
}

/// Uploads the open file's tensor to the GPU, and waits until it is resident.
fn upload(file: &File) -> Result<GpuIo, Box<dyn Error>> {
    let mut io = GpuIo {
        device: -1,
        timeout_ms: 1000,
        ..GpuIo::request()
    };
    loop {
        ioctl::upload(file.as_fd(), &mut io)?;
        if io.state != ioctl::LOADING {
            return Ok(io);
        }
        eprintln!("{} of {} bytes", io.done_bytes, io.nbytes);
    }
}

/// The tensor's address in this process.
fn open_handle(io: &GpuIo) -> Result<sys::CUdeviceptr, Box<dyn Error>> {
    let handle = sys::CUipcMemHandle {
        reserved: io.handle.map(|b| b as std::ffi::c_char),
    };
    let mut base = 0;
    result::init()?;
    let device = result::device::get(io.device_ordinal)?;
    // SAFETY: the device is one of the driver's; its context stays retained until the program ends,
    // and so does the mapping.
    unsafe {
        result::ctx::set_current(result::primary_ctx::retain(device)?)?;
        sys::cuIpcOpenMemHandle_v2(&mut base, handle, 1).result()?;
    }
    Ok(base + io.base_offset)
}
