//! `stfs ls`: what a model holds.

use std::borrow::Cow;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::table::Align::{Left, Right};
use super::table::{self, Table};
use crate::cli::LsArgs;
use crate::export::Export;
use crate::model::{Model, Tensor, TensorId};
use crate::quant;
use crate::text::{bytes, printable};

mod rules;
mod tree;

pub(super) fn run(args: &LsArgs) -> Result<ExitCode> {
    if args.rules {
        return rules::run(args);
    }
    let wanted = super::matcher(args.glob.as_deref())?;
    let model = super::open_model(&args.model)?;
    let mut out = BufWriter::new(super::stdout());
    let glob = args.glob.as_deref();
    let matched = if args.why {
        // An empty list is not an error here: nothing is missing.
        why(&model, wanted, args.json, &mut out)?;
        Ok(())
    } else if args.tree {
        let stored = model.catalog.tensors.iter();
        let found = stored.filter(|t| wanted(t.name)).count();
        let matched = super::check_matched(glob, found, "stored tensor");
        if args.json || matched.is_ok() {
            tree::print(&model, wanted, args.json, &mut out)?;
        }
        matched
    } else {
        let tensors = tensors(&model, wanted);
        match args.json {
            true => json(&model, &tensors, &mut out)?,
            false => rows(&model, &tensors, &mut out)?,
        }
        super::check_matched(glob, tensors.len(), "tensor")
    };
    out.flush()?;
    matched?;
    Ok(ExitCode::SUCCESS)
}

/// The tensors whose names match, in natural order.
fn tensors(model: &Model, wanted: impl Fn(&str) -> bool) -> Vec<(TensorId, Tensor<'_>)> {
    model
        .listing()
        .iter()
        .filter(|&&id| wanted(model.name(id)))
        .filter_map(|&id| Some((id, model.tensor(id).ok()?)))
        .collect()
}

fn json(model: &Model, tensors: &[(TensorId, Tensor<'_>)], out: &mut impl Write) -> Result<()> {
    let mut all = Vec::new();
    for (id, tensor) in tensors {
        let name = model.name(*id);
        let mut object = json!({"name": name});
        if let (Some(o), Value::Object(rest)) = (
            object.as_object_mut(),
            crate::meta::index_entry(model, *id, tensor),
        ) {
            o.extend(rest);
        }
        all.push(object);
    }
    super::write_json(out, &all)
}

fn rows(model: &Model, tensors: &[(TensorId, Tensor<'_>)], out: &mut impl Write) -> Result<()> {
    let rows: Vec<[String; 5]> = tensors
        .iter()
        .map(|(id, t)| {
            [
                table::name(model.name(*id)).into_owned(),
                printable(t.dtype.name()).into_owned(),
                format!("{:?}", t.shape),
                bytes(t.nbytes),
                printable(&source(model, t)).into_owned(),
            ]
        })
        .collect();
    let columns = [Left, Left, Left, Right, Left].map(|align| ("", align));
    out.write_all(Table::new(columns).rows(&rows).as_bytes())?;
    Ok(())
}

/// The file that holds a tensor, or what it is made of.
fn source(model: &Model, tensor: &Tensor<'_>) -> String {
    let stored = tensor.raw.stored();
    if let Some(made) = stored.and_then(|index| model.catalog.derived_by(index)) {
        return made;
    }
    let origin = model.origin(&tensor.raw);
    match (origin.layer, origin.parts.as_slice()) {
        (Some(layer), _) => format!("dequantized from {}", model.recognized(layer).method),
        (None, [of]) if origin.axis.is_none() => format!("tied to {}", of.name),
        (None, []) => {
            let files = model.files_of(&tensor.raw);
            let file = files.first().map(|&f| &model.catalog.files[f as usize]);
            file.map_or_else(String::new, |file| file.name().to_string())
        }
        (None, parts) => format!("{} from {} parts", origin.kind, parts.len()),
    }
}

fn why(
    model: &Model,
    wanted: impl Fn(&str) -> bool,
    as_json: bool,
    out: &mut impl Write,
) -> Result<()> {
    let exports = Export::reasons(model).into_iter();
    let exports =
        exports.map(|(export, why)| (format!("export/{}", export.file_name(model)).into(), why));
    let tensors = model.reasons().into_iter();
    let tensors = tensors.map(|(name, why)| (Cow::from(name), why));
    let reasons = tensors.chain(exports).filter(|(name, _)| wanted(name));
    if as_json {
        let all: Vec<Value> = reasons
            .map(|(name, why)| json!({"name": name, "reason": why.as_str()}))
            .collect();
        return super::write_json(out, &all);
    }
    for (name, why) in reasons {
        writeln!(out, "{}: {}", table::name(&name), printable(&why))?;
    }
    let catalog = &model.catalog;
    let remarks = quant::remarks(catalog);
    let unused = catalog.configs.unused.iter().map(ToString::to_string);
    let notes = catalog.notes.iter().cloned().chain(unused);
    for note in notes.chain(remarks) {
        writeln!(out, "note: {}", printable(&note))?;
    }
    Ok(())
}
