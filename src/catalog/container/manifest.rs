//! bin + manifest, as moeflux and flash-moe write it: `<stem>.bin` holds the bytes, `<stem>.json`
//! lists where each tensor is. Gaps and overlaps are normal; every span must lie inside the `.bin`.

use std::ffi::OsStr;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Claim, Container, Listing, Parts, Verdict, impostor, not_json};
use crate::catalog::row::{Row, RowBytes};
use crate::catalog::store::MAX_INDEX;
use crate::catalog::{Configuration, Findings, Object, Store};
use crate::error::{Error, Location, Result};

mod entry;

use entry::Entries;

/// A `.bin` and its JSON manifest.
pub(super) struct BinAndManifest;

/// A claimed manifest.
struct Manifest {
    store: Arc<dyn Store>,
    /// File name of the manifest.
    json: String,
    /// File name of the `.bin` that holds the bytes.
    bin: String,
    /// The manifest's contents, or why they cannot be read. In that case it may not be a manifest
    /// at all, but it is where one should be.
    contents: Result<Map<String, Value>>,
}

impl Container for BinAndManifest {
    fn name(&self) -> &'static str {
        "manifest"
    }

    fn looks_for(&self) -> &'static [&'static str] {
        &["<stem>.bin with <stem>.json"]
    }

    fn takes(&self) -> &'static [&'static str] {
        &["manifest .json", ".bin"]
    }

    fn claim_file(&self, store: &Arc<dyn Store>, name: &str) -> Result<Verdict> {
        if let Some(stem) = name.strip_suffix(".json") {
            return claim_json(store, name, &format!("{stem}.bin"));
        }
        match name.strip_suffix(".bin") {
            Some(stem) => claim_bin(store, &format!("{stem}.json"), name),
            None => Ok(Verdict::No),
        }
    }

    fn claim_listing(&self, listing: &Listing) -> Result<Verdict> {
        let mut found = Vec::new();
        for bin in listing.ending(".bin") {
            let json = format!("{}.json", bin.strip_suffix(".bin").unwrap_or(bin));
            if !listing.names.contains(&json) {
                continue;
            }
            if let Some(manifest) = Manifest::parse(&listing.store, &json, bin) {
                if manifest.contents.is_err() {
                    return Ok(manifest.claimed());
                }
                found.push(manifest);
            }
        }
        if found.len() > 1 {
            let list: Vec<&str> = found.iter().map(|m| m.json.as_str()).collect();
            let list = list.join(", ");
            let problem = format!("has several manifests: {list}; mount one by its path");
            return Err(Error::invalid(listing.store.location(), problem));
        }
        Ok(found.pop().map_or(Verdict::No, Manifest::claimed))
    }
}

/// A JSON file that should be a manifest.
fn claim_json(store: &Arc<dyn Store>, json: &str, bin: &str) -> Result<Verdict> {
    let at = store.location().join(json);
    let Some(manifest) = Manifest::parse(store, json, bin) else {
        return Ok(Verdict::Almost(Error::invalid(
            at,
            "is neither an index of shards (*.index.json) nor a manifest (a JSON object with 'tensors')",
        )));
    };
    if manifest.contents.is_ok() && !store.exists(bin) {
        let bin = store.location().join(bin);
        let problem = format!("is a manifest, but its {bin} is missing");
        return Err(Error::invalid(at, problem));
    }
    Ok(manifest.claimed())
}

/// A `.bin` file that should have a manifest beside it.
fn claim_bin(store: &Arc<dyn Store>, json: &str, bin: &str) -> Result<Verdict> {
    if store.exists(json)
        && let Some(manifest) = Manifest::parse(store, json, bin)
    {
        return Ok(manifest.claimed());
    }
    let json = store.location().join(json);
    Ok(Verdict::Almost(Error::invalid(
        store.location().join(bin),
        format!(
            "is not a PyTorch checkpoint, and has no manifest: {json} is missing or has no 'tensors' object"
        ),
    )))
}

impl Manifest {
    /// Parses `json`; `None` if it is JSON but not a manifest (an object whose `tensors` is an
    /// object).
    fn parse(store: &Arc<dyn Store>, json: &str, bin: &str) -> Option<Manifest> {
        let contents = store.read_small(json, MAX_INDEX).and_then(|bytes| {
            serde_json::from_slice(&bytes)
                .map_err(|e| not_json(&store.location().join(json), &bytes, &e))
        });
        let contents = match contents {
            Ok(Value::Object(contents)) => {
                contents.get("tensors")?.as_object()?;
                Ok(contents)
            }
            Ok(_) => return None,
            Err(error) => Err(error),
        };
        Some(Manifest {
            store: store.clone(),
            json: json.into(),
            bin: bin.into(),
            contents,
        })
    }

    fn claimed(self) -> Verdict {
        Verdict::Yes(Box::new(self))
    }
}

impl Claim for Manifest {
    fn file(&self) -> &str {
        &self.json
    }

    fn read(self: Box<Self>, findings: &mut Findings) -> Result<Parts> {
        let mut parts = Parts::new(
            &self.store,
            BinAndManifest.name(),
            Configuration::beside(&*self.store),
        );
        let mut contents = match self.contents {
            Ok(contents) => contents,
            Err(error) => {
                findings.file(&self.json, error)?;
                return Ok(parts);
            }
        };
        let file = match self.store.open(OsStr::new(&self.bin)) {
            Ok(file) => file,
            Err(error) => {
                findings.file(&self.bin, error)?;
                return Ok(parts);
            }
        };
        let config = match contents.get("config") {
            Some(Value::Object(config)) => config.clone(),
            _ => Map::new(),
        };
        let tensors = match contents.remove("tensors") {
            Some(Value::Object(tensors)) => tensors,
            _ => Map::new(),
        };
        let at = self.store.location().join(&self.json);
        let entries = Entries::new(&config).or_else(|problem| {
            findings.file(&self.json, Error::invalid(&at, problem))?;
            Ok::<_, Error>(Entries::default())
        })?;
        read_entries(&mut parts, &entries, &tensors, &*file, &at, findings)?;
        let catalog = &mut parts.catalog;
        catalog.files = vec![file];
        catalog.metadata = contents;
        catalog.configs.manifest = Some(config);
        catalog.weight_files = vec![self.json, self.bin];
        Ok(parts)
    }
}

/// Reads the entries. With `allow_missing` the end of the `.bin` may be missing: tensors that are
/// not completely in it are left out, and noted.
fn read_entries(
    parts: &mut Parts,
    entries: &Entries,
    tensors: &Map<String, Value>,
    bin: &dyn Object,
    at: &Location,
    findings: &mut Findings,
) -> Result<()> {
    let Parts { catalog, rows } = parts;
    let mut needs = 0;
    for (name, entry) in tensors {
        let row = match entries.row(name, entry) {
            Ok(row) => row,
            Err(problem) => {
                findings.tensor(at, name, &problem)?;
                continue;
            }
        };
        let Err((end, problem)) = check_end(&row, bin) else {
            rows.push(row);
            continue;
        };
        if catalog.absent.is_empty()
            && let Err(better) = impostor::check(bin, Some(&BinAndManifest))
        {
            // One report that the file is something else is enough; its tensors are not reported as
            // well.
            return findings.file(bin.name(), better);
        }
        if !findings.allow_missing() {
            findings.tensor(at, name, &problem)?;
        }
        needs = needs.max(end);
        catalog.absent.insert(row.name);
    }
    if !catalog.absent.is_empty() {
        let (n, file, has) = (catalog.absent.len(), bin.name(), bin.len());
        catalog.notes.push(format!(
            "left out: {n} of the tensors, as {file} is cut short: needs {needs} bytes, has {has}"
        ));
    }
    Ok(())
}

/// Checks that the tensor lies inside the `.bin`. If not, returns where it ends and what is wrong.
fn check_end(row: &Row, bin: &dyn Object) -> std::result::Result<(), (u64, String)> {
    let RowBytes::Extent { offset, .. } = row.bytes else {
        return Ok(());
    };
    let (end, has) = (offset + row.nbytes, bin.len());
    match end <= has {
        true => Ok(()),
        false => Err((
            end,
            format!(
                "goes past the end of the .bin: needs {end} bytes, has {has}; if the file is cut short download it again, or mount with --allow-missing"
            ),
        )),
    }
}
