//! Links in a model directory that others could not have followed, in mounts that others use.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use tempfile::TempDir;

use crate::common::model::open_to_all;
use crate::common::{ModelDir, Mounted, stfs, tensor};

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn model() -> ModelDir {
    ModelDir::of(&[tensor("a", Dtype::U8, &[300])])
}

/// A file of mode 0644 in a directory of that mode.
fn secret(mode: u32) -> (TempDir, PathBuf) {
    let dir = TempDir::with_prefix("stfs-secret-").unwrap();
    let file = dir.path().join("secret");
    std::fs::write(&file, "for its owner").unwrap();
    chmod(&file, 0o644);
    chmod(dir.path(), mode);
    (dir, file)
}

const SHARED: &[&str] = &["--allow-other"];

#[test]
fn a_link_into_a_private_directory_is_left_out() {
    let (model, (_private, file), (_open, reachable)) = (model(), secret(0o700), secret(0o755));
    symlink(&file, model.join("notes.txt")).unwrap();
    // Through another link, and through a directory in the model itself.
    symlink("notes.txt", model.join("again.txt")).unwrap();
    let inside = model.join("private");
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(inside.join("x"), "x").unwrap();
    chmod(&inside, 0o700);
    symlink("private/x", model.join("inside.txt")).unwrap();
    symlink(&reachable, model.join("reachable.txt")).unwrap();
    model.file("plain.txt", "plain");
    symlink("plain.txt", model.join("linked.txt")).unwrap();
    let m = Mounted::with(model.path(), SHARED);
    let shown = ["linked.txt", "plain.txt", "reachable.txt"];
    assert_eq!(m.list("files"), shown);
    assert_eq!(m.read("files/reachable.txt"), b"for its owner");
    for name in ["notes.txt", "again.txt", "inside.txt"] {
        let said = m.log().lines().filter(|l| l.contains(name)).count();
        assert_eq!(said, 1, "{name}: {}", m.log());
    }
    drop(m);
    // The user that mounts reads it anyway.
    let m = Mounted::new(model.path());
    assert_eq!(m.list("files").len(), 6);
    assert_eq!(m.read("files/notes.txt"), b"for its owner");
}

#[test]
fn a_shard_behind_such_a_link_refuses_the_mount() {
    let (dir, target) = (model(), secret(0o711));
    let private = target.0.path().join("private");
    std::fs::create_dir(&private).unwrap();
    chmod(&private, 0o750);
    std::fs::rename(dir.join("model.safetensors"), private.join("w")).unwrap();
    symlink(private.join("w"), dir.join("model.safetensors")).unwrap();
    let at = target.0.path().join("m");
    let refused = |model: &Path| {
        let args = [Path::new("mount"), "--allow-other".as_ref(), model, &at];
        stfs(args).fails(&["model.safetensors: is a link", "/private", "--allow-other"]);
    };
    refused(dir.path());
    refused(&dir.join("model.safetensors"));
    assert!(Mounted::new(dir.path()).join("tensors/a/raw").exists());
    chmod(&private, 0o711);
    let m = Mounted::with(dir.path(), SHARED);
    assert_eq!(m.read("tensors/a/raw").len(), 300);
}

#[test]
fn an_index_or_config_behind_such_a_link_is_not_read() {
    let (dir, (private, _)) = (model(), secret(0o700));
    std::fs::write(private.path().join("c"), r#"{"architectures": ["Secret"]}"#).unwrap();
    symlink(private.path().join("c"), dir.join("config.json")).unwrap();
    let m = Mounted::with(dir.path(), SHARED);
    assert!(m.list("files").is_empty());
    assert!(!String::from_utf8_lossy(&m.read("model.json")).contains("Secret"));
    drop(m);
    let index = r#"{"weight_map": {"a": "model.safetensors"}}"#;
    std::fs::rename(dir.join("model.safetensors"), dir.join("x.safetensors")).unwrap();
    std::fs::write(private.path().join("i"), index.replace("model", "x")).unwrap();
    symlink(
        private.path().join("i"),
        dir.join("model.safetensors.index.json"),
    )
    .unwrap();
    let at = private.path().join("m");
    let args = [
        Path::new("mount"),
        "--allow-other".as_ref(),
        dir.path(),
        &at,
    ];
    stfs(args).fails(&["model.safetensors.index.json: is a link"]);
}

/// The folders of a hub cache are alike, also if they are all private.
#[test]
fn the_links_of_a_hub_cache_stay() {
    for mode in [0o755, 0o700] {
        let cache = TempDir::with_prefix("stfs-hub-").unwrap();
        let folder = cache.path().join("models--org--name");
        let snapshot = folder.join("snapshots/0123");
        for dir in [&folder.join("refs"), &folder.join("blobs"), &snapshot] {
            std::fs::create_dir_all(dir).unwrap();
        }
        std::fs::write(folder.join("refs/main"), "0123").unwrap();
        let made = model();
        std::fs::rename(made.join("model.safetensors"), folder.join("blobs/w")).unwrap();
        std::fs::write(folder.join("blobs/r"), "read me").unwrap();
        symlink("../../blobs/w", snapshot.join("model.safetensors")).unwrap();
        symlink("../../blobs/r", snapshot.join("README.md")).unwrap();
        for dir in [&folder, &folder.join("blobs"), &snapshot] {
            chmod(dir, mode);
        }
        let m = Mounted::with(&folder, SHARED);
        assert_eq!(m.list("files"), ["README.md"], "{mode:o}");
        assert_eq!(m.read("tensors/a/raw").len(), 300);
    }
}

/// The owner of a hub cache's folder chooses where its snapshot leads.
#[test]
fn a_snapshot_elsewhere_refuses_the_mount() {
    let cache = TempDir::with_prefix("stfs-hub-").unwrap();
    let folder = cache.path().join("models--org--name");
    std::fs::create_dir_all(folder.join("refs")).unwrap();
    std::fs::write(folder.join("refs/main"), "0123").unwrap();
    let (private, at) = (model(), cache.path().join("m"));
    chmod(private.path(), 0o700);
    let snapshots = folder.join("snapshots");
    let refused = || {
        let args = [Path::new("mount"), "--allow-other".as_ref(), &folder, &at];
        stfs(args).fails(&["snapshots/0123: is a link", "--allow-other"]);
        let m = Mounted::new(&folder);
        assert_eq!(m.read("tensors/a/raw").len(), 300, "its owner may");
    };
    std::fs::create_dir(&snapshots).unwrap();
    symlink(private.path(), snapshots.join("0123")).unwrap();
    refused();
    std::fs::remove_dir_all(&snapshots).unwrap();
    let elsewhere = TempDir::with_prefix("stfs-elsewhere-").unwrap();
    std::fs::rename(private.path(), elsewhere.path().join("0123")).unwrap();
    symlink(elsewhere.path(), &snapshots).unwrap();
    refused();
}

#[test]
fn directories_above_the_model_that_are_not_for_all_are_said() {
    let above = TempDir::with_prefix("stfs-above-").unwrap();
    let dir = above.path().join("model");
    std::fs::create_dir(&dir).unwrap();
    open_to_all(&dir);
    let made = model();
    std::fs::rename(
        made.join("model.safetensors"),
        dir.join("model.safetensors"),
    )
    .unwrap();
    let words = "not every user may search this directory";
    for (mode, args, said) in [
        (0o700, SHARED, 1),
        (0o750, SHARED, 1),
        (0o711, SHARED, 0),
        (0o700, &[][..], 0),
    ] {
        chmod(above.path(), mode);
        let m = Mounted::with(&dir, args);
        let lines = m.log().lines().filter(|l| l.contains(words)).count();
        assert_eq!(lines, said, "{mode:o} {args:?}: {}", m.log());
    }
}
