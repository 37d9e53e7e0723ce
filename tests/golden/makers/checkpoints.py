"""What the makers of PyTorch checkpoints need: writing a case down, as torch itself has it.

A case is a directory `pytorch/CASE/`: `model/` with the files, and `expected.json`, which lists what may
be opened there: paths in `model/` (`.` is the directory; `FILE#KEY.PATH` is a part of a file) with their
tensors, or with the words of a refusal. Of a tensor it has what torch has after `torch.load`:

    dtype, shape   as safetensors calls and counts them
    raw            the bytes of `tensor.contiguous()`
    f32            the bytes of `tensor.to(torch.float32)`; none if that is not raw's and torch cannot
    npy            NumPy's name of the dtype that `np.save` would write; none if there is no such file
    strides        if it is not contiguous
    storage        a number: tensors of one storage have the same
    origin         more of what `meta.json` must have
"""

import ctypes
import io
import json
import pathlib
import shutil
import sys
import types
import zipfile

import torch

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "pytorch"
NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
    "complex128": "C128", "complex32": "C32", "bcomplex32": "BC32", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn_x2": "F4",
    "bits8": "BITS8", "bits16": "BITS16", "bits1x8": "BITS1X8", "bits2x4": "BITS2X4", "bits4x2": "BITS4X2",
}  # fmt: skip
# What float4_e2m1fn_x2's codes stand for. torch cannot convert it.
F4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def raw(tensor):
    """The bytes of `tensor.contiguous()`."""
    dense = tensor.detach().contiguous()
    return ctypes.string_at(dense.data_ptr(), dense.numel() * dense.element_size())


def dtype_of(tensor):
    """The name of torch's dtype, without `torch.`."""
    return str(tensor.dtype).removeprefix("torch.")


def values(tensor):
    """The bytes of the values in float32; None if there are none."""
    name = dtype_of(tensor)
    if name == "float4_e2m1fn_x2" and tensor.numel():
        codes = torch.frombuffer(bytearray(raw(tensor)), dtype=torch.uint8)
        codes = torch.stack([codes & 15, codes >> 4], -1).reshape(-1)
        return raw(F4[(codes & 7).long()] * torch.where(codes < 8, 1.0, -1.0))
    if "complex" in name or name.startswith("bits"):
        return None
    if not tensor.numel():
        return b""
    return raw(tensor.detach().to(torch.float32))


def npy(tensor):
    """NumPy's name of the dtype in the `.npy`; None if there is no such file."""
    try:
        return tensor.detach().contiguous().numpy().dtype.str
    except (TypeError, RuntimeError):
        return None if values(tensor) is None else "<f4"


def tensors(named):
    """What a mapping of names to tensors must look like."""
    storages, all = {}, {}
    for name, tensor in named.items():
        tensor, origin = tensor if isinstance(tensor, tuple) else (tensor, {})
        shape = list(tensor.shape)
        if tensor.dtype == torch.float4_e2m1fn_x2:
            shape[-1] *= 2
        storage = storages.setdefault(tensor.untyped_storage()._cdata, len(storages))
        all[name] = entry = {"dtype": NAMES[dtype_of(tensor)], "shape": shape, "storage": storage, "raw": raw(tensor).hex()}
        f32 = values(tensor)
        entry["f32"] = f32.hex() if f32 is not None and entry["dtype"] != "F32" else None
        entry["npy"] = npy(tensor)
        if not tensor.is_contiguous():
            entry["strides"] = list(tensor.stride())
        if origin:
            entry["origin"] = origin
    return {name: {k: v for k, v in entry.items() if v is not None} for name, entry in all.items()}


def flat(value, path=()):
    """Names of the tensors in mappings, lists and tuples: their paths, joined with dots."""
    if isinstance(value, torch.Tensor):
        return {".".join(path) if path else "tensor": value}
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    found = {}
    for key, inner in entries:
        found |= flat(inner, (*path, key.decode() if isinstance(key, bytes) else str(key)))
    return found


def load(path):
    """A checkpoint as torch has it. Only files that a maker just made are given to this."""
    return torch.load(path, weights_only=False, map_location="cpu")


class Case:
    """A case that is being written."""

    def __init__(self, name, how):
        self.directory = GOLDEN / name
        shutil.rmtree(self.directory, ignore_errors=True)
        self.model = self.directory / "model"
        self.model.mkdir(parents=True)
        self.how = {"made with": f"torch {torch.__version__}", "how": how}
        self.opened = []

    def save(self, name, value, **options):
        """`torch.save`, and what `torch.load` makes of it."""
        torch.save(value, self.model / name, **options)
        return load(self.model / name)

    def file(self, name, data):
        """Another file."""
        (self.model / name).parent.mkdir(exist_ok=True)
        (self.model / name).write_bytes(data.encode() if isinstance(data, str) else data)

    def opens(self, paths, named, **more):
        """What must be found there. `more`: `checkpoint` and `files` of the mount, names that are
        `left_out`, words of `ls --why`.
        """
        self.opened.append({"paths": paths.split(), **more, "tensors": tensors(named)})

    def refused(self, path, *words):
        """What must be refused, in these words."""
        self.opened.append({"paths": [path], "refused": list(words)})

    def close(self):
        paths = [p for o in self.opened for p in o["paths"]]
        assert len(set(paths)) == len(paths), paths
        text = lines({**self.how, "open": self.opened}, 4)
        assert json.loads(text)["open"] == json.loads(json.dumps(self.opened))
        (self.directory / "expected.json").write_text(text + "\n")
        size = sum(p.stat().st_size for p in self.directory.rglob("*") if p.is_file())
        print(f"pytorch/{self.directory.name}: {len(paths)} to open, {size} bytes")


def lines(value, levels):
    """JSON with so many levels on lines of their own."""
    if not levels or not value or not isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[\n" + ",\n".join(lines(v, levels - 1) for v in value) + "\n]"
    inner = (f"{json.dumps(k, ensure_ascii=False)}: {lines(v, levels - 1 if k in ('open', 'tensors') else 0)}" for k, v in value.items())
    return "{\n" + ",\n".join(inner) + "\n}"


def noise(seed, *shape, dtype=torch.float32):
    """Random values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def made_up(name, base=object, **members):
    """A class of a module that is not installed; pickles name it as if it were."""
    module, _, short = name.rpartition(".")
    made = type(short, (base,), {"__module__": module, **members})
    parts = module.split(".")
    for i in range(1, len(parts) + 1):
        path = ".".join(parts[:i])
        sys.modules.setdefault(path, types.ModuleType(path))
        if i > 1:
            setattr(sys.modules[".".join(parts[: i - 1])], parts[i - 1], sys.modules[path])
    setattr(sys.modules[module], short, made)
    return made


def rezipped(data, change=lambda name, bytes: bytes, directories=False):
    """A checkpoint stored again by Python's zipfile: no alignment, no data descriptors."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            top, _, rest = entry.filename.partition("/")
            if directories and f"{top}/" not in new.namelist():
                new.writestr(zipfile.ZipInfo(f"{top}/"), b"")
            info = zipfile.ZipInfo(entry.filename)
            new.writestr(info, change(rest, old.read(entry)))
    return out.getvalue()
