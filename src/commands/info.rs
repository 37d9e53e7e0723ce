//! `stfs info`: a model on one screen.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::Value;

use super::table::Align::{Left, Right};
use super::table::Table;
use crate::cli::InfoArgs;
use crate::info::{Info, Part};
use crate::meta;
use crate::model::Model;
use crate::text::{bytes, elide, plural, printable, short, thousands};

/// Width of the bar that shows a share of the bytes.
const BAR: u64 = 24;
/// Longest value of metadata that is shown, in characters.
const LONGEST: usize = 60;
/// How many names of tied tensors and entries of metadata are shown.
const MOST: usize = 12;

pub(super) fn run(args: &InfoArgs) -> Result<ExitCode> {
    let model = super::open_model(&args.model)?;
    let info = Info::of(&model);
    if args.json {
        let mut text = Vec::new();
        super::write_json(&mut text, &info.json(&model))?;
        return super::print(&text);
    }
    super::print(page(&model, &info).as_bytes())
}

fn page(model: &Model, info: &Info) -> String {
    let mut page = head(model, info);
    page.push('\n');
    page += &sizes(model, info);
    page.push('\n');
    page += &dtypes(info);
    page.push('\n');
    page += &parts(info);
    page += &notes(model, info);
    page
}

/// Architecture, files and the numbers of the configuration.
fn head(model: &Model, info: &Info) -> String {
    let catalog = &model.catalog;
    let architecture = info.architecture.as_deref();
    let mut head = format!(
        "{}  {}, {}, {}\n",
        printable(architecture.unwrap_or("architecture unknown")),
        catalog.format,
        plural(catalog.shards().count() as u64, "file"),
        bytes(info.summary.bytes),
    );
    let known = info.config.iter().filter_map(|(name, n)| Some((name, n?)));
    let known: Vec<String> = known
        .map(|(name, n)| format!("{} {}", name.replace('_', " "), thousands(n)))
        .collect();
    if !known.is_empty() {
        head += &format!("{}\n", known.join(", "));
    }
    head
}

/// Tensors, parameters, memory and quantization.
fn sizes(model: &Model, info: &Info) -> String {
    let all = info.summary.parameters;
    let active = match info.active_parameters {
        Some(active) if active != all => format!(", {} active per token", thousands(active)),
        _ => String::new(),
    };
    let [stored, bf16, f32] = info.memory().map(|(_, n)| bytes(n));
    let rows = [
        ["tensors".into(), thousands(info.summary.tensors)],
        ["parameters".into(), thousands(all) + &active],
        [
            "memory".into(),
            format!("{stored} as stored, {bf16} as BF16, {f32} as F32"),
        ],
        [
            "quantization".into(),
            quantization(&meta::model_quantization(model)),
        ],
    ];
    super::table(&rows)
}

fn quantization(value: &Value) -> String {
    let Some(method) = value["method"].as_str() else {
        return "none".into();
    };
    let number = |key: &str| value[key].as_u64();
    let bits = number("bits").map_or_else(String::new, |n| format!(", {n} bits"));
    let group = number("group_size").map_or_else(String::new, |n| format!(", groups of {n}"));
    format!("{method}{bits}{group}")
}

fn dtypes(info: &Info) -> String {
    let total = info.summary.bytes;
    let mut dtypes: Vec<_> = info.summary.dtypes.iter().collect();
    dtypes.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
    let rows: Vec<[String; 4]> = dtypes
        .into_iter()
        .map(|(name, &(tensors, n))| {
            [
                printable(name).into_owned(),
                thousands(tensors),
                bytes(n),
                bar(n, total),
            ]
        })
        .collect();
    lines(
        [
            ("dtype", Left),
            ("tensors", Right),
            ("bytes", Right),
            ("", Left),
        ],
        &rows,
    )
}

fn parts(info: &Info) -> String {
    let total = info.summary.bytes;
    let sums = Part::ALL.iter().zip(&info.parts);
    let rows: Vec<[String; 5]> = sums
        .filter(|(_, sum)| sum.tensors > 0)
        .map(|(part, sum)| {
            [
                part.name().into(),
                thousands(sum.tensors),
                thousands(sum.parameters),
                bytes(sum.bytes),
                bar(sum.bytes, total),
            ]
        })
        .collect();
    let columns = [
        ("part", Left),
        ("tensors", Right),
        ("parameters", Right),
        ("bytes", Right),
        ("", Left),
    ];
    lines(columns, &rows)
}

fn lines<const N: usize>(
    columns: [(&'static str, super::table::Align); N],
    rows: &[[String; N]],
) -> String {
    let mut table = Table::new(columns);
    rows.iter().for_each(|row| table.fit(row));
    table.head() + &table.rows(rows)
}

/// A share of the whole; any part of it is visible.
fn bar(n: u64, total: u64) -> String {
    let length = u128::from(n) * u128::from(BAR) / u128::from(total.max(1));
    "#".repeat((length as usize).max(usize::from(n > 0)))
}

/// What stands beside the stored tensors, what does not, and the metadata.
fn notes(model: &Model, info: &Info) -> String {
    let mut rows: Vec<[String; 2]> = Vec::new();
    let mut row = |name: &str, text: String| rows.push([name.into(), text]);
    if !info.tied.is_empty() {
        let mut names: Vec<_> = info.tied.iter().take(MOST).map(|n| printable(n)).collect();
        if info.tied.len() > MOST {
            names.push("…".into());
        }
        row("tied", names.join(", "));
    }
    if info.fused > 0 {
        row("fused, stacked", plural(info.fused, "tensor"));
    }
    if info.left_out > 0 {
        let n = plural(info.left_out, "name");
        row(
            "left out",
            format!("{n}; 'stfs ls --why' gives the reasons"),
        );
    }
    for (key, value) in model.catalog.metadata.iter().take(MOST) {
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Number(n) if n.is_f64() => n.as_f64().map_or_else(String::new, short),
            other => other.to_string(),
        };
        row(
            &elide(&printable(key), LONGEST),
            elide(&printable(&value), LONGEST),
        );
    }
    let more = model.catalog.metadata.len().saturating_sub(MOST);
    if more > 0 {
        row("…", format!("{more} more in model.json"));
    }
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n{}", super::table(&rows)),
    }
}
