//! Every file, read in every possible way.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::Command;

use memmap2::MmapOptions;
use safetensors::Dtype;
use serde_json::json;

use crate::common::{DTYPES, ModelDir, Mounted, T, naive, sys, tensor};
use crate::files;

/// A tensor of every dtype, and sizes that are not multiples of anything.
fn model() -> (ModelDir, Vec<T>) {
    let mut all: Vec<T> = DTYPES
        .iter()
        .map(|&d| tensor(&format!("one.{d}"), d, &[3, 5, 8]))
        .collect();
    all.push(tensor("l.0.q_proj.weight", Dtype::BF16, &[301, 512]));
    all.push(tensor("l.0.k_proj.weight", Dtype::BF16, &[7, 512]));
    all.push(tensor("l.0.v_proj.weight", Dtype::BF16, &[70, 512]));
    all.push(tensor("odd", Dtype::U8, &[70_001]));
    all.push(tensor("one.byte", Dtype::I8, &[1]));
    all.push(tensor("scalar", Dtype::F64, &[]));
    all.push(tensor("empty", Dtype::F32, &[0, 4]));
    let dir = ModelDir::of(&all);
    dir.json("config.json", &json!({"architectures": ["X"]}));
    dir.file("notes.txt", "one\ntwo\n");
    dir.file("empty.txt", "");
    (dir, all)
}

#[test]
fn raw_f32_and_npy_are_the_tensors() {
    let (dir, all) = model();
    let m = Mounted::new(dir.path());
    let shard = std::fs::read(dir.join("model.safetensors")).unwrap();
    for t in &all {
        let at = format!("tensors/{}", t.name);
        assert!(m.read(&format!("{at}/raw")) == t.data, "{} raw", t.name);
        let meta = m.json(&format!("{at}/meta.json"));
        let offset = meta["origin"]["offset"].as_u64().unwrap() as usize;
        assert!(shard[offset..][..t.data.len()] == t.data, "{}", t.name);
        let f32 = naive::f32_bytes(t.dtype, &t.data);
        match &f32 {
            Some(want) => {
                let got = m.read(&format!("{at}/f32"));
                assert!(naive::same_f32(t.dtype, &got, want), "{} f32", t.name);
            }
            None => assert!(!m.join(&format!("{at}/f32")).exists()),
        }
        let npy = m.read(&format!("npy/{}.npy", t.name));
        let (header, body) = npy.split_at(128);
        match naive::descr(t.dtype) {
            Some(d) => {
                assert_eq!(header, naive::npy_header(d, &t.shape), "{}", t.name);
                assert!(body == t.data, "{}", t.name);
            }
            None => {
                assert_eq!(header, naive::npy_header("<f4", &t.shape), "{}", t.name);
                assert!(naive::same_f32(t.dtype, body, &f32.unwrap()), "{}", t.name);
            }
        }
    }
    assert_eq!(m.read("files/notes.txt"), b"one\ntwo\n");
    assert_eq!(m.read("files/empty.txt"), b"");
}

#[test]
fn every_way_to_read_gives_the_same_bytes() {
    let (dir, _) = model();
    let m = Mounted::new(dir.path());
    let all = files(m.root());
    assert!(all.len() > 100, "{}", all.len());
    for path in all {
        let want = std::fs::read(&path).unwrap();
        assert_eq!(
            path.metadata().unwrap().len(),
            want.len() as u64,
            "{path:?}"
        );
        by_pread(&path, &want);
        by_mapping(&path, &want);
        by_copying(&path, &want);
    }
}

fn by_pread(path: &Path, want: &[u8]) {
    let file = File::open(path).unwrap();
    for (from, len, piece) in [
        (0, 300, 1),
        (3, 5000, 7),
        (1, usize::MAX, 70_000),
        ((want.len() as u64 / 2) | 1, 70_000, 70_000),
    ] {
        let rest = want.get(from as usize..).unwrap_or_default();
        let len = len.min(rest.len());
        let got = sys::pread_all(&file, from, len, piece).unwrap();
        assert!(got == rest[..len], "{path:?} from {from} in {piece}s");
        let direct = sys::read_direct(path, from, len.min(80_000)).unwrap();
        assert!(
            direct == rest[..len.min(80_000)],
            "{path:?} O_DIRECT at {from}"
        );
    }
    // At the end and past it there is nothing, which is not an error.
    for past in [0, 1, 4096, 1 << 40] {
        let got = sys::pread_all(&file, want.len() as u64 + past, 10, 10).unwrap();
        assert!(got.is_empty());
    }
}

fn by_mapping(path: &Path, want: &[u8]) {
    if want.is_empty() {
        return;
    }
    let file = File::open(path).unwrap();
    // SAFETY: nothing changes the model during this test, so its pages neither change nor vanish.
    let shared = unsafe { MmapOptions::new().map(&file) }.unwrap();
    assert!(&shared[..] == want, "{path:?} shared");
    // SAFETY: as above.
    let private = unsafe { MmapOptions::new().map_copy_read_only(&file) }.unwrap();
    assert!(&private[..] == want, "{path:?} private");
    // SAFETY: as above.
    let mut copy = unsafe { MmapOptions::new().map_copy(&file) }.unwrap();
    copy[0] ^= 0xFF;
    assert_eq!(copy[0], want[0] ^ 0xFF, "a private copy may be written to");
    assert_eq!(shared[0], want[0]);
}

fn by_copying(path: &Path, want: &[u8]) {
    let content = |mut f: File| {
        let mut got = Vec::new();
        f.seek(SeekFrom::Start(0)).unwrap();
        f.read_to_end(&mut got).unwrap();
        got
    };
    let to = tempfile::tempfile().unwrap();
    let sent = sys::sendfile(&File::open(path).unwrap(), &to).unwrap();
    assert_eq!(sent, want.len() as u64, "{path:?}");
    assert!(content(to) == want, "{path:?} sendfile");
    // Like cp: copy_file_range, or what the kernel does instead between file systems.
    let mut to = tempfile::tempfile().unwrap();
    let sent = std::io::copy(&mut File::open(path).unwrap(), &mut to).unwrap();
    assert_eq!(sent, want.len() as u64, "{path:?}");
    assert!(content(to) == want, "{path:?} copied");
}

#[test]
fn ordinary_tools_read_it() {
    let (dir, all) = model();
    let m = Mounted::new(dir.path());
    let run = |program: &str, args: &[&str]| {
        let out = Command::new(program)
            .args(args)
            .current_dir(m.root())
            .output()
            .unwrap();
        assert!(out.status.success(), "{program}: {out:?}");
        out.stdout
    };
    let odd = &all.iter().find(|t| t.name == "odd").unwrap().data;
    assert_eq!(run("tail", &["-c", "7", "tensors/odd/raw"]), odd[69_994..]);
    assert_eq!(
        run("tail", &["-c", "+70001", "tensors/odd/raw"]),
        odd[70_000..]
    );
    let dd = [
        "if=tensors/odd/raw",
        "bs=999",
        "skip=13",
        "count=3",
        "status=none",
    ];
    assert_eq!(run("dd", &dd), odd[13 * 999..16 * 999]);
    // cp and tar look for holes by st_blocks and SEEK_HOLE; there must be none.
    let to = dir
        .path()
        .parent()
        .unwrap()
        .join(format!("stfs-copy-{}", m.pid()));
    let to_text = to.to_str().unwrap();
    run("cp", &["-r", "--sparse=auto", "tensors", to_text]);
    assert_eq!(&std::fs::read(to.join("odd/raw")).unwrap(), odd);
    std::fs::remove_dir_all(&to).unwrap();
    let tar = run("tar", &["-c", "--sparse", "-f", "-", "tensors/odd/raw"]);
    assert!(tar.windows(512).step_by(512).any(|w| w == &odd[..512]));
}

#[test]
fn thirty_two_threads_read_at_once() {
    let (dir, all) = model();
    let m = Mounted::with(dir.path(), &["--threads", "4"]);
    let paths = files(m.root());
    let want: Vec<Vec<u8>> = {
        let fresh = Mounted::new(dir.path());
        let below = |p: &Path| fresh.root().join(p.strip_prefix(m.root()).unwrap());
        paths
            .iter()
            .map(|p| std::fs::read(below(p)).unwrap())
            .collect()
    };
    std::thread::scope(|scope| {
        for thread in 0..32 {
            let (paths, want) = (&paths, &want);
            scope.spawn(move || {
                for i in 0..paths.len() {
                    let i = (i * 7 + thread * 13) % paths.len();
                    let got = match thread % 2 {
                        0 => std::fs::read(&paths[i]).unwrap(),
                        _ => sys::read_direct(&paths[i], 0, want[i].len()).unwrap(),
                    };
                    assert!(got == want[i], "{:?}", paths[i]);
                }
            });
        }
    });
    assert!(m.status()["bytes_served"].as_u64().unwrap() > all.len() as u64);
}

#[test]
fn the_smallest_pool_serves_all_the_same() {
    let (dir, all) = model();
    let m = Mounted::with(dir.path(), &["--threads", "1"]);
    for t in &all {
        assert!(m.read(&format!("tensors/{}/raw", t.name)) == t.data);
    }
    assert!(m.json("index.json").as_object().unwrap().len() > all.len());
    assert!(m.list("tree/one").len() == DTYPES.len() + 1);
}

#[test]
fn a_model_without_tensors_mounts() {
    let dir = ModelDir::new();
    dir.raw_shard("model.safetensors", "{}", &[]);
    let m = Mounted::new(dir.path());
    assert_eq!(m.json("index.json"), json!({}));
    assert_eq!(m.json("model.json")["tensors"], 0);
    for empty in ["tensors", "npy", "tree", "files"] {
        assert!(m.list(empty).is_empty(), "{empty}");
    }
    for path in files(m.root()) {
        assert_eq!(
            std::fs::read(&path).unwrap().len() as u64,
            path.metadata().unwrap().len()
        );
    }
}
