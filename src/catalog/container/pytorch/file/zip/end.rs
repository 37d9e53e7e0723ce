//! The records at the end of an archive: where the central directory is, and how much it holds.

use super::{Archive, Refused, le};
use crate::catalog::Object;

/// The signature and the length of the end record, and of the two records in front of it in an archive
/// beyond 4 GiB or 65,535 members.
const END: usize = 22;
const LOCATOR: (&[u8], usize) = (b"PK\x06\x07", 20);
const END64: (&[u8], usize) = (b"PK\x06\x06", 56);

/// Bytes of a directory's entry at least.
const ENTRY: u64 = 46;

/// The most members that are read.
const MAX_ENTRIES: u64 = 1 << 24;

/// Where the central directory is.
pub(super) struct End {
    /// Its first byte.
    pub directory: u64,
    /// Its length in bytes.
    pub size: u64,
    /// How many entries it has.
    pub entries: u64,
}

impl End {
    /// Reads the records around the end record at `at`, and checks them.
    ///
    /// # Errors
    /// They are impossible, or the file cannot be read.
    pub fn read(file: &dyn Object, at: u64) -> Result<End, Refused> {
        let mut record = [0; END];
        file.read_at(at, &mut record)?;
        let classic = Record {
            disk: le(&record, 4, 2),
            directory_disk: le(&record, 6, 2),
            here: le(&record, 8, 2),
            entries: le(&record, 10, 2),
            size: le(&record, 12, 4),
            directory: le(&record, 16, 4),
        };
        let (record, ends) = match Record::of_64_bits(file, at)? {
            Some((large, start)) => (classic.widened(&large)?, start),
            None => (classic, at),
        };
        record.check(file, ends)?;
        Ok(End {
            directory: record.directory,
            size: record.size,
            entries: record.entries,
        })
    }

    /// That the library found the same directory.
    pub fn agrees(&self, archive: &Archive<'_>) -> Result<(), Refused> {
        let theirs = (archive.directory_offset(), archive.entries_hint());
        if theirs == (self.directory, self.entries) {
            return Ok(());
        }
        Err(Refused::Problem(format!(
            "its end records contradict each other: {} entries from byte {}, or {} from byte {}; the file is damaged, download it again",
            self.entries, self.directory, theirs.1, theirs.0
        )))
    }
}

/// What an end record states.
struct Record {
    disk: u64,
    directory_disk: u64,
    /// Entries on this disk.
    here: u64,
    entries: u64,
    size: u64,
    directory: u64,
}

impl Record {
    /// The record with numbers of 64 bits that belongs to the end record at `at`, and where it is.
    fn of_64_bits(file: &dyn Object, at: u64) -> Result<Option<(Record, u64)>, Refused> {
        let Some(locator_at) = at.checked_sub(LOCATOR.1 as u64) else {
            return Ok(None);
        };
        let mut locator = [0; LOCATOR.1];
        file.read_at(locator_at, &mut locator)?;
        let start = le(&locator, 8, 8);
        let fits = start
            .checked_add(END64.1 as u64)
            .is_some_and(|end| end <= locator_at);
        if !locator.starts_with(LOCATOR.0) || !fits {
            return Ok(None);
        }
        let mut record = [0; END64.1];
        file.read_at(start, &mut record)?;
        if !record.starts_with(END64.0) {
            return Ok(None);
        }
        let disks = le(&locator, 16, 4);
        let found = Record {
            // The locator counts disks, and names the one that this record is on.
            disk: le(&record, 16, 4)
                .max(le(&locator, 4, 4))
                .max(disks.saturating_sub(1)),
            directory_disk: le(&record, 20, 4),
            here: le(&record, 24, 8),
            entries: le(&record, 32, 8),
            size: le(&record, 40, 8),
            directory: le(&record, 48, 8),
        };
        Ok(Some((found, start)))
    }

    /// The record with 64 bits instead, if it has the same numbers where this one's are large enough.
    fn widened(&self, large: &Record) -> Result<Record, Refused> {
        let (small, middle) = (u64::from(u16::MAX), u64::from(u32::MAX));
        let pairs = [
            (self.entries, large.entries, small, "has entries:"),
            (self.here, large.here, small, "has entries on this disk:"),
            (self.size, large.size, middle, "has bytes:"),
            (self.directory, large.directory, middle, "is at byte"),
        ];
        for (short, long, none, what) in pairs {
            if short != none && short != long {
                return Err(Refused::Problem(format!(
                    "its two end records contradict each other: the archive's directory {what} {short} by one record, {long} by the other; the file is damaged, download it again"
                )));
            }
        }
        let disk = |short: u64, long: u64| match short == u64::from(u16::MAX) {
            true => long,
            false => short.max(long),
        };
        Ok(Record {
            disk: disk(self.disk, large.disk),
            directory_disk: disk(self.directory_disk, large.directory_disk),
            ..*large
        })
    }

    /// That the archive is one file, and that its directory ends at byte `ends`, where the record is.
    fn check(&self, file: &dyn Object, ends: u64) -> Result<(), Refused> {
        let problem = |problem: String| Err(Refused::Problem(problem));
        if self.disk != 0 || self.directory_disk != 0 || self.here != self.entries {
            return problem(format!(
                "is part {} of an archive in several parts, with {} of its {} members; join the parts, or download it as one file",
                self.disk.saturating_add(1),
                self.here,
                self.entries
            ));
        }
        let (start, size) = (self.directory, self.size);
        if start.checked_add(size) != Some(ends) {
            return problem(format!(
                "the archive's directory should have {size} bytes from byte {start} on, but its end record is at byte {ends} of {}; the file is cut short, damaged, or has other bytes in front: download it again",
                file.len()
            ));
        }
        if self.entries > MAX_ENTRIES {
            return problem(format!(
                "the archive has {} members, more than the {MAX_ENTRIES} that stfs reads",
                self.entries
            ));
        }
        if self.entries > size / ENTRY {
            return problem(format!(
                "the archive's directory should have {} entries, but its {size} bytes can hold {} at most; the file is damaged, download it again",
                self.entries,
                size / ENTRY
            ));
        }
        Ok(())
    }
}
