//! `stfs mount`, and `mount.stfs` as mount(8) calls it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Usage;
use super::daemon::{self, Side};
use super::logging::Destination;
use crate::catalog::{Audience, Catalog, OpenOptions, Source};
use crate::cli::MountArgs;
use crate::fs::Fs;
use crate::fuse::{self, MountOptions};
use crate::gpu;
use crate::layout::Layout;
use crate::meta::ModelSummary;
use crate::model::{Model, ModelOptions};
use crate::mounts::{self, Entry};
use crate::text::{bytes, plural};

pub(super) fn run(mut args: MountArgs) -> Result<ExitCode> {
    apply_options(&mut args)?;
    if args.fake {
        return Ok(ExitCode::SUCCESS);
    }
    if !args.foreground {
        daemon::close_inherited();
    }
    let log = Destination::open(args.log_file.as_deref(), args.foreground)?;
    if args.foreground {
        log.install(args.verbose, true);
        let started = start(&args)?;
        super::print(started.line.as_bytes())?;
        return serve(started);
    }
    match daemon::split()? {
        Side::Parent(code) => Ok(code),
        Side::Child(parent) => {
            log.install(args.verbose, false);
            let started = start(&args)?;
            parent.ready(&started.line)?;
            log::info!("{}", started.line.trim_end());
            serve(started)
        }
    }
}

/// A mount that has answered a request.
struct Started {
    mounted: fuse::Mounted,
    fs: Arc<Fs>,
    /// The summary line to print.
    line: String,
    signals: Signals,
}

/// Opens the model, mounts it and checks that the mount answers.
fn start(args: &MountArgs) -> Result<Started> {
    let mountpoint = Mountpoint::prepare(&args.mountpoint)?;
    let (model, flags) = (&args.model.model, &args.model.options);
    if let Some(mounted) = mounts::model_at(model) {
        let (shown, mounted) = (model.display(), mounted.display());
        bail!("{shown}: is itself a mount, of {mounted}; mount that");
    }
    let source = Source::find(model, Audience::of_mount(args.allow_other))?;
    let open = OpenOptions {
        allow_missing: flags.allow_missing,
    };
    let model = Model::new(
        Catalog::read(&source, open)?,
        ModelOptions {
            synthetic: !flags.no_synthetic,
        },
    );
    give_back_free_memory();
    report_what_is_unusual(&model.catalog, args.foreground && args.log_file.is_none());
    let model = Arc::new(model);
    let gpu = gpu::Config {
        access: args.gpu,
        limit: args.gpu_limit,
        ..gpu::Config::default()
    };
    let fs = Arc::new(Fs::with_gpu(Layout::new(model.clone()), gpu));
    let options = MountOptions {
        allow_other: args.allow_other,
        threads: args.threads.into(),
    };
    // Before mounting: a signal's default action would leave a dead mount behind.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let mounted = fuse::mount(fs.clone(), &mountpoint.path, &options)?;
    std::fs::metadata(mountpoint.path.join("tensors")).with_context(|| {
        format!(
            "{}: mounted, but does not answer",
            mountpoint.path.display()
        )
    })?;
    let line = summary(&model, &mountpoint.path);
    mountpoint.keep();
    let threads = args.threads.into();
    std::thread::Builder::new()
        .name("stfs-facts".into())
        .spawn(move || model.fetch_facts(threads))
        .context("start a thread")?;
    Ok(Started {
        mounted,
        fs,
        line,
        signals,
    })
}

/// Returns the memory that parsing the headers took to the system: otherwise the allocator keeps it for
/// as long as the daemon runs.
fn give_back_free_memory() {
    // SAFETY: malloc_trim only touches the allocator's own free lists, under its own locks.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Reports what is unusual about a model that can still be served: all of it in the log, and what may be
/// a mistake on standard error, too, because nobody reads the log of a mount that works.
fn report_what_is_unusual(catalog: &Catalog, logs_to_stderr: bool) {
    for note in &catalog.notes {
        log::info!("{note}");
    }
    let warn = |line: &str| {
        log::warn!("{line}");
        if !logs_to_stderr {
            super::complain(&format!("stfs: {}", crate::text::printable(line)));
        }
    };
    for unused in &catalog.configs.unused {
        warn(&unused.to_string());
    }
    if let Some(caution) = catalog.caution() {
        warn(&caution);
    }
    if catalog.shards_missing {
        warn("some of the model's files are missing or damaged; 'stfs verify' lists them");
    }
}

/// Serves until it is unmounted or a signal arrives.
fn serve(started: Started) -> Result<ExitCode> {
    let Started {
        mounted,
        fs,
        mut signals,
        ..
    } = started;
    let place = mounted.place().clone();
    let gpu = fs.clone();
    std::thread::Builder::new()
        .name("stfs-signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                log::info!("signal {signal}: unmounting {}", place.path().display());
                // First, while waiting callers can still be answered.
                gpu.stop_gpu();
                // Lazily: a shell whose working directory is in the mount must not keep it mounted.
                if let Err(e) = place.unmount() {
                    log::error!("{e}");
                }
                // Readers that still have files open get a second, then ENOTCONN.
                std::thread::sleep(std::time::Duration::from_secs(1));
                log::logger().flush();
                std::process::exit(0);
            }
        })?;
    let ended = mounted.wait();
    fs.stop_gpu();
    ended?;
    log::info!("unmounted");
    log::logger().flush();
    Ok(ExitCode::SUCCESS)
}

fn summary(model: &Model, mountpoint: &Path) -> String {
    let s = ModelSummary::of(model);
    let files = model.catalog.files.len();
    let dtype = s
        .main_dtype()
        .map_or_else(String::new, |d| format!(", {d}"));
    let on_disk = model.catalog.files.iter().map(|f| f.len()).sum();
    let count = |n: usize, what: &str| match n {
        0 => String::new(),
        n => format!(" ({} {what})", plural(n as u64, "tensor")),
    };
    let absent = count(model.catalog.absent.len(), "missing")
        + &count(
            model.catalog.left_out.len(),
            "left out, see 'stfs ls --why'",
        );
    format!(
        "stfs: {}{absent}, {}{}, {}, {} at {}\n",
        plural(s.tensors, "tensor"),
        plural(s.parameters, "parameter"),
        crate::text::printable(&dtype),
        plural(files as u64, "file"),
        bytes(on_disk),
        crate::text::printable(&mountpoint.to_string_lossy())
    )
}

/// The mountpoint, ready to be mounted on. If it was created for this mount and the mount fails, it is
/// removed again.
struct Mountpoint {
    path: PathBuf,
    created: bool,
}

impl Mountpoint {
    fn prepare(mountpoint: &Path) -> Result<Mountpoint> {
        let shown = mountpoint.display();
        if mounts::is_stale(mountpoint) {
            detach_stale(mountpoint)?;
        }
        match std::fs::metadata(mountpoint) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                std::fs::create_dir_all(mountpoint)
                    .with_context(|| format!("create mountpoint {shown}"))?;
                Ok(Mountpoint {
                    path: std::fs::canonicalize(mountpoint)?,
                    created: true,
                })
            }
            Err(e) => Err(e).with_context(|| format!("mountpoint {shown}")),
            Ok(meta) if !meta.is_dir() => {
                bail!("mountpoint {shown}: is not a directory; give an empty directory")
            }
            Ok(_) => {
                let path = std::fs::canonicalize(mountpoint)?;
                if let Some(e) = mounts::top(&path)?.filter(Entry::is_stfs) {
                    bail!(
                        "mountpoint {shown}: {} is mounted there already; 'stfs umount {shown}' first",
                        e.model.display()
                    );
                }
                let entry = std::fs::read_dir(&path)
                    .with_context(|| format!("mountpoint {shown}"))?
                    .next();
                if let Some(Ok(entry)) = entry {
                    bail!(
                        "mountpoint {shown}: is not empty (it holds {:?}); give an empty directory",
                        entry.file_name()
                    );
                }
                Ok(Mountpoint {
                    path,
                    created: false,
                })
            }
        }
    }

    fn keep(mut self) {
        self.created = false;
    }
}

impl Drop for Mountpoint {
    fn drop(&mut self) {
        if self.created {
            // Only an empty directory, and only the last component.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

fn detach_stale(mountpoint: &Path) -> Result<()> {
    let shown = mountpoint.display();
    let Some(entry) = mounts::top(mountpoint)?.filter(Entry::is_stfs) else {
        bail!(
            "mountpoint {shown}: is a mount of another program whose daemon has died; 'fusermount3 -u {shown}' detaches it"
        );
    };
    fuse::unmount(&entry.mountpoint, true)?;
    super::complain(&format!(
        "stfs: {}: detached a stale stfs mount (its daemon had died)",
        crate::text::printable(&shown.to_string())
    ));
    Ok(())
}

/// Applies `-o` options. Those that every mount has anyway, and those that are meant for mount(8) and
/// systemd, are ignored.
fn apply_options(args: &mut MountArgs) -> Result<()> {
    for option in std::mem::take(&mut args.options) {
        let (key, value) = match option.split_once('=') {
            Some((k, v)) => (k, Some(v)),
            None => (option.as_str(), None),
        };
        match (key, value) {
            ("allow_other", None) => args.allow_other = true,
            ("no_synthetic", None) => args.model.options.no_synthetic = true,
            ("allow_missing", None) => args.model.options.allow_missing = true,
            ("threads", Some(v)) => {
                args.threads = v
                    .parse()
                    .ok()
                    .filter(|n| (1..=1024).contains(n))
                    .ok_or_else(|| Usage(format!("-o threads={v}: not a number from 1 to 1024")))?;
            }
            ("gpu", Some(v)) => {
                args.gpu = v.parse().map_err(|e| Usage(format!("-o gpu={v}: {e}")))?;
            }
            ("gpu_limit", Some(v)) => {
                let bytes = crate::text::parse_bytes(v)
                    .map_err(|e| Usage(format!("-o gpu_limit={v}: {e}")))?;
                args.gpu_limit = Some(bytes);
            }
            ("log_file", Some(v)) => args.log_file = Some(v.into()),
            (
                ""
                | "ro"
                | "rw"
                | "nosuid"
                | "nodev"
                | "noexec"
                | "suid"
                | "dev"
                | "exec"
                | "auto"
                | "noauto"
                | "nofail"
                | "user"
                | "users"
                | "nouser"
                | "owner"
                | "group"
                | "_netdev"
                | "defaults"
                | "default_permissions"
                | "atime"
                | "noatime"
                | "relatime"
                | "norelatime"
                | "strictatime"
                | "nodiratime"
                | "async"
                | "sync"
                | "silent"
                | "loud"
                | "mand"
                | "nomand",
                None,
            ) => {}
            (k, _) if k.starts_with("x-") || k == "comment" || k == "fsname" || k == "subtype" => {}
            _ => return Err(Usage(format!("-o {option}: unknown mount option")).into()),
        }
    }
    Ok(())
}

/// Called as `mount.stfs MODEL MOUNTPOINT [-sfnv] [-N ns] [-t type] [-o options]`, as mount(8) does:
/// the same as arguments of `stfs mount`. `None` under any other name.
pub fn as_mount_helper(args: &[OsString]) -> Option<Result<Vec<OsString>, String>> {
    let name = Path::new(args.first()?).file_name()?;
    if name != "mount.stfs" {
        return None;
    }
    let mut out: Vec<OsString> = vec!["stfs".into(), "mount".into()];
    let mut rest = args[1..].iter();
    while let Some(arg) = rest.next() {
        match arg.to_str() {
            Some("-f") => out.push("--fake".into()),
            Some("-s" | "-n") => {}
            Some("-N" | "-t") => {
                if rest.next().is_none() {
                    return Some(Err(format!("{}: needs a value", arg.display())));
                }
            }
            _ => out.push(arg.clone()),
        }
    }
    Some(Ok(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_helper_arguments() {
        let args = |s: &str| s.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(as_mount_helper(&args("stfs mount a b")).is_none());
        let got = as_mount_helper(&args(
            "/sbin/mount.stfs /m /mnt -n -t stfs -o rw,allow_other",
        ));
        assert_eq!(got, Some(Ok(args("stfs mount /m /mnt -o rw,allow_other"))));
    }
}
