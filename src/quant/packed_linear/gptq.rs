//! GPTQ's packing: `qweight` `[K·b/32, N]`, each column one bit stream along K; `qzeros`
//! `[G, N·b/32]`, each row one bit stream along N; b is 2, 3, 4 or 8.
//!
//! Sources: `AutoGPTQ/AutoGPTQ auto_gptq/nn_modules/qlinear/qlinear_cuda.py`, `ModelCloud/GPTQModel
//! gptqmodel/nn_modules/qlinear/__init__.py`, and for zero points `gptqmodel/utils/model.py`
//! (`convert_gptq_v1_to_v2_format_module`).

use super::line::Line;
use crate::quant::bits;
use crate::reason::{Reason, reason};

/// Bits per value and the number of inputs, from the shapes of `qweight` and `qzeros` and the
/// number of outputs; or why they are not GPTQ's.
pub(super) fn fit(words: [u64; 2], zeros: [u64; 2], outputs: u64) -> Result<(u32, u64), Reason> {
    let width = zeros[1].checked_mul(32).filter(|w| w % outputs == 0);
    let bits = match width.map(|w| w / outputs) {
        Some(bits @ (2 | 3 | 4 | 8)) => bits,
        _ => {
            return Err(reason!(
                "qzeros {zeros:?} with {outputs} outputs are 32·{}/{outputs} bits per value; GPTQ has 2, 3, 4 or 8",
                zeros[1]
            ));
        }
    };
    // 32 values of 3 bits take 3 words; any other number of words would end inside a value.
    let thirds = words[0].is_multiple_of(3) && zeros[1].is_multiple_of(3);
    if bits == 3 && !thirds {
        return Err(reason!(
            "3 bits need rows of qweight {words:?} and columns of qzeros {zeros:?} in multiples of 3"
        ));
    }
    match words[0].checked_mul(32) {
        Some(stream) if stream > 0 => Ok((bits as u32, stream / bits)),
        _ => Err(reason!("qweight {words:?} holds no inputs")),
    }
}

/// Unpacks the zero points in a row's words, which it modifies. `less_one`: they are stored as z -
/// 1 (format `gptq`, called v1).
///
/// GPTQModel adds the one to whole words for 2, 4 and 8 bits (a field of all ones carries into the
/// next) and to each field, modulo 8, for 3 bits. Its `sym: false` files decode correctly only if
/// this does the same.
#[inline(always)]
pub(super) fn zeros(bits: u32, less_one: bool, words: &mut [u32], out: &mut [u8]) {
    let one_each = match bits {
        2 => 0x5555_5555,
        4 => 0x1111_1111,
        8 => 0x0101_0101,
        _ => 0,
    };
    if less_one {
        for word in words.iter_mut() {
            *word = word.wrapping_add(one_each);
        }
    }
    let stream = bytemuck::cast_slice(words);
    match bits {
        2 => bits::unpack::<2>(stream, out),
        3 => bits::unpack::<3>(stream, out),
        4 => bits::unpack::<4>(stream, out),
        _ => bits::unpack::<8>(stream, out),
    }
    if less_one && bits == 3 {
        for zero in out {
            *zero = (*zero + 1) & 7;
        }
    }
}

/// The codes of one output: a stream of `B`-bit values along K.
#[derive(Clone, Copy)]
pub(super) struct Stream<'a, const B: usize>(pub &'a [u32]);

impl<const B: usize> Line for Stream<'_, B> {
    type Holder = u8;

    #[inline(always)]
    fn holders<'a>(self, first: usize, room: &'a mut [u8]) -> &'a [u8]
    where
        Self: 'a,
    {
        let stream: &[u8] = bytemuck::cast_slice(self.0);
        bits::unpack::<B>(&stream[first / 8 * B..], room);
        room
    }

    #[inline(always)]
    fn code(self, byte: u8) -> i32 {
        byte.into()
    }
}
