"""GGUF models for checks: random blocks of every type; files written by the `gguf` package, or byte by
byte where the package cannot write them; values by the package, or by NumPy where it has none.
"""

import pathlib
import struct

import gguf
import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType as Type

# ggml's types by number: name, values and bytes of a block, and whether no value can round. The package
# lacks Q2_0, and has 40 bytes for Q8_1, whose block is 36 bytes in ggml.
TYPES = {int(t): (t.name, *gguf.GGML_QUANT_SIZES[t]) for t in Type} | {9: ("Q8_1", 32, 36), 42: ("Q2_0", 64, 18)}
NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}
ROUNDED = {"Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K", "I32", "I64", "F64"}
WITHOUT_VALUES = {"Q8_1", "Q8_K"}
PLAIN = {"F32": "<f4", "F16": "<f2", "I8": "|i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F64": "<f8"}
BLOCKS = [name for name, values, _ in TYPES.values() if values > 1]
DECODED = [name for name in BLOCKS if name not in WITHOUT_VALUES]
# Where a block's F16 scales are.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
    "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0],
    "IQ3_S": [0], "IQ1_S": [0], "TQ1_0": [52], "TQ2_0": [64], "Q1_0": [0], "Q2_0": [0],
}  # fmt: skip

# The numbers of the types of metadata values, and how one value is packed.
VALUES = {
    "uint8": (0, "<B"), "int8": (1, "<b"), "uint16": (2, "<H"), "int16": (3, "<h"), "uint32": (4, "<I"), "int32": (5, "<i"),
    "float32": (6, "<f"), "bool": (7, "<B"), "string": (8, None), "array": (9, None), "uint64": (10, "<Q"), "int64": (11, "<q"),
    "float64": (12, "<d"),
}  # fmt: skip


class Tensor:
    """A tensor as a GGUF stores it: a type by name, a shape outermost first, bytes."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), bytes(data)
        _, values, size = TYPES[NUMBERS[dtype]]
        assert int(np.prod(self.shape, dtype=object)) * size == len(self.data) * values, (dtype, shape, len(self.data))

    def f32(self):
        """The values, as an array; None where there are none."""
        return None if self.dtype in WITHOUT_VALUES else values(self.dtype, self.data).reshape(self.shape)


def nbytes(dtype, shape):
    """Bytes of a tensor."""
    _, per_block, size = TYPES[NUMBERS[dtype]]
    return int(np.prod(shape, dtype=object)) // per_block * size


def random(rng, dtype, *shape):
    """A tensor of random bytes."""
    return Tensor(dtype, shape, rng.bytes(nbytes(dtype, shape)))


def values(dtype, data):
    """What bytes of a type mean, flat, as the package has it; by the contract's formula or by NumPy
    where the package does not.
    """
    with np.errstate(all="ignore"):
        if not data:
            return np.zeros(0, np.float32)
        if dtype == "BF16":  # by its bits: a NaN keeps its payload
            return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        if dtype in PLAIN:
            return np.frombuffer(data, PLAIN[dtype]).astype(np.float32)
        blocks = np.frombuffer(data, np.uint8).reshape(-1, TYPES[NUMBERS[dtype]][2])
        if dtype in ("Q1_0", "Q2_0"):
            scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
            codes = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
            if dtype == "Q1_0":
                return np.where(codes == 1, scale, -scale).reshape(-1)
            codes = codes.reshape(len(codes), -1, 2) @ np.array([1, 2])
            return ((codes - 1).astype(np.float32) * scale).reshape(-1)
        return gguf.quants.dequantize(blocks, Type[dtype]).reshape(-1)


def numpys_own(tensor):
    """The tensor as an array of NumPy's own type; None if it has none."""
    return np.frombuffer(tensor.data, PLAIN[tensor.dtype]).reshape(tensor.shape) if tensor.dtype in PLAIN else None


def float_tensor(dtype, array):
    """A tensor of F32, F16 or BF16 that holds an array."""
    kind = {"F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16}[dtype]
    return Tensor(dtype, array.shape, np.ascontiguousarray(array.astype(kind)).tobytes())


def by_package(path, tensors, keys=None, architecture="llama", alignment=None, **options):
    """Writes a model with GGUFWriter; `keys` gets the writer, and the paths of the files come back."""
    writer = gguf.GGUFWriter(path, architecture, **options)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    if keys is not None:
        keys(writer)
    for name, tensor in tensors.items():
        own = numpys_own(tensor)
        if own is not None:
            writer.add_tensor(name, own)
        else:  # as bytes, whose last axis is a row's bytes
            rows = np.frombuffer(tensor.data, np.uint8).reshape(*tensor.shape[:-1], nbytes(tensor.dtype, tensor.shape[-1:]))
            writer.add_tensor(name, rows, raw_dtype=Type[tensor.dtype])
    files = writer.format_shard_names(pathlib.Path(path))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return files


def string(text):
    """A string as GGUF stores it."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(kind, content):
    """A metadata value, without its type; an array's content is (type, elements)."""
    if kind == "string":
        return string(content)
    if kind == "array":
        of, elements = content
        return struct.pack("<IQ", VALUES[of][0], len(elements)) + b"".join(value(of, e) for e in elements)
    return struct.pack(VALUES[kind][1], content)


def by_hand(path, tensors, keys=(), version=3, alignment=None, order=None, gap=0, start=0):
    """Writes a file byte by byte. `keys` are (name, type, content). The data lie in the order of names
    `order`, with `gap` aligned pieces between them, and the first at `start`.
    """
    keys = list(keys) + ([("general.alignment", "uint32", alignment)] if alignment else [])
    alignment = alignment or 32
    places, data, tensors = {}, bytearray(start), dict(tensors)
    for name in order or tensors:
        data += bytes(-len(data) % alignment)
        places[name] = len(data)
        data += tensors[name].data + bytes(gap * alignment)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    head += b"".join(string(k) + struct.pack("<I", VALUES[kind][0]) + value(kind, content) for k, kind, content in keys)
    for name, t in tensors.items():
        head += string(name) + struct.pack(f"<I{len(t.shape)}Q", len(t.shape), *reversed(t.shape))
        head += struct.pack("<IQ", NUMBERS[t.dtype], places[name])
    head += bytes(-len(head) % alignment) if tensors else b""
    pathlib.Path(path).write_bytes(head + data)
    return {name: len(head) + place for name, place in places.items()}


def llama(rng, types=("Q4_K", "Q6_K"), layers=2, head=True):
    """Tensors with llama.cpp's names. The head, down and the first v are of the second type, as in a
    K-quant mix.
    """
    main_type, other = types
    tensors = {"token_embd.weight": random(rng, main_type, 64, 256), "output_norm.weight": random(rng, "F32", 256)}
    for i in range(layers):
        p = f"blk.{i}."
        tensors |= {p + "attn_norm.weight": random(rng, "F32", 256), p + "ffn_norm.weight": random(rng, "F32", 256)}
        tensors |= {p + f"attn_{x}.weight": random(rng, main_type if i or x != "v" else other, rows, 256) for x, rows in [("q", 12), ("k", 4), ("v", 4)]}
        tensors |= {p + f"attn_{x}.bias": random(rng, "F32", rows) for x, rows in [("q", 12), ("k", 4), ("v", 4)]}
        tensors |= {p + "attn_output.weight": random(rng, main_type, 256, 256), p + "ffn_gate_inp.weight": random(rng, "F32", 3, 256)}
        tensors |= {p + f"ffn_{x}_exps.weight": random(rng, main_type, 3, 5, 256) for x in ("gate", "up")}
        tensors |= {p + f"ffn_{x}_exps.bias": random(rng, "F32", 3, 5) for x in ("gate", "up")}
        tensors |= {p + "ffn_down_exps.weight": random(rng, other, 3, 7, 256)}
        tensors |= {p + f"ffn_{x}.weight": random(rng, main_type, 5, 256) for x in ("gate", "up")}
    return tensors | ({"output.weight": random(rng, other, 64, 256)} if head else {})
