//! What a directory lists, from any position on.

use std::borrow::Cow;

use super::{Layout, Node, Top};
use crate::export::Export;
use crate::tree::DirIndex;

impl Layout {
    /// Calls `add(position, name, node)` for the entries of `dir` from position `from` on, until it
    /// answers `false`. Positions are stable. Waits for facts where the listing depends on them;
    /// what depends on one that cannot be read is left out.
    pub fn list(&self, dir: Node, from: u64, mut add: impl FnMut(u64, &str, Node) -> bool) {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let mut each = |entries: &mut dyn Iterator<Item = (Cow<str>, Node)>| {
            // The position of an entry that is left out stays unused.
            for (i, (name, node)) in entries.enumerate() {
                if !add((from + i) as u64, &name, node) {
                    break;
                }
            }
        };
        match dir {
            Node::Top(Top::Root) => each(
                &mut Top::entries()
                    .filter(|(top, ..)| self.exists(Node::Top(*top)))
                    .skip(from)
                    .map(|(top, name, _)| (name.into(), Node::Top(top))),
            ),
            Node::Top(Top::Tensors) => each(
                &mut self
                    .model
                    .listing()
                    .iter()
                    .skip(from)
                    .map(|&id| (self.model.file_name(id), Node::TensorDir(id))),
            ),
            Node::Top(Top::Npy) => self.list_files(from, ".npy", Node::Npy, add),
            Node::Top(Top::Preview) => self.list_files(from, ".png", Node::Preview, add),
            Node::Top(Top::Tree) => self.list_tree(0, from, add),
            Node::TreeDir(i) => self.list_tree(i, from, add),
            Node::Top(Top::Export) => each(
                &mut Export::ALL
                    .into_iter()
                    .filter(|e| self.exists(Node::Export(*e)))
                    .skip(from)
                    .map(|e| (e.name().into(), Node::Export(e))),
            ),
            Node::Top(Top::Files) => each(
                &mut self
                    .other_files
                    .iter()
                    .enumerate()
                    .skip(from)
                    .map(|(i, f)| (f.name.as_str().into(), Node::File(i as u32))),
            ),
            Node::TensorDir(id) => {
                let all = [
                    ("raw", Node::Raw(id)),
                    ("f32", Node::F32(id)),
                    ("meta.json", Node::Meta(id)),
                ];
                each(
                    &mut all
                        .into_iter()
                        .filter(|(_, n)| self.exists(*n))
                        .skip(from)
                        .map(|(name, node)| (name.into(), node)),
                );
            }
            _ => {}
        }
    }

    /// One file a tensor, where there is one.
    fn list_files(
        &self,
        from: usize,
        suffix: &str,
        node: fn(u32) -> Node,
        mut add: impl FnMut(u64, &str, Node) -> bool,
    ) {
        for (i, &id) in self.model.listing().iter().enumerate().skip(from) {
            if !self.exists(node(id)) {
                continue;
            }
            let name = format!("{}{suffix}", self.model.file_name(id));
            if !add(i as u64, &name, node(id)) {
                break;
            }
        }
    }

    fn list_tree(&self, dir: DirIndex, from: usize, mut add: impl FnMut(u64, &str, Node) -> bool) {
        let Some(entries) = self.tree().dir(dir).map(|d| &d.entries) else {
            return;
        };
        for (i, (name, branch)) in entries.iter().enumerate().skip(from) {
            if !add(i as u64, name, super::tree_node(dir, *branch)) {
                break;
            }
        }
    }
}
