/* Dropout in one pass, without a mask in memory:

       z = x + y · m / (1 − p)          m_i = [u_i ≥ p · 2¹⁶], u_i sixteen random bits of entry i

   The bits are Philox-4x32-10's (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3")
   of a seed and of the entry's place, so that the gradient draws the same ones again and the number
   of threads changes nothing. */
#include "products.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#define BLOCK 128         /* entries drawn at a time: of 16 counters, four words each */
#define WORDS (LANES / 2) /* words of a vector, each in the lower half of 64 bits */
#define SIDE 2            /* vectors that take their rounds together */

typedef uint64_t words __attribute__((vector_size(LANES * 4), aligned(8), may_alias));

/* The lower halves times a constant; what stands in the upper halves does not matter. */
INLINE words times(words a, uint32_t b) {
#if defined(__AVX512F__)
    return (words)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
    return (words)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#else
    return (a & 0xffffffffu) * b;
#endif
}

/* out [2][16][2]: the first two words of the counters first …, then the last two. */
INLINE void draw(uint64_t seed, uint64_t first, uint32_t *out) {
    words counter;
    for (int i = 0; i < WORDS; i++) counter[i] = first + (uint64_t)i;
    for (int at = 0; at < 16 / WORDS; at += SIDE) {
        uint64_t k0 = (uint32_t)seed, k1 = seed >> 32;
        words a[SIDE], b[SIDE], c[SIDE], d[SIDE];
        for (int i = 0; i < SIDE; i++, counter += WORDS) {
            a[i] = counter;
            b[i] = counter >> 32;
            c[i] = d[i] = (words){0};
        }
        for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
            for (int i = 0; i < SIDE; i++) {
                const words p = times(a[i], 0xD2511F53u), q = times(c[i], 0xCD9E8D57u);
                a[i] = (q >> 32) ^ b[i] ^ k0;
                c[i] = (p >> 32) ^ d[i] ^ k1;
                b[i] = q;
                d[i] = p;
            }
        for (int i = 0; i < SIDE; i++) {
            ((words *)out)[at + i] = (a[i] & 0xffffffffu) | b[i] << 32;
            ((words *)out)[16 / WORDS + at + i] = (c[i] & 0xffffffffu) | d[i] << 32;
        }
    }
}

/* For the test against the published numbers. */
void philox(uint64_t seed, uint64_t first, uint32_t *out) { draw(seed, first, out); }

static float wide(uint16_t half) { /* bfloat16 → float32 */
    const uint32_t whole = (uint32_t)half << 16;
    float x;
    memcpy(&x, &whole, sizeof x);
    return x;
}

static uint16_t narrow(float x) { /* to the nearest, the even one of two */
    uint32_t whole;
    memcpy(&whole, &x, sizeof whole);
    if (x != x) return (uint16_t)(whole >> 16 | 64);
    return (uint16_t)((whole + 0x7fffu + (whole >> 16 & 1)) >> 16);
}

typedef struct {
    const float *x;             /* (n,) or NULL: nothing is added */
    const void *y;              /* (n,) float32, or bfloat16 where y_half */
    void *z;                    /* (n,) float32, or bfloat16 where z_half */
    int64_t n;
    uint64_t seed;
    uint32_t threshold;         /* p · 2¹⁶, below 2¹⁶ */
    int32_t y_half, z_half;
} Dropping;

/* z = x + y · m / (1 − p) of one block; draws: its random bits. */
INLINE void drop_vectors(
    const uint32_t *draws, uint32_t threshold, const float *x, const float *y, float *z
) {
    const float scale = 65536.0f / (float)(65536 - threshold);
    for (int i = 0; i < BLOCK / 2; i += LANES)
        for (int half = 0; half < 2; half++) {
            const bits drawn = *(const bits *)(draws + i) >> 16 * half & 0xffffu;
            const int at = i + half * BLOCK / 2;
            const vec kept = choose((bits)(drawn >= threshold), load(y + at) * scale, splat(0.0f));
            store(z + at, load(x + at) + kept);
        }
}

static const float nothing[BLOCK];

static void drop_block(const Dropping *p, int64_t at, int64_t n) {
    uint32_t draws[BLOCK / 2];
    float x[BLOCK] = {0}, y[BLOCK] = {0};
    draw(p->seed, (uint64_t)at / 8, draws);
    if (n == BLOCK && !p->y_half && !p->z_half) {
        const float *added = p->x ? p->x + at : nothing, *read = (const float *)p->y + at;
        drop_vectors(draws, p->threshold, added, read, (float *)p->z + at);
        return;
    }
    if (p->x) memcpy(x, p->x + at, (size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++)
        y[i] = p->y_half ? wide(((const uint16_t *)p->y)[at + i]) : ((const float *)p->y)[at + i];
    drop_vectors(draws, p->threshold, x, y, y);
    if (!p->z_half) memcpy((float *)p->z + at, y, (size_t)n * sizeof(float));
    for (int64_t i = 0; i < n && p->z_half; i++) ((uint16_t *)p->z)[at + i] = narrow(y[i]);
}

void drop(const Dropping *p, int threads) {
    const int64_t blocks = p->n / BLOCK;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t block = 0; block < blocks; block++) drop_block(p, block * BLOCK, BLOCK);
    if (p->n % BLOCK) drop_block(p, blocks * BLOCK, p->n % BLOCK);
}
