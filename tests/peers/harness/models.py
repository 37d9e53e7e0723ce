"""Model directories for checks, written by the safetensors library; and what their values are,
by NumPy and ml_dtypes.
"""

import ctypes
import json
import pathlib

import ml_dtypes
import numpy as np
import safetensors

# safetensors' name, bits, the library's own word for it (None: Python cannot write it), and the
# NumPy or ml_dtypes type that knows the values (None: not a number).
DTYPES = {
    "BOOL": (8, "bool", np.bool_),
    "F4": (4, "float4_e2m1fn_x2", ml_dtypes.float4_e2m1fn),
    "F6_E2M3": (6, None, ml_dtypes.float6_e2m3fn),
    "F6_E3M2": (6, None, ml_dtypes.float6_e3m2fn),
    "U8": (8, "uint8", np.uint8),
    "I8": (8, "int8", np.int8),
    "F8_E5M2": (8, "float8_e5m2", ml_dtypes.float8_e5m2),
    "F8_E4M3": (8, "float8_e4m3fn", ml_dtypes.float8_e4m3fn),
    "F8_E8M0": (8, "float8_e8m0fnu", ml_dtypes.float8_e8m0fnu),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
    "I16": (16, "int16", np.int16),
    "U16": (16, "uint16", np.uint16),
    "F16": (16, "float16", np.float16),
    "BF16": (16, "bfloat16", ml_dtypes.bfloat16),
    "I32": (32, "int32", np.int32),
    "U32": (32, "uint32", np.uint32),
    "F32": (32, "float32", np.float32),
    "C64": (64, "complex64", np.complex64),
    "F64": (64, "float64", np.float64),
    "I64": (64, "int64", np.int64),
    "U64": (64, "uint64", np.uint64),
}
NUMPY_OWN = ("BOOL", "U8", "I8", "I16", "U16", "F16", "I32", "U32", "F32", "C64", "F64", "I64", "U64")
EXACT = ("BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0",
         "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16", "U16", "F16", "BF16", "F32")  # fmt: skip


class Tensor:
    """A stored tensor: dtype by safetensors' name, shape in elements, bytes."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), bytes(data)
        bits = int(np.prod(self.shape, dtype=object)) * DTYPES[dtype][0]
        assert bits == 8 * len(self.data), f"{dtype} {shape}: {len(self.data)} bytes"

    def f32(self):
        """The values as float32, flat; None where there are none."""
        return values(self.dtype, self.data)

    def array(self):
        """The tensor as NumPy has it (its own dtypes only)."""
        return np.frombuffer(self.data, DTYPES[self.dtype][2]).reshape(self.shape)


def values(dtype, data):
    """Stored bytes as float32, flat, as NumPy and ml_dtypes convert them."""
    kind = DTYPES[dtype][2]
    raw = np.frombuffer(data, np.uint8)
    if dtype == "C64":
        return None
    if dtype == "BOOL":
        return (raw != 0).astype(np.float32)
    if dtype == "F4":
        raw = np.stack([raw & 15, raw >> 4], axis=1).reshape(-1)
    elif dtype in ("F6_E2M3", "F6_E3M2"):
        bits = np.unpackbits(raw, bitorder="little").reshape(-1, 6)
        raw = np.packbits(bits, axis=1, bitorder="little").reshape(-1)
    if dtype == "BF16":  # by its bits: a NaN keeps its payload
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):
        return raw.view(kind).astype(np.float32)


def write(path, tensors, metadata=None):
    """Writes a safetensors file with the library."""
    keep, specs = [], {}
    for name, t in tensors.items():
        buffer = ctypes.create_string_buffer(t.data, max(1, len(t.data)))
        keep.append(buffer)
        shape = list(t.shape)
        if t.dtype == "F4":  # the library counts bytes here, and doubles the last axis
            shape[-1] //= 2
        specs[name] = safetensors.TensorSpec(
            dtype=DTYPES[t.dtype][1], shape=shape, data_ptr=ctypes.addressof(buffer), data_len=len(t.data)
        )
    safetensors.serialize_file(specs, str(path), metadata)


def write_by_hand(path, tensors, metadata=None, pad=0):
    """Writes a safetensors file without the library, for what its Python side cannot write.
    The header is padded to any length, so that data need not be aligned.
    """
    header, offset = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, t in tensors.items():
        header[name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": [offset, offset + len(t.data)]}
        offset += len(t.data)
    text = json.dumps(header, ensure_ascii=False).encode() + b" " * pad
    data = b"".join(t.data for t in tensors.values())
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + data)


def parse(path):
    """The header of a safetensors file: name -> (dtype, shape, absolute offset, length)."""
    with open(path, "rb") as f:
        n = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(n))
    return {
        name: (t["dtype"], t["shape"], 8 + n + t["data_offsets"][0], t["data_offsets"][1] - t["data_offsets"][0])
        for name, t in header.items()
        if name != "__metadata__"
    }


def index(directory, shards):
    """Writes model.safetensors.index.json: shard name -> tensor names."""
    weight_map = {name: shard for shard, names in shards.items() for name in names}
    path = pathlib.Path(directory) / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))


def every_code(dtype, seed=1):
    """A tensor of that dtype: all codes of the types up to 16 bits, special and random values of
    the wide ones.
    """
    rng = np.random.default_rng(seed)
    bits = DTYPES[dtype][0]
    if bits == 4:
        return Tensor(dtype, [16, 32], bytes(range(256)))
    if bits == 6:  # every code at each of the four places
        codes = np.concatenate([np.roll(np.arange(64, dtype=np.uint8), k) for k in range(4)])
        stream = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :6].reshape(-1)
        return Tensor(dtype, [4, 64], np.packbits(stream, bitorder="little").tobytes())
    if bits == 8:
        return Tensor(dtype, [8, 32], bytes(range(256)))
    if bits == 16:
        return Tensor(dtype, [256, 256], np.arange(65536, dtype="<u2").tobytes())
    wide = _wide(dtype, rng)
    return Tensor(dtype, [wide.size], wide.tobytes())


def _wide(dtype, rng):
    kind = DTYPES[dtype][2]
    if dtype == "F32" or dtype == "C64":
        special = np.array([0, 1 << 31, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000,
                            0x7F800001, 0x7FC00000, 0xFFC12345, 0x7FFFFFFF], "<u4")  # fmt: skip
        bits = np.concatenate([special, rng.integers(0, 1 << 32, 4084, dtype=np.uint32)])
        return bits.view(kind)
    if dtype == "F64":
        return _doubles(rng)
    info = np.iinfo(kind)
    around = [s * (2**p) + d for p in range(1, 64) for d in (-2, -1, 0, 1, 2) for s in (-1, 1)]
    # Ties at every magnitude: 25 significant bits, the last one set.
    ties = [((1 << 24) + int(r)) * 2 + 1 << p for p in range(0, 39) for r in rng.integers(0, 1 << 24, 8)]
    inside = [v for v in around + ties + [info.min, info.max, 0] if info.min <= v <= info.max]
    random = rng.integers(info.min, info.max, 4096, dtype=kind, endpoint=True)
    random >>= rng.integers(0, info.bits - 1, 4096).astype(kind)
    return np.concatenate([np.array(inside, kind), random])


def _doubles(rng):
    """Doubles beside, on and halfway between binary32 numbers, and random bit patterns."""
    floats = rng.integers(0, 0x7F800000, 2048, dtype=np.uint32)
    low, high = floats.view(np.float32).astype(np.float64), (floats + 1).view(np.float32).astype(np.float64)
    finite = np.isfinite(high)
    half = (low[finite] + high[finite]) / 2
    beside = [np.nextafter(half, -np.inf), half, np.nextafter(half, np.inf)]
    special = [0.0, -0.0, 2.0**-149, 2.0**-150, np.nextafter(2.0**-150, 1), 2.0**-151, 2.0**-1074,
               3.4028235677973366e38, np.nextafter(3.4028235677973366e38, 0), np.finfo(np.float32).max,
               np.inf, -np.inf, np.nan, 1e300]  # fmt: skip
    random = rng.integers(0, 1 << 64, 2048, dtype=np.uint64).view(np.float64)
    subnormal = rng.uniform(-(2.0**-125), 2.0**-125, 2048)
    return np.concatenate([special, *beside, -half, random, subnormal])
