/* Of a row of logits: the largest, and the sum of e^(z − largest). */
#ifndef EVERYHEAD_LOGITS_H
#define EVERYHEAD_LOGITS_H

#include "attention.h"

INLINE float largest(const float *z, int64_t n) {
    vec most = splat(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) most = choose((bits)(load(z + i) > most), load(z + i), most);
    float found = -INFINITY;
    for (int j = 0; j < LANES; j++) found = most[j] > found ? most[j] : found;
    for (; i < n; i++) found = z[i] > found ? z[i] : found;
    return found;
}

/* e^(z − most) into powers, or nowhere; returns their sum. A sum of a few hundred numbers is
   carried on in float64. */
INLINE double powers_of(const float *z, int64_t n, float most, float *powers) {
    double sum = 0.0;
    for (int64_t start = 0; start < n; start += 64 * LANES) {
        const int64_t end = start + 64 * LANES < n ? start + 64 * LANES : n;
        vec part = splat(0.0f);
        int64_t i = start;
        for (; i + LANES <= end; i += LANES) {
            const vec e = exponential(load(z + i) - most);
            if (powers) store(powers + i, e);
            part += e;
        }
        if (i < end) {
            float last[LANES];
            for (int j = 0; j < LANES; j++) last[j] = i + j < end ? z[i + j] - most : -INFINITY;
            const vec e = exponential(load(last));
            store(last, e);
            for (int j = 0; powers && i + j < end; j++) powers[i + j] = last[j];
            part += e;
        }
        sum += total(part);
    }
    return sum;
}

#endif
