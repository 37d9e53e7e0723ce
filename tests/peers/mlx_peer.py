"""MLX layers held against MLX itself, and gpt-oss's MXFP4 against NumPy: random models, other ones
every time (SEED=n repeats a run), bit for bit.

Codes, scales and biases are random bit patterns: NaN, Inf and subnormals are among them. MLX saves
without padding, so data begin at odd addresses. What MLX is asked for is `mx.dequantize` with scales
and biases cast to float32: without the casts it rounds to the scales' own type.
"""

import json

import mlx.core as mx
import numpy as np

from harness import check, main, mounted, random_numbers, read, same, same_bytes, same_values, stfs

AFFINE = [(bits, group) for bits in (1, 2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
MODES = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
FLOATS = {"F16": (np.uint16, mx.float16), "BF16": (np.uint16, mx.bfloat16), "F32": (np.uint32, mx.float32)}

RNG = random_numbers()


def noise(kind, *shape):
    """Random bits, as an unsigned NumPy type."""
    return RNG.integers(0, np.iinfo(kind).max, shape, dtype=kind, endpoint=True)


def dequantize(words, scales, biases, bits, group, mode="affine"):
    """MLX's own values, computed in binary32."""
    with mx.stream(mx.cpu):
        if mode == "affine":
            scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
        values = mx.dequantize(words, scales, biases, group_size=group, bits=bits, mode=mode, dtype=mx.float32)
        return np.array(values)


def affine(bits, group, lead=None):
    """A random layer: the three arrays by suffix, the floats' dtypes, and the values."""
    lead = lead or [int(n) for n in RNG.integers(1, 9, RNG.integers(1, 4))]
    groups = int(RNG.integers(1, 5))
    words = mx.array(noise(np.uint32, *lead, groups * group * bits // 32))
    dtypes = [str(d) for d in RNG.choice(list(FLOATS), 2)]
    scales, biases = (mx.array(noise(FLOATS[d][0], *lead, groups)).view(FLOATS[d][1]) for d in dtypes)
    values = dequantize(words, scales, biases, bits, group)
    return {"weight": words, "scales": scales, "biases": biases}, ["U32", *dtypes], values


def save(directory, tensors, config=None):
    """A model as mlx-lm writes it, its data at whatever address the header's length gives."""
    tensors["x" * int(RNG.integers(1, 9))] = mx.zeros((1,), dtype=mx.uint8)
    mx.save_safetensors(str(directory / "model.safetensors"), tensors, {"format": "mlx"})
    if config is not None:
        (directory / "config.json").write_text(json.dumps({"quantization": config}))


def served(mnt, name, values, what):
    """The tensor's f32 and .npy are these values."""
    folder = mnt / "tensors" / name
    what = f"{what}, {name}"
    same_values(read(folder / "f32"), values, what)
    array = np.load(mnt / "npy" / f"{name}.npy", mmap_mode="r")
    same(array.shape, values.shape, f"{what}: shape of .npy")
    same_bytes(array.tobytes(), read(folder / "f32"), f"{what}: .npy and f32")


def said(mnt, name):
    """What meta.json says of a layer: method, bits, group size."""
    meta = json.loads(read(mnt / "tensors" / name / "meta.json"))
    about = meta.get("quantization") or meta["origin"]
    return tuple(about.get(k) for k in ("method", "bits", "group_size"))


@check
def affine_of_every_width(tmp):
    tensors, layers, config = {}, {}, {"group_size": 64, "bits": 4}
    for bits, group in AFFINE * 3:
        path = f"model.layers.{len(layers)}.mlp"
        arrays, dtypes, values = affine(bits, group)
        tensors |= {f"{path}.{suffix}": array for suffix, array in arrays.items()}
        config[path] = {"bits": bits, "group_size": group}
        layers[f"{path}.weight"] = bits, group, dtypes, values
    save(tmp, tensors, config)
    with mounted(tmp) as mnt:
        for name, (bits, group, dtypes, values) in layers.items():
            served(mnt, name, values, f"{bits} bits, groups of {group}, {dtypes}")
            same(said(mnt, name), ("mlx", bits, group), f"meta.json of {name}")
    same_values(stfs("cat", tmp, name, "--view", "f32"), values, "stfs cat")


@check
def modes_without_biases(tmp):
    tensors, layers = {}, {}
    for mode, (bits, group) in list(MODES.items()) * 4:
        path = f"model.layers.{len(layers)}.{mode}"
        rows, k = int(RNG.integers(1, 60)), 32 * int(RNG.integers(1, 9))
        words, scales = noise(np.uint32, rows, k * bits // 32), noise(np.uint8, rows, k // group)
        values = dequantize(mx.array(words), mx.array(scales), None, bits, group, mode)
        if mode != "nvfp4":  # E8M0's 255: OCP says NaN, MLX multiplies by Inf
            values[np.repeat(scales == 255, group, axis=1)] = np.nan
        tensors |= {f"{path}.weight": mx.array(words), f"{path}.scales": mx.array(scales)}
        layers[f"{path}.weight"] = mode, bits, group, values
    save(tmp, tensors)
    with mounted(tmp) as mnt:
        for name, (mode, bits, group, values) in layers.items():
            served(mnt, name, values, mode)
            same(said(mnt, name), ("mlx", bits, group), f"meta.json of {name}")


@check
def what_mlx_quantized(tmp):
    tensors, layers, config = {}, {}, {"mode": "mxfp8"}
    for mode, (bits, group) in {"affine": (4, 64), **MODES}.items():
        parts = mx.quantize(mx.array(RNG.standard_normal((3, 40, 256), dtype=np.float32)), mode=mode)
        arrays = dict(zip(["weight", "scales", "biases"], parts))
        tensors |= {f"{mode}.{suffix}": array for suffix, array in arrays.items()}
        layers[f"{mode}.weight"] = dequantize(parts[0], parts[1], arrays.get("biases"), bits, group, mode)
        config |= {} if mode == "mxfp8" else {mode: {"mode": mode}}
    save(tmp, tensors, config)
    with mounted(tmp) as mnt:
        for name, values in layers.items():
            served(mnt, name, values, "quantized by MLX")


@check
def fusions_are_layers_that_mlx_reads(tmp):
    """Joined words, scales and biases are a layer, whose values by MLX are the fused f32."""
    tensors, config = {}, {}
    joined = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "switch_mlp.gate_up_proj": ["switch_mlp.gate_proj", "switch_mlp.up_proj"]}
    for names in joined.values():
        experts = [3] if "switch" in names[0] else []
        for name in names:
            weight = mx.array(RNG.standard_normal((*experts, int(RNG.integers(1, 50)), 128), dtype=np.float32))
            for suffix, array in zip(["weight", "scales", "biases"], mx.quantize(weight, group_size=32, bits=3)):
                tensors[f"l.{name}.{suffix}"] = array.astype(mx.bfloat16) if suffix != "weight" else array
    for name, bits in [("gate_proj", 4), ("up_proj", 6)]:
        arrays, _, _ = affine(bits, 64, [5])
        k = 64 * bits // 32
        for suffix, array in arrays.items():
            tensors[f"l.{name}.{suffix}"] = array[:, : k if suffix == "weight" else 1]
        config[f"l.{name}"] = {"bits": bits}
    save(tmp, tensors, {"bits": 3, "group_size": 32} | config)
    with mounted(tmp) as mnt:
        for name, parts in joined.items():
            def whole(suffix):
                joint = mx.concatenate([tensors[f"l.{p}.{suffix}"] for p in parts], axis=-2)
                raw = read(mnt / "tensors" / f"l.{name}.{suffix}" / "raw")
                same_bytes(raw, np.array(joint.view(mx.uint8)).tobytes(), f"{name}.{suffix}")
                return joint

            values = dequantize(whole("weight"), whole("scales"), whole("biases"), 3, 32)
            served(mnt, f"l.{name}.weight", values, "fused")
        # Of two widths only the values join.
        halves = [read(mnt / "tensors" / f"l.{p}.weight" / "f32") for p in ("gate_proj", "up_proj")]
        same_bytes(read(mnt / "tensors/l.gate_up_proj.weight/raw"), b"".join(halves), "gate and up of two widths")
        assert not (mnt / "tensors/l.gate_up_proj.scales").exists()


@check
def bin_and_manifest(tmp):
    """Entries with `bits`, whose group size only the shapes have, and one with neither."""
    data, entries, layers = bytearray(), {}, {}
    for explicit, (bits, group) in [(True, pair) for pair in AFFINE] + [(False, (4, 64))]:
        path = f"layers.{len(layers)}"
        arrays, dtypes, values = affine(bits, group)
        for (suffix, array), dtype in zip(arrays.items(), dtypes):
            data.extend(b"\xaa" * (-len(data) % 64))
            raw = np.array(array.view(mx.uint8)).tobytes()
            entry = {"offset": len(data), "size": len(raw), "shape": list(array.shape), "dtype": dtype}
            entries[f"{path}.{suffix}"] = entry | ({"bits": bits} if explicit and dtype == "U32" else {})
            data.extend(raw)
        layers[f"{path}.weight"] = bits, group, values
    (tmp / "model_weights.bin").write_bytes(data)
    (tmp / "model_weights.json").write_text(json.dumps({"tensors": entries, "config": {}}))
    with mounted(tmp) as mnt:
        for name, (bits, group, values) in layers.items():
            served(mnt, name, values, f"manifest, {bits} bits")
            same(said(mnt, name), ("mlx", bits, group), f"meta.json of {name}")


def parameter(blocks, scales):
    """gpt-oss's parameter by OCP MX v1.0, in binary64, which holds every product exactly."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
    elements = np.where(codes & 8, -1.0, 1.0) * np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[codes & 7]
    exponents = np.where(scales == 255, np.nan, np.exp2(scales - 127.0))
    with np.errstate(over="ignore"):
        values = (elements * exponents[..., None]).astype(np.float32)
    experts, rows = scales.shape[:2]
    return np.ascontiguousarray(values.reshape(experts, rows, -1).transpose(0, 2, 1))


@check
def gpt_oss(tmp):
    tensors, layers = {}, {}
    random = [tuple(int(n) for n in RNG.integers(1, [4, 400, 9])) for _ in range(3)]
    for experts, rows, groups in [(2, 64, 2), (3, 90, 3), (1, 1, 1), *random]:
        name = f"model.layers.{len(layers)}.mlp.experts.{['gate_up_proj', 'down_proj'][len(layers) % 2]}"
        blocks, scales = noise(np.uint8, experts, rows, groups, 16), noise(np.uint8, experts, rows, groups)
        tensors |= {f"{name}_blocks": mx.array(blocks), f"{name}_scales": mx.array(scales)}
        layers[name] = parameter(blocks, scales)
    save(tmp, tensors)
    with mounted(tmp) as mnt:
        for name, values in layers.items():
            served(mnt, name, values, f"gpt-oss {values.shape}")
            same_bytes(read(mnt / "tensors" / name / "raw"), read(mnt / "tensors" / name / "f32"), f"{name}: raw and f32")
            same(said(mnt, name), ("mxfp4", 4, 32), f"meta.json of {name}")


if __name__ == "__main__":
    print(f"mlx {mx.__version__}")
    main()
