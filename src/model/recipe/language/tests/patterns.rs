use super::*;

/// What the holes of a pattern take, in order.
fn taken(text: &str, name: &str) -> Option<Vec<String>> {
    let pattern = pattern(text).unwrap();
    let bindings = pattern.matches(name)?;
    let n = pattern.holes().count();
    let holes = (0..n).map(|i| bindings.text(name, i).unwrap().to_string());
    Some(holes.collect())
}

#[test]
fn patterns_match_whole_names() {
    for (pattern, name, holes) in [
        ("a.b", "a.b", Some(vec![])),
        ("a.b", "a.b.c", None),
        ("*", "anything.at.all", Some(vec![])),
        ("*", "", None),
        ("*.weight", ".weight", None),
        ("*.weight", "x.weight", Some(vec![])),
        ("a*a", "aa", None),
        ("a*a", "aba", Some(vec![])),
        (
            "model.layers.{n}.{rest..}",
            "model.layers.3.mlp.up.weight",
            Some(vec!["3", "mlp.up.weight"]),
        ),
        ("{a}.{b}", "x.y.z", None),
        ("{a}{b}", "xyz", Some(vec!["x", "yz"])),
        ("{a}{b}", "éx", Some(vec!["é", "x"])),
        ("{a}{b}", "é", None),
        ("{a..}{b..}", "x.", Some(vec!["x", "."])),
        ("*.{x=q|k}_proj.*", "l.0.k_proj.weight", Some(vec!["k"])),
        ("*.{x=q|k}_proj.*", "l.0.v_proj.weight", None),
        ("{{{a}}}", "{x}", Some(vec!["x"])),
        ("{a}}}", "x}", Some(vec!["x"])),
    ] {
        let holes = holes.map(|h: Vec<&str>| h.into_iter().map(String::from).collect());
        assert_eq!(taken(pattern, name), holes, "{pattern} of {name}");
    }
}

#[test]
fn earlier_holes_are_as_short_as_can_be() {
    for (pattern, name, holes) in [
        ("{p..}.{q..}", "a.b.c", vec!["a", "b.c"]),
        ("{p..}.w", "a.w.w", vec!["a.w"]),
        ("{p..}.x{q..}x", "a.xbx.xcx", vec!["a", "bx.xc"]),
        ("{x=ab|a}{r..}", "abc", vec!["a", "bc"]),
        ("{x=ab|a}c", "abc", vec!["ab"]),
        ("{x=a|ab|abc}{y=cd|d|bcd}", "abcd", vec!["a", "bcd"]),
        ("{x=abc|ab}{y=d|cde}", "abcd", vec!["abc", "d"]),
        ("*.{n}.{r..}", "a.b.c.d", vec!["b", "c.d"]),
        ("{r..}.{n}.w", "a.b.c.w", vec!["a.b", "c"]),
        ("{x=aa|a}{y=aa|a}{z..}b", "aaaab", vec!["a", "a", "aa"]),
    ] {
        assert_eq!(taken(pattern, name).unwrap(), holes, "{pattern} of {name}");
    }
}

#[test]
fn gathering_holes_take_numbers() {
    for (pattern, name, holes) in [
        ("e.{e#}.w", "e.10.w", Some(vec!["10"])),
        ("e.{e#}.w", "e.0.w", Some(vec!["0"])),
        ("e.{e#}.w", "e.01.w", None),
        ("e.{e#}.w", "e.x.w", None),
        ("{p}{e#}", "ab10", Some(vec!["ab", "10"])),
        ("{p}{e#}", "a00", Some(vec!["a0", "0"])),
        ("{p}{e#}{q}", "a012", Some(vec!["a", "0", "12"])),
        ("{x=10|1}{e#}{y}", "100x", Some(vec!["1", "0", "0x"])),
        ("{p..}{e#}c", "00c", Some(vec!["0", "0"])),
    ] {
        let holes = holes.map(|h: Vec<&str>| h.into_iter().map(String::from).collect());
        assert_eq!(taken(pattern, name), holes, "{pattern} of {name}");
    }
}

/// All ways to match, by trying everything: the shortest holes first.
fn slow(pieces: &[PatternPiece], name: &str) -> Option<Vec<String>> {
    let Some((piece, rest)) = pieces.split_first() else {
        return name.is_empty().then(Vec::new);
    };
    if let PatternPiece::Text(text) = piece {
        return slow(rest, name.strip_prefix(&**text)?);
    }
    for end in (1..=name.len()).filter(|end| name.is_char_boundary(*end)) {
        let taken = &name[..end];
        let fits = match piece {
            PatternPiece::Hole(_, Hole::Component) => !taken.contains('.'),
            PatternPiece::Hole(_, Hole::Gather) => {
                taken.bytes().all(|b| b.is_ascii_digit())
                    && (taken == "0" || !taken.starts_with('0'))
            }
            PatternPiece::Hole(_, Hole::OneOf(all)) => all.iter().any(|text| **text == *taken),
            _ => true,
        };
        if fits && let Some(mut others) = slow(rest, &name[end..]) {
            if matches!(piece, PatternPiece::Hole(..)) {
                others.insert(0, taken.to_string());
            }
            return Some(others);
        }
    }
    None
}

#[test]
fn the_search_finds_what_trying_everything_finds() {
    use proptest::prelude::*;
    let piece = prop_oneof![
        "[a0.]{1,2}".prop_map(|text| PatternPiece::Text(text.into())),
        Just(PatternPiece::Any),
        Just(PatternPiece::Hole("h".into(), Hole::Component)),
        Just(PatternPiece::Hole("h".into(), Hole::Rest)),
        Just(PatternPiece::Hole("h".into(), Hole::Gather)),
        prop::collection::vec("[a01.é]{1,3}", 1..4).prop_map(|mut all| {
            all.sort_by_key(String::len);
            let all: Vec<Box<str>> = all.into_iter().map(String::into).collect();
            PatternPiece::Hole("h".into(), Hole::OneOf(all.into()))
        }),
    ];
    let pieces = prop::collection::vec(piece, 1..6);
    let config = ProptestConfig {
        cases: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(pieces in pieces, name in "[a01.é]{0,10}")| {
        let pattern = Pattern { at: Place(0), text: "".into(), pieces };
        let n = pattern.holes().count();
        let found = pattern.matches(&name).map(|bindings| {
            (0..n).map(|i| bindings.text(&name, i).unwrap().to_string()).collect::<Vec<_>>()
        });
        prop_assert_eq!(found, slow(&pattern.pieces, &name), "{:?}", pattern.pieces);
    });
}

#[test]
fn names_that_nearly_match_cost_little() {
    // Backtracking would take (10000 / 12)^12 steps.
    let text: String = (0..12).map(|i| format!("{{h{i}..}}a")).collect();
    let pattern = pattern(&(text + "{x}b{y}c")).unwrap();
    let name = "a".repeat(10_000) + ".c";
    assert!(pattern.matches(&name).is_none());
    let name = "a".repeat(10_000) + "b.c";
    assert!(pattern.matches(&name).is_none());
}

#[test]
fn the_length_of_patterns_is_limited() {
    let alternatives = |n: usize| format!("{{x={}}}", vec!["a"; n].join("|"));
    for (text, length) in [
        ("é".repeat(4097), "4,097"),
        ("{a}".repeat(100_000), "300,000"),
        (alternatives(2047), "4,097"),
    ] {
        let mistake = pattern(&text).unwrap_err();
        let what = format!("the pattern has {length} characters; at most 4,096");
        assert_eq!((mistake.at.0, mistake.what), (0, what));
    }
    for text in ["é".repeat(4096), alternatives(2046)] {
        pattern(&text).unwrap();
    }
}

#[test]
fn mistakes_in_patterns_have_their_places() {
    for (text, at, what) in [
        ("", 0, "empty pattern"),
        ("a.{n.b", 2, "'{' is not closed"),
        ("a.n}.b", 3, "'}' closes nothing"),
        ("a.{}.b", 2, "'{}': a hole is {NAME}"),
        ("a.{0}.b", 2, "'{0}': a hole is {NAME}"),
        ("a.{a b}.b", 2, "'{a b}': a hole is {NAME}"),
        ("a.{n}.{n}", 6, "the hole 'n' stands twice"),
        ("a.{n...}", 2, "'{n...}': a hole is {NAME}"),
        ("a.{n - 1}", 2, "'{n - 1}': a hole is {NAME}"),
        ("a.{it}", 2, "the name 'it' is taken"),
        ("a.{t}", 2, "the name 't' is taken"),
        ("a.{x=k||v}", 2, "'{x=k||v}': an empty alternative"),
        ("a.{x=}", 2, "'{x=}': an empty alternative"),
        ("a.{x=k|*}", 2, "'*' within a hole"),
        ("a.{x=k|{n}}", 2, "a hole within a hole"),
        ("a.{x=k|v", 2, "'{' is not closed"),
        ("a.{x=k|v}}", 2, "'{' is not closed"),
        ("é.{x", 3, "'{' is not closed"),
    ] {
        let mistake = pattern(text).unwrap_err();
        assert_eq!(mistake.at.0, at, "{text}: {}", mistake.what);
        assert!(mistake.what.contains(what), "{text}: {}", mistake.what);
    }
}

#[test]
fn further_patterns_are_filled_in() {
    let pattern = pattern("{p..}.up.{e#}.{x=k|v}").unwrap();
    let value = |hole: &str| match hole {
        "p" => Some("a.b"),
        "e" => Some("3"),
        "x" => Some("k"),
        _ => None,
    };
    assert_eq!(pattern.filled(value).unwrap(), "a.b.up.3.k");
    assert_eq!(
        pattern.filled(|hole| value(hole).filter(|_| hole != "e")),
        None
    );
    assert_eq!(pattern.hole("x"), Some(2));
    assert_eq!(pattern.gathering(), Some(1));
}
