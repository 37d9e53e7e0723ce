//! Mounts of PyTorch checkpoints, and of parts of them.

use std::path::Path;

use safetensors::Dtype;

use crate::common::pytorch::{Py, checkpoint, dict, state_dict, zip_file};
use crate::common::{ModelDir, Mounted, T, stfs, tensor};

fn t(name: &str) -> T {
    tensor(name, Dtype::F32, &[3, 5])
}

/// A training run's checkpoint, in a directory with other files.
fn run() -> (ModelDir, Vec<T>) {
    let (weights, ema) = ([t("w"), t("b")], t("ema"));
    let ema = T {
        name: "w".into(),
        ..ema
    };
    let root = dict([
        ("epoch", Py::Int(3)),
        ("state_dict", state_dict("m", &weights)),
        (
            "ema/0.9: last one",
            state_dict("e", std::slice::from_ref(&ema)),
        ),
    ]);
    let dir = ModelDir::new();
    dir.file("run 1.ckpt", zip_file(&root));
    dir.file("config.json", "{}");
    let [w, b] = weights;
    (dir, vec![w, b, ema])
}

#[test]
fn a_checkpoint_is_a_model_like_any_other() {
    let (dir, tensors) = run();
    let m = Mounted::new(dir.path());
    assert_eq!(m.list("tensors"), ["b", "w"]);
    for t in &tensors[..2] {
        assert_eq!(m.read(&format!("tensors/{}/raw", t.name)), t.data);
        assert_eq!(m.read(&format!("tensors/{}/f32", t.name)), t.data);
        let meta = m.json(&format!("tensors/{}/meta.json", t.name));
        let offset = meta["origin"]["offset"].as_u64().unwrap() as usize;
        assert_eq!(meta["origin"]["file"], "run 1.ckpt");
        let file = std::fs::read(dir.join("run 1.ckpt")).unwrap();
        assert_eq!(file[offset..][..t.data.len()], t.data);
    }
    assert_eq!(m.json("model.json")["format"], "pytorch");
    // The served weights are not shown a second time.
    assert_eq!(m.list("files"), ["config.json"]);
}

#[test]
fn shards_and_their_index_are_not_among_the_other_files() {
    let dir = ModelDir::new();
    dir.file("1.bin", checkpoint(&[t("a")]));
    dir.file("2.bin", checkpoint(&[t("b")]));
    dir.file("optimizer.pt", checkpoint(&[t("o")]));
    dir.index(
        "pytorch_model.bin.index.json",
        [("a", "1.bin"), ("b", "2.bin")],
    );
    let m = Mounted::new(dir.path());
    assert_eq!(m.list("tensors"), ["a", "b"]);
    assert_eq!(m.list("files"), ["optimizer.pt"]);
}

/// The kernel's table has the part's name with escapes; every command finds the model by it again.
#[test]
fn a_mounted_part_is_found_by_its_mountpoint() {
    let (dir, tensors) = run();
    let model = dir.join("run 1.ckpt#ema/0.9: last one");
    let m = Mounted::new(&model);
    assert_eq!(m.list("tensors"), ["w"]);
    assert_eq!(m.read("tensors/w/raw"), tensors[2].data);
    assert_eq!(m.list("files"), ["config.json"]);
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let here = m.root().to_str().unwrap();
    let line = table.lines().find(|l| l.contains(here)).unwrap();
    assert!(
        line.contains(r"run\0401.ckpt\043ema/0.9:\040last\040one"),
        "{line}"
    );
    assert_eq!(m.status()["model"], model.to_str().unwrap());
    let listed = stfs([Path::new("mounts")]).ok().out;
    assert!(listed.contains(model.to_str().unwrap()), "{listed}");
    let ls = stfs([Path::new("ls"), m.root()]).ok().out;
    assert!(ls.starts_with("w ") && ls.lines().count() == 1, "{ls}");
    let same = stfs([Path::new("diff"), m.root(), &model]);
    assert_eq!(same.code, 0, "{same:?}");
    // The mount cannot be mounted again, but the part can, beside the file.
    let twice = stfs([Path::new("mount"), m.root(), &dir.join("again")]);
    twice.fails(&["is itself a mount", "run 1.ckpt#ema"]);
    let other = Mounted::new(&dir.join("run 1.ckpt"));
    assert_eq!(other.list("tensors"), ["b", "w"]);
    let status = crate::common::mount::umount(m.root());
    assert_eq!(status.code, 0, "{status:?}");
    assert!(m.wait().success());
}
