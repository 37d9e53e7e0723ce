//! The central directory: the members' names, sizes and places.

use std::cell::RefCell;
use std::io;
use std::ops::Range;

use rawzip::{ErrorKind, MAX_CENTRAL_DIRECTORY_RECORD_SIZE, ReaderAt, ZipLocator};

use super::end::End;
use super::{Archive, Refused, le};
use crate::catalog::Object;
use crate::catalog::container::pytorch::describe;
use crate::catalog::container::pytorch::file::pieces;
use crate::error::Error;

/// How far from the end of the file the end record is looked for, in bytes: its comment may have 65,535.
const SEARCHED: u64 = 1 << 20;
/// Its length without a comment.
const END: u64 = 22;

/// The most bytes of names that are kept.
const MAX_NAMES: u64 = 256 << 20;

/// Where an entry has the disk that its member begins on.
const DISK: u64 = 34;

/// A member of an archive, as the directory has it.
pub(super) struct Member {
    /// Where its local header should be.
    pub header: u64,
    /// Its length in the archive, in bytes.
    pub size: u64,
    /// Its length once decompressed.
    pub unpacked: u64,
    /// The length of its local header, once that is read; 0 if it is not as it should be. (There may be
    /// 16 million members, so an `Option` is too long.)
    pub gap: u32,
    pub crc: u32,
    /// Where its name begins, and how long it is.
    name: u32,
    name_length: u16,
    pub flags: u16,
    pub method: u16,
}

// With their names and two orders, 16 million members stay below 1.5 GiB.
const _: () = assert!(size_of::<Member>() <= 48);

impl Member {
    /// Its bytes, if its local header was found to be as it should be.
    pub fn bytes(&self) -> Option<Range<u64>> {
        let data = self.header.checked_add(u64::from(self.gap))?;
        (self.gap > 0).then_some(data..data.checked_add(self.size)?)
    }
}

/// The members of an archive, ordered by the places of their local headers.
pub(super) struct Directory {
    pub members: Vec<Member>,
    /// All names, one after another.
    names: Vec<u8>,
    /// The members, ordered by name.
    by_name: Vec<u32>,
    /// Where the members must end: the directory's own first byte.
    pub start: u64,
}

impl Directory {
    /// Reads the directory of an archive.
    ///
    /// # Errors
    /// It is damaged, or the file cannot be read.
    pub fn read(file: &dyn Object) -> Result<Directory, Refused> {
        let source = Source {
            file,
            failed: RefCell::default(),
        };
        let mut buffer = vec![0; MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
        let locator = ZipLocator::new().max_search_space(SEARCHED);
        // The signature of a record that does not fit behind it is something else.
        let search_from = file.len().saturating_sub(END - 4);
        let located = locator.locate_in_reader(&source, &mut buffer, search_from);
        source.check()?;
        let found = match &located {
            Ok(archive) => Some(archive.eocd_offset()),
            Err((_, error)) => error.eocd_offset(),
        };
        let Some(found) = found else {
            return Err(Refused::Problem(format!(
                "is cut short or damaged: it has {} bytes, and no end record of a ZIP archive among the last {}; download it again",
                file.len(),
                file.len().min(SEARCHED)
            )));
        };
        let end = End::read(file, found)?;
        let archive = located.map_err(|(_, error)| {
            Refused::Problem(format!(
                "the archive's end record at byte {found} of {} is damaged ({error}); download it again",
                file.len()
            ))
        })?;
        end.agrees(&archive)?;
        let mut directory = Directory {
            members: Vec::with_capacity(end.entries as usize),
            names: Vec::new(),
            by_name: Vec::new(),
            start: end.directory,
        };
        let places = directory.walk(&archive, &end, &mut buffer);
        source.check()?;
        directory.check_disks(file, &places?)?;
        directory.order();
        Ok(directory)
    }

    /// Adds all entries. Returns where they are.
    fn walk(
        &mut self,
        archive: &Archive<'_>,
        end: &End,
        buffer: &mut [u8],
    ) -> Result<Vec<u64>, Refused> {
        let problem = |problem: String| Err(Refused::Problem(problem));
        let mut places = Vec::with_capacity(end.entries as usize);
        let mut entries = archive.entries(buffer);
        loop {
            let number = self.members.len() as u64;
            let entry = match entries.next_entry() {
                Ok(None) if number == end.entries => return Ok(places),
                Ok(Some(entry)) if number < end.entries => entry,
                Ok(found) => {
                    return problem(format!(
                        "the archive's directory should have {} entries, but has {}; the file is damaged, download it again",
                        end.entries,
                        match found {
                            Some(_) => "more".to_string(),
                            None => number.to_string(),
                        }
                    ));
                }
                Err(error) => {
                    let why = match error.kind() {
                        ErrorKind::InvalidSignature { .. } => "has another signature",
                        ErrorKind::Eof => "goes past the directory's end",
                        _ => "is damaged",
                    };
                    return problem(format!(
                        "entry {} of {} in the archive's directory (bytes {} to {}) {why}; the file is damaged, download it again",
                        number + 1,
                        end.entries,
                        end.directory,
                        end.directory + end.size
                    ));
                }
            };
            let path = entry.file_path();
            let name = path.as_ref();
            let (at, length) = (self.names.len(), name.len());
            if (at + length) as u64 > MAX_NAMES {
                return problem(format!(
                    "the names of the archive's members have more than the {MAX_NAMES} bytes that stfs reads"
                ));
            }
            let (size, unpacked) = (entry.compressed_size_hint(), entry.uncompressed_size_hint());
            self.names.extend_from_slice(name);
            places.push(entry.central_directory_offset());
            self.members.push(Member {
                header: entry.local_header_offset(),
                size,
                unpacked,
                gap: 0,
                crc: entry.crc32(),
                name: at as u32,
                name_length: length as u16,
                flags: entry.flags().bits(),
                method: entry.compression_method().as_u16(),
            });
        }
    }

    /// That no entry puts its member on another disk. (The library does not return the disk.)
    fn check_disks(&self, file: &dyn Object, places: &[u64]) -> Result<(), Refused> {
        let ranges = places.iter().map(|at| at + DISK..at + DISK + 2);
        let mut elsewhere = None;
        pieces::each(file, ranges, |number, disk| {
            let disk = le(disk, 0, 2);
            // All ones: see the ZIP64 field, which has a number only if 65,535 is not enough.
            if disk != 0 && disk != u64::from(u16::MAX) {
                elsewhere = self.members.get(number).map(|member| (member, disk));
            }
            Ok(elsewhere.is_none())
        })?;
        match elsewhere {
            None => Ok(()),
            Some((member, disk)) => Err(Refused::Problem(format!(
                "member '{}' begins on part {} of an archive in several parts; join the parts, or download it as one file",
                self.shown(member),
                disk + 1
            ))),
        }
    }

    fn order(&mut self) {
        if !self.members.is_sorted_by_key(|member| member.header) {
            self.members.sort_by_key(|member| member.header);
        }
        // Most names differ soon after what they have in common: eight bytes of each, kept together, are
        // compared ten times as fast as the names themselves.
        let common = self.common();
        let mut by_name: Vec<(u64, u32)> = (0..self.members.len() as u32)
            .map(|number| {
                let rest = self.name_of(number).get(common..).unwrap_or_default();
                let mut start = [0; 8];
                for (to, from) in start.iter_mut().zip(rest) {
                    *to = *from;
                }
                (u64::from_be_bytes(start), number)
            })
            .collect();
        by_name.sort_unstable_by(|(a, i), (b, j)| {
            let whole = || (self.name_of(*i), i).cmp(&(self.name_of(*j), j));
            a.cmp(b).then_with(whole)
        });
        self.by_name = by_name.into_iter().map(|(_, number)| number).collect();
    }

    /// How many bytes all names begin with alike.
    fn common(&self) -> usize {
        let mut names = self.members.iter().map(|member| self.name(member));
        let Some(first) = names.next() else {
            return 0;
        };
        names.fold(first.len(), |common, name| {
            let same = first.iter().take(common).zip(name);
            same.take_while(|(a, b)| a == b).count()
        })
    }

    fn name_of(&self, number: u32) -> &[u8] {
        let member = self.members.get(number as usize);
        member.map_or(&[], |member| self.name(member))
    }

    /// A member's name.
    pub fn name(&self, member: &Member) -> &[u8] {
        let (at, length) = (member.name as usize, usize::from(member.name_length));
        self.names.get(at..at + length).unwrap_or_default()
    }

    /// A member's name for messages.
    pub fn shown(&self, member: &Member) -> String {
        describe::shown_name(self.name(member))
    }

    /// The places of all members among [`Directory::members`], with their names, ordered by name.
    pub fn by_name(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let numbers = self.by_name.iter();
        numbers.map(|&number| (number as usize, self.name_of(number)))
    }

    /// The place among [`Directory::members`] of the member of that name, the first one if there are
    /// several.
    pub fn find(&self, name: &[u8]) -> Option<usize> {
        let first = self
            .by_name
            .partition_point(|&number| self.name_of(number) < name);
        let number = *self.by_name.get(first)?;
        (self.name_of(number) == name).then_some(number as usize)
    }

    /// Pairs of members of one name.
    pub fn twice(&self) -> impl Iterator<Item = (&Member, &Member)> {
        let pairs = self.by_name.windows(2).filter_map(|pair| match pair {
            [a, b] => Some((
                self.members.get(*a as usize)?,
                self.members.get(*b as usize)?,
            )),
            _ => None,
        });
        pairs.filter(|(a, b)| self.name(a) == self.name(b))
    }
}

/// A file, for the library. It reads past the file's end as if nothing were there.
pub(super) struct Source<'a> {
    file: &'a dyn Object,
    /// The error that ended reading: the library keeps only its text.
    failed: RefCell<Option<Error>>,
}

impl Source<'_> {
    fn check(&self) -> Result<(), Refused> {
        match self.failed.take() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}

impl ReaderAt for Source<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.file.len().saturating_sub(offset);
        let n = left.min(buf.len() as u64) as usize;
        let buf = buf.get_mut(..n).unwrap_or_default();
        if n > 0
            && let Err(error) = self.file.read_at(offset, buf)
        {
            let io = io::Error::other(error.to_string());
            self.failed.replace(Some(error));
            return Err(io);
        }
        Ok(n)
    }
}
