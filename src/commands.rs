//! One small file per command, and what the commands share.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use rustix::process::Resource;

use crate::catalog::OpenOptions;
use crate::cli::{Cli, Command, ModelArgs, ModelFlags, Setting};
use crate::model::{Given, Model, ModelOptions, OpenModel};

mod cat;
mod diff;
mod gpu;
mod info;
mod logging;
mod ls;
mod man;
pub mod mount;
mod mounts;
mod progress;
mod show;
mod stat;
mod streams;
mod table;
mod terminal;
mod umount;
mod verify;
mod weights;

use streams::stdout;
pub use streams::{complain, print, print_styled, reserve_closed_descriptors};
use table::words as table;

/// A usage error: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Runs a command.
///
/// # Errors
/// The error to print as `stfs: WHAT: WHY`.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => umount::run(&args),
        Command::Mounts(args) => mounts::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Ls(args) => ls::run(&args),
        Command::Cat(args) => cat::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Gpu(command) => gpu::run(&command),
        Command::Completions(args) => {
            let mut text = Vec::new();
            let mut command = <Cli as clap::CommandFactory>::command();
            clap_complete::generate(args.shell, &mut command, "stfs", &mut text);
            print(&text)
        }
        Command::Man => {
            let command = <Cli as clap::CommandFactory>::command();
            print(man::page(command)?.as_bytes())
        }
    }
}

/// Raises the soft limit on open files, which is often 1,024, to the hard limit: every shard of a model
/// is open at once, and a mount also keeps every file under `files/` open.
pub fn raise_file_limit() {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If raising it is not permitted, the limit stays as it was.
    let _ = rustix::process::setrlimit(Resource::Nofile, limit);
}

/// The exit code of a failure: 1, except for commands whose 1 means "found something".
pub fn exit_code_of_failure(command: &Command) -> u8 {
    match command {
        Command::Stat(args) if args.check => 2,
        Command::Diff(_) | Command::Verify(_) => 2,
        _ => 1,
    }
}

/// Whether the error only means that the reader of the output has closed it (`| head`).
pub fn is_closed_pipe(e: &anyhow::Error) -> bool {
    e.chain().any(|cause| {
        let of_io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        // serde_json does not show the underlying error in its chain.
        let of_json = cause
            .downcast_ref::<serde_json::Error>()
            .and_then(serde_json::Error::io_error_kind);
        of_io.or(of_json) == Some(io::ErrorKind::BrokenPipe)
    })
}

/// An error and its causes on one line, each only once.
pub fn one_line(e: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in e.chain().map(ToString::to_string) {
        // Many messages end with their cause already.
        if !line.ends_with(&cause) {
            let colon = if line.is_empty() { "" } else { ": " };
            line.push_str(colon);
            line.push_str(&cause);
        }
    }
    line.push_str(&advice(e));
    crate::text::printable(&line).into_owned()
}

/// What to do about an error of the operating system that may come from any file.
fn advice(e: &anyhow::Error) -> String {
    let mut causes = e.chain().filter_map(|c| c.downcast_ref::<io::Error>());
    if !causes.any(|c| c.raw_os_error() == Some(libc::EMFILE)) {
        return String::new();
    }
    let limit = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit = limit.map_or_else(|| "unlimited".into(), |n| n.to_string());
    format!(
        "; all files of a model are open at once: raise the limit, which is {limit} ('ulimit -Hn N'; LimitNOFILE=N in a systemd unit)"
    )
}

/// Writes what is left of a daemon's log, as far as the log takes it. To be called at the end of `main`.
pub fn finish_log() {
    log::logger().flush();
}

/// Writes pretty JSON and a newline. Names in it cannot control a terminal.
fn write_json(out: &mut impl Write, value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    out.write_all(crate::text::printable_json(&text).as_bytes())?;
    writeln!(out)?;
    Ok(())
}

/// Opens the model for a command that does not mount, and fetches the shapes that are in tensor data.
fn open_model(args: &ModelArgs) -> crate::Result<Model> {
    let model = request(&args.options).open(&args.model)?;
    model.fetch_facts(FACT_THREADS);
    Ok(model)
}

/// How the flags have a model opened, for the caller alone.
fn request(flags: &ModelFlags) -> OpenModel {
    OpenModel {
        files: OpenOptions {
            allow_missing: flags.allow_missing,
        },
        options: ModelOptions {
            synthetic: !flags.no_synthetic,
        },
        given: given(&flags.set),
        ..OpenModel::default()
    }
}

/// Values for a recipe's parameters.
fn given(set: &[Setting]) -> Vec<Given> {
    let given = |setting: &Setting| Given {
        name: setting.name.clone(),
        value: setting.value.clone(),
    };
    set.iter().map(given).collect()
}

/// Threads that fetch shapes from tensor data. They wait for the disk rather than for a core.
const FACT_THREADS: usize = 16;

/// Compiles a glob in which `*` matches anything, dots and slashes included.
fn matcher(glob: Option<&str>) -> Result<impl Fn(&str) -> bool + use<>> {
    let compiled = match glob {
        None => None,
        Some(g) => Some(
            globset::GlobBuilder::new(g)
                .literal_separator(false)
                .backslash_escape(true)
                .build()
                .map_err(|e| Usage(format!("glob: {e}")))?
                .compile_matcher(),
        ),
    };
    Ok(move |name: &str| compiled.as_ref().is_none_or(|m| m.is_match(name)))
}

/// A glob that matches nothing is probably a mistake. It is an error, even after an empty JSON list, so
/// that a script notices it.
fn check_matched(glob: Option<&str>, found: usize, what: &str) -> Result<()> {
    match glob {
        Some(glob) if found == 0 => {
            anyhow::bail!("no {what} matches '{glob}'; 'stfs ls MODEL' lists all tensors")
        }
        _ => Ok(()),
    }
}
