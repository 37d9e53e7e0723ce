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
    let failed = |e: Errno| e.to_string();
    // EINVAL: the kernel has no such set (before Linux 4.3).
    match thread::clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(e) => return Err(failed(e)),
    }
    let now = thread::capabilities(None).map_err(failed)?;
    // Only who has this one may; for everyone else the bounding set bounds what was never had.
    if now.effective.contains(CapabilitySet::SETPCAP) {
        empty_bounding_set().map_err(failed)?;
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    thread::set_capabilities(None, none).map_err(failed)?;
    Ok(None)
}

fn empty_bounding_set() -> Result<(), Errno> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The first number that this kernel does not have.
            Err(Errno::INVAL) => break,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
