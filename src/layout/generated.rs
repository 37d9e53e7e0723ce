//! Files that are generated as a whole: `model.json`, `index.json`, `metadata.json` and the exports. At
//! 100,000 tensors, or with the vocabulary of a GGUF file, each takes tens of megabytes and a good part of
//! a second, so all open files share one copy, which is dropped with the last of them; its size is
//! remembered.

use std::sync::{Arc, OnceLock};

use super::{Layout, Node, Top};
use crate::error::{Error, Result};
use crate::export::{Export, Plan};
use crate::model::Model;
use crate::view::{Bytes, Shared, SharedView, View};
use crate::{memory, patience};

/// To generate a file of more bytes than this takes so much memory that it is worth giving back.
pub(super) const LARGE: u64 = 4 << 20;

/// The shared copy and the size of one such file.
pub(super) struct Generated<T> {
    len: OnceLock<u64>,
    made: Shared<T>,
}

impl<T> Default for Generated<T> {
    fn default() -> Self {
        Generated {
            len: OnceLock::new(),
            made: Shared::default(),
        }
    }
}

/// What has the length of a generated file.
pub(super) trait Measured {
    fn measure(&self) -> u64;
}

impl Measured for Bytes {
    fn measure(&self) -> u64 {
        self.len()
    }
}

impl Measured for Plan {
    fn measure(&self) -> u64 {
        self.len()
    }
}

impl<T: Measured> Generated<T> {
    /// The copy that an open file holds, or a new one. Concurrent callers wait for it rather than
    /// generate another.
    ///
    /// # Errors
    /// It must be generated, or is being generated, and the thread must not wait. What it is generated
    /// from cannot be read, or has changed so that the length is not the one that was reported. None of
    /// this is remembered.
    fn get(&self, make: impl FnOnce() -> Result<Arc<T>>) -> Result<Arc<T>> {
        self.made.get(|| {
            patience::take_long()?;
            let new = make()?;
            let len = new.measure();
            if len > LARGE {
                memory::give_back();
            }
            match self.len.get() {
                Some(&was) if was != len => Err(changed(was, len)),
                _ => Ok(new),
            }
        })
    }

    /// The file's length, for which it must be generated. Remembered if everything it depends on is
    /// final.
    ///
    /// # Errors
    /// As [`Generated::get`].
    fn len(
        &self,
        is_final: impl FnOnce() -> bool,
        make: impl FnOnce() -> Result<Arc<T>>,
    ) -> Result<u64> {
        if let Some(&known) = self.len.get() {
            return Ok(known);
        }
        // Checked first: facts that become known meanwhile may be missing from the copy.
        let is_final = is_final();
        let len = self.get(make)?.measure();
        Ok(match is_final {
            true => *self.len.get_or_init(|| len),
            false => len,
        })
    }
}

fn changed(was: u64, is: u64) -> Error {
    Error::other(
        libc::EIO,
        format!(
            "the model's files have changed: this file had {was} bytes and would now have {is}; mount the model again"
        ),
    )
}

/// All such files of a mount.
pub(super) struct GeneratedFiles {
    model_json: Generated<Bytes>,
    index_json: Generated<Bytes>,
    metadata_json: Generated<Bytes>,
    /// By [`Export::position`].
    exports: Box<[Generated<Plan>]>,
}

impl GeneratedFiles {
    /// Those of a model, of which none is made.
    pub fn of(model: &Model) -> GeneratedFiles {
        GeneratedFiles {
            model_json: Generated::default(),
            index_json: Generated::default(),
            metadata_json: Generated::default(),
            exports: Export::all(model).map(|_| Generated::default()).collect(),
        }
    }

    fn export(&self, export: Export) -> Result<&Generated<Plan>> {
        let no_such = || Error::NotFound("the model has no such export".into());
        self.exports.get(export.position()).ok_or_else(no_such)
    }
}

impl Layout {
    /// The copy of a file in the root, if that file exists and is generated.
    fn json(&self, top: Top) -> Option<&Generated<Bytes>> {
        match top {
            Top::ModelJson => Some(&self.generated.model_json),
            Top::IndexJson => Some(&self.generated.index_json),
            Top::MetadataJson => {
                let exists = self.model.catalog.metadata_json.is_some();
                exists.then_some(&self.generated.metadata_json)
            }
            _ => None,
        }
    }

    fn make_json(&self, top: Top) -> Result<Arc<Bytes>> {
        let model = &self.model;
        let bytes = match (top, &model.catalog.metadata_json) {
            (Top::MetadataJson, Some(make)) => make()?,
            (Top::IndexJson, _) => crate::meta::index_json(model),
            _ => crate::meta::model_json(model),
        };
        Ok(Bytes(bytes.into()).into())
    }

    /// The bytes of a generated file of the root or of an export; `None` for other nodes. Waits for facts,
    /// and may compute for long.
    ///
    /// # Errors
    /// The thread must not wait for it, or what it is generated from cannot be read.
    pub fn generated_view(&self, node: Node) -> Result<Option<SharedView>> {
        Ok(match node {
            Node::Top(top) => match self.json(top) {
                Some(copy) => Some(copy.get(|| self.make_json(top))?),
                None => None,
            },
            Node::Export(e) => {
                let make = || Ok(e.plan(&self.model)?.into());
                let plan = self.generated.export(e)?.get(make)?;
                Some(Arc::new(plan.view(self.model.clone())))
            }
            _ => None,
        })
    }

    /// The length of the same.
    pub(super) fn generated_len(&self, node: Node) -> Result<Option<u64>> {
        let is_final = || self.model.is_whole();
        match node {
            Node::Top(top) => {
                let make = || self.make_json(top);
                let copy = self.json(top);
                copy.map(|copy| copy.len(is_final, make)).transpose()
            }
            Node::Export(e) => {
                let make = || Ok(e.plan(&self.model)?.into());
                let copy = self.generated.export(e)?;
                copy.len(is_final, make).map(Some)
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_made_once_and_goes_with_its_last_holder() {
        let generated: Generated<Bytes> = Generated::default();
        let made = std::cell::Cell::new(0);
        let make = || -> Result<Arc<Bytes>> {
            made.set(made.get() + 1);
            Ok(Bytes(vec![7; 5].into()).into())
        };
        assert_eq!(generated.len(|| false, make).unwrap(), 5);
        assert_eq!(generated.len.get(), None);
        made.set(0);
        assert_eq!(generated.len(|| true, make).unwrap(), 5);
        assert_eq!(generated.len(|| true, make).unwrap(), 5);
        assert_eq!(made.get(), 1);
        let (a, b) = (generated.get(make).unwrap(), generated.get(make).unwrap());
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!(made.get(), 2);
        drop((a, b));
        let _c = generated.get(make).unwrap();
        assert_eq!(made.get(), 3);
    }

    #[test]
    fn what_could_not_be_read_is_tried_again_and_sizes_do_not_change() {
        let generated: Generated<Bytes> = Generated::default();
        let of = |n: usize| move || -> Result<Arc<Bytes>> { Ok(Bytes(vec![7; n].into()).into()) };
        let fails = || Err(Error::other(libc::EIO, "gone"));
        assert_eq!(
            generated.len(|| true, fails).unwrap_err().errno(),
            libc::EIO
        );
        assert_eq!(generated.len(|| true, of(5)).unwrap(), 5);
        assert!(generated.get(fails).is_err());
        let why = generated.get(of(6)).err().unwrap();
        assert!(why.to_string().contains("had 5 bytes") && why.errno() == libc::EIO);
        assert_eq!(generated.get(of(5)).unwrap().len(), 5);
    }

    #[test]
    fn nothing_is_made_on_a_request_thread() {
        use patience::{Patience, attempt, with};
        let generated: Generated<Bytes> = Generated::default();
        let make = || -> Result<Arc<Bytes>> { Ok(Bytes(vec![7; 5].into()).into()) };
        let impatient = || {
            with(Patience::Sources, || {
                attempt(|| generated.get(make).is_ok())
            })
        };
        assert_eq!(impatient(), (false, true));
        let _held = generated.get(make).unwrap();
        assert_eq!(impatient(), (true, false));
    }
}
