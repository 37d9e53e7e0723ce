"""What every comparison with a peer needs: running stfs, mounting, comparing, counting.

A file of checks is a script: functions marked `@check`, each given an empty directory, and
`main()` at the end, which prints a line per check and then `N passed, N failed`.
"""

import contextlib
import gc
import inspect
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

import numpy as np

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
STFS = os.environ.get("STFS", str(REPOSITORY / "target/release/stfs"))

_checks = []


class Skip(Exception):
    """A check that this machine cannot run, and why. In CI that is a failure."""


def check(function):
    """Marks a check: a function that raises if something is wrong."""
    _checks.append(function)
    return function


def main():
    """Runs the file's checks (those whose names contain an argument, if any are given), with the
    program that `--stfs` names first, or $STFS.
    """
    global STFS
    wanted = sys.argv[1:]
    if wanted[:1] == ["--stfs"]:
        STFS, wanted = wanted[1], wanted[2:]
    passed = failed = 0
    for function in _checks:
        name = function.__name__
        if wanted and not any(w in name for w in wanted):
            continue
        started = time.monotonic()
        scratch = pathlib.Path(tempfile.mkdtemp(prefix="stfs-peers-"))
        try:
            function(scratch) if inspect.signature(function).parameters else function()
        except Skip as why:
            skipped_in_ci = bool(os.environ.get("CI"))
            failed += skipped_in_ci
            print(f"{'FAIL' if skipped_in_ci else 'skip'} {name}: cannot run here: {why}")
        except Exception:
            failed += 1
            print(f"FAIL {name}")
            traceback.print_exc(file=sys.stdout)
        else:
            passed += 1
            print(f"ok   {name} ({time.monotonic() - started:.1f} s)")
        finally:
            gc.collect()
            shutil.rmtree(scratch, ignore_errors=True)
        sys.stdout.flush()
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


def random_numbers():
    """A NumPy generator with another seed every time; it is printed, and $SEED repeats a run."""
    seed = int(os.environ.get("SEED") or np.random.SeedSequence().generate_state(1)[0])
    print(f"SEED={seed}")
    return np.random.default_rng(seed)


def need(*programs):
    """Skips the check unless these programs are installed."""
    missing = [p for p in programs if shutil.which(p) is None]
    if missing:
        raise Skip(f"not installed: {', '.join(missing)}")


def run(*args, expect=0, **options):
    """Runs a program and returns its stdout, as bytes; its exit code must be as expected."""
    done = subprocess.run([str(a) for a in args], capture_output=True, timeout=300, **options)
    if done.returncode != expect:
        command = " ".join(str(a) for a in args)
        raise AssertionError(f"{command}: exit code {done.returncode}, expected {expect}\n{done.stderr.decode(errors='replace')}")
    return done.stdout


def stfs(*args, **options):
    """Runs stfs and returns its stdout, as bytes."""
    return run(STFS, *args, **options)


@contextlib.contextmanager
def mounted(model, *options):
    """A mount of `model`, unmounted at the end whatever happens."""
    mountpoint = pathlib.Path(tempfile.mkdtemp(prefix="stfs-mount-"))
    try:
        stfs("mount", *options, model, mountpoint)
        kind = mount_type(mountpoint)
        assert kind == "fuse.stfs", f"{mountpoint} is {kind} when stfs mount has returned"
        yield mountpoint
    finally:
        gc.collect()  # memory maps that a check left behind keep the mount busy
        if mount_type(mountpoint) is not None:
            if subprocess.run([STFS, "umount", str(mountpoint)], capture_output=True).returncode:
                subprocess.run(["umount", "-l", str(mountpoint)], check=True)
        mountpoint.rmdir()


def mount_type(path):
    """The type of the file system that is mounted at exactly this path, or None."""
    kind = None
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ", 1)
        if left.split()[4] == str(path):
            kind = right.split()[0]
    return kind


def read(path):
    """A whole file, as bytes."""
    return pathlib.Path(path).read_bytes()


def same_bytes(found, expected, what):
    """Raises, with the first difference, unless the bytes are the same."""
    found, expected = bytes(found), bytes(expected)
    if found == expected:
        return
    common = min(len(found), len(expected))
    a = np.frombuffer(found[:common], np.uint8)
    b = np.frombuffer(expected[:common], np.uint8)
    where = int(np.argmax(a != b)) if (a != b).any() else common
    start = max(0, where - 4)
    raise AssertionError(
        f"{what}: {len(found)} bytes, expected {len(expected)}; first difference at {where}: "
        f"…{found[start : where + 12].hex(' ')}… expected …{expected[start : where + 12].hex(' ')}…"
    )


def same_values(found, expected, what):
    """Raises, with the first difference, unless two float32 arrays are bit-equal. A NaN equals any NaN."""
    found = np.frombuffer(bytes(found), "<f4")
    expected = np.ascontiguousarray(expected, "<f4").reshape(-1)
    assert found.size == expected.size, f"{what}: {found.size} values, expected {expected.size}"
    bits = found.view(np.uint32) != expected.view(np.uint32)
    different = bits & ~(np.isnan(found) & np.isnan(expected))
    if different.any():
        i = int(np.argmax(different))
        raise AssertionError(
            f"{what}: {int(different.sum())} of {found.size} values differ; first at {i}: "
            f"{found[i]!r} ({found.view(np.uint32)[i]:08x}), expected {expected[i]!r} ({expected.view(np.uint32)[i]:08x})"
        )


def same_f32(model, name, expected, what=""):
    """Without mounting: the tensor's f32 has these values, and this shape."""
    what = f"{what}: {name}" if what else name
    shape = json.loads(stfs("cat", model, name, "--view", "meta"))["views"]["f32"]["shape"]
    same(shape, list(expected.shape), f"{what}: shape")
    same_values(stfs("cat", model, name, "--view", "f32"), expected, what)


def absent(model, name, what=""):
    """Without mounting: there is no tensor of that name."""
    names = [t["name"] for t in json.loads(stfs("ls", "--json", model))]
    assert name not in names, f"{what}: {name} exists"


def same(found, expected, what):
    """Raises, with both, unless they are equal."""
    assert found == expected, f"{what}: {found!r}, expected {expected!r}"
