//! The stack, its marks, and the memo: what opcodes take from them and put there.

use super::arena::{Arena, Node, Run};
use super::budget::Exceeds;
use super::machine::Machine;
use super::text::{self, shown_line};
use super::{Ref, Wrong, opcode};

/// The most values and marks on the stack.
const MAX_STACK: usize = 1 << 25;

/// How an opcode grows a container.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Grow {
    Append,
    Add,
    SetItems,
}

impl Grow {
    /// What it does to something, for a message.
    fn does(self) -> &'static str {
        match self {
            Grow::Append => "appends to",
            Grow::Add => "adds to",
            Grow::SetItems => "sets items of",
        }
    }
}

impl Machine<'_, '_> {
    #[inline]
    pub(super) fn check_stack(&self) -> Result<(), Wrong> {
        match self.stack.len() + self.marks.len() < MAX_STACK {
            true => Ok(()),
            false => Err(Wrong::Exceeds(Exceeds {
                most: MAX_STACK,
                of: "references on its stack",
            })),
        }
    }

    #[inline]
    pub(super) fn push(&mut self, value: Ref) -> Result<(), Wrong> {
        self.check_stack()?;
        self.stack.push(value);
        Ok(())
    }

    #[inline]
    pub(super) fn add(&mut self, node: Node) -> Result<(), Wrong> {
        let value = self.arena.add(node)?;
        self.push(value)
    }

    /// Where the stack begins for the opcodes that need no mark: at the last one.
    #[inline]
    pub(super) fn floor(&self) -> usize {
        self.marks.last().map_or(0, |mark| *mark as usize)
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Result<Ref, Wrong> {
        match self.stack.len() > self.floor() {
            true => self.stack.pop().ok_or_else(underflow),
            false => Err(underflow()),
        }
    }

    #[inline]
    pub(super) fn top(&self) -> Result<Ref, Wrong> {
        match self.stack.last() {
            Some(top) if self.stack.len() > self.floor() => Ok(*top),
            _ => Err(underflow()),
        }
    }

    /// Takes the last mark away. Returns where the values above it begin.
    pub(super) fn pop_mark(&mut self) -> Result<usize, Wrong> {
        let mark = self.marks.pop();
        mark.map(|mark| mark as usize)
            .ok_or_else(|| Wrong::Damaged("has no MARK".into()))
    }

    pub(super) fn tuple_of(&mut self, n: usize) -> Result<(), Wrong> {
        let start = self
            .stack
            .len()
            .checked_sub(n)
            .filter(|s| *s >= self.floor());
        let start = start.ok_or_else(underflow)?;
        self.gather(start, Node::Tuple)
    }

    pub(super) fn marked(&mut self, node: fn(Run) -> Node) -> Result<(), Wrong> {
        let start = self.pop_mark()?;
        self.gather(start, node)
    }

    /// Makes one value of those from `start` of the stack on.
    pub(super) fn gather(&mut self, start: usize, node: fn(Run) -> Node) -> Result<(), Wrong> {
        let items = self.stack.get(start..).unwrap_or_default();
        let run = self.arena.new_run(items)?;
        self.stack.truncate(start);
        self.add(node(run))
    }

    pub(super) fn append_one(&mut self) -> Result<(), Wrong> {
        let value = self.pop()?;
        let to = self.top()?;
        self.arena.append(to, &[value], Grow::Append)
    }

    pub(super) fn set_one(&mut self) -> Result<(), Wrong> {
        let value = self.pop()?;
        let key = self.pop()?;
        let to = self.top()?;
        self.arena.append(to, &[key, value], Grow::SetItems)
    }

    pub(super) fn append_marked(&mut self, how: Grow) -> Result<(), Wrong> {
        let start = self.pop_mark()?;
        let items = self.stack.get(start..).unwrap_or_default();
        if how == Grow::SetItems {
            check_pairs(items.len())?;
        }
        let below = start.checked_sub(1).filter(|below| *below >= self.floor());
        let to = below.and_then(|below| self.stack.get(below));
        let to = *to.ok_or_else(underflow)?;
        self.arena.append(to, items, how)?;
        self.stack.truncate(start);
        Ok(())
    }

    pub(super) fn put(&mut self, opcode: u8) -> Result<(), Wrong> {
        let number = match opcode {
            opcode::MEMOIZE => self.memo.len() as u32,
            _ => self.memo_number(opcode)?,
        };
        let top = self.top()?;
        Ok(self.memo.put(number, top)?)
    }

    pub(super) fn get(&mut self, opcode: u8) -> Result<(), Wrong> {
        let number = self.memo_number(opcode)?;
        match self.memo.get(number) {
            Some(value) => self.push(value),
            None => Err(Wrong::Damaged(format!(
                "gets memo entry {number}, which was never put"
            ))),
        }
    }

    pub(super) fn memo_number(&mut self, opcode: u8) -> Result<u32, Wrong> {
        match opcode {
            opcode::BINPUT | opcode::BINGET => Ok(self.input.array::<1>()?[0].into()),
            opcode::LONG_BINPUT | opcode::LONG_BINGET => self.length4(),
            _ => {
                self.input.line(&mut self.line)?;
                let number = match text::decimal(&self.line) {
                    Some(Node::Int(n)) => u32::try_from(n).ok(),
                    _ => None,
                };
                number.ok_or_else(|| {
                    let line = shown_line(&self.line);
                    Wrong::Damaged(format!("has '{line}' as a number of the memo"))
                })
            }
        }
    }
}

impl Arena {
    /// Appends to a list, a set, a mapping (keys and values), or to the contents of an object.
    fn append(&mut self, to: Ref, items: &[Ref], how: Grow) -> Result<(), Wrong> {
        if items.is_empty() {
            return Ok(());
        }
        let node = match (self.node(to), how) {
            (Node::List(run), Grow::Append) => Node::List(self.extend(run, items)?),
            (Node::Set(run), Grow::Add) => Node::Set(self.extend(run, items)?),
            (Node::Mapping(run), Grow::SetItems) => Node::Mapping(self.extend(run, items)?),
            (Node::Object(at), _) => {
                let [name, arguments, state, from, len, room] = self.words(at);
                let run = Run::from_words([from, len, room]);
                let run = self.extend(run, items)?;
                let [from, len, room] = run.to_words();
                self.set_words(at, [name, arguments, state, from, len, room]);
                return Ok(());
            }
            _ => {
                let what = self.describe(to);
                return Err(Wrong::Damaged(format!("{} {what}", how.does())));
            }
        };
        self.set(to, node);
        Ok(())
    }
}

/// That `n` values are pairs.
pub(super) fn check_pairs(n: usize) -> Result<(), Wrong> {
    match n % 2 {
        0 => Ok(()),
        _ => Err(Wrong::Damaged(format!(
            "has {n} keys and values, not an even number"
        ))),
    }
}

fn underflow() -> Wrong {
    Wrong::Damaged("finds too few values on the stack".into())
}
