//! Quantized layers: which stored tensors make up one, and how their bytes become numbers.
//!
//! Each format is one file under `quant/`, with a *description* (what it recognizes by names,
//! dtypes and shapes, and why it refuses) and a *kernel* (bytes → binary32). To add a format, add a
//! file and a line in [`FORMATS`]. Recognition reads only headers and JSON files. `model` decides
//! from each layer's [`Component`]s how layers fuse, and whether they can. Layers that are stored
//! stacked, one for each expert, are presented to every format as single layers (`stacked`, through
//! `listing`), so that formats need not know about them.
//!
//! The formulas and rules are those of the formats' own libraries, named in each file. All values
//! are evaluated in IEEE binary32, round to nearest even, in the order the formula is written,
//! without fused multiply-add and without flushing subnormals.

use std::cell::OnceCell;
use std::sync::Arc;

use self::declared::Declared;
use self::listing::Listing;
use self::stacked::Stacks;
use crate::catalog::{Catalog, TensorRef};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::reason::{Missing, Reason};
use crate::view::SharedView;

mod bits;
mod bitsandbytes;
mod compressed_tensors;
mod declared;
mod e2m1;
mod fp8;
mod g_idx;
mod gpt_oss;
mod int8;
mod listing;
mod mlx;
mod modelopt;
mod module;
mod packed_linear;
mod parts;
mod read;
mod scale_grid;
mod scaled;

mod stacked;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

/// Every format, in the order in which they are asked. The first that recognizes an anchor gets it.
pub const FORMATS: &[&dyn Format] = &[
    &mlx::Mlx,
    &gpt_oss::GptOss,
    &packed_linear::PackedLinear, // GPTQ, AWQ
    &compressed_tensors::CompressedTensors,
    &fp8::Fp8,
    &int8::Int8,
    &bitsandbytes::FourBit,
    &bitsandbytes::EightBit,
    &modelopt::ModelOpt,
];

/// A weight format.
pub trait Format: Sync {
    /// Prepares for one model. `None` if the model cannot hold this format at all (then no tensor
    /// is asked about).
    fn open<'a>(&self, opened: &'a Opened<'a>) -> Option<Box<dyn Recognizer + 'a>>;

    /// What the user should know about the model beyond each layer's outcome, such as a config that
    /// was overruled. Shown by `ls --why`.
    fn remarks(&self, opened: &Opened<'_>) -> Vec<String> {
        let _ = opened;
        Vec::new()
    }

    /// The last name components of tensors that describe this format's weights but are not weights.
    /// In a quantized model they do not count as parameters, whichever layer they belong to.
    fn siblings(&self) -> &'static [&'static str] {
        &[]
    }
}

/// A model that the formats are asked about, with the data that they share.
pub struct Opened<'a> {
    listing: &'a Listing<'a>,
    declared: OnceCell<Declared>,
}

impl<'a> Opened<'a> {
    fn new(listing: &'a Listing<'a>) -> Opened<'a> {
        Opened {
            listing,
            declared: OnceCell::new(),
        }
    }

    /// Whether any tensor's dtype is `wanted`.
    fn has(&self, wanted: impl Fn(Dtype) -> bool) -> bool {
        let mut known = self.listing.iter().map(|t| t.dtype.known());
        known.any(|dtype| dtype.is_some_and(&wanted))
    }

    /// What the formats recognize, each anchor once.
    fn recognize(&self) -> Vec<Recognized> {
        let open: Vec<_> = FORMATS.iter().filter_map(|f| f.open(self)).collect();
        if open.is_empty() {
            return Vec::new();
        }
        let tensors = (0u32..).zip(self.listing.iter());
        let first = |(i, t)| open.iter().find_map(|f| f.recognize(i, t));
        tensors.filter_map(first).collect()
    }

    /// What the configs declare. Parsed once, when a format first needs it: it may be long, and
    /// contains expressions to compile.
    fn declared(&self) -> &Declared {
        self.declared
            .get_or_init(|| Declared::new(self.listing.configs()))
    }
}

/// A format, prepared for one model.
pub trait Recognizer {
    /// Whether the stored tensor `index` is the *anchor* of a layer of this format: the one tensor
    /// by which the layer is found (`qweight`, the packed `weight`, `X_blocks` …). Called for every
    /// stored tensor of the model, so the first test must be cheap (a suffix, a dtype).
    ///
    /// `None` if it is not. Otherwise what was found, damaged layers included.
    fn recognize(&self, index: u32, tensor: TensorRef<'_>) -> Option<Recognized>;
}

/// The name under which a layer's values appear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The anchor itself has the float weight's name: its own `f32` is the dequantized matrix.
    Anchor,
    /// A synthetic tensor of this name, F32, `raw` = `f32`. The parts stay plain tensors.
    Named(String),
}

/// A layer that a format has recognized.
pub struct Recognized {
    /// The method's name in `meta.json`, such as `gptq`.
    pub method: &'static str,
    /// The stored tensors that belong to it (indexes into [`Catalog::tensors`]), the anchor first.
    pub parts: Vec<u32>,
    /// Where the values appear.
    pub target: Target,
    /// How many weights the anchor packs, as far as headers show (32 / bits per word); the other
    /// parts do not count. `None`: count the anchor's elements as they are.
    pub parameters: Option<u64>,
    /// The layer, or why it cannot be decoded.
    pub outcome: Outcome,
}

/// What became of a recognized layer.
pub enum Outcome {
    /// It can be decoded.
    Layer(Layer),
    /// It can be decoded once a few bytes of tensor data (a shape) are known.
    Deferred(DeferredShape),
    /// It cannot be decoded, for this reason (with both shapes or numbers).
    Damaged(Reason),
}

impl From<std::result::Result<Layer, Reason>> for Outcome {
    fn from(layer: std::result::Result<Layer, Reason>) -> Outcome {
        match layer {
            Ok(layer) => Outcome::Layer(layer),
            Err(reason) => Outcome::Damaged(reason),
        }
    }
}

/// A layer whose shape is in tensor data (bitsandbytes' state, `weight_shape`), which is read only
/// after the mount is ready.
pub struct DeferredShape {
    /// The (small) stored tensors whose bytes are all needed.
    pub sources: Vec<u32>,
    /// Makes the layer from those bytes, in the order of `sources`, or returns why it cannot be
    /// decoded.
    #[allow(clippy::type_complexity)]
    pub finish: Box<dyn Fn(&[Vec<u8>]) -> std::result::Result<Layer, Reason> + Send + Sync>,
}

/// A layer that can be decoded.
#[derive(Clone)]
pub struct Layer {
    /// Bits per stored value.
    pub bits: u32,
    /// Values that share a scale along a row, if the format has such groups.
    pub group_size: Option<u64>,
    /// Shape of the values: `[N, K]`, or with leading dimensions.
    pub shape: Box<[u64]>,
    /// Whether decoding never rounds a value of this layer.
    pub exact: bool,
    /// The stored tensors that a fusion of several such layers joins, and how.
    pub components: Vec<Component>,
    /// Everything besides shapes that must agree for stored words to join (bits, group size, mode,
    /// zero-point convention, row length): layers whose words join have equal strings. Reasons
    /// quote it, for example `4 bits, groups of 128, K 4096`.
    pub compatible: String,
    /// Bytes → numbers.
    pub kernel: Arc<dyn Kernel>,
}

/// A stored tensor of a layer, as fusions use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    /// The end of its name after the module path, such as `qweight`: the S of `P.qkv_proj.S`.
    pub suffix: &'static str,
    /// Index into [`Catalog::tensors`].
    pub tensor: u32,
    /// How several of them join.
    pub join: Join,
    /// Whether another part's rows may follow this one's: its own rows fill whole units (blocks of
    /// a scale grid, words that pack along the rows). The last part need not.
    pub whole: bool,
}

/// How tensors of the same suffix join into the fused layer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// Along the axis of output rows: axis -2; of 1-D tensors axis -1.
    Rows,
    /// Along the last axis, row by row (GPTQ and AWQ store layers transposed).
    Columns,
    /// Along axis 0, whatever the rank: grids of scales that are stored as `[R, 1, C, 1]`.
    First,
    /// All parts must be equal, and the fused layer has that same tensor (`g_idx`). Equality
    /// depends on data, not on headers.
    Same,
    /// They cannot join, for this reason; the layer's fusions then join F32 values.
    Never(&'static str),
}

/// Bytes → numbers, for one layer.
pub trait Kernel: Send + Sync {
    /// The layer's values as binary32 (C order, [`Layer::shape`]), read lazily from the raw bytes
    /// of the layer's parts, which are given in the order of [`Recognized::parts`].
    ///
    /// # Errors
    /// The parts cannot be read, or their contents make values impossible.
    fn view(&self, parts: &[SharedView]) -> Result<SharedView>;

    /// Everything that is wrong with the layer's *data* (a group index out of range), for `stfs
    /// verify`. Reads as much as it needs.
    fn check(&self, parts: &[SharedView]) -> Vec<String> {
        let _ = parts;
        Vec::new()
    }
}

/// Asks every format about every stored tensor.
pub fn recognize(catalog: &Catalog) -> Vec<Recognized> {
    if catalog.configs.types_tell_all {
        return Vec::new();
    }
    let (stacks, overlay) = Stacks::find(catalog);
    let listing = Listing::new(catalog, overlay);
    let opened = Opened::new(&listing);
    let found = opened.recognize();
    for note in opened.declared.get().map(Declared::notes).iter().flatten() {
        log::warn!("{note}");
    }
    let stacked = |layer| stacks.stacked(layer, &listing);
    found.into_iter().map(stacked).collect()
}

/// The formats' remarks about the model as a whole, for `ls --why`.
pub fn remarks(catalog: &Catalog) -> Vec<String> {
    if catalog.configs.types_tell_all {
        return Vec::new();
    }
    let (_, overlay) = Stacks::find(catalog);
    let listing = Listing::new(catalog, overlay);
    let opened = Opened::new(&listing);
    // Only recognition shows which of a config's expressions are used.
    opened.recognize();
    FORMATS.iter().flat_map(|f| f.remarks(&opened)).collect()
}

/// Last name components of tensors that hold quantization parameters of activations or the KV
/// cache. Several formats write the same ones; they do not affect the values of weights.
const OF_ACTIVATIONS: &[&str] = &[
    "input_scale",
    "input_scale_ub",
    "input_global_scale",
    "input_zero_point",
    "output_scale",
    "output_zero_point",
    "activation_scale",
    "pre_quant_scale",
    "q_scale",
    "k_scale",
    "v_scale",
    "kv_scale",
    "prob_scale",
    "k_zero_point",
    "v_zero_point",
];

/// Whether a tensor of this name holds quantization parameters of activations or the KV cache.
pub fn is_of_activations(name: &str) -> bool {
    OF_ACTIVATIONS.contains(&name.rsplit('.').next().unwrap_or_default())
}

/// Whether tensors whose names end in the component `last` describe weights of some format, or how
/// activations are quantized.
pub fn is_sibling(last: &str) -> bool {
    OF_ACTIVATIONS.contains(&last) || FORMATS.iter().any(|f| f.siblings().contains(&last))
}

impl Recognized {
    /// The layer. Reads tensor data if its shape is there.
    ///
    /// # Errors
    /// Why it cannot be decoded; [`Missing::Unread`] if its shape could not be read.
    pub fn resolve(&self, catalog: &Catalog) -> std::result::Result<Layer, Missing> {
        match &self.outcome {
            Outcome::Layer(layer) => Ok(layer.clone()),
            Outcome::Damaged(reason) => Err(Missing::Reason(reason.clone())),
            Outcome::Deferred(deferred) => {
                let mut bytes = Vec::with_capacity(deferred.sources.len());
                for &i in &deferred.sources {
                    let view = catalog.bytes(i);
                    let read = crate::view::read_all(&*view);
                    bytes.push(read.map_err(|e| Missing::Unread(e.to_string().into()))?);
                }
                (deferred.finish)(&bytes).map_err(Missing::Reason)
            }
        }
    }

    /// The raw bytes of its parts, in order.
    pub fn raw_parts(&self, catalog: &Catalog) -> Vec<SharedView> {
        self.parts.iter().map(|&i| catalog.bytes(i)).collect()
    }
}
