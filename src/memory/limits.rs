//! What the process may have: the smallest of the machine's memory, the limits of its cgroups and
//! RLIMIT_AS.

use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use crate::mounts::unescape;

/// Bytes that the process may have in all; `None` if nothing limits it.
pub fn of_process() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| mem_total(&text));
    [machine, getrlimit(Resource::As).current, cgroup(&read)]
        .into_iter()
        .flatten()
        .min()
}

fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The smallest limit of the process's cgroups and of those around them, of either version.
fn cgroup(read: &impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    let limits = groups.lines().filter_map(|line| {
        // `4:memory:/path` in version 1, `0::/path` in version 2.
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let files: &[&str] = match controllers {
            "" => &["memory.max", "memory.high"],
            list if list.split(',').any(|c| c == "memory") => &["memory.limit_in_bytes"],
            _ => return None,
        };
        let mut mounts = mounts.lines().rev().filter_map(Mount::parse);
        let mount = mounts.find(|m| m.has(controllers))?;
        mount.smallest(path, files, read)
    });
    limits.min()
}

/// A line of mountinfo, of a cgroup filesystem.
struct Mount {
    /// The cgroup that is its root.
    root: PathBuf,
    place: PathBuf,
    /// As mountinfo has it: 1 or 2.
    version: u8,
    options: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Mount> {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        let mut fields = after.split(' ');
        let version = match fields.next()? {
            "cgroup" => 1,
            "cgroup2" => 2,
            _ => return None,
        };
        Some(Mount {
            root: unescape(root.as_bytes()),
            place: unescape(place.as_bytes()),
            version,
            options: fields.nth(1)?.to_string(),
        })
    }

    /// Whether groups with these controllers are here.
    fn has(&self, controllers: &str) -> bool {
        match controllers {
            "" => self.version == 2,
            _ => self.version == 1 && self.options.split(',').any(|o| o == "memory"),
        }
    }

    /// The smallest number in any of `files` of a group and those around it.
    fn smallest(
        &self,
        group: &str,
        files: &[&str],
        read: &impl Fn(&Path) -> Option<String>,
    ) -> Option<u64> {
        // In a container the group may lie outside of what is mounted: then its root is all that can be
        // seen.
        let below = Path::new(group).strip_prefix(&self.root);
        let below = below
            .ok()
            .filter(|b| !b.starts_with(".."))
            .unwrap_or(Path::new(""));
        let group = self.place.join(below);
        let around = group.ancestors().take_while(|a| a.starts_with(&self.place));
        let texts = around.flat_map(|dir| files.iter().filter_map(move |f| read(&dir.join(f))));
        // A group without a limit has `max` there, or in version 1 a number next to 2^63.
        texts.filter_map(|text| text.trim().parse().ok()).min()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn limit(files: &[(&str, &str)]) -> Option<u64> {
        let files: HashMap<&Path, &str> = files.iter().map(|(p, t)| (Path::new(p), *t)).collect();
        cgroup(&|path| files.get(path).map(|text| text.to_string()))
    }

    #[test]
    fn the_smallest_limit_on_the_way_up_counts() {
        let both = [
            (
                "/proc/self/cgroup",
                "9:name=systemd:/\n4:cpu,memory:/a/b c/d\n0::/x/y\n",
            ),
            (
                "/proc/self/mountinfo",
                "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                 35 31 0:32 /a /sys/fs/cgroup/m\\040m rw,relatime shared:9 - cgroup cgroup rw,cpu,memory\n\
                 36 31 0:33 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n\
                 41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
            ),
            ("/sys/fs/cgroup/m m/b c/d/memory.limit_in_bytes", "900\n"),
            ("/sys/fs/cgroup/m m/b c/memory.limit_in_bytes", "700\n"),
            (
                "/sys/fs/cgroup/m m/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            // Outside of the mount.
            ("/sys/fs/cgroup/memory.limit_in_bytes", "1\n"),
        ];
        assert_eq!(limit(&both), Some(700));
        let unified = |name, text| {
            let mut all = both.to_vec();
            all.push((name, text));
            limit(&all)
        };
        assert_eq!(
            unified("/sys/fs/cgroup/unified/x/memory.max", "600\n"),
            Some(600)
        );
        assert_eq!(
            unified("/sys/fs/cgroup/unified/x/y/memory.high", "5\n"),
            Some(5)
        );
        assert_eq!(
            unified("/sys/fs/cgroup/unified/x/y/memory.max", "max\n"),
            Some(700)
        );
    }

    #[test]
    fn a_group_outside_of_the_mount_is_read_at_its_root() {
        for group in ["/docker/1", "/../other", "/"] {
            let found = limit(&[
                ("/proc/self/cgroup", &format!("0::{group}\n")),
                (
                    "/proc/self/mountinfo",
                    "1 2 0:3 /docker/2 /sys/fs/cgroup rw - cgroup2 c rw\n",
                ),
                ("/sys/fs/cgroup/memory.max", "4096\n"),
            ]);
            assert_eq!(found, Some(4096), "{group}");
        }
        assert_eq!(limit(&[]), None);
        let unmounted = [
            ("/proc/self/cgroup", "0::/\n"),
            ("/proc/self/mountinfo", ""),
        ];
        assert_eq!(limit(&unmounted), None);
    }

    #[test]
    fn the_machine_has_memory() {
        assert_eq!(mem_total("A: 1 kB\nMemTotal:   2048 kB\n"), Some(2 << 20));
        assert_eq!(mem_total("MemTotal: many"), None);
        assert!(of_process().is_some_and(|bytes| bytes > 1 << 20));
    }
}
