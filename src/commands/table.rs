//! Tables for people: columns as wide as their cells, up to a limit.

use std::borrow::Cow;

use crate::text::printable;

/// Columns are not made wider than this many characters. `format!` allows at most 65,535.
const MAX_WIDTH: usize = 200;

/// How a cell is aligned in its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// The columns of a table, two spaces apart.
#[derive(Debug, Clone)]
pub struct Table<const N: usize> {
    columns: [(&'static str, Align); N],
    widths: [usize; N],
}

impl<const N: usize> Table<N> {
    /// Columns as wide as their titles.
    pub fn new(columns: [(&'static str, Align); N]) -> Table<N> {
        let widths = columns.map(|(title, _)| title.chars().count());
        Table { columns, widths }
    }

    /// Makes the columns at least this wide, up to the limit.
    pub fn widen(&mut self, widths: [usize; N]) {
        for (mine, wanted) in self.widths.iter_mut().zip(widths) {
            *mine = wanted.min(MAX_WIDTH).max(*mine);
        }
    }

    /// Makes room for a row. A cell over the limit is printed whole, out of line.
    pub fn fit(&mut self, cells: &[String; N]) {
        self.widen(std::array::from_fn(|i| cells[i].chars().count()));
    }

    /// The line of titles.
    pub fn head(&self) -> String {
        self.line(self.columns.map(|(title, _)| title))
    }

    /// A row's line.
    pub fn row(&self, cells: &[String; N]) -> String {
        self.line(std::array::from_fn(|i| &*cells[i]))
    }

    fn line(&self, cells: [&str; N]) -> String {
        let mut line = String::new();
        for ((cell, (_, align)), &width) in cells.into_iter().zip(self.columns).zip(&self.widths) {
            line.push_str(&match align {
                Align::Left => format!("{cell:<width$}  "),
                Align::Right => format!("{cell:>width$}  "),
            });
        }
        line.truncate(line.trim_end_matches(' ').len());
        line.push('\n');
        line
    }

    /// The lines of all rows, without the titles.
    pub fn rows(mut self, rows: &[[String; N]]) -> String {
        rows.iter().for_each(|row| self.fit(row));
        rows.iter().map(|row| self.row(row)).collect()
    }
}

/// A tensor's name as a table shows it: harmless, and visible even if it is empty.
pub fn name(name: &str) -> Cow<'_, str> {
    match name {
        "" => Cow::Borrowed("\"\""),
        name => printable(name),
    }
}

/// Lays out words; the first row has the titles.
pub fn words<const N: usize>(rows: &[[String; N]]) -> String {
    Table::new([("", Align::Left); N]).rows(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_stands_in_them() {
        let cells = |a: &str, b: &str| [a.to_string(), b.to_string()];
        let mut table = Table::new([("name", Align::Left), ("n", Align::Right)]);
        table.fit(&cells("a", "1000"));
        assert_eq!(table.head(), "name     n\n");
        assert_eq!(table.row(&cells("a", "1")), "a        1\n");
        assert_eq!(table.row(&cells("ééé", "")), "ééé\n");
        assert_eq!(
            words(&[cells("A", "B"), cells("aa", "b")]),
            "A   B\naa  b\n"
        );
    }

    #[test]
    fn what_is_too_long_for_a_column_is_still_printed() {
        let long = "x".repeat(70_000);
        let row = [long.clone(), "1".into()];
        let text = words(&[row, ["y".into(), "2".into()]]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], format!("{long}  1"));
        assert_eq!(lines[1], format!("{:<MAX_WIDTH$}  2", "y"));
    }
}
