//! The numbers of a configuration that say how large a model is, under the keys that model families
//! use for them.

use serde_json::{Map, Value, json};

use crate::catalog::Configuration;

/// A number of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Number {
    Layers,
    Hidden,
    Heads,
    KvHeads,
    Experts,
    ExpertsPerToken,
    Vocab,
    Context,
}

/// A number, its name in JSON, its keys in config.json, and its key in GGUF, after the architecture.
struct Row(Number, &'static str, &'static [&'static str], &'static str);

#[rustfmt::skip]
const ROWS: [Row; 8] = [
    Row(Number::Layers, "layers", &["num_hidden_layers", "n_layer", "n_layers", "num_layers"], "block_count"),
    Row(Number::Hidden, "hidden", &["hidden_size", "n_embd", "d_model", "dim"], "embedding_length"),
    Row(Number::Heads, "heads", &["num_attention_heads", "n_head", "n_heads", "num_heads"], "attention.head_count"),
    Row(Number::KvHeads, "kv_heads", &["num_key_value_heads", "n_kv_heads", "num_kv_heads"], "attention.head_count_kv"),
    Row(Number::Experts, "experts", &["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"], "expert_count"),
    Row(Number::ExpertsPerToken, "experts_per_token", &["num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", "moe_top_k"], "expert_used_count"),
    Row(Number::Vocab, "vocab", &["vocab_size", "n_vocab"], "vocab_size"),
    Row(Number::Context, "context", &["max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length"], "context_length"),
];

/// The numbers of one model; those that its configuration does not have are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Numbers([Option<u64>; ROWS.len()]);

impl Numbers {
    /// Looks them up.
    pub(super) fn of(configs: &Configuration, architecture: Option<&str>) -> Numbers {
        let number = |Row(_, _, keys, gguf): &Row| {
            let in_json = keys.iter().filter_map(|key| configs.root_or_text(key));
            let key = architecture.map(|arch| format!("{arch}.{gguf}"));
            let in_gguf = key.and_then(|key| configs.root_or_text(&key));
            in_json.chain(in_gguf).find_map(whole)
        };
        Numbers(std::array::from_fn(|i| number(&ROWS[i])))
    }

    /// One of them.
    pub fn get(&self, number: Number) -> Option<u64> {
        self.0[number as usize]
    }

    /// Sets a number that the configuration does not have.
    pub(super) fn or(&mut self, number: Number, value: impl FnOnce() -> Option<u64>) {
        let slot = &mut self.0[number as usize];
        *slot = slot.or_else(value);
    }

    /// All, with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Option<u64>)> + '_ {
        ROWS.iter()
            .map(|Row(number, name, ..)| (*name, self.get(*number)))
    }

    /// As a JSON object; null for what is not known.
    pub fn json(&self) -> Map<String, Value> {
        self.iter()
            .map(|(name, n)| (name.into(), json!(n)))
            .collect()
    }
}

/// A whole number, or a list that has the same one for every layer.
fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::Array(all) => {
            let first = all.first()?.as_u64()?;
            let same = all.iter().all(|value| value.as_u64() == Some(first));
            same.then_some(first)
        }
        one => one.as_u64(),
    }
}

/// What the model calls its architecture: the class in config.json, or GGUF's name.
pub(super) fn architecture(configs: &Configuration) -> Option<&str> {
    let classes = configs.root_or_text("architectures");
    let first = classes
        .and_then(Value::as_array)
        .and_then(|all| all.first());
    let others = ["model_type", "general.architecture"];
    let others = others.iter().filter_map(|key| configs.root_or_text(key));
    first.into_iter().chain(others).find_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_the_numbers() {
        for (i, row) in ROWS.iter().enumerate() {
            assert_eq!(row.0 as usize, i);
        }
    }

    #[test]
    fn numbers_are_found_under_the_keys_of_model_families() {
        let llava =
            Configuration::of_config(json!({"architectures": ["LlavaForConditionalGeneration"],
            "text_config": {"num_hidden_layers": 32, "hidden_size": 4096}}));
        let found = architecture(&llava);
        assert_eq!(found, Some("LlavaForConditionalGeneration"));
        let numbers = Numbers::of(&llava, found);
        assert_eq!(numbers.get(Number::Layers), Some(32));
        assert_eq!(numbers.get(Number::Heads), None);
        let gguf = Configuration::of_config(
            json!({"general.architecture": "gemma3", "gemma3.block_count": 26,
            "gemma3.attention.head_count": [4, 4], "gemma3.attention.head_count_kv": [1, 2]}),
        );
        let numbers = Numbers::of(&gguf, architecture(&gguf));
        assert_eq!(numbers.get(Number::Layers), Some(26));
        assert_eq!(numbers.get(Number::Heads), Some(4));
        assert_eq!(numbers.get(Number::KvHeads), None);
        assert_eq!(
            architecture(&Configuration::of_config(json!({"architectures": []}))),
            None
        );
        let gpt2 = Configuration::of_config(
            json!({"model_type": "gpt2", "n_layer": 12, "vocab_size": -1}),
        );
        assert_eq!(architecture(&gpt2), Some("gpt2"));
        let numbers = Numbers::of(&gpt2, Some("gpt2"));
        assert_eq!(numbers.get(Number::Layers), Some(12));
        assert_eq!(numbers.get(Number::Vocab), None);
    }
}
