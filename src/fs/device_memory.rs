//! What the GPU ioctl means on each file and directory of the mount.

use std::sync::Arc;

use super::{Answer, Fs};
use crate::dtype::{Dtype, ElementType};
use crate::error::Result;
use crate::gpu::{Arena, Caller, Key, Member, Part, Reply, Sources, Target};
use crate::ioctl;
use crate::layout::{Node, TensorFile, Top};
use crate::model::{Origin, TensorId};
use crate::patience;
use crate::view::{SharedView, StoredBytes};

impl Fs {
    /// Answers an ioctl on a file or directory, through `reply`: now, or later from another thread.
    /// `fh` is the open file; an ioctl on a directory has none.
    pub fn ioctl(
        &self,
        ino: u64,
        fh: Option<u64>,
        code: u32,
        input: &[u8],
        uid: u32,
        reply: Reply,
    ) -> Answer<()> {
        let caller = Caller { uid, fh };
        match Answer::of(self, move |fs| fs.target_of_ioctl(ino, fh, code)) {
            Answer::Ready(target) => {
                self.gpu_ioctl(code, input, target, caller, reply);
                Answer::Ready(())
            }
            Answer::Wait(work) => {
                let input = input.to_vec();
                Answer::Wait(Box::new(move |fs| {
                    fs.gpu_ioctl(code, &input, work(fs), caller, reply);
                }))
            }
        }
    }

    fn target_of_ioctl(&self, ino: u64, fh: Option<u64>, code: u32) -> Result<Option<Target>> {
        let about_it = matches!(code, ioctl::UPLOAD | ioctl::QUERY | ioctl::RELEASE);
        match Node::from_ino(ino).filter(|_| about_it) {
            Some(node) if self.layout.exists(node) => self.target(node, fh),
            _ => Ok(None),
        }
    }

    fn gpu_ioctl(
        &self,
        code: u32,
        input: &[u8],
        target: Result<Option<Target>>,
        caller: Caller,
        reply: Reply,
    ) {
        let target = target.map_err(|e| {
            log::warn!("{}", crate::text::printable(&e.to_string()));
            e.errno()
        });
        self.gpu.ioctl(code, input, target, caller, reply);
    }

    /// Ends all GPU use, before the mount is detached: whoever waits for an upload is answered, and
    /// all memory goes back to the driver. Takes at most ten seconds. See [`crate::gpu::Gpu::stop`].
    pub fn stop_gpu(&self) {
        self.gpu.stop();
    }

    /// What there is to upload of a node. `None` for all that is no tensor data.
    fn target(&self, node: Node, fh: Option<u64>) -> Result<Option<Target>> {
        Ok(match node {
            Node::Top(Top::Tensors) => Some(Target::model(node.ino(), self.arena()?)),
            Node::TensorDir(id) => self.raw_target(id, None)?,
            Node::TensorFile(TensorFile::Raw, id) => self.raw_target(id, self.opened(node, fh))?,
            Node::TensorFile(TensorFile::F32, id) => {
                self.values_target(id, self.opened(node, fh))?
            }
            Node::TensorFile(TensorFile::Npy, id) => self.npy_target(id)?,
            Node::Export(_) => {
                let view = match self.opened(node, fh) {
                    Some(view) => view,
                    None => self.view(node)?,
                };
                let sources = self.layout.model.catalog.files.iter().cloned().collect();
                Some(self.of_bytes(node, Part::Export, view, sources))
            }
            _ => None,
        })
    }

    /// The view of an open file, which need not be made again.
    fn opened(&self, node: Node, fh: Option<u64>) -> Option<SharedView> {
        let file = self.handle(fh?)?;
        (file.node == node).then(|| file.view.clone())
    }

    fn raw_target(&self, id: TensorId, view: Option<SharedView>) -> Result<Option<Target>> {
        let model = &self.layout.model;
        let Ok(tensor) = model.tensor(id) else {
            return Ok(None);
        };
        // Tied tensors are the same bytes: they share the memory, too.
        if let Origin::Tied(of) = tensor.origin {
            return self.raw_target(of, None);
        }
        let node = Node::TensorFile(TensorFile::Raw, id);
        let view = match view {
            Some(view) => view,
            None => model.raw(id)?,
        };
        let sources = match model.is_stored(id) {
            // A layer's anchor has the layer's files for its values; its own bytes have one.
            true => {
                let file = model.catalog.tensors[id as usize].file;
                [model.catalog.files[file as usize].clone()]
                    .into_iter()
                    .collect()
            }
            false => self.sources(id),
        };
        Ok(Some(match &tensor.dtype {
            ElementType::Known(dtype) => {
                self.of_elements(node, Part::Raw, view, *dtype, &tensor.shape, sources)
            }
            ElementType::Other(_) => self.of_bytes(node, Part::Raw, view, sources),
        }))
    }

    fn values_target(&self, id: TensorId, view: Option<SharedView>) -> Result<Option<Target>> {
        let model = &self.layout.model;
        let Ok(tensor) = model.tensor(id) else {
            return Ok(None);
        };
        if let Origin::Tied(of) = tensor.origin {
            return self.values_target(of, None);
        }
        let view = match view {
            Some(view) => Some(view),
            None => model.f32(id)?,
        };
        let (Some(view), Some(values)) = (view, &tensor.values) else {
            return Ok(None);
        };
        let (node, sources) = (Node::TensorFile(TensorFile::F32, id), self.sources(id));
        Ok(Some(self.of_elements(
            node,
            Part::F32,
            view,
            Dtype::F32,
            &values.shape,
            sources,
        )))
    }

    /// The array of a `.npy` file, without the header.
    fn npy_target(&self, id: TensorId) -> Result<Option<Target>> {
        let model = &self.layout.model;
        let (Ok(tensor), Some(kind)) = (model.tensor(id), model.npy_kind(id)) else {
            return Ok(None);
        };
        let (view, dtype) = match kind.of_values {
            true => (model.f32(id)?, Some(Dtype::F32)),
            false => (Some(model.raw(id)?), tensor.dtype.known()),
        };
        let (Some(view), Some(dtype)) = (view, dtype) else {
            return Ok(None);
        };
        let (node, sources) = (Node::TensorFile(TensorFile::Npy, id), self.sources(id));
        Ok(Some(self.of_elements(
            node,
            Part::Npy,
            view,
            dtype,
            &kind.shape,
            sources,
        )))
    }

    fn of_elements(
        &self,
        node: Node,
        part: Part,
        view: SharedView,
        dtype: Dtype,
        shape: &[u64],
        sources: Sources,
    ) -> Target {
        Target {
            key: Key {
                ino: node.ino(),
                part,
            },
            path: self.layout.path(node).into(),
            view,
            dtype: dtype as u32,
            shape: shape.into(),
            sources,
            arena: None,
        }
    }

    fn of_bytes(&self, node: Node, part: Part, view: SharedView, sources: Sources) -> Target {
        let shape = [view.len()];
        Target {
            dtype: 0,
            ..self.of_elements(node, part, view, Dtype::U8, &shape, sources)
        }
    }

    /// The files that a tensor's values come from.
    fn sources(&self, id: TensorId) -> Sources {
        let model = &self.layout.model;
        let mut files = Vec::new();
        model.source_files(id, &mut files);
        let files = files.iter().map(|&f| &model.catalog.files[f as usize]);
        files.cloned().collect()
    }

    fn arena(&self) -> Result<&Arc<Arena>> {
        if self.arena.get().is_none() {
            patience::take_long()?;
        }
        Ok(self.arena.get_or_init(|| {
            let catalog = &self.layout.model.catalog;
            Arc::new(Arena::new(catalog.tensors.iter().zip(0..).map(
                |(tensor, id)| Member {
                    ino: Node::TensorFile(TensorFile::Raw, id).ino(),
                    view: Arc::new(StoredBytes(catalog.extent(tensor))),
                    file: catalog.files[tensor.file as usize].clone(),
                },
            )))
        }))
    }
}
