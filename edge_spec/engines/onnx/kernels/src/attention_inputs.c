/* Attention over the inputs of an operator: their checks, and how the work is divided into jobs. */
#include "attention_inputs.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

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
    /* Of a text, before its parents. */
    N_NUMBERS = 4,
};

/* An input's data, its type, and its shape, which must have `rank` dimensions. */
static OrtStatus *input(const OrtApi *api, OrtKernelContext *context, size_t i, size_t rank, int64_t *dims,
                        int *type, void **data) {
    const OrtValue *value = NULL;
    OrtShape *shape;
    size_t found;
    TRY(api->KernelContext_GetInput(context, i, &value));
    if (value == NULL)
        return refuse(api, "edge_spec.AttendRows: an input is missing");
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

static OrtStatus *attend_all(const OrtApi *api, er_pool *pool, work *w) {
    const er_attention *a = &w->a;
    const bool alone = a->n_rows * a->n_head * a->head_dim * a->n_seen < ALONE;
    const bool has_new = a->n_row > a->n_head * a->head_dim;
    const size_t shared = a->n_head / a->n_head_kv;
    w->job_rows = rows_of_a_job(a);
    w->jobs_per_part = (a->n_rows + w->job_rows - 1) / w->job_rows;
    w->job_heads = alone ? shared : heads_of_a_job(a, w->jobs_per_part);
    w->stores = has_new && w->job_heads == shared && (w->jobs_per_part == 1 || a->n_rows == a->n_texts);
    if (has_new && !w->stores)
        TRY(share_jobs(pool, alone, store_job, a->n_head_kv, w));
    TRY(share_jobs(pool, alone, attend_job, a->n_head / w->job_heads * w->jobs_per_part, w));
    return atomic_load(&w->lacked_memory) ? api->CreateStatus(ORT_FAIL, "edge_spec.AttendRows: out of memory") : NULL;
}

const char *er_check_heads(const er_heads *heads) {
    if (heads->n_head_kv < 1 || heads->n_head < 1 || heads->n_head % heads->n_head_kv || heads->n_head > 65536 ||
        heads->head_dim < ER_LANES || heads->head_dim % ER_LANES || heads->head_dim > ER_MAX_HEAD_DIM)
        return "edge_spec.AttendRows: impossible heads";
    return heads->window < 0 || heads->unseen < 0 ? "edge_spec.AttendRows: an impossible window" : NULL;
}

/* An optional input of one dimension; NULL if it is missing. */
static OrtStatus *optional(const OrtApi *api, OrtKernelContext *context, size_t i, int64_t n, const char *wrong,
                           void **data) {
    const OrtValue *value = NULL;
    int64_t dims[1];
    int type;
    *data = NULL;
    if (i == SIZE_MAX)
        return NULL;
    TRY(api->KernelContext_GetInput(context, i, &value));
    if (value == NULL)
        return NULL;
    TRY(input(api, context, i, 1, dims, &type, data));
    return dims[0] == n ? NULL : refuse(api, wrong);
}

OrtStatus *er_attend_inputs(const OrtApi *api, OrtKernelContext *context, const er_heads *heads,
                          const size_t read[ER_N_READ], const float *qkv, size_t n_rows, size_t n_row, float *out,
                          er_pool *pool) {
    const size_t n_head = (size_t)heads->n_head, n_head_kv = (size_t)heads->n_head_kv, hd = (size_t)heads->head_dim;
    int64_t keys[4], values[3], cosines[2], sines[2], tree[1];
    int types[ER_N_READ];
    void *data[ER_N_READ];
    TRY(input(api, context, read[ER_KEYS], 4, keys, &types[ER_KEYS], &data[ER_KEYS]));
    TRY(input(api, context, read[ER_VALUES], 3, values, &types[ER_VALUES], &data[ER_VALUES]));
    TRY(input(api, context, read[ER_COSINES], 2, cosines, &types[ER_COSINES], &data[ER_COSINES]));
    TRY(input(api, context, read[ER_SINES], 2, sines, &types[ER_SINES], &data[ER_SINES]));
    TRY(input(api, context, read[ER_TREE], 1, tree, &types[ER_TREE], &data[ER_TREE]));
    TRY(optional(api, context, read[ER_QUERY_SCALES], cosines[0],
                 "edge_spec.AttendRows: there is not one scale of queries for every place", &data[ER_QUERY_SCALES]));
    TRY(optional(api, context, read[ER_SINKS], heads->n_head,
                 "edge_spec.AttendRows: there is not one sink for every head", &data[ER_SINKS]));
    const int64_t n_cells = values[1];
    if ((n_row != n_head * hd && n_row != (n_head + 2 * n_head_kv) * hd) || keys[0] != heads->n_head_kv ||
        keys[1] * ER_LANES != n_cells || keys[2] != heads->head_dim || keys[3] != ER_LANES ||
        values[0] != heads->n_head_kv || values[2] != heads->head_dim || cosines[1] < 1 ||
        cosines[1] * 2 > heads->head_dim || sines[0] != cosines[0] || sines[1] != cosines[1])
        return refuse(api, "edge_spec.AttendRows: inputs have shapes that do not fit each other");
    if (types[ER_KEYS] != types[ER_VALUES] || (types[ER_KEYS] != ORT_FLOAT && types[ER_KEYS] != ORT_HALF))
        return refuse(api, "edge_spec.AttendRows: keys and values must both be float32 or both float16");
    if (types[ER_COSINES] != ORT_FLOAT || types[ER_SINES] != ORT_FLOAT || types[ER_TREE] != ORT_INT32)
        return refuse(api, "edge_spec.AttendRows: an input has the wrong type");
    if (n_rows == 0)
        return NULL;
    work w = {
        .a = {.qkv = qkv, .keys = data[ER_KEYS], .values = data[ER_VALUES], .cosines = data[ER_COSINES],
              .sines = data[ER_SINES], .query_scales = data[ER_QUERY_SCALES], .sinks = data[ER_SINKS], .out = out,
              .n_cells = (size_t)n_cells, .n_head = n_head, .n_head_kv = n_head_kv, .head_dim = hd, .n_row = n_row,
              .n_rotated = (size_t)cosines[1] * 2, .window = (size_t)heads->window, .unseen = (size_t)heads->unseen,
              .f16 = types[ER_KEYS] == ORT_HALF, .interleaved = heads->interleaved != 0},
        .vectors = heads->vectors,
    };
    const size_t n_numbers = (size_t)tree[0];
    er_text *texts = malloc((n_numbers / N_NUMBERS + 1) * sizeof *texts);
    int32_t *depths = malloc((n_numbers + 1) * sizeof *depths);
    OrtStatus *status;
    if (texts == NULL || depths == NULL) {
        status = api->CreateStatus(ORT_FAIL, "edge_spec.AttendRows: out of memory");
    } else {
        const char *wrong = read_texts(data[ER_TREE], n_numbers, n_rows, n_cells, cosines[0], texts, depths, &w.a);
        w.a.texts = texts;
        memset(out + w.a.n_rows * n_head * hd, 0, (n_rows - w.a.n_rows) * n_head * hd * sizeof(float));
        status = wrong != NULL ? refuse(api, wrong) : attend_all(api, pool, &w);
    }
    free(depths);
    free(texts);
    return status;
}
