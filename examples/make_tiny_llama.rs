//! Writes `examples/tiny-llama`: a Llama-like model small enough for a repository, with everything
//! that a large one has (two shards and their index, grouped-query attention, a tied head).
//!
//! ```text
//! cargo run --example make_tiny_llama [DIRECTORY]
//! ```
//!
//! The weights mean nothing, but look like weights: noise of the usual spread, a few channels that
//! stand out, and a slow wave across each matrix, so that a preview shows more than gray. They come
//! from integers and exact arithmetic alone, so every machine writes the same bytes.

use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;

use half::bf16;
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use serde_json::{Map, json};

const HIDDEN: usize = 64;
const INTERMEDIATE: usize = 176;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = HIDDEN / HEADS;
const LAYERS: usize = 2;
/// Bytes, three special tokens and 125 sentinels: ByT5's tokenizer, which needs no vocabulary file.
const VOCAB: usize = 384;

const SHARDS: [&str; 2] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
];

/// A named tensor: its shape, and its BF16 bytes.
type Weight = (String, Vec<usize>, Vec<u8>);

/// A file: its name and contents.
type File = (String, Vec<u8>);

/// Every file of the model.
pub fn files() -> Result<Vec<File>, Box<dyn Error>> {
    let shards = weights();
    let mut files = Vec::new();
    let mut weight_map = Map::new();
    let mut total = 0;
    for (name, shard) in SHARDS.iter().zip(&shards) {
        for (tensor, _, bytes) in shard {
            weight_map.insert(tensor.clone(), json!(name));
            total += bytes.len();
        }
        files.push((name.to_string(), shard_bytes(shard)?));
    }
    let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
    for (name, value) in [
        ("model.safetensors.index.json", index),
        ("config.json", config()),
        ("generation_config.json", generation_config()),
        ("tokenizer_config.json", tokenizer_config()),
    ] {
        let mut text = serde_json::to_string_pretty(&value)?;
        text.push('\n');
        files.push((name.to_string(), text.into_bytes()));
    }
    Ok(files)
}

fn shard_bytes(shard: &[Weight]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut views = Vec::with_capacity(shard.len());
    for (name, shape, bytes) in shard {
        views.push((name, TensorView::new(Dtype::BF16, shape.clone(), bytes)?));
    }
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    Ok(serialize(views, Some(metadata))?)
}

/// The weights of both shards: the embedding and the first layer, then the rest.
fn weights() -> [Vec<Weight>; 2] {
    let mut first = vec![matrix("model.embed_tokens.weight", VOCAB, HIDDEN)];
    first.extend(layer(0));
    let mut second: Vec<Weight> = (1..LAYERS).flat_map(layer).collect();
    second.push(norm("model.norm.weight", HIDDEN));
    [first, second]
}

fn layer(index: usize) -> Vec<Weight> {
    let p = format!("model.layers.{index}");
    vec![
        norm(&format!("{p}.input_layernorm.weight"), HIDDEN),
        matrix(
            &format!("{p}.self_attn.q_proj.weight"),
            HEADS * HEAD_DIM,
            HIDDEN,
        ),
        matrix(
            &format!("{p}.self_attn.k_proj.weight"),
            KV_HEADS * HEAD_DIM,
            HIDDEN,
        ),
        matrix(
            &format!("{p}.self_attn.v_proj.weight"),
            KV_HEADS * HEAD_DIM,
            HIDDEN,
        ),
        matrix(
            &format!("{p}.self_attn.o_proj.weight"),
            HIDDEN,
            HEADS * HEAD_DIM,
        ),
        norm(&format!("{p}.post_attention_layernorm.weight"), HIDDEN),
        matrix(&format!("{p}.mlp.gate_proj.weight"), INTERMEDIATE, HIDDEN),
        matrix(&format!("{p}.mlp.up_proj.weight"), INTERMEDIATE, HIDDEN),
        matrix(&format!("{p}.mlp.down_proj.weight"), HIDDEN, INTERMEDIATE),
    ]
}

fn matrix(name: &str, rows: usize, columns: usize) -> Weight {
    let mut random = Random::new(name);
    let channels: Vec<f64> = (0..columns).map(|_| random.channel()).collect();
    let (down, across) = (random.period(), random.period());
    let mut bytes = Vec::with_capacity(rows * columns * 2);
    for r in 0..rows {
        for (c, channel) in channels.iter().enumerate() {
            let wave = triangle(r, down) * triangle(c, across);
            push(&mut bytes, 0.02 * channel * (random.normal() + wave));
        }
    }
    (name.to_string(), vec![rows, columns], bytes)
}

fn norm(name: &str, len: usize) -> Weight {
    let mut random = Random::new(name);
    let mut bytes = Vec::with_capacity(len * 2);
    for _ in 0..len {
        push(&mut bytes, 1.0 + 0.1 * random.normal());
    }
    (name.to_string(), vec![len], bytes)
}

fn push(bytes: &mut Vec<u8>, value: f64) {
    bytes.extend(bf16::from_f64(value).to_le_bytes());
}

/// A wave of height 1 that only needs division, which every machine rounds alike.
fn triangle(i: usize, period: usize) -> f64 {
    let phase = (i % period) as f64 / period as f64;
    4.0 * (phase - 0.5).abs() - 1.0
}

/// SplitMix64, seeded with the tensor's name (FNV-1a).
struct Random(u64);

impl Random {
    fn new(name: &str) -> Random {
        Random(name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, b| {
            (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        }))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Twelve uniform numbers less six: variance 1, and exact, unlike logarithms.
    fn normal(&mut self) -> f64 {
        let sum: u64 = (0..12).map(|_| self.next() >> 40).sum();
        sum as f64 / f64::from(1 << 24) - 6.0
    }

    /// How strong an input channel is: one in sixteen stands out.
    fn channel(&mut self) -> f64 {
        if self.next().is_multiple_of(16) {
            3.0
        } else {
            1.0
        }
    }

    fn period(&mut self) -> usize {
        24 + (self.next() % 41) as usize
    }
}

fn config() -> serde_json::Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": false,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": 512,
        "mlp_bias": false,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": true,
        "torch_dtype": "bfloat16",
        "use_cache": true,
        "vocab_size": VOCAB
    })
}

fn generation_config() -> serde_json::Value {
    json!({"_from_model_config": true, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0})
}

fn tokenizer_config() -> serde_json::Value {
    json!({
        "eos_token": "</s>",
        "extra_ids": 125,
        "model_max_length": 512,
        "pad_token": "<pad>",
        "tokenizer_class": "ByT5Tokenizer",
        "unk_token": "<unk>"
    })
}

#[allow(
    dead_code,
    reason = "the test that includes this file has no use for it"
)]
fn main() -> Result<(), Box<dyn Error>> {
    let dir = match std::env::args_os().nth(1) {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from("examples/tiny-llama"),
    };
    std::fs::create_dir_all(&dir)?;
    for (name, bytes) in files()? {
        std::fs::write(dir.join(name), bytes)?;
    }
    Ok(())
}
