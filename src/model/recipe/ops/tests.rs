//! Operations against an evaluator that computes everything at once, element by element.

use super::*;
use crate::dtype::{Dtype, ElementType};
use crate::model::Expr;
use crate::model::recipe::sources::Sources;
use crate::model::recipe::testing::{leaf, of_bytes, row, sources};
use crate::view::Bytes;

mod chains;
mod costs;
mod eager;
mod mistakes;
mod models;
