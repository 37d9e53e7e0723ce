/* Plain C: map a tensor's f32 and compute its norm. No library, no conversion.
 *
 *   cc -O2 -o norm examples/norm.c -lm
 *   ./norm /tmp/tiny-llama/tensors/model.norm.weight/f32
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

int main(int argc, char **argv) {
    struct stat st;
    int fd = argc == 2 ? open(argv[1], O_RDONLY) : -1;
    if (fd < 0 || fstat(fd, &st) != 0) {
        perror(argc == 2 ? argv[1] : "usage: norm FILE");
        return 1;
    }
    size_t n = (size_t)st.st_size / sizeof(float);
    double sum = 0;
    if (n > 0) { /* an empty tensor cannot be mapped */
        const float *w = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (w == MAP_FAILED) {
            perror(argv[1]);
            return 1;
        }
        for (size_t i = 0; i < n; i++)
            sum += (double)w[i] * w[i];
    }
    printf("%zu values, norm %.6f\n", n, sqrt(sum));
    return 0;
}
