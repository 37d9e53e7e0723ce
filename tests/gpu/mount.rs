//! The ioctl on a real mount, through the kernel.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use stfs::ioctl::{self, GpuIo};

use crate::mounted::*;
use crate::support::*;

const Q: &str = "tensors/model.layers.0.self_attn.q_proj.weight";
const QKV: &str = "tensors/model.layers.0.self_attn.qkv_proj.weight";
const BIG: &str = "tensors/model.big/raw";

#[test]
fn what_a_file_shows_is_what_is_uploaded() {
    let mut mount = Mounted::new(&[], &[]);
    let files = [
        format!("{Q}/raw"),
        format!("{Q}/f32"),
        format!("{QKV}/raw"),
        format!("{QKV}/f32"),
        "tensors/model.layers.0.odd/raw".into(),
        "tensors/model.layers.0.scalar/raw".into(),
        "export/model.safetensors".into(),
        "export/model_weights.bin".into(),
    ];
    for name in &files {
        let file = mount.open(name);
        let io = upload(&file).unwrap();
        assert_eq!(io.state, ioctl::RESIDENT);
        let shown = std::fs::read(mount.path(name)).unwrap();
        assert!(seen_by_another_process(&io) == shown, "{name}");
    }
    // The array of a .npy, without its header.
    let name = "npy/model.layers.0.self_attn.q_proj.weight.npy";
    let io = upload(&mount.open(name)).unwrap();
    assert_eq!(
        (io.dtype, io.ndim, io.shape[0], io.shape[1]),
        (18, 2, 64, 64)
    );
    let shown = std::fs::read(mount.path(name)).unwrap();
    assert!(seen_by_another_process(&io) == shown[shown.len() - 64 * 64 * 4..]);

    let io = query(&mount.open(&format!("{Q}/raw")));
    assert_eq!(
        (io.dtype, io.shape[..2].to_vec(), io.strides[0]),
        (15, vec![64, 64], 64)
    );
    let io = query(&mount.open(&format!("{QKV}/f32")));
    assert_eq!((io.dtype, io.shape[..2].to_vec()), (18, vec![128, 64]));
    let io = query(&mount.open("export/model.safetensors"));
    assert_eq!((io.dtype, io.ndim, io.shape[0]), (0, 1, io.nbytes));

    let listed = ioctl::list(mount.open("").as_fd()).unwrap();
    let mut paths: Vec<String> = listed.iter().map(|e| e.path()).collect();
    paths.sort();
    let mut expected: Vec<String> = files.to_vec();
    expected.push(name.into());
    expected.sort();
    assert_eq!(paths, expected);
    assert!(mount.end().is_empty(), "everything is returned at unmount");
}

#[test]
fn a_directory_stands_for_its_raw_and_tensors_for_the_model() {
    let mut mount = Mounted::new(&[], &[]);
    let io = upload(&mount.open(Q)).unwrap();
    assert_eq!((io.state, io.leases), (ioctl::RESIDENT, 0));
    assert_eq!(
        query(&mount.open(&format!("{Q}/raw"))).alloc_id,
        io.alloc_id
    );

    let all = upload(&mount.open("tensors")).unwrap();
    assert_eq!((all.state, all.dtype), (ioctl::RESIDENT, 0));
    let seen = seen_by_another_process(&all);
    for entry in std::fs::read_dir(mount.path("tensors")).unwrap() {
        let raw = entry.unwrap().path().join("raw");
        let meta = std::fs::read_to_string(raw.with_file_name("meta.json")).unwrap();
        let meta: serde_json::Value = serde_json::from_str(&meta).unwrap();
        let io = query(&File::open(&raw).unwrap());
        let found = io.alloc_id == all.alloc_id;
        // A tied head is the embedding under another name, and shares its memory.
        let kind = meta["origin"]["kind"].as_str().unwrap();
        assert_eq!(
            found,
            kind == "stored" || kind == "tied",
            "{}",
            raw.display()
        );
        if found {
            let bytes = std::fs::read(&raw).unwrap();
            let at = io.base_offset as usize;
            assert_eq!((at % 256, io.handle), (0, all.handle));
            assert!(seen[at..at + bytes.len()] == bytes, "{}", raw.display());
        }
    }
    assert!(mount.end().is_empty());
}

#[test]
fn a_lease_lasts_as_long_as_the_open_file_does() {
    let mount = Mounted::new(&[], &[]);
    let file = mount.open(BIG);
    assert_eq!(upload(&file).unwrap().leases, 1);
    let other = mount.open(BIG);
    assert_eq!(upload(&other).unwrap().leases, 2);
    // A duplicate is the same open file.
    let twin = file.try_clone().unwrap();
    assert_eq!(upload(&twin).unwrap().leases, 2);
    drop(file);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(query(&other).leases, 2);
    drop(twin);
    // The kernel releases in the background.
    let start = Instant::now();
    while query(&other).leases != 1 {
        assert!(start.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(10));
    }
    // For lsattr's ioctl the kernel opens and releases on its own.
    let mut flags = 0i32;
    // SAFETY: FS_IOC_GETFLAGS writes one int to the address that it is given.
    let rc = unsafe { libc::ioctl(other.as_raw_fd(), libc::FS_IOC_GETFLAGS as _, &mut flags) };
    assert_eq!(rc, -1);
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::ENOTTY)
    );
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(query(&other).leases, 1);
    assert_eq!(ask(ioctl::release, &other, request()).0, 0);
    assert_eq!(ask(ioctl::release, &other, request()).0, libc::ENOENT);
}

#[test]
fn thirty_two_open_files_make_one_upload() {
    let mount = Mounted::new(&[], &[("STFS_CUDA_DOUBLE_BANDWIDTH", "20000000")]);
    let ids: Vec<u64> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..32)
            .map(|_| scope.spawn(|| upload(&mount.open(BIG)).unwrap().alloc_id))
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]));
    assert_eq!(outstanding(&mount.ledger())["device"], 1);
}

/// The body of a process that uploads and waits to be killed, not a test.
#[test]
fn victim() {
    let Some(path) = std::env::var_os("STFS_GPU_VICTIM") else {
        return;
    };
    let file = File::open(path).unwrap();
    loop {
        upload(&file).unwrap();
    }
}

#[test]
fn a_caller_that_is_killed_while_it_waits_dies_and_the_upload_goes_on() {
    let mount = Mounted::new(&[], &[("STFS_CUDA_DOUBLE_BANDWIDTH", "4000000")]);
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["mount::victim", "--exact"])
        .env("STFS_GPU_VICTIM", mount.path(BIG))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let file = mount.open(BIG);
    while query(&file).done_bytes == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(query(&file).leases, 1);
    let start = Instant::now();
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(
        start.elapsed() < Duration::from_millis(1500),
        "{:?}",
        start.elapsed()
    );
    while query(&file).state != ioctl::RESIDENT {
        std::thread::sleep(Duration::from_millis(20));
    }
    let io = query(&file);
    assert_eq!(io.leases, 0, "its open file is gone, and its lease");
    assert!(seen_by_another_process(&io) == std::fs::read(mount.path(BIG)).unwrap());
}

#[test]
fn reads_do_not_wait_for_uploads() {
    let mount = Mounted::new(
        &["--threads", "1"],
        &[("STFS_CUDA_DOUBLE_BANDWIDTH", "3000000")],
    );
    let file = mount.open("tensors/model.layers.0.odd/raw");
    let big = mount.open(BIG);
    // Eight callers that wait: more than there are request threads.
    let times = std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| ask(ioctl::upload, &mount.open(BIG), request()));
        }
        while query(&big).state != ioctl::LOADING {
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut buf = [0; 4096];
        let mut times: Vec<Duration> = (0..200)
            .take_while(|_| query(&big).state == ioctl::LOADING)
            .map(|i| {
                // Past the page cache: every read is a request.
                let fresh = mount.open("tensors/model.layers.0.odd/f32");
                let start = Instant::now();
                file.read_at(&mut buf, i * 300).unwrap();
                fresh.read_at(&mut buf, i * 1000).unwrap();
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        times
    });
    // A read that waited for the upload would take a second, as its callers do.
    let count = times.len();
    assert!(count >= 10, "{count} reads while it was under way");
    let slow = times[count * 9 / 10];
    assert!(slow < Duration::from_millis(300), "{slow:?}");
}

#[test]
fn errno_through_the_kernel() {
    let mount = Mounted::new(&[], &[("STFS_CUDA_DOUBLE_MEMORY", "4194304")]);
    let file = mount.open(&format!("{Q}/raw"));
    let unknown = GpuIo {
        op_flags: 64,
        ..request()
    };
    let (errno, io) = ask(ioctl::query, &file, unknown);
    assert_eq!((errno, io.size, io.nbytes), (libc::EINVAL, 416, 8192));
    let nowhere = GpuIo {
        device: 9,
        ..request()
    };
    assert_eq!(ask(ioctl::upload, &file, nowhere).0, libc::ENXIO);
    let (errno, io) = ask(ioctl::upload, &mount.open(BIG), request());
    assert_eq!(
        (errno, io.state, io.cu_error),
        (libc::ENOMEM, ioctl::FAILED, 2)
    );
    let (errno, io) = ask(ioctl::release, &file, request());
    assert_eq!((errno, io.state), (libc::ENOENT, ioctl::ABSENT));
    for no_tensor in ["model.json", "files", "", &format!("{Q}/meta.json"), "npy"] {
        let file = mount.open(no_tensor);
        assert_eq!(
            ask(ioctl::upload, &file, request()).0,
            libc::ENOTTY,
            "{no_tensor}"
        );
        assert!(ioctl::list(file.as_fd()).unwrap().is_empty());
    }
    let devices = ioctl::devices(file.as_fd()).unwrap();
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[1].name(), "stfs test double 1");

    let source = mount.model().join("model-00002-of-00002.safetensors");
    let small = mount.open("tensors/model.layers.0.odd/raw");
    let io = upload(&small).unwrap();
    std::fs::File::options()
        .write(true)
        .open(&source)
        .unwrap()
        .set_len(1000)
        .unwrap();
    let same = GpuIo {
        want_generation: io.generation,
        ..request()
    };
    assert_eq!(ask(ioctl::upload, &small, same).0, libc::ESTALE);
    assert_eq!(ask(ioctl::upload, &small, request()).0, libc::EIO);
    // The first shard has not changed.
    assert_eq!(upload(&file).unwrap().state, ioctl::RESIDENT);
}

#[test]
fn switched_off_and_limited_at_mount() {
    let mount = Mounted::new(&["--gpu", "off"], &[]);
    let file = mount.open(BIG);
    let (errno, io) = ask(ioctl::query, &file, request());
    assert_eq!((errno, io.nbytes), (libc::EOPNOTSUPP, 8_000_000));
    drop((file, mount));

    let mount = Mounted::new(&["-o", "gpu=all,gpu_limit=4M"], &[]);
    let file = mount.open(BIG);
    assert_eq!(ask(ioctl::upload, &file, request()).0, libc::EDQUOT);
    let devices = ioctl::devices(file.as_fd()).unwrap();
    assert_eq!(devices[0].cap, 4 << 20);
}

/// The errors that another user gets. Needs root, to become one; `errors` has the same without a kernel.
#[test]
fn other_users_are_refused_unless_all_may() {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return run_as_root("mount::other_users_are_refused_unless_all_may");
    }
    for (flags, expected) in [
        (["--allow-other", "--gpu=owner"], libc::EACCES),
        (["--allow-other", "--gpu=all"], 0),
    ] {
        let mount = Mounted::new(&flags, &[]);
        let file = mount.open(BIG);
        let errno = std::thread::scope(|scope| {
            let nobody = scope.spawn(|| {
                // SAFETY: changes the file-system uid of this thread alone, which then ends.
                unsafe { libc::syscall(libc::SYS_setfsuid, 65534) };
                let (errno, _) = ask(ioctl::query, &file, request());
                let pin = GpuIo {
                    op_flags: ioctl::PIN,
                    ..request()
                };
                (errno, ask(ioctl::upload, &file, pin).0)
            });
            nobody.join().unwrap()
        });
        assert_eq!(errno, (expected, libc::EACCES), "{flags:?}");
    }
}

#[test]
fn without_a_driver_a_mount_is_as_good_as_ever() {
    let empty = tempfile::tempdir().unwrap();
    let mount = Mounted::new(&[], &[("LD_LIBRARY_PATH", empty.path().to_str().unwrap())]);
    let file = mount.open(BIG);
    let (errno, io) = ask(ioctl::upload, &file, request());
    assert_eq!(
        (errno, io.nbytes, io.state),
        (libc::ENODEV, 8_000_000, ioctl::FAILED)
    );
    assert_eq!(
        ioctl::devices(file.as_fd()).unwrap_err().raw_os_error(),
        Some(libc::ENODEV)
    );
    assert_eq!(query(&file).state, ioctl::ABSENT);
    assert_eq!(std::fs::read(mount.path(BIG)).unwrap().len(), 8_000_000);
}

/// All other tests here upload from within it, too.
#[test]
fn the_sandbox_leaves_the_driver_what_it_needs() {
    let mount = Mounted::new(&[], &[]);
    assert_eq!(upload(&mount.open(BIG)).unwrap().state, ioctl::RESIDENT);
    let sandbox = |of: &Mounted| {
        let mut mounts = Command::new(env!("CARGO_BIN_EXE_stfs"));
        let listed = mounts.args(["mounts", "--json"]).output().unwrap().stdout;
        let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap();
        let mut all = listed.as_array().unwrap().iter();
        let ours =
            all.find(|m| m["mountpoint"] == of.path("").to_str().unwrap().trim_end_matches('/'));
        ours.unwrap()["sandbox"].clone()
    };
    let report = sandbox(&mount);
    assert_eq!(
        (&report["state"], &report["gpu"]),
        (&"on".into(), &true.into()),
        "{report}"
    );
    let report = sandbox(&Mounted::new(&["--gpu", "off"], &[]));
    assert_eq!(
        (&report["state"], &report["gpu"]),
        (&"on".into(), &false.into()),
        "{report}"
    );
}

#[test]
fn ended_by_a_signal_while_files_are_open() {
    let mut mount = Mounted::new(&[], &[]);
    let file = mount.open(BIG);
    let (errno, io) = ask(ioctl::upload, &file, request());
    assert_eq!((errno, io.state), (0, ioctl::RESIDENT));
    assert!(mount.end_by(libc::SIGTERM).is_empty());
    drop(file);
}

#[test]
fn unmounted_during_an_upload() {
    let mut mount = Mounted::new(&[], &[("STFS_CUDA_DOUBLE_BANDWIDTH", "4000000")]);
    let file = mount.open(BIG);
    let (errno, io) = ask(
        ioctl::upload,
        &file,
        GpuIo {
            timeout_ms: 10,
            ..request()
        },
    );
    assert_eq!((errno, io.state), (0, ioctl::LOADING));
    drop(file);
    let start = Instant::now();
    // The daemon gave back everything it could before it ended.
    assert!(mount.end().is_empty());
    assert!(start.elapsed() < Duration::from_secs(5));
}
