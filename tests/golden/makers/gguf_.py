"""GGUF: a tensor of every type of ggml, written and dequantized by the package `gguf`.

`gguf-blocks` has blocks of random bytes, half of them with scales at the edges of F16. `gguf-quantized`
has what ggml's own quantizers make of random values, and the package's for the types that it can
quantize. Two types are not in the package (0.19.0): ggml's C dequantizes Q1_0 and Q2_0.

`GGML` names a shared library of ggml's ggml-quants.c. This needs no PyTorch, so nothing of common.py.
"""

import ctypes
import importlib.metadata
import os
import pathlib
import shutil

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from safetensors.numpy import save_file

GOLDEN = pathlib.Path(__file__).resolve().parents[1]
Q1_0, Q2_0 = 41, 42
GGML_QUANT_SIZES[Q2_0] = (64, 18)
NAMES = {int(t): t.name for t in GGMLQuantizationType} | {Q2_0: "Q2_0"}
# Blocks without values: what ggml quantizes activations to.
SCRATCH = (GGMLQuantizationType.Q8_1, GGMLQuantizationType.Q8_K)

# Where a block has its F16 scales: at its start, except in these.
SCALES = {
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "TQ1_0": (52,), "TQ2_0": (64,), "IQ1_M": (), "MXFP4": (), "NVFP4": (),
}  # fmt: skip
# Zeros, subnormals, the smallest and largest normal numbers, infinities, NaN.
EDGES = (0, 0x8000, 1, 0x8001, 0x3FF, 0x83FF, 0x400, 0x8400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0xFE00)

PACKAGE = "gguf.GGUFWriter; gguf.quants.dequantize"
PLAIN = "plain types: NumPy's astype; Q1_0 and Q2_0: dequantize_row_* of llama.cpp's ggml-quants.c"


def make():
    ggml = ctypes.CDLL(os.environ["GGML"])
    rng = np.random.default_rng(0)
    tensors = {NAMES[t]: (t, _random_blocks(t, rng)) for t in _block_types()} | _plain(rng)
    _save("gguf-blocks", tensors, ggml, f"blocks of random bytes; {PACKAGE}; {PLAIN}")
    values = rng.standard_normal((2, 512), dtype=np.float32) * np.array([[0.02], [3]], dtype=np.float32)
    tensors = {NAMES[t]: (t, _quantize(t, values, ggml)) for t in _block_types()}
    how = "gguf.quants.quantize, and quantize_* of llama.cpp's ggml-quants.c where it cannot"
    _save("gguf-quantized", tensors, ggml, f"{how}; {PACKAGE}; {PLAIN}")


def _block_types():
    return [t for t, (values, _) in GGML_QUANT_SIZES.items() if values > 1 and t not in SCRATCH]


def _random_blocks(dtype, rng):
    """Four rows of blocks: in the first two, the scales are edges."""
    values, size = GGML_QUANT_SIZES[dtype]
    per_row = max(2, 128 // values)
    blocks = rng.integers(0, 256, (4, per_row, size), dtype=np.uint8)
    for at in SCALES.get(NAMES[dtype], (0,)):
        edges = rng.choice(np.array(EDGES, dtype="<u2"), (2, per_row))
        usual = rng.normal(0, 0.05, (2, per_row)).astype("<f2").view("<u2")
        scales = np.concatenate([edges, usual])[..., None]
        blocks[:, :, at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(4, -1)


def _plain(rng):
    wide = rng.integers(-(2**63), 2**63, (3, 5), dtype=np.int64)
    plain = {
        "F32": wide.astype(np.float32) * np.float32(1e-20), "F16": wide[:2].view(np.float16), "F64": wide * [[1e-20], [1e-60], [1e30]],
        "I8": wide.astype(np.int8), "I16": wide.astype(np.int16), "I32": wide.astype(np.int32), "I64": wide,
        "BF16": wide.view(np.uint8),
    }  # fmt: skip
    return {name: (GGMLQuantizationType[name], array) for name, array in plain.items()}


def _quantize(dtype, values, ggml):
    """Rows of values → rows of blocks."""
    try:
        return quants.quantize(values, GGMLQuantizationType(dtype))
    except (ValueError, NotImplementedError):  # the package does not know the type, or cannot quantize to it
        pass
    name = NAMES[dtype]
    if name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M"):
        ggml.iq2xs_init_impl(int(dtype))
    if name in ("IQ3_XXS", "IQ3_S"):
        ggml.iq3xs_init_impl(256 if name == "IQ3_XXS" else 512)
    per_block, size = GGML_QUANT_SIZES[dtype]
    rows, n = values.shape
    blocks = np.zeros((rows, n // per_block * size), dtype=np.uint8)
    importance = np.ones(n, dtype=np.float32)
    function = getattr(ggml, f"quantize_{name if name[-1] == 'K' else name.lower()}".replace("Q", "q"))
    for source, target in zip(values, blocks):
        function(_pointer(source), _pointer(target), ctypes.c_int64(1), ctypes.c_int64(n), _pointer(importance))
    return blocks


def _dequantize(dtype, data, ggml):
    if dtype in (Q1_0, Q2_0):
        per_block, size = GGML_QUANT_SIZES[dtype]
        values = np.zeros((len(data), data.shape[1] // size * per_block), dtype=np.float32)
        function = getattr(ggml, f"dequantize_row_{NAMES[dtype].lower()}")
        function(_pointer(data), _pointer(values), ctypes.c_int64(values.size))
        return values
    if GGML_QUANT_SIZES[dtype][0] > 1 or NAMES[dtype] == "BF16":
        return quants.dequantize(data, dtype)
    return data.astype(np.float32)


def _pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def _save(case, tensors, ggml, how):
    case = GOLDEN / case
    shutil.rmtree(case, ignore_errors=True)
    (case / "model").mkdir(parents=True)
    writer = gguf.GGUFWriter(case / "model/model.gguf", "llama")
    expected = {}
    for name, (dtype, data) in tensors.items():
        data = np.ascontiguousarray(data)
        writer.add_tensor(f"{name.lower()}.weight", data, raw_dtype=dtype)
        with np.errstate(all="ignore"):
            expected[f"{name.lower()}.weight"] = np.ascontiguousarray(_dequantize(dtype, data, ggml), dtype=np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("gguf", "numpy"))
    metadata = {"made with": f"{versions}, llama-cpp-python 0.3.36 (sdist)", "how": how, "compare": "bits"}
    save_file(expected, case / "expected.safetensors", metadata)
    size = sum(p.stat().st_size for p in case.rglob("*") if p.is_file())
    print(f"{case.name}: {len(expected)} tensors, {size} bytes")
