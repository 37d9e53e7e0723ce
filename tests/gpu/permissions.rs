//! `--gpu all`: file permissions apply to every user but the mount's owner and root.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use stfs::gpu::{Access, Arena, Caller, Config, Member, Target};
use stfs::ioctl::{self, GpuIo};

use crate::mounted::*;
use crate::support::*;

const NOBODY: u32 = 65534;
/// Of the mounted model's first shard, and of its second.
const FIRST: &str = "tensors/model.layers.0.self_attn.q_proj.weight";
const SECOND: &str = "tensors/model.layers.0.odd";

fn restrict(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// An engine for all, owned by 1000; a tensor that all may read, one that only the files' owner
/// may, and the arena of both.
fn engine() -> (Fixture, [Target; 2], Target) {
    let fixture = Fixture::new(Config {
        access: Access::All,
        owner: 1000,
        staging: small_staging(),
        ..Config::default()
    });
    let make = |ino: u64, mode| {
        let name = format!("m{ino}.safetensors");
        let path = fixture.dir.path().join(&name);
        std::fs::write(&path, noise(1000, ino)).unwrap();
        restrict(&path, mode);
        let file = stfs::catalog::LocalFile::open(&path).unwrap();
        target(ino, whole(&file), &[file])
    };
    let tensors = [make(1, 0o644), make(2, 0o600)];
    let arena = Arena::new(tensors.iter().map(|t| Member {
        ino: t.key.ino,
        view: t.view.clone(),
        files: t.sources.files().to_vec(),
    }));
    let whole = Target::model(100, &Arc::new(arena));
    (fixture, tensors, whole)
}

fn by(uid: u32, fh: Option<u64>) -> Caller {
    Caller { uid, fh }
}

#[test]
fn a_directory_gives_nobody_what_its_files_would_not() {
    with_double!([], {
        let (fixture, [open, closed], whole) = engine();
        let codes = [ioctl::UPLOAD, ioctl::QUERY, ioctl::RELEASE];
        for target in [&closed, &whole] {
            for code in codes {
                let (errno, io) = fixture.call(code, request(), target, by(NOBODY, None));
                assert_eq!((errno, io.handle), (libc::EACCES, [0; 64]));
            }
        }
        let asked = fixture.call(ioctl::UPLOAD, request(), &open, by(NOBODY, None));
        assert_eq!((asked.0, asked.1.state), (0, ioctl::RESIDENT));
        // The mount's owner and root may.
        for uid in [1000, 0] {
            for target in [&closed, &whole] {
                let (errno, _) = fixture.call(ioctl::UPLOAD, request(), target, by(uid, None));
                assert_eq!(errno, 0);
            }
        }
        // A user that can open the file may upload it.
        let (errno, io) = fixture.call(ioctl::QUERY, request(), &closed, by(NOBODY, Some(9)));
        assert_eq!((errno, io.state), (0, ioctl::RESIDENT));
        assert_eq!(io.base_offset, 0, "a copy of its own");
    });
}

#[test]
fn the_handle_of_a_whole_model_is_for_those_who_may_read_all_of_it() {
    with_double!([], {
        let (fixture, [open, _], whole) = engine();
        let all = fixture
            .call(ioctl::UPLOAD, request(), &whole, directory())
            .1;
        let (_, io) = fixture.call(ioctl::QUERY, request(), &open, by(1000, Some(5)));
        assert_eq!(io.alloc_id, all.alloc_id);
        let (errno, io) = fixture.call(ioctl::QUERY, request(), &open, by(NOBODY, Some(6)));
        assert_eq!((errno, io.state, io.handle), (0, ioctl::ABSENT, [0; 64]));
        // It gets a separate copy.
        let (errno, io) = fixture.call(ioctl::UPLOAD, request(), &open, by(NOBODY, Some(6)));
        assert_eq!((errno, io.state), (0, ioctl::RESIDENT));
        assert!(io.alloc_id != all.alloc_id && io.handle != all.handle);

        // An open file with a lease on the arena, passed on to another user.
        let (_, io) = fixture.call(ioctl::UPLOAD, request(), &open, by(0, Some(7)));
        assert_eq!(io.handle, all.handle);
        let (_, io) = fixture.call(ioctl::QUERY, request(), &open, by(NOBODY, Some(7)));
        assert_ne!(io.handle, all.handle);
        let (errno, io) = fixture.call(ioctl::RELEASE, request(), &open, by(NOBODY, Some(7)));
        assert_eq!((errno, io.handle), (0, [0; 64]));
    });
}

/// Runs `f` on a thread that is another user to the file system.
fn as_nobody<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let nobody = scope.spawn(|| {
            // SAFETY: changes the file-system uid of this thread alone, which then ends.
            unsafe { libc::syscall(libc::SYS_setfsuid, NOBODY) };
            f()
        });
        nobody.join().unwrap()
    })
}

/// Needs root, to become another user; the tests above have the same without a kernel.
#[test]
fn a_shard_that_others_may_not_read_stays_closed_to_them_through_the_kernel() {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("NOT ROOT: cannot become another user; see the tests above");
    }
    let restricted = |model: &Path| {
        restrict(model.parent().unwrap(), 0o755);
        restrict(&model.join("model-00001-of-00002.safetensors"), 0o600);
        restrict(&model.join("model-00002-of-00002.safetensors"), 0o644);
    };
    let mount = Mounted::with(&["--allow-other", "--gpu=all"], &[], restricted);
    let closed = upload(&mount.open(FIRST)).unwrap();
    let whole = upload(&mount.open("tensors")).unwrap();
    assert_eq!((closed.state, whole.state), (2, 2));
    as_nobody(|| {
        let denied = File::open(mount.path(&format!("{FIRST}/raw"))).unwrap_err();
        assert_eq!(denied.raw_os_error(), Some(libc::EACCES));
        for directory in [FIRST, "tensors"] {
            let file = mount.open(directory);
            for call in [ioctl::upload, ioctl::query, ioctl::release] {
                let (errno, io) = ask(call, &file, request());
                assert_eq!((errno, io.handle), (libc::EACCES, [0; 64]), "{directory}");
            }
        }
        let file = mount.open(&format!("{SECOND}/raw"));
        let io: GpuIo = upload(&file).unwrap();
        assert_eq!((io.state, io.base_offset), (ioctl::RESIDENT, 0));
        assert_ne!(io.handle, whole.handle);
        assert!(ioctl::list(file.as_fd()).unwrap().len() >= 3);
    });
}
