//! The contents of an answer beside its errno: every field, whatever the caller left in the struct.

use std::time::{Duration, Instant};

use stfs::gpu::{Access, Caller, Config};
use stfs::ioctl::{self, GpuDevice, GpuEntry, GpuIo, Header};

use crate::support::*;

/// A request with arbitrary bytes in the fields of the answer.
fn littered<T: Header>(set: impl FnOnce(&mut T)) -> T {
    let mut request = T::request();
    bytemuck::bytes_of_mut(&mut request)[T::INPUT..].fill(0x5A);
    set(&mut request);
    request
}

fn ask<T: Header>(fixture: &Fixture, code: u32, request: &T, uid: u32) -> (i32, T) {
    let caller = Caller { uid, fh: Some(1) };
    let (errno, bytes) = fixture.raw(code, bytemuck::bytes_of(request), caller);
    (errno, T::decode(&bytes).unwrap())
}

/// Asserts that only the caller's own part and `count` are filled in.
fn assert_blank<T: Header>(answer: &T, request: &T, count: u32) {
    let (answer, request) = (bytemuck::bytes_of(answer), bytemuck::bytes_of(request));
    assert_eq!(answer[..T::INPUT], request[..T::INPUT]);
    assert_eq!(answer[12..16], count.to_le_bytes());
    assert!(answer[16..].iter().all(|&b| b == 0), "{answer:?}");
}

/// DEVICES and LIST, refused with `errno`.
fn assert_refused(fixture: &Fixture, uid: u32, errno: i32) {
    let device = littered(|d: &mut GpuDevice| d.index = 0);
    let (got, answer) = ask(fixture, ioctl::DEVICES, &device, uid);
    assert_eq!(got, errno);
    assert_blank(&answer, &device, 0);
    let entry = littered(|e: &mut GpuEntry| e.index = 3);
    let (got, answer) = ask(fixture, ioctl::LIST, &entry, uid);
    assert_eq!(got, errno);
    assert_blank(&answer, &entry, 0);
}

#[test]
fn a_device_that_is_not_in_use_has_no_known_free_bytes() {
    with_double!([], {
        let fixture = Fixture::small();
        let request = littered(|d: &mut GpuDevice| d.index = 1);
        let (errno, device) = ask(&fixture, ioctl::DEVICES, &request, 0);
        assert_eq!((errno, device.ordinal, device.count), (0, 1, 2));
        assert_eq!((device.free, device.cap), (0, 0));
        let past = littered(|d: &mut GpuDevice| d.index = 2);
        let (errno, device) = ask(&fixture, ioctl::DEVICES, &past, 0);
        assert_eq!(errno, libc::ENXIO);
        assert_blank(&device, &past, 2);
    });
}

#[test]
fn a_refusal_fills_the_struct() {
    let with = |access| {
        Fixture::new(Config {
            access,
            owner: 1000,
            ..Config::default()
        })
    };
    assert_refused(&with(Access::Off), 0, libc::EOPNOTSUPP);
    assert_refused(&with(Access::Owner), 1001, libc::EACCES);
    let fixture = with(Access::All);
    let entry = littered(|e: &mut GpuEntry| e.abi_version = 2);
    let (errno, answer) = ask(&fixture, ioctl::LIST, &entry, 0);
    assert_eq!(errno, libc::EINVAL);
    assert_blank(&answer, &entry, 0);
    let entry = littered(|e: &mut GpuEntry| e.index = 9);
    let (errno, answer) = ask(&fixture, ioctl::LIST, &entry, 0);
    assert_eq!(errno, libc::ENXIO);
    assert_blank(&answer, &entry, 0);
}

#[test]
fn without_a_driver_the_struct_is_filled() {
    let name = "answers::without_a_driver_the_struct_is_filled";
    if !is_child_for(name) {
        return run_child(name, &[], None);
    }
    let fixture = Fixture::small();
    let request = littered(|d: &mut GpuDevice| d.index = 0);
    let (errno, device) = ask(&fixture, ioctl::DEVICES, &request, 0);
    assert_eq!(errno, libc::ENODEV);
    assert_blank(&device, &request, 0);
}

#[test]
fn a_tensor_of_which_nothing_could_be_read_fills_the_struct() {
    let fixture = Fixture::small();
    let request = littered(|io: &mut GpuIo| io.device = -1);
    for (code, state) in [
        (ioctl::UPLOAD, ioctl::FAILED),
        (ioctl::QUERY, ioctl::ABSENT),
    ] {
        let (tx, rx) = std::sync::mpsc::channel();
        let reply = Box::new(move |errno, bytes: &[u8]| {
            let _ = tx.send((errno, GpuIo::decode(bytes).unwrap()));
        });
        let input = bytemuck::bytes_of(&request);
        fixture
            .gpu
            .ioctl(code, input, Err(libc::EIO), file(1), reply);
        let (errno, io) = rx.recv().unwrap();
        assert_eq!((errno, io.state, io.size), (libc::EIO, state, 416));
        assert_eq!((io.version, io.device, io.device_ordinal), (1, -1, -1));
        assert_eq!((io.nbytes, io.handle, io.leases), (0, [0; 64], 0));
    }
}

#[test]
fn who_does_not_want_to_wait_does_not_wait_for_the_driver_either() {
    with_double!(["STFS_CUDA_DOUBLE_HANG" => "cuInit:1:800", "STFS_CUDA_DOUBLE_FAIL" => "cuInit:1:100"], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 1000);
        let at_once = GpuIo {
            timeout_ms: 0,
            ..request()
        };
        let start = Instant::now();
        let (errno, io) = fixture.call(ioctl::UPLOAD, at_once, &target, file(1));
        assert!(start.elapsed() < Duration::from_millis(600));
        assert_eq!((errno, io.state, io.done_bytes), (0, ioctl::LOADING, 0));
        while fixture.query(&target, 1).1.state == ioctl::LOADING {
            std::thread::sleep(Duration::from_millis(10));
        }
        // The same open file gets the failure: QUERY shows it, UPLOAD returns the errno.
        let (errno, io) = fixture.query(&target, 1);
        assert_eq!((errno, io.state, io.cu_error), (0, ioctl::FAILED, 100));
        let (errno, io) = fixture.call(ioctl::UPLOAD, at_once, &target, file(1));
        assert_eq!((errno, io.cu_error), (libc::ENODEV, 100));
        assert_eq!(fixture.upload(&target, 1).1.state, ioctl::RESIDENT);
    });
}
