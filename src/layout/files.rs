//! `files/`: the model directory's other files, fixed and opened when the model is mounted (so that
//! no path is resolved later, which might then lead into this very mount).

use std::sync::Arc;

use super::{Layout, Node};
use crate::catalog::{Catalog, SourceFile, Stat, natural};

/// A file of the model directory that is no served weight.
pub struct OtherFile {
    /// Its name in the model directory.
    pub name: String,
    /// What it looked like at mount.
    pub stat: Stat,
    /// The open file; `None` where it may not be read.
    pub source: Option<Arc<SourceFile>>,
}

/// Regular files, and links to such, at the top level of the model directory.
pub(super) fn scan(catalog: &Catalog) -> Vec<OtherFile> {
    let Ok(entries) = std::fs::read_dir(&catalog.dir) else {
        return Vec::new();
    };
    let mut files: Vec<OtherFile> = entries
        .flatten()
        .filter_map(|entry| {
            // The mount's names are UTF-8; a name that is not cannot be a file of a model.
            let name = entry.file_name().into_string().ok()?;
            if catalog.weight_files.contains(&name) {
                return None;
            }
            // Looked at first: to open a device may do something to it.
            let meta = std::fs::metadata(entry.path()).ok()?;
            if !meta.is_file() {
                return None;
            }
            let source = SourceFile::open(&entry.path(), &name).ok();
            // What is opened is what is served, whatever has the name by then.
            let stat = source.as_ref().map_or(Stat::of(&meta), |file| file.stat);
            Some(OtherFile { name, stat, source })
        })
        .collect();
    files.sort_by(|a, b| natural(&a.name, &b.name));
    files
}

impl Layout {
    /// Whether a file that the node's bytes come from was ever seen to differ from what was mounted.
    /// Looks now, too.
    pub fn source_changed(&self, node: Node) -> bool {
        let catalog = &self.model.catalog;
        match node {
            Node::Raw(id) | Node::F32(id) | Node::Npy(id) | Node::Preview(id) => {
                let mut files = Vec::new();
                self.model.source_files(id, &mut files);
                files.sort_unstable();
                files.dedup();
                files.iter().any(|&f| catalog.files[f as usize].changed())
            }
            Node::Export(_) => catalog.files.iter().any(|f| f.changed()),
            Node::File(i) => self.other_file(i).is_some_and(|f| f.changed()),
            // Made of headers, which are in memory.
            _ => false,
        }
    }
}
