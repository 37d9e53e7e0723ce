//! The limits on what is kept of the pickles of a file.

/// The most values of the pickles of a file.
pub(super) const MAX_VALUES: usize = 1 << 24;
/// The most references of lists, dicts and tuples to their contents. Growing lists leave gaps, which
/// count.
pub(super) const MAX_REFERENCES: usize = 1 << 26;
/// The most bytes of text and bytes that are kept.
pub(super) const MAX_STRINGS: usize = 256 << 20;
/// The most references to storages. A checkpoint has one for each tensor.
pub(super) const MAX_STORAGES: usize = 1 << 20;

/// How much the pickles of one file may still keep, all of them together: several may be in memory at
/// once.
#[derive(Clone, Copy)]
pub(in super::super) struct Budget {
    pub(super) values: usize,
    pub(super) references: usize,
    pub(super) strings: usize,
    pub(super) storages: usize,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            values: MAX_VALUES,
            references: MAX_REFERENCES,
            strings: MAX_STRINGS,
            storages: MAX_STORAGES,
        }
    }
}

/// A limit that a pickle exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exceeds {
    /// The limit.
    pub most: usize,
    /// What there are more of.
    pub of: &'static str,
}
