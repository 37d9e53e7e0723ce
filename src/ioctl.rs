//! The GPU ioctl: request codes and structs, as the mount and its clients share them. The same in C:
//! `packaging/include/stfs.h`.
//!
//! All structs are little-endian, naturally aligned, and hold no pointers.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use bytemuck::{Pod, Zeroable};

/// The ioctl type byte of all commands.
pub const TYPE: u8 = 0xF5;
/// What `abi_version` must be.
pub const ABI_VERSION: u32 = 1;

/// `_IOWR(0xF5, nr, T)` as every architecture but MIPS, PowerPC and SPARC encodes it.
const fn iowr<T>(nr: u32) -> u32 {
    (3 << 30) | ((size_of::<T>() as u32) << 16) | ((TYPE as u32) << 8) | nr
}

/// Start the upload or join one under way; takes the open file's lease.
pub const UPLOAD: u32 = iowr::<GpuIo>(0x40);
/// Reports the state; no side effect.
pub const QUERY: u32 = iowr::<GpuIo>(0x41);
/// Drops the open file's lease; with [`EVICT`], frees the memory.
pub const RELEASE: u32 = iowr::<GpuIo>(0x42);
/// Describes device number `index`.
pub const DEVICES: u32 = iowr::<GpuDevice>(0x43);
/// Describes entry number `index` of what is resident or loading.
pub const LIST: u32 = iowr::<GpuEntry>(0x44);

/// Whether a request code belongs to this ABI.
pub fn is_ours(code: u32) -> bool {
    (code >> 8) as u8 == TYPE
}

/// `op_flags` of RELEASE: free the memory now.
pub const EVICT: u32 = 1;
/// `op_flags` of UPLOAD: free the memory two seconds after its last lease, unless it is pinned.
pub const AUTO_FREE: u32 = 2;
/// `op_flags` of UPLOAD: free it only on EVICT. Mount owner and root only.
pub const PIN: u32 = 4;

/// `state`: neither resident nor loading.
pub const ABSENT: u32 = 0;
/// `state`: an upload is under way.
pub const LOADING: u32 = 1;
/// `state`: in device memory, and the handle may be opened.
pub const RESIDENT: u32 = 2;
/// `state`: the upload failed; `cu_error` is CUDA's code, if the error is from CUDA.
pub const FAILED: u32 = 3;

/// `handle_kind`: no handle.
pub const HANDLE_NONE: u32 = 0;
/// `handle_kind`: a `CUipcMemHandle` of 64 bytes.
pub const HANDLE_CUDA_IPC: u32 = 1;
/// `handle_kind`: reserved for a VMM file descriptor.
pub const HANDLE_VMM_FD: u32 = 2;

/// [`GpuDevice::flags`]: the device can export IPC handles.
pub const DEVICE_CAN_EXPORT: u32 = 1;

/// Most dimensions that a tensor may have to be uploaded.
pub const MAX_DIMS: usize = 8;

/// UPLOAD, QUERY and RELEASE: 64 bytes in, 352 bytes out.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct GpuIo {
    /// In: the size of this struct.
    pub abi_size: u32,
    /// In: [`ABI_VERSION`].
    pub abi_version: u32,
    /// In: [`EVICT`], [`AUTO_FREE`], [`PIN`].
    pub op_flags: u32,
    /// In: 0.
    pub rsvd0: u32,
    /// In: device ordinal; -1 is the default device.
    pub device: i32,
    /// In: how long UPLOAD may wait, in ms; more than 1000 counts as 1000.
    pub timeout_ms: u32,
    /// In: non-zero wins over `device`.
    pub want_uuid: [u8; 16],
    /// In: the generation that the caller requires; 0 is any.
    pub want_generation: u64,
    /// In: 0.
    pub rsvd_in: [u64; 2],

    /// Out: the size of this struct.
    pub size: u32,
    /// Out: [`ABI_VERSION`].
    pub version: u32,
    /// Out: [`ABSENT`], [`LOADING`], [`RESIDENT`] or [`FAILED`].
    pub state: u32,
    /// Out: [`AUTO_FREE`] and [`PIN`] as they hold for the memory.
    pub flags: u32,
    /// Out: changes when the source file does.
    pub generation: u64,
    /// Out: the allocation's number, never reused during a mount.
    pub alloc_id: u64,
    /// Out: bytes of the tensor.
    pub nbytes: u64,
    /// Out: how many of them have been copied.
    pub done_bytes: u64,
    /// Out: the tensor begins this many bytes into the handle's mapping.
    pub base_offset: u64,
    /// Out: bytes of the handle's mapping.
    pub alloc_bytes: u64,
    /// Out: 0, because a device pointer means nothing to another process.
    pub daemon_ptr: u64,
    /// Out: the device.
    pub dev_uuid: [u8; 16],
    /// Out: the device's ordinal as the daemon counts; -1 while unknown.
    pub device_ordinal: i32,
    /// Out: 1 to 22 ([`crate::dtype::Dtype`]), or 256 plus ggml's number of a block type; 0 is plain
    /// bytes.
    pub dtype: u32,
    /// Out: how many entries of `shape` and `strides` are used.
    pub ndim: u32,
    /// Out: the `CUresult` of a failure, 0 if it is not from CUDA.
    pub cu_error: u32,
    /// Out: the shape.
    pub shape: [u64; MAX_DIMS],
    /// Out: the strides, in elements.
    pub strides: [i64; MAX_DIMS],
    /// Out: [`HANDLE_NONE`] or [`HANDLE_CUDA_IPC`].
    pub handle_kind: u32,
    /// Out: how many bytes of `handle` are used.
    pub handle_len: u32,
    /// Out: the handle.
    pub handle: [u8; 64],
    /// Out: open files that hold a lease on the memory.
    pub leases: u32,
    /// Out: the daemon's process id.
    pub exporter_pid: u32,
    /// Out: 0.
    pub rsvd_out: [u64; 5],
}

/// DEVICES.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct GpuDevice {
    /// In: the size of this struct.
    pub abi_size: u32,
    /// In: [`ABI_VERSION`].
    pub abi_version: u32,
    /// In: which device, from 0.
    pub index: u32,
    /// Out: how many there are.
    pub count: u32,
    /// Out: what `want_uuid` takes.
    pub uuid: [u8; 16],
    /// Out: what `device` takes.
    pub ordinal: i32,
    /// Out: [`DEVICE_CAN_EXPORT`].
    pub flags: u32,
    /// Out: free bytes; 0 while unknown, which is until the first upload to the device.
    pub free: u64,
    /// Out: bytes of memory.
    pub total: u64,
    /// Out: `--gpu-limit`; 0 is none.
    pub cap: u64,
    /// Out: the name, NUL-terminated.
    pub name: [u8; 64],
}

/// LIST.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct GpuEntry {
    /// In: the size of this struct.
    pub abi_size: u32,
    /// In: [`ABI_VERSION`].
    pub abi_version: u32,
    /// In: which entry, from 0.
    pub index: u32,
    /// Out: how many there are.
    pub count: u32,
    /// Out: [`LOADING`] or [`RESIDENT`].
    pub state: u32,
    /// Out: [`AUTO_FREE`], [`PIN`].
    pub flags: u32,
    /// Out: open files that hold a lease.
    pub leases: u32,
    /// Out: the device's ordinal; -1 while unknown.
    pub device_ordinal: i32,
    /// Out: bytes of the tensor or the arena.
    pub nbytes: u64,
    /// Out: how many of them have been copied.
    pub done_bytes: u64,
    /// Out: which allocation it is.
    pub alloc_id: u64,
    /// Out: below the mountpoint, NUL-terminated: `tensors/<name>/raw`; `tensors` for the arena.
    pub path: [u8; 264],
}

/// The beginning that all three structs share.
pub trait Header: Pod {
    /// How many bytes at the beginning are the caller's; all others are answers.
    const INPUT: usize;
    /// A request with its size and version filled in and everything else zero.
    fn request() -> Self;
    /// Whether size and version are those of this ABI.
    fn header_ok(&self) -> bool;
    /// Reads one from the bytes of a request.
    fn decode(bytes: &[u8]) -> Option<Self> {
        (bytes.len() == size_of::<Self>()).then(|| bytemuck::pod_read_unaligned(bytes))
    }
    /// The request, with zeros in place of the answer.
    fn unanswered(&self) -> Self {
        let mut blank = Self::zeroed();
        let input = &bytemuck::bytes_of(self)[..Self::INPUT];
        bytemuck::bytes_of_mut(&mut blank)[..Self::INPUT].copy_from_slice(input);
        blank
    }
}

macro_rules! header {
    ($($t:ty: $first_answer:ident),*) => {$(
        impl Header for $t {
            const INPUT: usize = std::mem::offset_of!($t, $first_answer);
            fn request() -> Self {
                Self {
                    abi_size: size_of::<Self>() as u32,
                    abi_version: ABI_VERSION,
                    ..Self::zeroed()
                }
            }
            fn header_ok(&self) -> bool {
                self.abi_size as usize == size_of::<Self>() && self.abi_version == ABI_VERSION
            }
        }
    )*};
}
header!(GpuIo: size, GpuDevice: count, GpuEntry: count);

impl GpuEntry {
    /// The path below the mountpoint.
    pub fn path(&self) -> String {
        text(&self.path)
    }
}

impl GpuDevice {
    /// The device's name.
    pub fn name(&self) -> String {
        text(&self.name)
    }
}

/// NUL-terminated bytes as text.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Text as NUL-terminated bytes, cut at a character if it is too long.
pub(crate) fn terminated<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [0; N];
    let mut end = text.len().min(N - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out[..end].copy_from_slice(&text.as_bytes()[..end]);
    out
}

/// UPLOAD on an open file or directory of a mount. `io` is filled in whatever the result.
///
/// # Errors
/// The errno of the table in `doc/GPU.md`.
pub fn upload(file: BorrowedFd<'_>, io: &mut GpuIo) -> io::Result<()> {
    ioctl(file, UPLOAD, io)
}

/// QUERY, likewise.
///
/// # Errors
/// As [`upload`].
pub fn query(file: BorrowedFd<'_>, io: &mut GpuIo) -> io::Result<()> {
    ioctl(file, QUERY, io)
}

/// RELEASE, likewise.
///
/// # Errors
/// As [`upload`].
pub fn release(file: BorrowedFd<'_>, io: &mut GpuIo) -> io::Result<()> {
    ioctl(file, RELEASE, io)
}

/// All devices that the daemon sees.
///
/// # Errors
/// As [`upload`].
pub fn devices(file: BorrowedFd<'_>) -> io::Result<Vec<GpuDevice>> {
    every(file, DEVICES, |device: &mut GpuDevice, index| {
        device.index = index;
    })
}

/// All that is resident or loading.
///
/// # Errors
/// As [`upload`].
pub fn list(file: BorrowedFd<'_>) -> io::Result<Vec<GpuEntry>> {
    every(file, LIST, |entry: &mut GpuEntry, index| {
        entry.index = index;
    })
}

fn every<T: Header>(
    file: BorrowedFd<'_>,
    code: u32,
    set_index: impl Fn(&mut T, u32),
) -> io::Result<Vec<T>> {
    let mut all = Vec::new();
    for index in 0.. {
        let mut one = T::request();
        set_index(&mut one, index);
        match ioctl(file, code, &mut one) {
            Ok(()) => all.push(one),
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => break,
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

fn ioctl<T: Header>(file: BorrowedFd<'_>, code: u32, arg: &mut T) -> io::Result<()> {
    debug_assert_eq!(code >> 16 & 0x3FFF, size_of::<T>() as u32);
    // SAFETY: the kernel reads and writes exactly the number of bytes that the code gives, which is
    // the size of `T`, and any bytes are a valid `T` (it is Pod).
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), code as _, std::ptr::from_mut(arg)) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_abi() {
        assert_eq!(UPLOAD, 0xC1A0_F540);
        assert_eq!(QUERY, 0xC1A0_F541);
        assert_eq!(RELEASE, 0xC1A0_F542);
        assert_eq!(DEVICES, 0xC080_F543);
        assert_eq!(LIST, 0xC140_F544);
        assert_eq!(std::mem::offset_of!(GpuIo, size), 64);
    }

    #[test]
    fn text_is_cut_at_a_character() {
        let cut: [u8; 5] = terminated("aaaé");
        assert_eq!(&cut, b"aaa\0\0");
        assert_eq!(text(&terminated::<8>("abc")), "abc");
        assert_eq!(text(b"full"), "full");
    }

    #[test]
    fn a_request_of_another_size_is_no_request() {
        assert!(GpuIo::decode(&[0; 415]).is_none());
        let io = GpuIo::decode(bytemuck::bytes_of(&GpuIo::request())).unwrap();
        assert!(io.header_ok());
    }

    #[test]
    fn what_the_caller_left_in_the_answer_is_no_answer() {
        fn check<T: Header>(input: usize) {
            let full: T = bytemuck::pod_read_unaligned(&vec![0x5A; size_of::<T>()]);
            let blank = full.unanswered();
            let (kept, answer) = bytemuck::bytes_of(&blank).split_at(input);
            assert!(kept.iter().all(|&b| b == 0x5A) && answer.iter().all(|&b| b == 0));
        }
        check::<GpuIo>(64);
        check::<GpuDevice>(12);
        check::<GpuEntry>(12);
    }
}
