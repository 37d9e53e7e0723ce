"""What is not a checkpoint that can be read in place, and tensors that are left out of one that is."""

import io
import pickle
import tarfile
import zipfile

import numpy as np
import torch
import torch.distributed.checkpoint
from torch import nn

from .checkpoints import Case, made_up, noise


def make():
    left_out()
    refused()


class Wrapper(torch.Tensor):
    """A tensor without a storage of its own: DTensor and torchao's are such."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        inner = [a.inner if isinstance(a, cls) else a for a in args]
        return function(*inner, **(kwargs or {}))


Wrapper.__module__, Wrapper.__qualname__ = "torchao.dtypes", "Float8Tensor"


def left_out():
    case = Case("left-out", "kinds of tensors without plain bytes, beside one that has them")
    x = torch.arange(8.0).reshape(2, 4)
    made_up("torchao.dtypes.Float8Tensor")
    import torchao.dtypes

    torchao.dtypes.Float8Tensor = Wrapper
    scales = torch.tensor([0.1, 0.2], dtype=torch.float64)
    kinds = {
        "coo": (x.to_sparse(), "COO"), "csr": (x.to_sparse_csr(), "CSR"), "csc": (x.to_sparse_csc(), "CSC"), "bsr": (x.to_sparse_bsr((1, 2)), "BSR"),
        "bsc": (x.to_sparse_bsc((1, 2)), "BSC"), "meta": (torch.empty(2, 3, device="meta"), "meta"), "conj": (torch.zeros(2, dtype=torch.complex64).conj(), "conj"),
        "neg": (torch.zeros(2, dtype=torch.complex64).conj().imag, "neg"), "wrapper": (Wrapper(x), "torchao.dtypes.Float8Tensor"),
        "nested": (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
        "quint8": (torch.quantize_per_tensor(x, 0.1, 10, torch.quint8), "torch.quint8"), "qint8": (torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "per_tensor_affine"),
        "qint32": (torch.quantize_per_tensor(x, 0.1, 0, torch.qint32), "torch.qint32"),
        "channels": (torch.quantize_per_channel(x, scales, torch.tensor([0, 0]), 0, torch.qint8), "per_channel_affine"),
    }  # fmt: skip
    torch.save({name: t for name, (t, _) in kinds.items()} | {"w": x}, case.model / "kinds.pt")
    case.opens("kinds.pt", {"w": x}, left_out=list(kinds), why=[word for _, word in kinds.values()])
    case.close()


def refused():
    case = Case("refused", "what torch, NumPy and Python write that is not a checkpoint")
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    torch.jit.save(torch.jit.script(module), case.model / "script.pt")
    case.refused("script.pt", "script.pt", "TorchScript", "torch.jit.load")
    torch.jit.save(torch.jit.trace(module, torch.ones(1, 2)), case.model / "trace.ptl")
    case.refused("trace.ptl", "TorchScript", "state_dict()")
    torch.export.save(torch.export.export(module, (torch.ones(1, 2),)), case.model / "program.pt2")
    strip(case.model / "program.pt2")
    case.refused("program.pt2", "torch.export")
    with torch.package.PackageExporter(case.model / "package.pt") as package:
        package.save_pickle("model", "weights.pkl", {"w": torch.ones(2)})
    case.refused("package.pt", "torch.package")
    np.savez(case.model / "arrays.npz", a=np.ones(3))
    case.refused("arrays.npz", "npz")
    case.file("arrays.pt", (case.model / "arrays.npz").read_bytes())
    case.refused("arrays.pt", "npz")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("readme.txt", "nothing of torch's")
    case.file("other.pt", out.getvalue())
    case.refused("other.pt", "ZIP", "torch.save")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("storages", "tensors", "pickle"):
            archive.addfile(tarfile.TarInfo(name))
    case.file("tar.pt", out.getvalue())
    case.refused("tar.pt", "tar")
    for protocol in (2, 3, 4, 5):
        case.file(f"pickle-{protocol}.bin", pickle.dumps({"a": [1.0]}, protocol))
        case.refused(f"pickle-{protocol}.bin", "pickle", "torch.save")
    # Whole models: of a program's own class, as YOLO's files are, and of torch's.
    yolo = made_up("models.yolo.Model", nn.Module)
    model = yolo()
    nn.Module.__init__(model)
    model.conv = nn.Conv2d(1, 2, 1)
    torch.save({"epoch": -1, "model": model.half(), "optimizer": None, "wandb_id": None}, case.model / "yolo.pt")
    case.refused("yolo.pt", "'model' is an object of the class models.yolo.Model", "state_dict()")
    torch.save(module, case.model / "module.pt")
    case.refused("module.pt", "torch.nn.modules.container.Sequential", "state_dict()")
    torch.save(module, case.model / "module-legacy.pt", _use_new_zipfile_serialization=False)
    case.refused("module-legacy.pt", "torch.nn.modules.container.Sequential", "state_dict()")
    out = io.BytesIO()
    torch.save({"w": noise(1, 64).round()}, out)
    for method, name in ((zipfile.ZIP_DEFLATED, "deflate"), (zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "lzma")):
        again = io.BytesIO()
        with zipfile.ZipFile(out) as old, zipfile.ZipFile(again, "w", method) as new:
            for entry in old.infolist():
                new.writestr(entry.filename, old.read(entry))
        case.file(f"{name}.pt", again.getvalue())
        case.refused(f"{name}.pt", "data.pkl", "torch.save", "zip -0")
    directory = case.model / "dcp"
    torch.distributed.checkpoint.save({"w": noise(1, 4)}, checkpoint_id=directory, no_dist=True)
    case.refused("dcp", "torch.distributed.checkpoint.format_utils dcp_to_torch")
    case.close()


def strip(path):
    """Leaves out of a torch.export archive what only makes it large."""
    out = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            if len(data := old.read(entry)) < 4000:
                new.writestr(entry.filename, data)
    path.write_bytes(out.getvalue())
