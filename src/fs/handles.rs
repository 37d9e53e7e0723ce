//! Open files by handle.

use std::sync::{Arc, PoisonError, RwLock};

use super::OpenFile;

/// A table of open files. Handles are positions + 1, and are reused after release.
#[derive(Default)]
pub(super) struct Handles(RwLock<Slots>);

#[derive(Default)]
struct Slots {
    files: Vec<Option<Arc<OpenFile>>>,
    free: Vec<usize>,
}

impl Handles {
    /// Adds a file.
    pub fn insert(&self, file: OpenFile) -> u64 {
        let file = Some(Arc::new(file));
        let mut slots = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let i = match slots.free.pop() {
            Some(i) => {
                slots.files[i] = file;
                i
            }
            None => {
                slots.files.push(file);
                slots.files.len() - 1
            }
        };
        i as u64 + 1
    }

    /// The file of a handle.
    pub fn get(&self, fh: u64) -> Option<Arc<OpenFile>> {
        let slots = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let i = usize::try_from(fh.checked_sub(1)?).ok()?;
        slots.files.get(i)?.clone()
    }

    /// Removes a file, and returns it.
    pub fn remove(&self, fh: u64) -> Option<Arc<OpenFile>> {
        let mut slots = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let i = usize::try_from(fh.checked_sub(1)?).ok()?;
        let file = slots.files.get_mut(i)?.take()?;
        slots.free.push(i);
        Some(file)
    }
}
