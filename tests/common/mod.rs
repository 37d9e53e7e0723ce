//! Shared by the tests of the program: model directories, real mounts, and an independent
//! computation of tensors' values.

// Each test program uses its own part of this.
#![allow(dead_code, unused_imports)]

pub mod gguf;
pub mod model;
pub mod mount;
pub mod naive;
pub mod pytorch;
pub mod sys;

pub use model::{ModelDir, T, noise, tensor};
pub use mount::{Mounted, Ran, stfs};

/// The dtypes of safetensors 0.8, all of them.
pub const DTYPES: [safetensors::Dtype; 22] = {
    use safetensors::Dtype::*;
    [
        BOOL,
        F4,
        F6_E2M3,
        F6_E3M2,
        U8,
        I8,
        F8_E5M2,
        F8_E4M3,
        F8_E8M0,
        F8_E4M3FNUZ,
        F8_E5M2FNUZ,
        I16,
        U16,
        F16,
        BF16,
        I32,
        U32,
        F32,
        C64,
        F64,
        I64,
        U64,
    ]
};
