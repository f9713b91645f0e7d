/* The best continuations of each sentence's beams (generation/choosing.py):

       t(b, v) = s_b + z_bv − log Σ_u e^z_bu        the best k over beams b and pieces v

   Best first, of equal ones the earlier; a beam with s = −∞ is none. Each sentence is one thread's,
   from its first beam to its last. */
#include "logits.h"

#define RUN 64       /* pieces whose largest logit is noted */
#define MOST_RUNS 4096

typedef struct {
    const float *logits;       /* (sentences · beams, pieces), at most RUN · MOST_RUNS pieces */
    const float *sums;         /* (sentences, beams) */
    float *best;               /* (sentences, k): t, or −∞ where there is none */
    int64_t *parent, *token;   /* (sentences, k) */
    int64_t sentences, beams, pieces, k;
} Choice;

typedef struct {
    float *best;
    double *totals; /* (k,): the same, not rounded */
    int64_t *parent, *token, k;
} Found;

static void enter(const Found *found, double total, int64_t parent, int64_t token) {
    int64_t i = found->k - 1;
    for (; i > 0 && found->totals[i - 1] < total; i--) {
        found->totals[i] = found->totals[i - 1];
        found->parent[i] = found->parent[i - 1];
        found->token[i] = found->token[i - 1];
    }
    found->totals[i] = total;
    found->parent[i] = parent;
    found->token[i] = token;
}

/* What the pieces of one beam give; returns 0 where its probabilities are no numbers. */
static int look_through(const float *z, int64_t n, float sum, int64_t beam, const Found *found) {
    float runs[MOST_RUNS], most = -INFINITY;
    for (int64_t at = 0; at < n; at += RUN) {
        runs[at / RUN] = largest(z + at, n - at < RUN ? n - at : RUN);
        most = runs[at / RUN] > most ? runs[at / RUN] : most;
    }
    const double more = (double)sum - (double)most - log(powers_of(z, n, most, NULL));
    if (more != more) return 0;
    const double *last = found->totals + found->k - 1;
    for (int64_t at = 0; at < n; at += RUN)
        if ((double)runs[at / RUN] + more > *last)
            for (int64_t v = at; v < n && v < at + RUN; v++)
                if ((double)z[v] + more > *last) enter(found, (double)z[v] + more, beam, v);
    return 1;
}

/* totals: room for k numbers of each sentence. */
void continuations(const Choice *p, double *totals, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && p->sentences > 1)
    for (int64_t s = 0; s < p->sentences; s++) {
        const int64_t k = p->k;
        const Found found = {
            p->best + s * k, totals + s * k, p->parent + s * k, p->token + s * k, k
        };
        for (int64_t i = 0; i < k; i++) {
            found.totals[i] = -INFINITY;
            found.parent[i] = found.token[i] = 0;
        }
        int numbers = 1;
        for (int64_t b = 0; b < p->beams; b++) {
            const float sum = p->sums[s * p->beams + b], *z = p->logits;
            if (sum == -INFINITY) continue;
            z += (s * p->beams + b) * p->pieces;
            numbers = numbers && look_through(z, p->pieces, sum, b, &found);
        }
        for (int64_t i = 0; i < k; i++) found.best[i] = numbers ? (float)found.totals[i] : NAN;
    }
}
