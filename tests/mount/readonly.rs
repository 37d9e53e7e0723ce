//! Nothing can be changed: every attempt is EROFS.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::SystemTime;

use safetensors::Dtype;

use crate::common::sys::{errno, removexattr, setxattr};
use crate::common::{ModelDir, Mounted, tensor};

fn truncate(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the string ends with a NUL.
    match unsafe { libc::truncate(path.as_ptr(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[test]
fn every_change_is_erofs() {
    let dir = ModelDir::of(&[tensor("a.b", Dtype::BF16, &[4, 4])]);
    dir.file("config.json", "{}");
    let m = Mounted::new(dir.path());
    let before: Vec<_> = crate::walk(m.root());
    let existing = [
        "model.json",
        "tensors/a.b/raw",
        "tensors/a.b/f32",
        "tensors/a.b/meta.json",
        "npy/a.b.npy",
        "files/config.json",
    ];
    for name in existing {
        let path = m.join(name);
        let open = |o: &mut std::fs::OpenOptions| errno(o.open(&path));
        let all = [
            ("O_RDWR", open(File::options().read(true).write(true))),
            ("O_WRONLY", open(File::options().write(true))),
            ("O_APPEND", open(File::options().append(true))),
            ("O_TRUNC", open(File::options().write(true).truncate(true))),
            (
                "O_WRONLY|O_DIRECT",
                open(File::options().write(true).custom_flags(libc::O_DIRECT)),
            ),
            ("truncate", errno(truncate(&path))),
            (
                "chmod",
                errno(std::fs::set_permissions(
                    &path,
                    PermissionsExt::from_mode(0o777),
                )),
            ),
            ("chown", errno(chown(&path, Some(1), None))),
            (
                "utimes",
                errno(File::open(&path).unwrap().set_modified(SystemTime::now())),
            ),
            ("unlink", errno(std::fs::remove_file(&path))),
            ("rename", errno(std::fs::rename(&path, m.join("x")))),
            ("link", errno(std::fs::hard_link(&path, m.join("x")))),
            ("setxattr", errno(setxattr(&path, "user.stfs.name", b"x"))),
            ("setxattr", errno(setxattr(&path, "user.other", b"x"))),
            ("removexattr", errno(removexattr(&path, "user.stfs.name"))),
        ];
        for (what, e) in all {
            assert_eq!(e, libc::EROFS, "{what} of {name}");
        }
    }
    for name in [
        "",
        "tensors",
        "tensors/a.b",
        "npy",
        "tree",
        "tree/a",
        "files",
        "export",
    ] {
        let new = m.join(name).join("new");
        let all = [
            ("create", errno(File::create(&new))),
            ("mkdir", errno(std::fs::create_dir(&new))),
            ("symlink", errno(symlink("x", &new))),
            ("mkfifo", errno(crate::common::sys::mkfifo(&new))),
            (
                "chmod",
                errno(std::fs::set_permissions(
                    m.join(name),
                    PermissionsExt::from_mode(0o777),
                )),
            ),
        ];
        for (what, e) in all {
            assert_eq!(e, libc::EROFS, "{what} in {name}/");
        }
    }
    for name in ["tensors", "tensors/a.b", "tree/a"] {
        assert_eq!(
            errno(std::fs::remove_dir(m.join(name))),
            libc::EROFS,
            "rmdir {name}"
        );
        assert_eq!(
            errno(std::fs::rename(m.join(name), m.join("x"))),
            libc::EROFS,
            "{name}"
        );
    }
    assert_eq!(errno(std::fs::remove_file(m.join("tree/a/b"))), libc::EROFS);
    assert_eq!(crate::walk(m.root()), before);
}

#[test]
fn a_directory_is_no_file_and_a_file_no_directory() {
    let dir = ModelDir::of(&[tensor("a.b", Dtype::BF16, &[4, 4])]);
    let m = Mounted::new(dir.path());
    assert_eq!(errno(std::fs::read(m.join("tensors/a.b"))), libc::EISDIR);
    assert_eq!(
        errno(std::fs::read_dir(m.join("tensors/a.b/raw"))),
        libc::ENOTDIR
    );
    assert_eq!(
        errno(std::fs::read(m.join("tensors/a.b/raw/x"))),
        libc::ENOTDIR
    );
    assert_eq!(
        errno(std::fs::read_link(m.join("tensors/a.b/raw"))),
        libc::EINVAL
    );
    // What Python's open() and lsattr ask.
    let file = File::open(m.join("tensors/a.b/raw")).unwrap();
    use std::os::fd::AsRawFd;
    for request in [libc::TCGETS, libc::FS_IOC_GETVERSION as libc::c_ulong] {
        let mut room = [0u8; 64];
        // SAFETY: `room` is larger than what either request writes.
        let n = unsafe { libc::ioctl(file.as_raw_fd(), request as _, room.as_mut_ptr()) };
        assert_eq!(
            (n, io::Error::last_os_error().raw_os_error()),
            (-1, Some(libc::ENOTTY))
        );
    }
}
