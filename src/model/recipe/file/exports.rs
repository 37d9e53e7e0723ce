//! `exports`.

use super::super::language::{Template, parse_template};
use super::ExportRule;
use super::names::{Checked, Names};
use super::reader::{Reader, Table, Value};
use super::rule;

/// A recipe has no more exports.
const MAX_EXPORTS: usize = 1000;

/// `exports`.
pub fn all<'t>(reader: &mut Reader<'t>, root: &Table<'t>, names: &Names) -> Vec<ExportRule> {
    let array = root.get("exports").and_then(|v| reader.array(v, "exports"));
    let values = array.unwrap_or_default();
    if let Some(value) = values.get(MAX_EXPORTS) {
        let n = crate::text::thousands(values.len() as u64);
        let what = format!("{n} exports; a recipe has at most 1,000");
        reader.mistake(value.at(), what);
    }
    let exports = values.iter().take(MAX_EXPORTS).map(|value| {
        let table = reader.table(value, "an export")?;
        export(reader, &table, names)
    });
    let exports: Vec<Option<ExportRule>> = exports.collect();
    exports.into_iter().flatten().collect()
}

fn export<'t>(reader: &mut Reader<'t>, table: &Table<'t>, names: &Names) -> Option<ExportRule> {
    let are_known = reader.check_keys(table, &["file", "on", "to"], "an export");
    for key in ["file", "on"] {
        if table.get(key).is_none() && are_known {
            let what = format!("an export has file and on; {key} is missing");
            reader.mistake(table.at, what);
        }
    }
    let on = table
        .get("on")
        .and_then(|v| rule::patterns(reader, v, "on", names));
    let known = on.as_deref().map(|on| rule::shared(names, on));
    let file = table
        .get("file")
        .map(|v| template(reader, v, "file", known.as_ref()));
    let to = table
        .get("to")
        .map(|v| template(reader, v, "to", known.as_ref()));
    let on = on?;
    let is_gathering = on.iter().any(|pattern| pattern.gathering().is_some());
    if is_gathering && let Some(value) = table.get("on") {
        let what = "an export gathers nothing; write {NAME} for {NAME#}";
        reader.mistake(value.at(), what);
    }
    Some(ExportRule {
        at: table.at,
        file: file??,
        on,
        to: match to {
            Some(to) => Some(to?),
            None => None,
        },
    })
}

/// A name with holes; `names` are those that it may use, if they are known.
fn template<'t>(
    reader: &mut Reader<'t>,
    value: &Value<'t>,
    key: &str,
    names: Option<&Names>,
) -> Option<Template> {
    let text = reader.string(value, key)?;
    let mut template = reader.keep(parse_template(&text))?;
    if let Some(names) = names {
        Checked::new(names, &mut reader.mistakes).template(&mut template);
    }
    Some(template)
}
