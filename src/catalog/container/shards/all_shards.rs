//! Shards without an index: all of them are read.

use std::collections::HashMap;
use std::sync::Arc;

use super::ShardFormat;
use super::reader::{Reader, announce};
use crate::catalog::container::{Claim, Parts, numbered, refusal};
use crate::catalog::{Catalog, Configuration, Findings, Problem, Store};
use crate::error::{Error, Result};

/// Files, all of which are read.
pub(super) struct Shards {
    pub store: Arc<dyn Store>,
    pub format: Box<dyn ShardFormat>,
    /// Their names, in natural order.
    pub names: Vec<String>,
    /// What the names end in.
    pub end: String,
    /// Which files of the model they are.
    pub extent: Extent,
}

/// Which files of a model are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// One shard, asked for by its own path.
    Lone,
    /// All that are there. It is only remarked if their names imply more.
    Present,
    /// A whole numbered set.
    Whole,
}

impl Claim for Shards {
    fn file(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    fn read(self: Box<Self>, findings: &mut Findings) -> Result<Parts> {
        let missing = match self.extent {
            Extent::Lone => Vec::new(),
            Extent::Present | Extent::Whole => numbered::missing(&self.names, &self.end),
        };
        if self.extent == Extent::Whole {
            check_whole(&missing, &*self.store, findings)?;
        }
        announce(&self.store, &self.names);
        let mut parts = Parts::new(
            &self.store,
            self.format.name(),
            Configuration::beside(&*self.store),
        );
        parts.catalog.lone_file = self.extent == Extent::Lone;
        let mut reader = Reader {
            parts,
            format: &*self.format,
            index: None,
            // If the only shard is missing, there is nothing to serve.
            leave_out: findings.allow_missing() && self.names.len() > 1,
        };
        let mut twice = Twice::default();
        for name in &self.names {
            let Some(shard) = reader.shard(name, findings)? else {
                reader.parts.catalog.shards_missing = true;
                continue;
            };
            if findings.verifying() {
                let held = shard.tensors.iter().map(|t| &t.name).chain(&shard.lost);
                twice.report(name, held, findings);
            }
            reader.parts.catalog.absent.extend(shard.lost);
            reader.parts.rows.extend(shard.tensors);
        }
        let mut parts = reader.parts;
        note_missing(&missing, &mut parts.catalog, findings);
        Ok(parts)
    }
}

/// The first file that holds each name, to report names that two files hold. (Opening refuses such
/// names for every container, once all tensors are known.)
#[derive(Default)]
struct Twice<'a>(HashMap<Arc<str>, &'a str>);

impl<'a> Twice<'a> {
    fn report<'t>(
        &mut self,
        file: &'a str,
        held: impl Iterator<Item = &'t Arc<str>>,
        findings: &mut Findings,
    ) {
        for tensor in held {
            if let Some(first) = self.0.get(tensor) {
                let problem =
                    format!("is also in {first}, and no index decides between them; remove one");
                findings.flaw(Problem::of_tensor(file, tensor, problem));
            } else {
                self.0.insert(tensor.clone(), file);
            }
        }
    }
}

/// Refuses a set of which files are missing, unless that is allowed.
///
/// # Errors
/// The first that is missing, while a model is opened.
fn check_whole(missing: &[String], store: &dyn Store, findings: &Findings) -> Result<()> {
    match missing.first() {
        Some(first) if !findings.allow_missing() && !findings.verifying() => {
            let what_to_do = refusal::missing(store, first);
            let more = and_more(missing);
            let problem = format!(
                "is missing: the names of the other files imply it{more}, and no index lists what it holds; {what_to_do}"
            );
            Err(Error::invalid(store.location().join(first), problem))
        }
        _ => Ok(()),
    }
}

/// Notes the shards that are missing according to the names of the others.
fn note_missing(missing: &[String], catalog: &mut Catalog, findings: &mut Findings) {
    for name in missing {
        let problem = "is missing: the names of the other shards imply it, and no index lists what it holds; download it again";
        findings.flaw(Problem::of_file(name, problem));
    }
    let Some(first) = missing.first() else {
        return;
    };
    catalog.shards_missing = true;
    let more = and_more(missing);
    catalog.notes.push(format!(
        "{first}{more} missing: the names of the shards imply more than there are, and no index lists what the others hold; the rest is served"
    ));
}

/// How many files there are after the first: ` and 2 more`.
fn and_more(files: &[String]) -> String {
    match files.len() {
        0 | 1 => String::new(),
        n => format!(" and {} more", n - 1),
    }
}
