//! Files of a tensor whose bytes are kept in memory while they are open: all open files share one view.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Layout, TensorFile};
use crate::error::Result;
use crate::model::TensorId;
use crate::view::{Shared, SharedView, View};

type Copies = HashMap<(TensorFile, TensorId), Arc<Shared<dyn View>>>;

/// The views that open files share, by file and tensor.
#[derive(Default)]
pub(super) struct SharedFiles(Mutex<Sweeping>);

#[derive(Default)]
struct Sweeping {
    copies: Copies,
    /// How many there may be before those that nobody has open are removed.
    most: usize,
}

/// How many may stay that nobody has open, beside as many as are open.
const UNUSED: usize = 64;

impl SharedFiles {
    fn of(&self, file: TensorFile, id: TensorId) -> Arc<Shared<dyn View>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Sweeping { copies, most } = &mut *all;
        if copies.len() >= *most {
            // One that somebody has in hand may be about to be opened.
            copies.retain(|_, copy| Arc::strong_count(copy) > 1 || !copy.is_unused());
            *most = 2 * copies.len() + UNUSED;
        }
        copies.entry((file, id)).or_default().clone()
    }
}

impl Layout {
    /// The bytes of a tensor's file; `None` if the tensor does not have it.
    ///
    /// # Errors
    /// Its view cannot be made, or the thread must not wait for it.
    pub fn tensor_view(&self, file: TensorFile, id: TensorId) -> Result<Option<SharedView>> {
        let make = || (file.row().view)(&self.model, id);
        // A picture of what a source held before it changed is only for those who have it open already.
        let was_changed = || {
            let files = self.model.source_files(id).into_iter();
            let mut files = files.map(|f| &self.model.catalog.files[f as usize]);
            file.row().reads_sources && files.any(|f| f.was_changed())
        };
        if !file.row().is_shared || was_changed() {
            return make();
        }
        let mut exists = true;
        let made = self.shared.of(file, id).get(|| {
            make()?.ok_or_else(|| {
                exists = false;
                crate::Error::NotFound("no such file".into())
            })
        });
        match exists {
            true => made.map(Some),
            false => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Bytes;

    #[test]
    fn copies_that_nobody_has_open_are_removed() {
        let files = SharedFiles::default();
        let bytes = || -> Result<SharedView> { Ok(Arc::new(Bytes(vec![7; 5].into()))) };
        let held = files.of(TensorFile::Meta, 7).get(bytes).unwrap();
        for id in 0..10_000 {
            drop(files.of(TensorFile::Preview, id).get(bytes).unwrap());
            assert!(files.0.lock().unwrap().copies.len() <= 2 * UNUSED + 2);
        }
        let again = files.of(TensorFile::Meta, 7).get(bytes).unwrap();
        assert!(Arc::ptr_eq(&held, &again));
    }
}
