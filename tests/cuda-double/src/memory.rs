//! "Device" memory: a memfd each, mapped. Pinned memory: the same, without a name for others.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;

use crate::world::{Code, lock, world};
use crate::{INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};

/// What a piece of memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// From cuMemAlloc: can be exported.
    Device,
    /// From cuMemAllocAsync: cannot.
    Pool,
    /// From cuMemHostAlloc.
    Pinned,
    /// Another process's, by its handle.
    Opened,
}

struct Block {
    bytes: usize,
    kind: Kind,
    device: i32,
    file: OwnedFd,
}

/// By address.
static BLOCKS: Mutex<BTreeMap<usize, Block>> = Mutex::new(BTreeMap::new());

const MAGIC: &[u8; 16] = b"stfs-cuda-double";

/// Fresh memory is full of this, up to a limit, so that it cannot be taken for data.
const FRESH: u8 = 0xCD;
const FRESH_LIMIT: usize = 64 << 20;

/// Bytes of a device that are taken.
pub fn used(device: i32) -> usize {
    lock(&BLOCKS)
        .values()
        .filter(|b| b.device == device && matches!(b.kind, Kind::Device | Kind::Pool))
        .map(|b| b.bytes)
        .sum()
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Device => "device",
        Kind::Pool => "pool",
        Kind::Pinned => "pinned",
        Kind::Opened => "opened",
    }
}

fn note(sign: char, kind: Kind) {
    world().note(&format!("{sign}{}", name(kind)));
}

/// Maps a file and takes it in.
fn take(file: OwnedFd, bytes: usize, kind: Kind, device: i32) -> Result<usize, Code> {
    // SAFETY: a new shared mapping of a file that this block owns; nothing else is touched.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    let block = Block {
        bytes,
        kind,
        device,
        file,
    };
    lock(&BLOCKS).insert(address as usize, block);
    note('+', kind);
    Ok(address as usize)
}

pub fn allocate(device: i32, bytes: usize, kind: Kind) -> Result<usize, Code> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    if kind != Kind::Pinned && used(device).saturating_add(bytes) > world().capacity {
        return Err(OUT_OF_MEMORY);
    }
    // SAFETY: the name is NUL-terminated; the call makes a descriptor and nothing else.
    let fd = unsafe { libc::memfd_create(c"stfs-cuda-double".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(OUT_OF_MEMORY);
    }
    // SAFETY: the descriptor was just made and has no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: sets the size of a file of our own.
    if unsafe { libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) } != 0 {
        return Err(OUT_OF_MEMORY);
    }
    let address = take(file, bytes, kind, device)?;
    // SAFETY: `bytes` writable bytes that nothing refers to yet.
    unsafe { (address as *mut u8).write_bytes(FRESH, bytes.min(FRESH_LIMIT)) };
    Ok(address)
}

pub fn free(address: usize, kinds: &[Kind]) -> Result<(), Code> {
    let mut blocks = lock(&BLOCKS);
    let block = blocks.get(&address).filter(|b| kinds.contains(&b.kind));
    let (bytes, kind) = block.map(|b| (b.bytes, b.kind)).ok_or(INVALID_VALUE)?;
    blocks.remove(&address);
    // SAFETY: the mapping that `take` made, taken out of the table just now.
    unsafe { libc::munmap(address as *mut libc::c_void, bytes) };
    note('-', kind);
    Ok(())
}

/// Takes back all memory that was handed out on a device.
pub fn free_all(device: i32) {
    let kinds = [Kind::Device, Kind::Pool, Kind::Pinned];
    let theirs = |b: &Block| b.device == device && kinds.contains(&b.kind);
    let all: Vec<usize> = lock(&BLOCKS)
        .iter()
        .filter_map(|(&address, b)| theirs(b).then_some(address))
        .collect();
    for address in all {
        let _ = free(address, &kinds);
    }
}

/// Whether a range lies within one block of one of these kinds.
pub fn check(address: usize, bytes: usize, kinds: &[Kind]) -> Result<(), Code> {
    let blocks = lock(&BLOCKS);
    let (base, block) = blocks.range(..=address).next_back().ok_or(INVALID_VALUE)?;
    let end = (address - base).checked_add(bytes).ok_or(INVALID_VALUE)?;
    match kinds.contains(&block.kind) && end <= block.bytes {
        true => Ok(()),
        false => Err(INVALID_VALUE),
    }
}

/// A handle: who we are, which descriptor, how many bytes.
pub fn export(address: usize) -> Result<[u8; 64], Code> {
    let blocks = lock(&BLOCKS);
    let block = blocks.get(&address).ok_or(INVALID_VALUE)?;
    if block.kind != Kind::Device {
        return Err(NOT_SUPPORTED);
    }
    let mut handle = [0; 64];
    handle[..16].copy_from_slice(MAGIC);
    handle[16..20].copy_from_slice(&std::process::id().to_le_bytes());
    handle[20..24].copy_from_slice(&block.file.as_raw_fd().to_le_bytes());
    handle[24..32].copy_from_slice(&(block.bytes as u64).to_le_bytes());
    Ok(handle)
}

/// Opens a handle of another process; the exporter's own cannot be, as with the driver.
pub fn open(device: i32, handle: &[u8; 64]) -> Result<usize, Code> {
    let field =
        |at: usize| -> [u8; 4] { [handle[at], handle[at + 1], handle[at + 2], handle[at + 3]] };
    let pid = u32::from_le_bytes(field(16));
    let fd = i32::from_le_bytes(field(20));
    let bytes =
        u64::from(u32::from_le_bytes(field(24))) | u64::from(u32::from_le_bytes(field(28))) << 32;
    if &handle[..16] != MAGIC {
        return Err(INVALID_HANDLE);
    }
    if pid == std::process::id() {
        return Err(INVALID_CONTEXT);
    }
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/fd/{fd}"))
        .map_err(|_| INVALID_HANDLE)?;
    // A number that belongs to another file by now is not device memory.
    if file.metadata().map_or(true, |m| m.len() != bytes) {
        return Err(INVALID_HANDLE);
    }
    take(file.into(), bytes as usize, Kind::Opened, device)
}
