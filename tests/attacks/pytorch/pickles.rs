//! Pickles that are damaged, deep, endless or too large.

use std::path::Path;

use super::{archive, beside, pickle, rebuilt, refused, served, text, w};
use crate::common::Dir;
use crate::program::pytorch::Py;
use crate::program::{Ran, stfs};

/// The opcodes of `w`, which needs 24 bytes of storage "0".
fn tensor() -> Vec<u8> {
    rebuilt(6, b"K\0", b"K\x02K\x03\x86", b"K\x03K\x01\x86")
}

/// A dict of `w` and these opcodes, as a file.
fn with(opcodes: &[u8]) -> Vec<u8> {
    let pieces: &[&[u8]] = &[b"}(", &text("x"), opcodes, &text("w"), &tensor(), b"u"];
    archive(&pickle(pieces), &[("0", &w().data)])
}

/// Lists what is in a file.
fn opened(bytes: &[u8]) -> Ran {
    let dir = Dir::of(&[("m.pt", bytes)]);
    stfs([Path::new("ls"), &dir.join("m.pt")])
}

#[test]
fn a_pickle_that_ends_too_early() {
    let whole = pickle(&[b"}", &text("w"), &tensor(), b"s"]);
    assert_eq!(served(&archive(&whole, &[("0", &[0; 24])])), ["w"]);
    for cut in 2..whole.len() {
        refused(&archive(&whole[..cut], &[("0", &[0; 24])]), &["data.pkl"]);
    }
    refused(
        &archive(&whole[..whole.len() - 1], &[("0", &[0; 24])]),
        &["STOP"],
    );
    refused(&archive(b"", &[("0", &[0; 24])]), &["data.pkl"]);
}

/// Opcodes that cannot be run: the message has the opcode, or an unknown one's number, and where it is.
#[test]
fn opcodes_without_what_they_need() {
    let at = |n: usize| format!("byte {n}");
    let cases: &[(&[u8], &str, usize)] = &[
        (b"\x80\x02R.", "REDUCE", 2),
        (b"\x80\x02NR.", "REDUCE", 3),
        (b"\x80\x02t.", "TUPLE", 2),
        (b"\x80\x02Nt.", "TUPLE", 3),
        (b"\x80\x02]Nu.", "SETITEMS", 4),
        (b"\x80\x02]e.", "APPENDS", 3),
        (b"\x80\x02Na.", "APPEND", 3),
        (b"\x80\x02Ns.", "SETITEM", 3),
        (b"\x80\x02Nb.", "BUILD", 3),
        (b"\x80\x020.", "POP", 2),
        (b"\x80\x022.", "DUP", 2),
        (b"\x80\x02\x85.", "TUPLE1", 2),
        (b"\x80\x02N\x86.", "TUPLE2", 3),
        (b"\x80\x02NN\x87.", "TUPLE3", 4),
        (b"\x80\x02N\x81.", "NEWOBJ", 3),
        (b"\x80\x02N\x93.", "STACK_GLOBAL", 3),
        (b"\x80\x02h\x05.", "BINGET", 2),
        (b"\x80\x02j\x05\0\0\0.", "LONG_BINGET", 2),
        (b"\x80\x02g5\n.", "GET", 2),
        (b"\x80\x02q\x05.", "BINPUT", 2),
        (b"\x80\x02\x94.", "MEMOIZE", 2),
        (b"\x80\x02Q.", "BINPERSID", 2),
        (b"\x80\x02.", "STOP", 2),
        (b"\x80\x02Ppid\n.", "PERSID", 2),
        (b"\x80\x02\x82\x05.", "EXT1", 2),
        (b"\x80\x02\x83\x05\0.", "EXT2", 2),
        (b"\x80\x02\x84\x05\0\0\0.", "EXT4", 2),
        (b"\x80\x02\x97.", "NEXT_BUFFER", 2),
        (b"\x80\x02N\x98.", "READONLY_BUFFER", 3),
        (b"\x80\x02\xff.", "0xff", 2),
        (b"\x80\x02N\x01.", "0x01", 3),
        (b"\x80\x02X\xff\xff\xff\x7fabc.", "BINUNICODE", 2),
        (b"\x80\x02U\x20abc.", "SHORT_BINSTRING", 2),
        (
            b"\x80\x02\x8e\xff\xff\xff\xff\xff\xff\xff\xffabc.",
            "BINBYTES8",
            2,
        ),
        (b"\x80\x02T\xff\xff\xff\xffabc.", "BINSTRING", 2),
        (b"\x80\x02\x8b\xff\xff\xff\x7fabc.", "LONG4", 2),
        (b"\x80\x02J\x01.", "BININT", 2),
        (b"\x80\x02Vabc", "UNICODE", 2),
        (b"\x80\x02cos", "GLOBAL", 2),
        (b"\x80\x02Iabc\n.", "INT", 2),
        (b"\x80\x02Fabc\n.", "FLOAT", 2),
        (b"\x80\x04\x95\xff\xff\0\0\0\0\0\0N.", "FRAME", 2),
        (b"\x80\x06N.", "PROTO", 0),
    ];
    for (bytes, opcode, byte) in cases {
        let line = refused(&archive(bytes, &[]), &["data.pkl", opcode]);
        // The position of an opcode, or of the byte behind it that is missing.
        let near = (*byte..=bytes.len()).any(|n| line.contains(&at(n)));
        assert!(near, "{byte}: {line}");
    }
}

#[test]
fn the_memo_may_have_holes() {
    // Index 4,294,967,295 is one entry; Python's own unpickler asks for a table of that many.
    let max = [&b"Nr\xff\xff\xff\xff0j\xff\xff\xff\xff"[..]].concat();
    assert_eq!(served(&with(&max)), ["w"]);
    refused(&with(b"j\xfe\xff\xff\xff"), &["LONG_BINGET", "4294967294"]);
    refused(&with(b"h\x09"), &["BINGET", "9"]);
}

#[test]
fn what_is_kept_as_data() {
    let all: &[&[u8]] = &[
        b"I01\n",
        b"I00\n",
        b"I-17\n",
        b"L12345678901234567890123L\n",
        b"F1.5e300\n",
        b"S'a\\x41\\n'\n",
        b"V\\u20ac\n",
        b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x8a\x00",
        b"\x8b\x02\0\0\0\xff\x7f",
        b"G\x7f\xf8\0\0\0\0\0\0",
        b"B\x03\0\0\0\xff\xfe\xfd",
        b"C\x01a",
        b"\x96\x02\0\0\0\0\0\0\0ab",
        b"X\x02\0\0\0\xff\xfe",
        b"U\x03\xff\xfe\xfd",
        b"\x8f(K\x01K\x02\x90",
        b"(K\x01K\x02\x91",
        b"(K\x01K\x02l",
        b"(K\x01K\x02d",
        b"(cmymodule\nThing\nK\x01o",
        b"(K\x01imymodule\nThing\n",
        b"cmymodule\nThing\n)\x81K\x05b",
        b"cmymodule\nThing\n)}\x92",
        b"cmymodule\nThing\n)R(K\x01K\x02e",
        b"cmymodule\nThing\n)RK\x01a",
        b"cmymodule\nThing\n)R(K\x01K\x02u",
        b"cmymodule\nThing\n)RK\x01K\x02s",
        b"cmymodule\nThing\n)R(K\x01\x90",
    ];
    for opcodes in all {
        assert_eq!(served(&with(opcodes)), ["w"], "{opcodes:?}");
    }
    // STOP in the middle: the pickle is what is on the stack then.
    refused(&archive(b"\x80\x02K\x01.N.", &[]), &["its root is 1"]);
}

#[test]
fn a_container_in_itself() {
    // d = {"w": …}; d["x"] = d, and a list that contains itself.
    let looped = pickle(&[
        b"}q\x01",
        &text("w"),
        &tensor(),
        b"s",
        &text("x"),
        b"h\x01s",
    ]);
    assert_eq!(served(&archive(&looped, &[("0", &[0; 24])])), ["w"]);
    assert_eq!(served(&with(b"]q\x01h\x01a")), ["w"]);
    // Two that contain each other, below the model.
    let model = pickle(&[
        b"}q\x01",
        &text("a"),
        b"}q\x02",
        &text("b"),
        b"h\x01s",
        &text("w"),
        &tensor(),
        b"ss",
    ]);
    assert_eq!(served(&archive(&model, &[("0", &[0; 24])])), ["w"]);
}

#[test]
fn lists_that_double() {
    // Thirty lists, each with the one before twice: 2^30 ways to the first value.
    let lists = |first: &[u8]| {
        let mut opcodes = [first, b"q\0"].concat();
        for i in 0..30u8 {
            opcodes.extend([b'0', b']', b'(', b'h', i, b'h', i, b'e', b'q', i + 1]);
        }
        with(&opcodes)
    };
    refused(&lists(&tensor()), &["walk"]);
    // Without a tensor in them, nothing needs to be walked.
    let ran = opened(&lists(b"N"));
    assert!(ran.code == 0 || ran.err.contains("walk"), "{ran:?}");
}

#[test]
fn a_million_levels() {
    let tuples = [&b")"[..], &b"\x85".repeat(1_000_000)].concat();
    let lists = [&b"]".repeat(1_000_000)[..], &b"a".repeat(999_999)].concat();
    let dicts = [
        &b"}K\x01".repeat(1_000_000)[..],
        b"N",
        &b"s".repeat(1_000_000),
    ]
    .concat();
    let calls = [
        &b"ca\nb\nq\x01"[..],
        &b"h\x01".repeat(1_000_000),
        b")",
        &b"R\x85".repeat(1_000_000),
        b"R",
    ]
    .concat();
    for (opcodes, what) in [
        (tuples, "tuples"),
        (lists, "lists"),
        (dicts, "dicts"),
        (calls, "calls"),
    ] {
        let ran = opened(&with(&opcodes));
        match ran.code {
            0 => assert!(ran.out.contains("w"), "{what}: {ran:?}"),
            _ => {
                let line = ran.fails(&["m.pt"]);
                assert!(
                    line.contains("64") || line.contains("walk"),
                    "{what}: {line}"
                );
            }
        }
    }
}

#[test]
fn a_path_of_too_many_keys() {
    let deep = |levels: usize| {
        let open = [b"}", &text("k")[..]].concat().repeat(levels - 1);
        with(&[&open[..], &tensor(), &b"s".repeat(levels - 1)].concat())
    };
    let longest = format!("x{}", ".k".repeat(63));
    assert_eq!(served(&deep(64)), ["w", &longest]);
    refused(&deep(65), &["64"]);
}

#[test]
fn too_many_values() {
    let many = [&b"("[..], &b"]".repeat((1 << 24) + 1), b"l"].concat();
    refused(&with(&many), &["16,777,216"]);
    // A string that nothing needs is not kept.
    let long = Py::Text("x".repeat(70_000));
    assert_eq!(served(&beside(vec![("long", long)])), ["w"]);
}

#[test]
fn persistent_ids_that_are_no_storages() {
    let id = |pieces: &[&[u8]]| [b"(", &pieces.concat()[..], b"tQ"].concat();
    let (storage, float, cpu) = (text("storage"), &b"ctorch\nFloatStorage\n"[..], text("cpu"));
    let (s, c, zero) = (&storage[..], &cpu[..], text("0"));
    let z = &zero[..];
    for (opcodes, words) in [
        (b"K\x01Q".to_vec(), "persistent"),
        ([&text("storage")[..], b"Q"].concat(), "persistent"),
        (id(&[]), "persistent"),
        (id(&[&text("other"), float, z, c, b"K\x06"]), "other"),
        (id(&[s, float, z, c]), "storage"),
        (
            id(&[s, b"ctorch\nFooStorage\n", z, c, b"K\x06"]),
            "torch.FooStorage",
        ),
        (
            id(&[s, b"cmymodule\nFloatStorage\n", z, c, b"K\x06"]),
            "mymodule.FloatStorage",
        ),
        (id(&[s, b"N", z, c, b"K\x06"]), "storage"),
        (id(&[s, float, b"K\x01", c, b"K\x06"]), "storage"),
        (id(&[s, float, z, c, b"J\xff\xff\xff\xff"]), "-1"),
        (id(&[s, float, z, c, b"G\x40\0\0\0\0\0\0\0"]), "storage"),
        (id(&[s, float, z, c, &text("6")]), "storage"),
    ] {
        refused(&with(&opcodes), &[words]);
    }
}
