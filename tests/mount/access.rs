//! Who may read what through `--allow-other`: ACLs, and permissions that change after the mount. With real
//! users, so as root; `setfacl` is Debian's package `acl`.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use safetensors::Dtype;

use crate::common::sys::is_root;
use crate::common::{ModelDir, Mounted, tensor};

/// Users and a group without names.
const REFUSED: u32 = 4001;
const GRANTED: u32 = 4002;
const OTHER: u32 = 4003;
const MEMBER: u32 = 4004;
const GROUP: u32 = 5001;

/// Whether a user, a member of these further groups, can read a file or list a directory.
fn reads(uid: u32, groups: &[u32], path: &Path) -> bool {
    let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
    let groups = match groups.is_empty() {
        true => "--clear-groups".to_string(),
        false => format!("--groups={}", groups.join(",")),
    };
    let program = if path.is_dir() { "ls" } else { "cat" };
    let status = Command::new("setpriv")
        .args([
            &format!("--reuid={uid}"),
            &format!("--regid={uid}"),
            &groups,
        ])
        .arg(program)
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.expect("run setpriv").success()
}

fn setfacl(entries: &str, path: &Path) {
    let status = Command::new("setfacl")
        .args(["-m", entries])
        .arg(path)
        .status();
    assert!(
        status
            .expect("run setfacl (Debian's package acl)")
            .success()
    );
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn as_root() -> bool {
    if !is_root() {
        eprintln!("NOT ROOT: cannot become another user");
    }
    is_root()
}

/// q, k in one shard, v in another, and a config.
fn model() -> ModelDir {
    let part = |p: &str| tensor(&format!("l.{p}_proj.weight"), Dtype::F16, &[9, 8]);
    let dir = ModelDir::sharded(&[
        ("a.safetensors", &[part("q"), part("k")]),
        ("b.safetensors", &[part("v")]),
    ]);
    dir.file("config.json", "{}");
    dir
}

/// All that is made of a tensor.
fn files_of(name: &str) -> Vec<String> {
    let inside = ["raw", "f32", "meta.json"].map(|file| format!("tensors/l.{name}.weight/{file}"));
    let beside = ["npy/l.NAME.weight.npy", "preview/l.NAME.weight.png"];
    let beside = beside.map(|path| path.replace("NAME", name));
    inside.into_iter().chain(beside).collect()
}

#[test]
fn a_sources_acl_refuses_and_grants() {
    if !as_root() {
        return;
    }
    let dir = model();
    chmod(&dir.join("a.safetensors"), 0o644);
    setfacl(&format!("u:{REFUSED}:---"), &dir.join("a.safetensors"));
    chmod(&dir.join("config.json"), 0o640);
    setfacl(
        &format!("u:{GRANTED}:r,g:{GROUP}:r"),
        &dir.join("config.json"),
    );
    let m = Mounted::with(dir.path(), &["--allow-other"]);
    for file in files_of("q_proj") {
        let path = m.join(&file);
        assert!(!reads(REFUSED, &[], &path), "{file}");
        assert!(!reads(REFUSED, &[GROUP, 0], &path), "{file}");
        assert!(reads(GRANTED, &[], &path) && reads(0, &[], &path), "{file}");
    }
    for file in files_of("v_proj") {
        assert!(reads(REFUSED, &[], &m.join(&file)), "{file}");
    }
    // A join of files with different lists, and what is about all files, are the owner's.
    let whole = ["model.json", "index.json", "export/model.safetensors"];
    let whole = whole.map(String::from);
    for file in files_of("qkv_proj").into_iter().chain(whole) {
        let path = m.join(&file);
        assert!(
            !reads(REFUSED, &[], &path) && !reads(GRANTED, &[], &path),
            "{file}"
        );
        assert!(reads(0, &[], &path), "{file}");
    }
    let config = m.join("files/config.json");
    assert!(reads(GRANTED, &[], &config) && reads(OTHER, &[GROUP], &config));
    assert!(!reads(OTHER, &[], &config) && !reads(REFUSED, &[], &config));
}

#[test]
fn an_acl_that_all_sources_have_is_that_of_what_is_made_of_them() {
    if !as_root() {
        return;
    }
    let dir = model();
    for shard in ["a.safetensors", "b.safetensors"] {
        chmod(&dir.join(shard), 0o640);
        setfacl(&format!("u:{GRANTED}:r,g:{GROUP}:r"), &dir.join(shard));
    }
    let m = Mounted::with(dir.path(), &["--allow-other"]);
    for file in files_of("qkv_proj")
        .into_iter()
        .chain(["model.json".into()])
    {
        let path = m.join(&file);
        assert!(reads(GRANTED, &[], &path), "{file}");
        assert!(reads(OTHER, &[GROUP], &path), "{file}");
        assert!(!reads(OTHER, &[], &path), "{file}");
    }
    // The list is what getfacl shows, without the right to write.
    let mut getfacl = Command::new("getfacl");
    getfacl
        .args(["-cn", "--absolute-names"])
        .arg(m.join("model.json"));
    let shown = getfacl.output().expect("run getfacl").stdout;
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(shown.contains(&format!("user:{GRANTED}:r--")), "{shown}");
}

#[test]
fn an_acl_of_the_model_directory_is_that_of_the_mounts_directories() {
    if !as_root() {
        return;
    }
    let dir = model();
    chmod(dir.path(), 0o750);
    setfacl(&format!("u:{GRANTED}:rx,u:{REFUSED}:---"), dir.path());
    let m = Mounted::with(dir.path(), &["--allow-other"]);
    for path in ["", "tensors", "files", "tensors/l.q_proj.weight/raw"] {
        let path = m.join(path);
        assert!(reads(GRANTED, &[], &path), "{path:?}");
        assert!(!reads(REFUSED, &[], &path), "{path:?}");
        assert!(!reads(OTHER, &[], &path), "{path:?}");
    }
}

/// A mask without a bit that the mount gives must not make the kernel go by the others' bits.
#[test]
fn an_acl_whose_mask_gives_nothing_refuses() {
    if !as_root() {
        return;
    }
    let dir = model();
    setfacl(
        &format!("u:{REFUSED}:x,m::x,o::r"),
        &dir.join("a.safetensors"),
    );
    let raw = "tensors/l.q_proj.weight/raw";
    let m = Mounted::with(dir.path(), &["--allow-other"]);
    assert!(!reads(REFUSED, &[], &m.join(raw)));
    assert!(reads(0, &[], &m.join(raw)));
}

#[test]
fn permissions_that_become_stricter_are_followed_and_others_not() {
    if !as_root() {
        return;
    }
    let dir = model();
    let (shard, raw) = (dir.join("a.safetensors"), "tensors/l.q_proj.weight/raw");
    let m = Mounted::with(dir.path(), &["--allow-other"]);
    let raw = m.join(raw);
    assert!(reads(OTHER, &[], &raw) && reads(MEMBER, &[GROUP], &raw));
    chmod(&shard, 0o000);
    assert!(!reads(OTHER, &[], &raw) && reads(0, &[], &raw));
    for file in ["tensors/l.qkv_proj.weight/f32", "export/model.safetensors"] {
        assert!(!reads(OTHER, &[], &m.join(file)), "{file}");
    }
    assert!(reads(OTHER, &[], &m.join("tensors/l.v_proj.weight/raw")));
    // Groups that a request does not name.
    chown(&shard, Some(0), Some(GROUP)).unwrap();
    chmod(&shard, 0o640);
    assert!(!reads(OTHER, &[], &raw) && reads(MEMBER, &[GROUP], &raw));
    chmod(&shard, 0o604);
    assert!(reads(OTHER, &[], &raw) && !reads(MEMBER, &[GROUP], &raw));
    chmod(&shard, 0o644);
    assert!(reads(OTHER, &[], &raw) && reads(MEMBER, &[GROUP], &raw));
    setfacl(&format!("u:{REFUSED}:---"), &shard);
    assert!(!reads(REFUSED, &[], &raw) && reads(OTHER, &[], &raw));
    assert_eq!(m.status()["source_changed"], false, "{}", m.log());
    drop(m);
    // Nobody gets more than at the mount.
    chmod(&shard, 0o600);
    let m = Mounted::with(dir.path(), &["--allow-other"]);
    chmod(&shard, 0o644);
    assert!(!reads(OTHER, &[], &m.join("tensors/l.q_proj.weight/raw")));
}
