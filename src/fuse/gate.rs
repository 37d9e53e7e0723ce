//! How many request threads may wait for source files.
//!
//! A read of the mount waits in its request thread for a cold disk, because a hop to another thread
//! would cost a warm read more than the read itself. A source that stalls (a network filesystem whose
//! server is gone) would so take one request thread after the other, and with the last of them
//! everything would stop: healthy shards, `ls`, `stat`, `stfs mounts`. Therefore only as many requests
//! as there are *reading* threads touch a source on their request thread; the session has a few threads
//! more ([`SPARE`]), which never do. A request beyond that runs on the mount's pool, which grows
//! with what is stuck up to a bound ([`crate::workers::MOUNT_LIMIT`]). So there is always a request
//! thread that takes the next request, and always a thread that reads a healthy source.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::patience::Patience;

/// Request threads beside those that may all be waiting for a source. One would do; a few more keep
/// lookups going side by side meanwhile.
pub(super) const SPARE: usize = 4;

/// Counts the requests that may wait for a source on their request thread.
pub(super) struct Gate {
    inside: AtomicUsize,
    limit: usize,
}

/// A place inside, until it is dropped.
pub(super) struct Pass<'a>(&'a Gate);

impl Gate {
    /// For that many requests at a time.
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

/// How long a request thread may wait that was let in, or not.
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
