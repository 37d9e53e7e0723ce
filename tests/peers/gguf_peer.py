"""GGUF tensors held against the `gguf` package: every element type with random bytes and edge scales,
all shapes and alignments, read in every way, bit for bit (SEED=n repeats a run).
"""

import json
import mmap
import os

import gguf
import numpy as np

from harness import check, main, mounted, random_numbers, read, run, same, same_bytes, same_values, stfs
from harness.gguf_model import BLOCKS, DECODED, NUMBERS, PLAIN, ROUNDED, SCALES, TYPES, WITHOUT_VALUES
from harness.gguf_model import Tensor, by_hand, by_package, float_tensor, numpys_own, random, values
from harness.models import every_code

RNG = random_numbers()
# F16: zeros, subnormals, the smallest normal ones, one, the largest, infinities, NaNs.
EDGES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x8401, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF]


def described(tensor, file, offset):
    """meta.json of a stored tensor, without its name."""
    shape, numel = tensor.shape, int(np.prod(tensor.shape, dtype=object))
    views = {"raw": {"dtype": tensor.dtype, "shape": shape, "nbytes": len(tensor.data)}}
    if tensor.dtype not in WITHOUT_VALUES:
        views["f32"] = {"dtype": "F32", "shape": shape, "nbytes": 4 * numel, "exact": tensor.dtype not in ROUNDED}
        descr = PLAIN.get(tensor.dtype, "<f4")
        data = numel * np.dtype(descr).itemsize
        views["npy"] = {"descr": descr, "shape": shape, "nbytes": data + 128}
        for cast in ("BF16", "F16"):
            views[cast.lower()] = {"dtype": cast, "shape": shape, "nbytes": 2 * numel, "exact": tensor.dtype in (cast, "I8")}
    return {
        "dtype": tensor.dtype, "shape": shape, "numel": numel, "nbytes": len(tensor.data), "views": views,
        "origin": {"kind": "stored", "file": file, "offset": offset},
    }  # fmt: skip


def served(mnt, name, tensor, what=""):
    """raw, f32 and the .npy of a stored tensor are what its bytes mean."""
    what = f"{what} {name} ({tensor.dtype} {tensor.shape})"
    folder, npy = mnt / "tensors" / name, mnt / "npy" / f"{name}.npy"
    same_bytes(read(folder / "raw"), tensor.data, f"{what}: raw")
    expected = tensor.f32()
    if expected is None:
        same(sorted(os.listdir(folder)), ["meta.json", "raw"], f"{what}: files")
        assert not npy.exists() and not (mnt / "preview" / f"{name}.png").exists(), f"{what} has values"
        return
    found = read(folder / "f32")
    same_values(found, expected, f"{what}: f32")
    if tensor.dtype in ("F32", "BF16"):
        same_bytes(found, expected.tobytes(), f"{what}: f32, NaN payloads too")
    array, own = np.load(npy), numpys_own(tensor)
    same((array.dtype, array.shape), ((expected if own is None else own).dtype, tuple(tensor.shape)), f"{what}: .npy")
    same_bytes(array.tobytes(), found if own is None else tensor.data, f"{what}: .npy")
    if array.size:
        mapped = np.load(npy, mmap_mode="r")
        same_bytes(np.ascontiguousarray(mapped).tobytes(), array.tobytes(), f"{what}: .npy, mapped")


def all_served(path, tensors, places=None):
    """A mount of the file shows exactly these tensors; their places are those of GGUFReader."""
    if places is None:
        places = {t.name: t.data_offset for t in gguf.GGUFReader(path).tensors}
    with mounted(path) as mnt:
        index = json.loads(read(mnt / "index.json"))
        same(sorted(n for n, t in index.items() if t["origin"] == "stored"), sorted(tensors), "names")
        for name, tensor in tensors.items():
            served(mnt, name, tensor)
            meta = json.loads(read(mnt / "tensors" / name / "meta.json"))
            same(meta, {"name": name} | described(tensor, path.name, places[name]), f"meta.json of {name}")
            same(index[name]["offset"], places[name], f"offset of {name}")


@check
def random_bytes_of_every_type(tmp):
    tensors = {}
    for name, per_block, _ in TYPES.values():
        for i in range(2):
            shape = [int(RNG.integers(1, 9)), per_block * int(RNG.integers(1, 70 if per_block == 1 else 9))]
            tensors[f"blk.{i}.{name}"] = random(RNG, name, *shape)
    by_hand(tmp / "by-hand.gguf", tensors)
    # The package has no Q2_0, and another size for Q8_1, so that GGUFReader cannot read all of it.
    all_served(tmp / "by-hand.gguf", tensors, by_hand(tmp / "by-hand.gguf", tensors))
    known = {n: t for n, t in tensors.items() if t.dtype not in ("Q2_0", "Q8_1")}
    by_package(tmp / "by-package.gguf", known)
    all_served(tmp / "by-package.gguf", known)


@check
def edge_scales_of_every_type(tmp):
    """Every pair of edge values as a block's scales, with random codes."""
    tensors = {}
    for name, places in SCALES.items():
        _, per_block, size = TYPES[NUMBERS[name]]
        pairs = [(a, b) for a in EDGES for b in EDGES] if len(places) == 2 else [(a,) for a in EDGES]
        blocks = np.frombuffer(RNG.bytes(len(pairs) * size), np.uint8).reshape(-1, size).copy()
        for block, pair in zip(blocks, pairs):
            for place, bits in zip(places, pair):
                block[place : place + 2] = np.frombuffer(np.uint16(bits).tobytes(), np.uint8)
        tensors[name] = Tensor(name, [len(pairs), per_block], blocks.tobytes())
    # IQ1_M spreads the bits of its one scale over the top nibbles of four words.
    blocks = np.frombuffer(RNG.bytes(len(EDGES) * 56), np.uint8).reshape(-1, 56).copy()
    for block, bits in zip(blocks, EDGES):
        words = block[48:].view("<u2")
        words[:] = [(int(w) & 0x0FFF) | (bits >> 4 * i & 15) << 12 for i, w in enumerate(words)]
    tensors["IQ1_M"] = Tensor("IQ1_M", [len(EDGES), 256], blocks.tobytes())
    # All scale bytes of the 4-bit floats.
    for name, scales in (("MXFP4", 1), ("NVFP4", 4)):
        _, per_block, size = TYPES[NUMBERS[name]]
        blocks = np.frombuffer(RNG.bytes(256 * size), np.uint8).reshape(-1, size).copy()
        for k in range(scales):
            blocks[:, k] = np.roll(np.arange(256, dtype=np.uint8), k)
        tensors[name] = Tensor(name, [256, per_block], blocks.tobytes())
    same(sorted(tensors), sorted(DECODED), "types with scales")
    by_hand(tmp / "m.gguf", tensors)
    with mounted(tmp / "m.gguf") as mnt:
        for name, tensor in tensors.items():
            served(mnt, name, tensor, "edge scales,")


@check
def every_half_as_a_scale(tmp):
    """All 65536 F16 codes as the scale of a block, of one type of each family that has one."""
    tensors = {}
    for name in ("Q8_0", "Q4_1", "Q6_K", "IQ4_NL", "IQ3_S", "TQ2_0"):
        _, per_block, size = TYPES[NUMBERS[name]]
        blocks = np.frombuffer(RNG.bytes(65536 * size), np.uint8).reshape(-1, size).copy()
        place = SCALES[name][-1]
        blocks[:, place : place + 2] = np.arange(65536, dtype="<u2").view(np.uint8).reshape(-1, 2)
        tensors[name] = Tensor(name, [65536, per_block], blocks.tobytes())
    by_hand(tmp / "m.gguf", tensors)
    with mounted(tmp / "m.gguf") as mnt:
        for name, tensor in tensors.items():
            same_values(read(mnt / "tensors" / name / "f32"), tensor.f32(), name)


@check
def every_code_of_the_plain_types(tmp):
    tensors = {name: Tensor(name, (t := every_code(name)).shape, t.data) for name in [*PLAIN, "BF16"]}
    path = tmp / "m.gguf"
    by_package(path, tensors)
    all_served(path, tensors)


@check
def what_the_package_quantized(tmp):
    weights = RNG.standard_normal((24, 512), np.float32) * 0.02
    tensors, refused = {}, []
    for name in DECODED:
        try:
            data = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[name])
        except (NotImplementedError, KeyError):
            refused.append(name)
            continue
        tensors[f"{name}.weight"] = Tensor(name, weights.shape, data.tobytes())
    assert len(tensors) >= 8, f"the package quantizes only {sorted(tensors)}"
    by_package(tmp / "m.gguf", tensors)
    all_served(tmp / "m.gguf", tensors)


def of_all_shapes():
    """Zero to four dimensions, ones and zeros among them, of a plain and two block types."""
    shapes = [[], [1], [3], [5, 1], [1, 1, 7], [2, 3, 4], [2, 1, 3, 5], [0], [0, 4], [4, 0], [3, 0, 2], [0, 0], [2, 0, 3, 1]]
    tensors = {}
    for dtype, per_block in [("F32", 1), ("F16", 1), ("BF16", 1), ("I64", 1), ("Q4_0", 32), ("Q6_K", 256)]:
        for shape in shapes:
            if shape or per_block == 1:
                whole = [*shape[:-1], shape[-1] * per_block] if shape else []
                tensors[f"{dtype}.{'x'.join(map(str, whole)) or 'scalar'}"] = random(RNG, dtype, *whole)
    return tensors


@check
def shapes_of_zero_to_four_dimensions(tmp):
    tensors = of_all_shapes()
    all_served(tmp / "m.gguf", tensors, by_hand(tmp / "m.gguf", tensors))
    del tensors["BF16.scalar"]  # GGUFReader wants a last dimension for what it gives as bytes
    by_hand(tmp / "m.gguf", tensors)
    reader = {t.name: list(reversed(t.shape.tolist())) for t in gguf.GGUFReader(tmp / "m.gguf").tensors}
    same(reader, {n: t.shape for n, t in tensors.items()}, "shapes by GGUFReader")


@check
def alignments_and_versions(tmp):
    """Data at odd addresses (alignment 1) and far apart; both versions; any order, holes."""
    tensors = {f"t.{n}": random(RNG, n, 3, TYPES[NUMBERS[n]][1] * 2) for n in ["Q8_0", "F16", "IQ2_XXS", "BF16", "Q5_K", "F64", "F32", "TQ1_0"]}
    for alignment in (1, 2, 4, 8, 16, 32, 64, 256, 4096, 65536):
        path = tmp / f"{alignment}.gguf"
        if alignment >= 8:  # the package's reader wants what it reads to be where its type may be
            by_package(path, tensors, alignment=alignment)
            all_served(path, tensors)
        for version in (2, 3):
            odd = [("x" * int(RNG.integers(1, 9)), "bool", 1)]
            order = list(RNG.permutation(list(tensors)))
            gap, start = (int(RNG.integers(0, 3)) for _ in "ab")
            places = by_hand(path, tensors, odd, version, alignment, order, gap, start * alignment)
            all_served(path, tensors, places)


@check
def reads_at_random_places(tmp):
    """pread of f32, npy and raw at any place and length, buffered, mapped, and by O_DIRECT."""
    tensors = {n: random(RNG, n, 7, 50 * (TYPES[NUMBERS[n]][1] // 32 * 32)) for n in DECODED}
    by_hand(tmp / "m.gguf", tensors)
    with mounted(tmp / "m.gguf") as mnt:
        for name, tensor in tensors.items():
            whole = tensor.f32().reshape(-1)
            path = mnt / "tensors" / name / "f32"
            size = path.stat().st_size
            for flags in (os.O_RDONLY, os.O_RDONLY | os.O_DIRECT):
                file = os.open(path, flags)
                memory = mmap.mmap(-1, 1 << 20)  # aligned, as O_DIRECT wants it
                try:
                    for _ in range(25):
                        at = int(RNG.integers(0, size)) & (-512 if flags & os.O_DIRECT else -1)
                        n = min(int(2 ** RNG.uniform(0, 17)), size - at)
                        wanted = (n + 511) & -512 if flags & os.O_DIRECT else n
                        got = os.preadv(file, [memoryview(memory)[:wanted]], at)
                        assert got >= n, f"{name}: {got} bytes of {wanted} at {at}"
                        first, last = at // 4, -(-(at + n) // 4)
                        expected = np.ascontiguousarray(whole[first:last])
                        around = np.frombuffer(expected.tobytes(), np.uint8).copy()
                        around[at - 4 * first :][:n] = np.frombuffer(memory[:n], np.uint8)
                        same_values(around, expected, f"{name}: {n} bytes at {at}")
                finally:
                    os.close(file)
            mapped = np.memmap(path, "<f4", mode="r")
            for _ in range(20):
                at, step = int(RNG.integers(0, whole.size)), int(RNG.integers(1, 900))
                same_values(mapped[at::step].tobytes(), whole[at::step], f"{name}: mapped, {at}::{step}")
            del mapped
            same_values(run("tail", "-c", "4000", path), whole[-1000:], f"tail of {name}")


@check
def commands_without_mounting(tmp):
    tensors = {f"a.{n}": random(RNG, n, 3, TYPES[NUMBERS[n]][1]) for n in BLOCKS}
    path = tmp / "m.gguf"
    places = by_hand(path, tensors)
    listed = {t["name"]: t for t in json.loads(stfs("ls", "--json", path))}
    same(sorted(listed), sorted(tensors), "names")
    for name, tensor in tensors.items():
        entry = {"name": name, "dtype": tensor.dtype, "shape": tensor.shape, "nbytes": len(tensor.data), "origin": "stored",
                 "path": f"tensors/{name}", "file": "m.gguf", "offset": places[name]}  # fmt: skip
        same(listed[name], entry, "ls --json")
        same_bytes(stfs("cat", path, name), tensor.data, f"cat of {name}")
        if (expected := tensor.f32()) is not None:
            same_values(stfs("cat", path, name, "--view", "f32"), expected, f"cat of {name}")
            assert stfs("show", path, name), f"show of {name}"
    with mounted(path) as mnt:
        for name in tensors:
            about = {k: os.getxattr(mnt / "tensors" / name / "raw", f"user.stfs.{k}").decode() for k in ("name", "dtype", "shape", "origin")}
            expected = {"name": name, "dtype": tensors[name].dtype, "shape": ",".join(map(str, tensors[name].shape)), "origin": "stored"}
            same(about, expected, "extended attributes")


@check
def statistics_by_value(tmp):
    """stat --json of block types: what NumPy computes from the package's values."""
    weights = RNG.standard_normal((8, 512), np.float32)
    names = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0"]
    tensors = {n: Tensor(n, weights.shape, gguf.quants.quantize(weights, gguf.GGMLQuantizationType[n]).tobytes()) for n in names}
    tensors |= {n: random(RNG, n, 4, 512) for n in ("IQ3_S", "Q6_K", "NVFP4")} | {"F32": float_tensor("F32", weights)}
    by_hand(tmp / "m.gguf", tensors)
    for entry in json.loads(stfs("stat", "--json", tmp / "m.gguf")):
        tensor = tensors.pop(entry["name"])
        all_values = values(tensor.dtype, tensor.data)
        finite = all_values[np.isfinite(all_values)].astype(np.float64)
        same((entry["dtype"], entry["shape"]), (tensor.dtype, tensor.shape), entry["name"])
        same((entry["min"], entry["max"]), (finite.min(), finite.max()), f"extremes of {entry['name']}")
        same(entry["zeros"], int((all_values == 0).sum()), f"zeros of {entry['name']}")
        same(entry["nan"], int(np.isnan(all_values).sum()), f"NaN of {entry['name']}")
        same(entry["inf"], int(np.isinf(all_values).sum()), f"Inf of {entry['name']}")
        assert np.isclose(entry["mean"], finite.mean(), rtol=1e-9, atol=1e-9 * np.abs(finite).max()), entry
        assert np.isclose(entry["std"], finite.std(), rtol=1e-9), entry
    same(sorted(tensors), [], "without statistics")


@check
def previews_are_pictures_of_the_values(tmp):
    """The picture of a block-typed tensor is that of the same values stored as F32."""
    from PIL import Image

    weights = RNG.standard_normal((40, 512), np.float32)
    quantized = Tensor("Q8_0", weights.shape, gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q8_0).tobytes())
    (tmp / "a").mkdir(), (tmp / "b").mkdir()
    by_hand(tmp / "a/m.gguf", {"w": quantized})
    by_hand(tmp / "b/m.gguf", {"w": float_tensor("F32", quantized.f32())})
    with mounted(tmp / "a/m.gguf") as one, mounted(tmp / "b/m.gguf") as other:
        pictures = [np.array(Image.open(m / "preview/w.png").convert("RGB")) for m in (one, other)]
    # The captions name the dtype: 5 lines of 17 pixels, above the margin of 16. All above them is the same.
    one, other = (p[: -(16 + 5 * 17)] for p in pictures)
    assert one.shape == other.shape and (one == other).all(), "the pictures differ"
    assert len(np.unique(one[16:96].reshape(-1, 3), axis=0)) > 20, "the heat map is empty"


if __name__ == "__main__":
    main()
