//! Rules over small models: which names there are, what they are made of, and what is wrong.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::super::super::{Model, ModelOptions};
use super::super::file;
use super::super::mistake::Lines;
use super::super::sources::{SourceModel, Sources};
use super::{Given, Results, apply, parameters};
use crate::dtype::Dtype;
use crate::quant::testing::{Stored, TestModel, stored};

mod adapters;
mod errors;
mod gathering;
mod limits;
mod others;

/// A zero tensor.
fn zeros(name: &str, dtype: Dtype, shape: &[u64]) -> Stored {
    let len = dtype.bytes(shape.iter().product()).unwrap();
    stored(name, dtype, shape, vec![0; len as usize])
}

/// Matrices of BF16, `[4, 6]`.
fn matrices(names: &[&str]) -> Vec<Stored> {
    let matrix = |name: &&str| zeros(name, Dtype::BF16, &[4, 6]);
    names.iter().map(matrix).collect()
}

/// Models and a recipe.
struct Case {
    sources: Sources,
    dirs: Vec<tempfile::TempDir>,
    given: Vec<Given>,
}

impl Case {
    fn new(tensors: &[Stored]) -> Case {
        Case::with_config(tensors, Json::Null)
    }

    fn with_config(tensors: &[Stored], config: Json) -> Case {
        let case = Case {
            sources: Sources::new(Vec::new()),
            dirs: Vec::new(),
            given: Vec::new(),
        };
        case.and("model", tensors, config)
    }

    fn of_names(names: &[&str]) -> Case {
        Case::new(&matrices(names))
    }

    /// With one more model.
    fn and(self, name: &str, tensors: &[Stored], config: Json) -> Case {
        self.and_model(name, TestModel::safetensors(tensors, config))
    }

    fn and_model(mut self, name: &str, model: TestModel) -> Case {
        let TestModel { catalog, _dir } = model;
        let last = self.sources.models.last();
        let first_id = last.map_or(0, |m| m.first_id + m.model.id_count());
        let first_file = last.map_or(0, |m| m.first_file + m.model.catalog.files.len() as u32);
        self.sources.models.push(SourceModel {
            name: name.into(),
            model: Arc::new(Model::new(catalog, ModelOptions::default())),
            floats: false,
            first_id,
            first_file,
        });
        self.dirs.push(_dir);
        self
    }

    fn floats(mut self) -> Case {
        self.sources.models[0].floats = true;
        self
    }

    fn set(mut self, name: &str, value: &str) -> Case {
        let (name, value) = (name.into(), value.into());
        self.given.push(Given { name, value });
        self
    }

    /// What the rules of a recipe do. `rest` comes after `model = "m"`, on the second line.
    fn run(&self, rest: &str) -> Result<Results, Vec<String>> {
        let text = format!("model = \"m\"\n{rest}\n");
        let lines = Lines::new(&text);
        let message = |m: &super::Mistake| lines.message("r.toml", m);
        let all = |m: Vec<super::Mistake>| m.iter().map(message).collect::<Vec<_>>();
        let file = file::parse(&text).map_err(|broken| all(broken.mistakes))?;
        let config = &self.sources.models[0].model.catalog.configs;
        let known = parameters(&file.set, &self.given, Some(config)).map_err(all)?;
        let results = apply(&file, &lines, &self.sources, &known);
        match results.mistakes.is_empty() {
            true => Ok(results),
            false => Err(all(results.mistakes)),
        }
    }

    /// `NAME DTYPE SHAPE` of what the rules leave, sorted.
    fn left(&self, rest: &str) -> Vec<String> {
        let results = self.run(rest).unwrap_or_else(|m| panic!("{m:#?}"));
        let line = |o: &super::Outcome| {
            format!("{} {} {:?}", o.name, o.tensor.dtype.name(), o.tensor.shape)
        };
        let mut all: Vec<String> = results.tensors.iter().map(line).collect();
        all.sort();
        all
    }

    /// The names that the rules leave, sorted.
    fn names(&self, rest: &str) -> Vec<String> {
        let first = |line: &String| line.split(' ').next().unwrap().to_string();
        self.left(rest).iter().map(first).collect()
    }

    /// What is wrong.
    fn wrong(&self, rest: &str) -> Vec<String> {
        self.run(rest).map(|_| ()).expect_err("there is a mistake")
    }
}

const LLAMA: &[&str] = &[
    "lm_head.weight",
    "model.embed_tokens.weight",
    "model.layers.0.mlp.gate_proj.weight",
    "model.layers.0.mlp.up_proj.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.1.mlp.gate_proj.weight",
    "model.layers.1.mlp.up_proj.weight",
    "model.layers.1.self_attn.k_proj.weight",
];

#[test]
fn without_rules_all_is_as_it_was() {
    let case = Case::of_names(&["b", "a"]);
    assert_eq!(case.left("rules = []"), ["a BF16 [4, 6]", "b BF16 [4, 6]"]);
}

#[test]
fn keep_and_drop_see_what_the_rules_above_left() {
    let case = Case::of_names(LLAMA);
    let kept =
        case.names("rules = [{ keep = [\"*.mlp.*\", \"lm_head.*\"] }, { drop = \"*.1.*\" }]");
    assert_eq!(
        kept,
        [
            "lm_head.weight",
            "model.layers.0.mlp.gate_proj.weight",
            "model.layers.0.mlp.up_proj.weight"
        ]
    );
}

#[test]
fn where_takes_only_matches_for_which_it_holds() {
    let tensors = [
        zeros("a", Dtype::F32, &[4]),
        zeros("b", Dtype::F32, &[4, 4]),
        zeros("c.0", Dtype::BF16, &[8]),
        zeros("c.9", Dtype::BF16, &[8]),
    ];
    let case = Case::new(&tensors);
    let left = |rule: &str| case.names(&format!("set = {{ first = 9 }}\nrules = [{rule}]"));
    assert_eq!(
        left(r#"{ keep = "*", where = "dtype == 'F32'" }"#),
        ["a", "b"]
    );
    assert_eq!(left(r#"{ keep = "*", where = "ndim == 2" }"#), ["b"]);
    assert_eq!(
        left(r#"{ keep = "*", where = "dim(it, 0) == 8" }"#),
        ["c.0", "c.9"]
    );
    assert_eq!(left(r#"{ keep = "c.{n}", where = "n >= first" }"#), ["c.9"]);
    assert_eq!(
        left(r#"{ drop = "{x}", where = "x != 'a'" }"#),
        ["a", "c.0", "c.9"]
    );
}

#[test]
fn a_rename_happens_once_and_may_swap() {
    let case = Case::of_names(&["a.w", "b.w", "ab.w"]);
    let names = case.names(
        r#"rules = [{ on = "{x=a|b}.w", to = "{x}{x}.w" }, { on = "ab.w", to = "a.w" }, { on = "{x}.w", to = "x.{x}.w" }]"#,
    );
    assert_eq!(names, ["x.a.w", "x.aa.w", "x.bb.w"]);
    let swapped = case.run(r#"rules = [{ on = "a.w", to = "c" }, { on = "b.w", to = "a.w" }, { on = "c", to = "b.w" }]"#);
    let swapped = swapped.unwrap_or_else(|m| panic!("{m:?}"));
    let a = swapped.tensors.iter().find(|o| &*o.name == "a.w").unwrap();
    let [(0, of)] = case.sources.parts(&a.tensor.expr)[..] else {
        panic!("one part");
    };
    assert_eq!(case.sources.models[0].model.name(of), "b.w");
}

#[test]
fn a_rule_does_not_see_its_own_results() {
    let case = Case::of_names(&["a", "aa"]);
    assert_eq!(
        case.names(r#"rules = [{ on = "{x}", add = "{x}a.b" }]"#),
        ["a", "aa", "aa.b", "aaa.b"]
    );
    // 'b' is what it was above the rule, though the rule changes it.
    let case = Case::new(&[
        zeros("a", Dtype::BF16, &[2, 4]),
        zeros("b", Dtype::BF16, &[4, 4]),
    ]);
    assert_eq!(
        case.left(r#"rules = [{ on = "{x=a|b}", is = "concat(it, 'b')" }]"#),
        ["a BF16 [6, 4]", "b BF16 [8, 4]"]
    );
}

#[test]
fn to_takes_and_add_leaves() {
    let case = Case::of_names(LLAMA);
    let rule = |key: &str| {
        case.left(&format!(
            "rules = [{{ keep = \"*.0.mlp.*\" }}, {{ on = [\"{{p..}}.gate_proj.weight\", \"{{p..}}.up_proj.weight\"],
              {key} = \"{{p}}.fc1.weight\", is = \"concat(it, '{{p}}.up_proj.weight')\" }}]"
        ))
    };
    assert_eq!(rule("to"), ["model.layers.0.mlp.fc1.weight BF16 [8, 6]"]);
    assert_eq!(
        rule("add"),
        [
            "model.layers.0.mlp.fc1.weight BF16 [8, 6]",
            "model.layers.0.mlp.gate_proj.weight BF16 [4, 6]",
            "model.layers.0.mlp.up_proj.weight BF16 [4, 6]"
        ]
    );
    let in_place = case.left(
        r#"rules = [{ keep = "*.0.mlp.*" }, { on = ["{p..}.gate_proj.weight", "{p..}.up_proj.weight"], is = "it[0:1]" }]"#,
    );
    assert_eq!(
        in_place,
        ["model.layers.0.mlp.gate_proj.weight BF16 [1, 6]"]
    );
}

#[test]
fn a_table_of_results_and_a_range() {
    let case = Case::of_names(&["x.w"]);
    assert_eq!(
        case.left(
            r#"rules = [{ on = "{n}.w", to = { "{n}.a" = "it[0:1]", "{n}.b" = "it[1:4]" } }]"#
        ),
        ["x.a BF16 [1, 6]", "x.b BF16 [3, 6]"]
    );
    assert_eq!(
        case.left(r#"rules = [{ on = "{n}.w", for = "r in 0..dim(it, 0)", to = "{n}.{r}", is = "it[r]" }]"#),
        ["x.0 BF16 [6]", "x.1 BF16 [6]", "x.2 BF16 [6]", "x.3 BF16 [6]"]
    );
    // An empty range makes nothing, and still takes.
    assert!(
        case.left(r#"rules = [{ on = "{n}.w", for = "r in 0..0", to = "{n}.{r}" }]"#)
            .is_empty()
    );
}

#[test]
fn templates_count() {
    let case = Case::of_names(&["l.7.w", "l.8.w", "l.10.w"]);
    assert_eq!(
        case.names(
            "set = { stage = 8 }\nrules = [{ drop = \"l.{n}.*\", where = \"n < stage\" }, { on = \"l.{n}.{r..}\", to = \"l.{n - stage}.{r}\" }]"
        ),
        ["l.0.w", "l.2.w"]
    );
}

#[test]
fn history_is_innermost_first() {
    let case = Case::of_names(&["a", "b"]);
    let results = case
        .run(r#"rules = [{ on = "{x}", is = "it[0:2]" }, { on = "a", to = { "c" = "it", "d" = "it[0:1]" } }]"#)
        .unwrap_or_else(|m| panic!("{m:?}"));
    let rules: HashMap<&str, &[(u16, u16)]> = results
        .tensors
        .iter()
        .map(|o| (&*o.name, &*o.tensor.rules))
        .collect();
    assert_eq!(rules["b"], [(0, 0)]);
    assert_eq!(rules["c"], [(0, 0), (1, 0)]);
    assert_eq!(rules["d"], [(0, 0), (1, 1)]);
}

#[test]
fn what_rules_did_is_known() {
    let case = Case::of_names(&["l.10.w", "l.9.w", "x"]);
    let results = case
        .run(
            r#"rules = [{ drop = "x" }, { on = "l.{n}.w", to = "m.{n}", is = "it[0:1]" }, { keep = "m.*" }, { drop = "y", optional = true }]"#,
        )
        .unwrap_or_else(|m| panic!("{m:?}"));
    let line = |a: &super::Applied| {
        let (from, to) = a
            .example
            .as_ref()
            .map_or((None, None), |(f, t)| (Some(&**f), t.as_ref()));
        let to = to.map(|o| format!("{} {:?}", o.name, o.tensor.shape));
        format!("{} {} {from:?} {to:?}", a.rule, a.matches)
    };
    let did: Vec<String> = results.applied.iter().map(line).collect();
    assert_eq!(
        did,
        [
            r#"0 1 Some("x") None"#,
            r#"1 2 Some("l.9.w") Some("m.9 [1, 6]")"#,
            r#"2 2 Some("m.9") Some("m.9 [1, 6]")"#,
            "3 0 None None",
        ]
    );
}
