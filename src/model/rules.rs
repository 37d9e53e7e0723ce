//! The rules of synthetic tensors, as data: adding a model family is a line here.

/// Parts that an engine wants as one matrix: `P.<fused>.S` = `P.<part>.S` for each part, joined along
/// the axis of output rows.
#[derive(Debug, PartialEq, Eq)]
pub struct FusedRule {
    /// The name that engines look for.
    pub fused: &'static str,
    /// The parts, in order.
    pub parts: &'static [&'static str],
    /// What there is if the parts' dtypes differ.
    pub mixed: Mixed,
}

/// What a fusion is if the dtypes of its parts differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixed {
    /// Nothing: engines that look for the fused name expect one dtype.
    Nothing,
    /// The parts' values, as F32.
    Values,
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
        mixed: Mixed::Nothing,
    },
    FusedRule {
        fused: "gate_up_proj",
        parts: &["gate_proj", "up_proj"],
        mixed: Mixed::Nothing,
    },
    // DeepSeek's multi-head latent attention.
    FusedRule {
        fused: "fused_qkv_a_proj",
        parts: &["q_a_proj", "kv_a_proj_with_mqa"],
        mixed: Mixed::Nothing,
    },
    // llama.cpp's names. Its mixes of K-quants often store v in a wider type than q and k.
    FusedRule {
        fused: "attn_qkv",
        parts: &["attn_q", "attn_k", "attn_v"],
        mixed: Mixed::Values,
    },
    // The experts of a layer are one tensor, `[experts, rows, columns]`.
    FusedRule {
        fused: "ffn_gate_up_exps",
        parts: &["ffn_gate_exps", "ffn_up_exps"],
        mixed: Mixed::Values,
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

/// An output head that a model may leave out because it is the input embedding.
#[derive(Debug, PartialEq, Eq)]
pub struct TiedRule {
    /// The name that engines look for.
    pub head: &'static str,
    /// The input embedding: exactly one tensor of a model has such a name, or the head is not tied.
    pub embeddings: &'static [Named],
    /// Heads under other names: if one is stored, none is inferred.
    pub heads: &'static [Named],
    /// What decides whether the head is tied.
    pub when: TiedWhen,
}

/// Which tensors are meant.
#[derive(Debug, PartialEq, Eq)]
pub enum Named {
    /// That name.
    Exactly(&'static str),
    /// That name, also behind a dot.
    Ending(&'static str),
    /// Any tensor of a module whose last component is that.
    Of(&'static str),
    /// Any tensor of that module at the top.
    OfTop(&'static str),
}

impl Named {
    /// Whether a tensor's name is meant.
    pub fn is(&self, name: &str) -> bool {
        let module = || name.rsplit_once('.').map(|(module, _)| module);
        match self {
            Named::Exactly(whole) => name == *whole,
            Named::Ending(end) => name
                .strip_suffix(end)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.')),
            Named::Of(last) => module().is_some_and(|m| m.rsplit('.').next() == Some(last)),
            Named::OfTop(top) => module() == Some(top),
        }
    }
}

/// What decides whether an output head is tied.
#[derive(Debug, PartialEq, Eq)]
pub enum TiedWhen {
    /// The configuration has `tie_word_embeddings`, or leaves it out and names a causal language model.
    Configured,
    /// The model has these tensors. Without them no head is expected.
    Has(&'static [&'static str]),
}

/// Tied output heads.
pub const TIED: &[TiedRule] = &[
    TiedRule {
        head: "lm_head.weight",
        embeddings: &[
            Named::Ending("embed_tokens.weight"),
            Named::Ending("wte.weight"),
            Named::Ending("word_embeddings.weight"),
            Named::Ending("tok_embeddings.weight"),
            Named::Ending("embed_in.weight"),
        ],
        // `output` is a head only at the top (Meta's own checkpoints); BERT has it in every layer.
        heads: &[
            Named::Of("lm_head"),
            Named::Of("embed_out"),
            Named::OfTop("output"),
        ],
        when: TiedWhen::Configured,
    },
    // llama.cpp's names. Its loader takes the embedding wherever a model that has an output layer's norm
    // lacks the layer.
    TiedRule {
        head: "output.weight",
        embeddings: &[Named::Exactly("token_embd.weight")],
        heads: &[],
        when: TiedWhen::Has(&["output_norm.weight"]),
    },
];

/// What causal language models call themselves in config.json's `architectures`.
pub const CAUSAL: &[&str] = &["ForCausalLM", "LMHeadModel"];
