//! Hostile pickles: `payloads.txt` has what each does, with bytes that `pickletools` found.

use super::*;

#[test]
fn a_payload_is_named_with_its_argument_and_its_byte() {
    let mut checked = 0;
    for line in include_str!("payloads.txt").lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, pickled, does] = fields[..] else {
            panic!("{line}");
        };
        let found = problems(&python::bytes(pickled));
        let today = match name {
            "Python 2's module" => " (Python 3 calls subprocess.getoutput)",
            _ => "",
        };
        let expected =
            format!("is hostile: its pickle {does} of data.pkl{today}; nothing was executed");
        assert_eq!(found.first(), Some(&expected), "{name}");
        let damaged = name.contains("then") || name.contains("cut short");
        assert_eq!(found.len(), 1 + usize::from(damaged), "{name}: {found:?}");
        checked += 1;
    }
    assert!(checked > 30, "{checked}");
}

#[test]
fn the_beginning_of_an_argument_that_is_not_kept_is_shown() {
    let length = 100_000u32.to_le_bytes();
    let pickled = [
        b"cos\nsystem\nX".as_slice(),
        &length,
        &[b'z'; 100_000],
        b"\x85R.",
    ]
    .concat();
    let z = "z".repeat(80);
    assert_eq!(
        problems(&pickled),
        [format!(
            "is hostile: its pickle calls os.system(\"{z}…\") at byte 100017 of data.pkl; nothing was executed"
        )]
    );
}

/// Python stops at the first of these; someone may mend the file, or save it again as an error advises.
#[test]
fn what_is_behind_damage_is_found() {
    let payload = b"cos\nsystem\nS'ls'\n\x85R.";
    for before in [
        &b"P12\n"[..],                           // PERSID
        b"\x82\x01",                             // EXT1
        b"\x97",                                 // NEXT_BUFFER
        b"K\x01Q",                               // a persistent id that is not a storage
        b"h\x07",                                // a get of nothing
        b"K\x01K\x02a",                          // APPEND to an int
        b"K\x01)R",                              // a call of an int
        b"000s",                                 // an empty stack
        b"e",                                    // no MARK
        b"}(K\x01u",                             // a key without a value
        b"Ix\n",                                 // not a number
        b"\x80\x09",                             // a protocol of the future
        b"\x95\xff\xff\xff\xff\xff\xff\xff\x00", // a frame past the end
    ] {
        let found = problems(&[before, payload].concat());
        let called = "is hostile: its pickle calls os.system(\"ls\") at byte";
        assert_eq!(found.len(), 2, "{before:?}: {found:?}");
        assert!(found[0].starts_with(called), "{before:?}: {found:?}");
        let alone = problems(&[before, b"N."].concat());
        assert_eq!(alone.len(), 1, "{before:?}: {alone:?}");
    }
    let many = b"e".repeat(1_000_000);
    assert_eq!(problems(&[&many, &payload[..]].concat()).len(), 1);
}

#[test]
fn a_hostile_pickle_that_is_complete_is_still_read() {
    let pickle = outcome(b"(cos\nsystem\nI1\nt.").pickle.unwrap();
    assert_eq!(show(&pickle, pickle.root().unwrap()), "(name:os.system 1)");
}

#[test]
fn every_payload_is_listed_as_far_as_a_hundred() {
    let two = problems(b"(cos\nsystem\ncsys\nexit\nt.");
    assert!(
        two.len() == 2 && two[1].contains("names sys.exit at byte 12"),
        "{two:?}"
    );
    let names: Vec<String> = (0..200).map(|i| format!("cos\na{i}\n")).collect();
    let many = format!("({}t.", names.concat());
    assert_eq!(problems(many.as_bytes()).len(), 100);
}

#[test]
fn harmless_names_that_look_alike_are_not_payloads() {
    for name in [
        "numpy.testing._private.utils\nrunstring",
        "osmium\nsystem",
        "models.os\nsystem",
        "mine\nos",
        "mine\neval",
        "builtins\ngetattr",
        "torch.code\nNet",
        "pickles\nloads",
        "__main__\nopen",
    ] {
        let pickled = format!("c{name}\n.");
        assert_eq!(problems(pickled.as_bytes()), [""; 0], "{name}");
    }
}

#[test]
fn a_payload_is_found_behind_a_harmless_name_of_the_same_letters() {
    let found = problems(b"ctorch.os\nsystem\n\x8c\x05torch\x8c\x09os.system\x930h\0.");
    let names = "is hostile: its pickle names torch.os.system at byte 35";
    assert!(found[0].starts_with(names), "{found:?}");
    // Called many times, and named again.
    let again = [b"(".as_slice(), &b"cos\nsystem\n)R".repeat(1000), b"t."].concat();
    assert_eq!(
        problems(&again),
        ["is hostile: its pickle calls os.system() at byte 13 of data.pkl; nothing was executed"]
    );
}
