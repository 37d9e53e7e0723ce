//! Arithmetic on values, element by element: each operation is rounded to binary32.

use super::SharedView;

/// An operation on two values.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
}

/// What an operation takes.
#[derive(Clone)]
pub enum Operand {
    /// The values of a view (binary32, little-endian).
    Values(SharedView),
    /// A number that meets every value of the other operand.
    Number(f32),
}

impl Arithmetic {
    /// `a op b`, value by value, as binary32. Views have equally many values, or one of them has a single one,
    /// which meets every value of the other. `None` if they do not, or if both are numbers.
    pub fn view(self, a: Operand, b: Operand) -> Option<SharedView> {
        let _ = (a, b);
        None
    }
}

/// The values of a view (binary32) with the other sign; of NaN, too.
pub struct Negated;

impl Negated {
    /// `-values`.
    pub fn view(values: SharedView) -> SharedView {
        values
    }
}
