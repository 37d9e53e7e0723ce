//! Which synthetic names a model might have: one pass over its names.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::rules::{FUSED, FusedRule, STACKED, StackedRule, TIED};
use super::tied;
use crate::catalog::Catalog;
use crate::names::NameTable;
use crate::quant::{Recognized, Target};
use crate::reason::Reason;

/// A way to make a synthetic tensor. What it joins follows from the tensor's name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Candidate {
    /// `<prefix><part>.S` for each of the rule's parts, joined.
    Fused {
        rule: &'static FusedRule,
        /// Bytes of the name before the rule's `fused`.
        prefix: u32,
    },
    /// `<prefix>e.<part>.S` for each part, joined within expert e, stacked over e.
    Stacked {
        rule: &'static StackedRule,
        /// Which spelling of the rule's parts.
        set: u32,
        /// Bytes of the name up to and with `experts.`.
        prefix: u32,
        /// The highest expert seen, plus one.
        experts: u32,
    },
    /// The values of a layer.
    Dequantized(u32),
    /// A second name of the embedding, or why not.
    Tied { embedding: Result<Arc<str>, Reason> },
}

impl Candidate {
    /// Of two ways to make one name, the one with the lower number wins.
    fn precedence(&self) -> u32 {
        match self {
            Candidate::Fused { .. } => 0,
            Candidate::Stacked { set, .. } => 1 + set,
            Candidate::Dequantized(_) => 10,
            Candidate::Tied { .. } => 11,
        }
    }
}

/// The names that synthetic tensors might have, in order of discovery, each with its candidates.
#[derive(Default)]
pub(super) struct Candidates {
    /// The names.
    pub names: NameTable,
    /// Sorted by name, then best first.
    all: Vec<(u32, Candidate)>,
    /// Where each name's candidates begin in `all`; and the end.
    starts: Vec<u32>,
}

impl Candidates {
    /// The candidates of the name of that number, best first.
    pub fn of(&self, name: usize) -> impl Iterator<Item = &Candidate> {
        let run = self.starts[name] as usize..self.starts[name + 1] as usize;
        self.all[run].iter().map(|(_, candidate)| candidate)
    }

    /// No names.
    pub fn none() -> Candidates {
        Candidates::sorted(NameTable::default(), Vec::new())
    }

    /// All names that synthetic tensors of a model might have. A stored tensor wins over a synthetic
    /// one of its name.
    pub fn find(catalog: &Catalog, recognized: &[Recognized]) -> Candidates {
        let (mut dequantized, mut seen) = (Vec::new(), HashSet::new());
        let mut builder = Builder::new(catalog);
        for (i, layer) in recognized.iter().enumerate() {
            if let Target::Named(name) = &layer.target {
                builder.add(name, Candidate::Dequantized(i as u32));
                if seen.insert(name.as_str()) {
                    dequantized.push(name.as_str());
                }
            }
        }
        // Names that are only promised (an incomplete download) count, too: the fusion that they belong
        // to is missing a part, rather than complete without it.
        let stored = catalog.tensors.iter().map(|t| t.name);
        let absent = catalog.absent.iter().map(|name| &**name);
        for name in stored.chain(absent).chain(dequantized.iter().copied()) {
            builder.add_joins(name);
        }
        for rule in TIED {
            if let Some(embedding) = tied::candidate(rule, catalog, &dequantized) {
                builder.add(rule.head, Candidate::Tied { embedding });
            }
        }
        builder.done()
    }

    /// From names and candidates in any order; the candidates of one name keep theirs.
    fn sorted(names: NameTable, mut all: Vec<(u32, Candidate)>) -> Candidates {
        all.sort_by_key(|(name, candidate)| (*name, candidate.precedence()));
        let mut starts = vec![0; names.len() + 1];
        for (name, _) in &all {
            starts[*name as usize + 1] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        Candidates { names, all, starts }
    }

    /// From a list, for tests.
    #[cfg(test)]
    pub fn from_list(list: Vec<(String, Candidate)>) -> Candidates {
        let mut names = NameTable::default();
        let numbered = list.into_iter().map(|(name, candidate)| {
            let number = names.add(&name).unwrap_or_else(|number| number);
            (number, candidate)
        });
        let all = numbered.collect();
        Candidates::sorted(names, all)
    }
}

/// Collects candidates.
struct Builder<'a> {
    catalog: &'a Catalog,
    names: NameTable,
    all: Vec<(u32, Candidate)>,
    /// Where each join is in `all`, by the number of its name and the spelling of its parts: 0 for a
    /// fusion, 1 and up for a stack.
    joins: HashMap<(u32, u32), usize>,
}

impl<'a> Builder<'a> {
    fn new(catalog: &'a Catalog) -> Builder<'a> {
        Builder {
            catalog,
            names: NameTable::default(),
            all: Vec::new(),
            joins: HashMap::new(),
        }
    }

    fn done(self) -> Candidates {
        Candidates::sorted(self.names, self.all)
    }

    /// The number of a name, unless a file holds it, or promises to.
    fn number(&mut self, name: &str) -> Option<u32> {
        if self.catalog.find(name).is_some() || self.catalog.absent.contains(name) {
            return None;
        }
        Some(self.names.add(name).unwrap_or_else(|number| number))
    }

    fn add(&mut self, name: &str, candidate: Candidate) {
        if let Some(number) = self.number(name) {
            self.all.push((number, candidate));
        }
    }

    /// If `name` is `P.<part>.S` of a rule, adds the names that it might be joined into.
    fn add_joins(&mut self, name: &str) {
        let Some((module, suffix)) = name.rsplit_once('.') else {
            return;
        };
        let (prefix, part) = match module.rfind('.') {
            Some(dot) => module.split_at(dot + 1),
            None => ("", module),
        };
        for rule in FUSED.iter().filter(|r| r.parts.contains(&part)) {
            let join = format!("{prefix}{}.{suffix}", rule.fused);
            if let Some(number) = self.number(&join)
                && let Entry::Vacant(vacant) = self.joins.entry((number, 0))
            {
                vacant.insert(self.all.len());
                let prefix = prefix.len() as u32;
                self.all.push((number, Candidate::Fused { rule, prefix }));
            }
        }
        let Some((experts, number)) = expert_of(prefix) else {
            return;
        };
        for rule in STACKED {
            for (set, parts) in (0..).zip(rule.parts) {
                if parts.contains(&part) {
                    self.add_stack(rule, set, experts, suffix, number);
                }
            }
        }
    }

    fn add_stack(
        &mut self,
        rule: &'static StackedRule,
        set: u32,
        prefix: &str,
        suffix: &str,
        expert: u32,
    ) {
        // The ecosystem's fused checkpoints drop `weight` from a stacked tensor's name, and only that.
        let name = match suffix {
            "weight" => format!("{prefix}{}", rule.stacked),
            _ => format!("{prefix}{}.{suffix}", rule.stacked),
        };
        let Some(number) = self.number(&name) else {
            return;
        };
        match self.joins.entry((number, 1 + set)) {
            Entry::Occupied(at) => {
                if let (_, Candidate::Stacked { experts, .. }) = &mut self.all[*at.get()] {
                    *experts = (*experts).max(expert + 1);
                }
            }
            Entry::Vacant(vacant) => {
                vacant.insert(self.all.len());
                let candidate = Candidate::Stacked {
                    rule,
                    set,
                    prefix: prefix.len() as u32,
                    experts: expert + 1,
                };
                self.all.push((number, candidate));
            }
        }
    }
}

/// Splits `P.experts.7.` into `P.experts.` and 7.
fn expert_of(prefix: &str) -> Option<(&str, u32)> {
    let (experts, number) = prefix.strip_suffix('.')?.rsplit_once('.')?;
    let canonical = number == "0" || !number.starts_with('0');
    let all_digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    if !canonical || !all_digits || (experts != "experts" && !experts.ends_with(".experts")) {
        return None;
    }
    // A larger number is part of a name, not the number of an expert.
    let number = number.parse().ok().filter(|&n: &u32| n < 1 << 20)?;
    Some((&prefix[..experts.len() + 1], number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_numbered_plainly() {
        assert_eq!(expert_of("a.experts.7."), Some(("a.experts.", 7)));
        assert_eq!(expert_of("experts.0."), Some(("experts.", 0)));
        assert_eq!(expert_of("a.experts.07."), None);
        assert_eq!(expert_of("a.shared_experts.7."), None);
        assert_eq!(expert_of("a.experts."), None);
        assert_eq!(expert_of(""), None);
    }
}
