//! Numbered files: `model-00001-of-00003.safetensors`. Without an index, only the names show that
//! one is missing.

use std::collections::{BTreeMap, BTreeSet};

/// The most digits that a number in such a name may have. A name with more is something else.
const MAX_DIGITS: usize = 5;

/// The most names that are listed: a thousand hostile names can imply a hundred million others.
const MOST: usize = 100_000;

/// What the files of a set have in common: stem, digits of a number, count.
pub(super) type Set<'a> = (&'a str, usize, &'a str);

/// The set that the file `name`, which ends in `end`, belongs to.
pub(super) fn set_of<'a>(name: &'a str, end: &str) -> Option<Set<'a>> {
    let (stem, number, total) = parse(name, end)?;
    Some((stem, number.len(), total))
}

/// The files that belong to the same sets as `names` but are not among them, at most [`MOST`]. All end
/// in `end`.
pub(super) fn missing(names: &[String], end: &str) -> Vec<String> {
    let mut sets: BTreeMap<Set<'_>, BTreeSet<usize>> = BTreeMap::new();
    for name in names {
        if let Some((stem, number, total)) = parse(name, end)
            && let Ok(n) = number.parse()
        {
            let set = sets.entry((stem, number.len(), total)).or_default();
            set.insert(n);
        }
    }
    let mut missing = Vec::new();
    for ((stem, width, total), held) in sets {
        // Some programs count from 0.
        let first = usize::from(!held.contains(&0));
        let count: usize = total.parse().unwrap_or(0);
        let absent = (first..count + first).filter(|n| !held.contains(n));
        let absent = absent.take(MOST - missing.len());
        missing.extend(absent.map(|n| format!("{stem}-{n:0width$}-of-{total}{end}")));
    }
    missing
}

/// Splits a name into its stem, its number and the count.
fn parse<'a>(name: &'a str, end: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let (rest, total) = name.strip_suffix(end)?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let is_number =
        |s: &str| (1..=MAX_DIGITS).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_digit());
    (is_number(number) && is_number(total)).then_some((stem, number, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Vec<String> {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        missing(&names, ".safetensors")
    }

    #[test]
    fn files_that_the_numbering_implies_but_are_absent() {
        let gguf = ["m-00002-of-00002.gguf", "m-00001-of-00009.safetensors"];
        let gguf = gguf.map(String::from);
        assert_eq!(missing(&gguf, ".gguf"), ["m-00001-of-00002.gguf"]);
        assert_eq!(
            of(&[
                "m-00001-of-00003.safetensors",
                "m-00003-of-00003.safetensors"
            ]),
            ["m-00002-of-00003.safetensors"]
        );
        assert_eq!(of(&["a-b-9-of-10.safetensors"]).len(), 9);
        assert_eq!(of(&["m-0-of-2.safetensors"]), ["m-1-of-2.safetensors"]);
        assert_eq!(
            of(&["m-1-of-2.safetensors", "n-2-of-2.safetensors"]).len(),
            2
        );
        for whole in [
            &["m-1-of-1.safetensors"][..],
            &["m-1-of-2.safetensors", "m-2-of-2.safetensors"],
            &["m-0-of-2.safetensors", "m-1-of-2.safetensors"],
            &["one-of-many.safetensors", "m-1-of-999999.safetensors"],
        ] {
            assert_eq!(of(whole), [""; 0], "{whole:?}");
        }
        let hostile: Vec<String> = (0..1000)
            .map(|i| format!("m{i}-1-of-99999.safetensors"))
            .collect();
        assert_eq!(missing(&hostile, ".safetensors").len(), MOST);
    }
}
