"""pjdfstest, the POSIX conformance suite of FreeBSD and others, in its Rust version, on a mount that is read-only.

The suite makes a directory for each of its tests, and files in there. A shim (`harness/pjdfstest.c`) lets it make the
directory elsewhere and mounts the mount's root on it, so that each test runs inside the mount. Then a test passes
because the error that it provokes comes before EROFS (ENAMETOOLONG, ENOENT, ELOOP, EFAULT, ENOTDIR …), or fails because
what it needs first cannot be made: with EROFS, and nothing else. Which test does what is pinned in
`harness/pjdfstest.txt`, and squashfs, which holds a copy of the mount's files, must do the same.

`cargo install pjdfstest --version 0.2.2 --locked` installs it; $PJDFSTEST is the program, if it is not in $PATH.
"""

import contextlib
import ctypes
import errno
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from harness import REPOSITORY, Skip, check, main, mounted, need, run

HARNESS = pathlib.Path(__file__).parent / "harness"
PROGRAM = os.environ.get("PJDFSTEST") or "pjdfstest"
# It switches to other users for some tests: any two that exist.
CONFIGURATION = """
[features]
posix_fallocate = {}
utime_now = {}
utimensat = {}
rename_ctime = {}
[settings]
naptime = 0.001
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"""


def results(tmp, where):
    """What each test does in a read-only directory: `ok`, `EROFS`, `skipped`, `not-made`, or why it failed."""
    # Not below `tmp`: the path of a socket may have 107 bytes, and those of the suite are long.
    with tempfile.TemporaryDirectory(prefix="pj-", dir="/tmp") as base:
        os.chmod(base, 0o755)
        return results_in(base, tmp, where)


def results_in(base, tmp, where):
    os.chmod(tmp, 0o755)
    (tmp / "configuration.toml").write_text(CONFIGURATION)
    # In a mount namespace of its own, so that no mount outlives it.
    command = ["unshare", "--mount", "env", f"LD_PRELOAD={tmp}/shim.so", f"READ_ONLY={where}", "NO_COLOR=1"]
    done = subprocess.run(
        [*command, PROGRAM, "-c", tmp / "configuration.toml", "-p", base], capture_output=True, timeout=300, text=True
    )
    found, test = {}, None
    for line in re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).splitlines():
        if match := re.match(r"(\w+(?:::\w+)+) +(ok|skipped|FAILED)$", line):
            test = match[1]
            found[test] = match[2]
        elif line.startswith("\t") and found.get(test) == "FAILED":
            # Some only assert that something was made, and do not tell what kept it from being made.
            not_made = re.match(r"\tassertion failed: .*(mknod|is_ok\(\)$)", line) and "not-made"
            found[test] = "EROFS" if re.search(r"EROFS|ReadOnlyFilesystem", line) else not_made or line.strip()
    total = re.search(r"(\d+) total", done.stdout)
    assert total and int(total[1]) == len(found), f"{len(found)} results: {done.stdout[-300:]}{done.stderr[-300:]}"
    return found


def expected():
    """The pinned results."""
    lines = (HARNESS / "pjdfstest.txt").read_text().splitlines()
    return dict(line.split() for line in lines if line and not line.startswith("#"))


def compare(found, wanted, what):
    different = {t: (found.get(t), wanted.get(t)) for t in found.keys() | wanted.keys() if found.get(t) != wanted.get(t)}
    shown = "\n".join(f"  {t}: {a}, expected {b}" for t, (a, b) in sorted(different.items())[:20])
    assert not different, f"{what}: {len(different)} tests differ:\n{shown}"


@contextlib.contextmanager
def both(tmp):
    """A mount, and a squashfs of copies of its tensors."""
    if os.geteuid() != 0:
        raise Skip("the suite switches users, and mounts are made for it: only root may")
    need("unshare", "mksquashfs")
    with mounted(REPOSITORY / "examples/tiny-llama", "--allow-other") as mnt:
        for part in ("tensors", "tree"):
            shutil.copytree(mnt / part, tmp / "tree" / part, symlinks=True)
        run("mksquashfs", tmp / "tree", tmp / "image", "-quiet", "-no-progress")
        (tmp / "squashfs").mkdir()
        run("mount", "-o", "loop,ro,nosuid,nodev,noexec", tmp / "image", tmp / "squashfs")
        try:
            yield mnt, tmp / "squashfs"
        finally:
            run("umount", "-l", tmp / "squashfs")


@check
def a_read_only_pass(tmp):
    need(PROGRAM, "cc")
    run("cc", "-shared", "-fPIC", "-O1", "-o", tmp / "shim.so", HARNESS / "pjdfstest.c")
    with both(tmp) as (mnt, squashfs):
        found = results(tmp, mnt)
        if os.environ.get("PIN"):
            (HARNESS / "pjdfstest.txt").write_text("".join(f"{t} {r}\n" for t, r in sorted(found.items())))
        compare(found, expected(), "pinned")
        compare(found, results(tmp, squashfs), "squashfs")
    counts = ", ".join(f"{list(found.values()).count(r)} {r}" for r in sorted(set(found.values())))
    print(f"{len(found)} tests: {counts}")


# What the suite cannot reach, because it would have to make it first: files, directories and links that exist.
DIRECTORY = "tensors/model.norm.weight"
LONG = "x" * 256
PATHS = {
    "a file": f"{DIRECTORY}/raw",
    "a directory": DIRECTORY,
    "a directory with a slash": f"{DIRECTORY}/",
    "a file with a slash": f"{DIRECTORY}/raw/",
    "a link": "tree/model/norm/weight",
    "through a link": "tree/model/norm/weight/raw",
    "nothing": f"{DIRECTORY}/nothing",
    "nothing in the root": "nothing",
    "below nothing": "nothing/more",
    "below a file": f"{DIRECTORY}/raw/more",
    "a name that is too long": f"{DIRECTORY}/{LONG}",
    "a path that is too long": f"{DIRECTORY}/" + "/".join(["y" * 200] * 25),
    "dot": f"{DIRECTORY}/.",
    "dot dot": f"{DIRECTORY}/..",
    "the empty name": "",
}
CALLS = {
    "open for reading": lambda p, q: os.close(os.open(p, os.O_RDONLY)),
    "open for writing": lambda p, q: os.open(p, os.O_WRONLY),
    "open for both": lambda p, q: os.open(p, os.O_RDWR),
    "open to append": lambda p, q: os.open(p, os.O_WRONLY | os.O_APPEND),
    "open and truncate": lambda p, q: os.open(p, os.O_WRONLY | os.O_TRUNC),
    "create": lambda p, q: os.close(os.open(p, os.O_RDONLY | os.O_CREAT)),
    "create exclusively": lambda p, q: os.open(p, os.O_RDONLY | os.O_CREAT | os.O_EXCL),
    "open a directory": lambda p, q: os.close(os.open(p, os.O_RDONLY | os.O_DIRECTORY)),
    "open no link": lambda p, q: os.close(os.open(p, os.O_RDONLY | os.O_NOFOLLOW)),
    "stat": lambda p, q: os.stat(p) and None,
    "lstat": lambda p, q: os.lstat(p) and None,
    "readlink": lambda p, q: os.readlink(p) and None,
    "list": lambda p, q: os.listdir(p) and None,
    "access for reading": lambda p, q: access(p, os.R_OK),
    "access for writing": lambda p, q: access(p, os.W_OK),
    "access to run": lambda p, q: access(p, os.X_OK),
    "mkdir": lambda p, q: os.mkdir(p),
    "mkfifo": lambda p, q: os.mkfifo(p),
    "mknod": lambda p, q: os.mknod(p),
    "rmdir": lambda p, q: os.rmdir(p),
    "unlink": lambda p, q: os.unlink(p),
    "rename": lambda p, q: os.rename(p, q),
    "rename to": lambda p, q: os.rename(q, p),
    "link": lambda p, q: os.link(p, q),
    "link to": lambda p, q: os.link(q, p),
    "symlink": lambda p, q: os.symlink("x", p),
    "truncate": lambda p, q: os.truncate(p, 0),
    "chmod": lambda p, q: os.chmod(p, 0o777),
    "chown": lambda p, q: os.chown(p, 1, 1),
    "lchown": lambda p, q: os.lchown(p, 1, 1),
    "utime": lambda p, q: os.utime(p),
    "set an attribute": lambda p, q: os.setxattr(p, "user.a", b"b"),
    "remove an attribute": lambda p, q: os.removexattr(p, "user.a"),
    "statvfs": lambda p, q: os.statvfs(p) and None,
}


def access(path, mode):
    """access(2), which Python turns into a yes or no."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.access(os.fsencode(path), mode):
        raise OSError(ctypes.get_errno(), "access")


def outcomes(root, uid):
    """What each call does with each path, as a user: the name of the error, or `ok`."""
    found = {}
    os.seteuid(uid)
    try:
        for call, do in CALLS.items():
            for what, path in PATHS.items():
                try:
                    do(f"{root}/{path}" if path else "", f"{root}/{DIRECTORY}/f32")
                    found[f"{call}: {what}"] = "ok"
                except OSError as e:
                    found[f"{call}: {what}"] = errno.errorcode[e.errno]
    finally:
        os.seteuid(0)
    return found


@check
def every_call_ends_as_on_squashfs(tmp):
    os.chmod(tmp, 0o755)
    with both(tmp) as (mnt, squashfs):
        for uid in (0, 65534):
            found, wanted = outcomes(mnt, uid), outcomes(squashfs, uid)
            compare(found, wanted, f"as user {uid}")
            print(f"{len(found)} calls as user {uid}, {sum(r == 'EROFS' for r in found.values())} of them EROFS")


if __name__ == "__main__":
    main()
