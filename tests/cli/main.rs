//! The command line: errors and their messages, which users can mount, how a mount ends.

#[path = "../common/mod.rs"]
mod common;

mod bad_gguf;
mod bad_headers;
mod bad_models;
mod checkpoints;
mod info;
mod json;
mod keeper;
mod life;
mod neighbors;
mod ordinary;
mod output;
mod packaging;
mod places;
mod progress;
mod sandbox;
mod stalled_log;
mod terminal;
mod unwritable;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use common::mount::BIN;
use common::sys::is_root;
use common::{ModelDir, Ran};
use tempfile::TempDir;

/// A copy of the program, where any user may run it (a checkout often lies in a private directory).
struct PublicBin(Arc<TempDir>);

impl PublicBin {
    /// One for all tests that run at the same time. It goes with the last of them: nothing drops a static.
    fn new() -> PublicBin {
        static COPY: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());
        let mut copy = COPY.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(dir) = copy.upgrade() {
            return PublicBin(dir);
        }
        let dir = TempDir::with_prefix("stfs-bin-").expect("make a temporary directory");
        common::model::open_to_all(dir.path());
        // By another process: a child that another test forks meanwhile would inherit this one's open
        // descriptor, and a program that is open for writing cannot be run.
        let copied = Command::new("cp").arg(BIN).arg(dir.path()).status();
        assert!(copied.expect("cp runs").success(), "copy the program");
        symlink("stfs", dir.path().join("mount.stfs")).expect("link the helper");
        let dir = Arc::new(dir);
        *copy = Arc::downgrade(&dir);
        PublicBin(dir)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("stfs")
    }
}

/// Runs a shell script as root in a mount namespace of its own, so that nothing it mounts or hides
/// is seen elsewhere. The script finds `stfs` and `mount.stfs` in `$BIN`, a model in `$MODEL`, an
/// empty directory in `$DIR`; `device MODE` gives it a `/dev/fuse` with those permissions, and
/// `nobody COMMAND` runs a command as an ordinary user.
fn as_root(model: &ModelDir, script: &str) -> Ran {
    const PRELUDE: &str = r#"
        set -eu
        # The namespace begins with copies of all mounts. Those of tests beside this one would go on until
        # this script ends, although their tests have unmounted them and wait for their daemons to end.
        awk '/ - fuse.stfs / {print $5}' /proc/self/mountinfo | while read -r m; do umount -l "$m" 2>/dev/null || true; done
        chmod 777 "$DIR"
        nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"; }
        device() {
            mkdir "$DIR/dev" && mount -t tmpfs tmpfs "$DIR/dev"
            mknod "$DIR/dev/fuse" c 10 229 && chmod "$1" "$DIR/dev/fuse"
            mount --bind "$DIR/dev/fuse" /dev/fuse
        }
        end() { for m in $(awk '/ - fuse.stfs / {print $5}' /proc/self/mountinfo); do
            case "$m" in "$DIR"*) umount -l "$m" ;; esac; done; }
        trap end EXIT
        cd /
    "#;
    let dir = TempDir::with_prefix("stfs-ns-").expect("make a temporary directory");
    let public = PublicBin::new();
    let bin = public.path();
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60"]);
    if !is_root() {
        // Without a password, or not at all: a test must not stop to ask.
        command.args(["sudo", "-n", "env"]);
        command.arg(format!(
            "PATH={}",
            std::env::var("PATH").unwrap_or_default()
        ));
    } else {
        command.arg("env");
    }
    command
        .arg(format!(
            "BIN={}",
            bin.parent().expect("a directory").display()
        ))
        .arg(format!("MODEL={}", model.path().display()))
        .arg(format!("DIR={}", dir.path().display()))
        .args(["unshare", "-m", "sh", "-c"])
        .arg(format!("{PRELUDE}\n{script}"))
        .stdin(std::process::Stdio::null());
    let ran = Ran::of(command.output().expect("run timeout(1)"));
    assert!(
        !ran.err.contains("sudo:"),
        "this test needs root, or sudo that asks for no password: {ran:?}"
    );
    ran
}

/// Runs a script like [`as_root`] with [`small_model`].
fn with_small_model(script: &str) -> Ran {
    as_root(&small_model(), script)
}

/// `stfs mount` in the background, with a log file.
fn mount_logging_to(log: &Path, model: &Path, at: &Path) -> Command {
    common::mount::command([Path::new("mount"), Path::new("--log-file"), log, model, at])
}

/// A model that any user may read.
fn small_model() -> ModelDir {
    ModelDir::of(&[
        common::tensor("a.weight", safetensors::Dtype::BF16, &[4, 8]),
        common::tensor("b.weight", safetensors::Dtype::F32, &[3]),
    ])
}
