/* Attention as an operator of ONNX Runtime, in the domain edge_spec:
 *
 *     AttendRows(qkv f32[1, rows, (n_head + 2 n_head_kv) head_dim], keys T[n_head_kv, cells / 16, head_dim, 16],
 *                values T[n_head_kv, cells, head_dim], cosines, sines f32[places, rotated / 2], tree i32[numbers],
 *                query_scales f32[places], optional, sinks f32[n_head], optional) -> f32[1, rows, n_head head_dim]
 *
 * Rows may be queries alone, [1, rows, n_head head_dim]: a layer that reads the keys and values which another one has
 * stored for them.
 *
 * T is f32 or f16. The first `rotated` numbers of a head are rotated by position, the others are unchanged. `tree` tells
 * of texts in the order of their rows (see attention.h): how many there are, and for each one the numbers of its
 * committed cells, pending nodes, rows and tiles, then the parent of each pending node, -1 for the text, and the tiles.
 * Rows after those of all texts are padding, and their outputs are 0. Queries are multiplied by the scale of their
 * place, if there are scales. Attributes: n_head, n_head_kv, head_dim, interleaved (0 or 1), window (how many places a
 * row sees, itself included; all if absent or 0), unseen (how many first places rows of others do not see; 0 if absent),
 * and variant for tests. The keys and values of the rows are written to
 * the pool, although it is an input.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "operator.h"
#include "vectors.h"

enum {
    /* A job's rows: enough to use a tile of keys again and again, few enough to spread a prompt. */
    JOB_ROWS = 16,
    /* Of several texts a job has the rows of about so many: they share no keys. */
    JOB_TEXTS = 2,
    /* Below this many multiplications waking other threads costs more than it saves. It is as few as this since one
     * thread waits for memory most of the time. */
    ALONE = 1 << 16,
    /* Heads of queries that share keys are divided until there are so many jobs, or so few heads in a job. */
    LEAST_JOBS = 2,
    LEAST_HEADS = 2,
    N_REQUIRED = 6,
    N_INPUTS = 8,
    /* Of a text, before its parents. */
    N_NUMBERS = 4,
};

typedef struct {
    const OrtApi *api;
    int64_t n_head, n_head_kv, head_dim, interleaved, window, unseen;
    const er_vectors *vectors;
} operator_state;

/* An attribute; 0 where there is none. */
static int64_t optional_number(const OrtApi *api, const OrtKernelInfo *info, const char *name) {
    int64_t number = 0;
    OrtStatus *status = api->KernelInfoGetAttribute_int64(info, name, &number);
    if (status == NULL)
        return number;
    api->ReleaseStatus(status);
    return 0;
}

static OrtStatus *ORT_CALL create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info, void **kernel) {
    operator_state state = {.api = api};
    char name[64] = "";
    (void)op;
    TRY(api->KernelInfoGetAttribute_int64(info, "n_head", &state.n_head));
    TRY(api->KernelInfoGetAttribute_int64(info, "n_head_kv", &state.n_head_kv));
    TRY(api->KernelInfoGetAttribute_int64(info, "head_dim", &state.head_dim));
    TRY(api->KernelInfoGetAttribute_int64(info, "interleaved", &state.interleaved));
    state.window = optional_number(api, info, "window");
    state.unseen = optional_number(api, info, "unseen");
    read_text(api, info, "variant", name, sizeof name);
    state.vectors = er_find_vectors(name);
    if (state.vectors == NULL)
        return refuse(api, "edge_spec.AttendRows: there is no such variant, or it cannot run on this CPU");
    if (state.n_head_kv < 1 || state.n_head < 1 || state.n_head % state.n_head_kv || state.n_head > 65536 ||
        state.head_dim < ER_LANES || state.head_dim % ER_LANES || state.head_dim > ER_MAX_HEAD_DIM)
        return refuse(api, "edge_spec.AttendRows: impossible heads");
    if (state.window < 0 || state.unseen < 0)
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
    const er_vectors *vectors;
    size_t job_rows, job_heads, jobs_per_part; /* a job's rows and heads of queries; jobs for the same heads */
    bool stores; /* a job stores its rows itself: no other one reads them */
    atomic_bool lacked_memory;
} work;

static void store_job(void *user, size_t i) {
    const work *w = user;
    w->vectors->store(&w->a, i, 0, w->a.n_rows);
}

static void attend_job(void *user, size_t i) {
    work *w = user;
    const size_t head = i / w->jobs_per_part * w->job_heads, first = i % w->jobs_per_part * w->job_rows;
    const size_t left = w->a.n_rows - first;
    const size_t n = left < w->job_rows ? left : w->job_rows;
    /* ParallelFor does not say which thread runs a job, so each has scratch of its own, while it runs. */
    float *scratch = malloc(sizeof(float) * er_attention_scratch(&w->a));
    if (scratch == NULL) {
        atomic_store(&w->lacked_memory, true);
        return;
    }
    if (w->stores)
        w->vectors->store(&w->a, head / w->job_heads, first, n);
    w->vectors->attend(&w->a, head, w->job_heads, first, n, scratch);
    free(scratch);
}

/* Depths of the pending nodes into depths[n]; false if a parent does not come before its child. */
static bool read_tree(er_text *text, int32_t *depths) {
    const int32_t *parents = text->parents;
    text->is_chain = true;
    for (size_t i = 0; i < text->n_pending; i++) {
        if (parents[i] < -1 || parents[i] >= (int64_t)i)
            return false;
        text->is_chain = text->is_chain && parents[i] == (int32_t)i - 1;
        depths[i] = parents[i] < 0 ? 0 : depths[parents[i]] + 1;
    }
    text->depths = depths;
    return true;
}

/* The numbers of `tree` as texts[] and depths[], and what they say of the whole call; what is wrong with them, or NULL.
 * No text has more numbers than there are, so each of both arrays has enough room with n. */
static const char *read_texts(const int32_t *numbers, size_t n, size_t n_rows, int64_t n_cells, int64_t n_places,
                              er_text *texts, int32_t *depths, er_attention *a) {
    const char *cut = "edge_spec.AttendRows: the numbers of a text are cut off";
    if (n == 0 || numbers[0] < 0 || (size_t)numbers[0] > (n - 1) / N_NUMBERS)
        return cut;
    a->n_texts = (size_t)numbers[0];
    for (size_t i = 0, at = 1; i < a->n_texts; i++) {
        if (n - at < N_NUMBERS)
            return cut;
        const int64_t n_text = numbers[at], n_pending = numbers[at + 1], rows = numbers[at + 2], tiles = numbers[at + 3];
        at += N_NUMBERS;
        if (n_text < 0 || n_pending < 0 || rows < 0 || tiles < 0 || (uint64_t)(n_pending + tiles) > n - at)
            return cut;
        if (rows > n_pending || (uint64_t)rows > n_rows - a->n_rows || n_text + n_pending > tiles * ER_LANES ||
            n_text + n_pending > n_places)
            return "edge_spec.AttendRows: the rows do not fit the cache";
        texts[i] = (er_text){.parents = numbers + at, .tiles = numbers + at + n_pending, .n_text = (size_t)n_text,
                             .n_pending = (size_t)n_pending, .n_rows = (size_t)rows, .first_row = a->n_rows};
        for (int64_t tile = 0; tile < tiles; tile++)
            if (texts[i].tiles[tile] < 0 || texts[i].tiles[tile] >= n_cells / ER_LANES)
                return "edge_spec.AttendRows: a tile lies outside the cache; the rows do not fit it";
        if (!read_tree(&texts[i], depths))
            return "edge_spec.AttendRows: a parent does not come before its child";
        const size_t n_seen = texts[i].n_text + texts[i].n_pending;
        a->n_seen = n_seen > a->n_seen ? n_seen : a->n_seen;
        a->n_pending = texts[i].n_pending > a->n_pending ? texts[i].n_pending : a->n_pending;
        a->n_rows += texts[i].n_rows;
        depths += n_pending;
        at += (size_t)(n_pending + tiles);
    }
    return NULL;
}

static size_t rows_of_a_job(const er_attention *a) {
    const size_t rows = a->n_texts > 0 ? (JOB_TEXTS * a->n_rows + a->n_texts - 1) / a->n_texts : 0;
    return rows < 1 ? 1 : rows < JOB_ROWS ? rows : JOB_ROWS;
}

/* All heads that share keys, unless there are too few jobs for several threads. */
static size_t heads_of_a_job(const er_attention *a, size_t jobs_per_part) {
    size_t n = a->n_head / a->n_head_kv;
    while (a->n_head / n * jobs_per_part < LEAST_JOBS && n % 2 == 0 && n > LEAST_HEADS)
        n /= 2;
    return n;
}

static OrtStatus *attend_all(const OrtApi *api, OrtKernelContext *context, work *w) {
    const er_attention *a = &w->a;
    const bool alone = a->n_rows * a->n_head * a->head_dim * a->n_seen < ALONE;
    const bool has_new = a->n_row > a->n_head * a->head_dim;
    const size_t shared = a->n_head / a->n_head_kv;
    w->job_rows = rows_of_a_job(a);
    w->jobs_per_part = (a->n_rows + w->job_rows - 1) / w->job_rows;
    w->job_heads = alone ? shared : heads_of_a_job(a, w->jobs_per_part);
    w->stores = has_new && w->job_heads == shared && (w->jobs_per_part == 1 || a->n_rows == a->n_texts);
    if (has_new && !w->stores)
        TRY(run_jobs(api, context, alone, store_job, a->n_head_kv, w));
    TRY(run_jobs(api, context, alone, attend_job, a->n_head / w->job_heads * w->jobs_per_part, w));
    return atomic_load(&w->lacked_memory) ? api->CreateStatus(ORT_FAIL, "edge_spec.AttendRows: out of memory") : NULL;
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
    const int64_t n_cells = values[1], of_queries = (int64_t)(n_head * hd);
    if (qkv[0] != 1 || (qkv[2] != of_queries && qkv[2] != of_queries + (int64_t)(2 * n_head_kv * hd)) || keys[0] != state->n_head_kv ||
        keys[1] * ER_LANES != n_cells || keys[2] != state->head_dim || keys[3] != ER_LANES ||
        values[0] != state->n_head_kv || values[2] != state->head_dim || cosines[1] < 1 ||
        cosines[1] * 2 > state->head_dim || sines[0] != cosines[0] || sines[1] != cosines[1])
        return refuse(api, "edge_spec.AttendRows: inputs have shapes that do not fit each other");
    if (types[1] != types[2] || (types[1] != ORT_FLOAT && types[1] != ORT_HALF))
        return refuse(api, "edge_spec.AttendRows: keys and values must both be float32 or both float16");
    int64_t dims[3] = {1, qkv[1], state->n_head * state->head_dim};
    OrtValue *out;
    TRY(api->KernelContext_GetOutput(context, 0, dims, 3, &out));
    if (qkv[1] == 0)
        return NULL;
    TRY(api->GetTensorMutableData(out, &out_data));
    work w = {
        .a = {.qkv = data[0], .keys = data[1], .values = data[2], .cosines = data[3], .sines = data[4],
              .query_scales = data[6], .sinks = data[7], .out = out_data, .n_cells = (size_t)n_cells,
              .n_head = n_head, .n_head_kv = n_head_kv, .head_dim = hd, .n_row = (size_t)qkv[2],
              .n_rotated = (size_t)cosines[1] * 2,
              .window = (size_t)state->window, .unseen = (size_t)state->unseen, .f16 = types[1] == ORT_HALF,
              .interleaved = state->interleaved != 0},
        .vectors = state->vectors,
    };
    const size_t n_rows = (size_t)qkv[1], n_numbers = (size_t)tree[0];
    er_text *texts = malloc((n_numbers / N_NUMBERS + 1) * sizeof *texts);
    int32_t *depths = malloc((n_numbers + 1) * sizeof *depths);
    OrtStatus *status;
    if (texts == NULL || depths == NULL) {
        status = api->CreateStatus(ORT_FAIL, "edge_spec.AttendRows: out of memory");
    } else {
        const char *wrong = read_texts(data[5], n_numbers, n_rows, n_cells, cosines[0], texts, depths, &w.a);
        w.a.texts = texts;
        memset((float *)out_data + w.a.n_rows * n_head * hd, 0, (n_rows - w.a.n_rows) * n_head * hd * sizeof(float));
        status = wrong != NULL ? refuse(api, wrong) : attend_all(api, context, &w);
    }
    free(depths);
    free(texts);
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
