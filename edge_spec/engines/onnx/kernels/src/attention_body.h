/* Attention, written once for all vector widths. See vectors_body.h. */
#include <math.h>
#include <string.h>

#include "attention.h"
#include "exponential.h"
#include "half.h"
#include "layout.h"

enum {
    PARTS = ER_LANES / WIDTH,
    VALUE_VECS = 4,
    MOST_VALUE_QUERIES = 4, /* of any variant */
    LINE_BYTES = 64,
    /* Memory is asked for line by line, as much later as computing so many bytes takes: a whole tile at once would keep
     * what is needed next waiting. */
    BYTES_AHEAD = 8192,
    /* Finding the page of a tile takes longer than that. */
    PAGES_AHEAD = 8,
};

/* Numbers i and following of an array of 16-bit or 32-bit floats; `f16` is a constant wherever this is called. */
ER_INLINE vec load(const void *base, size_t i, bool f16) {
    return f16 ? LOAD_HALF((const uint16_t *)base + i) : LOAD((const float *)base + i);
}

ER_INLINE const void *offset(const void *base, size_t i, bool f16) {
    return (const char *)base + i * (f16 ? sizeof(uint16_t) : sizeof(float));
}

static void rotate(const er_attention *a, const float *x, size_t position, float *y) {
    const size_t half = a->n_rotated / 2;
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
    memcpy(y + a->n_rotated, x + a->n_rotated, (a->head_dim - a->n_rotated) * sizeof(float));
}

/* The cell of a place of a text. */
ER_INLINE size_t cell_of(const er_text *t, size_t place) {
    return (size_t)t->tiles[place / ER_LANES] * ER_LANES + place % ER_LANES;
}

/* Which node of its text row r is. */
ER_INLINE size_t node_of(const er_text *t, size_t r) { return t->n_pending - t->n_rows + r - t->first_row; }

/* How many tiles ahead memory is asked for. */
ER_INLINE size_t tiles_ahead(size_t hd, bool f16) {
    const size_t tile_bytes = ER_LANES * hd * (f16 ? sizeof(uint16_t) : sizeof(float));
    return (BYTES_AHEAD + tile_bytes - 1) / tile_bytes;
}

/* The numbers of a tile. */
ER_INLINE const void *tile_at(const void *base, int32_t tile, size_t hd, bool f16) {
    return offset(base, (size_t)tile * ER_LANES * hd, f16);
}

/* Asks for n numbers. */
ER_INLINE void ask_for(const void *base, size_t n, bool f16) {
    for (size_t at = 0; at < n * (f16 ? sizeof(uint16_t) : sizeof(float)); at += LINE_BYTES)
        ER_PREFETCH((const char *)base + at);
}

static void store(const er_attention *a, size_t kv_head, size_t first_row, size_t n_rows) {
    const size_t hd = a->head_dim;
    const er_text *t = a->texts;
    float key[ER_MAX_HEAD_DIM];
    for (size_t r = first_row; r < first_row + n_rows; r++) {
        while (r >= t->first_row + t->n_rows)
            t++;
        const float *row = a->qkv + r * a->n_row;
        const size_t node = node_of(t, r), cell = cell_of(t, t->n_text + node);
        rotate(a, row + (a->n_head + kv_head) * hd, t->n_text + (size_t)t->depths[node], key);
        const float *value = row + (a->n_head + a->n_head_kv + kv_head) * hd;
        const size_t key_at = (kv_head * a->n_cells + cell / ER_LANES * ER_LANES) * hd + cell % ER_LANES;
        const size_t value_at = (kv_head * a->n_cells + cell) * hd;
        if (a->f16)
            for (size_t d = 0; d < hd; d++) {
                ((uint16_t *)a->keys)[key_at + d * ER_LANES] = er_to_half(key[d]);
                ((uint16_t *)a->values)[value_at + d] = er_to_half(value[d]);
            }
        else
            for (size_t d = 0; d < hd; d++) {
                ((float *)a->keys)[key_at + d * ER_LANES] = key[d];
                ((float *)a->values)[value_at + d] = value[d];
            }
    }
}

/* Scores of n queries, [n, head_dim], for the 16 cells of a tile; query i's go to scores + i * stride. Asks for the tile
 * `soon` meanwhile, unless it is NULL. */
ER_INLINE void score_tile(int n, const float *queries, size_t hd, const void *tile, const void *soon, bool f16,
                          float *scores, size_t stride) {
    vec sums[SCORE_QUERIES][PARTS];
    for (int i = 0; i < n; i++)
        for (int p = 0; p < PARTS; p++)
            sums[i][p] = SET1(0.0f);
    for (size_t d = 0; d < hd; d++) {
        vec key[PARTS];
        if (soon != NULL && d % 2 == 0)
            ask_for(offset(soon, d * ER_LANES, f16), 2 * ER_LANES, f16);
        for (int p = 0; p < PARTS; p++)
            key[p] = load(tile, d * ER_LANES + (size_t)p * WIDTH, f16);
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

ER_INLINE void score(int n, const float *queries, size_t hd, const void *tile, const void *soon, bool f16,
                     float *scores, size_t stride) {
    for (; n >= SCORE_QUERIES; n -= SCORE_QUERIES, queries += SCORE_QUERIES * hd, scores += SCORE_QUERIES * stride) {
        score_tile(SCORE_QUERIES, queries, hd, tile, soon, f16, scores, stride);
        soon = NULL;
    }
    if (n >= 4 && SCORE_QUERIES > 4) {
        score_tile(4, queries, hd, tile, soon, f16, scores, stride);
        n -= 4, queries += 4 * hd, scores += 4 * stride, soon = NULL;
    }
    switch (n) {
    case 3: score_tile(3, queries, hd, tile, soon, f16, scores, stride); break;
    case 2: score_tile(2, queries, hd, tile, soon, f16, scores, stride); break;
    case 1: score_tile(1, queries, hd, tile, soon, f16, scores, stride); break;
    }
}

/* Turns scores from place `from` to n into weights, in place; returns 1 / their sum, to which a sink's weight is added,
 * if there is one. There is room for whole tiles. */
static float softmax(float *scores, size_t from, size_t n, const float *sink) {
    const size_t start = from / ER_LANES * ER_LANES, end = (n + ER_LANES - 1) / ER_LANES * ER_LANES;
    float lanes[ER_LANES];
    for (size_t j = start; j < from; j++)
        scores[j] = -INFINITY;
    for (size_t j = n; j < end; j++)
        scores[j] = -INFINITY;
    vec highest = LOAD(scores + start);
    for (size_t j = start + WIDTH; j < end; j += WIDTH)
        highest = MAX(highest, LOAD(scores + j));
    STORE(lanes, highest);
    float most = lanes[0];
    for (int i = 1; i < WIDTH; i++)
        most = lanes[i] > most ? lanes[i] : most;
    most = sink != NULL && *sink > most ? *sink : most;
    for (size_t j = start; j < end; j += WIDTH)
        STORE(scores + j, exponential(SUB(LOAD(scores + j), SET1(most))));
    for (size_t j = start; j < from; j++)
        scores[j] = 0.0f;
    for (size_t j = n; j < end; j++)
        scores[j] = 0.0f;
    vec sums[PARTS];
    for (int p = 0; p < PARTS; p++)
        sums[p] = SET1(0.0f);
    for (size_t j = start; j < end; j += ER_LANES)
        for (int p = 0; p < PARTS; p++)
            sums[p] = ADD(sums[p], LOAD(scores + j + p * WIDTH));
    for (int p = 0; p < PARTS; p++)
        STORE(lanes + p * WIDTH, sums[p]);
    for (int apart = ER_LANES / 2; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++)
            lanes[i] += lanes[i + apart];
    const float total = lanes[0];
    if (sink == NULL)
        return 1.0f / total;
    STORE(lanes, exponential(SET1(*sink - most)));
    return 1.0f / (total + lanes[0]);
}

/* Adds the values of places [from, to) of a text to n outputs, for vecs * WIDTH of their numbers. The first weight is
 * that of place `from`. */
ER_INLINE void add_numbers(int n, int vecs, const void *values, bool f16, size_t hd, const int32_t *tiles, size_t from,
                           size_t to, const float *weights, size_t stride, float *const *outs, size_t d) {
    const size_t last_tile = (to - 1) / ER_LANES, ahead = tiles_ahead(hd, f16);
    vec sums[MOST_VALUE_QUERIES][VALUE_VECS];
    for (int i = 0; i < n; i++)
        for (int v = 0; v < vecs; v++)
            sums[i][v] = LOAD(outs[i] + d + (size_t)v * WIDTH);
    while (from < to) {
        const size_t lane = from % ER_LANES, left = to - from, rest = ER_LANES - lane;
        const size_t some = left < rest ? left : rest, here = from / ER_LANES, at = lane * hd + d;
        const void *value_at = offset(tile_at(values, tiles[here], hd, f16), at, f16);
        const void *soon = here + ahead <= last_tile ? tile_at(values, tiles[here + ahead], hd, f16) : NULL;
        if (here + PAGES_AHEAD <= last_tile)
            ER_PREFETCH(offset(tile_at(values, tiles[here + PAGES_AHEAD], hd, f16), d, f16));
        for (size_t j = 0; j < some; j++) {
            vec value[VALUE_VECS];
            if (soon != NULL)
                ask_for(offset(soon, at + j * hd, f16), (size_t)vecs * WIDTH, f16);
            for (int v = 0; v < vecs; v++)
                value[v] = load(value_at, j * hd + (size_t)v * WIDTH, f16);
            for (int i = 0; i < n; i++) {
                const vec w = SET1(weights[(size_t)i * stride + j]);
                for (int v = 0; v < vecs; v++)
                    sums[i][v] = FMA(w, value[v], sums[i][v]);
            }
        }
        from += some;
        weights += some;
    }
    for (int i = 0; i < n; i++)
        for (int v = 0; v < vecs; v++)
            STORE(outs[i] + d + (size_t)v * WIDTH, sums[i][v]);
}

ER_INLINE void add_values(int n, const void *values, bool f16, size_t hd, const int32_t *tiles, size_t from, size_t to,
                          const float *weights, size_t stride, float *const *outs) {
    size_t d = 0;
    for (; d + VALUE_VECS * WIDTH <= hd; d += VALUE_VECS * WIDTH)
        add_numbers(n, VALUE_VECS, values, f16, hd, tiles, from, to, weights, stride, outs, d);
    for (; d < hd; d += WIDTH)
        add_numbers(n, 1, values, f16, hd, tiles, from, to, weights, stride, outs, d);
}

ER_INLINE void add_up(int n, const void *values, bool f16, size_t hd, const int32_t *tiles, size_t from, size_t to,
                   const float *weights, size_t stride, float *const *outs) {
    if (from >= to)
        return;
    for (; n >= VALUE_QUERIES; n -= VALUE_QUERIES, weights += VALUE_QUERIES * stride, outs += VALUE_QUERIES)
        add_values(VALUE_QUERIES, values, f16, hd, tiles, from, to, weights, stride, outs);
    switch (n) {
    case 3: add_values(3, values, f16, hd, tiles, from, to, weights, stride, outs); break;
    case 2: add_values(2, values, f16, hd, tiles, from, to, weights, stride, outs); break;
    case 1: add_values(1, values, f16, hd, tiles, from, to, weights, stride, outs); break;
    }
}

/* The place at which the cell of a path's place lies: the path continues the text through the pending nodes `path`. */
ER_INLINE size_t kept_at(const er_text *t, const int32_t *path, size_t place) {
    return place < t->n_text ? place : t->n_text + (size_t)path[place - t->n_text];
}

/* The keys of 16 places along a path. */
ER_INLINE void gather_keys(const er_text *t, size_t hd, const void *keys, bool f16, const int32_t *path, size_t from,
                           size_t n, void *tile) {
    memset(tile, 0, hd * ER_LANES * sizeof(float));
    for (size_t lane = 0; lane < ER_LANES && from + lane < n; lane++) {
        const size_t cell = cell_of(t, kept_at(t, path, from + lane));
        const size_t source = cell / ER_LANES * ER_LANES * hd + cell % ER_LANES;
        for (size_t d = 0; d < hd; d++)
            if (f16)
                ((uint16_t *)tile)[d * ER_LANES + lane] = ((const uint16_t *)keys)[source + d * ER_LANES];
            else
                ((float *)tile)[d * ER_LANES + lane] = ((const float *)keys)[source + d * ER_LANES];
    }
}

/* Rows from first_row up to last_row, all of one text, for `group` heads of one head of keys. */
ER_INLINE void attend_text(const er_attention *a, const er_text *t, bool f16, size_t first_head, size_t group,
                           size_t first_row, size_t last_row, float *scratch) {
    const size_t hd = a->head_dim, kv_head = first_head / (a->n_head / a->n_head_kv);
    const size_t stride = (a->n_seen + ER_LANES - 1) / ER_LANES * ER_LANES;
    const float scale = 1.0f / sqrtf((float)hd);
    const void *keys = offset(a->keys, kv_head * a->n_cells * hd, f16);
    const void *values = offset(a->values, kv_head * a->n_cells * hd, f16);
    float *queries = scratch, *scores = queries + ER_LANES * hd, *tile = scores + ER_LANES * stride;
    int32_t *path = (int32_t *)(tile + ER_LANES * hd);
    /* A tree's rows take different paths: one at a time. */
    const size_t most = t->is_chain ? ER_LANES : group < ER_LANES ? group : ER_LANES;
    size_t n_queries = (last_row - first_row) * group, done = 0;
    while (done < n_queries) {
        size_t n = n_queries - done < most ? n_queries - done : most;
        size_t starts[ER_LANES], lengths[ER_LANES], first = SIZE_MAX, last_start = 0, least = SIZE_MAX, longest = 0;
        if (!t->is_chain && n > group - done % group)
            n = group - done % group;
        float *outs[ER_LANES];
        for (size_t i = 0; i < n; i++) {
            const size_t r = first_row + (done + i) / group, head = first_head + (done + i) % group;
            const size_t position = t->n_text + (size_t)t->depths[node_of(t, r)];
            float *q = queries + i * hd;
            rotate(a, a->qkv + r * a->n_row + head * hd, position, q);
            const float own = a->query_scales != NULL ? scale * a->query_scales[position] : scale;
            for (size_t d = 0; d < hd; d++)
                q[d] *= own;
            outs[i] = a->out + (r * a->n_head + head) * hd;
            memset(outs[i], 0, hd * sizeof(float));
            lengths[i] = position + 1;
            starts[i] = a->window != 0 && lengths[i] > a->window ? lengths[i] - a->window : 0;
            if (starts[i] < a->unseen)
                starts[i] = a->unseen < position ? a->unseen : position;
            first = starts[i] < first ? starts[i] : first;
            last_start = starts[i] > last_start ? starts[i] : last_start;
            least = lengths[i] < least ? lengths[i] : least;
            longest = lengths[i] > longest ? lengths[i] : longest;
        }
        size_t direct = (longest + ER_LANES - 1) / ER_LANES * ER_LANES, j = first / ER_LANES * ER_LANES;
        if (!t->is_chain) {
            int32_t node = (int32_t)node_of(t, first_row + done / group);
            for (size_t place = longest - t->n_text; place-- > 0; node = t->parents[node])
                path[place] = node;
            direct = t->n_text / ER_LANES * ER_LANES;
        }
        /* After the keys come the values. */
        const size_t first_tile = j / ER_LANES, n_tiles = direct / ER_LANES, ahead = tiles_ahead(hd, f16);
        for (size_t here = first_tile; here < n_tiles; here++, j += ER_LANES) {
            const size_t next = here + ahead, of_values = first_tile + next - n_tiles;
            const void *soon = next < n_tiles        ? tile_at(keys, t->tiles[next], hd, f16)
                               : of_values < n_tiles ? tile_at(values, t->tiles[of_values], hd, f16)
                                                     : NULL;
            if (here + PAGES_AHEAD < n_tiles)
                ER_PREFETCH(tile_at(keys, t->tiles[here + PAGES_AHEAD], hd, f16));
            score((int)n, queries, hd, tile_at(keys, t->tiles[here], hd, f16), soon, f16, scores + j, stride);
        }
        for (; j < longest; j += ER_LANES) {
            gather_keys(t, hd, keys, f16, path, j, longest, tile);
            score((int)n, queries, hd, tile, NULL, f16, scores + j, stride);
        }
        float over_total[ER_LANES];
        for (size_t i = 0; i < n; i++) {
            const float *sink = a->sinks != NULL ? a->sinks + first_head + (done + i) % group : NULL;
            over_total[i] = softmax(scores + i * stride, starts[i], lengths[i], sink);
        }
        /* Together where all rows go, before and after that each row by itself. */
        const size_t end = t->is_chain ? least : t->n_text, begin = last_start < end ? last_start : end;
        for (size_t i = 0; i < n; i++)
            add_up(1, values, f16, hd, t->tiles, starts[i], begin, scores + i * stride + starts[i], stride, outs + i);
        add_up((int)n, values, f16, hd, t->tiles, begin, end, scores + begin, stride, outs);
        if (t->is_chain)
            for (size_t i = 0; i < n; i++) {
                const size_t rest = starts[i] > end ? starts[i] : end;
                add_up(1, values, f16, hd, t->tiles, rest, lengths[i], scores + i * stride + rest, stride, outs + i);
            }
        else
            for (j = first > end ? first : end; j < longest; j++) {
                const size_t at = kept_at(t, path, j);
                add_up((int)n, values, f16, hd, t->tiles, at, at + 1, scores + j, stride, outs);
            }
        for (size_t i = 0; i < n; i++)
            for (size_t d = 0; d < hd; d++)
                outs[i][d] *= over_total[i];
        done += n;
    }
}

ER_INLINE void attend_to(const er_attention *a, bool f16, size_t first_head, size_t n_heads, size_t first_row,
                         size_t n_rows, float *scratch) {
    const size_t last_row = first_row + n_rows;
    for (const er_text *t = a->texts; first_row < last_row; t++) {
        const size_t end = t->first_row + t->n_rows < last_row ? t->first_row + t->n_rows : last_row;
        if (first_row < end) {
            attend_text(a, t, f16, first_head, n_heads, first_row, end, scratch);
            first_row = end;
        }
    }
}

static void attend(const er_attention *a, size_t first_head, size_t n_heads, size_t first_row, size_t n_rows,
                   float *scratch) {
    if (a->f16)
        attend_to(a, true, first_head, n_heads, first_row, n_rows, scratch);
    else
        attend_to(a, false, first_head, n_heads, first_row, n_rows, scratch);
}
