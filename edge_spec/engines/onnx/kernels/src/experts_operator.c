/* Experts as an operator of ONNX Runtime, in the domain edge_spec:
 *
 *     ExpertRows(x f32[..., n_embd], scores f32[..., n_expert], gate, up, down u8[bytes],
 *                gate_bias, up_bias f32[n_expert, n_ff], down_bias f32[n_expert, n_embd],
 *                preferences f32[n_expert]) -> f32[..., n_embd]
 *
 * The biases and the preferences are optional. Attributes: n_expert, n_used, n_embd, n_ff, of_all and normalized (0 or 1), alpha and limit
 * (floats; 1 and 0 if absent), and variant for tests. experts.h says what is computed.
 *
 * Rows are sorted by expert, so that each expert's weights are read once for all rows of a call that use it. Experts
 * go by in ascending order, as many at a time as have a bounded number of rows.
 *
 * A session may say how many experts of each layer stay in memory, in its entry ER_HELD_EXPERTS. After every call the
 * pages of others are dropped, to be read from the file again when they are used; where ER_FORGETS_EXPERTS says so,
 * those that were read leave the system's cache of files, too.
 */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "experts.h"
#include "experts_operator.h"
#include "operator_inputs.h"
#include "pages.h"
#include "rows.h"

enum {
    X, SCORES, GATE, UP, DOWN, N_REQUIRED, GATE_BIAS = N_REQUIRED, UP_BIAS, DOWN_BIAS, PREFERENCES,
    N_INPUTS,
    /* A longer input takes several passes over the weights, and experts go by in groups of ER_BLOCK_USES, so
     * that scratch memory has a bound. */
    PASS_ROWS = 512,
    /* Rows that choose in one job. */
    CHOOSING_ROWS = 16,
    MAX_EXPERTS = 65536,
};

/* The experts of a layer that stay in memory, at most `most`; all if that is 0, or if they are mapped from no file. */
typedef struct {
    size_t most;
    uint64_t now, *last; /* [n_expert]: when each was used last; 0 if its pages were dropped after that */
    er_source sources[N_REQUIRED]; /* those of weights */
} held_experts;

typedef struct {
    const OrtApi *api;
    int64_t n_expert, n_used, n_embd, n_ff, of_all, normalized;
    float alpha, limit;
    const er_variant *variant;
    const er_vectors *vectors;
    held_experts held;
} operator_state;

/* Outputs of one expert in a matrix of all, the last group's padding included. */
static int64_t padded(int64_t n_out) { return (n_out + ER_GROUP - 1) / ER_GROUP * ER_GROUP; }

static OrtStatus *open_all(const operator_state *state, const OrtValue *value, size_t which, er_matrix *matrix) {
    const bool is_down = which == DOWN;
    return open_weights(state->api, value, is_down ? state->n_ff : state->n_embd,
                        state->n_expert * padded(is_down ? state->n_embd : state->n_ff), matrix);
}

static void read_float(const OrtApi *api, const OrtKernelInfo *info, const char *name, float *value) {
    OrtStatus *status = api->KernelInfoGetAttribute_float(info, name, value);
    if (status != NULL)
        api->ReleaseStatus(status);
}

static void close_held(held_experts *held) {
    free(held->last);
    for (size_t which = 0; which < N_REQUIRED; which++)
        er_close_source(&held->sources[which]);
}

static OrtStatus *ORT_CALL create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info, void **kernel) {
    operator_state state = {.api = api, .alpha = 1.0f};
    char name[64] = "";
    TRY(api->KernelInfoGetAttribute_int64(info, "n_expert", &state.n_expert));
    TRY(api->KernelInfoGetAttribute_int64(info, "n_used", &state.n_used));
    TRY(api->KernelInfoGetAttribute_int64(info, "n_embd", &state.n_embd));
    TRY(api->KernelInfoGetAttribute_int64(info, "n_ff", &state.n_ff));
    TRY(api->KernelInfoGetAttribute_int64(info, "of_all", &state.of_all));
    TRY(api->KernelInfoGetAttribute_int64(info, "normalized", &state.normalized));
    read_float(api, info, "alpha", &state.alpha);
    read_float(api, info, "limit", &state.limit);
    read_text(api, info, "variant", name, sizeof name);
    state.variant = er_find_variant(name);
    state.vectors = er_find_vectors(name);
    if (state.variant == NULL || state.vectors == NULL)
        return refuse(api, "edge_spec.ExpertRows: there is no such variant, or it cannot run on this CPU");
    if (state.n_expert < 1 || state.n_expert > MAX_EXPERTS || state.n_used < 1 || state.n_used > state.n_expert)
        return refuse(api, "edge_spec.ExpertRows: an impossible number of experts");
    if (state.n_embd < 1 || state.n_ff < 1 || state.n_embd > INT32_MAX || state.n_ff > INT32_MAX)
        return refuse(api, "edge_spec.ExpertRows: impossible sizes");
    const er_experts_operator *own = (const er_experts_operator *)op;
    state.held.most = own->held;
    for (size_t which = 0; which < N_REQUIRED; which++)
        state.held.sources[which].file = -1;
    er_matrix matrices[N_REQUIRED] = {{0}};
    for (size_t which = GATE; which <= DOWN; which++) {
        int is_constant = 0;
        const OrtValue *weights = NULL;
        TRY(api->KernelInfoGetConstantInput_tensor(info, which, &is_constant, &weights));
        if (is_constant && weights != NULL)
            TRY(open_all(&state, weights, which, &matrices[which]));
    }
    for (size_t which = GATE; which <= DOWN; which++) {
        const void *weights = matrices[which].groups;
        const size_t n_bytes = matrices[which].n_groups * matrices[which].group_bytes;
        if (state.held.most != 0 && n_bytes != 0)
            state.held.sources[which] = er_find_source(weights, n_bytes, own->forgets);
        if (!state.held.sources[which].is_mapped)
            state.held.most = 0;
        else { /* the system has mapped more than the head, and may have kept all of it from another session */
            er_drop_pages(weights, n_bytes);
            er_forget_pages(&state.held.sources[which], 0, n_bytes);
        }
    }
    operator_state *kept = malloc(sizeof *kept);
    state.held.last = calloc((size_t)state.n_expert, sizeof *state.held.last);
    if (kept == NULL || state.held.last == NULL) {
        free(kept);
        close_held(&state.held);
        return api->CreateStatus(ORT_FAIL, "edge_spec: out of memory");
    }
    *kept = state;
    *kernel = kept;
    return NULL;
}

static void ORT_CALL destroy(void *kernel) {
    close_held(&((operator_state *)kernel)->held);
    free(kernel);
}

typedef struct {
    const operator_state *state;
    held_experts *held;
    er_choice choice;
    er_matrix matrices[N_REQUIRED]; /* those of weights */
    const float *x, *scores, *biases[N_INPUTS];
    float *y;
    size_t n_rows, n_embd, n_ff;
    /* What each row uses, [n_rows, n_used]. */
    int32_t *chosen;
    float *shares;
    /* The same by expert: those from starts[e] to starts[e + 1] use expert e, in the order of the rows. */
    size_t *starts;
    int32_t *rows;
    float *row_shares;
    /* The experts that go by together, and what is computed for their uses, the first of which is `first_use`. */
    int32_t *active;
    size_t n_active, first_use;
    uint8_t *inputs[2], *hidden_inputs; /* for gate, up and down; the first two are the same where their kinds are */
    float *hidden;                      /* [uses, n_ff] */
    size_t hidden_groups, hidden_jobs, out_groups; /* groups per job; jobs per expert */
    size_t n_tiles;                                /* the most of an expert */
    atomic_bool lacked_memory;
} work;

/* Groups [first, first + n) of an expert's matrix, as a matrix without a group in parts. */
static er_matrix groups_of(const er_matrix *all, size_t n_expert, size_t expert, size_t first, size_t n) {
    er_matrix part = *all;
    part.groups += (all->n_groups / n_expert * expert + first) * all->group_bytes;
    part.n_groups = n;
    part.n_out = n * ER_GROUP;
    return part;
}

static size_t n_uses(const work *w, size_t expert) { return w->starts[expert + 1] - w->starts[expert]; }

static void choose_job(void *user, size_t job) {
    work *w = user;
    const size_t end = (job + 1) * CHOOSING_ROWS < w->n_rows ? (job + 1) * CHOOSING_ROWS : w->n_rows;
    float *scratch = malloc(sizeof(float) * er_choice_scratch(&w->choice));
    if (scratch == NULL) {
        atomic_store(&w->lacked_memory, true);
        return;
    }
    for (size_t r = job * CHOOSING_ROWS; r < end; r++)
        er_choose(w->state->vectors, &w->choice, w->scores + r * w->choice.n_expert,
                  w->chosen + r * w->choice.n_used, w->shares + r * w->choice.n_used, scratch);
    free(scratch);
}

static void sort_by_expert(work *w) {
    const size_t n_used = w->choice.n_used, n_expert = w->choice.n_expert;
    memset(w->starts, 0, (n_expert + 1) * sizeof *w->starts);
    for (size_t i = 0; i < w->n_rows * n_used; i++)
        w->starts[w->chosen[i] + 1]++;
    for (size_t e = 0; e < n_expert; e++)
        w->starts[e + 1] += w->starts[e];
    /* Starts move to the ends while they are filled, and back. */
    for (size_t i = 0; i < w->n_rows * n_used; i++) {
        const size_t at = w->starts[w->chosen[i]]++;
        w->rows[at] = (int32_t)(i / n_used);
        w->row_shares[at] = w->shares[i];
    }
    for (size_t e = n_expert; e > 0; e--)
        w->starts[e] = w->starts[e - 1];
    w->starts[0] = 0;
}

/* Quantizes a tile of the rows that use an expert, for gate and up. */
static void read_job(void *user, size_t job) {
    work *w = user;
    const size_t expert = (size_t)w->active[job / w->n_tiles], t = job % w->n_tiles, n = n_uses(w, expert);
    if (t >= er_n_tiles(n))
        return;
    const size_t start = w->starts[expert] + er_tile_start(n, t), end = w->starts[expert] + er_tile_start(n, t + 1);
    float *rows = malloc(sizeof(float) * (end - start) * w->n_embd);
    if (rows == NULL) {
        atomic_store(&w->lacked_memory, true);
        return;
    }
    for (size_t i = start; i < end; i++)
        memcpy(rows + (i - start) * w->n_embd, w->x + (size_t)w->rows[i] * w->n_embd, w->n_embd * sizeof(float));
    for (size_t which = GATE; which <= UP; which++) {
        const er_matrix *matrix = &w->matrices[which];
        if (which == GATE || w->inputs[1] != w->inputs[0])
            w->state->variant->quantize(matrix->kind, rows, w->n_embd, (int)(end - start), matrix->n_blocks,
                                        w->inputs[which - GATE] + er_activations_bytes(matrix, start - w->first_use));
    }
    free(rows);
}

static void add_bias(const float *bias, size_t n, float *x) {
    for (size_t i = 0; bias != NULL && i < n; i++)
        x[i] += bias[i];
}

/* Some hidden numbers of all rows that use an expert. */
static void hide_job(void *user, size_t job) {
    work *w = user;
    const size_t expert = (size_t)w->active[job / w->hidden_jobs], n = n_uses(w, expert);
    const size_t all = w->matrices[GATE].n_groups / w->choice.n_expert;
    const size_t first = job % w->hidden_jobs * w->hidden_groups;
    const size_t n_groups = all - first < w->hidden_groups ? all - first : w->hidden_groups;
    const size_t width = n_groups * ER_GROUP, at = first * ER_GROUP, use = w->starts[expert] - w->first_use;
    const size_t n_kept = w->n_ff - at < width ? w->n_ff - at : width;
    float *products = malloc(sizeof(float) * 2 * n * width), *sides[2] = {products, products + n * width};
    if (products == NULL) {
        atomic_store(&w->lacked_memory, true);
        return;
    }
    for (size_t side = 0; side < 2; side++) {
        const er_matrix matrix = groups_of(&w->matrices[GATE + side], w->choice.n_expert, expert, first, n_groups);
        const float *bias = w->biases[GATE_BIAS + side];
        er_multiply(w->state->variant, &matrix, w->inputs[side] + er_activations_bytes(&matrix, use), n, 0, n_groups,
                    sides[side]);
        for (size_t i = 0; i < n; i++)
            add_bias(bias != NULL ? bias + expert * w->n_ff + at : NULL, n_kept, sides[side] + i * width);
    }
    w->state->vectors->gate(sides[0], sides[1], n * width, w->state->alpha, w->state->limit);
    for (size_t i = 0; i < n; i++)
        memcpy(w->hidden + (use + i) * w->n_ff + at, sides[0] + i * width, n_kept * sizeof(float));
    free(products);
}

/* Quantizes a tile of the hidden numbers of an expert. */
static void quantize_job(void *user, size_t job) {
    work *w = user;
    const size_t expert = (size_t)w->active[job / w->n_tiles], t = job % w->n_tiles, n = n_uses(w, expert);
    const size_t use = w->starts[expert] - w->first_use;
    if (t < er_n_tiles(n))
        er_quantize(w->state->variant, &w->matrices[DOWN], w->hidden + use * w->n_ff, n, t,
                    w->hidden_inputs + er_activations_bytes(&w->matrices[DOWN], use));
}

/* Some outputs of all rows, from all experts that go by, in ascending order. */
static void add_job(void *user, size_t job) {
    work *w = user;
    const size_t all = w->matrices[DOWN].n_groups / w->choice.n_expert, first = job * w->out_groups;
    const size_t n_groups = all - first < w->out_groups ? all - first : w->out_groups;
    const size_t width = n_groups * ER_GROUP, at = first * ER_GROUP;
    const size_t n_kept = w->n_embd - at < width ? w->n_embd - at : width;
    size_t most = 0;
    for (size_t a = 0; a < w->n_active; a++)
        most = n_uses(w, (size_t)w->active[a]) > most ? n_uses(w, (size_t)w->active[a]) : most;
    float *products = malloc(sizeof(float) * most * width);
    if (products == NULL) {
        atomic_store(&w->lacked_memory, true);
        return;
    }
    for (size_t a = 0; a < w->n_active; a++) {
        const size_t expert = (size_t)w->active[a], n = n_uses(w, expert), start = w->starts[expert];
        const er_matrix matrix = groups_of(&w->matrices[DOWN], w->choice.n_expert, expert, first, n_groups);
        const float *bias = w->biases[DOWN_BIAS];
        er_multiply(w->state->variant, &matrix,
                    w->hidden_inputs + er_activations_bytes(&matrix, start - w->first_use), n, 0, n_groups, products);
        for (size_t i = 0; i < n; i++) {
            float *y = w->y + (size_t)w->rows[start + i] * w->n_embd + at;
            add_bias(bias != NULL ? bias + expert * w->n_embd + at : NULL, n_kept, products + i * width);
            w->state->vectors->add(w->row_shares[start + i], products + i * width, n_kept, y);
        }
    }
    free(products);
}

/* The experts from `first` on that go by together; returns the one after them. */
static size_t activate(work *w, size_t first) {
    size_t end = first;
    w->n_active = w->n_tiles = 0;
    w->first_use = w->starts[first];
    for (; end < w->choice.n_expert; end++) {
        const size_t n = n_uses(w, end);
        if (w->n_active != 0 && w->starts[end + 1] - w->first_use > ER_BLOCK_USES)
            break;
        if (n == 0)
            continue;
        w->active[w->n_active++] = (int32_t)end;
        w->n_tiles = er_n_tiles(n) > w->n_tiles ? er_n_tiles(n) : w->n_tiles;
    }
    return end;
}

static size_t expert_bytes(const work *w, size_t which) {
    return w->matrices[which].n_groups / w->choice.n_expert * w->matrices[which].group_bytes;
}

/* Experts [first, end) of a matrix of all. */
static void with_pages(const work *w, size_t first, size_t end, void (*act)(const void *, size_t)) {
    for (size_t which = GATE; which <= DOWN; which++) {
        const size_t one = expert_bytes(w, which);
        act(w->matrices[which].groups + first * one, (end - first) * one);
    }
}

/* Begins to read the experts that are used and not in memory. */
static void fetch_used(const work *w) {
    for (size_t e = 0; e < w->choice.n_expert; e++)
        if (n_uses(w, e) != 0 && w->held->last[e] == 0)
            with_pages(w, e, e + 1, er_fetch_pages);
}

/* Notes which experts are used. Of more than can stay those go that were not used for longest, or by the fewest rows:
 * only what was read has to be forgotten. */
static void note_used(const work *w) {
    held_experts *held = w->held;
    size_t n = 0;
    held->now++;
    for (size_t e = 0; e < w->choice.n_expert; e++) {
        held->last[e] = n_uses(w, e) != 0 ? held->now : held->last[e];
        n += held->last[e] != 0;
    }
    for (; n > held->most; n--) {
        size_t least = 0;
        for (size_t e = 1; e < w->choice.n_expert; e++)
            if (held->last[e] != 0 && (held->last[least] == 0 || held->last[e] < held->last[least] ||
                                       (held->last[e] == held->last[least] && n_uses(w, e) < n_uses(w, least))))
                least = e;
        held->last[least] = 0;
        with_pages(w, least, least + 1, er_drop_pages);
        for (size_t which = GATE; which <= DOWN; which++)
            er_forget_pages(&held->sources[which], least * expert_bytes(w, which), expert_bytes(w, which));
    }
}

/* Drops the pages of all experts that do not stay: the system maps pages around those that are touched, too. */
static void drop_others(const work *w) {
    for (size_t first = 0, end; first < w->choice.n_expert; first = end + 1) {
        for (end = first; end < w->choice.n_expert && w->held->last[end] == 0;)
            end++;
        if (first < end)
            with_pages(w, first, end, er_drop_pages);
    }
}

static OrtStatus *compute_pass(OrtKernelContext *context, work *w) {
    const OrtApi *api = w->state->api;
    const er_matrix *gate = &w->matrices[GATE], *up = &w->matrices[UP], *down = &w->matrices[DOWN];
    const size_t hidden_groups = gate->n_groups / w->choice.n_expert;
    const size_t out_groups = down->n_groups / w->choice.n_expert;
    const size_t hidden_bytes = gate->group_bytes + up->group_bytes;
    memset(w->y, 0, w->n_rows * w->n_embd * sizeof(float));
    TRY(run_jobs(api, context, w->n_rows <= CHOOSING_ROWS, choose_job,
                 (w->n_rows + CHOOSING_ROWS - 1) / CHOOSING_ROWS, w));
    if (atomic_load(&w->lacked_memory))
        return NULL;
    sort_by_expert(w);
    if (w->held->most != 0)
        fetch_used(w);
    for (size_t expert = 0; expert < w->choice.n_expert;) {
        expert = activate(w, expert);
        if (w->n_active == 0)
            break;
        const size_t n = w->n_active, uses = w->starts[expert] - w->first_use;
        const bool alone = is_for_one_thread(n * (hidden_groups * hidden_bytes + out_groups * down->group_bytes),
                                             uses / n);
        const size_t per_job = groups_per_job(n * hidden_groups, hidden_bytes, uses / n);
        w->hidden_groups = per_job < hidden_groups ? per_job : hidden_groups;
        w->hidden_jobs = (hidden_groups + w->hidden_groups - 1) / w->hidden_groups;
        w->out_groups = groups_per_job(out_groups, n * down->group_bytes, uses / n);
        TRY(run_jobs(api, context, alone, read_job, n * w->n_tiles, w));
        TRY(run_jobs(api, context, alone, hide_job, n * w->hidden_jobs, w));
        TRY(run_jobs(api, context, alone, quantize_job, n * w->n_tiles, w));
        TRY(run_jobs(api, context, alone, add_job, (out_groups + w->out_groups - 1) / w->out_groups, w));
    }
    if (w->held->most != 0) {
        note_used(w);
        drop_others(w);
    }
    for (size_t i = 0; i < w->n_rows * w->n_embd; i++)
        if (isnan(w->y[i]))
            w->y[i] = er_float_of_bits(ER_QUIET_NAN);
    return NULL;
}

/* One block of memory for everything that a pass of n_rows rows needs; NULL if there is not enough. */
static void *scratch_for(work *w, size_t n_rows) {
    const size_t uses = n_rows * w->choice.n_used, together = uses < ER_BLOCK_USES ? uses : ER_BLOCK_USES;
    const er_matrix *gate = &w->matrices[GATE], *up = &w->matrices[UP], *down = &w->matrices[DOWN];
    const bool alike = gate->kind == up->kind;
    const size_t sizes[] = {
        (w->choice.n_expert + 1) * sizeof *w->starts,
        uses * sizeof *w->chosen, uses * sizeof *w->shares, uses * sizeof *w->rows, uses * sizeof *w->row_shares,
        w->choice.n_expert * sizeof *w->active,
        together * w->n_ff * sizeof *w->hidden,
        er_activations_bytes(gate, together), alike ? 0 : er_activations_bytes(up, together),
        er_activations_bytes(down, together),
    };
    enum { N = sizeof sizes / sizeof *sizes };
    uint8_t *parts[N];
    size_t total = 0;
    for (size_t i = 0; i < N; i++)
        total += (sizes[i] + 63) / 64 * 64;
    uint8_t *all = malloc(total), *at = all;
    if (all == NULL)
        return NULL;
    for (size_t i = 0; i < N; i++) {
        parts[i] = at;
        at += (sizes[i] + 63) / 64 * 64;
    }
    w->starts = (size_t *)(void *)parts[0];
    w->chosen = (int32_t *)(void *)parts[1];
    w->shares = (float *)(void *)parts[2];
    w->rows = (int32_t *)(void *)parts[3];
    w->row_shares = (float *)(void *)parts[4];
    w->active = (int32_t *)(void *)parts[5];
    w->hidden = (float *)(void *)parts[6];
    w->inputs[0] = parts[7];
    w->inputs[1] = alike ? parts[7] : parts[8];
    w->hidden_inputs = parts[9];
    return all;
}

static OrtStatus *read_bias(const operator_state *state, OrtKernelContext *context, size_t which, const float **bias) {
    const OrtApi *api = state->api;
    const OrtValue *value;
    int64_t dims[MAX_DIMS + 1];
    size_t rank, n = 0;
    void *data;
    TRY(api->KernelContext_GetInput(context, which, &value));
    *bias = NULL;
    if (value == NULL)
        return NULL;
    TRY(shape_of(api, value, 0, dims, &rank, &n));
    if (n != (size_t)(state->n_expert * (which == PREFERENCES ? 1 : which == DOWN_BIAS ? state->n_embd : state->n_ff)))
        return refuse(api, "edge_spec.ExpertRows: there is not one bias for every number of every expert");
    TRY(api->GetTensorMutableData((OrtValue *)value, &data));
    *bias = data;
    return NULL;
}

static OrtStatus *ORT_CALL compute(void *kernel, OrtKernelContext *context) {
    operator_state *state = kernel;
    const OrtApi *api = state->api;
    work w = {
        .state = state,
        .held = &state->held,
        .choice = {(size_t)state->n_expert, (size_t)state->n_used, state->of_all != 0, state->normalized != 0, NULL},
        .n_embd = (size_t)state->n_embd,
        .n_ff = (size_t)state->n_ff,
    };
    const OrtValue *values[N_REQUIRED];
    OrtValue *y;
    int64_t dims[MAX_DIMS + 1], of_scores[MAX_DIMS + 1];
    size_t rank, scores_rank, n_rows = 0, n_scored = 0;
    void *x_data, *scores_data, *y_data;
    for (size_t which = X; which < N_REQUIRED; which++)
        TRY(api->KernelContext_GetInput(context, which, &values[which]));
    for (size_t which = GATE; which <= DOWN; which++)
        TRY(open_all(state, values[which], which, &w.matrices[which]));
    for (size_t which = N_REQUIRED; which < N_INPUTS; which++)
        TRY(read_bias(state, context, which, &w.biases[which]));
    w.choice.preferences = w.biases[PREFERENCES];
    TRY(shape_of(api, values[X], 1, dims, &rank, &n_rows));
    TRY(shape_of(api, values[SCORES], 1, of_scores, &scores_rank, &n_scored));
    if (dims[rank - 1] != state->n_embd || of_scores[scores_rank - 1] != state->n_expert || n_scored != n_rows)
        return refuse(api, "edge_spec.ExpertRows: inputs have shapes that do not fit each other");
    TRY(api->KernelContext_GetOutput(context, 0, dims, rank, &y));
    if (n_rows == 0)
        return NULL;
    TRY(api->GetTensorMutableData((OrtValue *)values[X], &x_data));
    TRY(api->GetTensorMutableData((OrtValue *)values[SCORES], &scores_data));
    TRY(api->GetTensorMutableData(y, &y_data));
    void *scratch = scratch_for(&w, n_rows < PASS_ROWS ? n_rows : PASS_ROWS);
    if (scratch == NULL)
        return api->CreateStatus(ORT_FAIL, "edge_spec.ExpertRows: out of memory");
    OrtStatus *status = NULL;
    for (size_t row = 0; row < n_rows && status == NULL; row += PASS_ROWS) {
        w.n_rows = n_rows - row < PASS_ROWS ? n_rows - row : PASS_ROWS;
        w.x = (const float *)x_data + row * w.n_embd;
        w.scores = (const float *)scores_data + row * w.choice.n_expert;
        w.y = (float *)y_data + row * w.n_embd;
        status = compute_pass(context, &w);
    }
    free(scratch);
    if (status == NULL && atomic_load(&w.lacked_memory))
        status = api->CreateStatus(ORT_FAIL, "edge_spec.ExpertRows: out of memory");
    return status;
}

static const char *ORT_CALL name(const OrtCustomOp *op) { (void)op; return "ExpertRows"; }
static int ORT_CALL input_type(const OrtCustomOp *op, size_t i) {
    (void)op;
    return i >= GATE && i <= DOWN ? ORT_UINT8 : ORT_FLOAT;
}
static size_t ORT_CALL n_inputs(const OrtCustomOp *op) { (void)op; return N_INPUTS; }
static int ORT_CALL characteristic(const OrtCustomOp *op, size_t i) {
    (void)op;
    return i >= N_REQUIRED ? ORT_INPUT_OPTIONAL : ORT_INPUT_REQUIRED;
}

const er_experts_operator er_expert_rows = {
    OPERATOR(name, input_type, n_inputs, characteristic, create, compute, destroy), 0, false};
