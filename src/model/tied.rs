//! The tied output head as a second name of the input embedding.

use std::sync::Arc;

use serde_json::Value;

use super::rules::{CAUSAL, TiedRule, TiedWhen};
use crate::catalog::Catalog;
use crate::reason::{Reason, reason};

/// The embedding that a rule's head is tied to, or why it is not tied. `None` if no head is expected
/// (there is no embedding, or a head is stored).
pub(super) fn candidate(
    rule: &TiedRule,
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
    if names().any(|name| rule.heads.iter().any(|head| head.is(name))) {
        return None;
    }
    let is_embedding = |name: &&str| rule.embeddings.iter().any(|e| e.is(name));
    let embeddings: Vec<&str> = names().filter(is_embedding).collect();
    let one = match embeddings.as_slice() {
        [] => return None,
        [one] => Ok(Arc::from(*one)),
        several => Err(reason!(
            "which embedding it would be tied to is not clear: {}",
            several.join(", ")
        )),
    };
    let tying = match rule.when {
        TiedWhen::Configured => whole(catalog).and_then(|()| configured(catalog)),
        TiedWhen::Has(needed) => {
            let is_there = |needed: &&str| names().any(|name| name == *needed);
            match needed.iter().all(is_there) {
                true => whole(catalog),
                false => return None,
            }
        }
    };
    Some(tying.and(one))
}

/// Whether all tensors of the model are known.
fn whole(catalog: &Catalog) -> Result<(), Reason> {
    if catalog.lone_file {
        return Err("a lone shard was opened: its head may be in another".into());
    }
    if catalog.shards_missing {
        return Err("shards are missing: its head may be in one of them".into());
    }
    Ok(())
}

/// Whether the configuration ties the head.
fn configured(catalog: &Catalog) -> Result<(), Reason> {
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
