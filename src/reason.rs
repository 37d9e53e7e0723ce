//! Why something is not there: a sentence for a person, and whether that is for good or for now.
//!
//! An [`Error`](crate::Error) is a request that failed. A reason belongs to the model instead: a
//! layer that cannot be decoded, a fusion whose parts do not fit. `ls --why` and `meta.json` show
//! it, and the rest of the model is unaffected.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Why a tensor or a layer is not there, as a sentence for a person. Names what is at fault and
/// gives both numbers if there are two. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Reason(Arc<str>);

impl Reason {
    /// The sentence.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same reason, seen from what contains it: `experts: scales are missing`.
    #[must_use]
    pub fn within(&self, what: impl fmt::Display) -> Reason {
        Reason::from(format!("{what}: {self}"))
    }
}

/// A [`Reason`] from a format string, as `format!` has it.
macro_rules! reason {
    ($($sentence:tt)*) => {
        $crate::reason::Reason::from(format!($($sentence)*))
    };
}
pub(crate) use reason;

impl Deref for Reason {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl From<String> for Reason {
    fn from(sentence: String) -> Reason {
        Reason(sentence.into())
    }
}

impl From<&str> for Reason {
    fn from(sentence: &str) -> Reason {
        Reason(sentence.into())
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> String {
        reason.as_str().into()
    }
}

/// Why something is not there, and whether that may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// What the files say rules it out: lasting.
    Reason(Reason),
    /// A fact that it depends on could not be read. Whether it is there is not known: ask again.
    Unread(Reason),
}

impl Missing {
    /// The reason, lasting or not.
    pub fn reason(&self) -> &Reason {
        match self {
            Missing::Reason(reason) | Missing::Unread(reason) => reason,
        }
    }

    /// As [`Reason::within`]. What is lasting stays so.
    #[must_use]
    pub fn within(self, what: impl fmt::Display) -> Missing {
        match self {
            Missing::Reason(reason) => Missing::Reason(reason.within(what)),
            Missing::Unread(reason) => Missing::Unread(reason.within(what)),
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason().fmt(f)
    }
}

impl From<Reason> for Missing {
    fn from(reason: Reason) -> Missing {
        Missing::Reason(reason)
    }
}

impl From<String> for Missing {
    fn from(reason: String) -> Missing {
        Missing::Reason(reason.into())
    }
}

impl From<&str> for Missing {
    fn from(reason: &str) -> Missing {
        Missing::Reason(reason.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_grows_from_the_inside_out_and_lasts_or_not() {
        let scales = reason!("scales have {} groups, words {}", 3, 4);
        let expert = scales.within("expert 7");
        assert_eq!(&*expert, "expert 7: scales have 3 groups, words 4");
        let lasting = Missing::from(scales.clone()).within("'up'");
        assert_eq!(lasting, Missing::Reason(scales.within("'up'")));
        let unread = Missing::Unread(scales).within("'up'");
        assert!(matches!(unread, Missing::Unread(_)));
        assert_eq!(unread.to_string(), "'up': scales have 3 groups, words 4");
    }
}
