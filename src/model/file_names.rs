//! File names of tensors: the tensors' own names with few changes, with two exceptions. A name that is
//! too long for a file is cut and hashed. A name that equals another's cut form makes room for it: it
//! is itself cut and hashed.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{Model, TensorId};
use crate::names;

/// The file names that do not follow from the tensor's name alone, or do not lead back to it.
pub(super) struct FileNames {
    /// Cut file names → tensor.
    cut: HashMap<String, TensorId>,
    /// Tensors that made room, with their file names.
    moved: HashMap<TensorId, String>,
}

impl FileNames {
    fn new(model: &Model) -> FileNames {
        let mut cut = HashMap::new();
        let mut moved = HashMap::new();
        let long = |id: &TensorId| names::is_cut(model.name(*id));
        let mut open: Vec<TensorId> = (0..model.id_count()).filter(long).collect();
        while let Some(id) = open.pop() {
            let file = names::cut(model.name(id));
            let spelled_so = names::from_file_name(&file).and_then(|name| model.id(&name));
            // The new form of a name that makes room may in turn equal another name.
            open.extend(spelled_so.filter(|other| !moved.contains_key(other)));
            if !long(&id) {
                moved.insert(id, file.clone());
            }
            cut.insert(file, id);
        }
        FileNames { cut, moved }
    }
}

impl Model {
    fn file_names(&self) -> &FileNames {
        self.file_names.get_or_init(|| FileNames::new(self))
    }

    /// The file name of a tensor under `tensors/`, `npy/` and `preview/`.
    pub fn file_name(&self, id: TensorId) -> Cow<'_, str> {
        match self.file_names().moved.get(&id) {
            Some(file) => file.into(),
            None => names::file_name(self.name(id)),
        }
    }

    /// The tensor of a file name; it may turn out not to exist.
    pub fn id_by_file_name(&self, file: &str) -> Option<TensorId> {
        let cut = self.file_names().cut.get(file).copied();
        cut.or_else(|| self.id(&names::from_file_name(file)?))
    }
}
