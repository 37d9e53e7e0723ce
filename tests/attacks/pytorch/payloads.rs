//! Pickles that would run programs. Nothing of them is called, wherever they are, and the file is refused
//! with what it would have called. Each would make a canary, which must stay absent.

use std::path::{Path, PathBuf};

use super::{archive, beside, names, pickle, rebuilt, refused, served, text, verified, w};
use crate::common::Dir;
use crate::program::pytorch::{Py, contiguous, dict, legacy_file, zip_file};
use crate::program::stfs;

/// Names of functions that run programs, read or write files, or load code.
const NAMES: &[(&str, &str)] = &[
    ("os", "system"),
    ("os", "popen"),
    ("os.path", "join"),
    ("posix", "system"),
    ("nt", "system"),
    ("sys", "exit"),
    ("subprocess", "Popen"),
    ("subprocess", "check_output"),
    ("commands", "getoutput"),
    ("pty", "spawn"),
    ("runpy", "run_path"),
    ("runpy", "_run_code"),
    ("socket", "create_connection"),
    ("ctypes", "CDLL"),
    ("ctypes.util", "find_library"),
    ("importlib", "import_module"),
    ("importlib.util", "spec_from_file_location"),
    ("shutil", "rmtree"),
    ("webbrowser", "open"),
    ("pip", "main"),
    ("pip._internal.cli.main", "main"),
    ("code", "InteractiveInterpreter"),
    ("bdb", "Bdb"),
    ("pdb", "run"),
    ("pydoc", "pipepager"),
    ("timeit", "timeit"),
    ("pickle", "loads"),
    ("_pickle", "loads"),
    ("cPickle", "loads"),
    ("builtins", "eval"),
    ("builtins", "exec"),
    ("builtins", "execfile"),
    ("builtins", "compile"),
    ("builtins", "open"),
    ("builtins", "__import__"),
    ("builtins", "apply"),
    ("builtins", "breakpoint"),
    ("builtins", "input"),
];

/// A command that makes a file, and the file.
fn canary(dir: &Dir) -> (String, PathBuf) {
    let path = dir.join("canary");
    (format!("touch {}", path.display()), path)
}

/// `module.name("argument")`, by REDUCE.
fn calls(module: &str, name: &str, argument: &str) -> Vec<u8> {
    let global = format!("c{module}\n{name}\n(");
    [global.as_bytes(), &text(argument), b"tR"].concat()
}

/// Bytes that must be refused for this call, by every command.
#[track_caller]
fn hostile(bytes: &[u8], call: &str) {
    let line = refused(bytes, &["is hostile", call, "nothing was executed"]);
    assert!(line.contains("at byte "), "{line}");
}

#[test]
fn every_kind_is_refused() {
    for (module, name) in NAMES {
        let dir = Dir::new();
        let (command, canary) = canary(&dir);
        let payload = Py::Opcodes(calls(module, name, &command));
        let called = format!("{module}.{name}({command:?})");
        hostile(&beside(vec![("epoch", payload)]), &called);
        assert!(!canary.exists());
    }
}

/// The same call in other opcodes.
#[test]
fn by_every_opcode_that_calls() {
    let dir = Dir::new();
    let (command, canary) = canary(&dir);
    let command = text(&command);
    let c = &command[..];
    // STACK_GLOBAL's strings, on the stack by every way there is.
    let (posix, system) = (text("posix"), text("system"));
    let (p, s) = (&posix[..], &system[..]);
    let other = text("other");
    let short = b"\x8c\x05posix\x8c\x06system\x93";
    let kinds: &[(&str, &[&[u8]])] = &[
        ("REDUCE", &[b"cposix\nsystem\n", c, b"\x85R"]),
        ("NEWOBJ", &[b"cposix\nsystem\n", c, b"\x85\x81"]),
        ("NEWOBJ_EX", &[b"cposix\nsystem\n", c, b"\x85}\x92"]),
        ("OBJ", &[b"(cposix\nsystem\n", c, b"o"]),
        ("INST", &[b"(", c, b"iposix\nsystem\n"]),
        (
            "protocol 0",
            &[b"cposix\nsystem\np0\n(S'", &c[5..], b"'\np1\ntp2\nRp3\n"],
        ),
        ("STACK_GLOBAL", &[p, s, b"\x93", c, b"\x85R"]),
        ("short strings", &[short, c, b"\x85R"]),
        ("MEMOIZE", &[p, b"\x94", s, b"\x94\x93", c, b"\x85R"]),
        (
            "out of the memo",
            &[
                p,
                b"q\x070",
                s,
                b"r\x08\0\0\x000h\x07j\x08\0\0\0\x93",
                c,
                b"\x85R",
            ],
        ),
        (
            "text indices",
            &[
                p,
                b"p1234567\n0",
                s,
                b"p8\n0g1234567\ng8\n\x93",
                c,
                b"\x85R",
            ],
        ),
        (
            "overwritten",
            &[
                &other,
                b"q\x000",
                p,
                b"q\x000",
                s,
                b"q\x010h\0h\x01\x93",
                c,
                b"\x85R",
            ],
        ),
        ("DUP", &[s, b"q\x010", p, b"2q\x000h\x01\x93", c, b"\x85R"]),
        ("POP_MARK", &[p, s, b"(NNN1\x93", c, b"\x85R"]),
        ("UNICODE", &[b"Vposix\nV\\u0073ystem\n\x93", c, b"\x85R"]),
        ("STRING", &[b"S'posix'\nS'sys\\x74em'\n\x93", c, b"\x85R"]),
        (
            "BINUNICODE8",
            &[b"\x8d\x05\0\0\0\0\0\0\0posix", s, b"\x93", c, b"\x85R"],
        ),
        (
            "BINSTRING",
            &[b"T\x05\0\0\0posixU\x06system\x93", c, b"\x85R"],
        ),
        (
            "in a frame",
            &[b"\x95\xff\0\0\0\0\0\0\0", p, s, b"\x93", c, b"\x85R"],
        ),
        (
            "through the memo",
            &[b"cposix\nsystem\nq\x050N0h\x05", c, b"\x85R"],
        ),
    ];
    for (kind, pieces) in kinds {
        let payload = Py::Opcodes(pieces.concat());
        let bytes = match *kind {
            // FRAME's length must fit, so the pickle has the rest of it.
            "in a frame" => beside(vec![
                ("a", payload),
                ("b", super::Py::Text("x".repeat(400))),
            ]),
            _ => beside(vec![("a", payload)]),
        };
        let line = refused(
            &bytes,
            &["is hostile", "posix.system", "nothing was executed"],
        );
        assert!(line.contains("touch "), "{kind}: {line}");
        assert!(!canary.exists(), "{kind}");
    }
}

/// As Python's own pickle writes an object whose `__reduce__` is `(os.system, ("touch canary",))`.
#[test]
fn pickles_of_every_protocol() {
    let protocols: [&[u8]; 6] = [
        b"cposix\nsystem\np0\n(Vtouch canary\np1\ntp2\nRp3\n.",
        b"cposix\nsystem\nq\x00(X\x0c\x00\x00\x00touch canaryq\x01tq\x02Rq\x03.",
        b"\x80\x02cposix\nsystem\nq\x00X\x0c\x00\x00\x00touch canaryq\x01\x85q\x02Rq\x03.",
        b"\x80\x03cposix\nsystem\nq\x00X\x0c\x00\x00\x00touch canaryq\x01\x85q\x02Rq\x03.",
        b"\x80\x04\x95'\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x0ctouch canary\x94\x85\x94R\x94.",
        b"\x80\x05\x95'\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x0ctouch canary\x94\x85\x94R\x94.",
    ];
    for root in protocols {
        hostile(&archive(root, &[]), "posix.system(\"touch canary\")");
    }
    assert!(!Path::new("canary").exists());
}

#[test]
fn in_every_place_of_a_file() {
    let dir = Dir::new();
    let (command, canary) = canary(&dir);
    let payload = Py::Opcodes(calls("os", "system", &command));
    let in_tensor =
        |place: &[u8]| Py::Opcodes(rebuilt(6, place, b"K\x02K\x03\x86", b"K\x03K\x01\x86"));
    let Py::Opcodes(call) = &payload else {
        unreachable!()
    };
    let roots = [
        payload.clone(),
        Py::List(vec![payload.clone()]),
        dict([(
            "optimizer",
            dict([("state", Py::List(vec![payload.clone()]))]),
        )]),
        dict([("state_dict", dict([("w", payload.clone())]))]),
        Py::Dict(vec![(payload.clone(), Py::None)]),
        Py::Dict(vec![(
            Py::Tuple(vec![Py::Int(1), payload.clone()]),
            Py::None,
        )]),
        // As the offset of a tensor, in a persistent id, as a state, and as an argument of an unknown call.
        dict([("t", in_tensor(call))]),
        dict([("t", Py::Opcodes([b"(", &call[..], b"tQ"].concat()))]),
        Py::Opcodes([b"ca\nb\n)R", &call[..], b"b"].concat()),
        Py::Opcodes([b"ca\nb\n(", &call[..], b"tR"].concat()),
        // Taken from the stack again.
        Py::Opcodes([&call[..], b"0N"].concat()),
        Py::Opcodes([b"(", &call[..], b"1N"].concat()),
        // Named, and not called.
        Py::Opcodes(b"cos\nsystem\n".to_vec()),
        Py::Opcodes(b"cos\nsystem\n0N".to_vec()),
    ];
    for (i, root) in roots.iter().enumerate() {
        let with = dict([("w", contiguous("0", &w())), ("x", root.clone())]);
        for bytes in [
            zip_file(&with),
            legacy_file(&with),
            zip_file(root),
            legacy_file(root),
        ] {
            let line = refused(&bytes, &["is hostile", "os.system", "nothing was executed"]);
            assert_eq!(line.contains(&command), i < 12, "{i}: {line}");
        }
    }
    // In every pickle of the older format.
    let good = legacy_file(&dict([("w", contiguous("0", &w()))]));
    let version = b"\x80\x02J\xe9\x03\0\0.";
    let at = good
        .windows(version.len())
        .position(|p| p == version)
        .unwrap();
    let (start, rest) = good.split_at(at + 2);
    hostile(&[start, call, b"0", rest].concat(), "os.system(");
    let (start, rest) = good.split_at(at + version.len() + 2);
    hostile(&[start, call, b"0", rest].concat(), "os.system(");
    let keys = b"\x80\x02](X\x01\0\0\x000e.";
    let at = good.windows(keys.len()).position(|p| p == keys).unwrap();
    let (start, rest) = good.split_at(at + 2);
    hostile(&[start, call, b"0", rest].concat(), "os.system(");
    assert!(!canary.exists());
}

/// A payload is reported rather than what is wrong with the pickle after it, or with the file.
#[test]
fn before_a_malformed_rest() {
    let call = calls("os", "system", "touch canary");
    let broken: &[&[u8]] = &[
        b"",        // no STOP
        b"\xff",    // not an opcode
        b"RRRR.",   // nothing to call
        b"t.",      // no MARK
        b"h\x09.",  // not in the memo
        b"Ppid\n.", // refused opcodes
        b"\x97.",
        b"\x82\x01.",
        b"X\xff\xff\xff\x7fshort",
        b"NQ.",
        b"\x80\x09.",
        b"\x95\xff\xff\xff\xff\xff\xff\xff\xff.",
    ];
    for rest in broken {
        let bytes = archive(&[b"\x80\x02", &call[..], rest].concat(), &[]);
        hostile(&bytes, "os.system(\"touch canary\")");
    }
    // Tensors that do not fit, and whose storage is missing.
    let tensor = rebuilt(6, b"K\x09", b"K\x02K\x03\x86", b"K\x03K\x01\x86");
    let both = pickle(&[b"}(", &text("a"), &call, &text("w"), &tensor, b"u"]);
    hostile(&archive(&both, &[("0", &[0; 24])]), "os.system(");
    hostile(&archive(&both, &[]), "os.system(");
    // After the end there is no pickle.
    let good = pickle(&[
        b"}(",
        &text("w"),
        &rebuilt(6, b"K\0", b"K\x06\x85", b"K\x01\x85"),
        b"u",
    ]);
    assert_eq!(
        served(&archive(&[&good, &call[..]].concat(), &[("0", &[0; 24])])),
        ["w"]
    );
}

/// The argument is that of a hostile file: it is shortened, and cannot control a terminal.
#[test]
fn arguments_are_short_and_printable() {
    let long = "A".repeat(60) + &"B".repeat(3000);
    let line = refused(
        &beside(vec![("a", Py::Opcodes(calls("os", "system", &long)))]),
        &["is hostile"],
    );
    assert!(line.contains(&long[..60]) && line.len() < 500, "{line}");
    let odd = "echo \x1b[31m\u{202e}\n\r\x07 'x' \"y\"";
    let line = refused(
        &beside(vec![("a", Py::Opcodes(calls("os", "system", odd)))]),
        &["is hostile"],
    );
    assert!(
        !line.chars().any(|c| c.is_control() || c == '\u{202e}'),
        "{line}"
    );
    let name = "system\x1b[31m";
    let line = refused(
        &beside(vec![("a", Py::Opcodes(calls("os", name, "x")))]),
        &["is hostile"],
    );
    assert!(!line.chars().any(char::is_control), "{line}");
}

/// Python 2's names of the same modules.
#[test]
fn names_of_python_2() {
    for name in ["eval", "apply", "execfile", "__import__"] {
        let payload = Py::Opcodes(calls("__builtin__", name, "open('canary', 'w')"));
        hostile(&beside(vec![("a", payload)]), &format!("builtins.{name}("));
    }
    assert!(!Path::new("canary").exists());
}

/// Names that only look like those; names that do harm and are on no list: kept as names, beside
/// tensors that are served.
#[test]
fn other_names_are_only_names() {
    let dir = Dir::new();
    let (_, canary) = canary(&dir);
    let argument = format!("open({:?}, 'w')", canary.to_str().unwrap());
    let all = [
        ("numpy.testing._private.utils", "runstring"),
        ("osx", "system"),
        ("my.os", "system"),
        ("codecs", "encode"),
        ("socketserver", "TCPServer"),
        ("picklers", "loads"),
        ("system", "os"),
        ("builtins", "getattr"),
        ("builtins", "evaluate"),
        ("Builtins", "eval"),
        ("", "eval"),
        ("torch", "load"),
        ("torch.hub", "load"),
    ];
    let entries = all
        .iter()
        .map(|(module, name)| (*name, Py::Opcodes(calls(module, name, &argument))));
    let bytes = beside(entries.collect());
    let dir = Dir::of(&[("m.pt", &bytes)]);
    assert_eq!(names(&dir.join("m.pt")), ["w"]);
    assert_eq!(verified(&dir.join("m.pt")), []);
    let why = stfs([Path::new("ls"), "--why".as_ref(), dir.path()])
        .ok()
        .out;
    for words in [
        "numpy.testing._private.utils.runstring",
        "my.os.system",
        "nothing was called",
    ] {
        assert!(why.contains(words), "{words}: {why}");
    }
    assert!(!canary.exists());
}

/// Every command, every way to the file, and every part of it.
#[test]
fn by_every_command() {
    let payload = Py::Opcodes(calls("os", "system", "touch canary"));
    let bad = beside(vec![("optimizer", payload)]);
    let good = beside(vec![]);
    let dir = Dir::of(&[("bad.pt", &bad), ("good.pt", &good)]);
    let (bad, good) = (dir.join("bad.pt"), dir.join("good.pt"));
    let part = format!("{}#w", bad.display());
    let root = format!("{}#", bad.display());
    let (bad, good) = (bad.to_str().unwrap(), good.to_str().unwrap());
    let mountpoint = dir.join("mnt");
    let mountpoint = mountpoint.to_str().unwrap();
    for args in [
        vec!["ls", bad],
        vec!["ls", &part],
        vec!["ls", &root],
        vec!["info", bad],
        vec!["stat", bad],
        vec!["cat", bad, "w"],
        vec!["show", bad, "w"],
        vec!["mount", bad, mountpoint],
        vec!["mount", &part, mountpoint],
    ] {
        stfs(&args).fails(&["bad.pt", "is hostile", "os.system(\"touch canary\")"]);
    }
    for args in [vec!["diff", good, bad], vec!["verify", bad]] {
        let ran = stfs(&args);
        assert_ne!(ran.code, 0, "{ran:?}");
        assert!((ran.out + &ran.err).contains("is hostile"), "{args:?}");
    }
    assert!(!Path::new("canary").exists() && !dir.join("canary").exists());
}

/// In a shard of a model, and in files that do not count.
#[test]
fn in_shards_and_companions() {
    let payload = Py::Opcodes(calls("os", "system", "touch canary"));
    let bad = zip_file(&dict([("v", contiguous("0", &w())), ("x", payload)]));
    let good = beside(vec![]);
    let index = r#"{"weight_map": {"w": "1.bin", "v": "2.bin"}}"#;
    let dir = Dir::of(&[
        ("1.bin", &good),
        ("2.bin", &bad),
        ("pytorch_model.bin.index.json", index.as_bytes()),
    ]);
    stfs([Path::new("ls"), dir.path()]).fails(&["2.bin", "is hostile", "os.system("]);
    let found = verified(dir.path());
    assert!(
        found
            .iter()
            .any(|(file, _, p)| file.ends_with("2.bin") && p.contains("is hostile")),
        "{found:?}"
    );
    // A companion is not part of the model, and is not opened for it.
    let dir = Dir::of(&[("pytorch_model.bin", &good), ("training_args.bin", &bad)]);
    assert_eq!(names(dir.path()), ["w"]);
    stfs([Path::new("ls"), &dir.join("training_args.bin")])
        .fails(&["training_args.bin", "is hostile"]);
}
