//! Every mistake that the rules can make: where it is reported, with both numbers, both names, and what was probably meant.

use crate::{Expected, MARK, check_all, models, refused, stfs, verified, with_rules};

/// Recipes of these rules, each with its marked place.
#[track_caller]
fn at_places(cases: &[(&str, &[&str])]) {
    check(cases, false);
}

/// Recipes of these rules, each with a mark in the line that is reported.
#[track_caller]
fn of_lines(cases: &[(&str, &[&str])]) {
    check(cases, true);
}

#[track_caller]
fn check(cases: &[(&str, &[&str])], of_line: bool) {
    let texts: Vec<String> = cases.iter().map(|(rules, _)| with_rules(rules)).collect();
    let all = texts.iter().zip(cases).map(|(text, (_, words))| Expected {
        text,
        of_line,
        words,
    });
    check_all(&models(), all);
}

/// The examples of the contract, word for word.
#[test]
fn messages_are_those_of_the_contract() {
    at_places(&[
        (
            "{ on = 'a.weight', is = \"⟦'model.layers.0.self_attn.kproj.weight'\" },",
            &[
                "'model.layers.0.self_attn.kproj.weight' is not there; did you mean 'model.layers.0.self_attn.k_proj.weight'?",
            ],
        ),
        (
            "{ on = '*.0.mlp.gate_proj.weight', is = '⟦part(it, 1, 4)' },",
            &[
                "part: axis 0 of 'model.layers.0.mlp.gate_proj.weight' is 10, which 4 does not divide",
            ],
        ),
        (
            "{ on = 'a.weight', is = 'it ⟦+ tuned:it' },",
            &["'+': shapes differ: [4, 6] ('a.weight') and [4, 7] (tuned:'a.weight')"],
        ),
    ]);
    of_lines(&[
        (
            "{ on = 'a.weight', to = 'x.weight' },\n⟦{ on = 'b.weight', to = 'x.weight' },",
            &["makes 'x.weight', which line 4 made already"],
        ),
        (
            "⟦{ on = '*.q_porj.weight' },",
            &[
                "matches nothing: no name is like '*.q_porj.weight' (nearest to 'q_porj': 'q_proj'); optional = true if that may be",
            ],
        ),
    ]);
}

#[test]
fn names_that_are_not_there_come_with_the_nearest() {
    at_places(&[
        (
            "{ on = 'h.weight', is = '⟦tuned:it' },",
            &["tuned:'h.weight'", "is not there"],
        ),
        (
            "{ on = 'a.weight', is = \"⟦tuned:'b.wieght'\" },",
            &["tuned:'b.wieght'", "did you mean", "b.weight"],
        ),
        ("{ on = 'a.weight', is = '⟦tund:it' },", &["tund", "tuned"]),
        (
            "{ on = 'a.weight', is = \"⟦model:'a.wight'\" },",
            &["a.wight", "'a.weight'"],
        ),
        (
            "{ on = 'a.weight', is = '⟦concta(it, it)' },",
            &["concta", "concat"],
        ),
        ("{ on = 'a.weight', is = 'it * ⟦factr' },", &["factr"]),
        ("{ on = '{n..}.weight', is = 'it * ⟦m' },", &["m"]),
        ("{ on = '{n..}.weight', to = 'x.{⟦nn}' },", &["nn"]),
        ("{ lora = '⟦tuend' },", &["tuend", "tuned"]),
        (
            "{ on = 'a.weight', is = 'it * ⟦config.haeds' },",
            &["haeds", "heads"],
        ),
        (
            "{ on = 'a.weight', is = 'it * ⟦config.kind' },",
            &["'llama'", "number"],
        ),
        (
            "{ on = 'a.weight', where = '⟦config.nothing == 1' },",
            &["nothing"],
        ),
    ]);
    at_places(&[(
        "{ on = ['{p..}.0.self_attn.q_proj.weight', '⟦{p..}.0.self_attn.o_proj.weight'], to = 'x', is = 'it' },",
        &["o_proj"],
    )]);
}

#[test]
fn shapes_and_axes() {
    at_places(&[
        ("{ on = 'a.weight', is = 'it[⟦4]' },", &["4"]),
        ("{ on = 'a.weight', is = 'it[⟦-5]' },", &["-5", "4"]),
        ("{ on = 'a.weight', is = 'it[0, ⟦7:]' },", &["7", "6"]),
        ("{ on = 'a.weight', is = 'it[0, 0:⟦7]' },", &["7", "6"]),
        ("{ on = 'a.weight', is = 'it[::⟦0]' },", &["0"]),
        ("{ on = 'a.weight', is = 'it[::⟦-1]' },", &["-1"]),
        ("{ on = 'a.weight', is = '⟦it[0, 0, 0]' },", &["2"]),
        (
            "{ on = 'a.weight', is = '⟦part(it, 2, 2)' },",
            &["part", "2"],
        ),
        (
            "{ on = 'a.weight', is = '⟦part(it, -1, 2)' },",
            &["part", "-1"],
        ),
        (
            "{ on = 'a.weight', is = '⟦part(it, 0, 0)' },",
            &["part", "0"],
        ),
        (
            "{ on = 'a.weight', is = 'part(it, 0, 2, axis=⟦2)' },",
            &["part", "axis 2"],
        ),
        (
            "{ on = 'a.weight', is = 'part(it, 0, 2, axis=⟦-3)' },",
            &["part", "axis -3"],
        ),
        (
            "{ on = 'a.weight', is = '⟦pad(it, 3)' },",
            &["pad", "4", "3"],
        ),
        (
            "{ on = 'a.weight', is = '⟦reshape(it, 5, 5)' },",
            &["reshape", "24", "25"],
        ),
        (
            "{ on = 'a.weight', is = '⟦reshape(it, -1, 5)' },",
            &["reshape", "24", "5"],
        ),
        (
            "{ on = 'a.weight', is = '⟦reshape(it, -1, -1)' },",
            &["reshape", "-1"],
        ),
        (
            "{ on = 'a.weight', is = '⟦reshape(it, -2, 12)' },",
            &["reshape", "-2"],
        ),
        ("{ on = 'a.weight', is = '⟦permute(it, 0)' },", &["permute"]),
        (
            "{ on = 'a.weight', is = '⟦permute(it, 0, 0)' },",
            &["permute", "0"],
        ),
        (
            "{ on = 'a.weight', is = 'permute(it, 0, ⟦2)' },",
            &["permute", "2"],
        ),
        ("{ on = 'ids', is = '⟦t(it)' },", &["t:", "'ids'"]),
        (
            "{ on = 'a.weight', is = \"⟦concat(it, 'cube')\" },",
            &["concat", "[4, 6]", "[2, 3, 4]", "'cube'"],
        ),
        (
            "{ on = 'a.weight', is = \"⟦concat(it, tuned:it)\" },",
            &["concat", "[4, 6]", "[4, 7]", "tuned:'a.weight'"],
        ),
        (
            "{ on = 'a.weight', is = \"⟦stack(it, tuned:it)\" },",
            &["stack", "[4, 6]", "[4, 7]"],
        ),
        (
            "{ on = 'a.weight', is = \"concat(it, 'b.weight', axis=⟦2)\" },",
            &["concat", "axis 2"],
        ),
        (
            "{ on = 'a.weight', is = \"it ⟦@ 'b.weight'\" },",
            &["'@'", "[4, 6]", "'b.weight'", "6", "4"],
        ),
        ("{ on = 'cube', is = \"it ⟦@ it\" },", &["'@'", "[2, 3, 4]"]),
        (
            "{ on = 'wide', is = 'it ⟦@ t(it)' },",
            &["'@'", "1025", "1024"],
        ),
        (
            "{ on = 'a.weight', is = 'it * dim(it, ⟦2)' },",
            &["dim", "axis 2"],
        ),
        ("{ on = 'fp4', is = '⟦t(it)' },", &["F4", "'fp4'"]),
        ("{ on = 'fp4', is = '⟦it[:, 1:3]' },", &["F4"]),
    ]);
}

#[test]
fn element_types() {
    at_places(&[
        (
            "{ on = 'a.weight', is = \"⟦concat(it, 'h.weight')\" },",
            &["F32", "F16", "'a.weight'", "'h.weight'", "f32("],
        ),
        (
            "{ on = 'a.weight', is = \"⟦stack(it, 'h.weight')\" },",
            &["F32", "F16", "f32("],
        ),
        ("{ on = 'complex', is = 'it ⟦+ 1' },", &["'complex'", "C64"]),
        (
            "{ on = 'complex', is = '⟦bf16(it)' },",
            &["'complex'", "C64"],
        ),
        ("{ on = 'complex', is = '⟦-it' },", &["C64"]),
        (
            "{ on = 'a.weight', is = \"it ⟦* 'complex'\" },",
            &["'complex'", "C64"],
        ),
    ]);
}

#[test]
fn numbers_and_text() {
    at_places(&[
        ("{ on = 'a.weight', is = 'it * (1 ⟦/ 0)' },", &["0"]),
        ("{ on = 'a.weight', is = 'it[1 ⟦// 0]' },", &["0"]),
        ("{ on = 'a.weight', is = 'it[1 ⟦% 0]' },", &["0"]),
        ("{ on = 'a.weight', where = '1 ⟦% 0 == 1' },", &["0"]),
        (
            "{ on = 'a.weight', is = 'it * (9223372036854775807 ⟦+ 1)' },",
            &["64 bits"],
        ),
        (
            "{ on = 'a.weight', is = 'it * (3037000500 ⟦* 3037000500)' },",
            &["64 bits"],
        ),
        (
            "{ on = 'a.weight', is = 'it * ⟦9223372036854775808' },",
            &["9223372036854775808", "2^63"],
        ),
        (
            "{ on = '{x}.weight', where = \"x == 'a'\", is = 'it * ⟦x' },",
            &["'a'", "number"],
        ),
        (
            "{ on = 'a.weight', is = 'it[⟦1.5]' },",
            &["1.5", "whole number"],
        ),
        ("{ on = 'a.weight', is = 'it[4 ⟦/ 2]' },", &["whole number"]),
        (
            "{ on = 'a.weight', is = 'part(it, ⟦it, 2)' },",
            &["'a.weight'", "whole number"],
        ),
        ("{ on = 'a.weight', is = '⟦5' },", &["tensor"]),
        ("{ on = 'a.weight', is = '⟦config.heads' },", &["tensor"]),
        ("{ on = 'a.weight', is = 'it ⟦% 2' },", &["%"]),
        ("{ on = 'a.weight', is = 'it ⟦// 2' },", &["//"]),
        ("{ on = 'a.weight', is = '2 ⟦@ it' },", &["@"]),
        ("{ on = 'a.weight', is = 'bf16(⟦2)' },", &["bf16", "tensor"]),
        ("{ on = 'a.weight', where = '⟦it == 1' },", &["tensor"]),
        (
            "{ on = 'a.weight', where = \"⟦dtype < 3\" },",
            &["'F32'", "number"],
        ),
        (
            "{ on = 'a.weight', to = 'x.{1 ⟦/ 2}' },",
            &["0.5", "whole number"],
        ),
        ("{ on = 'a.weight', to = 'x.{⟦it}' },", &["tensor"]),
        (
            "{ on = 'a.weight', is = 'concat(it for ⟦i in 0..65537)' },",
            &["65536"],
        ),
        (
            "{ on = 'a.weight', is = '⟦concat(it for i in 3..3)' },",
            &["concat"],
        ),
    ]);
}

#[test]
fn results_that_are_there_already() {
    of_lines(&[
        (
            "⟦{ on = 'a.weight', to = 'b.weight' },",
            &["makes 'b.weight'", "already"],
        ),
        ("⟦{ on = '{x}.weight', to = 'same' },", &["makes 'same'"]),
        (
            "⟦{ on = 'a.weight', add = 'a.weight' },",
            &["makes 'a.weight'"],
        ),
        (
            "⟦{ on = 'a.weight', for = 'r in 0..2', to = 'x' },",
            &["makes 'x'"],
        ),
        (
            "{ drop = 'b.weight' },\n{ on = 'a.weight', add = 'b.weight' },\n⟦{ on = 'h.weight', to = 'b.weight' },",
            &["makes 'b.weight', which line 5 made already"],
        ),
    ]);
    at_places(&[(
        "{ on = ['{x}.weight', '⟦one'], to = 'y.{x}' },",
        &["'one'", "'a.weight'", "'b.weight'"],
    )]);
    // What is taken leaves its name free, also to a neighbor of the same rule.
    let dir = models();
    let swap = with_rules(
        "{ on = ['a.weight', 'b.weight'], to = { 'b.weight' = 'it', 'a.weight' = \"'b.weight'\" } },",
    );
    let path = dir.file("recipe.toml", swap);
    stfs(["ls".as_ref(), path.as_os_str()]).ok();
}

#[test]
fn matches_that_are_not_there() {
    of_lines(&[
        ("⟦{ keep = 'nothing.*' },", &["matches nothing"]),
        (
            "⟦{ drop = ['nothing.*'] },",
            &["matches nothing", "optional"],
        ),
        (
            "⟦{ on = '*', where = \"dtype == 'F8_E4M3'\", is = 'bf16(it)' },",
            &["matches nothing"],
        ),
    ]);
    at_places(&[(
        "{ on = '⟦gap.{e#}.w', to = 'all', is = \"stack('gap.{e}.w' for e)\" },",
        &["2", "gap"],
    )]);
    let dir = models();
    let path = dir.file(
        "recipe.toml",
        with_rules("{ drop = 'nothing', optional = true },"),
    );
    stfs(["ls".as_ref(), path.as_os_str()]).ok();
}

/// `mount` shows the first, `verify` all of them, in the order of the file; and a mistake is not reported again by
/// what follows from it.
#[test]
fn verify_lists_all_mistakes_and_mount_the_first() {
    let dir = models();
    let text = with_rules(
        "{ on = 'a.weight', is = ⟦'conct(it, it)' },\n\
         { on = 'b.weight', is = \"it + 'nothing'\" },\n\
         { on = 'a.weight', is = 'it + 1' },\n\
         { on = 'h.weight', to = 'ids' },\n\
         { drop = 'nowhere' },",
    );
    let path = dir.file("recipe.toml", text.replace(MARK, ""));
    let first = refused(&path, &["recipe.toml:4:26: ", "conct"]);
    let mountpoint = dir.join("mnt");
    let mounted = stfs(["mount".as_ref(), path.as_os_str(), mountpoint.as_os_str()]);
    assert_eq!(mounted.fails(&[]), first);
    let all = verified(&path);
    assert_eq!(all.code, 1, "{all:?}");
    let printed = format!("{}{}", all.out, all.err);
    let of = |line: usize| printed.matches(&format!("recipe.toml:{line}:")).count();
    assert_eq!([4, 5, 6, 7, 8].map(of), [1, 1, 0, 1, 1], "{printed}");
    let all = stfs(["verify".as_ref(), "--json".as_ref(), path.as_os_str()]);
    assert_eq!(all.json().as_array().unwrap().len(), 4, "{all:?}");
}

/// The same mistake at the same place, once for each of 100,000 tensors, is not 100,000 lines.
#[test]
fn a_mistake_of_many_tensors_is_listed_a_few_times() {
    let dir = models();
    let path = dir.file(
        "recipe.toml",
        with_rules("{ on = '*', is = \"it + 'nothing'\" },"),
    );
    let all = verified(&path);
    assert_eq!(all.code, 1, "{all:?}");
    let lines = format!("{}{}", all.out, all.err).lines().count();
    assert!((1..=12).contains(&lines), "{lines} lines: {all:?}");
}
