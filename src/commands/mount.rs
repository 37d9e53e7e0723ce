//! `stfs mount`, and `mount.stfs` as mount(8) calls it.
//!
//! A mount takes two processes: the *server* answers the kernel, and the small *keeper* beside it mounts and
//! unmounts. In the background a third, the *caller*, waits until the mount answers.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::MountArgs;

mod caller;
mod keeper;
mod link;
mod options;
mod server;
mod summary;

use caller::Side;
pub use options::as_mount_helper;

pub(super) fn run(mut args: MountArgs) -> Result<ExitCode> {
    options::apply(&mut args)?;
    if args.fake {
        return Ok(ExitCode::SUCCESS);
    }
    if args.foreground {
        return server::run(&args, None);
    }
    caller::close_all_but(&[]);
    match caller::split()? {
        Side::Caller(code) => Ok(code),
        Side::Server(caller) => server::run(&args, Some(caller)),
    }
}
