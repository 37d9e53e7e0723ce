#!/usr/bin/env python3
"""torch on one side, a mount on the other: checkpoints that torch.save wrote, and what torch.load makes of them.

    python tests/torch/pytorch.py

Random views of every dtype in random mappings and lists, in both containers and every protocol; state
dicts of modules and of optimizers; conversions to safetensors. Needs PyTorch and the safetensors
library (tests/golden/make.sh makes an environment that has them); pytorch.txt is the result of a run.
"""

import collections
import json
import pathlib
import sys
import warnings

import torch
from safetensors.torch import load_file, save_file
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))
sys.path.insert(0, str(HERE.parent / "golden"))
from harness import check, main, mounted, random_numbers, read, same, same_bytes, stfs  # noqa: E402
from makers.checkpoints import NAMES, dtype_of, flat, load, raw  # noqa: E402

warnings.simplefilter("ignore")
RNG = random_numbers()
torch.manual_seed(int(RNG.integers(2**31)))
# What torch 2.15 cannot load again from the older format.
WITHOUT_STORAGE = ("uint", "float8", "float4", "complex32", "bcomplex32", "bits")


def choice(*of):
    return of[int(RNG.integers(len(of)))]


def random_tensor(dtype, old):
    """A view of random bytes, made by a random walk over torch's view functions."""
    size = torch.empty(0, dtype=dtype).element_size()
    shape = [int(n) for n in RNG.integers(1, 7, int(RNG.integers(0, 6)))]
    extra = int(RNG.integers(0, 50))
    count = int(torch.tensor(shape).prod()) if shape else 1
    bytes = torch.randint(0, 256, ((count + extra) * size,), dtype=torch.uint8)
    bytes = bytes % 2 if dtype == torch.bool else bytes
    x = bytes.view(dtype)[int(RNG.integers(0, extra + 1)) :][:count].reshape(shape)
    for _ in range(int(RNG.integers(0, 5))):
        if x.dim() == 0:
            x = x.expand(choice((), (3,), (2, 2)))
            continue
        d = int(RNG.integers(x.dim()))
        step = choice("permute", "narrow", "step", "expand", "select", "unsqueeze", "diagonal", "flatten", "unfold", "empty")
        if step == "permute":
            x = x.permute(*[int(i) for i in RNG.permutation(x.dim())])
        elif step == "narrow" and x.shape[d] > 1:
            x = x.narrow(d, 1, x.shape[d] - 1)
        elif step == "step":
            x = x[(slice(None),) * d + (slice(int(RNG.integers(0, 2)), None, int(RNG.integers(1, 4))),)]
        elif step == "expand":
            x = x.unsqueeze(d).expand(*x.shape[:d], int(RNG.integers(1, 4)), *x.shape[d:])
        elif step == "select" and x.shape[d]:
            x = x.select(d, int(RNG.integers(x.shape[d])))
        elif step == "unsqueeze":
            x = x.unsqueeze(d)
        elif step == "diagonal" and x.dim() > 1:
            x = x.diagonal(0, 0, x.dim() - 1)
        elif step == "unfold" and x.shape[d] > 2:
            x = x.unfold(d, 2, 1)
        elif step == "empty" and RNG.integers(10) == 0:
            x = x.narrow(d, 0, 0)
    wraps = dtype.is_floating_point and size > 1 and not old
    return nn.Parameter(x, bool(RNG.integers(2))) if wraps and RNG.integers(4) == 0 else x


def random_value(dtypes, old, depth=0):
    """Tensors in dicts, lists, tuples; other values beside them."""
    kind = choice("tensor", "tensor", "tensor", "dict", "list", "tuple", "other") if depth < 4 else "tensor"
    if kind == "tensor":
        return random_tensor(getattr(torch, choice(*dtypes)), old)
    if kind == "other":
        return choice(1, "text", None, 2.5, {"a": 1}, [], torch.Size([2]), torch.float16)
    inner = [random_value(dtypes, old, depth + 1) for _ in range(int(RNG.integers(1, 6)))]
    if kind == "dict":
        keys = [choice(f"key{i}", i, f"a.b{i}", f"naïve {i}", f"w/{i}") for i in range(len(inner))]
        return choice(dict, collections.OrderedDict)(zip(keys, inner))
    return inner if kind == "list" else tuple(inner)


def compare(mnt, named, what):
    """A mount has just these tensors of torch's."""
    index = json.loads(read(mnt / "index.json"))
    same(sorted(index), sorted(named), f"{what}: names")
    for name, tensor in named.items():
        at = f"{what}: {name} {tuple(tensor.shape)} {tensor.stride()} {tensor.dtype}"
        entry = index[name]
        shape = list(tensor.shape)
        if tensor.dtype == torch.float4_e2m1fn_x2:
            shape[-1] *= 2
        same((entry["dtype"], entry["shape"]), (NAMES[dtype_of(tensor)], shape), at)
        same(entry["origin"], "stored" if tensor.is_contiguous() else "strided", at)
        same_bytes(read(mnt / entry["path"] / "raw"), raw(tensor), at)


@check
def random_checkpoints(tmp):
    compared = 0
    for i in range(60):
        old = bool(i % 3 == 0)
        # Of a scalar, two values in a byte are no shape.
        dtypes = [d for d in NAMES if d != "float4_e2m1fn_x2" and not (old and d.startswith(WITHOUT_STORAGE) and d != "uint8")]
        value = {"first": random_tensor(torch.float32, old), **{f"k{j}": random_value(dtypes, old) for j in range(8)}}
        path = tmp / f"{i}.pt"
        protocol = i % 5 + 1
        torch.save(value, path, pickle_protocol=protocol, _use_new_zipfile_serialization=not old)
        named = flat(load(path))
        compared += len(named)
        with mounted(path) as mnt:
            compare(mnt, named, f"protocol {protocol}{', older format' if old else ''}")
        same(json.loads(stfs("verify", "--json", path)), [], "verify")
    assert compared > 600, compared


@check
def large_tensors(tmp):
    """Larger than what a reader keeps."""
    x = torch.randn(3000, 2100)
    value = {
        "transposed": x.T, "every_second": x[:, ::2], "corner": x[1000:, 1000:], "channels_last": torch.randn(8, 96, 56, 56).to(memory_format=torch.channels_last),
        "expanded": torch.randn(1, 2048, 1).expand(16, 2048, 300), "permuted": torch.randn(64, 65, 66, 9).permute(3, 1, 0, 2), "half": x.half().T,
        "bytes": torch.randint(0, 256, (4001, 2003), dtype=torch.uint8).T, "doubles": torch.randn(900, 901, dtype=torch.float64).T,
        "windows": torch.randn(20000).unfold(0, 64, 3), "complex": torch.randn(700, 500, dtype=torch.complex64).T,
    }  # fmt: skip
    for old in (False, True):
        torch.save(value, tmp / "m.pt", _use_new_zipfile_serialization=not old)
        with mounted(tmp / "m.pt") as mnt:
            compare(mnt, flat(load(tmp / "m.pt")), "large")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 12)
        self.lstm = nn.LSTM(16, 8, 2, bidirectional=True)
        self.conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ConvTranspose2d(8, 4, 2)).to(memory_format=torch.channels_last)
        self.norm = torch.nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(5, 5).tril().bool())


@check
def modules_and_optimizers(tmp):
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        net = Net().to(dtype)
        optimizer = torch.optim.AdamW(net.parameters())
        for p in net.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        value = {"epoch": 4, "model_state_dict": net.state_dict(), "optimizer_state_dict": optimizer.state_dict(), "scheduler": schedule.state_dict(), "loss": 0.5}
        for old in (False, True):
            path = tmp / "net.pt"
            torch.save(value, path, _use_new_zipfile_serialization=not old)
            got = load(path)
            for part, inner in (("", got["model_state_dict"]), ("#optimizer_state_dict", got["optimizer_state_dict"]), ("#", got)):
                with mounted(f"{path}{part}", "--no-synthetic") as mnt:
                    compare(mnt, flat(inner), f"{dtype} {part}")


@check
def exports_are_what_torch_loads(tmp):
    net = Net().bfloat16()
    torch.save({"state_dict": net.state_dict()}, tmp / "old.ckpt")
    state = load(tmp / "old.ckpt")["state_dict"]
    save_file({n: t.contiguous().clone() for n, t in state.items()}, tmp / "new.safetensors", {"format": "pt"})
    for pair in (("old.ckpt", "new.safetensors"), ("new.safetensors", "old.ckpt")):
        report = json.loads(stfs("diff", "--json", *(tmp / p for p in pair)))
        same({k: report[k] for k in ("added", "removed", "changed")}, {"added": [], "removed": [], "changed": []}, "diff")
    with mounted(tmp / "old.ckpt") as mnt:
        exported = load_file(mnt / "export/model.safetensors")
        same(sorted(exported), sorted(state), "names")
        for name, tensor in state.items():
            assert torch.equal(exported[name], tensor), name
        missing = Net().bfloat16().load_state_dict(exported)
        same((missing.missing_keys, missing.unexpected_keys), ([], []), "load_state_dict")
        floats = load_file(mnt / "export/model-f32.safetensors")
        assert all(torch.equal(floats[n], t.float() if t.is_floating_point() else t) for n, t in state.items())


if __name__ == "__main__":
    print(f"torch {torch.__version__}")
    main()
