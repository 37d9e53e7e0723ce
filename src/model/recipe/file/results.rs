//! `to`, `add` and `is`: what a rule makes.

use super::super::language::{Kind, Located, Node, Template, parse_expression, parse_template};
use super::RuleResult;
use super::names::{Checked, Names};
use super::reader::{Entry, Reader, Table, Value};

/// What reads `to`, `add` and `is`.
pub struct Results<'r, 't> {
    /// The file.
    pub reader: &'r mut Reader<'t>,
    /// What expressions may use.
    pub names: &'r Names<'r>,
    /// Whether it is known what names there are.
    pub is_checked: bool,
}

impl<'t> Results<'_, 't> {
    /// The results of a rule.
    pub fn all(&mut self, table: &Table<'t>) -> Option<Vec<RuleResult>> {
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
        let name = named.map(|entry| self.name(&entry.value, &entry.key.text));
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

    fn table(&mut self, value: &Value<'t>, key: &str) -> Option<Vec<RuleResult>> {
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

    fn name(&mut self, value: &Value<'t>, key: &str) -> Option<Template> {
        if !value.value.is_str() {
            let must = format!("{key} must be a name or a table of \"NAME\" = \"EXPRESSION\"");
            return self.reader.wrong(value, &must);
        }
        let text = self.reader.string(value, key)?;
        self.template(&text)
    }

    fn template(&mut self, text: &Located) -> Option<Template> {
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
