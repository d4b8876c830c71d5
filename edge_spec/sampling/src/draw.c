/* One draw by shared noise, for the usual case: top-k, top-p, min-p and temperature, with a few candidates.
 *
 * Python (candidates.py and sampler.py) is the reference, and this equals it bit for bit: the same comparisons, the
 * same double operations in the same order, exp and log of the same C library. Whatever is not the usual case (no
 * number or an infinity as the best, more than FEW candidates) is left to Python by returning 0. Compile without
 * contraction of products and sums.
 */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

enum { FEW = 96, SOME = 16, LANES = 16, BLOCK = 4 * LANES, MAX_BLOCKS = 8192 };

/* What stays the same from draw to draw. Field for field the Structure in native.py. */
struct draw_settings {
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1: all */
    double temperature; /* 0: scores without noise, at temperature 1 */
    double deepest;     /* min-p as a distance below the best logit; infinite: all */
};

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static double gumbel(uint64_t key, uint64_t token) {
    const uint64_t bits = mix(key + (token + 1) * 0x9E3779B97F4A7C15u);
    return -log(-log(((double)(bits >> 12) + 0.5) * 0x1p-52));
}

/* The second one where the first is NaN. */
static float larger(float a, float b) { return a > b ? a : b; }

/* The largest number of a whole block, -INFINITY if there is none. Compilers turn maxima lane by lane into vector
 * instructions, and those along a row only if they may forget about NaN. */
static float maximum(const float *block) {
    float most[LANES];
    for (int i = 0; i < LANES; i++) {
        float x = larger(block[i], -INFINITY);
        x = larger(block[i + LANES], x);
        x = larger(block[i + 2 * LANES], x);
        most[i] = larger(block[i + 3 * LANES], x);
    }
    for (int i = 0; i < LANES / 2; i++) most[i] = larger(most[i + LANES / 2], most[i]);
    for (int i = 0; i < LANES / 4; i++) most[i] = larger(most[i + LANES / 4], most[i]);
    return larger(larger(most[0], most[1]), larger(most[2], most[3]));
}

/* What is added to some logits of a row before the draw, one after the other: field for field in native.py. */
struct changes {
    int64_t n;
    int32_t columns[FEW];
    float amounts[FEW];
};

/* A row in blocks: those with changes are copies. */
struct row {
    const float *logits;
    int64_t n, n_blocks;
    int n_copies;
    int64_t copied[FEW];
    float copies[FEW][BLOCK];
    float maxima[MAX_BLOCKS];
};

static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t size_of(const struct row *row, int64_t block) { return least_of(BLOCK, row->n - block * BLOCK); }

static const float *block_of(const struct row *row, int64_t block) {
    for (int i = 0; i < row->n_copies; i++)
        if (row->copied[i] == block) return row->copies[i];
    return row->logits + block * BLOCK;
}

static float maximum_of(const float *block, int64_t size) {
    float most = -INFINITY;
    if (size == BLOCK) return maximum(block);
    for (int64_t i = 0; i < size; i++) most = larger(block[i], most);
    return most;
}

/* The copy of a block, made if there is none. */
static float *copy_of(struct row *row, int64_t block) {
    int i = 0;
    while (i < row->n_copies && row->copied[i] != block) i++;
    if (i == row->n_copies) {
        memcpy(row->copies[i], row->logits + block * BLOCK, (size_t)size_of(row, block) * sizeof(float));
        row->copied[i] = block;
        row->n_copies++;
    }
    return row->copies[i];
}

/* Look at a row, and return its largest number; NaN if it cannot be looked at. */
static float open_row(struct row *row, const float *logits, int64_t n, const struct changes *changes) {
    float best = -INFINITY;
    if (n < 1 || n > (int64_t)BLOCK * MAX_BLOCKS) return NAN;
    row->logits = logits;
    row->n = n;
    row->n_blocks = (n + BLOCK - 1) / BLOCK;
    row->n_copies = 0;
    for (int64_t i = 0; changes && i < changes->n; i++) {
        const int32_t column = changes->columns[i];
        if (column >= n) return NAN;
        copy_of(row, column / BLOCK)[column % BLOCK] += changes->amounts[i];
    }
    for (int64_t block = 0; block < row->n_blocks; block++)
        row->maxima[block] = maximum_of(logits + block * BLOCK, size_of(row, block));
    for (int i = 0; i < row->n_copies; i++)
        row->maxima[row->copied[i]] = maximum_of(row->copies[i], size_of(row, row->copied[i]));
    for (int64_t block = 0; block < row->n_blocks; block++) best = larger(row->maxima[block], best);
    return best;
}

/* The best of what was seen so far, best first, what came first among equals; at most `most`. */
struct best {
    int n, most;
    int32_t ids[FEW];
    float logits[FEW];
};

static void enter(struct best *best, float logit, int32_t id) {
    if (best->n == best->most) {
        if (!(logit > best->logits[best->n - 1])) return;
        best->n--;
    }
    int place = best->n++;
    for (; place > 0 && best->logits[place - 1] < logit; place--) {
        best->logits[place] = best->logits[place - 1];
        best->ids[place] = best->ids[place - 1];
    }
    best->logits[place] = logit;
    best->ids[place] = id;
}

/* The best `most` finite logits of a row. The `most` best maxima of blocks bound the last of them from below. */
static void find_best(const struct row *row, int most, struct best *best) {
    float lowest = -FLT_MAX;
    best->n = 0;
    best->most = most;
    if (row->n_blocks >= most) {
        for (int64_t block = 0; block < row->n_blocks; block++)
            if (row->maxima[block] >= lowest) enter(best, row->maxima[block], 0);
        if (best->n == most) lowest = best->logits[most - 1];
        best->n = 0;
    }
    for (int64_t block = 0; block < row->n_blocks; block++) {
        if (!(row->maxima[block] >= lowest)) continue;
        const float *logits = block_of(row, block);
        const int64_t size = size_of(row, block);
        for (int64_t i = 0; i < size; i++)
            if (logits[i] >= lowest) enter(best, logits[i], (int32_t)(block * BLOCK + i));
    }
}

static int64_t first_reaching(const double *masses, int64_t n, double wanted) {
    int64_t i = 0;
    while (i < n && masses[i] < wanted) i++;
    return i;
}

/* How many of the best tokens top-p and min-p keep; 0 if the n_others tokens that were not seen, none of which lies
 * less deep than the last one, may decide it. */
static int64_t n_likely(const double *depths, int64_t n, int64_t n_others, const struct draw_settings *s) {
    double masses[FEW];
    int64_t n_near = 0;
    while (n_near < n && depths[n_near] <= s->deepest) n_near++;
    if (n_near == n && n_others) n_near = n + 1;
    if (s->top_p == 1) return n_near <= n ? n_near : 0;
    for (int64_t i = 0; i < n; i++) masses[i] = (i ? masses[i - 1] : 0.0) + exp(-depths[i]);
    const double seen = masses[n - 1], all = seen + (double)n_others * exp(-depths[n - 1]);
    const int64_t least = least_of(n_near, first_reaching(masses, n, s->top_p * seen) + 1);
    const int64_t most = least_of(n_near, first_reaching(masses, n, s->top_p * all) + 1);
    return least == most && most <= n ? most : 0;
}

/* The first of the places where a row is largest. */
static int32_t first_of(const struct row *row, float best) {
    int64_t block = 0, i = 0;
    while (row->maxima[block] != best) block++;
    const float *logits = block_of(row, block);
    while (logits[i] != best) i++;
    return (int32_t)(block * BLOCK + i);
}

/* What can be drawn of a row that has been opened, with noisy scores, in the order of the logits; returns how many, 0 to
 * leave the draw to Python. */
static int32_t draw(const struct row *row, float top, uint64_t key, const int64_t *tokens,
                    const struct draw_settings *s, int32_t *ids, double *scores) {
    double depths[FEW];
    struct best best;
    const int64_t k = s->top_k > 0 ? least_of(s->top_k, row->n) : row->n;
    int64_t n_left = 0;
    /* Top-p and min-p leave a few most often: then a short list shows that, which is found in half of the time. */
    for (int64_t most = least_of(k, SOME); !n_left; most = least_of(k, FEW)) {
        find_best(row, (int)most, &best);
        for (int i = 0; i < best.n; i++) depths[i] = (double)top - (double)best.logits[i];
        /* Fewer than were asked for means that there are no others. */
        n_left = n_likely(depths, best.n, best.n < most ? 0 : k - best.n, s);
        if (most == least_of(k, FEW)) break;
    }
    for (int64_t i = 0; i < n_left; i++) {
        ids[i] = tokens ? (int32_t)tokens[best.ids[i]] : best.ids[i];
        scores[i] = (double)best.logits[i] - (double)top;
        if (s->temperature > 0) scores[i] = scores[i] / s->temperature + gumbel(key, (uint64_t)ids[i]);
    }
    return (int32_t)n_left;
}

static bool is_finite(float x) { return x >= -FLT_MAX && x <= FLT_MAX; }

/* Whether the first of two tokens is drawn rather than the second: by its score, the lowest id among equals. */
static bool is_before(double score, int32_t id, double other, int32_t other_id) {
    return score > other || (score == other && id < other_id);
}

/* A row that is asked about. Field for field what native.py packs. */
struct asked {
    const float *logits;
    int64_t n;
    uint64_t stream; /* of the reply's noise, and the token's place in the reply */
    int64_t index;
    const struct changes *changes; /* NULL for none */
    const int64_t *tokens;         /* token ids of the columns, ascending; NULL where they are the columns themselves */
    const struct draw_settings *settings;
};

/* position_key in noise.py. */
static uint64_t key_of(const struct asked *a) {
    return mix(a->stream + ((uint64_t)a->index + 1) * 0x9E3779B97F4A7C15u);
}

/* The token that a row is drawn to, once it is changed: the one with the best score, the lowest id among equals. -1
 * leaves it to Python. The number in the name changes with the arguments, so that a library from an earlier build is not
 * found. */
EXPORT int32_t edge_pick_3(const struct asked *a) {
    struct row row;
    int32_t ids[FEW];
    double scores[FEW];
    const float top = open_row(&row, a->logits, a->n, a->changes);
    if (!is_finite(top)) return -1;
    if (a->settings->temperature == 0) {
        const int32_t column = first_of(&row, top);
        return a->tokens ? (int32_t)a->tokens[column] : column;
    }
    const int32_t n_left = draw(&row, top, key_of(a), a->tokens, a->settings, ids, scores);
    if (n_left == 0) return -1;
    int32_t best = 0;
    for (int32_t i = 1; i < n_left; i++)
        if (is_before(scores[i], ids[i], scores[best], ids[best])) best = i;
    return ids[best];
}

static int32_t guess(const struct asked *a, int32_t *ids, double *chances) {
    struct row row;
    double total = 0;
    const float top = open_row(&row, a->logits, a->n, a->changes);
    if (!is_finite(top)) return 0;
    const int32_t n_left = draw(&row, top, key_of(a), a->tokens, a->settings, ids, chances);
    if (n_left == 0) return 0;
    for (int32_t i = 1; i < n_left; i++) {
        const double score = chances[i];
        const int32_t id = ids[i];
        int32_t place = i;
        for (; place > 0 && is_before(score, id, chances[place - 1], ids[place - 1]); place--) {
            chances[place] = chances[place - 1];
            ids[place] = ids[place - 1];
        }
        chances[place] = score;
        ids[place] = id;
    }
    const double best = chances[0];
    for (int32_t i = 0; i < n_left; i++) total += chances[i] = exp(chances[i] - best);
    for (int32_t i = 0; i < n_left; i++) chances[i] /= total;
    return n_left;
}

struct found {
    int64_t id;
    double chance;
};

/* The `most` likeliest outcomes of another model's pick for each of several rows, best first, and their chances; see
 * Sampler.guess. `found` has room for `most`, at most FEW, of each row; after the last one the id is -1. Where there is
 * none it is left to Python. */
EXPORT void edge_guess_2(int64_t n_rows, const struct asked *rows, int64_t most, struct found *found) {
    int32_t ids[FEW];
    double chances[FEW];
    for (int64_t row = 0; row < n_rows; row++, found += most) {
        const int64_t n = guess(&rows[row], ids, chances);
        for (int64_t i = 0; i < most; i++)
            found[i] = i < n ? (struct found){ids[i], chances[i]} : (struct found){-1, 0};
    }
}
