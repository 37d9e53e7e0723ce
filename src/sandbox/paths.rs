//! What the process may still open by path: Landlock, Linux's rules that a process sets for itself. The
//! model's files, the log and the mount itself are open already, and are not asked about again; `stat` of a
//! path is not restricted.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, RestrictionStatus, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
    path_beneath_rules,
};
use rustix::fs::{Mode, OFlags};

use super::{Measure, driver};

/// The newest version of the rules that this code was written for. An older kernel enforces those of them
/// that it has.
const NEWEST: ABI = ABI::V9;

/// Opened again for each request thread; and what a daemon has in place of a terminal.
const DEVICES: &[&str] = &["/dev/fuse", "/dev/null"];

/// Read while serving: the groups of a process that opens a file (`/proc/PID/status`), this process's own
/// limits (how many threads help to decode, how much memory caches may have), the time zone, and the traces
/// of panics. What `/proc` has of another process's memory and environment is closed to a process without
/// capabilities, and in Landlock.
const READ: &[&str] = &[
    "/proc",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/dev/urandom",
];

/// This process's directory, where the driver names its threads.
const OWN: &str = "/proc/self";

/// Where the sockets of syslog are. A new one is made when its daemon is started again.
const SYSLOG: &[&str] = &["/dev", "/run/systemd/journal", "/var/run"];

/// Allows those paths and no others, no network, and no signals to other processes. The number is the
/// version of the kernel's rules.
pub fn restrict(gpu: bool) -> Measure {
    if gpu {
        pin_proc();
    }
    match enforce(gpu) {
        Ok(status) => match (status.ruleset, status.landlock) {
            (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => Err(
                "Landlock is not enabled; 'lsm=landlock,…' on the kernel's command line does that"
                    .into(),
            ),
            (RulesetStatus::NotEnforced, _) => {
                Err("the kernel has no Landlock (Linux 5.13)".into())
            }
            (
                _,
                LandlockStatus::Available {
                    effective_abi,
                    kernel_abi,
                },
            ) => {
                let version = kernel_abi.unwrap_or(effective_abi as i32);
                Ok(u32::try_from(version).ok())
            }
            _ => Ok(None),
        },
        Err(e) => Err(e.to_string()),
    }
}

fn enforce(gpu: bool) -> Result<RestrictionStatus, RulesetError> {
    let scope = match gpu {
        // The driver hands memory to other processes through sockets without a path.
        true => Scope::Signal.into(),
        false => Scope::from_all(NEWEST),
    };
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(scope)?
        .create()?;
    let rules = allow(rules, DEVICES, device())?;
    let rules = allow(rules, READ, read())?;
    let rules = allow(rules, std::env::current_exe(), AccessFs::ReadFile.into())?;
    let rules = allow(rules, SYSLOG, AccessFs::ResolveUnix.into())?;
    match gpu {
        true => allow_driver(rules)?.restrict_self(),
        false => rules.restrict_self(),
    }
}

/// What CUDA needs. `doc/SECURITY.md` says what is wider with it.
fn allow_driver(rules: RulesetCreated) -> Result<RulesetCreated, RulesetError> {
    let rules = allow(rules, driver::READ, read())?;
    let rules = allow(rules, driver::library_path(), read())?;
    let rules = allow(rules, driver::nodes(), device() | AccessFs::ReadDir)?;
    let rules = allow(rules, [OWN], AccessFs::WriteFile.into())?;
    let make = AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::MakeSock
        | AccessFs::MakeFifo
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::Truncate
        | AccessFs::ResolveUnix;
    allow(
        rules,
        driver::writable(),
        read() | AccessFs::WriteFile | make,
    )
}

/// Adds a rule for each of the paths that exists.
fn allow<P: AsRef<Path>>(
    rules: RulesetCreated,
    paths: impl IntoIterator<Item = P>,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    rules.add_rules(path_beneath_rules(paths, access))
}

fn read() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

fn device() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev
}

/// Keeps this process's directory in `/proc` open for as long as it lives: rules hold for the kernel's
/// object behind a path, and `/proc` makes a new one once nothing holds the last.
fn pin_proc() {
    if let Ok(held) = rustix::fs::open(OWN, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        std::mem::forget(held);
    }
}
