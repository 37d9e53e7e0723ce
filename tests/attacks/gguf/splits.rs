//! Models that are split into files which do not fit, or are not all there.

use stfs::catalog::OpenOptions;

use super::{MISSING, problems};
use crate::common::{Dir, open, refused};
use crate::gguf_file::{Gguf, V, counting, s, splits};

/// What a test does to the files of a set.
type Change<'a> = &'a dyn Fn(&mut Vec<(String, Gguf)>);

/// A directory of these files.
fn dir_of(files: &[(String, Gguf)]) -> Dir {
    let dir = Dir::new();
    for (name, file) in files {
        std::fs::write(dir.join(name), file.bytes()).unwrap();
    }
    dir
}

/// Three files of two tensors each.
pub fn set() -> Vec<(String, Gguf)> {
    let two = |i: usize| [0, 1].map(|j| counting(&format!("t{i}{j}"), 32, (2 * i + j) as f32));
    let (a, b, c) = (two(0), two(1), two(2));
    splits("m", &[("general.architecture", s("llama"))], &[&a, &b, &c])
}

#[test]
fn a_set_of_splits_is_one_model() {
    let dir = dir_of(&set());
    assert_eq!(problems(dir.path()), []);
    let whole = open(dir.path(), OpenOptions::default()).unwrap();
    assert_eq!((whole.tensors.len(), whole.files.len()), (6, 3));
    assert_eq!(whole.metadata["general.architecture"], "llama");
    assert!(!whole.lone_file);
    for (name, _) in set() {
        let one = open(&dir.join(&name), OpenOptions::default()).unwrap();
        assert_eq!(one.tensors.len(), 6);
        assert_eq!(one.weight_files, whole.weight_files);
    }
    for (i, t) in (0..).zip(&whole.tensors) {
        let extent = whole.extent(i).unwrap();
        let mut first = [0; 4];
        extent.file.read_at(extent.offset, &mut first).unwrap();
        let number: usize = t.name[1..2].parse().unwrap();
        assert_eq!(extent.file.name(), set()[number].0);
        assert_eq!(f32::from_le_bytes(first), i as f32);
    }
}

#[test]
fn splits_that_are_missing_are_named() {
    let mut files = set();
    let dir = dir_of(&files);
    std::fs::remove_file(dir.join(&files[1].0)).unwrap();
    let missing = [
        "m-00002-of-00003.gguf: is missing",
        "3 files",
        "download it again",
    ];
    refused(dir.path(), &missing);
    refused(&dir.join(&files[2].0), &missing);
    let found = problems(dir.path());
    assert_eq!((found.len(), &*found[0].0), (1, &*files[1].0));
    let catalog = open(dir.path(), MISSING).unwrap();
    assert_eq!(catalog.tensors.len(), 4);
    assert!(catalog.shards_missing && catalog.notes[0].contains(&files[1].0));
    std::fs::remove_file(dir.join(&files[2].0)).unwrap();
    refused(
        dir.path(),
        &["m-00002-of-00003.gguf", "1 more: m-00003-of-00003.gguf"],
    );
    assert_eq!(problems(dir.path()).len(), 2);
    // Not without the first, which has the keys.
    let dir = dir_of(&files.split_off(1));
    let error = open(dir.path(), MISSING).err().unwrap().to_string();
    assert!(
        error.contains("m-00001-of-00003.gguf: is missing"),
        "{error}"
    );
    assert!(error.contains("keys"), "{error}");
    // Nor is it suggested.
    let error = open(dir.path(), OpenOptions::default()).err().unwrap();
    assert!(!error.to_string().contains("--allow-missing"), "{error}");
}

#[test]
fn damage_in_a_split() {
    let files = set();
    let dir = dir_of(&files);
    let cut = |name: &str, len: usize| {
        let bytes = std::fs::read(dir.join(name)).unwrap();
        std::fs::write(dir.join(name), &bytes[..len]).unwrap();
    };
    // The end of the second.
    let len = files[1].1.bytes().len();
    cut(&files[1].0, len - 8);
    refused(
        dir.path(),
        &["m-00002-of-00003.gguf", "'t11'", "--allow-missing"],
    );
    let catalog = open(dir.path(), MISSING).unwrap();
    assert_eq!(catalog.tensors.len(), 5);
    assert!(catalog.absent.contains("t11"));
    // Its header.
    cut(&files[1].0, 100);
    refused(dir.path(), &["m-00002-of-00003.gguf", "cut short"]);
    assert_eq!(problems(dir.path()).len(), 1);
    let catalog = open(dir.path(), MISSING).unwrap();
    assert_eq!(catalog.tensors.len(), 4);
    assert!(catalog.shards_missing);
    assert!(catalog.notes[0].starts_with("left out: m-00002-of-00003.gguf"));
    // The header of the first.
    cut(&files[0].0, 100);
    let error = open(dir.path(), MISSING).err().unwrap().to_string();
    assert!(error.contains("m-00001-of-00003.gguf: "), "{error}");
    assert_eq!(problems(dir.path()).len(), 2);
    std::fs::write(
        dir.join(&files[0].0),
        b"version https://git-lfs.github.com/spec/v1\n",
    )
    .unwrap();
    refused(dir.path(), &["m-00001-of-00003.gguf", "Git LFS pointer"]);
}

#[test]
fn splits_that_disagree() {
    let with = |change: Change<'_>| {
        let mut files = set();
        change(&mut files);
        let dir = dir_of(&files);
        let error = open(dir.path(), OpenOptions::default())
            .err()
            .map(|e| e.to_string());
        (error.unwrap_or_default(), problems(dir.path()))
    };
    let set_key = |file: &mut Gguf, key: &str, value: V| {
        let key = file.keys.iter_mut().find(|(k, _)| k == key.as_bytes());
        key.unwrap().1 = value;
    };
    for (key, value, says) in [
        (
            "split.count",
            V::U16(4),
            "split.count is 4, but its name makes it file 2 of 3",
        ),
        (
            "split.no",
            V::U16(0),
            "split.no is 0, but its name makes it file 2 of 3",
        ),
        (
            "split.no",
            s("1"),
            "split.no is \"1\" (string), expected a uint16",
        ),
        (
            "split.count",
            V::I32(-3),
            "split.count is -3 (int32), expected a uint16",
        ),
        (
            "split.tensors.count",
            V::I32(7),
            "split.tensors.count is 7, but the 3 files of the model have 6",
        ),
    ] {
        let (error, found) = with(&|files| set_key(&mut files[1].1, key, value.clone()));
        assert!(
            error.contains(says) && error.contains("m-00002-of"),
            "{error}"
        );
        assert!(
            found
                .iter()
                .any(|(file, _, p)| file.contains("00002") && p.contains(says))
        );
    }
    let (error, found) = with(&|files| files[2].1.keys.clear());
    assert!(
        error.contains("m-00003-of-00003.gguf: has no split.count"),
        "{error}"
    );
    assert_eq!(found.len(), 3, "{found:?}");
    let (error, _) = with(&|files| files[2].1.tensors[0].name = b"t00".to_vec());
    assert!(
        error.contains("m-00003-of-00003.gguf: tensor 't00': appears twice"),
        "{error}"
    );
    assert!(error.contains("m-00001-of-00003.gguf"), "{error}");
    // Served, and reported: the first file's keys count.
    let (error, found) = with(&|files| {
        files[1]
            .1
            .keys
            .push((b"general.architecture".to_vec(), s("qwen")));
        files[1].1.keys.push((b"another".to_vec(), s("x")));
        set_key(&mut files[2].1, "split.no", V::U32(2));
    });
    assert_eq!(error, "");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0]
            .2
            .contains("'general.architecture' contradicts the same key of m-00001-of")
    );
    assert!(
        found[1]
            .2
            .contains("llama.cpp will not load this: split.no is 2 (uint32)")
    );
}

#[test]
fn a_split_that_lost_its_number_is_told_its_name() {
    let (_, second) = set().remove(1);
    for (name, should) in [
        ("model.gguf", "rename it to model-00002-of-00003.gguf"),
        (
            "sha256-abcd",
            "rename it to sha256-abcd-00002-of-00003.gguf",
        ),
        ("m-2-of-3.gguf", "rename it to m-2-of-3-00002-of-00003.gguf"),
    ] {
        let dir = Dir::of(&[(name, &second.bytes())]);
        refused(&dir.join(name), &[name, "file 2 of 3", should]);
    }
    // A set of one needs no number, and no keys.
    let one = Gguf::small().split(0, 1, 1);
    for (name, file) in [
        ("m.gguf", &one),
        ("m-00001-of-00001.gguf", &one),
        ("m-00001-of-00001.gguf", &Gguf::small()),
    ] {
        let dir = Dir::of(&[(name, &file.bytes())]);
        assert_eq!(problems(dir.path()), []);
    }
    let odd = Gguf::small().split(7, 3, 1);
    let dir = Dir::of(&[("m.gguf", &odd.bytes())]);
    refused(dir.path(), &["m.gguf", "one of 3 files", "split.no"]);
}
