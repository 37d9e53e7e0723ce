#!/usr/bin/env python3
"""Vocabulary and weights of a mounted GGUF model: the tokens with the smallest embeddings. Training
rarely touched them, so they are candidates for glitch tokens.

    python3 examples/rare_tokens.py /tmp/m
"""

import json
import pathlib
import sys

import numpy as np

mount = pathlib.Path(sys.argv[1])
tokens = json.loads((mount / "metadata.json").read_text())["tokenizer.ggml.tokens"]["value"]
embedding = np.load(mount / "npy/token_embd.weight.npy", mmap_mode="r")
norms = np.concatenate([np.linalg.norm(rows, axis=1) for rows in np.array_split(embedding, 64)])
for token in np.argsort(norms)[:20]:
    print(f"{norms[token]:10.6f} {token:7} {tokens[token]!r}")
