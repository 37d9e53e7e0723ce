//! The sentences of section 2 of the contract, and of the parts of 3 and 5 that need no model.

mod hostile;
mod mistakes;

use super::super::language::{Hole, Kind, PatternPiece};
use super::super::mistake::Lines;
use super::*;

/// The mistakes of a recipe: `LINE:COLUMN: WHAT`, or `LINE: WHAT`.
fn mistakes(text: &str) -> Vec<String> {
    let lines = Lines::new(text);
    let mistakes = parse(text).err().map_or(Vec::new(), |b| b.mistakes);
    let shown = mistakes.iter().map(|mistake| lines.message("", mistake));
    shown.map(|message| message[1..].to_string()).collect()
}

/// One rule in the second line, from column 1 on.
fn in_rule(rule: &str) -> String {
    format!(
        "rules = [\n{rule}\n]\nmodel = 'm'\nmodels = {{ tuned = 't' }}\nset = {{ tp = 4, rank = 1 }}\n"
    )
}

fn rule(text: &str) -> Rule {
    let file = parse(&in_rule(text)).unwrap_or_else(|_| panic!("{:?}", mistakes(&in_rule(text))));
    file.rules[0].clone()
}

fn make(text: &str) -> Make {
    match rule(text).action {
        Action::Make(make) => make,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_worked_examples_are_understood() {
    let header = "model = '/m'\nset = { tp = 4, rank = 0, kvs = 'min(tp, config.num_key_value_heads)', stage = 1, heads = 2, ep = 2 }\n";
    let rules = r#"rules = [
  { drop = "*.rotary_emb.inv_freq" },
  { on = "*norm.weight", is = "it + 1" },                                                 # in place
  { on = "model.layers.{n}.{rest..}", to = "blocks.{n}.{rest}" },
  { on = ["{p..}.gate_proj.weight", "{p..}.up_proj.weight"],
    to = "{p}.fc1.weight", is = "concat(it, '{p}.up_proj.weight')" },
  { on = "*", where = "dtype == 'F32'", is = "bf16(it)" },
  { on = "*.{x=q|gate|up}_proj.*", is = "part(it, rank, tp)" },
  { on = "*.{x=k|v}_proj.*", is = "part(it, rank * kvs // tp, kvs)" },
  { on = "{x=model.embed_tokens|lm_head}.weight", is = "part(pad(it, up(dim(it, 0), 64)), rank, tp)" },
  { drop = "model.layers.{n}.*", where = "n // 16 != stage" },
  { on = "model.layers.{n}.{r..}", to = "model.layers.{n - 16*stage}.{r}" },
  { on = "*.q_proj.weight", is = "reshape(permute(reshape(it, heads, 2, dim(it, 0) // heads // 2, -1), 0, 2, 1, 3), dim(it, 0), -1)" },
  { on = ["{p..}.experts.{e#}.w1.weight", "{p..}.experts.{e#}.w3.weight"], to = "{p}.experts.gate_up_proj", is = "stack(concat('{p}.experts.{e}.w1.weight', '{p}.experts.{e}.w3.weight') for e)" },
  { on = "{p..}.experts.down_proj", for = "e in 0..dim(it, 0)", to = "{p}.experts.{e}.down_proj.weight", is = "it[e]" },
]
"#;
    assert_eq!(mistakes(&format!("{header}{rules}")), Vec::<String>::new());
    assert_eq!(parse(&format!("{header}{rules}")).unwrap().rules.len(), 13);
}

#[test]
fn every_key_is_read() {
    let text = r#"
model = { path = "base", as = "floats", set = { rank = 2 } }
exports = [{ file = "model-{r}.safetensors", on = "rank{r}.{name..}", to = "{name}" }]
[models]
zeta = "z"
ad = { path = "../adapter" }
[set]
tp = 0x10
half = -0.5
sum = "tp + config.a.b"
[config]
set = { torch_dtype = "bfloat16", rope_scaling.factor = 8.0, "a.b" = [1, true], whole = { c = 1 } }
remove = ["quantization_config", "a.c"]
[[rules]]
keep = ["a.*", "b.*"]
optional = true
[[rules]]
lora = "ad"
scale = "half * 2"
"#;
    let file = parse(text).unwrap_or_else(|_| panic!("{:?}", mistakes(text)));
    assert_eq!(file.model.path, PathBuf::from("base"));
    assert!(file.model.floats);
    assert_eq!(file.model.set[0].value.kind, Kind::Integer(2));
    let models: Vec<_> = file.models.iter().map(|(name, _)| &**name).collect();
    assert_eq!(models, ["zeta", "ad"]);
    let set: Vec<_> = file.set.iter().map(|p| (&*p.name, &*p.text)).collect();
    assert_eq!(
        set,
        [("tp", "0x10"), ("half", "-0.5"), ("sum", "tp + config.a.b")]
    );
    assert_eq!(file.set[0].value.kind, Kind::Integer(16));
    assert_eq!(file.set[1].value.kind, Kind::Real(-0.5));
    let changes = file
        .config
        .set
        .iter()
        .map(|(_, keys, value)| format!("{}={value}", keys.join("/")));
    let changes: Vec<String> = changes.collect();
    let expected = [
        "torch_dtype=\"bfloat16\"",
        "rope_scaling/factor=8.0",
        "a/b=[1,true]",
        "whole={\"c\":1}",
    ];
    assert_eq!(changes, expected);
    assert_eq!(file.config.remove[1].1, ["a", "c"]);
    assert_eq!(file.exports[0].on[0].text, "rank{r}.{name..}".into());
    assert!(
        file.rules[0].optional && matches!(&file.rules[0].action, Action::Keep(p) if p.len() == 2)
    );
    let lines = Lines::new(text);
    assert_eq!(lines.line(file.rules[0].at), 14);
    assert!(matches!(
        &file.rules[1].action,
        Action::Lora { scale: Some(_), .. }
    ));
}

#[test]
fn results_stand_under_the_names_of_the_rule() {
    let in_place = make("{ on = 'a.{n}', is = 'it + 1' }");
    assert!(in_place.takes && in_place.results[0].name.is_none());
    assert_eq!(in_place.results[0].text, "it + 1".into());
    let renamed = make("{ on = 'a.{n}', to = 'b.{n}' }");
    assert!(renamed.takes && renamed.results[0].is.is_none());
    assert_eq!(renamed.results[0].text, "it".into());
    assert!(!make("{ on = 'a.{n}', add = 'b.{n}' }").takes);
    let several =
        make("{ on = 'a', to = { 'z' = 'it[0]', b.c = 'it[1]', \"b\\u002ed\" = 'it[2]' } }");
    let names: Vec<_> = several
        .results
        .iter()
        .map(|r| r.name.clone().unwrap().pieces)
        .collect();
    let text = |text: &str| {
        vec![crate::model::recipe::language::TemplatePiece::Text(
            text.into(),
        )]
    };
    assert_eq!(names, [text("z"), text("b.c"), text("b.d")]);
    let each = make("{ on = 'a', to = 'a.{e}', is = 'it[e]', for = 'e in 0..tp' }")
        .each
        .unwrap();
    assert_eq!(each.variable, "e".into());
    assert!(each.range.is_some());
}

#[test]
fn holes_have_their_kinds() {
    let on = make("{ on = '{a}.{b..}.{c#}.{d=long|k|v}*x{{' }").on;
    let hole = |name: &str, hole| PatternPiece::Hole(name.into(), hole);
    let text = |text: &str| PatternPiece::Text(text.into());
    let alternatives = Hole::OneOf(["k", "v", "long"].map(Box::from).into());
    let pieces = [
        hole("a", Hole::Component),
        text("."),
        hole("b", Hole::Rest),
        text("."),
        hole("c", Hole::Gather),
        text("."),
        hole("d", alternatives),
        PatternPiece::Any,
        text("x{"),
    ];
    assert_eq!(on[0].pieces, pieces);
}

#[test]
fn the_value_of_set_is_an_expression() {
    let parameter = parse_parameter("rank", "config.n // 2").unwrap();
    assert_eq!(
        (&*parameter.name, &*parameter.text),
        ("rank", "config.n // 2")
    );
    assert_eq!(parse_parameter("rank", "-3").unwrap().value.at, Place(0));
    assert_eq!(parse_parameter("rank", "1 +").unwrap_err().at, Place(3));
    assert!(parse_parameter("1x", "1").is_err());
}

#[test]
fn what_can_be_checked_all_the_same_is_returned() {
    let text = in_rule(
        "{ on = 'a', is = 'foo(it)' },\n{ on = 'b', is = 'it' },\n{ on = 'c{' },\n{ on = 'd' }",
    );
    let broken = parse(&text).unwrap_err();
    assert_eq!(broken.mistakes.len(), 2);
    let rules = broken.rest.unwrap().rules;
    assert_eq!(rules.len(), 2, "up to the one of which nothing is known");
    let Action::Make(make) = &rules[0].action else {
        panic!();
    };
    assert_eq!(make.results[0].is.as_ref().unwrap().kind, Kind::Mistaken);
    assert!(parse("x =").unwrap_err().rest.is_none());
}
