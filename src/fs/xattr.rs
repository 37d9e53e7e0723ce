//! Extended attributes: `user.stfs.*` on `raw`, `f32` and `.npy`, each about the file it hangs on,
//! and `user.stfs.status` on the root.

use super::Fs;
use crate::error::{Error, Result};
use crate::layout::{Node, Top};

/// Linux's limit on one value.
const MAX_VALUE: usize = 64 << 10;

/// What all of them begin with.
const PREFIX: &str = "user.stfs.";
/// What a file with values says, in the order of listing.
const OF_FILES: &[&str] = &["name", "dtype", "shape", "origin"];
/// What the root says.
const OF_ROOT: &[&str] = &["status"];

impl Fs {
    /// One extended attribute. Programs that list files ask for `security.*` and ACLs of each, so
    /// nothing is worked out before it is clear that the name is one of ours.
    ///
    /// # Errors
    /// ENODATA where there is none of that name.
    pub fn getxattr(&self, ino: u64, name: &str) -> Result<Vec<u8>> {
        let key = name.strip_prefix(PREFIX);
        key.zip(Node::from_ino(ino))
            .and_then(|(key, node)| self.xattr(node, key))
            .ok_or_else(|| Error::other(libc::ENODATA, "no such attribute"))
    }

    /// The names, each with a NUL after it.
    pub fn listxattr(&self, ino: u64) -> Vec<u8> {
        let Some(node) = Node::from_ino(ino) else {
            return Vec::new();
        };
        let keys = match node {
            Node::Top(Top::Root) => OF_ROOT,
            _ => OF_FILES,
        };
        // The root's status is much work, and always there.
        let is_there = |key: &&&str| keys == OF_ROOT || self.xattr(node, key).is_some();
        let mut out = String::new();
        for key in keys.iter().filter(is_there) {
            out.push_str(PREFIX);
            out.push_str(key);
            out.push('\0');
        }
        out.into_bytes()
    }

    /// The value of `user.stfs.<key>`.
    fn xattr(&self, node: Node, key: &str) -> Option<Vec<u8>> {
        let id = match node {
            Node::Top(Top::Root) => return (key == "status").then(|| self.status_json()),
            Node::Raw(id) | Node::F32(id) | Node::Npy(id) if self.layout.exists(node) => id,
            _ => return None,
        };
        let model = &self.layout.model;
        let tensor = model.tensor(id).ok()?;
        let npy_of_raw = || model.npy_kind(id).is_some_and(|n| !n.of_values);
        let of_raw = matches!(node, Node::Raw(_)) || matches!(node, Node::Npy(_)) && npy_of_raw();
        let (dtype, shape) = match &tensor.values {
            Some(v) if !of_raw => ("F32", &v.shape),
            _ => (tensor.dtype.name(), &tensor.shape),
        };
        let value = match key {
            "name" => model.name(id).to_string(),
            "dtype" => dtype.into(),
            "shape" => {
                let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
                sizes.join(",")
            }
            "origin" => tensor.origin.kind().into(),
            _ => return None,
        };
        (value.len() <= MAX_VALUE).then(|| value.into_bytes())
    }
}
