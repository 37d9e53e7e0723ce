//! The GPU ioctl, on a test double of the CUDA driver: the engine by itself, then a real mount.
//!
//! Nothing here has seen a GPU. Each test that needs the double runs in a process of its own, in
//! which `LD_LIBRARY_PATH` leads to it.

#[path = "../common/gguf.rs"]
mod gguf;

mod abi;
mod answers;
mod arena;
mod blocks;
mod casts;
mod commands;
mod consumer;
mod drivers;
mod engine;
mod errors;
mod faults;
mod leases;
mod mount;
mod mounted;
mod permissions;
mod strided;
mod support;
