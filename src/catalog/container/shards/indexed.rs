//! Shards with an index: its `weight_map` decides which shard a tensor comes from.

use std::collections::HashMap;
use std::sync::Arc;

use super::reader::{Reader, announce};
use super::weight_map::WeightMap;
use super::{Shard, ShardFormat};
use crate::catalog::container::{Claim, Parts};
use crate::catalog::row::Row;
use crate::catalog::{Configuration, Findings, Problem, Store};
use crate::error::{Error, Location, Result};

/// An index, and the shards beside it.
pub(super) struct Index {
    pub store: Arc<dyn Store>,
    pub format: Box<dyn ShardFormat>,
    /// Its file name.
    pub name: String,
}

impl Claim for Index {
    fn file(&self) -> &str {
        &self.name
    }

    fn read(self: Box<Self>, findings: &mut Findings) -> Result<Parts> {
        let mut parts = Parts::new(
            &self.store,
            self.format.name(),
            Configuration::beside(&*self.store),
        );
        parts.catalog.weight_files.push(self.name.clone());
        let map = match WeightMap::read(&*self.store, &self.name) {
            Ok(map) => map,
            Err(error) => {
                findings.file(&self.name, error)?;
                return Ok(parts);
            }
        };
        map.check_names(&self.store.location().join(&self.name), findings)?;
        let walk = Walk {
            reader: Reader {
                parts,
                format: &*self.format,
                index: Some(&self.name),
                leave_out: findings.allow_missing(),
            },
            index: &self.name,
            map: &map,
            file_of: Vec::new(),
            found: Vec::new(),
            held: Held::new(),
        };
        walk.read(findings)
    }
}

/// State of the walk through an index and its shards.
struct Walk<'a> {
    reader: Reader<'a>,
    index: &'a str,
    map: &'a WeightMap,
    /// For each shard of the map: which file it is, if it could be read.
    file_of: Vec<Option<u32>>,
    /// What is wrong with each shard: tensors that it lacks, and damage.
    found: Vec<(Findings, Findings)>,
    held: Held,
}

/// One shard's copy of a tensor.
struct HeldCopy {
    /// Which file.
    file: u32,
    /// `None` if it cannot be served.
    tensor: Option<Row>,
}

/// Every name in the shards' headers, with the copies of it.
type Held = HashMap<Arc<str>, Vec<HeldCopy>>;

impl Walk<'_> {
    fn read(mut self, findings: &mut Findings) -> Result<Parts> {
        let plain: Vec<&String> = self.map.shards.iter().flatten().collect();
        announce(&self.reader.parts.catalog.store, &plain);
        for shard in &self.map.shards {
            let mut damage = findings.same();
            let file = self.reader.parts.catalog.files.len() as u32;
            let read = match shard {
                Ok(name) => self.reader.shard(name, &mut damage)?,
                Err(_) => None,
            };
            self.file_of.push(read.as_ref().map(|_| file));
            self.found.push((findings.same(), damage));
            if let Some(shard) = read {
                self.hold(file, shard);
            }
        }
        self.add_mapped(findings)?;
        for (missing, damage) in std::mem::take(&mut self.found) {
            findings.append(missing);
            findings.append(damage);
        }
        self.add_unmapped(findings);
        let mut parts = self.reader.parts;
        parts.catalog.notes.sort();
        Ok(parts)
    }

    fn hold(&mut self, file: u32, shard: Shard) {
        for t in shard.tensors {
            let copies = self.held.entry(t.name.clone()).or_default();
            copies.push(HeldCopy {
                file,
                tensor: Some(t),
            });
        }
        for name in shard.lost {
            let copies = self.held.entry(name).or_default();
            copies.push(HeldCopy { file, tensor: None });
        }
    }

    /// Adds every tensor of the map from the shard that the map names.
    fn add_mapped(&mut self, findings: &mut Findings) -> Result<()> {
        for (tensor, &shard) in &self.map.tensors {
            let Ok(name) = &self.map.shards[shard as usize] else {
                continue;
            };
            let mut copies = self.held.remove(tensor).unwrap_or_default();
            let file = self.file_of[shard as usize];
            let here = copies.iter().position(|c| Some(c.file) == file);
            match here.map(|i| copies.swap_remove(i).tensor) {
                Some(Some(row)) => {
                    self.note_stale(tensor, name, &copies);
                    self.reader.parts.rows.push(row);
                    continue;
                }
                // One report that the shard cannot be read is enough; its tensors are not reported
                // as well.
                _ if findings.allow_missing() || file.is_none() => {}
                Some(None) => {}
                None => self.report_not_held(tensor, shard)?,
            }
            self.reader.parts.catalog.absent.insert(tensor.clone());
        }
        Ok(())
    }

    fn note_stale(&mut self, tensor: &str, name: &str, copies: &[HeldCopy]) {
        let catalog = &mut self.reader.parts.catalog;
        for stale in copies {
            let file = catalog.files[stale.file as usize].name();
            catalog.notes.push(format!(
                "'{tensor}': the copy in {file} is stale, the index names {name}"
            ));
        }
    }

    /// Reports a tensor that is not in the shard that the index names.
    fn report_not_held(&mut self, tensor: &str, shard: u32) -> Result<()> {
        let (index, shard) = (self.index, shard as usize);
        let Ok(name) = &self.map.shards[shard] else {
            return Ok(());
        };
        let problem = format!(
            "is not in this file, although {index} lists it here; the index and the shards are of different versions"
        );
        let problem = Problem::of_tensor(name, tensor, problem);
        let at = self.reader.parts.catalog.store.location().join(name);
        let (missing, _) = &mut self.found[shard];
        missing.report(problem, || not_held(&at, tensor, index))
    }

    /// Adds tensors that a shard holds but the map does not list, if exactly one shard has them.
    fn add_unmapped(&mut self, findings: &mut Findings) {
        let Parts { catalog, rows } = &mut self.reader.parts;
        let mut held: Vec<_> = std::mem::take(&mut self.held).into_iter().collect();
        held.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (name, copies) in held {
            let files: Vec<&str> = copies
                .iter()
                .map(|c| catalog.files[c.file as usize].name())
                .collect();
            let index = self.index;
            let note = match <[HeldCopy; 1]>::try_from(copies) {
                Ok([HeldCopy { tensor, .. }]) => {
                    let file = files[0];
                    match tensor {
                        Some(row) => {
                            let note = format!("'{name}' is not in {index}; served from {file}");
                            rows.push(row);
                            note
                        }
                        None => {
                            catalog.absent.insert(name.clone());
                            format!(
                                "'{name}' is not in {index}, and {file}, which holds it, is cut short"
                            )
                        }
                    }
                }
                Err(_) => {
                    let problem = format!(
                        "is in {}, and the index does not decide between them: it is left out",
                        files.join(" and ")
                    );
                    findings.flaw(Problem::of_tensor(index, &name, problem));
                    let files = files.join(", ");
                    format!("'{name}' is not in {index} and in several shards ({files}); left out")
                }
            };
            catalog.notes.push(note);
        }
    }
}

/// The error about a tensor that is not in the shard that the index names.
fn not_held(shard: &Location, tensor: &str, index: &str) -> Error {
    Error::invalid(
        shard,
        format!(
            "does not hold tensor '{tensor}', although {index} lists it there; the index and the shards are of different versions, or the file is cut short (--allow-missing serves the rest)"
        ),
    )
}
