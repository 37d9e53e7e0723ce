#!/usr/bin/env python3
"""Recipes held against the libraries whose work they do: peft's `merge_and_unload`, mergekit, transformers, torch's casts.

    python tests/torch/recipes.py

Random adapters of random configs; merges by mergekit; a merged model as transformers loads it from `files/` and
`export/model.safetensors`. Needs PyTorch, transformers, peft and mergekit (tests/golden/make.sh makes an environment that has
them: DIRECTORY/recipes); recipes.txt is the result of a run.
"""

import copy
import json
import math
import pathlib
import re
import sys
import warnings

import peft
import torch
import transformers
import yaml
from mergekit.config import MergeConfiguration
from mergekit.merge import MergeOptions, run_merge
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))
from harness import check, main, mounted, random_numbers, same  # noqa: E402
from harness.recipes import options, recipe  # noqa: E402

warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
RNG = random_numbers()
torch.manual_seed(int(RNG.integers(2**31)))
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SMALL = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)


def pick(*of):
    return of[int(RNG.integers(len(of)))]


def llama(directory, dtype=torch.float32, **config):
    """A random model, saved; the one in memory."""
    settings = transformers.LlamaConfig(**SMALL, tie_word_embeddings=False, **config)
    made = AutoModelForCausalLM.from_config(settings).to(dtype)
    made.save_pretrained(directory)
    return made


def left(path, **parameters):
    """What the rules leave, as torch's tensors."""
    with mounted(path, *options(**parameters)) as mount:
        return load_file(mount / "export/model.safetensors")


def filled(model, dtype):
    """Every trainable tensor with values that matter."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                p.copy_((torch.randn(p.shape) * 0.2).to(dtype))
    return model


def bound(name, w, factors, config):
    """(r + 3) * 2^-24 * (|W| + |s| * sum of |b| |a|); 0 where nothing is added."""
    module = f"base_model.model.{name.removesuffix('.weight')}"
    embedding = f"{module}.lora_embedding_A" in factors
    ends = ("lora_embedding_A", "lora_embedding_B") if embedding else ("lora_A.weight", "lora_B.weight")
    if f"{module}.{ends[0]}" not in factors:
        return torch.zeros_like(w, dtype=torch.float64)
    a, b = (factors[f"{module}.{end}"].double().abs() for end in ends)
    r = a.shape[0]
    alphas = [v for k, v in config.alpha_pattern.items() if re.match(rf"(.*\.)?({k})$", name.removesuffix(".weight"))]
    alpha = alphas[0] if alphas else config.lora_alpha
    s = alpha / (math.sqrt(r) if config.use_rslora else r)
    product = b @ a
    product = product.T if embedding or config.fan_in_fan_out else product
    return (r + 3) * 2.0**-24 * (w.double().abs() + abs(s) * product)


def random_config():
    targets = sorted({pick(*LINEAR) for _ in range(4)} | ({"embed_tokens"} if pick(0, 1) else set()))
    layer = f"layers.{pick(0, 1, 2)}"
    patterns = {rf"^model\.{layer.replace('.', chr(92) + '.')}\..*": int(RNG.integers(1, 40)), f"{layer}.self_attn.q_proj": 11, "mlp.(up|down)_proj": 2.5}
    ranks = {f"{layer}.self_attn.q_proj": 3, r".*\.1\..*k_proj": 9}
    return peft.LoraConfig(
        r=pick(1, 2, 8, 16), lora_alpha=pick(1, 16, 7), use_rslora=pick(True, False), target_modules=targets, init_lora_weights=False,
        alpha_pattern=patterns if pick(0, 1) else {}, rank_pattern=ranks if pick(0, 1) else {},
        modules_to_save=["lm_head"] if pick(0, 1) else None,
    )  # fmt: skip


@check
def random_adapters_are_merged_as_peft_merges_them(tmp):
    for i in range(25):
        at = tmp / str(i)
        stored = pick(torch.float32, torch.bfloat16, torch.float16)
        llama(at / "base", stored)
        config = random_config()
        base = AutoModelForCausalLM.from_pretrained(at / "base", dtype=torch.float32)
        filled(peft.get_peft_model(copy.deepcopy(base), config), pick(torch.float32, torch.bfloat16)).save_pretrained(at / "ad")
        merged = peft.PeftModel.from_pretrained(base, at / "ad").merge_and_unload().state_dict()
        found = left(recipe(at, 'model = "base"\nmodels = { ad = "ad" }\nrules = [{ lora = "ad" }]\n'))
        plain, factors = load_file(at / "base/model.safetensors"), load_file(at / "ad/adapter_model.safetensors")
        same(sorted(found), sorted(plain), "names")
        for name, w in plain.items():
            allowed = bound(name, w, factors, config)
            off = (found[name].double() - merged[name].double()).abs()
            assert (off <= allowed).all(), f"{name}: {off.max()} is over the bound: {config}"


@check
def gpt2s_turned_layers(tmp):
    settings = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32)
    AutoModelForCausalLM.from_config(settings).save_pretrained(tmp / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp / "base")
    config = peft.LoraConfig(r=4, target_modules=["c_attn", "c_proj", "c_fc"], init_lora_weights=False, fan_in_fan_out=True)
    filled(peft.get_peft_model(copy.deepcopy(base), config), torch.float32).save_pretrained(tmp / "ad")
    merged = peft.PeftModel.from_pretrained(base, tmp / "ad").merge_and_unload().state_dict()
    found = left(recipe(tmp, 'model = "base"\nmodels = { ad = "ad" }\nrules = [{ lora = "ad" }]\n'))
    plain, factors = load_file(tmp / "base/model.safetensors"), load_file(tmp / "ad/adapter_model.safetensors")
    for name, w in plain.items():
        off = (found[name].double() - merged[name].double()).abs()
        assert (off <= bound(name, w, factors, config)).all(), f"{name}: {off.max()}"


def merge(tmp, config):
    """What mergekit makes of a config; models are named by directories of `tmp`."""
    settings = json.loads(re.sub(r'"dir:(\w+)"', lambda m: json.dumps(str(tmp / m[1])), json.dumps(config)))
    out = tmp / "out"
    run_merge(MergeConfiguration.model_validate(yaml.safe_load(yaml.safe_dump(settings))), str(out), MergeOptions(copy_tokenizer=False, write_model_card=False))
    return {n: t for path in sorted(out.glob("*.safetensors")) for n, t in load_file(path).items()}


@check
def merges_are_mergekits(tmp):
    for at in "abc":
        llama(tmp / at, torch.bfloat16)
    w = [round(float(x), 3) for x in RNG.uniform(0.1, 2, 3)]
    linear = {"merge_method": "linear", "dtype": "float32", "models": [{"model": f"dir:{at}", "parameters": {"weight": x}} for at, x in zip("abc", w)]}
    formula = f"({w[0]} * it + {w[1]} * b:it + {w[2]} * c:it) / ({w[0]} + {w[1]} + {w[2]})"
    task = {"merge_method": "task_arithmetic", "base_model": "dir:a", "dtype": "float32", "models": [{"model": f"dir:{at}", "parameters": {"weight": x}} for at, x in zip("bc", w)]}
    vectors = f"it + ({w[0]} * (b:it - it) + {w[1]} * (c:it - it))"
    plain = [load_file(tmp / at / "model.safetensors") for at in "abc"]
    for config, text in ((linear, formula), (task, vectors)):
        merged = merge(tmp, config)
        found = left(recipe(tmp, f'model = "a"\nmodels = {{ b = "b", c = "c" }}\nrules = [{{ on = "*", is = "{text}" }}]\n'))
        same(sorted(found), sorted(merged), config["merge_method"])
        for name, t in merged.items():
            size = sum(max(1, x) * p[name].double().abs() for x, p in zip(w, plain))
            off = (found[name].double() - t.double()).abs()
            assert (off <= 8 * 2.0**-24 * size).all(), f"{config['merge_method']}: {name}: {off.max()}"


@check
def a_merged_model_loads_and_answers_as_peft_does(tmp):
    llama(tmp / "base", torch.bfloat16)
    base = AutoModelForCausalLM.from_pretrained(tmp / "base", dtype=torch.float32)
    adapted = filled(peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=LINEAR, init_lora_weights=False)), torch.float32)
    adapted.save_pretrained(tmp / "ad")
    path = recipe(tmp, 'model = "base"\nmodels = { ad = "ad" }\nconfig = { set = { torch_dtype = "float32", dtype = "float32" } }\nrules = [{ lora = "ad" }]\n')
    with mounted(path) as mount:
        linked = tmp / "linked"
        linked.mkdir()
        for file in (mount / "files").iterdir():
            (linked / file.name).symlink_to(file)
        (linked / "model.safetensors").symlink_to(mount / "export/model.safetensors")
        model, info = AutoModelForCausalLM.from_pretrained(linked, output_loading_info=True)
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            same(sorted(info[what]), [], what)
        tokens = torch.randint(0, 64, (2, 17))
        with torch.no_grad():
            found, expected = model.eval()(tokens).logits, adapted.eval()(tokens).logits
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4), (found - expected).abs().max()


@check
def casts_are_torchs(tmp):
    """But for F8_E4M3's overflow, which torch 2.15 saturates, and NaN's bits."""
    bits = torch.randint(-(2**31), 2**31, (200_000,), dtype=torch.int64).to(torch.int32)
    x = torch.cat([bits.view(torch.float32), (torch.arange(1 << 16, dtype=torch.int32) << 16).view(torch.float32)])
    (tmp / "m").mkdir()
    save_file({"x": x}, tmp / "m/model.safetensors")
    casts = {"bf16": torch.bfloat16, "f16": torch.float16, "f8_e5m2": torch.float8_e5m2, "f8_e4m3": torch.float8_e4m3fn}
    rules = ", ".join(f'{name} = "{name}(it)"' for name in casts)
    found = left(recipe(tmp, f'model = "m"\nrules = [{{ on = "x", add = {{ {rules} }} }}]\n'))
    for name, dtype in casts.items():
        kept = x.abs() < 464 if name == "f8_e4m3" else ~x.isnan()
        a, b = found[name].float(), x.to(dtype).float()
        assert torch.equal(a[kept].view(torch.int32), b[kept].view(torch.int32)), name
        assert found[name].float()[x.isnan()].isnan().all(), name


if __name__ == "__main__":
    print(f"peft {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}")
    main()
