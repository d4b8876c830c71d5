/* Which experts a row uses. */
#include "experts.h"

#include <math.h>
#include <string.h>

#include "activations.h"

static size_t whole(size_t n) { return (n + 15) / 16 * 16; }

size_t er_choice_scratch(const er_choice *choice) { return 2 * whole(choice->n_expert); }

/* The numbers of the highest scores, the highest first. */
static void find_highest(const er_choice *choice, const float *scores, int32_t *chosen) {
    size_t n = 0;
    for (size_t e = 0; e < choice->n_expert; e++) {
        if (n == choice->n_used && !(scores[e] > scores[chosen[n - 1]]))
            continue;
        size_t at = n < choice->n_used ? n++ : n - 1;
        for (; at > 0 && scores[e] > scores[chosen[at - 1]]; at--)
            chosen[at] = chosen[at - 1];
        chosen[at] = (int32_t)e;
    }
}

static void sort(int32_t *numbers, size_t n) {
    for (size_t i = 1; i < n; i++) {
        const int32_t number = numbers[i];
        size_t at = i;
        for (; at > 0 && numbers[at - 1] > number; at--)
            numbers[at] = numbers[at - 1];
        numbers[at] = number;
    }
}

static float sum(const float *x, size_t n) {
    float total = 0.0f;
    for (size_t i = 0; i < n; i++)
        total += x[i];
    return total;
}

static void normalize(const er_choice *choice, float *shares) {
    if (!choice->normalized)
        return;
    const float used = sum(shares, choice->n_used);
    for (size_t i = 0; i < choice->n_used; i++)
        shares[i] /= used < 0x1p-14f ? 0x1p-14f : used;
}

void er_choose(const er_vectors *vectors, const er_choice *choice, const float *scores, int32_t *chosen,
               float *shares, float *scratch) {
    const size_t n = choice->n_used, n_weighed = choice->of_all ? choice->n_expert : n;
    bool are_finite = true;
    for (size_t e = 0; e < choice->n_expert; e++)
        are_finite = are_finite && isfinite(scores[e]);
    float *ranks = choice->preferences != NULL && are_finite ? scratch + whole(choice->n_expert) : NULL;
    if (ranks != NULL) {
        for (size_t e = 0; e < whole(choice->n_expert); e++)
            scratch[e] = e < choice->n_expert ? scores[e] : 0.0f;
        vectors->squash(scratch, whole(choice->n_expert));
        for (size_t e = 0; e < choice->n_expert; e++)
            ranks[e] = scratch[e] + choice->preferences[e];
    }
    find_highest(choice, ranks != NULL ? ranks : scores, chosen);
    const float highest = scores[chosen[0]];
    sort(chosen, n);
    if (!are_finite) {
        for (size_t i = 0; i < n; i++)
            shares[i] = er_float_of_bits(ER_QUIET_NAN);
        return;
    }
    if (ranks != NULL) {
        for (size_t i = 0; i < n; i++)
            shares[i] = scratch[chosen[i]];
        normalize(choice, shares);
        return;
    }
    for (size_t i = 0; i < whole(n_weighed); i++)
        scratch[i] = i >= n_weighed ? highest : choice->of_all ? scores[i] : scores[chosen[i]];
    vectors->weigh(scratch, highest, whole(n_weighed));
    const float total = sum(scratch, n_weighed);
    for (size_t i = 0; i < n; i++)
        shares[i] = scratch[choice->of_all ? (size_t)chosen[i] : i] / total;
    normalize(choice, shares);
}
