"""PyTorch checkpoints without PyTorch: Python's pickle and zipfile write them, with classes that pickle
under torch's names; NumPy and ml_dtypes know what the tensors are.
"""

import collections
import io
import pathlib
import pickle
import struct
import sys
import types
import zipfile

import ml_dtypes
import numpy as np

# torch's name, stfs's name, NumPy's type, and the class of its storages if there is one.
DTYPES = {
    "float64": ("F64", np.float64, "Double"), "float32": ("F32", np.float32, "Float"), "float16": ("F16", np.float16, "Half"),
    "bfloat16": ("BF16", ml_dtypes.bfloat16, "BFloat16"), "int64": ("I64", np.int64, "Long"), "int32": ("I32", np.int32, "Int"),
    "int16": ("I16", np.int16, "Short"), "int8": ("I8", np.int8, "Char"), "uint8": ("U8", np.uint8, "Byte"), "bool": ("BOOL", np.bool_, "Bool"),
    "complex64": ("C64", np.complex64, "ComplexFloat"), "complex128": ("C128", np.complex128, "ComplexDouble"),
    "uint16": ("U16", np.uint16, None), "uint32": ("U32", np.uint32, None), "uint64": ("U64", np.uint64, None),
    "float8_e4m3fn": ("F8_E4M3", ml_dtypes.float8_e4m3fn, None), "float8_e5m2": ("F8_E5M2", ml_dtypes.float8_e5m2, None),
    "float8_e4m3fnuz": ("F8_E4M3FNUZ", ml_dtypes.float8_e4m3fnuz, None), "float8_e5m2fnuz": ("F8_E5M2FNUZ", ml_dtypes.float8_e5m2fnuz, None),
    "float8_e8m0fnu": ("F8_E8M0", ml_dtypes.float8_e8m0fnu, None),
}  # fmt: skip
MAGIC = 0x1950A86A20F9469CFC6C


def named(name, made):
    """Makes an object one that pickles as `module.name`."""
    module, _, short = name.rpartition(".")
    parts = module.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    made.__module__, made.__qualname__, made.__name__ = module, short, short
    setattr(sys.modules[module], short, made)
    return made


def _function(name):
    return named(name, types.FunctionType((lambda *a: None).__code__, {}))


REBUILD = {n: _function(f"torch._utils.{n}") for n in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter")}
STORAGES = {torch: named(f"torch.{of}Storage", type("", (), {})) for torch, (_, _, of) in DTYPES.items() if of}
UNTYPED = named("torch.storage.UntypedStorage", type("", (), {}))


class _Dtype:
    """A dtype pickles as a global of torch."""

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return self.name


for _name in DTYPES:
    setattr(sys.modules["torch"], _name, _Dtype(_name))
    getattr(sys.modules["torch"], _name).__module__ = "torch"


class Storage:
    """An array of one dimension, under a key."""

    def __init__(self, key, dtype, array, window=None, location="cpu"):
        self.key, self.dtype, self.array, self.window, self.location = key, dtype, array, window, location

    def id(self, legacy):
        """The persistent id."""
        typed = STORAGES.get(self.dtype)
        count = self.array.size if typed else self.array.nbytes
        return ("storage", typed or UNTYPED, self.key, self.location, count, *([self.window] if legacy else []))

    def data(self, big=False):
        """Its bytes. Untyped storages are stored as they are."""
        swapped = big and DTYPES[self.dtype][2]
        return (self.array.byteswap() if swapped else self.array).tobytes()


class Tensor:
    """A strided tensor: offset, shape and strides in elements."""

    def __init__(self, storage, offset, shape, strides, old=False, parameter=False):
        self.storage, self.offset, self.shape, self.strides = storage, offset, tuple(shape), tuple(strides)
        self.old, self.parameter = old, parameter

    def __reduce__(self):
        arguments = (self.storage, self.offset, self.shape, self.strides)
        if self.old:
            made = REBUILD["_rebuild_tensor"], arguments
        elif STORAGES.get(self.storage.dtype):
            made = REBUILD["_rebuild_tensor_v2"], (*arguments, False, collections.OrderedDict())
        else:
            dtype = getattr(sys.modules["torch"], self.storage.dtype)
            made = REBUILD["_rebuild_tensor_v3"], (*arguments, False, collections.OrderedDict(), dtype)
        if not self.parameter:
            return made
        return REBUILD["_rebuild_parameter"], (_Made(made), False, collections.OrderedDict())

    @property
    def dtype(self):
        """What stfs calls it."""
        return DTYPES[self.storage.dtype][0]

    def array(self):
        """What NumPy makes of it: a contiguous copy."""
        start = self.offset + (self.storage.window[1] if self.storage.window else 0)
        whole = self.storage.array[start:] if 0 not in self.shape else self.storage.array[:0]
        strides = [s * whole.itemsize for s in self.strides]
        # A view of the bits, because as_strided copies no type of ml_dtypes.
        bits = whole.view(np.dtype(f"V{whole.itemsize}"))
        view = np.lib.stride_tricks.as_strided(bits, self.shape, strides)
        return np.frombuffer(np.ascontiguousarray(view).tobytes(), whole.dtype).reshape(self.shape)

    def contiguous(self):
        """Whether its elements lie one after another."""
        if 0 in self.shape:
            return True
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


class _Made:
    """Something that pickles as that call."""

    def __init__(self, call):
        self.call = call

    def __reduce__(self):
        return self.call


def pickled(value, protocol=2, legacy=False):
    """The pickle of a value, and its storages by key."""
    storages = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            if isinstance(obj, Storage):
                storages[obj.key] = obj
                return obj.id(legacy)
            return None

    out = io.BytesIO()
    Pickler(out, protocol).dump(value)
    return out.getvalue(), storages


def zipped(data_pkl, storages, name="archive", streamed=False, zip64=False, big=None, version=b"3\n"):
    """An archive by zipfile. Streamed: sizes and checksums follow the data, as torch has it."""
    out = _Pipe() if streamed else io.BytesIO()
    members = {"data.pkl": data_pkl, "version": version}
    if big is not None:
        members["byteorder"] = b"big" if big else b"little"
    members |= {f"data/{key}": s.data(big) for key, s in storages.items()}
    with zipfile.ZipFile(out, "w") as archive:
        for member, data in members.items():
            with archive.open(zipfile.ZipInfo(f"{name}/{member}"), "w", force_zip64=zip64) as f:
                f.write(data)
    return out.getvalue()


class _Pipe(io.RawIOBase):
    """A stream that cannot seek."""

    def __init__(self):
        self.all = bytearray()

    def writable(self):
        return True

    def write(self, data):
        self.all += data
        return len(data)

    def getvalue(self):
        return bytes(self.all)


def legacy(object_pickle, storages, flag=True):
    """A file of the format before torch 1.6."""
    sizes = {"short": 2, "int": 4, "long": 4}
    out = b"".join(pickle.dumps(v, 2) for v in (MAGIC, 1001, {"protocol_version": 1001, "little_endian": flag, "type_sizes": sizes}))
    keys = sorted(storages)
    out += object_pickle + pickle.dumps(keys, 2)
    for key in keys:
        storage = storages[key]
        out += struct.pack("<q", storage.id(True)[4]) + storage.data()
    return out


def save(path, value, protocol=2, old=False, **options):
    """Writes a checkpoint."""
    data, storages = pickled(value, protocol, old)
    pathlib.Path(path).write_bytes((legacy if old else zipped)(data, storages, **options))


def random_storage(rng, key, dtype, count):
    """A storage of random bytes."""
    kind = np.dtype(DTYPES[dtype][1])
    data = rng.bytes(count * kind.itemsize)
    if dtype == "bool":
        data = bytes(b & 1 for b in data)
    return Storage(key, dtype, np.frombuffer(data, kind))


def random_view(rng, storage, **options):
    """A tensor somewhere in a storage: permuted, sliced, expanded, overlapping, empty or a scalar."""
    count = storage.array.size
    ndim = int(rng.integers(0, 6))
    kind = rng.choice(["permuted", "any", "contiguous", "empty"], p=[0.4, 0.4, 0.15, 0.05])
    shape = [int(n) for n in rng.integers(1, 6, ndim)]
    if kind == "any":
        strides = [int(n) for n in rng.choice([0, 1, 1, 2, 3, 5, 7, 11], ndim)]
    else:
        order = rng.permutation(ndim) if kind == "permuted" else np.arange(ndim)
        strides, step = [0] * ndim, 1
        for axis in reversed(order):
            strides[axis], step = step, step * shape[axis] * int(rng.choice([1, 1, 1, 2]) if kind == "permuted" else 1)
    if kind == "empty" and ndim:
        shape[int(rng.integers(ndim))] = 0
        return Tensor(storage, int(rng.integers(0, 2 * count)), shape, strides, **options)
    while (last := sum((n - 1) * s for n, s in zip(shape, strides))) >= count:
        axis = int(np.argmax([(n - 1) * s for n, s in zip(shape, strides)]))
        shape[axis] -= 1
    return Tensor(storage, int(rng.integers(0, count - last)), shape, strides, **options)
