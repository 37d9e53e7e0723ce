//! The files of a split model. llama.cpp numbers them: `model-00001-of-00003.gguf`.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::END;
use crate::catalog::container::{Listing, refusal};
use crate::catalog::{Catalog, Findings, Problem, Store};
use crate::error::{Error, Result};

/// How many digits the numbers have.
const DIGITS: usize = 5;

/// The name of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SplitName<'a> {
    /// What comes before the numbers.
    pub prefix: &'a str,
    /// Which split it is, from 1 to `total`.
    pub number: u32,
    /// How many there are.
    pub total: u32,
}

impl<'a> SplitName<'a> {
    /// Takes a file's name apart; `None` if it is not a split's.
    pub fn parse(name: &'a str) -> Option<SplitName<'a>> {
        let (rest, total) = name.strip_suffix(END)?.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let (number, total) = (parse_number(number)?, parse_number(total)?);
        (1..=total).contains(&number).then_some(SplitName {
            prefix,
            number,
            total,
        })
    }

    /// The name of this split.
    pub fn name(&self) -> String {
        let SplitName {
            prefix,
            number,
            total,
        } = self;
        format!("{prefix}-{number:0DIGITS$}-of-{total:0DIGITS$}{END}")
    }

    /// The names of all splits of the set, in order.
    pub fn all(self) -> impl Iterator<Item = String> {
        (1..=self.total).map(move |number| SplitName { number, ..self }.name())
    }
}

fn parse_number(digits: &str) -> Option<u32> {
    let plain = digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

/// The files of a model.
pub(super) struct Files {
    /// Their names, in order.
    pub names: Vec<String>,
    /// Those of them that do not exist.
    pub missing: BTreeSet<String>,
}

impl Files {
    /// The files that belong together with `name`.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn of(store: &Arc<dyn Store>, name: &str) -> Result<Files> {
        let Some(split) = SplitName::parse(name) else {
            return Ok(Files {
                names: vec![name.into()],
                missing: BTreeSet::new(),
            });
        };
        let there = Listing::new(store)?.names;
        let names: Vec<String> = split.all().collect();
        let missing = names.iter().filter(|n| !there.contains(*n)).cloned();
        Ok(Files {
            missing: missing.collect(),
            names,
        })
    }

    /// Those that exist, in order.
    pub fn present(&self) -> impl Iterator<Item = &str> {
        let present = self.names.iter().filter(|n| !self.missing.contains(*n));
        present.map(String::as_str)
    }

    /// Whether this is the file with the model's keys.
    pub fn is_first(&self, name: &str) -> bool {
        self.names.first().is_some_and(|first| first == name)
    }
}

/// Reports the splits that are missing. Without the first there is nothing to serve.
///
/// # Errors
/// One is missing, and that is not allowed, or it is the first.
pub(super) fn report_missing(
    files: &Files,
    catalog: &mut Catalog,
    findings: &mut Findings,
) -> Result<()> {
    let Some(first) = files.missing.first() else {
        return Ok(());
    };
    catalog.shards_missing = true;
    let total = files.names.len();
    let others = match files.missing.len() {
        1 => String::new(),
        n => {
            let others: Vec<&str> = files.missing.iter().skip(1).map(String::as_str).collect();
            format!(
                ", and {} more: {}",
                n - 1,
                refusal::list(others.into_iter())
            )
        }
    };
    let what = format!("is missing (the model is split into {total} files{others})");
    if findings.allow_missing() && !files.is_first(first) {
        let note = format!("{first} {what}; the rest is served");
        catalog.notes.push(note);
        return Ok(());
    }
    let what_to_do = |name: &str| match files.is_first(name) {
        true => {
            "it has the model's keys, without which the rest cannot be served; download it again"
        }
        false => refusal::missing(&*catalog.store, name),
    };
    if findings.verifying() {
        let what = format!("is missing (the model is split into {total} files)");
        for name in &files.missing {
            let problem = format!("{what}: {}", what_to_do(name));
            findings.flaw(Problem::of_file(name, problem));
        }
        return Ok(());
    }
    let at = catalog.store.location().join(first);
    Err(Error::invalid(at, format!("{what}: {}", what_to_do(first))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_and_made() {
        let name = "a-b-00002-of-00003.gguf";
        let split = SplitName::parse(name).unwrap();
        assert_eq!((split.prefix, split.number, split.total), ("a-b", 2, 3));
        assert_eq!(split.name(), name);
        let all: Vec<String> = split.all().collect();
        assert_eq!(all[0], "a-b-00001-of-00003.gguf");
        assert_eq!((all.len(), all[1].as_str()), (3, name));
        for other in [
            "model.gguf",
            "m-1-of-3.gguf",
            "m-00000-of-00003.gguf",
            "m-00004-of-00003.gguf",
            "m-00000-of-00000.gguf",
            "m-000001-of-000003.gguf",
            "m-00001-of-00003.safetensors",
            "m-+0001-of-00003.gguf",
            "00001-of-00003.gguf",
        ] {
            assert_eq!(SplitName::parse(other), None, "{other}");
        }
    }
}
