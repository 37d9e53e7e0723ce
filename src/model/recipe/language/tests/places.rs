use super::*;

/// The place of each character of a TOML string.
fn places(raw: &str, text: &str) -> Vec<usize> {
    let located = Located::toml(raw, 100, text.to_string().into());
    let places = text
        .char_indices()
        .map(|(i, _)| located.place(i).0 as usize - 100);
    places.collect()
}

#[test]
fn places_are_those_in_the_file() {
    for (raw, text, expected) in [
        ("\"ab\"", "ab", vec![1, 2]),
        ("'a\\b'", "a\\b", vec![1, 2, 3]),
        ("key", "key", vec![0, 1, 2]),
        (r#""a\"b""#, "a\"b", vec![1, 2, 4]),
        (r#""\u00e9x""#, "éx", vec![1, 7]),
        (r#""\x41\U00000042c""#, "ABc", vec![1, 5, 15]),
        (r#""é\\n""#, "é\\n", vec![1, 3, 5]),
        ("\"\"\"\na\n b\"\"\"", "a\n b", vec![4, 5, 6, 7]),
        ("\"\"\"a\\\n   b\"\"\"", "ab", vec![3, 9]),
        ("'''\r\na'''", "a", vec![5]),
        ("\"\"\"a\r\nb\"\"\"", "a\nb", vec![3, 5, 6]),
        ("''", "", vec![]),
    ] {
        assert_eq!(places(raw, text), expected, "{raw}");
    }
}

#[test]
fn places_within_quotes_are_those_in_the_file() {
    // "it + 'a''{m n}'": the second name is the mistake.
    let raw = r#""\u0069t + 'a''{m n}'""#;
    let located = Located::toml(raw, 0, "it + 'a''{m n}'".to_string().into());
    let mistake = parse_expression(&located).unwrap_err();
    assert_eq!(
        mistake.at.0 as usize,
        raw.find("n}").unwrap(),
        "{}",
        mistake.what
    );
}
