//! Drivers that are missing, incomplete or without devices; and when the driver is loaded at all.

use stfs::gpu::{Config, GRANULE};
use stfs::ioctl::{self, GpuIo};

use crate::errors::devices;
use crate::support::*;

/// Runs a test with an empty directory in place of the driver's, or with another driver.
fn without_driver(name: &str, driver: Option<&std::path::Path>, body: impl FnOnce()) {
    match is_child_for(name) {
        true => body(),
        false => run_child(name, &[], driver),
    }
}

fn nothing_works_and_nothing_breaks() {
    let fixture = Fixture::small();
    let target = fixture.target(1, 1000);
    assert_eq!(devices(&fixture, 0).0, libc::ENODEV);
    for timeout_ms in [0, 1000] {
        let io = GpuIo {
            timeout_ms,
            ..request()
        };
        // A caller that does not wait may get the error from its second call.
        let (errno, io) = fixture.upload_with(io, &target, 1);
        assert_eq!(
            (errno, io.state, io.nbytes),
            (libc::ENODEV, ioctl::FAILED, 1000)
        );
        let (errno, io) = fixture.query(&target, 1);
        assert_eq!((errno, io.state, io.nbytes), (0, ioctl::ABSENT, 1000));
        assert_eq!(fixture.release(&target, 1, 0).0, libc::ENOENT);
    }
    assert_eq!(fixture.listed(), Vec::<String>::new());
}

#[test]
fn without_a_driver() {
    without_driver("drivers::without_a_driver", None, || {
        nothing_works_and_nothing_breaks();
    });
}

#[test]
fn with_a_driver_that_lacks_everything() {
    let dir = tempfile::tempdir().unwrap();
    let name = "drivers::with_a_driver_that_lacks_everything";
    if !is_child_for(name) {
        let source = dir.path().join("empty.c");
        std::fs::write(&source, "int stfs_empty_driver;\n").unwrap();
        let built = std::process::Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(dir.path().join("libcuda.so"))
            .arg(&source)
            .status()
            .expect("NO C COMPILER: this test needs 'cc' (apt install gcc)");
        assert!(built.success());
    }
    without_driver(name, Some(dir.path()), nothing_works_and_nothing_breaks);
}

#[test]
fn with_a_driver_without_devices() {
    with_double!(["STFS_CUDA_DOUBLE_DEVICES" => 0], {
        let fixture = Fixture::small();
        let (errno, io) = fixture.upload(&fixture.target(1, 1000), 1);
        assert_eq!((errno, io.cu_error), (libc::ENODEV, 100));
        assert_eq!(devices(&fixture, 0).0, libc::ENODEV);
    });
}

#[test]
fn query_release_and_list_never_start_cuda() {
    with_double!(["STFS_CUDA_DOUBLE_FAIL" => "cuInit:0:999"], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 1000);
        assert_eq!(fixture.query(&target, 1).0, 0);
        assert_eq!(fixture.release(&target, 1, 0).0, libc::ENOENT);
        assert_eq!(fixture.listed(), Vec::<String>::new());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("cuda"), "the driver was loaded");
        assert_eq!(fixture.upload(&target, 1).0, libc::EREMOTEIO);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps.contains("cuda_double"));
    });
}

#[test]
fn the_devices() {
    with_double!(["STFS_CUDA_DOUBLE_MEMORY" => 64 << 20], {
        let fixture = Fixture::new(Config {
            limit: Some(32 << 20),
            staging: small_staging(),
            ..Config::default()
        });
        let (errno, first) = devices(&fixture, 0);
        assert_eq!((errno, first.count, first.ordinal), (0, 2, 0));
        assert_eq!(first.name(), "stfs test double 0");
        assert_eq!((first.total, first.cap), (64 << 20, 32 << 20));
        assert_eq!(first.flags, ioctl::DEVICE_CAN_EXPORT);
        assert_eq!(first.free, 0, "no context, so nobody can say");
        assert_eq!(handed_out("context"), 0);
        assert_eq!(devices(&fixture, 1).1.ordinal, 1);
        let (errno, past) = devices(&fixture, 2);
        assert_eq!((errno, past.count), (libc::ENXIO, 2));
        fixture.upload(&fixture.target(1, 1000), 1);
        assert_eq!(devices(&fixture, 0).1.free, (64 << 20) - GRANULE);
    });
}
