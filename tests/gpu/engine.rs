//! Uploads: the bytes that another process sees, whatever the view; one upload for many callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stfs::dtype::Dtype;
use stfs::gpu::{Config, GRANULE, Part, Target};
use stfs::ioctl::{self, GpuIo};
use stfs::view::{Bytes, Cast, Concat, FloatSource, Floats, SharedView, View, read_all};

use crate::support::*;

/// Values that are cheapest to compute by whole tiles, as dequantizers do; counts the tiles.
struct Squares {
    numel: u64,
    tiles: Arc<AtomicU64>,
}

impl FloatSource for Squares {
    fn numel(&self) -> u64 {
        self.numel
    }
    fn fill(&self, first: u64, out: &mut [f32]) -> stfs::Result<()> {
        let end = first + out.len() as u64;
        let tiles = end.div_ceil(3000) - first / 3000;
        self.tiles.fetch_add(tiles, Ordering::Relaxed);
        for (value, i) in out.iter_mut().zip(first..) {
            *value = (i % 4093).pow(2) as f32;
        }
        Ok(())
    }
    fn grain(&self) -> u64 {
        3000
    }
}

/// Uploads a view, and compares what another process sees with the view itself.
fn round_trip(fixture: &Fixture, target: &Target) -> GpuIo {
    let (errno, io) = fixture.upload(target, target.key.ino);
    assert_eq!((errno, io.state), (0, ioctl::RESIDENT));
    assert_eq!(io.nbytes, target.view.len());
    assert_eq!(io.done_bytes, io.nbytes);
    assert_eq!(io.alloc_bytes % GRANULE, 0);
    assert_eq!((io.daemon_ptr, io.cu_error), (0, 0));
    assert_eq!(io.exporter_pid, std::process::id());
    let (seen, expected) = (
        seen_by_another_process(&io),
        read_all(&*target.view).unwrap(),
    );
    assert!(seen == expected, "ino {}: the bytes differ", target.key.ino);
    io
}

#[test]
fn another_process_sees_the_bytes_of_every_kind_of_view() {
    with_double!([], {
        let fixture = Fixture::small();
        // Odd sizes: one byte, one buffer and a bit, many buffers.
        for (ino, len) in [(1, 1), (2, 192 * 1024 + 7), (3, 5_000_017)] {
            round_trip(&fixture, &fixture.target(ino, len));
        }

        let file = fixture.file("bf16.safetensors", 1_400_000, 7);
        let cast = Cast::view(whole(&file), Dtype::BF16).unwrap();
        let mut widened = target(10, cast, std::slice::from_ref(&file));
        widened.key.part = Part::File;
        widened.dtype = Dtype::F32 as u32;
        widened.shape = Arc::new([7, 100, 1000]);
        let io = round_trip(&fixture, &widened);
        assert_eq!((io.dtype, io.ndim), (18, 3));
        assert_eq!(io.shape, [7, 100, 1000, 0, 0, 0, 0, 0]);
        assert_eq!(io.strides, [100_000, 1000, 1, 0, 0, 0, 0, 0]);

        // Rows of three parts, side by side.
        let parts = [300_000usize, 100_000, 50_000]
            .map(|n| Arc::new(Bytes(noise(n, n as u64).into())) as SharedView);
        let fused = Concat::new(parts.to_vec(), 1000);
        round_trip(&fixture, &target(11, Arc::new(fused), &[]));

        let tiles = Arc::new(AtomicU64::new(0));
        let squares = Squares {
            numel: 1_000_001,
            tiles: tiles.clone(),
        };
        let computed: SharedView = Arc::new(Floats(squares));
        let (errno, io) = fixture.upload(&target(12, computed.clone(), &[]), 12);
        assert_eq!((errno, io.state), (0, ioctl::RESIDENT));
        assert_eq!(
            tiles.load(Ordering::Relaxed),
            334,
            "a tile was asked for in parts"
        );
        assert!(seen_by_another_process(&io) == read_all(&*computed).unwrap());

        drop(fixture);
        assert_all_returned();
    });
}

#[test]
fn a_tensor_without_elements_takes_no_memory() {
    with_double!([], {
        let fixture = Fixture::small();
        let (errno, io) = fixture.upload(&fixture.target(1, 0), 1);
        assert_eq!((errno, io.state, io.nbytes), (0, ioctl::RESIDENT, 0));
        assert_eq!((io.alloc_bytes, io.handle_kind), (0, ioctl::HANDLE_NONE));
        assert_eq!(handed_out("device"), 0);
    });
}

#[test]
fn a_scalar_has_no_dimensions() {
    with_double!([], {
        let fixture = Fixture::small();
        let mut scalar = fixture.target(1, 4);
        scalar.dtype = Dtype::F32 as u32;
        scalar.shape = Arc::new([]);
        let io = round_trip(&fixture, &scalar);
        assert_eq!((io.ndim, io.shape[0]), (0, 0));
    });
}

#[test]
fn thirty_two_callers_make_one_upload() {
    with_double!(["STFS_CUDA_DOUBLE_BANDWIDTH" => 20_000_000], {
        let fixture = Fixture::small();
        let plain = fixture.target(1, 6_000_000);
        let counting = Arc::new(Counting {
            inner: plain.view.clone(),
            read: AtomicU64::new(0),
        });
        let target = Target {
            view: counting.clone(),
            ..plain
        };
        let answers: Vec<(i32, GpuIo)> = std::thread::scope(|scope| {
            let callers: Vec<_> = (1..=32u64)
                .map(|fh| scope.spawn({
                    let (fixture, target) = (&fixture, &target);
                    move || fixture.upload(target, fh)
                }))
                .collect();
            callers.into_iter().map(|c| c.join().unwrap()).collect()
        });
        let first = answers[0].1;
        for (errno, io) in &answers {
            assert_eq!((*errno, io.state), (0, ioctl::RESIDENT));
            assert_eq!((io.alloc_id, io.handle), (first.alloc_id, first.handle));
        }
        assert_eq!(counting.read.load(Ordering::Relaxed), 6_000_000);
        assert_eq!(handed_out("device"), 1);
        assert_eq!(fixture.query(&target, 1).1.leases, 32);
    });
}

#[test]
fn nothing_is_published_before_it_is_there() {
    with_double!(["STFS_CUDA_DOUBLE_BANDWIDTH" => 2_000_000], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 3_000_000);
        let at_once = GpuIo {
            timeout_ms: 0,
            ..request()
        };
        let start = Instant::now();
        let (errno, io) = fixture.call(ioctl::UPLOAD, at_once, &target, file(1));
        assert_eq!((errno, io.state, io.handle_kind), (0, ioctl::LOADING, ioctl::HANDLE_NONE));
        let mut done = 0;
        loop {
            let (errno, io) = fixture.query(&target, 2);
            assert_eq!(errno, 0);
            assert!(io.done_bytes >= done && io.done_bytes <= io.nbytes);
            done = io.done_bytes;
            if io.state == ioctl::RESIDENT {
                break;
            }
            assert_eq!((io.state, io.handle), (ioctl::LOADING, [0; 64]));
            std::thread::sleep(Duration::from_millis(5));
        }
        // The double copies 2 MB a second.
        assert!(start.elapsed() > Duration::from_millis(1400));
        let (_, io) = fixture.query(&target, 2);
        assert!(seen_by_another_process(&io) == read_all(&*target.view).unwrap());
    });
}

#[test]
fn a_small_tensor_does_not_wait_for_a_large_one() {
    with_double!(["STFS_CUDA_DOUBLE_BANDWIDTH" => 4_000_000], {
        let fixture = Fixture::small();
        let (large, small) = (fixture.target(1, 12_000_000), fixture.target(2, 100_000));
        let begun = fixture.ask(ioctl::UPLOAD, request(), &large, file(1));
        let (errno, io) = fixture.upload(&small, 2);
        assert_eq!((errno, io.state), (0, ioctl::RESIDENT));
        assert_eq!(fixture.query(&large, 1).1.state, ioctl::LOADING);
        drop(begun);
    });
}

#[test]
fn reading_and_copying_overlap() {
    // A source that takes 20 ms for each 192 KiB buffer, and a bus that takes as long: one after
    // the other they would need 40 ms a buffer.
    struct Slow(SharedView);
    impl View for Slow {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> stfs::Result<()> {
            std::thread::sleep(Duration::from_millis(20));
            self.0.read_at(offset, buf)
        }
    }
    with_double!(["STFS_CUDA_DOUBLE_BANDWIDTH" => 192 * 1024 * 50], {
        let fixture = Fixture::new(Config {
            staging: small_staging(),
            readers: 1,
            ..Config::default()
        });
        // Start the driver and the device's thread outside the measurement.
        fixture.upload(&fixture.target(1, 1), 1);
        let buffers = 40;
        let each = |ino| {
            let plain = fixture.target(ino, buffers * 192 * 1024);
            let slow = Target {
                view: Arc::new(Slow(plain.view.clone())),
                ..plain
            };
            let start = Instant::now();
            assert_eq!(fixture.upload(&slow, ino).0, 0);
            start.elapsed() / buffers as u32
        };
        // The best of some, because a busy machine can only make them longer.
        let best = (2..7).map(each).find(|each| *each < Duration::from_millis(34));
        assert!(best.is_some(), "no overlap");
    });
}

#[test]
fn devices_are_told_apart_by_ordinal_and_uuid() {
    with_double!([], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 1000);
        let on = |device| GpuIo {
            device,
            ..request()
        };
        let first = fixture.upload_with(on(-1), &target, 1).1;
        let second = fixture.upload_with(on(1), &target, 1).1;
        assert_eq!((first.device_ordinal, second.device_ordinal), (0, 1));
        assert_ne!(first.alloc_id, second.alloc_id);
        assert_eq!(second.dev_uuid, *b"stfs test doubl\x01");
        let by_uuid = GpuIo {
            want_uuid: second.dev_uuid,
            device: 77,
            ..request()
        };
        assert_eq!(
            fixture.upload_with(by_uuid, &target, 2).1.alloc_id,
            second.alloc_id
        );
        assert!(seen_by_another_process(&second) == read_all(&*target.view).unwrap());
        assert_eq!(handed_out("device"), 2);
    });
}

#[test]
fn asked_for_by_ordinal_and_by_uuid_before_the_driver_is_up_it_is_one_upload() {
    with_double!(["STFS_CUDA_DOUBLE_HANG" => "cuInit:1:400"], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 1000);
        let uuid = GpuIo {
            want_uuid: *b"stfs test doubl\x00",
            ..request()
        };
        let a = fixture.ask(ioctl::UPLOAD, request(), &target, file(1));
        let b = fixture.ask(ioctl::UPLOAD, uuid, &target, file(2));
        let (a, b) = (a.recv().unwrap(), b.recv().unwrap());
        assert_eq!((a.0, b.0), (0, 0));
        assert_eq!((a.1.state, b.1.state), (ioctl::RESIDENT, ioctl::RESIDENT));
        assert_eq!(a.1.alloc_id, b.1.alloc_id);
        assert_eq!((handed_out("device"), fixture.query(&target, 1).1.leases), (1, 2));
    });
}
