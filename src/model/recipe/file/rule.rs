//! `rules`.

use super::super::language::{
    Each, Kind, Located, Node, Pattern, PatternPiece, parse_condition, parse_each, parse_pattern,
};
use super::super::mistake::quoted;
use super::super::nearest;
use super::names::{Checked, Named, Names};
use super::parameters;
use super::reader::{Entry, Reader, Table, Value};
use super::results::Results;
use super::{Action, Make, Rule};

/// A recipe has no more rules.
const MAX_RULES: usize = 1000;

/// A rule or an export has no more patterns.
const MAX_PATTERNS: usize = 1000;

const KEYS: &[&str] = &[
    "keep", "drop", "on", "lora", "where", "optional", "to", "add", "is", "for", "scale",
];

/// Which further keys a rule with some key may have.
const KINDS: &[(&str, &[&str])] = &[
    ("keep", &["where", "optional"]),
    ("drop", &["where", "optional"]),
    ("on", &["where", "optional", "to", "add", "is", "for"]),
    ("lora", &["scale", "optional"]),
];

/// All rules above the first of which nothing is known.
pub fn all<'t>(reader: &mut Reader<'t>, root: &Table<'t>, names: &Names) -> Vec<Rule> {
    let array = root.get("rules").and_then(|v| reader.array(v, "rules"));
    let values = array.unwrap_or_default();
    if let Some(value) = values.get(MAX_RULES) {
        let n = crate::text::thousands(values.len() as u64);
        let what = format!("{n} rules; a recipe has at most 1,000");
        reader.mistake(value.at(), what);
    }
    let rules: Vec<Option<Rule>> = values
        .iter()
        .take(MAX_RULES)
        .map(|value| {
            let table = reader.table(value, "a rule")?;
            rule(reader, &table, names)
        })
        .collect();
    rules.into_iter().map_while(|rule| rule).collect()
}

fn rule<'t>(reader: &mut Reader<'t>, table: &Table<'t>, names: &Names) -> Option<Rule> {
    let before = reader.mistakes.len();
    let (entry, kind) = kind(reader, table)?;
    let fits = reader.mistakes.len() == before;
    let optional = table.get("optional").map(|v| reader.boolean(v, "optional"));
    let made = match kind {
        "lora" => lora(reader, table, &entry.value, names).map(|action| (action, None)),
        "on" => make(reader, table, &entry.value, names),
        _ => {
            let on = patterns(reader, &entry.value, kind, names);
            let known = shared(names, on.as_deref().unwrap_or(&[]));
            let condition = condition(reader, table, &known, on.is_some());
            on.map(|on| match kind {
                "keep" => (Action::Keep(on), condition),
                _ => (Action::Drop(on), condition),
            })
        }
    };
    let (action, condition) = made.filter(|_| fits)?;
    Some(Rule {
        at: table.at,
        action,
        condition,
        optional: optional.flatten().unwrap_or(false),
    })
}

/// The key that says what a rule does. Keys that do not go with it are mistakes.
fn kind<'a, 't>(
    reader: &mut Reader<'t>,
    table: &'a Table<'t>,
) -> Option<(&'a Entry<'t>, &'static str)> {
    let are_known = reader.check_keys(table, KEYS, "a rule");
    let mut kinds = table.entries.iter().filter_map(|entry| {
        let kind = KINDS.iter().find(|(key, _)| entry.key.text == *key);
        Some((entry, kind?))
    });
    let Some((entry, (kind, keys))) = kinds.next() else {
        // Its key may be the one that is not known.
        if are_known {
            let what = "a rule has one of keep, drop, on and lora";
            reader.mistake(table.at, what);
        }
        return None;
    };
    if let Some((other, (second, _))) = kinds.next() {
        let what = format!("'{kind}' and '{second}' in one rule; make it two");
        reader.mistake(other.at, what);
        return None;
    }
    for entry in &table.entries {
        let key = &*entry.key.text;
        if key != *kind && KEYS.contains(&key) && !keys.contains(&key) {
            let what = format!("{} is not for rules with {kind}", quoted(key));
            reader.mistake(entry.at, what);
        }
    }
    Some((entry, kind))
}

/// The holes that all patterns have, too.
pub fn shared<'a>(names: &'a Names<'a>, patterns: &[Pattern]) -> Names<'a> {
    let Some((first, others)) = patterns.split_first() else {
        return names.with_holes(None);
    };
    let mut first = first.clone();
    first.pieces.retain(|piece| match piece {
        PatternPiece::Hole(name, _) => others.iter().all(|other| other.hole(name).is_some()),
        _ => true,
    });
    names.with_holes(Some(&first))
}

/// A pattern, or an array of some.
pub fn patterns<'t>(
    reader: &mut Reader<'t>,
    value: &Value<'t>,
    key: &str,
    names: &Names,
) -> Option<Vec<Pattern>> {
    let texts = texts(reader, value, key)?;
    let parsed: Vec<Option<Pattern>> = texts
        .iter()
        .map(|text| reader.keep(parse_pattern(text, &|hole| names.check_free(hole))))
        .collect();
    parsed.into_iter().collect()
}

fn texts<'t>(reader: &mut Reader<'t>, value: &Value<'t>, key: &str) -> Option<Vec<Located<'t>>> {
    if !value.value.is_array() {
        let must = format!("{key}: a pattern");
        return Some(vec![reader.string(value, &must)?]);
    }
    let values = reader.array(value, key)?;
    if values.is_empty() {
        reader.mistake(value.at(), format!("{key}: no pattern"));
        return None;
    }
    if let Some(value) = values.get(MAX_PATTERNS) {
        let n = crate::text::thousands(values.len() as u64);
        let what = format!("{key}: {n} patterns; at most 1,000");
        reader.mistake(value.at(), what);
        return None;
    }
    let texts = values
        .iter()
        .map(|v| reader.string(v, &format!("{key}: a pattern")));
    let texts: Vec<_> = texts.collect();
    texts.into_iter().collect()
}

/// `where`. If the patterns are not known, nor is what it may use.
fn condition<'t>(
    reader: &mut Reader<'t>,
    table: &Table<'t>,
    names: &Names,
    is_checked: bool,
) -> Option<Node> {
    let value = table.get("where")?;
    let at = value.at();
    let kind = Kind::Mistaken;
    let Some(text) = reader.string(value, "where") else {
        return Some(Node { at, kind });
    };
    let parsed = reader.keep(parse_condition(&text));
    let mut node = parsed.unwrap_or(Node { at, kind });
    if is_checked {
        let mut checked = Checked::new(names, &mut reader.mistakes);
        (checked.has_tensors, checked.is_condition) = (true, true);
        checked.node(&mut node);
    }
    Some(node)
}

fn lora<'t>(
    reader: &mut Reader<'t>,
    table: &Table<'t>,
    value: &Value<'t>,
    names: &Names,
) -> Option<Action> {
    let scale = table.get("scale").map(|value| {
        let (mut node, _) = parameters::expression(reader, value, "scale");
        Checked::new(names, &mut reader.mistakes).node(&mut node);
        node
    });
    let text = reader.string(value, "lora")?;
    let (at, adapter) = (text.start(), Box::from(&*text.text));
    if names.get(&adapter) != Some(Named::Model) {
        let what = names.no_model(&adapter, &reader.mistakes);
        reader.mistake(at, what);
        return None;
    }
    Some(Action::Lora { at, adapter, scale })
}

fn make<'t>(
    reader: &mut Reader<'t>,
    table: &Table<'t>,
    value: &Value<'t>,
    names: &Names,
) -> Option<(Action, Option<Node>)> {
    let on = several(reader, value, names);
    let is_checked = on.is_some();
    let known = names.with_holes(on.as_deref().and_then(<[_]>::first));
    let condition = condition(reader, table, &known, is_checked);
    let mut known = known;
    let each = table.get("for");
    let each = each.map(|value| self::each(reader, value, &mut known, is_checked));
    let is_checked = is_checked && each.as_ref().is_none_or(Option::is_some);
    let mut results = Results {
        reader,
        names: &known,
        is_checked,
    };
    let results = results.all(table);
    let make = Make {
        on: on?,
        takes: table.get("add").is_none(),
        results: results?,
        each: match each {
            Some(each) => Some(each?),
            None => None,
        },
    };
    Some((Action::Make(make), condition))
}

/// The patterns of a rule that makes results: the first one has all holes, the others only some of those.
fn several<'t>(reader: &mut Reader<'t>, value: &Value<'t>, names: &Names) -> Option<Vec<Pattern>> {
    let texts = texts(reader, value, "on")?;
    let (first, others) = texts.split_first()?;
    let first = reader.keep(parse_pattern(first, &|hole| names.check_free(hole)));
    let mut patterns = vec![first.clone()];
    for text in others {
        let is_bound = |hole: &str| match &first {
            Some(first) => check_bound(first, hole),
            None => Ok(()),
        };
        let pattern = reader.keep(parse_pattern(text, &is_bound));
        let has_any = pattern
            .as_ref()
            .map(|p| p.pieces.contains(&PatternPiece::Any));
        if has_any == Some(true) {
            let at = text.text.find('*').unwrap_or(0);
            let what = "'*' is for the first pattern, by which the others are filled in";
            reader.mistakes.push(text.mistake(at, what));
        }
        patterns.push(pattern.filter(|_| has_any == Some(false)));
    }
    patterns.into_iter().collect()
}

/// Whether the first pattern has that hole of another one.
fn check_bound(first: &Pattern, hole: &str) -> Result<(), String> {
    if first.hole(hole).is_some() {
        return Ok(());
    }
    let nearest = nearest::word(hole, first.holes().map(|(name, _)| name));
    let (shown, meant) = (quoted(hole), nearest::did_you_mean(nearest));
    Err(format!(
        "{shown} is not a hole of the first pattern, by which the others are filled in{meant}"
    ))
}

/// `for`, whose variable is known from there on.
fn each<'t>(
    reader: &mut Reader<'t>,
    value: &Value<'t>,
    names: &mut Names,
    is_checked: bool,
) -> Option<Each> {
    let text = reader.string(value, "for")?;
    let mut each = reader.keep(parse_each(&text))?;
    if is_checked && let Some(range) = &mut each.range {
        let mut checked = Checked::new(names, &mut reader.mistakes);
        checked.has_tensors = true;
        checked.range(range);
    }
    if let Err(what) = names.add(&each.variable, Named::Variable) {
        reader.mistake(each.at, what);
        return None;
    }
    Some(each)
}
