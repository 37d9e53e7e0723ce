//! MLX: affine integers of 1 to 8 bits, and its mxfp4, mxfp8 and nvfp4 modes.
//!
//! A layer is `X.weight` (U32 words, `[…, N, K·b/32]`), `X.scales` `[…, N, K/g]` and, in affine
//! mode, `X.biases` of the scales' shape. A row is one little-endian stream of b-bit codes; a value
//! is code · scale + bias of its group of g. U8 scales mean one of the other modes, without biases.
//! The shapes determine b·g, the bits in a group; b itself comes from a config or a manifest.
//!
//! Sources: `mlx/ops.cpp`, `mlx/backend/cpu/quantized.cpp` of ml-explore/mlx; `mlx_lm/utils.py` of
//! ml-explore/mlx-lm; `extract_weights.py` of mdegans/moeflux (the manifest).

use serde_json::Value;

use super::listing::Listing;
use super::module::{Module, Part};
use super::{Format, Layer, Opened, Outcome, Recognized, Recognizer, Target};
use crate::catalog::TensorRef;
use crate::dtype::{Dtype, numel};
use crate::reason::{Reason, reason};

mod config;
mod kernel;
#[cfg(test)]
mod tests;
mod triple;

use config::{Declaration, Mode, Said, Settings};
use triple::{Shapes, Triple};

/// Widths that affine mode has (`mx.quantize`; 1 since mlx 0.32.4).
const BITS: [u32; 7] = [1, 2, 3, 4, 5, 6, 8];
/// Group sizes that affine mode has.
const GROUP_SIZES: [u64; 3] = [32, 64, 128];

/// MLX's quantized layers, in safetensors or in a bin + manifest pair.
pub struct Mlx;

impl Format for Mlx {
    fn open<'a>(&self, opened: &'a Opened<'a>) -> Option<Box<dyn Recognizer + 'a>> {
        let listing = opened.listing;
        if !listing.iter().any(|t| module(listing, t).is_some()) {
            return None;
        }
        let says = if listing.is_manifest() {
            Says::Manifest
        } else {
            Says::Config(Declaration::find(listing.configs()))
        };
        Some(Box::new(MlxRecognizer { listing, says }))
    }
}

/// The module of a tensor that MLX could have packed: U32 and named `X.weight`, or just `weight`
/// for a layer saved by itself.
fn module<'a>(listing: &'a Listing<'a>, tensor: TensorRef<'a>) -> Option<Module<'a>> {
    let packed = tensor.dtype.is(Dtype::U32);
    packed.then(|| Module::of_weight(listing, tensor.name))?
}

/// Where bits and group size are stated.
enum Says<'a> {
    /// In the manifest; a `config.json` beside it does not count.
    Manifest,
    /// In `config.json`, if it declares MLX quantization.
    Config(Option<Declaration<'a>>),
}

/// A model, and where it states its layers' settings.
struct MlxRecognizer<'a> {
    listing: &'a Listing<'a>,
    says: Says<'a>,
}

impl Recognizer for MlxRecognizer<'_> {
    fn recognize(&self, index: u32, tensor: TensorRef<'_>) -> Option<Recognized> {
        let module = module(self.listing, tensor)?;
        let triple = Triple {
            module,
            words: Part { index, tensor },
            scales: module.part("scales"),
            biases: module.part("biases"),
        };
        let alone = triple.scales.is_none() && triple.biases.is_none();
        if alone && !self.must_be_packed(&triple) {
            return None;
        }
        let layer = self.layer(&triple);
        Some(Recognized {
            method: "mlx",
            parts: triple.parts(),
            target: Target::Anchor,
            parameters: layer.as_ref().ok().and_then(|l| numel(&l.shape)),
            outcome: layer.map_or_else(Outcome::Damaged, Outcome::Layer),
        })
    }
}

impl MlxRecognizer<'_> {
    /// Whether words without scales and biases are a damaged layer, not plain integers: if the
    /// model declares quantization and does not exempt this module.
    fn must_be_packed(&self, triple: &Triple) -> bool {
        let declared = match &self.says {
            Says::Config(None) => false,
            Says::Config(Some(d)) => d.of(triple.module.path()) != Said::NotQuantized,
            Says::Manifest => {
                let config = self.listing.configs().manifest.as_ref();
                let defaults = config.is_some_and(|c| c.contains_key("default_bits"));
                (triple.words.bits).is_some_and(|b| b.bits > 0 && (b.explicit || defaults))
            }
        };
        declared && triple.words.shape.len() >= 2
    }

    /// The layer, or why it cannot be decoded.
    fn layer(&self, triple: &Triple) -> Result<Layer, Reason> {
        let shapes = triple.shapes()?;
        let settings = if shapes.float {
            self.affine(triple, &shapes)?
        } else {
            self.without_biases(triple, &shapes)?
        };
        triple.layer(&shapes, settings)
    }

    /// Bits and group size of an affine layer.
    fn affine(&self, triple: &Triple, shapes: &Shapes) -> Result<Settings, Reason> {
        let settings = match &self.says {
            Says::Manifest => self.manifest(triple, shapes)?,
            Says::Config(None) => deduce(shapes.group_bits)?,
            Says::Config(Some(declaration)) => match declaration.of(triple.module.path()) {
                Said::NotQuantized => return Err(triple.exempt()),
                Said::Own(own) => {
                    let own = own?;
                    if own.mode != Mode::Affine {
                        return Err(reason!(
                            "config.json gives {own}, but it has float scales and biases, which means affine"
                        ));
                    }
                    own
                }
                // Models of every mode may contain affine layers.
                Said::Model(model) => Settings {
                    mode: Mode::Affine,
                    ..model?
                },
            },
        };
        let Settings {
            bits, group_size, ..
        } = settings;
        if !BITS.contains(&bits) {
            return Err(reason!("{bits} bits; MLX affine has {BITS:?}"));
        }
        if !GROUP_SIZES.contains(&group_size) {
            return Err(reason!(
                "groups of {group_size}; MLX affine has {GROUP_SIZES:?}"
            ));
        }
        Ok(settings)
    }

    /// Bits and group size of a layer in a manifest, which has no modes, only affine layers.
    fn manifest(&self, triple: &Triple, shapes: &Shapes) -> Result<Settings, Reason> {
        let said = triple.words.bits;
        let bits = said.map_or(Mode::Affine.defaults().bits, |b| b.bits);
        let group_size = if said.is_some_and(|b| b.explicit) {
            // The extractor drops group sizes that differ from layer to layer, but the shapes still
            // determine them.
            if bits == 0 || !shapes.group_bits.is_multiple_of(u64::from(bits)) {
                return Err(reason!(
                    "{} bits in a group are not a whole number of {bits}-bit values",
                    shapes.group_bits
                ));
            }
            shapes.group_bits / u64::from(bits)
        } else {
            let config = self.listing.configs().manifest.as_ref();
            match config.and_then(|c| c.get("default_group_size")) {
                None | Some(Value::Null) => Mode::Affine.defaults().group_size,
                Some(v) => v.as_u64().ok_or_else(|| {
                    reason!("the manifest gives default_group_size {v}, not a whole number")
                })?,
            }
        };
        Ok(Settings {
            mode: Mode::Affine,
            group_size,
            bits,
        })
    }

    /// The mode of a layer without biases. It follows from the shapes, and the declaration must
    /// agree.
    fn without_biases(&self, triple: &Triple, shapes: &Shapes) -> Result<Settings, Reason> {
        let declaration = match &self.says {
            Says::Config(declaration) => declaration,
            Says::Manifest => {
                return Err(
                    "scales are U8; layers of a manifest are affine, with float scales".into(),
                );
            }
        };
        let fits = |s: &Settings| shapes.group_bits == u64::from(s.bits) * s.group_size;
        let [_, others @ ..] = Mode::ALL.map(Mode::defaults);
        let settings = others.into_iter().find(fits).ok_or_else(|| {
            reason!(
                "U8 scales and {} bits in a group; mxfp4 has 128, mxfp8 256, nvfp4 64",
                shapes.group_bits
            )
        })?;
        let said = match declaration.as_ref().map(|d| d.of(triple.module.path())) {
            None => return Ok(settings),
            Some(Said::NotQuantized) => return Err(triple.exempt()),
            Some(Said::Own(said) | Said::Model(said)) => said?,
        };
        if said != settings {
            return Err(reason!(
                "config.json gives {said}, but U8 scales and {} bits in a group mean {settings}",
                shapes.group_bits
            ));
        }
        Ok(settings)
    }
}

/// Bits and group size if nothing states them: MLX's default if it fits, else the only pair that
/// does.
fn deduce(group_bits: u64) -> Result<Settings, Reason> {
    let default = Mode::Affine.defaults();
    if group_bits == u64::from(default.bits) * default.group_size {
        return Ok(default);
    }
    // One bit is left out: it is too new to be a likely guess.
    let pairs: Vec<(u32, u64)> = BITS[1..]
        .iter()
        .flat_map(|&bits| GROUP_SIZES.map(|group_size| (bits, group_size)))
        .filter(|&(bits, group_size)| u64::from(bits) * group_size == group_bits)
        .collect();
    match pairs[..] {
        [(bits, group_size)] => Ok(Settings {
            bits,
            group_size,
            ..default
        }),
        [] => Err(reason!(
            "{group_bits} bits in a group match no combination of bits and group size in MLX"
        )),
        _ => {
            let listed: Vec<String> = pairs
                .iter()
                .map(|(b, g)| format!("{b} bits in groups of {g}"))
                .collect();
            Err(reason!(
                "{group_bits} bits in a group can be {}, and no config decides; restore config.json with its 'quantization'",
                listed.join(" or ")
            ))
        }
    }
}
