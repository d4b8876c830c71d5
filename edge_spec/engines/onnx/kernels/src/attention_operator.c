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
 * and variant for tests. The keys and values of the rows are written to the pool, although it is an input.
 */
#include <stdlib.h>

#include "attention_inputs.h"
#include "operator_inputs.h"

enum { N_REQUIRED = 6, N_INPUTS = 8 };

typedef struct {
    const OrtApi *api;
    er_heads heads;
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
    TRY(api->KernelInfoGetAttribute_int64(info, "n_head", &state.heads.n_head));
    TRY(api->KernelInfoGetAttribute_int64(info, "n_head_kv", &state.heads.n_head_kv));
    TRY(api->KernelInfoGetAttribute_int64(info, "head_dim", &state.heads.head_dim));
    TRY(api->KernelInfoGetAttribute_int64(info, "interleaved", &state.heads.interleaved));
    state.heads.window = optional_number(api, info, "window");
    state.heads.unseen = optional_number(api, info, "unseen");
    read_text(api, info, "variant", name, sizeof name);
    state.heads.vectors = er_find_vectors(name);
    if (state.heads.vectors == NULL)
        return refuse(api, "edge_spec.AttendRows: there is no such variant, or it cannot run on this CPU");
    const char *wrong = er_check_heads(&state.heads);
    if (wrong != NULL)
        return refuse(api, wrong);
    operator_state *kept = malloc(sizeof *kept);
    if (kept == NULL)
        return api->CreateStatus(ORT_FAIL, "edge_spec: out of memory");
    *kept = state;
    *kernel = kept;
    return NULL;
}

static void ORT_CALL destroy(void *kernel) { free(kernel); }

/* The threads of a session. */
typedef struct {
    er_pool pool;
    const OrtApi *api;
    OrtKernelContext *context;
} session_pool;

static OrtStatus *run(er_pool *pool, er_job job, size_t n, void *user) {
    const session_pool *of = (session_pool *)pool;
    return of->api->KernelContext_ParallelFor(of->context, job, n, 0, user);
}

static OrtStatus *ORT_CALL compute(void *kernel, OrtKernelContext *context) {
    const operator_state *state = kernel;
    const OrtApi *api = state->api;
    static const size_t read[ER_N_READ] = {1, 2, 3, 4, 5, 6, 7};
    const OrtValue *value;
    OrtValue *out;
    int64_t qkv[MAX_DIMS + 1];
    size_t rank, n_outer;
    void *data, *out_data;
    TRY(api->KernelContext_GetInput(context, 0, &value));
    TRY(shape_of(api, value, 0, qkv, &rank, &n_outer));
    if (rank != 3)
        return refuse(api, "edge_spec.AttendRows: an input has the wrong number of dimensions");
    if (qkv[0] != 1)
        return refuse(api, "edge_spec.AttendRows: inputs have shapes that do not fit each other");
    int64_t dims[3] = {1, qkv[1], state->heads.n_head * state->heads.head_dim};
    TRY(api->KernelContext_GetOutput(context, 0, dims, 3, &out));
    TRY(api->GetTensorMutableData((OrtValue *)value, &data));
    TRY(api->GetTensorMutableData(out, &out_data));
    session_pool pool = {{run}, api, context};
    return er_attend_inputs(api, context, &state->heads, read, data, (size_t)qkv[1], (size_t)qkv[2], out_data, &pool.pool);
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
