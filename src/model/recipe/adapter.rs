//! PEFT adapters.

use super::super::TensorId;
use super::sources::SourceModel;

/// What an adapter does to one tensor of the model.
pub struct Change {
    /// The tensor's name in the model.
    pub weight: String,
    /// The module, for messages.
    pub module: String,
    /// What happens to it.
    pub what: What,
}

/// What happens to a tensor.
pub enum What {
    /// `W + factor * (B @ A)`
    #[allow(missing_docs)]
    Add {
        a: TensorId,
        b: TensorId,
        /// The product is transposed.
        transposed: bool,
        /// alpha / r, times the rule's scale.
        factor: f32,
    },
    /// It is replaced (`modules_to_save`).
    Replace(TensorId),
}

/// What the adapter does, with `scale` of the rule.
///
/// # Errors
/// The adapter cannot be used: what is wrong, naming the module.
pub fn changes(adapter: &SourceModel, scale: f64) -> Result<Vec<Change>, Vec<String>> {
    let _ = (adapter, scale);
    Err(Vec::new())
}
