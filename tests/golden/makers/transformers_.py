"""transformers: block-wise FP8 as DeepSeek and Qwen3 have it, FP4 experts, gpt-oss's MXFP4."""

import tempfile
from types import SimpleNamespace

import torch
from compressed_tensors.entrypoints.convert import FP8BlockDequantizer
from transformers import AutoModelForCausalLM, GptOssConfig, Mxfp4Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from . import common

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True}


def make():
    _fp8_blocks("fp8-blocks", None)
    _fp8_blocks("fp8-blocks-ue8m0", "ue8m0")
    _fp8_ragged()
    _fp4_experts()
    _gpt_oss()


def _quantiser(block, scale_fmt):
    return SimpleNamespace(quantization_config=SimpleNamespace(weight_block_size=block, scale_fmt=scale_fmt))


def _fp8_config(block, **more):
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block, "fmt": "e4m3", **more}


def _fp8_blocks(case, scale_fmt, block=(16, 32)):
    model = common.tiny_llama()
    quantiser = _quantiser(list(block), scale_fmt)
    state = {n: t for n, t in model.state_dict().items() if not n.endswith("_proj.weight") and n != "lm_head.weight"}
    expected = {}
    for name, linear in common.quantised(model):
        pair = Fp8Quantize(quantiser).convert({f"{name}.weight": linear.weight.data})
        state |= pair
        scales = pair[f"{name}.weight_scale_inv"]
        expected[f"{name}.weight"] = Fp8Dequantize(quantiser)._dequantize_one(pair[f"{name}.weight"], scales, torch.float32)
    with tempfile.TemporaryDirectory() as out:
        config = _fp8_config(list(block), **({"scale_fmt": scale_fmt} if scale_fmt else {}))
        common.write_model(out, state, LLAMA | {"quantization_config": config})
        common.save(case, out, expected, "Fp8Quantize; Fp8Dequantize with output dtype float32", ["transformers"])


def _fp8_ragged():
    """Last blocks that are cut in both axes, and a fusion whose parts end inside a block."""
    torch.manual_seed(3)
    shapes = {"self_attn.q_a_proj": (130, 132), "self_attn.kv_a_proj_with_mqa": (20, 132)}
    state, expected = {"model.norm.weight": torch.ones(132, dtype=torch.bfloat16)}, {}
    for module, (n, k) in shapes.items():
        name = f"model.layers.0.{module}"
        state[f"{name}.weight"] = (torch.randn(n, k) * 60).clamp(-448, 448).to(torch.float8_e4m3fn)
        state[f"{name}.weight_scale_inv"] = torch.rand(-(-n // 128), -(-k // 128)) * 1e-3
    with tempfile.TemporaryDirectory() as out:
        config = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "quantization_config": _fp8_config([128, 128])}
        common.write_model(out, state, config)
        converter = FP8BlockDequantizer(targets=["re:.*proj.*"], weight_block_size=(128, 128), dtype=torch.float32)
        done = dict(state)
        converter.process(done)
        expected = {n: t for n, t in done.items() if n.endswith("proj.weight") or n.endswith("mqa.weight")}
        common.save("fp8-blocks-ragged", out, expected, "random codes and scales; FP8BlockDequantizer, dtype float32", ["compressed-tensors"])


def _fp4_experts():
    """DeepSeek-V4's experts: pairs of E2M1 in I8, a scale for each 32 columns."""
    torch.manual_seed(4)
    state, expected = {"model.norm.weight": torch.ones(64, dtype=torch.bfloat16)}, {}
    dequantise = Fp8Dequantize(_quantiser(None, None))._dequantize_one
    for e in range(3):
        for part, (n, k) in {"gate_proj": (16, 64), "up_proj": (16, 64), "down_proj": (64, 32)}.items():
            name = f"model.layers.0.mlp.experts.{e}.{part}"
            weight = torch.randint(-128, 128, (n, k // 2), dtype=torch.int8)
            scale = torch.randint(110, 140, (n, k // 32), dtype=torch.uint8).view(torch.float8_e8m0fnu)
            state |= {f"{name}.weight": weight, f"{name}.weight_scale_inv": scale}
            expected[f"{name}.weight"] = dequantise(weight, scale, torch.float32)
    with tempfile.TemporaryDirectory() as out:
        config = {"architectures": ["DeepseekV4ForCausalLM"], "quantization_config": _fp8_config([128, 128], expert_dtype="fp4", scale_fmt="ue8m0")}
        common.write_model(out, state, config)
        common.save("fp4-pairs-in-i8", out, expected, "random codes and scales; Fp8Dequantize with output dtype float32", ["transformers"])


def _gpt_oss():
    """A whole tiny gpt-oss: blocks and scales as stored, and what from_pretrained makes of them."""
    torch.manual_seed(5)
    experts, hidden, inner = 2, 32, 64
    config = GptOssConfig(
        architectures=["GptOssForCausalLM"], num_hidden_layers=1, num_local_experts=experts, hidden_size=hidden, intermediate_size=inner,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, vocab_size=32, num_experts_per_tok=1, layer_types=["full_attention"],
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    prefix = "model.layers.0.mlp.experts"
    state = {n: t for n, t in model.state_dict().items() if n not in (f"{prefix}.gate_up_proj", f"{prefix}.down_proj")}
    expected = {}
    for name, n, k in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
        blocks = torch.randint(0, 256, (experts, n, k // 32, 16), dtype=torch.uint8)
        scales = torch.randint(100, 140, (experts, n, k // 32), dtype=torch.uint8)
        state |= {f"{prefix}.{name}_blocks": blocks, f"{prefix}.{name}_scales": scales}
        expected[f"{prefix}.{name}"] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as out:
        method = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
        common.write_model(out, state, config.to_dict() | {"quantization_config": method})
        loaded = AutoModelForCausalLM.from_pretrained(out, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.bfloat16)
        for name, values in expected.items():
            whole = loaded.get_parameter(name).float()
            assert torch.equal(whole, values), f"from_pretrained has another {name} than convert_moe_packed_tensors"
        common.save("gpt-oss-mxfp4", out, expected, "convert_moe_packed_tensors in float32; from_pretrained with dequantize=True has the same", ["transformers"])
