//! `tree/`: the tensors nested at the dots of their names, as a trie built once.

use std::collections::HashMap;

use crate::catalog::natural;
use crate::model::{Model, TensorId};
use crate::names::tree_name;

/// Names of more components than this are left out.
pub const MAX_DEPTH: usize = 64;

/// Index of a directory in [`NameTree`]; 0 is `tree/` itself.
pub type DirIndex = u32;

/// An entry of a directory in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Branch {
    /// A deeper directory.
    Dir(DirIndex),
    /// A link to a tensor's directory.
    Link(TensorId),
}

/// A directory of the tree.
#[derive(Debug, Default)]
pub struct Dir {
    /// Entries in natural order.
    pub entries: Vec<(Box<str>, Branch)>,
    by_name: HashMap<Box<str>, Branch>,
    /// Its parent (0 for the top).
    pub parent: DirIndex,
}

/// The tensors' names, nested.
#[derive(Debug)]
pub struct NameTree {
    dirs: Vec<Dir>,
}

impl NameTree {
    /// Nests all tensors of a model.
    pub fn new(model: &Model) -> NameTree {
        let mut tree = NameTree {
            dirs: vec![Dir::default()],
        };
        for &id in model.listing() {
            let name = model.name(id);
            if name.split('.').count() <= MAX_DEPTH {
                tree.insert(name, id);
            }
        }
        for dir in &mut tree.dirs {
            dir.entries = dir.by_name.iter().map(|(n, b)| (n.clone(), *b)).collect();
            dir.entries.sort_by(|a, b| natural(&a.0, &b.0));
        }
        tree
    }

    fn insert(&mut self, name: &str, id: TensorId) {
        let mut dir = 0;
        let mut components = name.split('.').peekable();
        while let Some(component) = components.next() {
            let key = tree_name(component);
            let here = self.dirs[dir as usize].by_name.get(&*key).copied();
            let last = components.peek().is_none();
            match (here, last) {
                (None, true) => self.set(dir, &key, Branch::Link(id)),
                // A directory has that name: the tensor becomes `@` in it.
                (Some(Branch::Dir(d)), true) => self.set(d, "@", Branch::Link(id)),
                (Some(Branch::Dir(d)), false) => dir = d,
                (None, false) => dir = self.make_dir(dir, &key),
                (Some(Branch::Link(other)), false) => {
                    // The tensor of that name moves into the directory that is now needed.
                    dir = self.make_dir(dir, &key);
                    self.set(dir, "@", Branch::Link(other));
                }
                // Two names with one spelling: a component of one is another's cut form. The first stays.
                (Some(Branch::Link(_)), true) => {}
            }
        }
    }

    fn make_dir(&mut self, parent: DirIndex, key: &str) -> DirIndex {
        let index = self.dirs.len() as DirIndex;
        self.dirs.push(Dir {
            parent,
            ..Dir::default()
        });
        self.set(parent, key, Branch::Dir(index));
        index
    }

    fn set(&mut self, dir: DirIndex, key: &str, branch: Branch) {
        self.dirs[dir as usize].by_name.insert(key.into(), branch);
    }

    /// A directory.
    pub fn dir(&self, index: DirIndex) -> Option<&Dir> {
        self.dirs.get(index as usize)
    }

    /// What a name in a directory is.
    pub fn lookup(&self, dir: DirIndex, name: &str) -> Option<Branch> {
        self.dir(dir)?.by_name.get(name).copied()
    }

    /// How many directories lie between a directory and `tree/`, which has 0.
    pub fn depth(&self, mut index: DirIndex) -> usize {
        let mut depth = 0;
        while index != 0 {
            index = self.dirs[index as usize].parent;
            depth += 1;
        }
        depth
    }

    /// The target of the link to tensor `id` from directory `index`.
    pub fn link_target(&self, model: &Model, index: DirIndex, id: TensorId) -> String {
        let up = "../".repeat(self.depth(index) + 1);
        format!("{up}tensors/{}", model.file_name(id))
    }
}
