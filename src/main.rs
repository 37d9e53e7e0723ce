//! The `stfs` program: arguments in, exit code out.
//!
//! The entry point is C's `main`, not Rust's. Before Rust's `main` the runtime opens `/dev/null` in place
//! of each standard descriptor that is closed, exactly as another program may have opened it on purpose:
//! `stfs ls >&-` would write nothing and report success. Here they are looked at first.

#![no_main]

use std::borrow::Cow;
use std::ffi::{CStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use stfs::cli::Cli;
use stfs::commands;

/// Does what Rust's runtime does before and after its `main`, except that a closed standard descriptor
/// stays one that cannot be written to.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    commands::reserve_closed_descriptors();
    // SAFETY: no other thread exists yet. A closed pipe is an error of `write` instead of a signal.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let argument = |i| {
        // SAFETY: C promises that `argv` has `argc` strings, which live as long as the process.
        let bytes = unsafe { CStr::from_ptr(*argv.add(i)) }.to_bytes();
        OsString::from_vec(bytes.to_vec())
    };
    let args = (0..usize::try_from(argc).unwrap_or(0)).map(argument);
    let args = args.collect();
    let code = std::panic::catch_unwind(|| run(args)).unwrap_or(ExitCode::from(101));
    commands::finish_log();
    // The number is not to be had from an `ExitCode` in another way.
    let number = (0..=u8::MAX).find(|&n| ExitCode::from(n) == code);
    std::process::exit(number.unwrap_or(1).into())
}

fn run(args: Vec<OsString>) -> ExitCode {
    let args = match commands::mount::as_mount_helper(&args) {
        Some(Ok(args)) => args,
        Some(Err(usage)) => {
            commands::complain(&format!("stfs: {}", stfs::text::printable(&usage)));
            return ExitCode::from(2);
        }
        None => args,
    };
    let (failure, outcome) = match Cli::try_parse_from(args) {
        Ok(cli) => {
            commands::raise_file_limit();
            let failure = commands::exit_code_of_failure(&cli.command);
            (failure, commands::run(cli.command))
        }
        Err(e) => (1, explain(&e)),
    };
    match outcome {
        Ok(code) => code,
        Err(e) if commands::is_closed_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            commands::complain(&format!("stfs: {}", commands::one_line(&e)));
            match e.downcast_ref::<commands::Usage>() {
                Some(_) => ExitCode::from(2),
                None => ExitCode::from(failure),
            }
        }
    }
}

/// Prints the help or the version, or what is wrong with the arguments.
fn explain(e: &clap::Error) -> anyhow::Result<ExitCode> {
    if let ErrorKind::DisplayHelp | ErrorKind::DisplayVersion = e.kind() {
        return commands::print_styled(&e.render());
    }
    let text = e.to_string();
    let lines: Vec<Cow<'_, str>> = text.lines().map(stfs::text::printable).collect();
    let shown = lines.join("\n");
    // Every error of the program begins with its name. An argument may be a hostile file name.
    match shown.strip_prefix("error: ") {
        Some(error) => commands::complain(&format!("stfs: {error}")),
        None => commands::complain(&shown),
    }
    Ok(ExitCode::from(2))
}
