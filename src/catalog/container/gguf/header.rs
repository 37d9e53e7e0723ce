//! The header of one file: its keys, and where its tensors lie.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use super::cursor::{Cursor, Reading, Stop};
use super::entry;
use super::layout;
use super::value::{self, Kind, ValueType};
use crate::catalog::{HeaderProblem, Object};
use crate::dtype::ElementType;
use crate::error::{Error, Result};

/// The first bytes of every file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
/// The versions that are read. Their layout is the same.
const VERSIONS: [u32; 2] = [2, 3];
/// The alignment of a file that does not have the key.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The key of the alignment.
const ALIGNMENT: &str = "general.alignment";
/// The least that a key takes, in bytes: the length of its name, one character, its type, its value.
const MIN_KEY: u64 = 8 + 1 + 4;
/// The most elements of an array that is kept. Longer ones are vocabularies.
const MAX_KEPT: u64 = 64;
/// The most problems of one header that are listed.
const MAX_PROBLEMS: usize = 1000;

/// The header of one file.
pub(crate) struct Header {
    /// 2 or 3.
    pub version: u32,
    /// What the offsets of tensors are a multiple of: a power of two, in bytes.
    pub alignment: u64,
    /// The keys, in the file's order.
    pub keys: Vec<Key>,
    /// The tensors that lie in the file whole, in the order of their entries.
    pub tensors: Vec<Entry>,
    /// Where the data begins, counted from the start of the file. In a file without tensors it may lie
    /// past the end.
    pub data: u64,
}

/// A key and its value.
pub(crate) struct Key {
    /// The key.
    pub name: String,
    /// The type of its value.
    pub kind: Kind,
    /// The bytes of the key, the type and the value in the file.
    pub span: Range<u64>,
    /// The value; `None` for an array of more than 64 elements.
    pub value: Option<Value>,
}

/// A tensor.
pub(crate) struct Entry {
    /// The name, exactly as the file has it.
    pub name: Arc<str>,
    /// Element type.
    pub dtype: ElementType,
    /// Shape, in C order: the reverse of the file's dimensions.
    pub shape: Box<[u64]>,
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub nbytes: u64,
}

/// A tensor that does not lie in the file whole.
pub(super) struct Beyond {
    /// The tensor.
    pub name: Arc<str>,
    /// Where its last byte should be, plus one.
    pub end: u128,
}

/// What an examination of a header finds.
pub(super) struct Examined {
    /// The header, or as much of it as can be read.
    pub header: Header,
    /// Tensors that do not lie in the file whole.
    pub beyond: Vec<Beyond>,
    /// What is wrong, in the order of the file.
    pub problems: Vec<HeaderProblem>,
    /// What llama.cpp would refuse although stfs serves it.
    pub flaws: Vec<HeaderProblem>,
}

impl Header {
    /// Reads the header of a file, without its large arrays.
    ///
    /// # Errors
    /// The first thing that is wrong with it, naming the key or the tensor; tensors that do not lie in
    /// the file whole are left out. Or the file cannot be read.
    pub(crate) fn read(file: &dyn Object) -> Result<Header> {
        let examined = examine(file, false)?;
        match examined.problems.first() {
            None => Ok(examined.header),
            Some(problem) => Err(Error::invalid(file.location(), problem.to_string())),
        }
    }

    /// The key of that name.
    pub(crate) fn key(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

impl Key {
    /// First byte of the value, counted from the start of the file. The value of an array is its
    /// elements.
    pub(crate) fn value_start(&self) -> u64 {
        self.span.start + 8 + self.name.len() as u64 + self.kind.header_size()
    }
}

/// Every problem of a GGUF file's header, tensors that lie past the end of the file included. Empty for
/// a valid file.
///
/// # Errors
/// The file cannot be read.
pub fn check_gguf(file: &dyn Object) -> Result<Vec<HeaderProblem>> {
    let examined = examine(file, true)?;
    let has = file.len();
    let beyond = examined
        .beyond
        .iter()
        .map(|Beyond { name, end }| HeaderProblem {
            tensor: Some(name.to_string()),
            problem: past_the_end(*end, has),
        });
    Ok(examined.problems.into_iter().chain(beyond).collect())
}

/// The problem of a tensor that ends at byte `end` of a file that has only `has`.
pub(super) fn past_the_end(end: u128, has: u64) -> String {
    format!(
        "goes past the end of the file: needs {end} bytes, has {has}; if the file is cut short download it again, or mount with --allow-missing"
    )
}

/// Reads the header of a file. It ends at the first problem, or if `all` are wanted, where it cannot
/// go on.
///
/// # Errors
/// The file cannot be read.
pub(super) fn examine(file: &dyn Object, all: bool) -> Result<Examined> {
    let mut examination = Examination {
        cursor: Cursor::new(file, 0, file.len()),
        problems: Problems {
            found: Vec::new(),
            all,
        },
        examined: Examined {
            header: Header {
                version: 0,
                alignment: DEFAULT_ALIGNMENT,
                keys: Vec::new(),
                tensors: Vec::new(),
                data: 0,
            },
            beyond: Vec::new(),
            problems: Vec::new(),
            flaws: Vec::new(),
        },
        alignment: Some(DEFAULT_ALIGNMENT),
    };
    match examination.run(file.len()) {
        Ok(()) | Err(Stop::Enough) => {}
        Err(Stop::Failed(error)) => return Err(error),
        // The last that is listed, even if there are too many.
        Err(Stop::Problem(problem)) => examination.problems.found.push(HeaderProblem {
            tensor: None,
            problem,
        }),
    }
    let mut examined = examination.examined;
    examined.problems = examination.problems.found;
    Ok(examined)
}

/// The problems of a header.
pub(super) struct Problems {
    found: Vec<HeaderProblem>,
    all: bool,
}

impl Problems {
    /// Adds a problem of the header as a whole, or with a key.
    ///
    /// # Errors
    /// No more are wanted.
    pub fn add(&mut self, problem: String) -> Reading<()> {
        self.push(None, problem)
    }

    /// Adds a problem with a tensor.
    ///
    /// # Errors
    /// No more are wanted.
    pub fn tensor(&mut self, name: &str, problem: String) -> Reading<()> {
        self.push(Some(name.to_string()), problem)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    fn push(&mut self, tensor: Option<String>, problem: String) -> Reading<()> {
        self.found.push(HeaderProblem { tensor, problem });
        if !self.all {
            return Err(Stop::Enough);
        }
        if self.found.len() < MAX_PROBLEMS {
            return Ok(());
        }
        let problem = format!("has more than {MAX_PROBLEMS} problems; no more are listed");
        Err(Stop::Problem(problem))
    }
}

/// The state of an examination.
struct Examination<'a> {
    cursor: Cursor<'a>,
    problems: Problems,
    examined: Examined,
    /// `None` if the file's is not valid.
    alignment: Option<u64>,
}

impl Examination<'_> {
    fn run(&mut self, file_len: u64) -> Reading<()> {
        let (tensors, keys) = self.counts()?;
        self.keys(keys)?;
        let entries = self.entries(tensors)?;
        let end = self.cursor.position();
        let place = layout::Place {
            header_end: end,
            alignment: self.alignment,
            file_len,
        };
        layout::place(entries, &place, &mut self.examined, &mut self.problems)
    }

    /// Magic, version, and the counts of tensors and keys.
    fn counts(&mut self) -> Reading<(u64, u64)> {
        let cursor = &mut self.cursor;
        let magic: [u8; 4] = cursor.array(&|| "the magic number".into())?;
        if magic != MAGIC {
            let magic = magic.escape_ascii();
            let problem = format!("is not a GGUF file: it begins with '{magic}', not with 'GGUF'");
            return Err(Stop::Problem(problem));
        }
        let version = cursor.u32(&|| "the version".into())?;
        if version & 0xFFFF == 0 && version != 0 {
            let swapped = version.swap_bytes();
            return Err(Stop::Problem(format!(
                "is a big-endian GGUF file (version {swapped} with its bytes swapped); stfs reads little-endian ones"
            )));
        }
        if !VERSIONS.contains(&version) {
            return Err(Stop::Problem(format!(
                "is a GGUF file of version {version}; stfs reads 2 and 3"
            )));
        }
        self.examined.header.version = version;
        let tensors = cursor.u64(&|| "the number of tensors".into())?;
        let keys = cursor.u64(&|| "the number of keys".into())?;
        let left = cursor.left();
        let mut fits = true;
        for (count, least, what) in [(tensors, entry::MIN, "tensors"), (keys, MIN_KEY, "keys")] {
            if count > left / least {
                fits = false;
                self.problems.add(format!(
                    "its header promises {count} {what} of at least {least} bytes each, but {left} bytes are left in the file; it is cut short or damaged, download it again"
                ))?;
            }
        }
        match fits {
            true => Ok((tensors, keys)),
            false => Err(Stop::Enough),
        }
    }

    fn keys(&mut self, count: u64) -> Reading<()> {
        let mut seen = HashSet::new();
        for number in 1..=count {
            let key = self.key(number, count)?;
            if key.name.is_empty() {
                self.problems
                    .add(format!("key {number} of {count} has no name"))?;
                continue;
            }
            if !seen.insert(key.name.clone()) {
                self.problems
                    .add(format!("key '{}' appears twice", key.name))?;
                continue;
            }
            if key.name == ALIGNMENT {
                self.alignment = self.check_alignment(&key)?;
            }
            self.examined.header.keys.push(key);
        }
        Ok(())
    }

    /// Reads a key and its value.
    fn key(&mut self, number: u64, count: u64) -> Reading<Key> {
        let cursor = &mut self.cursor;
        let start = cursor.position();
        let name = cursor.string(&|| format!("key {number} of {count}"))?;
        let (name, is_text) = match std::str::from_utf8(name) {
            Ok(name) => (name.to_string(), true),
            Err(_) => (String::from_utf8_lossy(name).into_owned(), false),
        };
        if !is_text {
            self.problems.add(format!(
                "key {number} of {count} ('{name}') is not valid UTF-8"
            ))?;
        }
        let cursor = &mut self.cursor;
        let kind = read_type(cursor, &|| format!("the type of key '{name}'"))?;
        let value = || format!("the value of key '{name}'");
        let unknown = |n, what| {
            Stop::Problem(format!(
                "key '{name}' has {what} of type {n}; GGUF has types 0 to 12"
            ))
        };
        let kind = kind.map_err(|n| unknown(n, "a value"))?;
        let (kind, json) = match kind {
            ValueType::Array => {
                let of = read_type(cursor, &|| format!("the element type of key '{name}'"))?
                    .map_err(|n| unknown(n, "an array"))?;
                if of == ValueType::Array {
                    return Err(Stop::Problem(format!(
                        "key '{name}' is an array of arrays (type 9 in type 9), which stfs and llama.cpp do not read"
                    )));
                }
                let count = cursor.u64(&|| format!("the number of elements of key '{name}'"))?;
                let json = read_array(cursor, of, count, &value)?;
                (Kind::Array { of, count }, json)
            }
            single => {
                let json = value::read(cursor, single, &value)?.to_json();
                (Kind::Single(single), Some(json))
            }
        };
        let span = start..cursor.position();
        Ok(Key {
            name,
            kind,
            span,
            value: json,
        })
    }

    /// The alignment that a file's key gives; `None` if it is not valid.
    fn check_alignment(&mut self, key: &Key) -> Reading<Option<u64>> {
        let number = key.value.as_ref().and_then(Value::as_u64);
        let number = number.filter(|_| key.kind == Kind::Single(ValueType::U32));
        if let Some(n) = number.filter(|n| n.is_power_of_two()) {
            self.examined.header.alignment = n;
            return Ok(Some(n));
        }
        let is = key
            .value
            .as_ref()
            .map_or_else(String::new, Value::to_string);
        let kind = key.kind.value_type().name();
        self.problems.add(format!(
            "{ALIGNMENT} is {is} ({kind}), not a uint32 that is a power of two"
        ))?;
        Ok(None)
    }

    /// The entries of the tensors.
    fn entries(&mut self, count: u64) -> Reading<Vec<entry::Unplaced>> {
        let mut seen = HashSet::new();
        let mut entries = Vec::new();
        for number in 1..=count {
            let entry = entry::read(&mut self.cursor, &mut self.problems, number, count)?;
            let Some(entry) = entry else {
                continue;
            };
            if !seen.insert(entry.name.clone()) {
                self.problems
                    .tensor(&entry.name, "appears twice in this file".into())?;
                continue;
            }
            entries.push(entry);
        }
        Ok(entries)
    }
}

/// A type, or a number that is none.
fn read_type(
    cursor: &mut Cursor<'_>,
    what: &dyn Fn() -> String,
) -> Reading<std::result::Result<ValueType, u32>> {
    let number = cursor.u32(what)?;
    Ok(ValueType::from_number(number).ok_or(number))
}

/// Reads the elements of an array that is short enough to keep, and passes over those of a longer one.
fn read_array(
    cursor: &mut Cursor<'_>,
    of: ValueType,
    count: u64,
    what: &dyn Fn() -> String,
) -> Reading<Option<Value>> {
    let left = cursor.left();
    let (kind, size) = (of.name(), of.size());
    if count > left / size {
        return Err(Stop::Problem(format!(
            "{} has {count} elements ({kind}) of at least {size} bytes each, but {left} bytes are left in the file; it is cut short or damaged, download it again",
            what()
        )));
    }
    if count <= MAX_KEPT {
        let elements = (0..count).map(|_| Ok(value::read(cursor, of, what)?.to_json()));
        let elements: Reading<Vec<Value>> = elements.collect();
        return Ok(Some(elements?.into()));
    }
    match of {
        ValueType::String => cursor.skip_strings(count, what)?,
        _ => cursor.skip(count * size, what)?,
    }
    Ok(None)
}
