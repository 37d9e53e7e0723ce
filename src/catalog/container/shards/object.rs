//! JSON objects entry by entry: in file order, and with the keys that appear twice, which a map
//! would lose.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

/// Calls `each` for every entry of an object. The error about anything else states what was
/// `expected`.
pub(in crate::catalog::container) fn each_entry<'de, D, V>(
    d: D,
    expected: &'static str,
    each: impl FnMut(String, V),
) -> Result<(), D::Error>
where
    D: Deserializer<'de>,
    V: Deserialize<'de>,
{
    struct Object<F, V> {
        expected: &'static str,
        each: F,
        values: PhantomData<V>,
    }
    impl<'de, F: FnMut(String, V), V: Deserialize<'de>> Visitor<'de> for Object<F, V> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.expected)
        }
        fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
            while let Some((key, value)) = entries.next_entry()? {
                (self.each)(key, value);
            }
            Ok(())
        }
    }
    let values = PhantomData;
    d.deserialize_map(Object {
        expected,
        each,
        values,
    })
}
