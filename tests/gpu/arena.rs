//! A whole model in one arena.

use std::sync::Arc;
use std::time::Duration;

use stfs::gpu::{ALIGNMENT, Arena, Config, GRANULE, Member, Target};
use stfs::ioctl::{self, GpuIo};
use stfs::view::{Concat, read_all};

use crate::support::*;

/// The tensors of a model, each in a file of its own, and the arena of all.
fn model(fixture: &Fixture) -> (Vec<Target>, Target) {
    let tensors: Vec<Target> = [1usize, 70_000, 0, 1_000_000, 255]
        .iter()
        .enumerate()
        .map(|(i, &len)| fixture.target(10 + i as u64, len))
        .collect();
    let whole = arena(&tensors);
    (tensors, whole)
}

fn arena(tensors: &[Target]) -> Target {
    let arena = Arena::new(tensors.iter().map(|t| Member {
        ino: t.key.ino,
        view: t.view.clone(),
        files: t.sources.files().to_vec(),
    }));
    Target::model(1, &Arc::new(arena))
}

#[test]
fn every_tensor_of_the_arena_is_found_by_its_own_query() {
    with_double!([], {
        let fixture = Fixture::small();
        let (tensors, whole) = model(&fixture);
        let (errno, all) = fixture.call(ioctl::UPLOAD, request(), &whole, directory());
        assert_eq!((errno, all.state, all.dtype), (0, ioctl::RESIDENT, 0));
        assert_eq!((all.ndim, all.shape[0]), (1, all.nbytes));
        let seen = seen_by_another_process(&all);
        assert!(seen == read_all(&*whole.view).unwrap());
        for tensor in &tensors {
            let (errno, io) = fixture.query(tensor, 5);
            assert_eq!((errno, io.state), (0, ioctl::RESIDENT));
            assert_eq!((io.alloc_id, io.handle), (all.alloc_id, all.handle));
            assert_eq!(
                (io.base_offset % ALIGNMENT, io.nbytes),
                (0, tensor.view.len())
            );
            let at = io.base_offset as usize;
            let expected = read_all(&*tensor.view).unwrap();
            assert!(seen[at..at + expected.len()] == expected);
            assert!(seen_by_another_process(&io) == expected);
        }
        assert_eq!(handed_out("device"), 1);
        assert_eq!(fixture.listed(), ["tensors"]);
    });
}

#[test]
fn a_tensor_joins_the_arena_and_holds_it() {
    with_double!([], {
        let fixture = Fixture::small();
        let (tensors, whole) = model(&fixture);
        fixture.call(ioctl::UPLOAD, request(), &whole, directory());
        let (errno, io) = fixture.upload(&tensors[3], 7);
        assert_eq!((errno, io.state, io.leases), (0, ioctl::RESIDENT, 1));
        assert_eq!(handed_out("device"), 1, "no second copy");
        // Neither can the tensor be freed out of the arena, nor the arena while the tensor is leased.
        assert_eq!(fixture.release(&tensors[3], 7, ioctl::EVICT).0, libc::EBUSY);
        assert_eq!(fixture.release(&tensors[1], 8, ioctl::EVICT).0, libc::EBUSY);
        let evict = GpuIo {
            op_flags: ioctl::EVICT,
            ..request()
        };
        let busy = fixture.call(ioctl::RELEASE, evict, &whole, directory());
        assert_eq!(busy.0, libc::EBUSY);
        assert_eq!(fixture.release(&tensors[3], 7, 0).0, 0);
        assert_eq!(
            fixture.call(ioctl::RELEASE, evict, &whole, directory()).0,
            0
        );
        assert_eq!(fixture.query(&tensors[3], 7).1.state, ioctl::ABSENT);
        wait_for_device_memory(&ledger(), 0);
    });
}

#[test]
fn after_a_file_changed_its_tensors_are_no_longer_found_in_the_arena() {
    with_double!([], {
        let fixture = Fixture::small();
        let (tensors, whole) = model(&fixture);
        fixture.call(ioctl::UPLOAD, request(), &whole, directory());
        let path = tensors[1].sources.files()[0].location().path().unwrap();
        std::fs::write(path, noise(70_000, 99)).unwrap();
        assert_eq!(fixture.query(&tensors[1], 5).1.state, ioctl::ABSENT);
        assert_eq!(fixture.query(&tensors[3], 5).1.state, ioctl::RESIDENT);
        // A separate upload of the tensor has the file's new content.
        let (errno, io) = fixture.upload(&tensors[1], 5);
        assert_eq!((errno, io.base_offset), (0, 0));
        assert!(seen_by_another_process(&io) == noise(70_000, 99));
        // The model again: the old arena, which has no lease, is evicted.
        let (errno, io) = fixture.call(ioctl::UPLOAD, request(), &whole, directory());
        assert_eq!((errno, io.state), (0, ioctl::RESIDENT));
        assert_eq!(fixture.query(&tensors[1], 6).1.alloc_id, io.alloc_id);
        assert_eq!(outstanding(&ledger())["device"], 2);
    });
}

#[test]
fn a_tensor_of_several_files_is_found_in_the_arena_until_one_of_them_changes() {
    with_double!([], {
        let fixture = Fixture::small();
        let (mut tensors, _) = model(&fixture);
        // A view whose bytes come from two files that the tensors before it do not use.
        let files = [("p", 300), ("q", 700)].map(|(name, len)| fixture.file(name, len, 1));
        let parts = files.iter().map(whole).collect();
        tensors.push(target(20, Arc::new(Concat::new(parts, 1)), &files));
        let all = arena(&tensors);
        assert_eq!(all.sources.files().len(), tensors.len() + 1);
        fixture.call(ioctl::UPLOAD, request(), &all, directory());
        let (errno, io) = fixture.query(&tensors[5], 5);
        assert_eq!((errno, io.state), (0, ioctl::RESIDENT));
        assert!(seen_by_another_process(&io) == read_all(&*tensors[5].view).unwrap());
        // The last file alone.
        std::fs::write(files[1].location().path().unwrap(), noise(700, 2)).unwrap();
        assert_eq!(fixture.query(&tensors[5], 5).1.state, ioctl::ABSENT);
        assert_eq!(fixture.query(&tensors[3], 5).1.state, ioctl::RESIDENT);
        // An arena of its new content is another generation.
        let (errno, new) = fixture.call(ioctl::UPLOAD, request(), &all, directory());
        assert_eq!((errno, new.state), (0, ioctl::RESIDENT));
        assert_eq!(fixture.query(&tensors[5], 5).1.alloc_id, new.alloc_id);
    });
}

#[test]
fn of_two_arenas_the_newer_is_found() {
    with_double!([], {
        let fixture = Fixture::small();
        let (tensors, whole) = model(&fixture);
        let old = fixture
            .call(ioctl::UPLOAD, request(), &whole, directory())
            .1;
        // A holder keeps the old arena while another tensor's file changes.
        assert_eq!(fixture.upload(&tensors[3], 7).1.alloc_id, old.alloc_id);
        let path = tensors[1].sources.files()[0].location().path().unwrap();
        std::fs::write(path, noise(70_000, 99)).unwrap();
        let new = fixture
            .call(ioctl::UPLOAD, request(), &whole, directory())
            .1;
        assert_ne!(new.alloc_id, old.alloc_id);
        for tensor in &tensors {
            assert_eq!(fixture.query(tensor, 8).1.alloc_id, new.alloc_id);
            assert_eq!(fixture.upload(tensor, 8).1.alloc_id, new.alloc_id);
        }
        assert_eq!(fixture.query(&tensors[3], 7).1.alloc_id, old.alloc_id);
    });
}

#[test]
fn a_tensor_that_is_pinned_pins_the_arena_it_is_in() {
    with_double!([], {
        let fixture = Fixture::small();
        let (tensors, whole) = model(&fixture);
        let with = |op_flags| GpuIo {
            op_flags,
            ..request()
        };
        fixture.call(ioctl::UPLOAD, with(ioctl::AUTO_FREE), &whole, directory());
        fixture.upload_with(with(ioctl::PIN), &tensors[3], 7);
        fixture.gpu.released(7);
        std::thread::sleep(Duration::from_millis(2500));
        assert_eq!(fixture.query(&tensors[3], 8).1.state, ioctl::RESIDENT);
    });
}

#[test]
fn an_arena_over_the_limit_is_refused() {
    with_double!([], {
        let fixture = Fixture::new(Config {
            limit: Some(GRANULE / 2),
            ..Config::default()
        });
        let (_, whole) = model(&fixture);
        let (errno, io) = fixture.call(ioctl::UPLOAD, request(), &whole, directory());
        assert_eq!((errno, io.state), (libc::EDQUOT, ioctl::FAILED));
    });
}
