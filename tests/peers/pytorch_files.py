#!/usr/bin/env python3
"""PyTorch checkpoints held against Python's own pickle, pickletools and zipfile, and NumPy: random
checkpoints in both containers, random damage, and pickles that would run programs.
"""

import argparse
import collections
import datetime
import functools
import io
import json
import math
import pathlib
import pickle
import pickletools
import subprocess
import sys
import zipfile

import ml_dtypes  # registers bfloat16 and the small floats with NumPy
import numpy as np
from safetensors.numpy import load_file, save_file

import harness
from harness import check, main, mounted, random_numbers, read, run, same, same_bytes, same_values, stfs
from harness.checkpoints import DTYPES, Storage, Tensor, legacy, named, pickled, random_storage, random_view, save, zipped
from harness.models import parse

RNG = random_numbers()
NO_VALUES = ("C64", "C128")


def random_tensors(rng, count=60, old=False, dtypes=tuple(DTYPES)):
    """Views of storages of every dtype, several of each."""
    storages = [random_storage(rng, str(i), dtype, int(rng.integers(1, 400))) for i, dtype in enumerate(rng.permutation(dtypes))]
    tensors = {}
    for i in range(count):
        storage = storages[i % len(storages)]
        plain = DTYPES[storage.dtype][2] is not None
        tensors[f"t.{i}.{storage.dtype}"] = random_view(rng, storage, old=plain and bool(rng.integers(4) == 0), parameter=bool(rng.integers(3) == 0))
    return tensors


def float32(array):
    """The values as binary32, as NumPy and ml_dtypes convert them."""
    with np.errstate(all="ignore"):
        if array.dtype == ml_dtypes.bfloat16:  # by its bits: a NaN keeps its payload
            return (np.ascontiguousarray(array).view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(array.shape)
        return array.astype(np.float32)


def compare(mnt, tensors, file, what, big=False):
    """A mount has just these tensors."""
    index = json.loads(read(mnt / "index.json"))
    same(sorted(index), sorted(tensors), f"{what}: names")
    data = read(file)
    for name, tensor in tensors.items():
        array, at = tensor.array(), f"{what}: {name} {tensor.shape} {tensor.strides}"
        directory = mnt / index[name]["path"]
        meta = json.loads(read(directory / "meta.json"))
        same((meta["dtype"], meta["shape"], meta["nbytes"]), (tensor.dtype, list(tensor.shape), array.nbytes), at)
        same_bytes(read(directory / "raw"), array.tobytes(), at)
        values = None if tensor.dtype in NO_VALUES else float32(array)
        same((directory / "f32").exists(), values is not None, f"{at}: f32")
        if values is not None:
            same_values(read(directory / "f32"), values, f"{at}: f32")
        loaded = np.load(mnt / f"npy/{directory.name}.npy")
        same(loaded.shape, array.shape, f"{at}: .npy")
        if loaded.dtype == array.dtype:
            same_bytes(loaded.tobytes(), array.tobytes(), f"{at}: .npy")
        else:
            same_values(loaded.tobytes(), values, f"{at}: .npy")
        origin = meta["origin"]
        if big and array.itemsize > 1 and array.size:
            same(origin["byteorder"], "big", f"{at}: byteorder")
            continue
        same(origin["kind"], "stored" if tensor.contiguous() else "strided", f"{at}: origin")
        same(origin["file"], file.name, f"{at}: origin")
        if tensor.contiguous():
            same_bytes(data[origin["offset"] :][: array.nbytes], array.tobytes(), f"{at}: bytes at its offset")
        else:
            same(origin["strides"], list(tensor.strides), f"{at}: strides")
            first = bytes(array.reshape(-1)[:1].tobytes())
            same_bytes(data[origin["offset"] :][: array.itemsize], first, f"{at}: the first element at its offset")


@check
def random_archives(tmp):
    for i in range(12):
        tensors = random_tensors(RNG)
        protocol = i % 5 + 1
        options = {"streamed": bool(i & 1), "zip64": bool(i & 2), "big": None if i & 4 else False, "name": RNG.choice(["archive", "a b", "x" * 200, "ü"])}
        path = tmp / f"{i}.pt"
        save(path, tensors if i % 3 else {"epoch": i, "model": collections.OrderedDict(tensors)}, protocol, **options)
        with mounted(path) as mnt:
            compare(mnt, tensors, path, f"protocol {protocol}, {options}")
        same(json.loads(stfs("verify", "--json", path)), [], "verify")


@check
def random_files_of_the_older_format(tmp):
    for i in range(6):
        tensors = random_tensors(RNG)
        path = tmp / f"{i}.pth"
        save(path, tensors, i % 5 + 1, old=True, flag=bool(i & 1))
        with mounted(path) as mnt:
            compare(mnt, tensors, path, f"older format, protocol {i % 5 + 1}")


@check
def windows_of_the_older_format(tmp):
    array = RNG.standard_normal(50).astype(np.float32)
    tensors = {}
    for i in range(20):
        start = int(RNG.integers(0, 40))
        size = int(RNG.integers(1, 50 - start))
        inside = Storage("5", "float32", array, (str(100 + i), start, size))
        within = random_view(RNG, Storage("5", "float32", array[start : start + size]))
        tensors[f"w{i}"] = Tensor(inside, within.offset, within.shape, within.strides)
    path = tmp / "m.pt"
    save(path, tensors, old=True)
    with mounted(path) as mnt:
        compare(mnt, tensors, path, "windows")


@check
def the_other_byte_order(tmp):
    dtypes = [d for d, (_, kind, storage) in DTYPES.items() if storage or np.dtype(kind).itemsize == 1]
    tensors = random_tensors(RNG, dtypes=dtypes)
    path = tmp / "big.pt"
    save(path, tensors, big=True)
    with mounted(path) as mnt:
        compare(mnt, tensors, path, "big-endian", big=True)
    # Rebuilt with a dtype of its own over storages without one: nobody knows what to swap by.
    save(path, tensors | {"odd": random_view(RNG, random_storage(RNG, "odd", "uint32", 9))}, big=True)
    same(sorted(t["name"] for t in json.loads(stfs("ls", "--json", path))), sorted(tensors), "names")
    assert "odd" in stfs("ls", "--why", path).decode(), "ls --why does not name the tensor that is left out"


def plain(rng, storage_of, names):
    """Contiguous tensors of dtypes that the safetensors library reads into NumPy."""
    kinds = ["float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"]
    tensors = {}
    for i, name in enumerate(names):
        shape = [int(n) for n in rng.integers(1, 9, 2)]
        storage = storage_of(rng, str(i), kinds[i % len(kinds)], shape[0] * shape[1])
        tensors[name] = Tensor(storage, 0, shape, [shape[1], 1] if i % 3 else [1, shape[0]])
    return tensors


@check
def a_conversion_is_the_same_model(tmp):
    names = [f"model.layers.{i}.{p}.weight" for i in range(5) for p in ("a", "b", "c")]
    tensors = plain(RNG, random_storage, names)
    save_file({n: t.array() for n, t in tensors.items()}, tmp / "new.safetensors")
    for old in (False, True):
        save(tmp / "old.bin", {"state_dict": tensors, "epoch": 1}, old=old)
        for pair in (("old.bin", "new.safetensors"), ("new.safetensors", "old.bin")):
            report = json.loads(stfs("diff", "--json", *(tmp / p for p in pair)))
            same({k: report[k] for k in ("added", "removed", "changed")}, {"added": [], "removed": [], "changed": []}, "diff")
        with mounted(tmp / "old.bin") as mnt:
            run("cp", mnt / "export/model.safetensors", tmp / "copy.safetensors")
        found = load_file(tmp / "copy.safetensors")
        same(sorted(found), sorted(tensors), "names")
        for name, tensor in tensors.items():
            same((found[name].dtype, found[name].shape), (tensor.array().dtype, tensor.shape), name)
            same_bytes(found[name].tobytes(), tensor.array().tobytes(), name)
        same({n: e[1] for n, e in parse(tmp / "copy.safetensors").items()}, {n: list(t.shape) for n, t in tensors.items()}, "shapes")


@check
def scalars_of_the_root(tmp):
    """`model.json` has the root's own values, as Python reads them back."""
    for protocol in range(1, 6):
        values = {
            "int": int(RNG.integers(-(2**62), 2**62)), "small": int(RNG.integers(-300, 70000)), "float": float(RNG.standard_normal()), "tiny": 5e-324,
            "text": "naïve \n\t\" \\ € 🙂", "empty": "", "yes": True, "no": False, "none": None, "min": -(2**63), "max": 2**63 - 1, "zero": 0, "-0": -0.0,
        }  # fmt: skip
        tensors = {"w": random_view(RNG, random_storage(RNG, "0", "float32", 30))}
        rest = {"list": [1, [2, ("a", None)]], "set": {1, 2}, "frozen": frozenset("ab"), "bytes": b"\xff\0", "array": bytearray(b"x"), "big": 10**30, "complex": 2j}
        root = values | rest | {"state_dict": tensors}
        for old in (False, True):
            save(tmp / "m.pt", root, protocol, old=old)
            with mounted(tmp / "m.pt") as mnt:
                found = json.loads(read(mnt / "model.json"))["checkpoint"]
            same(found["key"], ["state_dict"], "key")
            same({k: v for k, v in found["values"].items() if k != "big"}, values, f"values, protocol {protocol}")


class Thing:
    """An object that is no part of torch."""

    def __init__(self, depth):
        self.__dict__ |= {"depth": depth, "list": [1, "a"], "of": Thing(depth - 1) if depth else None}


@check
def objects_are_names(tmp):
    thing = named("mylib.config.Thing", Thing)
    beside = {
        "args": argparse.Namespace(lr=0.1, path=pathlib.PurePosixPath("/x")), "when": datetime.datetime(2024, 1, 2), "partial": functools.partial(int, base=2),
        "array": np.arange(6).reshape(2, 3), "scalar": np.float64(1.5), "thing": thing(5), "default": collections.defaultdict(list, a=[1]),
        "counter": collections.Counter("aab"), "deque": collections.deque([1, 2]), "range": range(5), "type": dict,
    }  # fmt: skip
    tensors = {"w": random_view(RNG, random_storage(RNG, "0", "float32", 30))}
    for protocol in range(1, 6):
        save(tmp / "m.pt", {"model": tensors, "beside": beside, thing: 1, (1, thing(0)): 2}, protocol)
        names = [t["name"] for t in json.loads(stfs("ls", "--json", tmp / "m.pt"))]
        same(names, ["w"], f"names, protocol {protocol}")
        with mounted(tmp / "m.pt") as mnt:
            known = json.loads(read(mnt / "model.json"))["checkpoint"]["globals"]
        for name in ("argparse.Namespace", "mylib.config.Thing", "datetime.datetime", "functools.partial"):
            assert name in known, f"{name} is not among {known}"
        why = stfs("ls", "--why", tmp / "m.pt").decode()
        assert "mylib.config.Thing" in why and "nothing was called" in why, why


# What pickletools refuses for the same reason as any machine must. It refuses more than that.
REFUSED = ("no MARK exists", "tries to pop", "never been stored", "not enough data", "exhausted before", "unknown", "no newline", "expected ")


def judged(data):
    """Whether pickletools refuses a pickle, and why."""
    try:
        pickletools.dis(data, io.StringIO())
    except UnicodeDecodeError:
        return None
    except Exception as e:
        return str(e) if any(words in str(e) for words in REFUSED) else None
    return None


@check
def damaged_pickles_are_judged_as_by_pickletools(tmp):
    storage = random_storage(RNG, "0", "float32", 30)
    root = {"state_dict": {"w": Tensor(storage, 0, [30], [1])}, "args": argparse.Namespace(a=[1, (2, "x")]), "n": [1, 2.5, None, True, "text", 2**40, {"a"}]}
    refused = 0
    for i in range(400):
        data, storages = pickled(root, i % 5 + 1)
        data = bytearray(data)
        if i < 60:
            data = data[: int(RNG.integers(len(data)))]
        else:
            for _ in range(int(RNG.integers(1, 4))):
                at = int(RNG.integers(len(data)))
                kind = int(RNG.integers(3))
                if kind == 0:
                    data[at] = int(RNG.integers(256))
                elif kind == 1:
                    del data[at]
                else:
                    data[at:at] = RNG.choice([b"t", b"u", b"e", b"0", b"(", b"1", b"2", b"h\x09", b"R", b"a", b"s", b"\x94", b"\x93", b"\xff"])
        (tmp / "m.pt").write_bytes(zipped(bytes(data), storages))
        done = subprocess.run([harness.STFS, "ls", tmp / "m.pt"], capture_output=True, timeout=60)
        said = done.stderr.decode()
        assert done.returncode in (0, 1), f"exit code {done.returncode}: {said}"
        assert done.returncode == 0 or said.count("\n") == 1, said
        if (why := judged(bytes(data))) is not None:
            assert done.returncode == 1, f"pickletools refuses it ({why}), stfs serves it: {bytes(data)!r}"
            assert "m.pt" in said, said
            refused += 1
    assert refused > 100, f"only {refused} pickles were refused by pickletools"


class Call:
    """Pickles as a call."""

    def __init__(self, name, *arguments):
        self.name, self.arguments = name, arguments

    def __reduce__(self):
        module, _, short = self.name.rpartition(".")
        __import__(module)
        return getattr(sys.modules[module], short), self.arguments

    def __hash__(self):
        return 1


def payloads(canary):
    """Calls that make the file."""
    code = f"open({str(canary)!r}, 'w').close()"
    touch = f"touch {canary}"
    return {
        "os.system": (touch,), "posix.system": (touch,), "os.popen": (touch,), "subprocess.getoutput": (touch,), "subprocess.call": (["touch", str(canary)],),
        "subprocess.check_output": (["touch", str(canary)],), "subprocess.Popen": (["touch", str(canary)],), "builtins.exec": (code,), "builtins.eval": (code,),
        "pty.spawn": (["touch", str(canary)],), "runpy._run_code": (code, {}), "os.mkdir": (str(canary),),
        "os.mknod": (str(canary),), "timeit.timeit": (code, "pass", functools.partial(float, 0), 1), "code.InteractiveInterpreter": (),
        "shutil.copyfile": ("/dev/null", str(canary)), "pickle.loads": (pickle.dumps(Call("os.system", touch), 0),), "importlib.import_module": ("os",),
        "ctypes.CDLL": (None,), "socket.socket": (), "bdb.Bdb": (), "webbrowser.get": (), "pydoc.render_doc": ("os",), "builtins.__import__": ("os",),
        "builtins.compile": (code, "x", "exec"), "os.open": (str(canary), 64),
    }  # fmt: skip


@check
def payloads_are_refused_and_do_nothing(tmp):
    tensors = {"w": random_view(RNG, random_storage(RNG, "0", "float32", 30))}
    canary = tmp / "canary"
    made = 0
    for i, (name, arguments) in enumerate(payloads(canary).items()):
        call = Call(name, *arguments)
        # Python itself does what it names: these pickles are what they seem to be.
        with open(tmp / "alone", "wb") as f:
            pickle.dump(call, f)
        subprocess.run([sys.executable, "-c", "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))", tmp / "alone"], capture_output=True, timeout=60)
        if canary.exists():
            made += 1
            canary.rmdir() if canary.is_dir() else canary.unlink()
        roots = [call, {"model": tensors, "optimizer": {"state": [{0: call}]}}, {"model": {**tensors, "x": call}}, {**tensors, call: 1}, [tensors, (call,)]]
        for j, root in enumerate(roots):
            save(tmp / "m.pt", root, (i + j) % 5 + 1, old=bool((i + j // 2) % 2))
            mountpoint = tmp / "mnt"
            for command in (["ls", tmp / "m.pt"], ["mount", tmp / "m.pt", mountpoint]):
                done = subprocess.run([harness.STFS, *command], capture_output=True, timeout=60)
                said = done.stderr.decode()
                assert done.returncode == 1 and "is hostile" in said and "nothing was executed" in said, f"{name}, {j}: {done}"
            found = json.loads(stfs("verify", "--json", tmp / "m.pt", expect=1))
            assert any("is hostile" in p["problem"] for p in found), found
            assert not canary.exists(), f"{name}: the canary is there"
    assert made >= 14, f"only {made} of them do anything"


@check
def names_on_no_list_are_served_and_do_nothing(tmp):
    canary = tmp / "canary"
    call = Call("numpy.testing._private.utils.runstring", f"open({str(canary)!r}, 'w').close()", {})
    code = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1]))"
    run(sys.executable, "-c", code, pickle.dumps(call, 2).hex())
    assert canary.exists(), "runstring runs nothing; another name is needed here"
    canary.unlink()
    tensors = {"w": random_view(RNG, random_storage(RNG, "0", "float32", 30))}
    for old in (False, True):
        save(tmp / "m.pt", {"state_dict": tensors, "extra": call}, old=old)
        with mounted(tmp / "m.pt") as mnt:
            compare(mnt, tensors, tmp / "m.pt", "beside runstring")
        assert not canary.exists(), "the canary is there"


@check
def storages_are_found_in_any_archive(tmp):
    """Members in any order, beside others, with comments and extra fields."""
    tensors = random_tensors(RNG, 20)
    data, storages = pickled(tensors)
    for i in range(6):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", strict_timestamps=False) as archive:
            members = {"data.pkl": data, "version": b"3\n", "extra/readme.txt": b"hello"} | {f"data/{k}": s.data() for k, s in storages.items()}
            for name in RNG.permutation(list(members)):
                info = zipfile.ZipInfo(f"p/{name}")
                info.extra = b"\xfe\xca" + (k := int(RNG.integers(0, 40))).to_bytes(2, "little") + bytes(k)
                info.comment = b"c" * int(RNG.integers(0, 50))
                archive.writestr(info, members[name])
            archive.comment = b"x" * (i * 37)
        (tmp / "m.pt").write_bytes(out.getvalue())
        with mounted(tmp / "m.pt") as mnt:
            compare(mnt, tensors, tmp / "m.pt", f"archive {i}")


@check
def verify_holds_strided_tensors_to_checksums(tmp):
    tensors = random_tensors(RNG, 20)
    save(tmp / "m.pt", tensors)
    with mounted(tmp / "m.pt") as mnt:
        (tmp / "sums").write_bytes(run("sha256sum", *(f"tensors/{n}/raw" for n in tensors), cwd=mnt))
    stfs("verify", "--checksum", tmp / "sums", tmp / "m.pt")
    name, tensor = next((n, t) for n, t in tensors.items() if math.prod(t.shape) > 0)
    data = bytearray((tmp / "m.pt").read_bytes())
    offset = next(t for t in json.loads(stfs("ls", "--json", tmp / "m.pt")) if t["name"] == name)["offset"]
    data[offset] ^= 1
    (tmp / "m.pt").write_bytes(data)
    found = json.loads(stfs("verify", "--json", "--checksum", tmp / "sums", tmp / "m.pt", expect=1))
    assert any(p["tensor"] == name for p in found), found


@check
def old_files_have_no_byteorder_and_other_versions(tmp):
    tensors = random_tensors(RNG, 10)
    data, storages = pickled(tensors)
    for version in (b"1", b"2\n", b"10"):
        (tmp / "m.pt").write_bytes(zipped(data, storages, version=version))
        same(json.loads(stfs("verify", "--json", tmp / "m.pt")), [], f"version {version}")
    older = legacy(*pickled(tensors, legacy=True)) + b"what follows is ignored"
    (tmp / "m.pt").write_bytes(older)
    same(json.loads(stfs("verify", "--json", tmp / "m.pt")), [], "older format")


if __name__ == "__main__":
    main()
