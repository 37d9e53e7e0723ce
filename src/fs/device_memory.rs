//! What the GPU ioctl means on each file and directory of the mount.

use std::sync::Arc;

use super::Fs;
use crate::dtype::{Dtype, ElementType};
use crate::error::Result;
use crate::gpu::{Arena, Caller, Key, Member, Part, Reply, Sources, Target};
use crate::ioctl;
use crate::layout::{Node, Top};
use crate::model::{Origin, TensorId};
use crate::view::SharedView;

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
    ) {
        let node = Node::from_ino(ino).filter(|&n| self.layout.exists(n));
        let about_it = matches!(code, ioctl::UPLOAD | ioctl::QUERY | ioctl::RELEASE);
        let target = match node.filter(|_| about_it) {
            Some(node) => self.target(node, fh).map_err(|e| {
                log::warn!("{}", crate::text::printable(&e.to_string()));
                e.errno()
            }),
            None => Ok(None),
        };
        self.gpu
            .ioctl(code, input, target, Caller { uid, fh }, reply);
    }

    /// Ends all GPU use, before the mount is detached: whoever waits for an upload is answered, and
    /// all memory goes back to the driver. Takes at most ten seconds. See [`crate::gpu::Gpu::stop`].
    pub fn stop_gpu(&self) {
        self.gpu.stop();
    }

    /// Whether [`Fs::ioctl`] may have to wait for the disk, or compute for long.
    pub fn ioctl_may_wait(&self, ino: u64) -> bool {
        match Node::from_ino(ino) {
            Some(Node::Top(Top::Tensors)) => self.arena.get().is_none(),
            _ => self.open_may_wait(ino),
        }
    }

    /// What there is to upload of a node. `None` for all that is no tensor data.
    fn target(&self, node: Node, fh: Option<u64>) -> Result<Option<Target>> {
        Ok(match node {
            Node::Top(Top::Tensors) => Some(Target::model(node.ino(), self.arena())),
            Node::TensorDir(id) => self.raw_target(id, None)?,
            Node::Raw(id) => self.raw_target(id, self.opened(node, fh))?,
            Node::F32(id) => self.values_target(id, self.opened(node, fh))?,
            Node::Npy(id) => self.npy_target(id)?,
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
        let node = Node::Raw(id);
        let view = match view {
            Some(view) => view,
            None => model.raw(id)?,
        };
        let sources = match model.is_stored(id) {
            // A layer's anchor has the layer's files for its values; its own bytes have one.
            true => {
                let files = model.catalog.files_of(id);
                files
                    .map(|f| model.catalog.files[f as usize].clone())
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
        let (node, sources) = (Node::F32(id), self.sources(id));
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
        let (node, sources) = (Node::Npy(id), self.sources(id));
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

    fn arena(&self) -> &Arc<Arena> {
        self.arena.get_or_init(|| {
            let catalog = &self.layout.model.catalog;
            let ids = 0..catalog.tensors.len() as TensorId;
            Arc::new(Arena::new(ids.map(|id| Member {
                ino: Node::Raw(id).ino(),
                view: catalog.bytes(id),
                file: catalog.place(id).0.clone(),
            })))
        })
    }
}
