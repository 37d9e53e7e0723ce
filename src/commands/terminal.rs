//! The properties of standard output: width, height, colors.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use crate::preview::color::{Rgb, oklab};

/// The colors that may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colors {
    /// None: not a terminal, a dumb one, or `NO_COLOR` is set.
    None,
    /// xterm's 256.
    Indexed,
    /// Any.
    True,
}

/// Standard output.
#[derive(Debug, Clone, Copy)]
pub struct Screen {
    /// Columns.
    pub width: usize,
    /// Lines.
    pub height: usize,
    /// Its colors.
    pub colors: Colors,
}

impl Screen {
    /// From standard output and the environment (`NO_COLOR`, `COLORTERM`, `TERM`, and `COLUMNS` if it is
    /// not a terminal).
    pub fn of_stdout() -> Screen {
        let variable = |name| std::env::var(name).unwrap_or_default();
        let out = io::stdout();
        let is_terminal = out.is_terminal();
        let (width, height) = terminal_size::terminal_size_of(&out).map_or_else(
            || (variable("COLUMNS").parse().unwrap_or(80), 24),
            |(w, h)| (usize::from(w.0), usize::from(h.0)),
        );
        Screen {
            width: width.clamp(20, 1000),
            height: height.clamp(10, 1000),
            colors: Colors::choose(
                is_terminal,
                &variable("NO_COLOR"),
                &variable("COLORTERM"),
                &variable("TERM"),
            ),
        }
    }
}

impl Colors {
    fn choose(is_terminal: bool, no_color: &str, colorterm: &str, term: &str) -> Colors {
        if !is_terminal || !no_color.is_empty() || term == "dumb" {
            return Colors::None;
        }
        let direct = matches!(colorterm, "truecolor" | "24bit") || term.ends_with("-direct");
        match direct {
            true => Colors::True,
            false => Colors::Indexed,
        }
    }

    /// Selects a color for the text that follows; `layer` is 38 for letters, 48 for the background.
    fn select(self, out: &mut String, layer: u8, rgb: Rgb) {
        let [r, g, b] = rgb;
        let _ = match self {
            Colors::None => Ok(()),
            Colors::Indexed => write!(out, "\x1b[{layer};5;{}m", nearest(rgb)),
            Colors::True => write!(out, "\x1b[{layer};2;{r};{g};{b}m"),
        };
    }
}

/// The nearest of xterm's 6×6×6 colors and 24 grays (16 to 255), perceptually.
fn nearest(rgb: Rgb) -> u8 {
    static LOOKS: OnceLock<Vec<[f64; 3]>> = OnceLock::new();
    let looks = LOOKS.get_or_init(|| (16..=255).map(|i| oklab(indexed(i))).collect());
    let wanted = oklab(rgb);
    let distance = |look: &[f64; 3]| -> f64 { (0..3).map(|i| (look[i] - wanted[i]).powi(2)).sum() };
    (16..=255)
        .zip(looks)
        .min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)))
        .map_or(16, |(i, _)| i)
}

/// Color `i` of xterm's 256, from 16 on.
fn indexed(i: u8) -> Rgb {
    const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    match i {
        232.. => [8 + 10 * (i - 232); 3],
        _ => {
            let i = i.saturating_sub(16);
            [i / 36, i / 6 % 6, i % 6].map(|l| LEVELS[usize::from(l)])
        }
    }
}

/// Text with colors. An escape sequence is written only if the color changes.
pub struct Painter {
    colors: Colors,
    text: String,
    letters: Option<Rgb>,
    behind: Option<Rgb>,
}

impl Painter {
    /// An empty text for a terminal with these colors.
    pub fn new(colors: Colors) -> Painter {
        Painter {
            colors,
            text: String::new(),
            letters: None,
            behind: None,
        }
    }

    /// The terminal's colors.
    pub fn colors(&self) -> Colors {
        self.colors
    }

    /// Adds text with these colors of letters and background; `None` is the terminal's own.
    pub fn paint(&mut self, text: &str, letters: Option<Rgb>, behind: Option<Rgb>) {
        let gone = |was: Option<Rgb>, now: Option<Rgb>| was.is_some() && now.is_none();
        if gone(self.letters, letters) || gone(self.behind, behind) {
            self.reset();
        }
        if let Some(rgb) = letters.filter(|_| letters != self.letters) {
            self.colors.select(&mut self.text, 38, rgb);
        }
        if let Some(rgb) = behind.filter(|_| behind != self.behind) {
            self.colors.select(&mut self.text, 48, rgb);
        }
        (self.letters, self.behind) = (letters, behind);
        self.text.push_str(text);
    }

    /// Adds text in the terminal's own colors.
    pub fn plain(&mut self, text: &str) {
        self.paint(text, None, None);
    }

    /// Ends the line.
    pub fn newline(&mut self) {
        self.plain("\n");
    }

    fn reset(&mut self) {
        if self.colors != Colors::None {
            self.text.push_str("\x1b[0m");
        }
        (self.letters, self.behind) = (None, None);
    }

    /// The text, with the terminal's own colors restored at the end.
    pub fn finish(mut self) -> String {
        if self.letters.is_some() || self.behind.is_some() {
            self.reset();
        }
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_only_where_they_are_wanted() {
        use Colors::{Indexed, None, True};
        for (want, is_terminal, no_color, colorterm, term) in [
            (None, false, "", "truecolor", "xterm-256color"),
            (None, true, "1", "truecolor", "xterm-256color"),
            (None, true, "", "", "dumb"),
            (True, true, "", "truecolor", "xterm-256color"),
            (True, true, "", "24bit", "xterm"),
            (True, true, "", "", "xterm-direct"),
            (Indexed, true, "", "", "xterm-256color"),
        ] {
            assert_eq!(want, Colors::choose(is_terminal, no_color, colorterm, term));
        }
    }

    #[test]
    fn the_nearest_color_is_itself_where_it_exists() {
        assert_eq!(nearest([0, 0, 0]), 16);
        assert_eq!(nearest([255, 0, 0]), 196);
        assert_eq!(nearest([95, 135, 175]), 67);
        assert_eq!(nearest([128, 128, 128]), 244);
        assert_eq!(nearest([254, 255, 255]), 231);
    }

    #[test]
    fn escapes_are_written_where_colors_change() {
        let mut p = Painter::new(Colors::True);
        p.paint("ab", Some([1, 2, 3]), None);
        p.paint("c", Some([1, 2, 3]), None);
        p.newline();
        p.paint("d", None, Some([4, 5, 6]));
        assert_eq!(
            p.finish(),
            "\x1b[38;2;1;2;3mabc\x1b[0m\n\x1b[48;2;4;5;6md\x1b[0m"
        );
        let mut p = Painter::new(Colors::None);
        p.paint("ab", Some([1, 2, 3]), Some([4, 5, 6]));
        assert_eq!(p.finish(), "ab");
    }
}
