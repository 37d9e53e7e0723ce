//! A tensor that a recipe made or may use: what is known of it before a byte is read.

use std::fmt;
use std::sync::{Arc, LazyLock};

use super::super::Expr;
use crate::dtype::{ElementType, numel};
use crate::reason::Reason;
use crate::text;

/// The rules that made a tensor, innermost first: number of the rule, and of the result in it.
pub type Rules = Arc<[(u16, u16)]>;

/// An array that is an expression over the tensors of [`Sources`](super::sources::Sources).
#[derive(Debug, Clone)]
pub struct Derived {
    /// Element type of its bytes.
    pub dtype: ElementType,
    /// Its shape.
    pub shape: Arc<[u64]>,
    /// Length in bytes.
    pub nbytes: u64,
    /// Its bytes.
    pub expr: Expr,
    /// Its values, if they are not its elements widened: a quantized tensor that nothing was done to.
    pub values: Option<Arc<Decoded>>,
    /// Whether no value can have been rounded.
    pub exact: bool,
    /// Views on top of one another, over what the source model has.
    pub depth: u32,
    /// Source elements that one element depends on.
    pub reach: u32,
    /// The rules that made it, innermost first.
    pub rules: Rules,
    /// How messages name it.
    pub label: Label,
}

/// Values that are decoded from a quantized layer.
#[derive(Debug, Clone)]
pub struct Decoded {
    /// Their shape.
    pub shape: Arc<[u64]>,
    /// The values, as binary32; or why there are none, though its elements are numbers.
    pub expr: Result<Expr, Reason>,
    /// Whether none can have been rounded.
    pub exact: bool,
}

/// How messages name a tensor: `'a.weight'`, `tuned:'a.weight'`, and what was made of one within an
/// expression `part of 'a.weight'`.
#[derive(Debug, Clone)]
pub struct Label {
    name: Arc<str>,
    made: Option<&'static str>,
}

/// The longest name in a message: others are elided.
const LONGEST_NAME: usize = 80;

static NO_RULES: LazyLock<Rules> = LazyLock::new(|| Arc::new([]));

impl Derived {
    /// Number of elements.
    pub fn numel(&self) -> u64 {
        numel(&self.shape).unwrap_or(0)
    }

    /// The list of rules of a tensor that none has made.
    pub fn no_rules() -> Rules {
        NO_RULES.clone()
    }
}

impl Label {
    /// What the function or operator of that name makes of it.
    #[must_use]
    pub fn made(&self, by: &'static str) -> Label {
        let made = Some(by);
        Label {
            made,
            ..self.clone()
        }
    }
}

impl<T: Into<Arc<str>>> From<T> for Label {
    /// A tensor of that name, with its quotes.
    fn from(name: T) -> Label {
        let name = name.into();
        Label { name, made: None }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(made) = self.made {
            write!(f, "{made} of ")?;
        }
        let name = text::elide(&self.name, LONGEST_NAME);
        f.write_str(&text::printable(&name))
    }
}
