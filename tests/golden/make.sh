#!/bin/bash
# Makes every golden model again:
#
#   tests/golden/make.sh [DIRECTORY]
#
# The environments go to DIRECTORY (default /tmp/stfs-golden): about 8 GB, for PyTorch's wheels bring
# CUDA along; everything runs on the CPU. Some libraries need a place of their own beside it:
# AutoGPTQ wants transformers of 2024, AutoAWQ is found by PEFT if AutoGPTQ can see it, and mlx-lm
# brings an MLX for Macs. mergekit chooses its own versions of what it uses.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
place=${1:-/tmp/stfs-golden}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 CUDA_VISIBLE_DEVICES= GPTQMODEL_CPU_WORKERS=2
mkdir -p "$place"
cd "$place"

if [ ! -x torch/bin/python ]; then
    python3 -m venv torch
    torch/bin/pip install -q torch==2.15.0 transformers==5.23.0 accelerate==1.15.0 safetensors==0.8.0 numpy==2.4.6 \
        compressed-tensors==0.20.0 bitsandbytes==0.50.2
    torch/bin/pip install -q nvidia-modelopt==0.47.0
    torch/bin/pip install -q --no-build-isolation gptqmodel==7.7.0
    torch/bin/pip install -q --no-deps --target awq autoawq==0.2.9
    torch/bin/pip install -q --no-deps --target mlx mlx-lm==0.32.2 mlx==0.32.4 mlx-cpu==0.32.4
fi
if [ ! -x old/bin/python ]; then
    python3 -m venv old
    old/bin/pip install -q --no-deps auto-gptq==0.7.1 transformers==4.46.3 tokenizers==0.20.3 huggingface-hub==0.36.0 \
        peft==0.13.2 datasets==3.1.0 fsspec==2024.9.0 rouge==1.0.1 gekko==1.3.3
    old/bin/pip install -q aiohttp
    # What it does not have itself, it takes from the other.
    for site in old/lib/python3*/site-packages; do
        echo "$place/torch/${site#old/}" >"$site/zz-torch.pth"
    done
fi
if [ ! -x recipes/bin/python ]; then
    python3 -m venv recipes
    recipes/bin/pip install -q torch==2.15.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6 peft==0.21.2 mergekit==0.1.5
fi
if [ ! -x gguf/bin/python ]; then
    python3 -m venv gguf
    gguf/bin/pip install -q gguf==0.19.0 safetensors==0.8.0 numpy==2.4.6
fi
if [ ! -e ggml.so ]; then
    # ggml's own quantizers and dequantizers: one C file of llama.cpp. Of the rest of ggml it uses only
    # how many bytes a row has, to return it, and messages of errors.
    gguf/bin/pip download -q --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
    tar -xzf llama_cpp_python-0.3.36.tar.gz
    ggml=llama_cpp_python-0.3.36/vendor/llama.cpp/ggml
    for function in ggml_row_size ggml_type_size ggml_type_name ggml_abort; do
        echo "unsigned long $function(void) { return 0; }"
    done >ggml_rest.c
    gcc -O2 -ffp-contract=off -fPIC -shared -I$ggml/include -I$ggml/src $ggml/src/ggml-quants.c ggml_rest.c -lm -o ggml.so
fi

for maker in bitsandbytes_ compressed_tensors_ gptqmodel_ modelopt_ transformers_ pytorch_; do
    torch/bin/python "$here/make.py" "$maker"
done
recipes/bin/python "$here/make.py" peft_
recipes/bin/python "$here/make.py" mergekit_
PYTHONPATH=awq torch/bin/python "$here/make.py" autoawq_
PYTHONPATH=mlx torch/bin/python "$here/make.py" mlx_
old/bin/python "$here/make.py" auto_gptq_
GGML=$place/ggml.so gguf/bin/python "$here/make.py" gguf_
