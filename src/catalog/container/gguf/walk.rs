//! Reads the files of a model, one after another.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::header::{Beyond, Entry, Examined, examine, past_the_end};
use super::key::Key;
use super::metadata_json::{self, Place};
use super::split_keys::{self, Claims};
use super::splits::{self, Files};
use super::{Gguf, NAME};
use crate::catalog::container::{Claim, Parts, impostor};
use crate::catalog::row::{Row, RowBytes};
use crate::catalog::{Configuration, Findings, Object, Store};
use crate::error::{Error, Result};

/// A file, and the splits that belong to it.
pub(super) struct Claimed {
    pub store: Arc<dyn Store>,
    /// Its name.
    pub name: String,
}

impl Claim for Claimed {
    fn file(&self) -> &str {
        &self.name
    }

    fn read(self: Box<Self>, findings: &mut Findings) -> Result<Parts> {
        // The configuration is in the keys.
        let configs = Configuration {
            types_tell_all: true,
            ..Configuration::default()
        };
        let mut parts = Parts::new(&self.store, NAME, configs);
        let files = Files::of(&self.store, &self.name)?;
        parts.catalog.weight_files = files.names.clone();
        splits::report_missing(&files, &mut parts.catalog, findings)?;
        let present: Vec<&str> = files.present().collect();
        self.store.prefetch(&present);
        let mut walk = Walk {
            parts,
            files: &files,
            first: None,
            held: HashMap::new(),
            counted: 0,
            claims: Vec::new(),
            whole: files.missing.is_empty(),
        };
        for name in present {
            walk.file(name, findings)?;
        }
        walk.check_count(findings)?;
        Ok(walk.parts)
    }
}

/// The state of a walk through the files.
struct Walk<'a> {
    parts: Parts,
    files: &'a Files,
    /// The file with the model's keys, and they.
    first: Option<(Arc<dyn Object>, Vec<Key>)>,
    /// The file that has each tensor, if there are several files.
    held: HashMap<Arc<str>, u32>,
    /// How many tensors there were.
    counted: u64,
    /// What each file's keys say of the set.
    claims: Vec<(Arc<dyn Object>, Claims)>,
    /// Whether every file was there, and its header sound.
    whole: bool,
}

impl Walk<'_> {
    fn file(&mut self, name: &str, findings: &mut Findings) -> Result<()> {
        let is_first = self.files.is_first(name);
        let opened = self.parts.catalog.store.open(OsStr::new(name));
        let examined = opened.and_then(|file| {
            let examined = examine(&*file, findings.verifying())?;
            if !examined.problems.is_empty() {
                // It may be something else altogether.
                impostor::check(&*file, Some(&Gguf))?;
            }
            Ok((file, examined))
        });
        let damage = match &examined {
            Err(error) => Some(error.without_location()),
            Ok((_, examined)) => examined.problems.first().map(ToString::to_string),
        };
        if let Some(why) = damage {
            self.whole = false;
            if findings.allow_missing() && !is_first {
                let catalog = &mut self.parts.catalog;
                catalog.shards_missing = true;
                catalog.notes.push(format!("left out: {name}: {why}"));
                return Ok(());
            }
        }
        match examined {
            Err(error) => findings.file(name, error),
            Ok((file, examined)) => self.add(name, file, examined, findings),
        }
    }

    /// Adds a file's tensors, and the first file's keys.
    fn add(
        &mut self,
        name: &str,
        file: Arc<dyn Object>,
        examined: Examined,
        findings: &mut Findings,
    ) -> Result<()> {
        let Examined {
            header,
            beyond,
            problems,
            flaws,
        } = examined;
        // What a damaged header lacks may only be unread.
        if problems.is_empty() {
            let claims = split_keys::check(&*file, name, &header, findings)?;
            self.claims.push((file.clone(), claims));
        }
        for problem in problems {
            let error = || Error::invalid(file.location(), problem.to_string());
            findings.report(problem.clone().of(name), error)?;
        }
        for flaw in flaws {
            findings.flaw(flaw.of(name));
        }
        self.counted += (header.tensors.len() + beyond.len()) as u64;
        self.add_keys(&file, header.keys, findings)?;
        self.leave_out(&*file, &beyond, findings)?;
        let lost = beyond.iter().map(|lost| &lost.name);
        let names = header.tensors.iter().map(|entry| &entry.name).chain(lost);
        self.hold(&*file, names, findings)?;
        let index = self.parts.catalog.files.len() as u32;
        self.parts.catalog.files.push(file);
        let rows = header.tensors.into_iter().map(|entry| row(entry, index));
        self.parts.rows.extend(rows);
        Ok(())
    }

    /// The keys of the first file are the model's; those of another must not contradict them.
    fn add_keys(
        &mut self,
        file: &Arc<dyn Object>,
        keys: Vec<Key>,
        findings: &mut Findings,
    ) -> Result<()> {
        if let Some((first, known)) = &self.first {
            if findings.verifying() {
                split_keys::compare((&**first, known), (&**file, &keys), findings)?;
            }
            return Ok(());
        }
        let catalog = &mut self.parts.catalog;
        let small = |key: &Key| Some((key.name.clone(), key.value.clone()?));
        let small: Map<String, Value> = keys.iter().filter_map(small).collect();
        catalog.metadata = small.clone();
        catalog.configs.config = Some(small.into());
        let places: Vec<Place> = keys.iter().map(Place::of).collect();
        let source = file.clone();
        let make = move || metadata_json::make(&*source, &places);
        catalog.metadata_json = Some(Box::new(make));
        self.first = Some((file.clone(), keys));
        Ok(())
    }

    /// Tensors that do not lie in a file whole are left out, if that is allowed.
    fn leave_out(
        &mut self,
        file: &dyn Object,
        beyond: &[Beyond],
        findings: &mut Findings,
    ) -> Result<()> {
        let has = file.len();
        if !findings.allow_missing() {
            for Beyond { name, end } in beyond {
                findings.tensor(file.location(), name, &past_the_end(*end, has))?;
            }
        }
        let catalog = &mut self.parts.catalog;
        if let Some(needs) = beyond.iter().map(|lost| lost.end).max() {
            let (n, file) = (beyond.len(), file.name());
            catalog.notes.push(format!(
                "left out: {n} of the tensors, as {file} is cut short: needs {needs} bytes, has {has}"
            ));
        }
        let names = beyond.iter().map(|lost| lost.name.clone());
        catalog.absent.extend(names);
        Ok(())
    }

    /// Notes the tensors of a file. No two files of a set have one of the same name.
    fn hold<'t>(
        &mut self,
        file: &dyn Object,
        names: impl Iterator<Item = &'t Arc<str>>,
        findings: &mut Findings,
    ) -> Result<()> {
        if self.files.names.len() < 2 {
            return Ok(());
        }
        let files = &self.parts.catalog.files;
        for tensor in names {
            match self.held.get(tensor).and_then(|i| files.get(*i as usize)) {
                None => drop(self.held.insert(tensor.clone(), files.len() as u32)),
                Some(first) => {
                    let problem = format!("appears twice: it is in {}, too", first.name());
                    findings.tensor(file.location(), tensor, &problem)?;
                }
            }
        }
        Ok(())
    }

    /// Each file states how many tensors the whole set has.
    fn check_count(&self, findings: &mut Findings) -> Result<()> {
        if !self.whole || self.files.names.len() < 2 {
            return Ok(());
        }
        for (file, claims) in &self.claims {
            let counted = self.counted;
            if let Some(tensors) = claims.tensors
                && tensors != counted
            {
                let files = self.files.names.len();
                let problem = format!(
                    "{} is {tensors}, but the {files} files of the model have {counted} tensors",
                    split_keys::TENSORS
                );
                findings.file(file.name(), Error::invalid(file.location(), problem))?;
            }
        }
        Ok(())
    }
}

fn row(entry: Entry, file: u32) -> Row {
    Row {
        name: entry.name,
        dtype: entry.dtype,
        shape: entry.shape,
        bytes: RowBytes::Extent {
            file,
            offset: entry.offset,
        },
        nbytes: entry.nbytes,
        bits: None,
        origin: None,
    }
}
