"""MLX: a tiny Llama converted by mlx-lm on the CPU, dequantised by MLX in float32."""

import pathlib
import tempfile

import mlx.core as mx
import numpy as np
import torch
from mlx_lm import convert

from . import common

CASES = {
    "mlx-affine-4bit": dict(q_bits=4, q_group_size=32),
    "mlx-affine-mixed-3-6": dict(quant_predicate="mixed_3_6", q_group_size=64),
    "mlx-mxfp4": dict(q_mode="mxfp4", q_bits=4, q_group_size=32),
}
HOW = "mlx_lm.convert; mx.dequantize on the CPU, scales and biases as float32"


def make():
    for case, settings in CASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            common.tiny_llama(intermediate=64).save_pretrained(f"{scratch}/base")
            _tokenizer(f"{scratch}/base")
            convert(f"{scratch}/base", f"{scratch}/out", quantize=True, **settings)
            expected = _expected(pathlib.Path(f"{scratch}/out"), settings)
            common.save(case, f"{scratch}/out", expected, HOW, ["mlx", "mlx-lm"])


def _tokenizer(directory):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(directory)


def _expected(out, settings):
    state, expected = mx.load(str(out / "model.safetensors")), {}
    for name in [*common.COMPARED[:3], "model.embed_tokens"]:
        words, scales, biases = (state.get(f"{name}.{s}") for s in ("weight", "scales", "biases"))
        if scales is None:
            continue
        with mx.stream(mx.cpu):
            if biases is None:
                mode, size, bits = settings["q_mode"], settings["q_group_size"], settings["q_bits"]
                values = mx.dequantize(words, scales, group_size=size, bits=bits, mode=mode, dtype=mx.float32)
            else:
                size = settings["q_group_size"]
                bits = 32 * words.shape[-1] // (scales.shape[-1] * size)
                values = mx.dequantize(words, scales.astype(mx.float32), biases.astype(mx.float32), group_size=size, bits=bits)
            expected[f"{name}.weight"] = torch.from_numpy(np.array(values))
    return expected
