#!/usr/bin/env python3
"""Casts, arithmetic and products of recipes, and the casts that every model has, bit for bit against ml_dtypes."""

import json
import os
import re

import numpy as np

from harness import REPOSITORY, check, main, mounted, random_numbers, read, same, same_bytes, stfs
from harness.recipes import BF16, E4M3, E5M2, FLOATS, f32, left, load, meta, model, product, recipe, same_tensor, same_tensors

RNG = random_numbers()
CASTS = {"f32": np.float32, "f16": np.float16, "bf16": BF16, "f8_e4m3": E4M3, "f8_e5m2": E5M2}
GOLDEN = REPOSITORY / "tests/golden"


def hard_values():
    """Binary32 values at and around everything where a narrower type rounds, overflows or is subnormal."""
    patterns = [np.arange(1 << 16, dtype=np.uint32) << 16]  # every sign, exponent and leading bits
    halves = np.arange(1 << 16, dtype=np.uint16)
    for dtype, bits in ((np.float16, halves), (E4M3, halves[:256].astype(np.uint8)), (E5M2, halves[:256].astype(np.uint8))):
        values = np.sort(bits.view(dtype).astype(np.float64))
        values = values[np.isfinite(values)]
        ties = ((values[1:] + values[:-1]) / 2).astype(np.float32)
        patterns += [ties.view(np.uint32)]
    top = np.array([65504, 65519.996, 65520, 448, 464, 480, 57344, 61440, 3.3895314e38, 3.4028235e38, 2**-25, 2**-24, 2**-17, 2**-10], np.float32)
    patterns += [top.view(np.uint32), RNG.integers(0, 1 << 32, 50_000, dtype=np.uint64).astype(np.uint32)]
    # Each tie between two BF16 values, and the two next to all of those above.
    patterns += [(np.arange(1 << 16, dtype=np.uint32) << 16) | 0x8000]
    around = np.concatenate(patterns)
    around = np.concatenate([around, around - 1, around + 1])
    return np.concatenate([around, around ^ 0x8000_0000]).astype(np.uint32).view(np.float32)


def narrowed(x, dtype):
    """By ml_dtypes and NumPy: from binary32, to nearest even."""
    with np.errstate(all="ignore"):
        return x if x.dtype == dtype else f32(x).astype(dtype)


def all_casts(scratch, tensors):
    model(scratch / "m", tensors)
    casts = ", ".join(f'"{{x}}.{c}" = "{c}(it)"' for c in CASTS)
    found = left(recipe(scratch, f'model = "m"\nrules = [{{ on = "{{x..}}", to = {{ {casts} }} }}]\n'))
    expected = {f"{n}.{c}": narrowed(t, dtype) for n, t in tensors.items() for c, dtype in CASTS.items()}
    same_tensors(found, expected, "cast")


@check
def casts_of_every_half_and_of_hard_binary32_values(scratch):
    every = np.arange(1 << 16, dtype=np.uint16)
    codes = np.arange(256, dtype=np.uint8)
    tensors = {"bf16": every.view(BF16), "f16": every.view(np.float16), "e4m3": codes.view(E4M3), "e5m2": codes.view(E5M2), "f32": hard_values()}
    all_casts(scratch, tensors)


@check
def casts_of_wider_types_and_integers_are_rounded_twice(scratch):
    wide = RNG.integers(0, 1 << 64, 4000, dtype=np.uint64).view(np.float64)
    # Just beside a tie of BF16 or F16: binary32 rounds it to the tie.
    ties = np.array([1 + 2**-8 + 2**-40, 1 + 2**-11 + 2**-45, 1 + 3 * 2**-8 - 2**-40, 65520 - 2**-20, 2**-150], np.float64)
    integers = RNG.integers(-(1 << 62), 1 << 62, 4000)
    odd = np.array([(1 << 24) + 1, (1 << 53) + 1, 0x101_0001, 0x1_0100_0001, -1, 0], np.int64)
    tensors = {
        "f64": np.concatenate([wide, ties, -ties]), "i64": np.concatenate([integers, odd]), "i32": integers.astype(np.int32), "u8": np.arange(256, dtype=np.uint8),
        "u64": integers.view(np.uint64), "i8": np.arange(256, dtype=np.uint8).view(np.int8), "bool": np.array([True, False]),
    }  # fmt: skip
    all_casts(scratch, tensors)


@check
def every_model_has_bf16_and_f16_unlisted(scratch):
    every = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    tensors = {
        "bf16": every.view(BF16), "f16": every.view(np.float16), "f32": hard_values(), "f64": RNG.standard_normal((5, 3)), "e": np.zeros((0, 4), np.float32),
        "i64": RNG.integers(-9, 9, (3,)), "c64": np.array([1 + 2j], np.complex64), "s": np.float32(1.5).reshape(()),
    }  # fmt: skip
    model(scratch / "m", tensors)
    with mounted(scratch / "m") as mount:
        for name, t in tensors.items():
            at = mount / "tensors" / name
            views = json.loads(read(at / "meta.json"))["views"]
            listed = sorted(os.listdir(at))
            if t.dtype == np.complex64:
                same(listed, ["meta.json", "raw"], name)
                assert not (at / "bf16").exists() and not (at / "f16").exists(), f"{name} has no values"
                continue
            same(listed, ["f32", "meta.json", "raw"], name)
            for cast, dtype in (("bf16", BF16), ("f16", np.float16)):
                expected = narrowed(t, dtype)
                found = np.frombuffer(read(at / cast), dtype).reshape(t.shape)
                same_tensor(found, expected, f"{name}/{cast}")
                same_tensor(np.frombuffer(stfs("cat", scratch / "m", name, "--view", cast), dtype).reshape(t.shape), expected, f"cat {name} {cast}")
                exact = views[cast].pop("exact")
                same(views[cast], {"dtype": cast.upper(), "shape": list(t.shape), "nbytes": 2 * t.size}, f"{name}/{cast}: views")
                same(exact, t.dtype == dtype, f"{name}/{cast}: exact")
                xattr = {k: os.getxattr(at / cast, f"user.stfs.{k}").decode() for k in ("name", "dtype", "shape", "origin")}
                same(xattr, {"name": name, "dtype": cast.upper(), "shape": ",".join(map(str, t.shape)), "origin": "stored"}, f"{name}/{cast}: xattr")
        # Zero-copy, and every bit of a NaN as it is stored.
        same_bytes(read(mount / "tensors/bf16/bf16"), every.tobytes(), "BF16 of BF16")
        same_bytes(read(mount / "tensors/f16/f16"), every.tobytes(), "F16 of F16")


@check
def model_bf16_is_the_checkpoint_that_a_quantized_model_came_from():
    for case in ("gptq-4bit-v2-asym", "fp8-blocks", "mlx-affine-4bit", "bnb-nf4", "awq-4bit-groups-of-32", "gpt-oss-mxfp4"):
        with mounted(GOLDEN / case / "model") as mount:
            stored = load(mount / "export/model.safetensors")
            floats = load(mount / "export/model-f32.safetensors")
            found = load(mount / "export/model-bf16.safetensors")
            expected = {}
            for name, t in floats.items():
                own = stored.get(name)
                is_kept = own is not None and own.shape == t.shape and own.dtype in (BF16, np.float16, np.float32, np.float64)
                expected[name] = own if is_kept or t.dtype != np.float32 else t.astype(BF16)
            same_tensors(found, expected, case)


@check
def a_model_of_wide_floats_has_no_model_bf16(scratch):
    model(scratch / "wide", {"a": np.ones(3, np.float32), "b": np.ones(3, BF16), "ids": np.arange(3)})
    with mounted(scratch / "wide") as mount:
        assert "model-bf16.safetensors" not in os.listdir(mount / "export")
    model(scratch / "small", {"a": np.ones(3, np.float32), "b": np.ones(3, E4M3)})
    with mounted(scratch / "small") as mount:
        found = load(mount / "export/model-bf16.safetensors")
        same({n: t.dtype for n, t in found.items()}, {"a": np.dtype(np.float32), "b": np.dtype(BF16)}, "dtypes")


FORMULAS = {
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x * y": lambda x, y: x * y,
    "x / y": lambda x, y: x / y,
    "-x": lambda x, y: -x,
    "x * 3 - y / 7": lambda x, y: x * np.float32(3) - y / np.float32(7),
    "0.1 * x + 0.2 * y": lambda x, y: np.float32(0.1) * x + np.float32(0.2) * y,
    "(x + y) - x": lambda x, y: (x + y) - x,
    "x + (y - x)": lambda x, y: x + (y - x),
    "1 / x": lambda x, y: np.float32(1) / x,
    "2 - x": lambda x, y: np.float32(2) - x,
    "-(x * -y)": lambda x, y: -(x * -y),
    "x + 1 / 3": lambda x, y: x + np.float32(1 / 3),
    "2 * 3 * x": lambda x, y: np.float32(6) * x,
    "x * 2 * 3": lambda x, y: x * np.float32(2) * np.float32(3),
    "x + 16777217": lambda x, y: x + np.float32(16777217),
    "x * one": lambda x, y: x * np.float32(1.25),
    "one / x": lambda x, y: np.float32(1.25) / x,
    "x - one - y": lambda x, y: x - np.float32(1.25) - y,
    "x + 7 // 2": lambda x, y: x + np.float32(3),
    "x * (7 / 2)": lambda x, y: x * np.float32(3.5),
    "x + -7 % 3": lambda x, y: x + np.float32(2),
    "x * min(2, 3.5)": lambda x, y: x * np.float32(2),
}


@check
def arithmetic_is_binary32_in_the_order_written(scratch):
    shape = (37, 41)
    hard = RNG.choice(hard_values(), shape[0] * shape[1] * 2).reshape(2, *shape)
    for kind, (x, y) in {"hard": hard, "random": RNG.standard_normal((2, *shape)).astype(np.float32)}.items():
        for dtype in (np.float32, BF16):
            with np.errstate(all="ignore"):
                a, b = x.astype(dtype), y.astype(dtype)
                at = scratch / f"{kind}-{np.dtype(dtype).name}"
                model(at / "m", {"x": a, "y": b, "one": np.full((1, 1), 1.25, BF16)})
                operands = {"x": "it", "y": "'y'", "one": "'one'"}
                texts = {f: re.sub(r"\b(x|y|one)\b", lambda name: operands[name[0]], f) for f in FORMULAS}
                table = ", ".join(f'"f{i}" = "{texts[f]}"' for i, f in enumerate(FORMULAS))
                found = left(recipe(at, f'model = "m"\nrules = [{{ on = "x", add = {{ {table} }} }}]\n'))
                for i, (f, formula) in enumerate(FORMULAS.items()):
                    same_tensor(found[f"f{i}"], formula(f32(a), f32(b)), f"{kind} {np.dtype(dtype).name}: {f}")


@check
def products_are_summed_from_k_0_upwards(scratch):
    for m, k, n in ((1, 1, 1), (5, 3, 7), (64, 16, 300), (33, 129, 17), (3, 1024, 5), (700, 8, 1100), (4, 0, 5)):
        for dtype in (np.float32, BF16):
            a, b = RNG.standard_normal((m, k)).astype(dtype), RNG.standard_normal((k, n)).astype(dtype)
            w = RNG.standard_normal((m, n)).astype(np.float32)
            at = scratch / f"{m}-{k}-{n}-{np.dtype(dtype).name}"
            model(at / "m", {"a": a, "b": b, "w": w, "bt": b.T})
            rules = """{ on = "w", add = { p = "'a' @ 'b'", l = "it + 0.3 * ('a' @ 'b')", t = "'a' @ t('bt')", part = "('a' @ 'b')[:, 1:]" } }"""
            found = left(recipe(at, f'model = "m"\nrules = [{rules}]\n'))
            p = product(a, b)
            for name, expected in {"p": p, "l": w + np.float32(0.3) * p, "t": p, "part": p[:, 1:]}.items():
                same_tensor(found[name], expected, f"{m}x{k} @ {k}x{n} {np.dtype(dtype).name}: {name}")


@check
def products_of_zeros_infinities_and_nan(scratch):
    a = np.array([[0.0, -0.0], [np.inf, 0.0], [-0.0, -0.0], [1e38, 1e38], [1e-45, 1e-45]], np.float32)
    b = np.array([[0.0, -1.0, np.inf, 10.0], [-0.0, 0.0, 1.0, -10.0]], np.float32)
    model(scratch / "m", {"a": a, "b": b})
    with np.errstate(all="ignore"):
        expected = product(a, b)
        found = left(recipe(scratch, """model = "m"\nrules = [{ on = "a", is = "it @ 'b'" }]\n"""))
        same_tensor(found["a"], expected, "a @ b")


@check
def operands_are_values_dequantized_where_they_are_quantized(scratch):
    for case in ("fp8-blocks", "mlx-affine-4bit", "bnb-nf4", "gptq-4bit-v2-asym"):
        with mounted(GOLDEN / case / "model") as mount:
            floats = load(mount / "export/model-f32.safetensors")
            stored = load(mount / "export/model.safetensors")
        name = next(n for n in floats if n.endswith("q_proj.weight"))
        at = scratch / case
        at.mkdir()
        (at / "m").symlink_to(GOLDEN / case / "model")
        is_own = name in stored
        rules = [f"""{{ on = "model.norm.weight", add = {{ plus = "model:'{name}' + 1", cut = "f32(model:'{name}')[0:3]", b = "bf16(model:'{name}')" }} }}"""]
        if is_own:
            rules.append(f"""{{ on = "{name}", add = {{ stored = "it[0:2]", same = "it * 2" }} }}""")
            rules.append(f"""{{ on = "{name}", to = "renamed" }}""")
            rules.append("""{ on = "renamed", add = { after = "it * 2" } }""")
        path = recipe(at, 'model = "m"\nrules = [\n' + ",\n".join(rules) + "\n]\n")
        found = left(path)
        w = floats[name]
        same_tensor(found["plus"], w + np.float32(1), f"{case}: plus")
        same_tensor(found["cut"], w[0:3], f"{case}: cut")
        same_tensor(found["b"], w.astype(BF16), f"{case}: bf16")
        if is_own:
            same_bytes(found["stored"].tobytes(), stored[name][0:2].tobytes(), f"{case}: stored elements")
            same_tensor(found["same"], w * np.float32(2), f"{case}: values")
            same_tensor(found["after"], w * np.float32(2), f"{case}: values of a renamed one")


@check
def exact_says_that_nothing_can_have_been_rounded(scratch):
    model(scratch / "m", {n.lower(): np.ones((4, 2), d) for n, d in FLOATS.items()} | {"f64": np.ones(3), "i64": np.ones(3, np.int64), "i16": np.ones(3, np.int16)})
    casts = ", ".join(f'"{{x}}.{c}" = "{c}(it)"' for c in CASTS)
    more = '"{x}.plus" = "it + 1", "{x}.cut" = "it[0:1]", "{x}.minus" = "-it"'
    path = recipe(scratch, f'model = "m"\nrules = [{{ on = "{{x}}", to = {{ {casts}, {more} }} }}]\n')
    holds = {
        "f32": {"f32"}, "bf16": {"f32", "bf16"}, "f16": {"f32", "f16"}, "f8_e4m3": {"f32", "f16", "bf16", "f8_e4m3"},
        "f8_e5m2": {"f32", "f16", "bf16", "f8_e5m2"}, "f64": set(), "i64": set(), "i16": {"f32"},
    }  # fmt: skip
    for dtype, kept in holds.items():
        for cast in CASTS:
            same(meta(path, f"{dtype}.{cast}")["views"]["f32"]["exact"], cast in kept, f"{cast} of {dtype}")
        same(meta(path, f"{dtype}.plus")["views"]["f32"]["exact"], False, f"{dtype} + 1")
        same(meta(path, f"{dtype}.cut")["views"]["f32"]["exact"], dtype not in ("f64", "i64"), f"{dtype}[0:1]")


if __name__ == "__main__":
    main()
