"""GPTQ by GPTQModel: its whole pipeline on the CPU, loaded again and dequantised by its PyTorch kernel."""

import os
import tempfile

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")

import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from gptqmodel.quantization import FORMAT
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from . import common

CASES = {
    "gptq-4bit-act-order-asym": dict(bits=4, group_size=32, desc_act=True, sym=False),
    "gptq-4bit-v2-asym": dict(bits=4, group_size=32, desc_act=False, sym=False, format=FORMAT.GPTQ_V2),
    "gptq-4bit-one-group": dict(bits=4, group_size=-1, desc_act=False, act_group_aware=False, sym=True),
    "gptq-2bit-asym": dict(bits=2, group_size=32, desc_act=False, sym=False),
    "gptq-3bit-act-order-asym": dict(bits=3, group_size=32, desc_act=True, sym=False),
}
HOW = "GPTQModel.load(…, backend=TORCH) again; scales as stored, float(); dequantize_weight() of each module, transposed"


def make():
    for case, settings in CASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            _pipeline(case, settings, scratch)


def _pipeline(case, settings, scratch):
    base, out = f"{scratch}/base", f"{scratch}/out"
    common.tiny_llama(dtype=torch.float16).save_pretrained(base)
    words = Tokenizer(WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, unk_token="<unk>"))
    special = dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>")
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(base)
    model = GPTQModel.load(base, QuantizeConfig(device="cpu", offload_to_disk=False, **settings), backend=BACKEND.TORCH)
    torch.manual_seed(1)
    rows = [{"input_ids": torch.randint(0, 32, (48,)).tolist(), "attention_mask": [1] * 48} for _ in range(16)]
    model.quantize(rows, batch_size=1)
    model.save(out)
    loaded = GPTQModel.load(out, device="cpu", backend=BACKEND.TORCH)
    expected = {}
    stored = load_file(f"{out}/model.safetensors")
    for name, module in common.quantised(loaded.model):
        # As stored: the loader has rounded its own copy to BF16.
        module.scales = stored[f"{name}.scales"].float()
        expected[f"{name}.weight"] = module.dequantize_weight().T
    common.save(case, out, expected, HOW, ["gptqmodel", "transformers"])
