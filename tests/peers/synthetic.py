"""Fused, stacked and tied tensors against NumPy; bin + manifest."""

import json
import os

import ml_dtypes
import numpy as np

from harness import check, main, mounted, read, same, same_bytes, same_values, stfs
from harness.models import DTYPES, Tensor, every_code, index, parse, write

RNG = np.random.default_rng(8)
BF16 = ml_dtypes.bfloat16


def floats(*shape, kind=BF16):
    return RNG.standard_normal(shape).astype(kind)


def tensor(array):
    word = {np.dtype(k): d for d, (_, _, k) in DTYPES.items()}[array.dtype]
    return Tensor(word, array.shape, np.ascontiguousarray(array).tobytes())


def write_arrays(path, arrays):
    write(path, {n: tensor(a) for n, a in arrays.items()})


def served(mnt, name, expected, origin):
    """The tensor `name` is the array `expected`, in every view, and says where it comes from."""
    folder = mnt / "tensors" / name
    t = tensor(expected)
    same_bytes(read(folder / "raw"), t.data, f"{name}/raw")
    same_values(read(folder / "f32"), expected.astype(np.float32), f"{name}/f32")
    same(np.load(mnt / "npy" / f"{name}.npy", mmap_mode="r").shape, expected.shape, f"{name}.npy")
    meta = json.loads(read(folder / "meta.json"))
    same((meta["dtype"], meta["shape"]), (t.dtype, t.shape), f"{name}/meta.json")
    same(meta["origin"], origin, f"origin of {name}")
    same(json.loads(read(mnt / "index.json"))[name]["origin"], origin["kind"], f"index.json, origin of {name}")


def fused(axis, *parts):
    """The origin of a concatenation of (name, length)."""
    ranges, at = [], 0
    for name, length in parts:
        ranges.append({"name": name, "range": [at, at + length]})
        at += length
    return {"kind": "fused", "axis": axis, "parts": ranges}


@check
def qkv_and_gate_up(tmp):
    p, m = "model.layers.0.self_attn", "model.layers.0.mlp"
    a = {
        f"{p}.q_proj.weight": floats(12, 7), f"{p}.k_proj.weight": floats(4, 7), f"{p}.v_proj.weight": floats(4, 7),
        f"{p}.q_proj.bias": floats(12), f"{p}.k_proj.bias": floats(4), f"{p}.v_proj.bias": floats(4),
        f"{m}.gate_proj.weight": floats(9, 7, kind=np.float16), f"{m}.up_proj.weight": floats(9, 7, kind=np.float16),
        "model.layers.1.self_attn.q_a_proj.weight": floats(5, 7), "model.layers.1.self_attn.kv_a_proj_with_mqa.weight": floats(3, 7),
    }  # fmt: skip
    write_arrays(tmp / "model.safetensors", a)
    with mounted(tmp) as mnt:
        for s in ("weight", "bias"):
            parts = [f"{p}.{x}_proj.{s}" for x in "qkv"]
            served(mnt, f"{p}.qkv_proj.{s}", np.concatenate([a[n] for n in parts]), fused(0, *[(n, len(a[n])) for n in parts]))
        parts = [f"{m}.{x}_proj.weight" for x in ("gate", "up")]
        served(mnt, f"{m}.gate_up_proj.weight", np.concatenate([a[n] for n in parts]), fused(0, *[(n, 9) for n in parts]))
        parts = [f"model.layers.1.self_attn.{x}.weight" for x in ("q_a_proj", "kv_a_proj_with_mqa")]
        whole = np.concatenate([a[n] for n in parts])
        served(mnt, "model.layers.1.self_attn.fused_qkv_a_proj.weight", whole, fused(0, *[(n, len(a[n])) for n in parts]))
    with mounted(tmp, "--no-synthetic") as mnt:
        same(sorted(os.listdir(mnt / "tensors")), sorted(a), "with --no-synthetic")


@check
def parts_that_do_not_fit(tmp):
    p = "l.{}.self_attn"
    a = {
        "l.0.self_attn.q_proj.weight": floats(4, 7), "l.0.self_attn.k_proj.weight": floats(2, 6), "l.0.self_attn.v_proj.weight": floats(2, 7),
        "l.1.self_attn.q_proj.weight": floats(4, 7), "l.1.self_attn.k_proj.weight": floats(2, 7),
        "l.2.self_attn.q_proj.weight": floats(4, 7), "l.2.self_attn.k_proj.weight": floats(2, 7, kind=np.float16),
        "l.2.self_attn.v_proj.weight": floats(2, 7),
        "l.3.self_attn.qkv_proj.weight": floats(1, 7), "l.3.self_attn.q_proj.weight": floats(4, 7),
        "l.3.self_attn.k_proj.weight": floats(2, 7), "l.3.self_attn.v_proj.weight": floats(2, 7),
    }  # fmt: skip
    write_arrays(tmp / "model.safetensors", a)
    with mounted(tmp) as mnt:
        same(sorted(os.listdir(mnt / "tensors")), sorted(a), "tensors/: only what is stored")
        name = "l.3.self_attn.qkv_proj.weight"
        same_bytes(read(mnt / "tensors" / name / "raw"), tensor(a[name]).data, "a stored tensor wins")
    why = stfs("ls", "--why", tmp).decode()
    for layer in (0, 1, 2):
        assert p.format(layer) in why, f"ls --why says nothing of layer {layer}:\n{why}"


@check
def experts(tmp):
    first, second, a = "model.layers.0.mlp.experts", "model.layers.1.block_sparse_moe.experts", {}
    for e in range(12):  # 10 and 11 come after 2
        a[f"{first}.{e}.gate_proj.weight"], a[f"{first}.{e}.up_proj.weight"] = floats(5, 6), floats(5, 6)
        a[f"{first}.{e}.down_proj.weight"] = floats(6, 5)
        a[f"{first}.{e}.down_proj.bias"] = floats(6)
        a[f"{second}.{e}.w1.weight"], a[f"{second}.{e}.w3.weight"] = floats(5, 6), floats(5, 6)
        a[f"{second}.{e}.w2.weight"] = floats(6, 5)
    gap = "model.layers.2.mlp.experts"
    for e in (0, 1, 3):
        a[f"{gap}.{e}.down_proj.weight"] = floats(6, 5)
    write_arrays(tmp / "model.safetensors", a)
    with mounted(tmp) as mnt:
        for prefix, gate, up, down in ((first, "gate_proj", "up_proj", "down_proj"), (second, "w1", "w3", "w2")):
            names = [(e, part, f"{prefix}.{e}.{part}.weight") for e in range(12) for part in (gate, up)]
            whole = np.stack([np.concatenate([a[f"{prefix}.{e}.{p}.weight"] for p in (gate, up)]) for e in range(12)])
            parts = [{"name": n, "index": e, "range": [0, 5] if part == gate else [5, 10]} for e, part, n in names]
            served(mnt, f"{prefix}.gate_up_proj", whole, {"kind": "stacked", "axis": 0, "parts": parts})
            whole = np.stack([a[f"{prefix}.{e}.{down}.weight"] for e in range(12)])
            parts = [{"name": f"{prefix}.{e}.{down}.weight", "index": e} for e in range(12)]
            served(mnt, f"{prefix}.down_proj", whole, {"kind": "stacked", "axis": 0, "parts": parts})
        whole = np.stack([a[f"{first}.{e}.down_proj.bias"] for e in range(12)])
        same_bytes(read(mnt / "tensors" / f"{first}.down_proj.bias" / "raw"), tensor(whole).data, "stacked biases")
        one = np.concatenate([a[f"{first}.3.gate_proj.weight"], a[f"{first}.3.up_proj.weight"]])
        same_bytes(read(mnt / "tensors" / f"{first}.3.gate_up_proj.weight" / "raw"), tensor(one).data, "one expert's own")
        assert not (mnt / "tensors" / f"{gap}.down_proj").exists(), "experts with one missing are stacked"


@check
def tied_head(tmp):
    cases = {
        "says so": ({"tie_word_embeddings": True}, True),
        "in text_config": ({"text_config": {"tie_word_embeddings": True}}, True),
        "a causal model, silent": ({"architectures": ["GemmaForCausalLM"]}, True),
        "says no": ({"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False}, False),
        "not a causal model": ({"architectures": ["BertModel"]}, False),
        "no config": (None, False),
    }
    embedding = floats(11, 7)
    for case, (config, tied) in cases.items():
        model = tmp / case
        model.mkdir()
        write_arrays(model / "model.safetensors", {"model.embed_tokens.weight": embedding, "model.norm.weight": floats(7)})
        if config is not None:
            (model / "config.json").write_text(json.dumps(config))
        with mounted(model) as mnt:
            same((mnt / "tensors/lm_head.weight").exists(), tied, f"lm_head.weight, config {case}")
            if tied:
                served(mnt, "lm_head.weight", embedding, {"kind": "tied", "parts": ["model.embed_tokens.weight"]})
        lone = tmp / f"{case}.safetensors"
        (model / "model.safetensors").rename(lone)
        with mounted(lone) as mnt:
            assert not (mnt / "tensors/lm_head.weight").exists(), "a lone shard has a tied head"


@check
def gpt2_head(tmp):
    embedding = floats(11, 7, kind=np.float32)
    write_arrays(tmp / "model.safetensors", {"transformer.wte.weight": embedding, "transformer.wpe.weight": floats(4, 7)})
    (tmp / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}')
    with mounted(tmp) as mnt:
        served(mnt, "lm_head.weight", embedding, {"kind": "tied", "parts": ["transformer.wte.weight"]})


@check
def a_fusion_across_shards(tmp):
    p = "model.layers.0.self_attn"
    a = {f"{p}.{x}_proj.weight": floats(1000 + i, 131) for i, x in enumerate("qkv")}
    shards = {f"model-{i}.safetensors": [n] for i, n in enumerate(a)}
    for shard, names in shards.items():
        write_arrays(tmp / shard, {n: a[n] for n in names})
    index(tmp, shards)
    with mounted(tmp) as mnt:
        served(mnt, f"{p}.qkv_proj.weight", np.concatenate(list(a.values())), fused(0, *[(n, len(v)) for n, v in a.items()]))


@check
def fused_export(tmp):
    p = "model.layers.0.self_attn"
    a = {f"{p}.{x}_proj.weight": floats(8, 16) for x in "qkv"} | {"model.norm.weight": floats(16)}
    write_arrays(tmp / "model.safetensors", a)
    with mounted(tmp) as mnt:
        path = mnt / "export/model-fused.safetensors"
        header, whole = parse(path), read(path)
        same(sorted(header), [f"{p}.qkv_proj.weight", "model.norm.weight"], "names")
        _, shape, offset, length = header[f"{p}.qkv_proj.weight"]
        same(shape, [24, 16], "shape")
        joined = np.concatenate([a[f"{p}.{x}_proj.weight"] for x in "qkv"])
        same_bytes(whole[offset : offset + length], tensor(joined).data, "bytes")


@check
def bin_and_manifest(tmp):
    parts = {"z": every_code("F16"), "a.b": every_code("BF16"), "ints": every_code("I32"), "words": every_code("U32")}
    manifest, data = {}, b"\xee" * 64
    for name, t in parts.items():
        data += b"\xee" * (-len(data) % 64)
        manifest[name] = {"offset": len(data), "size": len(t.data), "shape": t.shape, "dtype": t.dtype}
        data += t.data
    data += b"\xee" * (-len(data) % 64)
    manifest["overlap"] = {"offset": 66, "size": 10, "shape": [5], "dtype": "F16"}
    manifest["unknown"] = {"offset": 64, "size": 3, "shape": [7], "dtype": "Q3_K"}
    # A U32 tensor whose shape counts values, not words.
    manifest["logical"] = {"offset": 0, "size": 64, "shape": [2, 64], "dtype": "U32", "bits": 4}
    (tmp / "model_weights.bin").write_bytes(data)
    (tmp / "model_weights.json").write_text(json.dumps({"model": "made here", "num_tensors": 7, "tensors": manifest}))
    for model in (tmp, tmp / "model_weights.json", tmp / "model_weights.bin"):
        with mounted(model) as mnt:
            same(sorted(os.listdir(mnt / "tensors")), sorted(manifest), "tensors/")
            for name, t in parts.items():
                same_bytes(read(mnt / "tensors" / name / "raw"), t.data, name)
                same_values(read(mnt / "tensors" / name / "f32"), t.f32(), name)
            for name in ("overlap", "unknown", "logical"):
                at, size = manifest[name]["offset"], manifest[name]["size"]
                same_bytes(read(mnt / "tensors" / name / "raw"), data[at : at + size], name)
            same(sorted(os.listdir(mnt / "tensors/unknown")), ["meta.json", "raw"], "a dtype that stfs does not know")
            assert not (mnt / "npy/unknown.npy").exists(), "npy of a dtype that stfs does not know"
            same(json.loads(read(mnt / "tensors/logical/meta.json"))["shape"], [2, 8], "the packed shape")
            same(json.loads(read(mnt / "model.json"))["format"], "manifest", "format")


@check
def a_model_there_and_back_as_bin_and_manifest(tmp):
    source = tmp / "model"
    source.mkdir()
    tensors = {f"t.{d}": every_code(d) for d, (_, word, _) in DTYPES.items() if word}
    write(source / "model.safetensors", tensors)
    copy = tmp / "copy"
    copy.mkdir()
    with mounted(source) as mnt:
        for name in ("model_weights.bin", "model_weights.json"):
            (copy / name).write_bytes(read(mnt / "export" / name))
    spans = json.loads(read(copy / "model_weights.json"))["tensors"]
    for name, t in tensors.items():
        same(spans[name]["offset"] % 64, 0, f"alignment of {name}")
    with mounted(copy) as mnt:
        same(sorted(os.listdir(mnt / "tensors")), sorted(tensors), "tensors/")
        for name, t in tensors.items():
            same_bytes(read(mnt / "tensors" / name / "raw"), t.data, name)


if __name__ == "__main__":
    main()
