//! The diverging color scale: blue below zero, near-white at zero, red above.
//!
//! It is drawn in OKLCh (B. Ottosson, "A perceptual color space for image processing", 2020), where
//! equal steps look equal. Both arms have the same lightness and chroma at the same distance from
//! zero and differ in hue alone, so neither sign looks larger than it is, in gray, too, and to most
//! color-blind eyes.

/// An sRGB color.
pub type Rgb = [u8; 3];

/// Distance from zero, lightness and chroma of the scale's control points.
const ARM: [(f64, f64, f64); 6] = [
    (0.00, 0.972, 0.002),
    (0.15, 0.905, 0.045),
    (0.40, 0.760, 0.110),
    (0.65, 0.590, 0.150),
    (0.85, 0.450, 0.140),
    (1.00, 0.330, 0.100),
];
/// Hue of the arm below zero, in degrees: blue.
const BELOW: f64 = 255.0;
/// Hue of the arm above zero: red.
const ABOVE: f64 = 27.0;

/// The color of `t` in -1…1; beyond is clamped.
pub fn diverging(t: f64) -> Rgb {
    let at = t.abs().min(1.0);
    let hue = if t < 0.0 { BELOW } else { ABOVE };
    let i = ARM.iter().rposition(|p| p.0 <= at).unwrap_or(0);
    let (a, b) = (ARM[i], ARM[(i + 1).min(ARM.len() - 1)]);
    let f = if b.0 > a.0 {
        (at - a.0) / (b.0 - a.0)
    } else {
        0.0
    };
    oklch(a.1 + f * (b.1 - a.1), a.2 + f * (b.2 - a.2), hue).map(|c| (c * 255.0).round() as u8)
}

/// A NaN: a green that no value has.
pub const NAN: Rgb = [0x00, 0xa8, 0x4c];
/// An infinity: an amber that no value has.
pub const INF: Rgb = [0xf5, 0xa3, 0x00];

/// OKLCh (hue in degrees) → sRGB in 0…1, clipped. The matrices are Ottosson's.
fn oklch(lightness: f64, chroma: f64, hue: f64) -> [f64; 3] {
    let (sin, cos) = hue.to_radians().sin_cos();
    let (a, b) = (chroma * cos, chroma * sin);
    let l = (lightness + 0.396_337_777_4 * a + 0.215_803_757_3 * b).powi(3);
    let m = (lightness - 0.105_561_345_8 * a - 0.063_854_172_8 * b).powi(3);
    let s = (lightness - 0.089_484_177_5 * a - 1.291_485_548_0 * b).powi(3);
    [
        4.076_741_662_1 * l - 3.307_711_591_3 * m + 0.230_969_929_2 * s,
        -1.268_438_004_6 * l + 2.609_757_401_1 * m - 0.341_319_396_5 * s,
        -0.004_196_086_3 * l - 0.703_418_614_7 * m + 1.707_614_701_0 * s,
    ]
    .map(|c| {
        let c = c.clamp(0.0, 1.0);
        if c <= 0.003_130_8 {
            12.92 * c
        } else {
            1.055 * c.powf(1.0 / 2.4) - 0.055
        }
    })
}

/// sRGB → OKLab (lightness, green to red, blue to yellow): how different two colors look is their
/// distance there.
pub fn oklab(rgb: Rgb) -> [f64; 3] {
    let [r, g, b] = rgb.map(|c| {
        let c = f64::from(c) / 255.0;
        if c <= 0.040_45 {
            c / 12.92
        } else {
            ((c + 0.055) / 1.055).powf(2.4)
        }
    });
    let l = (0.412_221_470_8 * r + 0.536_332_536_3 * g + 0.051_445_992_9 * b).cbrt();
    let m = (0.211_903_498_2 * r + 0.680_699_545_1 * g + 0.107_396_956_6 * b).cbrt();
    let s = (0.088_302_461_9 * r + 0.281_718_837_6 * g + 0.629_978_700_5 * b).cbrt();
    [
        0.210_454_255_3 * l + 0.793_617_785_0 * m - 0.004_072_046_8 * s,
        1.977_998_495_1 * l - 2.428_592_205_0 * m + 0.450_593_709_9 * s,
        0.025_904_037_1 * l + 0.782_771_766_2 * m - 0.808_675_766_0 * s,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance (WCAG 2), as any screen shows it.
    fn luminance([r, g, b]: Rgb) -> f64 {
        let linear = |c: u8| (f64::from(c) / 255.0).powf(2.2);
        0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
    }

    #[test]
    fn oklab_has_its_authors_example_values() {
        // White, and sRGB red: L 0.62796, C 0.25768, h 29.234 (CSS Color 4's sample values).
        for (lch, rgb) in [
            ((1.0, 0.0, 0.0), [255, 255, 255]),
            ((0.627_96, 0.257_68, 29.234), [255, 0, 0]),
        ] {
            let got = oklch(lch.0, lch.1, lch.2).map(|c| (c * 255.0).round() as u8);
            assert_eq!(got, rgb);
            let [l, a, b] = oklab(rgb);
            assert!((l - lch.0).abs() < 1e-3 && (a.hypot(b) - lch.1).abs() < 1e-3);
        }
    }

    #[test]
    fn both_arms_darken_alike_away_from_zero() {
        for i in 1..=100 {
            let (t, before) = (f64::from(i) / 100.0, f64::from(i - 1) / 100.0);
            for sign in [-1.0, 1.0] {
                assert!(luminance(diverging(sign * t)) < luminance(diverging(sign * before)));
            }
            let (blue, red) = (luminance(diverging(-t)), luminance(diverging(t)));
            assert!((blue - red).abs() < 0.05, "{t}: {blue} {red}");
        }
        let [r, g, b] = diverging(0.0);
        assert!(r.abs_diff(g) < 3 && g.abs_diff(b) < 3 && r > 240);
        assert_eq!(diverging(7.0), diverging(1.0));
    }
}
