"""Every way that Linux has to read a file, and every way to write one."""

import errno
import hashlib
import mmap
import os
import random
import socket
import threading

import numpy as np

from harness import check, main, mounted, need, read, run, same, same_bytes
from harness.models import Tensor, index, write

PAGE = 4096


def model(directory):
    """A model whose files have every kind of view: stored, widened, joined by rows and by
    columns of bytes, behind a header; large enough for several requests; sizes odd.
    """
    rng = np.random.default_rng(5)
    bf16 = lambda *shape: Tensor("BF16", shape, rng.integers(0, 0x7F80, shape, dtype=np.uint16).tobytes())  # noqa: E731
    layer = "model.layers.0"
    first = {
        "model.embed_tokens.weight": bf16(1003, 331),
        f"{layer}.self_attn.q_proj.weight": bf16(301, 331),
        f"{layer}.self_attn.k_proj.weight": bf16(97, 331),
        f"{layer}.self_attn.v_proj.weight": bf16(97, 331),
    }
    second = {
        "bytes": Tensor("U8", [2_000_003], rng.bytes(2_000_003)),
        "eight": Tensor("F8_E4M3", [40004], rng.bytes(40004)),
        "wide": Tensor("F64", [70001], rng.standard_normal(70001).tobytes()),
        "tiny": Tensor("U8", [1], b"\x2a"),
        "none": Tensor("F32", [0], b""),
    }
    write(directory / "model-1.safetensors", first)
    write(directory / "model-2.safetensors", second)
    index(directory, {"model-1.safetensors": first, "model-2.safetensors": second})
    (directory / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": true}')
    (directory / "notes.txt").write_bytes(rng.bytes(70000))


def files(mnt):
    """Files of every kind under the mount."""
    t = mnt / "tensors"
    qkv = t / "model.layers.0.self_attn.qkv_proj.weight"
    return [
        t / "model.embed_tokens.weight/raw",
        t / "model.embed_tokens.weight/f32",
        t / "lm_head.weight/f32",
        qkv / "raw",
        qkv / "f32",
        t / "bytes/raw",
        t / "bytes/f32",
        t / "eight/f32",
        t / "wide/f32",
        t / "tiny/raw",
        t / "tiny/f32",
        t / "none/raw",
        t / "tiny/meta.json",
        mnt / "npy/model.embed_tokens.weight.npy",
        mnt / "npy/model.layers.0.self_attn.qkv_proj.weight.npy",
        mnt / "npy/wide.npy",
        mnt / "npy/none.npy",
        mnt / "export/model.safetensors",
        mnt / "export/model-f32.safetensors",
        mnt / "export/model-fused.safetensors",
        mnt / "export/model_weights.bin",
        mnt / "export/model_weights.json",
        mnt / "files/notes.txt",
        mnt / "model.json",
        mnt / "index.json",
    ]


@check
def pread_at_odd_offsets(tmp):
    model(tmp)
    rng = random.Random(6)
    with mounted(tmp) as mnt:
        for path in files(mnt):
            whole = read(path)
            fd = os.open(path, os.O_RDONLY)
            try:
                same(os.fstat(fd).st_size, len(whole), f"size of {path}")
                for length in (1, 3, 7, 511, 4096, 4097, 70000, 131073, 1 << 20):
                    for _ in range(8):
                        at = rng.randrange(len(whole) + 2)
                        same_bytes(os.pread(fd, length, at), whole[at : at + length], f"{path}: {length} bytes at {at}")
                buffers = [bytearray(n) for n in (5, 1000, 3)]
                got = os.preadv(fd, buffers, 11)
                same_bytes(b"".join(buffers)[:got], whole[11 : 11 + 1008], f"{path}: preadv")
                same(os.pread(fd, 10, len(whole)), b"", f"{path}: past the end")
                same(os.pread(fd, 10, 1 << 60), b"", f"{path}: far past the end")
                same(os.lseek(fd, -min(3, len(whole)), os.SEEK_END), max(0, len(whole) - 3), f"{path}: lseek")
            finally:
                os.close(fd)


@check
def o_direct(tmp):
    model(tmp)
    with mounted(tmp) as mnt:
        for path in files(mnt):
            whole = read(path)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
            try:
                for block in (512, PAGE, 1 << 20):
                    buffer = mmap.mmap(-1, block)
                    at = 0
                    while at < len(whole):
                        got = os.preadv(fd, [buffer], at)
                        assert got > 0, f"{path}: O_DIRECT read {got} at {at} of {len(whole)}"
                        same_bytes(buffer[:got], whole[at : at + got], f"{path}: O_DIRECT {block} at {at}")
                        at += max(got, block) if block > 512 else 37 * 512
                    same(os.preadv(fd, [buffer], -(-len(whole) // block) * block), 0, f"{path}: O_DIRECT at the end")
            finally:
                os.close(fd)
            same_bytes(run("dd", f"if={path}", "iflag=direct", "bs=1M"), whole, f"dd iflag=direct of {path}")


@check
def mmap_shared_and_private(tmp):
    model(tmp)
    with mounted(tmp) as mnt:
        for path in files(mnt):
            whole = read(path)
            if not whole:
                continue
            with open(path, "rb") as f:
                shared = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
                same_bytes(shared[:], whole, f"{path}: MAP_SHARED")
                shared.close()
                private = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
                private[0] = (whole[0] + 1) % 256
                same_bytes(private[1:], whole[1:], f"{path}: MAP_PRIVATE, after a write to it")
                private.close()
                same_bytes(os.pread(f.fileno(), 1, 0), whole[:1], f"{path}: after a private write")
                if len(whole) > 3 * PAGE:
                    part = mmap.mmap(f.fileno(), PAGE + 5, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=2 * PAGE)
                    same_bytes(part[:], whole[2 * PAGE : 3 * PAGE + 5], f"{path}: mmap at an offset")
                    part.close()
                last = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
                same(last[len(whole) - 1], whole[-1], f"{path}: the last byte alone")
                last.close()


@check
def sendfile_splice_copy(tmp):
    model(tmp)
    with mounted(tmp) as mnt:
        for path in files(mnt):
            whole = read(path)
            for offset in (0, 1, 4095):
                same_bytes(_sendfile(path, offset), whole[offset:], f"{path}: sendfile from {offset}")
            same_bytes(_splice(path), whole, f"{path}: splice")
            for how in (["cp"], ["cp", "--sparse=always"], ["cp", "--reflink=auto"]):
                run(*how, path, tmp / "copy")
                same_bytes(read(tmp / "copy"), whole, f"{' '.join(how)} {path}")
                (tmp / "copy").unlink()


def _sendfile(path, offset):
    here, there = socket.socketpair()
    pieces = []
    reader = threading.Thread(target=lambda: pieces.extend(iter(lambda: there.recv(1 << 16), b"")))
    reader.start()
    with open(path, "rb") as f:
        while sent := os.sendfile(here.fileno(), f.fileno(), offset, 1 << 20):
            offset += sent
    here.close()
    reader.join()
    there.close()
    return b"".join(pieces)


def _splice(path):
    out = bytearray()
    r, w = os.pipe()
    with open(path, "rb") as f:
        while n := os.splice(f.fileno(), w, 1 << 16):
            while n:
                piece = os.read(r, n)
                out += piece
                n -= len(piece)
    os.close(r)
    os.close(w)
    return bytes(out)


@check
def tar_and_find(tmp):
    """tar sees whole files (st_blocks is not 0), and a walk sees each name once."""
    source = tmp / "model"
    source.mkdir()
    model(source)
    with mounted(source) as mnt:
        archive = tmp / "mount.tar"
        run("tar", "--sparse", "-cf", archive, "-C", mnt, "tensors", "npy", "model.json")
        (tmp / "out").mkdir()
        run("tar", "-xf", archive, "-C", tmp / "out")
        for path in files(mnt):
            copy = tmp / "out" / path.relative_to(mnt)
            if copy.parts[len((tmp / "out").parts)] in ("tensors", "npy", "model.json"):
                same_bytes(read(copy), read(path), f"{path} through tar")
        found = run("find", mnt, "-type", "f").splitlines()
        same(len(found), len(set(found)), "names that find sees")
        same(run("find", mnt, "-type", "f").splitlines(), found, "find, again")


@check
def many_readers_at_once(tmp):
    model(tmp)
    with mounted(tmp) as mnt:
        expected = {path: hashlib.sha256(read(path)).digest() for path in files(mnt)}
        wrong = []

        def reader(seed):
            paths = list(expected)
            random.Random(seed).shuffle(paths)
            for path in paths:
                if hashlib.sha256(read(path)).digest() != expected[path]:
                    wrong.append(path)

        threads = [threading.Thread(target=reader, args=(s,)) for s in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        same(wrong, [], "files that differed under eight readers")


@check
def attributes(tmp):
    model(tmp)
    os.chmod(tmp / "model-1.safetensors", 0o640)
    os.chmod(tmp / "model-2.safetensors", 0o604)
    os.utime(tmp / "model-1.safetensors", ns=(10**18, 10**18 + 123456789))
    with mounted(tmp) as mnt:
        for path in files(mnt):
            st = path.stat()
            same(st.st_blocks, -(-st.st_size // 512), f"st_blocks of {path}")
            same(st.st_blksize, 1 << 20, f"st_blksize of {path}")
            same(st.st_mode & 0o222, 0, f"write bits of {path}")
            same((st.st_uid, st.st_gid), (os.getuid(), os.getgid()), f"owner of {path}")
        q = (mnt / "tensors/model.layers.0.self_attn.q_proj.weight/raw").stat()
        same((oct(q.st_mode & 0o777), q.st_mtime_ns), (oct(0o440), 10**18 + 123456789), "mode and mtime of the source")
        same(oct((mnt / "tensors/bytes/raw").stat().st_mode & 0o777), oct(0o404), "mode of the source")
        inodes = {str(p): p.lstat().st_ino for p in mnt.rglob("*")}
        same({str(p): p.lstat().st_ino for p in mnt.rglob("*")}, inodes, "inode numbers, again")
        vfs = os.statvfs(mnt)
        total = sum(p.stat().st_size for p in tmp.glob("*.safetensors"))
        size = vfs.f_blocks * vfs.f_frsize
        assert total * 0.9 <= size <= total * 1.1 + (1 << 20), f"statfs says {size}, the shards have {total}"
        same(vfs.f_bfree, 0, "free blocks")
        flags = os.ST_RDONLY | os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC
        same(vfs.f_flag & flags, flags, "mount flags: ro, nosuid, nodev, noexec")
        source = [line.split(" - ")[1].split()[1] for line in open("/proc/self/mountinfo") if line.split()[4] == str(mnt)]
        same(source, [str(tmp)], "the mount's source")


@check
def extended_attributes(tmp):
    need("getfattr")
    model(tmp)
    with mounted(tmp) as mnt:
        wanted = {
            "tensors/wide/raw": ("wide", "F64", "70001", "stored"),
            "tensors/wide/f32": ("wide", "F32", "70001", "stored"),
            "npy/wide.npy": ("wide", "F64", "70001", "stored"),
            "npy/eight.npy": ("eight", "F32", "40004", "stored"),
            "tensors/lm_head.weight/raw": ("lm_head.weight", "BF16", "1003,331", "tied"),
            "tensors/model.layers.0.self_attn.qkv_proj.weight/f32":
                ("model.layers.0.self_attn.qkv_proj.weight", "F32", "495,331", "fused"),
        }  # fmt: skip
        for path, values in wanted.items():
            lines = run("getfattr", "-d", "--absolute-names", mnt / path).decode().splitlines()
            expected = [f'user.stfs.{k}="{v}"' for k, v in zip(("name", "dtype", "shape", "origin"), values)]
            same(sorted(line for line in lines if line and not line.startswith("#")), sorted(expected), f"getfattr {path}")
            _errno(errno.ENODATA, lambda: os.getxattr(mnt / path, "user.none"), f"{path}: an attribute that is not there")
        assert b'"' in os.getxattr(mnt, "user.stfs.status"), "the root's status is JSON"


@check
def every_write_is_erofs(tmp):
    model(tmp)
    with mounted(tmp) as mnt:
        for path in (mnt / "tensors/bytes/raw", mnt / "npy/wide.npy", mnt / "files/notes.txt", mnt / "model.json"):
            for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
                _errno(errno.EROFS, lambda: os.open(path, flags), f"open({path}, {flags:#x})")
            _errno(errno.EROFS, lambda: os.truncate(path, 0), f"truncate {path}")
            _errno(errno.EROFS, lambda: os.unlink(path), f"unlink {path}")
            _errno(errno.EROFS, lambda: os.chmod(path, 0o777), f"chmod {path}")
            _errno(errno.EROFS, lambda: os.chown(path, 1, 1), f"chown {path}")
            _errno(errno.EROFS, lambda: os.utime(path), f"utime {path}")
            _errno(errno.EROFS, lambda: os.rename(path, f"{path}2"), f"rename {path}")
            _errno(errno.EROFS, lambda: os.link(path, f"{path}2"), f"link {path}")
            _errno(errno.EROFS, lambda: os.setxattr(path, "user.a", b"b"), f"setxattr {path}")
            _errno(errno.EROFS, lambda: os.removexattr(path, "user.stfs.name"), f"removexattr {path}")
        for folder in (mnt, mnt / "tensors", mnt / "tensors/bytes", mnt / "npy", mnt / "files", mnt / "export", mnt / "tree"):
            new = folder / "new"
            _errno(errno.EROFS, lambda: os.open(new, os.O_WRONLY | os.O_CREAT), f"create {new}")
            _errno(errno.EROFS, lambda: os.mkdir(new), f"mkdir {new}")
            _errno(errno.EROFS, lambda: os.symlink("x", new), f"symlink {new}")
            _errno(errno.EROFS, lambda: os.mknod(new), f"mknod {new}")
        _errno(errno.EROFS, lambda: os.rmdir(mnt / "tensors/bytes"), "rmdir")
        _errno(errno.ENOENT, lambda: os.stat(mnt / "tensors/nothing"), "a name that is not there")
        _errno(errno.ENOENT, lambda: os.stat(mnt / "tensors/bytes/nothing"), "a view that is not there")
        _errno(errno.ENOTDIR, lambda: os.stat(mnt / "tensors/bytes/raw/deeper"), "below a file")


def _errno(expected, action, what):
    try:
        got = action()
    except OSError as e:
        same(errno.errorcode[e.errno], errno.errorcode[expected], what)
    else:
        raise AssertionError(f"{what}: succeeded ({got!r}), expected {errno.errorcode[expected]}")


@check
def a_truncated_shard_fails_alone(tmp):
    model(tmp)
    shard = tmp / "model-2.safetensors"
    with mounted(tmp) as mnt:
        whole = read(shard)
        other = read(mnt / "tensors/model.embed_tokens.weight/raw")
        # Cut inside the last page of what is left: a mapping would read zeros there.
        at = whole.rindex(read(mnt / "tensors/wide/raw")[:64])
        os.truncate(shard, at + 100_001)
        fd = os.open(mnt / "tensors/wide/raw", os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, PAGE)
        same(os.preadv(fd, [buffer], 0), PAGE, "a read of what is left")
        same_bytes(buffer[:], whole[at : at + PAGE], "what is left")
        _errno(errno.EIO, lambda: os.preadv(fd, [buffer], 24 * PAGE), "a read over the new end")
        _errno(errno.EIO, lambda: os.preadv(fd, [buffer], 50 * PAGE), "a read past the new end")
        os.close(fd)
        _errno(errno.EIO, lambda: _read_direct(mnt / "tensors/wide/f32"), "f32 past the new end")
        same_bytes(read(mnt / "tensors/model.embed_tokens.weight/raw"), other, "another shard")


def _read_direct(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return os.preadv(fd, [mmap.mmap(-1, PAGE)], 60 * PAGE)
    finally:
        os.close(fd)


if __name__ == "__main__":
    main()
