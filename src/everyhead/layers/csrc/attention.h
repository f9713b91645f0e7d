/* What a step of a decoder does besides its products, a row or a query at a time:

       norm       γ · (x − mean) / √(var + ε) + β
       attend     softmax(q Kᵀ + B) V       q is scaled already; K and V in slots of d_head numbers
       activate   f(x) of a feed-forward */
#ifndef EVERYHEAD_ATTENTION_H
#define EVERYHEAD_ATTENTION_H

#include <math.h>

#include "products.h"

enum { NOTHING, SILU, GELU, GELU_TANH };

INLINE float total(vec a) {
    float sum = 0.0f;
    for (int i = 0; i < LANES; i++) sum += a[i];
    return sum;
}

/* eˣ to 2e-7 of itself, by x = n ln 2 + r and the series of eʳ; below 1e-38 it is 0. */
INLINE vec exponential(vec x) {
    const vec magic = splat(12582912.0f); /* 1.5 · 2²³: what is added to it is rounded */
    const vec low = splat(-87.0f), high = splat(88.0f);
    const vec within = choose((bits)(x > high), high, choose((bits)(x < low), low, x));
    const vec shifted = within * 1.44269504f + magic, n = shifted - magic;
    const vec r = within - n * 0.693359375f + n * 2.12194440e-4f;
    vec sum = r * 1.9875691e-4f + 1.3981999e-3f;
    sum = sum * r + 8.3334519e-3f;
    sum = sum * r + 4.1665796e-2f;
    sum = sum * r + 1.6666665e-1f;
    sum = sum * r + 0.5f;
    sum = sum * r * r + r + 1.0f;
    const vec power = (vec)(((bits)shifted - (bits)magic + 127u) << 23);
    return choose((bits)(x < low), splat(0.0f), choose((bits)(x == x), sum * power, x));
}

/* Not inlined, as the two below: wherever they are called, their bits are the same. */
#define ALONE static __attribute__((noinline, unused))

ALONE void norm(
    const float *gain, const float *shift, float eps, int64_t n, const float *x, float *y
) {
    vec sum = splat(0.0f), square = splat(0.0f);
    for (int64_t i = 0; i < n; i += LANES) sum += load(x + i);
    const float mean = total(sum) / (float)n;
    for (int64_t i = 0; i < n; i += LANES) square += (load(x + i) - mean) * (load(x + i) - mean);
    const float scale = 1.0f / sqrtf(total(square) / (float)n + eps);
    for (int64_t i = 0; i < n; i += LANES)
        store(y + i, (load(x + i) - mean) * scale * load(gain + i) + load(shift + i));
}

/* Where position t of a row's history stands: in slot t · beams + ancestors[t]. */
typedef struct {
    const int64_t *ancestors; /* NULL: in slot t */
    int64_t beams;
} Slots;

INLINE int64_t slot(Slots slots, int64_t t) {
    return slots.ancestors ? t * slots.beams + slots.ancestors[t] : t;
}

/* One query; scores: room for n and LANES more. bias (n,) or NULL. */
ALONE void attend(
    const float *q, const float *k, const float *v, Slots slots, const float *bias, int64_t n,
    int64_t d_head, float *scores, float *out
) {
    float most = -INFINITY;
    for (int64_t t = 0; t < n; t++) {
        const float *key = k + slot(slots, t) * d_head;
        vec sum = splat(0.0f);
        for (int64_t i = 0; i < d_head; i += LANES) sum += load(q + i) * load(key + i);
        scores[t] = total(sum) + (bias ? bias[t] : 0.0f);
        most = scores[t] > most ? scores[t] : most;
    }
    for (int64_t t = n; t < n + LANES; t++) scores[t] = -INFINITY;
    vec sums = splat(0.0f);
    for (int64_t t = 0; t < n; t += LANES) {
        const vec weights = exponential(load(scores + t) - most);
        store(scores + t, weights);
        sums += weights;
    }
    const float share = 1.0f / total(sums);
    for (int64_t i = 0; i < d_head; i += LANES) {
        vec mixed = splat(0.0f);
        for (int64_t t = 0; t < n; t++)
            mixed += scores[t] * load(v + slot(slots, t) * d_head + i);
        store(out + i, mixed * share);
    }
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

ALONE void activate(int32_t f, int64_t n, float *x) {
    for (int64_t i = 0; i < n && f != NOTHING; i += LANES) {
        vec a = load(x + i);
        if (f == SILU) a *= sigmoid(a);
        if (f == GELU_TANH) a *= sigmoid(1.5957691216f * (a + 0.044715f * a * a * a));
        if (f == GELU)
            for (int j = 0; j < LANES; j++) a[j] *= 0.5f * (1.0f + erff(a[j] * 0.70710678f));
        store(x + i, a);
    }
}

#endif
