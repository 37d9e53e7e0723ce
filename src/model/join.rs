//! The one engine that joins: whether parts fit, along which axis, as stored bytes or as values.

use super::join_shapes::{Face, Joined};
use super::rules::{FusedRule, Mixed};
use super::tensor::{Made, MadeValues};
use super::{Model, TensorId};
use crate::dtype::ElementType;
use crate::quant::{self, Component, Layer, Target};
use crate::reason::{Missing, Reason, reason};

/// What a part of a fusion is.
enum Class<'a> {
    /// A tensor that belongs to no quantized layer.
    Plain,
    /// A component of a layer that can be decoded.
    Component(&'a Layer, &'a Component),
    /// The weight of a layer whose stored words do not join, but which has values.
    Values,
}

impl Model {
    /// `P.<fused>.S`.
    pub(super) fn fused(
        &self,
        rule: &FusedRule,
        prefix: &str,
        suffix: &str,
    ) -> Result<Made, Missing> {
        let ids = self.part_ids(prefix, rule.parts, suffix)?;
        self.join(vec![ids], suffix, rule.mixed, false)
    }

    /// `P.experts.<stacked>[.S]`, P with `experts.` in `prefix`.
    pub(super) fn stacked(
        &self,
        parts: &[&str],
        prefix: &str,
        suffix: &str,
        experts: u32,
    ) -> Result<Made, Missing> {
        let groups = (0..experts)
            .map(|e| self.part_ids(&format!("{prefix}{e}."), parts, suffix))
            .collect::<Result<Vec<_>, _>>()?;
        self.join(groups, suffix, Mixed::Nothing, true)
    }

    fn part_ids(
        &self,
        prefix: &str,
        parts: &[&str],
        suffix: &str,
    ) -> Result<Vec<TensorId>, Missing> {
        parts
            .iter()
            .map(|part| {
                let name = format!("{prefix}{part}.{suffix}");
                let id = self
                    .id(&name)
                    .ok_or_else(|| reason!("needs '{name}', which the model does not have"))?;
                match self.settled(id) {
                    Ok(_) => Ok(id),
                    Err(why) => Err(why.within(format_args!("needs '{name}'"))),
                }
            })
            .collect()
    }

    fn join(
        &self,
        groups: Vec<Vec<TensorId>>,
        suffix: &str,
        mixed: Mixed,
        stacked: bool,
    ) -> Result<Made, Missing> {
        let all: Vec<TensorId> = groups.iter().flatten().copied().collect();
        let classes = all
            .iter()
            .map(|&id| self.classify(id, suffix))
            .collect::<Result<Vec<_>, _>>()?;
        if classes.iter().all(|c| matches!(c, Class::Plain)) {
            return Ok(self.join_plain(&groups, suffix, mixed, stacked)?);
        }
        if let Some(plain) = classes.iter().position(|c| matches!(c, Class::Plain)) {
            return Err(reason!(
                "'{}' is stored as plain numbers, other parts belong to a quantized layer: they do not join",
                self.name(all[plain])
            )
            .into());
        }
        match self.join_words(&groups, &classes, stacked) {
            Ok(made) => Ok(made),
            // The weight still exists, as values; its scales do not.
            Err(why) if suffix == "weight" => {
                let mut made = self.join_values(&groups, stacked)?;
                made.remark = (!why.is_empty())
                    .then(|| why.within("is F32 values, without stored words and scales"));
                Ok(made)
            }
            Err(why) => Err(why.into()),
        }
    }

    /// What a part is, or why it cannot be joined.
    fn classify(&self, id: TensorId, suffix: &str) -> Result<Class<'_>, Missing> {
        if !self.is_stored(id) {
            return Ok(Class::Values);
        }
        let Some(index) = self.layer_of(id) else {
            return Ok(Class::Plain);
        };
        let recognized = self.recognized(index);
        let layer = self.settled_layer(index).map_err(|why| {
            why.within(format_args!(
                "'{}' belongs to a layer that cannot be decoded",
                self.name(id)
            ))
        })?;
        if let Some(component) = layer
            .components
            .iter()
            .find(|c| c.tensor == id && c.suffix == suffix)
        {
            return Ok(Class::Component(layer, component));
        }
        let is_weight =
            recognized.target == Target::Anchor && recognized.parts.first() == Some(&id);
        match is_weight {
            true => Ok(Class::Values),
            false => Err(reason!(
                "'{}' of a {} layer does not join",
                self.name(id),
                recognized.method
            )
            .into()),
        }
    }

    fn join_plain(
        &self,
        groups: &[Vec<TensorId>],
        suffix: &str,
        mixed: Mixed,
        stacked: bool,
    ) -> Result<Made, Reason> {
        let rank = self.shape_of(groups[0][0], Face::Raw).len();
        let axis = match suffix {
            "weight" if rank >= 2 => rank - 2,
            "weight" | "bias" if rank >= 1 => rank - 1,
            "weight" | "bias" => return Err("scalars do not join".into()),
            _ => {
                return Err(reason!(
                    "'{suffix}' joins only as part of a quantized layer that stfs can decode"
                ));
            }
        };
        match self.one_dtype(groups) {
            Err(why) if mixed == Mixed::Values => {
                let made = self.join_values_along(groups, axis, stacked);
                let made = made.map_err(|other| reason!("{why}; as values: {other}"))?;
                Ok(Made {
                    remark: Some(why.within("is F32 values")),
                    ..made
                })
            }
            _ => self.join_stored(groups, axis, Face::Raw, stacked),
        }
    }

    /// Joins stored words, scales or zero points, if all of the layers' components join.
    fn join_words(
        &self,
        groups: &[Vec<TensorId>],
        classes: &[Class<'_>],
        stacked: bool,
    ) -> Result<Made, Reason> {
        let mut layers = Vec::with_capacity(classes.len());
        for class in classes {
            match class {
                Class::Component(layer, component) => layers.push((*layer, *component)),
                // Dequantized weights have no words of that name; there is nothing to remark on.
                _ => return Err("".into()),
            }
        }
        let (first, component) = layers[0];
        let layers: Vec<&Layer> = layers.iter().map(|(layer, _)| *layer).collect();
        if let Some(other) = layers.iter().find(|l| l.compatible != first.compatible) {
            return Err(reason!(
                "parts are stored differently ({} and {})",
                first.compatible,
                other.compatible
            ));
        }
        let per_group = groups[0].len();
        // Together or not at all: every component of the layers must join, not just this one.
        for c in &first.components {
            let same = self.same_components(&layers, c, per_group)?;
            let grouped: Vec<Vec<TensorId>> = same.chunks(per_group).map(<[_]>::to_vec).collect();
            self.component_join(&grouped, c.join, stacked)?;
        }
        let mut made = self.component_join(groups, component.join, stacked)?;
        if let Some(values) = self.joined_values(groups, stacked, component) {
            made.values = Some(values?);
        }
        Ok(made)
    }

    /// The tensors of all `layers` that correspond to `component` of the first, if they are stored
    /// alike and one can follow the other in groups of `per_group`.
    fn same_components(
        &self,
        layers: &[&Layer],
        component: &Component,
        per_group: usize,
    ) -> Result<Vec<TensorId>, Reason> {
        let suffix = component.suffix;
        let mut same = Vec::with_capacity(layers.len());
        for (i, layer) in layers.iter().enumerate() {
            let other = layer.components.iter().find(|o| o.suffix == suffix);
            let other = other.ok_or_else(|| reason!("one part has no {suffix}"))?;
            if let quant::Join::Never(why) = other.join {
                return Err(why.into());
            }
            if other.join != component.join {
                return Err(reason!("{suffix} of the parts is stored differently"));
            }
            if !other.whole && (i + 1) % per_group != 0 {
                return Err(reason!(
                    "'{}' does not end at a whole block, so another part cannot follow it",
                    self.name(other.tensor)
                ));
            }
            same.push(other.tensor);
        }
        Ok(same)
    }

    /// The values of joined words, if the words have the float weight's own name.
    fn joined_values(
        &self,
        groups: &[Vec<TensorId>],
        stacked: bool,
        component: &Component,
    ) -> Option<Result<MadeValues, Reason>> {
        let layer = self.layer_of(component.tensor)?;
        let recognized = self.recognized(layer);
        let is_weight = recognized.target == Target::Anchor
            && recognized.parts.first() == Some(&component.tensor);
        is_weight.then(|| {
            let values = self.join_values(groups, stacked)?;
            values
                .values
                .ok_or_else(|| "the parts have no values".into())
        })
    }

    fn component_join(
        &self,
        groups: &[Vec<TensorId>],
        join: quant::Join,
        stacked: bool,
    ) -> Result<Made, Reason> {
        let rank = self.shape_of(groups[0][0], Face::Raw).len();
        match join {
            quant::Join::Rows if rank >= 2 => {
                self.join_stored(groups, rank - 2, Face::Raw, stacked)
            }
            quant::Join::Rows | quant::Join::Columns if rank >= 1 => {
                self.join_stored(groups, rank - 1, Face::Raw, stacked)
            }
            quant::Join::First if rank >= 1 => self.join_stored(groups, 0, Face::Raw, stacked),
            quant::Join::Same => self.join_stored(groups, 0, Face::Same, stacked),
            quant::Join::Never(why) => Err(why.into()),
            _ => Err("scalar scales do not join".into()),
        }
    }

    /// The dtype that all parts have.
    fn one_dtype(&self, groups: &[Vec<TensorId>]) -> Result<&ElementType, Reason> {
        let first = groups[0][0];
        let dtype = self.tensor(first)?.dtype;
        for &id in groups.iter().flatten() {
            let other = self.tensor(id)?.dtype;
            if other != dtype {
                return Err(reason!(
                    "dtypes differ: '{}' is {dtype}, '{}' is {other}",
                    self.name(first),
                    self.name(id)
                ));
            }
        }
        Ok(dtype)
    }

    /// Joins the stored bytes of parts whose dtypes and other dimensions agree.
    fn join_stored(
        &self,
        groups: &[Vec<TensorId>],
        axis: usize,
        face: Face,
        stacked: bool,
    ) -> Result<Made, Reason> {
        let dtype = self.one_dtype(groups)?;
        let joined = self.join_shapes(groups, axis, face)?;
        self.whole_rows(groups, dtype, axis)?;
        if dtype.is_unknown() {
            return Err(reason!("stfs does not know dtype {dtype}"));
        }
        let shape = joined.shape(stacked);
        let nbytes = dtype
            .nbytes(&shape)
            .ok_or_else(|| reason!("{shape:?} would overflow 64 bits"))?;
        Ok(Made {
            dtype: dtype.clone(),
            nbytes,
            values: dtype.has_f32().then(|| MadeValues {
                shape: shape.clone(),
                exact: dtype.exact_in_f32(),
                decoded: None,
            }),
            shape,
            raw: joined.expr(groups, axis, face, stacked),
            remark: None,
        })
    }

    /// Joins the values of weights, as F32.
    fn join_values(&self, groups: &[Vec<TensorId>], stacked: bool) -> Result<Made, Reason> {
        let axis = match self.shape_of(groups[0][0], Face::Values).len() {
            0 => return Err("scalars do not join".into()),
            1 => 0,
            rank => rank - 2,
        };
        self.join_values_along(groups, axis, stacked)
    }

    fn join_values_along(
        &self,
        groups: &[Vec<TensorId>],
        axis: usize,
        stacked: bool,
    ) -> Result<Made, Reason> {
        let mut exact = true;
        for &id in groups.iter().flatten() {
            match &self.tensor(id)?.values {
                Some(v) => exact &= v.exact,
                None => return Err(reason!("'{}' has no values", self.name(id))),
            }
        }
        let joined: Joined = self.join_shapes(groups, axis, Face::Values)?;
        let expr = joined.expr(groups, axis, Face::Values, stacked);
        Made::of_values(joined.shape(stacked), exact, expr)
    }
}
