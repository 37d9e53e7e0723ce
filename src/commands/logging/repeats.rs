//! Repeated messages are counted instead of written: a reader that goes through a truncated file must not
//! fill the disk with one message about each place.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use log::Level;

/// How long messages of a kind are counted before the count is written.
const INTERVAL: Duration = Duration::from_secs(60);

/// Different messages of a kind that are written before the rest is counted.
const FEW: u32 = 4;

/// Kinds that are told apart at a time. Further ones are one kind together, which bounds the memory, the
/// search, and what is written in an interval, whatever happens.
const KINDS: usize = 64;

/// A line for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) level: Level,
    pub(super) text: String,
}

/// Messages that differ in their numbers alone. A file's name is part of the kind, numbers in it included.
struct Kind {
    /// `None`: of all messages that are too many to be told apart.
    key: Option<u64>,
    /// The last message.
    last: Line,
    /// When the first message, or the count, was last written.
    written: Instant,
    /// Messages that were written.
    in_full: u32,
    /// Messages that were not.
    counted: u64,
    /// Whether they differ.
    differ: bool,
}

/// The kinds of the last interval, in the order in which they were written.
pub(super) struct Repeats {
    kinds: VecDeque<Kind>,
}

impl Repeats {
    pub(super) fn new() -> Repeats {
        Repeats {
            kinds: VecDeque::with_capacity(KINDS + 1),
        }
    }

    /// Takes a message and returns what to write now: counts that are due, and the message itself
    /// unless it is one too many of its kind.
    pub(super) fn add(&mut self, level: Level, text: &str, now: Instant) -> Vec<Line> {
        let mut lines = self.due(now);
        let mut key = Some(key(level, text));
        let is_full = self.kinds.len() >= KINDS;
        if is_full && !self.kinds.iter().any(|k| k.key == key) {
            key = None;
        }
        let line = Line {
            level,
            text: text.to_string(),
        };
        match self.kinds.iter_mut().find(|k| k.key == key) {
            Some(kind) => lines.extend(kind.again(line)),
            None => {
                lines.push(line.clone());
                self.kinds.push_back(Kind {
                    key,
                    last: line,
                    written: now,
                    in_full: 1,
                    counted: 0,
                    differ: false,
                });
            }
        }
        lines
    }

    /// All counts that have not been written; the messages are forgotten.
    pub(super) fn drain(&mut self) -> Vec<Line> {
        self.kinds.drain(..).filter_map(|k| k.count()).collect()
    }

    /// When the next count is to be written.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let counting = self.kinds.iter().find(|k| k.counted > 0);
        counting.map(|k| k.written + INTERVAL)
    }

    /// The counts of kinds whose interval is over. Those that did not repeat are forgotten.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Line> {
        let mut lines = Vec::new();
        while let Some(first) = self.kinds.front()
            && now.duration_since(first.written) >= INTERVAL
            && let Some(mut kind) = self.kinds.pop_front()
        {
            if let Some(line) = kind.count() {
                lines.push(line);
                (kind.counted, kind.differ, kind.written) = (0, false, now);
                self.kinds.push_back(kind);
            }
        }
        lines
    }
}

impl Kind {
    /// One more message. Returned if it is to be written: one of the first few, and not the last one again.
    fn again(&mut self, line: Line) -> Option<Line> {
        let same = self.last == line;
        self.last = line;
        if !same && self.in_full < FEW {
            self.in_full += 1;
            return Some(self.last.clone());
        }
        self.counted += 1;
        self.differ |= !same;
        None
    }

    fn count(&self) -> Option<Line> {
        let last = &self.last.text;
        let text = match (self.counted, self.key) {
            (0, _) => return None,
            (n, None) => format!("{n} more messages of other kinds, the last: {last}"),
            (n, _) if self.differ => format!("{n} more like this: {last}"),
            (1, _) => format!("repeated once: {last}"),
            (n, _) => format!("repeated {n} times: {last}"),
        };
        Some(Line {
            level: self.last.level,
            text,
        })
    }
}

/// What a message has in common with others that differ in their numbers alone.
fn key(level: Level, text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    level.hash(&mut hasher);
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let before = at.checked_sub(1).and_then(|i| bytes.get(i));
        // Numbers that stand alone: not those in a file's or a tensor's name.
        let starts = matches!(before, None | Some(b' ' | b'(' | b'[' | b'='));
        match number(&bytes[at..]) {
            Some(len) if starts => {
                hasher.write_u8(b'#');
                at += len;
            }
            _ => {
                hasher.write_u8(byte);
                at += 1;
            }
        }
    }
    hasher.finish()
}

/// The length of a number at the start of `text`, if it ends where a word does.
fn number(text: &[u8]) -> Option<usize> {
    let is_digit = |i: usize| text.get(i).is_some_and(u8::is_ascii_digit);
    let mut len = 0;
    while is_digit(len)
        || len > 0 && matches!(text.get(len), Some(b',' | b'.')) && is_digit(len + 1)
    {
        len += 1;
    }
    let ends = match text.get(len) {
        Some(b'.') => matches!(text.get(len + 1), None | Some(b' ')),
        after => matches!(after, None | Some(b' ' | b',' | b';' | b':' | b')' | b']')),
    };
    (len > 0 && ends).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: Vec<Line>) -> Vec<String> {
        lines.into_iter().map(|l| l.text).collect()
    }

    #[test]
    fn alternating_messages_are_each_written_once_per_interval() {
        let (mut repeats, start) = (Repeats::new(), Instant::now());
        let mut written = Vec::new();
        for i in 0..1000 {
            for text in ["a", "b", "c"] {
                // 1000 rounds in two intervals less a little.
                let now = start + INTERVAL * 2 * i / 1001;
                written.extend(texts(repeats.add(Level::Warn, text, now)));
            }
        }
        let counted = |n: u32, text| format!("repeated {n} times: {text}");
        // The count of the first interval is written by the message that comes after it.
        assert_eq!(
            written,
            ["a", "b", "c"]
                .map(String::from)
                .into_iter()
                .chain(["a", "b", "c"].map(|t| counted(500, t)))
                .collect::<Vec<_>>()
        );
        let rest = texts(repeats.drain());
        assert_eq!(rest, ["a", "b", "c"].map(|t| counted(499, t)));
        assert!(repeats.drain().is_empty());
    }

    #[test]
    fn a_message_that_comes_again_after_the_interval_is_written_again() {
        let (mut repeats, start) = (Repeats::new(), Instant::now());
        for at in [start, start + INTERVAL, start + INTERVAL * 5] {
            assert_eq!(texts(repeats.add(Level::Info, "a", at)), ["a"]);
        }
        let now = start + INTERVAL * 5;
        assert_eq!(repeats.next_due(), None);
        assert!(texts(repeats.add(Level::Info, "a", now)).is_empty());
        assert_eq!(repeats.next_due(), Some(now + INTERVAL));
        // Another level is another message.
        assert_eq!(texts(repeats.add(Level::Error, "a", now)), ["a"]);
        // A count is due without a further message.
        assert_eq!(texts(repeats.due(now + INTERVAL)), ["repeated once: a"]);
        assert!(repeats.drain().is_empty());
    }

    #[test]
    fn messages_that_differ_in_their_numbers_are_one_kind_for_each_file() {
        let (mut repeats, now) = (Repeats::new(), Instant::now());
        let mut written = Vec::new();
        for i in 0..10_000u64 {
            for file in ["/m/model-1-of-2.safetensors", "/m/model-2-of-2.safetensors"] {
                let needs = 65_624 + i * 4096;
                let text = format!("{file}: truncated: needs {needs} bytes, has 9; restore it");
                written.extend(texts(repeats.add(Level::Warn, &text, now)));
            }
        }
        assert_eq!(written.len(), 2 * FEW as usize);
        assert!(written[0].contains("65624") && written[3].contains("2-of-2"));
        let counts = texts(repeats.drain());
        let [one, two] = &counts[..] else {
            panic!("{counts:?}")
        };
        let start = format!("{} more like this: /m/model-1-of-2", 10_000 - FEW);
        assert!(one.starts_with(&start), "{one}");
        assert!(two.contains("needs 41021528 bytes"), "{two}");
    }

    #[test]
    fn numbers_are_told_from_names() {
        let same = |a, b| key(Level::Info, a) == key(Level::Info, b);
        for (a, b) in [
            ("7 of 9", "12 of 1,000"),
            ("at 16.1 GB (os error 5).", "at 2 GB (os error 116)."),
            ("x=1", "x=22"),
            ("shape [1, 2]", "shape [30, 4]"),
        ] {
            assert!(same(a, b), "{a} {b}");
        }
        for (a, b) in [
            ("/a/1: x", "/a/2: x"),
            ("/a b/1.gguf: x", "/a b/2.gguf: x"),
            ("tensor 'layers.1.w'", "tensor 'layers.2.w'"),
            ("tensor '1'", "tensor '2'"),
            ("m 1.gguf", "m 2.gguf"),
            ("é 1", "e 1"),
        ] {
            assert!(!same(a, b), "{a} {b}");
        }
    }

    #[test]
    fn memory_and_lines_are_bounded_and_no_count_is_lost() {
        let (mut repeats, now) = (Repeats::new(), Instant::now());
        repeats.add(Level::Info, "first", now);
        repeats.add(Level::Info, "first", now);
        let lines: Vec<String> = (0..10_000)
            .flat_map(|i| texts(repeats.add(Level::Info, &format!("a{i}"), now)))
            .collect();
        assert_eq!(lines.len(), KINDS - 1 + FEW as usize);
        assert_eq!(repeats.kinds.len(), KINDS + 1);
        let counts = texts(repeats.drain());
        let others = 10_000 - (KINDS - 1) - FEW as usize;
        assert_eq!(
            counts,
            [
                "repeated once: first".to_string(),
                format!("{others} more messages of other kinds, the last: a9999"),
            ]
        );
    }
}
