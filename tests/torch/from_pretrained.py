#!/usr/bin/env python3
"""transformers on a mount: a directory of links to `files/` and one export must load as the model does.

    python tests/torch/from_pretrained.py

For tiny random models of several families, as transformers saves them (in several shards):
from_pretrained of the original and of the links give the same logits, bit for bit. For quantized
golden models: `model-f32.safetensors` loads as a float model without a missing or unexpected name,
and its weights are the library's own. Needs PyTorch and transformers (tests/golden/make.sh makes an
environment that has them); from_pretrained.txt is the result of a run.
"""

import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))
from harness import check, main, mounted, same  # noqa: E402

SMALL = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
MODELS = {
    "llama, tied": lambda t: t.LlamaConfig(**SMALL, tie_word_embeddings=True),
    "llama, own head": lambda t: t.LlamaConfig(**SMALL, tie_word_embeddings=False),
    "qwen2 (biases)": lambda t: t.Qwen2Config(**SMALL),
    "qwen3": lambda t: t.Qwen3Config(**SMALL, head_dim=8),
    "gemma": lambda t: t.GemmaConfig(**SMALL, head_dim=8),
    "gemma2": lambda t: t.Gemma2Config(**SMALL, head_dim=8),
    "gpt2": lambda t: t.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "phi3 (fused already)": lambda t: t.Phi3Config(**SMALL, pad_token_id=0),
    "mixtral": lambda t: t.MixtralConfig(**SMALL, num_local_experts=4),
    "qwen2-moe": lambda t: t.Qwen2MoeConfig(
        **SMALL, num_experts=4, moe_intermediate_size=24, shared_expert_intermediate_size=24, num_experts_per_tok=2
    ),
    "deepseek-v3": lambda t: t.DeepseekV3Config(
        **(SMALL | {"num_key_value_heads": 4}), n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=24,
        q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=1,
    ),
    "gpt-neox": lambda t: t.GPTNeoXConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4),
}  # fmt: skip


def linked(mnt, directory, export):
    """A model directory made of links into a mount."""
    directory.mkdir()
    for path in (mnt / "files").iterdir():
        (directory / path.name).symlink_to(path)
    (directory / "model.safetensors").symlink_to(mnt / "export" / export)
    return directory


def load(directory, **options):
    """The model, which must have taken every weight from the file."""
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True, **options)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        same(sorted(info[what]), [], f"{directory}: {what}")
    return model.eval()


def logits(model):
    torch.manual_seed(1)
    with torch.no_grad():
        return model(torch.randint(0, 32, (2, 17))).logits


def family(name, make):
    def run(tmp):
        torch.manual_seed(0)
        for dtype in (torch.float32, torch.bfloat16):
            original = tmp / f"original-{dtype}"
            model = AutoModelForCausalLM.from_config(make(transformers)).to(dtype)
            model.save_pretrained(original, max_shard_size="20KB")
            assert len(list(original.glob("*.safetensors"))) > 1, "one shard only"
            expected = logits(load(original, dtype=dtype))
            with mounted(original) as mnt:
                for export in ("model.safetensors", "model-f32.safetensors"):
                    found = logits(load(linked(mnt, tmp / f"{dtype}-{export}", export), dtype=dtype))
                    assert torch.equal(found, expected), f"logits differ: {dtype}, {export}"

    run.__name__ = name
    check(run)


def quantized(case):
    def run(tmp):
        expected = load_file(case / "expected.safetensors")
        with mounted(case / "model") as mnt:
            copy = linked(mnt, tmp / "copy", "model-f32.safetensors")
            config = json.loads((copy / "config.json").read_text())
            config.pop("quantization_config", None)
            config.pop("quantization", None)
            (copy / "config.json").unlink()
            (copy / "config.json").write_text(json.dumps(config))
            model = load(copy, dtype=torch.float32)
            state = model.state_dict()
            for name, values in expected.items():
                assert torch.equal(state[name], values), f"{name} differs"
            assert torch.isfinite(logits(model)).all(), "logits are not finite"

    run.__name__ = f"{case.name}, as a float model"
    check(run)


for title, config in MODELS.items():
    family(title, config)
for directory in sorted((HERE.parent / "golden").glob("*/expected.safetensors")):
    # Whole models: made by their library's own pipeline from a whole Llama.
    if directory.parent.name.startswith(("gptq-", "bnb-", "ct-", "modelopt-", "mlx-", "gpt-oss")):
        quantized(directory.parent)

if __name__ == "__main__":
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    main()
