//! The layout: which paths exist, as nodes with computed inode numbers, and which view each file
//! shows.
//!
//! Everything here that may take long (making `tree/` or `index.json`, waiting for facts) asks
//! [`crate::patience`] first, and fails on a thread that must not wait.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crate::catalog::{Object, Stat};
use crate::error::{Error, Result};
use crate::export::Export;
use crate::model::{Model, TensorId};
use crate::patience;
use crate::tree::{Branch, DirIndex, NameTree};

mod files;
mod generated;
mod listing;
mod node;
mod shared;
mod tensor_file;

use files::OtherFile;
pub use node::{Kind, Node, Top};
#[cfg(test)]
pub(crate) use tensor_file::document;
pub use tensor_file::{Place, Row, Shown, TensorFile};

/// All paths of a mount.
pub struct Layout {
    /// The model whose tensors these are.
    pub model: Arc<Model>,
    other_files: Vec<OtherFile>,
    tree: OnceLock<NameTree>,
    dir_stat: Stat,
    all_stat: Stat,
    /// Whether any source or the model directory has an access control list.
    pub has_acls: bool,
    generated: generated::GeneratedFiles,
    shared: shared::SharedFiles,
    /// By file, then tensor: lengths that are worth remembering. 0: not measured yet.
    lens: [Box<[AtomicU32]>; TensorFile::COUNT],
}

impl Layout {
    /// Lays out a model. Looks at the model directory's other files, once.
    pub fn new(model: Arc<Model>) -> Layout {
        let lens = |row: &Row| match row.remember_len {
            true => (0..model.id_count()).map(|_| 0.into()).collect(),
            false => Box::default(),
        };
        let mut rows = TensorFile::all();
        let other_files = files::scan(&model.catalog);
        let dir_stat = model.catalog.dir_stat();
        let weights = model.catalog.files.iter().map(|f| f.stat());
        let others = other_files.iter().map(|f| &f.stat);
        let mut stats = weights.chain(others).chain([&dir_stat]);
        let has_acls = stats.any(|stat| stat.acl.is_some());
        drop(stats);
        Layout {
            has_acls,
            other_files,
            tree: OnceLock::new(),
            dir_stat,
            all_stat: model.catalog.stat(),
            generated: generated::GeneratedFiles::of(&model),
            shared: Default::default(),
            lens: std::array::from_fn(|_| rows.next().map(lens).unwrap_or_default()),
            model,
        }
    }

    /// `tree/`, built on first use. Waits for facts.
    ///
    /// # Errors
    /// It is not built yet, and the thread must not wait.
    pub fn tree(&self) -> Result<&NameTree> {
        if let Some(tree) = self.tree.get() {
            return Ok(tree);
        }
        patience::take_long()?;
        Ok(self.tree.get_or_init(|| NameTree::new(&self.model)))
    }

    /// The ids of all tensors that exist. Waits for facts.
    ///
    /// # Errors
    /// The list does not exist yet, and the thread must not wait for it.
    pub fn listing(&self) -> Result<&[TensorId]> {
        if !self.model.is_listed() {
            patience::take_long()?;
        }
        Ok(self.model.listing())
    }

    /// The entry `name` of directory `dir`, before it is known whether a synthetic tensor exists.
    ///
    /// # Errors
    /// `tree/` is not built yet, and the thread must not wait.
    pub fn child(&self, dir: Node, name: &str) -> Result<Option<Node>> {
        Ok(match dir {
            Node::Top(Top::Tree) => return self.tree_child(0, name),
            Node::TreeDir(i) => return self.tree_child(i, name),
            Node::Top(Top::Root) => Top::entries()
                .find(|(_, n)| *n == name)
                .map(|(top, _)| Node::Top(top)),
            Node::Top(Top::Tensors) => self.model.id_by_file_name(name).map(Node::TensorDir),
            Node::Top(Top::Export) => Export::by_name(&self.model, name).map(Node::Export),
            Node::Top(Top::Files) => self
                .other_files
                .iter()
                .position(|f| f.name == name)
                .map(|i| Node::Other(i as u32)),
            Node::Top(top) => TensorFile::beside(top).and_then(|(file, suffix)| {
                let id = self.model.id_by_file_name(name.strip_suffix(suffix)?)?;
                Some(Node::TensorFile(file, id))
            }),
            Node::TensorDir(id) => TensorFile::inside(name).map(|f| Node::TensorFile(f, id)),
            _ => None,
        })
    }

    fn tree_child(&self, dir: DirIndex, name: &str) -> Result<Option<Node>> {
        let branch = self.tree()?.lookup(dir, name);
        Ok(branch.map(|b| tree_node(dir, b)))
    }

    /// Whether the node really exists: synthetic tensors may turn out not to, and not every tensor has
    /// an `f32` or a `.npy`. Waits for the tensor's own facts.
    ///
    /// # Errors
    /// EIO: a fact that it depends on could not be read. This may be transient, so the negative entry
    /// must not be cached. Or the fact is not known yet, and the thread must not wait for it.
    pub fn try_exists(&self, node: Node) -> Result<bool> {
        if let Some(id) = node.tensor() {
            return self.tensor_node_exists(node, id);
        }
        match node {
            Node::TreeDir(i) => Ok(self.tree()?.dir(i).is_some()),
            Node::Other(i) => Ok((i as usize) < self.other_files.len()),
            Node::Top(Top::MetadataJson) => Ok(self.model.catalog.metadata_json.is_some()),
            Node::Export(export) if export.exists(&self.model).is_err() => Ok(false),
            Node::Top(Top::ModelJson | Top::IndexJson) | Node::Export(_) => {
                match self.model.is_whole() {
                    true => Ok(true),
                    false => Err(unread("shapes that its tensors hold cannot be read")),
                }
            }
            _ => Ok(true),
        }
    }

    fn tensor_node_exists(&self, node: Node, id: TensorId) -> Result<bool> {
        if id >= self.model.id_count() {
            return Ok(false);
        }
        let tensor = self.model.tensor(id);
        // For a stored tensor, the header decides everything except what comes from its layer.
        let by_header = match node {
            Node::TensorDir(_) => true,
            Node::TensorFile(file, _) => file.row().by_header,
            _ => false,
        };
        let certain = by_header && tensor.is_ok();
        if !certain && !self.model.is_settled(id) {
            let why = tensor.map_or_else(Some, |_| self.model.remark(id));
            return Err(unread(why.as_deref().unwrap_or_default()));
        }
        let Ok(tensor) = tensor else {
            return Ok(false);
        };
        Ok(match node {
            Node::TreeLink(dir, _) => self.tree()?.dir(dir).is_some(),
            Node::TensorFile(file, _) => (file.row().exists)(&self.model, id, &tensor),
            _ => true,
        })
    }

    /// The exact size in bytes: of a link, that of its target's path. 0 if the node does not exist.
    ///
    /// # Errors
    /// The file must be generated to be measured, and the thread must not wait, or what it is generated
    /// from cannot be read.
    pub fn size(&self, node: Node) -> Result<u64> {
        Ok(match node {
            Node::Top(_) | Node::Export(_) => self.generated_len(node)?.unwrap_or(0),
            Node::TensorFile(file, id) => self.tensor_file_len(file, id),
            Node::TreeLink(dir, id) => {
                let target = self.tree()?.link_target(&self.model, dir, id);
                target.len() as u64
            }
            Node::Other(i) => self.other_files.get(i as usize).map_or(0, |f| f.stat.len),
            Node::TensorDir(_) | Node::TreeDir(_) => 0,
        })
    }

    fn tensor_file_len(&self, file: TensorFile, id: TensorId) -> u64 {
        let remembered = self.lens[file as usize].get(id as usize);
        let known = remembered.map_or(0, |len| len.load(Ordering::Relaxed));
        if known > 0 {
            return u64::from(known);
        }
        let Ok(tensor) = self.model.tensor(id) else {
            return 0;
        };
        let len = (file.row().len)(&self.model, id, &tensor);
        if let (Some(remembered), Ok(short)) = (remembered, u32::try_from(len))
            && self.model.is_settled(id)
        {
            remembered.store(short, Ordering::Relaxed);
        }
        len
    }

    /// Owner, permissions and times of a node, from its source files.
    pub fn stat(&self, node: Node) -> Stat {
        match node {
            Node::TensorFile(_, id) => self.model.stat(id),
            Node::Top(top) if top.kind() == Kind::File => self.all_stat.clone(),
            Node::Export(_) => self.all_stat.clone(),
            Node::Other(i) => {
                let file = self.other_files.get(i as usize);
                file.map_or(&self.dir_stat, |f| &f.stat).clone()
            }
            _ => self.dir_stat.clone(),
        }
    }

    /// The path below the mountpoint.
    pub fn path(&self, node: Node) -> String {
        let name = |id: TensorId| self.model.file_name(id);
        match node {
            Node::Top(top) => top.name().to_string(),
            Node::TensorDir(id) => format!("tensors/{}", name(id)),
            Node::TensorFile(file, id) => match file.row().place {
                Place::Inside(file) => format!("tensors/{}/{file}", name(id)),
                Place::Beside { dir, suffix } => format!("{}/{}{suffix}", dir.name(), name(id)),
            },
            Node::TreeDir(_) | Node::TreeLink(..) => "tree".to_string(),
            Node::Export(e) => format!("export/{}", e.file_name(&self.model)),
            Node::Other(i) => match self.other_files.get(i as usize) {
                Some(f) => format!("files/{}", f.name),
                None => "files".to_string(),
            },
        }
    }

    /// The source of an other file, if it could be opened.
    pub fn other_file(&self, index: u32) -> Option<&Arc<dyn Object>> {
        self.other_files.get(index as usize)?.source.as_ref()
    }
}

fn unread(why: &str) -> Error {
    Error::other(
        libc::EIO,
        format!("cannot determine for now whether it exists: {why}"),
    )
}

fn tree_node(dir: DirIndex, branch: Branch) -> Node {
    match branch {
        Branch::Dir(d) => Node::TreeDir(d),
        Branch::Link(id) => Node::TreeLink(dir, id),
    }
}
