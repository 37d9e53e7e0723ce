//! Decides which tensors form such a layer, and whether it is GPTQ or AWQ; or why it is neither.

use std::sync::Arc;

use super::config::{Config, Stored};
use super::geometry::{Geometry, GroupIndex, Packing};
use super::shapes::{Parts, Shape};
use crate::catalog::TensorRef;
use crate::dtype::Dtype;
use crate::quant::g_idx::{check_inputs, is_integer};
use crate::quant::listing::Listing;
use crate::quant::module::{Module, Part};
use crate::quant::{Component, Join, Layer, Outcome, Recognized, Recognizer, Target};
use crate::reason::{Reason, reason};

/// The anchor's name after the module path.
const WORDS: &str = "qweight";
/// The anchor of GPTQ's `marlin` format, whose words are permuted for a GPU kernel.
const MARLIN: &str = "B";

/// The most groups of a layer that is decoded. The scales and zero points of a panel's outputs are
/// kept in memory together, at this number at most 512 MiB. A sparse file can claim any number.
/// (Published models have up to some thousand.)
const MOST_GROUPS: u64 = 1 << 16;

/// One model, with its configs read.
pub(super) struct PackedLinearRecognizer<'a> {
    listing: &'a Listing<'a>,
    config: Config,
    /// Some layer has a `g_idx`.
    any_index: bool,
}

impl Recognizer for PackedLinearRecognizer<'_> {
    fn recognize(&self, index: u32, tensor: TensorRef<'_>) -> Option<Recognized> {
        if let Some(module) = Module::of(self.listing, tensor.name, WORDS) {
            return Some(self.packed(index, tensor, module));
        }
        let module = Module::of(self.listing, tensor.name, MARLIN)?;
        self.marlin(index, tensor, module)
    }
}

impl<'a> PackedLinearRecognizer<'a> {
    /// `None` if no tensor has the name of such a layer's words.
    pub fn open(listing: &'a Listing<'a>) -> Option<PackedLinearRecognizer<'a>> {
        let any = |suffix| {
            let mut tensors = listing.iter();
            tensors.any(|t| Module::of(listing, t.name, suffix).is_some())
        };
        (any(WORDS) || any(MARLIN)).then(|| PackedLinearRecognizer {
            listing,
            config: Config::new(listing.configs()),
            any_index: any("g_idx"),
        })
    }

    /// The remark that the shapes overruled the config's `quant_method`, if they did.
    pub fn overruled(&self) -> Option<String> {
        let method = self.config.method.as_deref()?;
        let other = match method {
            "awq" => "gptq",
            "gptq" | "gptqmodel" => "awq",
            _ => return None,
        };
        let tensors = self.listing.iter().enumerate();
        let count = tensors
            .filter_map(|(i, tensor)| self.recognize(i as u32, tensor))
            .filter(|found| matches!(found.outcome, Outcome::Layer(_)) && found.method == other)
            .count();
        (count > 0).then(|| {
            format!(
                "the config has quant_method '{method}', but the shapes of {count} of its layers are those of {other}; they are read as {other}"
            )
        })
    }

    /// The layer whose `qweight` is `words`.
    fn packed(&self, index: u32, words: TensorRef<'a>, module: Module<'a>) -> Recognized {
        let siblings = ["scales", "qzeros", "g_idx"].map(|last| module.part(last));
        let anchor = Part {
            index,
            tensor: words,
        };
        let found = self.layer(anchor, module, siblings);
        let (method, parameters, outcome) = match found {
            Ok((packing, layer)) => {
                let count = layer.shape.iter().product();
                (packing.name(), Some(count), Outcome::Layer(layer))
            }
            Err((method, reason)) => (method, None, Outcome::Damaged(reason)),
        };
        let parts = siblings.into_iter().flatten().map(|part| part.index);
        Recognized {
            method,
            parts: std::iter::once(index).chain(parts).collect(),
            target: Target::Named(module.name("weight")),
            parameters,
            outcome,
        }
    }

    fn layer(
        &self,
        words: Part<'a>,
        module: Module<'a>,
        [scales, zeros, index]: [Option<Part<'a>>; 3],
    ) -> Result<(Packing, Layer), (&'static str, Reason)> {
        if let Stored::Refused { method, reason } = &self.config.stored {
            return Err((method, reason.clone()));
        }
        let says_awq = self.config.method.as_deref() == Some("awq");
        let method = if says_awq { "awq" } else { "gptq" };
        let missing = |last| {
            let (name, hint) = (module.name(last), module.elsewhere());
            let why =
                reason!("{name} is missing: a packed layer needs qweight, scales and qzeros{hint}");
            (method, why)
        };
        let parts = Parts {
            words,
            scales: scales.ok_or_else(|| missing("scales"))?,
            zeros: zeros.ok_or_else(|| missing("qzeros"))?,
            index,
        };
        let shape = parts.fit(&self.config).map_err(|why| (method, why))?;
        self.finish(&parts, shape, module)
            .map(|layer| (shape.packing, layer))
            .map_err(|why| (shape.packing.name(), why))
    }

    /// The stored `g_idx`, if there is one that is not empty.
    fn group_index(
        &self,
        parts: &Parts<'_>,
        shape: Shape,
        module: Module<'a>,
    ) -> Result<Option<GroupIndex>, Reason> {
        let is_awq = shape.packing == Packing::Awq;
        let Some(tensor) = parts.index else {
            if is_awq {
                return Ok(None);
            }
            let name = module.name("g_idx");
            let elsewhere = self.listing.is_lone_file() && self.any_index;
            return match self.listing.is_absent(&name) || elsewhere {
                true => Err(reason!(
                    "{name} is not in the available files, and it maps inputs to scales; mount the whole model"
                )),
                false => Ok(None),
            };
        };
        if *tensor.shape == [0] {
            return Ok(None);
        }
        if is_awq {
            return Err("the shapes are AWQ's, which has no g_idx, but there is one".into());
        }
        match tensor.dtype.known().filter(|d| is_integer(*d)) {
            Some(dtype) if *tensor.shape == [shape.k] => {
                check_inputs(tensor.name, shape.k)?;
                Ok(Some(GroupIndex {
                    name: tensor.name.into(),
                    dtype,
                }))
            }
            _ => Err(reason!(
                "g_idx is {} {:?}; it must be integers, one for each of {} inputs",
                tensor.dtype,
                tensor.shape,
                shape.k
            )),
        }
    }

    /// Inputs per group. For layers without `g_idx` this determines the values; for others it is
    /// only shown.
    fn group_size(&self, shape: Shape, has_index: bool) -> Result<Option<u64>, Reason> {
        let Shape { k, groups, .. } = shape;
        let even = k.is_multiple_of(groups).then(|| k / groups);
        if shape.packing == Packing::Awq {
            return Ok(even);
        }
        match self.config.group_size(k, groups).or(even) {
            None if !has_index => Err(reason!(
                "there is no g_idx, {groups} groups do not divide {k} inputs, and no configured group size ({:?}) gives {groups} groups",
                self.config.group_sizes
            )),
            size => Ok(size),
        }
    }

    fn finish(&self, parts: &Parts<'_>, shape: Shape, module: Module<'a>) -> Result<Layer, Reason> {
        let Shape {
            packing,
            n,
            k,
            groups,
        } = shape;
        if groups > MOST_GROUPS {
            return Err(reason!(
                "it has {groups} groups, at most {MOST_GROUPS} are decoded"
            ));
        }
        let index = self.group_index(parts, shape, module)?;
        let group_size = self.group_size(shape, index.is_some())?;
        let scales = parts.scales.dtype.known().unwrap_or(Dtype::F32);
        let g_idx = match (parts.index.is_some(), index.is_some()) {
            (_, true) => "g_idx",
            (true, false) => "empty g_idx",
            _ => "no g_idx",
        };
        Ok(Layer {
            bits: packing.bits(),
            group_size,
            shape: [n, k].into(),
            exact: scales != Dtype::F32,
            components: components(parts),
            compatible: format!(
                "{} of {} bits in {} words, {scales} scales, {groups} groups, K {k}, {g_idx}",
                packing.name(),
                packing.bits(),
                parts.words.dtype
            ),
            kernel: Arc::new(Geometry {
                packing,
                n: n as usize,
                k: k as usize,
                groups: groups as usize,
                group_size: group_size.unwrap_or(k) as usize,
                scales,
                index,
            }),
        })
    }

    /// A layer in GPTQ's `marlin` format: `X.B` I32 `[K/16, 2N]` and `X.s` `[G, N]`.
    fn marlin(&self, index: u32, words: TensorRef<'_>, module: Module<'a>) -> Option<Recognized> {
        let scales = module.part("s")?;
        let says_so =
            matches!(&self.config.stored, Stored::Refused { method, .. } if *method == "marlin");
        let fits = matches!((words.shape, scales.shape), (&[_, w], &[_, n]) if Some(w) == n.checked_mul(2))
            && scales.dtype.known().is_some_and(Dtype::is_plain_float);
        if !words.dtype.is(Dtype::I32) || !(says_so || fits) {
            return None;
        }
        Some(Recognized {
            method: "marlin",
            parts: vec![index, scales.index],
            target: Target::Named(module.name("weight")),
            parameters: Some(words.numel().saturating_mul(8)),
            outcome: Outcome::Damaged(reason!(
                "B {:?} and s {:?} are GPTQ's marlin format, whose words are permuted for a GPU kernel; not decoded, the stored tensors are served as they are",
                words.shape,
                scales.shape
            )),
        })
    }
}

fn components(parts: &Parts<'_>) -> Vec<Component> {
    let component = |suffix, part: Part<'_>, join| Component {
        suffix,
        tensor: part.index,
        join,
        // The shapes fit only if the zero points end at a word boundary, so nothing is padded.
        whole: true,
    };
    let mut all = vec![
        component("qweight", parts.words, Join::Columns),
        component("qzeros", parts.zeros, Join::Columns),
        component("scales", parts.scales, Join::Columns),
    ];
    all.extend(parts.index.map(|t| component("g_idx", t, Join::Same)));
    all
}
