//! Models in several files of one format. An index decides which shard a tensor comes from, or all
//! files of a set are read. The walk is the same for every format of shards.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::Verdict;
use crate::catalog::row::Row;
use crate::catalog::{Findings, HeaderProblem, Object, Store};
use crate::error::{Error, Result};
use crate::reason::Reason;

mod all_shards;
mod indexed;
mod object;
mod reader;
mod weight_map;

use all_shards::Extent;
pub(super) use object::each_entry;

/// A format of single files.
pub(super) trait ShardFormat {
    /// The container's name in `model.json`.
    fn name(&self) -> &'static str;

    /// Reads one shard, which is file number `index` of the model. If `findings` allow something to
    /// be missing, a file that is cut short is not an error: the tensors that are not completely in it
    /// are listed as lost.
    ///
    /// # Errors
    /// All problems of its header, naming tensors and numbers.
    fn read(
        &self,
        file: &Arc<dyn Object>,
        index: u32,
        findings: &Findings,
    ) -> std::result::Result<Shard, Broken>;
}

/// A shard's tensors and metadata.
#[derive(Default)]
pub(in crate::catalog::container) struct Shard {
    /// The tensors that it holds whole.
    pub tensors: Vec<Row>,
    /// What its header states about the model: safetensors' `__metadata__`.
    pub metadata: Option<HashMap<String, String>>,
    /// Further keys of `model.json`.
    pub summary: Map<String, Value>,
    /// Tensors that it holds but that cannot be served, and why.
    pub left_out: Vec<(Arc<str>, Reason)>,
    /// Remarks about what it holds, for the log and `ls --why`.
    pub notes: Vec<String>,
    /// Tensors in the header that cannot be served: those past the end of a file that is cut short,
    /// or all of them if the header is damaged.
    pub lost: Vec<Arc<str>>,
}

/// Why a shard cannot be read.
pub(in crate::catalog::container) struct Broken {
    /// The first problem, with the file's location.
    pub error: Error,
    /// All problems of its header; empty if the header cannot be examined, or the file is not a
    /// shard at all.
    pub problems: Vec<HeaderProblem>,
    /// The tensors in its header, as far as the header can be read.
    pub names: Box<[Arc<str>]>,
    /// Whether it is hostile: then it is never left out to serve the others.
    pub hostile: bool,
}

impl From<Error> for Broken {
    fn from(error: Error) -> Broken {
        Broken {
            error,
            problems: Vec::new(),
            names: Box::default(),
            hostile: false,
        }
    }
}

impl Broken {
    /// Reports every problem. Returns what is known of the shard, if anything is.
    ///
    /// # Errors
    /// The first problem, while a model is opened.
    pub(super) fn report(self, file: &str, findings: &mut Findings) -> Result<Option<Shard>> {
        if self.problems.is_empty() || !findings.verifying() {
            findings.file(file, self.error)?;
        }
        for problem in self.problems {
            findings.flaw(problem.of(file));
        }
        let lost = self.names.into_vec();
        Ok((!lost.is_empty()).then(|| Shard {
            lost,
            ..Shard::default()
        }))
    }
}

/// A claim on files without an index, whose names end in `end`: all that are there.
pub(super) fn all(
    store: &Arc<dyn Store>,
    format: impl ShardFormat + 'static,
    names: Vec<String>,
    end: &str,
) -> Verdict {
    files(store, format, names, end, Extent::Present)
}

/// As [`all`], of a numbered set, none of which may be missing.
pub(super) fn set(
    store: &Arc<dyn Store>,
    format: impl ShardFormat + 'static,
    names: Vec<String>,
    end: &str,
) -> Verdict {
    files(store, format, names, end, Extent::Whole)
}

/// A claim on one file, asked for by its own path.
pub(super) fn lone(
    store: &Arc<dyn Store>,
    format: impl ShardFormat + 'static,
    name: &str,
) -> Verdict {
    files(store, format, vec![name.into()], "", Extent::Lone)
}

fn files(
    store: &Arc<dyn Store>,
    format: impl ShardFormat + 'static,
    names: Vec<String>,
    end: &str,
    extent: Extent,
) -> Verdict {
    Verdict::Yes(Box::new(all_shards::Shards {
        store: store.clone(),
        format: Box::new(format),
        names,
        end: end.into(),
        extent,
    }))
}

/// A claim on an index and its shards.
pub(super) fn index(
    store: &Arc<dyn Store>,
    format: impl ShardFormat + 'static,
    name: &str,
) -> Verdict {
    Verdict::Yes(Box::new(indexed::Index {
        store: store.clone(),
        format: Box::new(format),
        name: name.into(),
    }))
}
