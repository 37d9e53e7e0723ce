//! Blocks with one scale, and perhaps a minimum.

pub(super) fn q4_0(_: &[u8], out: &mut [f32]) {
    out.fill(0.0);
}

pub(super) fn q4_1(_: &[u8], out: &mut [f32]) {
    out.fill(0.0);
}

pub(super) fn q5_0(_: &[u8], out: &mut [f32]) {
    out.fill(0.0);
}

pub(super) fn q5_1(_: &[u8], out: &mut [f32]) {
    out.fill(0.0);
}

pub(super) fn q8_0(_: &[u8], out: &mut [f32]) {
    out.fill(0.0);
}

pub(super) fn q1_0(_: &[u8], out: &mut [f32]) {
    out.fill(0.0);
}

pub(super) fn q2_0(_: &[u8], out: &mut [f32]) {
    out.fill(0.0);
}
