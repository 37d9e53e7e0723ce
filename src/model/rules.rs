//! The rules of synthetic tensors, as data: adding a model family is a line here.

/// Parts that an engine wants as one matrix: `P.<fused>.S` = `P.<part>.S` for each part, joined along
/// the axis of output rows.
#[derive(Debug, PartialEq, Eq)]
pub struct FusedRule {
    /// The name that engines look for.
    pub fused: &'static str,
    /// The parts, in order.
    pub parts: &'static [&'static str],
}

/// Experts that an engine wants stacked: `P.experts.<stacked>[.S]`.
#[derive(Debug, PartialEq, Eq)]
pub struct StackedRule {
    /// The name that engines look for.
    pub stacked: &'static str,
    /// Each expert's parts, in order; several spellings of different model families.
    pub parts: &'static [&'static [&'static str]],
}

/// Fusions, in order of precedence.
pub const FUSED: &[FusedRule] = &[
    FusedRule {
        fused: "qkv_proj",
        parts: &["q_proj", "k_proj", "v_proj"],
    },
    FusedRule {
        fused: "gate_up_proj",
        parts: &["gate_proj", "up_proj"],
    },
    // DeepSeek's multi-head latent attention.
    FusedRule {
        fused: "fused_qkv_a_proj",
        parts: &["q_a_proj", "kv_a_proj_with_mqa"],
    },
];

/// Stacks of experts. Mixtral names an expert's gate, down and up projections w1, w2 and w3.
pub const STACKED: &[StackedRule] = &[
    StackedRule {
        stacked: "gate_up_proj",
        parts: &[&["gate_proj", "up_proj"], &["w1", "w3"]],
    },
    StackedRule {
        stacked: "down_proj",
        parts: &[&["down_proj"], &["w2"]],
    },
];

/// Input embeddings by the end of their names, for a tied output head.
pub const EMBEDDINGS: &[&str] = &[
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "embed_in.weight",
];

/// Output heads by the module's last component: if one is stored, none is inferred.
pub const HEADS: &[&str] = &["lm_head", "embed_out", "output"];

/// What causal language models call themselves in config.json's `architectures`.
pub const CAUSAL: &[&str] = &["ForCausalLM", "LMHeadModel"];
