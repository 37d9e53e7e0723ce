//! `stfs diff`: what changed from one model to another.

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use serde_json::{Value, json};

use super::progress::Progress;
use super::table::Align::{Left, Right};
use super::table::{self, Table};
use super::weights::{Weight, weights};
use crate::cli::DiffArgs;
use crate::compare::{self, Distance};
use crate::dtype::{Dtype, numel};
use crate::model::{Model, OpenModel};
use crate::text::{printable, short};

/// One side of the comparison.
struct Side {
    model: Model,
    weights: Vec<Weight>,
}

/// A tensor that is on both sides and differs.
struct Change<'a> {
    from: &'a Weight,
    to: &'a Weight,
    /// `shape`, `dtype` or `value`: the first that differs.
    what: &'static str,
    /// How far apart the values are, if they can be compared.
    distance: Option<Distance>,
}

/// What a comparison found.
struct Differences<'a> {
    added: Vec<&'a Weight>,
    removed: Vec<&'a Weight>,
    /// Most changed first.
    changed: Vec<Change<'a>>,
    /// How many weights are the same.
    unchanged: usize,
}

pub(super) fn run(args: &DiffArgs) -> Result<ExitCode> {
    let request = OpenModel {
        may_lack_given: true,
        ..super::request(&args.options)
    };
    let side = |path: &Path| -> Result<Side> {
        let model = request.open(path)?;
        model.fetch_facts(super::FACT_THREADS);
        let weights = weights(&model);
        Ok(Side { model, weights })
    };
    let (a, b) = (side(&args.a)?, side(&args.b)?);
    check_given(&request, [&a.model, &b.model])?;
    let there = |side: &'_ Side| -> HashMap<Arc<str>, usize> {
        let names = side.weights.iter().enumerate();
        names.map(|(i, w)| (w.name.clone(), i)).collect()
    };
    let (in_a, in_b) = (there(&a), there(&b));
    let common: Vec<(&Weight, &Weight)> = a
        .weights
        .iter()
        .filter_map(|w| Some((w, &b.weights[*in_b.get(&w.name)?])))
        .collect();
    let changed = changes(&a, &b, &common)?;
    let found = Differences {
        added: missing_in(&b, &in_a),
        removed: missing_in(&a, &in_b),
        unchanged: common.len() - changed.len(),
        changed,
    };
    let mut out = BufWriter::new(super::stdout());
    match args.json {
        true => print_json(&mut out, &found)?,
        false => print_text(&mut out, &found)?,
    }
    out.flush()?;
    let same = found.added.is_empty() && found.removed.is_empty() && found.changed.is_empty();
    Ok(ExitCode::from(u8::from(!same)))
}

/// A parameter counts for each of the models that has it, and one of them must.
fn check_given(request: &OpenModel, models: [&Model; 2]) -> crate::Result<()> {
    match request
        .given
        .iter()
        .find(|g| !models.iter().any(|m| m.has_parameter(&g.name)))
    {
        Some(unknown) => Err(OpenModel::unknown_parameter(&unknown.name, models)),
        None => Ok(()),
    }
}

fn missing_in<'a>(side: &'a Side, other: &HashMap<Arc<str>, usize>) -> Vec<&'a Weight> {
    let all = side.weights.iter();
    all.filter(|w| !other.contains_key(&w.name)).collect()
}

/// The pairs that differ, most changed first.
fn changes<'a>(a: &Side, b: &Side, common: &[(&'a Weight, &'a Weight)]) -> Result<Vec<Change<'a>>> {
    let mut progress = Progress::new(common.iter().map(|(x, y)| bytes_of(x, y)).sum());
    let mut changed = Vec::new();
    for &(from, to) in common {
        let step = progress.piece(values_of(from), bytes_of(from, to));
        let found = compare_pair((&a.model, from), (&b.model, to), &step)
            .map_err(|e| anyhow::Error::from(e).context(format!("tensor '{}'", from.name)))?;
        changed.extend(found.map(|(what, distance)| Change {
            from,
            to,
            what,
            distance,
        }));
    }
    // Those that cannot be measured (another shape) first; names break ties.
    let size = |c: &Change<'_>| c.distance.map_or(f64::INFINITY, |d| d.relative());
    changed.sort_by(|x, y| size(y).total_cmp(&size(x)));
    Ok(changed)
}

fn bytes_of(from: &Weight, to: &Weight) -> u64 {
    from.stored_bytes.saturating_add(to.stored_bytes)
}

fn values_of(weight: &Weight) -> u64 {
    numel(&weight.shape).unwrap_or(0)
}

/// Reports only the progress beyond `reported`: if bytes that were equal so far turn out to differ, the
/// values are compared from the start.
fn beyond(reported: u64, step: &(dyn Fn(u64) + Sync)) -> impl Fn(u64) + Sync {
    let done = AtomicU64::new(0);
    move |n| {
        let before = done.fetch_add(n, Ordering::Relaxed);
        let beyond = (before + n).saturating_sub(before.max(reported));
        step(beyond);
    }
}

/// What differs, if anything does, and how far.
fn compare_pair(
    (model_a, a): (&Model, &Weight),
    (model_b, b): (&Model, &Weight),
    step: &(dyn Fn(u64) + Sync),
) -> crate::Result<Option<(&'static str, Option<Distance>)>> {
    if a.shape != b.shape {
        return Ok(Some(("shape", None)));
    }
    let same_dtype = a.dtype == b.dtype;
    // If both sides store the same dtype and their bytes are equal, nothing needs to be decoded.
    let as_stored = |m: &Model, w: &Weight| {
        let tensor = m.tensor(w.id);
        m.is_stored(w.id) && tensor.is_ok_and(|t| !(w.is_values && t.is_dequantized()))
    };
    let reported = AtomicU64::new(0);
    let rest = || beyond(reported.load(Ordering::Relaxed), step);
    let both_stored = same_dtype && as_stored(model_a, a) && as_stored(model_b, b);
    if both_stored {
        let (raw_a, raw_b) = (model_a.raw(a.id)?, model_b.raw(b.id)?);
        let per_byte = values_of(a) as f64 / raw_a.len().max(1) as f64;
        let of_bytes = |n: u64| {
            let values = (n as f64 * per_byte) as u64;
            reported.fetch_add(values, Ordering::Relaxed);
            step(values);
        };
        if raw_a.len() == raw_b.len() && compare::same_bytes(&*raw_a, &*raw_b, &of_bytes)? {
            return Ok(None);
        }
        if raw_a.len() == raw_b.len()
            && let (Some(x), Some(y)) = (a.wide(raw_a), b.wide(raw_b))
        {
            let distance = compare::values(&x, &y, &rest())?;
            // Integers can differ even if they are equal as binary64.
            let differs = distance.differs() || *a.dtype != *Dtype::F64.name();
            return Ok(differs.then_some(("value", Some(distance))));
        }
    }
    let distance = match (model_a.f32(a.id)?, model_b.f32(b.id)?) {
        (Some(x), Some(y)) if x.len() == y.len() => Some(compare::values(&*x, &*y, &rest())?),
        _ => None,
    };
    let differs = distance.is_none_or(|d| d.differs());
    Ok(match (same_dtype, differs) {
        (false, _) => Some(("dtype", distance)),
        (true, true) => Some(("value", distance)),
        (true, false) => None,
    })
}

/// The JSON object of a change. If a NaN or Inf appeared or disappeared, the distances are null: those
/// of the remaining values (often 0, with a cosine of 1) would be misleading.
fn change(c: &Change<'_>) -> Value {
    let d = c.distance.filter(|d| d.odd == 0);
    let mut object = json!({
        "name": &*c.from.name,
        "what": c.what,
        "max_abs": d.and_then(|d| d.max_abs()),
        "max_rel": d.and_then(|d| d.max_rel()),
        "cosine": d.and_then(|d| d.cosine()),
    });
    if let Some(odd) = c.distance.map(|d| d.odd).filter(|&n| n > 0) {
        object["non_finite"] = json!(odd);
    }
    object
}

fn print_json(out: &mut impl Write, found: &Differences<'_>) -> Result<()> {
    let names = |all: &[&Weight]| all.iter().map(|w| w.name.to_string()).collect::<Vec<_>>();
    let changed: Vec<_> = found.changed.iter().map(change).collect();
    let all = json!({
        "added": names(&found.added),
        "removed": names(&found.removed),
        "changed": changed,
        "unchanged": found.unchanged,
    });
    super::write_json(out, &all)
}

fn print_text(out: &mut impl Write, found: &Differences<'_>) -> Result<()> {
    for (sign, all) in [('-', &found.removed), ('+', &found.added)] {
        for w in all {
            let (name, dtype) = (table::name(&w.name), printable(&w.dtype));
            writeln!(out, "{sign} {name}  {dtype} {:?}", w.shape)?;
        }
    }
    if !found.changed.is_empty() {
        let mut table = Table::new([
            ("name", Left),
            ("what", Left),
            ("change", Right),
            ("max |a-b|", Right),
            ("max rel", Right),
            ("cosine", Right),
            ("", Left),
        ]);
        table.widen([0, 5, 9, 10, 10, 10, 0]);
        let rows: Vec<[String; 7]> = found.changed.iter().map(row).collect();
        rows.iter().for_each(|row| table.fit(row));
        write!(out, "~ {}", table.head())?;
        for row in &rows {
            write!(out, "~ {}", table.row(row))?;
        }
    }
    writeln!(
        out,
        "{} added, {} removed, {} changed, {} unchanged",
        found.added.len(),
        found.removed.len(),
        found.changed.len(),
        found.unchanged
    )?;
    Ok(())
}

/// The cells of a change: name, `value`, `1.2%` …; the last one shows what became what.
fn row(c: &Change<'_>) -> [String; 7] {
    let number = |v: Option<f64>| v.map_or_else(|| "-".into(), short);
    let d = c.distance.as_ref();
    let change = match d.map(Distance::relative) {
        Some(r) if r.is_finite() => format!("{}%", short(100.0 * r)),
        _ => "-".into(),
    };
    let mut becomes = match c.what {
        "shape" => format!("{:?} → {:?}", c.from.shape, c.to.shape),
        "dtype" => printable(&format!("{} → {}", c.from.dtype, c.to.dtype)).into_owned(),
        _ => String::new(),
    };
    if let Some(odd) = d.map(|d| d.odd).filter(|&n| n > 0) {
        becomes.push_str(&format!("  {odd} NaN or Inf differ"));
    }
    [
        table::name(&c.from.name).into_owned(),
        c.what.into(),
        change,
        number(d.and_then(Distance::max_abs)),
        number(d.and_then(Distance::max_rel)),
        d.and_then(Distance::cosine)
            .map_or_else(|| "-".into(), |c| format!("{c:.6}")),
        becomes,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_told_twice() {
        let total = AtomicU64::new(40);
        let step = |n| {
            total.fetch_add(n, Ordering::Relaxed);
        };
        let rest = beyond(40, &step);
        for (n, then) in [(30, 40), (30, 60), (40, 100)] {
            rest(n);
            assert_eq!(total.load(Ordering::Relaxed), then);
        }
    }
}
