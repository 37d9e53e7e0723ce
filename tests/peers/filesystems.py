"""The same model on every kind of file system that a model may lie on, and what differs there.

Each file system is made in scratch space (root, loop devices). The model is mounted from it, all bytes of all views
are compared with those of the model elsewhere, and then what may differ is looked at: times, direct I/O, changes under
the mount, access control lists, holes. The results are held to the table in doc/SEMANTICS.md, "Where the model lies".

A machine whose kernel lacks one of the file systems fails the check, unless $STFS_MISSING_FILESYSTEMS names it.
"""

import contextlib
import errno
import hashlib
import json
import mmap
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import numpy as np

from harness import REPOSITORY, Skip, check, main, mount_type, mounted, need, read, run, same, same_bytes
from harness.models import Tensor, index, write

PAGE = 4096
# Longer than a tick of the clock that files' times are taken from.
TICK = 0.02


def model(directory):
    """Two shards with views of every kind; the second is the one that things happen to."""
    rng = np.random.default_rng(11)
    bf16 = lambda *shape: Tensor("BF16", shape, rng.integers(0, 0x7F80, shape, dtype=np.uint16).tobytes())  # noqa: E731
    layer = "model.layers.0.self_attn"
    first = {f"{layer}.{n}_proj.weight": bf16(rows, 331) for n, rows in (("q", 301), ("k", 97), ("v", 97))}
    first["model.embed_tokens.weight"] = bf16(1003, 331)
    second = {
        "bytes": Tensor("U8", [1_000_003], rng.bytes(1_000_003)),
        "eight": Tensor("F8_E4M3", [40004], rng.bytes(40004)),
        "wide": Tensor("F64", [70001], rng.standard_normal(70001).tobytes()),
    }
    write(directory / "model-1.safetensors", first)
    write(directory / "model-2.safetensors", second)
    index(directory, {"model-1.safetensors": first, "model-2.safetensors": second})
    (directory / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": true}')
    (directory / "notes.txt").write_bytes(rng.bytes(70000))
    for path in directory.iterdir():
        os.chmod(path, 0o640)
        os.utime(path, ns=(10**18, 10**18 + 123456789))


# ---- file systems


@contextlib.contextmanager
def mounts():
    """Mounts file systems, and unmounts them in reverse whatever happens."""
    with contextlib.ExitStack() as stack:

        def mount(at, *arguments):
            at.mkdir(exist_ok=True)
            run("mount", *arguments, at)
            stack.callback(lambda: subprocess.run(["umount", "-l", str(at)], capture_output=True))
            return at

        mount.stack = stack
        yield mount


def image(scratch, megabytes, *mkfs):
    """A file with a file system in it."""
    path = scratch / "image"
    with open(path, "wb") as f:
        f.truncate(megabytes << 20)
    run(*mkfs, path)
    return path


def filled(at, source):
    """Copies the model into a file system, with its times."""
    where = at / "model"
    shutil.copytree(source, where)
    return where


def on_disk(megabytes, *mkfs, options="loop"):
    """A file system with a loop device beneath it."""

    def make(mount, scratch, source):
        return filled(mount(scratch / "at", "-o", options, image(scratch, megabytes, *mkfs)), source)

    return make


def loop(mount, scratch, source):
    """ext4 in a file on ext4 in a file."""
    outer = mount(scratch / "outer", "-o", "loop", image(scratch, 96, "mkfs.ext4", "-q", "-F"))
    return filled(mount(scratch / "at", "-o", "loop", image(outer, 48, "mkfs.ext4", "-q", "-F")), source)


def tmpfs(mount, scratch, source):
    return filled(mount(scratch / "at", "-t", "tmpfs", "-o", "size=64m", "tmpfs"), source)


def overlayfs(mount, scratch, source):
    """The model is in the lower layer. A change copies the file up, which makes it another one."""
    layers = mount(scratch / "layers", "-t", "tmpfs", "-o", "size=128m", "tmpfs")
    for layer in ("lower", "upper", "work"):
        (layers / layer).mkdir()
    filled(layers / "lower", source)
    options = f"lowerdir={layers}/lower,upperdir={layers}/upper,workdir={layers}/work"
    return mount(scratch / "at", "-t", "overlay", "-o", options, "overlay") / "model"


def packed(*command, kind):
    """An image that is made of a directory, and cannot be changed."""

    def make(mount, scratch, source):
        (scratch / "tree").mkdir()
        filled(scratch / "tree", source)
        path = scratch / "image"
        if kind == "erofs":
            run(*command, path, scratch / "tree")
        else:
            run(*command, scratch / "tree", path)
        return mount(scratch / "at", "-t", kind, "-o", "loop,ro", path) / "model"

    return make


def bindfs(mount, scratch, source):
    """Another file system in user space."""
    below = scratch / "below"
    below.mkdir()
    filled(below, source)
    at = scratch / "at"
    at.mkdir()
    run("bindfs", below, at)
    mount.stack.callback(lambda: subprocess.run(["umount", "-l", str(at)], capture_output=True))
    return at / "model"


FILESYSTEMS = {
    "ext4": on_disk(48, "mkfs.ext4", "-q", "-F"),
    "xfs": on_disk(320, "mkfs.xfs", "-q", "-f"),
    "btrfs": on_disk(128, "mkfs.btrfs", "-q", "-f"),
    "tmpfs": tmpfs,
    "overlayfs": overlayfs,
    "squashfs": packed("mksquashfs", kind="squashfs"),
    "erofs": packed("mkfs.erofs", "-zlz4", kind="erofs"),
    "bindfs (FUSE)": bindfs,
    "ext4 on a loop device on ext4": loop,
}

# ---- what may differ


def bytes_of_all(mountpoint):
    """The hash of every regular file of a mount."""
    found = {}
    for path in sorted(mountpoint.rglob("*")):
        if path.is_file() and not path.is_symlink():
            found[str(path.relative_to(mountpoint))] = hashlib.sha256(read(path)).hexdigest()
    return found


def times(where, mnt):
    """Whether times are kept to the nanosecond, and shown so."""
    shown = (mnt / "tensors/bytes/raw").stat().st_mtime_ns
    same(shown, (where / "model-2.safetensors").stat().st_mtime_ns, "mtime as the source has it")
    return {123456789: "1 ns", 0: "1 s"}.get(shown % 10**9, f"{shown % 10**9}")


def direct(path):
    """Whether the file system itself has O_DIRECT. The mount always has."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
        return "yes"
    except OSError as e:
        return errno.errorcode[e.errno]


def through_the_mount(path, whole):
    """Direct reads and mappings of the mount's files."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 1 << 20)
    for at in range(0, len(whole), 1 << 20):
        got = os.preadv(fd, [buffer], at)
        same_bytes(buffer[:got], whole[at : at + (1 << 20)], f"{path}: O_DIRECT at {at}")
    os.close(fd)
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        same_bytes(mapped[:], whole, f"{path}: mmap")


def acl(path):
    """Whether the file system keeps access control lists."""
    done = subprocess.run(["setfacl", "-m", "u:65534:---", str(path)], capture_output=True)
    if done.returncode == 0:
        run("setfacl", "-b", path)
    return "yes" if done.returncode == 0 else "no"


def holes(path):
    """Whether a file without data takes no space: sparse shards stay sparse."""
    hole = path.with_name("hole")
    try:
        with open(hole, "wb") as f:
            f.truncate(1 << 20)
            f.flush()
            os.fsync(f.fileno())
    except OSError as e:
        return errno.errorcode[e.errno]
    sparse = hole.stat().st_blocks < 64
    hole.unlink()
    return "yes" if sparse else "no"


def status(mnt):
    return json.loads(os.getxattr(mnt, "user.stfs.status"))


def error_of(action):
    try:
        action()
        return "none"
    except OSError as e:
        return errno.errorcode[e.errno]


def read_direct(path, at):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return os.preadv(fd, [mmap.mmap(-1, PAGE)], at)
    finally:
        os.close(fd)


def overwritten(where):
    """New contents in place: what a reader who opens the file afterwards gets."""
    with mounted(where) as mnt:
        raw, f32 = mnt / "tensors/bytes/raw", mnt / "tensors/bytes/f32"
        whole = read(raw)
        read(f32)
        at = read(where / "model-2.safetensors").rindex(whole[:64])
        time.sleep(TICK)
        with open(where / "model-2.safetensors", "r+b") as f:
            f.seek(at)
            f.write(bytes(255 - b for b in whole[:PAGE]))
        new, values = read(raw)[:PAGE], np.frombuffer(read(f32)[: 4 * PAGE], "<f4")
        changed = status(mnt)["source_changed"]
        with open(where / "model-2.safetensors", "r+b") as f:
            f.seek(at)
            f.write(whole[:PAGE])
        inverted = bytes(255 - b for b in whole[:PAGE])
        same_bytes(values.astype(np.uint8).tobytes(), new, "f32 has what raw has")
        if new == inverted:
            return f"the new bytes, {'noticed' if changed else 'not noticed'}"
        same_bytes(new, whole[:PAGE], "either the old bytes or the new ones")
        return f"the old bytes, {'noticed' if changed else 'not noticed'}"


def truncated(where):
    """A cut: EIO behind it, and what is before it stays."""
    with mounted(where) as mnt:
        shard = where / "model-2.safetensors"
        whole, raw = read(shard), read(mnt / "tensors/wide/raw")
        other = read(mnt / "tensors/model.embed_tokens.weight/raw")
        at = whole.rindex(raw[:64])
        os.truncate(shard, at + 100_001)
        before = error_of(lambda: read_direct(mnt / "tensors/wide/raw", 0))
        behind = error_of(lambda: read_direct(mnt / "tensors/wide/raw", 50 * PAGE))
        values = error_of(lambda: read_direct(mnt / "tensors/wide/f32", 60 * PAGE))
        after = read(mnt / "tensors/model.embed_tokens.weight/raw")
        shard.write_bytes(whole)
        same_bytes(after, other, "a tensor of the other shard")
        same(before, "none", "before the cut")
        same(values, behind, "f32 and raw behind the cut")
        return {"EIO": "EIO", "none": "the old bytes"}[behind]


def replaced(where):
    """Another file under the shard's name: the mount keeps the one that it opened."""
    with mounted(where) as mnt:
        shard = where / "model-2.safetensors"
        whole, raw = read(shard), read(mnt / "tensors/bytes/raw")
        new = shard.with_name("new")
        new.write_bytes(bytes(len(whole)))
        os.rename(new, shard)
        after = read(mnt / "tensors/bytes/raw")
        direct = b"".join(_direct(mnt / "tensors/bytes/raw"))
        shard.write_bytes(whole)
        same_bytes(after, raw, "a file that was replaced")
        same_bytes(direct, raw, "a file that was replaced, O_DIRECT")
        return "the old bytes"


def _direct(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        buffer, at = mmap.mmap(-1, 1 << 20), 0
        while got := os.preadv(fd, [buffer], at):
            yield buffer[:got]
            at += got
    finally:
        os.close(fd)


COLUMNS = ["times", "O_DIRECT below", "ACL", "holes", "overwritten in place", "truncated", "replaced by rename"]


def row_of(where, writable):
    """What a file system does: a row of the table."""
    with mounted(where) as mnt:
        row = [times(where, mnt), direct(where / "model-2.safetensors")]
        through_the_mount(mnt / "tensors/bytes/raw", read(mnt / "tensors/bytes/raw"))
        through_the_mount(mnt / "tensors/wide/f32", read(mnt / "tensors/wide/f32"))
    if not writable:
        return [*row, "-", "-", *["cannot happen"] * 3]
    row += [acl(where / "notes.txt"), holes(where / "notes.txt")]
    return row + [of(where) for of in (overwritten, truncated, replaced)]


def promised():
    """The table in doc/SEMANTICS.md, by file system."""
    text = (REPOSITORY / "doc/SEMANTICS.md").read_text().split("## Where the model lies", 1)[1].split("\n## ", 1)[0]
    rows = [[c.strip() for c in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[1 : 1 + len(COLUMNS)] for row in rows[1:]}


def on(name):
    """Makes a file system, compares all bytes of a mount of the model there, and returns its row."""
    if os.geteuid() != 0:
        raise Skip("only root makes file systems")
    need("mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "mksquashfs", "mkfs.erofs", "bindfs", "setfacl")
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="stfs-filesystems-"))
    try:
        source = scratch / "source"
        source.mkdir()
        model(source)
        with mounted(source) as mnt:
            want = bytes_of_all(mnt)
        with mounts() as mount:
            try:
                where = FILESYSTEMS[name](mount, scratch, source)
            except AssertionError as e:
                if "unknown filesystem type" in str(e) and name in os.environ.get("STFS_MISSING_FILESYSTEMS", "").split(","):
                    print(f"{name}: not compared: this kernel lacks it, and $STFS_MISSING_FILESYSTEMS allows that")
                    return None
                raise
            with mounted(where) as mnt:
                got = bytes_of_all(mnt)
            same(sorted(got), sorted(want), f"files of the mount on {name}")
            different = [path for path in want if got[path] != want[path]]
            same(different, [], f"files whose bytes differ on {name}")
            row = row_of(where, writable=name not in ("squashfs", "erofs"))
    finally:
        left = [m for m in scratch.rglob("*") if m.is_dir() and mount_type(m)]
        same(left, [], "mounts that are left")
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"| {name} | {' | '.join(row)} |")
    return row


def holds(name):
    row = on(name)
    if row is not None:
        for column, found, expected in zip(COLUMNS, row, promised()[name], strict=True):
            same(found, expected, f"{name}: {column}")


@check
def ext4():
    holds("ext4")


@check
def xfs():
    holds("xfs")


@check
def btrfs():
    holds("btrfs")


@check
def tmpfs_():
    holds("tmpfs")


@check
def overlay():
    holds("overlayfs")


@check
def squashfs():
    holds("squashfs")


@check
def erofs():
    holds("erofs")


@check
def another_fuse_mount():
    holds("bindfs (FUSE)")


@check
def a_loop_mount():
    holds("ext4 on a loop device on ext4")


if __name__ == "__main__":
    main()
