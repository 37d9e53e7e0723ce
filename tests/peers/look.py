"""Pictures against Pillow and NumPy; `stat` against NumPy; `diff`; `verify` against sha256sum."""

import io
import json
import os
import pty
import subprocess

import ml_dtypes
import numpy as np
from PIL import Image

from harness import STFS, check, main, mounted, read, run, same, stfs
from harness.models import DTYPES, Tensor, every_code, write, write_by_hand

RNG = np.random.default_rng(20)
BF16 = ml_dtypes.bfloat16
MARGIN = 16  # of the picture, in pixels


def tensor(array):
    word = {np.dtype(k): d for d, (_, _, k) in DTYPES.items() if k}[array.dtype]
    return Tensor(word, array.shape, np.ascontiguousarray(array).tobytes())


def model(folder, arrays):
    folder.mkdir(exist_ok=True)
    write(folder / "model.safetensors", {n: tensor(a) for n, a in arrays.items()})
    return folder


def close(found, expected, what, size=0.0):
    """Equal up to what the order of additions makes of numbers up to `size`."""
    if found is None or expected is None:
        same(found, expected, what)
    else:
        assert np.isclose(found, expected, rtol=1e-10, atol=1e-14 * size), f"{what}: {found!r}, expected {expected!r}"


def checked_statistics(entry, array):
    """The entry of `stat --json` is what NumPy says of the array's values, in numbers whose squares
    cannot overflow.
    """
    values = array.astype(np.float64 if array.dtype == np.float64 else np.float32).reshape(-1)
    finite = values[np.isfinite(values)].astype(np.longdouble)
    name = entry["name"]
    keys = ["name", "dtype", "shape", "min", "max", "mean", "std", "zeros", "nan", "inf"]
    same(list(entry), keys, f"keys of {name}")
    same(entry["shape"], list(array.shape), f"shape of {name}")
    none = finite.size == 0
    size = 0 if none else np.abs(finite).max()
    same(entry["min"], None if none else float(finite.min()), f"min of {name}")
    same(entry["max"], None if none else float(finite.max()), f"max of {name}")
    close(entry["mean"], None if none else float(finite.mean()), f"mean of {name}", float(size))
    close(entry["std"], None if none else float(finite.std()), f"std of {name}", float(size))
    same(entry["zeros"], int((values == 0).sum()), f"zeros of {name}")
    same(entry["nan"], int(np.isnan(values).sum()), f"NaN of {name}")
    same(entry["inf"], int(np.isinf(values).sum()), f"Inf of {name}")


@check
def statistics_of_every_float_dtype(tmp):
    """Every code of the small types, a large and a far-off F32, odd sizes, nothing finite."""
    stored = {f"codes.{dtype}": every_code(dtype) for dtype in DTYPES}
    arrays = {n: t.f32().reshape(t.shape) for n, t in stored.items() if "F" in t.dtype}
    arrays["codes.F64"] = stored["codes.F64"].array()
    folder = tmp / "codes"
    folder.mkdir()
    write_by_hand(folder / "model.safetensors", stored)
    entries = json.loads(stfs("stat", "--json", folder))
    same({e["name"] for e in entries}, set(arrays), "names: floats alone")
    for e in entries:
        same(e["dtype"], e["name"].removeprefix("codes."), f"dtype of {e['name']}")
        checked_statistics(e, arrays[e["name"]])
    arrays = {
        "large": RNG.standard_normal((3001, 977)).astype(np.float32),
        "far": (1e7 + RNG.integers(0, 3, 300_007)).astype(np.float32),
        "half": RNG.standard_normal((70, 1000)).astype(np.float16),
        "wide": RNG.standard_normal(1234) * 1e-3,
        "wide.far": 1e13 + RNG.integers(0, 3, 300_007).astype(np.float64),
        "wide.extremes": np.array([0.1, 0.2, 1e-50, -1e300]),
        "wide.tiny": np.array([1e-300, 3e-300, 0, np.nan, np.inf, 5e-324]),
        "wide.sum": np.full(100_000, 1.5e308) + np.arange(100_000) * 1e302,
        "wide.spans": RNG.standard_normal((5, 65_536)) * np.array([[1e-300], [1], [1e300], [0], [1e-40]]),
        "holes": np.where(RNG.random((400, 333)) < 0.1, np.nan, RNG.standard_normal((400, 333))).astype(BF16),
        "nothing": np.full((3, 5), np.nan, np.float32),
        "infinite": np.array([np.inf, -np.inf, 0, -0.0, 7], np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(4.6, np.float16),
    }
    entries = json.loads(stfs("stat", "--json", model(tmp / "m", arrays)))
    same(sorted(e["name"] for e in entries), sorted(arrays), "names")
    for e in entries:
        checked_statistics(e, arrays[e["name"]])


@check
def stat_check_and_glob(tmp):
    good, bad = np.ones((2, 3), np.float32), np.array([1, np.nan], np.float32)
    m = model(tmp / "m", {"a.good": good, "b.bad": bad, "ids": np.arange(3)})
    stfs("stat", m)
    stfs("stat", "--check", m, expect=1)
    stfs("stat", "--check", m, "a.*")
    same([e["name"] for e in json.loads(stfs("stat", "--json", m, "b*"))], ["b.bad"], "glob")
    stfs("stat", "--check", tmp / "nowhere", expect=2)
    stfs("stat", tmp / "nowhere", expect=1)
    same(len(stfs("stat", m).decode().splitlines()), 3, "lines of the table")


def picture(m, name):
    image = Image.open(io.BytesIO(stfs("cat", "--view", "png", m, name)))
    image.load()
    return image


def heat(image, rows, cols, size):
    """The palette indices of the cells, by the middle pixel of each."""
    left = (image.width - cols * size[0]) // 2
    pixels = np.asarray(image)
    ys = MARGIN + np.arange(rows) * size[1] + size[1] // 2
    xs = left + np.arange(cols) * size[0] + size[0] // 2
    return pixels[np.ix_(ys, xs)]


@check
def pictures_decode_and_show_the_means(tmp):
    a = RNG.standard_normal((1000, 1536)).astype(BF16)
    a[200:400] += BF16(3)
    norm = (1 + 0.1 * RNG.standard_normal(4096)).astype(np.float32)
    bad = RNG.standard_normal((64, 64)).astype(np.float32)
    bad[5, 9], bad[20, 30] = np.nan, np.inf
    m = model(tmp / "m", {
        "a": a, "norm": norm, "bad": bad, "scalar": np.array(-2.5, np.float32), "zero": np.zeros((9, 7), np.float16),
        "experts": RNG.standard_normal((8, 96, 64)).astype(BF16), "row": norm[None], "column": norm[:, None],
        "empty": np.zeros((0, 9), np.float32),
    })  # fmt: skip
    for name in ["a", "norm", "bad", "scalar", "zero", "experts", "row", "column", "empty"]:
        image = picture(m, name)
        same((image.mode, image.format), ("P", "PNG"), name)
        assert image.width >= 512, f"{name}: {image.size}"
    palette = np.array(picture(m, "a").getpalette()).reshape(-1, 3)
    # Cells of the large one are means over rows and columns that differ by at most one.
    values = a.astype(np.float64)
    means = np.add.reduceat(values, np.arange(512) * 1000 // 512, axis=0)
    means = np.add.reduceat(means, np.arange(512) * 1536 // 512, axis=1)
    counts = np.diff(np.append(np.arange(512) * 1000 // 512, 1000))[:, None] * 3
    means = (means / counts).astype(np.float32)
    order = np.sort(np.abs(means).reshape(-1))
    scale = order[int(np.ceil(0.995 * (order.size - 1)))]
    t = np.clip(means.astype(np.float64) / scale, -1, 1)
    expected = 15 + 120 + np.sign(t) * np.floor(np.abs(t) * 120 + 0.5)
    off = np.abs(heat(picture(m, "a"), 512, 512, (1, 1)).astype(int) - expected)
    assert off.max() <= 1 and (off > 0).mean() < 1e-3, f"{(off > 0).sum()} cells are off, by up to {off.max()}"
    # Blue below zero, near-white at zero, red above; NaN and Inf have colors of their own.
    blue, white, red = palette[15], palette[135], palette[255]
    assert blue[2] > 2 * blue[0] and red[0] > 2 * red[2] and white.min() > 235, f"{blue} {white} {red}"
    cells = heat(picture(m, "bad"), 64, 64, (8, 8))
    nan, inf = palette[cells[5, 9]], palette[cells[20, 30]]
    same((cells[5, 9] < 15, cells[20, 30] < 15), (True, True), "NaN and Inf are not on the scale")
    assert tuple(nan) != tuple(inf), "NaN and Inf look alike"
    same(set(heat(picture(m, "zero"), 9, 7, (32, 32)).reshape(-1)), {135}, "all zero is all middle")


@check
def pictures_are_of_a_size_known_from_the_shape(tmp):
    """Other contents, other dtypes, other names: as many bytes."""
    shape = (300, 200)
    arrays = {
        "a": np.zeros(shape, np.float32),
        "a.much.longer.name": np.full(shape, np.nan, np.float16),
        "b": (RNG.standard_normal(shape) * 1e30).astype(BF16),
    }
    m = model(tmp / "m", arrays)
    same(len({len(stfs("cat", "--view", "png", m, n)) for n in arrays}), 1, "sizes")


@check
def pictures_of_vast_tensors_are_samples(tmp):
    """A hundred gigabytes (sparse): quick, in little memory."""
    shape = (200_000, 250_000)
    size = 2 * shape[0] * shape[1]
    header = json.dumps({"w": {"dtype": "BF16", "shape": shape, "data_offsets": [0, size]}}).encode()
    (tmp / "m").mkdir()
    with open(tmp / "m/model.safetensors", "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header)
        f.truncate(8 + len(header) + size)
    with open(tmp / "w.png", "wb") as f:
        p = subprocess.Popen([STFS, "cat", "--view", "png", tmp / "m", "w"], stdout=f)
        _, status, usage = os.wait4(p.pid, 0)
    same(status, 0, "exit status")
    Image.open(tmp / "w.png").load()
    assert usage.ru_maxrss < 200_000, f"{usage.ru_maxrss} KiB of memory"
    seconds = usage.ru_utime + usage.ru_stime
    assert seconds < 10, f"{seconds} s"


def in_terminal(*args, **env):
    """What a program writes to a terminal of 100 columns."""
    pid, fd = pty.fork()
    if pid == 0:
        for name in ("NO_COLOR", "COLORTERM"):
            os.environ.pop(name, None)
        os.environ.update(TERM="xterm-256color", **env)
        os.execvp(args[0], [str(a) for a in args])
    text = b""
    try:
        while data := os.read(fd, 1 << 16):
            text += data
    except OSError:
        pass  # the terminal's other end is closed
    os.waitpid(pid, 0)
    return text.decode()


@check
def show_in_a_terminal(tmp):
    a = RNG.standard_normal((100, 300)).astype(np.float32)
    m = model(tmp / "m", {"a.weight": a, "evil\x1b[2Jname": a, "empty": np.zeros((0, 3), np.float32)})
    show = lambda name, **env: in_terminal(STFS, "show", m, name, **env)  # noqa: E731
    true, indexed, plain = (
        show("a.weight", COLORTERM="truecolor"), show("a.weight"), show("a.weight", COLORTERM="truecolor", NO_COLOR="1"),
    )  # fmt: skip
    assert "\x1b[38;2;" in true and "▀" in true and true.rstrip().count("\x1b[0m") > 5
    assert "\x1b[38;5;" in indexed and "\x1b[38;2;" not in indexed
    assert "\x1b" not in plain and "▒" in plain
    piped = stfs("show", m, "a.weight").decode()
    assert "\x1b" not in piped
    for text in (true, indexed, plain, piped):
        assert "min " in text and "NaN 0" in text and "Inf 0" in text and "[100, 300]" in text
    assert "\x1b" not in show("evil\x1b[2Jname", NO_COLOR="1")
    assert "0 values" in show("empty")
    wide = stfs("show", model(tmp / "wide", {"w": np.array([[0.1, 1e-50], [-1e300, np.inf]])}), "w").decode()
    assert "min −1e300  max 0.1" in wide and "zeros 0" in wide and "Inf 1" in wide, wide
    run(STFS, "show", m, "nothing", expect=1)


@check
def diff_finds_what_changed(tmp):
    base = {f"l.{i}.w": RNG.standard_normal((40, 30)).astype(np.float32) for i in range(6)}
    base["half"] = RNG.standard_normal(50).astype(BF16)
    base["nan"] = np.array([np.nan, 1, 2], np.float32)
    base["ids"] = np.arange(5)
    new = dict(base)
    new["l.1.w"] = base["l.1.w"] + np.float32(0.01)
    new["l.2.w"] = base["l.2.w"] * np.float32(-2)
    new["l.3.w"] = base["l.3.w"].reshape(30, 40)
    new["half"] = base["half"].astype(np.float32)
    new["ids"] = np.arange(5) + 2**40
    base["wide"] = np.array([1e300, 1e-300, 0.1])
    new["wide"] = np.array([2e300, 1e-300, 0.1])
    base["integers"], new["integers"] = (np.array([7, 2**53 + i], np.uint64) for i in range(2))
    new["added"] = np.zeros(3, np.float32)
    del new["l.4.w"]
    a, b = model(tmp / "a", base), model(tmp / "b", new)
    found = json.loads(stfs("diff", "--json", a, b, expect=1))
    same(list(found), ["added", "removed", "changed", "unchanged"], "keys")
    same((found["added"], found["removed"], found["unchanged"]), (["added"], ["l.4.w"], 3), "names")
    changed = {c["name"]: c for c in found["changed"]}
    same({n: c["what"] for n, c in changed.items()},
         {"l.1.w": "value", "l.2.w": "value", "l.3.w": "shape", "half": "dtype", "ids": "value",
          "wide": "value", "integers": "value"}, "what")  # fmt: skip
    for name in ("l.1.w", "l.2.w"):
        x, y = base[name].astype(np.float64), new[name].astype(np.float64)
        close(changed[name]["max_abs"], np.abs(x - y).max(), f"max_abs of {name}")
        close(changed[name]["max_rel"], (np.abs(x - y) / np.abs(x)).max(), f"max_rel of {name}")
        close(changed[name]["cosine"], (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()), f"cosine of {name}")
    same([changed["wide"][k] for k in ("max_abs", "max_rel")], [1e300, 1], "wide")
    same([changed["half"][k] for k in ("max_abs", "cosine")], [0, 1], "widened")
    same([changed["l.3.w"][k] for k in ("max_abs", "max_rel", "cosine")], [None] * 3, "reshaped")
    order = [c["name"] for c in found["changed"]]
    assert order.index("l.2.w") < order.index("l.1.w"), f"most changed first: {order}"
    same(json.loads(stfs("diff", "--json", a, a)), {"added": [], "removed": [], "changed": [], "unchanged": 11}, "a, a")
    stfs("diff", a, tmp / "nowhere", expect=2)
    assert b"1 added, 1 removed, 7 changed, 3 unchanged" in stfs("diff", a, b, expect=1)


@check
def diff_of_a_quantized_model_and_its_floats(tmp):
    """MLX words and the float32 matrix they stand for are the same weight; NumPy says which."""
    codes = RNG.integers(0, 16, (48, 128), dtype=np.uint32)
    scales, biases = RNG.standard_normal((2, 48, 2)).astype(np.float16)
    words = (codes.reshape(48, 16, 8) << (4 * np.arange(8, dtype=np.uint32))).sum(axis=2, dtype=np.uint32)
    wide = lambda x: np.repeat(x.astype(np.float32), 64, axis=1)  # noqa: E731
    values = codes.astype(np.float32) * wide(scales) + wide(biases)
    norm = np.ones(128, np.float16)
    a = model(tmp / "a", {"l.weight": words, "l.scales": scales, "l.biases": biases, "norm.weight": norm})
    (a / "config.json").write_text(json.dumps({"quantization": {"bits": 4, "group_size": 64}}))
    b = model(tmp / "b", {"l.weight": values, "norm.weight": norm})
    same(json.loads(stfs("diff", "--json", a, b)), {"added": [], "removed": [], "changed": [], "unchanged": 2}, "same")
    entries = {e["name"]: e for e in json.loads(stfs("stat", "--json", a))}
    same(list(entries), ["l.weight", "norm.weight"], "no scales, no biases")
    checked_statistics(entries["l.weight"], values)
    values[7, 9] += 1
    c = model(tmp / "c", {"l.weight": values, "norm.weight": norm})
    found = json.loads(stfs("diff", "--json", a, c, expect=1))
    same([(x["name"], x["what"]) for x in found["changed"]], [("l.weight", "value")], "one value")
    close(found["changed"][0]["max_abs"], 1, "max_abs", 1e8)


@check
def verify_writes_what_sha256sum_reads(tmp):
    arrays = {f"l.{i}.weight": RNG.standard_normal((i + 1, 70)).astype(np.float32) for i in range(30)}
    arrays |= {"back\\slash": arrays["l.0.weight"], "new\nline\rreturn": arrays["l.1.weight"] + 1, "a/b%": arrays["l.2.weight"]}
    arrays |= {"empty": np.zeros((0, 3), np.float32), "x" * 300: arrays["l.3.weight"]}
    m = model(tmp / "m", arrays)
    sums = tmp / "sums"
    stfs("verify", "--checksum", sums, m)
    lines = read(sums).splitlines()
    same(len(lines), len(arrays), "lines")
    with mounted(m) as mnt:
        run("sha256sum", "--check", "--strict", "--quiet", sums, cwd=mnt)
        # And the other way round: what sha256sum writes is compared with.
        paths = sorted(p.relative_to(mnt) for p in (mnt / "tensors").glob("*/raw"))
        theirs = tmp / "theirs"
        theirs.write_bytes(run("sha256sum", *paths, cwd=mnt))
    same(sorted(read(theirs).splitlines()), sorted(lines), "lines of sha256sum")
    stfs("verify", "--checksum", theirs, m)
    before = read(sums)
    changed = bytearray(read(m / "model.safetensors"))
    changed[-1] ^= 1
    (m / "model.safetensors").write_bytes(changed)
    found = json.loads(stfs("verify", "--json", "--checksum", sums, m, expect=1))
    same([list(p) for p in found], [["file", "tensor", "problem"]], "keys")
    same(found[0]["file"], "model.safetensors", "file")
    assert found[0]["tensor"] in arrays and "SHA-256" in found[0]["problem"], found
    same(read(sums), before, "the checksum file is not touched")
    stfs("verify", m)
    assert not [p for p in tmp.iterdir() if p.name not in ("m", "sums", "theirs")], "left behind"


@check
def verify_lists_every_problem(tmp):
    """Problems of several kinds in several shards, each with its file, in one run."""
    m = tmp / "m"
    m.mkdir()
    shards = [f"model-0000{i}-of-00005.safetensors" for i in range(1, 6)]
    one = lambda name: {name: tensor(np.ones((2, 3), np.float32))}  # noqa: E731
    for i, shard in enumerate(shards[:4]):
        write(m / shard, one(f"w{i}"))
    # 1: sound. 2: cut short. 3: two bad entries. 4: an LFS pointer. 5: missing.
    data = read(m / shards[1])
    (m / shards[1]).write_bytes(data[:-5])
    header = {
        "w2": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 20]},
        "w2b": {"dtype": "F99", "shape": [1], "data_offsets": [20, 24]},
    }
    text = json.dumps(header).encode()
    (m / shards[2]).write_bytes(len(text).to_bytes(8, "little") + text + bytes(24))
    (m / shards[3]).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4096\n")
    weight_map = {"w0": shards[0], "w1": shards[1], "w2": shards[2], "w2b": shards[2], "w3": shards[3], "w4": shards[4]}
    weight_map |= {"not.there": shards[0], "outside": "../model.safetensors"}
    (m / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (m / "config.json").write_text("{")
    found = json.loads(stfs("verify", "--json", m, expect=1))
    expected = {
        (shards[0], "not.there", "model.safetensors.index.json"), (shards[1], "w1", "needs 24 bytes"),
        (shards[2], "w2", "24 bytes"), (shards[2], "w2b", "F99"), (shards[3], None, "4096"), (shards[4], None, "missing"),
        ("model.safetensors.index.json", "outside", "../model.safetensors"), ("config.json", None, ""),
    }  # fmt: skip
    for file, name, words in expected:
        matching = [p for p in found if (p["file"], p["tensor"]) == (file, name) and words in p["problem"]]
        same(len(matching), 1, f"{file}, {name}, {words!r} in {json.dumps(found, indent=1)}")
    same(len(found), len(expected), f"problems: {json.dumps(found, indent=1)}")
    lines = stfs("verify", m, expect=1).decode().splitlines()
    same(len(lines), len(expected) + 1, "lines")
    stfs("verify", tmp / "nowhere", expect=2)
    (tmp / "none").mkdir()
    stfs("verify", tmp / "none", expect=2)


@check
def verify_reports_damaged_layers(tmp):
    m = model(tmp / "m", {"l.weight": np.ones((48, 16), np.uint32), "l.scales": np.ones((48, 3), np.float16),
                          "l.biases": np.ones((48, 3), np.float16)})  # fmt: skip
    (m / "config.json").write_text(json.dumps({"quantization": {"bits": 4, "group_size": 64}}))
    found = json.loads(stfs("verify", "--json", m, expect=1))
    same([(p["file"], p["tensor"]) for p in found], [("model.safetensors", "l.weight")], "the layer")
    assert "16 words" in found[0]["problem"], found


@check
def a_closed_pipe_is_no_error(tmp):
    m = model(tmp / "m", {f"l.{i}.weight": np.ones((3, 5), np.float32) for i in range(3000)})
    for args in (["stat", m], ["stat", "--json", m], ["ls", "--json", m], ["verify", m], ["diff", m, m], ["show", m, "l.0.weight"]):
        p = subprocess.Popen([STFS, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        p.stdout.close()
        errors = p.stderr.read()
        same((p.wait(), errors), (0, b""), f"{args[0]} | true")


if __name__ == "__main__":
    main()
