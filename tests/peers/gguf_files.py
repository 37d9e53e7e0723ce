"""GGUF models as wholes, held against the `gguf` package and the safetensors library: fused and tied
tensors, splits, exports, and what the commands report.
"""

import json
import math
import os
import struct

import gguf
import numpy as np
from safetensors.numpy import load_file

from harness import check, main, mounted, random_numbers, read, run, same, same_bytes, same_values, stfs
from harness.gguf_model import DECODED, NUMBERS, PLAIN, TYPES, Tensor, by_hand, by_package, float_tensor, llama, random

RNG = random_numbers()


def summed(tensors):
    """dtypes of model.json."""
    found = {}
    for t in tensors.values():
        entry = found.setdefault(t.dtype, {"tensors": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["bytes"] += len(t.data)
    return found


@check
def model_json_counts_values(tmp):
    tensors = llama(RNG)
    path = tmp / "m.gguf"
    by_package(path, tensors)
    with mounted(path) as mnt:
        assert "metadata.json" in os.listdir(mnt), "metadata.json is not listed"
        found = json.loads(read(mnt / "model.json"))
    del found["metadata"]
    expected = {
        "format": "gguf", "files": [{"name": "m.gguf", "bytes": path.stat().st_size}], "tensors": len(tensors),
        "parameters": sum(math.prod(t.shape) for t in tensors.values()), "bytes": sum(len(t.data) for t in tensors.values()),
        "dtypes": summed(tensors), "quantization": {"method": "gguf", "bits": None, "group_size": None},
    }  # fmt: skip
    same(found, expected, "model.json")
    by_package(path, {"a": random(RNG, "F16", 3, 3), "b": random(RNG, "F32", 3)})
    with mounted(path) as mnt:
        same(json.loads(read(mnt / "model.json"))["quantization"], None, "quantization without block types")


def joined(tensors, names, axis):
    """Dtype, shape, raw bytes and values of tensors that are joined; where types differ, F32."""
    parts = [tensors[n] for n in names]
    whole = np.concatenate([p.f32() for p in parts], axis=axis)
    if len({p.dtype for p in parts}) > 1:
        return "F32", list(whole.shape), None, whole
    lead = math.prod(parts[0].shape[:axis])
    raw = b"".join(p.data[i * len(p.data) // lead : (i + 1) * len(p.data) // lead] for i in range(lead) for p in parts)
    return parts[0].dtype, list(whole.shape), raw, whole


@check
def fused_tensors_have_llama_cpps_names(tmp):
    for types in [("Q4_K", "Q6_K"), ("F16", "F32"), ("IQ3_S", "IQ3_S"), ("Q8_0", "BF16")]:
        tensors = llama(RNG, types)
        by_package(tmp / "m.gguf", tensors)
        expected = {}
        for i in (0, 1):
            for s in ("weight", "bias"):
                parts = [f"blk.{i}.attn_{x}.{s}" for x in "qkv"]
                expected[f"blk.{i}.attn_qkv.{s}"] = parts, 0
                parts = [f"blk.{i}.ffn_{x}_exps.{s}" for x in ("gate", "up")]
                expected[f"blk.{i}.ffn_gate_up_exps.{s}"] = parts, 1
        with mounted(tmp / "m.gguf") as mnt:
            index = json.loads(read(mnt / "index.json"))
            same({n for n, t in index.items() if t["origin"] != "stored"}, set(expected), f"synthetic tensors of {types}")
            for name, (parts, axis) in expected.items():
                what = f"{types}: {name}"
                dtype, shape, raw, whole = joined(tensors, parts, axis)
                meta = json.loads(read(mnt / "tensors" / name / "meta.json"))
                same((meta["dtype"], meta["shape"]), (dtype, shape), what)
                same(("quantization" in meta, meta["origin"]["kind"], meta["origin"]["axis"]), (False, "fused", axis), what)
                same([p["name"] for p in meta["origin"]["parts"]], parts, f"{what}: parts")
                same_values(read(mnt / "tensors" / name / "f32"), whole, f"{what}: f32")
                found = read(mnt / "tensors" / name / "raw")
                same_bytes(found, read(mnt / "tensors" / name / "f32") if raw is None else raw, f"{what}: raw")
                same_values(np.load(mnt / f"npy/{name}.npy").astype(np.float32).tobytes(), whole, f"{what}: .npy")
        with mounted(tmp / "m.gguf", "--no-synthetic") as mnt:
            same(sorted(os.listdir(mnt / "tensors")), sorted(tensors), "with --no-synthetic")


@check
def a_head_that_is_not_stored_is_the_embedding(tmp):
    tensors = llama(RNG, head=False)
    by_package(tmp / "m.gguf", tensors)
    embedding = tensors["token_embd.weight"]
    with mounted(tmp / "m.gguf") as mnt:
        meta = json.loads(read(mnt / "tensors/output.weight/meta.json"))
        same(meta["origin"], {"kind": "tied", "parts": ["token_embd.weight"]}, "origin")
        same((meta["dtype"], meta["shape"]), (embedding.dtype, embedding.shape), "output.weight")
        same_bytes(read(mnt / "tensors/output.weight/raw"), embedding.data, "raw")
        same_values(read(mnt / "tensors/output.weight/f32"), embedding.f32(), "f32")
    stored = {"with a head": llama(RNG), "no norm": {n: t for n, t in tensors.items() if n != "output_norm.weight"},
              "no embedding": {n: t for n, t in tensors.items() if n != "token_embd.weight"}}  # fmt: skip
    for what, others in stored.items():
        by_package(tmp / "m.gguf", others)
        tied = [t["name"] for t in json.loads(stfs("ls", "--json", tmp / "m.gguf")) if t["origin"] == "tied"]
        same(tied, [], what)


@check
def float_export_by_the_safetensors_library(tmp):
    tensors = {f"t.{n}": random(RNG, n, 3, 2 * TYPES[NUMBERS[n]][1]) for n in [*DECODED, "Q8_1", "Q8_K", *PLAIN, "BF16"]}
    tensors |= {"empty": Tensor("Q4_0", [0, 32], b""), "scalar": random(RNG, "F16")}
    by_hand(tmp / "m.gguf", {n: t for n, t in tensors.items() if t.dtype not in ("Q8_1", "Q8_K")})
    with mounted(tmp / "m.gguf") as mnt:
        floats = load_file(mnt / "export/model-f32.safetensors")
        exports = set(os.listdir(mnt / "export"))
        run("cp", mnt / "export/model-f32.safetensors", tmp / "copy.safetensors")
    expected = {n: t for n, t in tensors.items() if t.dtype not in ("Q8_1", "Q8_K")}
    same(sorted(floats), sorted(expected), "names")
    for name, tensor in expected.items():
        if tensor.dtype.startswith("I") and tensor.dtype in PLAIN:
            same_bytes(floats[name].tobytes(), tensor.data, name)
        else:
            same((floats[name].dtype, list(floats[name].shape)), (np.dtype("f4"), tensor.shape), name)
            same_values(floats[name].tobytes(), tensor.f32(), name)
    same(exports, {"model-bf16.safetensors", "model-f32.safetensors", "model.gguf", "model_weights.bin", "model_weights.json"}, "export/")
    why = stfs("ls", "--why", tmp / "m.gguf").decode()
    for name in ("export/model.safetensors", "export/model-fused.safetensors"):
        assert name in why, f"ls --why does not name {name}:\n{why}"
    # The float checkpoint and the file have the same weights: what differs is their types.
    report = json.loads(stfs("diff", "--json", tmp / "copy.safetensors", tmp / "m.gguf", expect=1))
    same((report["added"], report["removed"]), ([], []), "diff")
    different = {n for n, t in expected.items() if t.dtype not in ("F32", "I8", "I16", "I32", "I64")}
    same({c["name"] for c in report["changed"]}, different, "diff")
    for change in report["changed"]:
        finite = np.isfinite(expected[change["name"]].f32()).any()
        same((change["what"], change["max_abs"]), ("dtype", 0 if finite else None), f"diff: {change['name']}")


@check
def a_model_of_plain_types_exports_as_safetensors(tmp):
    tensors = {f"t.{n}": random(RNG, n, 3, 4) for n in [*PLAIN, "BF16"]}
    by_package(tmp / "m.gguf", tensors)
    with mounted(tmp / "m.gguf") as mnt:
        found = load_file(mnt / "export/model.safetensors")
        same(sorted(found), sorted(tensors), "names")
        for name, tensor in tensors.items():
            same_bytes(found[name].tobytes(), tensor.data, name)
        assert (mnt / "export/model-fused.safetensors").exists(), "model-fused.safetensors is missing"


@check
def bin_and_manifest(tmp):
    tensors = llama(RNG)
    by_package(tmp / "m.gguf", tensors)
    with mounted(tmp / "m.gguf") as mnt:
        manifest = json.loads(read(mnt / "export/model_weights.json"))["tensors"]
        data = read(mnt / "export/model_weights.bin")
    same(sorted(manifest), sorted(tensors), "names")
    for name, tensor in tensors.items():
        entry = manifest[name]
        same((entry["dtype"], entry["shape"], entry["size"], entry["offset"] % 64), (tensor.dtype, tensor.shape, len(tensor.data), 0), name)
        same_bytes(data[entry["offset"] : entry["offset"] + entry["size"]], tensor.data, name)


@check
def one_file_is_exported_as_it_is(tmp):
    """cmp with the file, whatever lies between and after its tensors."""
    tensors = llama(RNG, layers=1)
    keys = [("one", "string", "é"), ("none", "array", ("string", [])), ("last", "float64", -0.0)]
    by_package(tmp / "by-package.gguf", tensors)
    by_hand(tmp / "by-hand.gguf", tensors, keys, version=2, alignment=128, order=list(RNG.permutation(list(tensors))), gap=1)
    with open(tmp / "by-hand.gguf", "ab") as f:
        f.write(RNG.bytes(777))
    for path in (tmp / "by-package.gguf", tmp / "by-hand.gguf"):
        with mounted(path) as mnt:
            run("cmp", path, mnt / "export/model.gguf")
            run("cp", mnt / "export/model.gguf", tmp / "copy")
            run("cmp", path, tmp / "copy")
            reader = gguf.GGUFReader(mnt / "export/model.gguf")  # maps the file
            same([t.name for t in reader.tensors], list(tensors), "names by GGUFReader")
            for t in reader.tensors:
                same_bytes(t.data.tobytes(), tensors[t.name].data, f"{t.name} by GGUFReader")
            del reader, t


def some_keys(writer):
    writer.add_block_count(2)
    writer.add_token_list([f"t{i}" for i in range(100)])
    writer.add_array("three", [1, 2, 3])
    writer.add_name("Tiny")


@check
def splits_are_one_model(tmp):
    """Written by GGUFWriter in splits, and whole: export/model.gguf is the whole file's bytes."""
    tensors = llama(RNG)
    (tmp / "whole").mkdir()
    by_package(tmp / "whole/model.gguf", tensors, some_keys)
    for most, small_first in [(1, False), (7, False), (len(tensors) - 1, False), (5, True)]:
        folder = tmp / f"{most}{small_first}"
        folder.mkdir()
        files = by_package(folder / "model.gguf", tensors, some_keys, split_max_tensors=most, small_first_shard=small_first)
        assert len(files) > 1, files
        (folder / "README.md").write_text("beside the splits\n")
        given = [folder, files[0], files[-1], files[int(RNG.integers(0, len(files)))]]
        for model in given:
            with mounted(model) as mnt:
                what = f"{most} tensors a file, by {model.name}"
                run("cmp", mnt / "export/model.gguf", tmp / "whole/model.gguf")
                listed = {t["name"]: t["file"] for t in json.loads(stfs("ls", "--json", model)) if t["origin"] == "stored"}
                same(sorted(listed), sorted(tensors), f"{what}: names")
                places = {t.name: (f.name, t.data_offset) for f in files for t in gguf.GGUFReader(f).tensors}
                for name in RNG.choice(list(tensors), 5, replace=False):
                    same_bytes(read(mnt / "tensors" / name / "raw"), tensors[name].data, f"{what}: {name}")
                    same_values(read(mnt / "tensors" / name / "f32"), tensors[name].f32(), f"{what}: {name}")
                    origin = json.loads(read(mnt / "tensors" / name / "meta.json"))["origin"]
                    same((origin["file"], origin["offset"]), places[name], f"{what}: origin of {name}")
                about = json.loads(read(mnt / "model.json"))
                same(about["files"], [{"name": f.name, "bytes": f.stat().st_size} for f in files], f"{what}: files")
                keys = [k for k in gguf.GGUFReader(files[0]).fields if not k.startswith("GGUF.")]
                same(list(json.loads(read(mnt / "metadata.json"))), keys, f"{what}: keys of the first file")
                floats = load_file(mnt / "export/model-f32.safetensors")
                same(sorted(floats), sorted(tensors), f"{what}: float names")
                if model == folder:
                    same(read(mnt / "files/README.md"), b"beside the splits\n", "files/")
                    same(os.listdir(mnt / "files"), ["README.md"], "files/")


@check
def splits_of_several_alignments_merge_densely(tmp):
    """By hand: each file has its own alignment and order of data; the result has the first's."""
    parts = [{f"{k}.{n}": random(RNG, n, 3, TYPES[NUMBERS[n]][1]) for n in ("Q5_K", "F16", "Q4_0", "I8")} for k in "abc"]
    every = {n: t for part in parts for n, t in part.items()}
    for i, (part, alignment) in enumerate(zip(parts, (64, 8, 512))):
        split = [("split.no", "uint16", i), ("split.count", "uint16", 3), ("split.tensors.count", "int32", len(every))]
        first = [("general.architecture", "string", "x"), split[0], ("middle", "float64", 0.1), *split[1:], ("last", "array", ("bool", [1, 0]))]
        keys = split if i else first
        by_hand(tmp / f"m-{i + 1:05}-of-00003.gguf", part, keys, 2 + i % 2, alignment, list(RNG.permutation(list(part))), i)
    with mounted(tmp) as mnt:
        merged = mnt / "export/model.gguf"
        same(struct.unpack("<I", read(merged)[4:8]), (3,), "version")
        reader = gguf.GGUFReader(merged)
        keys = [k for k in reader.fields if not k.startswith("GGUF.")]
        same(keys, ["general.architecture", "middle", "last", "general.alignment"], "keys")
        same(reader.alignment, 64, "alignment")
        same([t.name for t in reader.tensors], list(every), "order")
        at = reader.data_offset
        for t in reader.tensors:
            same(t.data_offset, at, f"offset of {t.name}")
            same_bytes(t.data.tobytes(), every[t.name].data, t.name)
            at += -(-len(every[t.name].data) // 64) * 64
        same(merged.stat().st_size, at, "size")
        run("cp", merged, tmp / "whole")
        del reader, t
    stfs("verify", tmp / "whole")
    (tmp / "b").mkdir()
    by_hand(tmp / "b/whole.gguf", every, [k for k in first if not k[0].startswith("split.")], 3, 64)
    # What is written in one go is what the merged file is, but for the padding at its end.
    expected = read(tmp / "b/whole.gguf")
    same_bytes(read(tmp / "whole")[: len(expected)], expected, "merged")


@check
def info_counts_by_llama_cpps_names(tmp):
    """Configuration from the keys; parts of the model, and the parameters that a token visits."""

    def keys(writer):
        writer.add_block_count(2), writer.add_embedding_length(256), writer.add_head_count(4), writer.add_head_count_kv(2)
        writer.add_expert_count(3), writer.add_expert_used_count(2), writer.add_context_length(4096)
        writer.add_token_list([f"t{i}" for i in range(64)])

    tensors = llama(RNG)
    by_package(tmp / "m.gguf", tensors, keys)
    found = json.loads(stfs("info", "--json", tmp / "m.gguf"))
    same(found["architecture"], "llama", "architecture")
    config = {"layers": 2, "hidden": 256, "heads": 4, "kv_heads": 2, "experts": 3, "experts_per_token": 2, "vocab": 64, "context": 4096}
    same(found["config"], config, "config")

    def part(name):
        if "norm" in name:
            return "norm"
        if "ffn" in name:
            return "other" if "gate_inp" in name else "experts" if "_exps" in name else "mlp"
        return "embedding" if "token_embd" in name else "attention" if "attn" in name else "head"

    expected = {}
    for name, t in tensors.items():
        entry = expected.setdefault(part(name), {"tensors": 0, "parameters": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["parameters"] += math.prod(t.shape)
        entry["bytes"] += len(t.data)
    parts = {p.pop("name"): p for p in found["parts"]}
    same({n: p for n, p in parts.items() if p["tensors"]}, expected, "parts")
    parameters = sum(p["parameters"] for p in expected.values())
    same((found["tensors"], found["parameters"]), (len(tensors), parameters), "parameters")
    same(found["active_parameters"], parameters - expected["experts"]["parameters"] // 3, "active parameters")
    stored = sum(p["bytes"] for p in expected.values())
    same(found["memory"], {"stored": stored, "bf16": 2 * parameters, "f32": 4 * parameters}, "memory")
    same(found["quantization"], {"method": "gguf", "bits": None, "group_size": None}, "quantization")


@check
def diff_of_two_files(tmp):
    tensors = llama(RNG, ("Q8_0", "Q4_0"))
    by_package(tmp / "a.gguf", tensors)
    other = dict(tensors)
    other["output.weight"] = random(RNG, "Q4_0", 64, 256)
    other["blk.0.attn_norm.weight"] = float_tensor("F16", np.ones(256, np.float32))
    other["new"] = other.pop("output_norm.weight")
    by_package(tmp / "b.gguf", other)
    report = json.loads(stfs("diff", "--json", tmp / "a.gguf", tmp / "b.gguf", expect=1))
    same((report["added"], report["removed"]), (["new"], ["output_norm.weight"]), "names")
    same({c["name"] for c in report["changed"]}, {"output.weight", "blk.0.attn_norm.weight"}, "changed")
    same(report["unchanged"], len(tensors) - 3, "unchanged")
    same(json.loads(stfs("diff", "--json", tmp / "a.gguf", tmp / "a.gguf"))["unchanged"], len(tensors), "with itself")


@check
def checksums_are_sha256sums(tmp):
    tensors = llama(RNG, ("IQ2_S", "MXFP4"))
    by_package(tmp / "m.gguf", tensors)
    stfs("verify", "--checksum", tmp / "sums", tmp / "m.gguf")
    with mounted(tmp / "m.gguf") as mnt:
        done = run("sha256sum", "-c", tmp / "sums", cwd=mnt).decode().splitlines()
    same(sorted(done), sorted(f"tensors/{n}/raw: OK" for n in tensors), "sha256sum -c")


@check
def verify_reports_what_llama_cpp_refuses(tmp):
    tensors = {n: random(RNG, "F32", 512) for n in ("one", "two", "three")}
    tensors["n" * 64] = random(RNG, "F32", 512)
    cases = {
        "sound": ({"order": None}, {n: t for n, t in tensors.items() if len(n) < 64}, None),
        "hole": ({"gap": 1}, {n: t for n, t in tensors.items() if len(n) < 64}, ("two", 2080, 2048)),
        "order": ({"order": ["two", "one", "three"]}, {n: t for n, t in tensors.items() if len(n) < 64}, ("one", 2048, 0)),
        "name": ({}, tensors, ("n" * 64, None, None)),
    }
    for what, (options, some, expected) in cases.items():
        by_hand(tmp / "m.gguf", some, **options)
        with mounted(tmp / "m.gguf") as mnt:  # it is served all the same
            for name, tensor in some.items():
                same_bytes(read(mnt / "tensors" / name / "raw"), tensor.data, f"{what}: {name}")
        problems = json.loads(stfs("verify", "--json", tmp / "m.gguf", expect=int(expected is not None)))
        if expected is None:
            same(problems, [], what)
            continue
        tensor, at, dense = expected
        found = [p["problem"] for p in problems if p["tensor"] == tensor]
        assert found, f"{what}: {problems}"
        assert any("llama.cpp" in p for p in found), f"{what}: {found}"
        if at is not None:
            assert any(str(at) in p and str(dense) in p for p in found), f"{what}: {found}"


if __name__ == "__main__":
    main()
