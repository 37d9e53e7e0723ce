//! Shards without an index: all of them are read.

use std::collections::HashMap;
use std::sync::Arc;

use super::ShardFormat;
use super::reader::{Reader, announce};
use crate::catalog::container::{Claim, Parts, numbered};
use crate::catalog::{Catalog, Configuration, Findings, Problem, Store};
use crate::error::Result;

/// Files, all of which are read.
pub(super) struct Shards {
    pub store: Arc<dyn Store>,
    pub format: Box<dyn ShardFormat>,
    /// Their names, in natural order.
    pub names: Vec<String>,
    /// What the names end in.
    pub end: String,
    /// One shard, asked for by its own path.
    pub lone: bool,
}

impl Claim for Shards {
    fn read(self: Box<Self>, findings: &mut Findings) -> Result<Parts> {
        announce(&self.store, &self.names);
        let mut parts = Parts::new(
            &self.store,
            self.format.name(),
            Configuration::beside(&*self.store),
        );
        parts.catalog.lone_file = self.lone;
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
        if !self.lone {
            find_missing(&self.names, &self.end, &mut parts.catalog, findings);
        }
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

/// Finds the shards that are missing according to the names of the others.
fn find_missing(names: &[String], end: &str, catalog: &mut Catalog, findings: &mut Findings) {
    let missing = numbered::missing(names, end);
    for name in &missing {
        let problem = "is missing: the names of the other shards imply it, and no index lists what it holds; download it again";
        findings.flaw(Problem::of_file(name, problem));
    }
    let Some(first) = missing.first() else {
        return;
    };
    catalog.shards_missing = true;
    let more = match missing.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    catalog.notes.push(format!(
        "{first}{more} missing: the names of the shards imply more than there are, and no index lists what the others hold; the rest is served"
    ));
}
