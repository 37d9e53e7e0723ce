"""GPTQ by AutoGPTQ, as files of 2023 have it: no config that says v1, no g_idx in one case."""

import tempfile

import torch
from auto_gptq import BaseQuantizeConfig
from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear as WithGroupIndex
from auto_gptq.nn_modules.qlinear.qlinear_cuda_old import QuantLinear as WithoutGroupIndex
from auto_gptq.quantization.quantizer import Quantizer

from . import common

HOW = "QuantLinear.pack(); scales.float(); forward() of the identity matrix, on its CPU path"


def make():
    for case, kernel, bits in (
        ("auto-gptq-4bit-act-order", WithGroupIndex, 4),
        ("auto-gptq-4bit-no-g-idx", WithoutGroupIndex, 4),
        ("auto-gptq-3bit-no-g-idx", WithoutGroupIndex, 3),
        ("auto-gptq-8bit", WithGroupIndex, 8),
    ):
        _case(case, kernel, bits)


def _case(case, kernel, bits, group_size=32):
    act_order = kernel is WithGroupIndex
    model = common.tiny_llama(dtype=torch.float16)
    state = {n: t for n, t in model.state_dict().items() if not n.endswith("_proj.weight") and n != "lm_head.weight"}
    expected = {}
    for name, linear in common.quantised(model):
        quantiser = Quantizer()
        quantiser.configure(bits, perchannel=True, sym=False)
        weight, scales, zeros = linear.weight.data.float(), [], []
        order = torch.randperm(weight.shape[1]) if act_order else torch.arange(weight.shape[1])
        g_idx = torch.empty_like(order)
        g_idx[order] = torch.arange(weight.shape[1]) // group_size
        for g in range(weight.shape[1] // group_size):
            quantiser.find_params(weight[:, g_idx == g], weight=True)
            scales.append(quantiser.scale)
            # A zero point of 0 is the case that AutoGPTQ's packing destroys: its peers read it differently.
            zeros.append(quantiser.zero.clamp(min=1))
        packed = kernel(bits, group_size, linear.in_features, linear.out_features, bias=False)
        linear = linear.float()
        packed.pack(linear, torch.cat(scales, 1), torch.cat(zeros, 1), g_idx.to(torch.int32))
        packed.scales = packed.scales.half()
        state |= {f"{name}.{n}": t for n, t in packed.state_dict().items() if n in _stored(act_order)}
        packed.scales = packed.scales.float()
        expected[f"{name}.weight"] = packed(torch.eye(linear.in_features)).T
    with tempfile.TemporaryDirectory() as out:
        common.write_model(out, state, {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True})
        BaseQuantizeConfig(bits=bits, group_size=group_size, desc_act=act_order, sym=False).save_pretrained(out)
        # An identity matrix adds zeros, so the sign of a zero is lost.
        common.save(case, out, expected, HOW, ["auto-gptq", "transformers"], compare="values")


def _stored(act_order):
    return ("qweight", "qzeros", "scales", "g_idx") if act_order else ("qweight", "qzeros", "scales")
