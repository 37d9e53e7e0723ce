//! Recipes: whatever the text is, every mistake is listed in one line, at a place of the text, and what the rules
//! leave is served like any model.
#![no_main]

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use safetensors::tensor::{Dtype, TensorView, serialize};
use stfs::model::OpenModel;

mod served;

/// A name, and a shape.
type Row<'a> = (&'a str, Dtype, &'a [usize]);

/// The tensors of `m`; `tuned` has the first ones.
const TENSORS: &[Row] = &[
    ("embed.weight", Dtype::F32, &[6, 4]),
    ("norm.weight", Dtype::BF16, &[4]),
    ("layers.0.q_proj.weight", Dtype::F32, &[8, 4]),
    ("layers.0.k_proj.weight", Dtype::F32, &[4, 4]),
    ("layers.0.v_proj.weight", Dtype::F32, &[4, 4]),
    ("layers.1.q_proj.weight", Dtype::F16, &[8, 4]),
    ("layers.1.experts.0.w1.weight", Dtype::F8_E4M3, &[2, 4]),
    ("layers.1.experts.1.w1.weight", Dtype::F8_E4M3, &[2, 4]),
    ("layers.1.experts.down_proj", Dtype::BF16, &[2, 3, 4]),
    ("ids", Dtype::I64, &[5]),
    ("fp4", Dtype::F4, &[2, 4]),
];

/// An adapter of rank 2.
const ADAPTER: &[Row] = &[
    (
        "base_model.model.layers.0.q_proj.lora_A.weight",
        Dtype::F32,
        &[2, 4],
    ),
    (
        "base_model.model.layers.0.q_proj.lora_B.weight",
        Dtype::F32,
        &[8, 2],
    ),
];

/// The directory with the models, in which the recipe lies.
static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
    let config = r#"{"heads": 2, "model_type": "llama", "text_config": {"layers": 2}}"#;
    model("m", TENSORS, "model.safetensors", "config.json", config);
    model(
        "tuned",
        &TENSORS[..6],
        "model.safetensors",
        "config.json",
        "{}",
    );
    let lora = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}"#;
    model(
        "ad",
        ADAPTER,
        "adapter_model.safetensors",
        "adapter_config.json",
        lora,
    );
    served::DIRECTORY.clone()
});

fn model(name: &str, tensors: &[Row], file: &str, config_file: &str, config: &str) {
    let directory = served::DIRECTORY.join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let data: Vec<u8> = (0..=255).map(|i: u8| i.wrapping_mul(37) & 0x7B).collect();
    let views = tensors.iter().map(|(name, dtype, shape)| {
        let bits = shape.iter().product::<usize>() * dtype.bitsize();
        let view = TensorView::new(*dtype, shape.to_vec(), &data[..bits / 8]);
        (*name, view.unwrap())
    });
    std::fs::write(directory.join(file), serialize(views, None).unwrap()).unwrap();
    std::fs::write(directory.join(config_file), config).unwrap();
}

/// `FILE:LINE:COLUMN: ` and `FILE:LINE: ` name a place of the text.
fn place(text: &str, problem: &str) {
    served::one_line(problem);
    let mut numbers = problem.split(':').map(|n| n.parse::<usize>());
    let Some(Ok(line)) = numbers.next() else {
        return;
    };
    let line = text.split('\n').nth(line - 1).expect("a line of the text");
    if let Some(Ok(column)) = numbers.next() {
        assert!(
            (1..=line.chars().count() + 1).contains(&column),
            "{problem}"
        );
    }
}

fuzz_target!(|input: &[u8]| {
    let path = DIRECTORY.join("recipe.toml");
    std::fs::write(&path, input).unwrap();
    let open = OpenModel::default();
    match open.open(&path) {
        Err(error) => served::one_line(&error.to_string()),
        Ok(model) => served::files(&Arc::new(model), input.len()),
    }
    let text = std::str::from_utf8(input).unwrap_or_default();
    check(&open, &path, text);
    if let Err(error) = open.rules(&path) {
        served::one_line(&error.to_string());
    }
});

/// All that is wrong with it.
fn check(open: &OpenModel, path: &Path, text: &str) {
    let shown = format!("{}:", path.display());
    let problems = match open.check(path) {
        Err(error) => return served::one_line(&error.to_string()),
        Ok(checked) => checked.problems,
    };
    for problem in problems {
        let problem = problem.problem;
        place(text, problem.strip_prefix(&shown).unwrap_or(&problem));
    }
}
