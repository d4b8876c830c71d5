/* Gated delta nets as an operator of ONNX Runtime, in the domain edge_spec:
 *
 *     DeltaRows(mixed f32[1, rows, channels], z f32[1, rows, n_head * size], scores f32[1, rows, 2 * n_head],
 *               weights f32[taps, channels], steps, rates f32[n_head], norm f32[size], run i64[numbers])
 *               -> f32[1, rows, n_head * size]
 *
 * where channels = (2 * n_head_k + n_head) * size. delta.h says what is computed, convolution.h of what, recurrent.h which
 * rows, recurrent_operator.h what `run` is. A layer has of a text what it keeps, [taps - 1 + capacity, channels] and
 * [capacity, 2 * n_head], and its states, [n_head, size / 16, size, 16]. Attributes: number, n_head_k, epsilon (a float),
 * and variant for tests.
 */
#include "recurrent_operator.h"

enum { MIXED, Z, SCORES, WEIGHTS, STEPS, RATES, NORM, RUN, N_INPUTS };

/* Rows that go by together: what they become between the convolution and the heads stays in a cache. Those that a state
 * does not take in must all be among the last. */
enum { BLOCK_ROWS = 64 };

static const size_t ranks[N_INPUTS] = {3, 3, 3, 2, 1, 1, 1, 1};

typedef struct {
    const OrtApi *api;
    int64_t number, n_head_k;
    float epsilon;
    const er_vectors *vectors;
} operator_state;

static OrtStatus *ORT_CALL create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info, void **kernel) {
    operator_state state = {.api = api};
    char name[64] = "";
    (void)op;
    TRY(read_number(api, info, &state.number));
    TRY(api->KernelInfoGetAttribute_int64(info, "n_head_k", &state.n_head_k));
    TRY(api->KernelInfoGetAttribute_float(info, "epsilon", &state.epsilon));
    read_text(api, info, "variant", name, sizeof name);
    state.vectors = er_find_vectors(name);
    if (state.vectors == NULL)
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

/* A text, and the block of its rows that goes by. */
typedef struct {
    er_delta d;
    const recurrent_text *text;
    float *kept_scores, *scores, *rows, *scratch;
    const float *z;
    float *out;
} answering;

typedef struct {
    const answering *texts;
    const er_vectors *vectors;
    size_t scratch_per_head;
} answering_all;

static void answer_job(void *user, size_t job) {
    const answering_all *all = user;
    const size_t n_head = all->texts->d.n_head, head = job % n_head;
    const answering *w = &all->texts[job / n_head];
    all->vectors->answer(&w->d, head, w->scratch + head * all->scratch_per_head);
}

/* Where the block that begins with a row ends: all rows that are left, unless the state takes in enough of them. */
static size_t end_of_block(const er_span *span, size_t first) {
    const size_t n_rows = er_n_rows(span), n_taken = er_n_taken(span);
    return n_rows - first > BLOCK_ROWS && n_taken >= first + BLOCK_ROWS ? first + BLOCK_ROWS : n_rows;
}

static size_t start_of_last(const er_span *span) {
    size_t first = 0;
    while (end_of_block(span, first) < er_n_rows(span))
        first = end_of_block(span, first);
    return first;
}

/* The most rows of a block. */
static size_t rows_of_blocks(const er_span *span) {
    const size_t first = start_of_last(span), last = er_n_rows(span) - first;
    return first > 0 && last < BLOCK_ROWS ? BLOCK_ROWS : last;
}

/* Lets the rows [first, end) be those that go by. */
static void set_block(answering *w, size_t first, size_t end) {
    const er_span *span = &w->text->span;
    const size_t n_old = er_n_old(span), n_taken = er_n_taken(span), n = end - first;
    const size_t answered = first > n_old ? first - n_old : 0, width = w->d.n_head * w->d.size;
    w->d.rows = w->rows;
    w->d.scores = w->scores + first * 2 * w->d.n_head;
    w->d.z = w->z + answered * width;
    w->d.out = w->out + answered * width;
    w->d.n_rows = n;
    w->d.n_silent = first >= n_old ? 0 : end < n_old ? n : n_old - first;
    w->d.n_taken = first >= n_taken ? 0 : end < n_taken ? n : n_taken - first;
}

/* One block of each of some texts, all of which is convolved. */
static OrtStatus *answer_blocks(const operator_state *state, OrtKernelContext *context, const convolving *convolved,
                                answering *texts, size_t n_texts, size_t scratch_per_head) {
    size_t n_rows = 0;
    if (n_texts == 0)
        return NULL;
    TRY(convolve_rows(state->api, context, state->vectors, convolved, n_texts));
    for (size_t i = 0; i < n_texts; i++) {
        set_block(&texts[i], convolved[i].first, convolved[i].end);
        n_rows += texts[i].d.n_rows;
    }
    const size_t n_head = texts->d.n_head, size = texts->d.size;
    answering_all all = {texts, state->vectors, scratch_per_head};
    return run_jobs(state->api, context, n_rows * n_head * size * size < ALONE, answer_job, n_texts * n_head, &all);
}

static OrtStatus *compute_rows(const operator_state *state, OrtKernelContext *context, convolving *convolved,
                               answering *texts, size_t n_texts, size_t scratch_per_head) {
    for (size_t i = 0; i < n_texts; i++) {
        const er_span *span = &texts[i].text->span;
        convolving *c = &convolved[i];
        for (c->first = 0; (c->end = end_of_block(span, c->first)) < er_n_rows(span); c->first = c->end)
            TRY(answer_blocks(state, context, c, &texts[i], 1, scratch_per_head));
    }
    return answer_blocks(state, context, convolved, texts, n_texts, scratch_per_head);
}

/* What a layer keeps of the scores, after a call. */
static void keep_scores(const answering *w) {
    const size_t n_rows = er_n_rows(&w->text->span), n_taken = er_n_taken(&w->text->span), width = 2 * w->d.n_head;
    memcpy(w->kept_scores, w->scores + n_taken * width, (n_rows - n_taken) * width * sizeof(float));
}

static OrtStatus *ORT_CALL compute(void *kernel, OrtKernelContext *context) {
    const operator_state *state = kernel;
    const OrtApi *api = state->api;
    int64_t dims[N_INPUTS][4];
    size_t n_texts = 0, capacity = 0;
    void *data[N_INPUTS], *out_data = NULL;
    for (size_t i = 0; i < N_INPUTS; i++)
        TRY(read_input(api, context, i, ranks[i], dims[i], &data[i]));
    const int64_t n_new = dims[MIXED][1], n_head = dims[STEPS][0], size = dims[NORM][0], n_taps = dims[WEIGHTS][0];
    const bool possible = n_head >= 1 && n_head <= 65536 && n_head % state->n_head_k == 0 && size >= ER_COLUMNS &&
                          size <= ER_MAX_STATE_SIZE && size % ER_COLUMNS == 0;
    const int64_t channels = possible ? (2 * state->n_head_k + n_head) * size : 0;
    if (!possible || dims[MIXED][0] != 1 || dims[MIXED][2] != channels || dims[Z][0] != 1 || dims[Z][1] != n_new ||
        dims[Z][2] != n_head * size || dims[SCORES][0] != 1 || dims[SCORES][1] != n_new ||
        dims[SCORES][2] != 2 * n_head || n_taps < 1 || dims[WEIGHTS][1] != channels || dims[RATES][0] != n_head)
        return refuse(api, "edge_spec.DeltaRows: inputs have shapes that do not fit each other");
    const char *wrong = read_run(data[RUN], dims[RUN][0], &n_texts, &capacity);
    if (wrong != NULL)
        return refuse(api, wrong);
    const size_t heads = (size_t)n_head, width = heads * (size_t)size, n_channels = (size_t)channels;
    const size_t n_kept = ((size_t)n_taps - 1 + capacity) * n_channels, n_kept_scores = capacity * 2 * heads;
    int64_t out_dims[3] = {1, n_new, n_head * size};
    OrtValue *out;
    TRY(api->KernelContext_GetOutput(context, 0, out_dims, 3, &out));
    TRY(api->GetTensorMutableData(out, &out_data));
    recurrent_text *texts = malloc((n_texts + 1) * (sizeof *texts + sizeof(convolving) + sizeof(answering)));
    if (texts == NULL)
        return api->CreateStatus(ORT_FAIL, "edge_spec.DeltaRows: out of memory");
    convolving *convolved = (convolving *)(texts + n_texts);
    answering *w = (answering *)(convolved + n_texts);
    wrong = read_texts(data[RUN], (size_t)state->number, ER_STATE_HEAD + n_kept + n_kept_scores + width * (size_t)size,
                       (size_t)n_new, texts);
    if (wrong != NULL) {
        free(texts);
        return refuse(api, wrong);
    }
    size_t most = 0, n_all = 0;
    for (size_t i = 0; i < n_texts; i++) {
        const size_t n = rows_of_blocks(&texts[i].span);
        most = n > most ? n : most;
        n_all += er_n_rows(&texts[i].span);
    }
    const size_t per_head = er_delta_scratch(most, (size_t)size);
    const size_t per_text = most * n_channels + heads * per_head;
    /* All of it before anything is changed: a layer must not stop halfway. */
    float *scratch = malloc(sizeof(float) * (n_all * 2 * heads + n_texts * per_text + 1)), *at = scratch;
    if (scratch == NULL) {
        free(texts);
        return api->CreateStatus(ORT_FAIL, "edge_spec.DeltaRows: out of memory");
    }
    for (size_t i = 0; i < n_texts; i++) {
        const recurrent_text *text = &texts[i];
        const size_t n_old = er_n_old(&text->span);
        w[i] = (answering){
            .d = {.states = text->state + n_kept + n_kept_scores, .steps = data[STEPS], .rates = data[RATES],
                  .weights = data[NORM], .epsilon = state->epsilon, .n_head = heads,
                  .n_head_k = (size_t)state->n_head_k, .size = (size_t)size},
            .text = text, .kept_scores = text->state + n_kept, .rows = at, .scratch = at + most * n_channels,
            .scores = at + per_text, .z = (float *)data[Z] + text->first * width,
            .out = (float *)out_data + text->first * width};
        convolved[i] = (convolving){
            .c = {.x = (float *)data[MIXED] + text->first * n_channels, .kept = text->state, .weights = data[WEIGHTS],
                  .n_channels = n_channels, .n_taps = (size_t)n_taps, .span = text->span},
            .out = w[i].rows};
        memcpy(w[i].scores, w[i].kept_scores, n_old * 2 * heads * sizeof(float));
        memcpy(w[i].scores + n_old * 2 * heads, (float *)data[SCORES] + text->first * 2 * heads,
               text->span.n_new * 2 * heads * sizeof(float));
        at += per_text + er_n_rows(&text->span) * 2 * heads;
    }
    const size_t n = rows_of(texts, n_texts);
    memset((float *)out_data + n * width, 0, ((size_t)n_new - n) * width * sizeof(float));
    OrtStatus *status = compute_rows(state, context, convolved, w, n_texts, per_head);
    for (size_t i = 0; status == NULL && i < n_texts; i++) {
        keep_scores(&w[i]);
        er_move_on(&texts[i].span, texts[i].place);
    }
    free(scratch);
    free(texts);
    return status;
}

static const char *ORT_CALL name(const OrtCustomOp *op) { (void)op; return "DeltaRows"; }
static int ORT_CALL input_type(const OrtCustomOp *op, size_t i) {
    (void)op;
    return i == RUN ? ORT_INT64 : ORT_FLOAT;
}
static size_t ORT_CALL n_inputs(const OrtCustomOp *op) { (void)op; return N_INPUTS; }

const OrtCustomOp er_delta_rows = OPERATOR(name, input_type, n_inputs, er_required, create, compute, destroy);
