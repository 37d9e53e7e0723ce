//! The residency table: which bytes are in, or on their way to, the memory of which device, and who
//! holds a lease on them. Plain data without threads, CUDA or replies.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use super::Failure;
use super::allocation::{Allocation, Phase, Selector};
use super::arena::Place;
use super::target::{FileState, Key, Part};

/// What a caller looks for.
pub struct Want<'a> {
    /// The bytes.
    pub key: Key,
    /// What their source files look like now.
    pub states: &'a [FileState],
    /// The same as a number.
    pub generation: u64,
    /// The device as the caller named it.
    pub selector: Selector,
    /// Whether the caller left the device to us (-1).
    pub default_device: bool,
    /// The device, if the driver is up.
    pub device: Option<i32>,
    /// The open file, if it may hold a lease.
    pub fh: Option<u64>,
    /// The user, if the files' permissions bind them.
    pub stranger: Option<u32>,
}

/// What a caller looks for it for, which decides between several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// To join it: fresh ones only, and the whole model's arena before a copy of one's own.
    Join,
    /// To see it: as to join, but the memory one holds a lease on before any other, stale or not.
    Look,
    /// To let go of it: the same, but one's own copy before the arena.
    Release,
}

/// An allocation that holds what was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Which.
    pub id: u64,
    /// Where in it, if it is an arena of which this is a part.
    pub place: Option<Place>,
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
    /// Failed ones: those that closed files must be forgotten in.
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

    /// The same, to change what no index depends on.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Allocation> {
        self.all.get_mut(&id)
    }

    /// What LIST shows, in order: the failed ones left out.
    pub fn listed(&self) -> impl Iterator<Item = &Allocation> {
        self.listed.iter().filter_map(|id| self.all.get(id))
    }

    /// How many LIST shows.
    pub fn listed_count(&self) -> usize {
        self.listed.len()
    }

    /// One of what LIST shows.
    pub fn nth_listed(&self, index: usize) -> Option<&Allocation> {
        self.all.get(self.listed.get(index)?)
    }

    fn unlist(&mut self, id: u64) {
        if let Ok(at) = self.listed.binary_search(&id) {
            self.listed.remove(at);
        }
    }

    /// What is in a device's memory, or on its way there.
    pub fn on(&self, device: i32) -> impl Iterator<Item = &Allocation> {
        self.listed().filter(move |a| a.device == Some(device))
    }

    /// Takes in an allocation that has no device yet, and numbers it.
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

    /// Takes an allocation out, leases and all. If it was still loading, its bytes count on until
    /// they are given back.
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

    /// Puts an allocation of so many bytes on a device: from now on they count there.
    pub fn place(&mut self, id: u64, device: i32, alloc_bytes: u64) {
        if let Some(a) = self.all.get_mut(&id) {
            a.device = Some(device);
            a.alloc_bytes = alloc_bytes;
            *self.used.entry(device).or_default() += alloc_bytes;
        }
    }

    /// Marks an upload as failed: it holds no memory and no lease any more. `told` are the open
    /// files that learn of it at once; the others are remembered.
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

    /// So many bytes of a device are free again.
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

    /// Now that an allocation is resident: those who hold a lease on it have no use any more for
    /// theirs on an older state of the same bytes on the same device. Returns the allocations that
    /// lost their last lease by this.
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

    /// Drops all leases of an open file that is no more. Returns the allocations that lost their
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

    /// The best of the allocations that hold what is wanted.
    pub fn find(&self, want: &Want<'_>, intent: Intent) -> Option<Found> {
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
            // Of two arenas the newer: after a change the older one has fewer and fewer tensors.
            .min_by_key(|(a, place)| (rank(a, place.is_some(), want, intent), Reverse(a.id)))
            .map(|(a, place)| Found { id: a.id, place })
    }

    /// What this very open file holds a lease on: on the device asked for, or on any if it asked for
    /// the default one and has nothing there.
    fn find_leased(&self, want: &Want<'_>, intent: Intent) -> Option<Found> {
        let fh = want.fh?;
        // To let go is for everybody: another's open file may have been handed on.
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
        Some(Found {
            id: a.id,
            place: place_in(a, want.key),
        })
    }

    /// What an upload of the same bytes to the same device takes the place of: those of a generation
    /// that is gone, unless leased or pinned, and failures.
    pub fn replaced(&self, want: &Want<'_>) -> Vec<u64> {
        let ids = self.by_key.get(&want.key).into_iter().flatten();
        ids.filter_map(|id| self.all.get(id))
            .filter(|a| a.failed() || a.generation != want.generation && a.evictable())
            .filter(|a| on_device(a, want))
            .map(|a| a.id)
            .collect()
    }

    /// Which allocations to free, least recently used first, so that `need` more bytes stay within
    /// `limit` on a device; `None` if freeing all that may be freed is not enough.
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
        // Asked for before the driver was up, or failed before it had a device.
        None => a.selector == want.selector,
    }
}

/// Where an arena has the bytes of a key.
fn place_in(a: &Allocation, key: Key) -> Option<Place> {
    if key.part != Part::Raw || a.failed() {
        return None;
    }
    a.target.arena.as_ref()?.place(key.ino)
}

/// The same, if their file still looks as it did when the arena was uploaded, and the caller may
/// have the whole arena.
fn fresh_place(a: &Allocation, want: &Want<'_>) -> Option<Place> {
    let place = place_in(a, want.key)?;
    let [now] = want.states else { return None };
    let fresh = on_device(a, want) && a.states.get(place.file()) == Some(now);
    (fresh && may_show(a, want)).then_some(place)
}

/// Whether the caller may have the memory: a part of an arena comes with a handle of all of it.
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
