//! Which part of a model a tensor belongs to, by its name.

use crate::model::TIED;

/// A part of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Part {
    Embedding,
    Attention,
    Mlp,
    Experts,
    Norm,
    Head,
    /// Routers, and everything that no rule knows.
    Other,
}

impl Part {
    /// All, in the order in which they are shown.
    pub const ALL: [Part; 7] = [
        Part::Embedding,
        Part::Attention,
        Part::Mlp,
        Part::Experts,
        Part::Norm,
        Part::Head,
        Part::Other,
    ];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Part::Embedding => "embedding",
            Part::Attention => "attention",
            Part::Mlp => "mlp",
            Part::Experts => "experts",
            Part::Norm => "norm",
            Part::Head => "head",
            Part::Other => "other",
        }
    }

    /// The part that a tensor of this name belongs to. Names of the Hugging Face hub, of GGUF and of
    /// the original checkpoints are known.
    pub fn of(name: &str) -> Part {
        let lower = name.to_ascii_lowercase();
        let components: Vec<&str> = lower.split(['.', '/']).collect();
        let has = |words: &[&str]| components.iter().any(|c| words.contains(c));
        let contains = |words: &[&str]| {
            let contains = |c: &&str| words.iter().any(|word| c.contains(word));
            components.iter().any(contains)
        };
        let mut heads = TIED.iter().flat_map(|rule| rule.heads);
        let is_norm = |c: &&str| c.contains("norm") || NORMS.contains(c);
        if heads.any(|head| head.is(&lower)) {
            Part::Head
        } else if components.iter().rev().take(2).any(is_norm) {
            Part::Norm
        } else if has(ROUTERS) || is_gate(&components) {
            Part::Other
        } else if contains(&["shared_expert", "_shexp"]) {
            Part::Mlp
        } else if has(EXPERTS) || contains(&["_exps"]) {
            Part::Experts
        } else if contains(&["attn", "attention"]) {
            Part::Attention
        } else if has(MLPS) || contains(&["ffn", "feed_forward"]) {
            Part::Mlp
        } else if contains(&["embd", "embed"]) || has(&["wte", "wpe"]) {
            Part::Embedding
        } else {
            Part::Other
        }
    }
}

/// Norms whose names do not say so.
const NORMS: &[&str] = &["ln_1", "ln_2", "ln_f", "ln1", "ln2", "ln_post", "ln_pre"];
/// What chooses experts.
const ROUTERS: &[&str] = &[
    "router",
    "ffn_gate_inp",
    "shared_expert_gate",
    "ffn_gate_inp_shexp",
];
/// Modules that hold experts.
const EXPERTS: &[&str] = &["experts", "switch_mlp"];
/// Modules between the attentions.
const MLPS: &[&str] = &[
    "mlp",
    "fc1",
    "fc2",
    "dense_h_to_4h",
    "dense_4h_to_h",
    "moe",
    "block_sparse_moe",
];

/// `P.mlp.gate.weight`: a router, unlike `gate_proj`. (Beside experts it has no other name in most
/// families.)
fn is_gate(components: &[&str]) -> bool {
    let gate = components.iter().position(|c| *c == "gate");
    let before = gate.and_then(|at| components.get(at.checked_sub(1)?));
    before.is_some_and(|c| ["mlp", "moe", "block_sparse_moe", "feed_forward", "ffn"].contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_several_families_are_known() {
        for (part, names) in [
            (
                Part::Embedding,
                &[
                    "model.embed_tokens.weight",
                    "token_embd.weight",
                    "transformer.wte.weight",
                    "tok_embeddings.weight",
                ][..],
            ),
            (
                Part::Attention,
                &[
                    "model.layers.0.self_attn.q_proj.qweight",
                    "blk.3.attn_q.weight",
                    "blk.3.attn_sinks.weight",
                    "h.0.attn.c_attn.bias",
                    "layers.0.attention.wq.weight",
                ],
            ),
            (
                Part::Mlp,
                &[
                    "model.layers.0.mlp.gate_proj.weight",
                    "blk.3.ffn_gate.weight",
                    "h.0.mlp.c_fc.weight",
                    "layers.0.feed_forward.w1.weight",
                    "decoder.0/mlp.2.weight",
                    "model.layers.1.mlp.shared_experts.up_proj.weight",
                    "blk.1.ffn_up_shexp.weight",
                ],
            ),
            (
                Part::Experts,
                &[
                    "model.layers.0.mlp.experts.7.up_proj.weight",
                    "blk.3.ffn_gate_exps.weight",
                    "model.layers.0.block_sparse_moe.experts.0.w1.weight",
                    "model.layers.0.mlp.experts.gate_up_proj_blocks",
                ],
            ),
            (
                Part::Norm,
                &[
                    "model.norm.weight",
                    "model.layers.0.input_layernorm.weight",
                    "blk.0.attn_norm.weight",
                    "output_norm.weight",
                    "h.0.ln_1.bias",
                    "blk.0.attn_q_norm.weight",
                    "model.layers.0.self_attn.k_norm.weight",
                ],
            ),
            (
                Part::Head,
                &["lm_head.weight", "output.weight", "lm_head.scales"],
            ),
            (
                Part::Other,
                &[
                    "model.layers.0.mlp.gate.weight",
                    "blk.0.ffn_gate_inp.weight",
                    "model.layers.0.mlp.router.bias",
                    "rope_freqs.weight",
                    "x",
                    "",
                ],
            ),
        ] {
            for name in names {
                assert_eq!(Part::of(name), part, "{name}");
            }
        }
    }
}
