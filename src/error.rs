//! The library's only error type: what went wrong, as a message for a person, and the errno that a
//! program gets for it through the mount.

use std::fmt;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

/// `Result` with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What stands between a file and the part of it that is meant: `FILE#PART`.
pub const PART: char = '#';

/// Where a file, a directory or an object of a store is, as messages show it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location {
    path: PathBuf,
    /// Which part of the file is meant.
    part: Option<Box<str>>,
    /// The line of its text that is meant, and perhaps the column, both from 1.
    position: Option<Position>,
}

/// A line of a text, and perhaps a column in it, both from 1. It is in every error, so it is small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    line: NonZeroU32,
    column: Option<NonZeroU32>,
}

impl Position {
    /// That line, and that column.
    pub fn new(line: usize, column: Option<usize>) -> Position {
        let short = |number: usize| {
            let short = u32::try_from(number).unwrap_or(u32::MAX);
            NonZeroU32::new(short).unwrap_or(NonZeroU32::MIN)
        };
        Position {
            line: short(line),
            column: column.map(short),
        }
    }

    /// The line.
    pub fn line(self) -> u32 {
        self.line.get()
    }

    /// The column, unless a longer piece of the text is meant.
    pub fn column(self) -> Option<u32> {
        self.column.map(NonZeroU32::get)
    }
}

impl Location {
    /// Something inside this directory.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> Location {
        self.path.join(name).into()
    }

    /// A part of this file: `FILE#PART`.
    #[must_use]
    pub fn part(&self, part: &str) -> Location {
        Location {
            part: Some(part.into()),
            ..self.clone()
        }
    }

    /// A line of this file, and perhaps a column in it, both from 1: `FILE:LINE:COLUMN`.
    #[must_use]
    pub fn at(&self, position: Position) -> Location {
        Location {
            position: Some(position),
            ..self.clone()
        }
    }

    /// The last component, without a part; empty if there is none.
    pub fn name(&self) -> String {
        let name = self.path.file_name();
        name.map_or_else(String::new, |n| n.to_string_lossy().into_owned())
    }

    /// The path, if it is on this machine. Of a part, that of its file.
    pub fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)?;
        if let Some(part) = &self.part {
            write!(f, "{PART}{part}")?;
        }
        match self.position {
            Some(Position {
                line,
                column: Some(column),
            }) => write!(f, ":{line}:{column}"),
            Some(Position { line, column: None }) => write!(f, ":{line}"),
            None => Ok(()),
        }
    }
}

impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Location {
        Location {
            path,
            part: None,
            position: None,
        }
    }
}

impl From<&PathBuf> for Location {
    fn from(path: &PathBuf) -> Location {
        path.clone().into()
    }
}

impl From<&Path> for Location {
    fn from(path: &Path) -> Location {
        path.to_path_buf().into()
    }
}

impl From<&Location> for Location {
    fn from(location: &Location) -> Location {
        location.clone()
    }
}

/// What can go wrong. Every variant has an errno ([`Error::errno`]) and a message that names the
/// file or tensor, gives both numbers if there are two, and states what to do if that is known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, and to which file.
        what: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// A model directory or one of its files is not what it should be.
    #[error("{at}: {problem}")]
    Invalid {
        /// The file or directory at fault.
        at: Location,
        /// What is wrong with it.
        problem: String,
    },
    /// The source file no longer has all the bytes that its header describes.
    #[error(
        "{at}: truncated: needs {needs} bytes, has {has}; restore the file, or mount the model again"
    )]
    Truncated {
        /// The source file.
        at: Location,
        /// The end of the read, in bytes from the start of the file.
        needs: u64,
        /// The size of the file now, in bytes.
        has: u64,
    },
    /// A link in the model directory leads where not every user of the mount could have followed it.
    #[error(
        "{at}: is a link that not every user can follow, because of {closed}; with --allow-other everyone would read through it: copy the file into the model directory, let others search {closed} ('chmod a+x'), or mount without --allow-other",
        closed = closed.display()
    )]
    Unreachable {
        /// The link.
        at: Location,
        /// The directory on the way that not everyone may search, or the file if it was moved meanwhile.
        closed: Box<Path>,
    },
    /// Bytes inside a tensor make its values impossible (a group index out of range, for example).
    #[error("{tensor}: {problem}")]
    Data {
        /// The tensor at fault.
        tensor: String,
        /// What is wrong with its contents.
        problem: String,
    },
    /// There is no tensor, view or file of that name.
    #[error("{0}")]
    NotFound(String),
    /// Anything else, with the errno that a program should see.
    #[error("{message}")]
    Other {
        /// The errno.
        errno: i32,
        /// The message.
        message: String,
    },
}

impl Error {
    /// An I/O error while doing `what`.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Error::Io {
            what: what.into(),
            source,
        }
    }

    /// The file or directory at `at` is not what it should be.
    pub fn invalid(at: impl Into<Location>, problem: impl Into<String>) -> Self {
        Error::Invalid {
            at: at.into(),
            problem: problem.into(),
        }
    }

    /// The contents of `tensor` are damaged.
    pub fn data(tensor: impl Into<String>, problem: impl Into<String>) -> Self {
        Error::Data {
            tensor: tensor.into(),
            problem: problem.into(),
        }
    }

    /// Anything else, as `errno`.
    pub fn other(errno: i32, message: impl Into<String>) -> Self {
        Error::Other {
            errno,
            message: message.into(),
        }
    }

    /// What is wrong, for a message that already names the file at fault.
    pub fn without_location(&self) -> String {
        match self {
            Error::Invalid { problem, .. } => problem.clone(),
            other => other.to_string(),
        }
    }

    /// Whether the error is that something does not exist.
    pub fn is_not_found(&self) -> bool {
        match self {
            Error::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Error::NotFound(_) => true,
            _ => false,
        }
    }

    /// The errno that a system call on the mount returns for this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io { source, .. } => match source.raw_os_error() {
                // A reader of a file can act on these; any other error of the source is EIO.
                Some(e @ (libc::EACCES | libc::EPERM | libc::ENOMEM | libc::ENOENT)) => e,
                _ => libc::EIO,
            },
            Error::Invalid { .. } | Error::Truncated { .. } | Error::Data { .. } => libc::EIO,
            Error::NotFound(_) => libc::ENOENT,
            Error::Unreachable { .. } => libc::EACCES,
            Error::Other { errno, .. } => *errno,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_errno() {
        let io = |n| Error::io("open x", io::Error::from_raw_os_error(n));
        assert_eq!(io(libc::EACCES).errno(), libc::EACCES);
        assert_eq!(io(libc::ESTALE).errno(), libc::EIO);
        assert_eq!(Error::invalid(Path::new("a"), "b").errno(), libc::EIO);
        assert_eq!(Error::data("t", "p").errno(), libc::EIO);
        assert_eq!(Error::NotFound("t".into()).errno(), libc::ENOENT);
        assert_eq!(Error::other(libc::EDQUOT, "full").errno(), libc::EDQUOT);
        let cut = Error::Truncated {
            at: Path::new("m.safetensors").into(),
            needs: 4294967304,
            has: 1073741824,
        };
        assert_eq!(cut.errno(), libc::EIO);
        assert!(
            cut.to_string()
                .contains("needs 4294967304 bytes, has 1073741824")
        );
    }

    #[test]
    fn a_location_is_shown_whole_and_named_by_its_last_part() {
        let dir = Location::from(Path::new("/models/llama"));
        let file = dir.join("1.safetensors");
        assert_eq!(file.to_string(), "/models/llama/1.safetensors");
        assert_eq!(
            (file.name(), dir.name()),
            ("1.safetensors".into(), "llama".into())
        );
        assert_eq!(Location::from(Path::new("/")).name(), "");
        let part = Location::from(Path::new("x.ckpt")).part("net/0.a:b");
        assert_eq!(part.to_string(), "x.ckpt#net/0.a:b");
        assert_eq!(part.name(), "x.ckpt");
        let at = |column| dir.at(Position::new(3, column));
        let (line, place) = (at(None), at(Some(7)));
        assert_eq!(line.to_string(), "/models/llama:3");
        assert_eq!(place.to_string(), "/models/llama:3:7");
        assert_eq!(place.name(), "llama");
        let error = Error::invalid(&file, "is empty");
        assert_eq!(error.to_string(), "/models/llama/1.safetensors: is empty");
        assert_eq!(error.without_location(), "is empty");
    }

    #[test]
    fn only_what_is_not_there_is_not_found() {
        let io = |n| Error::io("open x", io::Error::from_raw_os_error(n));
        assert!(io(libc::ENOENT).is_not_found());
        assert!(!io(libc::EACCES).is_not_found());
        assert!(!Error::invalid(Path::new("a"), "is a link to nowhere").is_not_found());
    }
}
