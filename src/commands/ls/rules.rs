//! `stfs ls --rules`: what each rule of a recipe does.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::super::table::Align::{Left, Right};
use super::super::table::{self, Table};
use super::super::{print, request, write_json};
use crate::cli::LsArgs;
use crate::model::RuleSummary;
use crate::text::{printable, thousands};

pub(super) fn run(args: &LsArgs) -> Result<ExitCode> {
    let rules = request(&args.model.options).rules(&args.model.model)?;
    if args.json {
        let all: Vec<Value> = rules.iter().map(object).collect();
        let mut text = Vec::new();
        write_json(&mut text, &all)?;
        return print(&text);
    }
    let rows: Vec<[String; 3]> = rules.iter().map(row).collect();
    let mut table = Table::new([("line", Right), ("matches", Right), ("for example", Left)]);
    rows.iter().for_each(|row| table.fit(row));
    print((table.head() + &table.rows(&rows)).as_bytes())
}

fn object(rule: &RuleSummary) -> Value {
    let to = rule.to.as_ref();
    json!({
        "line": rule.line,
        "matches": rule.matches,
        "from": rule.from,
        "to": to.map(|to| &to.name),
        "dtype": to.map(|to| &to.dtype),
        "shape": to.map(|to| &to.shape),
    })
}

fn row(rule: &RuleSummary) -> [String; 3] {
    let name = |name: &str| table::name(name).into_owned();
    let from = rule.from.as_deref().map_or_else(String::new, name);
    let example = match &rule.to {
        Some(to) => {
            let dtype = printable(&to.dtype);
            format!("{from} → {} {dtype} {:?}", name(&to.name), to.shape)
        }
        None => from,
    };
    [rule.line.to_string(), thousands(rule.matches), example]
}
