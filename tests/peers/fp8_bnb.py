#!/usr/bin/env python3
"""stfs against NumPy and ml_dtypes: FP8, FP4 pairs, int8, ModelOpt, bitsandbytes; bit for bit.

    [SEED=N] python3 tests/peers/fp8_bnb.py [CHECK…]

Fresh random layers are written by the safetensors library and computed here from the published
formulas, element by element or by NumPy's broadcasting, by code that shares nothing with stfs. Any
NaN equals any other.
"""

import json

import numpy as np

from harness import STFS, check, main, random_numbers, run, same_bytes, same_values, stfs
from harness.models import DTYPES, Tensor, values, write

rng = random_numbers()
np.seterr(all="ignore")

F32 = np.float32
F8 = ["F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"]
NAMES = ["weight_scale_inv", "weight_scale", "scale", "qscale_weight"]


def pick(*options):
    return options[rng.integers(len(options))]


def size(low, high):
    return int(rng.integers(low, high))


def tensor(dtype, shape, finite=None):
    """Random bits as a tensor of that dtype, or the given numbers."""
    count = int(np.prod(shape, dtype=object))
    if finite is None:
        return Tensor(dtype, shape, rng.bytes(count * DTYPES[dtype][0] // 8))
    return Tensor(dtype, shape, np.asarray(finite).astype(DTYPES[dtype][2]).tobytes())


def floats(dtype, shape):
    """Scales: ordinary ones, or bit patterns at random (NaN, Inf, subnormals)."""
    usual = rng.normal(0, 0.02, shape) if rng.random() < 0.7 else None
    return tensor(dtype, shape, None if dtype in ("U8", "F8_E8M0") else usual)


def scale_values(t):
    """A scale's numbers, in its own shape: U8 means E8M0 exponents."""
    dtype = "F8_E8M0" if t.dtype == "U8" else t.dtype
    return values(dtype, t.data).reshape(t.shape)


def spread(grid, shape, block):
    """Each block's number at each of its values: [R, C] to [N, K], the last blocks cut."""
    wide = np.repeat(np.repeat(grid, block[0], axis=0), block[1], axis=1)
    return wide[: shape[0], : shape[1]]


def save(directory, tensors, config=None):
    write(directory / "model.safetensors", tensors)
    (directory / "config.json").unlink(missing_ok=True)
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))


def compare(directory, name, expected, what=""):
    found = stfs("cat", directory, name, "--view", "f32")
    same_values(found, expected, f"{name} {what}")


def shape_of(directory, name):
    meta = json.loads(stfs("cat", directory, name, "--view", "meta"))
    return meta["views"].get("f32", {}).get("shape"), meta


def fp8_scale(form, n, k, block):
    """A scale's shape, its block, and whether the config must declare it."""
    if form == "tensor":
        return pick([], [1], [1, 1]), (n, k), None
    if form == "rows":
        return pick([n], [n, 1]), (1, k), None
    if form == "groups":
        return [n, k // 32], (1, 32), None
    declared = None if form in ("usual", "spaced") else block
    bm, bn = declared or (128, 128)
    r, c = -(-n // bm), -(-k // bn)
    shape = [r, 1, c, 1] if form == "spaced" else [r, c]
    return shape, (bm, bn), declared


def fp8_layer(form, block, code=None):
    """One FP8 layer: weight, scale, what it comes to, whether its block must be declared."""
    n, k = size(2, 400), size(2, 400)
    if form == "groups":
        k = 32 * size(5, 12)
    shape, used, declared = fp8_scale(form, n, k, block)
    weight = tensor(code or pick(*F8), [n, k])
    scale = floats(pick("F32", "BF16", "F16", "F8_E8M0", "U8"), shape)
    s = scale_values(scale)
    s = s.reshape(-1, 1) if form == "rows" else s
    s = s.reshape(1, 1) if form == "tensor" else s
    s = s[:, 0, :, 0] if form == "spaced" else s
    return weight, scale, weight.f32().reshape(n, k) * spread(s, (n, k), used), declared


@check
def fp8_of_every_granularity(directory):
    for case in range(8):
        block = (size(2, 200), size(1, 200))
        tensors, expected = {}, {}
        # A declared block would take the usual ones' place, so each kind has a model of its own.
        forms = ["declared"] if case % 2 else ["tensor", "rows", "groups", "usual", "spaced"]
        for i, form in enumerate(forms * 3):
            weight, scale, want, _ = fp8_layer(form, block)
            tensors[f"l.{i}.weight"] = weight
            tensors[f"l.{i}.{pick(*NAMES)}"] = scale
            expected[f"l.{i}.weight"] = (want, (form, weight.shape, scale.dtype, scale.shape))
        config = {"quant_method": "fp8", "weight_block_size": list(block) if case % 2 else None}
        save(directory, tensors, {"quantization_config": config})
        for name, (want, what) in expected.items():
            compare(directory, name, want, what)
            assert shape_of(directory, name)[0] == list(want.shape)


@check
def fp8_blocks_are_128_and_8_of_136_rows(directory):
    weight = tensor("F8_E4M3", [136, 300], rng.normal(0, 50, (136, 300)))
    scale = tensor("F32", [2, 3], rng.normal(0, 1, (2, 3)))
    for config in [None, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}]:
        save(directory, {"w.weight": weight, "w.weight_scale_inv": scale}, config)
        want = weight.f32().reshape(136, 300).copy()
        s = scale_values(scale)
        for i in range(136):
            for j in range(300):
                want[i, j] *= s[i // 128, j // 128]
        compare(directory, "w.weight", want)


@check
def fp8_experts_stacked_in_one_tensor(directory):
    for _ in range(6):
        e, n, k = size(1, 5), size(2, 300), size(2, 300)
        grid = pick([-(-n // 128), -(-k // 128)], [1, 1], [n, 1])
        weight, scale = tensor("F8_E4M3", [e, n, k]), floats(pick("F32", "BF16", "U8"), [e, *grid])
        block = {(1, 1): (n, k), (n, 1): (1, k)}.get(tuple(grid), (128, 128))
        name = pick("m.experts.gate_up_proj", "m.experts.down_proj", "m.w.weight")
        save(directory, {name: weight, f"{name}_scale_inv": scale}, {"quantization_config": {"quant_method": "fp8"}})
        codes, s = weight.f32().reshape(e, n, k), scale_values(scale)
        want = np.stack([codes[i] * spread(s[i], (n, k), block) for i in range(e)])
        compare(directory, name, want, (weight.shape, scale.shape))


@check
def fp4_pairs_in_i8(directory):
    for _ in range(6):
        lead, groups = pick([size(1, 60)], [size(1, 4), size(1, 30)]), size(1, 9)
        weight = tensor("I8", [*lead, 16 * groups])
        scale = floats(pick("F8_E8M0", "F32", "U8"), [*lead, groups])
        name = "m.experts.gate_up_proj" if len(lead) == 2 else "m.experts.0.w1.weight"
        suffix = f"{name}_scale_inv" if len(lead) == 2 else pick(f"{name}_scale_inv", "m.experts.0.w1.scale")
        config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
        save(directory, {name: weight, suffix: scale}, {"quantization_config": config, "expert_dtype": "fp4"})
        codes = values("F4", weight.data).reshape(*lead, 32 * groups)
        compare(directory, name, codes * np.repeat(scale_values(scale), 32, axis=-1))
        assert shape_of(directory, name)[0] == [*lead, 32 * groups]
        # In a model that is not FP8 they are integers.
        save(directory, {name: weight, suffix: scale}, {})
        compare(directory, name, weight.f32())


@check
def int8_with_and_without_zero_points(directory):
    for _ in range(12):
        n, groups, per = size(2, 200), size(2, 9), size(2, 40)
        k = groups * per
        form = pick("tensor", "rows", "groups")
        shape = {"tensor": pick([], [1]), "rows": pick([n], [n, 1]), "groups": [n, groups]}[form]
        if form == "groups" and [n, groups] == [-(-n // 128), -(-k // 128)]:
            continue
        weight, scale = tensor("I8", [n, k]), floats(pick("F32", "BF16", "F16"), shape)
        tensors = {"w.weight": weight, "w.weight_scale": scale}
        q, s = weight.f32().reshape(n, k), scale_values(scale)
        zero = np.zeros(shape, F32)
        asymmetric = bool(rng.integers(2))
        if asymmetric:
            tensors["w.weight_zero_point"] = tensor("I8", shape)
            zero = tensors["w.weight_zero_point"].f32().reshape(shape)
        block = {"tensor": (n, k), "rows": (1, k), "groups": (1, per)}[form]
        grid = {"tensor": (1, 1), "rows": (n, 1), "groups": (n, groups)}[form]
        wide = [spread(t.reshape(grid), (n, k), block) for t in (zero, s)]
        weights = {"num_bits": 8, "type": "int", "symmetric": not asymmetric}
        config = {
            "quant_method": "compressed-tensors",
            "format": pick("int-quantized", "naive-quantized"),
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        }
        save(directory, tensors, pick(None, {"quantization_config": config}))
        compare(directory, "w.weight", (q - wide[0]) * wide[1], (form, asymmetric, scale.dtype))


def four_bit_pairs(nvfp4, lead, groups):
    """ModelOpt's U8 pairs: tensors of the module `w`, and their values."""
    per = 16 if nvfp4 else 32
    weight = tensor("U8", [*lead, groups * per // 2])
    scale = tensor("F8_E4M3" if nvfp4 else pick("U8", "F8_E8M0"), [*lead, groups])
    tensors = {"w.weight": weight, "w.weight_scale": scale}
    s = scale_values(scale)
    if nvfp4:
        second = F32(pick(rng.uniform(1e-6, 1e-2), 1e-42, 3e38, -0.5))
        tensors["w.weight_scale_2"] = Tensor("F32", pick([], [1]), second.tobytes())
        s = s * second
    codes = values("F4", weight.data).reshape(*lead, groups * per)
    return tensors, codes * np.repeat(s, per, axis=-1)


@check
def modelopt_nvfp4_and_mxfp4(directory):
    for case in range(12):
        lead = pick([size(1, 60)], [size(1, 60)], [size(1, 4), size(1, 30)])
        tensors, want = four_bit_pairs(case % 2 == 0, lead, size(1, 12))
        save(directory, tensors, None)
        compare(directory, "w.weight", want)
        shape, meta = shape_of(directory, "w.weight")
        assert shape == list(want.shape) and meta["dtype"] == "U8", meta


NF4 = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
     -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
     0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
     0.7229568362236023, 1.0], F32)  # fmt: skip
FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4], F32)
FP4 = np.concatenate([FP4, -FP4])
FP4[8] = 0.0


def four_bit(name, shape, nested, storage="U8"):
    """A bitsandbytes layer of 4 bits: its tensors, and its values in row-major order."""
    n, block = int(np.prod(shape, dtype=object)), pick(64, 64, 128, 256, 4096, 16, 7)
    nb = -(-n // block)
    codes = rng.bytes(-(-n // 2))
    kind, table = pick(("nf4", NF4), ("fp4", FP4))
    width = DTYPES[storage][0] // 8
    state = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": shape}
    tensors = {
        name: Tensor(storage, [len(codes) // width, 1], codes),
        f"{name}.quant_map": tensor("F32", [16], table),
    }
    absmax = np.abs(rng.normal(0, 0.1, nb)).astype(F32)
    if nested:
        offset = float(rng.uniform(0, 0.2))
        inner = tensor("F32", [256], rng.normal(0, 1, 256))
        outer = tensor("F32", [-(-nb // 256)], rng.uniform(0, 0.2, -(-nb // 256)))
        statistics = tensor("U8", [nb])
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        tensors |= {f"{name}.nested_absmax": outer, f"{name}.nested_quant_map": inner}
        product = inner.f32()[statistics.array()] * outer.f32()[np.arange(nb) // 256]
        absmax = product + F32(offset)
    else:
        statistics = tensor("F32", [nb], absmax)
    text = json.dumps(state).encode()
    tensors[f"{name}.absmax"] = statistics
    tensors[f"{name}.quant_state.bitsandbytes__{kind}"] = Tensor("U8", [len(text)], text)
    flat = np.frombuffer(codes, np.uint8)
    nibbles = np.stack([flat >> 4, flat & 15], axis=1).reshape(-1)[:n]  # the high one first
    return tensors, table[nibbles] * absmax[np.arange(n) // block]


@check
def bitsandbytes_four_bits(directory):
    for case in range(24):
        rank = pick(1, 2, 2, 3)
        shape = [size(1, (0, 3000, 200, 40)[rank]) for _ in range(rank)]
        storage = pick("U8", "BF16", "F16", "F32")
        if storage != "U8":
            shape[-1] *= 8
        if case == 0:
            shape, storage = [701, 1001], "U8"  # odd, and blocks that run across rows
        tensors, want = four_bit("w.weight", shape, case % 2 == 0, storage)
        save(directory, tensors)
        compare(directory, "w.weight", want, (shape, storage, case % 2 == 0))
        found, meta = shape_of(directory, "w.weight")
        assert found == shape and meta["dtype"] == storage, meta
        same_bytes(stfs("cat", directory, "w.weight"), tensors["w.weight"].data, "raw")


@check
def bitsandbytes_eight_bits(directory):
    for _ in range(8):
        n, k = size(1, 200), size(1, 300)
        weight, scale = tensor("I8", [n, k]), floats("F32", [n])
        tensors = {"w.weight": weight, "w.SCB": scale}
        if rng.integers(2):
            tensors["w.weight_format"] = Tensor("U8", [], b"\0")
        save(directory, tensors)
        scaled = weight.f32().reshape(n, k) * scale.f32()[:, None]
        compare(directory, "w.weight", scaled * np.uint32(0x3C010204).view(F32))
        tensors["w.weight_format"] = Tensor("U8", [], bytes([size(1, 4)]))
        save(directory, tensors)
        run(STFS, "cat", directory, "w.weight", "--view", "f32", expect=1)


def qkv(directory, make, rows):
    """Three layers of a model, side by side: expects their values joined, returns the tensors."""
    prefix, tensors, wanted = "model.layers.0.self_attn", {}, []
    for part, n in zip("qkv", rows):
        own, want = make(n)
        tensors |= {name.replace("w.weight", f"{prefix}.{part}_proj.weight", 1): t for name, t in own.items()}
        wanted.append(want)
    save(directory, tensors)
    name = f"{prefix}.qkv_proj.weight"
    compare(directory, name, np.concatenate(wanted))
    return json.loads(stfs("cat", directory, name, "--view", "meta")), prefix, tensors


@check
def fused_values_are_the_parts_whatever_their_scales(directory):
    def blocks(n):
        weight = tensor("F8_E4M3", [n, 300])
        scale = floats("BF16", [-(-n // 128), 3])
        values = weight.f32().reshape(n, 300) * spread(scale_values(scale), (n, 300), (128, 128))
        return {"w.weight": weight, "w.weight_scale_inv": scale}, values

    def scalar(n):
        weight, scale = tensor("F8_E4M3", [n, 64]), floats("F32", [1])
        return {"w.weight": weight, "w.weight_scale": scale}, weight.f32().reshape(n, 64) * scale.f32()

    def quarter(n):
        tensors, values = four_bit("w.weight", [n, 48], True)
        return tensors, values.reshape(n, 48)

    meta, prefix, tensors = qkv(directory, blocks, [256, 128, 130])
    assert meta["dtype"] == "F8_E4M3" and meta["origin"]["kind"] == "fused", meta
    for suffix in ["weight", "weight_scale_inv"]:
        joined = b"".join(tensors[f"{prefix}.{p}_proj.{suffix}"].data for p in "qkv")
        same_bytes(stfs("cat", directory, f"{prefix}.qkv_proj.{suffix}"), joined, suffix)
    for make, rows in [(blocks, [256, 130, 128]), (scalar, [40, 8, 8]), (quarter, [32, 9, 7])]:
        meta, prefix, _ = qkv(directory, make, rows)
        assert meta["dtype"] == "F32", meta
        for suffix in ["weight_scale_inv", "weight_scale", "weight.absmax"]:
            run(STFS, "cat", directory, f"{prefix}.qkv_proj.{suffix}", expect=1)
    meta, prefix, _ = qkv(directory, lambda n: four_bit_pairs(True, [n], 4), [16, 8, 8])
    assert meta["dtype"] == "F32", meta


@check
def damaged_layers_keep_their_bytes_and_have_no_values(directory):
    fp8 = {"quantization_config": {"quant_method": "fp8"}}
    weight, pairs = tensor("F8_E4M3", [136, 256]), tensor("U8", [4, 32])
    e4m3, one = tensor("F8_E4M3", [4, 4]), tensor("F32", [], 1.0)
    whole, _ = four_bit("w.weight", [64, 64], True)
    torn = {name: t for name, t in whole.items() if not name.endswith("nested_absmax")}
    for tensors, config in [
        ({"w.weight": weight}, fp8),
        ({"w.weight": weight, "w.weight_scale": tensor("F32", [3, 2])}, None),
        ({"w.weight": weight, "w.weight_scale": tensor("F32", [2, 2, 2])}, None),
        ({"w.weight": weight, "w.weight_scale": tensor("I32", [2, 2])}, None),
        ({"w.weight": pairs, "w.weight_scale": e4m3}, None),
        ({"w.weight": pairs, "w.weight_scale": tensor("F8_E4M3", [4, 3]), "w.weight_scale_2": one}, None),
        ({"w.weight": tensor("I8", [4, 8]), "w.SCB": tensor("F32", [5])}, None),
        (torn, None),
    ]:
        save(directory, tensors, config)
        same_bytes(stfs("cat", directory, "w.weight"), tensors["w.weight"].data, "raw")
        run(STFS, "cat", directory, "w.weight", "--view", "f32", expect=1)
        shape, meta = shape_of(directory, "w.weight")
        assert shape is None and meta["quantization"]["error"], meta
    # Without a config that wants a scale, a lone F8 tensor is just that.
    save(directory, {"w.weight": weight})
    compare(directory, "w.weight", weight.f32())


if __name__ == "__main__":
    main()
