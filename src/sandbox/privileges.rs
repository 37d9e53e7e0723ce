//! Privileges that the process has, and those that it could gain.

use rustix::io::Errno;
use rustix::thread::{self, CapabilitySet, CapabilitySets};

use super::Measure;

/// From now on no program that the process might start gains privileges by its owner or its file's
/// capabilities. Landlock and the filter need it, too, unless the process is root's.
pub fn never_gain() -> Measure {
    thread::set_no_new_privs(true).map_err(|e| e.to_string())?;
    Ok(None)
}

/// Gives up all capabilities, and the way to get any back. Files that are open stay readable: permission
/// was asked for when they were opened.
pub fn drop_capabilities() -> Measure {
    keep_only(CapabilitySet::empty()).map_err(|e| e.to_string())?;
    Ok(None)
}

/// What unmounting takes: the right to unmount, and to open a mountpoint below directories that root without
/// capabilities may not search.
const UNMOUNTING: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::DAC_READ_SEARCH);

/// Gives up everything but what unmounting takes, as far as the kernel permits. Does nothing if the process
/// cannot unmount by itself: an ordinary user's needs the privileges of fusermount3.
pub fn keep_to_unmount() {
    let can = |now: CapabilitySets| now.effective.contains(CapabilitySet::SYS_ADMIN);
    if thread::capabilities(None).is_ok_and(can) {
        // What is refused here stays, and unmounting works with it, too.
        let _ = never_gain();
        let _ = keep_only(UNMOUNTING);
    }
}

/// Gives up all capabilities but these, and the way to get others back.
fn keep_only(kept: CapabilitySet) -> Result<(), Errno> {
    // EINVAL: the kernel has no such set (before Linux 4.3).
    match thread::clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(e) => return Err(e),
    }
    let now = thread::capabilities(None)?;
    // Without this one it is not permitted, and the bounding set bounds what the process never had.
    if now.effective.contains(CapabilitySet::SETPCAP) {
        narrow_bounding_set(kept)?;
    }
    let sets = CapabilitySets {
        effective: now.effective & kept,
        permitted: now.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    thread::set_capabilities(None, sets)
}

/// Leaves only `kept`: fusermount3, started by root, has no capability that is missing here.
fn narrow_bounding_set(kept: CapabilitySet) -> Result<(), Errno> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(capability) {
            continue;
        }
        match thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The first number that this kernel does not have.
            Err(Errno::INVAL) => break,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
