//! How much memory the process keeps for speed: all bounds in one place.
//!
//! Everything that is kept between requests or taken while one is served has its share of one total.
//! The total follows what the process may have (`memory/limits.rs`), because a daemon that is killed for its
//! memory takes the mount with it.
//!
//! Not counted, because it grows with the model and not with the load: the tables of tensors and names,
//! and generated files (`index.json`, plans of exports, parts of joins), which exist once and go with the
//! last file that is open.

use std::sync::OnceLock;

mod limits;
mod room;

pub use room::{Place, Room};

/// The total on a machine with enough memory. Most of it is for the case that hundreds of readers wait at
/// the same time; a mount with one reader takes a few megabytes.
const TOTAL: u64 = 1 << 30;
/// The share of what the process may have. The rest is for the model's tables, for the page cache, which
/// belongs to the same cgroup, and for the program that reads: in a container it has the same limit.
const SHARE: u64 = 4;
/// The least total: below this nothing would work.
const LEAST: u64 = 8 << 20;
/// What a read that computes its bytes takes while it runs: the reply, and the buffers of views.
const READ: usize = 2 << 20;
/// What rendering a picture takes on each thread: a million values, and their cells.
const PICTURE: usize = 16 << 20;

/// The shares of the total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// All of it, in bytes.
    pub total: usize,
    /// Bytes of computed pieces that views keep for the next read. A sequential reader needs one or two
    /// bands of a quantized layer (1 to 5 MiB each), so 256 MiB are enough for about fifty readers at a
    /// time. With less, readers evict each other's pieces, and may read fifty times slower (measured with
    /// 32 readers of 4-bit layers of 14336 inputs and a quarter of this share).
    pub tiles: usize,
    /// Bytes of rendered pictures, of files that are open.
    pub pictures: usize,
    /// Bytes of buffers for replies that are kept from one read to the next.
    pub replies: usize,
    /// The same of views' own buffers.
    pub scratch: usize,
    /// Reads that compute their bytes at the same time. More of them wait for a place.
    pub reads: usize,
    /// Pictures that are rendered at the same time.
    pub renders: usize,
    /// Threads that render one picture.
    pub render_threads: usize,
}

impl Budget {
    /// The shares if the process may have `limit` bytes in all.
    fn of(limit: Option<u64>) -> Budget {
        let total = limit.map_or(TOTAL, |limit| (limit / SHARE).clamp(LEAST, TOTAL)) as usize;
        let rendering = total / 8;
        Budget {
            total,
            tiles: total / 4,
            pictures: total / 32,
            replies: total / 16,
            scratch: total / 16,
            reads: (total / 2 / READ).max(2),
            renders: (rendering / PICTURE / 2).max(1),
            render_threads: (rendering / PICTURE).max(1),
        }
    }
}

/// The budget of this process. The first call reads the limits, and tells the allocator about them: a
/// mount makes it before it starts threads and gives up its rights.
pub fn budget() -> &'static Budget {
    static BUDGET: OnceLock<Budget> = OnceLock::new();
    BUDGET.get_or_init(|| {
        let budget = Budget::of(limits::of_process());
        keep_less();
        budget
    })
}

/// Has the allocator give back to the system what is freed. By default it raises its threshold for mapped
/// blocks to the size of the largest that was freed, up to 32 MiB, and keeps all that is smaller:
/// 360 MiB of it after a thousand pictures were closed.
#[cfg(target_env = "gnu")]
fn keep_less() {
    /// Blocks of this many bytes are mapped one by one, and go back to the system when they are freed. That
    /// is less than a picture or a buffer for a reply, and more than what a read of a few values takes.
    const MAPPED: i32 = 256 << 10;
    /// Arenas of the allocator. By default glibc makes eight for each core, and what is free in one of them
    /// is of no use to threads of the others.
    const ARENAS: i32 = 4;
    /// The same if address space is limited (`ulimit -v`): each reserves 64 MiB of it, which request threads
    /// would lack for their buffers.
    const FEW_ARENAS: i32 = 2;
    let arenas = match rustix::process::getrlimit(rustix::process::Resource::As).current {
        None => ARENAS,
        Some(_) => FEW_ARENAS,
    };
    // SAFETY: mallopt only sets parameters of the allocator, under its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
        libc::mallopt(libc::M_TRIM_THRESHOLD, MAPPED);
        libc::mallopt(libc::M_ARENA_MAX, arenas);
    }
}

/// Other C libraries have no such parameters.
#[cfg(not(target_env = "gnu"))]
fn keep_less() {}

/// Gives the pages that the allocator holds but nothing uses back to the system. Worth it after work that
/// freed many small blocks, such as reading a header or writing a large JSON file: the allocator would
/// keep their memory for as long as the daemon runs.
pub fn give_back() {
    // SAFETY: malloc_trim only touches the allocator's own free lists, under its own locks.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_shares_fit_into_the_total_and_follow_the_limit() {
        let unlimited = Budget::of(None);
        assert_eq!(unlimited.total, 1 << 30);
        assert_eq!(unlimited.tiles, 256 << 20);
        assert_eq!(Budget::of(Some(u64::MAX)), unlimited);
        assert_eq!(Budget::of(Some(64 * MIB)).total, 16 << 20);
        for limit in [0, 1, 16 * MIB, 64 * MIB, 300 * MIB, 2 << 30, 9 << 30] {
            let b = Budget::of(Some(limit));
            assert!(b.total as u64 <= (limit / 4).max(LEAST), "{limit}: {b:?}");
            assert!(b.reads >= 2 && b.renders >= 1 && b.render_threads >= 1);
            let kept = b.tiles + b.pictures + b.replies + b.scratch;
            assert!(kept + b.reads * READ <= b.total, "{limit}: {b:?}");
        }
    }

    #[test]
    fn it_is_read_once() {
        assert!(std::ptr::eq(budget(), budget()));
        give_back();
    }
}
