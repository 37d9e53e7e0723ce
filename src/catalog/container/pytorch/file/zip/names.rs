//! What an archive is, by the names of its members.

use super::directory::Directory;
use crate::catalog::container::pytorch::file::detect::Other;

/// The pickles of a checkpoint, `NAME/data.pkl`: the places of such members, and their `NAME/`.
pub(super) fn pickles(directory: &Directory) -> impl Iterator<Item = (usize, &[u8])> {
    directory.by_name().filter_map(|(number, name)| {
        let root = name.strip_suffix(super::PICKLE)?;
        let (slash, root_name) = root.split_last()?;
        let is_root = *slash == b'/' && !root_name.is_empty() && !root_name.contains(&b'/');
        is_root.then_some((number, root))
    })
}

/// What an archive is instead of a checkpoint.
pub(super) fn other(directory: &Directory) -> Option<Other> {
    let root = pickles(directory).next().map(|(_, root)| root);
    let mut seen = Seen::default();
    for (_, name) in directory.by_name() {
        let slash = name.iter().position(|byte| *byte == b'/');
        let (top, below) = name.split_at(slash.map_or(0, |at| at + 1));
        // Beside the checkpoint's own directory an archive may have anything.
        if root.is_none_or(|root| root == top) {
            seen.add(top, below);
        }
    }
    match seen {
        Seen { export: true, .. } => Some(Other::Export),
        Seen { package: true, .. } => Some(Other::Package),
        Seen { script: true, .. } => Some(Other::TorchScript),
        _ if root.is_some() => None,
        Seen { arrays: true, .. } => Some(Other::Npz),
        _ => Some(Other::Zip),
    }
}

#[derive(Default)]
struct Seen {
    export: bool,
    package: bool,
    script: bool,
    arrays: bool,
}

impl Seen {
    fn add(&mut self, top: &[u8], below: &[u8]) {
        self.arrays |= below.ends_with(b".npy");
        if top.is_empty() {
            return;
        }
        self.export |= below == b"archive_format"
            || below.starts_with(b"models/") && below.ends_with(b".json");
        self.package |= below == b".data/extern_modules";
        self.script |= below == b"constants.pkl" || below.starts_with(b"code/");
    }
}
