//! Extended attributes: `user.stfs.*` on the files of a tensor that hold an array, each about that
//! file, `user.stfs.status` on the root, and the access control lists of the sources.

use super::{Answer, Fs};
use crate::catalog::ACL_XATTR;
use crate::error::{Error, Result};
use crate::layout::{Kind, Node, Top};

/// Linux's limit on one value.
const MAX_VALUE: usize = 64 << 10;

/// The prefix of all names.
const PREFIX: &str = "user.stfs.";
/// The names on a file that holds an array, in the order of listing.
const OF_FILES: &[&str] = &["name", "dtype", "shape", "origin"];
/// The names on the root.
const OF_ROOT: &[&str] = &["status"];

impl Fs {
    /// One extended attribute. Programs that list files ask for `security.*` and ACLs of each, so
    /// nothing is computed before it is clear that the name is one of ours.
    ///
    /// # Errors
    /// ENODATA: there is no such attribute.
    pub fn getxattr(&self, ino: u64, name: &str) -> Answer<Result<Vec<u8>>> {
        let none = || Error::other(libc::ENODATA, "no such attribute");
        if name == ACL_XATTR {
            let node = Node::from_ino(ino).filter(|_| self.layout.has_acls);
            let acl = node.and_then(|node| self.acl(node));
            return Answer::Ready(acl.ok_or_else(none));
        }
        let key = name.strip_prefix(PREFIX);
        match key.zip(Node::from_ino(ino)) {
            None => Answer::Ready(Err(none())),
            Some((key, node)) => {
                let key = key.to_string();
                Answer::of(self, move |fs| fs.xattr(node, &key)?.ok_or_else(none))
            }
        }
    }

    /// The access control list of a node's sources.
    fn acl(&self, node: Node) -> Option<Vec<u8>> {
        let directory = match node.kind() {
            Kind::Dir => true,
            Kind::File => false,
            Kind::Link => return None,
        };
        let acl = self.layout.stat(node).acl;
        acl.map(|acl| acl.served(directory))
    }

    /// The names, each with a NUL after it.
    pub fn listxattr(&self, ino: u64) -> Answer<Result<Vec<u8>>> {
        Answer::of(self, move |fs| {
            let mut out = String::new();
            let node = Node::from_ino(ino).filter(|_| fs.layout.has_acls);
            if node.and_then(|node| fs.acl(node)).is_some() {
                out.push_str(ACL_XATTR);
                out.push('\0');
            }
            for key in fs.xattr_keys(ino)? {
                out.push_str(PREFIX);
                out.push_str(key);
                out.push('\0');
            }
            Ok(out.into_bytes())
        })
    }

    fn xattr_keys(&self, ino: u64) -> Result<Vec<&'static str>> {
        let mut keys = Vec::new();
        match Node::from_ino(ino) {
            // The status always exists, and is expensive to make.
            Some(Node::Top(Top::Root)) => keys.extend(OF_ROOT),
            Some(node) => {
                for key in OF_FILES {
                    if self.xattr(node, key)?.is_some() {
                        keys.push(*key);
                    }
                }
            }
            None => {}
        }
        Ok(keys)
    }

    /// The value of `user.stfs.<key>`, if the node has it.
    fn xattr(&self, node: Node, key: &str) -> Result<Option<Vec<u8>>> {
        let (file, id) = match node {
            Node::Top(Top::Root) if OF_ROOT.contains(&key) => return self.status_json().map(Some),
            Node::TensorFile(file, id) if OF_FILES.contains(&key) => (file, id),
            _ => return Ok(None),
        };
        let model = &self.layout.model;
        if !self.layout.try_exists(node)? {
            return Ok(None);
        }
        let tensor = model.tensor(id).ok();
        let Some((tensor, shown)) =
            tensor.and_then(|t| (file.row().shown)(model, id, &t).map(|shown| (t, shown)))
        else {
            return Ok(None);
        };
        let value = match key {
            "name" => model.name(id).to_string(),
            "dtype" => shown.dtype.name().to_string(),
            "shape" => {
                let sizes: Vec<String> = shown.shape.iter().map(u64::to_string).collect();
                sizes.join(",")
            }
            _ => model.kind(&tensor.raw).to_string(),
        };
        Ok((value.len() <= MAX_VALUE).then(|| value.into_bytes()))
    }
}
