//! Tables and values of the file, in its order, and the mistakes found so far.

use std::borrow::Cow;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::super::language::Located;
use super::super::mistake::{Lines, Mistake, Place, quoted};
use super::super::nearest;

/// A recipe has no more bytes.
const MAX_BYTES: usize = 1 << 20;

/// A recipe's text, and what is wrong with it.
pub struct Reader<'t> {
    text: &'t str,
    /// In the order in which they were found.
    pub mistakes: Vec<Mistake>,
}

/// A value, and where it stands.
#[derive(Clone)]
pub struct Value<'t> {
    /// Its bytes in the text; of a table with a header, the header's.
    pub span: Range<usize>,
    /// What it is.
    pub value: DeValue<'t>,
}

impl Value<'_> {
    /// Where it begins.
    pub fn at(&self) -> Place {
        place(self.span.start)
    }
}

/// A key of a table, and its value.
pub struct Entry<'t> {
    /// The key.
    pub key: Located<'t>,
    /// Where it begins.
    pub at: Place,
    /// Its value.
    pub value: Value<'t>,
}

/// A table: its entries in the order of the file.
pub struct Table<'t> {
    /// Where it begins.
    pub at: Place,
    /// Its entries.
    pub entries: Vec<Entry<'t>>,
}

impl<'t> Table<'t> {
    /// The entry of a key.
    pub fn entry(&self, key: &str) -> Option<&Entry<'t>> {
        self.entries.iter().find(|entry| entry.key.text == key)
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value<'t>> {
        Some(&self.entry(key)?.value)
    }
}

impl<'t> Reader<'t> {
    /// A reader of that text.
    pub fn new(text: &'t str) -> Reader<'t> {
        let mistakes = Vec::new();
        Reader { text, mistakes }
    }

    /// A mistake at a place.
    pub fn mistake(&mut self, at: Place, what: impl Into<String>) {
        self.mistakes.push(Mistake::at(at, what));
    }

    /// What a parser found, or nothing, if it found a mistake.
    pub fn keep<T>(&mut self, parsed: Result<T, Mistake>) -> Option<T> {
        parsed.map_err(|mistake| self.mistakes.push(mistake)).ok()
    }

    /// The whole file, if it is TOML.
    pub fn root(&mut self) -> Option<Table<'t>> {
        if self.text.len() > MAX_BYTES {
            let length = crate::text::thousands(self.text.len() as u64);
            let what = format!("the recipe has {length} bytes; at most 1 MiB");
            self.mistake(Place(0), what);
            return None;
        }
        let (root, errors) = DeTable::parse_recoverable(self.text);
        let (lines, mut last_line) = (Lines::new(self.text), None);
        for error in &errors {
            let at = error.span().map_or(0, |span| span.start);
            // What follows in a line is of the same mistake.
            let line = Some(lines.line(place(at)));
            if line != last_line {
                self.mistake(place(at), format!("TOML: {}", error.message()));
            }
            last_line = line;
        }
        errors
            .is_empty()
            .then(|| self.entries(0, root.into_inner()))
    }

    fn entries(&self, at: usize, table: DeTable<'t>) -> Table<'t> {
        let mut entries: Vec<Entry> = table
            .into_iter()
            .map(|(key, value)| Entry {
                at: place(key.span().start),
                key: self.located(key.span(), key.into_inner()),
                value: spanned(value),
            })
            .collect();
        entries.sort_by_key(|entry| entry.at);
        let at = place(at);
        Table { at, entries }
    }

    fn located(&self, span: Range<usize>, text: Cow<'t, str>) -> Located<'t> {
        let raw = self.text.get(span.clone()).unwrap_or("");
        Located::toml(raw, span.start, text)
    }

    /// How a value is written.
    pub fn written(&self, value: &Value) -> &'t str {
        self.text.get(value.span.clone()).unwrap_or("")
    }

    /// Whether a table is one that dotted keys made: `a.b = 1` makes `a`.
    pub fn is_dotted(&self, value: &Value) -> bool {
        value.value.is_table() && !self.written(value).starts_with(['{', '['])
    }

    /// A table; `what` names it in messages.
    pub fn table(&mut self, value: &Value<'t>, what: &str) -> Option<Table<'t>> {
        match &value.value {
            DeValue::Table(table) => Some(self.entries(value.span.start, table.clone())),
            _ => self.wrong(value, &format!("{what} must be a table")),
        }
    }

    /// An array; `what` names it in messages.
    pub fn array(&mut self, value: &Value<'t>, what: &str) -> Option<Vec<Value<'t>>> {
        match &value.value {
            DeValue::Array(array) => Some(array.iter().cloned().map(spanned).collect()),
            _ => self.wrong(value, &format!("{what} must be an array")),
        }
    }

    /// A string; `what` names it in messages.
    pub fn string(&mut self, value: &Value<'t>, what: &str) -> Option<Located<'t>> {
        match &value.value {
            DeValue::String(text) => Some(self.located(value.span.clone(), text.clone())),
            _ => self.wrong(value, &format!("{what} must be a string")),
        }
    }

    /// `true` or `false`; `what` names it in messages.
    pub fn boolean(&mut self, value: &Value, what: &str) -> Option<bool> {
        match &value.value {
            DeValue::Boolean(boolean) => Some(*boolean),
            _ => self.wrong(value, &format!("{what} must be true or false")),
        }
    }

    /// A value is not of the type that it must be.
    pub fn wrong<T>(&mut self, value: &Value, must: &str) -> Option<T> {
        let found = value.value.type_str();
        let article = match found.starts_with(['a', 'i']) {
            true => "an",
            false => "a",
        };
        self.mistake(value.at(), format!("{must}, not {article} {found}"));
        None
    }

    /// Whether a table has no keys but these; `of` names it in messages.
    pub fn check_keys(&mut self, table: &Table, known: &[&str], of: &str) -> bool {
        let before = self.mistakes.len();
        for entry in &table.entries {
            let key = &*entry.key.text;
            if known.contains(&key) {
                continue;
            }
            let nearest = nearest::word(key, known.iter().copied());
            let meant = match nearest {
                Some(_) => nearest::did_you_mean(nearest),
                None => format!("; {of} has {}", known.join(", ")),
            };
            self.mistake(entry.at, format!("unknown key {}{meant}", quoted(key)));
        }
        self.mistakes.len() == before
    }
}

fn spanned(value: Spanned<DeValue<'_>>) -> Value<'_> {
    Value {
        span: value.span(),
        value: value.into_inner(),
    }
}

fn place(at: usize) -> Place {
    Place(u32::try_from(at).unwrap_or(u32::MAX))
}
