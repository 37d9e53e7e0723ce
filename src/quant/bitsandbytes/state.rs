//! bitsandbytes' JSON description of a 4-bit weight, and whether the tensors match it.

use serde_json::Value;

use crate::catalog::TensorRef;
use crate::dtype::{Dtype, numel};
use crate::reason::{Reason, reason};

/// Entries of the maps from codes to values.
const MAP_LEN: u64 = 16;
const NESTED_MAP_LEN: u64 = 256;

/// A parsed `quant_state`.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// `nf4` or `fp4`.
    pub kind: &'static str,
    /// The real shape.
    pub shape: Box<[u64]>,
    /// How many values: the shape's product.
    pub numel: u64,
    /// Values that share a statistic, counted in row-major order across rows. At least 1.
    pub block: u64,
    /// Set if the statistics are themselves quantized.
    pub nested: Option<Nested>,
}

/// Quantized statistics: `a = nested_quant_map[absmax] · nested_absmax + offset`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nested {
    /// Statistics that share a `nested_absmax`. At least 1.
    pub block: u64,
    /// What is added to each.
    pub offset: f32,
}

impl State {
    /// Parses the JSON.
    ///
    /// # Errors
    /// The reason, if it is not a state, or has values that no 4-bit state can have.
    pub fn parse(json: &[u8]) -> Result<State, Reason> {
        let state: Value = serde_json::from_slice(json)
            .map_err(|e| reason!("its state cannot be parsed as JSON: {e}"))?;
        let kind = match state.get("quant_type").and_then(Value::as_str) {
            Some("nf4") => "nf4",
            Some("fp4") => "fp4",
            _ => return Err(bad(&state, "quant_type", "nf4 or fp4")),
        };
        let sizes = "a list of sizes";
        let dims = state.get("shape").and_then(Value::as_array);
        let dims = dims.ok_or_else(|| bad(&state, "shape", sizes))?;
        let shape: Option<Vec<u64>> = dims.iter().map(Value::as_u64).collect();
        let shape = shape.ok_or_else(|| bad(&state, "shape", sizes))?;
        Ok(State {
            kind,
            numel: numel(&shape).ok_or_else(|| bad(&state, "shape", "one that fits 64 bits"))?,
            shape: shape.into(),
            block: positive(&state, "blocksize")?,
            nested: Nested::of(&state)?,
        })
    }
}

impl Nested {
    fn of(state: &Value) -> Result<Option<Nested>, Reason> {
        let keys = ["nested_blocksize", "nested_offset", "nested_dtype"];
        if keys.iter().all(|key| state.get(key).is_none()) {
            return Ok(None);
        }
        let offset = state.get("nested_offset").and_then(Value::as_f64);
        Ok(Some(Nested {
            block: positive(state, "nested_blocksize")?,
            offset: offset.ok_or_else(|| bad(state, "nested_offset", "a number"))? as f32,
        }))
    }
}

fn positive(state: &Value, key: &str) -> Result<u64, Reason> {
    let value = state.get(key).and_then(Value::as_u64).filter(|&n| n > 0);
    value.ok_or_else(|| bad(state, key, "a whole number of at least 1"))
}

fn bad(state: &Value, key: &str, want: &str) -> Reason {
    match state.get(key) {
        Some(value) => reason!("its state has {key} {value}, not {want}"),
        None => reason!("its state has no {key}"),
    }
}

/// How long the tensors of a layer are, from their headers.
#[derive(Debug, Clone, Copy)]
pub struct Lengths {
    bytes: u64,
    absmax: u64,
    /// Whether absmax is U8 and so needs the nested statistics.
    quantized: bool,
    nested_absmax: Option<u64>,
    nested_map: Option<u64>,
}

impl Lengths {
    /// Takes the weight and its statistics: absmax, quant_map, nested_absmax, nested_quant_map.
    ///
    /// # Errors
    /// The reason, if one is missing or has an impossible dtype.
    pub fn of(
        weight: TensorRef<'_>,
        [absmax, map, nested_absmax, nested_map]: [Option<TensorRef<'_>>; 4],
    ) -> Result<Lengths, Reason> {
        let missing = |what: &str| format!("its '{}.{what}' is missing", weight.name);
        let absmax = absmax.ok_or_else(|| missing("absmax"))?;
        let map = map.ok_or_else(|| missing("quant_map"))?;
        let quantized = absmax.dtype.is(Dtype::U8);
        if !quantized {
            float(absmax)?;
        }
        float(map)?;
        if map.numel() != MAP_LEN {
            return Err(reason!(
                "its quant_map has {} values, not {MAP_LEN}",
                map.numel()
            ));
        }
        for nested in [nested_absmax, nested_map].into_iter().flatten() {
            float(nested)?;
        }
        Ok(Lengths {
            bytes: weight.nbytes,
            absmax: absmax.numel(),
            quantized,
            nested_absmax: nested_absmax.map(|t| t.numel()),
            nested_map: nested_map.map(|t| t.numel()),
        })
    }

    /// Checks that they match the state.
    ///
    /// # Errors
    /// The reason, with both numbers.
    pub fn check(&self, state: &State) -> Result<(), Reason> {
        let expect = |what: &str, has: u64, needs: u64| match has == needs {
            true => Ok(()),
            false => Err(reason!(
                "its {what} is {has} long, shape {:?} in blocks of {} needs {needs}",
                state.shape,
                state.block
            )),
        };
        expect("weight in bytes", self.bytes, state.numel.div_ceil(2))?;
        let blocks = state.numel.div_ceil(state.block);
        expect("absmax", self.absmax, blocks)?;
        match (&state.nested, self.quantized) {
            (None, false) => Ok(()),
            (Some(nested), true) => {
                let (Some(absmax), Some(map)) = (self.nested_absmax, self.nested_map) else {
                    return Err(
                        "its statistics are nested, but nested_absmax or nested_quant_map is missing"
                            .into(),
                    );
                };
                expect("nested_absmax", absmax, blocks.div_ceil(nested.block))?;
                expect("nested_quant_map", map, NESTED_MAP_LEN)
            }
            (Some(_), false) => {
                Err("its state describes nested statistics, but absmax is not U8".into())
            }
            (None, true) => {
                Err("its absmax is U8, but its state describes no nested statistics".into())
            }
        }
    }
}

fn float(tensor: TensorRef<'_>) -> Result<(), Reason> {
    match tensor.dtype.is(Dtype::F32) {
        true => Ok(()),
        false => Err(reason!(
            "its '{}' is {}, not F32",
            tensor.name,
            tensor.dtype
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<State, Reason> {
        State::parse(json.as_bytes())
    }

    #[test]
    fn a_state_is_read() {
        let s = parse(
            r#"{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [96, 95],
            "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.05}"#,
        )
        .unwrap();
        assert_eq!((s.kind, s.block, s.numel), ("nf4", 64, 9120));
        assert_eq!(*s.shape, [96, 95]);
        let nested = Nested {
            block: 256,
            offset: 0.05,
        };
        assert_eq!(s.nested, Some(nested));
        let s = parse(r#"{"quant_type": "fp4", "blocksize": 1, "shape": []}"#).unwrap();
        assert_eq!((s.kind, s.numel, s.nested), ("fp4", 1, None));
    }

    #[test]
    fn a_state_that_cannot_be_says_what_is_wrong() {
        let ok = r#""quant_type": "nf4", "blocksize": 64, "shape": [2]"#;
        for (json, part) in [
            ("", "cannot be parsed"),
            ("\u{feff}{}", "cannot be parsed"),
            ("[]", "no quant_type"),
            (r#"{"quant_type": "int8"}"#, r#"quant_type "int8""#),
            (r#"{"quant_type": "nf4"}"#, "no shape"),
            (r#"{"quant_type": "nf4", "shape": 3}"#, "shape 3"),
            (r#"{"quant_type": "nf4", "shape": [2, -3]}"#, "[2,-3]"),
            (r#"{"quant_type": "nf4", "shape": [2.5]}"#, "[2.5]"),
            (
                r#"{"quant_type": "nf4", "shape": [4294967296, 4294967296]}"#,
                "64 bits",
            ),
            (r#"{"quant_type": "nf4", "shape": [2]}"#, "no blocksize"),
            (
                r#"{"quant_type": "nf4", "shape": [2], "blocksize": 0}"#,
                "blocksize 0",
            ),
            (
                r#"{"quant_type": "nf4", "shape": [2], "blocksize": -64}"#,
                "blocksize -64",
            ),
            (
                &format!(r#"{{{ok}, "nested_offset": 0.5}}"#),
                "no nested_blocksize",
            ),
            (
                &format!(r#"{{{ok}, "nested_blocksize": 256}}"#),
                "no nested_offset",
            ),
            (
                &format!(r#"{{{ok}, "nested_blocksize": 0, "nested_offset": 1}}"#),
                "nested_blocksize 0",
            ),
        ] {
            let reason = parse(json).unwrap_err();
            assert!(reason.contains(part), "{json}: {reason}");
        }
        assert!(State::parse(b"{\"quant_type\": \"\xff\"}").is_err());
        // serde_json's own limit on depth: no stack is overrun.
        assert!(parse(&"[".repeat(60_000)).is_err());
    }
}
