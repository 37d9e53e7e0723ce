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
