//! The storages of an archive.

use super::pickles::{self, PAYLOAD, Reference};
use super::writer::Zip;
use super::*;

fn zip(references: &[Reference<'_>], storages: &[(&str, &[u8])]) -> Zip {
    let mut zip = Zip::new(&[("m/version", b"3\n")]);
    for (key, bytes) in storages {
        zip.add(&format!("m/data/{key}"), bytes);
    }
    zip.add("m/data.pkl", &pickles::object(references));
    zip
}

#[test]
fn are_members() {
    let references = [
        ("FloatStorage", "0", 2),
        ("ByteStorage", "0", 8),
        ("HalfStorage", "../../etc/passwd", 1),
        ("DoubleStorage", "empty", 0),
    ];
    let stored = [
        ("../../etc/passwd", &b"ab"[..]),
        ("empty", b""),
        ("0", b"01234567"),
    ];
    for zip in [
        zip(&references, &stored),
        zip(&references, &stored).like_torch(),
    ] {
        let written = zip.write();
        let checkpoint = open(&written.bytes).unwrap();
        for (number, (key, _)) in (1..).zip(stored) {
            let data = written.data[number].clone();
            let found = checkpoint.storages.of[key.as_bytes()].clone();
            assert_eq!(found, data.start as u64..data.end as u64, "{key}");
        }
        assert_eq!(checkpoint.storages.of.len(), 3);
        assert_eq!(problems(&written.bytes), Vec::<String>::new());
    }
}

#[test]
fn must_have_the_size_of_every_reference() {
    let four = [("FloatStorage", "0", 2)];
    has(
        &refusal(&zip(&four, &[("0", b"0123456")]).bytes()),
        &[
            "storage 0",
            "'m/data/0' has 7 bytes",
            "needs 8 bytes (2 elements of 4)",
        ],
    );
    has(
        &refusal(&zip(&four, &[("0", b"012345678")]).bytes()),
        &["has 9 bytes", "needs 8 bytes"],
    );
    has(
        &refusal(&zip(&four, &[("1", b"")]).bytes()),
        &["storage 0 is missing", "needs 8 bytes"],
    );
    let later = [("FloatStorage", "0", 2), ("LongStorage", "0", 2)];
    has(
        &refusal(&zip(&later, &[("0", b"01234567")]).bytes()),
        &["has 8 bytes", "needs 16 bytes"],
    );
}

#[test]
fn verify_lists_each_once() {
    let references = [
        ("FloatStorage", "0", 2),
        ("FloatStorage", "0", 2),
        ("FloatStorage", "1", 2),
        ("ByteStorage", "2", 3),
    ];
    let stored = [("0", &b"0"[..]), ("2", b"abc"), ("9", b"unused")];
    let bytes = zip(&references, &stored).bytes();
    let found = problems(&bytes);
    assert_eq!(found.len(), 3, "{found:?}");
    has(&found[0], &["storage 0"]);
    has(&found[1], &["storage 1 is missing"]);
    has(
        &found[2],
        &["'m/data/9' (6 bytes)", "nothing in the pickle"],
    );
    let Ok((checkpoint, _)) = Checkpoint::open(&*object(&bytes), &Findings::all()) else {
        panic!("its pickle can be run");
    };
    let keys: Vec<_> = checkpoint.storages.of.keys().collect();
    assert_eq!(keys, [&Box::from(&b"2"[..])]);
}

#[test]
fn what_a_pickle_would_execute_comes_before_all_damage() {
    let hostile = Zip::new(&[
        ("m/data.pkl", PAYLOAD),
        ("m/version", b"3\n"),
        ("m/x", b"x"),
    ]);
    let written = hostile.write();
    let call = PAYLOAD.len() - 2;
    let expected = format!("calls posix.system(\"touch /tmp/x\") at byte {call} of data.pkl");
    let mut damaged = vec![
        written.bytes.clone(),
        // Without its directory, and cut in the middle.
        written.bytes[..written.end].to_vec(),
        written.bytes[..written.data[0].end].to_vec(),
        // Other members: encrypted, elsewhere, and a directory of which nothing is right.
        written.with(written.central[2] + 8, &[1]),
        written.with(written.local[2], b"XX"),
        written.with(written.central[1], b"XX"),
        // Its own place.
        written.with(written.central[0] + 42, &[9]),
        written.with(written.end + 8, &[9, 0, 9]),
    ];
    damaged.push(Zip::new(&[("m/data.pkl", PAYLOAD)]).bytes());
    let clean = pickles::object(&[]);
    damaged.push(Zip::new(&[("m/data.pkl", &clean), ("m/data.pkl", PAYLOAD)]).bytes());
    damaged.push(Zip::new(&[("a/data.pkl", &clean), ("m/data.pkl", PAYLOAD)]).bytes());
    for bytes in damaged {
        let refused = refusal(&bytes);
        has(&refused, &["is hostile", &expected, "nothing was executed"]);
        has(&problems(&bytes)[0], &["is hostile"]);
    }
    has(&refusal(PAYLOAD), &["is hostile", "of the file"]);
}

#[test]
fn what_is_in_front_of_broken_members_is_run_once() {
    let mut written = Zip::new(&[
        ("a/data.pkl", PAYLOAD),
        ("b/data.pkl", b"N."),
        ("c/data.pkl", b"N."),
    ])
    .write();
    for at in written.local {
        // Encrypted.
        written.bytes[at + 6] |= 1;
    }
    let found = problems(&written.bytes);
    let hostile = found.iter().filter(|p| p.starts_with("is hostile"));
    assert_eq!(hostile.count(), 1, "{found:?}");
}
