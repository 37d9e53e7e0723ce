"""How fast `f32` of a quantized tensor is read from a mount, beside the time that the peers take for the same
values in the same round: MLX for its own formats, the `gguf` package for GGUF's, vectorized NumPy with
ml_dtypes for the rest.

    cargo build --release
    python3 benches/peers.py [NAME…]        # needs tests/peers/requirements.txt

The peer has its arrays in memory already and keeps the result there. stfs reads the shard from the
page cache: `stfs cat` into /dev/null, which is the dequantization and the start of a process; and the
mount, where the values also pass through FUSE (1 MiB reads, no cache of the mount). Both hold the
peer's bits, which is checked. Medians of ROUNDS rounds, and the medians of the rounds' ratios.
"""

import mmap
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/peers"))

import gguf
import ml_dtypes
import mlx.core as mx
import numpy as np

from harness import STFS, models, mounted, same_values

ROUNDS = 7
N = K = 4096
MIB = 1 << 20
RNG = np.random.default_rng(1)
SHIFTS = np.arange(0, 32, 4, dtype=np.uint32)
E2M1 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)


def words(*shape):
    return RNG.integers(0, 1 << 32, shape, dtype=np.uint32)


def octets(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def scales(*shape):
    return RNG.uniform(0.001, 0.02, shape).astype(np.float16)


def tensor(dtype, array):
    return models.Tensor(dtype, array.shape, np.ascontiguousarray(array).tobytes())


def nibbles(packed, axis):
    """Words of eight fields as the fields, along an axis, lowest bits first."""
    spread = np.expand_dims(packed, axis + 1) >> SHIFTS.reshape([-1] + [1] * (packed.ndim - 1 - axis))
    shape = list(packed.shape)
    shape[axis] *= 8
    return (spread & 15).reshape(shape)


def gptq(act_order):
    q, z, s = words(K // 8, N), words(K // 128, N // 8), scales(K // 128, N)
    index = np.arange(K, dtype=np.int32) // 128
    if act_order:
        index = RNG.permutation(index)
    names = {"qweight": ("I32", q), "qzeros": ("I32", z), "scales": ("F16", s), "g_idx": ("I32", index)}

    def peer():
        zeros = nibbles(z + np.uint32(0x11111111), 1).astype(np.int32)
        codes = nibbles(q, 0).astype(np.int32)
        return np.ascontiguousarray(((codes - zeros[index]).astype(np.float32) * s.astype(np.float32)[index]).T)

    return {f"w.{k}": tensor(*v) for k, v in names.items()}, {}, peer


def awq():
    q, z, s = words(K, N // 8), words(K // 128, N // 8), scales(K // 128, N)
    names = {"qweight": ("I32", q), "qzeros": ("I32", z), "scales": ("F16", s)}
    order = np.array([0, 4, 1, 5, 2, 6, 3, 7], np.uint32) * 4

    def fields(packed):
        return ((packed[:, :, None] >> order) & 15).reshape(len(packed), -1).astype(np.int32)

    def peer():
        spread = lambda a: np.repeat(a, 128, axis=0)
        values = (fields(q) - spread(fields(z))).astype(np.float32) * spread(s.astype(np.float32))
        return np.ascontiguousarray(values.T)

    return {f"w.{k}": tensor(*v) for k, v in names.items()}, {}, peer


def mlx(bits, group, mode="affine"):
    q = mx.array(words(N, K * bits // 32))
    if mode == "affine":
        parts = {"scales": scales(N, K // group), "biases": scales(N, K // group)}
        dtype = "F16"
    else:
        kind = (110, 130) if mode == "mxfp4" else (0x20, 0x70)
        parts = {"scales": RNG.integers(*kind, (N, K // group), dtype=np.uint8)}
        dtype = "U8"
    tensors = {"w.weight": tensor("U32", np.array(q))} | {f"w.{k}": tensor(dtype, v) for k, v in parts.items()}
    config = {"quantization": {"bits": bits, "group_size": group} | ({} if mode == "affine" else {"mode": mode})}
    widened = [mx.array(v.astype(np.float32) if mode == "affine" else v) for v in parts.values()]
    widened += [None] * (2 - len(widened))

    def peer():
        with mx.stream(mx.cpu):
            out = mx.dequantize(q, *widened, group_size=group, bits=bits, mode=mode, dtype=mx.float32)
            mx.eval(out)
        return out

    return tensors, config, peer


def fp8_blocks():
    codes = octets(N, K) & 0xF7  # no NaN
    grid = RNG.uniform(0.001, 0.02, (N // 128, K // 128)).astype(np.float32)

    def peer():
        spread = np.repeat(np.repeat(grid, 128, axis=0), 128, axis=1)
        return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * spread

    return {"w.weight": tensor("F8_E4M3", codes), "w.weight_scale_inv": tensor("F32", grid)}, {}, peer


def packed_int4():
    q, s = words(N, K // 8), scales(N, K // 128)
    tensors = {
        "w.weight_packed": tensor("I32", q),
        "w.weight_scale": tensor("F16", s),
        "w.weight_shape": tensor("I64", np.array([N, K], np.int64)),
    }

    def peer():
        values = (nibbles(q, 1).astype(np.int32) - 8).astype(np.float32)
        return values * np.repeat(s.astype(np.float32), 128, axis=1)

    return tensors, {}, peer


def nvfp4():
    pairs, s, second = octets(N, K // 2), RNG.integers(0x20, 0x70, (N, K // 16), dtype=np.uint8), np.float32(1e-4)
    tensors = {
        "w.weight": tensor("U8", pairs),
        "w.weight_scale": tensor("F8_E4M3", s),
        "w.weight_scale_2": tensor("F32", np.array(second)),
    }

    def peer():
        codes = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(N, K)
        grid = s.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * second
        return E2M1[codes] * np.repeat(grid, 16, axis=1)

    return tensors, {}, peer


def nf4():
    pairs, absmax = octets(N * K // 2, 1), RNG.uniform(0.1, 2, N * K // 64).astype(np.float32)
    levels = np.sort(RNG.uniform(-1, 1, 16)).astype(np.float32)
    state = b'{"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [%d, %d]}' % (N, K)
    tensors = {
        "w.weight": tensor("U8", pairs),
        "w.weight.absmax": tensor("F32", absmax),
        "w.weight.quant_map": tensor("F32", levels),
        "w.weight.quant_state.bitsandbytes__nf4": tensor("U8", np.frombuffer(state, np.uint8)),
    }

    def peer():
        codes = np.stack([pairs[:, 0] >> 4, pairs[:, 0] & 15], axis=1).reshape(-1)
        return (levels[codes].reshape(-1, 64) * absmax[:, None]).reshape(N, K)

    return tensors, {}, peer


def gpt_oss():
    groups = K // 32
    blocks, s = octets(1, N, groups, 16), RNG.integers(110, 130, (1, N, groups), dtype=np.uint8)
    tensors = {"w.weight_blocks": tensor("U8", blocks), "w.weight_scales": tensor("U8", s)}

    def peer():
        codes = np.stack([blocks & 15, blocks >> 4], axis=4).reshape(1, N, groups, 32)
        values = np.ldexp(E2M1[codes], s.astype(np.int32)[..., None] - 127)
        return np.ascontiguousarray(values.reshape(1, N, K).transpose(0, 2, 1))

    return tensors, {"quantization_config": {"quant_method": "mxfp4"}}, peer


def blocks(kind):
    """A GGUF of one block type, and the package's own dequantization."""
    kind = gguf.GGMLQuantizationType[kind]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    stored = octets(N, K // values, size)
    # Random bits of scales would make NaN and infinities, and NumPy would warn of them.
    if kind.name == "MXFP4":
        stored[..., 0] = 120 + stored[..., 0] % 16
    else:
        for at in {"Q4_1": (0, 2), "Q4_K": (0, 2), "Q6_K": (208,)}.get(kind.name, (0,)):
            stored[..., at + 1] = 0x24 | stored[..., at + 1] & 0x83
    stored = stored.reshape(N, -1)

    def write(model):
        writer = gguf.GGUFWriter(model / "model.gguf", "llama")
        writer.add_tensor("w.weight", stored, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    return write, {}, lambda: gguf.quants.dequantize(stored, kind)


CASES = {
    "GPTQ 4 bits, groups of 128": ("NumPy", lambda: gptq(False)),
    "GPTQ 4 bits, act-order": ("NumPy", lambda: gptq(True)),
    "AWQ": ("NumPy", awq),
    "MLX 4 bits, groups of 64": ("MLX", lambda: mlx(4, 64)),
    "MLX mxfp4": ("MLX", lambda: mlx(4, 32, "mxfp4")),
    "FP8, blocks of 128": ("NumPy", fp8_blocks),
    "compressed-tensors, packed 4 bits": ("NumPy", packed_int4),
    "ModelOpt NVFP4": ("NumPy", nvfp4),
    "bitsandbytes NF4": ("NumPy", nf4),
    "gpt-oss MXFP4": ("NumPy", gpt_oss),
}
GGUF = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS", "IQ3_S", "MXFP4")
CASES |= {f"GGUF {kind}": ("gguf", lambda kind=kind: blocks(kind)) for kind in GGUF}


def through_mount(path, buffer):
    """Reads a whole file past every cache of the mount; returns how many bytes."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        at = 0
        while at < len(buffer) and (n := os.preadv(fd, [memoryview(buffer)[at : at + MIB]], at)):
            at += n
        return at
    finally:
        os.close(fd)


def cat(model):
    """Reads the whole tensor with `stfs cat`, without a mount."""
    subprocess.run([STFS, "cat", model, "w.weight", "--view", "f32"], stdout=subprocess.DEVNULL, check=True)


def rate(action):
    """GB of binary32 values a second."""
    started = time.perf_counter()
    action()
    return 4 * N * K / (time.perf_counter() - started) / 1e9


def compare(name, peer_name, make):
    tensors, config, peer = make()
    with tempfile.TemporaryDirectory() as model:
        model = pathlib.Path(model)
        if callable(tensors):
            tensors(model)
        else:
            models.write(model / "model.safetensors", tensors)
            (model / "config.json").write_text(models.json.dumps(config))
        with mounted(model) as mnt:
            path = mnt / "tensors/w.weight/f32"
            buffer = mmap.mmap(-1, 4 * N * K)  # aligned to a page, as O_DIRECT requires
            through_mount(path, buffer)
            same_values(buffer[:], np.array(peer()), name)
            rounds = [
                (rate(lambda: cat(model)), rate(lambda: through_mount(path, buffer)), rate(peer))
                for _ in range(ROUNDS)
            ]
    by_cat, by_mount, theirs = (statistics.median(r) for r in zip(*rounds))
    times = [statistics.median(r[i] / r[2] for r in rounds) for i in (0, 1)]
    print(f"{name:<36}{by_cat:>8.2f}{by_mount:>8.2f}{theirs:>8.2f} {peer_name:<6}{times[0]:>6.1f}{times[1]:>8.1f}", flush=True)


if __name__ == "__main__":
    print(f"{'GB/s of f32':<36}{'cat':>8}{'mount':>8}{'peer':>8} {'':<6}{'× cat':>6}{'× mount':>8}")
    for name, (peer_name, make) in CASES.items():
        if not sys.argv[1:] or any(a.lower() in name.lower() for a in sys.argv[1:]):
            compare(name, peer_name, make)
