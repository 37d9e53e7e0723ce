//! A driver that fails or hangs at any call: the daemon keeps running, answers in time, and leaks nothing.

use std::time::{Duration, Instant};

use stfs::ioctl::{self, GpuDevice, GpuIo, Header};

use crate::support::*;

/// Every entry point that an upload, DEVICES, a release and the end reach.
const ENTRY_POINTS: &[&str] = &[
    "cuInit",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamDestroy_v2",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventDestroy_v2",
    "cuIpcGetMemHandle",
];

/// What the double cannot get back because of the failing call: this is not a leak of stfs.
const KEPT: &[(&str, &str)] = &[
    ("cuDevicePrimaryCtxRelease_v2", "context"),
    ("cuMemFree_v2", "device"),
    ("cuMemFreeHost", "pinned"),
    ("cuStreamDestroy_v2", "stream"),
    ("cuEventDestroy_v2", "event"),
];

/// Runs an engine from start to end with a call that fails.
fn life(failing: &str) {
    let fixture = Fixture::small();
    let targets = [fixture.target(1, 2_000_000), fixture.target(2, 700_001)];
    let mut failed = 0;
    for target in &targets {
        let (errno, io) = fixture.upload(target, target.key.ino);
        if errno != 0 {
            failed += 1;
            assert!(
                [libc::EREMOTEIO, libc::ENODEV].contains(&errno),
                "errno {errno}"
            );
            assert_eq!((io.state, io.cu_error), (ioctl::FAILED, 999));
        }
    }
    assert!(failed <= 1, "one failing call, {failed} failed uploads");
    // The call fails only once: now everything works.
    for target in &targets {
        let (errno, io) = fixture.upload(target, target.key.ino);
        assert_eq!((errno, io.state), (0, ioctl::RESIDENT));
        let expected = stfs::view::read_all(&*target.view).unwrap();
        assert!(seen_by_another_process(&io) == expected);
    }
    let device = GpuDevice::request();
    fixture.raw(ioctl::DEVICES, bytemuck::bytes_of(&device), file(1));
    assert_eq!(fixture.release(&targets[0], 1, ioctl::EVICT).0, 0);
    drop(fixture);
    let mut left = outstanding(&ledger());
    for (call, kind) in KEPT {
        if failing.starts_with(call) {
            left.remove(*kind);
        }
    }
    assert!(left.is_empty(), "left: {left:?}");
}

/// Runs the test of that name once for each entry point, with its `nth` call failing.
fn at_every_entry_point(name: &str, nth: u32) {
    if is_child_for(name) {
        return life(&std::env::var("STFS_CUDA_DOUBLE_FAIL").unwrap());
    }
    let driver = double();
    for call in ENTRY_POINTS {
        let rule = (
            "STFS_CUDA_DOUBLE_FAIL".to_string(),
            format!("{call}:{nth}:999"),
        );
        run_child(name, &[rule], Some(driver));
    }
}

#[test]
fn the_first_call_of_any_kind_fails() {
    at_every_entry_point("faults::the_first_call_of_any_kind_fails", 1);
}

#[test]
fn the_second_call_of_any_kind_fails() {
    at_every_entry_point("faults::the_second_call_of_any_kind_fails", 2);
}

#[test]
fn the_fifth_call_of_any_kind_fails() {
    at_every_entry_point("faults::the_fifth_call_of_any_kind_fails", 5);
}

#[test]
fn a_driver_that_takes_its_time_keeps_nobody_waiting() {
    with_double!(["STFS_CUDA_DOUBLE_HANG" => "cuInit:1:1300,cuMemAlloc_v2:1:1600"], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 1000);
        // `call` asserts that an answer comes in time.
        let device = GpuDevice::request();
        let start = Instant::now();
        let (errno, _) = fixture.raw(ioctl::DEVICES, bytemuck::bytes_of(&device), file(1));
        assert_eq!(errno, libc::EAGAIN);
        assert!(start.elapsed() < Duration::from_millis(1400));
        let (errno, io) = fixture.call(ioctl::UPLOAD, request(), &target, file(1));
        assert_eq!((errno, io.state), (0, ioctl::LOADING));
        let start = Instant::now();
        assert_eq!(fixture.query(&target, 2).1.state, ioctl::LOADING);
        assert!(start.elapsed() < Duration::from_millis(800));
        assert_eq!(fixture.upload(&target, 1).1.state, ioctl::RESIDENT);
    });
}

#[test]
fn the_end_does_not_wait_for_a_driver_that_hangs() {
    with_double!(["STFS_CUDA_DOUBLE_HANG" => "cuMemAlloc_v2:1:60000"], {
        let fixture = Fixture::small();
        let io = GpuIo {
            timeout_ms: 300,
            ..request()
        };
        fixture.call(ioctl::UPLOAD, io, &fixture.target(1, 1000), file(1));
        let start = Instant::now();
        drop(fixture);
        assert!(start.elapsed() < Duration::from_secs(12));
    });
}

#[test]
fn the_end_during_an_upload_frees_everything_and_answers_everybody() {
    with_double!(["STFS_CUDA_DOUBLE_BANDWIDTH" => 1_000_000], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 20_000_000);
        let waiting = fixture.ask(ioctl::UPLOAD, request(), &target, file(1));
        while fixture.query(&target, 2).1.done_bytes == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let start = Instant::now();
        drop(fixture);
        assert!(start.elapsed() < Duration::from_secs(3));
        assert_eq!(waiting.recv_timeout(Duration::from_secs(1)).unwrap().0, libc::EIO);
        assert_all_returned();
    });
}

#[test]
fn stopped_it_has_nothing_and_says_so() {
    with_double!(["STFS_CUDA_DOUBLE_BANDWIDTH" => 1_000_000], {
        let fixture = Fixture::small();
        let (there, loading) = (fixture.target(1, 1000), fixture.target(2, 20_000_000));
        assert_eq!(fixture.upload(&there, 1).1.leases, 1);
        let waiting = fixture.ask(ioctl::UPLOAD, request(), &loading, file(2));
        while fixture.query(&loading, 3).1.done_bytes == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let start = Instant::now();
        fixture.gpu.stop();
        assert!(start.elapsed() < Duration::from_secs(3));
        let (errno, io) = waiting.recv_timeout(Duration::from_secs(1)).unwrap();
        assert_eq!((errno, io.state, io.nbytes), (libc::EIO, ioctl::FAILED, 20_000_000));
        assert_all_returned();
        // The mount may still exist for a moment.
        let (errno, io) = fixture.query(&there, 1);
        assert_eq!((errno, io.state, io.handle_kind), (0, ioctl::ABSENT, 0));
        assert_eq!(fixture.upload(&there, 1).0, libc::EIO);
        assert_eq!(fixture.release(&there, 1, 0).0, libc::ENOENT);
        assert_eq!(fixture.listed(), Vec::<String>::new());
        fixture.gpu.released(1);
        fixture.gpu.stop();
    });
}

#[test]
fn stopped_while_the_driver_starts_it_keeps_nobody_waiting() {
    with_double!(["STFS_CUDA_DOUBLE_HANG" => "cuInit:1:1000"], {
        let fixture = Fixture::small();
        let waiting = fixture.ask(ioctl::UPLOAD, request(), &fixture.target(1, 1000), file(1));
        while fixture.listed().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let start = Instant::now();
        fixture.gpu.stop();
        assert!(start.elapsed() < Duration::from_millis(900));
        assert_eq!(waiting.recv_timeout(Duration::from_secs(1)).unwrap().0, libc::EIO);
    });
}

/// An illegal address or a similar error: every later call fails the same way.
#[test]
fn a_ruined_context_is_replaced_once_nothing_in_it_is_leased() {
    with_double!(["STFS_CUDA_DOUBLE_RUIN" => "cuMemAlloc_v2:4:700"], {
        let fixture = Fixture::small();
        let all: Vec<_> = (1..=5).map(|ino| fixture.target(ino, 1000)).collect();
        for target in &all[..3] {
            assert_eq!(fixture.upload(target, target.key.ino).0, 0);
        }
        fixture.gpu.released(1);
        let (errno, io) = fixture.upload(&all[3], 4);
        assert_eq!((errno, io.cu_error), (libc::EREMOTEIO, 700));
        // Unused memory is gone; memory in use must not be.
        assert_eq!(fixture.listed(), ["tensors/t2/raw", "tensors/t3/raw"]);
        fixture.gpu.released(2);
        assert_eq!(fixture.upload(&all[3], 4).0, libc::EREMOTEIO);
        assert_eq!(fixture.query(&all[2], 3).1.state, ioctl::RESIDENT);
        fixture.gpu.released(3);
        // The old context is empty now.
        for target in &all {
            let (errno, io) = fixture.upload(target, target.key.ino);
            assert_eq!((errno, io.state), (0, ioctl::RESIDENT));
        }
        let seen = seen_by_another_process(&fixture.query(&all[4], 5).1);
        assert!(seen == stfs::view::read_all(&*all[4].view).unwrap());
        assert_eq!(outstanding(&ledger())["device"], 5);
    });
}

#[test]
fn a_context_that_a_copy_ruined_is_replaced_too() {
    with_double!(["STFS_CUDA_DOUBLE_RUIN" => "cuEventSynchronize:3:719"], {
        let fixture = Fixture::small();
        let (there, large) = (fixture.target(1, 1000), fixture.target(2, 2_000_000));
        assert_eq!(fixture.upload(&there, 1).0, 0);
        fixture.gpu.released(1);
        let (errno, io) = fixture.upload(&large, 2);
        assert_eq!((errno, io.cu_error), (libc::EREMOTEIO, 719));
        for target in [&large, &there] {
            let (errno, io) = fixture.upload(target, target.key.ino);
            assert_eq!((errno, io.state), (0, ioctl::RESIDENT));
        }
    });
}
