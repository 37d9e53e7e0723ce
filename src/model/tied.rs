//! The tied output head: `lm_head.weight` as a second name of the input embedding.

use std::sync::Arc;

use serde_json::Value;

use super::rules::{CAUSAL, EMBEDDINGS, HEADS};
use crate::catalog::Catalog;
use crate::reason::{Reason, reason};

/// The embedding that `lm_head.weight` is tied to, or why it is not tied. `None` if no head is expected
/// (there is no embedding, or a head is stored).
pub(super) fn candidate(
    catalog: &Catalog,
    dequantized: &[&str],
) -> Option<Result<Arc<str>, Reason>> {
    let names = || {
        catalog
            .tensors
            .iter()
            .map(|t| t.name)
            .chain(dequantized.iter().copied())
            .chain(catalog.absent.iter().map(|n| &**n))
    };
    if names().any(is_head) {
        return None;
    }
    let embeddings: Vec<&str> = names().filter(|n| is_embedding(n)).collect();
    let one = match embeddings.as_slice() {
        [] => return None,
        [one] => Ok(Arc::from(*one)),
        several => Err(reason!(
            "which embedding it would be tied to is not clear: {}",
            several.join(", ")
        )),
    };
    Some(tying(catalog).and(one))
}

fn is_embedding(name: &str) -> bool {
    EMBEDDINGS.iter().any(|e| {
        name.strip_suffix(e)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

fn is_head(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(module, _)| {
        let last = module.rsplit('.').next().unwrap_or(module);
        // `output` is a head only at the top (Meta's own checkpoints); BERT has it in every layer.
        HEADS.contains(&last) && (last != "output" || module == "output")
    })
}

/// Whether the configuration ties the head.
fn tying(catalog: &Catalog) -> Result<(), Reason> {
    if catalog.lone_file {
        return Err("a lone shard was opened: its head may be in another".into());
    }
    if catalog.shards_missing {
        return Err("shards are missing: its head may be in one of them".into());
    }
    let configs = &catalog.configs;
    if configs.config.is_none() {
        let unused = configs.unused.iter().find(|u| u.file == "config.json");
        return Err(match unused {
            Some(unused) => reason!(
                "whether the head is tied to the embedding is not known, because config.json cannot be read: {}",
                unused.why
            ),
            None => "whether the head is tied to the embedding is not known without a config.json"
                .into(),
        });
    }
    match configs.root_or_text("tie_word_embeddings") {
        Some(Value::Bool(true)) => Ok(()),
        Some(Value::Bool(false)) => {
            Err("config.json has tie_word_embeddings: false, and no head is stored".into())
        }
        _ => {
            let causal = configs
                .root_or_text("architectures")
                .and_then(Value::as_array)
                .is_some_and(|all| {
                    all.iter()
                        .filter_map(Value::as_str)
                        .any(|a| CAUSAL.iter().any(|c| a.contains(c)))
                });
            causal.then_some(()).ok_or_else(|| {
                "config.json neither has tie_word_embeddings nor names a causal language model"
                    .into()
            })
        }
    }
}
