//! Which versions of the mount's files the kernel may have cached.
//!
//! The kernel keeps the pages of a file from one open to the next, unless an open tells it to drop them.
//! That must happen once to each file after each change of its sources, and not more often.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::catalog::Look;

/// The versions, by inode number: the sum of those of the file's sources, which only grow. 0 is left out,
/// so that nothing is kept here while nothing changes.
#[derive(Default)]
pub(super) struct Kept(Mutex<HashMap<u64, u64>>);

/// The version of a file whose sources look like this; `None` if it is not certain.
pub(super) fn version(looks: &[Look]) -> Option<u64> {
    looks.iter().map(|look| look.version).sum()
}

impl Kept {
    /// Whether all pages that the kernel may have of the file are of this version.
    pub fn is_current(&self, ino: u64, version: Option<u64>) -> bool {
        let kept = self.lock().get(&ino).copied().unwrap_or(0);
        version == Some(kept)
    }

    /// The kernel has dropped what it had of the file, and knows no other version than this. To be called
    /// when the open file is closed: only then has the kernel certainly done it.
    pub fn dropped(&self, ino: u64, version: Option<u64>) {
        if let Some(version) = version.filter(|&version| version != 0) {
            self.lock().insert(ino, version);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(version: Option<u64>) -> Look {
        Look {
            version,
            may_settle: false,
            access: None,
        }
    }

    #[test]
    fn each_file_is_dropped_once_for_each_version() {
        let kept = Kept::default();
        let now = version(&[look(Some(0)), look(Some(0))]);
        assert!(kept.is_current(7, now) && kept.is_current(7, version(&[])));
        let now = version(&[look(Some(1)), look(Some(2))]);
        assert!(!kept.is_current(7, now));
        kept.dropped(7, now);
        assert!(kept.is_current(7, now) && !kept.is_current(8, now));
        let unknown = version(&[look(Some(3)), look(None)]);
        assert!(!kept.is_current(7, unknown));
        kept.dropped(7, unknown);
        assert!(kept.is_current(7, now));
    }
}
