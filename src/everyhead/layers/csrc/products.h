/* Products of few rows: y = f(x Wᵀ + b), x (rows, n_in), y (rows, n_out), f nothing or ReLU.

   The weight is laid out once in panels of PANEL outputs, so that a panel is read from its
   beginning to its end: [n_out / PANEL][n_in][PANEL] float32, or [n_out / PANEL][n_in / 2][PANEL]
   pairs of bfloat16, of which the lower half stands at the even input. What is missing in the last
   panel, and an odd last input, is filled with zeros. A tile of ROWS × PANEL sums stays in
   registers while a panel passes. */
#ifndef EVERYHEAD_PRODUCTS_H
#define EVERYHEAD_PRODUCTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#define PANEL (2 * LANES)
#define ROWS 6

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t bits __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))

typedef struct {
    const void *weight; /* in panels */
    const float *bias;  /* (n_out,), filled up with zeros to whole panels; NULL: none */
    int64_t n_in, n_out;
    int32_t pairs; /* 1: pairs of bfloat16 */
    int32_t relu;  /* 1: f is ReLU */
} Map;

INLINE vec splat(float a) { return (vec){0} + a; }
INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec a) { *(vec *)p = a; }
INLINE vec choose(bits where, vec a, vec b) { /* a where all bits are set, b where none is */
    return (vec)(((bits)a & where) | ((bits)b & ~where));
}
INLINE vec even(bits pair) { return (vec)(pair << 16); }
INLINE vec odd(bits pair) { return (vec)(pair & 0xffff0000u); }

INLINE int64_t panels_of(const Map *map) { return (map->n_out + PANEL - 1) / PANEL; }

INLINE void finish(const Map *map, int64_t first, float *y, vec low, vec high) {
    if (map->bias) {
        low += load(map->bias + first);
        high += load(map->bias + first + LANES);
    }
    if (map->relu) { /* a NaN stays one */
        low = choose((bits)(low < 0.0f), splat(0.0f), low);
        high = choose((bits)(high < 0.0f), splat(0.0f), high);
    }
    if (first + PANEL <= map->n_out) {
        store(y + first, low);
        store(y + first + LANES, high);
    } else {
        float whole[PANEL];
        store(whole, low);
        store(whole + LANES, high);
        memcpy(y + first, whole, (size_t)(map->n_out - first) * sizeof(float));
    }
}

/* `rows` rows, a constant where this is called, times the panel that begins at output `first`. */
INLINE void tile(
    const int rows, const int pairs, const Map *map, const void *panel, int64_t first,
    const float *x, float *y
) {
    const int64_t n_in = map->n_in;
    vec low[ROWS], high[ROWS];
    for (int r = 0; r < rows; r++) low[r] = high[r] = splat(0.0f);
    if (pairs) {
        const bits *w = panel;
        for (int64_t k = 0; k + 1 < n_in; k += 2, w += 2) {
            for (int r = 0; r < rows; r++)
                low[r] += x[r * n_in + k] * even(w[0]) + x[r * n_in + k + 1] * odd(w[0]);
            for (int r = 0; r < rows; r++)
                high[r] += x[r * n_in + k] * even(w[1]) + x[r * n_in + k + 1] * odd(w[1]);
        }
        for (int r = 0; r < rows && n_in % 2; r++) {
            low[r] += x[(r + 1) * n_in - 1] * even(w[0]);
            high[r] += x[(r + 1) * n_in - 1] * even(w[1]);
        }
    } else {
        const float *w = panel;
        for (int64_t k = 0; k < n_in; k++, w += PANEL)
            for (int r = 0; r < rows; r++) {
                low[r] += x[r * n_in + k] * load(w);
                high[r] += x[r * n_in + k] * load(w + LANES);
            }
    }
    for (int r = 0; r < rows; r++) finish(map, first, y + r * map->n_out, low[r], high[r]);
}

INLINE void tiles(
    const int pairs, const Map *map, const void *panel, int64_t first, const float *x, float *y,
    int64_t rows
) {
    for (; rows >= ROWS; rows -= ROWS, x += ROWS * map->n_in, y += ROWS * map->n_out)
        tile(ROWS, pairs, map, panel, first, x, y);
    switch (rows) {
    case 5: tile(5, pairs, map, panel, first, x, y); break;
    case 4: tile(4, pairs, map, panel, first, x, y); break;
    case 3: tile(3, pairs, map, panel, first, x, y); break;
    case 2: tile(2, pairs, map, panel, first, x, y); break;
    case 1: tile(1, pairs, map, panel, first, x, y); break;
    }
}

/* All rows times the panels from `begin` to before `end`; wide: room for a panel of float32. */
static void product(
    const Map *map, int64_t begin, int64_t end, const float *x, float *y, int64_t rows, float *wide
) {
    const int64_t n_in = map->n_in, n_pairs = (n_in + 1) / 2;
    for (int64_t p = begin; p < end; p++) {
        if (!map->pairs) {
            const float *panel = (const float *)map->weight + p * n_in * PANEL;
            tiles(0, map, panel, p * PANEL, x, y, rows);
            continue;
        }
        const bits *panel = (const bits *)map->weight + p * n_pairs * 2;
        if (rows <= ROWS) {
            tiles(1, map, panel, p * PANEL, x, y, rows);
            continue;
        }
        for (int64_t k = 0; k < n_pairs; k++) /* read several times: made float32 once */
            for (int half = 0; half < 2; half++) {
                store(wide + 2 * k * PANEL + half * LANES, even(panel[2 * k + half]));
                store(wide + (2 * k + 1) * PANEL + half * LANES, odd(panel[2 * k + half]));
            }
        tiles(0, map, wide, p * PANEL, x, y, rows);
    }
}

#endif
