/*
 * stfs: a model's tensors in GPU memory, by ioctl(2). ABI version 1.
 *
 * Open tensors/<name>/raw (or f32, or a file of npy/ or export/) below a mount, zero a
 * struct stfs_gpu_io, set abi_size and abi_version, and upload:
 *
 *     struct stfs_gpu_io io = {.abi_size = sizeof io, .abi_version = STFS_GPU_ABI_VERSION,
 *                              .device = -1, .timeout_ms = 1000};
 *     do rc = ioctl(fd, STFS_GPU_UPLOAD, &io);
 *     while (rc == 0 && io.state == STFS_GPU_LOADING);
 *
 * Then hand io.handle to cuIpcOpenMemHandle: the tensor lies io.base_offset bytes into that
 * mapping. Keep the file open for as long as the memory is used: the open file holds a lease.
 * An ioctl on a directory takes no lease.
 *
 * All structs are little-endian, naturally aligned, and hold no pointers.
 */
#ifndef STFS_H
#define STFS_H

#include <stdint.h>
#include <sys/ioctl.h>

#define STFS_GPU_ABI_VERSION 1u

/* op_flags, and flags of the answer (all but EVICT) */
#define STFS_GPU_EVICT     1u /* RELEASE: free the memory now */
#define STFS_GPU_AUTO_FREE 2u /* UPLOAD: free it two seconds after the last lease, unless pinned */
#define STFS_GPU_PIN       4u /* UPLOAD: free it only on EVICT; mount owner and root only */

/* state */
#define STFS_GPU_ABSENT   0u
#define STFS_GPU_LOADING  1u
#define STFS_GPU_RESIDENT 2u
#define STFS_GPU_FAILED   3u

/* handle_kind */
#define STFS_GPU_HANDLE_NONE     0u
#define STFS_GPU_HANDLE_CUDA_IPC 1u /* a CUipcMemHandle, 64 bytes */
#define STFS_GPU_HANDLE_VMM_FD   2u /* reserved */

/* flags of a device */
#define STFS_GPU_DEVICE_CAN_EXPORT 1u

/* dtype: safetensors' types in this order; 0 is plain bytes */
#define STFS_DTYPE_BYTES        0u
#define STFS_DTYPE_BOOL         1u
#define STFS_DTYPE_F4           2u
#define STFS_DTYPE_F6_E2M3      3u
#define STFS_DTYPE_F6_E3M2      4u
#define STFS_DTYPE_U8           5u
#define STFS_DTYPE_I8           6u
#define STFS_DTYPE_F8_E5M2      7u
#define STFS_DTYPE_F8_E4M3      8u
#define STFS_DTYPE_F8_E8M0      9u
#define STFS_DTYPE_F8_E4M3FNUZ 10u
#define STFS_DTYPE_F8_E5M2FNUZ 11u
#define STFS_DTYPE_I16         12u
#define STFS_DTYPE_U16         13u
#define STFS_DTYPE_F16         14u
#define STFS_DTYPE_BF16        15u
#define STFS_DTYPE_I32         16u
#define STFS_DTYPE_U32         17u
#define STFS_DTYPE_F32         18u
#define STFS_DTYPE_C64         19u
#define STFS_DTYPE_F64         20u
#define STFS_DTYPE_I64         21u
#define STFS_DTYPE_U64         22u
/* GGUF's block types: this plus ggml's number of the type. Shapes and strides count values. */
#define STFS_DTYPE_GGML       256u

struct stfs_gpu_io { /* 416 bytes */
  /* in: 64 bytes */
  uint32_t abi_size, abi_version; /* sizeof, STFS_GPU_ABI_VERSION */
  uint32_t op_flags, rsvd0;       /* rsvd0: 0 */
  int32_t device;                 /* ordinal; -1 = default device */
  uint32_t timeout_ms;            /* UPLOAD waits at most this long, and never over 1000 */
  uint8_t want_uuid[16];          /* non-zero: wins over device */
  uint64_t want_generation;       /* 0 = any */
  uint64_t rsvd_in[2];            /* must be 0 */
  /* out: 352 bytes */
  uint32_t size, version;
  uint32_t state, flags;
  uint64_t generation, alloc_id;
  uint64_t nbytes, done_bytes;
  uint64_t base_offset, alloc_bytes; /* tensor = base of the handle's mapping + base_offset */
  uint64_t daemon_ptr;               /* 0: a device pointer means nothing to another process */
  uint8_t dev_uuid[16];
  int32_t device_ordinal;
  uint32_t dtype, ndim, cu_error;
  uint64_t shape[8];
  int64_t strides[8]; /* elements */
  uint32_t handle_kind, handle_len;
  uint8_t handle[64];
  uint32_t leases, exporter_pid;
  uint64_t rsvd_out[5];
};

struct stfs_gpu_device { /* 128 bytes */
  uint32_t abi_size, abi_version; /* in */
  uint32_t index, count;          /* in, out */
  uint8_t uuid[16];
  int32_t ordinal;
  uint32_t flags;
  uint64_t free, total, cap; /* bytes; free: 0 until the first upload there; cap: --gpu-limit, 0 = none */
  char name[64];             /* NUL-terminated */
};

struct stfs_gpu_entry { /* 320 bytes */
  uint32_t abi_size, abi_version; /* in */
  uint32_t index, count;          /* in, out */
  uint32_t state, flags, leases;
  int32_t device_ordinal;
  uint64_t nbytes, done_bytes, alloc_id;
  char path[264]; /* below the mountpoint, NUL-terminated: tensors/<name>/raw */
};

#define STFS_GPU_UPLOAD  _IOWR(0xF5, 0x40, struct stfs_gpu_io)
#define STFS_GPU_QUERY   _IOWR(0xF5, 0x41, struct stfs_gpu_io)
#define STFS_GPU_RELEASE _IOWR(0xF5, 0x42, struct stfs_gpu_io)
#define STFS_GPU_DEVICES _IOWR(0xF5, 0x43, struct stfs_gpu_device)
#define STFS_GPU_LIST    _IOWR(0xF5, 0x44, struct stfs_gpu_entry)

#endif /* STFS_H */
