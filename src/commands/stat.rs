//! `stfs stat`: range, mean, deviation, zeros, NaN and Inf of every weight.

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::progress::Progress;
use super::show::EIGHTHS;
use super::table::Align::{Left, Right};
use super::table::{self, Table};
use super::weights::{Weight, weights};
use crate::cli::StatArgs;
use crate::dtype::numel;
use crate::error::Error;
use crate::model::Model;
use crate::statistics::{Summary, summarize};
use crate::text::{printable, short, thousands};

/// Letters of the little histogram.
const SPARK: usize = 16;

pub(super) fn run(args: &StatArgs) -> Result<ExitCode> {
    let wanted = super::matcher(args.glob.as_deref())?;
    let model = super::open_model(&args.model)?;
    let weights: Vec<Weight> = weights(&model)
        .into_iter()
        .filter(|w| w.is_values && wanted(&w.name))
        .collect();
    let mut out = BufWriter::new(super::stdout());
    let matched = super::check_matched(args.glob.as_deref(), weights.len(), "weight");
    if matched.is_err() {
        if args.json {
            super::write_json(&mut out, &[(); 0])?;
            out.flush()?;
        }
        note_damaged(&model);
        matched?;
    }
    let mut progress = Progress::new(weights.iter().map(|w| w.stored_bytes).sum());
    let table = columns(&weights);
    let mut objects = Vec::new();
    let mut bad = 0;
    if !args.json {
        progress.print(&mut out, &table.head())?;
    }
    for weight in &weights {
        let numel = numel(&weight.shape).unwrap_or(0);
        let step = progress.piece(numel, weight.stored_bytes);
        let summary = summary(&model, weight, !args.json, &step)
            .map_err(|e| anyhow::Error::from(e).context(format!("tensor '{}'", weight.name)))?;
        bad += usize::from(summary.nan + summary.inf > 0);
        match args.json {
            true => objects.push(object(weight, &summary)),
            false => progress.print(&mut out, &table.row(&row(weight, &summary)))?,
        }
    }
    drop(progress);
    if args.json {
        super::write_json(&mut out, &objects)?;
    }
    out.flush()?;
    note_damaged(&model);
    if args.check && bad > 0 {
        super::complain(&format!(
            "stfs: NaN or Inf in {bad} of {} tensors",
            weights.len()
        ));
        return Ok(ExitCode::from(1));
    }
    Ok(ExitCode::SUCCESS)
}

/// Statistics of the stored values if binary32 cannot hold them, otherwise of the `f32`.
fn summary(
    model: &Model,
    weight: &Weight,
    histogram: bool,
    step: &(dyn Fn(u64) + Sync),
) -> crate::Result<Summary> {
    if model.tensor(weight.id).is_ok_and(|t| !t.is_dequantized())
        && let Some(wide) = weight.wide(model.raw(weight.id)?)
    {
        return summarize(&wide, histogram, step);
    }
    let values = model
        .f32(weight.id)?
        .ok_or_else(|| Error::NotFound("it has no values".into()))?;
    summarize(&*values, histogram, step)
}

/// The JSON object of a weight. Without a finite value, range, mean and deviation are `null`.
fn object(weight: &Weight, s: &Summary) -> Value {
    json!({
        "name": &*weight.name,
        "dtype": &*weight.dtype,
        "shape": weight.shape,
        "min": s.min(),
        "max": s.max(),
        "mean": s.mean(),
        "std": s.std(),
        "zeros": s.zeros,
        "nan": s.nan,
        "inf": s.inf,
    })
}

/// Warns about layers that cannot be decoded: leaving them out in silence would look like a good result.
fn note_damaged(model: &Model) {
    let damaged = (0..model.layer_count())
        .filter(|&l| model.layer(l).1.is_err())
        .count();
    if damaged > 0 {
        super::complain(&format!(
            "stfs: {damaged} quantized layers cannot be decoded and are left out; 'stfs ls --why' gives the reasons"
        ));
    }
}

/// The table. Rows are printed as they are computed, so the column widths are estimated in advance.
fn columns(weights: &[Weight]) -> Table<11> {
    let mut table = Table::new([
        ("name", Left),
        ("dtype", Left),
        ("shape", Left),
        ("min", Right),
        ("max", Right),
        ("mean", Right),
        ("std", Right),
        ("zeros", Right),
        ("NaN", Right),
        ("Inf", Right),
        ("histogram", Left),
    ]);
    for weight in weights {
        let [name, dtype, shape] = labels(weight).map(|cell| cell.chars().count());
        table.widen([name, dtype, shape, 10, 10, 10, 10, 11, 7, 7, 0]);
    }
    table
}

/// What a weight is.
fn labels(weight: &Weight) -> [String; 3] {
    [
        table::name(&weight.name).into_owned(),
        printable(&weight.dtype).into_owned(),
        format!("{:?}", weight.shape),
    ]
}

fn row(weight: &Weight, s: &Summary) -> [String; 11] {
    let number = |v: Option<f64>| v.map_or_else(|| "-".into(), short);
    let [name, dtype, shape] = labels(weight);
    [
        name,
        dtype,
        shape,
        number(s.min()),
        number(s.max()),
        number(s.mean()),
        number(s.std()),
        thousands(s.zeros),
        thousands(s.nan),
        thousands(s.inf),
        spark(s),
    ]
}

/// The histogram from the least to the greatest value, counts in log scale.
fn spark(s: &Summary) -> String {
    let (Some(min), Some(max), Some(histogram)) = (s.min(), s.max(), &s.histogram) else {
        return String::new();
    };
    let counts = histogram.resample(min, max, SPARK);
    let most = counts.iter().fold(1.0f64, |m, &c| m.max(c)).ln_1p();
    let letter = |c: &f64| EIGHTHS[((c.ln_1p() / most * 8.0).ceil() as usize).min(8)];
    counts.iter().map(letter).collect()
}
