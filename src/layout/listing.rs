//! What a directory lists, from any position on.

use std::borrow::Cow;

use super::{Layout, Node, Place, TensorFile, Top};
use crate::error::Result;
use crate::export::Export;
use crate::patience;
use crate::tree::DirIndex;

/// Takes `(position, name, node)`; `false`: no more.
type Add<'a> = &'a mut dyn FnMut(u64, &str, Node) -> bool;

impl Layout {
    /// Calls `add(position, name, node)` for the entries of `dir` from position `from` on, until it
    /// returns `false`. Positions are stable: that of an entry that is left out stays unused. Waits for
    /// facts if the listing depends on them; an entry whose facts cannot be read is left out.
    ///
    /// # Errors
    /// The thread must not wait for the next entry, or for the whole list. The entries added so far are
    /// valid.
    pub fn list(&self, dir: Node, from: u64, add: Add<'_>) -> Result<()> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        match dir {
            Node::Top(Top::Root) => {
                let rest = Top::entries().skip(from);
                self.each(
                    from,
                    rest.map(|(top, name)| (name.into(), Node::Top(top))),
                    add,
                )
            }
            Node::Top(Top::Tensors) => {
                // Everything in the listing exists.
                for (i, &id) in self.listing()?.iter().enumerate().skip(from) {
                    if !add(i as u64, &self.model.file_name(id), Node::TensorDir(id)) {
                        break;
                    }
                }
                Ok(())
            }
            Node::Top(Top::Tree) => self.list_tree(0, from, add),
            Node::TreeDir(i) => self.list_tree(i, from, add),
            Node::Top(Top::Export) => {
                let entry = |e: Export| (e.file_name(&self.model).into(), Node::Export(e));
                let rest = Export::all(&self.model).skip(from);
                self.each(from, rest.map(entry), add)
            }
            Node::Top(Top::Files) => {
                let rest = self.other_files.iter().zip(0..).skip(from);
                let rest = rest.map(|(f, i)| (Cow::from(&f.name), Node::Other(i)));
                self.each(from, rest, add)
            }
            Node::Top(top) => match TensorFile::beside(top) {
                Some((file, suffix)) if file.row().listed => {
                    let entry = |&id| {
                        let name = format!("{}{suffix}", self.model.file_name(id));
                        (name.into(), Node::TensorFile(file, id))
                    };
                    self.each(from, self.listing()?.iter().skip(from).map(entry), add)
                }
                _ => Ok(()),
            },
            Node::TensorDir(id) => {
                let listed = TensorFile::all().filter(|row| row.listed);
                let inside = listed.filter_map(|row| match row.place {
                    Place::Inside(name) => Some((name.into(), Node::TensorFile(row.file, id))),
                    Place::Beside { .. } => None,
                });
                self.each(from, inside.skip(from), add)
            }
            _ => Ok(()),
        }
    }

    /// Adds those of the entries that exist; the first is at position `from`.
    fn each<'a>(
        &self,
        from: usize,
        entries: impl Iterator<Item = (Cow<'a, str>, Node)>,
        add: Add<'_>,
    ) -> Result<()> {
        for (i, (name, node)) in entries.enumerate() {
            match self.try_exists(node) {
                Ok(true) if !add((from + i) as u64, &name, node) => break,
                Err(e) if patience::is_refused() => return Err(e),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn list_tree(&self, dir: DirIndex, from: usize, add: Add<'_>) -> Result<()> {
        let Some(dir_of_tree) = self.tree()?.dir(dir) else {
            return Ok(());
        };
        for (i, (name, branch)) in dir_of_tree.entries.iter().enumerate().skip(from) {
            if !add(i as u64, name, super::tree_node(dir, *branch)) {
                break;
            }
        }
        Ok(())
    }
}
