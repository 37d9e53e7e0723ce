//! Damaged pickles: each is an error with the opcode and its byte, and nothing panics.

use super::python::cases;
use super::*;

#[test]
fn damage_is_said_with_the_opcode_and_its_byte() {
    let cut = "; the file is cut short or damaged, download it again";
    for (pickled, problem) in [
        (
            b"\x80\x02".as_slice(),
            format!("its pickle has no end: STOP is missing at byte 2 of data.pkl{cut}"),
        ),
        (
            b"",
            format!("its pickle has no end: STOP is missing at byte 0 of data.pkl{cut}"),
        ),
        (
            b"\x80\x02X\xff\0\0\0abc",
            format!("its pickle is damaged: BINUNICODE at byte 2 of data.pkl needs 255 bytes, but 3 are left{cut}"),
        ),
        (
            b"\x80\x04\x95\xff\0\0\0\0\0\0\0N.",
            format!("its pickle is damaged: FRAME at byte 2 of data.pkl needs 255 bytes, but 2 are left{cut}"),
        ),
        (
            b"\x80\x02X\xff",
            format!("its pickle is damaged: BINUNICODE at byte 2 of data.pkl needs 4 bytes, but 1 are left{cut}"),
        ),
        (
            b"\x80\x02cos.path",
            format!("its pickle is damaged: GLOBAL at byte 2 of data.pkl has no end of line{cut}"),
        ),
        (
            b"\x80\x02.",
            "its pickle is damaged: STOP at byte 2 of data.pkl finds too few values on the stack".into(),
        ),
        (
            b"\x80\x02(N\x85R.",
            "its pickle is damaged: REDUCE at byte 5 of data.pkl finds too few values on the stack".into(),
        ),
        (
            b"\x80\x02Nt.",
            "its pickle is damaged: TUPLE at byte 3 of data.pkl has no MARK".into(),
        ),
        (
            b"\x80\x02h\x05.",
            "its pickle is damaged: BINGET at byte 2 of data.pkl gets memo entry 5, which was never put".into(),
        ),
        (
            b"g-1\n.",
            "its pickle is damaged: GET at byte 0 of data.pkl has '-1' as a number of the memo".into(),
        ),
        (
            b"\x80\x02}(Nu.",
            "its pickle is damaged: SETITEMS at byte 5 of data.pkl has 1 keys and values, not an even number".into(),
        ),
        (
            b"\x80\x02)Na.",
            "its pickle is damaged: APPEND at byte 4 of data.pkl appends to a tuple".into(),
        ),
        (
            b"\x80\x02K\x01)R.",
            "its pickle is damaged: REDUCE at byte 5 of data.pkl calls 1, not a function".into(),
        ),
        (
            b"\x80\x02cmine\nf\n]R.",
            "its pickle is damaged: REDUCE at byte 11 of data.pkl calls with a list, not a tuple".into(),
        ),
        (
            b"\x80\x04K\x01K\x02\x93.",
            "its pickle is damaged: STACK_GLOBAL at byte 6 of data.pkl names 1 of 2, not a text of a text".into(),
        ),
        (
            b"\x80\x02I1x\n.",
            "its pickle is damaged: INT at byte 2 of data.pkl has '1x' as a number".into(),
        ),
        (
            b"\x80\x02Sabc\n.",
            "its pickle is damaged: STRING at byte 2 of data.pkl has 'abc' as a string".into(),
        ),
        (
            b"\x80\x02\x8b\xff\xff\xff\xff.",
            "its pickle is damaged: LONG4 at byte 2 of data.pkl has -1 as the length of its value".into(),
        ),
        (
            b"\x80\x02\xff.",
            "its pickle is damaged: 0xff at byte 2 of data.pkl is not an opcode; download the file again".into(),
        ),
    ] {
        assert_eq!(problems(pickled), [problem]);
    }
}

#[test]
fn opcodes_that_are_not_run_are_refused_by_name() {
    for (pickled, start) in [
        (b"\x80\x06N.".as_slice(), "PROTO at byte 0"),
        (b"\x80\xffN.", "PROTO at byte 0"),
        (b"P0\n.", "PERSID at byte 0"),
        (b"\x80\x02\x82\x01.", "EXT1 at byte 2"),
        (b"\x80\x02\x83\x01\0.", "EXT2 at byte 2"),
        (b"\x80\x02\x84\x01\0\0\0.", "EXT4 at byte 2"),
        (b"\x80\x05\x97.", "NEXT_BUFFER at byte 2"),
        (b"\x80\x05N\x98.", "READONLY_BUFFER at byte 3"),
    ] {
        let found = problems(pickled);
        let start = format!("its pickle cannot be read: {start} of data.pkl ");
        assert!(
            found.len() == 1 && found[0].starts_with(&start),
            "{found:?}"
        );
        if start.contains("PROTO") {
            let protocol = format!("is of protocol {}; stfs reads 0 to 5", pickled[1]);
            assert!(found[0].contains(&protocol), "{found:?}");
        }
    }
}

#[test]
fn bytes_count_from_the_start_of_the_place_and_reading_ends_behind_stop() {
    let bytes = b"front\x80\x02K\x07.\x80\x02h\x05.";
    let store = MemoryStore::new(&[("x", bytes)]);
    let object = store.object("x").unwrap();
    let mut cursor = Cursor::new(&*object, 5, bytes.len() as u64);
    let of = "the file";
    let first = read(&mut cursor, Place { start: 0, of });
    assert!(first.unwrap().pickle.is_some() && cursor.position() == 10);
    let problems = read(&mut cursor, Place { start: 0, of }).unwrap().damage;
    assert!(
        problems[0].contains("BINGET at byte 12 of the file"),
        "{problems:?}"
    );
}

/// Runs a pickle and looks at each value once.
fn look(bytes: &[u8]) {
    let outcome = outcome(bytes);
    let Some(pickle) = outcome.pickle else {
        assert_eq!(outcome.damage.len(), 1);
        return;
    };
    for i in 0..pickle.len() {
        let _ = pickle.get(Ref(i as u32));
    }
    assert!(pickle.storages().count() + pickle.unknown_names().count() <= pickle.len());
}

#[test]
fn a_pickle_cut_at_any_byte_is_an_error() {
    for (name, pickled, _) in cases().filter(|(_, pickled, _)| pickled.len() < 1500) {
        for end in 0..pickled.len() {
            let found = problems(&pickled[..end]);
            assert_eq!(found.len(), 1, "{name} cut at byte {end}");
        }
    }
}

#[test]
fn changed_bytes_never_panic() {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    let opcodes = b"(.012FIJKLMNPQRSTUVXabcdegehijl]opqrstu)}GBC\x80\x81\x82\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96";
    let seeds: Vec<Vec<u8>> = cases()
        .map(|(_, pickled, _)| pickled)
        .filter(|pickled| pickled.len() < 1500)
        .chain([super::meaning::pickle(&[b"ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04tQK\x00K\x02\x85K\x01\x85\x89NtR"])])
        .collect();
    for _ in 0..30_000 {
        let mut pickled = seeds[random(seeds.len())].clone();
        for _ in 0..1 + random(4) {
            let at = random(pickled.len());
            match random(4) {
                0 => pickled[at] = random(256) as u8,
                1 => pickled[at] = opcodes[random(opcodes.len())],
                2 => pickled.insert(at, opcodes[random(opcodes.len())]),
                _ => drop(pickled.remove(at)),
            }
            if pickled.is_empty() {
                break;
            }
        }
        look(&pickled);
    }
}
