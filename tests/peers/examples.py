#!/usr/bin/env python3
"""The README's examples, each run against a mount of examples/tiny-llama (or a GGUF model that the gguf
package writes, or a checkpoint of Python's pickle), its numbers against NumPy.
"""

import os
import sys

import gguf
import numpy as np
from safetensors.numpy import load_file

import harness
from harness import REPOSITORY, check, checkpoints, main, mounted, need, run, same
from harness.gguf_model import Tensor, by_package

EXAMPLES = REPOSITORY / "examples"
MODEL = EXAMPLES / "tiny-llama"
NORM = "tensors/model.norm.weight/f32"


@check
def numpy_example():
    with mounted(MODEL) as mount:
        lines = run(sys.executable, EXAMPLES / "look.py", mount).decode().splitlines()
        same(len(lines), 19, "matrices")
        w = np.load(mount / "npy/model.embed_tokens.weight.npy")
        assert lines[0].endswith(f"std {w.std():.5f}  max |w| {np.abs(w).max():.5f}"), lines[0]


@check
def c_example(scratch):
    need("cc")
    run("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", scratch / "norm", EXAMPLES / "norm.c", "-lm")
    with mounted(MODEL) as mount:
        w = np.fromfile(mount / NORM, "<f4").astype(np.float64)
        expected = f"{w.size} values, norm {np.sqrt((w * w).sum()):.6f}\n"
        same(run(scratch / "norm", mount / NORM).decode(), expected, "norm")


@check
def octave_example():
    need("octave-cli")
    name = "model.layers.0.self_attn.q_proj.weight"
    with mounted(MODEL) as mount:
        out = run("octave-cli", "--quiet", EXAMPLES / "look.m", mount, name).decode()
        w = np.load(mount / f"npy/{name}.npy").astype(np.float64)
        largest = np.linalg.svd(w, compute_uv=False)[:3]
        found = [float(x) for x in out[out.index("[") + 1 : out.index("]")].split()]
        assert np.allclose(found, largest, rtol=1e-4), (found, largest)


@check
def awk_example():
    with mounted(MODEL) as mount:
        out = run("sh", EXAMPLES / "largest.sh", mount / NORM).decode()
        w = np.fromfile(mount / NORM, "<f4")
        first = out.splitlines()[0].split()
        same(float(first[1]), float(w.max()), "the largest value")
        same(w[int(first[4])], w.max(), "its position")


@check
def duckdb_example():
    with mounted(MODEL) as mount:
        out = run(sys.executable, EXAMPLES / "sql.py", mount).decode()
        assert "[176,64]" in out and "90112" in out, out


@check
def vocabulary_example(scratch):
    """The tokens of a GGUF model with the smallest embeddings."""
    embedding = np.random.default_rng(1).standard_normal((300, 64), np.float32) * np.linspace(1, 2, 300, dtype=np.float32)[:, None]
    data = gguf.quants.quantize(embedding, gguf.GGMLQuantizationType.Q8_0)
    tensor = Tensor("Q8_0", embedding.shape, data.tobytes())
    by_package(scratch / "m.gguf", {"token_embd.weight": tensor}, lambda writer: writer.add_token_list([f"t {i}" for i in range(300)]))
    with mounted(scratch / "m.gguf") as mount:
        lines = run(sys.executable, EXAMPLES / "rare_tokens.py", mount).decode().splitlines()
    norms = np.linalg.norm(tensor.f32(), axis=1)
    expected = [f"{norms[i]:10.6f} {i:7} 't {i}'" for i in np.argsort(norms)[:20]]
    same(lines, expected, "the rarest tokens")


@check
def untrusted_checkpoint_example(scratch):
    """A part of a checkpoint as a safetensors file; a hostile checkpoint is not converted."""
    arrays = {"w": np.arange(12, dtype=np.float32), "b": np.ones(3, np.float16)}
    storages = [checkpoints.Storage("0", "float32", arrays["w"]), checkpoints.Storage("1", "float16", arrays["b"])]
    w, b = storages
    ema = {"w": checkpoints.Tensor(w, 0, (3, 4), (4, 1)), "b": checkpoints.Tensor(b, 0, (3,), (1,))}
    checkpoints.save(scratch / "run.pt", {"epoch": 1, "ema": ema})
    convert = ["sh", EXAMPLES / "to_safetensors.sh"]
    program = {**os.environ, "STFS": harness.STFS}
    run(*convert, f"{scratch / 'run.pt'}#ema", scratch / "out.safetensors", env=program)
    made = load_file(scratch / "out.safetensors")
    same({n: t.tobytes() for n, t in made.items()}, {n: t.tobytes() for n, t in arrays.items()}, "bytes")
    same(made["w"].shape, (3, 4), "shape")

    class Payload:
        def __reduce__(self):
            return os.system, (f"touch {scratch}/canary",)

    checkpoints.save(scratch / "hostile.pt", {"ema": ema, "x": Payload()})
    run(*convert, scratch / "hostile.pt", scratch / "no.safetensors", env=program, expect=1)
    same(sorted(p.name for p in scratch.iterdir()), ["hostile.pt", "out.safetensors", "run.pt"], "files")


if __name__ == "__main__":
    main()
