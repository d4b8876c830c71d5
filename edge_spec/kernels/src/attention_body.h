/* Attention, written once for all vector widths. A file that includes this defines
 *
 *     vec, WIDTH (lanes), VARIANT, VARIANT_NAME, RUNS_HERE, SCORE_QUERIES, VALUE_QUERIES (queries at once: as many
 *     as there are registers), and the operations LOAD, STORE, SET1, FMA(a, b, c) = a * b + c, ADD, SUB, MUL, MAX,
 *     EXPONENT(p, t) = p with the lowest bits of t added to its exponent
 */
#include <math.h>
#include <string.h>

#include "attention.h"
#include "layout.h"

enum { PARTS = ER_LANES / WIDTH, VALUE_VECS = 4 };

static bool runs_here(void) { return RUNS_HERE; }

static void rotate(const er_attention *a, const float *x, size_t position, float *y) {
    const size_t half = a->head_dim / 2;
    const float *c = a->cosines + position * half, *s = a->sines + position * half;
    if (a->interleaved)
        for (size_t i = 0; i < half; i++) {
            const float x0 = x[2 * i], x1 = x[2 * i + 1];
            y[2 * i] = x0 * c[i] - x1 * s[i];
            y[2 * i + 1] = x0 * s[i] + x1 * c[i];
        }
    else
        for (size_t i = 0; i < half; i++) {
            const float x0 = x[i], x1 = x[i + half];
            y[i] = x0 * c[i] - x1 * s[i];
            y[i + half] = x0 * s[i] + x1 * c[i];
        }
}

static void store(const er_attention *a, size_t kv_head) {
    const size_t hd = a->head_dim, width = (a->n_head + 2 * a->n_head_kv) * hd, first = a->n_pending - a->n_rows;
    float key[ER_MOST_HEAD_DIM];
    for (size_t r = 0; r < a->n_rows; r++) {
        const float *row = a->qkv + r * width;
        const size_t cell = a->n_text + first + r;
        rotate(a, row + (a->n_head + kv_head) * hd, a->n_text + (size_t)a->depths[first + r], key);
        float *tile = a->keys + (kv_head * a->n_cells + cell / ER_LANES * ER_LANES) * hd + cell % ER_LANES;
        for (size_t d = 0; d < hd; d++)
            tile[d * ER_LANES] = key[d];
        memcpy(a->values + (kv_head * a->n_cells + cell) * hd, row + (a->n_head + a->n_head_kv + kv_head) * hd,
               hd * sizeof(float));
    }
}

/* Scores of n queries, [n, head_dim], for the 16 cells of a tile; query i's go to scores + i * stride. */
ER_INLINE void score_tile(int n, const float *queries, size_t hd, const float *tile, float *scores, size_t stride) {
    vec sums[SCORE_QUERIES][PARTS];
    for (int i = 0; i < n; i++)
        for (int p = 0; p < PARTS; p++)
            sums[i][p] = SET1(0.0f);
    for (size_t d = 0; d < hd; d++) {
        vec key[PARTS];
        for (int p = 0; p < PARTS; p++)
            key[p] = LOAD(tile + d * ER_LANES + p * WIDTH);
        for (int i = 0; i < n; i++) {
            const vec q = SET1(queries[(size_t)i * hd + d]);
            for (int p = 0; p < PARTS; p++)
                sums[i][p] = FMA(q, key[p], sums[i][p]);
        }
    }
    for (int i = 0; i < n; i++)
        for (int p = 0; p < PARTS; p++)
            STORE(scores + (size_t)i * stride + p * WIDTH, sums[i][p]);
}

static void score(int n, const float *queries, size_t hd, const float *tile, float *scores, size_t stride) {
    for (; n >= SCORE_QUERIES; n -= SCORE_QUERIES, queries += SCORE_QUERIES * hd, scores += SCORE_QUERIES * stride)
        score_tile(SCORE_QUERIES, queries, hd, tile, scores, stride);
    if (n >= 4 && SCORE_QUERIES > 4) {
        score_tile(4, queries, hd, tile, scores, stride);
        n -= 4, queries += 4 * hd, scores += 4 * stride;
    }
    switch (n) {
    case 3: score_tile(3, queries, hd, tile, scores, stride); break;
    case 2: score_tile(2, queries, hd, tile, scores, stride); break;
    case 1: score_tile(1, queries, hd, tile, scores, stride); break;
    }
}

/* exp of numbers from -86 to 0 to about one unit in the last place; what is lower counts as -86. */
ER_INLINE vec exponential(vec x) {
    x = MAX(x, SET1(-86.0f));
    const vec shift = SET1(12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number */
    const vec t = FMA(x, SET1(1.44269504f), shift), n = SUB(t, shift);
    vec r = FMA(n, SET1(-0.693359375f), x);
    r = FMA(n, SET1(2.12194440e-4f), r);
    vec p = SET1(1.9875691500e-4f); /* Cephes, expf */
    p = FMA(p, r, SET1(1.3981999507e-3f));
    p = FMA(p, r, SET1(8.3334519073e-3f));
    p = FMA(p, r, SET1(4.1665795894e-2f));
    p = FMA(p, r, SET1(1.6666665459e-1f));
    p = FMA(p, r, SET1(5.0000001201e-1f));
    p = FMA(MUL(r, r), p, ADD(r, SET1(1.0f)));
    return EXPONENT(p, t);
}

/* Scores into weights, in place; returns 1 / their sum. There is room up to the next multiple of 16. */
static float soften(float *scores, size_t n) {
    const size_t end = (n + ER_LANES - 1) / ER_LANES * ER_LANES;
    float lanes[ER_LANES];
    for (size_t j = n; j < end; j++)
        scores[j] = -INFINITY;
    vec highest = LOAD(scores);
    for (size_t j = WIDTH; j < end; j += WIDTH)
        highest = MAX(highest, LOAD(scores + j));
    STORE(lanes, highest);
    float most = lanes[0];
    for (int i = 1; i < WIDTH; i++)
        most = lanes[i] > most ? lanes[i] : most;
    for (size_t j = 0; j < end; j += WIDTH)
        STORE(scores + j, exponential(SUB(LOAD(scores + j), SET1(most))));
    for (size_t j = n; j < end; j++)
        scores[j] = 0.0f;
    vec sums[PARTS];
    for (int p = 0; p < PARTS; p++)
        sums[p] = SET1(0.0f);
    for (size_t j = 0; j < end; j += ER_LANES)
        for (int p = 0; p < PARTS; p++)
            sums[p] = ADD(sums[p], LOAD(scores + j + p * WIDTH));
    for (int p = 0; p < PARTS; p++)
        STORE(lanes + p * WIDTH, sums[p]);
    for (int apart = ER_LANES / 2; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++)
            lanes[i] += lanes[i + apart];
    return 1.0f / lanes[0];
}

/* Adds cells [from, to) of values, [cells, head_dim], to n outputs, for vecs * WIDTH of their numbers. */
ER_INLINE void add_values(int n, int vecs, const float *values, size_t hd, size_t from, size_t to,
                          const float *weights, size_t stride, float *const *outs, size_t d) {
    vec sums[VALUE_QUERIES][VALUE_VECS];
    for (int i = 0; i < n; i++)
        for (int v = 0; v < vecs; v++)
            sums[i][v] = LOAD(outs[i] + d + (size_t)v * WIDTH);
    for (size_t j = from; j < to; j++) {
        vec value[VALUE_VECS];
        for (int v = 0; v < vecs; v++)
            value[v] = LOAD(values + j * hd + d + (size_t)v * WIDTH);
        for (int i = 0; i < n; i++) {
            const vec w = SET1(weights[(size_t)i * stride + j]);
            for (int v = 0; v < vecs; v++)
                sums[i][v] = FMA(w, value[v], sums[i][v]);
        }
    }
    for (int i = 0; i < n; i++)
        for (int v = 0; v < vecs; v++)
            STORE(outs[i] + d + (size_t)v * WIDTH, sums[i][v]);
}

static void add(int n, const float *values, size_t hd, size_t from, size_t to, const float *weights, size_t stride,
                float *const *outs) {
    if (from >= to)
        return;
    for (int i = 0; i < n;) {
        const int left = n - i, at_once = left >= VALUE_QUERIES ? VALUE_QUERIES : 1;
        const float *w = weights + (size_t)i * stride;
        size_t d = 0;
        for (; d + VALUE_VECS * WIDTH <= hd; d += VALUE_VECS * WIDTH)
            if (at_once == VALUE_QUERIES)
                add_values(VALUE_QUERIES, VALUE_VECS, values, hd, from, to, w, stride, outs + i, d);
            else
                add_values(1, VALUE_VECS, values, hd, from, to, w, stride, outs + i, d);
        for (; d < hd; d += WIDTH)
            for (int k = 0; k < at_once; k++)
                add_values(1, 1, values, hd, from, to, w + (size_t)k * stride, stride, outs + i + k, d);
        i += at_once;
    }
}

/* The keys of 16 places along a path that leads through `path` behind the text. */
static void gather_keys(const er_attention *a, const float *keys, const int32_t *path, size_t from, size_t n,
                        float *tile) {
    const size_t hd = a->head_dim;
    memset(tile, 0, hd * ER_LANES * sizeof(float));
    for (size_t lane = 0; lane < ER_LANES && from + lane < n; lane++) {
        const size_t j = from + lane, cell = j < a->n_text ? j : a->n_text + (size_t)path[j - a->n_text];
        const float *source = keys + cell / ER_LANES * ER_LANES * hd + cell % ER_LANES;
        for (size_t d = 0; d < hd; d++)
            tile[d * ER_LANES + lane] = source[d * ER_LANES];
    }
}

static void attend(const er_attention *a, size_t kv_head, size_t first_row, size_t n_rows, float *scratch) {
    const size_t hd = a->head_dim, group = a->n_head / a->n_head_kv, pending = a->n_pending - a->n_rows;
    const size_t stride = (a->n_text + a->n_pending + ER_LANES - 1) / ER_LANES * ER_LANES;
    const float *keys = a->keys + kv_head * a->n_cells * hd, *values = a->values + kv_head * a->n_cells * hd;
    const float scale = 1.0f / sqrtf((float)hd);
    float *queries = scratch, *scores = queries + ER_LANES * hd, *tile = scores + ER_LANES * stride;
    int32_t *path = (int32_t *)(tile + ER_LANES * hd);
    /* A tree's rows take different paths: one at a time. */
    const size_t most = a->is_chain ? ER_LANES : group < ER_LANES ? group : ER_LANES;
    size_t n_queries = n_rows * group, done = 0;
    while (done < n_queries) {
        size_t n = n_queries - done < most ? n_queries - done : most, lengths[ER_LANES], least = SIZE_MAX, longest = 0;
        if (!a->is_chain && n > group - done % group)
            n = group - done % group;
        float *outs[ER_LANES];
        for (size_t i = 0; i < n; i++) {
            const size_t r = first_row + (done + i) / group, head = kv_head * group + (done + i) % group;
            const size_t position = a->n_text + (size_t)a->depths[pending + r];
            float *q = queries + i * hd;
            rotate(a, a->qkv + r * (a->n_head + 2 * a->n_head_kv) * hd + head * hd, position, q);
            for (size_t d = 0; d < hd; d++)
                q[d] *= scale;
            outs[i] = a->out + (r * a->n_head + head) * hd;
            memset(outs[i], 0, hd * sizeof(float));
            lengths[i] = position + 1;
            least = lengths[i] < least ? lengths[i] : least;
            longest = lengths[i] > longest ? lengths[i] : longest;
        }
        size_t direct = (longest + ER_LANES - 1) / ER_LANES * ER_LANES;
        if (!a->is_chain) {
            int32_t node = (int32_t)(pending + first_row + done / group);
            for (size_t place = longest - a->n_text; place-- > 0; node = a->parents[node])
                path[place] = node;
            direct = a->n_text / ER_LANES * ER_LANES;
        }
        for (size_t j = 0; j < direct; j += ER_LANES)
            score((int)n, queries, hd, keys + j * hd, scores + j, stride);
        for (size_t j = direct; j < longest; j += ER_LANES) {
            gather_keys(a, keys, path, j, longest, tile);
            score((int)n, queries, hd, tile, scores + j, stride);
        }
        float over_total[ER_LANES];
        for (size_t i = 0; i < n; i++)
            over_total[i] = soften(scores + i * stride, lengths[i]);
        /* Together as far as all rows go, then each row the rest of its way. */
        const size_t common = a->is_chain ? least : a->n_text;
        add((int)n, values, hd, 0, common, scores, stride, outs);
        if (a->is_chain)
            for (size_t i = 0; i < n; i++)
                add(1, values, hd, common, lengths[i], scores + i * stride, stride, outs + i);
        else
            for (size_t j = common; j < longest; j++) {
                const float *value = values + (a->n_text + (size_t)path[j - a->n_text]) * hd;
                add((int)n, value, hd, 0, 1, scores + j, stride, outs);
            }
        for (size_t i = 0; i < n; i++)
            for (size_t d = 0; d < hd; d++)
                outs[i][d] *= over_total[i];
        done += n;
    }
}

const er_attention_variant VARIANT = {VARIANT_NAME, runs_here, store, attend};
