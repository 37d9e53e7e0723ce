#!/usr/bin/env python3
"""export/ opened by the safetensors library: plain models against what was written, quantized ones
against what the format's own library made of them (tests/golden).
"""

import json

import ml_dtypes  # registers bfloat16 and the small floats with NumPy
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from harness import REPOSITORY, check, main, mounted, random_numbers, read, run, same, same_bytes, same_values

GOLDEN = REPOSITORY / "tests/golden"
# One of each family whose library loads as plain binary32 under the float model's names.
QUANTIZED = ["gptq-4bit-v2-asym", "awq-4bit-groups-of-32", "mlx-affine-4bit", "fp8-blocks", "ct-pack-4bit-group", "bnb-nf4"]


def model(scratch, rng):
    bf16 = ml_dtypes.bfloat16
    tensors = {f"l.{i}.{p}_proj.weight": rng.standard_normal((8, 12)).astype(bf16) for i in range(2) for p in "qkv"}
    tensors |= {"ids": np.arange(7), "flag": np.array([True]), "h": np.ones((3, 5), np.float16), "e": np.zeros((0, 2), np.float32)}
    (scratch / "m").mkdir()
    save_file(tensors, scratch / "m/model.safetensors", metadata={"format": "pt", "odd\nkey": "é"})
    return tensors


@check
def merged_is_what_was_written(scratch):
    tensors = model(scratch, random_numbers())
    with mounted(scratch / "m") as mount:
        path = mount / "export/model.safetensors"
        with safe_open(path, "np") as opened:
            same(opened.metadata(), {"format": "pt", "odd\nkey": "é"}, "metadata")
        found = load_file(path)
        same(sorted(found), sorted(tensors), "names")
        for name, t in tensors.items():
            same((found[name].dtype, found[name].shape), (t.dtype, t.shape), name)
            same_bytes(found[name].tobytes(), t.tobytes(), name)
        same((int.from_bytes(read(path)[:8], "little") + 8) % 4096, 0, "data alignment")
        run("cp", path, scratch / "copy")
        same_bytes(read(scratch / "copy"), read(path), "a copy")


@check
def floats_and_fused_and_manifest(scratch):
    tensors = model(scratch, random_numbers())
    with mounted(scratch / "m") as mount:
        floats = load_file(mount / "export/model-f32.safetensors")
        for name, t in tensors.items():
            wide = t.dtype not in (np.int64, np.bool_)
            same_bytes(floats[name].tobytes(), (t.astype(np.float32) if wide else t).tobytes(), name)
        fused = load_file(mount / "export/model-fused.safetensors")
        same(sorted(fused), ["e", "flag", "h", "ids", "l.0.qkv_proj.weight", "l.1.qkv_proj.weight"], "names")
        joined = np.concatenate([tensors[f"l.1.{p}_proj.weight"] for p in "qkv"])
        same_bytes(fused["l.1.qkv_proj.weight"].tobytes(), joined.tobytes(), "qkv")
        manifest = json.loads(read(mount / "export/model_weights.json"))["tensors"]
        data = read(mount / "export/model_weights.bin")
        for name, t in tensors.items():
            place = manifest[name]
            same(place["offset"] % 64, 0, f"{name}: alignment")
            same_bytes(data[place["offset"] : place["offset"] + place["size"]], t.tobytes(), name)


@check
def quantized_models_as_floats():
    for name in QUANTIZED:
        expected = load_file(GOLDEN / name / "expected.safetensors")
        with mounted(GOLDEN / name / "model") as mount:
            floats = load_file(mount / "export/model-f32.safetensors")
            common = sorted(set(floats) & set(expected))
            assert common, f"{name}: {sorted(floats)} and {sorted(expected)} have nothing in common"
            for tensor in common:
                same(floats[tensor].dtype, np.dtype("f4"), f"{name}: {tensor}")
                same_values(floats[tensor].tobytes(), expected[tensor], f"{name}: {tensor}")
            halves = load_file(mount / "export/model-bf16.safetensors")
            same(sorted(halves), sorted(floats), f"{name}: names of the BF16 checkpoint")
            rounded = {t: v for t, v in halves.items() if v.dtype == ml_dtypes.bfloat16}
            assert rounded, f"{name}: nothing is BF16"
            for tensor, values in rounded.items():
                same_bytes(values.tobytes(), floats[tensor].astype(ml_dtypes.bfloat16).tobytes(), f"{name}: {tensor} as BF16")
            left = [t for t in floats if t.endswith(("qweight", "scales", "qzeros", "g_idx", "_packed", "absmax"))]
            same(left, [], f"{name}: what a float model does not have")


if __name__ == "__main__":
    main()
