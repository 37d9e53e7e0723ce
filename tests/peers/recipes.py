#!/usr/bin/env python3
"""The worked examples of `examples/recipes` on small models, bit for bit what NumPy and ml_dtypes make of them."""

import json
import math

import numpy as np
from safetensors.numpy import save_file

from harness import REPOSITORY, check, main, mounted, random_numbers, read, same, stfs
from harness.recipes import BF16, example, f32, left, load, meta, model, options, product, recipe, same_tensor, same_tensors

RNG = random_numbers()
HIDDEN, HEAD, HEADS, KV, MLP, VOCAB, LAYERS = 64, 8, 8, 2, 96, 101, 4
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": MLP,
    "num_attention_heads": HEADS, "num_key_value_heads": KV, "num_hidden_layers": LAYERS, "vocab_size": VOCAB,
    "tie_word_embeddings": False, "torch_dtype": "float16",
}  # fmt: skip
GPTQ = REPOSITORY / "tests/golden/gptq-4bit-v2-asym"


def array(*shape, dtype=BF16):
    return RNG.standard_normal(shape).astype(dtype)


def llama(layers=LAYERS, kv=KV, biases=False):
    tensors = {"model.embed_tokens.weight": array(VOCAB, HIDDEN), "model.norm.weight": array(HIDDEN), "lm_head.weight": array(VOCAB, HIDDEN)}
    rows = {"self_attn.q": HEADS * HEAD, "self_attn.k": kv * HEAD, "self_attn.v": kv * HEAD, "mlp.gate": MLP, "mlp.up": MLP}
    for n in range(layers):
        at = f"model.layers.{n}"
        for name, count in rows.items():
            tensors[f"{at}.{name}_proj.weight"] = array(count, HIDDEN)
            if biases:
                tensors[f"{at}.{name}_proj.bias"] = array(count)
        tensors[f"{at}.self_attn.o_proj.weight"] = array(HIDDEN, HEADS * HEAD)
        tensors[f"{at}.mlp.down_proj.weight"] = array(HIDDEN, MLP)
        if biases:
            tensors[f"{at}.self_attn.o_proj.bias"] = array(HIDDEN)
        for norm in ("input", "post_attention"):
            tensors[f"{at}.{norm}_layernorm.weight"] = array(HIDDEN)
    return tensors


def rank_of(tensors, tp, rank, kv):
    """A rank's tensors, by vLLM's rule."""
    out = {}
    for name, t in tensors.items():
        part = lambda n, i, axis=0: np.split(t, n, axis)[i]  # noqa: E731
        module, _, kind = name.rpartition(".")
        if module.endswith(("q_proj", "gate_proj", "up_proj")):
            t = part(tp, rank)
        elif module.endswith(("k_proj", "v_proj")):
            t = part(min(tp, kv), rank * min(tp, kv) // tp)
        elif module.endswith(("o_proj", "down_proj")) and kind == "weight":
            t = part(tp, rank, 1)
        elif module in ("model.embed_tokens", "lm_head"):
            rows = math.ceil(len(t) / 64) * 64
            t = np.concatenate([t, np.zeros((rows - len(t), *t.shape[1:]), t.dtype)])
            t = np.split(t, tp)[rank]
        out[name] = t
    return out


@check
def tensor_parallel_ranks_are_vllms_and_joined_give_the_original(scratch):
    for kv in (1, 2, 8):
        for biases in (False, True):
            at = scratch / f"{kv}-{biases}"
            tensors = llama(2, kv, biases)
            model(at / "llama-3-8b", tensors, CONFIG | {"num_key_value_heads": kv})
            path = example("tensor-parallel.toml", at)
            for tp in (1, 2, 4, 8):
                ranks = [left(path, tp=tp, rank=rank) for rank in range(tp)]
                for rank, found in enumerate(ranks):
                    same_tensors(found, rank_of(tensors, tp, rank, kv), f"rank {rank} of {tp}, {kv} KV heads")
                for name, t in tensors.items():
                    if name.endswith(("o_proj.weight", "down_proj.weight")):
                        joined = np.concatenate([r[name] for r in ranks], 1)
                    elif name.endswith(("norm.weight", "o_proj.bias")):
                        joined = ranks[0][name]
                    elif ".k_proj" in name or ".v_proj" in name:
                        joined = np.concatenate([r[name] for r in ranks[:: max(1, tp // kv)]])
                    else:
                        joined = np.concatenate([r[name] for r in ranks])[: len(t)]
                    same_tensor(joined, t, f"{name}, {tp} ranks joined")


@check
def a_ranks_qkv_and_gate_up_are_fused_from_its_own_slices(scratch):
    tensors = llama(1)
    model(scratch / "llama-3-8b", tensors, CONFIG)
    path = example("tensor-parallel.toml", scratch)
    expected = rank_of(tensors, 4, 3, KV)
    with mounted(path, *options(rank=3)) as mount:
        fused = load(mount / "export/model-fused.safetensors")
        at = "model.layers.0"
        for name, parts in {f"{at}.self_attn.qkv_proj.weight": "qkv", f"{at}.mlp.gate_up_proj.weight": ("gate", "up")}.items():
            module = name.rsplit(".", 2)[0]
            joined = np.concatenate([expected[f"{module}.{p}_proj.weight"] for p in parts])
            same_tensor(fused[name], joined, name)
            same(read(mount / f"tensors/{name}/raw"), joined.tobytes(), f"{name}: raw")
            same(read(mount / f"tensors/{name}/f32"), f32(joined).tobytes(), f"{name}: f32")
            same(json.loads(read(mount / f"tensors/{name}/meta.json"))["origin"]["kind"], "fused", name)
        qkv = np.load(mount / f"npy/{at}.self_attn.q_proj.weight.npy")
        same_tensor(qkv, f32(expected[f"{at}.self_attn.q_proj.weight"]), "npy")


@check
def pipeline_stages_hold_their_layers_counted_from_0(scratch):
    tensors = llama()
    model(scratch / "llama-3-8b", tensors, CONFIG)
    path = example("pipeline-stage.toml", scratch)
    for stages in (1, 2, 4):
        per = LAYERS // stages
        for stage in range(stages):
            expected = {}
            for name, t in tensors.items():
                if name.startswith("model.layers."):
                    n, _, rest = name.removeprefix("model.layers.").partition(".")
                    if int(n) // per == stage:
                        expected[f"model.layers.{int(n) - per * stage}.{rest}"] = t
                elif (name.startswith("model.embed") and stage == 0) or (not name.startswith("model.embed") and stage == stages - 1):
                    expected[name] = t
            same_tensors(left(path, stages=stages, stage=stage), expected, f"stage {stage} of {stages}")


@check
def megatron_names(scratch):
    tensors = llama(2)
    model(scratch / "llama", tensors, CONFIG)
    found = left(example("megatron-names.toml", scratch))
    expected = {
        "embedding.word_embeddings.weight": tensors["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": tensors["model.norm.weight"],
        "output_layer.weight": tensors["lm_head.weight"],
    }
    for n in range(2):
        hf = {k.removeprefix(f"model.layers.{n}."): v for k, v in tensors.items() if k.startswith(f"model.layers.{n}.")}
        q, k, v = (hf[f"self_attn.{p}_proj.weight"] for p in "qkv")
        groups = []
        for g in range(KV):
            groups += [np.split(q, KV)[g], np.split(k, KV)[g], np.split(v, KV)[g]]
        at = f"decoder.layers.{n}"
        expected |= {
            f"{at}.self_attention.linear_qkv.weight": np.concatenate(groups),
            f"{at}.self_attention.linear_qkv.layer_norm_weight": hf["input_layernorm.weight"],
            f"{at}.self_attention.linear_proj.weight": hf["self_attn.o_proj.weight"],
            f"{at}.mlp.linear_fc1.weight": np.concatenate([hf["mlp.gate_proj.weight"], hf["mlp.up_proj.weight"]]),
            f"{at}.mlp.linear_fc1.layer_norm_weight": hf["post_attention_layernorm.weight"],
            f"{at}.mlp.linear_fc2.weight": hf["mlp.down_proj.weight"],
        }
    same_tensors(found, expected, "Megatron-Core")


@check
def metas_query_and_key_rows(scratch):
    tensors = llama(1)
    model(scratch / "llama", tensors, CONFIG)
    found = left(example("meta-llama.toml", scratch))

    def permuted(t, heads):
        """Undoes what transformers' convert_llama_weights_to_hf.py does."""
        rows = t.shape[0]
        return t.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(rows, -1)

    at = "model.layers.0.self_attn"
    same_tensor(found["layers.0.attention.wq.weight"], permuted(tensors[f"{at}.q_proj.weight"], HEADS), "wq")
    same_tensor(found["layers.0.attention.wk.weight"], permuted(tensors[f"{at}.k_proj.weight"], KV), "wk")
    same_tensor(found["layers.0.attention.wv.weight"], tensors[f"{at}.v_proj.weight"], "wv")
    same_tensor(found["layers.0.attention.wo.weight"], tensors[f"{at}.o_proj.weight"], "wo")
    same_tensor(found["layers.0.feed_forward.w2.weight"], tensors["model.layers.0.mlp.down_proj.weight"], "w2")
    same(len(found), len(tensors), "how many")


@check
def experts_stacked_and_back_and_by_rank(scratch):
    count = 12
    experts = {
        f"model.layers.{n}.block_sparse_moe.experts.{e}.{w}.weight": array(*((HIDDEN, 24) if w == "w2" else (24, HIDDEN)))
        for n in range(2) for e in range(count) for w in ("w1", "w2", "w3")
    }  # fmt: skip
    gate = {f"model.layers.{n}.block_sparse_moe.gate.weight": array(count, HIDDEN) for n in range(2)}
    model(scratch / "mixtral", experts | gate)
    stacked = left(example("stack-experts.toml", scratch), "--no-synthetic")
    expected = dict(gate)
    for n in range(2):
        at = f"model.layers.{n}.block_sparse_moe.experts"
        w = {w: [experts[f"{at}.{e}.{w}.weight"] for e in range(count)] for w in ("w1", "w2", "w3")}
        expected[f"{at}.gate_up_proj"] = np.stack([np.concatenate(pair) for pair in zip(w["w1"], w["w3"])])
        expected[f"{at}.down_proj"] = np.stack(w["w2"])
    same_tensors(stacked, expected, "stacked")
    model(scratch / "mixtral-stacked", stacked)
    same_tensors(left(example("unstack-experts.toml", scratch)), experts | gate, "unstacked")
    for rank in range(3):
        parts = {n: np.split(t, 3)[rank] if "experts" in n else t for n, t in expected.items()}
        same_tensors(left(example("expert-parallel.toml", scratch), ep=3, rank=rank), parts, f"rank {rank}")


def adapter(directory, modules, config, more=()):
    """A PEFT adapter: {module: (A, B)}."""
    directory.mkdir(parents=True)
    tensors = {}
    for module, (a, b) in modules.items():
        tensors |= {f"base_model.model.{module}.lora_A.weight": a, f"base_model.model.{module}.lora_B.weight": b}
    tensors |= {f"base_model.model.{n}": t for n, t in dict(more).items()}
    save_file({n: np.ascontiguousarray(t) for n, t in tensors.items()}, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8} | config))


def merged(w, a, b, s, scale=1.0):
    return f32(w) + np.float32(scale * s) * product(b, a)


@check
def lora_into_a_gptq_base_as_bf16(scratch):
    (scratch / "llama-gptq").symlink_to(GPTQ / "model")
    base = load(GPTQ / "expected.safetensors")
    modules = [n.removesuffix(".weight") for n in base if "layers.0" in n and n.endswith("_proj.weight")]
    assert len(modules) == 4, modules
    pairs = {m: (array(4, base[f"{m}.weight"].shape[1], dtype=np.float32), array(base[f"{m}.weight"].shape[0], 4, dtype=np.float32)) for m in modules}
    adapter(scratch / "my-adapter", pairs, {"alpha_pattern": {"q_proj": 3}})
    with mounted(GPTQ / "model") as mount:
        floats = load(mount / "export/model-f32.safetensors")
    expected = {}
    for name, w in floats.items():
        a_b = pairs.get(name.removesuffix(".weight"))
        w = merged(w, *a_b, (3 if "q_proj" in name else 8) / 4) if a_b else w
        expected[name] = w.astype(BF16) if w.dtype == np.float32 else w
    path = example("lora-bf16.toml", scratch)
    same_tensors(left(path), expected, "merged")
    with mounted(path) as mount:
        config = json.loads(read(mount / "files/config.json"))
        same(config["torch_dtype"], "bfloat16", "torch_dtype")
        assert "quantization_config" not in config, config
        assert (mount / "files/lora-bf16.toml").exists()
    plain = example("dequantized-bf16.toml", scratch)
    expected = {n: t.astype(BF16) if t.dtype == np.float32 else t for n, t in floats.items()}
    same_tensors(left(plain), expected, "dequantized")


@check
def lora_in_all_its_forms(scratch):
    base = {n: array(12, 20) for n in ("l.0.q", "l.1.q", "l.2.q", "conv1d", "wte", "untouched")}
    model(scratch / "m", {f"{n}.weight": t for n, t in base.items()} | {"head.weight": array(3, 20), "head.bias": array(3)})
    a, b = array(4, 20, dtype=np.float16), array(12, 4)
    a2, b2 = array(7, 20, dtype=np.float32), array(12, 7, dtype=np.float32)
    head, bias = array(5, 20, dtype=np.float32), array(5, dtype=np.float16)
    more = {"head.weight": head, "head.bias": bias, "wte.lora_embedding_A": a[:, :12], "wte.lora_embedding_B": array(20, 4)}
    pairs = {"l.0.q": (a, b), "l.1.q": (a2, b2), "l.2.q": (a, b)}
    patterns = {"alpha_pattern": {r"^l\.1\..*": 5, "0.q": 6.5, "q": 3}, "rank_pattern": {"l.1.q": 7}, "modules_to_save": ["head"]}
    for rslora in (False, True):
        at = f"ad-{rslora}"
        adapter(scratch / at, pairs, patterns | {"use_rslora": rslora}, more)
        for scale in (None, 0.3, -2):
            rule = f'{{ lora = "ad", scale = {scale} }}' if scale else '{ lora = "ad" }'
            found = left(recipe(scratch, f'model = "m"\nmodels = {{ ad = "{at}" }}\nrules = [{rule}]\n'))
            scaling = lambda alpha, r: alpha / (math.sqrt(r) if rslora else r)  # noqa: E731
            factor = scale or 1.0
            e_a, e_b = more["wte.lora_embedding_A"], more["wte.lora_embedding_B"]
            expected = {
                "l.0.q.weight": merged(base["l.0.q"], a, b, scaling(6.5, 4), factor),
                "l.1.q.weight": merged(base["l.1.q"], a2, b2, scaling(5, 7), factor),
                "l.2.q.weight": merged(base["l.2.q"], a, b, scaling(3, 4), factor),
                "wte.weight": f32(base["wte"]) + np.float32(factor * scaling(8, 4)) * product(e_b, e_a).T,
                "conv1d.weight": base["conv1d"], "untouched.weight": base["untouched"], "head.weight": head, "head.bias": bias,
            }  # fmt: skip
            same_tensors(found, expected, f"rslora {rslora}, scale {scale}")
    adapter(scratch / "turned", {"conv1d": (a[:, :12], array(20, 4, dtype=np.float32))}, {"fan_in_fan_out": True})
    tensors = load(scratch / "turned/adapter_model.safetensors")
    found = left(recipe(scratch, 'model = "m"\nmodels = { ad = "turned" }\nrules = [{ lora = "ad" }]\n'))
    ab = product(tensors["base_model.model.conv1d.lora_B.weight"], tensors["base_model.model.conv1d.lora_A.weight"])
    same_tensor(found["conv1d.weight"], f32(base["conv1d"]) + np.float32(2) * ab.T, "fan_in_fan_out")


@check
def merges_round_at_the_end_and_once(scratch):
    names = ("a.weight", "norm.weight", "b.bias")
    for at in ("llama", "llama-tuned"):
        model(scratch / at, {n: array(33, 17) for n in names})
    base, tuned = (load(scratch / at / "model.safetensors") for at in ("llama", "llama-tuned"))
    one = np.float32
    found = left(example("linear-merge.toml", scratch), a=0.7, b=0.2)
    expected = {n: ((one(0.7) * f32(base[n]) + one(0.2) * f32(tuned[n])) / one(0.7 + 0.2)).astype(BF16) for n in names}
    same_tensors(found, expected, "linear")
    found = left(example("task-arithmetic.toml", scratch), weight=-0.3)
    expected = {n: (f32(base[n]) + one(-0.3) * (f32(tuned[n]) - f32(base[n]))).astype(BF16) for n in names}
    same_tensors(found, expected, "task arithmetic")


@check
def renamed_tensors_are_stored_ones(scratch):
    tensors = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": array(4, dtype=np.float32), "model.layers.0.mlp.gate_proj.weight": array(6, 4),
        "model.layers.0.mlp.up_proj.weight": array(6, 4), "model.layers.0.input_layernorm.weight": array(4), "model.norm.weight": array(4),
    }  # fmt: skip
    model(scratch / "gemma-2b", tensors)
    path = example("rename.toml", scratch)
    gate, up = (tensors[f"model.layers.0.mlp.{x}_proj.weight"] for x in ("gate", "up"))
    expected = {
        "blocks.0.mlp.fc1.weight": np.concatenate([gate, up]), "norm.weight": tensors["model.norm.weight"],
        "blocks.0.input_layernorm.weight": tensors["model.layers.0.input_layernorm.weight"],
    }  # fmt: skip
    same_tensors(left(path), expected, "renamed")
    origin = meta(path, "norm.weight")["origin"]
    same((origin["kind"], origin["renamed_from"], origin["file"]), ("stored", "model.norm.weight", "model.safetensors"), "origin")
    data = read(scratch / "gemma-2b/model.safetensors")
    same(data[origin["offset"] :][:8], tensors["model.norm.weight"].tobytes(), "offset")
    origin = meta(path, "blocks.0.mlp.fc1.weight")["origin"]
    same(origin["kind"], "derived", "origin")
    same([p["name"] for p in origin["parts"]], [f"model.layers.0.mlp.{x}_proj.weight" for x in ("gate", "up")], "parts")
    plus = left(example("gemma-norms.toml", scratch))
    norms = {n: f32(t) + np.float32(1) if n.endswith("norm.weight") else t for n, t in tensors.items()}
    same_tensors(plus, norms, "norms")


@check
def every_example_is_a_model_here(scratch):
    """Each is checked above; none is left out."""
    text = read(__file__).decode()
    for path in sorted((REPOSITORY / "examples/recipes").glob("*.toml")):
        assert f'"{path.name}"' in text, f"{path.name} is not run"
        assert "Who needs it:" in path.read_text(), f"{path.name} does not say who needs it"


if __name__ == "__main__":
    main()
