use super::writer::Zip;
use super::*;
use crate::catalog::container::pytorch::file::detect;

#[test]
fn opens_what_python_and_torch_write() {
    let plain = Zip::checkpoint(&[
        ("m/byteorder", b"little"),
        ("m/.data/serialization_id", b"0"),
    ]);
    let mut commented = plain.bytes();
    let comment_length = commented.len() - 2;
    commented[comment_length] = 5;
    commented.extend(b"notes");
    let mut trailed = plain.clone();
    trailed.after = vec![b'x'; 60_000];
    let mut large = plain.clone();
    large.member(0).large = true;
    let with_directories = Zip::new(&[
        ("m/", b""),
        ("m/data/", b""),
        ("m/data.pkl", b"\x80\x02}."),
        ("m/version", b"3\n"),
        ("__MACOSX/._m", b"whatever"),
    ]);
    for bytes in [
        plain.bytes(),
        plain.clone().like_torch().bytes(),
        commented,
        trailed.bytes(),
        large.bytes(),
        large.clone().like_torch().bytes(),
        with_directories.bytes(),
        TORCH.to_vec(),
    ] {
        if let Err(error) = open(&bytes) {
            panic!("{error}");
        }
        assert_eq!(problems(&bytes), Vec::<String>::new());
        assert!(detect::is_checkpoint(&*object(&bytes)).unwrap());
    }
    let big = Zip::checkpoint(&[("m/byteorder", b"big")]).bytes();
    assert!(open(&big).unwrap().storages.big_endian);
    assert!(!open(&plain.bytes()).unwrap().storages.big_endian);
}

#[test]
fn compressed_and_encrypted_members_are_refused_with_what_to_do() {
    for (method, name) in [(8, "deflate"), (12, "bzip2"), (14, "lzma"), (93, "zstd")] {
        let mut zip = Zip::checkpoint(&[("m/data/0", b"1234")]);
        zip.member(2).method = method;
        let what = format!("(method {method}, {name})");
        has(
            &refusal(&zip.bytes()),
            &[
                "'m/data/0'",
                &what,
                "torch.save(torch.load(F), G)",
                "zip -0",
            ],
        );
    }
    let written = Zip::checkpoint(&[("m/data/0", b"1234")]).write();
    // The local header alone, and the directory alone.
    for (at, flag) in [
        (written.local[2] + 6, 1),
        (written.central[2] + 8, 1),
        (written.central[2] + 8, 0x40),
    ] {
        let refused = refusal(&written.with(at, &[flag]));
        has(&refused, &["'m/data/0'", "is encrypted", "zip -0"]);
    }
    for at in [written.local[2] + 8, written.central[2] + 10] {
        let refused = refusal(&written.with(at, &[8]));
        has(
            &refused,
            &["'m/data/0'", "is compressed (", "method 8, deflate in"],
        );
    }
}

#[test]
fn parts_of_archives_are_refused() {
    let written = Zip::checkpoint(&[]).write();
    let end = written.end;
    has(
        &refusal(&written.with(end + 4, &[1])),
        &["part 2", "several parts"],
    );
    has(&refusal(&written.with(end + 6, &[1])), &["several parts"]);
    has(
        &refusal(&written.with(end + 8, &[1])),
        &["1 of its 2 members"],
    );
    let elsewhere = refusal(&written.with(written.central[1] + 34, &[2]));
    has(&elsewhere, &["'m/version'", "part 3", "several parts"]);
    let mut large = Zip::checkpoint(&[]);
    large.member(0).large = true;
    let written = large.write();
    // The locator: the record's disk, and how many disks there are.
    for (at, byte) in [(written.end - 16, 1), (written.end - 4, 2)] {
        has(
            &refusal(&written.with(at, &[byte])),
            &["part 2", "several parts"],
        );
    }
}

#[test]
fn members_that_overlap_are_refused_with_both_ranges() {
    let written =
        Zip::checkpoint(&[("m/data/0", b"0123456789"), ("m/data/1", b"0123456789")]).write();
    let first = written.local[2];
    // The second member is said to be where the first one is.
    let place = (first as u32).to_le_bytes();
    let same = refusal(&written.with(written.central[3] + 42, &place));
    let end = first + 30 + 8 + 10;
    let range = format!("(bytes {first} to {end})");
    assert_eq!(same.matches(&range).count(), 2, "{same}");
    has(&same, &["'m/data/0'", "'m/data/1'", "overlap"]);
    // A member that ends in the next one, by both of its headers.
    let mut longer = written.with(written.local[2] + 18, &[20, 0, 0, 0, 20]);
    longer[written.central[2] + 20] = 20;
    longer[written.central[2] + 24] = 20;
    let (end, next) = (first + 38 + 20, written.local[3]);
    let overlap = refusal(&longer);
    has(
        &overlap,
        &[
            &format!("'m/data/0' (bytes {first} to {end})"),
            &format!("'m/data/1' (bytes {next} to {})", next + 48),
        ],
    );
}

#[test]
fn two_members_of_one_name_are_refused() {
    let twice = Zip::checkpoint(&[("m/data/0", b"ab"), ("m/data/0", b"cd")]).bytes();
    has(&refusal(&twice), &["two members are called 'm/data/0'"]);
    let pickles = Zip::checkpoint(&[("n/data.pkl", b"\x80\x02}.")]).bytes();
    has(
        &refusal(&pickles),
        &["two pickles", "'m/data.pkl'", "'n/data.pkl'"],
    );
}

#[test]
fn both_headers_must_agree() {
    let written = Zip::checkpoint(&[("m/data/0", b"0123")]).write();
    let (local, central) = (written.local[2], written.central[2]);
    let cases: [(usize, &[u8], &[&str]); 7] = [
        // No signature; the directory points into the middle of the header.
        (local, b"XX", &["no local header at byte", "58580304"]),
        (
            central + 42,
            &[local as u8 + 1],
            &["no local header at byte"],
        ),
        (
            central + 42,
            &[0, 0, 1],
            &["its local header should be at byte 65536", "begins at byte"],
        ),
        (local + 30, b"M", &["'m/data/0'", "'M/data/0'"]),
        (local + 26, &[7], &["'m/data/0'", "'m/data/'", "7 bytes"]),
        (
            local + 18,
            &[5],
            &[
                "has 5 bytes by its local header",
                "4 by the archive's directory",
            ],
        ),
        (
            central + 24,
            &[5],
            &["has 4 bytes in the archive and 5 unpacked"],
        ),
    ];
    for (at, bytes, parts) in cases {
        has(&refusal(&written.with(at, bytes)), parts);
    }
    // A size that nothing in the local header contradicts, past the directory's beginning.
    let written = Zip::checkpoint(&[("m/data/0", b"0123")])
        .like_torch()
        .write();
    let mut longer = written.with(written.central[2] + 20, &[200, 0, 0, 0, 200]);
    longer[written.central[2] + 23] = 0;
    let end = written.data[2].start + 200;
    has(&refusal(&longer), &["'m/data/0'", &format!("to {end},")]);
    // 64 bits in the local header.
    let mut large = Zip::checkpoint(&[("m/data/0", b"0123")]);
    large.member(2).large = true;
    let written = large.write();
    let field = written.data[2].start - 16;
    has(
        &refusal(&written.with(field, &[9])),
        &["has 9 bytes unpacked by its local header"][..0],
    );
    has(
        &refusal(&written.with(field, &[9])),
        &["9 bytes", "4 by the archive's directory"],
    );
    has(
        &refusal(&written.with(field + 8, &[9])),
        &["9 bytes", "4 by the archive's directory"],
    );
}

#[test]
fn the_end_record_must_be_possible() {
    let written = Zip::checkpoint(&[]).write();
    let (end, len) = (written.end, written.bytes.len());
    let number = |n: usize| (n as u32).to_le_bytes();
    let cut = refusal(&written.bytes[..end]);
    has(&cut, &["cut short", &format!("has {end} bytes")]);
    let directory = written.central[0];
    let size = end - directory;
    for (at, n) in [
        (end + 12, size + 1),
        (end + 12, size - 1),
        (end + 16, directory + 1),
        (end + 16, 1 << 30),
    ] {
        let refused = refusal(&written.with(at, &number(n)));
        has(
            &refused,
            &[&n.to_string(), &format!("at byte {end} of {len}")],
        );
    }
    for (n, parts) in [
        (1u16, ["should have 1 entries", "has more"]),
        (3, ["should have 3 entries, but", "2 at most"]),
        (u16::MAX, ["should have 65535 entries", "2 at most"]),
    ] {
        let count = [n.to_le_bytes(); 2].concat();
        has(&refusal(&written.with(end + 8, &count)), &parts);
    }
    // A longer name makes room for a third entry, which is not there.
    let long = Zip::checkpoint(&[(&format!("m/{}", "x".repeat(100)), b"")]).write();
    let four = [4u16.to_le_bytes(); 2].concat();
    has(
        &refusal(&long.with(long.end + 8, &four)),
        &["should have 4 entries, but has 3"],
    );
    has(
        &refusal(&written.with(written.central[1], b"XX")),
        &["entry 2 of 2"],
    );
    // Other bytes in front, with a first archive's signature.
    let in_front = [&written.bytes, &written.bytes[..]].concat();
    has(&refusal(&in_front), &["other bytes in front"]);
}

#[test]
fn more_members_than_the_limit_are_refused() {
    let mut large = Zip::checkpoint(&[]);
    large.member(0).large = true;
    let written = large.write();
    let record = written.end - 20 - 56;
    for n in [1u64 << 24, (1 << 24) + 1, u64::MAX] {
        let refused = refusal(&written.with(record + 24, &[n.to_le_bytes(); 2].concat()));
        has(&refused, &[&n.to_string()]);
        assert_eq!(
            refused.contains("more than the 16777216"),
            n > 1 << 24,
            "{refused}"
        );
    }
    // The two records contradict each other.
    has(
        &refusal(&written.with(written.end + 8, &[5, 0, 5, 0])),
        &[
            "has entries: 5 by one record, 2 by the other",
            "download it again",
        ],
    );
    let elsewhere = written.with(written.end + 16, &[9, 0, 0, 0]);
    let at = u64::from_le_bytes(written.bytes[record + 48..][..8].try_into().unwrap());
    let places = format!("directory is at byte 9 by one record, {at} by the other");
    has(&refusal(&elsewhere), &[&places, "download it again"]);
}

#[test]
fn version_and_byte_order_are_those_that_torch_reads() {
    let zip = |version: &[u8]| Zip::new(&[("m/data.pkl", b"\x80\x02}."), ("m/version", version)]);
    for version in ["1", "3\n", "10\n"] {
        assert!(open(&zip(version.as_bytes()).bytes()).is_ok());
    }
    for version in ["0\n", "11\n", "", "three", "-3", "99999999999999999999999"] {
        let refused = refusal(&zip(version.as_bytes()).bytes());
        has(
            &refused,
            &["'m/version'", &format!("'{}'", version.trim()), "1 to 10"],
        );
    }
    has(
        &refusal(&zip(&[b'3'; 1000]).bytes()),
        &["'m/version'", "1000 bytes", "64"],
    );
    let without = Zip::new(&[("m/data.pkl", b"\x80\x02}.")]).bytes();
    has(&refusal(&without), &["'m/version'"]);
    let order = Zip::checkpoint(&[("m/byteorder", b"Little")]).bytes();
    has(&refusal(&order), &["'m/byteorder'", "'Little'"]);
}

#[test]
fn verify_lists_every_member_and_checks_what_is_small() {
    let written =
        Zip::checkpoint(&[("m/data/0", b"0123"), ("m/x", b"4567"), ("m/y", b"89")]).write();
    let mut bytes = written.bytes.clone();
    bytes[written.local[0] + 30] = b'M';
    bytes[written.local[2] + 6] = 1;
    bytes[written.data[3].start] = b'!';
    bytes[written.data[4].start] = b'!';
    // A checksum of 0 is none.
    bytes[written.central[4] + 16..][..4].fill(0);
    let found = problems(&bytes).join("\n");
    has(
        &found,
        &[
            "'M/data.pkl'",
            "'m/data/0' is encrypted",
            "'m/x' has the CRC-32",
        ],
    );
    assert!(!found.contains("'m/y'"), "{found}");
    // A storage is not read.
    let mut storage = written.bytes.clone();
    storage[written.data[2].start] = b'!';
    assert!(!problems(&storage).join("\n").contains("CRC"));
    let mut pickle = written.bytes.clone();
    pickle[written.data[0].start + 2] = b']';
    has(
        &problems(&pickle).join("\n"),
        &["'m/data.pkl' has the CRC-32"],
    );
    assert!(open(&pickle).is_ok());
}
