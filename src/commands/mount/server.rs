//! The process that serves: it opens the model, has its keeper mount it, gives up what it does not need
//! any more, and answers.

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::caller::Caller;
use super::keeper::{self, Attached, Keeper};
use super::summary::summary;
use crate::catalog::{Audience, Catalog};
use crate::cli::MountArgs;
use crate::commands::logging::{self, Destination};
use crate::commands::{complain, is_closed_pipe, print, request};
use crate::fs::Fs;
use crate::fuse::{self, ServeOptions, Serving};
use crate::gpu;
use crate::layout::Layout;
use crate::memory;
use crate::model::{Model, OpenModel};
use crate::mounts::{self, MountId};
use crate::sandbox;
use crate::text::printable;

/// Mounts and serves; `caller` waits if this is in the background.
pub(super) fn run(args: &MountArgs, caller: Option<Caller>) -> Result<ExitCode> {
    // Reads the limits, and tells the allocator about them, while there is one thread and /proc is open.
    memory::budget();
    let keeper = Keeper::start(caller.as_ref().map(AsFd::as_fd))?;
    let log = Destination::open(args.log_file.as_deref(), args.foreground)?;
    log.install(args.verbose, args.foreground);
    let mount = Mount::start(args, keeper)?;
    match caller {
        Some(caller) => {
            log::info!("{}", mount.line.trim_end());
            caller.ready(&mount.line)?;
        }
        // A pipe that nobody reads any more is not an error.
        None => match print(mount.line.as_bytes()) {
            Err(e) if !is_closed_pipe(&e) => {
                mount.keeper.end();
                return Err(e);
            }
            _ => {}
        },
    }
    mount.serve()
}

/// A mount that has answered a request.
struct Mount {
    serving: Serving,
    keeper: Arc<Keeper>,
    fs: Arc<Fs>,
    /// The summary line to print.
    line: String,
}

impl Mount {
    /// Opens the model, has it mounted, checks that the mount answers, and starts all of its threads: what
    /// can fail has succeeded when the caller is told.
    fn start(args: &MountArgs, keeper: Keeper) -> Result<Mount> {
        // Before the model, whose headers may take a while to read.
        keeper::check(&args.mountpoint)?;
        let model = Arc::new(open(args)?);
        // What parsing the headers took.
        memory::give_back();
        report_what_is_unusual(&model.catalog, args.foreground && args.log_file.is_none());
        let gpu = gpu::Config {
            access: args.gpu,
            limit: args.gpu_limit,
            ..gpu::Config::default()
        };
        let fs = Arc::new(Fs::with_gpu(Layout::new(model.clone()), gpu));
        let source = model.catalog.model.to_string();
        let options = ServeOptions {
            allow_other: args.allow_other,
            threads: args.threads.into(),
        };
        options.rehearse()?;
        let attached = keeper.attach(&args.mountpoint, &source, args.allow_other)?;
        let line = summary(&model, &attached.mountpoint);
        let mount = Mount::serve_attached(args, attached, &options, keeper, fs, line)?;
        let threads = options.threads;
        start_thread("stfs-facts", move || model.fetch_facts(threads))?;
        Ok(mount)
    }

    fn serve_attached(
        args: &MountArgs,
        attached: Attached,
        options: &ServeOptions,
        keeper: Keeper,
        fs: Arc<Fs>,
        line: String,
    ) -> Result<Mount> {
        let shown = printable(&attached.mountpoint.to_string_lossy()).into_owned();
        if attached.detached_stale {
            complain(&format!(
                "stfs: {shown}: detached a stale stfs mount (its daemon had died)"
            ));
        }
        let connected = fuse::connect(fs.clone(), attached.device, options)?;
        // Now, because the mount exists, and no thread has been started that would keep what this one
        // gives up.
        fs.sandboxed(sandbox::enter(sandbox::Options {
            on: args.sandbox,
            gpu: gpu::BUILT_IN && args.gpu != gpu::Access::Off && sandbox::gpu_may_be_there(),
            core_dumps: args.core_dumps,
        }));
        // From here on a signal ends the mount in order. Before, it ends this process, and the keeper takes
        // the mount away.
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        // The first thread: until now messages were queued.
        logging::start().context("start a thread")?;
        let serving = connected.serve()?;
        keeper.wait_for_an_answer()?;
        let keeper = Arc::new(keeper);
        keeper.listen(fs.clone())?;
        end_on_signal(signals, keeper.clone(), attached.id, fs.clone(), shown)?;
        Ok(Mount {
            serving,
            keeper,
            fs,
            line,
        })
    }

    /// Serves until it is unmounted or a signal arrives.
    fn serve(self) -> Result<ExitCode> {
        self.keeper.ready();
        let ended = self.serving.wait();
        if ended.is_ok() {
            self.keeper.unmounted();
        }
        self.fs.stop_gpu();
        ended?;
        log::info!("unmounted");
        log::logger().flush();
        self.keeper.end();
        Ok(ExitCode::SUCCESS)
    }
}

/// Ends the mount in order when a signal comes, or has come.
fn end_on_signal(
    mut signals: Signals,
    keeper: Arc<Keeper>,
    id: MountId,
    fs: Arc<Fs>,
    shown: String,
) -> Result<()> {
    start_thread("stfs-signals", move || {
        if let Some(signal) = signals.forever().next() {
            log::info!("signal {signal}: unmounting {shown}");
            end_by_signal(&keeper, id, &fs);
        }
    })
}

fn end_by_signal(keeper: &Keeper, id: MountId, fs: &Fs) -> ! {
    // First, while waiting callers can still be answered.
    fs.stop_gpu();
    // Lazily: a shell whose working directory is in the mount must not keep it mounted.
    if let Err(e) = keeper.detach(id) {
        log::error!("{e:#}");
    }
    // Readers that still have files open get a second, then ENOTCONN.
    std::thread::sleep(std::time::Duration::from_secs(1));
    log::logger().flush();
    keeper.end();
    std::process::exit(0)
}

fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name(name.into());
    thread.spawn(run).context("start a thread")?;
    Ok(())
}

fn open(args: &MountArgs) -> Result<Model> {
    let (model, flags) = (&args.model.model, &args.model.options);
    if let Some(mounted) = mounts::model_at(model) {
        let (shown, mounted) = (model.display(), mounted.display());
        bail!("{shown}: is itself a mount, of {mounted}; mount that");
    }
    let request = OpenModel {
        audience: Audience::of_mount(args.allow_other),
        ..request(flags)
    };
    Ok(request.open(model)?)
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
            complain(&format!("stfs: {}", printable(line)));
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
