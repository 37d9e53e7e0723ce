//! What a process can do once it has entered the sandbox, judged by the kernel: each test runs in a process
//! of its own, which enters it and then tries. Real mounts in the sandbox are in `tests/cli/sandbox.rs`.

use std::process::Command;

#[path = "sandbox/inside.rs"]
mod inside;

const CHILD: &str = "STFS_SANDBOX_CHILD";

/// Runs the body in a process of its own, because a sandbox is never left again.
macro_rules! alone {
    ($body:block) => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here);
        let name = name.trim_end_matches("::here").split_once("::").unwrap().1;
        if $crate::is_child_for(name) {
            $body
        } else {
            $crate::run_child(name);
        }
    }};
}
pub(crate) use alone;

fn is_child_for(name: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|n| n == name)
}

fn run_child(name: &str) {
    let out = Command::new("timeout")
        .arg("60")
        .arg(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, name)
        .env("SECRET_TOKEN", SECRET)
        .env("LD_LIBRARY_PATH", "/nonexistent")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{name} did not run: {said}");
}

/// The value of a variable of the caller that nobody needs.
const SECRET: &str = "hf_abcdefghijklmnop";
