//! The ZIP archives of torch ≥ 1.6: `NAME/data.pkl`, and `NAME/data/KEY` for each storage. Nothing is
//! ever decompressed, and the members' names never become paths.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use self::directory::{Directory, Member, Source};
use super::Storages;
use super::detect::Other;
use crate::catalog::Object;
use crate::catalog::container::cursor::Cursor;
use crate::catalog::container::pytorch::describe::shown_name;
use crate::catalog::container::pytorch::pickle::{
    self, Budget, MAX_PICKLE, Outcome, Pickle, Place, Storage,
};
use crate::catalog::container::pytorch::problems::Problems;
use crate::error::{Error, Result};

mod checksums;
mod directory;
mod end;
mod headers;
mod names;

type Archive<'a> = rawzip::ZipArchive<&'a Source<'a>>;

/// The pickle's name after the archive's own.
const PICKLE: &[u8] = b"data.pkl";

/// How many pickles of an archive are run to see whether they are hostile. Only a hostile archive has
/// more than one.
const PICKLES: usize = 8;

/// The longest of the small members that mean something, in bytes.
const SMALL: u64 = 64;

/// How many storages are listed that nothing refers to.
const UNREFERRED: usize = 100;

/// The versions of the format that torch reads.
const VERSIONS: Range<u64> = 1..11;

/// Why an archive, or a part of it, is not used.
enum Refused {
    Problem(String),
    Failed(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Failed(error)
    }
}

/// A number of at most eight bytes.
fn le(bytes: &[u8], at: usize, length: usize) -> u64 {
    let bytes = bytes.get(at..at + length).unwrap_or_default();
    let high_first = bytes.iter().rev();
    high_first.fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// What an archive is instead of a checkpoint, by the names of its members; `None` if it is one, or is
/// damaged.
///
/// # Errors
/// It cannot be read.
pub(super) fn other(file: &dyn Object) -> Result<Option<Other>> {
    match Directory::read(file) {
        Ok(directory) => Ok(names::other(&directory)),
        Err(Refused::Problem(_)) => Ok(None),
        Err(Refused::Failed(error)) => Err(error),
    }
}

/// Reads a checkpoint. `None` if its pickle cannot be run; then there are problems.
///
/// # Errors
/// It cannot be read.
pub(super) fn read(
    file: &dyn Object,
    problems: &mut Problems,
) -> Result<Option<(Pickle, Storages)>> {
    let mut directory = match Directory::read(file) {
        Ok(directory) => directory,
        Err(Refused::Failed(error)) => return Err(error),
        Err(Refused::Problem(problem)) => {
            problems.add_hostile(in_front(file, &mut Budget::default())?);
            problems.add(|| problem);
            return Ok(None);
        }
    };
    // Before everything else: no other problem is as important as what a pickle would execute.
    let Outcome {
        pickle,
        hostile,
        damage,
    } = run_pickles(file, &directory)?;
    problems.add_hostile(hostile);
    if let Some(other) = names::other(&directory) {
        problems.add(|| other.problem().into());
        return Ok(None);
    }
    for problem in damage {
        problems.add(|| problem);
    }
    let Some(root) = names::pickles(&directory).next().map(|(_, root)| root) else {
        return Ok(None);
    };
    let root = root.to_vec();
    let mut storages = Storages::default();
    if !problems.enough() {
        check_names(&directory, &root, problems);
        headers::check_all(file, &mut directory, problems)?;
    }
    if !problems.enough() {
        check_version(file, &directory, &root, problems)?;
        storages.big_endian = big_endian(file, &directory, &root, problems)?;
    }
    if let Some(pickle) = &pickle {
        storages.of = locate(&directory, &root, pickle, problems);
    }
    if problems.all() {
        checksums::check(file, &directory, &root, problems)?;
    }
    Ok(pickle.map(|pickle| (pickle, storages)))
}

/// What the pickle of an archive without a usable directory would have executed. torch writes it as
/// the first member.
fn in_front(file: &dyn Object, budget: &mut Budget) -> Result<Vec<String>> {
    let mut header = [0; 30];
    if file.len() < 30 {
        return Ok(Vec::new());
    }
    file.read_at(0, &mut header)?;
    let (method, name, extra) = (le(&header, 8, 2), le(&header, 26, 2), le(&header, 28, 2));
    let data = 30 + name + extra;
    if method != 0 || name < PICKLE.len() as u64 || data > file.len() {
        return Ok(Vec::new());
    }
    let mut end_of_name = [0; PICKLE.len()];
    file.read_at(30 + name - PICKLE.len() as u64, &mut end_of_name)?;
    if end_of_name != PICKLE {
        return Ok(Vec::new());
    }
    let mut cursor = Cursor::new(file, data, file.len());
    Ok(pickle::read_within(&mut cursor, place(data), budget)?.hostile)
}

fn place(start: u64) -> Place<'static> {
    Place {
        start,
        of: "data.pkl",
    }
}

/// Runs the pickle, and others of that name, if there are any: what they would have executed counts,
/// and nothing else of them.
fn run_pickles(file: &dyn Object, directory: &Directory) -> Result<Outcome> {
    let mut all = Outcome::default();
    // Members that overlap could be one long pickle many times.
    let mut left = file.len();
    let mut budget = Budget::default();
    let mut broken = false;
    for (i, (number, _)) in names::pickles(directory).take(PICKLES).enumerate() {
        let Some(member) = directory.members.get(number) else {
            continue;
        };
        let bytes = match headers::check_one(file, directory, member) {
            Ok(bytes) => bytes,
            Err(Refused::Failed(error)) => return Err(error),
            // To be reported with those of the other members.
            Err(Refused::Problem(_)) => {
                if !std::mem::replace(&mut broken, true) {
                    all.hostile.append(&mut in_front(file, &mut budget)?);
                }
                continue;
            }
        };
        if member.size > MAX_PICKLE {
            all.damage.push(format!(
                "member '{}' has {} bytes, more than the {MAX_PICKLE} that stfs reads of a pickle",
                directory.shown(member),
                member.size
            ));
            continue;
        }
        let Some(rest) = left.checked_sub(member.size) else {
            continue;
        };
        left = rest;
        let mut cursor = Cursor::new(file, bytes.start, bytes.end);
        let mut outcome = pickle::read_within(&mut cursor, place(bytes.start), &mut budget)?;
        all.hostile.append(&mut outcome.hostile);
        if i == 0 {
            all.damage.append(&mut outcome.damage);
            all.pickle = outcome.pickle;
        }
    }
    Ok(all)
}

/// That no name comes twice, and that there is one pickle.
fn check_names(directory: &Directory, root: &[u8], problems: &mut Problems) {
    for (a, b) in directory.twice() {
        problems.add(|| {
            format!(
                "two members are called '{}' (at bytes {} and {}), and readers differ about which one counts; the file is damaged or hostile",
                directory.shown(a),
                a.header,
                b.header
            )
        });
    }
    let others = names::pickles(directory).filter(|(_, other)| *other != root);
    for (_, other) in others {
        problems.add(|| {
            format!(
                "has two pickles, '{}data.pkl' and '{}data.pkl', but a checkpoint has one; the file is damaged or hostile",
                shown_name(root),
                shown_name(other)
            )
        });
    }
}

/// The bytes of a small member; `None` if there is none, or it has a problem.
fn small(
    file: &dyn Object,
    directory: &Directory,
    name: &[u8],
    problems: &mut Problems,
) -> Result<Option<Vec<u8>>> {
    let member = directory.find(name).and_then(|n| directory.members.get(n));
    let Some(member) = member else {
        return Ok(None);
    };
    let Some(range) = member.bytes() else {
        return Ok(None);
    };
    if member.size > SMALL {
        problems.add(|| {
            format!(
                "member '{}' has {} bytes, but should have {SMALL} at most; the file is damaged, download it again",
                shown_name(name),
                member.size
            )
        });
        return Ok(None);
    }
    let mut bytes = vec![0; member.size as usize];
    file.read_at(range.start, &mut bytes)?;
    Ok(Some(bytes))
}

fn check_version(
    file: &dyn Object,
    directory: &Directory,
    root: &[u8],
    problems: &mut Problems,
) -> Result<()> {
    let name = [root, b"version"].concat();
    if directory.find(&name).is_none() {
        problems.add(|| {
            format!(
                "has no member '{}', without which torch loads no checkpoint; the file is damaged, download it again",
                shown_name(&name)
            )
        });
        return Ok(());
    }
    let Some(text) = small(file, directory, &name, problems)? else {
        return Ok(());
    };
    let text = String::from_utf8_lossy(&text);
    let text = text.trim();
    if !text.parse().is_ok_and(|n| VERSIONS.contains(&n)) {
        let known = format!("{} to {}", VERSIONS.start, VERSIONS.end - 1);
        problems.add(|| {
            format!(
                "member '{}' is '{}', but the versions of this format are {known}; the file is damaged, or too new",
                shown_name(&name),
                shown_name(text.as_bytes())
            )
        });
    }
    Ok(())
}

fn big_endian(
    file: &dyn Object,
    directory: &Directory,
    root: &[u8],
    problems: &mut Problems,
) -> Result<bool> {
    let name = [root, b"byteorder"].concat();
    match small(file, directory, &name, problems)?.as_deref() {
        // Before torch 2.1 it was not stored.
        None | Some(b"little") => Ok(false),
        Some(b"big") => Ok(true),
        Some(other) => {
            problems.add(|| {
                format!(
                    "member '{}' is '{}', but can only be 'little' or 'big'; the file is damaged, download it again",
                    shown_name(&name),
                    shown_name(other)
                )
            });
            Ok(false)
        }
    }
}

/// Where the storages are that the pickle refers to: those that are as long as each reference needs.
fn locate(
    directory: &Directory,
    root: &[u8],
    pickle: &Pickle,
    problems: &mut Problems,
) -> HashMap<Box<[u8]>, Range<u64>> {
    let mut of = HashMap::new();
    let mut bad: HashSet<&[u8]> = HashSet::new();
    let mut name = [root, b"data/"].concat();
    let base = name.len();
    // A name has up to 64 KiB, so each is looked up once.
    let mut found: HashMap<&[u8], Option<&Member>> = HashMap::new();
    for storage in pickle.storages() {
        if problems.enough() {
            break;
        }
        if bad.contains(storage.key) {
            continue;
        }
        let member = *found.entry(storage.key).or_insert_with(|| {
            name.truncate(base);
            name.extend_from_slice(storage.key);
            let number = directory.find(&name);
            number.and_then(|number| directory.members.get(number))
        });
        // What is wrong with such a member was reported; its size may be that of compressed bytes.
        if member.is_some_and(|member| member.bytes().is_none()) {
            bad.insert(storage.key);
            continue;
        }
        let size = member.map(|member| member.size);
        if super::bytes_of(&storage).is_some_and(|needs| Some(needs) == size) {
            if let Some(range) = member.and_then(|member| member.bytes()) {
                of.entry(storage.key.into()).or_insert(range);
            }
            continue;
        }
        bad.insert(storage.key);
        of.remove(storage.key);
        problems.add(|| {
            name.truncate(base);
            name.extend_from_slice(storage.key);
            wrong_size(&name, &storage, size)
        });
    }
    if problems.all() {
        name.truncate(base);
        report_unreferred(directory, &name, pickle, problems);
    }
    of
}

/// Reports the members below `data` that the pickle does not refer to.
fn report_unreferred(directory: &Directory, data: &[u8], pickle: &Pickle, problems: &mut Problems) {
    let referred: HashSet<&[u8]> = pickle.storages().map(|storage| storage.key).collect();
    let mut unreferred = directory.members.iter().filter(|member| {
        let key = directory.name(member).strip_prefix(data);
        key.is_some_and(|key| !key.is_empty() && !referred.contains(key))
    });
    for member in unreferred.by_ref().take(UNREFERRED) {
        problems.add(|| {
            format!(
                "member '{}' ({} bytes) is a storage that nothing in the pickle refers to",
                directory.shown(member),
                member.size
            )
        });
    }
    let more = unreferred.count();
    if more > 0 {
        problems.add(|| format!("nothing in the pickle refers to {more} more storages"));
    }
}

fn wrong_size(name: &[u8], storage: &Storage<'_>, size: Option<u64>) -> String {
    let (name, key) = (shown_name(name), shown_name(storage.key));
    let needs = super::needs(storage);
    match size {
        None => format!(
            "storage {key} is missing: there is no member '{name}', and its reference in the pickle needs {needs}; the file is damaged, download it again"
        ),
        Some(size) => format!(
            "storage {key}: member '{name}' has {size} bytes, but its reference in the pickle needs {needs}; the file is damaged, download it again"
        ),
    }
}
