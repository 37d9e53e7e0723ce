//! Pickles that would take more than they should.

use super::*;

/// A pickle that repeats something.
fn repeated(before: &[u8], part: &[u8], times: usize, after: &[u8]) -> Vec<u8> {
    [before, &part.repeat(times), after].concat()
}

#[track_caller]
fn exceeds(pickled: &[u8], opcode: &str, limit: &str) {
    let found = problems(pickled);
    let ends = format!("makes more than {limit}, the most that stfs keeps");
    let is = found.len() == 1
        && found[0].starts_with(&format!("its pickle is too large: {opcode} at byte"))
        && found[0].ends_with(&ends);
    assert!(is, "{found:?}");
}

#[test]
fn values_references_and_strings_are_limited() {
    let many = repeated(b"\x80\x02", b"N0", (1 << 24) + 1, b"N.");
    exceeds(&many, "NONE", "16,777,216 values");
    let deep = repeated(b"\x80\x02N", b"2", 1 << 25, b".");
    exceeds(&deep, "DUP", "33,554,432 references on its stack");
    let marks = repeated(b"\x80\x02", b"(", (1 << 25) + 1, b".");
    exceeds(&marks, "MARK", "33,554,432 references on its stack");
    let long = [b"X\0\0\x01\0".as_slice(), &[b'a'; 1 << 16]].concat();
    let strings = repeated(b"\x80\x02", &long, 4097, b".");
    exceeds(&strings, "BINUNICODE", "268,435,456 bytes of strings");
    let memo = repeated(b"\x80\x04N", b"\x94", (1 << 24) + 1, b".");
    exceeds(&memo, "MEMOIZE", "16,777,216 memo entries");
    let id = b"\x80\x02(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04tq\0";
    let storages = repeated(id, b"Q0h\0", (1 << 20) + 1, b".");
    exceeds(&storages, "BINPERSID", "1,048,576 references to storages");
    // The pairs of one list, in many dicts.
    let pairs = repeated(b"\x80\x02(", b"K\x01K\x02\x86", 1 << 20, b"lq\x000");
    let pairs = [pairs, b"ccollections\nOrderedDict\nq\x01".to_vec()].concat();
    let references = repeated(&pairs, b"0h\x01h\x00\x85R", 32, b".");
    exceeds(&references, "REDUCE", "67,108,864 references");
}

#[test]
fn the_pickles_of_a_file_share_its_limits() {
    let half = repeated(b"\x80\x02", b"N0", 9 << 20, b"N.");
    let bytes = half.repeat(2);
    let store = MemoryStore::new(&[("x", &bytes)]);
    let object = store.object("x").unwrap();
    let mut cursor = Cursor::new(&*object, 0, bytes.len() as u64);
    let (place, mut budget) = (Place { start: 0, of: "x" }, Budget::default());
    let first = read_within(&mut cursor, place, &mut budget).unwrap();
    assert!(first.damage.is_empty());
    let second = read_within(&mut cursor, place, &mut budget).unwrap();
    assert!(second.pickle.is_none());
    let limit = "makes more than 16,777,216 values";
    assert!(second.damage[0].contains(limit), "{:?}", second.damage);
}

#[test]
fn a_container_made_of_another_is_a_copy_that_counts() {
    let filled = |made: &[u8], with: &[u8]| {
        let mut filled = repeated(b"\x80\x04(", b"K\x01K\x02", 1 << 20, made);
        filled.extend(b"q\x000");
        filled.extend([with, b"q\x01"].concat());
        filled
    };
    for (made, with) in [
        (b"d".as_slice(), b"c__builtin__\ndict\n".as_slice()),
        (b"d", b"ccollections\nOrderedDict\n"),
        (b"l", b"c__builtin__\nlist\n"),
        (b"l", b"c__builtin__\nset\n"),
        (b"t", b"ctorch\nSize\n"),
    ] {
        let copies = repeated(&filled(made, with), b"0h\x01h\0\x85R", 40, b".");
        exceeds(&copies, "REDUCE", "67,108,864 references");
    }
    // The arguments of a new object: all but its class.
    let class = repeated(b"(cmine\nNet\n", b"K\x01", 1 << 20, b"tq\x000");
    let new = [&class, b"ccopy_reg\n__newobj__\nq\x01".as_slice()].concat();
    let copies = repeated(&new, b"0h\x01h\0R", 70, b".");
    exceeds(&copies, "REDUCE", "67,108,864 references");
}

#[test]
fn a_string_over_64_kib_is_skipped() {
    let string = |n: usize| {
        let length = (n as u32).to_le_bytes();
        [b"\x80\x02X", length.as_slice(), &vec![b'a'; n], b"."].concat()
    };
    assert_eq!(value(&string(65537)), "skipped:a string of 65537 bytes");
    assert_eq!(value(&string(65536)).len(), 2 + 2 * 65536);
    let bytes = [b"\x80\x03B\x01\0\x01\0".as_slice(), &[0xff; 65537], b"."].concat();
    assert_eq!(value(&bytes), "skipped:a string of 65537 bytes");
    let line = [b"V".as_slice(), &vec![b'a'; 1 << 20], b"\n."].concat();
    assert_eq!(value(&line), "skipped:a string of 1048576 bytes");
    let line = [b"S'".as_slice(), &b"\\x41".repeat(70_000), b"'\n."].concat();
    assert_eq!(value(&line), "skipped:a string of 70000 bytes");
}

#[test]
fn a_memo_number_costs_one_entry() {
    let pickled = b"\x80\x02K\x05r\xff\xff\xff\xff0j\xff\xff\xff\xff.";
    assert_eq!(value(pickled), "5");
    let text = b"I5\np4294967295\n0g4294967295\n.";
    assert_eq!(value(text), "5");
    // A number that the list reaches later, and one that is put twice.
    let mut pickled = b"\x80\x02".to_vec();
    for n in [200_000u32, 5, 5, 200_000] {
        pickled.extend(b"K");
        pickled.push(n as u8);
        pickled.extend(b"r");
        pickled.extend(n.to_le_bytes());
        pickled.push(b'0');
    }
    for n in 0..100_000u32 {
        pickled.extend(b"K\x01r");
        pickled.extend((n + 10).to_le_bytes());
        pickled.push(b'0');
    }
    pickled.extend(b"K\x09r\x40\x0d\x03\x000h\x05j\x40\x0d\x03\x00\x86.");
    assert_eq!(value(&pickled), "(5 9)");
}

#[test]
fn a_doubling_structure_costs_what_the_pickle_has() {
    // 30 lists, each with two references to the one before: 2^30 paths.
    let mut pickled = b"\x80\x02]q\0".to_vec();
    for i in 0..30u8 {
        pickled.extend([b'0', b']', b'q', i + 1, b'h', i, b'a', b'h', i, b'a']);
    }
    pickled.push(b'.');
    let pickle = run(&pickled);
    assert_eq!(pickle.len(), 31);
}

#[test]
fn a_container_may_hold_itself() {
    for pickled in [b"\x80\x02]q\0h\0a.".as_slice(), b"\x80\x02}q\0K\x01h\0s."] {
        let pickle = run(pickled);
        let root = pickle.root().unwrap();
        match pickle.get(root) {
            Value::List(&[item]) => assert_eq!(item, root),
            Value::Mapping(pairs) => {
                assert_eq!(
                    pairs.into_iter().map(|(_, v)| v).collect::<Vec<_>>(),
                    [root]
                );
            }
            _ => panic!(),
        }
    }
}

#[test]
fn a_million_nested_tuples_or_dicts_are_no_recursion() {
    let tuples = repeated(b"\x80\x02)", b"\x85", 1_000_000, b".");
    assert_eq!(run(&tuples).len(), 1_000_001);
    let dicts = repeated(b"\x80\x02", b"}K\x01", 1_000_000, b"N");
    let dicts = [dicts, repeated(b"", b"s", 1_000_000, b".")].concat();
    assert_eq!(run(&dicts).len(), 2_000_001);
    let calls = repeated(b"\x80\x02cmine\nf\n", b")R", 1_000_000, b".");
    let pickle = run(&calls);
    let Value::Object(object) = pickle.get(pickle.root().unwrap()) else {
        panic!();
    };
    assert_eq!(object.name, "mine.f");
}

#[test]
fn a_conversion_of_what_is_bytes_already_is_the_same_value() {
    let before = b"\x80\x03(C\x05bytesq\0c_codecs\nencode\nq\x01";
    let pickle = run(&repeated(before, b"h\x01h\0\x85R", 1000, b"t."));
    // The arguments of each call, and what both of them have.
    assert_eq!(pickle.len(), 1000 + 3);
    let Value::Tuple(items) = pickle.get(pickle.root().unwrap()) else {
        panic!();
    };
    assert!(items.len() == 1002 && items[2..].iter().all(|item| *item == items[0]));
}

#[test]
fn a_text_that_cannot_be_encoded_costs_what_was_gone_through() {
    for encoding in [b"latin1".as_slice(), b"ascii\0"] {
        let mut before = b"\x80\x02X\0\0\x01\0".to_vec();
        before.extend([b'a'; 65533]);
        before.extend("€".as_bytes());
        before.extend(b"X\x06\0\0\0");
        before.extend(encoding);
        before.extend(b"\x86q\0c_codecs\nencode\nq\x01");
        // An encoding that stfs does not know is not tried.
        let fails = encoding == b"latin1";
        let calls = repeated(&before, b"0h\x01h\0R", 4200, b".");
        match fails {
            true => exceeds(&calls, "REDUCE", "268,435,456 bytes of strings"),
            false => assert_eq!(value(&calls), "other:bytes"),
        }
    }
}

#[test]
fn a_name_is_looked_at_once() {
    let looked_at = || payload::LOOKED_AT.get();
    let before = looked_at();
    let named = b"\x80\x04\x8c\x04mine\x94\x8c\x05Net.f\x94";
    value(&repeated(named, b"h\0h\x01\x930", 10_000, b"N."));
    value(&repeated(b"", b"cmine\nf\n0", 10_000, b"N."));
    assert_eq!(looked_at() - before, "mine.Net.f".len() + "mine.f".len());
}
