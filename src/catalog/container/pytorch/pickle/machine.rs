//! The machine: a stack, its marks, and the memo.

use std::collections::HashMap;

use super::arena::{Arena, Node, Run};
use super::budget::{Budget, Exceeds};
use super::input::Input;
use super::memo::Memo;
use super::payload::Payloads;
use super::scalars::Encoding;
use super::stack::{Grow, check_pairs};
use super::{Ref, Wrong, opcode, text};
use crate::text::thousands;

/// The newest protocol.
const MAX_PROTOCOL: u8 = 5;

/// A pickle that is damaged in more places than this is not run to its end.
const MOST_DAMAGES: u32 = 10_000;

/// What is wrong with an opcode, and where it is.
struct Damage {
    wrong: Wrong,
    at: u64,
    opcode: Option<u8>,
}

/// A machine that runs one pickle.
pub(super) struct Machine<'c, 'f> {
    pub input: Input<'c, 'f>,
    pub arena: Arena,
    /// Names that were met: see `global_of`.
    pub names: HashMap<Box<str>, Ref>,
    /// The last name, with what it is remembered by.
    pub full: String,
    pub payloads: Payloads,
    /// Where the opcode is that is being run.
    pub at: u64,
    opcode: Option<u8>,
    pub stack: Vec<Ref>,
    /// Where each MARK was set.
    pub marks: Vec<u32>,
    /// What was wrong first.
    first: Option<Damage>,
    /// How often something was wrong.
    damages: u32,
    pub memo: Memo,
    /// The last line that was read.
    pub line: Vec<u8>,
}

impl<'c, 'f> Machine<'c, 'f> {
    /// A machine whose values may use up the budget.
    pub fn new(input: Input<'c, 'f>, budget: Budget) -> Machine<'c, 'f> {
        Machine {
            at: input.position(),
            input,
            arena: Arena::new(budget),
            names: HashMap::new(),
            full: String::new(),
            payloads: Payloads::default(),
            opcode: None,
            stack: Vec::new(),
            marks: Vec::new(),
            first: None,
            damages: 0,
            memo: Memo::default(),
            line: Vec::new(),
        }
    }

    /// Runs as far as STOP. Returns the value that the pickle stands for.
    pub fn run(&mut self) -> Result<Ref, Wrong> {
        loop {
            self.at = self.input.position();
            self.opcode = self.input.next()?;
            match self.opcode {
                None => self.go_on(Wrong::NoStop)?,
                Some(opcode::STOP) => break,
                Some(opcode) => {
                    if let Err(wrong) = self.step(opcode) {
                        self.go_on(wrong)?;
                    }
                }
            }
        }
        let root = self.pop();
        match self.first.take() {
            None => root,
            Some(first) => Err(self.go_back(first)),
        }
    }

    /// Notes what is wrong, and goes on if what follows can still be told apart: a hostile pickle is
    /// called that wherever it is damaged.
    fn go_on(&mut self, wrong: Wrong) -> Result<(), Wrong> {
        let is_known = self.opcode.is_some_and(|byte| opcode::name(byte).is_some());
        let goes_on = is_known && matches!(wrong, Wrong::Damaged(_) | Wrong::Refused(_));
        self.damages += 1;
        let (at, opcode) = (self.at, self.opcode);
        let first = self.first.take().unwrap_or(Damage { wrong, at, opcode });
        if !goes_on || self.damages > MOST_DAMAGES {
            return Err(self.go_back(first));
        }
        self.first = Some(first);
        // In place of what the opcode would have left.
        self.add(Node::None)
    }

    /// The first damage, for [`Machine::explain`].
    fn go_back(&mut self, first: Damage) -> Wrong {
        self.at = first.at;
        self.opcode = first.opcode;
        first.wrong
    }

    /// What is wrong, as a sentence about the file. Bytes are those of `of`.
    pub fn explain(&self, wrong: Wrong, of: &str) -> String {
        let opcode = match self.opcode {
            Some(byte) => opcode::name(byte).map_or_else(|| format!("{byte:#04x}"), String::from),
            None => "the next opcode".into(),
        };
        let here = format!("{opcode} at byte {} of {of}", self.at);
        match wrong {
            Wrong::Damaged(how) => format!("its pickle is damaged: {here} {how}"),
            Wrong::Refused(why) => format!("its pickle cannot be read: {here} {why}"),
            Wrong::Exceeds(Exceeds { most, of }) => format!(
                "its pickle is too large: {here} makes more than {} {of}, the most that stfs keeps",
                thousands(most as u64)
            ),
            Wrong::NoStop => format!(
                "its pickle has no end: STOP is missing at byte {} of {of}; the file is cut short or damaged, download it again",
                self.at
            ),
            Wrong::Unavailable(sentence) => sentence,
            Wrong::Failed(error) => error.without_location(),
        }
    }

    fn step(&mut self, opcode: u8) -> Result<(), Wrong> {
        match opcode {
            opcode::PROTO => self.protocol()?,
            opcode::FRAME => {
                let length = u64::from_le_bytes(self.input.array()?);
                self.input.hold(length)?;
            }
            opcode::MARK => {
                self.check_stack()?;
                self.marks.push(self.stack.len() as u32);
            }
            opcode::POP => {
                // Python keeps marks apart as well: it takes one away if it lies on top.
                if self.marks.last() == Some(&(self.stack.len() as u32)) {
                    self.marks.pop();
                } else {
                    self.pop()?;
                }
            }
            opcode::POP_MARK => {
                let start = self.pop_mark()?;
                self.stack.truncate(start);
            }
            opcode::DUP => {
                let top = self.top()?;
                self.push(top)?;
            }
            opcode::NONE => self.add(Node::None)?,
            opcode::NEWTRUE => self.add(Node::Bool(true))?,
            opcode::NEWFALSE => self.add(Node::Bool(false))?,
            opcode::BININT => {
                let n = i32::from_le_bytes(self.input.array()?);
                self.add(Node::Int(n.into()))?;
            }
            opcode::BININT1 => {
                let [n] = self.input.array()?;
                self.add(Node::Int(n.into()))?;
            }
            opcode::BININT2 => {
                let n = u16::from_le_bytes(self.input.array()?);
                self.add(Node::Int(n.into()))?;
            }
            opcode::LONG1 => {
                let n = self.length1()?;
                let node = text::long(self.input.take(n)?);
                self.add(node)?;
            }
            opcode::LONG4 => self.long4()?,
            opcode::BINFLOAT => {
                let v = f64::from_be_bytes(self.input.array()?);
                self.add(Node::Float(v))?;
            }
            opcode::INT | opcode::LONG | opcode::FLOAT => self.number(opcode)?,
            opcode::STRING | opcode::UNICODE => self.escaped(opcode)?,
            opcode::SHORT_BINSTRING | opcode::SHORT_BINUNICODE => {
                let n = self.length1()?;
                self.string(n, Encoding::Text)?;
            }
            opcode::BINUNICODE => {
                let n = self.length4()?;
                self.string(n.into(), Encoding::Text)?;
            }
            opcode::BINSTRING => {
                let n = self.signed_length()?;
                self.string(n, Encoding::Text)?;
            }
            opcode::BINUNICODE8 => {
                let n = u64::from_le_bytes(self.input.array()?);
                self.string(n, Encoding::Text)?;
            }
            opcode::SHORT_BINBYTES => {
                let n = self.length1()?;
                self.string(n, Encoding::Bytes)?;
            }
            opcode::BINBYTES => {
                let n = self.length4()?;
                self.string(n.into(), Encoding::Bytes)?;
            }
            opcode::BINBYTES8 | opcode::BYTEARRAY8 => {
                let n = u64::from_le_bytes(self.input.array()?);
                self.string(n, Encoding::Bytes)?;
            }
            opcode::EMPTY_TUPLE => self.add(Node::Tuple(Run::default()))?,
            opcode::EMPTY_LIST => self.add(Node::List(Run::default()))?,
            opcode::EMPTY_DICT => self.add(Node::Mapping(Run::default()))?,
            opcode::EMPTY_SET => self.add(Node::Set(Run::default()))?,
            opcode::TUPLE1 => self.tuple_of(1)?,
            opcode::TUPLE2 => self.tuple_of(2)?,
            opcode::TUPLE3 => self.tuple_of(3)?,
            opcode::TUPLE => self.marked(Node::Tuple)?,
            opcode::LIST => self.marked(Node::List)?,
            opcode::FROZENSET => self.marked(Node::Set)?,
            opcode::DICT => {
                let start = self.marks.last().map_or(0, |mark| *mark as usize);
                check_pairs(self.stack.len().saturating_sub(start))?;
                self.marked(Node::Mapping)?;
            }
            opcode::APPEND => self.append_one()?,
            opcode::SETITEM => self.set_one()?,
            opcode::APPENDS => self.append_marked(Grow::Append)?,
            opcode::ADDITEMS => self.append_marked(Grow::Add)?,
            opcode::SETITEMS => self.append_marked(Grow::SetItems)?,
            opcode::PUT | opcode::BINPUT | opcode::LONG_BINPUT | opcode::MEMOIZE => {
                self.put(opcode)?;
            }
            opcode::GET | opcode::BINGET | opcode::LONG_BINGET => self.get(opcode)?,
            _ => self.step_object(opcode)?,
        }
        Ok(())
    }

    /// The opcodes that Python imports and calls for.
    fn step_object(&mut self, opcode: u8) -> Result<(), Wrong> {
        let value = match opcode {
            opcode::GLOBAL => self.named()?,
            opcode::STACK_GLOBAL => {
                let name = self.pop()?;
                let module = self.pop()?;
                self.stack_global(module, name)?
            }
            opcode::REDUCE | opcode::NEWOBJ => {
                let arguments = self.pop()?;
                let callable = self.pop()?;
                self.call(callable, arguments)?
            }
            opcode::NEWOBJ_EX => {
                // Keywords hold nothing that is needed.
                self.pop()?;
                let arguments = self.pop()?;
                let callable = self.pop()?;
                self.call(callable, arguments)?
            }
            opcode::INST => {
                let class = self.named()?;
                let start = self.pop_mark()?;
                self.instance(class, start)?
            }
            opcode::OBJ => {
                let start = self.pop_mark()?;
                let Some(&class) = self.stack.get(start) else {
                    return Err(Wrong::Damaged("has no class".into()));
                };
                let value = self.instance(class, start + 1)?;
                self.stack.truncate(start);
                value
            }
            opcode::BUILD => {
                let state = self.pop()?;
                let value = self.top()?;
                self.build(value, state);
                return Ok(());
            }
            opcode::BINPERSID => {
                let id = self.pop()?;
                self.persistent(id)?
            }
            opcode::PERSID => {
                self.input.line(&mut self.line)?;
                return Err(Wrong::Refused("has the storage's id as text, from which it cannot be read; torch cannot load the file either: save it with pickle_protocol=2".into()));
            }
            opcode::EXT1 | opcode::EXT2 | opcode::EXT4 => {
                let length = match opcode {
                    opcode::EXT1 => 1,
                    opcode::EXT2 => 2,
                    _ => 4,
                };
                self.input.take(length)?;
                return Err(Wrong::Refused(
                    "refers to a registry of the process that wrote it, which is not in the file"
                        .into(),
                ));
            }
            opcode::NEXT_BUFFER | opcode::READONLY_BUFFER => {
                return Err(Wrong::Refused(
                    "refers to bytes that are not in the file".into(),
                ));
            }
            _ => {
                return Err(Wrong::Damaged(
                    "is not an opcode; download the file again".into(),
                ));
            }
        };
        self.push(value)
    }

    /// An object of the arguments from `start` of the stack on.
    fn instance(&mut self, class: Ref, start: usize) -> Result<Ref, Wrong> {
        let items = self.stack.get(start..).unwrap_or_default();
        let run = self.arena.new_run(items)?;
        let arguments = self.arena.add(Node::Tuple(run))?;
        self.stack.truncate(start);
        self.call(class, arguments)
    }

    fn protocol(&mut self) -> Result<(), Wrong> {
        match self.input.array()? {
            [0..=MAX_PROTOCOL] => Ok(()),
            [other] => Err(Wrong::Refused(format!(
                "is of protocol {other}; stfs reads 0 to {MAX_PROTOCOL}: save it with pickle_protocol=2"
            ))),
        }
    }
}
