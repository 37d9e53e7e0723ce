//! Which synthetic names a model might have: one pass over its names.

use std::collections::HashMap;
use std::sync::Arc;

use super::rules::{FUSED, FusedRule, STACKED, StackedRule};
use super::tied;
use crate::catalog::Catalog;
use crate::quant::{Recognized, Target};

/// A way to make a synthetic tensor.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recipe {
    /// `prefix` + each of the rule's parts + `suffix`, joined.
    Fused {
        rule: &'static FusedRule,
        prefix: Box<str>,
        suffix: Box<str>,
    },
    /// `prefix` + `experts.e.` + each part + `suffix`, joined within e, stacked over e.
    Stacked {
        rule: &'static StackedRule,
        /// Which spelling of the rule's parts.
        set: usize,
        /// Up to and with `experts.`.
        prefix: Box<str>,
        suffix: Box<str>,
        /// The highest expert seen, plus one.
        experts: u32,
    },
    /// The values of a layer.
    Dequantized(u32),
    /// A second name of the embedding, or why not.
    Tied { embedding: Result<Arc<str>, String> },
}

impl Recipe {
    /// The order of the contract's table: of two rules for one name the lower wins.
    fn precedence(&self) -> usize {
        match self {
            Recipe::Fused { .. } => 0,
            Recipe::Stacked { set, .. } => 1 + set,
            Recipe::Dequantized(_) => 10,
            Recipe::Tied { .. } => 11,
        }
    }
}

/// Names in order of discovery, each with its recipes.
#[derive(Default)]
struct Found {
    names: Vec<(Arc<str>, Vec<Recipe>)>,
    place: HashMap<Arc<str>, usize>,
}

impl Found {
    fn at(&mut self, name: String) -> &mut Vec<Recipe> {
        let name: Arc<str> = name.into();
        let next = self.names.len();
        let i = *self.place.entry(name.clone()).or_insert(next);
        if i == next {
            self.names.push((name, Vec::new()));
        }
        &mut self.names[i].1
    }
}

/// All names that synthetic tensors might have, best recipe first. Stored names are left out: a
/// stored tensor wins.
pub(super) fn generate(
    catalog: &Catalog,
    recognized: &[Recognized],
) -> Vec<(Arc<str>, Vec<Recipe>)> {
    let mut found = Found::default();
    for (i, r) in recognized.iter().enumerate() {
        if let Target::Named(name) = &r.target {
            found.at(name.clone()).push(Recipe::Dequantized(i as u32));
        }
    }
    let dequantized: Vec<Arc<str>> = found.names.iter().map(|(n, _)| n.clone()).collect();
    // Names that are only promised (an incomplete download) count: the fusion they belong to is
    // then missing a part, not complete without it.
    let stored = catalog.tensors.iter().map(|t| t.name);
    let absent = catalog.absent.iter().map(|name| &**name);
    let dequantized_names = dequantized.iter().map(|name| &**name);
    for name in stored.chain(absent).chain(dequantized_names) {
        add_joins(&mut found, name);
    }
    if let Some(embedding) = tied::candidate(catalog, &dequantized) {
        found
            .at("lm_head.weight".into())
            .push(Recipe::Tied { embedding });
    }
    let mut names = found.names;
    names.retain(|(name, _)| catalog.find(name).is_none() && !catalog.absent.contains(name));
    for (_, recipes) in &mut names {
        recipes.sort_by_key(Recipe::precedence);
    }
    names
}

/// If `name` is `P.<part>.S` of some rule: the names it might be joined into.
fn add_joins(found: &mut Found, name: &str) {
    let Some((module, suffix)) = name.rsplit_once('.') else {
        return;
    };
    let (prefix, part) = match module.rfind('.') {
        Some(dot) => module.split_at(dot + 1),
        None => ("", module),
    };
    for rule in FUSED.iter().filter(|r| r.parts.contains(&part)) {
        let recipes = found.at(format!("{prefix}{}.{suffix}", rule.fused));
        let recipe = Recipe::Fused {
            rule,
            prefix: prefix.into(),
            suffix: suffix.into(),
        };
        if !recipes.contains(&recipe) {
            recipes.push(recipe);
        }
    }
    let Some((experts, number)) = expert_of(prefix) else {
        return;
    };
    for rule in STACKED {
        for (set, parts) in rule.parts.iter().enumerate() {
            if parts.contains(&part) {
                add_stack(found, rule, set, experts, suffix, number);
            }
        }
    }
}

fn add_stack(
    found: &mut Found,
    rule: &'static StackedRule,
    set: usize,
    prefix: &str,
    suffix: &str,
    number: u32,
) {
    // The ecosystem's fused checkpoints drop `weight` from a stacked tensor's name, and only that.
    let name = match suffix {
        "weight" => format!("{prefix}{}", rule.stacked),
        _ => format!("{prefix}{}.{suffix}", rule.stacked),
    };
    let recipes = found.at(name);
    for recipe in recipes.iter_mut() {
        if let Recipe::Stacked {
            set: s,
            suffix: x,
            experts,
            ..
        } = recipe
            && *s == set
            && **x == *suffix
        {
            *experts = (*experts).max(number + 1);
            return;
        }
    }
    recipes.push(Recipe::Stacked {
        rule,
        set,
        prefix: prefix.into(),
        suffix: suffix.into(),
        experts: number + 1,
    });
}

/// Splits `P.experts.7.` into `P.experts.` and 7.
fn expert_of(prefix: &str) -> Option<(&str, u32)> {
    let (experts, number) = prefix.strip_suffix('.')?.rsplit_once('.')?;
    let canonical = number == "0" || !number.starts_with('0');
    let all_digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    if !canonical || !all_digits || (experts != "experts" && !experts.ends_with(".experts")) {
        return None;
    }
    // More experts than this is a name, not a number.
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
