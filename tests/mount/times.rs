//! What stat(2) and lseek(2) report independently of the model's files.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, UNIX_EPOCH};

use safetensors::Dtype;

use crate::common::{ModelDir, Mounted, T, tensor};

#[test]
fn atime_and_ctime_repeat_mtime() {
    let dir = ModelDir::of(&[tensor("a.b", Dtype::BF16, &[4, 4])]);
    dir.file("config.json", "{}");
    let time = UNIX_EPOCH + Duration::new(1_500_000_000, 123_456_789);
    let shard = File::options()
        .write(true)
        .open(dir.join("model.safetensors"));
    shard.unwrap().set_modified(time).unwrap();
    let m = Mounted::new(dir.path());
    // Reading changes none of them.
    m.read("tensors/a.b/raw");
    for path in crate::walk(m.root()) {
        let got = path.symlink_metadata().unwrap();
        let mtime = (got.mtime(), got.mtime_nsec());
        assert_eq!((got.atime(), got.atime_nsec()), mtime, "{path:?}");
        assert_eq!((got.ctime(), got.ctime_nsec()), mtime, "{path:?}");
    }
    let raw = m.join("tensors/a.b/raw").metadata().unwrap();
    assert_eq!(
        (raw.ctime(), raw.ctime_nsec()),
        (1_500_000_000, 123_456_789)
    );
}

#[test]
fn directories_have_one_link() {
    let dir = ModelDir::of(&[tensor("a.b", Dtype::BF16, &[4, 4])]);
    let m = Mounted::new(dir.path());
    for path in ["", "tensors", "tensors/a.b", "npy", "tree", "tree/a"] {
        assert_eq!(m.join(path).metadata().unwrap().nlink(), 1, "{path}");
    }
}

#[test]
fn no_file_has_a_hole() {
    // Zeros, which a file system could store as a hole.
    let zeros = T {
        data: vec![0; 1 << 20],
        ..tensor("zeros", Dtype::U8, &[1 << 20])
    };
    let dir = ModelDir::of(&[zeros]);
    let m = Mounted::new(dir.path());
    for path in ["tensors/zeros/raw", "tensors/zeros/f32", "npy/zeros.npy"] {
        let file = File::open(m.join(path)).unwrap();
        let len = file.metadata().unwrap().len() as i64;
        for (from, whence, want) in [
            (0, libc::SEEK_HOLE, len),
            (5000, libc::SEEK_DATA, 5000),
            (len - 1, libc::SEEK_HOLE, len),
        ] {
            // SAFETY: no memory is involved.
            let got = unsafe { libc::lseek(file.as_raw_fd(), from, whence) };
            assert_eq!(got, want, "{path} from {from}");
        }
    }
}
