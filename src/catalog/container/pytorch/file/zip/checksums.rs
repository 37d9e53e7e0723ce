//! The checksums of the pickle and the small members, for `verify`. (The storages' own would mean to read
//! the whole file, and torch can leave them out.)

use rawzip::Crc32;

use super::directory::{Directory, Member};
use crate::catalog::Object;
use crate::catalog::container::pytorch::pickle::MAX_PICKLE;
use crate::catalog::container::pytorch::problems::Problems;
use crate::error::Result;

/// How long a member other than the pickle may be to be checked, in bytes.
const SMALL: u64 = 64 << 10;

/// How many bytes are read at a time.
const CHUNK: u64 = 1 << 20;

/// Compares the checksums of the members below `root` that are not storages. 0 means that there is none.
///
/// # Errors
/// The file cannot be read.
pub(super) fn check(
    file: &dyn Object,
    directory: &Directory,
    root: &[u8],
    problems: &mut Problems,
) -> Result<()> {
    for member in &directory.members {
        let Some(name) = directory.name(member).strip_prefix(root) else {
            continue;
        };
        let most = match name {
            b"data.pkl" => MAX_PICKLE,
            _ if name.starts_with(b"data/") => 0,
            _ => SMALL,
        };
        if member.crc == 0 || member.size > most {
            continue;
        }
        if let Some(is) = checksum(file, member)?
            && is != member.crc
        {
            problems.add(|| {
                format!(
                    "member '{}' has the CRC-32 {is:08x}, but the archive's directory has {:08x}; the file is damaged, download it again",
                    directory.shown(member),
                    member.crc
                )
            });
        }
    }
    Ok(())
}

fn checksum(file: &dyn Object, member: &Member) -> Result<Option<u32>> {
    let Some(bytes) = member.bytes() else {
        return Ok(None);
    };
    let mut crc = Crc32::new();
    let mut buffer = Vec::new();
    let mut at = bytes.start;
    while at < bytes.end {
        buffer.resize((bytes.end - at).min(CHUNK) as usize, 0);
        file.read_at(at, &mut buffer)?;
        crc.update(&buffer);
        at += buffer.len() as u64;
    }
    Ok(Some(crc.checksum()))
}
