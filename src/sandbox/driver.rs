//! The CUDA driver: whether there may be one, and what it opens. It is loaded by name when the first tensor
//! is to be uploaded, and nothing of it is known before.

use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The names under which it is looked up.
const LIBRARIES: &[&str] = &["libcuda.so", "libcuda.so.1"];

/// Where distributions, containers and drivers put libraries. The loader's own list is searched, too.
const LIBRARY_DIRS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
];

/// How device nodes of its kernel modules begin: discrete GPUs, integrated ones, Windows' subsystem.
const NODES: &[&str] = &["nvidia", "nvhost", "nvmap", "nvgpu", "nvsciipc", "dxg"];

/// Read by the loader and the driver: libraries and their configuration, and what the kernel and its modules
/// say about processors, memory and devices.
pub const READ: &[&str] = &[
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/nvidia",
    "/lib",
    "/lib64",
    "/nix/store",
    "/opt",
    "/proc",
    "/run/opengl-driver",
    "/sys",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local",
    "/usr/share/nvidia",
];

/// Whether a driver may be installed. It is not loaded to find out: a mount must not start CUDA.
pub fn may_be_there() -> bool {
    let own = library_path();
    let mut dirs = own
        .iter()
        .map(PathBuf::as_path)
        .chain(LIBRARY_DIRS.iter().map(Path::new));
    !nodes().is_empty()
        || dirs.any(|dir| LIBRARIES.iter().any(|name| dir.join(name).exists()))
        || std::fs::read("/etc/ld.so.cache").is_ok_and(|cache| lists_driver(&cache))
}

/// Whether the loader's cache, a table of names and paths, has the driver.
fn lists_driver(cache: &[u8]) -> bool {
    cache
        .split(|&b| b == 0)
        .any(|text| LIBRARIES.iter().any(|name| text == name.as_bytes()))
}

/// The directories that the caller wants searched first, and those that links to the driver in them lead to.
pub fn library_path() -> Vec<PathBuf> {
    let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    // An empty entry is the working directory, which a daemon leaves.
    let dirs = env::split_paths(&path).filter(|dir| dir.is_absolute());
    let resolved = |dir: &PathBuf| {
        let driver = LIBRARIES
            .iter()
            .find_map(|name| dir.join(name).canonicalize().ok());
        driver.and_then(|driver| Some(driver.parent()?.to_path_buf()))
    };
    let with_targets = |dir: PathBuf| [resolved(&dir), Some(dir)];
    dirs.flat_map(with_targets).flatten().collect()
}

/// The device nodes that there are: not all of `/dev`, where the disks are, too.
pub fn nodes() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let is_ours = |name: &OsStr| {
        let name = name.as_bytes();
        NODES.iter().any(|start| name.starts_with(start.as_bytes()))
    };
    entries
        .filter(|e| is_ours(&e.file_name()))
        .map(|e| e.path())
        .collect()
}

/// Has the driver's kernel modules loaded and their device nodes made, if they are not: the driver would start
/// this program itself when it is first used, and in the sandbox it cannot.
pub fn load_modules() {
    const PROGRAM: &str = "/usr/bin/nvidia-modprobe";
    if Path::new("/dev/nvidia-uvm").exists() || !Path::new(PROGRAM).exists() {
        return;
    }
    let gpus = std::fs::read_dir("/proc/driver/nvidia/gpus").map_or(0, Iterator::count);
    let mut program = Command::new(PROGRAM);
    program.arg("-u").env_clear().stdin(Stdio::null());
    for gpu in 0..gpus.max(1) {
        program.arg(format!("-c={gpu}"));
    }
    // Without a GPU it fails, and the driver says so when it is used.
    let _ = program.stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Where the driver makes files: shared memory, its cache, and the pipes of its multi-process service.
pub fn writable() -> Vec<PathBuf> {
    let named = |variable: &str| env::var_os(variable).map(PathBuf::from);
    let home = || named("HOME").map(|home| home.join(".nv"));
    let pipes = || Some(PathBuf::from("/tmp/nvidia-mps"));
    let cache = named("CUDA_CACHE_PATH").or_else(home);
    let service = named("CUDA_MPS_PIPE_DIRECTORY").or_else(pipes);
    let shared = Some(PathBuf::from("/dev/shm"));
    [shared, cache, service]
        .into_iter()
        .flatten()
        .filter(|dir| dir.is_absolute())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_cache_is_a_table_of_names() {
        assert!(lists_driver(b"x\0libcuda.so.1\0/usr/lib/libcuda.so.1\0"));
        // Only a whole name counts.
        assert!(!lists_driver(b"libcudart.so.12\0libcuda.so.1.old\0"));
        assert!(!lists_driver(b""));
    }
}
