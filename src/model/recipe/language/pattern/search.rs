//! The search for what the holes take: each hole's end moves forward until all that follows fits. An end from
//! which the rest did not fit is never tried again, so time is linear in the name for each piece.

use super::{Hole, PatternPiece};

/// What each named hole takes of bytes `start..end` of a name, if the pieces match all of them.
pub(super) fn search(
    pieces: &[PatternPiece],
    name: &str,
    start: usize,
    end: usize,
) -> Option<Box<[(u32, u32)]>> {
    if pieces.is_empty() {
        return (start == end).then(Box::default);
    }
    if matches!(pieces, [PatternPiece::Any]) {
        return (start < end).then(Box::default);
    }
    let bytes = name.as_bytes().get(..end)?;
    if !has_texts(pieces, bytes, start) {
        return None;
    }
    let mut search = Search {
        pieces,
        bytes,
        last_component: bytes
            .iter()
            .rposition(|b| *b == b'.')
            .map_or(0, |dot| dot + 1),
        frames: Vec::with_capacity(pieces.len()),
        tried: vec![0; (pieces.len() * (end + 1)).div_ceil(64)],
    };
    if !search.run(start) {
        return None;
    }
    let named = search.frames.iter().filter(|f| f.is_named(pieces));
    Some(named.map(|f| (f.start as u32, f.end as u32)).collect())
}

/// Whether the texts among the pieces stand in the name in that order: quickly tells most names that do not match.
fn has_texts(pieces: &[PatternPiece], bytes: &[u8], start: usize) -> bool {
    let mut rest = bytes.get(start..).unwrap_or(&[]);
    for piece in pieces {
        let least = match piece {
            PatternPiece::Text(text) => match find(rest, text.as_bytes()) {
                Some(at) => at + text.len(),
                None => return false,
            },
            _ => 1,
        };
        match rest.get(least..) {
            Some(after) => rest = after,
            None => return false,
        }
    }
    true
}

/// Where `text` begins in `bytes`.
fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    let (first, rest) = text.split_first()?;
    // Comparing one byte first is four times as fast as comparing the text everywhere.
    let starts = bytes.iter().enumerate().filter(|(_, byte)| *byte == first);
    let mut found = starts.filter(|(at, _)| bytes[at + 1..].starts_with(rest));
    Some(found.next()?.0)
}

/// A hole, and what it takes for now.
struct Frame {
    piece: usize,
    start: usize,
    end: usize,
    /// The number of the next alternative.
    alternative: usize,
}

impl Frame {
    fn is_named(&self, pieces: &[PatternPiece]) -> bool {
        matches!(pieces.get(self.piece), Some(PatternPiece::Hole(..)))
    }
}

struct Search<'s> {
    pieces: &'s [PatternPiece],
    /// The name, without what follows the last piece.
    bytes: &'s [u8],
    /// Where the part behind the last dot begins.
    last_component: usize,
    /// The holes up to here.
    frames: Vec<Frame>,
    /// A bit for each piece and end of it that has been tried.
    tried: Vec<u64>,
}

impl Search<'_> {
    fn run(&mut self, start: usize) -> bool {
        let (mut piece, mut at) = (0, start);
        loop {
            let fits = match self.pieces.get(piece) {
                None if at == self.bytes.len() => return true,
                None => false,
                Some(PatternPiece::Text(text)) => {
                    let fits = self.rest(at).starts_with(text.as_bytes());
                    (piece, at) = (piece + 1, at + text.len());
                    fits
                }
                Some(_) => {
                    let frame = Frame {
                        piece,
                        start: at,
                        end: at,
                        alternative: 0,
                    };
                    self.frames.push(frame);
                    false
                }
            };
            if !fits {
                let Some(next) = self.next_end() else {
                    return false;
                };
                (piece, at) = next;
            }
        }
    }

    fn rest(&self, at: usize) -> &[u8] {
        self.bytes.get(at..).unwrap_or(&[])
    }

    /// Moves the end of the last hole forward, or of the one before if it cannot, and so on: the piece that
    /// follows, and where.
    fn next_end(&mut self) -> Option<(usize, usize)> {
        while let Some(mut frame) = self.frames.pop() {
            if self.advance(&mut frame) {
                let next = (frame.piece + 1, frame.end);
                self.frames.push(frame);
                return Some(next);
            }
        }
        None
    }

    fn advance(&mut self, frame: &mut Frame) -> bool {
        let pieces = self.pieces;
        let is_last = frame.piece + 1 == pieces.len();
        match pieces.get(frame.piece) {
            Some(PatternPiece::Hole(_, Hole::OneOf(all))) => self.advance_one_of(frame, all),
            Some(PatternPiece::Any | PatternPiece::Hole(_, Hole::Rest)) if is_last => {
                self.advance_to_end(frame, 0)
            }
            Some(PatternPiece::Hole(_, Hole::Component)) if is_last => {
                self.advance_to_end(frame, self.last_component)
            }
            Some(piece) => self.advance_by_one(frame, piece),
            None => false,
        }
    }

    /// A last hole that may begin at `least` or behind.
    fn advance_to_end(&self, frame: &mut Frame, least: usize) -> bool {
        let is_new = frame.end == frame.start;
        frame.end = self.bytes.len();
        is_new && frame.start < frame.end && frame.start >= least
    }

    /// The next longer end, by one character or more.
    fn advance_by_one(&mut self, frame: &mut Frame, piece: &PatternPiece) -> bool {
        // An end that was tried before went on to all longer ones, but for a zero, which is a number by itself.
        let is_gather = matches!(piece, PatternPiece::Hole(_, Hole::Gather));
        let is_zero = is_gather && self.bytes.get(frame.start) == Some(&b'0');
        let is_component = matches!(piece, PatternPiece::Hole(_, Hole::Component));
        let next = match self.pieces.get(frame.piece + 1) {
            Some(PatternPiece::Text(text)) => text.as_bytes().first(),
            _ => None,
        };
        while let Some(byte) = self.bytes.get(frame.end) {
            let is_refused = (is_component && *byte == b'.')
                || (is_gather && !byte.is_ascii_digit())
                || (is_zero && frame.end > frame.start);
            if is_refused {
                return false;
            }
            frame.end += 1;
            // Within a character.
            if self.bytes.get(frame.end).is_some_and(|b| b & 0xC0 == 0x80) {
                continue;
            }
            if self.try_end(frame, !is_zero) {
                return false;
            }
            if next.is_none_or(|next| self.bytes.get(frame.end) == Some(next)) {
                return true;
            }
        }
        false
    }

    /// The next alternative. Shorter ones come first.
    fn advance_one_of(&mut self, frame: &mut Frame, all: &[Box<str>]) -> bool {
        while let Some(text) = all.get(frame.alternative) {
            frame.alternative += 1;
            if self.rest(frame.start).starts_with(text.as_bytes()) {
                frame.end = frame.start + text.len();
                if !self.try_end(frame, true) {
                    return true;
                }
            }
        }
        false
    }

    /// Whether that end of that piece has been tried; from now on it has, if `marks`.
    fn try_end(&mut self, frame: &Frame, marks: bool) -> bool {
        let bit = frame.piece * (self.bytes.len() + 1) + frame.end;
        let Some(word) = self.tried.get_mut(bit / 64) else {
            return true;
        };
        let was_tried = *word >> (bit % 64) & 1 == 1;
        if marks {
            *word |= 1 << (bit % 64);
        }
        was_tried
    }
}
