"""PEFT: adapters of tiny models, and what `merge_and_unload` makes of them in F32."""

import math
import re

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

from . import recipes

LLAMA = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=40,
    max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
)  # fmt: skip


def make():
    llama = lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, tie_word_embeddings=False))  # noqa: E731
    gpt2 = lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=40, n_embd=32, n_layer=1, n_head=4, n_positions=16))  # noqa: E731
    every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    _case("peft-lora", llama, torch.bfloat16, LoraConfig(r=4, lora_alpha=8, target_modules=every, init_lora_weights=False))
    _case("peft-lora-half", llama, torch.float16, LoraConfig(r=16, lora_alpha=24, target_modules=["q_proj", "down_proj"], init_lora_weights=False), torch.bfloat16)
    patterns = dict(
        rank_pattern={"layers.0.self_attn.q_proj": 2, r"^model\.layers\.1\..*": 6},
        alpha_pattern={r"^model\.layers\.1\.mlp\.(gate|up)_proj": 5, "layers.0.self_attn.q_proj": 3, "self.attn.k_proj": 7, "proj": 100},
    )
    _case("peft-rslora-patterns", llama, torch.float32, LoraConfig(r=4, lora_alpha=9, use_rslora=True, target_modules=every, init_lora_weights=False, **patterns))
    more = dict(target_modules=["embed_tokens", "v_proj"], modules_to_save=["lm_head"], init_lora_weights=False)
    _case("peft-embedding-and-saved", llama, torch.bfloat16, LoraConfig(r=3, lora_alpha=4, **more))
    _case("peft-conv1d", gpt2, torch.float32, LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, init_lora_weights=False))


def _case(name, architecture, dtype, config, adapter_dtype=torch.float32):
    directory = recipes.case(name)
    torch.manual_seed(0)
    architecture().to(dtype).save_pretrained(directory / "base")
    base = architecture()
    base.load_state_dict({**base.state_dict(), **_floats(directory / "base")}, strict=False)
    model = get_peft_model(base.float(), config)
    with torch.no_grad():
        for parameter_name, p in model.named_parameters():
            if "lora_" in parameter_name or "modules_to_save" in parameter_name:
                p.copy_((torch.randn(p.shape) * 0.3).to(adapter_dtype))
    model.save_pretrained(directory / "adapter")
    recipes.keep(directory / "base", "model.safetensors", "config.json")
    recipes.keep(directory / "adapter", "adapter_model.safetensors", "adapter_config.json")
    # As a user has it: both loaded again, in F32.
    fresh = architecture()
    fresh.load_state_dict({**fresh.state_dict(), **_floats(directory / "base")}, strict=False)
    merged = PeftModel.from_pretrained(fresh.float(), directory / "adapter", torch_dtype=torch.float32).merge_and_unload()
    state, stored = merged.state_dict(), load_file(directory / "base/model.safetensors")
    prefix = "transformer." if any(n.startswith("transformer.") for n in state) and not any(n.startswith("transformer.") for n in stored) else ""
    factors = load_file(directory / "adapter/adapter_model.safetensors")
    changed = {n for n in stored if any(f"base_model.model.{prefix}{n.removesuffix('weight')}{f}" in factors for f in ("lora_A.weight", "lora_embedding_A", "weight"))}
    assert changed and (len(changed) > 2 or "conv1d" in name), changed
    expected = {n: state[prefix + n].float() for n in changed}
    tolerance = {n: _tolerance(prefix + n, stored[n].double(), factors, config) for n in changed if f"base_model.model.{prefix}{n}" not in factors}
    rename = f'  {{ on = "{{name..}}", to = "{prefix}{{name}}" }},\n' if prefix else ""
    expected, tolerance = ({prefix + n: t for n, t in tensors.items()} for tensors in (expected, tolerance))
    text = f'model = "base"\nmodels = {{ ad = "adapter" }}\nrules = [\n{rename}  {{ lora = "ad" }},\n]\n'
    recipes.save(directory, text, expected, tolerance, "PeftModel.from_pretrained(F32).merge_and_unload()", "peft", "transformers")


def _floats(directory):
    state = load_file(directory / "model.safetensors")
    return {prefix + n: t.float() for n, t in state.items() for prefix in ("", "transformer.")}


def _tolerance(name, w, factors, config):
    """(r + 3) * 2^-24 * (|W| + |s| * sum of |b| |a|)"""
    module = name.removesuffix(".weight")
    embedding = f"base_model.model.{module}.lora_embedding_A" in factors
    ends = (("lora_embedding_A", "lora_embedding_B") if embedding else ("lora_A.weight", "lora_B.weight"))
    a, b = (factors[f"base_model.model.{module}.{end}"].double().abs() for end in ends)
    r = a.shape[0]
    found = [v for k, v in config.alpha_pattern.items() if re.match(rf"(.*\.)?({k})$", module)]
    alpha = found[0] if found else config.lora_alpha
    s = alpha / (math.sqrt(r) if config.use_rslora else r)
    product = b @ a
    product = product.T if embedding or config.fan_in_fan_out else product
    return (r + 3) * 2.0**-24 * (w.abs() + abs(s) * product)
