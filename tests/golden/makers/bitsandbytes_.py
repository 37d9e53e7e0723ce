"""bitsandbytes: quantised and saved by transformers, dequantised by the library in float32."""

import tempfile

import bitsandbytes as bnb
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from . import common

CASES = {
    "bnb-nf4-nested": dict(bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "bnb-nf4": dict(bnb_4bit_quant_type="nf4"),
    "bnb-fp4-stored-as-bf16": dict(bnb_4bit_quant_type="fp4", bnb_4bit_quant_storage=torch.bfloat16),
}
FOUR_HOW = "from_pretrained with BitsAndBytesConfig on the CPU, save_pretrained; the library's Python dequantize_4bit in float32"
EIGHT_HOW = "from_pretrained with BitsAndBytesConfig on the CPU, save_pretrained; int8_vectorwise_dequant"


def make():
    for case, settings in CASES.items():
        config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16, **settings)
        _case(case, config, _four_bits, FOUR_HOW, intermediate=36)
    _case("bnb-int8", BitsAndBytesConfig(load_in_8bit=True), _eight_bits, EIGHT_HOW)


def _case(case, config, dequantise, how, **size):
    with tempfile.TemporaryDirectory() as scratch:
        common.tiny_llama(**size).save_pretrained(f"{scratch}/base")
        model = AutoModelForCausalLM.from_pretrained(f"{scratch}/base", quantization_config=config, device_map="cpu")
        model.save_pretrained(f"{scratch}/out")
        expected = {f"{name}.weight": dequantise(module.weight) for name, module in common.quantised(model)}
        common.save(case, f"{scratch}/out", expected, how, ["bitsandbytes", "transformers"])


def _four_bits(weight):
    state = weight.quant_state
    absmax = state.absmax
    if state.nested:
        absmax = bnb.functional.dequantize_blockwise(absmax, state.state2) + state.offset
    packed = weight.data.view(torch.uint8).reshape(-1)
    return _dequantize_4bit_compute(packed, absmax.float(), state.code, state.blocksize, state.shape, torch.float32)


def _eight_bits(weight):
    return bnb.functional.int8_vectorwise_dequant(weight.CB if weight.CB is not None else weight.data, weight.SCB)
