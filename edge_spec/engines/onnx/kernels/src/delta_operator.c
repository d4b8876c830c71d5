/* Gated delta nets as an operator of ONNX Runtime, in the domain edge_spec:
 *
 *     DeltaRows(mixed f32[1, rows, channels], z f32[1, rows, n_head * size], scores f32[1, rows, 2 * n_head],
 *               kept f32[taps - 1 + capacity, channels], kept_scores f32[capacity, 2 * n_head],
 *               states f32[n_head, size / 16, size, 16], weights f32[taps, channels], steps, rates f32[n_head],
 *               norm f32[size], place i32[2], run i32[3]) -> f32[1, rows, n_head * size]
 *
 * where channels = (2 * n_head_k + n_head) * size. delta.h says what is computed, convolution.h of what, recurrent.h which
 * rows. `kept`, `kept_scores`, `states` and `place` are written, although they are inputs. Attributes: n_head_k, epsilon
 * (a float), and variant for tests.
 */
#include "delta.h"

#include <stdlib.h>
#include <string.h>

#include "recurrent_operator.h"

enum { MIXED, Z, SCORES, KEPT, KEPT_SCORES, STATES, WEIGHTS, STEPS, RATES, NORM, PLACE, RUN, N_INPUTS };

/* Rows that go by together: what they become between the convolution and the heads stays in a cache. Those that a state
 * does not take in must all be among the last. */
enum { BLOCK_ROWS = 64 };

static const size_t ranks[N_INPUTS] = {3, 3, 3, 2, 2, 4, 2, 1, 1, 1, 1, 1};

typedef struct {
    const OrtApi *api;
    int64_t n_head_k;
    float epsilon;
    const er_convolution_variant *convolution;
    const er_delta_variant *delta;
} operator_state;

static OrtStatus *ORT_CALL create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info, void **kernel) {
    operator_state state = {.api = api};
    char name[64] = "";
    (void)op;
    TRY(api->KernelInfoGetAttribute_int64(info, "n_head_k", &state.n_head_k));
    TRY(api->KernelInfoGetAttribute_float(info, "epsilon", &state.epsilon));
    read_text(api, info, "variant", name, sizeof name);
    state.convolution = er_convolution_find(name);
    state.delta = er_delta_find(name);
    if (state.convolution == NULL || state.delta == NULL)
        return refuse(api, "edge_spec.DeltaRows: there is no such variant, or it cannot run on this CPU");
    if (state.n_head_k < 1 || state.n_head_k > 65536)
        return refuse(api, "edge_spec.DeltaRows: an impossible number of heads");
    operator_state *kept = malloc(sizeof *kept);
    if (kept == NULL)
        return api->CreateStatus(ORT_FAIL, "edge_spec: out of memory");
    *kept = state;
    *kernel = kept;
    return NULL;
}

static void ORT_CALL destroy(void *kernel) { free(kernel); }

typedef struct {
    er_delta d;
    const er_delta_variant *variant;
    float *scratch;
    size_t scratch_per_head;
} answering;

static void answer_job(void *user, size_t head) {
    const answering *w = user;
    w->variant->answer(&w->d, head, w->scratch + head * w->scratch_per_head);
}

/* The scores of all rows of a call, and those that are kept after it. */
static void gather_scores(const er_span *span, size_t width, const float *kept, const float *scores, float *all) {
    memcpy(all, kept, er_n_old(span) * width * sizeof(float));
    memcpy(all + er_n_old(span) * width, scores, span->n_new * width * sizeof(float));
}

static OrtStatus *compute_rows(const operator_state *state, OrtKernelContext *context, const er_convolution *c,
                               answering *w, void **data, float *scores, float *rows) {
    const er_span *span = &c->span;
    const size_t n_rows = er_n_rows(span), n_old = er_n_old(span), n_taken = er_n_taken(span);
    const size_t n_head = w->d.n_head, out_width = n_head * w->d.size;
    const float *z = w->d.z;
    float *out = w->d.out;
    for (size_t first = 0; first < n_rows;) {
        /* Blocks of rows that the state takes in, then one of all others. */
        const size_t end = first < n_taken && n_taken - first > BLOCK_ROWS ? first + BLOCK_ROWS
                           : first < n_taken                              ? n_taken
                                                                          : n_rows;
        const size_t n = end - first, answered = first > n_old ? first - n_old : 0;
        convolving convolution = {c, state->convolution, first, end, rows};
        TRY(convolve_rows(state->api, context, n * c->n_channels * c->n_taps < ALONE, &convolution));
        w->d.rows = rows;
        w->d.scores = scores + first * 2 * n_head;
        w->d.z = z + answered * out_width;
        w->d.out = out + answered * out_width;
        w->d.n_rows = n;
        w->d.n_silent = first >= n_old ? 0 : end < n_old ? n : n_old - first;
        w->d.n_taken = first < n_taken ? n : 0;
        TRY(run_jobs(state->api, context, n * n_head * w->d.size * w->d.size < ALONE, answer_job, n_head, w));
        first = end;
    }
    memcpy(data[KEPT_SCORES], scores + n_taken * 2 * n_head, (n_rows - n_taken) * 2 * n_head * sizeof(float));
    er_move_on(span, data[PLACE]);
    return NULL;
}

static OrtStatus *ORT_CALL compute(void *kernel, OrtKernelContext *context) {
    const operator_state *state = kernel;
    const OrtApi *api = state->api;
    int64_t dims[N_INPUTS][4];
    void *data[N_INPUTS], *out_data = NULL;
    for (size_t i = 0; i < N_INPUTS; i++)
        TRY(read_input(api, context, i, ranks[i], dims[i], &data[i]));
    const int64_t n_new = dims[MIXED][1], n_head = dims[STATES][0], size = dims[STATES][2];
    const int64_t channels = (2 * state->n_head_k + n_head) * size, n_taps = dims[WEIGHTS][0];
    const bool fit =
        n_head >= 1 && n_head <= 65536 && n_head % state->n_head_k == 0 && size >= ER_COLUMNS &&
        size <= ER_MAX_STATE_SIZE && size % ER_COLUMNS == 0 && dims[STATES][1] * ER_COLUMNS == size &&
        dims[STATES][3] == ER_COLUMNS && dims[MIXED][0] == 1 && dims[MIXED][2] == channels && dims[Z][0] == 1 &&
        dims[Z][1] == n_new && dims[Z][2] == n_head * size && dims[SCORES][0] == 1 && dims[SCORES][1] == n_new &&
        dims[SCORES][2] == 2 * n_head && n_taps >= 1 && dims[WEIGHTS][1] == channels && dims[KEPT][1] == channels &&
        dims[KEPT_SCORES][1] == 2 * n_head && dims[KEPT][0] == n_taps - 1 + dims[KEPT_SCORES][0] &&
        dims[STEPS][0] == n_head && dims[RATES][0] == n_head && dims[NORM][0] == size && dims[PLACE][0] == 2 &&
        dims[RUN][0] == 3;
    if (!fit)
        return refuse(api, "edge_spec.DeltaRows: inputs have shapes that do not fit each other");
    er_convolution c = {.x = data[MIXED], .kept = data[KEPT], .weights = data[WEIGHTS],
                        .n_channels = (size_t)channels, .n_taps = (size_t)n_taps};
    if (!er_read_span(data[PLACE], data[RUN], (size_t)n_new, (size_t)dims[KEPT_SCORES][0], &c.span))
        return refuse(api, "edge_spec.DeltaRows: the layer is at another place of the text");
    int64_t out_dims[3] = {1, n_new, n_head * size};
    OrtValue *out;
    TRY(api->KernelContext_GetOutput(context, 0, out_dims, 3, &out));
    TRY(api->GetTensorMutableData(out, &out_data));
    answering w = {
        .d = {.z = data[Z], .states = data[STATES], .out = out_data, .steps = data[STEPS], .rates = data[RATES],
              .weights = data[NORM], .epsilon = state->epsilon, .n_head = (size_t)n_head,
              .n_head_k = (size_t)state->n_head_k, .size = (size_t)size},
        .variant = state->delta,
    };
    const size_t n_rows = er_n_rows(&c.span), rest = n_rows - er_n_taken(&c.span);
    const size_t taken = er_n_taken(&c.span) < BLOCK_ROWS ? er_n_taken(&c.span) : BLOCK_ROWS;
    const size_t most = taken > rest ? taken : rest;
    w.scratch_per_head = er_delta_scratch(most, w.d.size);
    const size_t n_scores = n_rows * 2 * w.d.n_head, n_convolved = most * c.n_channels;
    /* All of it before anything is changed: a layer must not stop halfway. */
    float *scratch = malloc(sizeof(float) * (n_scores + n_convolved + w.d.n_head * w.scratch_per_head));
    if (scratch == NULL)
        return api->CreateStatus(ORT_FAIL, "edge_spec.DeltaRows: out of memory");
    w.scratch = scratch + n_scores + n_convolved;
    gather_scores(&c.span, 2 * w.d.n_head, data[KEPT_SCORES], data[SCORES], scratch);
    OrtStatus *status = compute_rows(state, context, &c, &w, data, scratch, scratch + n_scores);
    free(scratch);
    return status;
}

static const char *ORT_CALL name(const OrtCustomOp *op) { (void)op; return "DeltaRows"; }
static int ORT_CALL input_type(const OrtCustomOp *op, size_t i) {
    (void)op;
    return i == PLACE || i == RUN ? ORT_INT32 : ORT_FLOAT;
}
static size_t ORT_CALL n_inputs(const OrtCustomOp *op) { (void)op; return N_INPUTS; }

const OrtCustomOp er_delta_rows = OPERATOR(name, input_type, n_inputs, er_required, create, compute, destroy);
