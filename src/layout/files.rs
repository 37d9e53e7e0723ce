//! `files/`: the model directory's other files, fixed and opened when the model is mounted (so that
//! no path is resolved later, which might then lead into this very mount).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use super::{Layout, Node, Top};
use crate::catalog::{Catalog, EntryKind, Object, Stat, natural};

/// A file of the model directory that is not one of the served weights.
pub struct OtherFile {
    /// Its name in the model directory; each byte that is not valid UTF-8 appears as `%XX`.
    pub name: String,
    /// What it looked like at mount.
    pub stat: Stat,
    /// The open file; `None` if it may not be read.
    pub source: Option<Arc<dyn Object>>,
}

/// Longest name that Linux takes, in bytes.
const MAX_NAME: usize = 255;

/// Regular files, and links to such, at the top level of the model directory. A file is left out if
/// its name as UTF-8 is too long, or is another file's own name.
pub(super) fn scan(catalog: &Catalog) -> Vec<OtherFile> {
    let entries = catalog.store.list().unwrap_or_default().into_iter();
    let mut found: Vec<(String, OsString, EntryKind)> = entries
        .map(|entry| (shown(&entry.name), entry.name, entry.kind))
        .filter(|(name, ..)| name.len() <= MAX_NAME)
        .collect();
    // If two files would be shown under one name, the file that really has it comes first.
    found.sort_by_cached_key(|(name, own, _)| (name.clone(), own.to_str().is_none(), own.clone()));
    found.dedup_by(|(a, ..), (b, ..)| a == b);
    let mut files: Vec<OtherFile> = found
        .into_iter()
        .filter_map(|(name, own, kind)| open(catalog, name, &own, kind))
        .collect();
    files.sort_by(|a, b| natural(&a.name, &b.name));
    files
}

/// Opens the file `own`, unless it is not to be shown.
fn open(catalog: &Catalog, name: String, own: &OsStr, kind: EntryKind) -> Option<OtherFile> {
    let is_weights = |own: &str| catalog.weight_files.iter().any(|w| w == own);
    if own.to_str().is_some_and(is_weights) {
        return None;
    }
    // Only what is known to be a file is opened: opening a device may have effects.
    let EntryKind::File(listed) = kind else {
        return None;
    };
    let source = catalog.store.open(own).ok();
    // The file that was opened is served, whatever has its name later.
    let stat = source.as_ref().map_or(listed, |file| *file.stat());
    Some(OtherFile { name, stat, source })
}

/// A file's name as the mount shows it: the mount's names are UTF-8.
fn shown(own: &OsStr) -> String {
    let mut name = String::new();
    for chunk in own.as_bytes().utf8_chunks() {
        name.push_str(chunk.valid());
        for byte in chunk.invalid() {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    name
}

impl Layout {
    /// Whether a file that the node's bytes come from was ever seen to differ from what was mounted.
    /// Looks now, too.
    pub fn source_changed(&self, node: Node) -> bool {
        let catalog = &self.model.catalog;
        match node {
            Node::TensorFile(file, id) if file.row().reads_sources => {
                let files = self.model.source_files(id);
                files.iter().any(|&f| catalog.files[f as usize].changed())
            }
            Node::Export(_) | Node::Top(Top::MetadataJson) => {
                catalog.files.iter().any(|f| f.changed())
            }
            Node::Other(i) => self.other_file(i).is_some_and(|f| f.changed()),
            // Generated from headers, which are in memory.
            _ => false,
        }
    }
}
