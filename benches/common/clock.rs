//! What benches of views measure with: this thread's own time, so that a busy machine distorts it less.

use stfs::view::View;

/// Seconds of this thread so far.
pub fn cpu() -> f64 {
    // SAFETY: all fields of the struct are integers, and the pointer is to a local one.
    let mut now: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Reads all of a view in order. GB/s.
pub fn in_order(view: &dyn View, buf: &mut [u8]) -> f64 {
    let start = cpu();
    let mut at = 0;
    while at < view.len() {
        let n = (view.len() - at).min(buf.len() as u64);
        view.read_at(at, &mut buf[..n as usize]).expect("reads");
        at += n;
    }
    view.len() as f64 / (cpu() - start) / 1e9
}

/// The one in the middle.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
