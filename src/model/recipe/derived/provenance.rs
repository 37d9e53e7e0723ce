//! Where the tensors of a recipe come from.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::super::super::{Expr, Model, TensorId};
use super::super::file::{Action, Rule};
use super::super::rules::Outcome;
use super::super::sources::{SourceModel, Sources};
use super::super::tensor::Rules;
use super::Definition;
use crate::catalog::{Provenance, StoredParts};

/// The most parts that `meta.json` lists.
const MOST_PARTS: usize = 64;

/// The name of the model that the rules start with.
const FIRST: &str = "model";

/// The origins of all tensors, in the catalog's order.
pub struct Origins {
    recipe: String,
    sources: Arc<Sources>,
    rules: Box<[RuleText]>,
    tensors: Box<[Origin]>,
}

/// What is shown of a rule.
struct RuleText {
    line: usize,
    /// By result.
    is: Box<[Box<str>]>,
}

struct Origin {
    name: Arc<str>,
    expr: Expr,
    rules: Rules,
    is_rounded: bool,
}

/// A tensor of a source, as a file of it has it.
struct AsStored<'a> {
    source: &'a SourceModel,
    index: u32,
}

impl Origins {
    /// Those of the tensors that the rules left, in natural order of their names.
    pub fn new(definition: &Definition<'_>, tensors: Vec<Outcome>) -> Origins {
        let text = |rule: &Rule| RuleText {
            line: definition.lines.line(rule.at),
            is: texts(rule),
        };
        let origin = |made: Outcome| Origin {
            name: made.name,
            expr: made.tensor.expr,
            rules: made.tensor.rules,
            is_rounded: !made.tensor.exact,
        };
        Origins {
            recipe: definition.object.name().to_string(),
            sources: definition.sources.clone(),
            rules: definition.file.rules.iter().map(text).collect(),
            tensors: tensors.into_iter().map(origin).collect(),
        }
    }

    fn of(&self, index: u32) -> Option<&Origin> {
        self.tensors.get(index as usize)
    }

    /// The tensor of a source that it is, under whatever name.
    fn same(&self, index: u32) -> Option<AsStored<'_>> {
        same(&self.sources, &self.of(index)?.expr)
    }

    fn shown_rules(&self, rules: &[(u16, u16)]) -> Value {
        let shown = |&(rule, result): &(u16, u16)| {
            let rule = self.rules.get(usize::from(rule))?;
            let is = rule.is.get(usize::from(result)).or(rule.is.first())?;
            Some(json!({"line": rule.line, "is": is}))
        };
        rules.iter().filter_map(shown).collect()
    }

    fn derived_fields(&self, origin: &Origin) -> Vec<(&'static str, Value)> {
        let mut parts = StoredParts::at_most(MOST_PARTS);
        stored_parts(&self.sources, &origin.expr, &mut parts);
        let listed = parts.listed.iter();
        let listed = listed.map(|(model, name)| json!({"model": model, "name": name}));
        let mut fields = vec![
            ("recipe", json!(self.recipe)),
            ("rules", self.shown_rules(&origin.rules)),
            ("parts", listed.collect()),
        ];
        if parts.total > MOST_PARTS as u64 {
            fields.push(("parts_total", json!(parts.total)));
        }
        fields
    }
}

impl Provenance for Origins {
    fn kind(&self, index: u32) -> &'static str {
        self.same(index)
            .map_or("derived", |same| same.source.model.catalog.kind(same.index))
    }

    fn fields(&self, index: u32) -> Vec<(&'static str, Value)> {
        let Some(origin) = self.of(index) else {
            return Vec::new();
        };
        let Some(same) = self.same(index) else {
            return self.derived_fields(origin);
        };
        let catalog = &same.source.model.catalog;
        let mut fields = catalog.origin(same.index).into_owned();
        if !catalog.is_as_stored(same.index) {
            return fields;
        }
        // Those of a recipe within this one are about the name that its tensor has there.
        fields.retain(|(key, _)| !matches!(*key, "renamed_from" | "model"));
        let mut parts = StoredParts::at_most(1);
        stored_parts(&self.sources, &origin.expr, &mut parts);
        if let Some((model, name)) = parts.listed.into_iter().next() {
            if *name != *origin.name {
                fields.push(("renamed_from", json!(name)));
            }
            if model != FIRST {
                fields.push(("model", json!(model)));
            }
        }
        fields
    }

    fn is_as_stored(&self, index: u32) -> bool {
        let same = self.same(index);
        same.is_some_and(|same| same.source.model.catalog.is_as_stored(same.index))
    }

    fn is_rounded(&self, index: u32) -> bool {
        self.of(index).is_some_and(|origin| origin.is_rounded)
    }

    fn summary(&self, index: u32) -> Option<String> {
        if self.is_as_stored(index) {
            return None;
        }
        let rule = self.of(index)?.rules.last();
        let rule = rule.and_then(|(rule, _)| self.rules.get(usize::from(*rule)));
        Some(match rule {
            Some(rule) => format!("derived by {}:{}", self.recipe, rule.line),
            None => match self.same(index) {
                Some(same) => same.source.model.catalog.derived_by(same.index)?,
                None => format!("derived by {}", self.recipe),
            },
        })
    }

    fn stored_parts(&self, index: u32, parts: &mut StoredParts) {
        if let Some(origin) = self.of(index) {
            stored_parts(&self.sources, &origin.expr, parts);
        }
    }
}

/// What each result of a rule is, as it is written.
fn texts(rule: &Rule) -> Box<[Box<str>]> {
    match &rule.action {
        Action::Make(make) => make.results.iter().map(|r| r.text.clone()).collect(),
        Action::Lora { adapter, .. } => [format!("lora = \"{adapter}\"").into()].into(),
        Action::Keep(_) | Action::Drop(_) => Box::default(),
    }
}

/// Where the first element of an expression lies in the first of its files, if it is a source's tensor under
/// whatever name.
pub fn first_byte(sources: &Sources, expr: &Expr) -> Option<u64> {
    let same = same(sources, expr)?;
    let (_, offset) = same.source.model.catalog.first_byte(same.index)?;
    Some(offset)
}

/// The stored tensor of a source that an expression is, under whatever name.
fn same<'a>(sources: &'a Sources, expr: &Expr) -> Option<AsStored<'a>> {
    if !matches!(expr, Expr::Raw(_)) {
        return None;
    }
    let (model, id) = sources.parts(expr).into_iter().next()?;
    let source = sources.models.get(model)?;
    let index = match source.model.is_stored(id) {
        true => id,
        false => tied_to(&source.model, id)?,
    };
    Some(AsStored { source, index })
}

/// The stored tensor of which another is a second name.
fn tied_to(model: &Model, id: TensorId) -> Option<u32> {
    match model.tensor(id).ok()?.raw {
        Expr::Raw(of) if model.is_stored(of) => Some(of),
        _ => None,
    }
}

/// Adds the stored tensors at the bottom of an expression: the model's name, and the name there.
fn stored_parts(sources: &Sources, expr: &Expr, parts: &mut StoredParts) {
    let values = value_leaves(expr);
    for (index, id) in sources.parts(expr) {
        let Some(source) = sources.models.get(index) else {
            continue;
        };
        let of_all = source.first_id.saturating_add(id);
        let leaf = match values.contains(&of_all) {
            true => Expr::Values(id),
            false => Expr::Raw(id),
        };
        source.model.leaves(&leaf, &mut |stored| {
            let catalog = &source.model.catalog;
            if !parts.is_new(catalog, stored) {
                return;
            }
            match &catalog.derivation {
                Some(inner) => {
                    let before = parts.listed.len();
                    inner.provenance.stored_parts(stored, parts);
                    for (model, _) in parts.listed.iter_mut().skip(before) {
                        *model = within(&source.name, std::mem::take(model));
                    }
                }
                None => parts.add(|| {
                    let name = catalog.tensors.get(stored).name.to_string();
                    (source.name.to_string(), name)
                }),
            }
        });
    }
}

/// The tensors of which an expression takes the values.
fn value_leaves(expr: &Expr) -> HashSet<TensorId> {
    let (mut values, mut seen, mut open) = (HashSet::new(), HashSet::new(), vec![expr]);
    while let Some(expr) = open.pop() {
        match expr {
            Expr::Values(id) => {
                values.insert(*id);
            }
            // What has several operands may have the same ones many times over.
            _ => {
                let operands = expr.operands();
                if operands.len() < 2 || seen.insert(operands.as_ptr()) {
                    open.extend(operands);
                }
            }
        }
    }
    values
}

/// The name of a model of a recipe that is a model of this one.
fn within(outer: &str, inner: String) -> String {
    match (outer, inner.as_str()) {
        (FIRST, _) => inner,
        (_, FIRST) => outer.to_string(),
        _ => format!("{outer}/{inner}"),
    }
}
