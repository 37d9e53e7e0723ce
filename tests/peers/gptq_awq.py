"""GPTQ and AWQ layers held against NumPy: random models, other ones every time (SEED=n repeats a
run), packed and computed here from the published layouts and formula, bit for bit.

    python3 tests/peers/gptq_awq.py [--stfs target/release/stfs] [NAME…]

Layers are packed from chosen codes and zero points, the other way round from what stfs does. Scales
are random bit patterns in every third layer: NaN, Inf and subnormals are among them.
"""

import json
import os
import sys

if "--stfs" in sys.argv:  # before the harness looks for it
    at = sys.argv.index("--stfs")
    os.environ["STFS"] = os.path.abspath(sys.argv[at + 1])
    del sys.argv[at : at + 2]

import numpy as np

from harness import check, main, models, mounted, read, same, same_bytes, same_values, stfs

SEED = int(os.environ.get("SEED") or np.random.SeedSequence().generate_state(1)[0])
RNG = np.random.default_rng(SEED)
SCALES = {"F16": np.uint16, "BF16": np.uint16, "F32": np.uint32}
# Nibble j of a word of AWQ holds this column of eight.
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def pick(*options):
    return options[RNG.integers(len(options))]


def stream(values, bits):
    """Values along the first axis as words, lowest bits first: [M, N] becomes [M·bits/32, N]."""
    planes = (values[:, None, :] >> np.arange(bits)[None, :, None]) & 1
    flat = planes.reshape(-1, 32, values.shape[1]).astype(np.uint64)
    return (flat << np.arange(32, dtype=np.uint64)[None, :, None]).sum(axis=1).astype(np.uint32)


def eights(values):
    """[M, N] as AWQ packs it: [M, N/8]."""
    byte = values.reshape(len(values), -1, 8)[:, :, AWQ_ORDER].astype(np.uint64)
    return (byte << (4 * np.arange(8, dtype=np.uint64))).sum(axis=2).astype(np.uint32)


def stored_zeros(z, bits, v1):
    """Zero points as GPTQ stores them. For v1 one is taken off: off every field of 3 bits, modulo
    8, but off whole words of the other widths."""
    if v1 and bits == 3:
        z = (z - 1) % 8
    words = stream(z.T, bits).T
    if v1 and bits != 3:
        ones = sum(1 << i for i in range(0, 32, bits))
        words = words - np.uint32(ones)
    return words


def scales_of(dtype, shape):
    kind = SCALES[dtype]
    if RNG.random() < 1 / 3:
        bits = RNG.integers(0, np.iinfo(kind).max, shape, dtype=kind, endpoint=True)
        return models.Tensor(dtype, shape, bits.tobytes())
    ordinary = RNG.normal(0, 0.02, shape).astype(np.float32)
    if dtype == "F16":
        return models.Tensor(dtype, shape, ordinary.astype(np.float16).tobytes())
    bits = ordinary.view(np.uint32)
    if dtype == "BF16":
        bits = (bits >> 16).astype(np.uint16)
    return models.Tensor(dtype, shape, bits.tobytes())


def i32(array):
    return models.Tensor("I32", array.shape, np.ascontiguousarray(array).tobytes())


def layer(awq, bits, n, k, groups, dtype, v1=True, index=None, size=None):
    """A random layer: its tensors by suffix, and its values."""
    q = RNG.integers(0, 1 << bits, (k, n))
    z = RNG.integers(0, 1 << bits, (groups, n))
    scales = scales_of(dtype, (groups, n))
    tensors = {"scales": scales}
    if awq:
        tensors["qweight"], tensors["qzeros"] = i32(eights(q)), i32(eights(z))
    else:
        tensors["qweight"], tensors["qzeros"] = i32(stream(q, bits)), i32(stored_zeros(z, bits, v1))
    if index is not None:
        tensors["g_idx"] = i32(index.astype(np.int32))
    g = index if index is not None else np.arange(k) // (size or k // groups)
    with np.errstate(all="ignore"):
        s = scales.f32().reshape(groups, n)[g]
        values = (q - z[g]).astype(np.float32) * s
    return tensors, np.ascontiguousarray(values.T)


def save(directory, layers, **configs):
    """A model of layers by module, with configs by file name (without `.json`)."""
    tensors = {f"{m}.{s}": t for m, parts in layers.items() for s, t in parts.items()}
    tensors["x" * int(RNG.integers(1, 9))] = models.Tensor("U8", [1], b"x")
    models.write(directory / "model.safetensors", tensors)
    for name, config in configs.items():
        (directory / f"{name}.json").write_text(json.dumps(config))


def served(mnt, name, values, what):
    folder = mnt / "tensors" / name
    same_values(read(folder / "f32"), values, f"{what}: f32")
    same_values(read(folder / "raw"), values, f"{what}: raw")
    meta = json.loads(read(folder / "meta.json"))
    same(meta["shape"], list(values.shape), f"{what}: shape")
    with open(folder / "f32", "rb") as file:
        whole = np.ascontiguousarray(values, "<f4").tobytes()
        for size in (1, 7, 4096, 70000):
            size = min(size, len(whole))
            start = int(RNG.integers(0, len(whole) - size + 1))
            got = os.pread(file.fileno(), size, start)
            clean = not np.isnan(values).any()
            same(len(got), size, f"{what}: length of a pread")
            if clean:
                same_bytes(got, whole[start : start + size], f"{what}: {size} bytes at {start}")
    return meta


def random_case(kind):
    """Arguments of `layer` with shapes for which words come out whole."""
    awq = kind == "awq"
    bits = 4 if awq else pick(2, 3, 4, 8)
    unit_n, unit_k = (8, 1) if awq else (32, 32) if bits == 3 else (32 // bits, 32 // bits)
    groups = int(RNG.integers(1, 9))
    n = unit_n * int(RNG.integers(1, 12))
    k = unit_k * int(RNG.integers(1, 12)) * groups
    return dict(awq=awq, bits=bits, n=n, k=k, groups=groups, dtype=pick(*SCALES))


def many(scratch, count, make, **configs):
    """`count` random layers in one model: cat and the mount give their values."""
    layers, wants = {}, {}
    for i in range(count):
        name, case = f"model.layers.{i}.fc", make()
        layers[name], values = layer(**case)
        wants[name + ".weight"] = (values, case)
    save(scratch, layers, **configs)
    for name, (values, case) in list(wants.items())[:: max(1, count // 6)]:
        same_values(stfs("cat", scratch, name, "--view", "f32"), values, f"SEED={SEED} cat {name}")
    with mounted(scratch) as mnt:
        for name, (values, case) in wants.items():
            meta = served(mnt, name, values, f"SEED={SEED} {name} {case['bits']} bits")
            same(meta["origin"]["kind"], "dequantized", name)
            same(meta["origin"]["method"], "awq" if case["awq"] else "gptq", name)
            same(meta["origin"]["bits"], case["bits"], name)
            same(meta["views"]["f32"]["exact"], case["dtype"] != "F32", name)


GPTQ = {"quant_method": "gptq"}
V2 = {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}


def with_index(case):
    return case | {"index": RNG.integers(0, case["groups"], case["k"])}


@check
def gptq_v1(scratch):
    many(scratch, 60, lambda: random_case("gptq"), quantize_config=GPTQ)


@check
def gptq_v2(scratch):
    many(scratch, 60, lambda: random_case("gptq") | {"v1": False}, config={"quantization_config": V2})


@check
def gptq_act_order(scratch):
    many(scratch, 60, lambda: with_index(random_case("gptq")))


@check
def awq(scratch):
    config = {"quant_method": "awq", "version": "GEMM", "zero_point": True}
    many(scratch, 60, lambda: random_case("awq"), quant_config=config)


@check
def autoround_own_packing_keeps_zero_points(scratch):
    config = {"quant_method": "intel/auto-round", "backend": "auto_round:exllamav2"}
    many(scratch, 10, lambda: random_case("gptq") | {"v1": False}, config={"quantization_config": config})


@check
def short_last_group(scratch):
    def make():
        size = pick(32, 64, 128)
        k = size * int(RNG.integers(1, 4)) + 32
        groups = -(-k // size)
        return dict(awq=False, bits=4, n=64, k=k, groups=groups, dtype="F16", size=size)

    case = make()
    parts, values = layer(**case)
    save(scratch, {"fc": parts}, quantize_config=GPTQ | {"group_size": case["size"]})
    same_values(stfs("cat", scratch, "fc.weight", "--view", "f32"), values, f"SEED={SEED}")


@check
def layers_of_many_panels(scratch):
    """Larger than what is read at a time, in both directions; odd requests all over."""
    layers, wants = {}, {}
    shapes = {
        "a": dict(awq=False, bits=4, n=1088, k=4224, groups=33, dtype="F16"),
        "b": with_index(dict(awq=False, bits=3, n=576, k=6144, groups=48, dtype="BF16")),
        "c": dict(awq=True, bits=4, n=4256, k=1184, groups=37, dtype="F16"),
        "d": with_index(dict(awq=False, bits=8, n=1056, k=2304, groups=18, dtype="F32")),
    }
    for name, case in shapes.items():
        layers[name], wants[name] = layer(**case)
    save(scratch, layers)
    with mounted(scratch) as mnt:
        for name, values in wants.items():
            served(mnt, f"{name}.weight", values, f"SEED={SEED} {name}")
            view = np.memmap(mnt / "tensors" / f"{name}.weight" / "f32", "<f4", "r", shape=values.shape)
            for _ in range(50):
                rows, columns = (slice(*sorted(RNG.integers(0, m + 1, 2))) for m in values.shape)
                same_values(view[rows, columns].tobytes(), values[rows, columns], f"SEED={SEED} {name} {rows} {columns}")
            del view


@check
def fused_and_stacked(scratch):
    """q, k, v side by side, words and values; experts stacked."""
    p, e = "model.layers.0.self_attn", "model.layers.0.mlp.experts"
    for kind in ("gptq", "awq"):
        directory = scratch / kind
        directory.mkdir()
        awq, index = kind == "awq", None
        if not awq:
            index = RNG.integers(0, 2, 64)
        case = dict(awq=awq, bits=4, k=64, groups=2, dtype="F16", index=index)
        names = [f"{p}.{m}_proj" for m in "qkv"]
        experts = [f"{e}.{i}.{m}_proj" for i in range(2) for m in ("gate", "up", "down")]
        made = {m: layer(n=32 * (1 + i % 3), **case) for i, m in enumerate(names)}
        made |= {m: layer(n=64, **case) for m in experts}
        save(directory, {m: parts for m, (parts, _) in made.items()})
        with mounted(directory) as mnt:
            for suffix in ("qweight", "qzeros", "scales"):
                parts = [made[m][0][suffix].array() for m in names]
                found = read(mnt / "tensors" / f"{p}.qkv_proj.{suffix}" / "raw")
                same_bytes(found, np.concatenate(parts, axis=1).tobytes(), f"SEED={SEED} {kind} {suffix}")
            if index is not None:
                found = read(mnt / "tensors" / f"{p}.qkv_proj.g_idx" / "raw")
                same_bytes(found, index.astype(np.int32).tobytes(), f"{kind} g_idx")
            values = np.concatenate([made[m][1] for m in names])
            served(mnt, f"{p}.qkv_proj.weight", values, f"SEED={SEED} {kind} qkv")
            expert = lambda i, *ms: np.concatenate([made[f"{e}.{i}.{m}_proj"][1] for m in ms])
            both = np.stack([expert(i, "gate", "up") for i in range(2)])
            served(mnt, f"{e}.gate_up_proj", both, f"SEED={SEED} {kind} gate_up")
            down = np.stack([expert(i, "down") for i in range(2)])
            served(mnt, f"{e}.down_proj", down, f"SEED={SEED} {kind} down")


@check
def damage_stays_where_it_is(scratch):
    case = dict(awq=False, bits=4, n=64, k=64, groups=2, dtype="F16")
    good, values = layer(**case)
    torn, _ = layer(**case)
    del torn["qzeros"]
    index = np.arange(64) // 32
    index[40] = 2
    bad, _ = layer(**case)
    bad["g_idx"] = i32(index.astype(np.int32))
    save(scratch, {"good": good, "torn": torn, "bad": bad})
    with mounted(scratch) as mnt:
        served(mnt, "good.weight", values, f"SEED={SEED} good")
        assert not (mnt / "tensors" / "torn.weight").exists()
        same_bytes(read(mnt / "tensors" / "torn.qweight" / "raw"), torn["qweight"].data, "torn.qweight")
        meta = json.loads(read(mnt / "tensors" / "torn.qweight" / "meta.json"))
        assert "torn.qzeros is missing" in meta["quantization"]["error"], meta
        try:
            read(mnt / "tensors" / "bad.weight" / "f32")
            raise AssertionError("bad.weight was read")
        except OSError as error:
            same(error.errno, 5, "errno")


if __name__ == "__main__":
    main()
