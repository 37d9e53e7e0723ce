//! Every row of the errno table.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use stfs::gpu::{Access, Caller, Config, Target};
use stfs::ioctl::{self, GpuDevice, GpuEntry, GpuIo, Header};
use stfs::view::View;

use crate::support::*;

/// DEVICES number `index`: errno and answer.
pub fn devices(fixture: &Fixture, index: u32) -> (i32, GpuDevice) {
    let request = GpuDevice {
        index,
        ..GpuDevice::request()
    };
    let (errno, bytes) = fixture.raw(ioctl::DEVICES, bytemuck::bytes_of(&request), file(1));
    (errno, GpuDevice::decode(&bytes).unwrap())
}

#[test]
fn no_such_device() {
    with_double!([], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 1000);
        for io in [
            GpuIo {
                device: 2,
                ..request()
            },
            GpuIo {
                device: -2,
                ..request()
            },
            GpuIo {
                want_uuid: [7; 16],
                ..request()
            },
        ] {
            let (errno, out) = fixture.upload_with(io, &target, 1);
            assert_eq!((errno, out.state), (libc::ENXIO, ioctl::FAILED));
            let (errno, _) = fixture.call(ioctl::QUERY, io, &target, file(1));
            assert_eq!(errno, libc::ENXIO);
        }
    });
}

#[test]
fn out_of_memory_and_after() {
    with_double!(["STFS_CUDA_DOUBLE_MEMORY" => 6 << 20], {
        let fixture = Fixture::small();
        let (a, b) = (fixture.target(1, 4_000_000), fixture.target(2, 4_000_000));
        assert_eq!(fixture.upload(&a, 1).0, 0);
        let (errno, io) = fixture.upload(&b, 2);
        assert_eq!((errno, io.state, io.cu_error), (libc::ENOMEM, ioctl::FAILED, 2));
        assert_eq!((io.leases, fixture.listed().len()), (0, 1));
        assert_eq!(fixture.release(&b, 2, 0).0, libc::ENOENT, "no lease on a failure");
        assert_eq!(fixture.release(&a, 1, ioctl::EVICT).0, 0);
        assert_eq!(fixture.upload(&b, 2).0, 0);
        drop(fixture);
        assert_all_returned();
    });
}

#[test]
fn switched_off_not_allowed_and_unknown() {
    let uid = |uid| Caller { uid, fh: Some(1) };
    let with = |access| {
        Fixture::new(Config {
            access,
            owner: 1000,
            ..Config::default()
        })
    };
    let off = with(Access::Off);
    let target = off.target(1, 1000);
    for code in [ioctl::UPLOAD, ioctl::QUERY, ioctl::RELEASE] {
        let (errno, io) = off.call(code, request(), &target, uid(0));
        assert_eq!((errno, io.size, io.nbytes), (libc::EOPNOTSUPP, 416, 1000));
    }
    assert_eq!(devices(&off, 0).0, libc::EOPNOTSUPP);
    let entry = GpuEntry::request();
    assert_eq!(
        off.raw(ioctl::LIST, bytemuck::bytes_of(&entry), uid(0)).0,
        libc::EOPNOTSUPP
    );

    let owner = with(Access::Owner);
    for (user, errno) in [(0, 0), (1000, 0), (1001, libc::EACCES)] {
        assert_eq!(
            owner.call(ioctl::QUERY, request(), &target, uid(user)).0,
            errno
        );
        let listed = owner
            .raw(ioctl::LIST, bytemuck::bytes_of(&entry), uid(user))
            .0;
        assert_eq!(listed, if errno == 0 { libc::ENXIO } else { errno });
    }
    let all = with(Access::All);
    assert_eq!(all.call(ioctl::QUERY, request(), &target, uid(1001)).0, 0);

    assert_eq!(all.raw(0xC1A0_F545, &[0; 416], uid(0)).0, libc::ENOTTY);
    // A file that is not a tensor.
    let query = request();
    assert_eq!(
        all.raw(ioctl::QUERY, bytemuck::bytes_of(&query), uid(0)).0,
        libc::ENOTTY
    );
}

#[test]
fn what_is_wrong_with_a_request_is_said_before_anything_is_tried() {
    let fixture = Fixture::small();
    let target = fixture.target(1, 1000);
    let wrong = [
        (
            ioctl::QUERY,
            GpuIo {
                abi_version: 2,
                ..request()
            },
        ),
        (
            ioctl::QUERY,
            GpuIo {
                abi_size: 408,
                ..request()
            },
        ),
        (
            ioctl::QUERY,
            GpuIo {
                rsvd0: 1,
                ..request()
            },
        ),
        (
            ioctl::QUERY,
            GpuIo {
                rsvd_in: [0, 1],
                ..request()
            },
        ),
        (
            ioctl::QUERY,
            GpuIo {
                op_flags: ioctl::PIN,
                ..request()
            },
        ),
        (
            ioctl::UPLOAD,
            GpuIo {
                op_flags: 8,
                ..request()
            },
        ),
        (
            ioctl::UPLOAD,
            GpuIo {
                op_flags: ioctl::EVICT,
                ..request()
            },
        ),
        (
            ioctl::RELEASE,
            GpuIo {
                op_flags: ioctl::AUTO_FREE,
                ..request()
            },
        ),
    ];
    for (code, io) in wrong {
        let (errno, out) = fixture.call(code, io, &target, file(1));
        assert_eq!((errno, out.version, out.nbytes), (libc::EINVAL, 1, 1000));
    }
    let deep = Target {
        shape: [1; 9].into(),
        ..target.clone()
    };
    for code in [ioctl::UPLOAD, ioctl::QUERY, ioctl::RELEASE] {
        assert_eq!(
            fixture.call(code, request(), &deep, file(1)).0,
            libc::EINVAL
        );
    }
    let flat = Target {
        shape: [1; 8].into(),
        ..target
    };
    assert_eq!(fixture.query(&flat, 1).0, 0);
    assert_eq!(fixture.raw(ioctl::LIST, &[0; 7], file(1)).0, libc::EINVAL);
}

#[test]
fn a_truncated_source_is_eio_and_leaves_nothing() {
    with_double!(["STFS_CUDA_DOUBLE_BANDWIDTH" => 4_000_000], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 3_000_000);
        let source = target.sources.files()[0].location().path().unwrap().to_path_buf();
        let shorter = |len| {
            let file = std::fs::File::options().write(true).open(&source).unwrap();
            file.set_len(len).unwrap();
        };
        // Under way.
        let upload = fixture.ask(ioctl::UPLOAD, request(), &target, file(1));
        while fixture.query(&target, 2).1.done_bytes == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        shorter(1_000_000);
        let (errno, io) = upload.recv_timeout(Duration::from_secs(5)).unwrap();
        assert_eq!((errno, io.state), (libc::EIO, ioctl::FAILED));
        // From the start.
        let (errno, io) = fixture.upload(&target, 1);
        assert_eq!((errno, io.cu_error, io.leases), (libc::EIO, 0, 0));
        wait_for_device_memory(&ledger(), 0);
        assert_eq!(fixture.listed(), Vec::<String>::new());
        std::fs::write(&source, noise(3_000_000, 5)).unwrap();
        assert_eq!(fixture.upload(&target, 1).0, 0);
        drop(fixture);
        assert_all_returned();
    });
}

#[test]
fn a_source_that_changed_is_estale() {
    with_double!(["STFS_CUDA_DOUBLE_BANDWIDTH" => 8_000_000], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 3_000_000);
        let source = target.sources.files()[0].location().path().unwrap().to_path_buf();
        // While it is being uploaded.
        let upload = fixture.ask(ioctl::UPLOAD, request(), &target, file(1));
        while fixture.query(&target, 2).1.done_bytes == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        // In place: a file that is truncated on the way is another failure.
        let open = std::fs::File::options().write(true).open(&source).unwrap();
        open.write_all_at(&noise(3_000_000, 6), 0).unwrap();
        let (errno, io) = upload.recv_timeout(Duration::from_secs(5)).unwrap();
        assert_eq!((errno, io.state), (libc::ESTALE, ioctl::FAILED));

        // Afterwards: a caller that requires the old state gets ESTALE, any other the new state.
        let (errno, old) = fixture.upload(&target, 1);
        assert_eq!(errno, 0);
        std::fs::write(&source, noise(3_000_000, 7)).unwrap();
        let same = GpuIo {
            want_generation: old.generation,
            ..request()
        };
        for code in [ioctl::UPLOAD, ioctl::QUERY] {
            assert_eq!(fixture.call(code, same, &target, file(1)).0, libc::ESTALE);
        }
        // The holder of a lease still sees its memory; others see the new state.
        let (errno, io) = fixture.query(&target, 1);
        assert_eq!((errno, io.state, io.generation), (0, ioctl::RESIDENT, old.generation));
        let (errno, io) = fixture.query(&target, 2);
        assert_eq!((errno, io.state), (0, ioctl::ABSENT));
        assert_ne!(io.generation, old.generation);
        let (errno, new) = fixture.upload(&target, 1);
        assert_eq!((errno, new.generation), (0, io.generation));
        assert!(seen_by_another_process(&new) == noise(3_000_000, 7));
        // The lease is on the new memory now, and a third state replaces the second.
        assert_eq!(fixture.query(&target, 1).1.alloc_id, new.alloc_id);
        fixture.gpu.released(1);
        std::fs::write(&source, noise(3_000_000, 8)).unwrap();
        assert_eq!(fixture.upload(&target, 1).0, 0);
        assert_eq!(fixture.listed().len(), 1);

        // Another file under the same name: this mount cannot show it.
        std::fs::write(source.with_extension("new"), noise(3_000_000, 9)).unwrap();
        std::fs::rename(source.with_extension("new"), &source).unwrap();
        assert_eq!(fixture.upload(&target, 2).0, libc::ESTALE);
    });
}

#[test]
fn a_view_that_panics_is_eio() {
    struct Bomb;
    impl View for Bomb {
        fn len(&self) -> u64 {
            1_000_000
        }
        fn read_at(&self, offset: u64, _: &mut [u8]) -> stfs::Result<()> {
            assert!(offset == u64::MAX, "on purpose");
            Ok(())
        }
    }
    with_double!([], {
        let fixture = Fixture::small();
        let bomb = target(1, Arc::new(Bomb), &[]);
        assert_eq!(fixture.upload(&bomb, 1).0, libc::EIO);
        assert_eq!(fixture.upload(&fixture.target(2, 1_000_000), 1).0, 0);
        drop(fixture);
        assert_all_returned();
    });
}

#[test]
fn a_failure_is_told_once_to_those_who_did_not_wait_for_it() {
    with_double!(["STFS_CUDA_DOUBLE_HANG" => "cuMemAlloc_v2:1:100", "STFS_CUDA_DOUBLE_FAIL" => "cuMemAlloc_v2:1:2"], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 1000);
        let at_once = GpuIo {
            timeout_ms: 0,
            ..request()
        };
        // Starts the driver, so that the upload does not wait for that.
        assert_eq!(devices(&fixture, 0).0, 0);
        let (errno, io) = fixture.call(ioctl::UPLOAD, at_once, &target, file(1));
        assert_eq!((errno, io.state), (0, ioctl::LOADING));
        while fixture.query(&target, 1).1.state == ioctl::LOADING {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (errno, io) = fixture.query(&target, 1);
        assert_eq!((errno, io.state, io.cu_error), (0, ioctl::FAILED, 2));
        assert_eq!(fixture.call(ioctl::UPLOAD, at_once, &target, file(1)).0, libc::ENOMEM);
        assert_eq!(fixture.query(&target, 1).1.state, ioctl::ABSENT);
        assert_eq!(fixture.upload(&target, 1).1.state, ioctl::RESIDENT);
    });
}
