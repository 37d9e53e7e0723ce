//! Files, directories and links of the mount, and their inode numbers. Nothing is stored per node: an
//! inode number is a kind and an index.

use super::TensorFile;
use crate::export::Export;
use crate::model::TensorId;
use crate::tree::DirIndex;

/// A file, directory or link of the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Node {
    /// The mount's root and the fixed things in it.
    Top(Top),
    /// `tensors/<name>`
    TensorDir(TensorId),
    /// A file of a tensor, in its directory or elsewhere.
    TensorFile(TensorFile, TensorId),
    /// A directory under `tree/` (0 is `tree/` itself, which is `Top::Tree`).
    TreeDir(DirIndex),
    /// A link in `tree/`: its directory and its tensor.
    TreeLink(DirIndex, TensorId),
    /// `export/<name>`
    Export(Export),
    /// `files/<name>`
    Other(u32),
}

/// The root and its entries.
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
    MetadataJson,
}

impl Top {
    /// In the order of the variants, which inode numbers depend on: a new one comes last.
    const ALL: [(Top, &'static str, Kind); 10] = [
        (Top::Root, "", Kind::Dir),
        (Top::ModelJson, "model.json", Kind::File),
        (Top::IndexJson, "index.json", Kind::File),
        (Top::Tensors, "tensors", Kind::Dir),
        (Top::Npy, "npy", Kind::Dir),
        (Top::Preview, "preview", Kind::Dir),
        (Top::Tree, "tree", Kind::Dir),
        (Top::Export, "export", Kind::Dir),
        (Top::Files, "files", Kind::Dir),
        (Top::MetadataJson, "metadata.json", Kind::File),
    ];

    /// The root's entries in order, with their names.
    pub fn entries() -> impl Iterator<Item = (Top, &'static str)> {
        Self::ALL
            .into_iter()
            .skip(1)
            .map(|(top, name, _)| (top, name))
    }

    /// Directory or file. The files here are generated as a whole.
    pub fn kind(self) -> Kind {
        Self::ALL[self as usize].2
    }

    /// Its name in the root; empty for the root itself.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// The kind of a node, as directory entries report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Dir,
    File,
    Link,
}

/// Bits of an inode number that hold the node's kind. The index above them has 56 bits.
const KIND_BITS: u32 = 8;
/// Bits of a tree link's index that hold its tensor; as many are left for its directory.
const LINK_BITS: u32 = 28;

// The kinds in inode numbers. The kinds of a tensor's files follow the last one.
const TOP: u64 = 1;
const TENSOR_DIR: u64 = 2;
const TREE_DIR: u64 = 3;
const TREE_LINK: u64 = 4;
const EXPORT: u64 = 5;
const OTHER: u64 = 6;
const TENSOR_FILES: u64 = 16;

const _: () = assert!(TENSOR_FILES as usize + TensorFile::COUNT <= 1 << KIND_BITS);

impl Node {
    /// The inode number: the same at every mount of the same files. The root is 1, as FUSE requires.
    pub fn ino(self) -> u64 {
        let (kind, index) = match self {
            Node::Top(top) => (TOP, top as u64),
            Node::TensorDir(i) => (TENSOR_DIR, u64::from(i)),
            Node::TensorFile(file, i) => (TENSOR_FILES + file as u64, u64::from(i)),
            Node::TreeDir(i) => (TREE_DIR, u64::from(i)),
            Node::TreeLink(dir, i) => (TREE_LINK, u64::from(dir) << LINK_BITS | u64::from(i)),
            Node::Export(e) => (EXPORT, e.number().into()),
            Node::Other(i) => (OTHER, u64::from(i)),
        };
        index << KIND_BITS | kind
    }

    /// The node of an inode number, if it can be one.
    pub fn from_ino(ino: u64) -> Option<Node> {
        let index = ino >> KIND_BITS;
        let small = u32::try_from(index);
        Some(match ino & ((1 << KIND_BITS) - 1) {
            TOP => Node::Top(Top::ALL.get(index as usize)?.0),
            TENSOR_DIR => Node::TensorDir(small.ok()?),
            TREE_DIR => Node::TreeDir(small.ok()?),
            TREE_LINK => Node::TreeLink(
                (index >> LINK_BITS) as u32,
                (index & ((1 << LINK_BITS) - 1)) as u32,
            ),
            EXPORT => Node::Export(Export::from_number(small.ok()?)?),
            OTHER => Node::Other(small.ok()?),
            kind => {
                let row = usize::try_from(kind.checked_sub(TENSOR_FILES)?).ok()?;
                Node::TensorFile(TensorFile::all().nth(row)?.file, small.ok()?)
            }
        })
    }

    /// The tensor that this node is about.
    pub fn tensor(self) -> Option<TensorId> {
        match self {
            Node::TensorDir(i) | Node::TensorFile(_, i) | Node::TreeLink(_, i) => Some(i),
            Node::Top(_) | Node::TreeDir(_) | Node::Export(_) | Node::Other(_) => None,
        }
    }

    /// Directory, file or link.
    pub fn kind(self) -> Kind {
        match self {
            Node::Top(top) => top.kind(),
            Node::TensorDir(_) | Node::TreeDir(_) => Kind::Dir,
            Node::TreeLink(..) => Kind::Link,
            Node::TensorFile(..) | Node::Export(_) | Node::Other(_) => Kind::File,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_numbers_are_computed_both_ways() {
        assert_eq!(Node::Top(Top::Root).ino(), 1);
        let files = TensorFile::all().map(|row| Node::TensorFile(row.file, u32::MAX));
        let others = [
            Node::Top(Top::Files),
            Node::Top(Top::MetadataJson),
            Node::TensorDir(0),
            Node::TensorDir(94_000),
            Node::TreeDir(3),
            Node::TreeLink(200_000, 94_000),
            Node::TreeLink((1 << 28) - 1, (1 << 28) - 1),
            Node::Export(Export::Manifest),
            Node::Export(Export::Gguf),
            Node::Export(Export::Further(0)),
            Node::Export(Export::Further(999_999)),
            Node::Other(2),
        ];
        let mut seen = std::collections::HashSet::new();
        for node in files.chain(others) {
            assert_eq!(Node::from_ino(node.ino()), Some(node));
            assert!(seen.insert(node.ino()));
        }
        assert_eq!(Node::from_ino(0), None);
        assert_eq!(Node::from_ino(u64::MAX), None);
        assert_eq!(
            Node::from_ino(TENSOR_FILES + TensorFile::COUNT as u64),
            None
        );
    }
}
