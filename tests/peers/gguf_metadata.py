"""Metadata, names and places of GGUF models, held against the `gguf` package."""

import json
import math
import os

import gguf
import numpy as np
from safetensors.numpy import save_file

from harness import check, main, mounted, random_numbers, read, run, same, same_bytes, same_values
from harness.gguf_model import VALUES, by_hand, by_package, random

RNG = random_numbers()
WIDE = {"float32": np.float32, "float64": np.float64}


def numbers(kind):
    """Extreme and random values of a type of metadata values."""
    if kind == "string":
        return ["", "plain", "é ∑ 🦙", 'quotes " and \\ and \n\t\x01', "\x00 inside", "</script>", "{{ bos_token }}{% for m in messages %}"]
    if kind == "bool":
        return [0, 1, 2, 255]
    if kind in WIDE:
        finite = [0.0, -0.0, 1e-5, 0.1, -1.5, 10000.0, float(np.finfo(WIDE[kind]).max), float(np.finfo(WIDE[kind]).tiny) / 2, 1e15, 1e16]
        return finite + [math.inf, -math.inf, math.nan] + [float(x) for x in RNG.standard_normal(5).astype(WIDE[kind])]
    info = np.iinfo(kind)
    return [info.min, info.max, 0, 1, *(int(x) for x in RNG.integers(info.min, info.max, 4, dtype=kind))]


def every_key():
    """Keys of every type and of arrays of every type, of several lengths, in no special order."""
    keys = [("general.architecture", "string", "llama"), ("llama.block_count", "uint32", 2)]
    for kind in VALUES:
        if kind != "array":
            keys += [(f"one.{kind}.{i}", kind, n) for i, n in enumerate(numbers(kind))]
            pool = numbers(kind)
            for length in (0, 1, 64, 65, 300):
                keys.append((f"many.{kind}.{length}", "array", (kind, [pool[int(i)] for i in RNG.integers(0, len(pool), length)])))
    keys += [("é.ключ", "uint8", 1), ("a key", "uint8", 2), ("a.key\nwith\tcontrols", "uint8", 3), ("K" * 300, "uint8", 4)]
    keys += [("constructor", "int8", 5), ("__proto__", "int8", 6), ("1", "int8", 7), ("Z", "int8", 8), ("a", "int8", 9)]
    first, rest = keys[:1], keys[1:]
    return first + [rest[int(i)] for i in RNG.permutation(len(rest))]


def the_same_value(found, expected, kind, what):
    """A value in JSON is one of the file. NaN and infinities are null."""
    if kind in WIDE and not math.isfinite(expected):
        same(found, None, what)
    elif kind in WIDE:
        assert isinstance(found, (int, float)) and not isinstance(found, bool), f"{what}: {found!r}"
        same(WIDE[kind](found).tobytes(), WIDE[kind](expected).tobytes(), what)
    else:
        expected = bool(expected) if kind == "bool" else expected
        same((type(found), found), (type(expected), expected), what)


def metadata_is(mnt, keys, what=""):
    """metadata.json has all keys, typed and in order; model.json has them plain, without long arrays."""
    path = mnt / "metadata.json"
    text = read(path)
    same(path.stat().st_size, len(text), f"{what}size of metadata.json")
    typed = json.loads(text, object_pairs_hook=lambda pairs: pairs)
    same([name for name, _ in typed], [name for name, _, _ in keys], f"{what}keys of metadata.json")
    plain = json.loads(read(mnt / "model.json"))["metadata"]
    for (name, found), (_, kind, content) in zip(typed, keys):
        found = dict(found)
        if kind == "array":
            of, elements = content
            same((found["type"], found["of"], len(found)), ("array", of, 3), f"{what}{name}")
            same(len(found["value"]), len(elements), f"{what}length of {name}")
            for f, e in zip(found["value"], elements):
                the_same_value(f, e, of, f"{what}{name}")
        else:
            same((found["type"], len(found)), (kind, 2), f"{what}{name}")
            the_same_value(found["value"], content, kind, f"{what}{name}")
        if kind == "array" and len(content[1]) > 64:
            assert name not in plain, f"{what}{name} has {len(content[1])} elements and is in model.json"
        else:
            same(plain.pop(name), found["value"], f"{what}{name} in model.json")
    same(list(plain), [], f"{what}more keys in model.json")


@check
def metadata_of_every_type(tmp):
    keys = every_key()
    for version in (2, 3):
        by_hand(tmp / "m.gguf", {"w": random(RNG, "F32", 2)}, keys, version)
        fields = [f for f in gguf.GGUFReader(tmp / "m.gguf").fields if not f.startswith("GGUF.")]
        same(fields, [name for name, _, _ in keys], "keys by GGUFReader")
        with mounted(tmp / "m.gguf") as mnt:
            metadata_is(mnt, keys)


@check
def metadata_as_the_package_reads_it(tmp):
    """Written by GGUFWriter, read back by GGUFReader, compared with metadata.json."""

    def keys(writer):
        for name, add in {"u8": writer.add_uint8, "u16": writer.add_uint16, "u32": writer.add_uint32, "u64": writer.add_uint64}.items():
            add(name, int(RNG.integers(0, 256)))
        for name, add in {"i8": writer.add_int8, "i16": writer.add_int16, "i32": writer.add_int32, "i64": writer.add_int64}.items():
            add(name, int(RNG.integers(-128, 128)))
        writer.add_float32("f32", float(RNG.standard_normal()))
        writer.add_float64("f64", float(RNG.standard_normal()))
        writer.add_bool("yes", True)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"token {i} \u2581é" for i in range(500)])
        writer.add_token_scores([float(x) for x in RNG.standard_normal(500)])
        writer.add_token_types([int(x) for x in RNG.integers(1, 7, 500)])
        writer.add_token_merges(["a b", "ab c"])
        writer.add_chat_template("{% for m in messages %}{{ m }}{% endfor %}")
        writer.add_languages(["en", "ie"])

    by_package(tmp / "m.gguf", {"w": random(RNG, "F32", 2)}, keys)
    fields = {n: f for n, f in gguf.GGUFReader(tmp / "m.gguf").fields.items() if not n.startswith("GGUF.")}
    with mounted(tmp / "m.gguf") as mnt:
        typed = json.loads(read(mnt / "metadata.json"))
    same(list(typed), list(fields), "keys")
    for name, field in fields.items():
        same(typed[name]["type"], field.types[0].name.lower(), f"type of {name}")
        found, expected = typed[name]["value"], field.contents()
        if field.types[0] is gguf.GGUFValueType.ARRAY:
            same(typed[name]["of"], field.types[-1].name.lower(), f"type of {name}'s elements")
        single = field.types[-1] is gguf.GGUFValueType.FLOAT32
        same(np.float32(found).tolist() if single else found, np.float32(expected).tolist() if single else expected, name)


@check
def text_that_is_not_utf_8(tmp):
    """In values it is shown with U+FFFD."""
    keys = [("bad", "string", b"a\xffb\xc3"), ("list", "array", ("string", [b"\xe2\x82", b"ok", b"\xf0\x9f\xa6\x99"]))]
    by_hand(tmp / "m.gguf", {"w": random(RNG, "F32", 2)}, keys)
    with mounted(tmp / "m.gguf") as mnt:
        typed = json.loads(read(mnt / "metadata.json"))
        same(typed["bad"]["value"], "a\ufffdb\ufffd", "a string")
        same(typed["list"]["value"], [b"\xe2\x82".decode(errors="replace"), "ok", "🦙"], "strings")


@check
def a_large_vocabulary(tmp):
    tokens = [f"{i:x}Ġ\u00e9" for i in range(200_000)]
    scores = RNG.standard_normal(200_000).astype(np.float32)
    keys = [
        ("general.architecture", "string", "llama"), ("tokenizer.ggml.tokens", "array", ("string", tokens)),
        ("tokenizer.ggml.scores", "array", ("float32", scores.tolist())), ("llama.block_count", "uint32", 1),
    ]  # fmt: skip
    by_hand(tmp / "m.gguf", {"w": random(RNG, "Q8_0", 2, 32)}, keys)
    with mounted(tmp / "m.gguf") as mnt:
        size = (mnt / "metadata.json").stat().st_size
        text = read(mnt / "metadata.json")
        same(size, len(text), "size before it was read")
        typed = json.loads(text)
        same(typed["tokenizer.ggml.tokens"]["value"], tokens, "tokens")
        same_values(np.array(typed["tokenizer.ggml.scores"]["value"], np.float32).tobytes(), scores, "scores")
        same(list(json.loads(read(mnt / "model.json"))["metadata"]), ["general.architecture", "llama.block_count"], "model.json")
        same_bytes(run("tail", "-c", "1000", mnt / "metadata.json"), text[-1000:], "tail")


@check
def odd_names(tmp):
    names = ["plain", "with/slash", "with space", "é∑🦙", ".", "..", "", "%", "a\nb", "\x1b[31mred", "a.b", "a.b.c", "q%2Fr"]
    names += ["x" * 63, "y" * 64, "z" * 300]
    tensors = {n: random(RNG, "Q4_0", 1, 32) for n in names}
    by_hand(tmp / "m.gguf", tensors)
    with mounted(tmp / "m.gguf") as mnt:
        index = json.loads(read(mnt / "index.json"))
        same(sorted(index), sorted(names), "names")
        same(len(os.listdir(mnt / "tensors")), len(names), "directories")
        for name, tensor in tensors.items():
            folder = mnt / index[name]["path"]
            same_bytes(read(folder / "raw"), tensor.data, repr(name))
            same_values(read(folder / "f32"), tensor.f32(), repr(name))
            same(json.loads(read(folder / "meta.json"))["name"], name, repr(name))
        run("cmp", tmp / "m.gguf", mnt / "export/model.gguf")


@check
def directories_with_one_model(tmp):
    tensors = {"w": random(RNG, "Q8_0", 4, 32)}
    by_package(tmp / "anything.gguf", tensors)
    (tmp / "README.md").write_text("hello")
    with mounted(tmp) as mnt:
        same_bytes(read(mnt / "tensors/w/raw"), tensors["w"].data, "w")
        same(os.listdir(mnt / "files"), ["README.md"], "files/")
    os.rename(tmp / "anything.gguf", tmp / "no-extension")
    with mounted(tmp / "no-extension") as mnt:  # known by its first bytes
        same_bytes(read(mnt / "tensors/w/raw"), tensors["w"].data, "w")
    os.rename(tmp / "no-extension", tmp / "a.gguf")
    by_package(tmp / "mmproj-a.gguf", tensors)
    save_file({"s": np.zeros(3, np.float32)}, tmp / "b.safetensors")
    with mounted(tmp) as mnt:  # safetensors come first
        same(os.listdir(mnt / "tensors"), ["s"], "names")


if __name__ == "__main__":
    main()
