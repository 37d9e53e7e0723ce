//! Hostile and broken models: every way in which files can be wrong about themselves must end in an
//! error that names the file and the tensor, gives both numbers and states what to do. Never a
//! panic, never a hang, never made-up bytes.

#[path = "attacks/common.rs"]
mod common;
#[path = "attacks/directories.rs"]
mod directories;
#[path = "attacks/gguf.rs"]
mod gguf;
#[path = "attacks/headers.rs"]
mod headers;
#[path = "attacks/incomplete.rs"]
mod incomplete;
#[path = "attacks/lookalikes.rs"]
mod lookalikes;
#[path = "attacks/manifests.rs"]
mod manifests;
#[path = "common/mod.rs"]
mod program;
#[path = "attacks/pytorch.rs"]
mod pytorch;
#[path = "attacks/random.rs"]
mod random;

use program::gguf as gguf_file;
