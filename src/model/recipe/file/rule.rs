//! `rules`.

use super::super::language::{
    Kind, Located, Node, Pattern, PatternPiece, parse_condition, parse_each, parse_expression,
    parse_pattern, parse_template,
};
use super::super::mistake::{Mistake, quoted};
use super::super::nearest;
use super::names::{Checked, Named, Names};
use super::parameters;
use super::reader::{Entry, Reader, Table, Value};
use super::{Action, Make, Rule, RuleResult};

/// A recipe has no more rules.
const MAX_RULES: usize = 1000;

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
        reader.mistakes.push(Mistake::of_line(value.at(), what));
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
    let are_known = reader.check_keys(table, KEYS, "a rule");
    let mut kinds = table.entries.iter().filter_map(|entry| {
        let kind = KINDS.iter().find(|(key, _)| entry.key.text == *key);
        Some((entry, kind?))
    });
    let Some((entry, (kind, keys))) = kinds.next() else {
        // Its key may be the one that is not known.
        if are_known {
            let what = "a rule has one of keep, drop, on and lora";
            reader.mistakes.push(Mistake::of_line(table.at, what));
        }
        return None;
    };
    if let Some((other, (second, _))) = kinds.next() {
        let what = format!("'{kind}' and '{second}' in one rule; make it two");
        reader.mistake(other.at, what);
        return None;
    }
    let mut fits = are_known;
    for entry in &table.entries {
        let key = &*entry.key.text;
        if key != *kind && KEYS.contains(&key) && !keys.contains(&key) {
            let what = format!("{} is not for rules with {kind}", quoted(key));
            reader.mistake(entry.at, what);
            fits = false;
        }
    }
    let optional = table.get("optional").map(|v| reader.boolean(v, "optional"));
    let made = match *kind {
        "lora" => lora(reader, table, &entry.value, names).map(|action| (action, None)),
        "on" => make(reader, table, &entry.value, names),
        _ => {
            let on = patterns(reader, &entry.value, kind, names);
            let known = shared(names, on.as_deref().unwrap_or(&[]));
            let condition = condition(reader, table, &known, on.is_some());
            on.map(|on| match *kind {
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

/// The holes that all patterns have.
pub fn shared(names: &Names, patterns: &[Pattern]) -> Names {
    let Some((first, others)) = patterns.split_first() else {
        return names.clone();
    };
    let mut first = first.clone();
    first.pieces.retain(|piece| match piece {
        PatternPiece::Hole(name, _) => others.iter().all(|other| other.hole(name).is_some()),
        _ => true,
    });
    names.with_holes(&first)
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
        reader.mistake(at, names.no_model(&adapter));
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
    let known = shared(
        names,
        on.as_deref()
            .and_then(<[_]>::first)
            .map_or(&[], std::slice::from_ref),
    );
    let condition = condition(reader, table, &known, is_checked);
    let mut known = known;
    let each = match table.get("for") {
        Some(value) => Some(each(reader, value, &mut known, is_checked)),
        None => None,
    };
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
    let mut patterns = Vec::new();
    let mut complete = first.is_some();
    for text in others {
        let is_bound = |hole: &str| match &first {
            Some(first) if first.hole(hole).is_none() => {
                let meant = nearest::word(hole, first.holes().map(|(name, _)| name));
                let meant = nearest::did_you_mean(meant);
                Err(format!(
                    "{} is not a hole of the first pattern, by which the others are filled in{meant}",
                    quoted(hole)
                ))
            }
            _ => Ok(()),
        };
        let pattern = reader.keep(parse_pattern(text, &is_bound));
        complete &= pattern.is_some();
        patterns.extend(pattern.filter(|pattern| {
            let has_any = pattern.pieces.contains(&PatternPiece::Any);
            if has_any {
                let at = text.text.find('*').unwrap_or(0);
                let what = "'*' is for the first pattern, by which the others are filled in";
                reader.mistakes.push(text.mistake(at, what));
                complete = false;
            }
            !has_any
        }));
    }
    patterns.insert(0, first?);
    complete.then_some(patterns)
}

/// `for`, whose variable is known from there on.
fn each<'t>(
    reader: &mut Reader<'t>,
    value: &Value<'t>,
    names: &mut Names,
    is_checked: bool,
) -> Option<super::Each> {
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

/// What reads `to`, `add` and `is`.
struct Results<'r, 't> {
    reader: &'r mut Reader<'t>,
    names: &'r Names,
    /// Whether it is known what names there are.
    is_checked: bool,
}

impl<'t> Results<'_, 't> {
    fn all(&mut self, table: &Table<'t>) -> Option<Vec<RuleResult>> {
        if let (Some(to), Some(add)) = (table.entry("to"), table.entry("add")) {
            let what = "'to' and 'add' in one rule: 'to' takes what was matched out of the model, 'add' leaves it there";
            self.reader.mistake(to.at.max(add.at), what);
            return None;
        }
        let named = table.entry("to").or_else(|| table.entry("add"));
        if let Some(entry) = named
            && entry.value.value.is_table()
        {
            if let Some(is) = table.entry("is") {
                let what = format!(
                    "'is' beside a table of results; there each name in '{}' has its own expression",
                    entry.key.text
                );
                self.reader.mistake(is.at, what);
            }
            let results = self.table(&entry.value, &entry.key.text);
            return results.filter(|_| table.get("is").is_none());
        }
        let name = match named {
            Some(entry) => Some(self.name(&entry.value, &entry.key.text)),
            None => None,
        };
        let (is, text) = match table.get("is") {
            Some(value) => {
                let (node, text) = self.expression(value, "is");
                (Some(node), text)
            }
            None => (None, "it".into()),
        };
        let name = match name {
            Some(name) => Some(name?),
            None => None,
        };
        let at = name.as_ref().map_or(table.at, |name| name.at);
        #[rustfmt::skip]
        let result = RuleResult { at, name, is, text };
        Some(vec![result])
    }

    fn table(&mut self, value: &super::reader::Value<'t>, key: &str) -> Option<Vec<RuleResult>> {
        let mut entries = Vec::new();
        self.flatten(value, key, String::new(), &mut entries);
        if entries.is_empty() {
            let what = format!("{key}: no result; it has lines of \"NAME\" = \"EXPRESSION\"");
            self.reader.mistake(value.at(), what);
            return None;
        }
        let results: Vec<Option<RuleResult>> = entries
            .iter()
            .map(|(name, value)| {
                let name = self.template(name);
                let (is, text) = self.expression(value, key);
                let (at, name, is) = (name.as_ref()?.at, name, Some(is));
                #[rustfmt::skip]
                let result = RuleResult { at, name, is, text };
                Some(result)
            })
            .collect();
        results.into_iter().collect()
    }

    /// The entries of a table of results. Dots in a key without quotes make tables in TOML, and mean dots of the
    /// name. The depth is limited by TOML's.
    fn flatten(
        &mut self,
        value: &Value<'t>,
        key: &str,
        prefix: String,
        entries: &mut Vec<(Located<'t>, Value<'t>)>,
    ) {
        let table = self.reader.table(value, key);
        for Entry {
            key: name,
            value,
            at,
        } in table.into_iter().flat_map(|t| t.entries)
        {
            if self.reader.is_dotted(&value) {
                self.flatten(&value, key, format!("{prefix}{}.", name.text), entries);
                continue;
            }
            let name = match prefix.is_empty() {
                true => name,
                false => {
                    let text = format!("{prefix}{}", name.text);
                    Located::toml("", at.0 as usize, text.into())
                }
            };
            entries.push((name, value));
        }
    }

    fn name(&mut self, value: &Value<'t>, key: &str) -> Option<super::Template> {
        if !value.value.is_str() {
            let must = format!("{key} must be a name or a table of \"NAME\" = \"EXPRESSION\"");
            return self.reader.wrong(value, &must);
        }
        let text = self.reader.string(value, key)?;
        self.template(&text)
    }

    fn template(&mut self, text: &Located) -> Option<super::Template> {
        let mut template = self.reader.keep(parse_template(text))?;
        if self.is_checked {
            let mut checked = Checked::new(self.names, &mut self.reader.mistakes);
            checked.has_tensors = true;
            checked.template(&mut template);
        }
        Some(template)
    }

    fn expression(&mut self, value: &Value<'t>, key: &str) -> (Node, Box<str>) {
        let (at, kind) = (value.at(), Kind::Mistaken);
        let Some(text) = self.reader.string(value, &format!("{key}: an expression")) else {
            return (Node { at, kind }, "".into());
        };
        let parsed = self.reader.keep(parse_expression(&text));
        let mut node = parsed.unwrap_or(Node { at, kind });
        if self.is_checked {
            let mut checked = Checked::new(self.names, &mut self.reader.mistakes);
            checked.has_tensors = true;
            checked.node(&mut node);
        }
        (node, Box::from(&*text.text))
    }
}
