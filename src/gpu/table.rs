//! The residency table: which bytes are in, or on their way to, the memory of which device, and which
//! open files hold a lease on them. Plain data without threads, CUDA or replies.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use super::Failure;
use super::allocation::{Allocation, Phase, Selector};
use super::arena::Span;
use super::target::{FileState, Key, Part};

/// A lookup.
pub struct Want<'a> {
    /// The bytes.
    pub key: Key,
    /// The state of their source files now.
    pub states: &'a [FileState],
    /// The same as a number.
    pub generation: u64,
    /// The device as the caller named it.
    pub selector: Selector,
    /// Whether the caller asked for the default device (-1).
    pub default_device: bool,
    /// The device, if the driver has started.
    pub device: Option<i32>,
    /// The open file, if it may hold a lease.
    pub fh: Option<u64>,
    /// The user, if file permissions apply to it.
    pub stranger: Option<u32>,
}

/// The purpose of a lookup, which decides between several candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// To join it: only current ones, and the whole model's arena before a separate copy.
    Join,
    /// To report it: as to join, but memory that the open file has a lease on comes first, current or not.
    Look,
    /// To release it: as to report it, but a separate copy before the arena.
    Release,
}

/// The allocation that a lookup found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    /// Its number.
    pub id: u64,
    /// The place in it, if it is an arena that contains the bytes.
    pub place: Option<Span>,
}

/// All allocations.
#[derive(Default)]
pub struct Table {
    all: BTreeMap<u64, Allocation>,
    /// Those that have not failed, by ascending number.
    listed: Vec<u64>,
    by_key: HashMap<Key, Vec<u64>>,
    by_file: HashMap<u64, Vec<u64>>,
    arenas: Vec<u64>,
    /// Failed ones, from which closed files are removed.
    failures: HashSet<u64>,
    used: HashMap<i32, u64>,
    last_id: u64,
    ticks: u64,
}

impl Table {
    /// The allocation of that number.
    pub fn get(&self, id: u64) -> Option<&Allocation> {
        self.all.get(&id)
    }

    /// The same, mutable. Fields that an index depends on must not be changed.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Allocation> {
        self.all.get_mut(&id)
    }

    /// The allocations that LIST shows, in order: all but the failed ones.
    pub fn listed(&self) -> impl Iterator<Item = &Allocation> {
        self.listed.iter().filter_map(|id| self.all.get(id))
    }

    /// How many allocations LIST shows.
    pub fn listed_count(&self) -> usize {
        self.listed.len()
    }

    /// Allocation number `index` of LIST.
    pub fn nth_listed(&self, index: usize) -> Option<&Allocation> {
        self.all.get(self.listed.get(index)?)
    }

    fn unlist(&mut self, id: u64) {
        if let Ok(at) = self.listed.binary_search(&id) {
            self.listed.remove(at);
        }
    }

    /// The allocations that are in a device's memory, or being loaded.
    pub fn on(&self, device: i32) -> impl Iterator<Item = &Allocation> {
        self.listed().filter(move |a| a.device == Some(device))
    }

    /// Adds an allocation that has no device yet, and numbers it.
    pub fn insert(&mut self, mut allocation: Allocation) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        allocation.id = id;
        let key = allocation.target.key;
        self.by_key.entry(key).or_default().push(id);
        if allocation.target.arena.is_some() {
            self.arenas.push(id);
        }
        self.all.insert(id, allocation);
        self.listed.push(id);
        self.touch(id);
        id
    }

    /// Removes an allocation and its leases. If it was still loading, its bytes count until they are given
    /// back.
    pub fn remove(&mut self, id: u64) -> Option<Allocation> {
        let allocation = self.all.remove(&id)?;
        drop_from(&mut self.by_key, allocation.target.key, id);
        for &fh in allocation.leases.keys() {
            drop_from(&mut self.by_file, fh, id);
        }
        self.arenas.retain(|&a| a != id);
        self.failures.remove(&id);
        self.unlist(id);
        if !matches!(allocation.phase, Phase::Loading) {
            self.give_back(allocation.device, allocation.alloc_bytes);
        }
        Some(allocation)
    }

    /// Places an allocation on a device, where its bytes count from now on.
    pub fn place(&mut self, id: u64, device: i32, alloc_bytes: u64) {
        if let Some(a) = self.all.get_mut(&id) {
            a.device = Some(device);
            a.alloc_bytes = alloc_bytes;
            *self.used.entry(device).or_default() += alloc_bytes;
        }
    }

    /// Marks an upload as failed: it has no memory and no lease any more. The open files in `told` get
    /// the error at once; the others get it later.
    pub fn fail(&mut self, id: u64, failure: Failure, told: &HashSet<u64>, untold_other: bool) {
        let Some(a) = self.all.get_mut(&id) else {
            return;
        };
        let leases = std::mem::take(&mut a.leases);
        let (device, bytes) = (a.device, std::mem::take(&mut a.alloc_bytes));
        a.phase = Phase::Failed(failure, Instant::now());
        a.untold = leases
            .keys()
            .copied()
            .filter(|fh| !told.contains(fh))
            .collect();
        a.untold_other = untold_other;
        let forget = a.untold.is_empty() && !untold_other;
        for fh in leases.keys() {
            drop_from(&mut self.by_file, *fh, id);
        }
        self.unlist(id);
        self.give_back(device, bytes);
        if forget {
            self.remove(id);
        } else {
            self.failures.insert(id);
        }
    }

    /// Counts bytes of a device as free again.
    pub fn give_back(&mut self, device: Option<i32>, bytes: u64) {
        if let Some(used) = device.and_then(|d| self.used.get_mut(&d)) {
            *used = used.saturating_sub(bytes);
        }
    }

    /// Makes it the most recently used.
    pub fn touch(&mut self, id: u64) {
        self.ticks += 1;
        if let Some(a) = self.all.get_mut(&id) {
            a.last_used = self.ticks;
        }
    }

    /// Gives an open file a lease.
    pub fn lease(&mut self, id: u64, fh: u64, generation: u64) {
        if let Some(a) = self.all.get_mut(&id)
            && a.leases.insert(fh, generation).is_none()
        {
            self.by_file.entry(fh).or_default().push(id);
        }
    }

    /// Once an allocation is resident, its leaseholders do not need their leases on an older state of the
    /// same bytes on the same device. Returns the allocations that lost their last lease by this.
    pub fn supersede(&mut self, id: u64) -> Vec<u64> {
        let Some(a) = self.all.get(&id) else {
            return Vec::new();
        };
        let mut old = Vec::new();
        for &fh in a.leases.keys() {
            let others = self.leased_by(fh);
            let others = others.filter(|other| other.id != id && other.device == a.device);
            old.extend(others.map(|other| (other.id, fh)));
        }
        old.retain(|&(old, fh)| self.unlease(old, fh) == Some(0));
        old.into_iter().map(|(id, _)| id).collect()
    }

    /// The allocations that an open file holds leases on.
    pub fn leased_by(&self, fh: u64) -> impl Iterator<Item = &Allocation> {
        let ids = self.by_file.get(&fh);
        ids.into_iter().flatten().filter_map(|id| self.all.get(id))
    }

    /// Drops a lease. Returns how many are left; `None` if there was none to drop.
    pub fn unlease(&mut self, id: u64, fh: u64) -> Option<usize> {
        let a = self.all.get_mut(&id)?;
        a.leases.remove(&fh)?;
        let left = a.leases.len();
        drop_from(&mut self.by_file, fh, id);
        self.touch(id);
        Some(left)
    }

    /// Drops all leases of a closed file. Returns the allocations that lost their
    /// last lease by this.
    pub fn forget_file(&mut self, fh: u64) -> Vec<u64> {
        let ids: Vec<u64> = self.leased_by(fh).map(|a| a.id).collect();
        for id in self.failures.clone() {
            let Some(a) = self.all.get_mut(&id) else {
                continue;
            };
            a.untold.remove(&fh);
            if a.untold.is_empty() && !a.untold_other {
                self.remove(id);
            }
        }
        ids.into_iter()
            .filter(|&id| self.unlease(id, fh) == Some(0))
            .collect()
    }

    /// The best of the allocations that have the bytes.
    pub fn find(&self, want: &Want<'_>, intent: Intent) -> Option<Hit> {
        if intent != Intent::Join
            && let Some(found) = self.find_leased(want, intent)
        {
            return Some(found);
        }
        let own = self.by_key.get(&want.key).into_iter().flatten();
        let own = own.filter_map(|id| self.all.get(id)).filter_map(|a| {
            let fits = a.generation == want.generation || intent == Intent::Release;
            (on_device(a, want) && fits).then_some((a, None))
        });
        let arenas = self.arenas.iter().filter_map(|id| self.all.get(id));
        let arenas = arenas.filter_map(|a| Some((a, Some(fresh_place(a, want)?))));
        own.chain(arenas)
            // The newer of two arenas: after a change the older one loses its tensors one by one.
            .min_by_key(|(a, place)| (rank(a, place.is_some(), want, intent), Reverse(a.id)))
            .map(|(a, place)| Hit { id: a.id, place })
    }

    /// The allocation that this open file has a lease on: on the requested device, or on any if it asked
    /// for the default one and has none there.
    fn find_leased(&self, want: &Want<'_>, intent: Intent) -> Option<Hit> {
        let fh = want.fh?;
        // Every user may release: an open file can be passed on to another user.
        let shown = |a: &&Allocation| intent == Intent::Release || may_show(a, want);
        let here = self.leased_by(fh).filter(|a| on_device(a, want));
        let here = here
            .filter(shown)
            .min_by_key(|a| place_in(a, want.key).is_none() && a.generation != want.generation);
        let anywhere = || {
            let mut all = self.leased_by(fh).filter(shown);
            all.next().filter(|_| want.default_device)
        };
        let a = here.or_else(anywhere)?;
        Some(Hit {
            id: a.id,
            place: place_in(a, want.key),
        })
    }

    /// The allocations that an upload of the same bytes to the same device replaces: failures, and those of
    /// an older generation that are neither leased nor pinned.
    pub fn replaced(&self, want: &Want<'_>) -> Vec<u64> {
        let ids = self.by_key.get(&want.key).into_iter().flatten();
        ids.filter_map(|id| self.all.get(id))
            .filter(|a| a.failed() || a.generation != want.generation && a.evictable())
            .filter(|a| on_device(a, want))
            .map(|a| a.id)
            .collect()
    }

    /// Which allocations to free, least recently used first, so that `need` more bytes stay within
    /// `limit` on a device; `None` if freeing everything that can be evicted is not enough.
    pub fn victims(&self, device: i32, need: u64, limit: u64) -> Option<Vec<u64>> {
        let mut used = self.used.get(&device).copied().unwrap_or(0);
        let fits = |used: u64| used.saturating_add(need) <= limit;
        if fits(used) {
            return Some(Vec::new());
        }
        let mut idle: Vec<&Allocation> = self
            .all
            .values()
            .filter(|a| a.device == Some(device) && a.evictable() && a.alloc_bytes > 0)
            .collect();
        idle.sort_unstable_by_key(|a| a.last_used);
        let mut victims = Vec::new();
        for a in idle {
            used = used.saturating_sub(a.alloc_bytes);
            victims.push(a.id);
            if fits(used) {
                return Some(victims);
            }
        }
        None
    }
}

/// Removes `id` from a list in a map, and the list when it is empty.
fn drop_from<K: std::hash::Hash + Eq>(map: &mut HashMap<K, Vec<u64>>, key: K, id: u64) {
    if let Some(ids) = map.get_mut(&key) {
        ids.retain(|&i| i != id);
        if ids.is_empty() {
            map.remove(&key);
        }
    }
}

fn on_device(a: &Allocation, want: &Want<'_>) -> bool {
    match a.device {
        Some(device) => want.device == Some(device),
        // Requested before the driver had started, or failed before it had a device.
        None => a.selector == want.selector,
    }
}

/// The place of a key's bytes in an arena.
fn place_in(a: &Allocation, key: Key) -> Option<Span> {
    if key.part != Part::Raw || a.failed() {
        return None;
    }
    a.target.arena.as_ref()?.place(key.ino)
}

/// The same, if their files have not changed since the arena was uploaded, and the caller may read the
/// whole arena.
fn fresh_place(a: &Allocation, want: &Want<'_>) -> Option<Span> {
    let place = place_in(a, want.key)?;
    let files = a.target.arena.as_ref()?.files_at(place).iter();
    let unchanged = files
        .map(|&file| a.states.get(file as usize))
        .eq(want.states.iter().map(Some));
    (on_device(a, want) && unchanged && may_show(a, want)).then_some(place)
}

/// Whether the caller may map the memory: a part of an arena comes with a handle to all of it.
fn may_show(a: &Allocation, want: &Want<'_>) -> bool {
    a.target.key == want.key || a.open_to(want.stranger)
}

/// Smaller is better.
fn rank(a: &Allocation, in_arena: bool, want: &Want<'_>, intent: Intent) -> u32 {
    if want.fh.is_some_and(|fh| a.leases.contains_key(&fh)) {
        return 0;
    }
    match (&a.phase, in_arena) {
        (Phase::Resident(_), true) if intent != Intent::Release => 1,
        (Phase::Resident(_), false) => 2,
        (Phase::Loading, false) => 3,
        (Phase::Resident(_) | Phase::Loading, true) => 4,
        (Phase::Failed(..), _) => 5,
    }
}
