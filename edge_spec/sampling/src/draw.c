/* One draw by shared noise, for the usual case: top-k, top-p, min-p and temperature, with a few candidates.
 *
 * Python (candidates.py and sampler.py) is the reference, and this equals it bit for bit: the same comparisons, the
 * same double operations in the same order, exp and log of the same C library. Whatever is not the usual case (a NaN
 * or an infinity as the best, more than FEW candidates) is left to Python by returning 0. Compile without contraction
 * of products and sums.
 */
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

enum { FEW = 96, BLOCK = 64, MAX_BLOCKS = 8192 };

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

/* Floats as integers that order alike, and back; a NaN lies above or below all numbers, by its sign. */
static int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

static float number(int32_t place) {
    const int32_t bits = ordered(place);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Maxima of the blocks of a row and of all of it. Compilers turn maxima of integers into vector instructions, and
 * those of floats only if they may forget about NaN. */
static float maxima(const float *row, size_t n, float *blocks) {
    int32_t best = INT32_MIN;
    const size_t n_whole = n / BLOCK;
    for (size_t block = 0; block <= n_whole; block++) {
        const size_t size = block < n_whole ? BLOCK : n % BLOCK;
        int32_t bits[BLOCK], most = INT32_MIN;
        memcpy(bits, row + block * BLOCK, size * sizeof *bits);
        if (size == BLOCK) {
            for (int i = 0; i < BLOCK; i++) most = ordered(bits[i]) > most ? ordered(bits[i]) : most;
        } else {
            for (size_t i = 0; i < size; i++) most = ordered(bits[i]) > most ? ordered(bits[i]) : most;
        }
        blocks[block] = size ? number(most) : -INFINITY;
        best = most > best ? most : best;
    }
    return number(best);
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
static void find_best(const float *row, size_t n, const float *blocks, int most, struct best *best) {
    const size_t n_blocks = (n + BLOCK - 1) / BLOCK;
    float lowest = -FLT_MAX;
    best->n = 0;
    best->most = most;
    if (n_blocks >= (size_t)most) {
        for (size_t block = 0; block < n_blocks; block++)
            if (blocks[block] >= lowest) enter(best, blocks[block], 0);
        if (best->n == most) lowest = best->logits[most - 1];
        best->n = 0;
    }
    for (size_t start = 0, block = 0; start < n; start += BLOCK, block++) {
        if (!(blocks[block] >= lowest)) continue;
        const size_t end = n - start < BLOCK ? n : start + BLOCK;
        for (size_t i = start; i < end; i++)
            if (row[i] >= lowest) enter(best, row[i], (int32_t)i);
    }
}

static int64_t first_reaching(const double *masses, int64_t n, double wanted) {
    int64_t i = 0;
    while (i < n && masses[i] < wanted) i++;
    return i;
}

static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

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

/* The tokens that can be drawn, at most FEW, with their noisy scores, in the order of their logits. Returns how
 * many; 0 leaves the draw to Python. `key` is position_key of the token's index; `tokens` are the token ids of the
 * columns, ascending, or NULL where these are the columns themselves. The number in the name changes with the
 * arguments, so that a library from an earlier build is not found. */
EXPORT int32_t edge_draw_3(const float *row, int64_t n, uint64_t key, const int64_t *tokens,
                           const struct draw_settings *s, int32_t *ids, double *scores) {
    float blocks[MAX_BLOCKS + 1];
    double depths[FEW];
    struct best best;
    if (n < 1 || n > (int64_t)BLOCK * MAX_BLOCKS) return 0;
    const float top = maxima(row, (size_t)n, blocks);
    if (!(top >= -FLT_MAX && top <= FLT_MAX)) return 0;
    const int64_t k = s->top_k > 0 ? least_of(s->top_k, n) : n;
    find_best(row, (size_t)n, blocks, (int)least_of(k, FEW), &best);
    for (int i = 0; i < best.n; i++) depths[i] = (double)top - (double)best.logits[i];
    /* Fewer than were asked for means that there are no others. */
    const int64_t n_left = n_likely(depths, best.n, best.n < best.most ? 0 : k - best.n, s);
    for (int64_t i = 0; i < n_left; i++) {
        ids[i] = tokens ? (int32_t)tokens[best.ids[i]] : best.ids[i];
        scores[i] = (double)best.logits[i] - (double)top;
        if (s->temperature > 0) scores[i] = scores[i] / s->temperature + gumbel(key, (uint64_t)ids[i]);
    }
    return (int32_t)n_left;
}
