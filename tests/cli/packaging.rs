//! `make install`.

use std::path::Path;
use std::process::Command;

use crate::common::Ran;
use crate::common::mount::BIN;

/// The PATH that sudo gives root, which does not contain cargo.
fn install(root: &Path, program: &str) -> Ran {
    let out = Command::new("make")
        .args(["-C", concat!(env!("CARGO_MANIFEST_DIR"), "/packaging")])
        .arg("install")
        .arg(format!("DESTDIR={}", root.display()))
        .arg(format!("STFS={program}"))
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env_remove("MAKEFLAGS")
        .output();
    Ran::of(out.expect("run make"))
}

#[test]
fn installs_the_program_that_is_there() {
    let root = tempfile::tempdir().unwrap();
    let ran = install(root.path(), BIN);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(!ran.out.contains("cargo"), "{ran:?}");
    let read = |path: &str| std::fs::read(root.path().join(path)).unwrap();
    assert!(read("usr/local/bin/stfs") == std::fs::read(BIN).unwrap());
    assert!(read("usr/local/share/man/man1/stfs.1").starts_with(b"."));
    for completions in [
        "bash-completion/completions/stfs",
        "zsh/site-functions/_stfs",
        "fish/vendor_completions.d/stfs.fish",
    ] {
        assert!(!read(&format!("usr/local/share/{completions}")).is_empty());
    }
    let helper = std::fs::read_link(root.path().join("sbin/mount.stfs")).unwrap();
    assert_eq!(helper, Path::new("/usr/local/bin/stfs"));
}

#[test]
fn says_what_to_do_where_nothing_is_built() {
    let root = tempfile::tempdir().unwrap();
    let ran = install(root.path(), "/nonexistent/stfs");
    assert_ne!(ran.code, 0);
    assert!(
        ran.err.contains("/nonexistent/stfs does not exist"),
        "{ran:?}"
    );
    assert!(ran.err.contains("cargo build --release"), "{ran:?}");
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}
