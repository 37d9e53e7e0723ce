//! What the GPU ioctl means on each file and directory of the mount.

use std::sync::Arc;

use super::{Answer, Fs};
use crate::error::Result;
use crate::gpu::{Arena, Caller, Key, Member, Part, Reply, Sources, Target};
use crate::ioctl;
use crate::layout::{Node, TensorFile, Top};
use crate::model::TensorId;
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
            Some(node) if self.layout.try_exists(node)? => self.target(node, fh),
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
            log::warn!("{e}");
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
            Node::TensorDir(id) => self.tensor_target(TensorFile::Raw, id, None)?,
            Node::TensorFile(file, id) => self.tensor_target(file, id, self.opened(node, fh))?,
            Node::Export(_) => {
                let view = match self.opened(node, fh) {
                    Some(view) => view,
                    None => self.view(node)?,
                };
                let sources = self.layout.model.catalog.files.iter().cloned().collect();
                Some(self.bytes_target(node, Part::File, view, sources))
            }
            _ => None,
        })
    }

    /// The view that an open file already has.
    fn opened(&self, node: Node, fh: Option<u64>) -> Option<SharedView> {
        let file = self.handles.get(fh?)?;
        (file.node == node).then(|| file.view.clone())
    }

    /// The array that a tensor's file holds; plain bytes if its dtype is unknown.
    fn tensor_target(
        &self,
        file: TensorFile,
        id: TensorId,
        opened: Option<SharedView>,
    ) -> Result<Option<Target>> {
        let model = &self.layout.model;
        let Ok(tensor) = model.tensor(id) else {
            return Ok(None);
        };
        // Tied tensors are the same bytes, so they share the memory.
        if let Some(of) = tensor.raw.alias() {
            return self.tensor_target(file, of, None);
        }
        let row = file.row();
        let shown = (row.shown)(model, id, &tensor);
        let (Some(shown), Some(expr)) = (shown, (row.made_of)(model, id, &tensor)) else {
            return Ok(None);
        };
        let bytes = match (row.array, opened) {
            (Some(array), _) => array(model, id)?,
            (None, Some(file)) => Some(file),
            (None, None) => (row.view)(model, id)?,
        };
        let part = match file {
            TensorFile::Raw => Part::Raw,
            _ => Part::File,
        };
        let node = Node::TensorFile(file, id);
        // Of a stored tensor its own file; of anything else whatever its permissions come from.
        let files = match expr.stored() {
            Some(_) => model.files_of(&expr),
            None => model.source_files(id),
        };
        let sources = files
            .into_iter()
            .map(|f| model.catalog.files[f as usize].clone());
        let target = |bytes| self.bytes_target(node, part, bytes, sources.collect());
        Ok(bytes.map(target).map(|target| match shown.dtype.abi() {
            0 => target,
            dtype => Target {
                dtype,
                shape: shown.shape.into(),
                ..target
            },
        }))
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
            Arc::new(Arena::new(ids.map(|id| {
                let files = catalog.files_of(id);
                Member {
                    ino: Node::TensorFile(TensorFile::Raw, id).ino(),
                    view: catalog.bytes(id),
                    files: files.map(|f| catalog.files[f as usize].clone()).collect(),
                }
            })))
        }))
    }
}
