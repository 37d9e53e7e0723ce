"""Writes cases.txt: what Python's pickle makes of some values, at every protocol, and how each value is
shown. Run `python3 cases.py > cases.txt`; needs nothing but Python 3.8 or later.

Each line: name, protocol, the pickle in hexadecimal, the value. pickletools has accepted every pickle.
"""

import argparse
import collections
import io
import pickle
import pickletools
import struct


def shown(value):
    """A value as tests/shown.rs shows it."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return str(value) if -(2**63) <= value < 2**63 else "BIG"
    if isinstance(value, float):
        return "float:" + struct.pack(">d", value).hex() if value == value else "float:nan"
    if isinstance(value, str):
        try:
            return "'" + value.encode().hex() + "'"
        except UnicodeEncodeError:
            return "b'" + value.encode(errors="surrogatepass").hex() + "'"
    if isinstance(value, (bytes, bytearray)):
        return "b'" + value.hex() + "'"
    if isinstance(value, tuple):
        return "(" + " ".join(map(shown, value)) + ")"
    if isinstance(value, list):
        return "[" + " ".join(map(shown, value)) + "]"
    if isinstance(value, (set, frozenset)):
        return "set{" + " ".join(sorted(map(shown, value))) + "}"
    if isinstance(value, dict):
        return "{" + " ".join(f"{shown(k)}:{shown(v)}" for k, v in value.items()) + "}"
    if isinstance(value, complex):
        return "other:a complex number"
    if isinstance(value, type):
        return f"name:{value.__module__}.{value.__name__}"
    if isinstance(value, argparse.Namespace):
        return f"object:argparse.Namespace state {shown(value.__dict__)}"
    raise TypeError(value)


shared = ["shared"]
CASES = {
    "none": None,
    "bools": [True, False],
    "ints": [0, 1, -1, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63)],
    "big": [2**63, -(2**63) - 1, 2**64, 10**30, -(10**30), 2**2040],
    "floats": [0.0, -0.0, 1.5, 1e300, 5e-324, float("inf"), float("-inf"), float("nan")],
    "texts": ["", "a", "ä", "漢字", "\U0001f600", "new\nline", "back\\slash", "quote'\"", "\x00\x7f\x80", "x" * 256],
    "surrogate": "\ud800",
    "bytes": [b"", b"abc", bytes(range(256)), b"y" * 256],
    "bytearray": bytearray(b"abc"),
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "nested": {"a": [{"b": (1, [2, {"c": None}])}]},
    "set": {1},
    "frozenset": frozenset([1]),
    "empty": [[], {}, set(), frozenset()],
    "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
    "defaultdict": collections.defaultdict(list, {"x": [1]}),
    "counter": collections.Counter("aab"),
    "complex": 1 + 2j,
    "long list": list(range(1002)),
    "lists in a long list": [[i] for i in range(1002)],
    "long dict": {i: str(i) for i in range(1002)},
    "shared": {"one": shared, "two": shared, "three": (shared, shared)},
    "class": [collections.OrderedDict, argparse.Namespace, dict],
    "namespace": argparse.Namespace(lr=0.1, layers=[1, 2]),
}


def main():
    for name, value in CASES.items():
        for protocol in [1, 4] if name.count("long") else range(6):
            # The two write some things differently.
            for pickler in [pickle.Pickler, pickle._Pickler]:
                out = io.BytesIO()
                pickler(out, protocol).dump(value)
                pickled = out.getvalue()
                pickletools.dis(pickled, io.StringIO())
                line = f"{name}\t{protocol}\t{pickled.hex()}\t{shown(value)}"
                optimized = f"{name}, optimized\t{protocol}\t{pickletools.optimize(pickled).hex()}\t{shown(value)}"
                if pickler is pickle.Pickler:
                    print(line)
                    if len(pickled) < 2000:
                        print(optimized)
                elif pickled != pickle.dumps(value, protocol):
                    print(line)


main()
