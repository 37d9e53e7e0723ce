//! The walk through a checkpoint's model: every tensor, with its name.

use super::super::describe::short;
use super::super::pickle::{Pickle, Rebuilt, Ref, Value};
use super::contents::Contents;
use super::key::Key;

/// The most keys in the path of a tensor.
pub(in super::super) const MAX_DEPTH: usize = 64;
/// The walk may follow this many references for each value of the pickle. A file in which values are
/// shared can have exponentially many paths.
const VISITS_PER_VALUE: u64 = 4;
/// It may always follow this many.
const MIN_VISITS: u64 = 65_536;
/// The most remarks that one walk makes; the rest is counted.
const MAX_REMARKS: usize = 100;

/// A tensor on the walk.
pub(in super::super) struct Found<'p> {
    /// What was rebuilt.
    pub tensor: Rebuilt<'p>,
    /// The value.
    pub value: Ref,
}

/// A walk: an iterator of tensors that knows their names.
pub(in super::super) struct Walk<'c, 'p> {
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
}

/// The most references that a walk through the values of a pickle may follow.
pub(super) fn max_visits(pickle: &Pickle) -> u64 {
    let values = pickle.len() as u64;
    values.saturating_mul(VISITS_PER_VALUE).max(MIN_VISITS)
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
            if let Err(odd) = entry.key {
                self.remark_key(odd);
                continue;
            }
            let depth = self.frames.len();
            if let Some(found) = self.visit(entry.value) {
                if depth > MAX_DEPTH && !self.once {
                    return Err(format!(
                        "a tensor below '{}' has more than {MAX_DEPTH} keys in its path, the most that a name can have; mount a part of the file",
                        short(&self.name())
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

    /// The name of the tensor that was found last; empty for a bare tensor. (It is made only now: the way
    /// to a tensor may lead past any number of long keys.)
    pub fn name(&self) -> String {
        let keys: Vec<_> = self.keys(self.frames.len()).map(|key| key.name()).collect();
        keys.join(".")
    }

    /// Whether the tensor that was found last is all there is, without a key.
    pub fn is_bare(&self) -> bool {
        self.frames.is_empty()
    }

    /// The path to the tensor that was found last, as Python would write it: `['a.b']['c'][0]`.
    pub fn path(&self) -> String {
        self.outer_path(self.frames.len())
    }

    /// The path to the container after that many others.
    fn outer_path(&self, depth: usize) -> String {
        self.keys(depth).map(|key| key.to_string()).collect()
    }

    /// The keys on the path, those of that many containers; no more than a name can have.
    fn keys(&self, depth: usize) -> impl Iterator<Item = Key<'p>> + '_ {
        let frames = self.frames.iter().take(depth.min(MAX_DEPTH));
        frames.filter_map(|frame| {
            let place = frame.next.saturating_sub(1);
            self.contents.entry(frame.container, place)?.key.ok()
        })
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
            });
        } else if !self.once {
            self.remark(|walk| {
                let at = walk.path();
                format!("{at} contains itself; the way back is skipped")
            });
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
        let values = self.contents.pickle.len();
        let limit = max_visits(self.contents.pickle);
        match self.visits <= limit || self.once {
            true => Ok(()),
            false => Err(format!(
                "its values refer to each other in too many ways: the walk through its model stops after {limit} references, and it has {values} values; mount a part of the file"
            )),
        }
    }

    fn remark_key(&mut self, odd: Ref) {
        self.remark(|walk| {
            let kind = walk.contents.pickle.describe(odd);
            let at = match walk.frames.len() {
                0 | 1 => "the model".into(),
                depth => walk.outer_path(depth - 1),
            };
            format!("an entry of {at} is skipped: its key is {kind}, and names are made of text and whole numbers")
        });
    }

    /// Adds a remark, which is only made if there is room.
    fn remark(&mut self, text: impl FnOnce(&Self) -> String) {
        match self.remarks.len() < MAX_REMARKS {
            true => self.remarks.push(text(self)),
            false => self.more_remarks = self.more_remarks.saturating_add(1),
        }
    }
}
