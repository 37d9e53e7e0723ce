//! What an open source file looks like, and whether that has changed.
//!
//! Two answers come from here. Whether the file was written to since it was opened; and whether what the
//! kernel has cached of the mount's own files is still right. For the second, a write must not go unseen,
//! and a write through a shared mapping changes no time while its page is dirty already. So the pages that
//! are dirty when the mount begins, or after a change, are written back first ([`Watch::settle`]): the next
//! write to each then faults, and the file system stamps it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::super::steady::{Before, Moment, Verdict, Watched};
use super::super::{Look, Stat};
use super::acl;
use crate::error::{Error, Location, Result};
use crate::patience;

/// File systems in memory, whose pages are never written back, so that a write through a mapping changes no
/// time at all: tmpfs, ramfs, hugetlbfs.
const IN_MEMORY: [u32; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];
/// overlayfs: its files have no pages of their own, so the kernel cannot be asked for those that are dirty.
const OVERLAY: u32 = 0x794c_7630;

/// Calls of [`Watch::settle`] after which dirty pages count as written back if the kernel cannot be asked.
/// With the pauses between them that is 40 s, and dirty pages are written back after 30 s by default.
const ROUNDS: u32 = 16;

/// How long two writes can have the same time stamp: a tick of the kernel's clock.
const TICK: Duration = Duration::from_millis(20);
/// The same on a file system that stamps whole seconds.
const COARSE_TICK: Duration = Duration::from_secs(2);

/// An open source file.
pub(super) struct Watch {
    pub file: File,
    pub location: Location,
    /// What it looked like when it was opened.
    pub opened: Stat,
    file_system: u32,
    /// Its ctime was ever seen to differ from that when it was opened.
    moved: AtomicBool,
    /// It was ever seen to be written to.
    changed: AtomicBool,
    /// It was ever seen to be shorter.
    cut: AtomicBool,
    seen: Mutex<Seen>,
    /// Held by the thread that is inside of [`Watch::settle`], which may wait for the file system.
    settling: Mutex<()>,
}

/// What was seen last.
struct Seen {
    last: Stat,
    /// Counts the changes of ctime, so that each of the mount's files drops its cached pages once for each.
    version: u64,
    /// Any further write would change `last`.
    settled: bool,
    /// Calls of [`Watch::settle`] since the last change.
    rounds: u32,
}

impl Watch {
    /// Watches a file that was just opened.
    pub fn new(file: File, location: Location, opened: Stat) -> Watch {
        let opened = opened.with_acl(acl::of_new(&file, &location));
        let file_system = rustix::fs::fstatfs(&file).map_or(0, |s| s.f_type as u32);
        Watch {
            seen: Mutex::new(Seen {
                last: opened.clone(),
                version: 0,
                settled: false,
                rounds: 0,
            }),
            file,
            location,
            opened,
            file_system,
            moved: AtomicBool::new(false),
            changed: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            settling: Mutex::default(),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current attributes of the open file.
    pub fn now(&self) -> Result<Stat> {
        patience::touch_source()?;
        let now = rustix::fs::fstat(&self.file);
        now.map(|now| Stat::of_open(&now))
            .map_err(|e| Error::io(format!("stat {}", self.location), e.into()))
    }

    /// The current length, after a comparison with what was seen before.
    pub fn len_now(&self) -> Result<u64> {
        let now = self.now()?;
        self.see(&now);
        Ok(now.len)
    }

    pub fn was_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    pub fn truncated(&self, needs: u64) -> Error {
        Error::Truncated {
            at: self.location.clone(),
            needs,
            has: self.now().map_or(0, |now| now.len),
        }
    }

    /// Compares `now` with what was seen last, and remembers it. A change is logged once; the file is still
    /// served.
    fn see(&self, now: &Stat) {
        let is_new = moment(now) != moment(&self.opened);
        if !is_new && !self.moved.load(Ordering::Acquire) {
            return;
        }
        let mut seen = self.seen();
        if moment(now) == moment(&seen.last) {
            return;
        }
        let now = now.clone().with_acl(acl::of(&self.file));
        let was = std::mem::replace(&mut seen.last, now.clone());
        seen.version += 1;
        seen.settled = false;
        seen.rounds = 0;
        drop(seen);
        if now.len < self.opened.len {
            self.cut.store(true, Ordering::Relaxed);
        }
        let same_bytes = (was.len, was.mtime) == (now.len, now.mtime);
        // chmod, chown, link and unlink change ctime, too.
        let explained = !was.same_access(&now) || was.nlink != now.nlink;
        if !(same_bytes && explained) {
            self.report(&now);
        }
        self.moved.store(true, Ordering::Release);
    }

    fn report(&self, now: &Stat) {
        if self.changed.swap(true, Ordering::Relaxed) {
            return;
        }
        let opened = &self.opened;
        let how = if opened.len != now.len {
            format!("had {} bytes, has {}", opened.len, now.len)
        } else if opened.mtime != now.mtime {
            "was written to".to_string()
        } else {
            // ctime alone does not show which.
            "was written to, renamed, or had its attributes changed".to_string()
        };
        log::warn!(
            "{}: changed under the mount: {how}; its current contents are served; mount again to see it whole",
            self.location,
        );
    }

    /// As [`Object::look`](super::super::Object::look).
    pub fn look(&self) -> Look {
        let Ok(now) = self.now() else {
            return Look::default();
        };
        self.see(&now);
        let mut seen = self.seen();
        let settled = seen.settled && moment(&seen.last) == moment(&now);
        if !settled && seen.version == 0 {
            // What is cached from now on is of a version that does not count.
            seen.version = 1;
        }
        Look {
            version: settled.then_some(seen.version),
            may_settle: !settled && !self.is_in_memory(),
            access: (!seen.last.same_access(&self.opened)).then(|| seen.last.clone()),
        }
    }

    fn is_in_memory(&self) -> bool {
        IN_MEMORY.contains(&self.file_system)
    }

    /// As [`Object::settle`](super::super::Object::settle).
    pub fn settle(&self) -> bool {
        if self.is_in_memory() || self.seen().settled {
            return true;
        }
        // A stalled source must not keep the others waiting: the thread that is inside brings this one on.
        let Ok(_inside) = self.settling.try_lock() else {
            return true;
        };
        let Ok(before) = self.now() else { return true };
        self.see(&before);
        let written_back = self.write_back();
        let Ok(after) = self.now() else { return true };
        self.see(&after);
        let mut seen = self.seen();
        seen.rounds += 1;
        let still = [&before, &after].map(moment) == [moment(&seen.last); 2];
        let written_back = written_back.unwrap_or(seen.rounds >= ROUNDS);
        seen.settled = still && written_back && !is_recent(seen.last.ctime);
        seen.settled
    }

    /// Starts to write back dirty pages, without waiting for the disk. Returns whether there were none;
    /// `None` if the kernel does not answer that.
    fn write_back(&self) -> Option<bool> {
        let dirty = match self.file_system {
            OVERLAY => None,
            _ => dirty_pages(&self.file),
        };
        if dirty != Some(0) {
            // SAFETY: no memory is involved, and the descriptor is open.
            unsafe {
                let fd = self.file.as_raw_fd();
                libc::sync_file_range(fd, 0, 0, libc::SYNC_FILE_RANGE_WRITE);
            }
        }
        dirty.map(|dirty| dirty == 0)
    }
}

impl Watched for Watch {
    fn before(&self) -> Option<Before> {
        if !self.moved.load(Ordering::Acquire) {
            return None;
        }
        let clock = coarse_clock();
        let now = rustix::fs::fstat(&self.file).ok()?;
        let moment = moment(&Stat::of_open(&now));
        Some(Before {
            moment,
            same_tick: moment.2 == clock,
        })
    }

    fn after(&self, end: u64, before: Option<Before>) -> Result<Verdict> {
        let now = self.now()?;
        self.see(&now);
        if now.len < end {
            return Err(Error::Truncated {
                at: self.location.clone(),
                needs: end,
                has: now.len,
            });
        }
        let was = before.map_or_else(|| moment(&self.opened), |before| before.moment);
        let may_hide = before.is_some_and(|before| before.same_tick);
        Ok(match was == moment(&now) {
            true if !may_hide => Verdict::Steady,
            false if self.cut.load(Ordering::Relaxed) => Verdict::Cut,
            _ => Verdict::Changed,
        })
    }

    fn restless(&self) -> Error {
        let problem = "is truncated and written to all the time; no state of it could be read";
        Error::invalid(&self.location, problem)
    }
}

fn moment(stat: &Stat) -> Moment {
    (stat.len, stat.mtime, stat.ctime)
}

/// Whether a write now could have this time stamp, too.
fn is_recent((seconds, nanoseconds): (i64, i64)) -> bool {
    let tick = match nanoseconds {
        0 => COARSE_TICK,
        _ => TICK,
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_nanos() as i128);
    let then = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    (now - then).unsigned_abs() < tick.as_nanos()
}

/// The clock that stamps files, which goes on a few hundred times a second.
fn coarse_clock() -> (i64, i64) {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one `timespec`, which this is.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &mut now) };
    #[allow(clippy::unnecessary_cast)] // The types differ between architectures.
    (now.tv_sec as i64, now.tv_nsec as i64)
}

/// The pages of a file that are in the page cache and not written back; `None` if the kernel does not tell:
/// it is older than Linux 6.5 (ENOSYS), or the file is another user's and could not be written by this
/// process, or has been given away since (EPERM), as for root without capabilities.
fn dirty_pages(file: &File) -> Option<u64> {
    const CACHESTAT: libc::c_long = 451;
    let range = [0u64; 2];
    // Pages in the cache, dirty ones, and three more counts.
    let mut counts = [0u64; 5];
    // SAFETY: the call reads a `cachestat_range` and writes a `cachestat`, which have the sizes of these
    // arrays; the flags are 0.
    let result = unsafe {
        let fd = file.as_raw_fd();
        libc::syscall(CACHESTAT, fd, range.as_ptr(), counts.as_mut_ptr(), 0)
    };
    (result == 0).then_some(counts[1])
}
