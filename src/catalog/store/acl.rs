//! POSIX access control lists, in the form in which Linux keeps them in `system.posix_acl_access`.

use super::stat::Opaque;

/// The extended attribute that holds a file's list.
pub const ACL_XATTR: &str = "system.posix_acl_access";

/// An access control list that says more than permission bits can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl(Vec<Entry>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// The version at the start of the attribute.
const VERSION: u32 = 2;
/// Bytes of an entry in the attribute.
const ENTRY: usize = 8;

// Tags of entries.
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

// Bits of an entry's permissions.
const READ: u16 = 4;
const SEARCH: u16 = 1;

impl Acl {
    /// The list in the attribute's value; `None` if the permission bits say the same.
    ///
    /// # Errors
    /// It is not a list in this form.
    pub fn parse(value: &[u8]) -> Result<Option<Acl>, Opaque> {
        let (version, entries) = value.split_first_chunk().ok_or(Opaque)?;
        let (entries, rest) = entries.as_chunks::<ENTRY>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
            return Err(Opaque);
        }
        let entry = |[a, b, c, d, id @ ..]: [u8; ENTRY]| Entry {
            tag: u16::from_le_bytes([a, b]),
            perm: u16::from_le_bytes([c, d]),
            id: u32::from_le_bytes(id),
        };
        let entries: Vec<Entry> = entries.iter().copied().map(entry).collect();
        let known = |e: &Entry| matches!(e.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER);
        if !entries.iter().all(known) {
            return Err(Opaque);
        }
        let plain = |e: &Entry| matches!(e.tag, USER_OBJ | GROUP_OBJ | OTHER);
        Ok((!entries.iter().all(plain)).then_some(Acl(entries)))
    }

    /// The attribute's value for a file of the mount (everyone who may read a directory may search it, and
    /// nobody may write or execute anything).
    pub fn served(&self, directory: bool) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            let read = entry.perm & READ;
            let perm = match directory {
                true => read | (entry.perm & SEARCH) | (read >> 2),
                false => read,
            };
            value.extend(entry.tag.to_le_bytes());
            value.extend(perm.to_le_bytes());
            value.extend(entry.id.to_le_bytes());
        }
        value
    }

    /// Whether the list lets a user read who is not the file's owner; `group` is the file's. As
    /// [`Stat::lets_read`](super::Stat::lets_read).
    pub fn lets_read(&self, uid: u32, group: u32, is_in: impl Fn(u32) -> Option<bool>) -> bool {
        let find = |tag| self.0.iter().find(move |e| e.tag == tag);
        let mask = find(MASK).map_or(READ, |e| e.perm);
        let reads = |e: &Entry| e.perm & mask & READ != 0;
        if let Some(named) = self.0.iter().find(|e| e.tag == USER && e.id == uid) {
            return reads(named);
        }
        let (mut refused, mut doubtful) = (false, false);
        for entry in &self.0 {
            let gid = match entry.tag {
                GROUP_OBJ => group,
                GROUP => entry.id,
                _ => continue,
            };
            match (is_in(gid), reads(entry)) {
                (Some(true), true) => return true,
                (Some(true), false) => refused = true,
                (None, false) => doubtful = true,
                (None, true) | (Some(false), _) => {}
            }
        }
        !refused && !doubtful && find(OTHER).is_some_and(|e| e.perm & READ != 0)
    }

    /// `user:7:---, user:8:r--, group::---, group:9:r--, mask::r--, other::---`
    #[cfg(test)]
    pub(crate) fn example() -> Vec<u8> {
        const NONE: u32 = u32::MAX;
        let entries = [
            (USER_OBJ, 6, NONE),
            (USER, 0, 7),
            (USER, 4, 8),
            (GROUP_OBJ, 0, NONE),
            (GROUP, 6, 9),
            (MASK, 4, NONE),
            (OTHER, 0, NONE),
        ];
        let list = entries.map(|(tag, perm, id)| Entry { tag, perm, id });
        let mut value = VERSION.to_le_bytes().to_vec();
        for e in list {
            value.extend([e.tag.to_le_bytes(), e.perm.to_le_bytes()].concat());
            value.extend(e.id.to_le_bytes());
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_served_without_what_a_mount_does_not_give() {
        let value = Acl::example();
        let acl = Acl::parse(&value).unwrap().unwrap();
        let served = Acl::parse(&acl.served(false)).unwrap().unwrap();
        assert!(served.0.iter().all(|e| e.perm & !READ == 0));
        let directory = Acl::parse(&acl.served(true)).unwrap().unwrap();
        assert_eq!(directory.0[2].perm, READ | SEARCH);
        for cut in (0..value.len()).filter(|cut| (cut + 4) % ENTRY != 0) {
            assert_eq!(Acl::parse(&value[..cut]), Err(Opaque), "{cut}");
        }
        let mut unknown = value.clone();
        unknown[4] = 0x40;
        assert_eq!(Acl::parse(&unknown), Err(Opaque));
        let plain = [&value[..12], &value[28..36], &value[52..]].concat();
        assert_eq!(Acl::parse(&plain), Ok(None));
    }

    #[test]
    fn entries_are_evaluated_in_the_kernels_order() {
        let acl = Acl::parse(&Acl::example()).unwrap().unwrap();
        let is_in = |groups: &'static [u32]| move |g| Some(groups.contains(&g));
        assert!(
            !acl.lets_read(7, 2, is_in(&[9])),
            "a named user comes first"
        );
        assert!(acl.lets_read(8, 2, is_in(&[])));
        assert!(
            acl.lets_read(5, 2, is_in(&[2, 9])),
            "one group that may is enough"
        );
        assert!(!acl.lets_read(5, 2, is_in(&[2])));
        assert!(!acl.lets_read(5, 2, is_in(&[])));
        assert!(!acl.lets_read(5, 2, |_| None));
    }
}
