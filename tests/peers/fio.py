"""fio, the I/O tester, verifies what it reads through the mount.

fio writes a file whose every 4 KiB carry a checksum and their own place. The file becomes a tensor's bytes, and fio reads
them back from the tensor's `raw`, in every way that it can.
"""

import itertools
import json

from harness import check, main, mounted, need, run, same

SIZE = 6 << 20
VERIFY = ["--verify=crc32c", "--verify_interval=4096", "--verify_fatal=1"]


def model(directory, damage=None):
    """A shard of one tensor, behind a header that leaves it unaligned."""
    data = directory / "data"
    # Otherwise fio leaves a file where it runs.
    how = ["--rw=write", "--bs=64k", f"--size={SIZE}", "--do_verify=0", "--verify_state_save=0", *VERIFY]
    run("fio", "--name=write", f"--filename={data}", *how)
    header = json.dumps({"t": {"dtype": "U8", "shape": [SIZE], "data_offsets": [0, SIZE]}}).encode()
    header += b" " * (-len(header) % 8 + 8)
    shard = bytearray(len(header).to_bytes(8, "little") + header + data.read_bytes())
    data.unlink()
    if damage is not None:
        shard[damage - SIZE] ^= 1
    (directory / "model.safetensors").write_bytes(shard)


def verify(tmp, raw, *how, rw="randread", size=SIZE, expect=0):
    """Reads a file once, and verifies it. Returns how many bytes were read."""
    command = ["fio", "--name=read", f"--filename={raw}", "--readonly", f"--rw={rw}", f"--size={size}", *VERIFY, *how]
    # What fio cannot verify, it writes to where it runs.
    report = run(*command, "--output-format=json", expect=expect, cwd=tmp)
    if expect:
        return 0
    job = json.loads(report[report.index(b"{") :])["jobs"][0]
    same(job["error"], 0, " ".join(how))
    return job["read"]["io_bytes"]


def whole(block):
    """The size of all whole blocks: fio reads no others."""
    return SIZE // block * block


# Engine, further options, and whether it can read past the page cache.
ENGINES = [
    ("psync", [], True),
    ("sync", [], True),
    ("pvsync2", [], True),
    ("libaio", ["--iodepth=16"], True),
    ("io_uring", ["--iodepth=16"], True),
    ("posixaio", ["--iodepth=8"], True),
    ("mmap", [], False),
    ("splice", [], False),
]


@check
def every_engine_verifies(tmp):
    need("fio")
    model(tmp)
    with mounted(tmp) as mnt:
        raw = mnt / "tensors/t/raw"
        for (engine, options, can), direct in itertools.product(ENGINES, (0, 1)):
            if direct and not can:
                continue
            for kilobytes, rw in (4, "randread"), (20, "read"), (128, "randread"), (1024, "read"):
                size = whole(kilobytes << 10)
                how = [f"--ioengine={engine}", *options, f"--direct={direct}", f"--bs={kilobytes}k"]
                same(verify(tmp, raw, *how, rw=rw, size=size), size, " ".join(how))


@check
def several_jobs_at_once(tmp):
    """Eight processes, each of which verifies the whole."""
    need("fio")
    model(tmp)
    with mounted(tmp, "--threads", "4") as mnt:
        size = whole(36 << 10)
        how = ["--ioengine=psync", "--bs=36k", "--numjobs=8", "--group_reporting"]
        same(verify(tmp, mnt / "tensors/t/raw", *how, size=size), 8 * size, "bytes of eight jobs")


@check
def a_single_flipped_bit_is_found(tmp):
    """That fio would see a wrong byte."""
    need("fio")
    model(tmp, damage=3_000_123)
    with mounted(tmp) as mnt:
        verify(tmp, mnt / "tensors/t/raw", "--ioengine=psync", "--bs=64k", rw="read", expect=1)


if __name__ == "__main__":
    main()
