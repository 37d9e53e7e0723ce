"""Checkpoints as training programs write them: which part of each is the model."""

import argparse
import collections
import datetime
import functools
import json
import pathlib

import numpy as np
import torch
from safetensors.torch import load_file

from .checkpoints import GOLDEN, Case, flat, load, made_up, noise


def make():
    for maker in (stable_diffusion, imagenet, several, upscaler, deepspeed, nested, bare, keys, beside, tied, wrapped, sharded, numbered, quantized):
        maker()


def size(named):
    """How `model.json` counts tensors that are left out."""
    return {"tensors": len(named), "bytes": sum(t.numel() * t.element_size() for t in named.values())}


def adam(parameters, step=torch.tensor(7.0)):
    """The state of an optimizer, as its state_dict() has it."""
    state = {i: {"step": step.clone(), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.ones_like(p)} for i, p in enumerate(parameters)}
    groups = [{"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False, "params": list(state)}]
    return {"state": state, "param_groups": groups}


def stable_diffusion():
    """Stable Diffusion 1.x as Lightning saved it: a class as a key, the exponential average beside the model."""
    case = Case("stable-diffusion", "the keys of a Stable Diffusion 1.x checkpoint, with small tensors")
    callback = made_up("pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint")
    any_node = made_up("omegaconf.nodes.AnyNode")
    metadata = made_up("omegaconf.base.ContainerMetadata")
    config = made_up("omegaconf.dictconfig.DictConfig")
    unet = {
        "time_embed.0.weight": noise(1, 8, 4), "time_embed.0.bias": noise(2, 8), "input_blocks.0.0.weight": noise(3, 4, 4, 3, 3),
        "input_blocks.1.1.transformer_blocks.0.attn1.to_q.weight": noise(4, 4, 4), "out.2.bias": noise(5, 4),
    }  # fmt: skip
    state = collections.OrderedDict()
    for name in ("betas", "alphas_cumprod", "sqrt_recip_alphas_cumprod"):
        state[name] = noise(len(name), 10)
    state |= {f"model.diffusion_model.{n}": t for n, t in unet.items()}
    state |= {"model_ema.decay": torch.tensor(0.9999), "model_ema.num_updates": torch.tensor(470000, dtype=torch.int32)}
    state |= {f"model_ema.diffusion_model{n.replace('.', '')}": t + 1 for n, t in unet.items()}
    state["first_stage_model.encoder.conv_in.weight"] = noise(6, 4, 3, 3, 3).half()
    state["cond_stage_model.transformer.text_model.embeddings.position_ids"] = torch.arange(77)[None]
    state["cond_stage_model.transformer.text_model.embeddings.token_embedding.weight"] = noise(7, 12, 4)
    state._metadata = collections.OrderedDict({"": {"version": 1}, "model": {"version": 1}})
    settings, leaf = config(), any_node()
    leaf.__dict__ |= {"_val": 1e-4, "_parent": settings}  # which contains itself
    settings.__dict__ |= {"_metadata": metadata(), "_parent": None, "_content": {"base_learning_rate": leaf, "target": "ldm.models.LatentDiffusion"}}
    value = {
        "epoch": 6, "global_step": 470000, "pytorch-lightning_version": "1.4.2", "state_dict": state,
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 1}, "current": {"ready": 1}}}},
        "callbacks": {callback: {"monitor": "val/loss_simple_ema", "best_model_score": torch.tensor(0.13), "best_model_path": "/x/last.ckpt"}},
        "optimizer_states": [adam(list(unet.values()))], "lr_schedulers": [{"base_lrs": [1e-4], "last_epoch": 470000, "verbose": False}],
        "hyper_parameters": settings, "hparams_name": "kwargs", "args": argparse.Namespace(base=["v1.yaml"], logdir=pathlib.PurePosixPath("logs")),
    }  # fmt: skip
    name = "sd-v1-4.ckpt"
    got = case.save(name, value)
    checkpoint = {
        "key": ["state_dict"],
        "values": {k: got[k] for k in ("epoch", "global_step", "pytorch-lightning_version", "hparams_name")},
        "left_out": {"optimizer_states": size(flat(got["optimizer_states"]))},
        "globals": ["argparse.Namespace", "omegaconf.dictconfig.DictConfig", "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint"],
    }
    why = [f"mount {name}#optimizer_states", "15 tensors", "argparse.Namespace"]
    case.opens(f"{name} .", flat(got["state_dict"]), checkpoint=checkpoint, why=why)
    case.opens(f"{name}#optimizer_states", flat(got["optimizer_states"]))
    case.opens(f"{name}#optimizer_states.0.state.3", flat(got["optimizer_states"][0]["state"][3]))
    case.refused(f"{name}#lr_schedulers", "lr_schedulers", "state_dict", "optimizer_states")
    case.refused(f"{name}#nothing", "nothing", "state_dict", "optimizer_states")
    case.close()


def imagenet():
    """A checkpoint of timm and of PyTorch's ImageNet example: a tensor at the root beside the model."""
    case = Case("imagenet", "torch.save of epoch, arch, state_dict, state_dict_ema, best_acc1, optimizer")
    state = {"module.fc.weight": noise(1, 4, 5), "module.fc.bias": noise(2, 4), "module.bn.num_batches_tracked": torch.tensor(100)}
    ema = {n: t * 2 for n, t in state.items()}
    value = {"epoch": 90, "arch": "resnet50", "best_acc1": torch.tensor(76.13), "optimizer": adam(state.values()), "state_dict_ema": ema, "state_dict": state}
    got = case.save("model_best.pth.tar", value)
    left = {k: size(flat(got[k])) for k in ("optimizer", "state_dict_ema", "best_acc1")}
    checkpoint = {"key": ["state_dict"], "values": {"epoch": 90, "arch": "resnet50"}, "left_out": left, "globals": []}
    case.opens(". model_best.pth.tar", flat(got["state_dict"]), checkpoint=checkpoint, why=["#state_dict_ema", "#optimizer", "best_acc1"])
    case.opens("model_best.pth.tar#state_dict_ema", flat(got["state_dict_ema"]))
    case.refused("model_best.pth.tar#state_dict_ema.module", "state_dict_ema.module", "best_acc1")
    case.opens("model_best.pth.tar#best_acc1", {"tensor": got["best_acc1"]})
    case.opens("model_best.pth.tar#", flat(got))
    case.close()


def several():
    """Two networks, neither of which is the model; one network under a name of its own."""
    case = Case("gan", "torch.save of generator and discriminator, and of one network under another key")
    value = {
        "generator": {"conv.weight": noise(1, 2, 3)}, "discriminator": {"conv.weight": noise(2, 2, 3)}, "optim_g": adam([noise(1, 2, 3)]),
        "lr_sched": [torch.ones(2)], "iteration": 5, "lr": 0.5,
    }  # fmt: skip
    got = case.save("gan.pt", value)
    both = flat({k: got[k] for k in ("generator", "discriminator")})
    left = {k: size(flat(got[k])) for k in ("optim_g", "lr_sched")}
    case.opens("gan.pt", both, checkpoint={"key": [], "values": {"iteration": 5, "lr": 0.5}, "left_out": left, "globals": []})
    case.opens("gan.pt#generator", flat(got["generator"]))
    got = case.save("one.pt", {"weights": {"a": noise(3, 2)}, "Optimizer": {"a": noise(4, 2)}, "RNG_state": torch.zeros(3), "step": 1})
    # RNG_state is a tensor of the root, not a container.
    case.opens("one.pt", {"RNG_state": got["RNG_state"], "weights.a": got["weights"]["a"]})
    got = case.save("two.pt", {"weights": {"a": noise(3, 2)}, "Optimizer": {"a": noise(4, 2)}, "rng_state": [torch.zeros(3)], "step": 1})
    left = {k: size(flat(got[k])) for k in ("Optimizer", "rng_state")}
    case.opens("two.pt", flat(got["weights"]), checkpoint={"key": ["weights"], "values": {"step": 1}, "left_out": left, "globals": []})
    case.close()


def upscaler():
    case = Case("params-ema", "the files of upscalers: params and params_ema; state_dict among others")
    got = case.save("esrgan.pth", {"params": {"body.0.weight": noise(1, 3, 3)}, "params_ema": {"body.0.weight": noise(2, 3, 3)}})
    left = {"params": size(flat(got["params"]))}
    case.opens("esrgan.pth", flat(got["params_ema"]), checkpoint={"key": ["params_ema"], "values": {}, "left_out": left, "globals": []}, why=["#params"])
    order = ["model_state_dict", "state_dict", "params_ema", "params-ema", "params", "model", "module", "net"]
    for i, key in enumerate(order):  # the first that is there wins, wherever it stands
        name = f"{i}.pth"
        there = [(k, {"w": noise(j, 2)}) for j, k in enumerate(order) if j >= i]
        got = case.save(name, dict(reversed(there)))
        case.opens(name, flat(got[key]), checkpoint={"key": [key], "values": {}})
    got = case.save("not-a-mapping.pth", {"state_dict": [noise(1, 2)], "model": "resnet", "params": {}, "net": {"w": noise(2, 2)}})
    case.opens("not-a-mapping.pth", flat(got["net"]), checkpoint={"key": ["net"], "values": {"model": "resnet"}})
    case.close()


def deepspeed():
    case = Case("deepspeed", "the keys of mp_rank_00_model_states.pt")
    state = collections.OrderedDict({"transformer.h.0.attn.weight": noise(1, 4, 4).bfloat16(), "transformer.h.0.attn.bias": torch.empty(0)})
    value = {
        "module": state, "buffer_names": [], "optimizer": None, "param_shapes": [collections.OrderedDict({"a": torch.Size([4, 4])})],
        "frozen_param_shapes": None, "shared_params": {}, "lr_scheduler": None, "data_sampler": None, "sparse_tensor_module_names": set(),
        "skipped_samples": 0, "global_steps": 12, "dp_world_size": 1, "ds_config": {"train_batch_size": 8}, "ds_version": "0.14.0",
    }  # fmt: skip
    got = case.save("mp_rank_00_model_states.pt", value)
    values = {k: v for k, v in got.items() if v is None or isinstance(v, (int, str))}
    case.opens("mp_rank_00_model_states.pt", flat(got["module"]), checkpoint={"key": ["module"], "values": values, "left_out": {}, "globals": []})
    case.close()


def nested():
    case = Case("nested", "keys of the order within each other")
    inner = {"w": noise(1, 3), "b": noise(2, 1)}
    got = case.save("down.pt", {"model": {"net": {"state_dict": inner, "n": 1}, "note": "x"}, "best": torch.ones(1)})
    case.opens("down.pt", flat(inner), checkpoint={"key": ["model", "net", "state_dict"], "values": {}, "left_out": {"best": size(flat(got["best"]))}})
    # Beside another entry that holds tensors, it is a name like others.
    got = case.save("stop.pt", {"model": {"net": {"w": noise(3, 2)}, "head": {"w": noise(4, 2)}}})
    case.opens("stop.pt", flat(got["model"]), checkpoint={"key": ["model"], "values": {}})
    got = case.save("dots.pt", {"a": {"b": {"x": noise(5, 1)}}, "a.b": {"x": noise(6, 1), "y": noise(7, 1)}, "ema.0": {"x": noise(8, 1)}})
    case.opens("dots.pt#a.b", flat(got["a.b"]))
    case.opens("dots.pt#ema.0", flat(got["ema.0"]))
    case.refused("dots.pt", "a.b.x")
    case.close()


def bare():
    case = Case("bare", "torch.save of what is not a dict")
    case.opens("tensor.pt", {"tensor": case.save("tensor.pt", noise(1, 2, 3).T)})
    case.opens("parameter.pt", {"tensor": case.save("parameter.pt", torch.nn.Parameter(noise(2, 2)))})
    case.opens("list.pt", flat(case.save("list.pt", [noise(i, 2) for i in range(12)])))
    case.opens("tuple.pt", flat(case.save("tuple.pt", (noise(1, 2), {"a": noise(2, 2)}, [noise(3, 1), "x", noise(4, 1)]))))
    case.opens("list.pt#3", {"tensor": load(case.model / "list.pt")[3]})
    for name, empty in {"empty.pt": {}, "values.pt": {"a": 1, "b": [2, "x"]}, "number.pt": 3, "none.pt": None, "text.pt": "x" * 300}.items():
        case.save(name, empty)
        case.refused(name, name, "tensor")
    case.close()


def keys():
    case = Case("keys", "keys that are not text; names that are unusual")
    made = {
        0: noise(1, 1), -1: noise(2, 1), 2**40: noise(10, 1), True: noise(3, 1), None: noise(4, 1), b"bytes": noise(5, 1), "": noise(6, 1), "a/b": noise(7, 1),
        "naïve": noise(8, 1), "..": noise(9, 1), "x.y": {"z.": noise(11, 1)}, "l": [[noise(12, 1)], (noise(13, 1),)], " ": noise(14, 1),
        "_orig_mod.w": noise(15, 1), "with\nnewline": noise(16, 1), "n" * 300: noise(17, 1),
    }  # fmt: skip
    got = case.save("keys.pt", made)
    case.opens("keys.pt", flat(got))
    other = {(1, 2): noise(20, 1), 1.5: noise(21, 1), torch.float32: noise(22, 1), frozenset([1]): noise(23, 1)}
    got = case.save("skipped.pt", {"w": noise(24, 1)} | other)
    case.opens("skipped.pt", {"w": got["w"]})
    case.save("same.pt", {1: noise(1, 1), "1": noise(2, 1)})
    case.refused("same.pt", "1")
    case.save("same-path.pt", {"a": {"b.c": noise(1, 1)}, "a.b": {"c": noise(2, 1)}})
    case.refused("same-path.pt", "a.b.c")
    case.close()


def beside():
    """What programs keep beside tensors: nothing of it is called."""
    case = Case("beside", "objects of Python, NumPy and others beside tensors")
    color = made_up("colors.Color", made_up("enum_like.Base"))
    things = {
        "numpy_scalar": np.float64(1.5), "numpy_array": np.arange(6).reshape(2, 3), "namespace": argparse.Namespace(lr=0.1, deep={"t": [1]}),
        "path": pathlib.PurePosixPath("/a/b"), "time": datetime.datetime(2024, 1, 2), "partial": functools.partial(int, base=2),
        "default": collections.defaultdict(list, {"w": [noise(1, 2)]}), "counter": collections.Counter("aab"), "object": color(),
        "dtype": torch.float16, "size": torch.Size([1, 2]), "device": torch.device("cpu"), "generator": torch.Generator().get_state()[:4].clone(),
        "complex": 1j, "slice": slice(1, 2), "range": range(3), "ellipsis": ..., "class": dict, "function": len, "long": "x" * 70000,
    }  # fmt: skip
    got = case.save("beside.pt", {"model": {"w": noise(2, 3), "extra": things}, "args": things["namespace"], "loss": np.float32(0.5), "step": 7})
    named = {"w": got["model"]["w"], "extra.default.w.0": got["model"]["extra"]["default"]["w"][0], "extra.generator": got["model"]["extra"]["generator"]}
    known = ["argparse.Namespace", "colors.Color", "datetime.datetime", "functools.partial"]
    case.opens("beside.pt", named, checkpoint={"key": ["model"], "values": {"step": 7}, "globals": known}, why=["nothing was called", *known])
    case.close()


def tied():
    case = Case("tied", "tensors that share storages")
    shared = noise(1, 4, 3)
    state = {"embed_tokens.weight": shared, "lm_head.weight": shared, "transposed": shared.T, "row": shared[2], "own": shared.clone()}
    case.opens("tied.bin", flat(case.save("tied.bin", state)))
    case.close()


class Subclass(torch.Tensor):
    """A tensor of another class, with its data in a storage as all."""


Subclass.__module__, Subclass.__qualname__ = "mylib.tensors", "Named"


def wrapped():
    """Parameters, buffers, tensors with attributes, subclasses, and state dicts with hooks."""
    case = Case("wrapped", "parameters, buffers, attributes, subclasses, backward hooks")
    made_up("mylib.tensors.Named")
    import mylib.tensors

    mylib.tensors.Named = Subclass
    parameter, plain, buffer = torch.nn.Parameter(noise(1, 2, 3)), noise(2, 3), torch.nn.Buffer(noise(3, 2))
    parameter.note, plain.note = "attributes", {"of": "a tensor"}
    subclass = noise(4, 2, 2).T.as_subclass(Subclass)
    state = collections.OrderedDict(parameter=parameter, plain=plain, buffer=buffer, subclass=subclass, frozen=torch.nn.Parameter(noise(5, 1), False))
    state._metadata = collections.OrderedDict({"": {"version": 2}})
    got = case.save("wrapped.pt", state)
    named = {n: t.as_subclass(torch.Tensor) for n, t in got.items()}
    named["subclass"] = named["subclass"], {"class": "mylib.tensors.Named"}
    case.opens("wrapped.pt", named)
    case.close()


def shards(case, extension, names):
    """A model in shards: (name of the file, what it holds)."""
    parts = [{"l.0.q_proj.weight": noise(1, 4, 4), "l.0.k_proj.weight": noise(2, 4, 4)}, {"l.0.v_proj.weight": noise(3, 4, 4), "norm": noise(4, 4)}, {"head": noise(5, 2, 4).T}]
    return [(name, case.save(name, part)) for name, part in zip(names, parts, strict=True)]


def sharded():
    case = Case("sharded", "shards with an index, as transformers wrote them; training_args.bin beside them")
    files = shards(case, "bin", [f"pytorch_model-{i:05}-of-00003.bin" for i in (1, 2, 3)])
    index = {"metadata": {"total_size": 256}, "weight_map": {n: name for name, part in files for n in part}}
    case.file("pytorch_model.bin.index.json", json.dumps(index))
    case.save("training_args.bin", made_up("transformers.training_args.TrainingArguments")())
    case.save("optimizer.pt", adam([noise(1, 2)]))
    case.save("old.bin", {"gone": noise(9, 2)})
    everything = {n: t for _, part in files for n, t in part.items()}
    case.opens(".", everything, files=["old.bin", "optimizer.pt", "training_args.bin"])
    case.opens("pytorch_model.bin.index.json", {n: everything[n] for n in ("head", "norm")} | everything)
    case.opens(files[1][0], files[1][1])
    case.opens("optimizer.pt", flat(load(case.model / "optimizer.pt")["state"]))  # the root's one entry with tensors
    case.refused("training_args.bin", "training_args.bin", "transformers.training_args.TrainingArguments")
    case.close()


def numbered():
    case = Case("numbered", "a complete set of numbered files without an index")
    files = shards(case, "pt", [f"weights-{i:05}-of-00003.pt" for i in (1, 2, 3)])
    case.opens(".", {n: t for _, part in files for n, t in part.items()})
    case.opens(files[0][0], files[0][1])
    case.close()


def quantized():
    """Quantized models in a `.bin`: they have the same values as in safetensors."""
    for name in ("auto-gptq-4bit-act-order", "bnb-nf4", "awq-4bit-groups-of-32", "bnb-int8"):
        source = GOLDEN.parent / name / "model"
        case = Case(name, f"the tensors of ../../{name}, by torch.save")
        state = load_file(source / "model.safetensors")
        got = case.save("pytorch_model.bin", state)
        for path in sorted(source.glob("*.json")):
            case.file(path.name, path.read_bytes())
        # Their values are in the twin's expected.safetensors.
        case.how["twin"] = name
        case.opened.append({"paths": ["."], "names": sorted(got)})
        case.close()
