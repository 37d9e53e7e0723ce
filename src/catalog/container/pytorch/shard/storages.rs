//! Storages that no tensor uses, for `verify`.

use std::collections::HashSet;

use super::super::describe::short;
use super::super::file::Storages;
use super::super::pickle::{Pickle, Rebuilt, Ref, Value};
use super::super::problems::Problems;

/// The most that are listed.
const MAX_LISTED: usize = 100;

/// Reports the storages that no tensor uses, wherever in the pickle it stands.
pub(super) fn report_unused(pickle: &Pickle, storages: &Storages, problems: &mut Problems) {
    let mut used: HashSet<&[u8]> = HashSet::new();
    let mut all_known = true;
    for value in (0..pickle.len()).filter_map(|place| u32::try_from(place).ok()) {
        match pickle.get(Ref(value)) {
            Value::Tensor(Rebuilt::Strided(strided)) => {
                if let Value::Storage(storage) = pickle.get(strided.storage) {
                    used.insert(storage.key);
                }
            }
            // It may have been made of a storage.
            Value::Tensor(_) => all_known = false,
            _ => {}
        }
    }
    if !all_known {
        used.extend(pickle.storages().map(|storage| storage.key));
    }
    let storages = storages.of.iter();
    let unused = storages.filter(|(key, _)| !used.contains(&***key));
    let mut unused: Vec<_> = unused.collect();
    unused.sort_by_key(|(key, range)| (range.start, key.len(), *key));
    let more = unused.len().saturating_sub(MAX_LISTED);
    for (key, range) in unused.into_iter().take(MAX_LISTED) {
        let key = String::from_utf8_lossy(key);
        problems.add(|| {
            format!(
                "storage {} ({} bytes) is used by no tensor",
                short(&key),
                range.end.saturating_sub(range.start)
            )
        });
    }
    if more > 0 {
        problems.add(|| format!("{more} more storages are used by no tensor"));
    }
}
