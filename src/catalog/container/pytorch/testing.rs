//! Checkpoints for tests: values as Python has them, pickled and read by the machine, with storages one
//! after another in a file.

use std::ffi::OsStr;
use std::sync::Arc;

use super::file::{Checkpoint, Storages};
use super::pickle::{self, Place};
use super::problems::Problems;
use super::shard;
use crate::catalog::container::cursor::Cursor;
use crate::catalog::container::shards::Shard;
use crate::catalog::{Findings, HeaderProblem, MemoryStore, Object, OpenOptions, Store};
use writer::{Pickler, Py, Strided, call};

#[path = "../../../../tests/common/pytorch.rs"]
#[allow(dead_code)]
pub(super) mod writer;

/// What the writer calls a tensor.
#[allow(dead_code)]
pub(super) struct T {
    pub name: String,
    pub dtype: safetensors::Dtype,
    pub shape: Vec<usize>,
    pub data: Vec<u8>,
}

/// A checkpoint in memory.
pub(super) struct Made {
    pub file: Arc<dyn Object>,
    pub checkpoint: Checkpoint,
}

/// A checkpoint that holds this value.
pub(super) fn made(root: &Py) -> Made {
    let (pickle, storages) = Pickler::default().pickle(root);
    made_of(&pickle, &storages)
}

/// A checkpoint with this pickle and these storages.
pub(super) fn made_of(pickle: &[u8], storages: &[Strided]) -> Made {
    let mut bytes = pickle.to_vec();
    let mut ranges = Storages::default();
    for s in storages {
        let start = bytes.len() as u64;
        bytes.extend(&s.data);
        let key = s.key.as_bytes().into();
        ranges.of.insert(key, start..bytes.len() as u64);
    }
    let store = MemoryStore::new(&[("x.ckpt", &bytes)]);
    let file = store.open(OsStr::new("x.ckpt")).unwrap();
    let mut cursor = Cursor::new(&*file, 0, pickle.len() as u64);
    let place = Place {
        start: 0,
        of: "data.pkl",
    };
    let outcome = pickle::read(&mut cursor, place).unwrap();
    let pickle = outcome
        .pickle
        .unwrap_or_else(|| panic!("{:?}", outcome.damage));
    // The writer does not know the storages in opcodes that a test wrote.
    for storage in pickle.storages() {
        ranges.of.entry(storage.key.into()).or_insert(0..4);
    }
    let checkpoint = Checkpoint {
        pickle,
        storages: ranges,
    };
    Made { file, checkpoint }
}

impl Made {
    /// What opening it serves.
    pub fn open(&self, part: Option<&str>) -> Result<Shard, String> {
        let findings = Findings::first(OpenOptions::default());
        let problems = Problems::new(&findings);
        let read = shard::of_checkpoint(&self.checkpoint, problems, &self.file, 0, part);
        read.map_err(|broken| broken.error.without_location())
    }

    /// What verifying it finds.
    pub fn verify(&self) -> Vec<HeaderProblem> {
        let problems = Problems::new(&Findings::all());
        match shard::of_checkpoint(&self.checkpoint, problems, &self.file, 0, None) {
            Ok(_) => Vec::new(),
            Err(broken) => broken.problems,
        }
    }
}

/// The names of a checkpoint's tensors, in the order of the walk, or why there are none.
pub(super) fn names(root: &Py, part: Option<&str>) -> Result<Vec<String>, String> {
    let shard = made(root).open(part)?;
    Ok(shard.tensors.iter().map(|t| t.name.to_string()).collect())
}

/// A tensor of one F32, alone in its storage.
pub(super) fn tensor(key: &str) -> Py {
    Py::Tensor(Strided {
        key: key.into(),
        data: vec![0; 4],
        class: "FloatStorage",
        element: 4,
        offset: 0,
        shape: vec![1],
        strides: vec![1],
    })
}

/// A tensor as `_rebuild_tensor_v2` gets it, with any arguments.
pub(super) fn rebuilt(storage: &Py, offset: Py, size: Py, stride: Py) -> Py {
    let hooks = call("collections", "OrderedDict", Vec::new());
    let arguments = vec![
        storage.clone(),
        offset,
        size,
        stride,
        Py::Bool(false),
        hooks,
    ];
    call("torch._utils", "_rebuild_tensor_v2", arguments)
}

/// A storage as a persistent id: `class` has the module.
pub(super) fn storage(
    class: (&'static str, &'static str),
    key: &str,
    device: &str,
    elements: i64,
) -> Py {
    let text = writer::text;
    let id = vec![
        text("storage"),
        Py::Name(class.0, class.1),
        text(key),
        text(device),
        Py::Int(elements),
    ];
    persistent(&Py::Tuple(id))
}

/// What a persistent id stands for.
pub(super) fn persistent(id: &Py) -> Py {
    let mut opcodes = opcodes(id);
    opcodes.push(b'Q');
    Py::Opcodes(opcodes)
}

/// The opcodes that leave a value on the stack.
pub(super) fn opcodes(value: &Py) -> Vec<u8> {
    let (pickle, _) = Pickler::default().pickle(value);
    // Without the protocol before it and STOP after it.
    pickle[2..pickle.len() - 1].to_vec()
}
