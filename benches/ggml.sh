#!/bin/sh
# Builds ggml's C dequantizers, which `GGML_QUANTS=DIR/libggml-quants.so cargo bench --bench dequant -- gguf`
# compares with the decoders of src/dtype/ggml: the source is in the Python package llama-cpp-python.
#
#     benches/ggml.sh DIR
#
# CFLAGS are those of llama.cpp's release build unless given (for this machine: CFLAGS='-O3 -DNDEBUG -march=native').
set -eu
mkdir -p "$1"
cd "$1"
package=llama_cpp_python-0.3.36
if ! [ -d $package ]; then
    python3 -m pip download -q --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
    tar xzf $package.tar.gz
fi
ggml=$package/vendor/llama.cpp/ggml
# shellcheck disable=SC2086
${CC:-cc} ${CFLAGS:--O3 -DNDEBUG} -fPIC -shared -I $ggml/include -I $ggml/src $ggml/src/ggml-quants.c -o libggml-quants.so -lm
