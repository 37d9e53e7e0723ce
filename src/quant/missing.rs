//! Why there is no layer, and so no tensor made of it: for good, or for now.

use std::fmt;

/// Why a layer or tensor is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// What the files say rules it out: so it stays.
    Reason(String),
    /// A fact that it depends on could not be read. Whether it is there is not known, and is to be
    /// asked again.
    Unread(String),
}

impl Missing {
    /// The reason, as a sentence for a person.
    pub fn text(&self) -> &str {
        match self {
            Missing::Reason(text) | Missing::Unread(text) => text,
        }
    }

    /// The same, of something that `what` is said about.
    pub fn within(self, what: impl fmt::Display) -> Missing {
        match self {
            Missing::Reason(text) => Missing::Reason(format!("{what}: {text}")),
            Missing::Unread(text) => Missing::Unread(format!("{what}: {text}")),
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl From<String> for Missing {
    fn from(reason: String) -> Missing {
        Missing::Reason(reason)
    }
}

impl From<&str> for Missing {
    fn from(reason: &str) -> Missing {
        Missing::Reason(reason.into())
    }
}
