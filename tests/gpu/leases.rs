//! Leases, eviction and the limit.

use std::time::{Duration, Instant};

use stfs::gpu::{Caller, Config, GRANULE};
use stfs::ioctl::{self, GpuIo};

use crate::support::*;

fn with_flags(op_flags: u32) -> GpuIo {
    GpuIo {
        op_flags,
        ..request()
    }
}

#[test]
fn a_lease_belongs_to_the_open_file_and_goes_once() {
    with_double!([], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 1000);
        assert_eq!(fixture.upload(&target, 1).1.leases, 1);
        assert_eq!(fixture.upload(&target, 1).1.leases, 1, "the same open file");
        assert_eq!(fixture.upload(&target, 2).1.leases, 2);
        let (errno, io) = fixture.release(&target, 1, 0);
        assert_eq!((errno, io.leases, io.state), (0, 1, ioctl::RESIDENT));
        assert_eq!(
            fixture.release(&target, 1, 0).0,
            libc::ENOENT,
            "released twice"
        );
        fixture.gpu.released(2);
        fixture.gpu.released(2);
        assert_eq!(
            fixture.release(&target, 2, 0).0,
            libc::ENOENT,
            "closed, then released"
        );
        // The memory stays for the next process.
        let (errno, io) = fixture.upload(&target, 3);
        assert_eq!((errno, io.leases), (0, 1));
        assert_eq!(handed_out("device"), 1);
    });
}

#[test]
fn an_ioctl_on_a_directory_takes_no_lease() {
    with_double!([], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 1000);
        let (errno, io) = fixture.call(ioctl::UPLOAD, request(), &target, directory());
        assert_eq!((errno, io.leases), (0, 0));
        let release = fixture.call(ioctl::RELEASE, request(), &target, directory());
        assert_eq!(release.0, libc::ENOENT);
        let evict = with_flags(ioctl::EVICT);
        let (errno, io) = fixture.call(ioctl::RELEASE, evict, &target, directory());
        assert_eq!((errno, io.state), (0, ioctl::ABSENT));
        wait_for_device_memory(&ledger(), 0);
    });
}

#[test]
fn evict_frees_now_unless_others_hold_a_lease() {
    with_double!([], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 1000);
        fixture.upload(&target, 1);
        fixture.upload(&target, 2);
        let (errno, io) = fixture.release(&target, 1, ioctl::EVICT);
        assert_eq!(
            (errno, io.state, io.leases),
            (libc::EBUSY, ioctl::RESIDENT, 2)
        );
        assert_eq!(fixture.release(&target, 2, 0).0, 0);
        let (errno, io) = fixture.release(&target, 1, ioctl::EVICT);
        assert_eq!((errno, io.state), (0, ioctl::ABSENT));
        // It is free by the time of the answer.
        wait_for_device_memory(&ledger(), 0);
        assert_eq!(fixture.query(&target, 1).1.state, ioctl::ABSENT);
        assert_eq!(fixture.release(&target, 1, ioctl::EVICT).0, libc::ENOENT);
        assert_eq!(fixture.listed(), Vec::<String>::new());
        assert_eq!(fixture.upload(&target, 1).1.state, ioctl::RESIDENT);
    });
}

#[test]
fn evict_stops_an_upload_and_those_who_wait_are_told() {
    with_double!(["STFS_CUDA_DOUBLE_BANDWIDTH" => 2_000_000], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 8_000_000);
        let waiting = fixture.ask(ioctl::UPLOAD, request(), &target, directory());
        while fixture.query(&target, 1).1.done_bytes == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(fixture.release(&target, 1, ioctl::EVICT).0, 0);
        let (errno, io) = waiting.recv_timeout(Duration::from_secs(1)).unwrap();
        assert_eq!((errno, io.state), (libc::ENOENT, ioctl::ABSENT));
        wait_for_device_memory(&ledger(), 0);
    });
}

#[test]
fn auto_free_memory_goes_two_seconds_after_the_last_lease() {
    with_double!([], {
        let fixture = Fixture::small();
        let (auto, stays) = (fixture.target(1, 1000), fixture.target(2, 1000));
        let io = fixture
            .upload_with(with_flags(ioctl::AUTO_FREE), &auto, 1)
            .1;
        assert_eq!(io.flags, ioctl::AUTO_FREE);
        // A caller that joins without the flag expects the memory to stay.
        fixture.upload_with(with_flags(ioctl::AUTO_FREE), &stays, 2);
        assert_eq!(fixture.upload(&stays, 3).1.flags, 0);
        fixture.gpu.released(1);
        fixture.gpu.released(2);
        fixture.gpu.released(3);
        std::thread::sleep(Duration::from_millis(1500));
        // A lease before the two seconds are over: they start again.
        assert_eq!(
            fixture
                .upload_with(with_flags(ioctl::AUTO_FREE), &auto, 4)
                .0,
            0
        );
        let last = Instant::now();
        fixture.gpu.released(4);
        std::thread::sleep(Duration::from_millis(1500));
        assert_stays_two_seconds(&fixture, &auto, last);
        wait_for_absence(&fixture, &auto);
        assert_eq!(fixture.query(&stays, 5).1.state, ioctl::RESIDENT);
        wait_for_device_memory(&ledger(), 1);
    });
}

/// Asserts that it is resident, unless a busy machine has taken more than the two seconds since then.
fn assert_stays_two_seconds(fixture: &Fixture, target: &stfs::gpu::Target, since: Instant) {
    let state = fixture.query(target, 99).1.state;
    assert!(state == ioctl::RESIDENT || since.elapsed() >= Duration::from_secs(2));
}

/// Waits until it is absent.
fn wait_for_absence(fixture: &Fixture, target: &stfs::gpu::Target) {
    let start = Instant::now();
    while fixture.query(target, 99).1.state != ioctl::ABSENT {
        assert!(start.elapsed() < Duration::from_secs(60), "it stays");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn auto_free_memory_goes_although_its_lease_went_while_it_was_loading() {
    with_double!(["STFS_CUDA_DOUBLE_BANDWIDTH" => 8_000_000], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 4_000_000);
        let at_once = GpuIo {
            timeout_ms: 0,
            ..with_flags(ioctl::AUTO_FREE)
        };
        let (errno, io) = fixture.call(ioctl::UPLOAD, at_once, &target, file(1));
        assert_eq!((errno, io.state), (0, ioctl::LOADING));
        fixture.gpu.released(1);
        while fixture.query(&target, 2).1.state == ioctl::LOADING {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (_, io) = fixture.query(&target, 2);
        assert_eq!((io.state, io.leases), (ioctl::RESIDENT, 0));
        wait_for_absence(&fixture, &target);
        wait_for_device_memory(&ledger(), 0);
    });
}

#[test]
fn auto_free_memory_that_only_directories_asked_for_goes_two_seconds_after_the_last_of_them() {
    with_double!([], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 1000);
        let auto = with_flags(ioctl::AUTO_FREE);
        let (errno, io) = fixture.call(ioctl::UPLOAD, auto, &target, directory());
        assert_eq!((errno, io.flags, io.leases), (0, ioctl::AUTO_FREE, 0));
        std::thread::sleep(Duration::from_millis(1500));
        // Another request: the two seconds start again, as they do after a lease.
        fixture.call(ioctl::UPLOAD, auto, &target, directory());
        fixture.upload_with(auto, &target, 1);
        fixture.gpu.released(1);
        std::thread::sleep(Duration::from_millis(1000));
        let last = Instant::now();
        fixture.call(ioctl::UPLOAD, auto, &target, directory());
        std::thread::sleep(Duration::from_millis(1500));
        assert_stays_two_seconds(&fixture, &target, last);
        wait_for_absence(&fixture, &target);
    });
}

#[test]
fn pinned_memory_outlives_its_leases_whatever_else_was_asked_for() {
    with_double!([], {
        let fixture = Fixture::small();
        let (both, later) = (fixture.target(1, 1000), fixture.target(2, 1000));
        let flags = ioctl::AUTO_FREE | ioctl::PIN;
        assert_eq!(
            fixture.upload_with(with_flags(flags), &both, 1).1.flags,
            flags
        );
        fixture.upload_with(with_flags(ioctl::AUTO_FREE), &later, 2);
        fixture.gpu.released(1);
        fixture.gpu.released(2);
        // Pinned when its time was already running.
        let io = fixture
            .call(ioctl::UPLOAD, with_flags(flags), &later, directory())
            .1;
        assert_eq!(io.flags, flags);
        std::thread::sleep(Duration::from_millis(2500));
        for target in [&both, &later] {
            assert_eq!(fixture.query(target, 3).1.state, ioctl::RESIDENT);
        }
    });
}

#[test]
fn an_upload_that_is_called_off_counts_until_its_memory_is_free() {
    // Copies in flight when the upload is canceled take three seconds.
    with_double!(["STFS_CUDA_DOUBLE_BANDWIDTH" => 200_000], {
        let fixture = Fixture::new(Config {
            limit: Some(GRANULE),
            staging: small_staging(),
            ..Config::default()
        });
        let (large, small) = (fixture.target(1, 2_000_000), fixture.target(2, 100));
        let short = GpuIo {
            timeout_ms: 300,
            ..request()
        };
        fixture.call(ioctl::UPLOAD, short, &large, file(1));
        assert_eq!(fixture.release(&large, 1, ioctl::EVICT).0, 0);
        assert_eq!(outstanding(&ledger())["device"], 1, "not free yet");
        assert_eq!(fixture.upload(&small, 2).0, libc::EDQUOT);
        while outstanding(&ledger()).contains_key("device") {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(fixture.upload(&small, 2).0, 0);
    });
}

#[test]
fn a_limit_of_0_is_none() {
    with_double!([], {
        let fixture = Fixture::new(Config {
            limit: Some(0),
            staging: small_staging(),
            ..Config::default()
        });
        assert_eq!(fixture.upload(&fixture.target(1, 1000), 1).0, 0);
    });
}

#[test]
fn the_limit_evicts_what_was_used_longest_ago() {
    with_double!([], {
        let fixture = Fixture::new(Config {
            limit: Some(3 * GRANULE),
            staging: small_staging(),
            ..Config::default()
        });
        let all: Vec<_> = (1..=5).map(|ino| fixture.target(ino, 1000)).collect();
        for (i, target) in all[..3].iter().enumerate() {
            assert_eq!(fixture.upload(target, i as u64 + 1).0, 0);
        }
        // All three are leased, so there is no room.
        let (errno, io) = fixture.upload(&all[3], 9);
        assert_eq!(
            (errno, io.state, io.leases),
            (libc::EDQUOT, ioctl::FAILED, 0)
        );
        for fh in 1..=3 {
            fixture.gpu.released(fh);
        }
        // The first is used again, so the second is the oldest.
        fixture.upload(&all[0], 1);
        fixture.gpu.released(1);
        assert_eq!(fixture.upload(&all[3], 4).0, 0);
        assert_eq!(
            fixture.listed(),
            ["tensors/t1/raw", "tensors/t3/raw", "tensors/t4/raw"]
        );
        // QUERY does not count as use.
        fixture.query(&all[2], 8);
        assert_eq!(fixture.upload(&all[4], 5).0, 0);
        assert_eq!(
            fixture.listed(),
            ["tensors/t1/raw", "tensors/t4/raw", "tensors/t5/raw"]
        );
        assert_eq!(outstanding(&ledger())["device"], 3);
        // More than the limit is refused at once, and nothing is evicted for it.
        let large = fixture.target(6, 3 * GRANULE as usize + 1);
        assert_eq!(fixture.upload(&large, 6).0, libc::EDQUOT);
        assert_eq!(fixture.listed().len(), 3);
    });
}

#[test]
fn pinned_memory_is_never_evicted_and_only_the_owner_may_pin() {
    with_double!([], {
        let fixture = Fixture::new(Config {
            access: stfs::gpu::Access::All,
            owner: 1000,
            limit: Some(GRANULE),
            staging: small_staging(),
            ..Config::default()
        });
        let (a, b) = (fixture.target(1, 1000), fixture.target(2, 1000));
        let by = |uid| Caller { uid, fh: None };
        let pin = with_flags(ioctl::PIN);
        assert_eq!(
            fixture.call(ioctl::UPLOAD, pin, &a, by(2000)).0,
            libc::EACCES
        );
        let (errno, io) = fixture.call(ioctl::UPLOAD, pin, &a, by(1000));
        assert_eq!((errno, io.flags), (0, ioctl::PIN));
        assert_eq!(
            fixture.call(ioctl::UPLOAD, request(), &b, by(2000)).0,
            libc::EDQUOT
        );
        let evict = with_flags(ioctl::EVICT);
        assert_eq!(
            fixture.call(ioctl::RELEASE, evict, &a, by(2000)).0,
            libc::EACCES
        );
        assert_eq!(fixture.call(ioctl::RELEASE, evict, &a, by(0)).0, 0);
        assert_eq!(fixture.call(ioctl::UPLOAD, request(), &b, by(2000)).0, 0);
    });
}

#[test]
fn a_device_without_memory_in_use_gives_up_its_context() {
    with_double!([], {
        let fixture = Fixture::small();
        let target = fixture.target(1, 1000);
        fixture.upload(&target, 1);
        fixture.release(&target, 1, ioctl::EVICT);
        assert_eq!(outstanding(&ledger())["context"], 1);
        std::thread::sleep(Duration::from_millis(10_500));
        assert_all_returned();
        assert_eq!(fixture.upload(&target, 1).1.state, ioctl::RESIDENT);
    });
}
