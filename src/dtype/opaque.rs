//! Element types that have a size and a name, and whose values nothing here interprets.

use std::hash::{Hash, Hasher};

/// An element type that has `raw`, and perhaps a `.npy`, but no values: PyTorch's types that
/// safetensors does not have.
#[derive(Debug)]
pub struct Opaque {
    /// The name in `meta.json`, formed as safetensors forms its own.
    pub name: &'static str,
    /// Bytes of an element.
    pub bytes: u32,
    /// NumPy's `descr`, if NumPy itself has the type.
    pub npy_descr: Option<&'static str>,
}

/// All of them. `BITS1X8` and the like are bytes that hold 8, 4 or 2 values of that many bits; what they
/// mean is up to the program that wrote them.
///
/// Source: `c10/core/ScalarType.h` of PyTorch 2.
#[rustfmt::skip]
static TABLE: [Opaque; 8] = [
    Opaque { name: "C128",    bytes: 16, npy_descr: Some("<c16") },
    Opaque { name: "C32",     bytes: 4,  npy_descr: None },
    Opaque { name: "BC32",    bytes: 4,  npy_descr: None },
    Opaque { name: "BITS8",   bytes: 1,  npy_descr: None },
    Opaque { name: "BITS16",  bytes: 2,  npy_descr: None },
    Opaque { name: "BITS1X8", bytes: 1,  npy_descr: None },
    Opaque { name: "BITS2X4", bytes: 1,  npy_descr: None },
    Opaque { name: "BITS4X2", bytes: 1,  npy_descr: None },
];

impl Opaque {
    /// The type of that name.
    pub fn from_name(name: &str) -> Option<&'static Opaque> {
        TABLE.iter().find(|opaque| opaque.name == name)
    }

    /// The bytes that `numel` elements take; `None` on overflow.
    pub fn bytes(&self, numel: u64) -> Option<u64> {
        numel.checked_mul(self.bytes.into())
    }
}

impl PartialEq for Opaque {
    fn eq(&self, other: &Opaque) -> bool {
        self.name == other.name
    }
}

impl Eq for Opaque {}

impl Hash for Opaque {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{Dtype, ElementType, ggml};
    use crate::view::{Bytes, Cast};

    #[test]
    fn they_have_a_size_and_no_values() {
        for opaque in &TABLE {
            assert_eq!(Opaque::from_name(opaque.name), Some(opaque));
            assert_eq!(Dtype::from_name(opaque.name), None);
            let dtype = ElementType::Opaque(opaque);
            assert_eq!(dtype.nbytes(&[3, 2]), Some(6 * u64::from(opaque.bytes)));
            assert_eq!((dtype.abi(), ggml::number(&dtype)), (0, None));
            assert!(!dtype.has_f32() && !dtype.is_float() && !dtype.exact_in_f32());
            assert!(dtype.known().is_none() && !dtype.is_unknown());
            assert!(dtype.has_whole_rows(&[3, 5], 1));
            let bytes = std::sync::Arc::new(Bytes([0; 16].as_slice().into()));
            assert!(Cast::view(bytes, dtype).is_none());
        }
        let of = |name| ElementType::Opaque(Opaque::from_name(name).unwrap());
        assert_eq!(of("C128").npy_descr(), Some("<c16"));
        assert_eq!(of("C32").npy_descr(), None);
        assert_eq!(of("C128").nbytes(&[u64::MAX / 8]), None);
        assert_ne!(of("C32"), of("BC32"));
    }
}
