/* Attention of packed rows, one sentence and head at a time, and its gradient:

       P = softmax(s Q Kᵀ)      O = P V
       dV = Pᵀ dO      dS = P ∘ (dP − rowsum(P ∘ dP)),  dP = dO Vᵀ      dQ = s dS K      dK = s dSᵀ Q

   Rows of a sentence stand one after another, those of heads side by side, with gaps between rows
   (q, k and v may be columns of one product). P is computed again for the gradient. Every number
   is computed by one thread in one order. */
#include "attention.h"

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
#endif

typedef struct {
    const float *q, *k, *v;
    float *out;                     /* (queries, heads · d_head); in the backward pass its gradient */
    float *grad_q, *grad_k, *grad_v; /* laid out as q, k and v; every row is written */
    const int64_t *q_starts, *k_starts; /* (sentences + 1,): where the rows of each begin */
    int64_t q_stride, k_stride;     /* numbers from a row to the next; of v as of k */
    int64_t sentences, heads, d_head;
    int32_t causal;
    float scale;
} Packed;

/* x (rows, width), rows `stride` apart, as the panels of a map that reads rows: y = … x. */
static void lay_rows(const float *x, int64_t stride, int64_t rows, int64_t width, float *panels) {
    for (int64_t first = 0; first < width; first += PANEL)
        for (int64_t r = 0; r < rows; r++, panels += PANEL)
            for (int64_t j = 0; j < PANEL; j++)
                panels[j] = first + j < width ? x[r * stride + first + j] : 0.0f;
}

/* The same of a map that gives rows: y = … xᵀ. */
static void lay_columns(
    const float *x, int64_t stride, int64_t rows, int64_t width, float *panels
) {
    for (int64_t first = 0; first < rows; first += PANEL, panels += width * PANEL)
        for (int64_t j = 0; j < PANEL; j++)
            for (int64_t i = 0; i < width; i++)
                panels[i * PANEL + j] = first + j < rows ? x[(first + j) * stride + i] : 0.0f;
}

INLINE void times(
    const float *x, int64_t rows, const float *panels, int64_t n_in, int64_t n_out, float *y
) {
    const Map map = {panels, NULL, n_in, n_out, 0, 0};
    product(&map, 0, panels_of(&map), x, y, rows, NULL);
}

INLINE void gather(
    const float *x, int64_t stride, int64_t rows, int64_t width, float scale, float *y
) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) y[r * width + i] = scale * x[r * stride + i];
}

INLINE void scatter(
    const float *x, int64_t rows, int64_t width, float scale, float *y, int64_t stride
) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) y[r * stride + i] = scale * x[r * width + i];
}

static void clear(int64_t rows, int64_t width, float *y, int64_t stride) {
    for (int64_t r = 0; r < rows; r++) memset(y + r * stride, 0, (size_t)width * sizeof(float));
}

INLINE void transpose(const float *x, int64_t rows, int64_t width, float *y) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) y[i * rows + r] = x[r * width + i];
}

/* Each row's softmax over what it sees; line: room for n and PANEL. */
static void softmax_rows(float *scores, int64_t rows, int64_t n, int causal, float *line) {
    for (int64_t r = 0; r < rows; r++, scores += n) {
        const int64_t seen = causal && r + 1 < n ? r + 1 : n;
        for (int64_t i = seen; i < n + LANES; i++) line[i] = -INFINITY;
        memcpy(line, scores, (size_t)seen * sizeof(float));
        float most = line[0];
        for (int64_t i = 1; i < seen; i++) most = line[i] > most ? line[i] : most;
        vec sum = splat(0.0f);
        for (int64_t i = 0; i < n; i += LANES) {
            const vec e = exponential(load(line + i) - most);
            store(line + i, e);
            sum += e;
        }
        const float share = 1.0f / total(sum);
        for (int64_t i = 0; i < n; i++) scores[i] = line[i] * share;
    }
}

/* Scratch of a thread: twelve squares as wide as the longest sentence or a head. */
static int64_t side_of(int64_t longest, int64_t d_head) {
    return (longest > d_head ? longest : d_head) + PANEL;
}

int64_t packed_scratch(int64_t longest, int64_t d_head, int threads) {
    const int64_t side = side_of(longest, d_head);
    return threads * 12 * side * side;
}

typedef struct {
    const float *q, *k, *v;
    float *squares[12];
    int64_t n_q, n_k, d;
} Unit;

INLINE Unit unit_of(
    const Packed *p, int64_t unit, int64_t longest, float *scratch, int64_t *q_at, int64_t *k_at
) {
    const int64_t sentence = unit / p->heads, head = unit % p->heads, d = p->d_head;
    const int64_t q0 = p->q_starts[sentence], k0 = p->k_starts[sentence];
    const int64_t side = side_of(longest, d);
    Unit u = {.d = d};
    u.n_q = p->q_starts[sentence + 1] - q0;
    u.n_k = p->k_starts[sentence + 1] - k0;
    *q_at = q0 * p->q_stride + head * d;
    *k_at = k0 * p->k_stride + head * d;
    u.q = p->q + *q_at;
    u.k = p->k + *k_at;
    u.v = p->v + *k_at;
    for (int i = 0; i < 12; i++)
        u.squares[i] = scratch + (omp_get_thread_num() * 12 + i) * side * side;
    return u;
}

/* P into squares[0]; what is left in the others: s Q in [1]. */
static void weights_of(const Packed *p, const Unit *u) {
    gather(u->q, p->q_stride, u->n_q, u->d, p->scale, u->squares[1]);
    lay_columns(u->k, p->k_stride, u->n_k, u->d, u->squares[2]);
    times(u->squares[1], u->n_q, u->squares[2], u->d, u->n_k, u->squares[0]);
    softmax_rows(u->squares[0], u->n_q, u->n_k, p->causal, u->squares[3]);
}

/* longest: rows of the longest sentence of either side. */
void packed_forward(const Packed *p, int64_t longest, float *scratch, int threads) {
    const int64_t units = p->sentences * p->heads, width = p->heads * p->d_head;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4) if (threads > 1)
    for (int64_t unit = 0; unit < units; unit++) {
        int64_t q_at, k_at;
        const Unit u = unit_of(p, unit, longest, scratch, &q_at, &k_at);
        float *out = p->out + p->q_starts[unit / p->heads] * width + unit % p->heads * u.d;
        clear(u.n_q, u.d, out, width); /* who sees nothing gets zeros */
        if (!u.n_q || !u.n_k) continue;
        weights_of(p, &u);
        lay_rows(u.v, p->k_stride, u.n_k, u.d, u.squares[2]);
        times(u.squares[0], u.n_q, u.squares[2], u.n_k, u.d, u.squares[3]);
        scatter(u.squares[3], u.n_q, u.d, 1.0f, out, width);
    }
}

static void gradients(
    const Packed *p, const Unit *u, const float *grad, int64_t q_at, int64_t k_at
) {
    float *const *s = u->squares;
    const int64_t n_q = u->n_q, n_k = u->n_k, d = u->d, width = p->heads * d;
    weights_of(p, u); /* [0] P, [1] s Q */
    gather(grad, width, n_q, d, 1.0f, s[2]);
    lay_rows(grad, width, n_q, d, s[3]);
    transpose(s[0], n_q, n_k, s[4]);
    times(s[4], n_k, s[3], n_q, d, s[5]); /* dV */
    scatter(s[5], n_k, d, 1.0f, p->grad_v + k_at, p->k_stride);
    lay_columns(u->v, p->k_stride, n_k, d, s[3]);
    times(s[2], n_q, s[3], d, n_k, s[5]); /* dP, then dS */
    for (int64_t r = 0; r < n_q; r++) {
        float *row = s[5] + r * n_k, sum = 0.0f;
        const float *weights = s[0] + r * n_k;
        for (int64_t i = 0; i < n_k; i++) sum += weights[i] * row[i];
        for (int64_t i = 0; i < n_k; i++) row[i] = weights[i] * (row[i] - sum);
    }
    lay_rows(u->k, p->k_stride, n_k, d, s[3]);
    times(s[5], n_q, s[3], n_k, d, s[6]);
    scatter(s[6], n_q, d, p->scale, p->grad_q + q_at, p->q_stride);
    lay_rows(s[1], d, n_q, d, s[3]);
    transpose(s[5], n_q, n_k, s[4]);
    times(s[4], n_k, s[3], n_q, d, s[6]);
    scatter(s[6], n_k, d, 1.0f, p->grad_k + k_at, p->k_stride);
}

/* out: the gradient of what `packed_forward` gave. */
void packed_backward(const Packed *p, int64_t longest, float *scratch, int threads) {
    const int64_t units = p->sentences * p->heads;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4) if (threads > 1)
    for (int64_t unit = 0; unit < units; unit++) {
        int64_t q_at, k_at;
        const Unit u = unit_of(p, unit, longest, scratch, &q_at, &k_at);
        const int64_t row = p->q_starts[unit / p->heads] * p->heads + unit % p->heads;
        clear(u.n_q, u.d, p->grad_q + q_at, p->q_stride);
        clear(u.n_k, u.d, p->grad_k + k_at, p->k_stride);
        clear(u.n_k, u.d, p->grad_v + k_at, p->k_stride);
        if (u.n_q && u.n_k) gradients(p, &u, p->out + row * u.d, q_at, k_at);
    }
}
