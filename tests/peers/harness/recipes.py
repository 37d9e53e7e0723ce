"""What the comparisons of recipes need: models made by NumPy, recipes written and run, what they leave read back."""

import functools
import json
import pathlib

import ml_dtypes  # registers bfloat16 and the small floats with NumPy
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from . import REPOSITORY, mounted, same, same_bytes, stfs

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
FLOATS = {"F32": np.float32, "F16": np.float16, "BF16": BF16, "F8_E4M3": E4M3, "F8_E5M2": E5M2}
DTYPES = FLOATS | {
    "F64": np.float64, "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U64": np.uint64, "U32": np.uint32,
    "U16": np.uint16, "U8": np.uint8, "BOOL": np.bool_, "C64": np.complex64,
}  # fmt: skip


def model(directory, tensors, config=None):
    """A model directory of these arrays."""
    directory.mkdir(parents=True)
    save_file({n: np.asarray(t, order="C") for n, t in tensors.items()}, directory / "model.safetensors", metadata={"format": "pt"})
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def example(name, directory):
    """An example of `examples/recipes`, beside the models that it names."""
    path = directory / name
    path.write_text((REPOSITORY / "examples/recipes" / name).read_text())
    return path


def load(path):
    """The arrays of a safetensors file; its own library does not read F8 into NumPy."""
    with safe_open(path, "np") as opened:  # it checks the file
        names = sorted(opened.keys())
    data = pathlib.Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    same(sorted(header), names, f"{path}: names")

    def array(entry):
        first, end = entry["data_offsets"]
        return np.frombuffer(data[start + first : start + end], DTYPES[entry["dtype"]]).reshape(entry["shape"])

    return {name: array(entry) for name, entry in header.items()}


def recipe(directory, text, name="recipe.toml"):
    """A recipe of that text."""
    path = pathlib.Path(directory) / name
    path.write_text(text)
    return path


def options(**parameters):
    """`--set` for each."""
    return [word for name, value in parameters.items() for word in ("--set", f"{name}={value}")]


def left(path, *more, **parameters):
    """What the rules leave: the arrays of `export/model.safetensors` of a mount."""
    with mounted(path, *more, *options(**parameters)) as mount:
        return load(mount / "export/model.safetensors")


def same_tensor(found, expected, what):
    """The same dtype, shape and bytes; a NaN equals any NaN."""
    expected = np.asarray(expected, order="C")
    same((found.dtype, found.shape), (expected.dtype, expected.shape), what)
    if found.tobytes() == expected.tobytes():
        return
    if expected.dtype.kind in "fV" and expected.dtype.itemsize <= 8 and expected.dtype != np.bool_:
        with np.errstate(invalid="ignore"):
            nan = np.isnan(expected.astype(np.float64))
            same(np.isnan(found.astype(np.float64)).tolist(), nan.tolist(), f"{what}: NaN")
        found, expected = found.copy(), expected.copy()
        found[nan] = expected[nan] = 0
    same_bytes(found.tobytes(), expected.tobytes(), what)


def same_tensors(found, expected, what):
    """The same names, and each tensor the same."""
    same(sorted(found), sorted(expected), f"{what}: names")
    for name, tensor in expected.items():
        same_tensor(found[name], tensor, f"{what}: {name}")


def meta(path, name, **parameters):
    """`meta.json` of a tensor, without mounting."""
    return json.loads(stfs("cat", path, name, "--view", "meta", *options(**parameters)))


def f32(x):
    """The values of an array, as binary32; F64 and integers are rounded."""
    return np.asarray(x).astype(np.float32)


def product(b, a):
    """`b @ a` in binary32, products rounded, summed from k = 0 upwards."""
    b, a = f32(b), f32(a)
    terms = [b[:, k : k + 1] * a[k : k + 1, :] for k in range(b.shape[1])]
    # Not from 0: that would make a sum of -0 a +0.
    return functools.reduce(np.add, terms) if terms else np.zeros((b.shape[0], a.shape[1]), np.float32)
