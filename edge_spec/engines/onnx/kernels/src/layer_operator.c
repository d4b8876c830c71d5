/* A layer, or any other run of steps, as one operator of ONNX Runtime, in the domain edge_spec:
 *
 *     LayerRows(steps i64[n, 21], places i64[m, 3], threads i64[1], further inputs ...) -> f32[1, rows, width] ...
 *
 * ONNX Runtime takes some microseconds for each operator that it calls, and its threads wait in between: with a call for
 * every step that is a fifth of the time that a small model takes for a token.
 *
 * A place holds numbers of every row: what it is, a number, and how many numbers a row has. It is scratch memory (the
 * number is how many numbers of a row come before it), an input of rows, an output of rows, or a constant that is the same
 * for all rows (the number of the input or output). Steps and places, constants and weights must be constant inputs; all
 * are checked when the session is made. `threads` is how many threads of the session share the work of a call; numbers do
 * not depend on it.
 *
 * A step is 21 numbers: what it does; a place that it reads and where in its rows; another; the place that it writes and
 * where in its rows; n; and thirteen more:
 *
 *     PRODUCT     as MatMulRows; n inputs; the input with the weights. Fills the place that it writes.
 *     ATTEND      as AttendRows of all of a place; n numbers of a row; the inputs with keys, values, cosines, sines, tree,
 *                 query_scales and sinks (-1 for none of the last two); n_head, n_head_kv, head_dim, interleaved, window
 *     NORM, NORM_IN_ORDER   of pieces of n numbers with the weights b; how many pieces; the bits of epsilon, a float
 *     ADD, MULTIPLY         a and b; SCALE: a by one number of b. They and the next may write where they read a
 *     SIGMOID, SILU, GELU, RELU   of a; see rowwise.h
 *     COPY        pieces of n numbers; how many; how far apart they are in a, and where they are written
 *
 * Steps between products and attention go from row to row, so that a job takes some rows through all of them.
 */
#include <stdlib.h>
#include <string.h>

#include "attention_inputs.h"
#include "operator_inputs.h"
#include "rows.h"
#include "rowwise.h"
#include "team.h"

enum { SCRATCH, ROWS, OUT, CONSTANT, N_PLACE_KINDS };
enum {
    PRODUCT, ATTEND, NORM, NORM_IN_ORDER, ADD, MULTIPLY, SCALE, SIGMOID, SILU, GELU, RELU, COPY, N_STEP_KINDS,
};
enum {
    STEP_NUMBERS = 21, PLACE_NUMBERS = 3, MOST_STEPS = 1 << 20, MOST_NUMBERS = 1 << 30,
    /* Rows of one pass over the weights, as in operators.c. */
    PASS_ROWS = 256,
    /* The inputs that a graph does not number itself are steps, places and threads. */
    THREADS = 2,
    N_FIRST = 3,
};

typedef struct {
    int64_t kind, number, width;
} place;

typedef struct {
    int64_t what, a, a_at, b, b_at, y, y_at, n, more[13];
} step;

_Static_assert(sizeof(step) == STEP_NUMBERS * sizeof(int64_t), "a step is its numbers");
_Static_assert(sizeof(place) == PLACE_NUMBERS * sizeof(int64_t), "a place is its numbers");

/* What a step was given when the session was made. */
typedef union {
    er_matrix matrix;
    er_heads heads;
} given;

typedef struct {
    const OrtApi *api;
    const er_variant *variant;
    const er_rowwise_variant *rowwise;
    size_t n_steps, n_places, n_outputs;
    size_t scratch_width, activation_bytes; /* of a row */
    const step *steps;
    const place *places;
    const float **constants; /* [n_places] */
    given *given;            /* [n_steps] */
} layer;

/* A constant input's data, and how many numbers it has; `type` is what it must be. */
static OrtStatus *constant_of(const OrtApi *api, const OrtKernelInfo *info, size_t i, int type, const void **data,
                              size_t *n) {
    const OrtValue *value = NULL;
    int is_constant = 0, found;
    int64_t dims[MAX_DIMS + 1];
    size_t rank;
    OrtShape *shape;
    void *at;
    TRY(api->KernelInfoGetConstantInput_tensor(info, i, &is_constant, &value));
    if (!is_constant || value == NULL)
        return refuse(api, "edge_spec.LayerRows: an input that must be constant is not");
    TRY(shape_of(api, value, 0, dims, &rank, n));
    TRY(api->GetTensorTypeAndShape(value, &shape));
    OrtStatus *status = api->GetTensorElementType(shape, &found);
    api->ReleaseTensorTypeAndShapeInfo(shape);
    if (status != NULL)
        return status;
    if (found != type)
        return refuse(api, "edge_spec.LayerRows: a constant has the wrong type");
    TRY(api->GetTensorMutableData((OrtValue *)value, &at));
    *data = at;
    return NULL;
}

static bool lies_in(const layer *l, int64_t which, int64_t at, int64_t n) {
    return which >= 0 && which < (int64_t)l->n_places && at >= 0 && n >= 0 && at <= l->places[which].width &&
           n <= l->places[which].width - at;
}

/* How many numbers pieces take from the first one's beginning to the last one's end; -1 if that is too many. */
static int64_t span_of(int64_t n, int64_t pieces, int64_t apart) {
    if (n < 0 || n > MOST_NUMBERS || pieces < 1 || pieces > MOST_NUMBERS || apart < 0 || apart > MOST_NUMBERS)
        return -1;
    const int64_t span = (pieces - 1) * apart + n;
    return span <= MOST_NUMBERS ? span : -1;
}

static bool is_written(const layer *l, int64_t which) {
    return l->places[which].kind == SCRATCH || l->places[which].kind == OUT;
}

/* Whether a step stays inside the places that it reads and writes. */
static bool fits(const layer *l, const step *s) {
    int64_t of_a = s->n, of_b = s->n, of_y = s->n;
    bool reads_b = s->what == ADD || s->what == MULTIPLY || s->what == SCALE;
    if (s->what == NORM || s->what == NORM_IN_ORDER) {
        reads_b = true;
        of_a = of_y = span_of(s->n, s->more[0], s->n);
    } else if (s->what == COPY) {
        of_a = span_of(s->n, s->more[0], s->more[1]);
        of_y = span_of(s->n, s->more[0], s->more[2]);
    } else if (s->what == SCALE) {
        of_b = 1;
    }
    if (of_a < 1 || of_y < 1 || !lies_in(l, s->a, s->a_at, of_a))
        return false;
    if (s->what == PRODUCT || s->what == ATTEND)
        return lies_in(l, s->y, 0, 1) && is_written(l, s->y) && s->y_at == 0;
    if (reads_b && !lies_in(l, s->b, s->b_at, of_b))
        return false;
    return lies_in(l, s->y, s->y_at, of_y) && is_written(l, s->y) &&
           ((s->what != NORM && s->what != NORM_IN_ORDER) || l->places[s->b].kind == CONSTANT);
}

static OrtStatus *read_product(layer *l, const OrtKernelInfo *info, const step *s, given *g) {
    const OrtApi *api = l->api;
    const void *packed;
    size_t n_bytes;
    if (s->more[0] < 0)
        return refuse(api, "edge_spec.LayerRows: an impossible step");
    TRY(constant_of(api, info, (size_t)s->more[0], ORT_UINT8, &packed, &n_bytes));
    const char *wrong = er_open(packed, n_bytes, &g->matrix);
    if (wrong != NULL)
        return refuse(api, wrong);
    if (g->matrix.n_in != (size_t)s->n || g->matrix.n_out != (size_t)l->places[s->y].width)
        return refuse(api, "packed weights have another shape than the graph says");
    const size_t bytes = er_activations_bytes(&g->matrix, 1);
    l->activation_bytes = bytes > l->activation_bytes ? bytes : l->activation_bytes;
    return NULL;
}

static OrtStatus *read_heads(layer *l, const er_vectors *vectors, const step *s, given *g) {
    const int64_t *of = s->more + ER_N_READ;
    g->heads = (er_heads){of[0], of[1], of[2], of[3], of[4], of[5], vectors};
    const char *wrong = er_check_heads(&g->heads);
    if (wrong != NULL)
        return refuse(l->api, wrong);
    if (s->a_at != 0 || s->n != l->places[s->a].width || l->places[s->a].kind == CONSTANT ||
        l->places[s->y].width != of[0] * of[2])
        return refuse(l->api, "edge_spec.LayerRows: an impossible step");
    return NULL;
}

static OrtStatus *read_places(layer *l, const OrtKernelInfo *info) {
    for (size_t i = 0; i < l->n_places; i++) {
        const place *p = &l->places[i];
        if (p->kind < 0 || p->kind >= N_PLACE_KINDS || p->number < 0 || p->number > MOST_NUMBERS || p->width < 1 ||
            p->width > MOST_NUMBERS)
            return refuse(l->api, "edge_spec.LayerRows: an impossible place");
        if (p->kind == SCRATCH) {
            const size_t end = (size_t)(p->number + p->width);
            l->scratch_width = end > l->scratch_width ? end : l->scratch_width;
        } else if (p->kind == OUT) {
            if ((size_t)p->number != l->n_outputs++)
                return refuse(l->api, "edge_spec.LayerRows: outputs are not in their order");
        } else if (p->kind == CONSTANT) {
            const void *data;
            size_t n;
            TRY(constant_of(l->api, info, (size_t)p->number, ORT_FLOAT, &data, &n));
            if (n != (size_t)p->width)
                return refuse(l->api, "edge_spec.LayerRows: a constant has another size than the graph says");
            l->constants[i] = data;
        }
    }
    return NULL;
}

static OrtStatus *read_steps(layer *l, const OrtKernelInfo *info, const er_vectors *vectors) {
    for (size_t i = 0; i < l->n_steps; i++) {
        const step *s = &l->steps[i];
        if (s->what < 0 || s->what >= N_STEP_KINDS || !fits(l, s))
            return refuse(l->api, "edge_spec.LayerRows: an impossible step");
        if (s->what == PRODUCT)
            TRY(read_product(l, info, s, &l->given[i]));
        else if (s->what == ATTEND)
            TRY(read_heads(l, vectors, s, &l->given[i]));
    }
    return NULL;
}

static void ORT_CALL destroy(void *kernel) {
    layer *l = kernel;
    if (l != NULL) {
        free(l->constants);
        free(l->given);
    }
    free(l);
}

static OrtStatus *ORT_CALL create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info, void **kernel) {
    const void *steps, *places;
    size_t n_steps, n_places;
    char name[64] = "";
    (void)op;
    read_text(api, info, "variant", name, sizeof name);
    /* Names of the products' variants are their own. */
    const bool is_reference = strcmp(name, "reference") == 0;
    const er_vectors *vectors = er_find_vectors(name);
    TRY(constant_of(api, info, 0, ORT_INT64, &steps, &n_steps));
    TRY(constant_of(api, info, 1, ORT_INT64, &places, &n_places));
    if (n_steps % STEP_NUMBERS || n_places % PLACE_NUMBERS || n_steps > MOST_STEPS || n_places > MOST_STEPS)
        return refuse(api, "edge_spec.LayerRows: a step or a place is cut off");
    layer *l = malloc(sizeof *l);
    if (l == NULL)
        return api->CreateStatus(ORT_FAIL, "edge_spec: out of memory");
    *l = (layer){
        .api = api,
        .variant = er_find_variant(name),
        .rowwise = er_rowwise_find(is_reference ? name : ""),
        .n_steps = n_steps / STEP_NUMBERS,
        .n_places = n_places / PLACE_NUMBERS,
        .steps = steps,
        .places = places,
        .constants = calloc(n_places / PLACE_NUMBERS + 1, sizeof(float *)),
        .given = calloc(n_steps / STEP_NUMBERS + 1, sizeof(given)),
    };
    OrtStatus *status = NULL;
    if (l->constants == NULL || l->given == NULL)
        status = api->CreateStatus(ORT_FAIL, "edge_spec: out of memory");
    else if (l->variant == NULL || vectors == NULL || l->rowwise == NULL)
        status = refuse(api, "edge_spec: there is no such variant, or it cannot run on this CPU");
    if (status == NULL)
        status = read_places(l, info);
    if (status == NULL)
        status = read_steps(l, info, vectors);
    if (status != NULL)
        destroy(l);
    else
        *kernel = l;
    return status;
}

/* A call: where the rows of each place begin, and how far they are apart. */
typedef struct {
    float *at;
    size_t stride;
} rows_at;

typedef struct {
    const layer *layer;
    OrtKernelContext *context;
    size_t n_rows;
    rows_at *places;
    void *scratch;
    uint8_t *activations;
    const step *first, *end, *product; /* of the phase: steps from row to row, and a product that comes after them */
    size_t groups_per_job;             /* of the product */
    er_team team;
    OrtStatus *status;
} call;

static float *numbers(const call *c, int64_t which, int64_t at, size_t row) {
    return c->places[which].at + row * c->places[which].stride + at;
}

/* The epsilon of a norm. */
static float epsilon_of(const step *s) {
    const uint32_t bits = (uint32_t)s->more[1];
    float epsilon;
    memcpy(&epsilon, &bits, sizeof epsilon);
    return epsilon;
}

static void take_row(const call *c, const step *s, size_t row) {
    const er_rowwise_variant *do_ = c->layer->rowwise;
    const float *a = numbers(c, s->a, s->a_at, row);
    float *y = numbers(c, s->y, s->y_at, row);
    const size_t n = (size_t)s->n;
    switch (s->what) {
    case NORM:
        for (size_t i = 0; i < (size_t)s->more[0]; i++)
            do_->norm(a + i * n, numbers(c, s->b, s->b_at, 0), y + i * n, n, epsilon_of(s));
        break;
    case ADD: do_->add(a, numbers(c, s->b, s->b_at, row), y, n); break;
    case MULTIPLY: do_->multiply(a, numbers(c, s->b, s->b_at, row), y, n); break;
    case SCALE: do_->scale(a, *numbers(c, s->b, s->b_at, row), y, n); break;
    case SIGMOID: do_->sigmoid(a, y, n); break;
    case SILU: do_->silu(a, y, n); break;
    case GELU: do_->gelu(a, y, n); break;
    case RELU: do_->relu(a, y, n); break;
    case COPY:
        for (size_t i = 0; i < (size_t)s->more[0]; i++)
            memcpy(y + i * (size_t)s->more[2], a + i * (size_t)s->more[1], n * sizeof(float));
        break;
    }
}

/* Rows [start, end) through a step. */
static void take_rows(const call *c, const step *s, size_t start, size_t end) {
    if (s->what == NORM_IN_ORDER) {
        const size_t n = (size_t)s->n;
        for (size_t i = 0; i < (size_t)s->more[0]; i++)
            c->layer->rowwise->norm_in_order(numbers(c, s->a, s->a_at, start) + i * n, c->places[s->a].stride,
                                             numbers(c, s->b, s->b_at, 0), numbers(c, s->y, s->y_at, start) + i * n,
                                             c->places[s->y].stride, end - start, n, epsilon_of(s));
        return;
    }
    for (size_t row = start; row < end; row++)
        take_row(c, s, row);
}

static size_t rows_of_pass(const call *c, size_t pass) {
    const size_t left = c->n_rows - pass * PASS_ROWS;
    return left < PASS_ROWS ? left : PASS_ROWS;
}

/* A tile of rows through all steps of the phase, and quantized for the product that follows. */
static void rows_job(void *user, size_t i) {
    const call *c = user;
    const size_t pass = i / er_n_tiles(PASS_ROWS), t = i % er_n_tiles(PASS_ROWS), n_rows = rows_of_pass(c, pass);
    const size_t start = pass * PASS_ROWS + er_tile_start(n_rows, t);
    const size_t end = pass * PASS_ROWS + er_tile_start(n_rows, t + 1);
    for (const step *s = c->first; s < c->end; s++)
        take_rows(c, s, start, end);
    if (c->product != NULL) {
        const er_matrix *matrix = &c->layer->given[c->product - c->layer->steps].matrix;
        c->layer->variant->quantize(matrix->kind, numbers(c, c->product->a, c->product->a_at, start),
                                    c->places[c->product->a].stride, (int)(end - start), matrix->n_blocks,
                                    c->activations + er_activations_bytes(matrix, start));
    }
}

static void product_job(void *user, size_t i) {
    const call *c = user;
    const er_matrix *matrix = &c->layer->given[c->product - c->layer->steps].matrix;
    const size_t n_jobs = (matrix->n_groups + c->groups_per_job - 1) / c->groups_per_job;
    const size_t pass = i / n_jobs, first = i % n_jobs * c->groups_per_job, left = matrix->n_groups - first;
    er_multiply(c->layer->variant, matrix, c->activations + er_activations_bytes(matrix, pass * PASS_ROWS),
                rows_of_pass(c, pass), first, first + (left < c->groups_per_job ? left : c->groups_per_job),
                numbers(c, c->product->y, 0, pass * PASS_ROWS));
}

static OrtStatus *attend(call *c, const step *s) {
    size_t read[ER_N_READ];
    for (size_t i = 0; i < ER_N_READ; i++)
        read[i] = s->more[i] < 0 ? SIZE_MAX : (size_t)s->more[i];
    return er_attend_inputs(c->layer->api, c->context, &c->layer->given[s - c->layer->steps].heads, read,
                          numbers(c, s->a, 0, 0), c->n_rows, (size_t)s->n, numbers(c, s->y, 0, 0), &c->team.pool);
}

static bool is_rowwise(const step *s) { return s->what != PRODUCT && s->what != ATTEND; }

static OrtStatus *take_steps(call *c) {
    const step *end = c->layer->steps + c->layer->n_steps;
    const size_t n_passes = (c->n_rows + PASS_ROWS - 1) / PASS_ROWS, in_last = rows_of_pass(c, n_passes - 1);
    const size_t n_tiles = (n_passes - 1) * er_n_tiles(PASS_ROWS) + er_n_tiles(in_last);
    for (const step *s = c->layer->steps; s < end; s++) {
        c->first = s;
        while (s < end && is_rowwise(s))
            s++;
        c->end = s;
        c->product = s < end && s->what == PRODUCT ? s : NULL;
        if (c->first < c->end || c->product != NULL)
            TRY(share_jobs(&c->team.pool, false, rows_job, n_tiles, c));
        if (s == end)
            break;
        if (c->product != NULL) {
            const er_matrix *matrix = &c->layer->given[s - c->layer->steps].matrix;
            c->groups_per_job = groups_per_job(matrix->n_groups, matrix->group_bytes, c->n_rows);
            const size_t n_jobs = (matrix->n_groups + c->groups_per_job - 1) / c->groups_per_job;
            TRY(share_jobs(&c->team.pool, is_for_one_thread(matrix->n_groups * matrix->group_bytes, c->n_rows),
                           product_job, n_passes * n_jobs, c));
        } else {
            TRY(attend(c, s));
        }
    }
    return NULL;
}

static void lead(void *user) {
    call *c = user;
    c->status = take_steps(c);
}

/* Rows of an input: how many it has, which all inputs must share, and where they are. */
static OrtStatus *find_rows(call *c, size_t i, bool is_first) {
    const OrtApi *api = c->layer->api;
    const place *p = &c->layer->places[i];
    const OrtValue *value = NULL;
    int64_t dims[MAX_DIMS + 1];
    size_t rank, n_rows = 0;
    void *data;
    TRY(api->KernelContext_GetInput(c->context, (size_t)p->number, &value));
    if (value == NULL)
        return refuse(api, "edge_spec.LayerRows: an input is missing");
    TRY(shape_of(api, value, 1, dims, &rank, &n_rows));
    if (rank != 3 || dims[2] != p->width || (!is_first && n_rows != c->n_rows))
        return refuse(api, "edge_spec.LayerRows: inputs have shapes that do not fit each other");
    TRY(api->GetTensorMutableData((OrtValue *)value, &data));
    c->n_rows = n_rows;
    c->places[i].at = data;
    return NULL;
}

static OrtStatus *find_places(call *c) {
    const layer *l = c->layer;
    const OrtApi *api = l->api;
    bool is_first = true;
    for (size_t i = 0; i < l->n_places; i++) {
        c->places[i] = (rows_at){(float *)l->constants[i], l->places[i].kind == CONSTANT ? 0 : (size_t)l->places[i].width};
        if (l->places[i].kind == ROWS) {
            TRY(find_rows(c, i, is_first));
            is_first = false;
        }
    }
    if (is_first)
        return refuse(api, "edge_spec.LayerRows: there is no input of rows");
    /* Not an output: ONNX Runtime keeps those that nobody reads until its run ends. */
    c->scratch = malloc((c->n_rows + 1) * (l->scratch_width * sizeof(float) + l->activation_bytes));
    if (c->scratch == NULL)
        return api->CreateStatus(ORT_FAIL, "edge_spec.LayerRows: out of memory");
    float *data = c->scratch;
    c->activations = (uint8_t *)(data + c->n_rows * l->scratch_width);
    for (size_t i = 0; i < l->n_places; i++) {
        if (l->places[i].kind == SCRATCH) {
            c->places[i].at = data + c->n_rows * (size_t)l->places[i].number;
        } else if (l->places[i].kind == OUT) {
            int64_t of_rows[3] = {1, (int64_t)c->n_rows, l->places[i].width};
            OrtValue *out;
            void *at;
            TRY(api->KernelContext_GetOutput(c->context, (size_t)l->places[i].number, of_rows, 3, &out));
            TRY(api->GetTensorMutableData(out, &at));
            c->places[i].at = at;
        }
    }
    return NULL;
}

/* How many threads share the work of this call. */
static OrtStatus *read_threads(const call *c, size_t *n_threads) {
    const OrtApi *api = c->layer->api;
    const OrtValue *value = NULL;
    int64_t dims[MAX_DIMS + 1];
    size_t rank, n = 0;
    void *data;
    TRY(api->KernelContext_GetInput(c->context, THREADS, &value));
    if (value == NULL)
        return refuse(api, "edge_spec.LayerRows: an input is missing");
    TRY(shape_of(api, value, 0, dims, &rank, &n));
    TRY(api->GetTensorMutableData((OrtValue *)value, &data));
    const int64_t *wanted = data;
    if (n != 1 || *wanted < 1 || *wanted > MOST_NUMBERS)
        return refuse(api, "edge_spec.LayerRows: an impossible number of threads");
    *n_threads = (size_t)*wanted;
    return NULL;
}

static OrtStatus *ORT_CALL compute(void *kernel, OrtKernelContext *context) {
    const layer *l = kernel;
    enum { USUAL = 64 };
    rows_at usual[USUAL], *places = l->n_places <= USUAL ? usual : malloc(l->n_places * sizeof *places);
    if (places == NULL)
        return l->api->CreateStatus(ORT_FAIL, "edge_spec.LayerRows: out of memory");
    call c = {.layer = l, .context = context, .places = places};
    size_t n_threads = 1;
    OrtStatus *status = find_places(&c);
    if (status == NULL)
        status = read_threads(&c, &n_threads);
    if (status == NULL && c.n_rows > 0) {
        status = er_lead(&c.team, l->api, context, n_threads, lead, &c);
        if (status == NULL)
            status = c.status;
    }
    free(c.scratch);
    if (places != usual)
        free(places);
    return status;
}

static const char *ORT_CALL name(const OrtCustomOp *op) { (void)op; return "LayerRows"; }
static int ORT_CALL input_type(const OrtCustomOp *op, size_t i) { (void)op; return i < N_FIRST ? ORT_INT64 : ORT_ANY; }
static size_t ORT_CALL n_inputs(const OrtCustomOp *op) { (void)op; return N_FIRST + 1; }
static int ORT_CALL input_characteristic(const OrtCustomOp *op, size_t i) {
    (void)op;
    return i < N_FIRST ? ORT_INPUT_REQUIRED : ORT_INPUT_VARIADIC;
}
static int ORT_CALL output_characteristic(const OrtCustomOp *op, size_t i) { (void)op, (void)i; return ORT_INPUT_VARIADIC; }
static int ORT_CALL differ(const OrtCustomOp *op) { (void)op; return 0; }

const OrtCustomOp er_layer_rows = {
    .version = ORT_VERSION, .GetName = name, .GetExecutionProviderType = er_no_provider,
    .GetInputType = input_type, .GetInputTypeCount = n_inputs, .GetOutputType = er_float,
    .GetOutputTypeCount = er_one_output, .KernelDestroy = destroy, .GetInputCharacteristic = input_characteristic,
    .GetOutputCharacteristic = output_characteristic, .GetInputMemoryType = er_default_memory,
    .GetVariadicInputMinArity = er_one, .GetVariadicInputHomogeneity = differ,
    .GetVariadicOutputMinArity = er_one, .GetVariadicOutputHomogeneity = er_one,
    .CreateKernelV2 = create, .KernelComputeV2 = compute, .GetStartVersion = er_one,
    .GetEndVersion = er_last_version,
};
