//! The format of torch < 1.6: five pickles one after another, then the storages, each with its count of
//! elements in front. Their bytes are little-endian, whatever the third pickle has: torch ignores that.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::{Storages, pieces};
use crate::catalog::Object;
use crate::catalog::container::cursor::Cursor;
use crate::catalog::container::pytorch::describe::shown_name;
use crate::catalog::container::pytorch::pickle::{self, Budget, Pickle, Place, Ref, Value};
use crate::catalog::container::pytorch::problems::Problems;
use crate::error::Result;

/// The only version of the format.
const VERSION: i64 = 1001;

/// The count of elements in front of a storage, in bytes.
const COUNT: u64 = 8;

/// The pickles in front of the object: the magic number, the version, and facts about the machine.
const HEADERS: usize = 3;

/// How messages count bytes.
const PLACE: Place<'static> = Place {
    start: 0,
    of: "the file",
};

/// Reads a checkpoint. `None` if not all of its pickles can be run; then there are problems. If
/// `allow_cut`, a file that is shorter than its storages need is not a problem.
///
/// # Errors
/// It cannot be read.
pub(super) fn read(
    file: &dyn Object,
    allow_cut: bool,
    problems: &mut Problems,
) -> Result<Option<(Pickle, Storages)>> {
    let mut cursor = Cursor::new(file, 0, file.len());
    let mut hostile = Vec::new();
    let mut pickles = Vec::new();
    // The object and the list of its storages are in memory at once.
    let mut budget = Budget::default();
    for number in 0..HEADERS + 2 {
        let mut outcome = pickle::read_within(&mut cursor, PLACE, &mut budget)?;
        // They come before everything else, so the other pickles are run first.
        hostile.append(&mut outcome.hostile);
        for problem in outcome.damage {
            problems.add(|| problem);
        }
        let Some(pickle) = outcome.pickle else {
            break;
        };
        if number == 1 {
            check_version(&pickle, problems);
        }
        if number >= HEADERS {
            pickles.push(pickle);
        }
    }
    problems.add_hostile(hostile);
    let start = cursor.position();
    let Ok([object, keys]) = <[Pickle; 2]>::try_from(pickles) else {
        return Ok(None);
    };
    let mut storages = Storages::default();
    if !problems.enough()
        && let Some(layout) = Layout::of(&object, &keys, start, problems)
    {
        layout.check(file, allow_cut, &mut storages, problems)?;
    }
    Ok(Some((object, storages)))
}

fn check_version(pickle: &Pickle, problems: &mut Problems) {
    let version = match pickle.root().map(|root| pickle.get(root)) {
        Some(Value::Int(VERSION)) => return,
        Some(Value::Int(other)) => other.to_string(),
        _ => "not a number".into(),
    };
    problems.add(|| {
        format!(
            "the version of its format is {version}, but {VERSION} is the only one; the file is damaged, download it again"
        )
    });
}

/// Where the storages should be.
struct Layout<'p> {
    /// In the order of the file.
    storages: Vec<Expected<'p>>,
    /// Where the last one ends.
    end: u64,
}

struct Expected<'p> {
    key: &'p [u8],
    /// How many elements it should have.
    elements: u64,
    /// Where they should be. Their count is in front.
    bytes: Range<u64>,
}

/// A storage that the object refers to.
struct Referred {
    elements: u64,
    bytes: u64,
    /// Its place in the list, counted from 1; 0 if it is not there.
    place: usize,
}

impl<'p> Layout<'p> {
    /// The storages of `keys`, from byte `start` on. `None` if it cannot be known; then there are
    /// problems.
    fn of(
        object: &'p Pickle,
        keys: &'p Pickle,
        start: u64,
        problems: &mut Problems,
    ) -> Option<Layout<'p>> {
        let (mut referred, bad) = references(object, problems);
        let Some(Value::List(items)) = keys.root().map(|root| keys.get(root)) else {
            problems.add(|| {
                "its fifth pickle should be the list of storages, but is something else; the file is damaged, download it again".into()
            });
            return None;
        };
        let mut layout = Layout {
            storages: Vec::with_capacity(items.len().min(referred.len())),
            end: start,
        };
        let mut known = true;
        for (item, place) in items.iter().zip(1..) {
            if problems.enough() {
                return None;
            }
            if let Err(entry) = layout.add(keys, *item, place, &mut referred) {
                known = false;
                let count = items.len();
                problems.add(|| {
                    format!("{entry} of the list of {count} storages; the file is damaged, download it again")
                });
            }
        }
        report_unlisted(&referred, items.len(), problems);
        // After an entry that is wrong it is not known where storages are.
        known.then(|| {
            layout.storages.retain(|storage| !bad.contains(storage.key));
            layout
        })
    }

    /// Adds the next storage of the list, its number `place`.
    ///
    /// # Errors
    /// What this entry is instead of the key of a storage that is expected here.
    fn add(
        &mut self,
        keys: &'p Pickle,
        item: Ref,
        place: usize,
        referred: &mut HashMap<&[u8], Referred>,
    ) -> std::result::Result<(), String> {
        let key = match keys.get(item) {
            Value::Text(text) => text.as_bytes(),
            Value::Bytes(bytes) => bytes,
            _ => {
                let item = keys.describe(item);
                return Err(format!("{item}, which is not a key, is number {place}"));
            }
        };
        let total = referred.len();
        match referred.get_mut(key) {
            Some(storage) if storage.place == 0 => {
                storage.place = place;
                let data = self.end.saturating_add(COUNT);
                self.end = data.saturating_add(storage.bytes);
                self.storages.push(Expected {
                    key,
                    elements: storage.elements,
                    bytes: data..self.end,
                });
                Ok(())
            }
            Some(first) => Err(format!(
                "storage {} is number {} and number {place}",
                shown_name(key),
                first.place
            )),
            None => Err(format!(
                "storage {}, which is not one of the {total} that the pickle refers to, is number {place}",
                shown_name(key)
            )),
        }
    }

    /// Compares the counts in the file, and adds the storages that are whole to `storages`.
    fn check(
        &self,
        file: &dyn Object,
        allow_cut: bool,
        storages: &mut Storages,
        problems: &mut Problems,
    ) -> Result<()> {
        let has = file.len();
        let readable = self.storages.partition_point(|s| s.bytes.start <= has);
        let (readable, beyond) = self.storages.split_at(readable);
        let counts = readable
            .iter()
            .map(|s| s.bytes.start - COUNT..s.bytes.start);
        let mut wrong = HashSet::new();
        pieces::each(file, counts, |number, bytes| {
            let Some(storage) = readable.get(number) else {
                return Ok(false);
            };
            // Signed, as PyTorch writes it.
            let count = i64::from_le_bytes(bytes.first_chunk().copied().unwrap_or_default());
            if u64::try_from(count) != Ok(storage.elements) {
                wrong.insert(storage.key);
                problems.add(|| {
                    format!(
                        "storage {}: has {count} elements by the count at byte {}, but {} by its reference in the pickle; the file is damaged, download it again",
                        shown_name(storage.key),
                        storage.bytes.start - COUNT,
                        storage.elements
                    )
                });
            }
            Ok(!problems.enough())
        })?;
        if self.end > has && !allow_cut {
            problems.add(|| {
                format!(
                    "needs {} bytes for its {} storages, but has {has}; the file is cut short, download it again",
                    self.end,
                    self.storages.len()
                )
            });
        }
        storages.of.reserve(readable.len());
        for storage in readable.iter().chain(beyond) {
            if storage.bytes.end > has {
                storages.lost.push(storage.key.into());
            } else if !wrong.contains(storage.key) {
                storages
                    .of
                    .insert(storage.key.into(), storage.bytes.clone());
            }
        }
        Ok(())
    }
}

/// The storages that the object refers to, and the keys of those whose references differ.
fn references<'p>(
    object: &'p Pickle,
    problems: &mut Problems,
) -> (HashMap<&'p [u8], Referred>, HashSet<&'p [u8]>) {
    let mut referred: HashMap<&[u8], Referred> = HashMap::new();
    let mut bad = HashSet::new();
    for storage in object.storages() {
        let bytes = super::bytes_of(&storage).unwrap_or(u64::MAX);
        // The first reference decides what an element is.
        let first = referred.entry(storage.key).or_insert(Referred {
            elements: storage.elements,
            bytes,
            place: 0,
        });
        if first.bytes != bytes && bad.insert(storage.key) {
            problems.add(|| {
                format!(
                    "storage {}: one reference in the pickle needs {} bytes, another {}; the file is damaged, download it again",
                    shown_name(storage.key),
                    first.bytes,
                    super::needs(&storage)
                )
            });
        }
    }
    (referred, bad)
}

/// Reports storages that the list of `count` does not have.
fn report_unlisted(referred: &HashMap<&[u8], Referred>, count: usize, problems: &mut Problems) {
    let unlisted = referred.iter().filter(|(_, storage)| storage.place == 0);
    let mut unlisted: Vec<&[u8]> = unlisted.map(|(key, _)| *key).collect();
    unlisted.sort_unstable();
    for key in unlisted {
        problems.add(|| {
            format!(
                "storage {} is missing: the pickle refers to it, but the list of {count} storages does not have it; the file is damaged, download it again",
                shown_name(key)
            )
        });
    }
}
