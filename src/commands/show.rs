//! `stfs show`: the picture of a tensor, in the terminal.

use std::process::ExitCode;

use anyhow::Result;

use super::terminal::{Colors, Painter, Screen};
use crate::cli::TensorArgs;
use crate::error::Error;
use crate::preview::{Picture, Subject, caption, color};
use crate::text::{elide, printable, thousands};

mod heat;

/// Lines of the histogram.
const BARS: usize = 6;
/// Lines that everything except the heat map takes.
const REST: usize = BARS + 9;

pub(super) fn run(args: &TensorArgs) -> Result<ExitCode> {
    let model = super::open_model(&args.model)?;
    let (id, _) = model.find(&args.tensor)?;
    let subject = Subject::of(&model, id)?.ok_or_else(|| {
        Error::NotFound(format!(
            "tensor '{}' has no values, and so no picture",
            args.tensor
        ))
    })?;
    // Written in one piece: an interrupt must not leave the terminal in some color.
    super::print(draw(&subject, Screen::of_stdout())?.as_bytes())
}

fn draw(subject: &Subject, screen: Screen) -> Result<String> {
    let mut painter = Painter::new(screen.colors);
    let (cols, lines) = heat::room(screen, REST);
    let rows = match screen.colors {
        Colors::None => lines,
        _ => 2 * lines, // half blocks
    };
    let picture = Picture::read(subject, rows as u32, cols as u32)?;
    if picture.grid.cell_rows > 0 {
        heat::map(&mut painter, &picture, cols, rows);
        heat::legend(&mut painter, picture.scale(), cols);
        painter.newline();
    }
    histogram(&mut painter, &picture, cols);
    captions(&mut painter, subject, &picture, screen.width);
    Ok(painter.finish())
}

/// Bars in eighths of a line, at most as wide as the picture.
fn histogram(painter: &mut Painter, picture: &Picture, cols: usize) {
    let summary = &picture.summary;
    let (Some(min), Some(max), Some(histogram)) =
        (summary.min(), summary.max(), &summary.histogram)
    else {
        painter.plain("no finite values\n");
        return;
    };
    let bars = caption::bars(summary).min(1 << cols.ilog2()).min(64);
    let width = (cols / bars).max(1);
    let counts = histogram.resample(min, max, bars);
    let most = counts.iter().fold(1.0f64, |m, &c| m.max(c)).ln_1p();
    for line in (0..BARS).rev() {
        for (i, count) in counts.iter().enumerate() {
            let height = (count.ln_1p() / most * (8 * BARS) as f64).ceil() as usize;
            let eighths = height.saturating_sub(8 * line).min(8);
            let middle = caption::middle(min, max, i, bars);
            let color = color::diverging(if middle < 0.0 { -0.6 } else { 0.6 });
            painter.paint(&EIGHTHS[eighths].repeat(width), Some(color), None);
        }
        painter.newline();
    }
    let (low, high) = (caption::number(min), caption::number(max));
    let wide = bars * width;
    painter.plain(&match min == max {
        true => format!("all values are {low}\n"),
        false => format!(
            "{low}{high:>w$}\n",
            w = wide.saturating_sub(low.chars().count())
        ),
    });
}

/// Blocks that are so many eighths of a line high.
pub(super) const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

fn captions(painter: &mut Painter, subject: &Subject, picture: &Picture, width: usize) {
    let summary = &picture.summary;
    let mut line = |text: &str| painter.plain(&format!("{}\n", elide(text, width)));
    line(&printable(&subject.name));
    line(&printable(&caption::what(subject, picture)));
    line(&caption::range(summary));
    painter.plain(&format!("zeros {}   ", thousands(summary.zeros)));
    for (word, n, color) in [
        ("NaN", summary.nan, color::NAN),
        ("Inf", summary.inf, color::INF),
    ] {
        let color = (n > 0).then_some(color);
        painter.paint(&format!("{word} {}", thousands(n)), color, None);
        painter.plain("   ");
    }
    painter.newline();
    painter.plain(&format!("{}\n", elide(&caption::coverage(picture), width)));
}
