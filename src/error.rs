//! The one error type of the library: what went wrong, in words for a person, and the errno a
//! program gets for it through the mount.

use std::io;
use std::path::{Path, PathBuf};

/// `Result` with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong. Every variant has an errno ([`Error::errno`]) and a message that names the
/// file or tensor, gives both numbers where there are two, and says what to do where that is known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, and to which file.
        what: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A model directory or one of its files is not what it should be.
    #[error("{}: {problem}", file.display())]
    Invalid {
        /// The file or directory at fault.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The source file no longer has the bytes that its header promised.
    #[error("{}: truncated: needs {needs} bytes, has {has}; restore the file, or mount the model again", file.display())]
    Truncated {
        /// The source file.
        file: PathBuf,
        /// Where the read would have ended, in bytes from the start of the file.
        needs: u64,
        /// The size of the file now, in bytes.
        has: u64,
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

    /// `file` is not what it should be.
    pub fn invalid(file: impl AsRef<Path>, problem: impl Into<String>) -> Self {
        Error::Invalid {
            file: file.as_ref().to_path_buf(),
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

    /// What is wrong, where the file at fault was named already.
    pub fn about_its_file(&self) -> String {
        match self {
            Error::Invalid { problem, .. } => problem.clone(),
            other => other.to_string(),
        }
    }

    /// The errno that a system call on the mount answers with for this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io { source, .. } => match source.raw_os_error() {
                // What a file system's reader can make sense of; anything odd from beneath is EIO.
                Some(e @ (libc::EACCES | libc::EPERM | libc::ENOMEM | libc::ENOENT)) => e,
                _ => libc::EIO,
            },
            Error::Invalid { .. } | Error::Truncated { .. } | Error::Data { .. } => libc::EIO,
            Error::NotFound(_) => libc::ENOENT,
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
        assert_eq!(Error::invalid("a", "b").errno(), libc::EIO);
        assert_eq!(Error::data("t", "p").errno(), libc::EIO);
        assert_eq!(Error::NotFound("t".into()).errno(), libc::ENOENT);
        assert_eq!(Error::other(libc::EDQUOT, "full").errno(), libc::EDQUOT);
        let cut = Error::Truncated {
            file: "m.safetensors".into(),
            needs: 4294967304,
            has: 1073741824,
        };
        assert_eq!(cut.errno(), libc::EIO);
        assert!(
            cut.to_string()
                .contains("needs 4294967304 bytes, has 1073741824")
        );
    }
}
