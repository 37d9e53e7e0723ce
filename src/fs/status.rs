//! The root's `user.stfs.status`: the state of the mount, for `stfs mounts`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::Fs;
use crate::error::Result;
use crate::patience;
use crate::sandbox;
use crate::text;

/// How long a status request waits until the source files are checked. A healthy disk answers `fstat`
/// from memory, in microseconds; `stfs mounts` must answer even while a disk hangs.
const LOOK: Duration = Duration::from_millis(50);

/// For each source file, whether a thread is checking it. A file that hangs costs one thread, and later
/// checks skip it.
pub(super) type Looking = Arc<[AtomicBool]>;

impl Fs {
    /// The status, as JSON. Sources that answer in time are reported as they are now, the others as they
    /// were last seen.
    pub(super) fn status_json(&self) -> Result<Vec<u8>> {
        patience::take_long()?;
        self.look_at_sources();
        let catalog = &self.layout.model.catalog;
        let mut status = serde_json::json!({
            "model": catalog.model.to_string(),
            "pid": std::process::id(),
            "uptime_s": self.started.elapsed().as_secs(),
            "bytes_served": self.bytes_served(),
            "source_changed": catalog.files.iter().any(|f| f.was_changed()),
            "sandbox": self.sandbox.get().map(sandbox::Report::json),
        });
        if let Some(derivation) = &catalog.derivation {
            // With these the same model can be opened again.
            let given = derivation.given.iter();
            let given = given.map(|(name, value)| (name.clone(), value.clone().into()));
            status["set"] = given.collect::<serde_json::Map<_, _>>().into();
        }
        let mut json = Vec::new();
        text::push_json(&mut json, &status);
        Ok(json)
    }

    /// Checks on other threads whether sources have changed. Returns when all are checked, or after
    /// [`LOOK`].
    fn look_at_sources(&self) {
        let (model, looking) = (self.layout.model.clone(), self.looking.clone());
        let (done, is_done) = mpsc::channel();
        let job = move || {
            for (file, busy) in model.catalog.files.iter().zip(looking.iter()) {
                if !busy.swap(true, Ordering::Acquire) {
                    file.changed();
                    busy.store(false, Ordering::Release);
                }
            }
            let _ = done.send(());
        };
        // If there is no room for the job it is dropped, and its end of the channel with it.
        let _ = self.pool.run(job);
        let _ = is_done.recv_timeout(LOOK);
    }
}
