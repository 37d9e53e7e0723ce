use super::pickles::{self, HEADERS, PAYLOAD, Reference};
use super::*;

const TWO: [Reference<'_>; 2] = [("FloatStorage", "7", 2), ("HalfStorage", "12", 3)];
const STORED: [(u64, &[u8]); 2] = [(3, b"abcdef"), (2, b"01234567")];

/// In the order of the keys as strings.
fn two() -> Vec<u8> {
    pickles::legacy(&TWO, &["12", "7"], &STORED)
}

fn bytes<'a>(file: &'a [u8], checkpoint: &Checkpoint, key: &str) -> &'a [u8] {
    let range = checkpoint.storages.of[key.as_bytes()].clone();
    &file[range.start as usize..range.end as usize]
}

#[test]
fn storages_are_where_their_counts_are() {
    let file = two();
    let checkpoint = open(&file).unwrap();
    assert_eq!(bytes(&file, &checkpoint, "12"), b"abcdef");
    assert_eq!(bytes(&file, &checkpoint, "7"), b"01234567");
    // The file says that it is big-endian, which torch ignores.
    assert!(!checkpoint.storages.big_endian);
    assert_eq!(problems(&file), Vec::<String>::new());
    let trailed = [&file[..], b"more"].concat();
    assert!(open(&trailed).is_ok());
}

#[test]
fn opens_what_torch_writes() {
    let checkpoint = open(TORCH_LEGACY).unwrap();
    let ranges = checkpoint.storages.of.values();
    let mut lengths: Vec<u64> = ranges.map(|range| range.end - range.start).collect();
    lengths.sort_unstable();
    // torch 2.15 itself cannot load the tensor of uint16, which is here as bytes.
    assert_eq!(lengths, [6, 8]);
    assert_eq!(problems(TORCH_LEGACY), Vec::<String>::new());
}

#[test]
fn a_count_that_the_pickle_contradicts_is_refused() {
    let file = pickles::legacy(&TWO, &["12", "7"], &[(4, b"abcdef"), (2, b"01234567")]);
    let at = file.len() - 8 - 8 - 6 - 8;
    has(
        &refusal(&file),
        &["storage 12", "4 elements", &format!("byte {at}"), "but 3"],
    );
    let file = pickles::legacy(&TWO, &["12", "7"], &[(4, b"abcdef"), (5, b"01234567")]);
    has(
        &problems(&file).join("\n"),
        &["storage 12: has 4", "storage 7: has 5"],
    );
    // Other references to one storage may be of other dtypes, but not of other sizes.
    let same = [("FloatStorage", "7", 2), ("ByteStorage", "7", 8)];
    assert!(open(&pickles::legacy(&same, &["7"], &[(2, b"01234567")])).is_ok());
    let other = [("FloatStorage", "7", 2), ("ByteStorage", "7", 9)];
    let file = pickles::legacy(&other, &["7"], &[(2, b"01234567")]);
    has(
        &refusal(&file),
        &["storage 7", "needs 8 bytes", "another 9 bytes"],
    );
}

#[test]
fn the_list_has_exactly_the_storages_of_the_pickle() {
    let missing = pickles::legacy(&TWO, &["12"], &STORED[..1]);
    has(&refusal(&missing), &["storage 7 is missing", "list of 1"]);
    for (list, problem) in [
        (["12", "7", "9"], "one of the 2"),
        (["12", "12", "7"], "number 1 and number 2"),
        (["12", "7", "\u{1b}"], "one of the 2"),
    ] {
        let more = pickles::legacy(&TWO, &list, &STORED);
        has(&refusal(&more), &["of the list of 3 storages", problem]);
    }
    let mut no_list = HEADERS.concat();
    no_list.extend(pickles::object(&[]));
    no_list.extend(b"\x80\x02}.");
    has(
        &refusal(&no_list),
        &["fifth pickle should be the list of storages"],
    );
    let mut version = HEADERS[0].to_vec();
    version.extend(b"\x80\x02M\xea\x03.");
    version.extend([HEADERS[2], &pickles::object(&[]), &pickles::keys(&[])].concat());
    has(&refusal(&version), &["1002", "1001"]);
}

#[test]
fn a_cut_file_is_refused_unless_something_may_be_missing() {
    let whole = two();
    for len in whole.len() - 16..whole.len() {
        let cut = &whole[..len];
        let sizes = [
            format!("needs {} bytes", whole.len()),
            format!("has {len};"),
        ];
        has(&refusal(cut), &[&sizes[0], &sizes[1], "2 storages"]);
        assert_eq!(problems(cut).len(), 1);
        let findings = Findings::first(OpenOptions {
            allow_missing: true,
        });
        let Ok((checkpoint, _)) = Checkpoint::open(&*object(cut), &findings) else {
            panic!("{len}");
        };
        assert_eq!(checkpoint.storages.lost, [Box::from(&b"7"[..])]);
        assert_eq!(bytes(cut, &checkpoint, "12"), b"abcdef");
        assert!(!checkpoint.storages.of.contains_key(&b"7"[..]));
    }
}

#[test]
fn what_a_pickle_would_execute_comes_first_wherever_it_is() {
    let object = pickles::object(&TWO);
    let list = pickles::keys(&["12"]);
    let parts: [&[u8]; 5] = [HEADERS[0], HEADERS[1], HEADERS[2], &object, &list];
    for number in 1..5 {
        let mut hostile = parts;
        hostile[number] = PAYLOAD;
        let at: usize = parts[..number].iter().map(|part| part.len()).sum();
        let refused = refusal(&hostile.concat());
        has(
            &refused,
            &[
                "is hostile",
                "posix.system(\"touch /tmp/x\")",
                "nothing was executed",
            ],
        );
        // The call is the opcode before STOP.
        let call = at + PAYLOAD.len() - 2;
        has(&refused, &[&format!("at byte {call} of the file")]);
        // Cut behind it, or something else.
        let cut = hostile[..=number].concat();
        has(&refusal(&cut), &["is hostile"]);
        has(&problems(&hostile.concat())[0], &["is hostile"]);
    }
}

#[test]
fn the_object_and_the_list_of_its_storages_share_their_limits() {
    let half = [b"\x80\x02".as_slice(), &b"N0".repeat(9 << 20), b"}."].concat();
    let file = [&HEADERS.concat()[..], &half, &half].concat();
    has(
        &refusal(&file),
        &["is too large", "16,777,216 values", "of the file"],
    );
}

#[test]
fn every_wrong_entry_of_the_list_is_reported_with_its_number() {
    let file = pickles::legacy(&TWO, &["12", "8", "12", "9"], &STORED);
    let of = |entry: &str| {
        format!("{entry} of the list of 4 storages; the file is damaged, download it again")
    };
    let unknown = "which is not one of the 2 that the pickle refers to, is number";
    assert_eq!(
        problems(&file),
        [
            of(&format!("storage 8, {unknown} 2")),
            of("storage 12 is number 1 and number 3"),
            of(&format!("storage 9, {unknown} 4")),
            "storage 7 is missing: the pickle refers to it, but the list of 4 storages does not have it; the file is damaged, download it again".into(),
        ]
    );
    has(&refusal(&file), &["storage 8", "number 2"]);
}
