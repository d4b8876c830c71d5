/* One draw by shared noise, for the usual case: what survivors.py and sampler.py do with a few candidates.
 *
 * Python is the reference and this equals it bit for bit: the same comparisons, the same double operations in the
 * same order, exp and log of the same C library. Whatever is not the usual case (not a number, too many
 * candidates, weights not seen that may decide a filter) is left to Python by returning 0. Compile without
 * contraction of products and sums.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

enum { FEW = 96, BLOCK = 64, MOST_BLOCKS = 8192 };

/* What stays the same from draw to draw. Field for field the Structure in native.py. */
struct draw_settings {
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1: all */
    double temperature; /* above 0 */
    double deepest;     /* min-p as a distance below the best logit; infinite: all */
    double first_reach; /* how far below the best logit to look, first and then */
    double second_reach;
    double lowest; /* the lowest finite float */
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

/* The best `most` ids and logits from `lowest` up, best first, lowest id first among equals. Returns how many;
 * -1 if there are more than FEW and all of them are wanted. */
static int near_ones(const float *row, size_t n, const float *blocks, float lowest, int64_t most, int32_t *ids,
                     float *logits) {
    int found = 0;
    for (size_t start = 0, block = 0; start < n; start += BLOCK, block++) {
        if (!(blocks[block] >= lowest)) continue;
        const size_t end = n - start < BLOCK ? n : start + BLOCK;
        for (size_t i = start; i < end; i++) {
            if (!(row[i] >= lowest)) continue;
            if (found == most) {
                if (!(row[i] > logits[found - 1])) continue;
                found--;
            } else if (found == FEW) {
                return -1;
            }
            int place = found++;
            for (; place > 0 && logits[place - 1] < row[i]; place--) {
                logits[place] = logits[place - 1];
                ids[place] = ids[place - 1];
            }
            logits[place] = row[i];
            ids[place] = (int32_t)i;
        }
    }
    return found;
}

static int64_t first_reaching(const double *masses, int64_t n, double wanted) {
    int64_t low = 0;
    while (low < n) {
        const int64_t middle = (low + n) / 2;
        if (masses[middle] < wanted) low = middle + 1;
        else n = middle;
    }
    return low;
}

static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* How many of the best tokens survive top-p and min-p; 0 if tokens not seen may decide it. */
static int64_t count(const double *depths, int64_t n_seen, int64_t n_unseen, double reach, const struct draw_settings *s) {
    int64_t n_min_p = n_seen + 1;
    if (!(n_unseen && s->deepest > reach))
        for (n_min_p = 0; n_min_p < n_seen && depths[n_min_p] <= s->deepest;) n_min_p++;
    if (s->top_p == 1) return n_min_p <= n_seen ? n_min_p : 0;
    double masses[FEW];
    for (int64_t i = 0; i < n_seen; i++) masses[i] = (i ? masses[i - 1] : 0.0) + exp(-depths[i]);
    const double mass = masses[n_seen - 1];
    const double all = mass + (double)n_unseen * exp(-reach);
    const int64_t least = least_of(n_min_p, first_reaching(masses, n_seen, s->top_p * mass) + 1);
    const int64_t most = least_of(n_min_p, first_reaching(masses, n_seen, s->top_p * all) + 1);
    return least == most && most <= n_seen ? most : 0;
}

/* The tokens that can be drawn, at most FEW, with their noisy scores, in the order of their logits. Returns how
 * many; 0 leaves the draw to Python. `key` is position_key of the token's index. */
EXPORT int32_t edge_draw(const float *row, int64_t n, uint64_t key, const struct draw_settings *s, int32_t *ids,
                         double *scores) {
    float blocks[MOST_BLOCKS + 1], logits[FEW];
    double depths[FEW];
    if (n < 1 || n > (int64_t)BLOCK * MOST_BLOCKS) return 0;
    const float best = maxima(row, (size_t)n, blocks);
    if (!(best >= -3.4e38f && best <= 3.4e38f)) return 0;
    const double top = best;
    const int64_t k = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    const double reaches[2] = {s->first_reach, s->second_reach};
    for (int look = reaches[0] < reaches[1] ? 0 : 1; look < 2; look++) {
        const double reach = reaches[look];
        const double lowest = top - reach > s->lowest ? top - reach : s->lowest;
        const int64_t n_seen = near_ones(row, (size_t)n, blocks, (float)lowest, k, ids, logits);
        if (n_seen < 0) return 0;
        for (int64_t i = 0; i < n_seen; i++) depths[i] = top - (double)logits[i];
        const int64_t n_left = count(depths, n_seen, lowest == s->lowest ? 0 : k - n_seen, reach, s);
        if (n_left == 0) continue;
        for (int64_t i = 0; i < n_left; i++)
            scores[i] = ((double)logits[i] - top) / s->temperature + gumbel(key, (uint64_t)ids[i]);
        return (int32_t)n_left;
    }
    return 0;
}
