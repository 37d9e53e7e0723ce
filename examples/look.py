#!/usr/bin/env python3
"""NumPy on a mounted model: nothing is loaded before it is accessed.

    python3 examples/look.py /tmp/tiny-llama
"""

import json
import pathlib
import sys

import numpy as np

mount = pathlib.Path(sys.argv[1])
index = json.loads((mount / "index.json").read_text())
for name, tensor in index.items():
    if len(tensor["shape"]) != 2 or tensor["origin"] == "tied":
        continue
    path = mount / "npy" / (pathlib.Path(tensor["path"]).name + ".npy")
    w = np.load(path, mmap_mode="r")
    print(f"{name:45} {tensor['dtype']:5} {str(w.shape):14} std {w.std():.5f}  max |w| {np.abs(w).max():.5f}")
