//! How many request threads may wait for source files.
//!
//! A read of the mount waits in its request thread for a cold disk, because a hop to another thread
//! would cost a warm read more than the read itself. But a source that stalls (a network filesystem
//! whose server is gone) would then take one request thread after another, and with the last one
//! everything would stop: healthy shards, `ls`, `stat`, `stfs mounts`. So at most as many requests as
//! there are *reading* threads touch a source on their request thread, and the session has a few more
//! threads ([`SPARE`]), which never do. Any further request runs on the mount's pool, which grows with
//! the number of stalled requests up to a bound ([`crate::workers::MOUNT_LIMIT`]). There is always a
//! request thread to take the next request, and always a thread to read a healthy source.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::patience::Patience;

/// Request threads beside those that may all be waiting for a source. One would do; with a few more,
/// lookups still run in parallel.
pub(super) const SPARE: usize = 4;

/// Counts the requests that may wait for a source on their request thread.
pub(super) struct Gate {
    inside: AtomicUsize,
    limit: usize,
}

/// A request's place in the gate, until it is dropped.
pub(super) struct Pass<'a>(&'a Gate);

impl Gate {
    /// A gate for `limit` requests at a time.
    pub fn new(limit: usize) -> Gate {
        Gate {
            inside: AtomicUsize::new(0),
            limit,
        }
    }

    /// Lets a request in, if there is room.
    pub fn enter(&self) -> Option<Pass<'_>> {
        let pass = Pass(self);
        let inside = self.inside.fetch_add(1, Ordering::Relaxed);
        (inside < self.limit).then_some(pass)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long a request thread may wait, depending on whether the gate let it in.
pub(super) fn patience(pass: &Option<Pass<'_>>) -> Patience {
    match pass {
        Some(_) => Patience::Sources,
        None => Patience::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_let_in_as_there_is_room_for() {
        let gate = Gate::new(2);
        let (a, b, c) = (gate.enter(), gate.enter(), gate.enter());
        assert!(a.is_some() && b.is_some() && c.is_none());
        assert_eq!(
            (patience(&a), patience(&c)),
            (Patience::Sources, Patience::None)
        );
        drop((a, c));
        let d = gate.enter();
        assert!(d.is_some() && gate.enter().is_none());
        drop((b, d));
        assert_eq!(gate.inside.load(Ordering::Relaxed), 0);
    }
}
