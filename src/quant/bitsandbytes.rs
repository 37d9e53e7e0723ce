//! bitsandbytes: NF4 and FP4 ([`FourBit`]), LLM.int8 ([`EightBit`]).
//!
//! **4-bit.** `X.weight` is a container of bytes with two codes each. Its dtype is only that of the
//! container (`bnb_4bit_quant_storage`), and its shape means nothing. Beside it are
//! `X.weight.absmax`, `.quant_map`, `.quant_state.bitsandbytes__nf4` (or `__fp4`: JSON, with the
//! real shape), and, if the statistics are themselves quantized, `.nested_absmax` and
//! `.nested_quant_map`.
//!
//! **8-bit.** `X.weight` I8 `[N, K]`, `X.SCB` F32 `[N]` (each row's largest magnitude): value =
//! (float(q) · SCB, rounded) · f32(1/127), a product, not a division.
//!
//! Source: bitsandbytes-foundation/bitsandbytes `bitsandbytes/functional.py` (`QuantState`),
//! `nn/modules.py`, `backends/default/ops.py`.

use std::sync::Arc;

use super::listing::Listing;
use super::module::{Module, Part};
use super::scale_grid::ScaleGrid;
use super::scaled::{Extra, ScaledKernel};
use super::{
    Component, DeferredShape, Format, Join, Layer, Opened, Outcome, Recognized, Recognizer, Target,
};
use crate::catalog::TensorRef;
use crate::dtype::Dtype;
use crate::reason::{Reason, reason};

mod kernel;
mod state;

use state::{Lengths, State};

/// The 4-bit format, described above.
pub struct FourBit;
/// The 8-bit format, described above.
pub struct EightBit;

/// The name of the state below the weight's name, for each kind.
const STATES: [&str; 2] = [
    "quant_state.bitsandbytes__nf4",
    "quant_state.bitsandbytes__fp4",
];
const ABSMAX: &str = "absmax";
/// The statistics below the weight's name, in the order in which the kernel gets them.
const STATISTICS: [&str; 4] = [ABSMAX, "quant_map", "nested_absmax", "nested_quant_map"];

/// A state is some 200 bytes of JSON; anything larger than this is not one.
const MAX_STATE: u64 = 64 * 1024;

/// binary32's 1/127.
const ONE_127TH: f32 = f32::from_bits(0x3C01_0204);

const NEVER: &str = "bitsandbytes' blocks and statistics belong to one weight";

impl Format for FourBit {
    fn open<'a>(&self, opened: &'a Opened<'a>) -> Option<Box<dyn Recognizer + 'a>> {
        let ours = |name: &str| {
            name.ends_with(".absmax") || STATES.iter().any(|state| name.ends_with(state))
        };
        let some = opened.listing.iter().any(|t| ours(t.name));
        some.then(|| Box::new(FourBitRecognizer(opened.listing)) as Box<dyn Recognizer + 'a>)
    }

    fn siblings(&self) -> &'static [&'static str] {
        &["absmax", "quant_map"]
    }
}

struct FourBitRecognizer<'a>(&'a Listing<'a>);

impl Recognizer for FourBitRecognizer<'_> {
    fn recognize(&self, index: u32, tensor: TensorRef<'_>) -> Option<Recognized> {
        Module::of_weight(self.0, tensor.name)?;
        let beneath = Module::at(self.0, tensor.name, ".");
        let state = STATES.iter().find_map(|state| beneath.part(state));
        let statistics = STATISTICS.map(|last| beneath.part(last));
        // The state itself may be what is missing, so absmax and quant_map together are enough to
        // recognize the layer.
        if state.is_none() && (statistics[0].is_none() || statistics[1].is_none()) {
            return None;
        }
        let others = statistics.into_iter().flatten().chain(state);
        let parts = [index].into_iter().chain(others.map(|part| part.index));
        let outcome = match state {
            None => Outcome::Damaged(reason!(
                "its state '{}' (or __fp4) is missing{}",
                beneath.name(STATES[0]),
                self.0.elsewhere()
            )),
            Some(state) => self.outcome(index, tensor, state, statistics),
        };
        Some(Recognized {
            method: "bitsandbytes",
            parts: parts.collect(),
            target: Target::Anchor,
            parameters: tensor.nbytes.checked_mul(2),
            outcome,
        })
    }
}

impl FourBitRecognizer<'_> {
    /// The outcome as far as it is known before the state is read.
    fn outcome(
        &self,
        index: u32,
        tensor: TensorRef<'_>,
        state: Part<'_>,
        statistics: [Option<Part<'_>>; 4],
    ) -> Outcome {
        let statistics = statistics.map(|part| part.map(|p| p.tensor));
        let lengths = match Lengths::of(tensor, statistics) {
            Ok(lengths) => lengths,
            Err(reason) => return Outcome::Damaged(reason!("{reason}{}", self.0.elsewhere())),
        };
        let size = state.nbytes;
        if size > MAX_STATE {
            return Outcome::Damaged(reason!(
                "its state is {size} bytes long, at most {MAX_STATE} are read"
            ));
        }
        Outcome::Deferred(DeferredShape {
            sources: vec![state.index],
            finish: Box::new(move |bytes| {
                let json = bytes.first().map(Vec::as_slice).unwrap_or_default();
                let state = State::parse(json)?;
                lengths.check(&state)?;
                Ok(four_bit_layer(index, state))
            }),
        })
    }
}

fn four_bit_layer(index: u32, state: State) -> Layer {
    Layer {
        bits: 4,
        group_size: Some(state.block),
        shape: state.shape.clone(),
        exact: false,
        components: vec![unjoinable(index)],
        compatible: format!("{}, blocks of {}", state.kind, state.block),
        kernel: Arc::new(kernel::FourBitKernel::new(&state)),
    }
}

fn unjoinable(tensor: u32) -> Component {
    Component {
        suffix: "weight",
        tensor,
        join: Join::Never(NEVER),
        whole: true,
    }
}

impl Format for EightBit {
    fn open<'a>(&self, opened: &'a Opened<'a>) -> Option<Box<dyn Recognizer + 'a>> {
        let ours = |name: &str| name.ends_with("SCB") || name.ends_with("weight_format");
        let some = opened.listing.iter().any(|t| ours(t.name));
        some.then(|| Box::new(EightBitRecognizer(opened.listing)) as Box<dyn Recognizer + 'a>)
    }

    fn siblings(&self) -> &'static [&'static str] {
        &["SCB", "weight_format"]
    }
}

struct EightBitRecognizer<'a>(&'a Listing<'a>);

impl Recognizer for EightBitRecognizer<'_> {
    fn recognize(&self, index: u32, tensor: TensorRef<'_>) -> Option<Recognized> {
        if !tensor.dtype.is(Dtype::I8) {
            return None;
        }
        let module = Module::of_weight(self.0, tensor.name)?;
        let (scale, format) = (module.part("SCB"), module.part("weight_format"));
        if scale.is_none() && format.is_none() {
            return None;
        }
        let others = [scale, format].into_iter().flatten().map(|part| part.index);
        let outcome = match (scale, format) {
            (None, _) => Outcome::Damaged(reason!(
                "its scale '{}' is missing{}",
                module.name("SCB"),
                module.elsewhere()
            )),
            (Some(scale), None) => eight_bit_layer(index, tensor, scale.tensor).into(),
            (Some(scale), Some(format)) => {
                match (eight_bit_layer(index, tensor, scale.tensor), format.nbytes) {
                    (Ok(layer), 1) => Outcome::Deferred(DeferredShape {
                        sources: vec![format.index],
                        finish: Box::new(move |bytes| row_major(bytes).map(|()| layer.clone())),
                    }),
                    (Ok(_), _) => Outcome::Damaged(reason!(
                        "its weight_format is {} {:?}, not one U8",
                        format.dtype,
                        format.shape
                    )),
                    (Err(reason), _) => Outcome::Damaged(reason),
                }
            }
        };
        Some(Recognized {
            method: "bitsandbytes",
            parts: [index].into_iter().chain(others).collect(),
            target: Target::Anchor,
            parameters: None,
            outcome,
        })
    }
}

fn eight_bit_layer(
    index: u32,
    tensor: TensorRef<'_>,
    scale: TensorRef<'_>,
) -> Result<Layer, Reason> {
    let fits = match *tensor.shape {
        [n, _] => scale.dtype.is(Dtype::F32) && scale.numel() == n,
        _ => false,
    };
    if !fits {
        return Err(reason!(
            "SCB is {} {:?}, a weight {:?} needs one F32 for each row",
            scale.dtype,
            scale.shape,
            tensor.shape
        ));
    }
    let grid = ScaleGrid::find(tensor.shape, &[scale.numel()], || None)?;
    Ok(Layer {
        bits: 8,
        group_size: None,
        shape: tensor.shape.into(),
        exact: false,
        components: vec![unjoinable(index)],
        compatible: format!("int8, K {}", grid.cols()),
        kernel: Arc::new(ScaledKernel {
            code: Dtype::I8,
            scale: Dtype::F32,
            grid,
            extra: Extra::ValueFactor(ONE_127TH),
            numel: tensor.numel(),
        }),
    })
}

/// Checks that `weight_format` means row-major order. The other values are tilings for old GPUs.
fn row_major(bytes: &[Vec<u8>]) -> Result<(), Reason> {
    match bytes.first().and_then(|b| b.first()) {
        Some(0) => Ok(()),
        Some(n) => Err(reason!(
            "weight_format is {n}, an old GPU's tiling: only 0, row-major, is decoded"
        )),
        None => Err("weight_format is empty".into()),
    }
}

#[cfg(test)]
mod tests;
