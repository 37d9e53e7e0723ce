/* Preloaded into pjdfstest, so that its tests run in a read-only directory: `tests/peers/pjdfstest.py`.
 *
 * The suite makes one temporary directory, and in it one for each test; their names begin with `.tmp`. On each of
 * the latter the directory in $READ_ONLY is mounted, and its mode is left as it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

/* Whether the last component of the first bytes of a path is that of a temporary directory. */
static int temporary(const char *path, size_t length) {
    while (length > 0 && path[length - 1] != '/')
        length--;
    return strncmp(path + length, ".tmp", 4) == 0;
}

/* The length of the path of the directory that a path is in. */
static size_t parent(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) : 0;
}

int mkdir(const char *path, mode_t mode) {
    int (*next)(const char *, mode_t) = (int (*)(const char *, mode_t))dlsym(RTLD_NEXT, "mkdir");
    int done = next(path, mode);
    if (done == 0 && temporary(path, strlen(path)) && temporary(path, parent(path)))
        done = mount(getenv("READ_ONLY"), path, NULL, MS_BIND, NULL);
    return done;
}

int fchmodat(int at, const char *path, mode_t mode, int flags) {
    int (*next)(int, const char *, mode_t, int) = (int (*)(int, const char *, mode_t, int))dlsym(RTLD_NEXT, "fchmodat");
    return temporary(path, strlen(path)) ? 0 : next(at, path, mode, flags);
}
