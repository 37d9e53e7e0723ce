//! `stfs verify`: everything that is wrong with a model, in one run.

use std::collections::HashSet;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use crate::catalog::{OpenOptions, Problem};
use crate::cli::VerifyArgs;
use crate::error::{Error, Location};
use crate::model::{Checked, Expr, Model, OpenModel, TensorId};
use crate::names::module;
use crate::parallel;
use crate::text::{plural, printable};
use crate::view::View;

mod checksum;

pub(super) fn run(args: &VerifyArgs) -> Result<ExitCode> {
    if let Some(file) = &args.checksum {
        checksum::check_place(file)?;
    }
    let request = OpenModel {
        given: super::given(&args.set),
        ..OpenModel::default()
    };
    let Checked {
        mut problems,
        sources,
        model,
    } = request.check(&args.model)?;
    let model = match model {
        Some(model) => Ok(model),
        // Nothing is there of a recipe with mistakes.
        None if problems.iter().any(|p| p.position.is_some()) => Err(Error::other(
            libc::EIO,
            "the recipe has mistakes, and so there is no model",
        )),
        None => open_what_is_there(&request, &args.model),
    };
    if let Err(e) = &model
        && problems.is_empty()
    {
        problems.push(Problem::of_model(&args.model.as_path().into(), e));
    }
    let sound = problems.is_empty();
    let model = model.ok();
    if let Some(model) = &model {
        model.fetch_facts(super::FACT_THREADS);
    }
    let naming = match sources.is_empty() {
        true => Naming::Names,
        false => Naming::Paths,
    };
    for model in sources.iter().map(|source| &**source).chain(&model) {
        let mut found = check_layers(model, naming)?;
        found.extend(check_shared_indexes(model, naming));
        // A layer that a recipe leaves as it is is its source's, too.
        found.retain(|problem| !problems.contains(problem));
        problems.extend(found);
    }
    let mut note = None;
    if let Some(file) = &args.checksum {
        note = Some(match &model {
            Some(model) if file.exists() => {
                problems.extend(checksum::compare(model, file)?);
                format!("compared with {}", file.display())
            }
            Some(model) if sound => {
                checksum::write(model, file)?;
                format!("checksums written to {}", file.display())
            }
            _ => "no checksums: the model's files are not sound".into(),
        });
    }
    print(args, &problems, model.as_ref(), note)?;
    Ok(ExitCode::from(u8::from(!problems.is_empty())))
}

/// Opens whatever part of the model is sound. If not even that can be opened, the structural problems
/// explain why; if there are none, the error does.
fn open_what_is_there(request: &OpenModel, path: &Path) -> crate::Result<Model> {
    let request = OpenModel {
        files: OpenOptions {
            allow_missing: true,
        },
        ..request.clone()
    };
    request.open(path)
}

/// Layers that cannot be decoded, and data in layers that make values impossible.
fn check_layers(model: &Model, naming: Naming) -> crate::Result<Vec<Problem>> {
    let absent = model.catalog.absent.iter();
    let in_modules = absent.filter(|name| name.contains('.'));
    let incomplete: HashSet<&str> = in_modules.map(|name| module(name)).collect();
    let found = parallel::ordered(model.layer_count() as usize, |index| {
        let (recognized, resolved) = model.layer(index as u32);
        let Some(&anchor) = recognized.parts.first() else {
            return Ok(Vec::new());
        };
        let name = model.name(anchor);
        let problem =
            |what: String| Problem::of_tensor(&file_of(model, anchor, naming), name, what);
        Ok(match resolved {
            Ok(layer) => {
                let parts = recognized.raw_parts(&model.catalog);
                let damage = layer.kernel.check(&parts);
                damage.into_iter().map(problem).collect()
            }
            // A part that has not been downloaded is the cause, and was reported already.
            Err(_) if incomplete.contains(module(name)) => Vec::new(),
            Err(why) => vec![problem(format!(
                "{} layer cannot be decoded: {why}",
                recognized.method
            ))],
        })
    })?;
    Ok(found.into_iter().flatten().collect())
}

/// Fusions whose layers must share one `g_idx`, but have different ones.
fn check_shared_indexes(model: &Model, naming: Naming) -> Vec<Problem> {
    let mut problems = Vec::new();
    for &id in model.listing() {
        let Ok(tensor) = model.tensor(id) else {
            continue;
        };
        match &tensor.raw {
            Expr::Same(_) => problems.extend(check_shared_index(model, naming, id, &[tensor.raw])),
            Expr::Join(join) if matches!(join.parts.first(), Some(Expr::Same(_))) => {
                problems.extend(check_shared_index(model, naming, id, &join.parts));
            }
            _ => {}
        }
    }
    problems
}

/// Checks one fusion; a stack has one group for each expert. A group's parts are compared when its
/// first byte is read.
fn check_shared_index(
    model: &Model,
    naming: Naming,
    id: TensorId,
    groups: &[Expr],
) -> Vec<Problem> {
    let problem = |group: usize, error: crate::Error| {
        let what = match error {
            crate::Error::Data { problem, .. } => problem,
            other => other.to_string(),
        };
        let first = groups
            .get(group)
            .and_then(|g| g.operands().first()?.alias());
        let file = first.map_or_else(String::new, |part| file_of(model, part, naming));
        let what = match groups.len() {
            1 => what,
            _ => format!("expert {group}: {what}"),
        };
        Problem::of_tensor(&file, model.name(id), what)
    };
    let view = match model.raw(id) {
        Ok(view) => view,
        Err(e) => return vec![problem(0, e)],
    };
    // All groups of a stack have the same size.
    let size = view.len() / groups.len().max(1) as u64;
    let mut byte = vec![0; size.min(1) as usize];
    let read = (0..groups.len()).map(|group| (group, view.read_at(group as u64 * size, &mut byte)));
    read.filter_map(|(group, read)| Some(problem(group, read.err()?)))
        .collect()
}

/// How problems name files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// By their names in the model's directory.
    Names,
    /// By their paths, because they are those of several models.
    Paths,
}

impl Naming {
    fn of(model: &Model) -> Naming {
        match model.catalog.derivation {
            None => Naming::Names,
            Some(_) => Naming::Paths,
        }
    }
}

/// The file that holds a stored tensor, or that defines it.
fn file_of(model: &Model, stored: TensorId, naming: Naming) -> String {
    let catalog = &model.catalog;
    let file = match &catalog.derivation {
        Some(derivation) if !catalog.is_as_stored(stored) => Some(derivation.file),
        _ => catalog.files_of(stored).next(),
    };
    let file = file.and_then(|f| catalog.files.get(f as usize));
    file.map_or_else(String::new, |file| match naming {
        Naming::Names => file.name().to_string(),
        Naming::Paths => file.location().to_string(),
    })
}

/// A problem, in JSON. Only one in a text has a line and a column.
fn object(problem: &Problem) -> Value {
    let Problem {
        file,
        tensor,
        problem,
        position,
    } = problem;
    let mut object = json!({"file": file, "tensor": tensor, "problem": problem});
    if let Some(position) = position {
        object["line"] = json!(position.line());
        object["column"] = json!(position.column());
    }
    object
}

fn print(
    args: &VerifyArgs,
    problems: &[Problem],
    model: Option<&Model>,
    note: Option<String>,
) -> Result<()> {
    let mut out = BufWriter::new(super::stdout());
    if args.json {
        let all: Vec<_> = problems.iter().map(object).collect();
        super::write_json(&mut out, &all)?;
    } else {
        for p in problems {
            let at = Location::from(Path::new(&p.file));
            let at = match p.position {
                Some(position) => at.at(position),
                None => at,
            };
            let at = at.to_string();
            let (file, problem) = (printable(&at), printable(&p.problem));
            match &p.tensor {
                Some(tensor) => writeln!(out, "{file}: '{}': {problem}", printable(tensor))?,
                None => writeln!(out, "{file}: {problem}")?,
            }
        }
        for note in model.iter().flat_map(|model| &model.catalog.notes) {
            writeln!(out, "note: {}", printable(note))?;
        }
        let found = match problems.len() {
            0 => "no problems".into(),
            n => plural(n as u64, "problem"),
        };
        let looked_at = model.map(|m| {
            let tensors = plural(m.catalog.tensors.len() as u64, "tensor");
            let files = plural(m.catalog.shards().count() as u64, "file");
            format!("{tensors} in {files}: ")
        });
        writeln!(out, "{}{found}", looked_at.unwrap_or_default())?;
    }
    out.flush()?;
    if let Some(note) = note {
        super::complain(&format!("stfs: {}", printable(&note)));
    }
    Ok(())
}
