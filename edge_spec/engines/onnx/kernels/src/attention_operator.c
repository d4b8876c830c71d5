/* Attention as an operator of ONNX Runtime, in the domain edge_spec:
 *
 *     AttendRows(qkv f32[1, rows, (n_head + 2 n_head_kv) head_dim], keys T[n_head_kv, cells / 16, head_dim, 16],
 *                values T[n_head_kv, cells, head_dim], cosines, sines f32[cells, rotated / 2],
 *                tree i32[1 + pending] or i32[1 + 2 rows],
 *                query_scales f32[cells], optional, sinks f32[n_head], optional) -> f32[1, rows, n_head head_dim]
 *
 * T is f32 or f16. The first `rotated` numbers of a head are rotated by position, the others are unchanged. `tree`
 * is the number of committed cells and then the parent of each pending node, -1 for the text; the rows are the last
 * of them. Where its first number is -1, the rows continue several texts: the first cell of each row's text and the
 * row's place in it follow. Queries are multiplied by the scale of their place, if there are scales. Attributes: n_head,
 * n_head_kv, head_dim, interleaved (0 or 1), window (how many places a row sees, itself included; all if absent or 0),
 * and variant for tests. The keys and values of the rows are written to the cache,
 * although it is an input.
 */
#include "attention.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "operator.h"

enum {
    /* A job's rows: enough to use a tile of keys again and again, few enough to spread a prompt. */
    JOB_ROWS = 16,
    /* Below this many multiplications waking other threads costs more than it saves. */
    ALONE = 1 << 20,
    N_REQUIRED = 6,
    N_INPUTS = 8,
    /* In the place of the number of committed cells. */
    SEVERAL_TEXTS = -1,
};

typedef struct {
    const OrtApi *api;
    int64_t n_head, n_head_kv, head_dim, interleaved, window;
    const er_attention_variant *variant;
} operator_state;

static OrtStatus *ORT_CALL create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info, void **kernel) {
    operator_state state = {.api = api};
    char name[64] = "";
    (void)op;
    TRY(api->KernelInfoGetAttribute_int64(info, "n_head", &state.n_head));
    TRY(api->KernelInfoGetAttribute_int64(info, "n_head_kv", &state.n_head_kv));
    TRY(api->KernelInfoGetAttribute_int64(info, "head_dim", &state.head_dim));
    TRY(api->KernelInfoGetAttribute_int64(info, "interleaved", &state.interleaved));
    OrtStatus *status = api->KernelInfoGetAttribute_int64(info, "window", &state.window);
    if (status != NULL) {
        api->ReleaseStatus(status);
        state.window = 0;
    }
    read_text(api, info, "variant", name, sizeof name);
    state.variant = er_attention_find(name);
    if (state.variant == NULL)
        return refuse(api, "edge_spec.AttendRows: there is no such variant, or it cannot run on this CPU");
    if (state.n_head_kv < 1 || state.n_head < 1 || state.n_head % state.n_head_kv || state.n_head > 65536 ||
        state.head_dim < ER_LANES || state.head_dim % ER_LANES || state.head_dim > ER_MAX_HEAD_DIM)
        return refuse(api, "edge_spec.AttendRows: impossible heads");
    if (state.window < 0)
        return refuse(api, "edge_spec.AttendRows: an impossible window");
    operator_state *kept = malloc(sizeof *kept);
    if (kept == NULL)
        return api->CreateStatus(ORT_FAIL, "edge_spec: out of memory");
    *kept = state;
    *kernel = kept;
    return NULL;
}

static void ORT_CALL destroy(void *kernel) { free(kernel); }

/* An input's data, its type, and its shape, which must have `rank` dimensions. */
static OrtStatus *input(const OrtApi *api, OrtKernelContext *context, size_t i, size_t rank, int64_t *dims,
                        int *type, void **data) {
    const OrtValue *value;
    OrtShape *shape;
    size_t found;
    TRY(api->KernelContext_GetInput(context, i, &value));
    TRY(api->GetTensorTypeAndShape(value, &shape));
    OrtStatus *status = api->GetTensorElementType(shape, type);
    if (status == NULL)
        status = api->GetDimensionsCount(shape, &found);
    if (status == NULL && found == rank)
        status = api->GetDimensions(shape, dims, rank);
    api->ReleaseTensorTypeAndShapeInfo(shape);
    if (status != NULL)
        return status;
    if (found != rank)
        return refuse(api, "edge_spec.AttendRows: an input has the wrong number of dimensions");
    return api->GetTensorMutableData((OrtValue *)value, data);
}

typedef struct {
    er_attention a;
    const er_attention_variant *variant;
    size_t jobs_per_head;
    atomic_bool lacked_memory;
} work;

static void store_job(void *user, size_t i) {
    const work *w = user;
    w->variant->store(&w->a, i);
}

static void attend_job(void *user, size_t i) {
    work *w = user;
    const size_t first = i % w->jobs_per_head * JOB_ROWS, left = w->a.n_rows - first;
    /* ParallelFor does not say which thread runs a job, so each has scratch of its own, while it runs. */
    float *scratch = malloc(sizeof(float) * er_attention_scratch(&w->a));
    if (scratch == NULL) {
        atomic_store(&w->lacked_memory, true);
        return;
    }
    w->variant->attend(&w->a, i / w->jobs_per_head, first, left < JOB_ROWS ? left : JOB_ROWS, scratch);
    free(scratch);
}

/* Depths of the pending nodes into depths[n]; false if a parent does not come before its child. */
static bool read_tree(const int32_t *parents, size_t n, int32_t *depths, bool *is_chain) {
    *is_chain = true;
    for (size_t i = 0; i < n; i++) {
        if (parents[i] < -1 || parents[i] >= (int64_t)i)
            return false;
        *is_chain = *is_chain && parents[i] == (int32_t)i - 1;
        depths[i] = parents[i] < 0 ? 0 : depths[parents[i]] + 1;
    }
    return true;
}

/* The most places that a row sees; 0 if a row lies outside the cache, or its text does not begin with a tile. */
static size_t read_texts(const int32_t *texts, size_t n_rows, int64_t n_cells, int64_t n_positions) {
    int64_t most = 0;
    for (size_t r = 0; r < n_rows; r++) {
        const int64_t first = texts[2 * r], place = texts[2 * r + 1];
        if (first < 0 || first % ER_LANES || place < 0 || place >= n_positions || first + place >= n_cells)
            return 0;
        most = place + 1 > most ? place + 1 : most;
    }
    return (size_t)most;
}

static OrtStatus *ORT_CALL compute(void *kernel, OrtKernelContext *context) {
    const operator_state *state = kernel;
    const OrtApi *api = state->api;
    const size_t n_head = (size_t)state->n_head, n_head_kv = (size_t)state->n_head_kv, hd = (size_t)state->head_dim;
    int64_t qkv[3], keys[4], values[3], cosines[2], sines[2], tree[1], scales[1], sinks[1];
    const OrtValue *has_scales, *has_sinks;
    int types[N_INPUTS];
    void *data[N_INPUTS], *out_data;
    TRY(input(api, context, 0, 3, qkv, &types[0], &data[0]));
    TRY(input(api, context, 1, 4, keys, &types[1], &data[1]));
    TRY(input(api, context, 2, 3, values, &types[2], &data[2]));
    TRY(input(api, context, 3, 2, cosines, &types[3], &data[3]));
    TRY(input(api, context, 4, 2, sines, &types[4], &data[4]));
    TRY(input(api, context, 5, 1, tree, &types[5], &data[5]));
    data[6] = data[7] = NULL;
    TRY(api->KernelContext_GetInput(context, 6, &has_scales));
    TRY(api->KernelContext_GetInput(context, 7, &has_sinks));
    if (has_scales != NULL) {
        TRY(input(api, context, 6, 1, scales, &types[6], &data[6]));
        if (scales[0] != cosines[0])
            return refuse(api, "edge_spec.AttendRows: there is not one scale of queries for every place");
    }
    if (has_sinks != NULL) {
        TRY(input(api, context, 7, 1, sinks, &types[7], &data[7]));
        if (sinks[0] != state->n_head)
            return refuse(api, "edge_spec.AttendRows: there is not one sink for every head");
    }
    const int32_t *numbers = data[5];
    const bool several = tree[0] > 0 && numbers[0] == SEVERAL_TEXTS;
    const int64_t n_cells = values[1], n_pending = several ? qkv[1] : tree[0] - 1;
    if (qkv[0] != 1 || qkv[2] != (int64_t)((n_head + 2 * n_head_kv) * hd) || keys[0] != state->n_head_kv ||
        keys[1] * ER_LANES != n_cells || keys[2] != state->head_dim || keys[3] != ER_LANES ||
        values[0] != state->n_head_kv || values[2] != state->head_dim || (!several && cosines[0] < n_cells) ||
        cosines[1] < 1 || cosines[1] * 2 > state->head_dim || sines[0] != cosines[0] || sines[1] != cosines[1])
        return refuse(api, "edge_spec.AttendRows: inputs have shapes that do not fit each other");
    if (types[1] != types[2] || (types[1] != ORT_FLOAT && types[1] != ORT_HALF))
        return refuse(api, "edge_spec.AttendRows: keys and values must both be float32 or both float16");
    size_t n_seen = 0;
    if (several && tree[0] == 1 + 2 * qkv[1])
        n_seen = read_texts(numbers + 1, (size_t)qkv[1], n_cells, cosines[0]);
    else if (!several && n_pending >= qkv[1] && numbers[0] >= 0 && numbers[0] + n_pending <= n_cells)
        n_seen = (size_t)(numbers[0] + n_pending);
    if (n_seen == 0 && qkv[1] != 0)
        return refuse(api, "edge_spec.AttendRows: the rows do not fit the cache");
    int64_t dims[3] = {1, qkv[1], state->n_head * state->head_dim};
    OrtValue *out;
    TRY(api->KernelContext_GetOutput(context, 0, dims, 3, &out));
    if (qkv[1] == 0)
        return NULL;
    TRY(api->GetTensorMutableData(out, &out_data));
    work w = {
        .a = {.qkv = data[0], .keys = data[1], .values = data[2], .cosines = data[3], .sines = data[4],
              .query_scales = data[6], .sinks = data[7], .parents = several ? NULL : numbers + 1,
              .texts = several ? numbers + 1 : NULL, .out = out_data,
              .n_rows = (size_t)qkv[1], .n_pending = (size_t)n_pending, .n_text = several ? 0 : (size_t)numbers[0],
              .n_seen = n_seen, .n_cells = (size_t)n_cells, .n_head = n_head, .n_head_kv = n_head_kv,
              .head_dim = hd, .n_rotated = (size_t)cosines[1] * 2, .window = (size_t)state->window,
              .f16 = types[1] == ORT_HALF, .interleaved = state->interleaved != 0},
        .variant = state->variant,
    };
    w.jobs_per_head = (w.a.n_rows + JOB_ROWS - 1) / JOB_ROWS;
    const size_t n_jobs = n_head_kv * w.jobs_per_head;
    int32_t *depths = malloc(sizeof(int32_t) * w.a.n_pending);
    if (depths == NULL)
        return api->CreateStatus(ORT_FAIL, "edge_spec.AttendRows: out of memory");
    w.a.depths = depths;
    w.a.is_chain = several;
    OrtStatus *status = NULL;
    if (!several && !read_tree(w.a.parents, w.a.n_pending, depths, &w.a.is_chain)) {
        status = refuse(api, "edge_spec.AttendRows: a parent does not come before its child");
    } else {
        const bool alone = w.a.n_rows * n_head * hd * n_seen < ALONE;
        status = run_jobs(api, context, alone, store_job, n_head_kv, &w);
        if (status == NULL)
            status = run_jobs(api, context, alone, attend_job, n_jobs, &w);
    }
    free(depths);
    if (status == NULL && atomic_load(&w.lacked_memory))
        status = api->CreateStatus(ORT_FAIL, "edge_spec.AttendRows: out of memory");
    return status;
}

static const char *ORT_CALL name(const OrtCustomOp *op) { (void)op; return "AttendRows"; }
static int ORT_CALL input_type(const OrtCustomOp *op, size_t i) {
    (void)op;
    return i == 5 ? ORT_INT32 : i == 1 || i == 2 ? ORT_ANY : ORT_FLOAT;
}
static size_t ORT_CALL n_inputs(const OrtCustomOp *op) { (void)op; return N_INPUTS; }
static int ORT_CALL characteristic(const OrtCustomOp *op, size_t i) {
    (void)op;
    return i >= N_REQUIRED ? ORT_INPUT_OPTIONAL : ORT_INPUT_REQUIRED;
}

const OrtCustomOp er_attend_rows = OPERATOR(name, input_type, n_inputs, characteristic, create, compute, destroy);
