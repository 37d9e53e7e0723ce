//! Extended attributes: `user.stfs.*` on `raw`, `f32` and `.npy`, each about the file it hangs on,
//! and `user.stfs.status` on the root.

use super::Fs;
use crate::error::{Error, Result};
use crate::layout::{Node, Top};

/// Linux's limit on one value.
const MAX_VALUE: usize = 64 << 10;

impl Fs {
    /// The names and values of an inode's extended attributes.
    fn xattrs(&self, ino: u64) -> Vec<(&'static str, Vec<u8>)> {
        let node = Node::from_ino(ino).filter(|&n| self.layout.exists(n));
        let model = &self.layout.model;
        let (id, node) = match node {
            Some(Node::Top(Top::Root)) => return vec![("user.stfs.status", self.status_json())],
            Some(n @ (Node::Raw(id) | Node::F32(id) | Node::Npy(id))) => (id, n),
            _ => return Vec::new(),
        };
        let Ok(tensor) = model.tensor(id) else {
            return Vec::new();
        };
        let npy_of_raw = || model.npy_kind(id).is_some_and(|n| !n.of_values);
        let of_raw = matches!(node, Node::Raw(_)) || matches!(node, Node::Npy(_)) && npy_of_raw();
        let (dtype, shape) = match &tensor.values {
            Some(v) if !of_raw => ("F32", &v.shape),
            _ => (tensor.dtype.name(), &tensor.shape),
        };
        let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
        let mut all = vec![
            ("user.stfs.name", model.name(id).as_bytes().to_vec()),
            ("user.stfs.dtype", dtype.as_bytes().to_vec()),
            ("user.stfs.shape", shape.join(",").into_bytes()),
            ("user.stfs.origin", tensor.origin.kind().as_bytes().to_vec()),
        ];
        all.retain(|(_, value)| value.len() <= MAX_VALUE);
        all
    }

    /// One extended attribute.
    ///
    /// # Errors
    /// ENODATA where there is none of that name.
    pub fn getxattr(&self, ino: u64, name: &str) -> Result<Vec<u8>> {
        self.xattrs(ino)
            .into_iter()
            .find(|(n, _)| *n == name)
            .map(|(_, value)| value)
            .ok_or_else(|| Error::other(libc::ENODATA, "no such attribute"))
    }

    /// The names, each with a NUL after it.
    pub fn listxattr(&self, ino: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, _) in self.xattrs(ino) {
            out.extend_from_slice(name.as_bytes());
            out.push(0);
        }
        out
    }
}
