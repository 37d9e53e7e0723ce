//! `files/`: the model directory's other files, fixed and opened when the model is mounted (so that
//! no path is resolved later, which might then lead into this very mount).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use super::{Layout, Node, Top};
use crate::catalog::{Catalog, EntryKind, Look, Object, Stat, natural};
use crate::error::Error;

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
    let source = match catalog.store.open(own) {
        Err(e @ Error::Unreachable { .. }) => {
            log::warn!("not in files/: {e}");
            return None;
        }
        opened => opened.ok(),
    };
    // The file that was opened is served, whatever has its name later.
    let stat = source.as_ref().map_or(listed, |file| file.stat().clone());
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
    /// Looks at the files that a node's bytes are read from. None if those are in memory: then a source
    /// that stalls does not matter.
    pub fn look(&self, node: Node) -> Vec<Look> {
        self.sources(node).iter().map(|file| file.look()).collect()
    }

    fn sources(&self, node: Node) -> Vec<&Arc<dyn Object>> {
        let files = &self.model.catalog.files;
        match node {
            Node::TensorFile(file, id) if file.row().reads_sources => {
                let of_tensor = self.model.source_files(id).into_iter();
                of_tensor.filter_map(|f| files.get(f as usize)).collect()
            }
            Node::Top(Top::MetadataJson) | Node::Export(_) => files.iter().collect(),
            Node::Other(i) => self.other_file(i).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// All source files of the mount.
    pub fn all_sources(&self) -> Vec<Arc<dyn Object>> {
        let other = self.other_files.iter().filter_map(|f| f.source.as_ref());
        other.chain(&self.model.catalog.files).cloned().collect()
    }
}
