//! `stfs mounts`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use crate::cli::MountsArgs;
use crate::mounts;
use crate::text::{bytes, printable};

pub(super) fn run(args: &MountsArgs) -> Result<ExitCode> {
    let rows: Vec<(mounts::Entry, Option<Value>)> = mounts::list()?
        .into_iter()
        .map(|e| {
            let status = (!e.stale).then(|| mounts::status(&e.mountpoint)).flatten();
            (e, status)
        })
        .collect();
    if args.json {
        let all: Vec<Value> = rows.iter().map(|(e, s)| object(e, s.as_ref())).collect();
        let mut text = Vec::new();
        super::write_json(&mut text, &all)?;
        return super::print(&text);
    }
    let mut table =
        vec![["MODEL", "MOUNTPOINT", "PID", "UPTIME", "SERVED", "SOURCE"].map(String::from)];
    table.extend(rows.iter().map(|(e, s)| row(e, s.as_ref())));
    super::print(super::table(&table).as_bytes())
}

fn object(e: &mounts::Entry, status: Option<&Value>) -> Value {
    let get = |key: &str| {
        status
            .and_then(|s| s.get(key))
            .cloned()
            .unwrap_or(Value::Null)
    };
    json!({
        "model": e.model.to_string_lossy(),
        "mountpoint": e.mountpoint.to_string_lossy(),
        "stale": e.stale,
        "pid": get("pid"),
        "uptime_s": get("uptime_s"),
        "bytes_served": get("bytes_served"),
        "source_changed": get("source_changed"),
    })
}

fn row(e: &mounts::Entry, status: Option<&Value>) -> [String; 6] {
    let number = |key: &str| status.and_then(|s| s.get(key)?.as_u64());
    let or_dash = |s: Option<String>| s.unwrap_or_else(|| "-".into());
    let source = match (
        e.stale,
        status.and_then(|s| s.get("source_changed")?.as_bool()),
    ) {
        (true, _) => "daemon died: 'stfs umount' it",
        (_, Some(true)) => "changed",
        (_, Some(false)) => "ok",
        (_, None) => "-",
    };
    [
        printable(&e.model.to_string_lossy()).into_owned(),
        printable(&e.mountpoint.to_string_lossy()).into_owned(),
        or_dash(number("pid").map(|n| n.to_string())),
        or_dash(number("uptime_s").map(duration)),
        or_dash(number("bytes_served").map(bytes)),
        source.to_string(),
    ]
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
