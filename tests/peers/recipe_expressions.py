#!/usr/bin/env python3
"""Random expressions, patterns, names and numbers of recipes, against NumPy, Python's `re` and Python's own numbers."""

import math
import re

import numpy as np

from harness import check, main, mounted, random_numbers, read, same, same_bytes, stfs
from harness.recipes import BF16, DTYPES, f32, left, model, recipe, same_tensor, same_tensors

RNG = random_numbers()


def pick(*of):
    return of[int(RNG.integers(len(of)))]


def number(low, high):
    """From low to high, both included."""
    return int(RNG.integers(low, high + 1))


def random_array(dtype, shape):
    if dtype is np.bool_:
        return RNG.integers(0, 2, shape).astype(np.bool_)
    if dtype in (np.float32, np.float64, BF16):
        return RNG.standard_normal(shape).astype(dtype)
    count = math.prod(shape)
    return np.frombuffer(RNG.bytes(count * np.dtype(dtype).itemsize), dtype).reshape(shape)


def subscript(x):
    """A random subscript, as text and as NumPy's."""
    texts, keys = [], []
    for size in x.shape[: number(1, x.ndim)]:
        kind = pick("index", "all", "range", "step", "open")
        if size == 0 or kind == "all":
            texts.append(":")
            keys.append(slice(None))
        elif kind == "index":
            i = number(-size, size - 1)
            texts.append(str(i))
            keys.append(i)
        else:
            start = number(0, size)
            stop = number(start, size)
            step = number(1, 3) if kind == "step" else None
            shown = (start - size if start < size and pick(0, 1) else start), (stop - size if 0 < stop < size and pick(0, 1) else stop)
            start, stop = (None, stop) if kind == "open" and pick(0, 1) else (start, None if kind == "open" else stop)
            text = f"{'' if start is None else shown[0]}:{'' if stop is None else shown[1]}"
            texts.append(f"{text}:{step}" if step else text)
            keys.append(slice(start, stop, step))
    return f"[{', '.join(texts)}]", tuple(keys)


def factors(count, ndim):
    """A shape of so many elements."""
    shape = []
    for _ in range(ndim - 1):
        divisors = [d for d in range(1, min(count, 12) + 1) if count % d == 0] or [1]
        shape.append(pick(*divisors))
        count //= max(1, shape[-1])
    return [*shape, count]


def step(text, x, others):
    """One more function of a random kind around an expression; both ways."""
    kind = pick("slice", "slice", "part", "concat", "stack", "pad", "reshape", "reshape", "permute", "permute", "t", "parens")
    axis = number(0, x.ndim - 1) if x.ndim else 0
    shown = axis - x.ndim if pick(0, 1) else axis
    if kind == "slice" and x.ndim:
        subscripts, keys = subscript(x)
        return f"{text}{subscripts}", x[keys]
    if kind == "part" and x.ndim:
        divisors = [d for d in range(1, 8) if x.shape[axis] % d == 0]
        n = pick(*divisors)
        i = number(0, n - 1)
        default = ", axis=" + str(shown) if axis or pick(0, 1) else ""
        return f"part({text}, {i}, {n}{default})", np.split(x, n, axis)[i]
    same_but = [(t, o) for t, o in [*others, (text, x)] if o.dtype == x.dtype and o.ndim == x.ndim and x.ndim]
    fits = [(t, o) for t, o in same_but if all(a == b or d == axis for d, (a, b) in enumerate(zip(x.shape, o.shape)))]
    if kind == "concat" and fits and x.size < 5000:
        t, o = pick(*fits)
        return f"concat({text}, {t}, axis={shown})", np.concatenate([x, o], axis)
    if kind == "stack" and x.size < 5000 and x.ndim < 5:
        t, o = pick((text, x), *[(t, o) for t, o in others if o.dtype == x.dtype and o.shape == x.shape])
        at = number(0, x.ndim)
        return f"stack({text}, {t}, {text}, axis={at})", np.stack([x, o, x], at)
    if kind == "pad" and x.ndim and x.size < 5000:
        size = x.shape[axis] + number(0, 3)
        rest = np.zeros([size - s if d == axis else s for d, s in enumerate(x.shape)], x.dtype)
        return f"pad({text}, {size}, axis={shown})", np.concatenate([x, rest], axis)
    if kind == "reshape" and x.size:
        shape = factors(x.size, number(1, 4))
        shown_shape = [*shape]
        if pick(0, 1):
            shown_shape[number(0, len(shape) - 1)] = -1
        return f"reshape({text}, {', '.join(map(str, shown_shape))})", x.reshape(shape)
    if kind == "permute" and x.ndim:
        axes = [int(a) for a in RNG.permutation(x.ndim)]
        return f"permute({text}, {', '.join(str(a - x.ndim if pick(0, 1) else a) for a in axes)})", x.transpose(axes)
    if kind == "t" and x.ndim > 1:
        return f"t({text})", x.swapaxes(-1, -2)
    return f"({text})", x


@check
def random_structure_of_every_dtype(scratch):
    for round_ in range(6):
        tensors = {}
        for dtype in DTYPES:
            for i in range(3):
                tensors[f"{dtype}.{i}"] = random_array(DTYPES[dtype], tuple(number(1, 9) for _ in range(number(1, 4))))
        at = scratch / str(round_)
        model(at / "m", tensors)
        expected, rules = dict(tensors), []
        for n in range(60):
            name = pick(*tensors)
            text, x = "it", tensors[name]
            others = [(f"'{o}'", t) for o, t in tensors.items()]
            for _ in range(number(1, 8)):
                longer, result = step(text, x, others)
                if len(longer) < 1500:
                    text, x = longer, result
            expected[f"out.{n}"] = x
            rules.append(f'{{ on = "{name}", add = "out.{n}", is = "{text}" }}')
        path = recipe(at, 'model = "m"\nrules = [\n' + ",\n".join(rules) + "\n]\n")
        same_tensors(left(path), expected, path.read_text())


@check
def any_range_of_a_result_is_the_same_bytes(scratch):
    tensors = {"a": random_array(np.float32, (300, 40, 21)), "b": random_array(BF16, (517, 1023)), "c": random_array(np.uint8, (1001, 333))}
    model(scratch / "m", tensors)
    a, b, c = tensors.values()
    results = {
        "slice": ("a", "it[3:290, ::3, 5:]", a[3:290, ::3, 5:]), "keeps": ("a", "permute(it, 1, 0, 2)", a.transpose(1, 0, 2)),
        "moves": ("a", "permute(it, 2, 0, 1)", a.transpose(2, 0, 1)), "t": ("b", "t(it)", b.T), "t8": ("c", "t(it)[5:, 7:900]", c.T[5:, 7:900]),
        "join": ("b", "concat(it[:, 1:], it[:, :5], it, axis=1)", np.concatenate([b[:, 1:], b[:, :5], b], 1)),
        "cast": ("a", "bf16(permute(it, 1, 0, 2) * 3)", (a.transpose(1, 0, 2) * np.float32(3)).astype(BF16)),
        "sum": ("b", "it + 0.5 * t(t(it))", f32(b) + np.float32(0.5) * f32(b)), "rows": ("b", "concat(it[500:], it[:9])", np.concatenate([b[500:], b[:9]])),
        "pad": ("b", "pad(pad(it, 1030, axis=1), 520)", np.pad(b.view(np.uint16), ((0, 3), (0, 7))).view(BF16)),
    }  # fmt: skip
    rules = [f'{{ on = "{on}", add = "{name}", is = "{text}" }}' for name, (on, text, _) in results.items()]
    with mounted(recipe(scratch, 'model = "m"\nrules = [\n' + ",\n".join(rules) + "\n]\n")) as mount:
        for name, (_, _, expected) in results.items():
            expected = np.ascontiguousarray(expected).tobytes()
            with open(mount / f"tensors/{name}/raw", "rb") as f:
                for _ in range(60):
                    start = number(0, len(expected))
                    size = pick(1, 3, 4096, 70_000, 1_000_000)
                    f.seek(start)
                    same_bytes(f.read(size), expected[start : start + size], f"{name} from {start}")
            same_bytes(read(mount / f"tensors/{name}/raw"), expected, name)


def matched(pattern, name):
    """What Python's `re` makes of a pattern: lazy groups try the shortest first, from left to right."""

    def group(piece):
        if piece == "*":
            return "(?:.+?)"
        if not piece.startswith("{") or piece in ("{{", "}}"):
            return re.escape({"{{": "{", "}}": "}"}.get(piece, piece))
        hole = piece[1:-1]
        if hole.endswith(".."):
            return f"(?P<{hole[:-2]}>.+?)"
        if "=" in hole:
            hole, _, of = hole.partition("=")
            return f"(?P<{hole}>{'|'.join(re.escape(o) for o in sorted(of.split('|'), key=len))})"
        return f"(?P<{hole}>[^.]+?)"

    found = re.fullmatch("".join(map(group, re.findall(r"\{\{|\}\}|\{[^}]*\}|\*|[^{}*]+", pattern))), name, re.S)
    return found and found.groupdict()


@check
def random_patterns_match_as_pythons_lazy_groups(scratch):
    words = ["a", "ab", "aab", "b", "x_proj", "layers", "0", "10", "é", "weight"]
    names = sorted({pick(".", "..", "-").join(pick(*words) for _ in range(number(1, 6))) for _ in range(80)} - {""})
    model(scratch / "m", {n: np.array([i], np.int32) for i, n in enumerate(names)})
    wrong = 0
    for _ in range(60):
        pattern, holes = "", 0
        for _ in range(number(1, 6)):
            kind = pick("text", "text", "hole", "rest", "any", "of", "dot")
            if kind == "text":
                pattern += pick(*words)
            elif kind == "dot":
                pattern += "."
            elif kind == "any":
                pattern += "" if pattern.endswith("*") else "*"
            else:
                hole = f"h{holes}"
                pattern += {"hole": f"{{{hole}}}", "rest": f"{{{hole}..}}", "of": f"{{{hole}={'|'.join(sorted({pick(*words) for _ in range(3)}))}}}"}[kind]
                holes += 1
        to = "new" + "".join(f":{{h{i}}}" for i in range(holes))
        expected, clash = {}, False
        for name in names:
            holes_of = matched(pattern, name)
            result = name if holes_of is None else "new" + "".join(f":{holes_of[f'h{i}']}" for i in range(holes))
            clash |= result in expected
            expected[result] = names.index(name)
        path = recipe(scratch, f'model = "m"\nrules = [{{ on = "{pattern}", to = "{to}", optional = true }}]\n')
        if clash:
            wrong += 1
            stfs("ls", path, expect=1)
            continue
        found = {n: int(t[0]) for n, t in left(path).items()}
        same(found, expected, pattern)
    assert wrong < 60, "no pattern was compared"


def expression(depth=0):
    """A random expression of whole numbers and reals, which is Python, too."""
    if depth > 4 or pick(0, 0, 1):
        return pick(str(number(0, 9)), str(number(0, 1 << 40)), f"{number(0, 99)}.{number(0, 9)}", "n", "1e3", "2.5e-3")
    a, b = expression(depth + 1), expression(depth + 1)
    return pick(f"({a} {pick('+', '-', '*', '//', '%', '/')} {b})", f"-({a})", f"min({a}, {b})", f"max({a}, {b})", f"{a} {pick('+', '-', '*')} {b}")


@check
def numbers_are_pythons(scratch):
    names = {"l.7.w": np.float32([1]).reshape(1)}
    model(scratch / "m", names)
    good = {}
    while len(good) < 200:
        text = expression()
        try:
            value = eval(text, {"n": 7, "min": min, "max": max})
        except ZeroDivisionError:
            continue
        whole = [int(w) for w in re.findall(r"\b\d+\b", text)]
        if len(text) > 400 or abs(value) > 1e30 or (isinstance(value, int) and abs(value) >= 1 << 62) or math.prod(max(w, 1) for w in whole) >= 1 << 62:
            continue
        good[text] = value
    # Each is compared with Python's value where both are binary64, or exact: a condition selects nothing else.
    keep = [f'{{ on = "l.{{n}}.w", add = "r{i}", where = "{t} == {v!r}", is = "it + ({t})" }}' for i, (t, v) in enumerate(good.items())]
    found = left(recipe(scratch, 'model = "m"\nrules = [\n' + ",\n".join(keep) + "\n]\n"))
    for i, (text, value) in enumerate(good.items()):
        with np.errstate(all="ignore"):
            same_tensor(found[f"r{i}"], np.float32([1]) + np.float32(value), text)
    whole = {t: v for t, v in good.items() if isinstance(v, int)}
    assert len(whole) > 20, "few whole numbers"
    named = left(recipe(scratch, 'model = "m"\nrules = [\n' + ",\n".join(f'{{ on = "l.{{n}}.w", add = "{i}:{{{t}}}" }}' for i, t in enumerate(whole)) + "\n]\n"))
    same(sorted(set(named) - set(names)), sorted(f"{i}:{v}" for i, v in enumerate(whole.values())), "names")


@check
def conditions_are_pythons(scratch):
    tensors = {f"l.{n}.{w}": np.zeros((n, 3), d) for n in range(1, 14) for w, d in (("a", np.float32), ("b", BF16), ("c", np.int64))}
    model(scratch / "m", tensors, {"limit": 6, "text_config": {"inner": 4}, "name": "zeta", "flag": True, "deep": {"er": 2.5}})
    dtype_of = {"a": "F32", "b": "BF16", "c": "I64"}
    conditions = {
        "n < 4": lambda n, w: n < 4, "4 <= n < 9": lambda n, w: 4 <= n < 9, "1 < n <= config.limit != 3": lambda n, w: 1 < n <= 6,
        "n % 2 == 0 and not n == 4": lambda n, w: n % 2 == 0 and n != 4, "n == 1 or n == 2 and w == 'a'": lambda n, w: n == 1 or n == 2 and w == "a",
        "dtype == 'F32'": lambda n, w: dtype_of[w] == "F32", "dtype != 'F32' and w != 'c'": lambda n, w: w == "b", "w == 'a' or w == 'c'": lambda n, w: w in "ac",
        "dim(it, 0) > 10": lambda n, w: n > 10, "dim(it, -1) == 3 and ndim == 2 and n > 11": lambda n, w: n > 11, "n // 4 == 2": lambda n, w: n // 4 == 2,
        "not (n > 3 or w == 'a')": lambda n, w: not (n > 3 or w == "a"), "n == config.inner": lambda n, w: n == 4, "config.name == 'zeta' and n == 1": lambda n, w: n == 1,
        "not n < 12": lambda n, w: n >= 12, "n * 2 + 1 > 20": lambda n, w: n * 2 + 1 > 20, "n / 2 == 2.5": lambda n, w: n == 5, "p == n": lambda n, w: n == 5,
        "n > config.deep.er and n < p": lambda n, w: 2.5 < n < 5,
    }  # fmt: skip
    for text, holds in conditions.items():
        path = recipe(scratch, f'model = "m"\nset = {{ p = "config.limit - 1" }}\nrules = [{{ keep = "l.{{n}}.{{w}}" }}, {{ drop = "l.{{n}}.{{w}}", where = "{text}" }}]\n')
        expected = {k: v for k, v in tensors.items() if not holds(int(k.split(".")[1]), k[-1])}
        same(sorted(left(path)), sorted(expected), text)


@check
def layers_gathered_and_spread_and_counted(scratch):
    tensors = {f"h.{n}.w": np.full((2, 3), n, np.int32) for n in range(12)}
    model(scratch / "m", tensors)
    stacked = np.stack([tensors[f"h.{n}.w"] for n in range(12)])
    text = """model = "m"
rules = [
  { on = "h.{n#}.w", add = "stack", is = "stack('h.{n}.w' for n)" },
  { on = "h.{n#}.w", add = "concat", is = "concat('h.{i}.w' for i in 3..6, axis=1)" },
  { on = "stack", for = "r in 0..4", to = "rank{r}.w", is = "part(it, r, 4)" },
  { on = "h.{n}.w", where = "n < 4", for = "j in 0..2", to = "x.{3*n + j}.{n // 2}", is = "it[j]" },
  { on = "rank{r}.w", for = "i in 0..dim(it, 0)", add = { "{r}.{i}.a" = "it[i]", "{r}.{i}.b" = "it[i, 0]" } },
]
"""
    expected = {f"h.{n}.w": tensors[f"h.{n}.w"] for n in range(4, 12)}
    expected["concat"] = np.concatenate([tensors[f"h.{n}.w"] for n in (3, 4, 5)], 1)
    expected |= {f"rank{r}.w": np.split(stacked, 4)[r] for r in range(4)}
    expected |= {f"x.{3 * n + j}.{n // 2}": tensors[f"h.{n}.w"][j] for n in range(4) for j in range(2)}
    for r in range(4):
        for i in range(3):
            expected |= {f"{r}.{i}.a": stacked[3 * r + i], f"{r}.{i}.b": stacked[3 * r + i, 0]}
    same_tensors(left(recipe(scratch, text)), expected, "gathered")


if __name__ == "__main__":
    main()
