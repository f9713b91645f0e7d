/* Of each row of logits z its −log p of the right piece, and the gradient of the smoothed loss in
   their place (training/objectives.py):

       lse = log Σ_v e^z_v         dz_v = e^(z_v − lse) − ε / V' − (1 − ε)·[v = y]

   Each row is one thread's, from its beginning to its end. */
#include "logits.h"

typedef struct {
    float *z;              /* (rows, pieces); with its gradient in its place if it is wanted */
    const int64_t *labels; /* (rows,) */
    double *lse, *picked;  /* (rows,): log Σ e^z, and z of the label */
    int64_t rows, pieces;
    float right, other;    /* 1 − ε and ε / V' */
    int32_t wanted;
} Rows;

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
