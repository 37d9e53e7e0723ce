//! `stfs gpu` on a real mount.

use std::process::Command;

use stfs::ioctl::{self, GpuIo};

use crate::mounted::*;
use crate::support::*;

const Q: &str = "tensors/model.layers.0.self_attn.q_proj.weight";
const BIG: &str = "tensors/model.big/raw";

fn stfs(arguments: &[&str]) -> (Option<i32>, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_stfs"))
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (out.status.code(), text(out.stdout), text(out.stderr))
}

#[test]
fn the_commands() {
    let mount = Mounted::new(&[], &[]);
    let path = |below: &str| mount.path(below).to_str().unwrap().to_string();
    let root = path("");
    let (code, out, _) = stfs(&["gpu", "status", &root]);
    assert_eq!(
        (code, out.as_str()),
        (Some(0), "nothing is in GPU memory\n")
    );
    let (raw, f32) = (path(&format!("{Q}/raw")), path(&format!("{Q}/f32")));
    let (code, out, err) = stfs(&["gpu", "upload", "--device", "1", &raw, &f32]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(
        out,
        format!("{raw}: 8.19 kB on GPU 1\n{f32}: 16.4 kB on GPU 1\n")
    );
    // Resident without a lease.
    let (code, out, _) = stfs(&["gpu", "status", "--json", &root]);
    let listed: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, listed.as_array().unwrap().len()), (Some(0), 2));
    assert_eq!(listed[0]["path"], format!("{Q}/raw"));
    assert_eq!(
        (&listed[0]["device"], &listed[0]["leases"]),
        (&1.into(), &0.into())
    );
    assert_eq!(listed[0]["state"], "resident");
    let (_, out, _) = stfs(&["gpu", "status", &root]);
    assert!(out.starts_with("GPU  STATE     BYTES"), "{out}");
    let (code, out, _) = stfs(&["gpu", "status", "--devices", &root]);
    assert_eq!(code, Some(0));
    assert!(
        out.contains("stfs test double 0") && out.contains("GPU-73746673-"),
        "{out}"
    );
    // One of them is held.
    let held = mount.open(&format!("{Q}/f32"));
    let on_second = GpuIo {
        device: 1,
        ..request()
    };
    assert_eq!(ask(ioctl::upload, &held, on_second).1.leases, 1);
    let (code, out, err) = stfs(&["gpu", "release", &f32, &raw]);
    assert_eq!((code, out), (Some(1), format!("{raw}: freed on GPU 1\n")));
    assert!(err.contains("another process holds it"), "{err}");
    let (code, _, err) = stfs(&["gpu", "release", &raw]);
    assert_eq!(
        (code, err),
        (Some(1), format!("stfs: {raw}: is not in GPU memory\n"))
    );
    let (code, _, err) = stfs(&["gpu", "upload", &path("model.json"), "/etc/passwd"]);
    assert_eq!(code, Some(1));
    assert_eq!(
        err.matches("is not a tensor in an stfs mount").count(),
        2,
        "{err}"
    );
    let (code, _, err) = stfs(&["gpu", "status", "/etc"]);
    assert_eq!(
        (code, err.as_str()),
        (Some(1), "stfs: /etc: is not in an stfs mount\n")
    );
    assert_eq!(stfs(&["gpu", "upload"]).0, Some(2));
    let (code, _, err) = stfs(&["gpu", "upload", "--device", "7", &raw]);
    assert_eq!(code, Some(1));
    assert!(err.contains("no such GPU"), "{err}");
}

#[test]
fn a_whole_model_by_command() {
    let mount = Mounted::new(&[], &[]);
    let tensors = mount.path("tensors").to_str().unwrap().to_string();
    let (code, out, err) = stfs(&["gpu", "upload", &tensors]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.ends_with("on GPU 0\n"));
    let raw = mount.path(BIG).to_str().unwrap().to_string();
    let (code, _, err) = stfs(&["gpu", "release", &raw]);
    assert_eq!(code, Some(1));
    assert!(err.contains("part of a whole model"), "{err}");
    assert_eq!(stfs(&["gpu", "release", &tensors]).0, Some(0));
    wait_for_device_memory(&mount.ledger(), 0);
}
