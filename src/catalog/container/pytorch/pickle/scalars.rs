//! Numbers and strings.

use super::super::describe::SHOWN;
use super::arena::{MAX_KEPT, Node, Span};
use super::input::MAX_LINE;
use super::machine::Machine;
use super::text::{self, shown_line};
use super::{Ref, Wrong, opcode};

/// How much of a text that is not kept is, for messages: one character more than they show.
const HEAD: u64 = 4 * (SHOWN as u64 + 1);

/// How a string is encoded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Bytes,
    /// UTF-8, or Python 2's bytes that are text where they can be.
    Text,
}

impl Machine<'_, '_> {
    pub(super) fn length1(&mut self) -> Result<u64, Wrong> {
        Ok(self.input.array::<1>()?[0].into())
    }

    pub(super) fn length4(&mut self) -> Result<u32, Wrong> {
        Ok(u32::from_le_bytes(self.input.array()?))
    }

    pub(super) fn signed_length(&mut self) -> Result<u64, Wrong> {
        let length = i32::from_le_bytes(self.input.array()?);
        u64::try_from(length)
            .map_err(|_| Wrong::Damaged(format!("has {length} as the length of its value")))
    }

    pub(super) fn long4(&mut self) -> Result<(), Wrong> {
        let n = self.signed_length()?;
        let node = match n <= MAX_KEPT {
            true => text::long(self.input.take(n)?),
            false => {
                self.input.skip(n)?;
                Node::BigInt
            }
        };
        self.add(node)
    }

    /// A string of `n` bytes.
    pub(super) fn string(&mut self, n: u64, encoding: Encoding) -> Result<(), Wrong> {
        let mut whole = true;
        let mut take = n;
        if n > MAX_KEPT {
            self.input.hold(n)?;
            whole = false;
            // What a message could show.
            take = match encoding {
                Encoding::Bytes => 0,
                Encoding::Text => HEAD,
            };
        }
        let bytes = self.input.take(take)?;
        let node = match (str::from_utf8(bytes), whole) {
            (Ok(text), true) if encoding == Encoding::Text => {
                Node::Text(self.arena.keep_text(text)?)
            }
            (_, true) => Node::Bytes(self.arena.keep_bytes(bytes)?),
            (_, false) => {
                let head = self.arena.keep_text(valid_start(bytes))?;
                self.input.skip(n - take)?;
                return self.skipped(n, head);
            }
        };
        self.add(node)
    }

    /// INT, LONG, FLOAT: a number in decimal digits.
    pub(super) fn number(&mut self, opcode: u8) -> Result<(), Wrong> {
        let length = self.input.line(&mut self.line)?;
        let line = self.line.as_slice();
        let node = match (opcode, line) {
            (opcode::LONG, _) if length > MAX_LINE as u64 => Some(Node::BigInt),
            (opcode::INT, b"00") => Some(Node::Bool(false)),
            (opcode::INT, b"01") => Some(Node::Bool(true)),
            (opcode::FLOAT, line) => {
                let text = str::from_utf8(line).ok();
                text.and_then(|text| text.trim().parse().ok())
                    .map(Node::Float)
            }
            (_, line) => text::decimal(line.strip_suffix(b"L").unwrap_or(line)),
        };
        let wrong = || Wrong::Damaged(format!("has '{}' as a number", shown_line(line)));
        let node = node.ok_or_else(wrong)?;
        self.add(node)
    }

    /// STRING, UNICODE: a line with escapes.
    pub(super) fn escaped(&mut self, opcode: u8) -> Result<(), Wrong> {
        let length = self.input.line(&mut self.line)?;
        let line = self.line.as_slice();
        if length > MAX_LINE as u64 {
            let head = self.arena.keep_text(valid_start(line))?;
            return self.skipped(length, head);
        }
        let decoded = match opcode {
            opcode::STRING => text::quoted(line),
            _ => text::raw_unicode(line),
        };
        let Some(bytes) = decoded else {
            let line = shown_line(line);
            return Err(Wrong::Damaged(format!("has '{line}' as a string")));
        };
        if bytes.len() as u64 > MAX_KEPT {
            let head = self.arena.keep_text(valid_start(&bytes))?;
            return self.skipped(bytes.len() as u64, head);
        }
        let node = match str::from_utf8(&bytes) {
            Ok(text) => Node::Text(self.arena.keep_text(text)?),
            Err(_) => Node::Bytes(self.arena.keep_bytes(&bytes)?),
        };
        self.add(node)
    }

    /// Text that is not kept but for its beginning.
    fn skipped(&mut self, length: u64, head: Span) -> Result<(), Wrong> {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        self.add(Node::Skipped(length, head))
    }

    /// The name in two lines.
    pub(super) fn named(&mut self) -> Result<Ref, Wrong> {
        let mut line = std::mem::take(&mut self.line);
        self.input.line(&mut line)?;
        let dot = line.len();
        self.input.line(&mut self.line)?;
        line.extend_from_slice(&self.line);
        let (module, name) = line.split_at(dot);
        let value = self.global(
            &String::from_utf8_lossy(module),
            &String::from_utf8_lossy(name),
        );
        self.line = line;
        value
    }
}

/// The beginning that is valid UTF-8, as long as a message shows it.
fn valid_start(bytes: &[u8]) -> &str {
    let head = bytes.get(..HEAD as usize).unwrap_or(bytes);
    let chunk = head.utf8_chunks().next();
    chunk.map_or("", |chunk| chunk.valid())
}
