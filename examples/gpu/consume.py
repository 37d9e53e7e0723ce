#!/usr/bin/env python3
"""A tensor in GPU memory that stfs has put there, from Python: PyTorch or CuPy on the pointer, no copy.

    python3 examples/gpu/consume.py /tmp/model/tensors/model.norm.weight/raw

The ioctl takes nothing but fcntl and ctypes. With neither PyTorch nor CuPy installed, the first
bytes are copied back with the driver alone, and printed.
"""

import ctypes
import fcntl
import os
import sys

U32, I32, U64, I64, U8 = ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint8


class Io(ctypes.Structure):
    """struct stfs_gpu_io"""

    _fields_ = [
        ("abi_size", U32), ("abi_version", U32), ("op_flags", U32), ("rsvd0", U32),
        ("device", I32), ("timeout_ms", U32), ("want_uuid", U8 * 16), ("want_generation", U64), ("rsvd_in", U64 * 2),
        ("size", U32), ("version", U32), ("state", U32), ("flags", U32), ("generation", U64), ("alloc_id", U64),
        ("nbytes", U64), ("done_bytes", U64), ("base_offset", U64), ("alloc_bytes", U64), ("daemon_ptr", U64),
        ("dev_uuid", U8 * 16), ("device_ordinal", I32), ("dtype", U32), ("ndim", U32), ("cu_error", U32),
        ("shape", U64 * 8), ("strides", I64 * 8), ("handle_kind", U32), ("handle_len", U32), ("handle", U8 * 64),
        ("leases", U32), ("exporter_pid", U32), ("rsvd_out", U64 * 5),
    ]  # fmt: skip


UPLOAD, LOADING = 0xC1A0F540, 1

# dtype number -> (NumPy's type of the same width, PyTorch's name)
DTYPES = {
    1: ("|b1", "bool"), 5: ("|u1", "uint8"), 6: ("|i1", "int8"), 7: ("|u1", "float8_e5m2"), 8: ("|u1", "float8_e4m3fn"),
    12: ("<i2", "int16"), 13: ("<u2", "uint16"), 14: ("<f2", "float16"), 15: ("<i2", "bfloat16"),
    16: ("<i4", "int32"), 17: ("<u4", "uint32"), 18: ("<f4", "float32"), 19: ("<c8", "complex64"),
    20: ("<f8", "float64"), 21: ("<i8", "int64"), 22: ("<u8", "uint64"),
}  # fmt: skip


class Opened:
    """A file of the mount, or a directory (which `open` refuses). A file's lease lasts as long as this."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDONLY)

    def fileno(self):
        return self.fd

    def __del__(self):
        if hasattr(self, "fd"):
            os.close(self.fd)


def upload(file, device=-1):
    """Uploads the open file's tensor to the GPU, and waits until it is resident."""
    io = Io(abi_size=ctypes.sizeof(Io), abi_version=1, device=device, timeout_ms=1000)
    while True:
        fcntl.ioctl(file, UPLOAD, io)  # raises OSError with the errno of doc/GPU.md
        if io.state != LOADING:
            return io
        print(f"{io.done_bytes} of {io.nbytes} bytes", file=sys.stderr)


class OnDevice:
    """A piece of device memory, as PyTorch, CuPy and Numba take it. Holds the lease."""

    def __init__(self, pointer, io, file):
        typestr = DTYPES.get(io.dtype, ("|u1", "uint8"))[0]
        shape = tuple(io.shape[: io.ndim]) if io.dtype in DTYPES else (io.nbytes,)
        self.file = file
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": typestr, "data": (pointer, False), "strides": None, "version": 3,
        }  # fmt: skip


def with_torch(io, file):
    import torch

    torch.zeros(1, device=f"cuda:{io.device_ordinal}")  # makes the device's context current here
    base = open_handle(driver(), io)
    tensor = torch.as_tensor(OnDevice(base + io.base_offset, io, file), device=f"cuda:{io.device_ordinal}")
    return tensor.view(getattr(torch, DTYPES.get(io.dtype, (None, "uint8"))[1]))


def with_cupy(io, file):
    import cupy

    cupy.cuda.Device(io.device_ordinal).use()
    base = cupy.cuda.runtime.ipcOpenMemHandle(bytes(io.handle))
    memory = cupy.cuda.UnownedMemory(base + io.base_offset, io.nbytes, file, io.device_ordinal)
    flat = cupy.ndarray((io.nbytes,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
    return flat.view(DTYPES.get(io.dtype, ("|u1",))[0]).reshape(io.shape[: io.ndim] if io.dtype else -1)


class Handle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value"""

    _fields_ = [("reserved", U8 * 64)]


def driver():
    for name in ("libcuda.so.1", "libcuda.so"):
        try:
            return ctypes.CDLL(name)
        except OSError as e:
            why = e
    raise why


def must(code, what):
    if code:
        raise RuntimeError(f"{what}: CUDA error {code}")


def open_handle(cuda, io):
    """The address of the handle's memory in this process."""
    base = U64()
    must(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(base), Handle((U8 * 64)(*io.handle)), 1), "cuIpcOpenMemHandle")
    return base.value


def with_the_driver_alone(io):
    """The first bytes, copied back."""
    cuda = driver()
    device, context = I32(), ctypes.c_void_p()
    must(cuda.cuInit(0), "cuInit")
    must(cuda.cuDeviceGet(ctypes.byref(device), io.device_ordinal), "cuDeviceGet")
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    head = (U8 * min(16, io.nbytes))()
    at = U64(open_handle(cuda, io) + io.base_offset)
    must(cuda.cuMemcpyDtoH_v2(head, at, ctypes.c_size_t(len(head))), "cuMemcpyDtoH")
    return " ".join(f"{b:02x}" for b in head)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: consume.py TENSOR/raw, or any other file or directory that can be uploaded")
    file = Opened(sys.argv[1])
    io = upload(file)
    print(f"{io.nbytes} bytes on GPU {io.device_ordinal}, dtype {io.dtype}, shape {list(io.shape[: io.ndim])}")
    if not io.handle_kind:
        return  # a tensor without elements
    for use in (with_torch, with_cupy):
        try:
            print(use(io, file))
            return
        except ImportError:
            pass
    print(with_the_driver_alone(io))


if __name__ == "__main__":
    main()
