//! The process that makes a request, and the groups that it is in.

use std::fs;

/// The process that makes a request.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its thread, as `/proc` knows it; 0 if it is outside of this daemon's PID namespace.
    pub pid: u32,
}

impl Caller {
    /// Whether it is in a group; `None` if that cannot be found out.
    pub fn is_in(&self, group: u32) -> Option<bool> {
        match group == self.gid {
            true => Some(true),
            false => Some(self.groups()?.contains(&group)),
        }
    }

    /// Its supplementary groups. A request does not carry them, but the caller waits for its answer, so it is
    /// still there.
    fn groups(&self) -> Option<Vec<u32>> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        groups(&status, (self.uid, self.gid))
    }
}

/// The groups in a thread's `/proc/PID/status`, if its file-system user and group are these: another thread
/// may act for the caller.
fn groups(status: &str, (uid, gid): (u32, u32)) -> Option<Vec<u32>> {
    let numbers = |key| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_ascii_whitespace()
            .map(|n| n.parse().ok())
            .collect::<Option<Vec<u32>>>()
    };
    let acts_as = |ids: Vec<u32>, id| ids.get(3) == Some(&id);
    let same = acts_as(numbers("Uid:")?, uid) && acts_as(numbers("Gid:")?, gid);
    same.then(|| numbers("Groups:"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_a_thread_that_acts_as_the_caller() {
        let status = "Name:\tx\nUid:\t0\t0\t0\t7\nGid:\t0\t0\t0\t8\nGroups:\t3 4 \n";
        assert_eq!(groups(status, (7, 8)), Some(vec![3, 4]));
        assert_eq!(groups(status, (0, 8)), None);
        assert_eq!(groups(status, (7, 0)), None);
        assert_eq!(
            groups("Uid:\t1 1 1 1\nGid: 1 1 1 1\nGroups:\n", (1, 1)),
            Some(vec![])
        );
        assert_eq!(groups("", (1, 1)), None);
    }
}
