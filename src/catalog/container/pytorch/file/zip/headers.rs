//! The local headers in front of the members. Only they know where a member's bytes begin, and they
//! must agree with the directory: other readers may believe the other one.

use std::ops::Range;

use rawzip::CompressionMethod;

use super::directory::{Directory, Member};
use super::{Refused, le};
use crate::catalog::Object;
use crate::catalog::container::pytorch::describe::shown_name;
use crate::catalog::container::pytorch::file::pieces;
use crate::catalog::container::pytorch::problems::Problems;
use crate::error::Result;

/// The length of a local header without the name and the extra fields.
const HEADER: u64 = 30;
const SIGNATURE: &[u8] = b"PK\x03\x04";

/// Flags of an encrypted member: its bytes, or what is stated about it.
const ENCRYPTED: u64 = 1 | 1 << 6 | 1 << 13;
/// The flag of a member whose sizes follow its bytes: here they may be anything.
const DESCRIPTOR: u64 = 1 << 3;

/// The tag of the extra field with sizes of 64 bits, and the size that refers to it.
const ZIP64: u64 = 1;
const IN_ZIP64: u64 = u32::MAX as u64;

/// Checks every member: what the directory states, its local header, and that it shares no byte with
/// another one. Stores where its bytes are.
///
/// # Errors
/// The file cannot be read.
pub(super) fn check_all(
    file: &dyn Object,
    directory: &mut Directory,
    problems: &mut Problems,
) -> Result<()> {
    let ranges = directory.members.iter().map(|m| range(directory, m));
    let mut gaps = Vec::with_capacity(directory.members.len());
    // The member that ends last of those so far, and where it ends.
    let mut last: Option<(&Member, u64)> = None;
    pieces::each(file, ranges, |number, bytes| {
        let Some(member) = directory.members.get(number) else {
            return Ok(false);
        };
        let header = Header { directory, member };
        gaps.push(0);
        let mut sound = match header.gap(bytes) {
            Ok(gap) => {
                let end = header.end(gap);
                let shares = last.filter(|(_, last)| member.header < *last);
                if let Some((other, other_end)) = shares {
                    problems.add(|| overlap(directory, (other, other_end), (member, end)));
                }
                if last.is_none_or(|(_, last)| last < end) {
                    last = Some((member, end));
                }
                shares.is_none().then_some(gap)
            }
            Err(problem) => {
                problems.add(|| problem);
                None
            }
        };
        if let Some(gap) = sound {
            match header.check(file, bytes, gap) {
                Ok(()) => {}
                Err(Refused::Failed(error)) => return Err(error),
                Err(Refused::Problem(problem)) => {
                    problems.add(|| problem);
                    sound = None;
                }
            }
        }
        if let Some(last) = gaps.last_mut() {
            *last = sound.unwrap_or_default();
        }
        Ok(!problems.enough())
    })?;
    for (member, gap) in directory.members.iter_mut().zip(gaps) {
        member.gap = gap;
    }
    Ok(())
}

/// Where the bytes of `member` are. It is checked without regard to the others.
///
/// # Errors
/// What is wrong with it, or the file cannot be read.
pub(super) fn check_one(
    file: &dyn Object,
    directory: &Directory,
    member: &Member,
) -> std::result::Result<Range<u64>, Refused> {
    let range = range(directory, member);
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.read_at(range.start, &mut bytes)?;
    let header = Header { directory, member };
    let gap = header.gap(&bytes).map_err(Refused::Problem)?;
    header.check(file, &bytes, gap)?;
    let data = member.header + u64::from(gap);
    Ok(data..data + member.size)
}

/// The bytes of a local header and its name, if the directory begins behind them; else none.
fn range(directory: &Directory, member: &Member) -> Range<u64> {
    let end = member
        .header
        .checked_add(HEADER + directory.name(member).len() as u64);
    match end.filter(|end| *end <= directory.start) {
        Some(end) => member.header..end,
        // Still in the order of the members.
        None => member.header.min(directory.start)..member.header.min(directory.start),
    }
}

/// A member and what is in front of it.
struct Header<'a> {
    directory: &'a Directory,
    member: &'a Member,
}

impl Header<'_> {
    fn shown(&self) -> String {
        self.directory.shown(self.member)
    }

    /// The length of the local header that begins with `bytes`, or why there is none.
    fn gap(&self, bytes: &[u8]) -> std::result::Result<u32, String> {
        let Member { header, .. } = self.member;
        if (bytes.len() as u64) < HEADER {
            return Err(format!(
                "member '{}': its local header should be at byte {header}, but the archive's directory begins at byte {}; the file is damaged, download it again",
                self.shown(),
                self.directory.start
            ));
        }
        if !bytes.starts_with(SIGNATURE) {
            return Err(format!(
                "member '{}': there is no local header at byte {header}, where the archive's directory has it (it begins with {:08x} instead of 504b0304); the file is damaged, download it again",
                self.shown(),
                u32::from_be_bytes(bytes.first_chunk().copied().unwrap_or_default())
            ));
        }
        Ok((HEADER + le(bytes, 26, 2) + le(bytes, 28, 2)) as u32)
    }

    /// Where the member ends if its local header has `gap` bytes.
    fn end(&self, gap: u32) -> u64 {
        let size = u64::from(gap).saturating_add(self.member.size);
        self.member.header.saturating_add(size)
    }

    /// Checks the local header that begins with `bytes` and has `gap` bytes.
    fn check(&self, file: &dyn Object, bytes: &[u8], gap: u32) -> std::result::Result<(), Refused> {
        let (directory, member) = (self.directory, self.member);
        let problem = |problem: String| {
            let name = self.shown();
            Err(Refused::Problem(format!("member '{name}' {problem}")))
        };
        let (flags, method) = (le(bytes, 6, 2), le(bytes, 8, 2));
        let listed = u64::from(member.method);
        if (flags | u64::from(member.flags)) & ENCRYPTED != 0 {
            return problem(
                "is encrypted; decrypt the archive first: unpack it, and pack it with zip -0"
                    .into(),
            );
        }
        let name = directory.name(member);
        let stored = !name.ends_with(b"/");
        if stored && (listed != 0 || method != 0) {
            return problem(compressed(listed, method));
        }
        if stored && member.size != member.unpacked {
            return problem(format!(
                "has {} bytes in the archive and {} unpacked, though it is not compressed; the file is damaged, download it again",
                member.size, member.unpacked
            ));
        }
        let local_length = le(bytes, 26, 2);
        let local_name = bytes.get(HEADER as usize..).unwrap_or_default();
        if local_length != name.len() as u64 || local_name != name {
            let local = local_name
                .get(..local_length as usize)
                .unwrap_or(local_name);
            return problem(format!(
                "is called '{}' ({local_length} bytes) in its local header at byte {}; the file is damaged, download it again",
                shown_name(local),
                member.header
            ));
        }
        let end = self.end(gap);
        if end > directory.start {
            return problem(format!(
                "needs bytes {} to {end}, but the archive's directory begins at byte {}; the file is damaged, download it again",
                member.header, directory.start
            ));
        }
        if flags & DESCRIPTOR == 0 {
            let (size, unpacked) = self.sizes(file, bytes, gap)?;
            if (size, unpacked) != (member.size, member.unpacked) {
                let (other, listed) = match size != member.size {
                    true => (size, member.size),
                    false => (unpacked, member.unpacked),
                };
                return problem(format!(
                    "has {other} bytes by its local header, and {listed} by the archive's directory; the file is damaged, download it again"
                ));
            }
        }
        Ok(())
    }

    /// Both sizes in a local header.
    fn sizes(&self, file: &dyn Object, bytes: &[u8], gap: u32) -> Result<(u64, u64)> {
        let (mut size, mut unpacked) = (le(bytes, 18, 4), le(bytes, 22, 4));
        if size != IN_ZIP64 && unpacked != IN_ZIP64 {
            return Ok((size, unpacked));
        }
        let fields = HEADER + le(bytes, 26, 2);
        let mut extra = vec![0; (u64::from(gap) - fields) as usize];
        file.read_at(self.member.header + fields, &mut extra)?;
        let mut rest = extra.as_slice();
        while rest.len() >= 4 {
            let (tag, length) = (le(rest, 0, 2), le(rest, 2, 2) as usize);
            let tail = rest.get(4..).unwrap_or_default();
            let field = tail.get(..length).unwrap_or(tail);
            if tag == ZIP64 {
                let mut at = 0;
                for (value, present) in [(&mut unpacked, 8), (&mut size, 8)] {
                    if *value == IN_ZIP64 && field.len() >= at + present {
                        *value = le(field, at, present);
                        at += present;
                    }
                }
                break;
            }
            rest = tail.get(length..).unwrap_or_default();
        }
        Ok((size, unpacked))
    }
}

/// The problem of a member with these methods in the archive's directory and in its local header.
fn compressed(listed: u64, local: u64) -> String {
    let called = |method: u64| match CompressionMethod::new(method as u16).name() {
        Some(name) => format!("method {method}, {}", name.to_lowercase()),
        None => format!("method {method}"),
    };
    let methods = match listed == local {
        true => called(listed),
        false => format!(
            "{} in the archive's directory, {} in its local header",
            called(listed),
            called(local)
        ),
    };
    format!(
        "is compressed ({methods}), but tensors are read in place; save it again in Python, torch.save(torch.load(F), G), or unpack it and pack it with zip -0"
    )
}

fn overlap(directory: &Directory, a: (&Member, u64), b: (&Member, u64)) -> String {
    let [(a, a_start, a_end), (b, b_start, b_end)] =
        [a, b].map(|(member, end)| (directory.shown(member), member.header, end));
    format!(
        "members '{a}' (bytes {a_start} to {a_end}) and '{b}' (bytes {b_start} to {b_end}) overlap; the file is damaged or hostile, download it again"
    )
}
