//! What a file is, by its first bytes, and what it is instead of a checkpoint: each with what to do.
//! The name's ending decides nothing.

use super::zip;
use crate::catalog::Object;
use crate::error::{Error, Location, Result};

/// How many of a file's first bytes [`Head::of`] looks at.
const HEAD: usize = 512;

/// Where a tar archive has its name, and the name.
const TAR: (usize, &[u8]) = (257, b"ustar");

/// How gzip's files begin: its magic number, and the only method.
const GZIP: &[u8] = b"\x1f\x8b\x08";

/// The pickle of the number 0x1950a86a20f9469cfc6c, with which files of torch < 1.6 begin: protocols 2
/// and later (after PROTO, and perhaps FRAME), and before.
const MAGIC: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e";
const MAGIC_AS_TEXT: &[u8] = b"L119547037146038801333356L\n.";

/// Opcodes that a pickle can begin with, after its protocol.
const FIRST_OPCODES: &[u8] = b"(])}c\x8f\x88\x89\x8a\x8b\x8c\x8d\x8e\x95\x96BCFGIJKLMNSTUVX";

/// What a file is by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Head {
    /// A ZIP archive: a checkpoint of torch 1.6 or later, or something else ([`other`] names it).
    Zip,
    /// A checkpoint as torch wrote them before 1.6.
    Legacy,
    /// A pickle of something else.
    Pickle,
    /// A tar archive, as the very first releases wrote them.
    Tar,
    /// Anything that gzip compressed.
    Gzip,
}

impl Head {
    /// What a file that begins with `head` is ([`HEAD`] bytes are enough); `None` if it has nothing to
    /// do with PyTorch.
    pub fn of(head: &[u8]) -> Option<Head> {
        // A ZIP archive that is empty, or one part of several, has another signature in front.
        if [b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08"]
            .iter()
            .any(|signature| head.starts_with(*signature))
        {
            return Some(Head::Zip);
        }
        if head.starts_with(MAGIC_AS_TEXT) {
            return Some(Head::Legacy);
        }
        if let [0x80, protocol, rest @ ..] = head {
            let body = match rest {
                [0x95, framed @ ..] => framed.get(8..).unwrap_or_default(),
                _ => rest,
            };
            let first = rest.first();
            return match protocol {
                _ if body.starts_with(MAGIC) => Some(Head::Legacy),
                // Any binary file may begin like this, one of safetensors too.
                2..=5 if first.is_some_and(|opcode| FIRST_OPCODES.contains(opcode)) => {
                    Some(Head::Pickle)
                }
                _ => None,
            };
        }
        if head.starts_with(GZIP) {
            return Some(Head::Gzip);
        }
        if begins_with_global(head) {
            return Some(Head::Pickle);
        }
        let (at, name) = TAR;
        let tar = head.get(at..).is_some_and(|tail| tail.starts_with(name));
        tar.then_some(Head::Tar)
    }

    /// Of a file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_file(file: &dyn Object) -> Result<Option<Head>> {
        let mut head = vec![0; file.len().min(HEAD as u64) as usize];
        file.read_at(0, &mut head)?;
        Ok(Head::of(&head))
    }

    /// Whether such a file may be a checkpoint.
    pub fn may_be_checkpoint(self) -> bool {
        matches!(self, Head::Zip | Head::Legacy)
    }
}

/// Whether `head` is a pickle of protocol 0 whose first opcode names something, as the shortest hostile
/// ones do: `cos\nsystem\n(`. Nothing else in it could be told from text.
fn begins_with_global(head: &[u8]) -> bool {
    let Some(rest) = head.strip_prefix(b"c") else {
        return false;
    };
    let mut lines = rest.splitn(3, |byte| *byte == b'\n');
    let mut is_name = || {
        lines.next().is_some_and(|line| {
            !line.is_empty()
                && line
                    .iter()
                    .all(|b| b.is_ascii_alphanumeric() || b"_.".contains(b))
        })
    };
    is_name()
        && is_name()
        && lines
            .next()
            .and_then(<[u8]>::first)
            .is_some_and(|opcode| FIRST_OPCODES.contains(opcode))
}

/// What else a file can be that begins like one of PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Other {
    TorchScript,
    Export,
    Package,
    Npz,
    Zip,
    Pickle,
    Tar,
    Gzip,
}

impl Other {
    /// What it is, and what to do.
    pub fn problem(self) -> &'static str {
        match self {
            Other::TorchScript => {
                "is a TorchScript archive (torch.jit.save): a program, not a checkpoint; save its weights in Python: torch.save(torch.jit.load(F).state_dict(), G)"
            }
            Other::Export => {
                "is a torch.export archive (.pt2): a program, not a checkpoint; save its weights in Python: torch.save(torch.export.load(F).state_dict, G)"
            }
            Other::Package => {
                "is a torch.package archive: programs and what they need, not a checkpoint; save the model's state_dict() in Python with torch.save"
            }
            Other::Npz => {
                "is an .npz archive of NumPy arrays, not a checkpoint; convert it in Python: safetensors.numpy.save_file(dict(numpy.load(F)), G)"
            }
            Other::Zip => {
                "is a ZIP archive, but not of torch.save: no member is called NAME/data.pkl; give a checkpoint, or unpack it"
            }
            Other::Pickle => {
                "is a pickle, but not of torch.save (pickle.dump and joblib write such files); if you trust it, load it in Python and write its tensors with torch.save"
            }
            Other::Gzip => "is compressed with gzip; decompress it with gunzip",
            Other::Tar => {
                "is a tar archive, as only the first releases of PyTorch wrote checkpoints; if it is one and you trust it, convert it in Python: torch.save(torch.load(F, weights_only=False), G)"
            }
        }
    }

    /// The error for the file at `at`.
    pub fn refusal(self, at: impl Into<Location>) -> Error {
        Error::invalid(at, self.problem())
    }
}

/// What `file` is instead of a checkpoint: recognized by its first bytes and, if it is a ZIP archive, by
/// the names of its members. `None` if it is a checkpoint (perhaps a damaged one), or nothing of
/// PyTorch's.
///
/// # Errors
/// It cannot be read.
pub(super) fn other(file: &dyn Object) -> Result<Option<Other>> {
    Ok(match Head::of_file(file)? {
        Some(Head::Pickle) => Some(Other::Pickle),
        Some(Head::Tar) => Some(Other::Tar),
        Some(Head::Gzip) => Some(Other::Gzip),
        Some(Head::Zip) => zip::other(file)?,
        Some(Head::Legacy) | None => None,
    })
}

/// Whether `file` is a checkpoint, perhaps a damaged one.
///
/// # Errors
/// It cannot be read.
pub(in super::super) fn is_checkpoint(file: &dyn Object) -> Result<bool> {
    let head = Head::of_file(file)?;
    Ok(head.is_some_and(Head::may_be_checkpoint) && other(file)?.is_none())
}

/// The error for the directory at `at`, if by these names it is a checkpoint of
/// `torch.distributed.checkpoint` (FSDP, DCP).
pub(in super::super) fn of_directory<'a>(
    at: &Location,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<Error> {
    let (mut metadata, mut pieces) = (false, false);
    for name in names {
        metadata |= name == ".metadata";
        pieces |= name.ends_with(".distcp");
    }
    (metadata && pieces).then(|| {
        Error::invalid(
            at,
            "is a checkpoint of torch.distributed.checkpoint (FSDP, DCP), whose tensors are in pieces; join them: python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIR OUT.pt, then mount OUT.pt",
        )
    })
}

/// The error for a file that has the name of a checkpoint, and nothing else of one.
pub(in super::super) fn unknown(at: impl Into<Location>) -> Error {
    Error::invalid(
        at,
        "is not a PyTorch checkpoint: it does not begin like a file of torch.save; download it again",
    )
}
