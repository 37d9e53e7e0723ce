//! Pickles that Python wrote.

use super::*;

/// What `cases.py` wrote: name and protocol, pickle, value.
pub(super) fn cases() -> impl Iterator<Item = (String, Vec<u8>, &'static str)> {
    include_str!("cases.txt").lines().map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, protocol, pickle, value] = fields[..] else {
            panic!("{line}");
        };
        (format!("{name}, protocol {protocol}"), bytes(pickle), value)
    })
}

/// Bytes in hexadecimal.
pub(super) fn bytes(digits: &str) -> Vec<u8> {
    let digits = digits.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

#[test]
fn values_are_those_of_pythons_pickle_at_every_protocol() {
    let mut checked = 0;
    for (name, pickle, expected) in cases() {
        assert_eq!(value(&pickle), expected, "{name}");
        checked += 1;
    }
    assert!(checked > 250, "{checked}");
}
