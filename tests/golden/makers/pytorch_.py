"""PyTorch checkpoints of every kind, by torch itself: containers, dtypes and strides here; which part of
a checkpoint is the model in pytorch_models, and what is refused or left out in pytorch_refused. Keys in the
older format are addresses of storages, so those files are others each time.
"""

import collections
import io
import pickle
import pickletools
import re
import struct
import warnings

import torch
from torch import nn

from . import pytorch_models, pytorch_refused
from .checkpoints import NAMES, Case, flat, load, noise, rezipped


def make():
    warnings.simplefilter("ignore")
    for maker in (zip_, dtypes, strided, legacy, older, protocols, big_endian, restored):
        maker()
    pytorch_models.make()
    pytorch_refused.make()


class Small(nn.Module):
    """Layers with parameters, buffers, and a convolution that is channels_last."""

    def __init__(self, seed):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.layers = nn.ModuleList(nn.Linear(6, 5, dtype=torch.bfloat16) for _ in range(11))
        self.register_buffer("position_ids", torch.arange(7).expand(1, -1))
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                p.copy_(noise(seed + i, *p.shape))


def zip_():
    """As transformers saves a model: in a directory, with a configuration."""
    case = Case("zip", "torch.save of a state dict")
    got = case.save("pytorch_model.bin", Small(1).state_dict())
    assert not got["conv.weight"].is_contiguous()
    case.file("config.json", '{"architectures": ["Small"]}\n')
    case.opens(". pytorch_model.bin", flat(got), checkpoint={"key": [], "values": {}}, files=["config.json"])
    case.close()


def every_dtype():
    """Tensors of random bytes, of every dtype that there is."""
    all = {}
    for i, name in enumerate(NAMES):
        dtype = getattr(torch, name)
        size = torch.empty(0, dtype=dtype).element_size()
        bytes = torch.randint(0, 256, (6 * size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(i))
        bytes = bytes % 2 if dtype == torch.bool else bytes
        all[f"{name}.matrix"] = bytes.view(dtype).reshape(2, 3)
        all[f"{name}.empty"] = bytes[:0].view(dtype).reshape(0, 3)
        if name != "float4_e2m1fn_x2":  # a scalar of two values is no tensor of safetensors
            all[f"{name}.scalar"] = bytes[:size].view(dtype).reshape(())
    return all


def dtypes():
    case = Case("dtypes", "every dtype; those without a storage class are rebuilt by _rebuild_tensor_v3")
    case.opens("dtypes.pt", flat(case.save("dtypes.pt", every_dtype())))
    got = case.save("f4.pt", {"pair": torch.zeros((), dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "w": noise(1, 2)})
    case.opens("f4.pt", {"w": got["w"]}, left_out=["pair"])
    case.close()


def views(dtype):
    """Views of one storage that are laid out in every way."""
    size = torch.empty(0, dtype=dtype).element_size()
    bytes = torch.randint(0, 256, (240 * size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))
    x = bytes.view(dtype)
    cube = x[:120].reshape(4, 5, 6)
    return {
        "whole": x, "transposed": cube[0].T, "permuted": cube.permute(2, 0, 1), "swapped": cube.transpose(0, 1),
        "channels_last": x[:96].reshape(2, 4, 4, 3).permute(0, 3, 1, 2), "every_third": x[1::3], "columns": cube[:, :, 1:3],
        "rows": cube[1:3], "one_column": cube[..., 4:5], "corner": cube[3:, 4:, 5:], "diagonal": cube[0].diagonal(),
        "expanded": x[7:12].expand(3, 2, 5), "broadcast": x[9:14, None].expand(5, 4), "same_value": x[100].expand(2, 3),
        "windows": x[:20].unfold(0, 5, 2), "overlap": x.as_strided((4, 4), (1, 1), 30), "odd_ones": x.as_strided((2, 1, 3), (12, 99, 1), 3),
        "ones_last": x.as_strided((3, 2, 1), (2, 1, 77), 5), "gaps": x.as_strided((3, 4), (10, 2), 11), "big_step": x[::239],
        "empty": x.as_strided((0, 3), (7, 5), 99), "empty_last": x.as_strided((3, 0), (1, 1), 0), "scalar": x[41],
        "one": x.as_strided((1, 1, 1), (50, 60, 70), 17), "deep": x[:128].reshape(2, 2, 2, 2, 2, 2, 2).permute(6, 4, 2, 0, 5, 3, 1),
        "last": x[239:], "reversed_cube": cube.permute(2, 1, 0), "halves": x[:64].reshape(8, 8)[::2, ::2].T,
    }  # fmt: skip


def strided():
    case = Case("strided", "views that are not contiguous, by torch's own view functions")
    for name in ("float32", "bfloat16", "uint8", "float64", "complex128"):
        case.opens(f"{name}.pt", flat(case.save(f"{name}.pt", views(getattr(torch, name)))))
    case.close()


def legacy():
    case = Case("legacy", "torch.save(…, _use_new_zipfile_serialization=False)")
    old = {"_use_new_zipfile_serialization": False}
    got = case.save("model.pth", Small(3).state_dict(), **old)
    case.opens("model.pth", flat(got), checkpoint={"key": [], "values": {}})
    # torch 2.15 writes dtypes without a storage class here too, and cannot load them again.
    made = {n: t.clone() for n, t in every_dtype().items()}
    torch.save(made, case.model / "dtypes.pt", **old)
    case.opens("dtypes.pt", flat(made))
    case.opens("views.pt", flat(case.save("views.pt", views(torch.int16), **old)))
    data = (case.model / "model.pth").read_bytes()
    flipped = re.sub(rb"(little_endian[^\x88\x89]{1,4})\x88", b"\\1\x89", data, count=1)
    assert flipped != data
    case.file("flag-flipped.pth", flipped + b"more, which torch ignores")
    case.opens("flag-flipped.pth", flat(load(case.model / "flag-flipped.pth")))
    case.refused("cut.pth", "cut.pth", str(len(data) - 3))
    case.file("cut.pth", data[:-3])
    case.close()


class Storage:
    """A storage that a hand-made legacy file refers to."""

    def __init__(self, kind, key, values, view=None):
        self.kind, self.key, self.values, self.view = kind, key, values, view


def by_hand(value, storages, persistent=lambda s: ("storage", s.kind, s.key, "cpu", len(s.values), s.view)):
    """A legacy file with persistent ids as given."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            return persistent(obj) if isinstance(obj, Storage) else None

    out = io.BytesIO()
    pickle.dump(0x1950A86A20F9469CFC6C, out, 2)
    pickle.dump(1001, out, 2)
    pickle.dump({"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}, out, 2)
    Pickler(out, 2).dump(value) if not isinstance(value, bytes) else out.write(value)
    keys = sorted({s.key for s in storages})
    pickle.dump(keys, out, 2)
    for key in keys:
        [values] = {id(s.values): s.values for s in storages if s.key == key}.values()
        data = values.numpy().tobytes()
        out.write(struct.pack("<q", len(values)) + data)
    return out.getvalue()


class Call:
    """Pickles as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def older():
    """What torch writes no more and reads still, pickled by hand."""
    case = Case("older", "pickles by hand as older versions wrote them; torch.load reads them")
    values, more = noise(1, 24), noise(2, 9).double()
    a, b = Storage(torch.FloatStorage, "94", values), Storage(torch.DoubleStorage, "105", more)
    v2, v1 = torch._utils._rebuild_tensor_v2, torch._utils._rebuild_tensor
    hooks = collections.OrderedDict()
    model = {"a": Call(v2, a, 2, (3, 4), (4, 1), False, hooks), "b": Call(v1, b, 0, (3, 3), (1, 3)), "c": Call(v1, a, 20, (4,), (1,))}
    case.file("rebuild.pt", by_hand(model, [a, b]))
    case.opens("rebuild.pt", flat(load(case.model / "rebuild.pt")))
    # view_metadata: a window of the storage, as files of 0.1 to 0.4 have it.
    window = Storage(torch.FloatStorage, "94", values, ("7", 8, 12))
    odd = Storage(torch.DoubleStorage, "105", more, ("8", 1, 4))
    model = {"a": Call(v2, window, 0, (3, 4), (4, 1), False, hooks), "b": Call(v1, odd, 1, (3,), (1,)), "c": Call(v1, window, 1, (2, 5), (1, 2))}
    case.file("windows.pt", by_hand(model, [window, odd]))
    case.opens("windows.pt", flat(load(case.model / "windows.pt")))
    # By Python 2: byte strings for text, pairs as lists, old module names.
    size, stride = b"(K\x02K\x03t", b"(K\x03K\x01t"
    storage = b"(U\x07storageq\x05ctorch\nFloatStorage\nU\x0294U\x03cpuK\x18NtQ"
    tensor = b"ctorch._utils\n_rebuild_tensor\n(" + storage + b"K\x06" + size + stride + b"tR"
    pair = b"]q\x01(U\x06weightq\x02" + tensor + b"e"
    beside = b"]q\x03(X\x02\x00\x00\x00\xc3\xa9c__builtin__\nset\n(]q\x04(K\x01K\x02etRe"
    body = b"\x80\x02ccollections\nOrderedDict\nq\x00(](" + pair + beside + b"etR."
    pickletools.dis(body, io.StringIO())
    case.file("python2.pt", by_hand(body, [a]))
    got = load(case.model / "python2.pt")
    assert list(got) == ["weight", "é"], got
    case.opens("python2.pt", flat(got))
    case.close()


def protocols():
    case = Case("protocols", "torch.save(…, pickle_protocol=0 to 5), both containers")
    for protocol in range(6):
        for zip in (True, False):
            value = {
                "epoch": 3, "big": 2**70, "negative": -5, "wide": 2**40, "rate": 1.5, "done": True, "not": False, "none": None, "text": "aé\n",
                "bytes": b"\x00\xff", "args": ("a", {"b"}, frozenset([1]), bytearray(b"x"), 1j, range(3)),
                "model": collections.OrderedDict(w=noise(protocol, 2, 3), t=noise(9, 3, 2).T, p=nn.Parameter(noise(8, 4).half())),
            }  # fmt: skip
            name = f"{'zip' if zip else 'legacy'}-{protocol}.pt"
            torch.save(value, case.model / name, pickle_protocol=protocol, _use_new_zipfile_serialization=zip)
            if protocol == 0:  # a persistent id becomes text; torch cannot load it either
                case.refused(name, "PERSID")
                continue
            scalars = {k: v for k, v in value.items() if isinstance(v, (int, float, str, type(None))) and k != "big"}
            case.opens(name, flat(load(case.model / name)["model"]), checkpoint={"key": ["model"], "values": scalars})
    case.close()


def swapped(data, size):
    """Bytes with the bytes of each element the other way round."""
    return b"".join(data[i : i + size][::-1] for i in range(0, len(data), size))


def big_endian():
    """torch reads such files on every machine, and writes them only on one with that byte order."""
    case = Case("big-endian", "storages swapped by hand, byteorder = big; torch.load swaps them back")
    made = {}
    sizes = []
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128"):
        x = noise(len(sizes), 3, 4).to(getattr(torch, name))
        made |= {f"{name}.x": x, f"{name}.t": x.T, f"{name}.one": x[1, 1]}
        sizes.append(x.element_size() // (2 if x.is_complex() else 1))
    made["float8"] = noise(99, 5).to(torch.float8_e4m3fn)
    made["uint16"] = torch.arange(5).to(torch.uint16)
    sizes += [1, 1]
    out = io.BytesIO()
    torch.save(made, out)

    def change(name, data):
        if name.startswith("data/"):
            return swapped(data, sizes[int(name.removeprefix("data/"))])
        return b"big" if name == "byteorder" else data

    case.file("big.pt", rezipped(out.getvalue(), change))
    got = load(case.model / "big.pt")
    wide = [n for n, t in got.items() if t.element_size() > 1]
    origin = {n: {"byteorder": "big"} for n in wide}
    assert all(torch.equal(got[n].view(torch.uint8) if n == "float8" else got[n], made[n].view(torch.uint8) if n == "float8" else made[n]) for n in made)
    # _rebuild_tensor_v3 has no dtype to swap by: torch gives what is stored.
    case.opens("big.pt", {n: (t, origin.get(n, {})) for n, t in got.items() if n != "uint16"}, left_out=["uint16"])
    case.close()


def restored():
    """Stored again by other programs; what old versions of torch have not written."""
    case = Case("restored", "Python's zipfile: no alignment, directory entries, no byteorder; a device")
    out = io.BytesIO()
    torch.save({"x": noise(1, 3, 5), "t": noise(2, 5, 3).T}, out)

    def change(name, data):
        return data.replace(b"X\x03\x00\x00\x00cpu", b"X\x03\x00\x00\x00mps") if name == "data.pkl" else data

    case.file("model.pt", rezipped(out.getvalue(), change, directories=True) + b"behind the end record")
    got = load(case.model / "model.pt")
    case.opens("model.pt", {n: (t, {"device": "mps"}) for n, t in got.items()})
    case.close()
