//! Repeated messages are counted instead of written: a reader that retries a truncated file in a loop
//! must not fill the disk with one message.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use log::Level;

/// How long a message is counted before the count is written.
const INTERVAL: Duration = Duration::from_secs(60);

/// Messages counted at a time. If more alternate, the oldest is reported and forgotten, which bounds the
/// memory and the search.
const TRACKED: usize = 64;

/// A line for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) level: Level,
    pub(super) text: String,
}

struct Message {
    line: Line,
    /// When it, or its count, was last written.
    written: Instant,
    repeats: u64,
}

/// The messages of the last interval, in the order in which they were written.
pub(super) struct Repeats {
    messages: VecDeque<Message>,
}

impl Repeats {
    pub(super) fn new() -> Repeats {
        Repeats {
            messages: VecDeque::with_capacity(TRACKED),
        }
    }

    /// Takes a message and returns what to write now: counts that are due, and the message itself
    /// unless it was written within the interval.
    pub(super) fn add(&mut self, level: Level, text: &str, now: Instant) -> Vec<Line> {
        let mut lines = self.due(now);
        let same = |m: &&mut Message| m.line.level == level && m.line.text == text;
        if let Some(message) = self.messages.iter_mut().find(same) {
            message.repeats += 1;
            return lines;
        }
        if self.messages.len() == TRACKED {
            lines.extend(self.messages.pop_front().and_then(|m| m.count()));
        }
        let line = Line {
            level,
            text: text.to_string(),
        };
        lines.push(line.clone());
        self.messages.push_back(Message {
            line,
            written: now,
            repeats: 0,
        });
        lines
    }

    /// All counts that have not been written; the messages are forgotten.
    pub(super) fn drain(&mut self) -> Vec<Line> {
        self.messages.drain(..).filter_map(|m| m.count()).collect()
    }

    /// The counts of messages whose interval is over. Those that did not repeat are forgotten.
    fn due(&mut self, now: Instant) -> Vec<Line> {
        let mut lines = Vec::new();
        while let Some(first) = self.messages.front()
            && now.duration_since(first.written) >= INTERVAL
        {
            let Some(mut message) = self.messages.pop_front() else {
                break;
            };
            if let Some(line) = message.count() {
                lines.push(line);
                message.repeats = 0;
                message.written = now;
                self.messages.push_back(message);
            }
        }
        lines
    }
}

impl Message {
    fn count(&self) -> Option<Line> {
        let text = match self.repeats {
            0 => return None,
            1 => format!("repeated once: {}", self.line.text),
            n => format!("repeated {n} times: {}", self.line.text),
        };
        Some(Line {
            level: self.line.level,
            text,
        })
    }
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
        assert!(texts(repeats.add(Level::Info, "a", start + INTERVAL * 5)).is_empty());
        // Another level is another message.
        let error = repeats.add(Level::Error, "a", start + INTERVAL * 5);
        assert_eq!(texts(error), ["a"]);
        assert_eq!(texts(repeats.drain()), ["repeated once: a"]);
    }

    #[test]
    fn memory_is_bounded_and_no_count_is_lost() {
        let (mut repeats, now) = (Repeats::new(), Instant::now());
        repeats.add(Level::Info, "first", now);
        repeats.add(Level::Info, "first", now);
        let lines: Vec<String> = (0..10 * TRACKED)
            .flat_map(|i| texts(repeats.add(Level::Info, &i.to_string(), now)))
            .collect();
        assert_eq!(lines.len(), 10 * TRACKED + 1);
        assert_eq!(
            lines
                .iter()
                .filter(|l| *l == "repeated once: first")
                .count(),
            1
        );
        assert_eq!(repeats.messages.len(), TRACKED);
    }
}
