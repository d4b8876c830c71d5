/* The kernels as operators of ONNX Runtime, in the domain edge_spec:
 *
 *     MatMulRows(x f32[..., n_in], packed u8[bytes]) -> f32[..., n_out]
 *     GatherRows(ids i64[...], packed u8[bytes]) -> f32[..., n_in]: the weights of these outputs, as an embedding
 *
 * Attributes: n_in, n_out (they must be those of the packed header, so that a graph never runs on another graph's
 * weights); for MatMulRows also variant, a name for tests and comparisons, "" or absent for the fastest.
 * Weights are checked when a session is made, if they are constant, and in every call; the check reads the header.
 */
#include <stdlib.h>
#include <string.h>

#include "experts_operator.h"
#include "export.h"
#include "operator_inputs.h"
#include "rows.h"

enum {
    /* A longer input takes several passes over the weights, so that scratch memory has a bound. */
    PASS_ROWS = 256,
};

typedef struct {
    const OrtApi *api;
    int64_t n_in, n_out;
    const er_variant *variant;
} operator_state;

static OrtStatus *ORT_CALL create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info, void **kernel) {
    operator_state state = {.api = api};
    char name[64] = "";
    int is_constant = 0;
    const OrtValue *weights = NULL;
    (void)op;
    TRY(api->KernelInfoGetAttribute_int64(info, "n_in", &state.n_in));
    TRY(api->KernelInfoGetAttribute_int64(info, "n_out", &state.n_out));
    read_text(api, info, "variant", name, sizeof name);
    state.variant = er_find_variant(name);
    if (state.variant == NULL)
        return refuse(api, "edge_spec: there is no such variant, or it cannot run on this CPU");
    TRY(api->KernelInfoGetConstantInput_tensor(info, 1, &is_constant, &weights));
    if (is_constant && weights != NULL) {
        er_matrix matrix;
        TRY(open_weights(api, weights, state.n_in, state.n_out, &matrix));
    }
    operator_state *kept = malloc(sizeof *kept);
    if (kept == NULL)
        return api->CreateStatus(ORT_FAIL, "edge_spec: out of memory");
    *kept = state;
    *kernel = kept;
    return NULL;
}

static void ORT_CALL destroy(void *kernel) { free(kernel); }

typedef struct {
    const er_variant *variant;
    er_matrix matrix;
    const float *x;
    uint8_t *activations;
    float *y;
    size_t n_rows, groups_per_job;
} product;

static void quantize_job(void *user, size_t i) {
    const product *p = user;
    er_quantize(p->variant, &p->matrix, p->x, p->n_rows, i, p->activations);
}

static void multiply_job(void *user, size_t i) {
    const product *p = user;
    const size_t first = i * p->groups_per_job, left = p->matrix.n_groups - first;
    er_multiply(p->variant, &p->matrix, p->activations, p->n_rows, first,
                first + (left < p->groups_per_job ? left : p->groups_per_job), p->y);
}

static OrtStatus *multiply_pass(const OrtApi *api, OrtKernelContext *context, product *p) {
    const er_matrix *matrix = &p->matrix;
    const bool alone = is_for_one_thread(matrix->n_groups * matrix->group_bytes, p->n_rows);
    TRY(run_jobs(api, context, alone, quantize_job, er_n_tiles(p->n_rows), p));
    return run_jobs(api, context, alone, multiply_job,
                    (matrix->n_groups + p->groups_per_job - 1) / p->groups_per_job, p);
}

static OrtStatus *ORT_CALL multiply(void *kernel, OrtKernelContext *context) {
    const operator_state *state = kernel;
    const OrtApi *api = state->api;
    product p = {.variant = state->variant};
    const OrtValue *x, *weights;
    OrtValue *y;
    int64_t dims[MAX_DIMS + 1];
    size_t rank, n_rows = 0;
    void *x_data, *y_data;
    TRY(api->KernelContext_GetInput(context, 0, &x));
    TRY(api->KernelContext_GetInput(context, 1, &weights));
    TRY(open_weights(api, weights, state->n_in, state->n_out, &p.matrix));
    TRY(shape_of(api, x, 1, dims, &rank, &n_rows));
    if (dims[rank - 1] != state->n_in)
        return refuse(api, "edge_spec.MatMulRows: the last dimension of x is not n_in");
    dims[rank - 1] = state->n_out;
    TRY(api->KernelContext_GetOutput(context, 0, dims, rank, &y));
    if (n_rows == 0)
        return NULL;
    TRY(api->GetTensorMutableData((OrtValue *)x, &x_data));
    TRY(api->GetTensorMutableData(y, &y_data));
    p.groups_per_job = groups_per_job(p.matrix.n_groups, p.matrix.group_bytes, n_rows);
    p.activations = malloc(er_activations_bytes(&p.matrix, n_rows < PASS_ROWS ? n_rows : PASS_ROWS));
    if (p.activations == NULL)
        return api->CreateStatus(ORT_FAIL, "edge_spec.MatMulRows: out of memory for the activations");
    OrtStatus *status = NULL;
    for (size_t row = 0; row < n_rows && status == NULL; row += PASS_ROWS) {
        p.n_rows = n_rows - row < PASS_ROWS ? n_rows - row : PASS_ROWS;
        p.x = (const float *)x_data + row * p.matrix.n_in;
        p.y = (float *)y_data + row * p.matrix.n_out;
        status = multiply_pass(api, context, &p);
    }
    free(p.activations);
    return status;
}

static OrtStatus *ORT_CALL gather(void *kernel, OrtKernelContext *context) {
    const operator_state *state = kernel;
    const OrtApi *api = state->api;
    er_matrix matrix;
    const OrtValue *ids, *weights;
    OrtValue *y;
    int64_t dims[MAX_DIMS + 1];
    size_t rank, n_ids = 0;
    void *ids_data, *y_data;
    TRY(api->KernelContext_GetInput(context, 0, &ids));
    TRY(api->KernelContext_GetInput(context, 1, &weights));
    TRY(open_weights(api, weights, state->n_in, state->n_out, &matrix));
    TRY(shape_of(api, ids, 0, dims, &rank, &n_ids));
    dims[rank] = state->n_in;
    TRY(api->KernelContext_GetOutput(context, 0, dims, rank + 1, &y));
    TRY(api->GetTensorMutableData((OrtValue *)ids, &ids_data));
    TRY(api->GetTensorMutableData(y, &y_data));
    for (size_t i = 0; i < n_ids; i++) {
        const int64_t id = ((const int64_t *)ids_data)[i];
        if (id < 0 || id >= state->n_out)
            return refuse(api, "edge_spec.GatherRows: an id is out of range");
        er_weights(&matrix, (size_t)id, (float *)y_data + i * matrix.n_in);
    }
    return NULL;
}

static const char *ORT_CALL multiply_name(const OrtCustomOp *op) { (void)op; return "MatMulRows"; }
static const char *ORT_CALL gather_name(const OrtCustomOp *op) { (void)op; return "GatherRows"; }
static int ORT_CALL multiply_input(const OrtCustomOp *op, size_t i) { (void)op; return i == 0 ? ORT_FLOAT : ORT_UINT8; }
static int ORT_CALL gather_input(const OrtCustomOp *op, size_t i) { (void)op; return i == 0 ? ORT_INT64 : ORT_UINT8; }
static size_t ORT_CALL two(const OrtCustomOp *op) { (void)op; return 2; }

static const OrtCustomOp matmul_rows = OPERATOR(multiply_name, multiply_input, two, er_required, create, multiply, destroy);
static const OrtCustomOp gather_rows = OPERATOR(gather_name, gather_input, two, er_required, create, gather, destroy);

extern const OrtCustomOp er_attend_rows; /* attention_operator.c */
extern const OrtCustomOp er_convolve_rows; /* convolution_operator.c */
extern const OrtCustomOp er_delta_rows; /* delta_operator.c */
extern const OrtCustomOp er_layer_rows; /* layer_operator.c */

/* The operator of experts as a session wants it. */
static OrtStatus *experts_of(const OrtApi *api, const OrtSessionOptions *options, const er_experts_operator **experts) {
    int is_given = 0, forgets = 0;
    char held[16];
    size_t size = sizeof held;
    *experts = &er_expert_rows;
    TRY(api->HasSessionConfigEntry(options, ER_HELD_EXPERTS, &is_given));
    if (!is_given)
        return NULL;
    TRY(api->GetSessionConfigEntry(options, ER_HELD_EXPERTS, held, &size));
    TRY(api->HasSessionConfigEntry(options, ER_FORGETS_EXPERTS, &forgets));
    er_experts_operator *own = malloc(sizeof *own);
    if (own == NULL)
        return api->CreateStatus(ORT_FAIL, "edge_spec: out of memory");
    memcpy(own, &er_expert_rows, sizeof *own);
    own->held = strtoul(held, NULL, 10);
    own->forgets = forgets != 0;
    *experts = own;
    return NULL;
}

/* Called by SessionOptions.register_custom_ops_library. ONNX Runtime keeps the domain and its operators, and never frees
 * them. */
ER_EXPORT OrtStatus *ORT_CALL RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
    const OrtApi *api = base->GetApi(ORT_VERSION);
    OrtCustomOpDomain *domain;
    const er_experts_operator *experts;
    if (api == NULL)
        return base->GetApi(1)->CreateStatus(ORT_FAIL, "edge_spec needs ONNX Runtime 1.18 or later");
    TRY(experts_of(api, options, &experts));
    TRY(api->CreateCustomOpDomain("edge_spec", &domain));
    TRY(api->CustomOpDomain_Add(domain, &matmul_rows));
    TRY(api->CustomOpDomain_Add(domain, &gather_rows));
    TRY(api->CustomOpDomain_Add(domain, &er_attend_rows));
    TRY(api->CustomOpDomain_Add(domain, &experts->operator));
    TRY(api->CustomOpDomain_Add(domain, &er_convolve_rows));
    TRY(api->CustomOpDomain_Add(domain, &er_delta_rows));
    TRY(api->CustomOpDomain_Add(domain, &er_layer_rows));
    return api->AddCustomOpDomain(options, domain);
}
