#!/usr/bin/env python3
"""How long other loaders take for the same model, and PyTorch on the memory that stfs has loaded.

Called by benches/gpu.rs with a model directory and a struct stfs_gpu_io in hex. Prints a line for
each loader, and for each that is not installed.
"""

import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples/gpu"))
import consume

ROUNDS = 5


def measure(what, load, nbytes):
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        kept = load()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        del kept
        torch.cuda.empty_cache()
    seconds = statistics.median(times)
    print(f"{what}: {seconds:.3f}s, {nbytes / seconds / 1e9:.2f} GB/s")


def safetensors_torch(shards, device):
    from safetensors.torch import load_file

    return lambda: [load_file(shard, device=device) for shard in shards]


def fastsafetensors(shards, device):
    from fastsafetensors import fastsafe_open

    def load():
        with fastsafe_open(filenames=shards, nogds=True, device=device) as f:
            return [f.get_tensor(key).clone() for key in f.keys()]

    return load


try:
    import torch
except ImportError:
    print("python3 has no torch: other loaders not measured")
    sys.exit()
if not torch.cuda.is_available():
    print("torch sees no GPU: other loaders not measured")
    sys.exit()

model, io = pathlib.Path(sys.argv[1]), consume.Io.from_buffer_copy(bytes.fromhex(sys.argv[2]))
shards = sorted(str(p) for p in (model.glob("*.safetensors") if model.is_dir() else [model]))
device = f"cuda:{io.device_ordinal}"
torch.zeros(1, device=device)

start = time.perf_counter()
tensor = consume.with_torch(io, None)
total = int(tensor[:4096].to(torch.int64).sum())
print(f"the handle opened by PyTorch, and its first kernel run on it: {time.perf_counter() - start:.3f}s (sum {total})")

for name, make in (("safetensors.torch.load_file", safetensors_torch), ("fastsafetensors", fastsafetensors)):
    try:
        measure(f"{name}, to {device}", make(shards, device), io.nbytes)
    except ImportError:
        print(f"{name}: not installed")
