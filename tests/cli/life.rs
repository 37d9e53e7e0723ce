//! How a mount begins and ends: in the background, in the foreground, by umount, by signals, by
//! the daemon's death.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::common::mount::{BIN, Background, is_mounted, umount, wait_for};
use crate::common::sys::{errno, kill};
use crate::common::{Mounted, Ran, stfs};
use crate::{as_root, small_model};

#[test]
fn the_background_mount_answers_when_the_command_returns() {
    let model = small_model();
    let m = Background::new(model.path(), &[]);
    let want = format!(
        "stfs: 2 tensors, 35 parameters, BF16, 1 file, {} at {}\n",
        size(&model),
        m.root.display()
    );
    assert_eq!(m.ran.out, want);
    assert!(m.root.join("tensors/a.weight/raw").exists());
    // The daemon holds neither the caller's directory, nor its terminal, nor its session.
    let proc = format!("/proc/{}", m.pid());
    assert_eq!(
        std::fs::read_link(format!("{proc}/cwd")).unwrap(),
        Path::new("/")
    );
    for fd in 0..3 {
        let target = std::fs::read_link(format!("{proc}/fd/{fd}")).unwrap();
        assert_eq!(target, Path::new("/dev/null"));
    }
    let stat = std::fs::read_to_string(format!("{proc}/stat")).unwrap();
    let session = stat.rsplit(") ").next().unwrap().split(' ').nth(3).unwrap();
    assert_eq!(session, m.pid().to_string());
    let ran = umount(&m.root);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, "", ""));
    assert!(m.ended() && !is_mounted(&m.root));
    umount(&m.root).fails(&["is not an stfs mount", "stfs mounts"]);
    // The mountpoint stays, empty, and may be used again.
    assert_eq!(std::fs::read_dir(&m.root).unwrap().count(), 0);
}

fn size(model: &crate::ModelDir) -> String {
    format!(
        "{} B",
        model.join("model.safetensors").metadata().unwrap().len()
    )
}

#[test]
fn relative_paths_are_the_callers() {
    let model = small_model();
    let run = |args: &[&str]| {
        let mut command = Command::new("timeout");
        command
            .args(["60", BIN])
            .args(args)
            .current_dir(model.path());
        Ran::of(command.output().unwrap())
    };
    run(&[
        "mount",
        "model.safetensors",
        "deep/er/m",
        "--log-file",
        "log",
    ])
    .ok();
    assert!(model.join("deep/er/m/tensors/b.weight/f32").exists());
    let mounts = stfs(["mounts"]).ok().out;
    let path = model.join("model.safetensors");
    assert!(mounts.contains(path.to_str().unwrap()), "{mounts}");
    while run(&["umount", "deep/er/m"]).err.contains("is in use") {}
    assert!(!is_mounted(&model.join("deep/er/m")));
    let log = std::fs::read_to_string(model.join("log")).unwrap();
    assert!(log.contains("2 tensors"), "{log}");
}

#[test]
fn signals_unmount() {
    let model = small_model();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // At once: there must be no moment after readiness at which it would die and leave its mount behind.
        for _ in 0..5 {
            let m = Mounted::new(model.path());
            kill(m.pid(), signal);
            let root = m.root().to_path_buf();
            let (mut child, _, _dir) = m.into_parts();
            let status = wait_for(&mut child).expect("it ends");
            assert!(status.success(), "{signal}: {status}");
            assert!(!is_mounted(&root));
        }
        let m = Background::new(model.path(), &[]);
        kill(m.pid(), signal);
        assert!(m.ended() && !is_mounted(&m.root), "{signal}");
    }
}

#[test]
fn a_signal_ends_it_also_while_a_file_is_open() {
    let model = small_model();
    let m = Mounted::new(model.path());
    let mut file = File::open(m.join("tensors/a.weight/raw")).unwrap();
    kill(m.pid(), libc::SIGTERM);
    let (mut child, root, _dir) = m.into_parts();
    assert!(wait_for(&mut child).expect("it ends").success());
    assert!(!is_mounted(&root));
    let e = errno(file.read(&mut [0; 10]));
    assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&e), "{e}");
}

#[test]
fn a_busy_mount_is_said_to_be_busy() {
    let model = small_model();
    let m = Mounted::new(model.path());
    let mut file = File::open(m.join("tensors/a.weight/raw")).unwrap();
    let umount = stfs([Path::new("umount"), m.root()]);
    umount.fails(&[m.root().to_str().unwrap(), "in use", "--lazy"]);
    assert!(m.join("model.json").exists());
    stfs([Path::new("umount"), "--lazy".as_ref(), m.root()]).ok();
    assert!(!is_mounted(m.root()));
    // An open file can still be read, and closing it ends the daemon.
    let mut got = Vec::new();
    file.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), 64);
    drop(file);
    let (mut child, _, _dir) = m.into_parts();
    assert!(wait_for(&mut child).expect("it ends").success());
}

#[test]
fn a_killed_daemons_mount_is_told_of_and_unmounted() {
    let model = small_model();
    let m = Background::new(model.path(), &[]);
    m.kill_with_keeper();
    let e = errno(std::fs::read(m.root.join("tensors/b.weight/raw")));
    // ECONNABORTED if the kernel was still taking the connection down.
    assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&e), "{e}");
    let mounts = stfs(["mounts"]).ok().out;
    let root = m.root.to_str().unwrap();
    let line = mounts.lines().find(|l| l.contains(root)).unwrap();
    assert!(
        line.contains("daemon died") && line.contains("stfs umount"),
        "{line}"
    );
    let json = stfs(["mounts", "--json"]).ok().json();
    let stale = json
        .as_array()
        .unwrap()
        .iter()
        .find(|e| e["mountpoint"] == root)
        .unwrap();
    assert_eq!(
        (&stale["stale"], &stale["pid"]),
        (&true.into(), &serde_json::Value::Null)
    );
    umount(&m.root).ok();
    assert!(!is_mounted(&m.root));
    assert_eq!(std::fs::read_dir(&m.root).unwrap().count(), 0);
}

#[test]
fn mounting_over_a_dead_mount_detaches_it_and_says_so() {
    let model = small_model();
    let m = Background::new(model.path(), &[]);
    m.kill_with_keeper();
    let ran = stfs([Path::new("mount"), model.path(), &m.root]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.err.contains("stale") && ran.err.contains(m.root.to_str().unwrap()),
        "{ran:?}"
    );
    assert!(m.root.join("tensors/a.weight/raw").exists());
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let here = format!(" {} ", m.root.display());
    assert_eq!(table.matches(&here).count(), 1);
    umount(&m.root).ok();
}

#[test]
fn mounts_lists_what_is_mounted() {
    let model = small_model();
    let m = Mounted::new(model.path());
    m.read("tensors/a.weight/raw");
    let status = m.status();
    assert_eq!(status["model"], model.path().to_str().unwrap());
    assert_eq!(
        (&status["pid"], &status["stale"]),
        (&m.pid().into(), &false.into())
    );
    assert!(status["bytes_served"].as_u64().unwrap() >= 64);
    assert!(status["uptime_s"].as_u64().unwrap() < 600);
    let table = stfs(["mounts"]).ok().out;
    let head: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(
        head,
        [
            "MODEL",
            "MOUNTPOINT",
            "PID",
            "UPTIME",
            "SERVED",
            "SANDBOX",
            "SOURCE"
        ]
    );
    let line = table
        .lines()
        .find(|l| l.contains(m.root().to_str().unwrap()))
        .unwrap();
    assert!(
        line.contains(&m.pid().to_string()) && line.trim_end().ends_with("ok"),
        "{line}"
    );
}

#[test]
fn mount_helper_by_its_own_name() {
    let model = small_model();
    let helper = model.join("mount.stfs");
    symlink(BIN, &helper).unwrap();
    let at = model.join("m");
    let run = |args: &[&str]| {
        let mut command = Command::new("timeout");
        command
            .args(["60"])
            .args([&helper, model.path(), &at])
            .args(args);
        Ran::of(command.output().unwrap())
    };
    // As mount(8) passes the options of fstab.
    let options = "rw,nofail,noauto,user,_netdev,x-systemd.automount,comment=x,noatime,threads=2,no_synthetic";
    run(&["-n", "-t", "stfs", "-o", options]).ok();
    assert!(is_mounted(&at) && at.join("model.json").exists());
    umount(&at).ok();
    // mount -f: everything except the mounting.
    let ran = run(&["-f", "-s"]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, "", ""));
    assert!(!is_mounted(&at));
    let ran = run(&["-o", "bogus"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains("bogus"), "{ran:?}");
    assert_eq!(run(&["-N"]).code, 2);
}

#[test]
fn mount_8_and_fstab_find_the_helper() {
    let model = small_model();
    let ran = as_root(
        &model,
        r#"
        # A private /usr/sbin with the helper in it: mount(8) looks nowhere else.
        mount -t tmpfs tmpfs "$(readlink -f /sbin)"
        cp "$BIN/stfs" /sbin/mount.stfs
        mkdir "$DIR/m"
        mount -t stfs "$MODEL" "$DIR/m" -o ro,noexec
        cat "$DIR/m/tensors/a.weight/raw" | wc -c
        findmnt -n -o FSTYPE,SOURCE "$DIR/m"
        umount "$DIR/m"
        echo "$MODEL $DIR/m stfs ro,nofail,allow_other,x-systemd.requires=/ 0 0" > "$DIR/fstab"
        mount -T "$DIR/fstab" "$DIR/m"
        nobody cat "$DIR/m/tensors/a.weight/raw" | wc -c
        umount "$DIR/m"
        "#,
    );
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines: Vec<&str> = ran
        .out
        .lines()
        .filter(|l| !l.starts_with("stfs: 2 tensors"))
        .collect();
    let source = format!("fuse.stfs {}", model.path().display());
    let squeezed: Vec<String> = lines
        .iter()
        .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(squeezed, ["64", &source, "64"]);
}
