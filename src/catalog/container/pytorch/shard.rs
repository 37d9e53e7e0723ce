//! One checkpoint: its pickle's values, the model among them, and a row for each of its tensors.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::file::Checkpoint;
use super::pickle::{Rebuilt, Ref};
use super::problems::{self, Full, Problems};
use super::selection::{self, Contents, Found, Holdings, Model, Walk};
use super::tensor::{Made, Tensors};
use crate::catalog::container::shards::{Broken, Shard};
use crate::catalog::{Findings, Object};
use crate::text::elide;

mod remarks;
mod storages;
mod summary;
#[cfg(test)]
mod tests;

use remarks::Remarks;

/// The name of a tensor that has no key: the file holds nothing else.
const BARE: &str = "tensor";
/// The most tensors in one file. A hostile file may have one tensor under any number of names.
const MAX_TENSORS: usize = 1 << 20;
/// The most memory that names and shapes of a file's tensors may take together, in bytes: a hostile file
/// may have one long key, or one long shape, in any number of tensors.
const MAX_TEXT: u64 = 256 << 20;
/// The longest name of a tensor that is not served, in characters.
const MAX_NAME: usize = 1000;

/// Reads a checkpoint, which is file number `index` of the model.
///
/// # Errors
/// All problems of the file, naming tensors and numbers.
pub(super) fn read(
    file: &Arc<dyn Object>,
    index: u32,
    part: Option<&str>,
    findings: &Findings,
) -> Result<Shard, Broken> {
    let (checkpoint, problems) = Checkpoint::open(&**file, findings)?;
    of_checkpoint(&checkpoint, problems, file, index, part)
}

/// Reads an open checkpoint, as [`read`].
///
/// # Errors
/// As [`read`].
pub(super) fn of_checkpoint(
    checkpoint: &Checkpoint,
    mut problems: Problems,
    file: &Arc<dyn Object>,
    index: u32,
    part: Option<&str>,
) -> Result<Shard, Broken> {
    let Checkpoint { pickle, storages } = checkpoint;
    let contents = Contents::new(pickle);
    let mut shard = Shard::default();
    if let Some(root) = pickle.root() {
        let reading = Reading {
            tensors: Tensors {
                pickle,
                storages,
                file,
                index,
            },
            contents: &contents,
            root,
            part,
        };
        // A report that ends the reading is among the problems.
        let _: Result<(), Full> = reading.read(&mut shard, &mut problems);
        if problems.all() {
            storages::report_unused(pickle, storages, &mut problems);
        }
    } else {
        problems.add(|| "its pickle holds nothing".into());
    }
    if problems.is_empty() {
        return Ok(shard);
    }
    let names = shard.tensors.into_iter().map(|row| row.name);
    Err(problems.into_broken(&**file, names.chain(shard.lost).collect()))
}

/// The reading of one checkpoint.
struct Reading<'r> {
    tensors: Tensors<'r>,
    contents: &'r Contents<'r>,
    root: Ref,
    part: Option<&'r str>,
}

impl<'r> Reading<'r> {
    fn read(&self, shard: &mut Shard, problems: &mut Problems) -> Result<(), Full> {
        let holdings = Holdings::below(self.contents, self.root);
        let name = self.tensors.file.name();
        let model = selection::find(self.contents, &holdings, self.root, self.part, name);
        let model = match model {
            Ok(model) => model,
            Err(why) => return problems.end(why),
        };
        // Tensors in exponentially many paths are the walk's to refuse.
        let held = holdings.of(model.value).tensors;
        if model.without.is_empty() && held <= self.tensors.pickle.len() as u64 {
            let held = usize::try_from(held).unwrap_or(usize::MAX);
            check_limits(held, 0).or_else(|why| problems.end(why))?;
        }
        drop(holdings);
        let mut remarks = Remarks::new(&model, name);
        self.walk(&model, shard, problems, &mut remarks)?;
        if let (true, true, Some((name, why))) = (
            shard.tensors.is_empty(),
            shard.lost.is_empty(),
            shard.left_out.first(),
        ) {
            let n = shard.left_out.len();
            return problems.end(format!(
                "has no tensor that can be served: {n} left out, first '{}': {why}",
                elide(name, MAX_NAME)
            ));
        }
        remarks.names(self.tensors.pickle);
        shard.notes = remarks.lines();
        shard.summary = summary::of(self.contents, self.root, &model);
        let metadata = [("format".into(), "pt".into())];
        shard.metadata = Some(HashMap::from(metadata));
        Ok(())
    }

    /// Makes a row of each tensor of the model.
    fn walk(
        &self,
        model: &Model,
        shard: &mut Shard,
        problems: &mut Problems,
        remarks: &mut Remarks,
    ) -> Result<(), Full> {
        let mut walk = Walk::new(self.contents, model.value, &model.without);
        let mut names: HashSet<Arc<str>> = HashSet::new();
        let mut same = Vec::new();
        let mut rest = Walk::once(self.contents, self.root);
        let mut text = 0;
        loop {
            let Found { tensor, value } = match walk.next() {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(why) => return problems.end(why),
            };
            rest.skip(value);
            let name: Arc<str> = match walk.is_bare() {
                true => BARE.into(),
                false => walk.name().into(),
            };
            if !names.insert(name.clone()) {
                same.push((name, walk.path()));
                if !problems.all() || same.len() == problems::MOST {
                    break;
                }
                continue;
            }
            text += self.row(&name, tensor, shard, problems, remarks)?;
            check_limits(names.len(), text).or_else(|why| problems.end(why))?;
        }
        remarks.skipped(&mut walk);
        self.report_same(model, &same, problems)?;
        if problems.all() {
            self.check_rest(rest, problems)?;
        }
        Ok(())
    }

    /// Adds a tensor. Returns how much memory its name and shape take, in bytes.
    fn row(
        &self,
        name: &Arc<str>,
        tensor: Rebuilt<'r>,
        shard: &mut Shard,
        problems: &mut Problems,
        remarks: &mut Remarks,
    ) -> Result<u64, Full> {
        let mut takes = name.len() as u64;
        match self.tensors.make(name, tensor) {
            Ok(Made::Row(row)) => {
                // The shape and its copy in the table, strides as numbers and as JSON.
                takes += 128 * row.shape.len() as u64;
                shard.tensors.push(row);
            }
            Ok(Made::LeftOut(why)) => {
                if remarks.left_out(name, &why) {
                    shard.left_out.push((name.clone(), why));
                }
            }
            Ok(Made::Lost) => shard.lost.push(name.clone()),
            Err(why) => {
                problems.tensor(name, &why)?;
                shard.lost.push(name.clone());
            }
        }
        Ok(takes)
    }

    /// Reports names that two paths give. Only the second path is known; the first is found by walking
    /// again.
    fn report_same(
        &self,
        model: &Model,
        same: &[(Arc<str>, String)],
        problems: &mut Problems,
    ) -> Result<(), Full> {
        if same.is_empty() {
            return Ok(());
        }
        let mut first: HashMap<&str, Option<String>> =
            same.iter().map(|(name, _)| (&**name, None)).collect();
        let mut walk = Walk::new(self.contents, model.value, &model.without);
        while let Ok(Some(_)) = walk.next() {
            if let Some(path @ None) = first.get_mut(walk.name().as_str()) {
                *path = Some(walk.path());
            }
        }
        for (name, second) in same {
            let first = first.get(&**name).and_then(Option::as_deref);
            let first = first.unwrap_or("another value");
            problems.tensor(
                name,
                &format!("is the name of two tensors, {first} and {second}; mount a part of the file that has one of them"),
            )?;
        }
        Ok(())
    }

    /// Checks the tensors that are not part of the model, each once.
    fn check_rest(&self, mut walk: Walk<'_, 'r>, problems: &mut Problems) -> Result<(), Full> {
        while let Ok(Some(found)) = walk.next() {
            if let Err(why) = self.tensors.check(found.tensor) {
                problems.tensor(&elide(&walk.name(), MAX_NAME), &why)?;
            }
        }
        Ok(())
    }
}

/// Refuses more tensors, or longer names and shapes, than memory has room for.
fn check_limits(tensors: usize, text: u64) -> Result<(), String> {
    if tensors > MAX_TENSORS {
        return Err(format!(
            "has more than {MAX_TENSORS} tensors, which is the most that are served from one file"
        ));
    }
    if text > MAX_TEXT {
        return Err(format!(
            "names and shapes of its first {tensors} tensors take {text} bytes of memory, at most {MAX_TEXT} are used"
        ));
    }
    Ok(())
}
