//! Looks at source files again after bytes of them were copied.
//!
//! A file that is truncated while it is read gives zeros, in a mapping and in `pread` alike, and its size
//! before the copy does not show that. So every copy is followed by a look at the file. Views read a
//! source in many small pieces, so the look is taken once for all of them: a request, or the making of a
//! piece that is cached, is a *scope* ([`read`], [`kept`]), in which each read only notes its file. A read
//! outside of any scope is a scope of its own.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::error::{Error, Result};

/// How often a read is tried whose source changes meanwhile. A program that truncates and writes a file
/// in a loop needs about a millisecond for each round, so that four tries are enough for most.
const TRIES: usize = 4;

/// A source file as a scope sees it.
pub(super) trait Watched {
    /// What it looks like before it is read; `None` if it was never seen to change, which costs nothing.
    fn before(&self) -> Option<Before>;

    /// Looks at it after the read of bytes up to `end`; `before` as above.
    ///
    /// # Errors
    /// It is shorter than that, or cannot be looked at.
    fn after(&self, end: u64, before: Option<Before>) -> Result<Verdict>;

    /// The error about a file that is truncated and written all the time.
    fn restless(&self) -> Error;
}

/// Length, mtime and ctime.
pub(super) type Moment = (u64, (i64, i64), (i64, i64));

/// A file that was seen to change, before it is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before {
    /// What it looks like.
    pub moment: Moment,
    /// A write now could leave it looking the same: the clock that stamps it has not gone on since the last.
    pub same_tick: bool,
}

/// What a look after a read has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing has changed since before the read.
    Steady,
    /// It may have changed during the read: the bytes may be a mixture.
    Changed,
    /// The same, and it was once seen to be shorter: the bytes may be zeros that it never held.
    Cut,
}

/// A file that was read in a scope.
struct Noted {
    file: Arc<dyn Watched>,
    end: u64,
    before: Option<Before>,
}

thread_local! {
    static NOTED: RefCell<Option<Vec<Noted>>> = const { RefCell::new(None) };
    /// The last try: a mixture is better than nothing.
    static LAST: Cell<bool> = const { Cell::new(false) };
    /// A mixture was let through since this was last reset.
    static MIXED: Cell<bool> = const { Cell::new(false) };
}

/// Restores the scope outside of this one, also if a panic unwinds.
struct Outer(Option<Vec<Noted>>);

impl Drop for Outer {
    fn drop(&mut self) {
        NOTED.replace(self.0.take());
    }
}

/// Runs a read of sources, and looks at them afterwards; again if they changed meanwhile.
///
/// # Errors
/// That of `work`; or a source is now too short, or is truncated and written again and again.
pub fn read<T>(mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let was_last = LAST.replace(false);
    let mut tries = 1;
    let result = loop {
        LAST.set(tries == TRIES);
        match scope(&mut work) {
            Err(Failed::Changed) if tries < TRIES => tries += 1,
            other => break other,
        }
    };
    LAST.set(was_last);
    result.map_err(|failed| match failed {
        Failed::With(e) => e,
        Failed::Changed => changed(),
    })
}

/// Makes something of sources that is kept, and whether it may be: what was copied while a source changed
/// must not stay in a cache. Outside of any scope each read is looked after by itself.
///
/// # Errors
/// That of `work`, or a source has changed meanwhile. Inside a [`read`] that is tried again.
pub fn kept<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, bool)> {
    let outer = MIXED.replace(false);
    let made = looked_after(work);
    let mixed = MIXED.get();
    // What is made of this is a mixture, too.
    MIXED.set(outer || mixed);
    Ok((made?, !mixed))
}

fn looked_after<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    if NOTED.with_borrow(Option::is_none) {
        return work();
    }
    let mut work = Some(work);
    let made = scope(&mut || match work.take() {
        Some(work) => work(),
        None => Err(changed()),
    });
    made.map_err(|failed| match failed {
        Failed::With(e) => e,
        Failed::Changed => changed(),
    })
}

/// Reads a file up to `end`: notes it in the scope, or does the same in a scope of its own.
pub(super) fn read_from<W: Watched + 'static>(
    file: &Arc<W>,
    end: u64,
    mut work: impl FnMut() -> Result<()>,
) -> Result<()> {
    match note(file, end) {
        true => work(),
        false => read(|| {
            note(file, end);
            work()
        }),
    }
}

/// Notes a file that is about to be read up to `end`; `false` outside of a scope.
fn note<W: Watched + 'static>(file: &Arc<W>, end: u64) -> bool {
    NOTED.with_borrow_mut(|noted| {
        let Some(noted) = noted else { return false };
        let address = Arc::as_ptr(file).cast::<()>();
        let same = |n: &&mut Noted| Arc::as_ptr(&n.file).cast::<()>() == address;
        match noted.iter_mut().find(same) {
            Some(known) => known.end = known.end.max(end),
            None => noted.push(Noted {
                file: file.clone(),
                end,
                before: file.before(),
            }),
        }
        true
    })
}

/// Why a scope has no result.
enum Failed {
    With(Error),
    Changed,
}

fn scope<T>(work: &mut dyn FnMut() -> Result<T>) -> std::result::Result<T, Failed> {
    let outer = Outer(NOTED.replace(Some(Vec::new())));
    let result = work();
    let noted = NOTED.replace(None).unwrap_or_default();
    drop(outer);
    let mut changed = matches!(&result, Err(e) if is_changed(e));
    for Noted { file, end, before } in noted {
        match file.after(end, before).map_err(Failed::With)? {
            Verdict::Steady => {}
            Verdict::Cut if LAST.get() => return Err(Failed::With(file.restless())),
            Verdict::Changed if LAST.get() => MIXED.set(true),
            Verdict::Changed | Verdict::Cut => changed = true,
        }
    }
    match changed {
        true => Err(Failed::Changed),
        false => result.map_err(Failed::With),
    }
}

/// What an inner scope returns to the outer one, which then tries again.
fn changed() -> Error {
    Error::other(libc::ESTALE, "a source changed while it was read")
}

fn is_changed(e: &Error) -> bool {
    e.errno() == libc::ESTALE
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A file that every look finds changed, until `left` of them were taken.
    struct Restless {
        left: AtomicUsize,
    }

    impl Watched for Restless {
        fn before(&self) -> Option<Before> {
            None
        }

        fn after(&self, _: u64, _: Option<Before>) -> Result<Verdict> {
            let left = self.left.load(Ordering::Relaxed);
            self.left.store(left.saturating_sub(1), Ordering::Relaxed);
            Ok(match left {
                0 => Verdict::Steady,
                _ => Verdict::Changed,
            })
        }

        fn restless(&self) -> Error {
            changed()
        }
    }

    #[test]
    fn a_mixture_is_given_once_and_may_not_be_kept() {
        let made = |left: usize| {
            let file = Arc::new(Restless { left: left.into() });
            let part = || kept(|| read_from(&file, 1, || Ok(())));
            let (inner, outer) = read(|| {
                let ((_, inner), outer) = kept(part)?;
                Ok((inner, outer))
            })?;
            let (_, alone) = part()?;
            Ok::<_, Error>((inner, outer, alone))
        };
        assert_eq!(made(0).unwrap(), (true, true, true));
        assert_eq!(made(TRIES - 1).unwrap(), (true, true, true));
        assert_eq!(made(TRIES).unwrap(), (false, false, true));
        assert_eq!(made(3 * TRIES).unwrap(), (false, false, false));
    }
}
