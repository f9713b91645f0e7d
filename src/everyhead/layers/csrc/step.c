/* One position more of a decoder that reads a memory, as one program: what `Stack.forward` does
   with one column of rows and a cache (layers/blocks.py), without a call for each product.

   Threads share the outputs of a product and the rows of everything else, and wait for one another
   between them. Every number is computed by one thread in one order, so that the answer does not
   depend on how many there are. */
#include "attention.h"

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

typedef struct {
    Map own, own_out, query, cross_out, up, down;  /* own: q, k and v of one x */
    const float *gain[3], *shift[3];               /* of own and cross attention, feed-forward */
} Layer;

typedef struct {
    int64_t n_layers, d_model, n_heads, d_head, d_ff;
    const Layer *layers;
    int32_t norm_first, activation;
    float eps;
} Decoder;

typedef struct {
    float *k, *v;      /* (sentences, heads, room, d_head) */
    const float *bias; /* (sentences, memory_length) of a memory; NULL: nothing is hidden */
    int64_t room;      /* slots of a head */
} Keys;

typedef struct {
    int64_t sentences, beams;      /* rows = sentences · beams */
    int64_t length, memory_length; /* positions of the history, the new one included */
    const int64_t *ancestors;      /* (sentences, beams, length); NULL: one beam */
    const Keys *own, *memory;      /* of each layer */
} History;

typedef struct {
    float *x, *read, *joint, *mixed, *added, *inner; /* rows of a step */
    float *scores, *wide;                            /* of this thread */
    int64_t rows;
    int me, threads;
} Work;

typedef struct {
    int64_t begin, end;
} Share;

INLINE Share share_of(int64_t n, const Work *work) {
    return (Share){n * work->me / work->threads, n * (work->me + 1) / work->threads};
}

int64_t panel_width(void) { return PANEL; }
int64_t lane_width(void) { return LANES; }

static void wait_for_all(void) {
#pragma omp barrier
}

static void mapped(const Map *map, const float *x, float *y, const Work *work) {
    const Share mine = share_of(panels_of(map), work);
    product(map, mine.begin, mine.end, x, y, work->rows, work->wide);
    wait_for_all();
}

/* x + f's result and the norm: after it (post-norm), or the next one before what reads x. */
static void joined(
    const Decoder *decoder, const Layer *layer, int i, const Layer *next, const Work *work
) {
    const int64_t d = decoder->d_model;
    const Share mine = share_of(work->rows, work);
    for (int64_t row = mine.begin; row < mine.end; row++) {
        float *x = work->x + row * d, *added = work->added + row * d;
        for (int64_t j = 0; j < d; j += LANES) store(x + j, load(x + j) + load(added + j));
        if (!decoder->norm_first)
            norm(layer->gain[i], layer->shift[i], decoder->eps, d, x, x);
        else if (i < 2)
            norm(layer->gain[i + 1], layer->shift[i + 1], decoder->eps, d, x, work->read + row * d);
        else if (next)
            norm(next->gain[0], next->shift[0], decoder->eps, d, x, work->read + row * d);
    }
    wait_for_all();
}

/* Each head of each sentence: its rows' keys and values enter, then its rows ask. */
static void own_attention(
    const Decoder *decoder, const History *history, const Keys *keys, const Work *work
) {
    const int64_t heads = decoder->n_heads, d = decoder->d_head, width = heads * d;
    const int64_t beams = history->beams, length = history->length;
    const Share mine = share_of(history->sentences * heads, work);
    for (int64_t unit = mine.begin; unit < mine.end; unit++) {
        const int64_t sentence = unit / heads, head = unit % heads;
        float *k = keys->k + unit * keys->room * d, *v = keys->v + unit * keys->room * d;
        const float *joint = work->joint + sentence * beams * 3 * width + head * d;
        for (int64_t beam = 0; beam < beams; beam++) {
            const int64_t place = ((length - 1) * beams + beam) * d;
            memcpy(k + place, joint + beam * 3 * width + width, (size_t)d * sizeof(float));
            memcpy(v + place, joint + beam * 3 * width + 2 * width, (size_t)d * sizeof(float));
        }
        for (int64_t beam = 0; beam < beams; beam++) {
            const int64_t row = sentence * beams + beam;
            Slots slots = {history->ancestors, beams};
            if (slots.ancestors) slots.ancestors += row * length;
            attend(
                joint + beam * 3 * width, k, v, slots, NULL, length, d, work->scores,
                work->mixed + row * width + head * d
            );
        }
    }
    wait_for_all();
}

static void cross_attention(
    const Decoder *decoder, const History *history, const Keys *keys, const Work *work
) {
    const int64_t heads = decoder->n_heads, d = decoder->d_head, n = history->memory_length;
    const Share mine = share_of(history->sentences * heads, work);
    for (int64_t unit = mine.begin; unit < mine.end; unit++) {
        const int64_t sentence = unit / heads, head = unit % heads;
        const float *bias = keys->bias;
        for (int64_t beam = 0; beam < history->beams; beam++) {
            const int64_t at = ((sentence * history->beams + beam) * heads + head) * d;
            attend(
                work->joint + at, keys->k + unit * keys->room * d, keys->v + unit * keys->room * d,
                (Slots){NULL, 1}, bias ? bias + sentence * n : NULL, n, d, work->scores,
                work->mixed + at
            );
        }
    }
    wait_for_all();
}

static void feed_forward(const Decoder *decoder, const Layer *layer, const Work *work) {
    mapped(&layer->up, decoder->norm_first ? work->read : work->x, work->inner, work);
    if (decoder->activation != NOTHING) {
        const Share mine = share_of(work->rows, work);
        for (int64_t row = mine.begin; row < mine.end; row++)
            activate(decoder->activation, decoder->d_ff, work->inner + row * decoder->d_ff);
        wait_for_all();
    }
    mapped(&layer->down, work->inner, work->added, work);
}

static void all_layers(const Decoder *decoder, const History *history, const Work *work) {
    const Layer *layers = decoder->layers;
    const float *read = decoder->norm_first ? work->read : work->x;
    if (decoder->norm_first) {
        const Share mine = share_of(work->rows, work);
        for (int64_t at = mine.begin * decoder->d_model; at < mine.end * decoder->d_model;
             at += decoder->d_model)
            norm(
                layers->gain[0], layers->shift[0], decoder->eps, decoder->d_model, work->x + at,
                work->read + at
            );
        wait_for_all();
    }
    for (int64_t i = 0; i < decoder->n_layers; i++) {
        const Layer *layer = layers + i, *next = i + 1 < decoder->n_layers ? layer + 1 : NULL;
        mapped(&layer->own, read, work->joint, work);
        own_attention(decoder, history, history->own + i, work);
        mapped(&layer->own_out, work->mixed, work->added, work);
        joined(decoder, layer, 0, next, work);
        mapped(&layer->query, read, work->joint, work);
        cross_attention(decoder, history, history->memory + i, work);
        mapped(&layer->cross_out, work->mixed, work->added, work);
        joined(decoder, layer, 1, next, work);
        feed_forward(decoder, layer, work);
        joined(decoder, layer, 2, next, work);
    }
}

/* Numbers of scratch that a step needs: of its rows, and of each thread. */
static int64_t of_rows(const Decoder *decoder, int64_t rows) {
    return rows * (decoder->d_model * 2 + decoder->n_heads * decoder->d_head * 4 + decoder->d_ff);
}

static int64_t of_thread(const Decoder *decoder, const History *history) {
    const int64_t keys = history->length + history->memory_length + LANES;
    const int64_t widest = decoder->d_model + decoder->d_ff + decoder->n_heads * decoder->d_head;
    return keys + (widest + 2) * PANEL;
}

int64_t step_scratch(const Decoder *decoder, const History *history, int threads) {
    return of_rows(decoder, history->sentences * history->beams) +
           threads * of_thread(decoder, history);
}

/* x (rows, d_model): what enters the stack, and what leaves it (before a last norm). */
void step(const Decoder *decoder, const History *history, float *x, float *scratch, int threads) {
    const int64_t rows = history->sentences * history->beams;
    const int64_t d = decoder->d_model, width = decoder->n_heads * decoder->d_head;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Work work = {.x = x, .rows = rows};
        work.me = omp_get_thread_num();
        work.threads = omp_get_num_threads();
        work.read = scratch;
        work.added = work.read + rows * d;
        work.joint = work.added + rows * d;
        work.mixed = work.joint + rows * 3 * width;
        work.inner = work.mixed + rows * width;
        work.scores = scratch + of_rows(decoder, rows) + work.me * of_thread(decoder, history);
        work.wide = work.scores + history->length + history->memory_length + LANES;
        all_layers(decoder, history, &work);
    }
}

/* One attention of a step, for who looks (rows.c).
   q, out (sentences, heads, beams, d_head); scores: room for the history and LANES. */
void attend_rows(
    const Decoder *decoder, const History *history, int cross, const float *q, float *scores,
    float *out
) {
    const int64_t heads = decoder->n_heads, d = decoder->d_head, beams = history->beams;
    const Keys *keys = cross ? history->memory : history->own;
    const int64_t n = cross ? history->memory_length : history->length;
    for (int64_t unit = 0; unit < history->sentences * heads; unit++)
        for (int64_t beam = 0; beam < beams; beam++) {
            const int64_t sentence = unit / heads, at = (unit * beams + beam) * d;
            Slots slots = {cross ? NULL : history->ancestors, beams};
            if (slots.ancestors) slots.ancestors += (sentence * beams + beam) * n;
            const float *bias = cross ? keys->bias : NULL;
            attend(
                q + at, keys->k + unit * keys->room * d, keys->v + unit * keys->room * d, slots,
                bias ? bias + sentence * n : NULL, n, d, scores, out + at
            );
        }
}
