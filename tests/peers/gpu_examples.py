#!/usr/bin/env python3
"""The GPU examples, run against a mount whose daemon has the test double for a driver.

Three mirrors of the ABI that know nothing of each other (the C header, the Python structure, the Rust
one) reach the same bytes. On a GPU this has not run: the double is host memory.
"""

import importlib.util
import json
import os
import pathlib
import subprocess

from harness import REPOSITORY, check, main, mounted, need, read, run, same

MODEL = REPOSITORY / "examples/tiny-llama"
TENSORS = ("model.norm.weight", "model.layers.0.self_attn.qkv_proj.weight", "lm_head.weight")


def with_double(scratch):
    """Makes every program that is started from now on find the double under the driver's name."""
    need("cargo", "cc")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    run("cargo", "build", "-q", "-p", "stfs-cuda-double", cwd=REPOSITORY)
    (scratch / "driver").mkdir()
    (scratch / "driver/libcuda.so").symlink_to(target / "debug/libstfs_cuda_double.so")
    os.environ["LD_LIBRARY_PATH"] = str(scratch / "driver")


def head(data):
    return " ".join(f"{b:02x}" for b in data[:16])


def check_example(command):
    with mounted(MODEL) as mountpoint:
        for name in TENSORS:
            raw = mountpoint / "tensors" / name / "raw"
            lines = run(*command, raw).decode().splitlines()
            expected = read(raw)
            assert lines[0].startswith(f"{len(expected)} bytes on GPU 0, dtype 15"), lines
            same(lines[1].strip(), head(expected), name)
        # The whole model, which is a directory.
        lines = run(*command, mountpoint / "tensors").decode().splitlines()
        assert " bytes on GPU 0, dtype 0" in lines[0], lines
    wrong = subprocess.run([str(part) for part in command], capture_output=True)
    assert wrong.returncode and wrong.stderr.startswith(b"usage: consume"), wrong.stderr
    same(wrong.stderr.count(b"\n"), 1, "lines of the usage")


@check
def c_example(scratch):
    with_double(scratch)
    program = scratch / "consume"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-I", REPOSITORY / "packaging/include"]
    run("cc", *flags, "-o", program, REPOSITORY / "examples/gpu/consume.c", "-ldl")
    check_example([program])


@check
def python_example_with_the_driver_alone(scratch):
    with_double(scratch)
    # -S: as on a machine without PyTorch and CuPy, whatever this one has.
    check_example(["python3", "-S", REPOSITORY / "examples/gpu/consume.py"])


@check
def python_sees_shape_strides_and_errno(scratch):
    with_double(scratch)
    spec = importlib.util.spec_from_file_location("consume", REPOSITORY / "examples/gpu/consume.py")
    consume = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(consume)
    with mounted(MODEL) as mountpoint:
        for name, entry in json.loads(read(mountpoint / "index.json")).items():
            directory = mountpoint / entry["path"]
            for view in ("raw", "f32"):
                meta = json.loads(read(directory / "meta.json"))["views"][view]
                with open(directory / view, "rb") as file:
                    io = consume.upload(file)
                same(list(io.shape[: io.ndim]), meta["shape"], f"{name}/{view}: shape")
                same(io.nbytes, meta["nbytes"], f"{name}/{view}: nbytes")
                stride, strides = 1, []
                for dim in reversed(meta["shape"]):
                    strides.insert(0, stride)
                    stride *= dim
                same(list(io.strides[: io.ndim]), strides, f"{name}/{view}: strides")
        with open(mountpoint / "model.json", "rb") as file:
            try:
                consume.upload(file)
                raise AssertionError("model.json was uploaded")
            except OSError as e:
                same(e.strerror, os.strerror(25), "the errno of a file that is no tensor")


@check
def commands(scratch):
    with_double(scratch)
    with mounted(MODEL, "--gpu-limit", "64M") as mountpoint:
        stfs = os.environ.get("STFS", str(REPOSITORY / "target/release/stfs"))
        run(stfs, "gpu", "upload", mountpoint / "tensors")
        listed = json.loads(run(stfs, "gpu", "status", "--json", mountpoint))
        same([e["path"] for e in listed], ["tensors"], "what is resident")
        run(stfs, "gpu", "release", mountpoint / "tensors")
        same(json.loads(run(stfs, "gpu", "status", "--json", mountpoint)), [], "after release")
        failed = subprocess.run([stfs, "gpu", "release", mountpoint / "tensors"], capture_output=True)
        same(failed.returncode, 1, "exit code of a release of nothing")


main()
