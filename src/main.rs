//! The `stfs` program: arguments in, exit code out.

use std::borrow::Cow;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use stfs::cli::Cli;
use stfs::commands;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    let args = match commands::mount::as_mount_helper(&args) {
        Some(Ok(args)) => args,
        Some(Err(usage)) => {
            commands::complain(&format!("stfs: {}", stfs::text::printable(&usage)));
            return ExitCode::from(2);
        }
        None => args,
    };
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(e) => return print(&e),
    };
    commands::raise_file_limit();
    let failure = commands::exit_code_of_failure(&cli.command);
    match commands::run(cli.command) {
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
fn print(e: &clap::Error) -> ExitCode {
    let text = e.to_string();
    let lines: Vec<_> = text.lines().map(stfs::text::printable).collect();
    let harmless = lines.iter().all(|l| matches!(l, Cow::Borrowed(_)));
    // Every error of the program begins with its name.
    match text.strip_prefix("error: ") {
        // An argument may be a hostile file name.
        Some(_) => {
            let shown = lines.join("\n");
            commands::complain(&format!(
                "stfs: {}",
                shown.strip_prefix("error: ").unwrap_or(&shown)
            ));
        }
        None if !harmless => commands::complain(&lines.join("\n")),
        // A closed pipe (stfs --help | head) is not an error.
        None => drop(e.print()),
    }
    match e.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(2),
    }
}
