"""AWQ by AutoAWQ: its GEMM packing, its own dequantize_gemm."""

import json
import pathlib
import tempfile

import torch
from awq.models._config import AwqConfig
from awq.modules.linear.gemm import WQLinear_GEMM
from awq.utils.packing_utils import dequantize_gemm

from . import common

HOW = "WQLinear_GEMM.from_linear; dequantize_gemm(qweight, qzeros, scales.float(), 4, group_size), transposed"


def make():
    for case, group_size in (("awq-4bit-groups-of-32", 32), ("awq-4bit-one-group", -1)):
        _case(case, group_size)


def _case(case, group_size):
    model = common.tiny_llama(dtype=torch.float16)
    state = {n: t for n, t in model.state_dict().items() if not n.endswith("_proj.weight") and n != "lm_head.weight"}
    expected = {}
    for name, linear in common.quantised(model):
        n, k = linear.weight.shape
        size = k if group_size == -1 else group_size
        groups = linear.weight.data.float().reshape(n, k // size, size)
        low, high = groups.amin(2), groups.amax(2)
        scales = (high - low).clamp(min=1e-5) / 15
        zeros = (-torch.round(low / scales)).clamp(0, 15)
        packed = WQLinear_GEMM.from_linear(linear, 4, size, scales=scales.T.contiguous(), zeros=zeros.T.contiguous())
        state |= {f"{name}.{s}": getattr(packed, s) for s in ("qweight", "qzeros", "scales")}
        expected[f"{name}.weight"] = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales.float(), 4, size).T
    with tempfile.TemporaryDirectory() as out:
        config = AwqConfig(w_bit=4, q_group_size=group_size, zero_point=True, version="gemm")
        llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True}
        common.write_model(out, state, llama | {"quantization_config": config.to_transformers_dict()})
        (pathlib.Path(out) / "quant_config.json").write_text(json.dumps(config.to_dict(), indent=2) + "\n")
        common.save(case, out, expected, HOW, ["autoawq"])
