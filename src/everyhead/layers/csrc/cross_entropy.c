/* Of each row of logits z its −log p of the right piece, and the gradient of the smoothed loss in
   their place (training/objectives.py):

       lse = log Σ_v e^z_v         dz_v = e^(z_v − lse) − ε / V' − (1 − ε)·[v = y]

   Each row is one thread's, from its beginning to its end. */
#include "attention.h"

typedef struct {
    float *z;              /* (rows, pieces); with its gradient in its place if it is wanted */
    const int64_t *labels; /* (rows,) */
    double *lse, *picked;  /* (rows,): log Σ e^z, and z of the label */
    int64_t rows, pieces;
    float right, other;    /* 1 − ε and ε / V' */
    int32_t wanted;
} Rows;

static float largest(const float *z, int64_t n) {
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
static double powers_of(const float *z, int64_t n, float most, float *powers) {
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

void cross_entropy(const Rows *p, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < p->rows; row++) {
        float *z = p->z + row * p->pieces;
        const int64_t label = p->labels[row];
        const float most = largest(z, p->pieces);
        p->picked[row] = z[label];
        const double sum = powers_of(z, p->pieces, most, p->wanted ? z : NULL);
        p->lse[row] = (double)most + log(sum);
        if (!p->wanted) continue;
        const float share = (float)(1.0 / sum);
        for (int64_t i = 0; i < p->pieces; i++) z[i] = z[i] * share - p->other;
        z[label] -= p->right;
    }
}
