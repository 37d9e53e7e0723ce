//! stfs: a model's tensors, as files.
//!
//! The path of a byte: [`catalog`] (the contents of the shards) → [`model`] (all tensors, stored and
//! synthetic) → [`view`] (lazy bytes of each) → [`layout`] (which file shows which view) → [`fs`] (answers
//! in our own types) → [`fuse`] (the kernel). [`quant`] decodes the quantized formats.
//! `doc/ARCHITECTURE.md` follows a read through them, and has the order in which they may import each
//! other.

#[cfg(target_endian = "big")]
compile_error!(
    "stfs serves little-endian files straight from memory: it needs a little-endian machine"
);

#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "stfs maps whole weight files and indexes them with usize: it needs a 64-bit machine"
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
pub mod info;
pub mod ioctl;
pub mod layout;
pub mod memory;
pub mod meta;
pub mod model;
pub mod mounts;
pub mod names;
pub mod parallel;
pub mod patience;
pub mod preview;
pub mod quant;
pub mod reason;
mod regex;
pub mod sandbox;
mod simd;
pub mod statistics;
pub mod text;
pub mod tree;
pub mod view;
pub mod workers;

pub use error::{Error, Result};
