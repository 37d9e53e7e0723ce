"""NVIDIA ModelOpt: quantised on the CPU and exported for Hugging Face."""

import copy
import tempfile

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import NVFP4QTensor
from safetensors.torch import load_file

from . import common

HOW = "mtq.quantize and export_hf_checkpoint; "
CASES = {
    "modelopt-fp8": ("FP8_DEFAULT_CFG", "weight.float() * weight_scale, as FP8QTensor.dequantize does"),
    "modelopt-fp8-per-channel": ("FP8_PER_CHANNEL_PER_TOKEN_CFG", "weight.float() * weight_scale[:, None]"),
    "modelopt-fp8-blocks": ("FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG", "weight.float() * weight_scale by blocks of 32 x 32"),
    "modelopt-nvfp4": ("NVFP4_DEFAULT_CFG", "NVFP4QTensor(…).dequantize(torch.float32, scale, double_scale, block_sizes)"),
    "modelopt-mxfp8": ("MXFP8_DEFAULT_CFG", "weight.float() * 2^(weight_scale - 127)"),
    "modelopt-int8": ("INT8_WEIGHT_ONLY_CFG", "weight.float() * weight_scale[:, None]"),
}


def make():
    for case, (config, how) in CASES.items():
        torch.manual_seed(2)
        model, ids = common.tiny_llama(), torch.randint(0, 32, (4, 32))
        config = _smaller_blocks(getattr(mtq, config), case)
        model = mtq.quantize(model, config, lambda m: m(ids))
        with tempfile.TemporaryDirectory() as out:
            export_hf_checkpoint(model, export_dir=out)
            state = load_file(f"{out}/model.safetensors")
            expected = {f"{n}.weight": _dequantise(state, n, case) for n in common.COMPARED}
            # ModelOpt's own table has +0 for E2M1's code 8, which is -0.
            compare = "values" if "nvfp4" in case else "bits"
            common.save(case, out, expected, HOW + how, ["nvidia-modelopt", "transformers"], compare)


def _smaller_blocks(config, case):
    """Blocks of 32 x 32 for 128 x 128: several in a tiny matrix."""
    config = copy.deepcopy(config)
    if case == "modelopt-fp8-blocks":
        config["quant_cfg"][1]["cfg"]["block_sizes"] = {-2: 32, -1: 32}
    return config


def _dequantise(state, name, case):
    weight, scale = state[f"{name}.weight"], state[f"{name}.weight_scale"]
    if "nvfp4" in case:
        shape = (weight.shape[0], weight.shape[1] * 2)
        tensor = NVFP4QTensor(shape, torch.float32, weight)
        return tensor.dequantize(torch.float32, scale=scale, double_scale=state[f"{name}.weight_scale_2"], block_sizes={-1: 16})
    weight = weight.float()
    if scale.dtype == torch.uint8:
        scale = torch.exp2(scale.float() - 127).repeat_interleave(32, 1)
    elif scale.ndim == 1:
        scale = scale[:, None]
    elif scale.ndim == 4:
        scale = scale.squeeze(3).squeeze(1).repeat_interleave(32, 0).repeat_interleave(32, 1)
    return weight * scale
