"""What every maker needs: a tiny model, and writing a case down.

A case is a directory: `model/` as the library saves it, and `expected.safetensors`, float32 values
as the library itself dequantises them, under the names a float model has. Its metadata say which
versions, how the values were asked for, and how closely stfs must agree:

    bits    bit for bit (a NaN equals any NaN)
    values  bit for bit but for the sign of zero
"""

import importlib.metadata
import json
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import save_file

GOLDEN = pathlib.Path(__file__).resolve().parents[1]
KEEP = ("*.safetensors", "*.safetensors.index.json", "config.json", "quantize_config.json", "quant_config.json", "hf_quant_config.json")

# What is compared of a tiny Llama: the fused trio, and one of another shape.
COMPARED = [f"model.layers.0.{m}" for m in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj")]


def tiny_llama(seed=0, dtype=torch.bfloat16, hidden=64, intermediate=32, **config):
    """A random Llama of one layer, with grouped-query attention and a tied head."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        architectures=["LlamaForCausalLM"], hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, vocab_size=32, max_position_embeddings=64,
        tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, **config,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(dtype).eval()
    with torch.no_grad():  # weights of uneven spread: groups, rows and blocks get scales that differ
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(torch.rand(p.shape[0], 1).to(dtype) * 4 + 0.1).mul_(torch.rand(1, p.shape[1]).to(dtype) * 2 + 0.1)
    return model


def quantised(model):
    """The modules of a model that are compared: (name, module)."""
    return [(name, model.get_submodule(name)) for name in COMPARED]


def save(case, source, expected, how, packages, compare="bits"):
    """Writes a case: the model's files in `source`, and what its weights are."""
    case = GOLDEN / case
    shutil.rmtree(case, ignore_errors=True)
    (case / "model").mkdir(parents=True)
    for pattern in KEEP:
        for path in sorted(pathlib.Path(source).glob(pattern)):
            shutil.copyfile(path, case / "model" / path.name)
    config = case / "model" / "config.json"
    if config.exists():
        settings = json.loads(config.read_text())
        settings.pop("_name_or_path", None)
        config.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in (*packages, "torch"))
    metadata = {"made with": versions, "how": how, "compare": compare}
    tensors = {name: t.detach().to(torch.float32).contiguous().clone() for name, t in expected.items()}
    save_file(tensors, case / "expected.safetensors", metadata)
    size = sum(p.stat().st_size for p in case.rglob("*") if p.is_file())
    print(f"{case.name}: {len(tensors)} tensors, {size} bytes")


def write_model(directory, tensors, config):
    """Writes a model directory from a state dict, for libraries that only convert tensors."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    save_file({n: t.contiguous() for n, t in tensors.items()}, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
