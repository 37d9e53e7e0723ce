//! `stfs ls --tree`: names nested at the dots, with parameters and bytes summed, and runs of like
//! numbered modules folded into one line.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;

use anyhow::Result;
use serde_json::{Value, json};

use crate::catalog::natural;
use crate::model::{Model, TensorId};
use crate::text::{bytes, printable, thousands};
use crate::tree::MAX_DEPTH;

#[derive(Default)]
struct Module {
    children: Vec<(String, Module)>,
    place: HashMap<String, usize>,
    tensor: Option<TensorId>,
    parameters: u64,
    bytes: u64,
    tensors: u64,
    /// Equal for modules that hold the same names, dtypes and shapes: a hash, since the text itself
    /// would hold each name once for every module around it.
    likeness: u64,
}

/// Stored tensors only: sums over synthetic ones would count their parts twice.
pub(super) fn print(
    model: &Model,
    wanted: impl Fn(&str) -> bool,
    as_json: bool,
    out: &mut impl Write,
) -> Result<()> {
    let mut root = Module::default();
    for (id, t) in model.catalog.tensors.iter().enumerate() {
        if wanted(t.name) {
            root.insert(t.name, id as u32);
        }
    }
    root.sum(model);
    if as_json {
        return crate::commands::write_json(out, &root.json(model));
    }
    writeln!(out, "{}", root.totals())?;
    root.print(model, "", out)
}

impl Module {
    fn insert(&mut self, name: &str, id: TensorId) {
        let mut at = self;
        // Deeper names end in one component with dots: a hostile name must not set the recursion depth.
        for component in name.splitn(MAX_DEPTH, '.') {
            let next = at.children.len();
            let i = *at.place.entry(component.to_string()).or_insert(next);
            if i == next {
                at.children.push((component.to_string(), Module::default()));
            }
            at = &mut at.children[i].1;
        }
        at.tensor = Some(id);
    }

    fn sum(&mut self, model: &Model) {
        self.children.sort_by(|a, b| natural(&a.0, &b.0));
        let mut likeness = DefaultHasher::new();
        if let Some(id) = self.tensor {
            let t = model.catalog.tensors.get(id);
            self.parameters = model.parameters(id);
            self.bytes = t.nbytes;
            self.tensors = 1;
            (t.dtype.name(), &t.shape).hash(&mut likeness);
        }
        for (name, child) in &mut self.children {
            child.sum(model);
            self.parameters = self.parameters.saturating_add(child.parameters);
            self.bytes += child.bytes;
            self.tensors += child.tensors;
            (&*name, child.likeness).hash(&mut likeness);
        }
        self.likeness = likeness.finish();
    }

    fn totals(&self) -> String {
        format!(
            "{} tensors, {} parameters, {}",
            thousands(self.tensors),
            thousands(self.parameters),
            bytes(self.bytes)
        )
    }

    /// Children, with runs of like numbered ones as one: label, how many, the first of them.
    fn folded(&self) -> Vec<(String, usize, &Module)> {
        let mut out = Vec::new();
        let mut i = 0;
        while i < self.children.len() {
            let (name, module) = &self.children[i];
            let mut last = i;
            if let Ok(first) = name.parse::<u64>() {
                while let Some((next, other)) = self.children.get(last + 1)
                    && let Some(number) = first.checked_add((last + 1 - i) as u64)
                    && next.parse() == Ok(number)
                    && other.likeness == module.likeness
                    && !module.children.is_empty()
                {
                    last += 1;
                }
            }
            let label = match last - i {
                0 if name.is_empty() => "\"\"".into(),
                0 => name.clone(),
                _ => format!("{{{name}..{}}}", self.children[last].0),
            };
            out.push((label, last - i + 1, module));
            i = last + 1;
        }
        out
    }

    fn print(&self, model: &Model, indent: &str, out: &mut impl Write) -> Result<()> {
        let children = self.folded();
        for (i, (label, count, module)) in children.iter().enumerate() {
            let last = i + 1 == children.len();
            let (branch, deeper) = if last {
                ("└─ ", "   ")
            } else {
                ("├─ ", "│  ")
            };
            // A chain of modules with one entry each becomes one line, with their dotted name.
            let (label, module) = module.only_path(label.clone());
            let what = match module.tensor {
                Some(id) if module.children.is_empty() => {
                    let t = model.catalog.tensors.get(id);
                    format!("{} {:?}, {}", t.dtype, t.shape, bytes(t.nbytes))
                }
                _ => module.totals(),
            };
            let times = match count {
                1 => String::new(),
                n => format!(" ×{n}, each"),
            };
            writeln!(
                out,
                "{indent}{branch}{}{times}  {}",
                printable(&label),
                printable(&what)
            )?;
            module.print(model, &format!("{indent}{deeper}"), out)?;
        }
        Ok(())
    }

    fn only_path(&self, mut label: String) -> (String, &Module) {
        let mut module = self;
        while let [(name, child)] = module.children.as_slice()
            && module.tensor.is_none()
        {
            label = format!("{label}.{name}");
            module = child;
        }
        (label, module)
    }

    fn json(&self, model: &Model) -> Value {
        let mut value = json!({
            "tensors": self.tensors,
            "parameters": self.parameters,
            "bytes": self.bytes,
        });
        if let Some(id) = self.tensor {
            let t = model.catalog.tensors.get(id);
            value["name"] = json!(t.name);
            value["dtype"] = json!(t.dtype.name());
            value["shape"] = json!(t.shape);
        }
        if !self.children.is_empty() {
            let children: serde_json::Map<String, Value> = self
                .children
                .iter()
                .map(|(name, child)| (name.clone(), child.json(model)))
                .collect();
            value["children"] = Value::Object(children);
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fold_up_to_the_largest() {
        let layer = || {
            let mut layer = Module::default();
            layer.insert("weight", 0);
            layer
        };
        let numbers = [u64::MAX - 1, u64::MAX].map(|n| (n.to_string(), layer()));
        let mut root = Module::default();
        root.children.extend(numbers);
        // One more than the largest: no number, and so not the next one.
        root.children.push(("18446744073709551616".into(), layer()));
        let folded = root.folded();
        let labels: Vec<(&str, usize)> = folded.iter().map(|f| (&*f.0, f.1)).collect();
        let run = "{18446744073709551614..18446744073709551615}";
        assert_eq!(labels, [(run, 2), ("18446744073709551616", 1)]);
    }
}
