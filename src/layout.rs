//! The layout: which paths exist, as nodes with computed inode numbers, and which view each file
//! shows. Nothing is stored per tensor: an inode number is a kind and an index.

use std::sync::{Arc, OnceLock};

use crate::catalog::{Object, Stat};
use crate::error::{Error, Result};
use crate::export::Export;
use crate::model::{Model, TensorId};
use crate::tree::{Branch, DirIndex, NameTree};

mod files;
mod generated;
mod listing;

pub use files::OtherFile;

/// A file, directory or link of the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Node {
    /// The mount's root and the fixed things in it.
    Top(Top),
    /// `tensors/<name>`
    TensorDir(TensorId),
    /// `tensors/<name>/raw`
    Raw(TensorId),
    /// `tensors/<name>/f32`
    F32(TensorId),
    /// `tensors/<name>/meta.json`
    Meta(TensorId),
    /// `npy/<name>.npy`
    Npy(TensorId),
    /// `preview/<name>.png`
    Preview(TensorId),
    /// A directory under `tree/` (0 is `tree/` itself, which is `Top::Tree`).
    TreeDir(DirIndex),
    /// A link in `tree/`: the index of its directory is in the upper, the tensor in the lower half.
    TreeLink(DirIndex, TensorId),
    /// `export/<name>`
    Export(Export),
    /// `files/<name>`
    File(u32),
}

/// The root and what has a fixed name in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Top {
    Root,
    ModelJson,
    IndexJson,
    Tensors,
    Npy,
    Preview,
    Tree,
    Export,
    Files,
}

impl Top {
    const ALL: [(Top, &'static str, bool); 9] = [
        (Top::Root, "", true),
        (Top::ModelJson, "model.json", false),
        (Top::IndexJson, "index.json", false),
        (Top::Tensors, "tensors", true),
        (Top::Npy, "npy", true),
        (Top::Preview, "preview", true),
        (Top::Tree, "tree", true),
        (Top::Export, "export", true),
        (Top::Files, "files", true),
    ];

    /// What stands in the root, in order: directories and files, with whether it is a directory.
    pub fn entries() -> impl Iterator<Item = (Top, &'static str, bool)> {
        Self::ALL.into_iter().skip(1)
    }
}

/// Bits of an inode number that hold the node's kind.
const KIND_BITS: u32 = 4;
/// Bits that hold a tree link's tensor.
const LINK_BITS: u32 = 28;

impl Node {
    /// The inode number: the same at every mount of the same files. The root is 1, as FUSE wants.
    pub fn ino(self) -> u64 {
        let (kind, index) = match self {
            Node::Top(top) => (1, top as u64),
            Node::TensorDir(i) => (2, u64::from(i)),
            Node::Raw(i) => (3, u64::from(i)),
            Node::F32(i) => (4, u64::from(i)),
            Node::Meta(i) => (5, u64::from(i)),
            Node::Npy(i) => (6, u64::from(i)),
            Node::Preview(i) => (7, u64::from(i)),
            Node::TreeDir(i) => (8, u64::from(i)),
            Node::TreeLink(dir, i) => (9, u64::from(dir) << LINK_BITS | u64::from(i)),
            Node::Export(e) => (10, e as u64),
            Node::File(i) => (11, u64::from(i)),
        };
        index << KIND_BITS | kind
    }

    /// The node of an inode number, if it can be one.
    pub fn from_ino(ino: u64) -> Option<Node> {
        let index = ino >> KIND_BITS;
        let small = u32::try_from(index);
        Some(match ino & ((1 << KIND_BITS) - 1) {
            1 => Node::Top(Top::ALL.get(index as usize)?.0),
            2 => Node::TensorDir(small.ok()?),
            3 => Node::Raw(small.ok()?),
            4 => Node::F32(small.ok()?),
            5 => Node::Meta(small.ok()?),
            6 => Node::Npy(small.ok()?),
            7 => Node::Preview(small.ok()?),
            8 => Node::TreeDir(small.ok()?),
            9 => Node::TreeLink(
                u32::try_from(index >> LINK_BITS).ok()?,
                (index & ((1 << LINK_BITS) - 1)) as u32,
            ),
            10 => Node::Export(*Export::ALL.get(index as usize)?),
            11 => Node::File(small.ok()?),
            _ => return None,
        })
    }

    /// The tensor that this node is about.
    pub fn tensor(self) -> Option<TensorId> {
        match self {
            Node::TensorDir(i)
            | Node::Raw(i)
            | Node::F32(i)
            | Node::Meta(i)
            | Node::Npy(i)
            | Node::Preview(i)
            | Node::TreeLink(_, i) => Some(i),
            Node::Top(_) | Node::TreeDir(_) | Node::Export(_) | Node::File(_) => None,
        }
    }
}

/// The kind of a node, as directory entries tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Dir,
    File,
    Link,
}

/// All paths of a mount.
pub struct Layout {
    /// The model whose tensors these are.
    pub model: Arc<Model>,
    other_files: Vec<OtherFile>,
    tree: OnceLock<NameTree>,
    dir_stat: Stat,
    all_stat: Stat,
    generated: generated::GeneratedFiles,
    meta_lens: Vec<std::sync::atomic::AtomicU32>,
}

impl Layout {
    /// Lays out a model. Looks at the model directory's other files, once.
    pub fn new(model: Arc<Model>) -> Layout {
        Layout {
            other_files: files::scan(&model.catalog),
            tree: OnceLock::new(),
            dir_stat: model.catalog.dir_stat(),
            all_stat: model.catalog.stat(),
            generated: Default::default(),
            meta_lens: (0..model.id_count()).map(|_| 0.into()).collect(),
            model,
        }
    }

    /// `tree/`, built when it is first looked into. Waits for facts.
    pub fn tree(&self) -> &NameTree {
        self.tree.get_or_init(|| NameTree::new(&self.model))
    }

    /// The other files of the model directory.
    pub fn other_files(&self) -> &[OtherFile] {
        &self.other_files
    }

    /// Whether telling a node's attributes may have to read tensor data, or to compute for long,
    /// first: not to be done on a thread that others wait for.
    pub fn attr_may_wait(&self, node: Node) -> bool {
        match node {
            Node::Top(_) | Node::Export(_) => self.is_unmeasured(node),
            _ => node
                .tensor()
                .is_some_and(|id| id < self.model.id_count() && !self.model.is_immediate(id)),
        }
    }

    /// The same of listing a directory.
    pub fn list_may_wait(&self, dir: Node) -> bool {
        match dir {
            Node::Top(Top::Tensors | Top::Npy | Top::Preview) => !self.model.is_listed(),
            // Listings tell sizes, too.
            Node::Top(Top::Root) => [Top::ModelJson, Top::IndexJson]
                .into_iter()
                .any(|t| self.attr_may_wait(Node::Top(t))),
            Node::Top(Top::Export) => Export::ALL
                .into_iter()
                .any(|e| self.attr_may_wait(Node::Export(e))),
            Node::Top(Top::Tree) | Node::TreeDir(_) => self.tree.get().is_none(),
            _ => self.attr_may_wait(dir),
        }
    }

    /// The same of looking a name up in a directory.
    pub fn lookup_may_wait(&self, dir: Node, name: &str) -> bool {
        match dir {
            Node::Top(Top::Tree) | Node::TreeDir(_) => self.tree.get().is_none(),
            _ => self.child(dir, name).is_some_and(|n| self.attr_may_wait(n)),
        }
    }

    /// The entry `name` of directory `dir`, before it is known whether a synthetic tensor exists.
    pub fn child(&self, dir: Node, name: &str) -> Option<Node> {
        let tensor = |file: &str| self.model.id_by_file_name(file);
        match dir {
            Node::Top(Top::Root) => Top::entries()
                .find(|(_, n, _)| *n == name)
                .map(|(top, _, _)| Node::Top(top)),
            Node::Top(Top::Tensors) => tensor(name).map(Node::TensorDir),
            Node::Top(Top::Npy) => tensor(name.strip_suffix(".npy")?).map(Node::Npy),
            Node::Top(Top::Preview) => tensor(name.strip_suffix(".png")?).map(Node::Preview),
            Node::Top(Top::Tree) => self.tree_child(0, name),
            Node::TreeDir(i) => self.tree_child(i, name),
            Node::Top(Top::Export) => Export::ALL
                .into_iter()
                .find(|e| e.name() == name)
                .map(Node::Export),
            Node::Top(Top::Files) => self
                .other_files
                .iter()
                .position(|f| f.name == name)
                .map(|i| Node::File(i as u32)),
            Node::TensorDir(id) => match name {
                "raw" => Some(Node::Raw(id)),
                "f32" => Some(Node::F32(id)),
                "meta.json" => Some(Node::Meta(id)),
                _ => None,
            },
            _ => None,
        }
    }

    fn tree_child(&self, dir: DirIndex, name: &str) -> Option<Node> {
        self.tree().lookup(dir, name).map(|b| tree_node(dir, b))
    }

    /// Whether the node is known to be there: [`Layout::try_exists`] without an error.
    pub fn exists(&self, node: Node) -> bool {
        self.try_exists(node).unwrap_or(false)
    }

    /// Whether the node really is there: synthetic tensors may turn out not to exist, and not every
    /// tensor has an `f32` or a `.npy`. Waits for the tensor's own facts.
    ///
    /// # Errors
    /// EIO: a fact that tells could not be read. The next who asks may learn it; so nobody must
    /// remember that there is none.
    pub fn try_exists(&self, node: Node) -> Result<bool> {
        let Some(id) = node.tensor() else {
            return match node {
                Node::TreeDir(i) => Ok(self.tree().dir(i).is_some()),
                Node::File(i) => Ok((i as usize) < self.other_files.len()),
                Node::Top(Top::ModelJson | Top::IndexJson) | Node::Export(_) => {
                    match self.model.is_whole() {
                        true => Ok(true),
                        false => Err(unread("shapes that its tensors hold cannot be read")),
                    }
                }
                _ => Ok(true),
            };
        };
        if id >= self.model.id_count() {
            return Ok(false);
        }
        let tensor = self.model.tensor(id);
        // Of a stored tensor all but what is made of its layer is certain from its header.
        let certain = matches!(node, Node::TensorDir(_) | Node::Raw(_)) && tensor.is_ok();
        if !certain && !self.model.is_settled(id) {
            let why = tensor.map_or_else(Some, |t| t.remark.as_deref());
            return Err(unread(why.unwrap_or_default()));
        }
        Ok(match (node, tensor) {
            (_, Err(_)) => false,
            (Node::TreeLink(dir, _), Ok(_)) => self.tree().dir(dir).is_some(),
            (Node::F32(_) | Node::Preview(_), Ok(t)) => t.values.is_some(),
            (Node::Npy(_), Ok(_)) => self.model.npy_kind(id).is_some(),
            _ => true,
        })
    }

    /// Directory, file or link.
    pub fn kind(&self, node: Node) -> Kind {
        match node {
            Node::Top(top) if Top::ALL[top as usize].2 => Kind::Dir,
            Node::TensorDir(_) | Node::TreeDir(_) => Kind::Dir,
            Node::TreeLink(..) => Kind::Link,
            _ => Kind::File,
        }
    }

    /// Size in bytes, exact: of a file its length, of a link its target's.
    pub fn size(&self, node: Node) -> u64 {
        use std::sync::atomic::Ordering::Relaxed;
        let tensor = |id| self.model.tensor(id).ok();
        match node {
            Node::Top(_) | Node::Export(_) => self.generated_len(node).unwrap_or(0),
            Node::Raw(id) => tensor(id).map_or(0, |t| t.nbytes),
            Node::F32(id) => tensor(id).and_then(|t| t.f32_len()).unwrap_or(0),
            Node::Meta(id) => {
                let known = &self.meta_lens[id as usize];
                if known.load(Relaxed) == 0 {
                    let len = crate::meta::meta_json(&self.model, id).len();
                    if !self.model.is_settled(id) {
                        return len as u64;
                    }
                    known.store(len as u32, Relaxed);
                }
                u64::from(known.load(Relaxed))
            }
            Node::Npy(id) => match (self.model.npy_kind(id), tensor(id)) {
                (Some(npy), Some(t)) if npy.of_values => npy.len(t.f32_len().unwrap_or(0)),
                (Some(npy), Some(t)) => npy.len(t.nbytes),
                _ => 0,
            },
            Node::Preview(id) => tensor(id)
                .and_then(|t| t.values.as_ref())
                .map_or(0, |v| crate::preview::png_len(&v.shape)),
            Node::TreeLink(dir, id) => self.tree().link_target(&self.model, dir, id).len() as u64,
            Node::File(i) => self.other_files.get(i as usize).map_or(0, |f| f.stat.len),
            _ => 0,
        }
    }

    /// Owner, permissions and times of a node, from its source files.
    pub fn stat(&self, node: Node) -> Stat {
        match node {
            Node::Raw(id) | Node::F32(id) | Node::Meta(id) | Node::Npy(id) | Node::Preview(id) => {
                self.model.stat(id)
            }
            Node::Top(Top::ModelJson | Top::IndexJson) | Node::Export(_) => self.all_stat,
            Node::File(i) => self
                .other_files
                .get(i as usize)
                .map_or(self.dir_stat, |f| f.stat),
            _ => self.dir_stat,
        }
    }

    /// The path below the mountpoint.
    pub fn path(&self, node: Node) -> String {
        let file = |id: TensorId| self.model.file_name(id);
        match node {
            Node::Top(top) => Top::ALL[top as usize].1.to_string(),
            Node::TensorDir(id) => format!("tensors/{}", file(id)),
            Node::Raw(id) => format!("tensors/{}/raw", file(id)),
            Node::F32(id) => format!("tensors/{}/f32", file(id)),
            Node::Meta(id) => format!("tensors/{}/meta.json", file(id)),
            Node::Npy(id) => format!("npy/{}.npy", file(id)),
            Node::Preview(id) => format!("preview/{}.png", file(id)),
            Node::TreeDir(_) | Node::TreeLink(..) => "tree".to_string(),
            Node::Export(e) => format!("export/{}", e.name()),
            Node::File(i) => match self.other_files.get(i as usize) {
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
    Error::other(libc::EIO, format!("cannot be told for now: {why}"))
}

fn tree_node(dir: DirIndex, branch: Branch) -> Node {
    match branch {
        Branch::Dir(d) => Node::TreeDir(d),
        Branch::Link(id) => Node::TreeLink(dir, id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_numbers_are_computed_both_ways() {
        assert_eq!(Node::Top(Top::Root).ino(), 1);
        for node in [
            Node::Top(Top::Files),
            Node::TensorDir(0),
            Node::Raw(94_000),
            Node::F32(7),
            Node::Meta(u32::MAX),
            Node::Npy(1),
            Node::Preview(5),
            Node::TreeDir(3),
            Node::TreeLink(200_000, 94_000),
            Node::Export(Export::Manifest),
            Node::File(2),
        ] {
            assert_eq!(Node::from_ino(node.ino()), Some(node));
        }
        assert_eq!(Node::from_ino(0), None);
        assert_eq!(Node::from_ino(u64::MAX), None);
    }
}
