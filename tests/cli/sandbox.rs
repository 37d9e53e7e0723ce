//! What a running daemon has given up, as the kernel reports it, and that it serves without it. What a
//! process in the sandbox cannot do is in `tests/sandbox.rs`.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use serde_json::{Value, json};

use crate::common::mount::{Background, command, umount};
use crate::common::sys::is_root;
use crate::common::{Mounted, Ran, stfs};
use crate::{as_root, mount_logging_to, small_model};

/// The values of a field in the status of each thread of a process.
fn of_threads(pid: i32, field: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let value = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix(field))?;
        Some(line.trim_start_matches(':').trim().to_string())
    };
    tasks.filter_map(|task| value(task.unwrap())).collect()
}

fn assert_all(pid: i32, field: &str, want: &str) {
    let all = of_threads(pid, field);
    assert!(all.len() > 4, "{all:?}");
    assert!(all.iter().all(|v| v == want), "{field}: {all:?}");
}

/// The daemon's children: its keeper.
fn children(pid: i32) -> Vec<i32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    list.split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect()
}

/// The bytes of every regular file of a mount, by path.
fn everything(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut dirs, mut files) = (vec![root.to_path_buf()], BTreeMap::new());
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.symlink_metadata().unwrap().file_type() {
                kind if kind.is_dir() => dirs.push(path),
                kind if kind.is_file() => {
                    let bytes = std::fs::read(&path).unwrap();
                    files.insert(path.strip_prefix(root).unwrap().to_path_buf(), bytes);
                }
                _ => {}
            }
        }
    }
    files
}

fn sandbox_of(mountpoint: &Path) -> Value {
    let all = stfs(["mounts", "--json"]).ok().json();
    let mut all = all.as_array().unwrap().iter();
    let entry = all.find(|m| m["mountpoint"] == mountpoint.to_str().unwrap());
    entry.unwrap()["sandbox"].clone()
}

/// The column of `stfs mounts`.
fn column(mountpoint: &Path) -> String {
    let table = stfs(["mounts"]).ok().out;
    let (from, to) = {
        let head = table.lines().next().unwrap();
        (head.find("SANDBOX").unwrap(), head.find("SOURCE").unwrap())
    };
    let row = table
        .lines()
        .find(|l| l.contains(mountpoint.to_str().unwrap()));
    row.unwrap()[from..to].trim().to_string()
}

#[test]
fn every_thread_has_given_everything_up() {
    let model = small_model();
    let (front, back) = (
        Mounted::with(model.path(), &["--gpu", "off"]),
        Background::new(model.path(), &["--gpu", "off"]),
    );
    for (pid, root) in [
        (front.pid(), front.root()),
        (back.pid(), back.root.as_path()),
    ] {
        // Also of threads that were started for a request.
        everything(root);
        assert_all(pid, "NoNewPrivs", "1");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_all(pid, set, "0000000000000000");
        }
        if is_root() {
            assert_all(pid, "CapBnd", "0000000000000000");
        }
        assert_all(pid, "Seccomp", "2");
        assert_all(pid, "Umask", "0077");
        let report = sandbox_of(root);
        assert_eq!(report["state"], "on", "{report}");
        assert!(report["landlock"].as_u64().unwrap() > 0, "{report}");
        for measure in [
            "all_threads",
            "no_new_privs",
            "no_capabilities",
            "seccomp",
            "no_core_dumps",
        ] {
            assert_eq!(report[measure], true, "{report}");
        }
        assert_eq!(
            (&report["gpu"], &report["missing"]),
            (&json!(false), &json!({}))
        );
        assert_eq!(column(root), "on");
    }
}

#[test]
fn roots_keeper_keeps_only_what_unmounting_takes() {
    let model = small_model();
    let mount = Background::new(model.path(), &["--gpu", "off"]);
    let keeper = children(mount.pid())[0];
    // CAP_DAC_READ_SEARCH and CAP_SYS_ADMIN; an ordinary user's needs those of fusermount3.
    let (kept, no_new_privs) = match is_root() {
        true => ("0000000000200004", "1"),
        false => ("0000000000000000", "0"),
    };
    // It may still be about to: it is told when the mount is complete.
    let mut looks = 0;
    while of_threads(keeper, "NoNewPrivs") != [no_new_privs]
        || of_threads(keeper, "CapEff") != [kept]
    {
        looks += 1;
        assert!(looks < 1000, "{:?}", of_threads(keeper, "CapEff"));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(of_threads(keeper, "CapPrm"), [kept]);
    if is_root() {
        assert_eq!(of_threads(keeper, "CapBnd"), [kept]);
    }
}

#[test]
fn the_same_is_served_with_it_and_without_it() {
    let model = small_model();
    model.file("config.json", "{}");
    let (with, without) = (
        Mounted::new(model.path()),
        Mounted::with(model.path(), &["--sandbox", "off"]),
    );
    let files = everything(with.root());
    assert!(files.len() > 12, "{:?}", files.keys());
    assert!(files.contains_key(Path::new("files/config.json")));
    assert!(files == everything(without.root()));
    assert_all(without.pid(), "Seccomp", "0");
    assert_all(without.pid(), "NoNewPrivs", "0");
    assert_eq!(sandbox_of(without.root())["state"], "off");
    assert_eq!(column(without.root()), "off");
    let option = Background::new(model.path(), &["-o", "sandbox=off"]);
    assert_all(option.pid(), "Seccomp", "0");
    for wrong in [["-o", "sandbox=maybe"], ["--sandbox", "maybe"]] {
        let ran = stfs(["mount", wrong[0], wrong[1], "model", "mountpoint"]);
        assert!(ran.code == 2 && ran.err.contains("maybe"), "{ran:?}");
    }
}

#[test]
fn no_process_of_a_mount_keeps_the_callers_tokens() {
    const TOKEN: &str = "hf_0123456789abcdef";
    let model = small_model();
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("m");
    let log = dir.path().join("log");
    let mut mount = mount_logging_to(&log, model.path(), &at);
    mount.env("HF_TOKEN", TOKEN).env("LANG", "C.UTF-8");
    Ran::of(mount.output().unwrap()).ok();
    let pid = crate::common::sys::getxattr(&at, "user.stfs.status").unwrap();
    let pid = serde_json::from_slice::<Value>(&pid).unwrap()["pid"]
        .as_i64()
        .unwrap() as i32;
    let processes: Vec<i32> = children(pid).into_iter().chain([pid]).collect();
    let environments = processes
        .iter()
        .map(|pid| std::fs::read(format!("/proc/{pid}/environ")));
    let environments: Vec<_> = environments.collect();
    umount(&at).ok();
    // An ordinary user may not even look.
    for bytes in environments.into_iter().flatten() {
        assert!(!bytes.windows(TOKEN.len()).any(|w| w == TOKEN.as_bytes()));
    }
}

#[test]
fn a_crash_leaves_no_core_unless_asked() {
    let model = small_model();
    let limit = |pid: i32| {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits
            .lines()
            .find(|l| l.starts_with("Max core file size"))
            .unwrap();
        line.split_whitespace().nth(4).unwrap().to_string()
    };
    let without = Mounted::new(model.path());
    assert_eq!(limit(without.pid()), "0");
    let own = limit(std::process::id() as i32);
    for flags in [&["--core-dumps"][..], &["-o", "core_dumps"]] {
        let with = Mounted::with(model.path(), flags);
        assert_eq!(limit(with.pid()), own);
        assert_eq!(sandbox_of(with.root())["core_dumps"], true);
    }
}

#[test]
fn a_log_file_is_not_for_everybody() {
    let model = small_model();
    for (mask, log, expected) in [
        (0o000, model.join("open"), 0o640),
        (0o022, model.join("usual"), 0o640),
        (0o077, model.join("closed"), 0o600),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("m");
        let mut mount = mount_logging_to(&log, model.path(), &at);
        // SAFETY: umask is async-signal-safe, and needs nothing of the parent.
        unsafe {
            mount.pre_exec(move || {
                libc::umask(mask);
                Ok(())
            })
        };
        Ran::of(mount.output().unwrap()).ok();
        umount(&at).ok();
        let mode = std::fs::metadata(&log).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, expected, "umask {mask:o}");
        assert!(std::fs::read_to_string(&log).unwrap().contains("2 tensors"));
    }
}

/// Mounts behind a filter that refuses these calls, as containers do; `mount` is left.
fn mount_where_refused(calls: &[libc::c_long], errno: i32, model: &Path, at: &Path) {
    let refused = calls.iter().map(|&call| (call, Vec::new())).collect();
    let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
    let refuse = SeccompAction::Errno(errno as u32);
    let filter = SeccompFilter::new(refused, SeccompAction::Allow, refuse, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    let mut mount = command([Path::new("mount"), Path::new("--gpu=off"), model, at]);
    // SAFETY: installing a filter that has been compiled is two system calls.
    unsafe {
        mount.pre_exec(move || {
            seccompiler::apply_filter(&program).map_err(|_| std::io::Error::last_os_error())
        })
    };
    Ran::of(mount.output().unwrap()).ok();
}

#[test]
fn what_a_container_refuses_is_missing_and_said() {
    if !is_root() {
        // A filter takes fusermount3 the right to mount.
        return;
    }
    const LANDLOCK: [libc::c_long; 3] = [
        libc::SYS_landlock_create_ruleset,
        libc::SYS_landlock_add_rule,
        libc::SYS_landlock_restrict_self,
    ];
    let one = |call| vec![call];
    let model = small_model();
    for (calls, errno, missing) in [
        (LANDLOCK.to_vec(), libc::ENOSYS, "landlock"),
        (LANDLOCK.to_vec(), libc::EPERM, "landlock"),
        (
            one(libc::SYS_landlock_restrict_self),
            libc::EPERM,
            "landlock",
        ),
        (one(libc::SYS_seccomp), libc::EPERM, "seccomp"),
        (one(libc::SYS_seccomp), libc::ENOSYS, "seccomp"),
        (one(libc::SYS_capset), libc::EPERM, "no_capabilities"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("m");
        mount_where_refused(&calls, errno, model.path(), &at);
        let files = std::panic::catch_unwind(|| everything(&at).len());
        let (report, shown) = (sandbox_of(&at), column(&at));
        umount(&at).ok();
        assert!(files.unwrap() > 10);
        assert_eq!(report["state"], "partial", "{report}");
        let names: Vec<&String> = report["missing"].as_object().unwrap().keys().collect();
        assert_eq!(names, [missing], "{report}");
        assert_eq!(shown, format!("without {missing}"));
    }
}

#[test]
fn an_ordinary_user_has_it_too() {
    let ran = as_root(
        &small_model(),
        r#"
        device 666
        nobody "$BIN/stfs" mount --gpu off --log-file "$DIR/log" "$MODEL" "$DIR/m" > /dev/null
        nobody wc -c "$DIR/m/tensors/a.weight/raw" | cut -d' ' -f1
        nobody wc -c "$DIR/m/export/model.safetensors" > /dev/null
        nobody "$BIN/stfs" mounts --json | grep -A30 "$DIR/m" | grep -o '"state": "[a-z]*"' | head -1
        pid=$(nobody "$BIN/stfs" mounts | grep "$DIR/m" | awk '{print $3}')
        grep -E '^(NoNewPrivs|CapEff|Seccomp):' "/proc/$pid/status" | tr -d '\t'
        if nobody cat "/proc/$pid/environ" > /dev/null 2>&1; then echo "its environment is readable"; fi
        nobody "$BIN/stfs" umount "$DIR/m"
        "#,
    )
    .ok();
    let got: Vec<&str> = ran.out.lines().collect();
    let want = [
        "64",
        "\"state\": \"on\"",
        "CapEff:0000000000000000",
        "NoNewPrivs:1",
        "Seccomp:2",
    ];
    assert_eq!(got, want, "{ran:?}");
}
