#!/usr/bin/env python3
"""Recipes over models of every kind: quantized layers, GGUF, PyTorch, tied heads, other recipes; and what the rest makes of
their results. Expected values by NumPy, or what the same model has without a recipe.
"""

import json
import os

import numpy as np

from harness import REPOSITORY, check, main, mounted, random_numbers, read, run, same, same_bytes, stfs
from harness.checkpoints import Storage, Tensor, save
from harness.recipes import BF16, E4M3, DTYPES, f32, left, load, meta, model, options, recipe, same_tensor, same_tensors

RNG = random_numbers()
GOLDEN = REPOSITORY / "tests/golden"


def array(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def text(rules, head='model = "m"'):
    return head + "\nrules = [\n" + ",\n".join(rules) + "\n]\n"


@check
def a_slice_of_an_fp8_layer_and_of_its_scales_is_a_layer_again(scratch):
    (scratch / "m").symlink_to(GOLDEN / "fp8-blocks/model")
    with mounted(scratch / "m") as mount:
        stored, floats = load(mount / "export/model.safetensors"), load(mount / "export/model-f32.safetensors")
    q = "model.layers.0.self_attn.q_proj.weight"
    same(stored[q].dtype, E4M3, "dtype")
    rows = stored[q].shape[0] // stored[f"{q}_scale_inv"].shape[0]
    path = recipe(scratch, text([f'{{ on = "{q}", is = "it[{rows}:]" }}', f'{{ on = "{q}_scale_inv", is = "it[1:]" }}']))
    found = left(path)
    same_tensor(found[q], stored[q][rows:], "words")
    with mounted(path) as mount:
        same(read(mount / f"tensors/{q}/f32"), floats[q][rows:].tobytes(), "the slice's values")
        same_bytes(load(mount / "export/model-f32.safetensors")[q].tobytes(), floats[q][rows:].tobytes(), "export")


@check
def ranks_of_a_quantized_model_joined_are_its_values(scratch):
    for case, axis_of in {
        "gptq-4bit-v2-asym": {"qweight": 1, "qzeros": 1, "scales": 1}, "awq-4bit-groups-of-32": {"qweight": 1, "qzeros": 1, "scales": 1},
        "mlx-affine-4bit": {"weight": 0, "scales": 0, "biases": 0},
    }.items():  # fmt: skip
        at = scratch / case
        at.mkdir()
        (at / "m").symlink_to(GOLDEN / case / "model")
        with mounted(at / "m") as mount:
            floats = load(mount / "export/model-f32.safetensors")
        q = "model.layers.0.self_attn.q_proj"
        rules = [f'{{ on = "{q}.{suffix}", is = "part(it, rank, 2, axis={axis})" }}' for suffix, axis in axis_of.items()]
        path = recipe(at, text(rules, 'model = "m"\nset = { rank = 0 }'))
        parts = []
        for rank in range(2):
            with mounted(path, *options(rank=rank)) as mount:
                parts.append(load(mount / "export/model-f32.safetensors")[f"{q}.weight"])
        same_bytes(np.concatenate(parts).tobytes(), floats[f"{q}.weight"].tobytes(), case)


@check
def floats_of_a_model_are_those_of_its_export(scratch):
    for case in ("gptq-4bit-v2-asym", "awq-4bit-one-group", "fp8-blocks", "mlx-mxfp4", "bnb-nf4", "gpt-oss-mxfp4", "ct-nvfp4"):
        at = scratch / case
        at.mkdir()
        (at / "m").symlink_to(GOLDEN / case / "model")
        with mounted(at / "m") as mount:
            stored, floats = load(mount / "export/model.safetensors"), load(mount / "export/model-f32.safetensors")
        path = recipe(at, 'model = { path = "m", as = "floats" }\n')
        same_tensors(left(path), floats, case)
        with mounted(path) as mount:
            config = json.loads(read(mount / "files/config.json"))
            assert "quantization_config" not in config and "quantization" not in config, config
        same_tensors(left(recipe(at, 'model = "m"\n', "plain.toml")), stored, f"{case}: as it is stored")
        first = next(n for n in floats if n not in stored or floats[n].shape != stored[n].shape or stored[n].dtype not in (BF16, np.float16, np.float32))
        plain = left(recipe(at, text([f'{{ on = "model.norm.weight", add = "one", is = "bf16(model:\'{first}\')" }}']), "one.toml"))
        same_tensor(plain["one"], floats[first].astype(BF16), f"{case}: {first}")


@check
def a_tied_head_is_looked_up_where_it_is_synthetic(scratch):
    tensors = {"model.embed_tokens.weight": array(40, 8, dtype=BF16), "model.layers.0.self_attn.q_proj.weight": array(8, 8, dtype=BF16), "model.norm.weight": array(8)}
    tensors |= {f"model.layers.0.self_attn.{x}_proj.weight": array(8, 8, dtype=BF16) for x in "kv"}
    model(scratch / "m", tensors, {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True})
    head = """{ on = "model.norm.weight", add = { head = "part(model:'lm_head.weight', 1, 4)", qkv = "model:'model.layers.0.self_attn.qkv_proj.weight'[1:]" } }"""
    found = left(recipe(scratch, text([head, '{ drop = "model.embed_tokens.weight" }'])))
    same_tensor(found["head"], tensors["model.embed_tokens.weight"][10:20], "head")
    qkv = np.concatenate([tensors[f"model.layers.0.self_attn.{x}_proj.weight"] for x in "qkv"])
    same_tensor(found["qkv"], qkv[1:], "qkv")
    # Without 'model:' it is what the rules left, and that has no synthetic tensors.
    stfs("ls", recipe(scratch, text(["""{ on = "model.norm.weight", is = "'lm_head.weight'" }"""])), expect=1)
    # A result of a synthetic tensor's name wins.
    own = recipe(scratch, text(["""{ on = "model.norm.weight", add = "lm_head.weight", is = "it + 1" }"""]))
    with mounted(own) as mount:
        same(json.loads(read(mount / "index.json"))["lm_head.weight"]["origin"], "derived", "origin")
        assert (mount / "tensors/model.layers.0.self_attn.qkv_proj.weight").exists()
    with mounted(own, "--no-synthetic") as mount:
        assert (mount / "tensors/lm_head.weight").exists() and not (mount / "tensors/model.layers.0.self_attn.qkv_proj.weight").exists()


@check
def pytorch_checkpoints_that_are_not_contiguous(scratch):
    storage = Storage("0", "float32", array(6000))
    views = {"t": Tensor(storage, 5, (40, 30), (1, 40)), "cut": Tensor(storage, 100, (20, 10), (50, 2)), "plain": Tensor(storage, 0, (60, 100), (100, 1))}
    (scratch / "m").mkdir()
    save(scratch / "m/pytorch_model.bin", views)
    expected = {n: v.array() for n, v in views.items()}
    rules = ['{ on = "t", add = { tt = "t(it)", some = "it[3:, ::2]", sum = "it + 1" } }', '{ on = "cut", to = "renamed" }', '{ on = "plain", is = "bf16(it[:, 1:])" }']
    found = left(recipe(scratch, text(rules)))
    t = expected["t"]
    want = {"t": t, "tt": t.T, "some": t[3:, ::2], "sum": t + np.float32(1), "renamed": expected["cut"], "plain": expected["plain"][:, 1:].astype(BF16)}
    same_tensors(found, want, "strided")


@check
def ggufs_blocks_are_cut_between_them(scratch):
    import gguf

    (scratch / "m").mkdir()
    writer = gguf.GGUFWriter(scratch / "m/model.gguf", "llama")
    writer.add_block_count(1)
    rows, columns = 8, 512
    values = array(rows, columns)
    for name, kind in {"a.weight": gguf.GGMLQuantizationType.Q8_0, "b.weight": gguf.GGMLQuantizationType.Q4_0}.items():
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("plain.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    names = {t["name"]: t for t in json.loads(stfs("ls", "--json", scratch / "m"))}
    a, b = (n for n in names if names[n]["dtype"] in ("Q8_0", "Q4_0"))
    with mounted(scratch / "m") as mount:
        raw = {n: read(mount / f"tensors/{n}/raw") for n in names}
        decoded = {n: np.frombuffer(read(mount / f"tensors/{n}/f32"), np.float32).reshape(names[n]["shape"]) for n in names}
    rules = [
        f"""{{ on = "{n}", add = {{ "{i}.rows" = "it[2:6]", "{i}.part" = "part(it, 1, 2, axis=1)", "{i}.two" = "concat(it, it[0:1])", "{i}.wide" = "concat(it, it[:, 32:64], axis=1)", "{i}.bf16" = "bf16(it)", "{i}.half" = "it[3] * 2", "{i}.up" = "permute(reshape(it, 2, 4, -1), 1, 0, 2)" }} }}"""
        for i, n in enumerate((a, b))
    ]
    path = recipe(scratch, text(rules))
    with mounted(path) as mount:
        for i, n in enumerate((a, b)):
            words = np.frombuffer(raw[n], np.uint8).reshape(rows, -1)
            block = words.shape[1] * 32 // columns
            d = decoded[n]
            turned = lambda x: x.reshape(2, 4, -1).swapaxes(0, 1)  # noqa: E731
            for name, stored, value in [
                ("rows", words[2:6], d[2:6]), ("part", words[:, words.shape[1] // 2 :], d[:, columns // 2 :]), ("two", np.concatenate([words, words[:1]]), np.concatenate([d, d[:1]])),
                ("wide", np.concatenate([words, words[:, block : 2 * block]], 1), np.concatenate([d, d[:, 32:64]], 1)), ("up", turned(words), turned(d)),
            ]:  # fmt: skip
                same_bytes(read(mount / f"tensors/{i}.{name}/raw"), np.ascontiguousarray(stored).tobytes(), f"{n}: {name}")
                same_bytes(read(mount / f"tensors/{i}.{name}/f32"), np.ascontiguousarray(value).tobytes(), f"{n}: {name}: f32")
            same_bytes(read(mount / f"tensors/{i}.bf16/raw"), d.astype(BF16).tobytes(), f"{n}: bf16")
            same_bytes(read(mount / f"tensors/{i}.half/raw"), (d[3] * np.float32(2)).tobytes(), f"{n}: values of a row")
    for bad in ("it[:, 1:33]", "t(it)", "it[:, ::2]", "pad(it, 513, axis=1)", "reshape(it, 512, 8)"):
        stfs("ls", recipe(scratch, text([f'{{ on = "{a}", is = "{bad}" }}'])), expect=1)


@check
def f4_and_f6_are_cut_where_rows_are_whole_bytes(scratch):
    (scratch / "m").mkdir()
    raw = {"F4": RNG.bytes(6 * 8 // 2), "F6_E2M3": RNG.bytes(6 * 8 * 6 // 8)}
    header, data = {}, b""
    for name, content in raw.items():
        header[name] = {"dtype": name, "shape": [6, 8], "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    head = json.dumps(header).encode()
    (scratch / "m/model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    rules = [f"""{{ on = "{n}", add = {{ "{n}.cut" = "it[1:4]", "{n}.cols" = "it[:, 4:]", "{n}.join" = "concat(it, it[::2])", "{n}.bf16" = "bf16(it)" }} }}""" for n in raw]
    with mounted(recipe(scratch, text(rules))) as mount:
        for n, content in raw.items():
            rows = np.frombuffer(content, np.uint8).reshape(6, -1)
            half = rows.shape[1] // 2
            for name, want in {"cut": rows[1:4], "cols": rows[:, half:], "join": np.concatenate([rows, rows[::2]])}.items():
                same_bytes(read(mount / f"tensors/{n}.{name}/raw"), np.ascontiguousarray(want).tobytes(), f"{n}: {name}")
            values = np.frombuffer(read(mount / f"tensors/{n}/f32"), np.float32)
            same_bytes(read(mount / f"tensors/{n}.bf16/raw"), values.astype(BF16).tobytes(), f"{n}: bf16")
    for bad in ("t(it)", "it[:, 1:4]", "permute(it, 1, 0)"):
        stfs("ls", recipe(scratch, text([f'{{ on = "F4", is = "{bad}" }}'])), expect=1)


@check
def names_that_are_hard_to_write(scratch):
    tensors = {n: array(2, 3) for n in ("a'b", "c{d}", "é.ü", "x y", "sl/ash", "q\"uote", "per%cent", "it", "1.5", "-", "back\\slash")}
    model(scratch / "m", tensors)
    rules = [
        """{ on = "é.ü", add = "1", is = "'a''b' + 0" }""", """{ on = "é.ü", add = "2", is = "'c{{d}}' + 0" }""", """{ on = "é.ü", add = "3", is = "'x y' + 'it'" }""",
        """{ on = "c{{d}}", to = "{{{n}}}", for = "n in 0..2" }""", """{ on = "a'b", to = "it's" }""", """{ on = "sl/{x}", to = "{x}/sl" }""",
        """{ on = 'q"{x}', to = "{x}\\"" }""", """{ on = "{x}.ü", to = "ü.{x}" }""", """{ on = 'back\\slash', to = 'for\\ward' }""",
    ]  # fmt: skip
    found = left(recipe(scratch, text(rules)))
    t = tensors
    want = {
        "1": t["a'b"] + np.float32(0), "2": t["c{d}"] + np.float32(0), "3": t["x y"] + t["it"], "{0}": t["c{d}"], "{1}": t["c{d}"], "it's": t["a'b"], "ash/sl": t["sl/ash"],
        'uote"': t['q"uote'], "ü.é": t["é.ü"], "x y": t["x y"], "per%cent": t["per%cent"], "it": t["it"], "1.5": t["1.5"], "-": t["-"], "for\\ward": t["back\\slash"],
    }  # fmt: skip
    same_tensors(found, want, "names")


@check
def results_have_all_files_of_a_tensor(scratch):
    tensors = {f"w.{d}": (np.arange(24).reshape(4, 6) % 2).astype(k) if d == "BOOL" else np.frombuffer(RNG.bytes(24 * np.dtype(k).itemsize), k).reshape(4, 6) for d, k in DTYPES.items()}
    tensors["w.F64"] = array(4, 6, dtype=np.float64)
    model(scratch / "m", tensors)
    turned = model(scratch / "turned", {n: np.ascontiguousarray(t.T) for n, t in tensors.items()})
    with mounted(recipe(scratch, text(['{ on = "*", is = "t(it)" }']))) as mount, mounted(turned) as plain:
        for name in tensors:
            for file in sorted({"raw", "f32", "bf16", "f16"} if (plain / f"tensors/{name}/f32").exists() else {"raw"}):
                same_bytes(read(mount / f"tensors/{name}/{file}"), read(plain / f"tensors/{name}/{file}"), f"{name}/{file}")
            if (plain / f"npy/{name}.npy").exists():
                same_bytes(read(mount / f"npy/{name}.npy"), read(plain / f"npy/{name}.npy"), f"{name}.npy")
            if (plain / f"preview/{name}.png").exists():
                same_bytes(read(mount / f"preview/{name}.png"), read(plain / f"preview/{name}.png"), f"{name}.png")
        same(sorted(os.listdir(mount / "export")), sorted(os.listdir(plain / "export")), "export")
        for export in sorted(os.listdir(plain / "export")):
            if (plain / "export" / export).is_file():
                same_bytes(read(mount / "export" / export), read(plain / "export" / export), export)
        checksums = run("sha256sum", *[f"tensors/{name}/raw" for name in tensors], cwd=mount)
        (scratch / "sums").write_bytes(checksums)
    stfs("verify", "--checksum", scratch / "sums", scratch / "recipe.toml")
    stfs("verify", "--checksum", scratch / "sums", scratch / "m", expect=1)
    found = json.loads(stfs("diff", "--json", scratch / "recipe.toml", turned))
    same((found["added"], found["removed"], found["changed"]), ([], [], []), "diff")
    a, b = (json.loads(stfs("stat", "--json", m)) for m in (scratch / "recipe.toml", turned))
    same(a, b, "stat")


@check
def parameters_reach_the_recipe_that_has_them(scratch):
    model(scratch / "m", {"w": np.arange(24, dtype=np.float32).reshape(8, 3)})
    a = recipe(scratch, 'model = "m"\nset = { n = 1 }\nrules = [{ on = "w", is = "it[n:]" }]\n', "a.toml")
    b = recipe(scratch, 'model = { path = "a.toml", set = { n = "3 + k" } }\nset = { k = 0 }\n', "b.toml")
    rows = lambda path, **set: json.loads(stfs("ls", "--json", path, *options(**set)))[0]["shape"][0]  # noqa: E731
    same((rows(a), rows(a, n=5), rows(b), rows(b, k=2)), (7, 3, 5, 3), "rows")
    stfs("ls", b, "--set", "n=2", expect=1)
    found = json.loads(stfs("diff", "--json", a, b, "--set", "n=3"))
    same(found["unchanged"], 1, "diff: n is the first one's alone")
    with mounted(a, "-o", "set=n=4") as mount:
        same(json.loads(read(mount / "tensors/w/meta.json"))["shape"], [4, 3], "-o set=")
        same(json.loads(read(mount / "model.json"))["recipe"]["set"], {"n": 4}, "model.json")
    same(meta(a, "w", n=6)["shape"], [2, 3], "cat --set")


if __name__ == "__main__":
    main()
