/* Products of few rows by themselves, and the other parts of a step one at a time, for who looks at
   them: the same numbers as in step.c, to the last bit. */
#include "attention.h"

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

/* y = f(x Wᵀ + b); wide: room for (n_in + 1) · PANEL numbers of each thread. */
void linear(const Map *map, const float *x, float *y, int64_t rows, float *wide, int threads) {
    const int64_t panels = panels_of(map);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
        float *own = wide + me * (map->n_in + 1) * PANEL;
        product(map, panels * me / all, panels * (me + 1) / all, x, y, rows, own);
    }
}

void norm_rows(
    const float *gain, const float *shift, float eps, int64_t rows, int64_t d, const float *x,
    float *y
) {
    for (int64_t at = 0; at < rows * d; at += d) norm(gain, shift, eps, d, x + at, y + at);
}

void activate_rows(int32_t f, int64_t n, float *x) { activate(f, n, x); }
