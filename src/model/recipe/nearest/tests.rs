use super::super::language::{Located, parse_pattern};
use super::*;

#[test]
fn words_that_were_meant_are_found() {
    let keys = ["keep", "drop", "on", "lora", "where", "optional"];
    for (wanted, nearest) in [
        ("droop", Some("drop")),
        ("dorp", Some("drop")),
        ("wheer", Some("where")),
        ("KEEP", Some("keep")),
        ("o", Some("on")),
        ("x", None),
        ("something", None),
    ] {
        assert_eq!(word(wanted, keys), nearest, "{wanted}");
    }
    assert_eq!(word("bf61", ["f32", "bf16", "f16"]), Some("bf16"));
    assert_eq!(word("x", []), None);
}

#[test]
fn names_that_were_meant_are_found() {
    let names = [
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "lm_head.weight",
    ];
    for (wanted, nearest) in [
        ("model.layers.0.self_attn.kproj.weight", Some(names[1])),
        ("layers.1.self_attn.k_proj.weight", Some(names[2])),
        (
            "transformer.model.layers.0.self_attn.o_proj.weight",
            Some(names[0]),
        ),
        ("lm_head.wieght", Some(names[3])),
        ("something.else.entirely", None),
    ] {
        assert_eq!(name(wanted, names), nearest, "{wanted}");
    }
}

#[test]
fn the_piece_of_a_pattern_that_is_in_no_name_is_found() {
    let names = [
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.norm.weight",
    ];
    for (pattern, missing, nearest) in [
        ("*.q_porj.weight", "q_porj", "q_proj"),
        ("model.layer.{n}.{r..}", "layer", "layers"),
        ("*.{x=q|k}_porj.weight", "porj", "proj"),
        ("*nrom.weight", "nrom", "norm"),
        ("*.{x=nrom|k_proj}.weight", "nrom", "norm"),
    ] {
        let parsed = parse_pattern(&Located::plain(pattern, 0), &|_| Ok(())).unwrap();
        let found = piece(&parsed, names.into_iter());
        assert_eq!(found, Some((missing.into(), nearest.into())), "{pattern}");
    }
    let all = parse_pattern(&Located::plain("*", 0), &|_| Ok(())).unwrap();
    assert_eq!(piece(&all, names.into_iter()), None);
}

#[test]
fn the_first_few_pieces_are_looked_up() {
    let names = ["model.q_proj.weight"];
    let found = |others: usize| {
        let others: String = (0..others).map(|i| format!("unknown{i}.")).collect();
        let text = format!("{others}wieght");
        let pattern = parse_pattern(&Located::plain(&text, 0), &|_| Ok(())).unwrap();
        piece(&pattern, names.into_iter())
    };
    assert_eq!(found(7), Some(("wieght".into(), "weight".into())));
    assert_eq!(found(8), None);
}

/// The distance of restricted edits, from its whole table.
fn slow_distance(a: &[char], b: &[char]) -> usize {
    let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            let replaced = |i: usize, j: usize| usize::from(a[i - 1] != b[j - 1]);
            table[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                _ => (table[i - 1][j] + 1)
                    .min(table[i][j - 1] + 1)
                    .min(table[i - 1][j - 1] + replaced(i, j)),
            };
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                table[i][j] = table[i][j].min(table[i - 2][j - 2] + 1);
            }
        }
    }
    table[a.len()][b.len()]
}

#[test]
fn the_band_holds_all_distances_that_count() {
    use proptest::prelude::*;
    let config = ProptestConfig {
        cases: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(a in "[ab.]{1,20}", words in prop::collection::vec("[ab.]{1,20}", 1..4), most in 1usize..8)| {
        let letters = |text: &str| text.chars().collect::<Vec<char>>();
        let mut search = Search::new(&a, most);
        let mut nearest = most + 1;
        for word in &words {
            search.try_word(word);
            let distance = slow_distance(&letters(&a), &letters(word));
            if distance < a.len().max(word.len()) {
                nearest = nearest.min(distance);
            }
        }
        prop_assert_eq!(search.less_than, nearest);
    });
}
