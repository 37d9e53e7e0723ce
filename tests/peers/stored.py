"""Stored tensors: every dtype, read back through the mount and held against the safetensors
library, coreutils, NumPy and ml_dtypes.
"""

import io
import os

import numpy as np
import safetensors
import safetensors.numpy

from harness import check, main, mounted, need, read, run, same, same_bytes, same_values, stfs
from harness.models import DTYPES, NUMPY_OWN, Tensor, every_code, index, parse, write, write_by_hand


def by_library(directory):
    """One file with every dtype that the library writes from Python, and some shapes."""
    tensors = {f"t.{d}": every_code(d) for d, (_, word, _) in DTYPES.items() if word}
    tensors["scalar"] = Tensor("F32", [], np.float32(2.5).tobytes())
    tensors["scalar.int"] = Tensor("I64", [], np.int64(-7).tobytes())
    tensors["empty"] = Tensor("F16", [3, 0, 5], b"")
    tensors["deep"] = Tensor("I16", [2, 3, 1, 2, 5], np.arange(60, dtype="<i2").tobytes())
    write(directory / "model.safetensors", tensors, {"format": "pt", "made": "here"})
    return tensors


def by_hand(directory):
    """One file with all 22 dtypes, whose data begin at an odd address."""
    tensors = {f"t.{d}": every_code(d, seed=2) for d in DTYPES}
    path = directory / "model.safetensors"
    write_by_hand(path, tensors)
    odd = (path.stat().st_size - sum(len(t.data) for t in tensors.values())) % 2 == 0
    write_by_hand(path, tensors, pad=odd)
    return tensors


def both(directory):
    for make in (by_library, by_hand):
        model = directory / make.__name__
        model.mkdir()
        yield model, make(model)


@check
def raw_is_what_the_shard_holds(tmp):
    for model, tensors in both(tmp):
        shard = model / "model.safetensors"
        with mounted(model) as mnt:
            for name, (_, _, offset, length) in parse(shard).items():
                raw = mnt / "tensors" / name / "raw"
                same(raw.stat().st_size, length, f"size of {raw}")
                same_bytes(read(raw), tensors[name].data, raw)
                piece = tmp / "piece"
                run("dd", f"if={shard}", f"of={piece}", "iflag=skip_bytes,count_bytes", f"skip={offset}", f"count={length}", "bs=64K")
                run("cmp", raw, piece)
                same_bytes(run("cat", raw), tensors[name].data, f"cat {raw}")
                same_bytes(run("dd", f"if={raw}", "bs=7"), tensors[name].data, f"dd bs=7 of {raw}")
                same_bytes(run("tail", "-c", "13", raw), tensors[name].data[-13:], f"tail -c 13 {raw}")
                same(run("od", "-An", "-tx1", "-v", raw), run("od", "-An", "-tx1", "-v", piece), f"od {raw}")
                same_bytes(stfs("cat", model, name), tensors[name].data, f"stfs cat {name}")


@check
def f32_is_the_values(tmp):
    for model, tensors in both(tmp):
        with mounted(model) as mnt:
            for name, tensor in tensors.items():
                path = mnt / "tensors" / name / "f32"
                expected = tensor.f32()
                if expected is None:
                    assert not path.exists(), f"{path} exists"
                    assert "f32" not in os.listdir(path.parent)
                    continue
                same(path.stat().st_size, 4 * expected.size, f"size of {path}")
                found = read(path)
                same_values(found, expected, path)
                if tensor.dtype in ("F32", "BF16"):
                    same_bytes(found, expected.astype("<f4").tobytes(), f"{path}, NaN payloads too")
                same_bytes(stfs("cat", model, name, "--view", "f32"), found, f"stfs cat --view f32 {name}")


@check
def npy_is_what_numpy_saves(tmp):
    for model, tensors in both(tmp):
        with mounted(model) as mnt:
            for name, tensor in tensors.items():
                path = mnt / "npy" / f"{name}.npy"
                own = tensor.dtype in NUMPY_OWN
                array = tensor.array() if own else tensor.f32().reshape(tensor.shape)
                saved = io.BytesIO()
                np.save(saved, array)
                found = read(path)
                if own:
                    same_bytes(found, saved.getvalue(), path)
                else:
                    body = len(saved.getvalue()) - array.nbytes
                    same_bytes(found[:body], saved.getvalue()[:body], f"header of {path}")
                    same_values(found[body:], array, path)
                same(path.stat().st_size, len(found), f"size of {path}")
                loaded = np.load(path)
                same((loaded.dtype, loaded.shape), (array.dtype, array.shape), path)
                mapped = np.load(path, mmap_mode="r")
                same((mapped.dtype, mapped.shape), (array.dtype, array.shape), f"{path}, mmap_mode")
                same_bytes(np.ascontiguousarray(mapped).tobytes(), loaded.tobytes(), f"{path}, mmap_mode")
                del mapped
                same_bytes(stfs("cat", model, name, "--view", "npy"), found, f"stfs cat --view npy {name}")


@check
def numpy_reads_raw_and_f32(tmp):
    tensors = by_library(tmp)
    with mounted(tmp) as mnt:
        for name, tensor in tensors.items():
            kind = DTYPES[tensor.dtype][2]
            folder = mnt / "tensors" / name
            if tensor.dtype in NUMPY_OWN:
                same_bytes(np.fromfile(folder / "raw", kind).tobytes(), tensor.data, f"np.fromfile {name}")
                if tensor.data:
                    for mode in "rc":
                        mapped = np.memmap(folder / "raw", kind, mode=mode)
                        same_bytes(mapped.tobytes(), tensor.data, f"np.memmap {mode} {name}")
                        del mapped
            expected = tensor.f32()
            if expected is not None and expected.size:
                mapped = np.memmap(folder / "f32", "<f4", mode="r")
                same_values(mapped.tobytes(), expected, f"np.memmap f32 {name}")
                same_values(mapped[1::3].tobytes(), expected[1::3], f"np.memmap f32 {name}, every third")
                del mapped


@check
def octave_reads_f32(tmp):
    need("octave-cli")
    tensors = by_hand(tmp)
    with mounted(tmp) as mnt:
        for name in ("t.BF16", "t.F8_E4M3", "t.F6_E3M2", "t.I64"):
            path = mnt / "tensors" / name / "f32"
            out = tmp / "octave"
            run("octave-cli", "--norc", "--eval",
                f"f = fopen('{path}', 'r', 'ieee-le'); a = fread(f, Inf, 'single=>single'); "
                f"g = fopen('{out}', 'w', 'ieee-le'); fwrite(g, a, 'single');")  # fmt: skip
            same_values(read(out), tensors[name].f32(), f"Octave's fread of {path}")


@check
def the_library_opens_the_exported_file(tmp):
    tensors = by_library(tmp)
    with mounted(tmp) as mnt:
        path = mnt / "export" / "model.safetensors"
        with safetensors.safe_open(path, "np") as f:
            same(sorted(f.keys()), sorted(tensors), "names")
            same(f.metadata(), {"format": "pt", "made": "here"}, "metadata")
        found = dict(safetensors.deserialize(read(path)))
        for name, tensor in tensors.items():
            same((found[name]["dtype"], found[name]["shape"]), (tensor.dtype, tensor.shape), name)
            same_bytes(found[name]["data"], tensor.data, f"{name} of {path}")
        for name, (_, _, offset, length) in parse(path).items():
            assert length % 64 or offset % 64 == 0, f"{name} lies at {offset}"


@check
def shards_and_stale_duplicates(tmp):
    rng = np.random.default_rng(3)
    floats = lambda: Tensor("F32", [3, 5], rng.standard_normal(15, np.float32).tobytes())  # noqa: E731
    first = {"a": floats(), "b": floats(), "old": floats()}
    second = {"b": floats(), "c": floats(), "unlisted": floats()}
    write(tmp / "model-00001-of-00002.safetensors", first)
    write(tmp / "model-00002-of-00002.safetensors", second)
    write(tmp / "stale.safetensors", {"a": floats(), "gone": floats()})
    index(tmp, {"model-00001-of-00002.safetensors": ["a", "old"], "model-00002-of-00002.safetensors": ["b", "c"]})
    served = {"a": first["a"], "old": first["old"], "b": second["b"], "c": second["c"], "unlisted": second["unlisted"]}
    with mounted(tmp) as mnt:
        same(os.listdir(mnt / "tensors"), ["a", "b", "c", "old", "unlisted"], "tensors/")
        for name, tensor in served.items():
            same_bytes(read(mnt / "tensors" / name / "raw"), tensor.data, name)


@check
def the_librarys_own_writers(tmp):
    """safetensors.numpy.save_file, as people call it: bool, 0-d, Fortran order, big endian."""
    rng = np.random.default_rng(4)
    arrays = {
        "flags": rng.integers(0, 2, (3, 7)).astype(bool),
        "half": rng.standard_normal((4, 4)).astype(np.float16),
        "fortran": np.asfortranarray(rng.standard_normal((5, 3))),
        "big": rng.standard_normal(9).astype(">f4"),
        "zero-d": np.array(3.5, np.float64),
        "complex": (rng.standard_normal(4) + 1j).astype(np.complex64),
    }
    arrays["fortran"] = np.ascontiguousarray(arrays["fortran"])
    safetensors.numpy.save_file(arrays, tmp / "weights.safetensors")
    loaded = safetensors.numpy.load_file(tmp / "weights.safetensors")
    with mounted(tmp) as mnt:
        for name, array in loaded.items():
            found = np.load(mnt / "npy" / f"{name}.npy")
            same((found.dtype, found.shape), (array.dtype, array.shape), name)
            same_bytes(found.tobytes(), array.tobytes(), name)


if __name__ == "__main__":
    main()
