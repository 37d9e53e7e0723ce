//! Where values lie: nodes of 16 bytes, lists of references, texts and bytes, each in one piece of
//! memory, so that a value costs what it holds and nothing is allocated for it alone.

use super::Ref;
use super::budget::{Budget, Exceeds, MAX_REFERENCES, MAX_STORAGES, MAX_STRINGS, MAX_VALUES};

/// Texts and bytes that are longer are not kept.
pub(super) const MAX_KEPT: u64 = 64 << 10;

/// A part of the texts or the bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Span {
    at: u32,
    len: u32,
}

impl Span {
    /// Its length in bytes.
    pub fn len(self) -> usize {
        self.len as usize
    }
}

/// A list of references that one value has. There may be room behind it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Run {
    at: u32,
    len: u32,
    room: u32,
}

impl Run {
    /// How many references there are.
    pub fn len(self) -> usize {
        self.len as usize
    }
}

/// A value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Node {
    None,
    Bool(bool),
    Int(i64),
    BigInt,
    Float(f64),
    Text(Span),
    Bytes(Span),
    /// Its length, and its beginning if it is text.
    Skipped(u32, Span),
    Tuple(Run),
    List(Run),
    Set(Run),
    Mapping(Run),
    /// A place in the table of names, or `UNKNOWN` and its text.
    Name(u16, Span),
    /// The place of its words: callable, arguments, state, and the run of its contents.
    Object(u32),
    /// The place of its words: see `storage.rs`.
    Storage(u32),
    /// The place of its words: see `rebuild.rs`.
    Tensor(u32),
    /// A tensor that is left out, and why.
    LeftOut(Span),
    /// A tensor that was called with wrong arguments, and what is wrong.
    Malformed(Span),
    Complex,
    /// Bytes in an encoding that is not decoded.
    Encoded,
}

const _: () = assert!(size_of::<Node>() == 16);

/// The values of a pickle.
#[derive(Default)]
pub(super) struct Arena {
    nodes: Vec<Node>,
    words: Vec<Ref>,
    texts: String,
    bytes: Vec<u8>,
    storages: usize,
    /// What there was before all of this.
    budget: Budget,
}

impl Arena {
    /// An empty arena, which may use up the budget.
    pub fn new(budget: Budget) -> Arena {
        Arena {
            budget,
            ..Arena::default()
        }
    }

    /// What is left of the budget.
    pub fn left(&self) -> Budget {
        let Budget {
            values,
            references,
            strings,
            storages,
        } = self.budget;
        Budget {
            values: values.saturating_sub(self.nodes.len()),
            references: references.saturating_sub(self.words.len()),
            strings: strings.saturating_sub(self.texts.len() + self.bytes.len()),
            storages: storages.saturating_sub(self.storages),
        }
    }

    /// Adds a value.
    #[inline]
    pub fn add(&mut self, node: Node) -> Result<Ref, Exceeds> {
        if self.nodes.len() >= self.budget.values {
            return Err(Exceeds {
                most: MAX_VALUES,
                of: "values",
            });
        }
        self.nodes.push(node);
        Ok(Ref(self.nodes.len() as u32 - 1))
    }

    /// A value.
    #[inline]
    pub fn node(&self, value: Ref) -> Node {
        let node = self.nodes.get(value.0 as usize);
        node.copied().unwrap_or(Node::None)
    }

    /// Replaces a value that has changed.
    pub fn set(&mut self, value: Ref, node: Node) {
        if let Some(place) = self.nodes.get_mut(value.0 as usize) {
            *place = node;
        }
    }

    /// All values, in the order in which they were made.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = Node> {
        self.nodes.iter().copied()
    }

    fn string_room(&self, more: usize) -> Result<(), Exceeds> {
        match self.texts.len() + self.bytes.len() + more <= self.budget.strings {
            true => Ok(()),
            false => Err(Exceeds {
                most: MAX_STRINGS,
                of: "bytes of strings",
            }),
        }
    }

    /// Keeps a text.
    pub fn keep_text(&mut self, text: &str) -> Result<Span, Exceeds> {
        self.string_room(text.len())?;
        let at = self.texts.len() as u32;
        self.texts.push_str(text);
        let len = text.len() as u32;
        Ok(Span { at, len })
    }

    /// Keeps bytes.
    pub fn keep_bytes(&mut self, bytes: &[u8]) -> Result<Span, Exceeds> {
        self.string_room(bytes.len())?;
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        let len = bytes.len() as u32;
        Ok(Span { at, len })
    }

    /// Keeps the bytes of a text in an encoding of one byte for each character, of which `last` is the
    /// last one, or else in UTF-8. `None` if the text has other characters. The bytes before those stay,
    /// so that the limit bounds the time as well.
    pub fn encode(&mut self, text: Span, last: Option<char>) -> Result<Option<Span>, Exceeds> {
        self.string_room(text.len())?;
        let at = self.bytes.len();
        let range = text.at as usize..text.at as usize + text.len();
        let text = self.texts.get(range).unwrap_or_default();
        let whole = match last {
            None => {
                self.bytes.extend_from_slice(text.as_bytes());
                true
            }
            Some(last) => {
                let fitting = text.chars().take_while(|c| *c <= last);
                self.bytes.extend(fitting.map(|c| c as u32 as u8));
                text.chars().nth(self.bytes.len() - at).is_none()
            }
        };
        Ok(whole.then_some(Span {
            at: at as u32,
            len: (self.bytes.len() - at) as u32,
        }))
    }

    /// A text that was kept.
    pub fn text(&self, span: Span) -> &str {
        let end = span.at as usize + span.len as usize;
        self.texts.get(span.at as usize..end).unwrap_or_default()
    }

    /// Bytes that were kept.
    pub fn bytes(&self, span: Span) -> &[u8] {
        let end = span.at as usize + span.len as usize;
        self.bytes.get(span.at as usize..end).unwrap_or_default()
    }

    /// The references of a run.
    pub fn run(&self, run: Run) -> &[Ref] {
        let end = run.at as usize + run.len as usize;
        self.words.get(run.at as usize..end).unwrap_or_default()
    }

    fn reference_room(&self, more: usize) -> Result<(), Exceeds> {
        match self.words.len() + more <= self.budget.references {
            true => Ok(()),
            false => Err(Exceeds {
                most: MAX_REFERENCES,
                of: "references",
            }),
        }
    }

    /// A new run of these references.
    pub fn new_run(&mut self, items: &[Ref]) -> Result<Run, Exceeds> {
        self.reference_room(items.len())?;
        let (at, len) = (self.words.len() as u32, items.len() as u32);
        self.words.extend_from_slice(items);
        let room = len;
        Ok(Run { at, len, room })
    }

    /// A run of the same references for another value, without the first `skip` of them. It is a copy, so
    /// that the limit on references bounds a walk through every container.
    pub fn copied(&mut self, run: Run, skip: usize) -> Result<Run, Exceeds> {
        let from = (run.at as usize + skip)..(run.at as usize + run.len());
        self.reference_room(from.len())?;
        let (at, len) = (self.words.len() as u32, from.len() as u32);
        if self.words.get(from.clone()).is_some() {
            self.words.extend_from_within(from);
        }
        let room = len;
        Ok(Run { at, len, room })
    }

    /// The keys and values of a run of pairs; `None` if it is something else. The references that were
    /// copied by then count, as the time was spent.
    pub fn pairs(&mut self, run: Run) -> Result<Option<Run>, Exceeds> {
        let at = self.words.len();
        for i in 0..run.len() {
            let pair = self.run(run).get(i).map(|pair| self.node(*pair));
            let Some(Node::Tuple(pair) | Node::List(pair)) = pair else {
                return Ok(None);
            };
            if pair.len() != 2 {
                return Ok(None);
            }
            self.reference_room(2)?;
            let pair = pair.at as usize..pair.at as usize + 2;
            if self.words.get(pair.clone()).is_some() {
                self.words.extend_from_within(pair);
            }
        }
        let len = (self.words.len() - at) as u32;
        Ok(Some(Run {
            at: at as u32,
            len,
            room: len,
        }))
    }

    /// Appends to a run: in its room, at the end of memory, or else at a new place with room for as many
    /// more, so that a list costs a constant time for each of its items.
    pub fn extend(&mut self, run: Run, items: &[Ref]) -> Result<Run, Exceeds> {
        let old_end = run.at as usize + run.len();
        let len = run.len() + items.len();
        if run.len == 0 && run.room == 0 {
            return self.new_run(items);
        }
        if len <= run.room as usize {
            let place = self.words.get_mut(old_end..old_end + items.len());
            place.unwrap_or_default().copy_from_slice(items);
            return Ok(Run {
                len: len as u32,
                ..run
            });
        }
        if run.at as usize + run.room as usize == self.words.len() {
            self.words.truncate(old_end);
            let room = len as u32;
            self.reference_room(items.len())?;
            self.words.extend_from_slice(items);
            return Ok(Run {
                len: room,
                room,
                ..run
            });
        }
        let room = len * 2;
        self.reference_room(room)?;
        let at = self.words.len();
        self.words.extend_from_within(run.at as usize..old_end);
        self.words.extend_from_slice(items);
        self.words.resize(at + room, Ref(0));
        Ok(Run {
            at: at as u32,
            len: len as u32,
            room: room as u32,
        })
    }

    /// Adds a reference to a storage.
    pub fn add_storage<const N: usize>(&mut self, words: [u32; N]) -> Result<Ref, Exceeds> {
        if self.storages >= self.budget.storages {
            return Err(Exceeds {
                most: MAX_STORAGES,
                of: "references to storages",
            });
        }
        self.storages += 1;
        let at = self.record(words)?;
        self.add(Node::Storage(at))
    }

    /// Adds the words of a value that needs more than a node has. Returns their place.
    pub fn record<const N: usize>(&mut self, words: [u32; N]) -> Result<u32, Exceeds> {
        Ok(self.new_run(&words.map(Ref))?.at)
    }

    /// The words at a place.
    pub fn words<const N: usize>(&self, at: u32) -> [u32; N] {
        let words = self.words.get(at as usize..).unwrap_or_default();
        words.first_chunk().map_or([0; N], |w| w.map(|r| r.0))
    }

    /// Replaces words at a place.
    pub fn set_words<const N: usize>(&mut self, at: u32, words: [u32; N]) {
        let place = self.words.get_mut(at as usize..).unwrap_or_default();
        if let Some(place) = place.first_chunk_mut::<N>() {
            *place = words.map(Ref);
        }
    }
}

impl Run {
    /// A run as words of a record.
    pub fn to_words(self) -> [u32; 3] {
        [self.at, self.len, self.room]
    }

    /// The run that a record has.
    pub fn from_words([at, len, room]: [u32; 3]) -> Run {
        Run { at, len, room }
    }
}
