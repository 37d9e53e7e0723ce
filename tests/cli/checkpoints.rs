//! PyTorch checkpoints as MODEL: which file of a directory is meant, and `FILE#KEY.PATH`.

use std::os::unix::fs::symlink;
use std::path::Path;

use safetensors::Dtype;
use serde_json::{Value, json};

use crate::as_root;
use crate::common::pytorch::{
    Py, call, checkpoint, contiguous, dict, legacy_file, state_dict, text, zip, zip_file,
};
use crate::common::{ModelDir, Ran, T, stfs, tensor};

fn t(name: &str) -> T {
    tensor(name, Dtype::BF16, &[4, 2])
}

/// A checkpoint of one tensor of that name.
fn of(name: &str) -> Vec<u8> {
    checkpoint(&[t(name)])
}

fn run(command: &str, args: &[&str], model: &Path) -> Ran {
    let command = [Path::new(command)].into_iter();
    stfs(command.chain(args.iter().map(Path::new)).chain([model]))
}

/// The names of a model's tensors.
#[track_caller]
fn names(model: impl AsRef<Path>) -> Vec<String> {
    let all = run("ls", &["--json", "--no-synthetic"], model.as_ref());
    let all = all.ok().json();
    let name = |t: &Value| t["name"].as_str().unwrap().to_string();
    all.as_array().unwrap().iter().map(name).collect()
}

#[track_caller]
fn refused(model: impl AsRef<Path>, words: &[&str]) -> String {
    run("ls", &[], model.as_ref()).fails(words)
}

fn why(model: &Path) -> String {
    run("ls", &["--why"], model).ok().out
}

#[test]
fn a_directory_is_what_the_first_row_that_fits_says() {
    let dir = ModelDir::new();
    // From the last row to the first.
    dir.file("epoch_3.ckpt", of("from.the.one.file"));
    dir.file("notes.pt.txt", of("not.this.name"));
    assert_eq!(names(dir.path()), ["from.the.one.file"]);
    dir.file("shard-00001-of-00002.pt", of("set.1"));
    dir.file("shard-00002-of-00002.pt", of("set.2"));
    assert_eq!(names(dir.path()), ["set.1", "set.2"]);
    dir.file("pytorch_model.bin", of("from.the.single"));
    assert_eq!(names(dir.path()), ["from.the.single"]);
    dir.index(
        "other.pt.index.json",
        [("set.2", "shard-00002-of-00002.pt")],
    );
    assert_eq!(names(dir.path()), ["set.2"]);
    dir.index(
        "pytorch_model.bin.index.json",
        [("set.1", "shard-00001-of-00002.pt")],
    );
    assert_eq!(names(dir.path()), ["set.1"]);
    // Each by its own path, whatever else is there.
    for (file, name) in [
        ("epoch_3.ckpt", "from.the.one.file"),
        ("shard-00001-of-00002.pt", "set.1"),
        ("pytorch_model.bin", "from.the.single"),
        ("other.pt.index.json", "set.2"),
        ("notes.pt.txt", "not.this.name"),
    ] {
        assert_eq!(names(dir.join(file)), [name]);
    }
}

#[test]
fn other_formats_come_first_and_why_says_what_they_keep_out() {
    let dir = ModelDir::new();
    dir.file("pytorch_model.bin", of("from.a.pickle"));
    assert_eq!(why(dir.path()), "");
    let entry = json!({"offset": 0, "size": 16, "shape": [4], "dtype": "F32"});
    dir.file("weights.bin", [7; 16]);
    dir.json("weights.json", &json!({"tensors": {"manifest": entry}}));
    assert_eq!(names(dir.path()), ["manifest"]);
    let said = why(dir.path());
    assert!(
        said.contains("note: pytorch_model.bin (pytorch) is left out: the manifest model"),
        "{said}"
    );
    dir.shard("model.safetensors", &[t("a")]);
    assert_eq!(names(dir.path()), ["a"]);
    let said = why(dir.path());
    for left_out in ["pytorch_model.bin (pytorch)", "weights.json (manifest)"] {
        let note = format!("note: {left_out} is left out: the safetensors model beside it");
        assert!(said.contains(&note), "{note}: {said}");
    }
    assert_eq!(names(dir.join("pytorch_model.bin")), ["from.a.pickle"]);
    // Several that could have been meant are listed.
    let dir = ModelDir::of(&[t("a")]);
    dir.file("a.pt", of("a"));
    dir.file("b.pt", of("b"));
    let said = why(dir.path());
    assert!(said.contains("a.pt, b.pt"), "{said}");
}

#[test]
fn the_first_bytes_decide_not_the_ending() {
    let dir = ModelDir::new();
    for name in ["weights", "weights.dat", "x.bin", "x.zip", "x.gguf.old"] {
        let path = dir.file(name, of("a"));
        assert_eq!(names(&path), ["a"], "{name}");
        let path = dir.file(name, legacy_file(&state_dict("", &[t("b")])));
        assert_eq!(names(&path), ["b"], "{name}");
    }
    // In a directory, a file of that name that is something else does not count.
    let dir = ModelDir::new();
    dir.file("best.pt", of("a"));
    dir.file("vocabulary.bin", b"words");
    let member = |name: &str| (format!("archive/{name}"), b"x".to_vec());
    let script = zip(&[
        member("data.pkl"),
        member("code/a.py"),
        member("constants.pkl"),
    ]);
    dir.file("best.torchscript.pt", &script);
    assert_eq!(names(dir.path()), ["a"]);
    refused(
        dir.join("best.torchscript.pt"),
        &["TorchScript", "state_dict()"],
    );
    // Alone, it is named.
    let dir = ModelDir::new();
    dir.file("model.pt", &script);
    refused(dir.path(), &["model.pt", "TorchScript", "state_dict()"]);
    let npz = zip(&[("weight.npy".into(), b"\x93NUMPY".to_vec())]);
    refused(dir.file("w.npz", npz), &["w.npz", ".npz archive"]);
    let shard = ModelDir::of(&[t("a")]);
    std::fs::rename(shard.join("model.safetensors"), shard.join("model.pt")).unwrap();
    for model in [shard.path(), &shard.join("model.pt")] {
        refused(
            model,
            &["model.pt: is a safetensors file, although a PyTorch checkpoint"],
        );
    }
    refused(
        dir.file("x.safetensors", of("a")),
        &["is a PyTorch checkpoint (a pickle), although a safetensors file is expected"],
    );
    refused(
        dir.file("y.pt", "text"),
        &["y.pt: is not a PyTorch checkpoint"],
    );
}

#[test]
fn what_training_leaves_beside_a_model_never_counts() {
    let companions = [
        "training_args.bin",
        "optimizer.pt",
        "optimizer.bin",
        "optimizer_1.pt",
        "scheduler.pt",
        "scaler.pt",
        "rng_state.pth",
        "rng_state_0.pth",
        "random_states_0.pkl.pt",
        "zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "optimizer-00001-of-00002.bin",
        "optimizer.bin.index.json",
    ];
    let dir = ModelDir::new();
    for name in companions {
        dir.file(name, of("companion"));
    }
    refused(
        dir.path(),
        &["holds no model", "pytorch_model.bin", "*.ckpt"],
    );
    assert_eq!(names(dir.join("optimizer.pt")), ["companion"]);
    dir.file("adapter_model.bin", of("model"));
    assert_eq!(names(dir.path()), ["model"]);
}

#[test]
fn a_numbered_set_is_served_whole() {
    let dir = ModelDir::new();
    let set = |n: u32| format!("pytorch_model-0000{n}-of-00003.bin");
    for n in [1, 3] {
        dir.file(&set(n), of(&format!("t{n}")));
    }
    let first = set(2);
    refused(
        dir.path(),
        &[&first, "is missing", "download it again", "--allow-missing"],
    );
    let verified = run("verify", &["--json"], dir.path());
    assert_eq!(verified.code, 1);
    assert_eq!(verified.json()[0]["file"], first.as_str());
    let ls = run("ls", &["--allow-missing", "--why"], dir.path())
        .ok()
        .out;
    assert!(ls.contains(&format!("{first} missing")), "{ls}");
    let ls = run("ls", &["--allow-missing"], dir.path()).ok().out;
    assert!(ls.contains("t1 ") && ls.contains("t3 "), "{ls}");
    // A file of the set, by its path, is that file.
    assert_eq!(names(dir.join(&set(3))), ["t3"]);
    dir.file(&first, of("t2"));
    assert_eq!(names(dir.path()), ["t1", "t2", "t3"]);
    let sound = run("verify", &[], dir.path()).ok().out;
    assert!(sound.contains("3 tensors in 3 files"), "{sound}");
    // A name in two of its files.
    dir.file(&first, of("t1"));
    refused(dir.path(), &["'t1'", "two files", &first]);
}

#[test]
fn several_checkpoints_are_listed() {
    for several in [
        &["last.ckpt", "best.ckpt"][..],
        &["consolidated.00.pth", "consolidated.01.pth"],
        &["a-00001-of-00001.bin", "b-00001-of-00001.bin"],
        &["a-00001-of-00002.bin", "model.th"],
        &["a.bin.index.json", "b.pt.index.json"],
    ] {
        let dir = ModelDir::new();
        for name in several {
            dir.file(name, of("a"));
        }
        let words: Vec<&str> = several
            .iter()
            .copied()
            .chain(["mount one by its path"])
            .collect();
        refused(dir.path(), &words);
    }
    // Hundreds do not fill the screen.
    let dir = ModelDir::new();
    for n in 0..300 {
        dir.file(&format!("sample_{n}.pt"), of("a"));
    }
    let line = refused(dir.path(), &["sample_0.pt, sample_1.pt", "and 280 more"]);
    assert!(!line.contains("sample_299"), "{line}");
}

#[test]
fn an_index_decides_as_that_of_safetensors_does() {
    let dir = ModelDir::new();
    dir.file("1.bin", checkpoint(&[t("a"), t("b")]));
    dir.file("2.bin", checkpoint(&[t("b"), t("c")]));
    dir.file("old.bin", of("gone"));
    let index = "pytorch_model.bin.index.json";
    dir.index(index, [("a", "1.bin"), ("b", "2.bin")]);
    let all = run("ls", &["--json"], dir.path()).ok().json();
    let files: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|t| (&t["name"], &t["file"]))
        .collect();
    let (a, b, c) = (json!("a"), json!("b"), json!("c"));
    let (one, two) = (json!("1.bin"), json!("2.bin"));
    assert_eq!(files, [(&a, &one), (&b, &two), (&c, &two)]);
    assert!(why(dir.path()).contains("'b': the copy in 1.bin is stale"));
    let index = dir.join(index);
    refused(
        format!("{}#a", index.display()),
        &["is an index, which has no parts"],
    );
    dir.index(
        "pytorch_model.bin.index.json",
        [("a", "1.bin"), ("z", "../2.bin")],
    );
    refused(
        dir.path(),
        &["tensor 'z'", "\"../2.bin\" is not a plain file name"],
    );
    dir.index(
        "pytorch_model.bin.index.json",
        [("a", "1.bin"), ("z", "2.bin")],
    );
    refused(dir.path(), &["2.bin", "does not hold tensor 'z'"]);
    dir.index(
        "pytorch_model.bin.index.json",
        [("a", "1.bin"), ("z", "3.bin")],
    );
    refused(dir.path(), &["3.bin", "is missing", "--allow-missing"]);
    let ls = run("ls", &["--allow-missing"], dir.path()).ok().out;
    assert!(ls.contains("a ") && !ls.contains("gone"), "{ls}");
}

#[test]
fn a_hostile_shard_is_never_left_out() {
    let dir = ModelDir::new();
    let hostile = dict([
        ("z", state_dict("", &[t("z")])),
        ("x", call("posix", "system", vec![text("touch /tmp/x")])),
    ]);
    dir.file("1.bin", of("a"));
    dir.file("2.bin", zip_file(&hostile));
    dir.index(
        "pytorch_model.bin.index.json",
        [("a", "1.bin"), ("z", "2.bin")],
    );
    let ran = run("ls", &["--allow-missing"], dir.path());
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(
        ran.err
            .contains("2.bin: is hostile: its pickle calls posix.system"),
        "{ran:?}"
    );
    // One that is only damaged is left out, as with safetensors.
    dir.file("2.bin", b"PK\x03\x04");
    let ls = run("ls", &["--allow-missing"], dir.path()).ok().out;
    assert!(ls.starts_with("a "), "{ls}");
}

#[test]
fn tensors_that_cannot_be_served_are_named_and_counted() {
    let layout = call(
        "torch.serialization",
        "_get_layout",
        vec![text("torch.sparse_coo")],
    );
    let sparse = || {
        call(
            "torch._utils",
            "_rebuild_sparse_tensor",
            vec![layout.clone(), Py::None],
        )
    };
    let dir = ModelDir::new();
    let file = dir.path().join("m.pt");
    let root = dict([("a", contiguous("0", &t("a"))), ("s", sparse())]);
    std::fs::write(&file, zip_file(&root)).unwrap();
    let cat = stfs([Path::new("cat"), &file, Path::new("s")]);
    assert_eq!(cat.code, 1);
    assert!(
        cat.err.contains("'s' is left out: is sparse (COO)"),
        "{cat:?}"
    );
    let info = run("info", &["--json"], &file).ok().out;
    assert!(info.contains("\"left_out\": 1"), "{info}");
    let verify = run("verify", &[], &file).ok().out;
    assert!(
        verify.contains("note: 's' is left out: is sparse (COO)"),
        "{verify}"
    );
    // With nothing else there is no model.
    std::fs::write(&file, zip_file(&dict([("s", sparse())]))).unwrap();
    refused(
        &file,
        &["no tensor that can be served", "'s': is sparse (COO)"],
    );
}

/// A checkpoint of a training run.
fn run_file() -> Vec<u8> {
    zip_file(&dict([
        ("epoch", Py::Int(3)),
        ("model", state_dict("m", &[t("w"), t("b")])),
        (
            "ema",
            state_dict(
                "e",
                &[
                    t("w"),
                    T {
                        name: "b".into(),
                        ..t("other")
                    },
                ],
            ),
        ),
        ("a.b/c", dict([("x:y", state_dict("k", &[t("deep")]))])),
        (
            "optimizer",
            dict([("state", Py::List(vec![state_dict("o", &[t("exp_avg")])]))]),
        ),
    ]))
}

#[test]
fn a_part_of_a_file_is_a_model_for_every_command() {
    let dir = ModelDir::new();
    let file = dir.file("run.pt", run_file());
    let part = |part: &str| dir.join(&format!("run.pt#{part}"));
    assert_eq!(names(&file), ["b", "w"]);
    assert_eq!(names(part("model")), ["b", "w"]);
    assert_eq!(names(part("optimizer")), ["state.0.exp_avg"]);
    assert_eq!(names(part("optimizer.state.0")), ["exp_avg"]);
    assert_eq!(names(part("a.b/c")), ["x:y.deep"]);
    assert_eq!(names(part("a.b/c.x:y")), ["deep"]);
    let all = [
        "a.b/c.x:y.deep",
        "ema.b",
        "ema.w",
        "model.b",
        "model.w",
        "optimizer.state.0.exp_avg",
    ];
    assert_eq!(names(part("")), all);
    let cat = run("cat", &[], &part("ema"));
    assert_eq!(cat.code, 2, "the tensor is missing: {cat:?}");
    let stat = stfs(["stat".as_ref(), "--json".as_ref(), part("ema").as_path()]);
    assert_eq!(stat.ok().json().as_array().unwrap().len(), 2);
    assert_eq!(
        run("info", &["--json"], &part("ema")).ok().json()["tensors"],
        2
    );
    run("verify", &[], &part("ema")).ok();
    let diff = stfs([
        Path::new("diff"),
        "--json".as_ref(),
        &part("model"),
        &part("ema"),
    ]);
    let changed = diff.json()["changed"].clone();
    assert_eq!((diff.code, changed.as_array().unwrap().len()), (1, 1));
    assert_eq!(changed[0]["name"], "b");
    let same = stfs([Path::new("diff"), &file, &part("model")]);
    assert_eq!(same.code, 0, "{same:?}");
    refused(
        part("nothing"),
        &["run.pt", "nothing", "model", "ema", "optimizer"],
    );
    refused(part("epoch"), &["run.pt", "epoch"]);
}

#[test]
fn a_file_whose_own_name_has_the_mark_comes_first() {
    let dir = ModelDir::new();
    dir.file("run.pt", run_file());
    dir.file("run.pt#ema", of("from.the.file"));
    assert_eq!(names(dir.join("run.pt#ema")), ["from.the.file"]);
    assert_eq!(names(dir.join("run.pt#model")), ["b", "w"]);
    // Also with a part of its own, and by a link.
    dir.file(
        "x#1.pt",
        zip_file(&dict([("net", state_dict("", &[t("a")]))])),
    );
    assert_eq!(names(dir.join("x#1.pt#net")), ["a"]);
    assert_eq!(names(dir.join("x#1.pt#")), ["net.a"]);
    symlink(dir.join("run.pt"), dir.join("link.ckpt")).unwrap();
    assert_eq!(names(dir.join("link.ckpt#optimizer.state")), ["0.exp_avg"]);
}

#[test]
fn what_has_no_parts_says_so() {
    let dir = ModelDir::of(&[t("a")]);
    let shard = dir.join("model.safetensors#model");
    refused(
        &shard,
        &["model.safetensors: ", "has no parts", "leave out '#model'"],
    );
    let below = format!("{}#model", dir.path().display());
    refused(
        &below,
        &["is a directory, which has no parts", "FILE#KEY.PATH"],
    );
    dir.json("config.json", &json!({}));
    refused(dir.join("config.json#a"), &["config.json", "manifest"]);
    refused(
        dir.file("notes.txt", "hello").with_file_name("notes.txt#a"),
        &["notes.txt: is not a model"],
    );
    refused(
        dir.join("absent.pt#model"),
        &["absent.pt#model", "No such file"],
    );
    dir.file("list.pt", zip_file(&Py::List(vec![text("no tensor")])));
    refused(dir.join("list.pt#0"), &["list.pt"]);
}

#[test]
fn directories_of_pieces_are_named_with_what_joins_them() {
    let dir = ModelDir::new();
    dir.file(".metadata", b"\x80\x02}.");
    dir.file("__0_0.distcp", of("a"));
    let remedy = "torch.distributed.checkpoint.format_utils dcp_to_torch";
    refused(
        dir.path(),
        &["torch.distributed.checkpoint (FSDP, DCP)", remedy],
    );
    for piece in [".metadata", "__0_0.distcp"] {
        refused(dir.join(piece), &["FSDP, DCP", remedy]);
    }
    let verified = run("verify", &[], dir.path());
    assert!(verified.code == 1 && verified.out.contains(remedy));
    // Beside a checkpoint they are not the model.
    dir.file("model.pt", of("a"));
    assert_eq!(names(dir.path()), ["a"]);
}

#[test]
fn a_directory_of_checkpoint_directories_says_so() {
    let dir = ModelDir::new();
    for below in ["checkpoint-500", "checkpoint-1000", "logs"] {
        std::fs::create_dir(dir.join(below)).unwrap();
    }
    dir.file("checkpoint-500/pytorch_model.bin", of("a"));
    dir.file("checkpoint-1000/step.ckpt", of("a"));
    dir.file("logs/words.bin", b"words");
    refused(
        dir.path(),
        &["its subdirectories checkpoint-500, checkpoint-1000 hold models"],
    );
}

#[test]
fn what_a_clone_without_lfs_leaves_is_named() {
    let lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:46\nsize 4976698672\n";
    for name in [
        "pytorch_model.bin",
        "pytorch_model-00001-of-00001.bin",
        "model.pt",
        "weights.bin",
    ] {
        let dir = ModelDir::new();
        let file = dir.file(name, lfs);
        for model in [dir.path(), &file] {
            assert_eq!(run("verify", &[], model).code, 1, "{name}");
            refused(
                model,
                &[name, "Git LFS pointer", "4976698672", "git lfs pull"],
            );
        }
    }
}

/// mount(8), fstab and fusermount3 pass the source on as it is.
#[test]
fn mount_8_fstab_and_ordinary_users_take_a_part() {
    let dir = ModelDir::new();
    let root = dict([
        ("ema", state_dict("e", &[t("a")])),
        ("model", state_dict("m", &[t("b")])),
    ]);
    dir.file("run.pt", zip_file(&root));
    let ran = as_root(
        &dir,
        r#"
        mount -t tmpfs tmpfs "$(readlink -f /sbin)"
        cp "$BIN/stfs" /sbin/mount.stfs
        mkdir "$DIR/m"
        mount -t stfs "$MODEL/run.pt#ema" "$DIR/m" > /dev/null
        ls "$DIR/m/tensors"
        findmnt -n -o SOURCE "$DIR/m"
        umount "$DIR/m"
        echo "$MODEL/run.pt#ema $DIR/m stfs ro,nofail 0 0" > "$DIR/fstab"
        mount -T "$DIR/fstab" "$DIR/m" > /dev/null
        "$BIN/stfs" ls "$DIR/m" | cut -d' ' -f1
        "$BIN/stfs" umount "$DIR/m"
        device 666
        cd "$MODEL"
        nobody "$BIN/stfs" mount "run.pt#ema" "$DIR/n" > /dev/null
        nobody ls "$DIR/n/tensors"
        nobody findmnt -n -o SOURCE "$DIR/n"
        nobody "$BIN/stfs" umount "$DIR/n"
        "#,
    );
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let source = format!("{}#ema", dir.join("run.pt").display());
    let want = ["a", &source, "a", "a", &source];
    assert_eq!(ran.out.lines().collect::<Vec<_>>(), want);
}
