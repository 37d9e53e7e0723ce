//! stfs: a model's tensors, as files.
//!
//! The path of a byte: [`catalog`] (what the shards hold) → [`model`] (the tensors there are, stored
//! and synthetic) → [`view`] (lazy bytes of each) → `layout` (which file shows which view) → `fs`
//! (answers in our own types) → `fuse` (the kernel). [`quant`] knows the quantized formats.

#[cfg(target_endian = "big")]
compile_error!(
    "stfs serves little-endian files straight from memory: it needs a little-endian machine"
);

pub mod catalog;
pub mod cli;
pub mod commands;
pub mod compare;
pub mod dtype;
pub mod error;
pub mod export;
pub mod fs;
pub mod fuse;
pub mod gpu;
pub mod ioctl;
pub mod layout;
pub mod meta;
pub mod model;
pub mod mounts;
pub mod names;
pub mod parallel;
pub mod patience;
pub mod preview;
pub mod quant;
pub mod reason;
pub mod statistics;
pub mod text;
pub mod tree;
pub mod view;
pub mod workers;

pub use error::{Error, Result};
