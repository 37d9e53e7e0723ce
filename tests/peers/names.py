"""Names: escapes, order, the nested tree, and what the JSON files say."""

import functools
import hashlib
import json
import os
import re

import numpy as np

from harness import check, main, mounted, read, same, same_bytes, stfs
from harness.models import DTYPES, EXACT, NUMPY_OWN, Tensor, every_code, index, parse, write, write_by_hand

ODD = [
    "", ".", "..", "a/b", "100%", "%2F", "nul\0here", "...", ".hidden", "-rf", "--help", "a b", "tab\there", "line\nbreak",
    "quote\"'`$(x)", "back\\slash", "*?[a]", "naïve.ß.日本語", "🙂.weight", "e\u0301", "\u00e9", "\x1b[31mred", "\u202eright", "@", "@.@",
    "a..b", ".a", "a.", "x" * 239, "x" * 240, "x" * 241, "y" * 1000, "é" * 120 + "e", "é" * 130, "z" + "日" * 100, "%" * 100,
    "lost+found", "~", "CON", "a:b", "tensors", "model.json",
]  # fmt: skip


def file_name(name):
    """What interface section 2 makes of a tensor's name."""
    if name in ("", ".", ".."):
        return {"": "%", ".": "%2E", "..": "%2E%2E"}[name]
    escaped = name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    if len(escaped.encode()) <= 240:
        return escaped
    head = escaped.encode()[:200].decode(errors="ignore")
    return f"{head}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def numbered(i):
    return Tensor("U16", [3], np.array([i, i * 7, 65535 - i], "<u2").tobytes())


@check
def odd_names(tmp):
    tensors = {name: numbered(i) for i, name in enumerate(ODD)}
    write_by_hand(tmp / "model.safetensors", tensors)
    expected = {file_name(n): n for n in ODD}
    same(len(expected), len(ODD), "names that differ")
    with mounted(tmp) as mnt:
        same(sorted(os.listdir(mnt / "tensors")), sorted(expected), "tensors/")
        same(sorted(os.listdir(mnt / "npy")), sorted(f"{n}.npy" for n in expected), "npy/")
        listed = json.loads(read(mnt / "index.json"))
        same(sorted(listed), sorted(ODD), "index.json")
        for shown, name in expected.items():
            folder = mnt / "tensors" / shown
            same_bytes(read(folder / "raw"), tensors[name].data, repr(name))
            same(json.loads(read(folder / "meta.json"))["name"], name, "meta.json's name")
            same(listed[name]["path"], f"tensors/{shown}", "index.json's path")
            same(os.getxattr(folder / "raw", "user.stfs.name").decode(), name, "user.stfs.name")
            same(np.load(mnt / "npy" / f"{shown}.npy").tobytes(), tensors[name].data, f"npy of {name!r}")
            if "\0" not in name:
                same_bytes(stfs("cat", tmp, "--", name), tensors[name].data, f"stfs cat {name!r}")


@check
def a_key_twice_is_the_last_one(tmp):
    header = b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}'
    (tmp / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"xyz")
    with mounted(tmp) as mnt:
        same(os.listdir(mnt / "tensors"), ["a"], "tensors/")
        same_bytes(read(mnt / "tensors/a/raw"), b"xyz", "the last one")


@check
def natural_order(tmp):
    layers = [0, 1, 2, 3, 9, 10, 11, 20, 99, 100, 1000, 18446744073709551616]
    names = [f"model.layers.{i}.{p}" for i in layers for p in ("a.weight", "b.weight", "b2", "b10")] + ["lm_head", "model.norm"]
    rng = np.random.default_rng(7)
    shuffled = [names[i] for i in rng.permutation(len(names))]
    write_by_hand(tmp / "model.safetensors", {n: numbered(i) for i, n in enumerate(shuffled)})
    with mounted(tmp) as mnt:
        expected = sorted(names, key=functools.cmp_to_key(_natural))
        same(os.listdir(mnt / "tensors"), expected, "tensors/")
        same(os.listdir(mnt / "npy"), [f"{n}.npy" for n in expected], "npy/")
        same(list(json.loads(read(mnt / "index.json"))), expected, "index.json")
        same(os.listdir(mnt / "tree/model/layers"), [str(i) for i in layers], "tree/model/layers")
        same([r["name"] for r in json.loads(stfs("ls", "--json", tmp))], expected, "stfs ls --json")


def _natural(a, b):
    parts = lambda s: re.findall(r"\d+|\D", s)  # noqa: E731
    for x, y in zip(parts(a), parts(b)):
        if x.isdigit() and y.isdigit():
            if int(x) != int(y):
                return -1 if int(x) < int(y) else 1
        elif x[0] != y[0]:
            return -1 if x[0] < y[0] else 1
    return (a > b) - (a < b)


@check
def tree_nests_at_the_dots(tmp):
    deep = ".".join(["d"] * 65)
    deepest = ".".join(["d"] * 64)
    names = ["a", "a.b", "a.b.c", "a.@", "x..y", "x.y.", ".z", "p/q.r%", "lonely", "one.two.three", deep, deepest]
    tensors = {n: numbered(i) for i, n in enumerate(names)}
    write_by_hand(tmp / "model.safetensors", tensors)
    where = {
        "a": "a/@", "a.b": "a/b/@", "a.b.c": "a/b/c", "a.@": "a/%40", "x..y": "x/%/y", "x.y.": "x/y/%", ".z": "%/z",
        "p/q.r%": "p%2Fq/r%25", "lonely": "lonely", "one.two.three": "one/two/three", deepest: "/".join(["d"] * 64),
    }  # fmt: skip
    with mounted(tmp) as mnt:
        links = {}
        for folder, folders, files in os.walk(mnt / "tree"):
            for entry in folders + files:
                path = os.path.join(folder, entry)
                if os.path.islink(path):
                    links[os.path.relpath(path, mnt / "tree")] = path
        same(sorted(links), sorted(where.values()), "links under tree/")
        for name, place in where.items():
            target = os.readlink(links[place])
            assert not os.path.isabs(target), f"{place} -> {target}"
            same(os.path.realpath(links[place]), str(mnt / "tensors" / file_name(name)), f"tree/{place}")
            same_bytes(read(f"{links[place]}/raw"), tensors[name].data, f"tree/{place}/raw")


@check
def meta_json(tmp):
    tensors = {f"t.{d}": every_code(d) for d in DTYPES}
    tensors["scalar"] = Tensor("F32", [], b"\0\0\0\0")
    tensors["empty"] = Tensor("BF16", [0, 3], b"")
    write_by_hand(tmp / "model.safetensors", tensors)
    header = parse(tmp / "model.safetensors")
    with mounted(tmp) as mnt:
        for name, t in tensors.items():
            numel = int(np.prod(t.shape))
            views = {"raw": {"dtype": t.dtype, "shape": t.shape, "nbytes": len(t.data)}}
            if t.dtype != "C64":
                views["f32"] = {"dtype": "F32", "shape": t.shape, "nbytes": 4 * numel, "exact": t.dtype in EXACT}
            descr = np.dtype(DTYPES[t.dtype][2]).str if t.dtype in NUMPY_OWN else "<f4"
            size = (mnt / "npy" / f"{name}.npy").stat().st_size
            views["npy"] = {"descr": descr, "shape": t.shape, "nbytes": size}
            if t.dtype != "C64":
                small = DTYPES[t.dtype][0] <= 8
                exact = {"bf16": small or t.dtype == "BF16", "f16": small and t.dtype != "F8_E8M0" or t.dtype == "F16"}
                for cast, holds in exact.items():
                    views[cast] = {"dtype": cast.upper(), "shape": t.shape, "nbytes": 2 * numel, "exact": holds}
            same(
                json.loads(read(mnt / "tensors" / name / "meta.json")),
                {
                    "name": name,
                    "dtype": t.dtype,
                    "shape": t.shape,
                    "numel": numel,
                    "nbytes": len(t.data),
                    "views": views,
                    "origin": {"kind": "stored", "file": "model.safetensors", "offset": header[name][2]},
                },
                f"meta.json of {name}",
            )
            same(json.loads(stfs("cat", tmp, name, "--view", "meta")), json.loads(read(mnt / "tensors" / name / "meta.json")), name)


@check
def model_and_index_json(tmp):
    one = {"a.weight": every_code("BF16"), "b.weight": every_code("F16"), "n": every_code("I64")}
    two = {"c.weight": every_code("BF16"), "s": Tensor("F32", [], b"\0\0\0\0")}
    write(tmp / "model-1.safetensors", one, {"format": "pt", "both": "one"})
    write(tmp / "model-2.safetensors", two, {"both": "two", "more": "ünï"})
    index(tmp, {"model-1.safetensors": one, "model-2.safetensors": two})
    everything = one | two
    places = {n: (f, at[2]) for f in ("model-1.safetensors", "model-2.safetensors") for n, at in parse(tmp / f).items()}
    with mounted(tmp) as mnt:
        found = json.loads(read(mnt / "model.json"))
        same(found.pop("metadata"), {"format": "pt", "both": "one", "more": "ünï"}, "metadata")
        dtypes = {}
        for t in everything.values():
            d = dtypes.setdefault(t.dtype, {"tensors": 0, "bytes": 0})
            d["tensors"] += 1
            d["bytes"] += len(t.data)
        expected = {
            "format": "safetensors",
            "files": [{"name": n, "bytes": (tmp / n).stat().st_size} for n in ("model-1.safetensors", "model-2.safetensors")],
            "tensors": 5,
            "parameters": sum(int(np.prod(t.shape)) for t in everything.values()),
            "bytes": sum(len(t.data) for t in everything.values()),
            "dtypes": dtypes,
            "quantization": None,
        }
        same(found, expected, "model.json")
        expected = {
            n: {"dtype": t.dtype, "shape": t.shape, "nbytes": len(t.data), "origin": "stored", "path": f"tensors/{n}"}
            | dict(zip(("file", "offset"), places[n]))
            for n, t in everything.items()
        }
        same(json.loads(read(mnt / "index.json")), expected, "index.json")
        listed = {r.pop("name"): r for r in json.loads(stfs("ls", "--json", tmp))}
        same(listed, expected, "stfs ls --json")


@check
def files_are_the_others(tmp):
    write(tmp / "model.safetensors", {"a": numbered(1)})
    write(tmp / "model-1.safetensors", {"a": numbered(2)})
    (tmp / "config.json").write_text("{}")
    (tmp / "odd ☃ name").write_bytes(b"snow")
    (tmp / "sub").mkdir()
    (tmp / "sub/inside").write_bytes(b"no")
    (tmp / "linked").symlink_to("config.json")
    (tmp / "dangling").symlink_to("nowhere")
    (tmp / "to-a-directory").symlink_to("sub")
    os.mkfifo(tmp / "fifo")
    with mounted(tmp) as mnt:
        shown = set(os.listdir(mnt / "files"))
        assert {"config.json", "odd ☃ name", "linked"} <= shown, shown
        assert not shown & {"model.safetensors", "sub", "dangling", "to-a-directory", "fifo"}, shown
        same_bytes(read(mnt / "files/odd ☃ name"), b"snow", "files/")
        same_bytes(read(mnt / "files/linked"), b"{}", "files/, a link")
        (tmp / "later").write_bytes(b"x")
        same(set(os.listdir(mnt / "files")), shown, "files/ after a file was added")


if __name__ == "__main__":
    main()
