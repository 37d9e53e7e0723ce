//! Files of torch.save, the archive's directory above all: whatever the bytes are, stfs never panics,
//! the tensors of a file that opens lie inside it, and every error is one line.
#![no_main]

use libfuzzer_sys::fuzz_target;

mod served;

fuzz_target!(|input: &[u8]| {
    served::examine(&served::file("model.pt", input), input.len());
});
