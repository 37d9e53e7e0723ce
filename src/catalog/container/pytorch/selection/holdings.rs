//! How many tensors each container holds, at any depth.

use super::super::pickle::{Ref, Value};
use super::super::tensor;
use super::contents::Contents;

/// Tensors at any depth below a value, counted once for each path to them; at most 2^64 − 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in super::super) struct Held {
    pub tensors: u64,
    pub bytes: u64,
}

impl Held {
    fn add(&mut self, other: Held) {
        self.tensors = self.tensors.saturating_add(other.tensors);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// What all containers below a root hold. Each is looked at once, however many paths lead to it, and
/// those that contain each other hold the same: all that leads out of them.
pub(in super::super) struct Holdings<'c, 'p> {
    contents: &'c Contents<'p>,
    /// For each value of the arena: 0 if it was not met; while it is open, the number of its visit; then
    /// [`DONE`] and an index into `held`.
    state: Vec<u32>,
    /// The first is that of containers without tensors.
    held: Vec<Held>,
}

/// Marks a state as final. The arena has at most 2^24 values.
const DONE: u32 = 1 << 31;

/// A container that is being looked at. The walk keeps these on a list of its own, because a file may
/// nest containers millions deep.
struct Frame {
    container: Ref,
    /// The next place in it.
    next: u32,
    /// The lowest number of an open container that it leads to.
    low: u32,
    /// What it holds so far, as an index into `held`; 0 for nothing.
    held: u32,
}

impl<'c, 'p> Holdings<'c, 'p> {
    /// Looks at everything below `root`. Linear in the size of the pickle.
    pub fn below(contents: &'c Contents<'p>, root: Ref) -> Holdings<'c, 'p> {
        let mut holdings = Holdings {
            contents,
            state: vec![0; contents.pickle.len()],
            held: vec![Held::default()],
        };
        holdings.visit(root);
        holdings
    }

    /// What a value holds. A tensor holds itself.
    pub fn of(&self, value: Ref) -> Held {
        if let Value::Tensor(tensor) = self.contents.pickle.get(value) {
            return Held {
                tensors: 1,
                bytes: tensor::bytes(self.contents.pickle, &tensor),
            };
        }
        let state = self.state.get(value.0 as usize).copied().unwrap_or(0);
        match state & DONE {
            0 => Held::default(),
            _ => self.held_at(state & !DONE),
        }
    }

    /// Whether a value is a tensor, or holds one.
    pub fn any(&self, value: Ref) -> bool {
        matches!(self.contents.pickle.get(value), Value::Tensor(_)) || self.of(value).tensors > 0
    }

    fn held_at(&self, index: u32) -> Held {
        self.held.get(index as usize).copied().unwrap_or_default()
    }

    /// Tarjan's algorithm for strongly connected components, with sums.
    fn visit(&mut self, root: Ref) {
        let mut frames = Vec::new();
        let mut open = Vec::new();
        let mut visits = 0;
        self.enter(root, &mut frames, &mut open, &mut visits);
        while let Some(frame) = frames.last_mut() {
            let (container, place) = (frame.container, frame.next);
            if place < self.contents.places(container).unwrap_or(0) {
                frame.next += 1;
                let entry = self.contents.entry(container, place);
                let Some(value) = entry.filter(|e| e.key.is_ok()).map(|e| e.value) else {
                    continue;
                };
                match self.state.get(value.0 as usize).copied().unwrap_or(0) {
                    0 if self.contents.places(value).is_some() => {
                        self.enter(value, &mut frames, &mut open, &mut visits);
                    }
                    state if state & DONE != 0 || state == 0 => {
                        let held = self.of(value);
                        frame.held = self.sum(frame.held, held);
                    }
                    visit => frame.low = frame.low.min(visit),
                }
                continue;
            }
            let (low, held) = (frame.low, frame.held);
            frames.pop();
            if self.state.get(container.0 as usize) == Some(&low) {
                while let Some(member) = open.pop() {
                    self.set(member, DONE | held);
                    if member == container {
                        break;
                    }
                }
            }
            if let Some(parent) = frames.last_mut() {
                parent.low = parent.low.min(low);
                parent.held = self.sum(parent.held, self.held_at(held));
            }
        }
    }

    fn enter(
        &mut self,
        container: Ref,
        frames: &mut Vec<Frame>,
        open: &mut Vec<Ref>,
        visits: &mut u32,
    ) {
        if self.contents.places(container).is_none() {
            return;
        }
        *visits += 1;
        self.set(container, *visits);
        open.push(container);
        frames.push(Frame {
            container,
            next: 0,
            low: *visits,
            held: 0,
        });
    }

    /// Adds to the sum at an index, and returns the sum's index.
    fn sum(&mut self, index: u32, more: Held) -> u32 {
        if more == Held::default() {
            return index;
        }
        if index == 0 {
            self.held.push(more);
            return (self.held.len() - 1) as u32;
        }
        if let Some(held) = self.held.get_mut(index as usize) {
            held.add(more);
        }
        index
    }

    fn set(&mut self, value: Ref, state: u32) {
        if let Some(place) = self.state.get_mut(value.0 as usize) {
            *place = state;
        }
    }
}
