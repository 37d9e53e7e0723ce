/* A tensor in GPU memory that stfs has put there, used by a C program: no copy, no CUDA headers.
 *
 *   cc -O2 -I packaging/include -o consume examples/gpu/consume.c -ldl
 *   ./consume /tmp/model/tensors/model.norm.weight/raw
 *
 * Prints where the tensor is and its first bytes, as od would.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "stfs.h"

/* The six functions of the CUDA driver that this takes. */
typedef struct { char reserved[64]; } ipc_handle;
typedef unsigned long long device_ptr;
static int (*cuInit)(unsigned);
static int (*cuDeviceGet)(int *, int);
static int (*cuDevicePrimaryCtxRetain)(void **, int);
static int (*cuCtxSetCurrent)(void *);
static int (*cuIpcOpenMemHandle)(device_ptr *, ipc_handle, unsigned);
static int (*cuMemcpyDtoH)(void *, device_ptr, size_t);

static int load_driver(void) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib)
        lib = dlopen("libcuda.so", RTLD_NOW);
    if (!lib)
        return fprintf(stderr, "%s\n", dlerror()), -1;
    *(void **)&cuInit = dlsym(lib, "cuInit");
    *(void **)&cuDeviceGet = dlsym(lib, "cuDeviceGet");
    *(void **)&cuDevicePrimaryCtxRetain = dlsym(lib, "cuDevicePrimaryCtxRetain");
    *(void **)&cuCtxSetCurrent = dlsym(lib, "cuCtxSetCurrent");
    *(void **)&cuIpcOpenMemHandle = dlsym(lib, "cuIpcOpenMemHandle_v2");
    *(void **)&cuMemcpyDtoH = dlsym(lib, "cuMemcpyDtoH_v2");
    return 0;
}

static int cuda(int code, const char *what) {
    if (code != 0)
        fprintf(stderr, "%s: CUDA error %d\n", what, code);
    return code;
}

int main(int argc, char **argv) {
    struct stfs_gpu_io io = {.abi_size = sizeof io, .abi_version = STFS_GPU_ABI_VERSION,
                             .device = -1, .timeout_ms = 1000};
    if (argc != 2)
        return fprintf(stderr, "usage: consume TENSOR/raw\n"), 2;
    int fd = open(argv[1], O_RDONLY);
    if (fd < 0)
        return perror(argv[1]), 1;
    do {
        if (ioctl(fd, STFS_GPU_UPLOAD, &io) != 0) {
            fprintf(stderr, "%s: %s (CUDA error %u)\n", argv[1], strerror(errno), io.cu_error);
            return 1;
        }
        if (io.state == STFS_GPU_LOADING)
            fprintf(stderr, "%llu of %llu bytes\n", (unsigned long long)io.done_bytes,
                    (unsigned long long)io.nbytes);
    } while (io.state == STFS_GPU_LOADING);
    printf("%llu bytes on GPU %d, dtype %u, %u dimensions\n", (unsigned long long)io.nbytes,
           io.device_ordinal, io.dtype, io.ndim);
    if (io.handle_kind != STFS_GPU_HANDLE_CUDA_IPC)
        return 0; /* a tensor without elements */

    int device;
    void *context;
    device_ptr base;
    ipc_handle handle;
    memcpy(&handle, io.handle, sizeof handle);
    if (load_driver() || cuda(cuInit(0), "cuInit") ||
        cuda(cuDeviceGet(&device, io.device_ordinal), "cuDeviceGet") ||
        cuda(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain") ||
        cuda(cuCtxSetCurrent(context), "cuCtxSetCurrent") ||
        cuda(cuIpcOpenMemHandle(&base, handle, 1), "cuIpcOpenMemHandle"))
        return 1;

    device_ptr tensor = base + io.base_offset; /* what kernels take */
    unsigned char head[16];
    size_t n = io.nbytes < sizeof head ? (size_t)io.nbytes : sizeof head;
    if (cuda(cuMemcpyDtoH(head, tensor, n), "cuMemcpyDtoH"))
        return 1;
    for (size_t i = 0; i < n; i++)
        printf(" %02x", head[i]);
    printf("\n");
    return 0; /* the open file held a lease until here */
}
