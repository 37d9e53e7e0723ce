//! Files of `export/` that a recipe names.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::super::evaluate;
use super::super::file::ExportRule;
use super::super::language::Pattern;
use super::super::mistake::Mistake;
use super::super::rules::Outcome;
use super::super::scope::Known;
use super::Definition;
use crate::catalog::{BUILT_IN_EXPORTS, FileOfTensors, METADATA, natural};
use crate::text::{elide, printable};

/// The longest name that Linux takes for a file, in bytes.
const LONGEST_FILE: usize = 255;
/// The most files that a recipe adds to `export/`.
const MAX_FILES: usize = 65_536;
/// How many mistakes of one rule are listed: they are often one and the same.
const MOST: usize = 3;

/// A tensor that a rule found.
struct Found {
    file: String,
    name: Option<String>,
}

impl Definition<'_> {
    /// The files, in natural order of their names.
    ///
    /// # Errors
    /// Rules that match nothing, names that cannot be those of files, two tensors of one name in a file.
    pub fn exports(&self, tensors: &[Outcome]) -> Result<Vec<FileOfTensors>, Vec<Mistake>> {
        if self.file.exports.is_empty() {
            return Ok(Vec::new());
        }
        let mut order: Vec<&str> = tensors.iter().map(|made| &*made.name).collect();
        order.sort_by(|a, b| natural(a, b));
        let mut files = Files::default();
        let mut mistakes = Vec::new();
        for rule in &self.file.exports {
            let before = mistakes.len();
            let mut matches = 0u64;
            for (index, tensor) in (0..).zip(&order) {
                let Some(found) = self.found(rule, tensor) else {
                    continue;
                };
                matches += 1;
                let added = found.and_then(|found| files.add(rule, index, tensor, found));
                if let Err(mistake) = added
                    && !mistakes.contains(&mistake)
                {
                    mistakes.push(mistake);
                }
                if mistakes.len() - before >= MOST {
                    break;
                }
            }
            if matches == 0 && !tensors.is_empty() {
                let patterns = rule.on.iter().map(|p| format!("'{}'", shown(&p.text)));
                let patterns = patterns.collect::<Vec<_>>().join(", ");
                let what = format!("matches nothing: no name is like {patterns}");
                mistakes.push(Mistake::of_line(rule.at, what));
            }
        }
        match mistakes.is_empty() {
            true => Ok(files.sorted()),
            false => Err(mistakes),
        }
    }

    /// The file that a rule puts a tensor into, and its name there; `None`: into none.
    fn found(&self, rule: &ExportRule, tensor: &str) -> Option<Result<Found, Mistake>> {
        let find = |pattern: &Pattern| {
            let bindings = pattern.matches(tensor)?;
            let holes = pattern.holes().enumerate();
            let holes = holes.map(|(i, (hole, _))| (hole, bindings.text(tensor, i)));
            let holes = holes.filter_map(|(hole, text)| Some((hole, text?)));
            Some(self.names(rule, &holes.collect::<Vec<_>>()))
        };
        rule.on.iter().find_map(find)
    }

    fn names(&self, rule: &ExportRule, holes: &[(&str, &str)]) -> Result<Found, Mistake> {
        let first = self.sources.models.first();
        let scope = Known {
            holes,
            parameters: self.parameters,
            config: first.map(|source| &source.model.catalog.configs),
        };
        let file = evaluate::template(&rule.file, &scope)?;
        if let Some(why) = refused(&file) {
            return Err(Mistake::at(rule.file.at, why));
        }
        let name = rule.to.as_ref();
        let name = name.map(|to| evaluate::template(to, &scope)).transpose()?;
        Ok(Found { file, name })
    }
}

/// Why a name cannot be that of a file of `export/`.
fn refused(file: &str) -> Option<String> {
    let name = shown(file);
    if file.is_empty() || file == "." || file == ".." || file.contains(['/', '\0']) {
        return Some(format!("'{name}' is not the name of one file"));
    }
    if file.len() > LONGEST_FILE {
        let len = file.len();
        return Some(format!(
            "'{name}' has {len} bytes; a file's name has at most {LONGEST_FILE}"
        ));
    }
    let is_taken = BUILT_IN_EXPORTS.contains(&file);
    is_taken.then(|| format!("'{name}' is one of the files that export/ has anyway"))
}

/// Files and what is in them.
#[derive(Default)]
struct Files {
    all: Vec<FileOfTensors>,
    by_name: HashMap<String, usize>,
    taken: HashSet<(usize, String)>,
}

impl Files {
    fn add(
        &mut self,
        rule: &ExportRule,
        index: u32,
        tensor: &str,
        found: Found,
    ) -> Result<(), Mistake> {
        let at = match self.by_name.entry(found.file) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(_) if self.all.len() == MAX_FILES => {
                let what = format!("the rules of 'exports' make more than {MAX_FILES} files");
                return Err(Mistake::of_line(rule.at, what));
            }
            Entry::Vacant(new) => {
                self.all.push(FileOfTensors {
                    name: new.key().as_str().into(),
                    tensors: Vec::new(),
                });
                *new.insert(self.all.len() - 1)
            }
        };
        let name = found.name.unwrap_or_else(|| tensor.to_string());
        let Some(file) = self.all.get_mut(at) else {
            return Ok(());
        };
        let other = (name != tensor).then(|| name.as_str().into());
        file.tensors.push((index, other));
        if name == METADATA {
            let what = format!(
                "'{}': a safetensors file has no tensor of that name",
                shown(&name)
            );
            return Err(Mistake::of_line(rule.at, what));
        }
        if !self.taken.insert((at, name.clone())) {
            let (file, name, tensor) = (shown(&file.name), shown(&name), shown(tensor));
            let what = format!("'{tensor}' would be a second '{name}' in '{file}'");
            return Err(Mistake::of_line(rule.at, what));
        }
        Ok(())
    }

    fn sorted(mut self) -> Vec<FileOfTensors> {
        for file in &mut self.all {
            file.tensors.sort_by_key(|(index, _)| *index);
        }
        self.all.sort_by(|a, b| natural(&a.name, &b.name));
        self.all
    }
}

fn shown(name: &str) -> String {
    elide(&printable(name), 80)
}
