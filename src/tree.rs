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
#[derive(Debug)]
pub struct Dir {
    /// Entries in natural order.
    pub entries: Vec<(Box<str>, Branch)>,
    /// Its parent (0 for the top).
    pub parent: DirIndex,
}

/// The tensors' names, nested.
#[derive(Debug)]
pub struct NameTree {
    dirs: Vec<Dir>,
}

/// A directory whose entries are still being added.
#[derive(Default)]
struct Growing {
    by_name: HashMap<Box<str>, Branch>,
    parent: DirIndex,
}

/// The directories of a tree, by index.
struct Growth(Vec<Growing>);

impl Growth {
    fn insert(&mut self, name: &str, id: TensorId) {
        let mut dir = 0;
        let mut components = name.split('.').peekable();
        while let Some(component) = components.next() {
            let key = tree_name(component);
            let here = self.0[dir as usize].by_name.get(&*key).copied();
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
        let index = self.0.len() as DirIndex;
        self.0.push(Growing {
            parent,
            ..Growing::default()
        });
        self.set(parent, key, Branch::Dir(index));
        index
    }

    fn set(&mut self, dir: DirIndex, key: &str, branch: Branch) {
        self.0[dir as usize].by_name.insert(key.into(), branch);
    }
}

impl From<Growing> for Dir {
    fn from(dir: Growing) -> Dir {
        let mut entries: Vec<_> = dir.by_name.into_iter().collect();
        entries.sort_by(|a, b| natural(&a.0, &b.0));
        Dir {
            entries,
            parent: dir.parent,
        }
    }
}

impl NameTree {
    /// Nests all tensors of a model.
    pub fn new(model: &Model) -> NameTree {
        let mut tree = Growth(vec![Growing::default()]);
        for &id in model.listing() {
            let name = model.name(id);
            if name.split('.').count() <= MAX_DEPTH {
                tree.insert(name, id);
            }
        }
        NameTree {
            dirs: tree.0.into_iter().map(Dir::from).collect(),
        }
    }

    /// A directory.
    pub fn dir(&self, index: DirIndex) -> Option<&Dir> {
        self.dirs.get(index as usize)
    }

    /// What a name in a directory is.
    pub fn lookup(&self, dir: DirIndex, name: &str) -> Option<Branch> {
        let entries = &self.dir(dir)?.entries;
        let at = entries
            .binary_search_by(|(own, _)| natural(own, name))
            .ok()?;
        Some(entries[at].1)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::model::ModelOptions;
    use crate::quant::testing::{TestModel, stored};

    #[test]
    fn every_listed_name_is_found_and_no_other() {
        let mut names: Vec<String> = (0..30).map(|i| format!("layers.{i}.w")).collect();
        names.extend(["layers.07.w", "layers", "a", "a.b", "a.@", "x..y", ".z"].map(String::from));
        let tensors: Vec<_> = names
            .iter()
            .map(|name| stored(name, Dtype::U8, &[1], vec![0]))
            .collect();
        let TestModel { catalog, _dir } = TestModel::safetensors(&tensors, serde_json::Value::Null);
        let tree = NameTree::new(&Model::new(catalog, ModelOptions::default()));
        let mut links = 0;
        for (index, dir) in (0..).zip(&tree.dirs) {
            for (name, branch) in &dir.entries {
                assert_eq!(tree.lookup(index, name), Some(*branch), "{name}");
                links += usize::from(matches!(branch, Branch::Link(_)));
            }
            for absent in ["", "30", "007", "layer", "zz"] {
                assert_eq!(tree.lookup(index, absent), None, "{absent}");
            }
        }
        assert_eq!(links, names.len());
        assert_eq!(tree.lookup(u32::MAX, "a"), None);
    }
}
