//! The header of one file: its keys, and where its tensors lie.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use super::key::Key;
use super::value::{Kind, ValueType};
use super::{entry, key, layout};
use crate::catalog::container::cursor::{Cursor, Reading, Stop};
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
/// The most keys of a file. Real ones have some dozens; each takes half a kilobyte of memory.
const MAX_KEYS: u64 = 100_000;
/// How far into a file a header may reach, in bytes: several times the largest vocabularies with all of
/// their merges. A file with holes can promise terabytes of strings, each of which would be read.
const MAX_HEADER: u64 = 128 << 20;
/// The most problems of one header that are listed.
pub(super) const MAX_PROBLEMS: usize = 1000;

/// The header of one file.
pub(crate) struct Header {
    /// What the offsets of tensors are a multiple of: a power of two, in bytes.
    pub alignment: u64,
    /// The keys, in the file's order.
    pub keys: Vec<Key>,
    /// The tensors that lie in the file whole, in the order of their entries.
    pub tensors: Vec<Entry>,
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
    /// What llama.cpp would refuse although stfs serves it, if all problems are wanted.
    pub flaws: Vec<HeaderProblem>,
}

impl Header {
    /// Reads the header of a file, without its large arrays. It is known to end before byte `end`, and
    /// nothing from there on is read: what follows may be gone by now.
    ///
    /// # Errors
    /// The first thing that is wrong with it, naming the key or the tensor; tensors that do not lie in
    /// the file whole are left out. Or the file cannot be read.
    pub(crate) fn read(file: &dyn Object, end: u64) -> Result<Header> {
        let examined = examine_before(file, end.min(file.len()), false)?;
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
    examine_before(file, file.len(), all)
}

fn examine_before(file: &dyn Object, end: u64, all: bool) -> Result<Examined> {
    let mut cursor = Cursor::new(file, 0, end);
    cursor.limit(MAX_HEADER, "its header");
    let mut examination = Examination {
        cursor,
        problems: Problems {
            found: Vec::new(),
            all,
        },
        examined: Examined {
            header: Header {
                alignment: DEFAULT_ALIGNMENT,
                keys: Vec::new(),
                tensors: Vec::new(),
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

    /// Whether all are wanted.
    pub fn all(&self) -> bool {
        self.all
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
        let tensors = cursor.u64(&|| "the number of tensors".into())?;
        let keys = cursor.u64(&|| "the number of keys".into())?;
        let mut fits = true;
        for (count, least, what) in [(tensors, entry::MIN, "tensors"), (keys, key::MIN, "keys")] {
            let bytes = count.saturating_mul(least);
            let promise =
                || format!("its header promises {count} {what} of at least {least} bytes each");
            match self.cursor.hold(bytes, &promise) {
                Err(Stop::Problem(problem)) => self.problems.add(problem)?,
                held => held?,
            }
            fits &= bytes <= self.cursor.left();
        }
        match fits {
            true => Ok((tensors, keys)),
            false => Err(Stop::Enough),
        }
    }

    fn keys(&mut self, count: u64) -> Reading<()> {
        if count > MAX_KEYS {
            return Err(Stop::Problem(format!(
                "has {count} keys, at most {MAX_KEYS} are read; the file is damaged, download it again"
            )));
        }
        let mut seen = HashSet::new();
        for number in 1..=count {
            let key = key::read(&mut self.cursor, &mut self.problems, number, count)?;
            let Some(key) = key else {
                continue;
            };
            if !seen.insert(key.name.clone()) {
                let shown = key::shown(&key.name);
                self.problems.add(format!("key '{shown}' appears twice"))?;
                continue;
            }
            if key.name == ALIGNMENT {
                self.alignment = self.check_alignment(&key)?;
            }
            self.examined.header.keys.push(key);
        }
        Ok(())
    }

    /// The alignment that a file's key gives; `None` if it is not valid.
    fn check_alignment(&mut self, key: &Key) -> Reading<Option<u64>> {
        let number = key.value.as_ref().and_then(Value::as_u64);
        let number = number.filter(|_| key.kind == Kind::Single(ValueType::U32));
        if let Some(n) = number.filter(|n| n.is_power_of_two()) {
            self.examined.header.alignment = n;
            return Ok(Some(n));
        }
        let is = key.shown_value();
        self.problems.add(format!(
            "{ALIGNMENT} is {is}, not a uint32 that is a power of two"
        ))?;
        Ok(None)
    }

    /// The entries of the tensors.
    fn entries(&mut self, count: u64) -> Reading<Vec<entry::Unplaced>> {
        let mut seen = HashSet::new();
        let mut entries = Vec::new();
        for number in 1..=count {
            let (name, entry) = entry::read(&mut self.cursor, &mut self.problems, number, count)?;
            if let Some(name) = name
                && !seen.insert(name.clone())
            {
                let problem = "appears twice in this file".into();
                self.problems.tensor(&name, problem)?;
                continue;
            }
            entries.extend(entry);
        }
        Ok(entries)
    }
}
