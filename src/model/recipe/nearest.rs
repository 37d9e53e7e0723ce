//! What was probably meant: the nearest of some names or words.

use super::language::Pattern;

/// The word nearest to `wanted`, if one is near enough to have been meant. Of equally near ones the first.
pub fn word<'a>(wanted: &str, among: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let _ = (wanted, among);
    None
}

/// The tensor name nearest to `wanted`, if one is near enough. Linear in the names: tens of milliseconds for
/// 100,000, so only for messages that are shown.
pub fn name<'a>(wanted: &str, among: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let _ = (wanted, among);
    None
}

/// `; did you mean 'NEAREST'?`, or nothing.
pub fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or(String::new(), |n| format!("; did you mean '{n}'?"))
}

/// Why a pattern may match none of `names`: the piece of its text that is in no name, and the nearest one that
/// is: `("q_porj", "q_proj")`.
pub fn piece<'a>(
    pattern: &Pattern,
    names: impl Iterator<Item = &'a str> + Clone,
) -> Option<(String, String)> {
    let _ = (pattern, names);
    None
}
