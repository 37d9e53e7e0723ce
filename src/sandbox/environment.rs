//! The environment of a daemon. That of its caller may hold tokens, and every process of the same user could
//! read them from `/proc/PID/environ` for as long as the mount lives.

use std::env;
use std::ffi::{CStr, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;

/// What of the environment is still needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// To serve.
    Serving,
    /// To serve, and to load CUDA.
    Gpu,
    /// To unmount: fusermount3 must be found.
    Unmounting,
}

/// Needed by every process: how times, messages and the traces of panics are written, and what belongs to
/// stfs.
const ALWAYS: &[&str] = &[
    "TZ",
    "LANG",
    "LC_*",
    "RUST_BACKTRACE",
    "RUST_LIB_BACKTRACE",
    "STFS_*",
];

/// Where CUDA and its libraries are, which devices it may see, and where its cache is.
const GPU: &[&str] = &["CUDA_*", "NVIDIA_*", "LD_LIBRARY_PATH", "HOME"];

const UNMOUNTING: &[&str] = &["PATH", "FUSERMOUNT_PATH"];

impl Needs {
    fn keeps(self, name: &OsStr) -> bool {
        let more = match self {
            Needs::Serving => &[],
            Needs::Gpu => GPU,
            Needs::Unmounting => UNMOUNTING,
        };
        ALWAYS
            .iter()
            .chain(more)
            .any(|kept| match kept.strip_suffix('*') {
                Some(prefix) => name.as_bytes().starts_with(prefix.as_bytes()),
                None => name == *kept,
            })
    }
}

unsafe extern "C" {
    /// The C library changes it.
    static mut environ: *const *mut c_char;
}

/// Keeps the variables that are needed and overwrites all others, also where the kernel put them when the
/// program was started. Must be called while there is only one thread.
pub fn forget(needs: Needs) {
    let kept: Vec<(OsString, OsString)> = env::vars_os()
        .filter(|(name, _)| needs.keeps(name))
        .collect();
    overwrite();
    // SAFETY: there is no other thread, so nothing else reads or changes the environment meanwhile.
    unsafe {
        libc::clearenv();
        for (name, value) in kept {
            env::set_var(name, value);
        }
    }
}

/// Overwrites all variables. Allocates nothing and takes no lock: a child that was just forked may call it. Must be
/// called while there is only one thread.
pub fn overwrite() {
    // Each entry lies on the stack, where the kernel put it, or in setenv's allocation. The loader, the C
    // library and std have copied what they use of it.
    //
    // SAFETY: no other thread uses the environment meanwhile. `environ` is null or ends with a null pointer;
    // each entry before that is a C string in writable memory, and its length stays inside it.
    unsafe {
        let mut entry = (&raw const environ).read();
        while !entry.is_null() && !(*entry).is_null() {
            let length = CStr::from_ptr(*entry).count_bytes();
            std::ptr::write_bytes(*entry, 0, length);
            entry = entry.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_no_ones_need() {
        for needs in [Needs::Serving, Needs::Gpu, Needs::Unmounting] {
            for secret in [
                "HF_TOKEN",
                "AWS_SECRET_ACCESS_KEY",
                "SSH_AUTH_SOCK",
                "LCX",
                "TZX",
                "LD_PRELOAD",
            ] {
                assert!(!needs.keeps(OsStr::new(secret)), "{needs:?} {secret}");
            }
            for kept in ["TZ", "LANG", "LC_ALL", "RUST_BACKTRACE"] {
                assert!(needs.keeps(OsStr::new(kept)), "{needs:?} {kept}");
            }
        }
        let gpu = |name| {
            (
                Needs::Gpu.keeps(OsStr::new(name)),
                Needs::Serving.keeps(OsStr::new(name)),
            )
        };
        assert_eq!(gpu("CUDA_VISIBLE_DEVICES"), (true, false));
        assert_eq!(gpu("LD_LIBRARY_PATH"), (true, false));
        assert_eq!(gpu("PATH"), (false, false));
        assert!(Needs::Unmounting.keeps(OsStr::new("FUSERMOUNT_PATH")));
    }
}
