"""compressed-tensors: the steps that LLM Compressor takes, and the library's own decompression."""

import tempfile

import torch
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme, apply_quantization_config
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from compressed_tensors.utils import get_direct_state_dict

from . import common

HOW = "ModelCompressor.compress_model, save_pretrained, update_config; decompress() of each module with its scales as float32"
NVFP4_HOW = "ModelCompressor.compress_model, save_pretrained, update_config; unpack_fp4_from_uint8 and dequantize in float32"
INT = dict(type="int", symmetric=True)
CASES = {
    "ct-pack-4bit-group": dict(INT, num_bits=4, strategy="group", group_size=32),
    "ct-pack-4bit-group-asym": dict(INT, num_bits=4, strategy="group", group_size=32, symmetric=False),
    "ct-pack-8bit-channel": dict(INT, num_bits=8, strategy="channel"),
    "ct-pack-3bit-group-asym": dict(INT, num_bits=3, strategy="group", group_size=32, symmetric=False),
    "ct-pack-5bit-channel-asym": dict(INT, num_bits=5, strategy="channel", symmetric=False),
    "ct-pack-6bit-tensor": dict(INT, num_bits=6, strategy="tensor"),
    "ct-int8-channel": dict(INT, num_bits=8, strategy="channel", format="int-quantized"),
    "ct-int8-group-asym-naive": dict(INT, num_bits=8, strategy="group", group_size=32, symmetric=False, format="naive-quantized"),
    "ct-fp8-channel": dict(type="float", num_bits=8, strategy="channel", format="float-quantized"),
    "ct-fp8-block": dict(type="float", num_bits=8, strategy="block", block_structure=[32, 16], format="float-quantized"),
    "ct-nvfp4": dict(type="float", num_bits=4, strategy="tensor_group", group_size=16, format="nvfp4-pack-quantized"),
    "ct-mxfp4": dict(type="float", num_bits=4, strategy="group", group_size=32, scale_dtype=torch.uint8, format="mxfp4-pack-quantized"),
    "ct-mxfp6": dict(type="float", num_bits=6, strategy="group", group_size=32, scale_dtype=torch.uint8, format="mxfp6-pack-quantized"),
    "ct-mxfp8": dict(type="float", num_bits=8, strategy="group", group_size=32, scale_dtype=torch.uint8, format="mxfp8-quantized"),
}


def make():
    for case, settings in CASES.items():
        settings = dict(settings)
        form = settings.pop("format", "pack-quantized")
        with tempfile.TemporaryDirectory() as out:
            expected = _pipeline(settings, form, out)
            how = NVFP4_HOW if form.startswith("nvfp4") else HOW
            common.save(case, out, expected, how, ["compressed-tensors", "transformers"])


def _pipeline(settings, form, out):
    model = common.tiny_llama(dtype=torch.float32 if form.startswith("mx") else torch.bfloat16)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**settings), format=form)
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"], format=form))
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is not None:
            _calibrate(module)
    compressor = ModelCompressor.from_pretrained_model(model, form)
    compressor.compress_model(model)
    model.save_pretrained(out)
    compressor.update_config(out)
    return {f"{name}.weight": _decompress(module, form) for name, module in common.quantised(model)}


def _calibrate(module):
    """Minimum and maximum of each group, as an observer finds them, and the library's own qparams."""
    args, weight = module.quantization_scheme.weights, module.weight.data.float()
    n, k = weight.shape
    if args.strategy == "tensor":
        low, high = weight.amin().reshape(1), weight.amax().reshape(1)
    elif args.strategy == "channel":
        low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    elif args.strategy == "block":
        rows, columns = args.block_structure
        blocks = weight.reshape(n // rows, rows, k // columns, columns)
        low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
    else:
        groups = weight.reshape(n, k // args.group_size, args.group_size)
        low, high = groups.amin(2), groups.amax(2)
    overall = None
    if args.strategy == "tensor_group":
        overall = generate_gparam(weight.amin(), weight.amax()).reshape(1)
        module.weight_global_scale.data.copy_(overall)
    scale, zero_point = calculate_qparams(low, high, args, global_scale=overall)
    module.weight_scale.data = scale.to(module.weight_scale.dtype).reshape(module.weight_scale.shape)
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data = zero_point.to(module.weight_zero_point.dtype).reshape(module.weight_zero_point.shape)


def _decompress(module, form):
    state, scheme = dict(get_direct_state_dict(module)), module.quantization_scheme
    if form.startswith("nvfp4"):
        rows, width = state["weight_packed"].shape
        return dequantize(
            x_q=unpack_fp4_from_uint8(state["weight_packed"], rows, 2 * width, dtype=torch.float32),
            scale=state["weight_scale"].float(), args=scheme.weights,
            global_scale=state["weight_global_scale"], dtype=torch.float32,
        )  # fmt: skip
    if state["weight_scale"].is_floating_point():
        state["weight_scale"] = state["weight_scale"].float()
    return BaseCompressor.get_value_from_registry(form).decompress(state, scheme)["weight"]
