//! What the GPU ioctl means on each file and directory of the mount.

use std::sync::Arc;

use super::{Answer, Fs};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::gpu::{Arena, Caller, Key, Member, Part, Reply, Sources, Target};
use crate::ioctl;
use crate::layout::{Node, TensorFile, Top};
use crate::model::{Array, Expr, TensorId};
use crate::patience;
use crate::view::{SharedView, View};

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

    /// Ends all GPU use, before the mount is detached: callers that wait for an upload are answered, and
    /// all memory goes back to the driver. Takes at most ten seconds. See [`crate::gpu::Gpu::stop`].
    pub fn stop_gpu(&self) {
        self.gpu.stop();
    }

    /// What an upload of the node would load; `None` if the node does not hold tensor data.
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
                Some(self.bytes_target(node, Part::Export, view, sources))
            }
            _ => None,
        })
    }

    /// The view that an open file already has.
    fn opened(&self, node: Node, fh: Option<u64>) -> Option<SharedView> {
        let file = self.handle(fh?)?;
        (file.node == node).then(|| file.view.clone())
    }

    fn raw_target(&self, id: TensorId, view: Option<SharedView>) -> Result<Option<Target>> {
        let model = &self.layout.model;
        let Ok(tensor) = model.tensor(id) else {
            return Ok(None);
        };
        // Tied tensors are the same bytes, so they share the memory.
        if let Some(of) = tensor.raw.alias() {
            return self.raw_target(of, None);
        }
        let array = Array {
            bytes: match view {
                Some(view) => view,
                None => model.raw(id)?,
            },
            dtype: tensor.dtype.clone(),
            shape: tensor.shape.into(),
        };
        let node = Node::TensorFile(TensorFile::Raw, id);
        Ok(Some(self.array_target(node, Part::Raw, array, &tensor.raw)))
    }

    fn values_target(&self, id: TensorId, view: Option<SharedView>) -> Result<Option<Target>> {
        let model = &self.layout.model;
        let Ok(tensor) = model.tensor(id) else {
            return Ok(None);
        };
        if let Some(of) = tensor.raw.alias() {
            return self.values_target(of, None);
        }
        let Some(values) = &tensor.values else {
            return Ok(None);
        };
        let bytes = match view {
            Some(view) => Some(view),
            None => model.f32(id)?,
        };
        let node = Node::TensorFile(TensorFile::F32, id);
        Ok(bytes.map(|bytes| {
            let array = Array {
                bytes,
                dtype: Dtype::F32.into(),
                shape: values.shape.into(),
            };
            self.array_target(node, Part::F32, array, tensor.f32_expr())
        }))
    }

    /// The array of a `.npy` file, without the header.
    fn npy_target(&self, id: TensorId) -> Result<Option<Target>> {
        let model = &self.layout.model;
        let (Ok(tensor), Some(kind)) = (model.tensor(id), model.npy_kind(id)) else {
            return Ok(None);
        };
        let (array, expr) = match kind.of_values {
            true => (model.values_array(id)?, tensor.f32_expr()),
            false => (Some(model.raw_array(id)?), &tensor.raw),
        };
        let node = Node::TensorFile(TensorFile::Npy, id);
        Ok(array.map(|array| self.array_target(node, Part::Npy, array, expr)))
    }

    /// The array that `expr` defines; plain bytes if its dtype is unknown.
    fn array_target(&self, node: Node, part: Part, array: Array, expr: &Expr) -> Target {
        let model = &self.layout.model;
        let files = model.files_of(expr);
        let sources = files
            .iter()
            .map(|&f| model.catalog.files[f as usize].clone());
        let target = self.bytes_target(node, part, array.bytes, sources.collect());
        match array.dtype.is_unknown() {
            true => target,
            false => Target {
                dtype: array.dtype.abi(),
                shape: array.shape.into(),
                ..target
            },
        }
    }

    fn bytes_target(&self, node: Node, part: Part, view: SharedView, sources: Sources) -> Target {
        Target {
            key: Key {
                ino: node.ino(),
                part,
            },
            path: self.layout.path(node).into(),
            dtype: 0,
            shape: [view.len()].into(),
            view,
            sources,
            arena: None,
        }
    }

    fn arena(&self) -> Result<&Arc<Arena>> {
        if self.arena.get().is_none() {
            patience::take_long()?;
        }
        Ok(self.arena.get_or_init(|| {
            let catalog = &self.layout.model.catalog;
            let ids = 0..catalog.tensors.len() as TensorId;
            Arc::new(Arena::new(ids.filter_map(|id| {
                let file = catalog.files_of(id).next()?;
                Some(Member {
                    ino: Node::TensorFile(TensorFile::Raw, id).ino(),
                    view: catalog.bytes(id),
                    file: catalog.files.get(file as usize)?.clone(),
                })
            })))
        }))
    }
}
