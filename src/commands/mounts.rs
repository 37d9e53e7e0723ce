//! `stfs mounts`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use crate::cli::MountsArgs;
use crate::mounts::{self, Daemon, Entry};
use crate::text::{bytes, printable};

pub(super) fn run(args: &MountsArgs) -> Result<ExitCode> {
    let mounts = mounts::list()?;
    if args.json {
        let all: Vec<Value> = mounts.iter().map(|(e, d)| object(e, d)).collect();
        let mut text = Vec::new();
        super::write_json(&mut text, &all)?;
        return super::print(&text);
    }
    let mut table = vec![
        [
            "MODEL",
            "MOUNTPOINT",
            "PID",
            "UPTIME",
            "SERVED",
            "SANDBOX",
            "SOURCE",
        ]
        .map(String::from),
    ];
    table.extend(mounts.iter().map(|(e, d)| row(e, d)));
    super::print(super::table(&table).as_bytes())
}

/// The daemon's value of `key`; null if it has none.
fn reported<'a>(daemon: &'a Daemon, key: &str) -> &'a Value {
    match daemon {
        Daemon::Answers(status) => &status[key],
        _ => &Value::Null,
    }
}

fn object(e: &Entry, daemon: &Daemon) -> Value {
    let get = |key| reported(daemon, key);
    json!({
        "model": e.model.to_string_lossy(),
        "mountpoint": e.mountpoint.to_string_lossy(),
        "stale": *daemon == Daemon::Died,
        "pid": get("pid"),
        "uptime_s": get("uptime_s"),
        "bytes_served": get("bytes_served"),
        "source_changed": get("source_changed"),
        "sandbox": get("sandbox"),
    })
}

fn row(e: &Entry, daemon: &Daemon) -> [String; 7] {
    let number = |key| reported(daemon, key).as_u64();
    let or_dash = |s: Option<String>| s.unwrap_or_else(|| "-".into());
    let source = match daemon {
        Daemon::Died => "daemon died: 'stfs umount' it",
        Daemon::Silent => "daemon does not answer",
        Daemon::Covered => "covered by another mount",
        Daemon::Private => "-",
        Daemon::Answers(_) => match reported(daemon, "source_changed").as_bool() {
            Some(true) => "changed",
            Some(false) => "ok",
            None => "-",
        },
    };
    [
        printable(&e.model.to_string_lossy()).into_owned(),
        printable(&e.mountpoint.to_string_lossy()).into_owned(),
        or_dash(number("pid").map(|n| n.to_string())),
        or_dash(number("uptime_s").map(duration)),
        or_dash(number("bytes_served").map(bytes)),
        or_dash(sandbox(reported(daemon, "sandbox"))),
        source.to_string(),
    ]
}

/// What the daemon has given up: `on`, `on, gpu`, `off`, or what is missing of it.
fn sandbox(report: &Value) -> Option<String> {
    let state = report["state"].as_str()?;
    let missing: Vec<&str> = match report["missing"].as_object() {
        Some(missing) => missing.keys().map(String::as_str).collect(),
        None => Vec::new(),
    };
    let mut words = vec![state.to_string()];
    if state == "partial" {
        words = vec![format!("without {}", missing.join(" and "))];
    }
    if state != "off" && report["gpu"] == true {
        words.push("gpu".into());
    }
    Some(printable(&words.join(", ")).into_owned())
}

/// Seconds as `3d 4h`, `4h 5m`, `5m 6s` or `6s`.
fn duration(seconds: u64) -> String {
    let (d, h, m, s) = (
        seconds / 86_400,
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60,
    );
    match (d, h, m) {
        (0, 0, 0) => format!("{s}s"),
        (0, 0, _) => format!("{m}m {s}s"),
        (0, ..) => format!("{h}h {m}m"),
        _ => format!("{d}d {h}h"),
    }
}
