/* Experts: feed-forward networks of which a row uses some, and the order of its sums.
 *
 * A row has a score of every expert. It uses the n_used experts with the highest scores, of equal ones those with lower
 * numbers, and adds them in ascending order of their numbers, whatever its scores are:
 *
 *     weight_e = exp(score_e - highest score), by the polynomial in exponential.h
 *     share_e = weight_e / sum of weights, of all experts or of the used ones, in ascending order of their numbers
 *     share_e = share_e / max(sum of the used experts' shares, ascending, 2^-14), where shares are normalized
 *     gate_e, up_e = products as in rows.h, plus a bias if there is one
 *     hidden_e = gate_e / (1 + exp(-gate_e)) * up_e; where there is a limit, with g = min(gate_e, limit) and
 *                u = max(-limit, min(up_e, limit)): g / (1 + exp(-alpha * g)) * (u + 1)
 *     down_e = product of hidden_e as in rows.h, plus a bias if there is one
 *     out = fma(share_e, down_e, out), from +0 on
 *
 * Where experts have preferences, share_e is 1 / (1 + exp(-score_e)) before it is normalized, and experts are chosen by
 * share_e + preference_e instead of by their scores.
 *
 * So a row's result is a function of its input and its scores alone, whatever other rows a call has and whichever of
 * them use the same experts. Numbers that are NaN are stored as in rows.h; a score that is no finite number makes all
 * shares of its row NaN.
 *
 * The matrices of all experts lie on top of each other, as one packed matrix in which each begins with a group of 16
 * outputs of its own.
 */
#ifndef EDGE_ROWS_EXPERTS_H
#define EDGE_ROWS_EXPERTS_H

#include "vectors.h"

typedef struct {
    size_t n_expert, n_used;
    bool of_all;     /* weights are shares of the sum of all experts' weights, else of the used ones' */
    bool normalized; /* the used experts' shares are divided by their sum */
    const float *preferences; /* [n_expert], where shares are squashed scores; else NULL */
} er_choice;

/* The experts that a row uses, ascending, and their shares, [n_used] each. scratch: er_choice_scratch floats. */
void er_choose(const er_vectors *vectors, const er_choice *choice, const float *scores, int32_t *chosen,
               float *shares, float *scratch);
size_t er_choice_scratch(const er_choice *choice);

#endif
