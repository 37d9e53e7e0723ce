//! Random operations on open files, compared with files in memory, as fsx does: what an operation leaves
//! behind (a position, a mapping, pages in a cache) is there for those that follow.

use std::fs::File as StdFile;
use std::io::{self, IoSliceMut, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Instant;

use memmap2::{MmapOptions, MmapRaw};

use crate::models::Scene;
use crate::numbers::Numbers;
use crate::readers::{File, content, copied, memory};
use crate::seed_and_time;

/// How many operations are printed if one goes wrong.
const HISTORY: usize = 40;
/// The longest read.
const LONGEST: usize = 300_000;

/// An open file, and what was done to it.
struct Open<'a> {
    of: &'a File,
    file: StdFile,
    /// Where `read` goes on.
    position: usize,
    map: Option<MmapRaw>,
    direct: bool,
}

impl Open<'_> {
    fn new<'a>(of: &'a File, numbers: &mut Numbers) -> io::Result<Open<'a>> {
        let direct = numbers.below(4) == 0;
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let file = StdFile::options()
            .read(true)
            .custom_flags(flags)
            .open(&of.path)?;
        Ok(Open {
            of,
            file,
            position: 0,
            map: None,
            direct,
        })
    }

    fn len(&self) -> usize {
        self.of.want.len()
    }

    /// One operation: what it was, and whether its bytes are right.
    fn step(&mut self, numbers: &mut Numbers) -> io::Result<(String, bool)> {
        let from = numbers.below(self.len() + 2);
        let most = *numbers.of(&[1, 50, 5_000, LONGEST]);
        let len = numbers.below(most + 1);
        let end = self.len().min(from.saturating_add(len));
        let want = self.of.want.get(from..end).unwrap_or_default();
        Ok(match numbers.below(10) {
            0 | 1 => (
                format!("pread {len} at {from}"),
                self.pread(from, len)? == want,
            ),
            2 => (
                format!("preadv {len} at {from}"),
                self.preadv(from, len)? == want,
            ),
            3 => {
                let at = self.position.min(self.len());
                let want = &self.of.want[at..self.len().min(at + len)];
                let mut bytes = Vec::new();
                (&self.file).take(len as u64).read_to_end(&mut bytes)?;
                self.position = at + bytes.len();
                (format!("read {len} at {at}, where it was"), bytes == want)
            }
            4 => {
                self.position = from;
                (&self.file).seek(SeekFrom::Start(from as u64))?;
                (format!("seek to {from}"), true)
            }
            5 => (
                format!("sendfile {len} at {from}"),
                self.sendfile(from, len)? == want,
            ),
            6 => {
                let map =
                    (self.len() > 0).then(|| MmapOptions::new().map_raw_read_only(&self.file));
                self.map = map.transpose()?;
                ("mmap".into(), true)
            }
            7 | 8 if self.map.is_some() => {
                let map = self.map.as_ref().expect("just looked");
                let n = want.len();
                let at = map.as_ptr().wrapping_add(from);
                // SAFETY: the range is inside the mapping, which lives until the end of this operation.
                let same = n == 0 || unsafe { copied(at, n) }? == want;
                (format!("{n} of the mapping at {from}"), same)
            }
            7 | 8 => (
                format!("pread {len} at {from}"),
                self.pread(from, len)? == want,
            ),
            _ => {
                // The pages go, so that the next reads come from the daemon again.
                // SAFETY: the descriptor is open.
                unsafe {
                    libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED)
                };
                ("fadvise: not needed".into(), true)
            }
        })
    }

    fn pread(&self, from: usize, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0xA5; len];
        let mut done = 0;
        while done < len {
            match self
                .file
                .read_at(&mut bytes[done..], (from + done) as u64)?
            {
                0 => break,
                n => done += n,
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    /// Into three buffers. A short count is an end of the file.
    fn preadv(&self, from: usize, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0xA5; len];
        let (a, rest) = bytes.split_at_mut(len / 7);
        let (b, c) = rest.split_at_mut(rest.len() / 2);
        let mut room = [IoSliceMut::new(a), IoSliceMut::new(b), IoSliceMut::new(c)];
        // SAFETY: an IoSliceMut is an iovec, and the buffers live on.
        let n = unsafe {
            libc::preadv(
                self.file.as_raw_fd(),
                room.as_mut_ptr().cast(),
                3,
                from as i64,
            )
        };
        bytes.truncate(usize::try_from(n).map_err(|_| io::Error::last_os_error())?);
        Ok(bytes)
    }

    fn sendfile(&self, from: usize, len: usize) -> io::Result<Vec<u8>> {
        let to = memory()?;
        let mut at = from as i64;
        let mut left = len;
        while left > 0 {
            // SAFETY: both descriptors are open, and `at` is a number of ours.
            let n = unsafe { libc::sendfile(to.as_raw_fd(), self.file.as_raw_fd(), &mut at, left) };
            match usize::try_from(n) {
                Err(_) => return Err(io::Error::last_os_error()),
                Ok(0) => break,
                Ok(n) => left -= n,
            }
        }
        content(to)
    }
}

#[test]
fn long_sequences_of_operations_give_what_a_file_in_memory_does() {
    let (seed, time) = seed_and_time();
    let mut numbers = Numbers::new(seed ^ 0xF5);
    let scene = Scene::new(seed);
    let until = Instant::now() + time / 2;
    let (mut count, mut rounds) = (0u64, 0);
    while Instant::now() < until || rounds == 0 {
        rounds += 1;
        let of = numbers.of(&scene.files);
        let mut open = Open::new(of, &mut numbers).unwrap();
        let mut history: Vec<String> = Vec::new();
        for _ in 0..numbers.below(200) {
            let done = open.step(&mut numbers);
            let (what, right) = done.unwrap_or_else(|e| (e.to_string(), false));
            history.push(what);
            count += 1;
            let last = &history[history.len().saturating_sub(HISTORY)..];
            assert!(
                right,
                "{:?}{}, STRESS_SEED={seed}; the last one is wrong:\n{}",
                of.path,
                if open.direct { " with O_DIRECT" } else { "" },
                last.join("\n")
            );
        }
    }
    println!("{count} operations on {rounds} open files");
}
