//! The names of an adapter's tensors.

use super::quoted;

/// What stands before a module's name in adapters that `peft` saved.
pub(super) const PREFIX: &str = "base_model.model.";

/// What a tensor of an adapter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// `lora_A` or `lora_B` of a module, or of an embedding.
    Factor {
        /// B and not A.
        is_b: bool,
        /// `lora_embedding_…`
        is_embedding: bool,
    },
    /// A whole parameter of the model.
    Whole,
}

/// How the names of factors end.
const FACTORS: &[(&str, Role)] = &[
    (".lora_A.weight", factor(false, false)),
    (".lora_B.weight", factor(true, false)),
    (".lora_embedding_A", factor(false, true)),
    (".lora_embedding_B", factor(true, true)),
];

const fn factor(is_b: bool, is_embedding: bool) -> Role {
    Role::Factor { is_b, is_embedding }
}

/// What names of adapters contain that are more than LoRA.
const REFUSED: &[(&str, &str)] = &[
    (".lora_magnitude_vector", "DoRA"),
    (".lora_B.bias", "lora_bias"),
    (".trainable_tokens_", "trainable_token_indices"),
    (".lora_diag", "KaSA"),
];

/// The module's name and what the tensor is there; of a whole parameter the parameter's own name.
pub(super) fn parse(name: &str) -> Result<(String, Role), String> {
    let inner = name.strip_prefix(PREFIX).unwrap_or(name);
    for &(end, role) in FACTORS {
        if let Some(module) = inner.strip_suffix(end) {
            return Ok((without_base_layer(module), role));
        }
    }
    if let Some((_, what)) = REFUSED.iter().find(|(part, _)| inner.contains(part)) {
        return Err(format!(
            "{} is of {what}, which is not merged in this version",
            quoted(name)
        ));
    }
    match inner.split('.').any(|part| part.starts_with("lora_")) {
        true => Err(format!(
            "{} is not a tensor that LoRA adapters have: lora_A.weight, lora_B.weight, lora_embedding_A and lora_embedding_B are",
            quoted(name)
        )),
        false => Ok((without_base_layer(inner), Role::Whole)),
    }
}

/// `peft` wraps the layers that it adapts, and saves the parameters of a wrapped one (`bias = "all"`, embeddings)
/// with this in their names.
fn without_base_layer(name: &str) -> String {
    name.replace(".base_layer.", ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_peft_saves() {
        let of = |name: &str| parse(name);
        let ok = |module: &str, role| Ok((module.to_string(), role));
        for prefix in ["", PREFIX] {
            let of = |name: &str| of(&format!("{prefix}{name}"));
            assert_eq!(of("h.0.q.lora_A.weight"), ok("h.0.q", factor(false, false)));
            assert_eq!(of("h.0.q.lora_B.weight"), ok("h.0.q", factor(true, false)));
            assert_eq!(of("wte.lora_embedding_A"), ok("wte", factor(false, true)));
            assert_eq!(of("wte.lora_embedding_B"), ok("wte", factor(true, true)));
            assert_eq!(of("score.weight"), ok("score.weight", Role::Whole));
            assert_eq!(of("q.base_layer.bias"), ok("q.bias", Role::Whole));
        }
        let why = |name| parse(name).unwrap_err();
        assert!(why("q.lora_magnitude_vector.weight").contains("DoRA"));
        assert!(why("q.lora_B.bias").contains("lora_bias"));
        assert!(why("q.lora_A.default.weight").contains("is not a tensor that"));
    }
}
