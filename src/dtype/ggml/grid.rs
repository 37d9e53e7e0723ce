//! I-quants: entries of a grid.

pub(super) fn iq2_xxs(_: &[u8], out: &mut [f32]) {
    out.fill(0.0);
}

pub(super) fn iq2_xs(_: &[u8], out: &mut [f32]) {
    out.fill(0.0);
}

pub(super) fn iq2_s(_: &[u8], out: &mut [f32]) {
    out.fill(0.0);
}

pub(super) fn iq3_xxs(_: &[u8], out: &mut [f32]) {
    out.fill(0.0);
}

pub(super) fn iq3_s(_: &[u8], out: &mut [f32]) {
    out.fill(0.0);
}

pub(super) fn iq1_s(_: &[u8], out: &mut [f32]) {
    out.fill(0.0);
}

pub(super) fn iq1_m(_: &[u8], out: &mut [f32]) {
    out.fill(0.0);
}
