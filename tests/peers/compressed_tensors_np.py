#!/usr/bin/env python3
"""Holds stfs against NumPy and ml_dtypes for compressed-tensors' packed weights.

Fresh random layers are written by the safetensors library and computed here from the published
formulas, by code that shares nothing with stfs; `stfs cat --view f32` must give the same bits (any
NaN for a NaN).

    [SEED=N] python3 tests/peers/compressed_tensors_np.py [CHECK…]
"""

import json

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from harness import absent, check, main, random_numbers, same_bytes, same_f32, stfs

MODELS = 10  # of each kind

rng = random_numbers()
np.seterr(all="ignore")

F32 = np.float32
SCALES = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
}


def dense(codes, bits):
    """One row of codes as 32-bit words: one long little-endian integer."""
    row = 0
    for k, code in enumerate(codes):
        row |= int(code) << (k * bits)
    words = -(-len(codes) * bits // 32)
    return np.frombuffer(row.to_bytes(words * 4, "little"), "<i4")


def padded(codes, bits):
    """As many whole codes as a word holds; its top bits stay zero."""
    per = 32 // bits
    words = [dense(codes[i : i + per], bits) for i in range(0, len(codes), per)]
    return np.concatenate(words)


def any_scales(rng, dtype, shape):
    """Scales of every kind: ordinary ones, and bit patterns at random (NaN, Inf, subnormals)."""
    if rng.random() < 0.7:
        return rng.normal(0, 0.02, shape).astype(SCALES[dtype])
    dtype = np.dtype(SCALES[dtype])
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).reshape(shape)


def integers(rng, fixed=None):
    """A pack-quantized layer: its tensors, its group of the config, its values."""
    pick = lambda *options: options[rng.integers(len(options))]
    bits = int(rng.integers(1, 9))
    strategy = pick("tensor", "channel", "group", "group")
    size = pick(1, 3, 8, 16, 32, 40, 128)
    groups = int(rng.integers(2, 9)) if strategy == "group" else 1
    n, k = int(rng.integers(1, 70)), size * groups
    zeros = bool(rng.integers(2))
    dtype = pick(*SCALES)
    pack = pick(dense, dense, padded)
    if fixed:
        n, bits, strategy, size, groups, zeros, dtype, pack = fixed
        k = size * groups
    # Where both take as many words, dense is meant.
    if -(-k // (32 // bits)) == -(-k * bits // 32):
        pack = dense
    offset = 1 << (bits - 1)
    q = rng.integers(0, 2 * offset, (n, k))
    shape = (1,) if strategy == "tensor" else (n, groups)
    scale = any_scales(rng, dtype, shape)
    tensors = {
        "weight_packed": np.stack([pack(row, bits) for row in q]),
        "weight_scale": scale,
        "weight_shape": np.array([n, k], pick(np.int64, np.int32)),
    }
    z = rng.integers(0, 2 * offset, shape) if zeros else np.full(shape, offset)
    if zeros and strategy == "tensor":
        tensors["weight_zero_point"] = (z - offset).astype(np.int8)
    elif zeros:
        columns = [pack(column, bits) for column in z.T]
        tensors["weight_zero_point"] = np.stack(columns, axis=1)
    group_of = np.arange(k) // (k // groups)
    order = rng.integers(4) if strategy == "group" and not fixed else 3
    if order < 2:
        index = rng.integers(0, groups, k).astype(np.int32)
        if order == 0:
            index[rng.integers(k)] = -1
        else:
            group_of = index
        tensors["weight_g_idx"] = index
    weights = {"num_bits": bits, "type": "int", "symmetric": not zeros, "strategy": strategy}
    if strategy == "group":
        weights["group_size"] = size
    s, zero = scale.astype(F32), z.astype(np.int64)
    if strategy == "tensor":
        s, zero = np.broadcast_to(s, (n, k)), np.broadcast_to(zero, (n, k))
    else:
        s, zero = s[:, group_of], zero[:, group_of]
    return tensors, ("pack-quantized", weights), (q - zero).astype(F32) * s


def nibbles(codes):
    return (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)


def nvfp4(rng):
    n, k = int(rng.integers(1, 40)), 16 * int(rng.integers(1, 12))
    codes = rng.integers(0, 16, (n, k), dtype=np.uint8)
    scale = rng.integers(0, 256, (n, k // 16), dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    world = np.array([rng.uniform(0.1, 20000)], F32)
    tensors = {
        "weight_packed": nibbles(codes),
        "weight_scale": scale,
        "weight_global_scale": world,
    }
    s = scale.astype(F32) / world
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(F32) * np.repeat(s, 16, axis=1)
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    return tensors, ("nvfp4-pack-quantized", weights), values


def mx(rng, bits):
    n, k = int(rng.integers(1, 40)), 32 * int(rng.integers(1, 12))
    codes = rng.integers(0, 1 << bits, (n, k), dtype=np.uint8)
    exponents = rng.integers(0, 256, (n, k // 32), dtype=np.uint8)
    if bits == 4:
        packed, values = nibbles(codes), codes.view(ml_dtypes.float4_e2m1fn)
    else:
        rows = [dense(row, 6).view(np.uint8)[: k * 6 // 8] for row in codes]
        packed, values = np.stack(rows), codes.view(ml_dtypes.float6_e2m3fn)
    s = exponents.view(ml_dtypes.float8_e8m0fnu).astype(F32)
    tensors = {"weight_packed": packed, "weight_scale": exponents}
    weights = {"num_bits": bits, "type": "float", "strategy": "group", "group_size": 32}
    values = values.astype(F32) * np.repeat(s, 32, axis=1)
    return tensors, (f"mxfp{bits}-pack-quantized", weights), values


def write(path, tensors):
    tensors = {name: np.ascontiguousarray(t) for name, t in tensors.items()}
    save_file(tensors, path / "model.safetensors")


def config(groups):
    formats = {form for form, _ in groups.values()}
    form = formats.pop() if len(formats) == 1 else "mixed-precision"
    entries = {
        f"group_{i}": {"targets": [module], "format": own, "weights": weights}
        for i, (module, (own, weights)) in enumerate(groups.items())
    }
    body = {"quant_method": "compressed-tensors", "format": form, "config_groups": entries}
    return {"quantization_config": body}


def several(function):
    """A check that is run on several models, each in a directory of its own."""

    def run(scratch):
        for i in range(MODELS):
            directory = scratch / str(i)
            directory.mkdir()
            function(directory)

    run.__name__ = function.__name__
    return check(run)


def mixed(root, with_config):
    """One model of a layer of each kind."""
    kinds = [integers] * 6 + [nvfp4, lambda r: mx(r, 4), lambda r: mx(r, 6)]
    tensors, groups, values = {}, {}, {}
    for i, kind in enumerate(kinds):
        layer, group, want = kind(rng)
        module = f"model.layers.{i}.proj"
        if not with_config and kind is integers:
            # Without a config, only widths that their words tell.
            layer, group, want = integers(rng, (17, 4, "group", 32, 6, True, "bfloat16", dense))
        tensors |= {f"{module}.{name}": t for name, t in layer.items()}
        groups[module], values[module] = group, want
    write(root, tensors)
    if with_config:
        (root / "config.json").write_text(json.dumps(config(groups)))
    for module, want in values.items():
        same_f32(root, f"{module}.weight", want, f"{groups[module]}")


@several
def every_kind_of_layer(root):
    mixed(root, True)


@several
def every_kind_of_layer_without_a_config(root):
    mixed(root, False)


@several
def words_scales_and_zero_points_join(root):
    """Query, key and value of one layer: words, scales and zero points join, and so do values."""
    pack = (dense, padded)[rng.integers(2)]
    layers = [
        integers(rng, (n, 3, "group", 32, 5, True, "float16", pack))
        for n in ((320, 320, 64) if pack is dense else (320, 320, 61))
    ]
    names = ["q_proj", "k_proj", "v_proj"]
    prefix = "model.layers.0.self_attn."
    write(root, {f"{prefix}{n}.{s}": t for n, l in zip(names, layers) for s, t in l[0].items()})
    groups = {f"{prefix}{n}": l[1] for n, l in zip(names, layers)}
    (root / "config.json").write_text(json.dumps(config(groups)))
    same_f32(root, f"{prefix}qkv_proj.weight", np.concatenate([l[2] for l in layers]))
    for suffix in ["weight_packed", "weight_scale", "weight_zero_point"]:
        parts = np.concatenate([l[0][suffix] for l in layers])
        same_bytes(stfs("cat", root, f"{prefix}qkv_proj.{suffix}"), parts.tobytes(), suffix)
    absent(root, f"{prefix}qkv_proj.weight_shape")


@several
def of_nvfp4_only_values_join(root):
    """Its global scales do not."""
    layers = [nvfp4(rng)]
    while len(layers) < 2:
        other = nvfp4(rng)
        if other[2].shape[1] == layers[0][2].shape[1]:
            layers.append(other)
    names = ["mlp.gate_proj", "mlp.up_proj"]
    write(root, {f"{n}.{s}": t for n, l in zip(names, layers) for s, t in l[0].items()})
    same_f32(root, "mlp.gate_up_proj.weight", np.concatenate([l[2] for l in layers]))
    for suffix in ["weight_packed", "weight_scale", "weight_global_scale"]:
        absent(root, f"mlp.gate_up_proj.{suffix}")


if __name__ == "__main__":
    main()
