//! The walk through a checkpoint's model: every tensor, with its name.

use std::fmt::Write;

use super::super::describe::{kind, short};
use super::super::pickle::{Rebuilt, Ref, Value};
use super::contents::Contents;
use super::key::Key;

/// The most keys in the path of a tensor.
const MAX_DEPTH: usize = 64;
/// The walk may follow this many references for each value of the pickle. A file in which values are
/// shared can have exponentially many paths.
const VISITS_PER_VALUE: u64 = 4;
/// It may always follow this many.
const MIN_VISITS: u64 = 65_536;
/// The most remarks that one walk makes; the rest is counted.
const MAX_REMARKS: usize = 100;

/// A tensor on the walk.
pub(crate) struct Found<'p> {
    /// What was rebuilt.
    pub tensor: Rebuilt<'p>,
    /// The value.
    pub value: Ref,
}

/// A walk, as an iterator of tensors whose names it can tell.
pub(crate) struct Walk<'c, 'p> {
    contents: &'c Contents<'p>,
    /// The value to begin with, until it is visited.
    start: Option<Ref>,
    /// Places of the first container to leave out, in ascending order.
    without: &'c [u32],
    /// Follow every reference once at most. Then no limit is needed, and containers that were met before
    /// are not walked again.
    once: bool,
    frames: Vec<Frame>,
    /// One bit for each value: whether it is on the path (or, with `once`, was met).
    marked: Vec<u64>,
    visits: u64,
    /// The name up to the innermost container, and then that of the tensor found last.
    name: String,
    /// Things that were skipped.
    pub remarks: Vec<String>,
    /// How many more there are.
    pub more_remarks: u64,
}

/// A container on the path.
struct Frame {
    container: Ref,
    /// The next place in it.
    next: u32,
    /// The length of its name.
    name: u32,
}

impl<'c, 'p> Walk<'c, 'p> {
    /// A walk through everything below `start`.
    pub fn new(contents: &'c Contents<'p>, start: Ref, without: &'c [u32]) -> Walk<'c, 'p> {
        Walk {
            contents,
            start: Some(start),
            without,
            once: false,
            frames: Vec::new(),
            marked: vec![0; contents.pickle.len().div_ceil(64)],
            visits: 0,
            name: String::new(),
            remarks: Vec::new(),
            more_remarks: 0,
        }
    }

    /// A walk on which each container and each tensor is met once, by the first path to it.
    pub fn once(contents: &'c Contents<'p>, start: Ref) -> Walk<'c, 'p> {
        Walk {
            once: true,
            ..Walk::new(contents, start, &[])
        }
    }

    /// The next tensor.
    ///
    /// # Errors
    /// The walk is over a limit. It names the limit.
    pub fn next(&mut self) -> Result<Option<Found<'p>>, String> {
        if let Some(start) = self.start.take()
            && let Some(found) = self.visit(start)
        {
            return Ok(Some(found));
        }
        while let Some(frame) = self.frames.last_mut() {
            let (container, place) = (frame.container, frame.next);
            self.name.truncate(frame.name as usize);
            if place >= self.contents.places(container).unwrap_or(0) {
                self.frames.pop();
                if !self.once {
                    self.mark(container, false);
                }
                continue;
            }
            frame.next += 1;
            if self.frames.len() == 1 && self.without.binary_search(&place).is_ok() {
                continue;
            }
            self.count()?;
            let Some(entry) = self.contents.entry(container, place) else {
                continue;
            };
            let key = match entry.key {
                Ok(key) => key,
                Err(odd) => {
                    self.remark_key(odd);
                    continue;
                }
            };
            let depth = self.frames.len();
            if depth <= MAX_DEPTH {
                if depth > 1 {
                    self.name.push('.');
                }
                self.name.push_str(&key.name());
            }
            if let Some(found) = self.visit(entry.value) {
                if depth > MAX_DEPTH && !self.once {
                    return Err(format!(
                        "a tensor below '{}' has more than {MAX_DEPTH} keys in its path; at most {MAX_DEPTH} are followed",
                        short(&self.name)
                    ));
                }
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Never returns this tensor; only for a walk that returns each once.
    pub fn skip(&mut self, tensor: Ref) {
        self.mark(tensor, true);
    }

    /// The name of the tensor that was found last; empty for a bare tensor.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the tensor that was found last is all there is, without a key.
    pub fn is_bare(&self) -> bool {
        self.frames.is_empty()
    }

    /// The path to the tensor that was found last, as Python would write it: `['a.b']['c'][0]`.
    pub fn path(&self) -> String {
        let mut path = String::new();
        for frame in self.frames.iter().take(MAX_DEPTH) {
            let place = frame.next.saturating_sub(1);
            let entry = self.contents.entry(frame.container, place);
            if let Some(key) = entry.and_then(|entry| entry.key.ok()) {
                let _: Result<(), _> = write!(path, "{key}");
            }
        }
        path
    }

    /// Returns a tensor, and enters a container.
    fn visit(&mut self, value: Ref) -> Option<Found<'p>> {
        if let Value::Tensor(tensor) = self.contents.pickle.get(value) {
            return (!self.once || self.mark(value, true)).then_some(Found { tensor, value });
        }
        self.contents.places(value)?;
        if self.mark(value, true) {
            self.frames.push(Frame {
                container: value,
                next: 0,
                name: u32::try_from(self.name.len()).unwrap_or(u32::MAX),
            });
        } else if !self.once {
            let at = self.path();
            self.remark(|| format!("{at} contains itself; the way back is skipped"));
        }
        None
    }

    /// Marks a value or removes its mark. Returns whether that changed anything.
    fn mark(&mut self, value: Ref, marked: bool) -> bool {
        let bit = 1u64 << (value.0 % 64);
        let Some(bits) = self.marked.get_mut(value.0 as usize / 64) else {
            return false;
        };
        let was = *bits & bit != 0;
        match marked {
            true => *bits |= bit,
            false => *bits &= !bit,
        }
        was != marked
    }

    fn count(&mut self) -> Result<(), String> {
        self.visits += 1;
        let values = self.contents.pickle.len() as u64;
        let limit = (values.saturating_mul(VISITS_PER_VALUE)).max(MIN_VISITS);
        match self.visits <= limit || self.once {
            true => Ok(()),
            false => Err(format!(
                "its values refer to each other in too many ways: the walk through its model stops after {limit} references, {VISITS_PER_VALUE} for each of its {values} values"
            )),
        }
    }

    fn remark_key(&mut self, odd: Ref) {
        let kind = kind(self.contents.pickle, odd);
        let at = match self.frames.len() {
            0 | 1 => "the model".into(),
            _ => self.outer_path(),
        };
        self.remark(|| {
            format!("an entry of {at} is skipped: its key is {kind}, and names are made of text and whole numbers")
        });
    }

    /// The path to the innermost container.
    fn outer_path(&self) -> String {
        let mut path = String::new();
        let outer = self.frames.len().saturating_sub(1).min(MAX_DEPTH);
        for frame in self.frames.iter().take(outer) {
            let place = frame.next.saturating_sub(1);
            let entry = self.contents.entry(frame.container, place);
            let key: Option<Key<'_>> = entry.and_then(|entry| entry.key.ok());
            if let Some(key) = key {
                let _: Result<(), _> = write!(path, "{key}");
            }
        }
        path
    }

    fn remark(&mut self, text: impl FnOnce() -> String) {
        match self.remarks.len() < MAX_REMARKS {
            true => self.remarks.push(text()),
            false => self.more_remarks = self.more_remarks.saturating_add(1),
        }
    }
}
