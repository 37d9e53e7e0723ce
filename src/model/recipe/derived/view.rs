//! The bytes of a tensor that a recipe made. Many are never opened, so their views are made then.

use std::sync::Arc;

use super::super::super::Expr;
use super::super::rules::Outcome;
use super::super::sources::Sources;
use crate::error::{Error, Result};
use crate::view::{Effort, SharedView, View};

/// The bytes of an expression, before they are opened.
pub struct DerivedView {
    sources: Arc<Sources>,
    expr: Expr,
    name: Arc<str>,
    len: u64,
    effort: Effort,
}

impl DerivedView {
    /// Those of a tensor.
    pub fn new(sources: &Arc<Sources>, made: &Outcome) -> DerivedView {
        DerivedView {
            sources: sources.clone(),
            expr: made.tensor.expr.clone(),
            name: made.name.clone(),
            len: made.tensor.nbytes,
            effort: Effort {
                depth: made.tensor.depth,
                reach: made.tensor.reach,
            },
        }
    }

    fn open(&self) -> Result<SharedView> {
        let view = self.sources.view(&self.expr, &self.name)?;
        match view.len() == self.len {
            true => Ok(view),
            false => Err(Error::other(
                libc::EIO,
                format!(
                    "'{}' was to have {} bytes, and has {}",
                    self.name,
                    self.len,
                    view.len()
                ),
            )),
        }
    }
}

impl View for DerivedView {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.open()?.read_at(offset, buf)
    }

    fn effort(&self) -> Effort {
        self.effort
    }

    /// If it cannot be opened, the error is that of each read.
    fn opened(&self) -> Option<SharedView> {
        self.open().ok()
    }
}
