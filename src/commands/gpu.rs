//! `stfs gpu`: the ioctl, from the shell.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::json;

use super::progress::Progress;
use crate::cli::{GpuCommand, GpuReleaseArgs, GpuStatusArgs, GpuUploadArgs};
use crate::ioctl::{self, GpuDevice, GpuEntry, GpuIo, Header};
use crate::text::{bytes, printable};

pub(super) fn run(command: &GpuCommand) -> Result<ExitCode> {
    match command {
        GpuCommand::Upload(args) => upload(args),
        GpuCommand::Release(args) => release(args),
        GpuCommand::Status(args) => status(args),
    }
}

/// Calls `act` for each path, and goes on if it fails for one.
fn each(
    paths: &[impl AsRef<Path>],
    mut act: impl FnMut(&Path) -> Result<String>,
) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for path in paths {
        let path = path.as_ref();
        let shown = path.display();
        match act(path) {
            Ok(outcome) => {
                let line = format!("{}: {outcome}\n", printable(&shown.to_string()));
                super::print(line.as_bytes())?;
            }
            Err(e) => {
                super::complain(&format!("stfs: {}", printable(&format!("{shown}: {e:#}"))));
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn upload(args: &GpuUploadArgs) -> Result<ExitCode> {
    each(&args.paths, |path| {
        let file = File::open(path).context("open")?;
        let mut io = GpuIo {
            device: args.device,
            op_flags: if args.pin { ioctl::PIN } else { 0 },
            // Short enough for a bar that moves.
            timeout_ms: 100,
            ..GpuIo::request()
        };
        let mut progress = None;
        loop {
            ioctl::upload(file.as_fd(), &mut io).map_err(|e| explain(&e, &io))?;
            progress
                .get_or_insert_with(|| Progress::new(io.nbytes))
                .at(io.done_bytes);
            if io.state != ioctl::LOADING {
                break;
            }
        }
        // The lease ends with the open file; the memory stays.
        Ok(format!("{} on GPU {}", bytes(io.nbytes), io.device_ordinal))
    })
}

fn release(args: &GpuReleaseArgs) -> Result<ExitCode> {
    each(&args.paths, |path| {
        let file = File::open(path).context("open")?;
        let devices = match args.device {
            Some(device) => BTreeSet::from([device]),
            None => ioctl::list(file.as_fd())
                .map_err(|e| explain(&e, &GpuIo::request()))?
                .iter()
                .map(|entry| entry.device_ordinal)
                .collect(),
        };
        let mut freed = Vec::new();
        for device in devices {
            let mut io = GpuIo {
                device,
                op_flags: ioctl::EVICT,
                ..GpuIo::request()
            };
            match ioctl::release(file.as_fd(), &mut io) {
                Ok(()) => freed.push(device.to_string()),
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                Err(e) => return Err(explain(&e, &io)),
            }
        }
        match freed.is_empty() {
            true => anyhow::bail!("is not in GPU memory"),
            false => Ok(format!("freed on GPU {}", freed.join(", "))),
        }
    })
}

fn status(args: &GpuStatusArgs) -> Result<ExitCode> {
    let file =
        File::open(&args.mountpoint).with_context(|| args.mountpoint.display().to_string())?;
    let failed = |e: io::Error| {
        let why = match e.raw_os_error() {
            Some(libc::ENOTTY) => anyhow::Error::msg("is not in an stfs mount"),
            _ => explain(&e, &GpuIo::request()),
        };
        why.context(args.mountpoint.display().to_string())
    };
    let (objects, text) = if args.devices {
        let devices = ioctl::devices(file.as_fd()).map_err(failed)?;
        let objects = devices.iter().map(device_object).collect();
        (serde_json::Value::Array(objects), device_table(&devices))
    } else {
        let entries = ioctl::list(file.as_fd()).map_err(failed)?;
        let objects = entries.iter().map(entry_object).collect();
        (serde_json::Value::Array(objects), entry_table(&entries))
    };
    match args.json {
        false => super::print(text.as_bytes()),
        true => {
            let mut text = Vec::new();
            super::write_json(&mut text, &objects)?;
            super::print(&text)
        }
    }
}

fn entry_object(e: &GpuEntry) -> serde_json::Value {
    json!({
        "path": e.path(),
        "device": e.device_ordinal,
        "state": state(e),
        "nbytes": e.nbytes,
        "done_bytes": e.done_bytes,
        "leases": e.leases,
        "pinned": e.flags & ioctl::PIN != 0,
        "auto_free": e.flags & ioctl::AUTO_FREE != 0,
        "alloc_id": e.alloc_id,
    })
}

fn state(e: &GpuEntry) -> &'static str {
    match e.state {
        ioctl::RESIDENT => "resident",
        _ => "loading",
    }
}

fn entry_table(entries: &[GpuEntry]) -> String {
    if entries.is_empty() {
        return "nothing is in GPU memory\n".into();
    }
    let mut rows = vec![["GPU", "STATE", "BYTES", "LEASES", "KEPT", "PATH"].map(String::from)];
    rows.extend(entries.iter().map(|e| {
        let state = match e.state {
            ioctl::LOADING if e.nbytes > 0 => format!("{} %", e.done_bytes * 100 / e.nbytes),
            _ => state(e).into(),
        };
        let kept = match e.flags {
            f if f & ioctl::PIN != 0 => "pinned",
            f if f & ioctl::AUTO_FREE != 0 => "while leased",
            _ => "until evicted",
        };
        [
            e.device_ordinal.to_string(),
            state,
            bytes(e.nbytes),
            e.leases.to_string(),
            kept.into(),
            printable(&e.path()).into_owned(),
        ]
    }));
    super::table(&rows)
}

fn device_object(d: &GpuDevice) -> serde_json::Value {
    json!({
        "device": d.ordinal,
        "uuid": uuid(d),
        "name": d.name(),
        "total": d.total,
        "free": (d.free > 0).then_some(d.free),
        "limit": (d.cap > 0).then_some(d.cap),
        "can_export": d.flags & ioctl::DEVICE_CAN_EXPORT != 0,
    })
}

fn device_table(devices: &[GpuDevice]) -> String {
    let mut rows = vec![["GPU", "NAME", "TOTAL", "FREE", "LIMIT", "IPC", "UUID"].map(String::from)];
    let or_dash = |n: u64| if n > 0 { bytes(n) } else { "-".into() };
    rows.extend(devices.iter().map(|d| {
        let exports = d.flags & ioctl::DEVICE_CAN_EXPORT != 0;
        [
            d.ordinal.to_string(),
            printable(&d.name()).into_owned(),
            bytes(d.total),
            or_dash(d.free),
            or_dash(d.cap),
            if exports { "yes" } else { "no" }.into(),
            uuid(d),
        ]
    }));
    super::table(&rows)
}

/// As nvidia-smi writes it.
fn uuid(d: &GpuDevice) -> String {
    let mut text = String::from("GPU");
    for (i, byte) in d.uuid.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&i) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// What an errno of the ioctl means, and what to do about it.
fn explain(e: &io::Error, io: &GpuIo) -> anyhow::Error {
    let needs = bytes(io.nbytes);
    let text = match e.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "the mount has the GPU switched off (--gpu off)".into(),
        Some(libc::ENODEV) if !crate::gpu::BUILT_IN => {
            "this stfs was built without GPU support; build it with the feature 'gpu'".into()
        }
        Some(libc::ENODEV) => {
            "the mount's daemon finds no CUDA driver (libcuda.so.1) or no device".into()
        }
        Some(libc::ENXIO) => "there is no such GPU; 'stfs gpu status --devices' lists them".into(),
        Some(libc::ENOMEM) => format!("the GPU has no room for {needs}"),
        Some(libc::EDQUOT) => format!(
            "needs {needs}, and --gpu-limit has no room for it: what else is resident is leased or pinned; 'stfs gpu status' lists it"
        ),
        Some(libc::EINVAL) => {
            "the mount refuses the request: its daemon is of another version, or the tensor has more than 8 dimensions".into()
        }
        Some(libc::ESTALE) => "its file changed; try again, or mount the model again".into(),
        Some(libc::EIO) => "its file could not be read; the mount's log has the reason".into(),
        Some(libc::EREMOTEIO) => format!("CUDA error {}; the mount's log names the call", io.cu_error),
        Some(libc::ENOENT) => "was released while it was being loaded".into(),
        Some(libc::EBUSY) => {
            "another process holds it, or it is part of a whole model ('stfs gpu release MOUNTPOINT/tensors' frees that)".into()
        }
        Some(libc::EACCES) => "only the mount's owner and root may do this (mount with --gpu all to let others)".into(),
        Some(libc::EAGAIN) => "the CUDA driver is still starting; try again".into(),
        Some(libc::ENOTTY) => "is not a tensor in an stfs mount".into(),
        _ => e.to_string(),
    };
    anyhow::Error::msg(text)
}
