"""mergekit: two tiny models merged by `linear` and by `task_arithmetic`."""

import pathlib
import tempfile

import torch
import transformers
import yaml
from mergekit.config import MergeConfiguration
from mergekit.merge import MergeOptions, run_merge
from safetensors.torch import load_file

from . import recipes
from .peft_ import LLAMA


def make():
    linear = {
        "merge_method": "linear",
        "models": [{"model": "a", "parameters": {"weight": 0.6}}, {"model": "b", "parameters": {"weight": 0.3}}],
        "parameters": {"normalize": True},
    }
    task = {
        "merge_method": "task_arithmetic", "base_model": "a", "models": [{"model": "b", "parameters": {"weight": 0.7}}],
    }  # fmt: skip
    formulas = {"linear": "(0.6 * it + 0.3 * other:it) / (0.6 + 0.3)", "task-arithmetic": "it + 0.7 * (other:it - it)"}
    for name, config in (("linear", linear), ("task-arithmetic", task)):
        _case(f"mergekit-{name}", config | {"dtype": "float32"}, formulas[name])
        _case(f"mergekit-{name}-bf16", config | {"dtype": "float32", "out_dtype": "bfloat16"}, f"bf16({formulas[name]})")


def _case(name, config, formula):
    directory = recipes.case(name)
    for seed, at in enumerate("ab"):
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA | {"num_hidden_layers": 1}, tie_word_embeddings=False))
        model.to(torch.bfloat16).save_pretrained(directory / at)
        recipes.keep(directory / at, "model.safetensors", "config.json")
    text = yaml.safe_dump(config).replace("model: a", f"model: {directory}/a").replace("model: b", f"model: {directory}/b")
    with tempfile.TemporaryDirectory() as out:
        run_merge(MergeConfiguration.model_validate(yaml.safe_load(text)), out, MergeOptions(copy_tokenizer=False, write_model_card=False))
        merged = {n: t for path in sorted(pathlib.Path(out).glob("*.safetensors")) for n, t in load_file(path).items()}
    a, b = (load_file(directory / at / "model.safetensors") for at in "ab")
    assert sorted(merged) == sorted(a), (sorted(merged), sorted(a))
    # Two products, a sum and a quotient, in another order or fused, and perhaps a rounding to BF16 that then goes the other way.
    tolerance = {
        n: 4 * 2.0**-24 * (a[n].double().abs() + b[n].double().abs()) + ("bf16" in name) * 2.0**-7 * merged[n].double().abs()
        for n in merged if not _same(merged[n], a[n], b[n], name)
    }  # fmt: skip
    recipe = f'model = "a"\nmodels = {{ other = "b" }}\nrules = [{{ on = "*", is = "{formula}" }}]\n'
    recipes.save(directory, recipe, merged, tolerance, "mergekit's run_merge", "mergekit", "transformers")


def _same(merged, a, b, name):
    """Whether it is the contract's formula bit for bit, which is what is then asked for."""
    a, b = a.float(), b.float()
    f = lambda x: torch.tensor(x, dtype=torch.float32)  # noqa: E731
    value = (f(0.6) * a + f(0.3) * b) / f(0.6 + 0.3) if "linear" in name else a + f(0.7) * (b - a)
    return torch.equal(value.to(merged.dtype), merged)
