#!/usr/bin/env python3
"""PyTorch on a mounted model: a tensor whose memory is the mapped file, read on access.

    python3 examples/torch_view.py /tmp/tiny-llama model.layers.0.self_attn.qkv_proj.weight
"""

import json
import pathlib
import sys

import torch

mount, name = pathlib.Path(sys.argv[1]), sys.argv[2]
directory = mount / json.loads((mount / "index.json").read_text())[name]["path"]
meta = json.loads((directory / "meta.json").read_text())
shape = meta["views"]["f32"]["shape"]
numel = meta["views"]["f32"]["nbytes"] // 4
w = torch.from_file(str(directory / "f32"), shared=False, size=numel, dtype=torch.float32).reshape(shape)
print(f"{name}: {tuple(w.shape)}, mean {w.mean():.6f}, std {w.std():.6f}")
