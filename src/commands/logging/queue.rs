//! What is to be written: bounded, so that a log that takes nothing costs neither memory nor time.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use log::Level;

use super::repeats::{self, Repeats};

/// Bytes that are queued at most: some thousand messages.
const ROOM: usize = 256 << 10;

/// What a queued line takes beside its text.
const OVERHEAD: usize = size_of::<Line>();

/// Characters of a line at most; the middle of a longer one is left out. A hostile name may be megabytes.
const LONGEST: usize = 8 << 10;

/// A line to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) to: To,
    /// How many messages are lost if it is not written.
    messages: u64,
}

/// Where a line goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// To the log, with the time at which it was logged.
    Log(Level, SystemTime),
    /// To standard error, wherever the log is.
    Stderr,
}

/// The queue, which any thread fills and one empties. Its lock is never held while something is written.
pub(super) struct Queue {
    state: Mutex<State>,
    /// There is something to write.
    filled: Condvar,
    /// Everything has been written, or has been tried.
    emptied: Condvar,
}

struct State {
    repeats: Repeats,
    lines: VecDeque<Line>,
    /// What `lines` takes.
    bytes: usize,
    /// Messages that found no room or could not be written, and have not been reported yet.
    lost: u64,
    /// The last line could not be written.
    failing: bool,
    /// A line is being written.
    writing: bool,
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue {
            state: Mutex::new(State {
                repeats: Repeats::new(),
                lines: VecDeque::new(),
                bytes: 0,
                lost: 0,
                failing: false,
                writing: false,
            }),
            filled: Condvar::new(),
            emptied: Condvar::new(),
        }
    }

    /// Queues a message for the log, or counts it.
    pub(super) fn log(&self, level: Level, text: &str) {
        let text = crate::text::elide(&crate::text::printable(text), LONGEST);
        let mut state = self.lock();
        let lines = state.repeats.add(level, &text, Instant::now());
        state.push_messages(lines);
        self.filled.notify_one();
    }

    /// Queues a line for standard error.
    pub(super) fn complain(&self, text: &str) {
        self.lock().push(Line {
            text: crate::text::elide(text, LONGEST),
            to: To::Stderr,
            messages: 1,
        });
        self.filled.notify_one();
    }

    /// Queues all counts.
    pub(super) fn report_counts(&self) {
        let mut state = self.lock();
        let lines = state.repeats.drain();
        state.push_messages(lines);
        self.filled.notify_one();
    }

    /// The next line; waits for one.
    pub(super) fn next(&self) -> Line {
        let mut state = self.lock();
        loop {
            if let Some(line) = state.pop() {
                return line;
            }
            self.emptied.notify_all();
            // A count is also written if no further message comes.
            state = match state.repeats.next_due() {
                None => self.filled.wait(state),
                Some(due) => {
                    let left = due.saturating_duration_since(Instant::now());
                    let waited = self.filled.wait_timeout(state, left);
                    waited
                        .map(|(s, _)| s)
                        .map_err(|e| PoisonError::new(e.into_inner().0))
                }
            }
            .unwrap_or_else(PoisonError::into_inner);
            let due = state.repeats.due(Instant::now());
            state.push_messages(due);
        }
    }

    /// The next line, if there is one.
    pub(super) fn try_next(&self) -> Option<Line> {
        self.lock().pop()
    }

    /// The line from `next` has been written, or could not be.
    pub(super) fn done(&self, line: &Line, written: bool) {
        let mut state = self.lock();
        state.writing = false;
        state.failing = !written;
        if !written {
            state.lost = state.lost.saturating_add(line.messages);
        }
    }

    /// Waits until all lines have been written, for so long at most.
    pub(super) fn wait_until_written(&self, limit: Duration) {
        let pending = |s: &mut State| s.writing || s.has_next();
        // Whatever has not been written by then is given up.
        let _ = self.emptied.wait_timeout_while(self.lock(), limit, pending);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push_messages(&mut self, lines: Vec<repeats::Line>) {
        let now = SystemTime::now();
        for line in lines {
            self.push(Line {
                text: line.text,
                to: To::Log(line.level, now),
                messages: 1,
            });
        }
    }

    /// Adds a line, or counts it as lost. What comes after lost ones is lost, too, until those before
    /// them have been written and the loss reported, so that lines stay in order.
    fn push(&mut self, line: Line) {
        let size = line.text.len() + OVERHEAD;
        let overflowed = self.lost > 0 && !self.failing;
        if overflowed || self.bytes + size > ROOM {
            self.lost = self.lost.saturating_add(line.messages);
            return;
        }
        self.bytes += size;
        self.lines.push_back(line);
    }

    fn has_next(&self) -> bool {
        !self.lines.is_empty() || (self.lost > 0 && !self.failing)
    }

    /// The next line: at the end of those before a loss, how many were lost.
    fn pop(&mut self) -> Option<Line> {
        if !self.has_next() {
            return None;
        }
        self.writing = true;
        Some(match self.lines.pop_front() {
            Some(line) => {
                self.bytes -= line.text.len() + OVERHEAD;
                line
            }
            None => lost(std::mem::take(&mut self.lost)),
        })
    }
}

fn lost(messages: u64) -> Line {
    let count = crate::text::plural(messages, "message");
    Line {
        text: format!("{count} lost here: the log did not take them in time"),
        to: To::Log(Level::Warn, SystemTime::now()),
        messages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that is queued, all of it written.
    fn written(queue: &Queue) -> Vec<String> {
        let next = || {
            let line = queue.try_next()?;
            queue.done(&line, true);
            Some(line.text)
        };
        std::iter::from_fn(next).collect()
    }

    /// Lines of different kinds.
    fn fill(queue: &Queue, n: usize) {
        for i in 0..n {
            queue.complain(&format!("a{i}{}", "x".repeat(1000)));
        }
    }

    #[test]
    fn what_finds_no_room_is_counted_and_reported_in_its_place() {
        let queue = Queue::new();
        fill(&queue, 1000);
        queue.wait_until_written(Duration::from_millis(1));
        assert!(queue.lock().bytes <= ROOM);
        let all = written(&queue);
        let kept = all.len() - 1;
        assert!((100..1000).contains(&kept));
        let count = format!("{} messages lost here", 1000 - kept);
        assert!(all[kept].starts_with(&count), "{}", all[kept]);
        fill(&queue, 1);
        assert_eq!(written(&queue).len(), 1);
        assert_eq!(queue.lock().bytes, 0);
    }

    #[test]
    fn what_cannot_be_written_is_reported_once_something_can_be() {
        let queue = Queue::new();
        for _ in 0..3 {
            fill(&queue, 1);
            let line = queue.try_next().unwrap();
            queue.done(&line, false);
            assert!(queue.try_next().is_none(), "it would be tried for ever");
        }
        fill(&queue, 1);
        let all = written(&queue);
        assert!(all[1].starts_with("3 messages lost"), "{all:?}");
    }

    #[test]
    fn a_line_of_megabytes_is_shortened() {
        let queue = Queue::new();
        queue.log(Level::Warn, &"\u{1b}é".repeat(1 << 20));
        assert_eq!(queue.try_next().unwrap().text.chars().count(), LONGEST);
    }

    #[test]
    fn a_writer_that_is_stuck_is_not_waited_for() {
        let queue = Queue::new();
        fill(&queue, 1);
        assert!(queue.try_next().is_some());
        let start = Instant::now();
        queue.wait_until_written(Duration::from_millis(10));
        assert!(start.elapsed() >= Duration::from_millis(10));
    }
}
