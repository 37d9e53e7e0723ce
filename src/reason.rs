//! Why something is missing: a sentence for a person, and whether the cause is permanent.
//!
//! An [`Error`](crate::Error) is a request that failed. A reason describes the model instead: a
//! layer that cannot be decoded, a fusion whose parts do not fit. `ls --why` and `meta.json` show
//! it, and the rest of the model is unaffected.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Why a tensor or a layer is missing, as a sentence for a person. It names what is at fault and
/// gives both numbers if there are two. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Reason(Arc<str>);

impl Reason {
    /// The sentence.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same reason with its context in front: `experts: scales are missing`.
    #[must_use]
    pub fn within(&self, what: impl fmt::Display) -> Reason {
        Reason::from(format!("{what}: {self}"))
    }
}

/// Makes a [`Reason`] like `format!`.
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

/// Why something is missing, and whether that may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// The files' contents rule it out. This is permanent.
    Reason(Reason),
    /// Data that it depends on could not be read, so it is not known whether it exists. Ask again.
    Unread(Reason),
}

impl Missing {
    /// The reason, permanent or not.
    pub fn reason(&self) -> &Reason {
        match self {
            Missing::Reason(reason) | Missing::Unread(reason) => reason,
        }
    }

    /// As [`Reason::within`]. A permanent reason stays permanent.
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
