//! Options as mount(8) passes them.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;

use crate::cli::MountArgs;
use crate::commands::Usage;

/// What every mount has anyway, and what is meant for mount(8) and systemd.
const IGNORED: &[&str] = &[
    "",
    "ro",
    "rw",
    "nosuid",
    "nodev",
    "noexec",
    "suid",
    "dev",
    "exec",
    "auto",
    "noauto",
    "nofail",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "_netdev",
    "defaults",
    "default_permissions",
    "atime",
    "noatime",
    "relatime",
    "norelatime",
    "strictatime",
    "nodiratime",
    "async",
    "sync",
    "silent",
    "loud",
    "mand",
    "nomand",
];

/// Applies `-o` options. Those that every mount has anyway, and those that are meant for mount(8) and
/// systemd, are ignored.
pub(super) fn apply(args: &mut MountArgs) -> Result<()> {
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
            ("set", Some(v)) => {
                let setting =
                    crate::cli::setting(v).map_err(|e| Usage(format!("-o set={v}: {e}")))?;
                args.model.options.set.push(setting);
            }
            ("log_file", Some(v)) => args.log_file = Some(v.into()),
            ("sandbox", Some(v)) => {
                args.sandbox =
                    crate::cli::on_or_off(v).map_err(|e| Usage(format!("-o sandbox={v}: {e}")))?;
            }
            ("core_dumps", None) => args.core_dumps = true,
            (word, None) if IGNORED.contains(&word) => {}
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
