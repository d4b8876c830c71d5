/* Short convolutions as an operator of ONNX Runtime, in the domain edge_spec:
 *
 *     ConvolveRows(x f32[1, rows, 3 * channels], weights f32[taps, channels], run i64[numbers]) -> f32[1, rows, channels]
 *
 * See convolution.h for what is computed of b, c and x, which lie side by side in a row, and recurrent_operator.h for `run`;
 * a layer has of a text what it keeps, [taps - 1 + capacity, channels]. Attributes: number, and variant, for tests.
 */
#include "recurrent_operator.h"

enum { X, WEIGHTS, RUN, N_INPUTS };

typedef struct {
    const OrtApi *api;
    int64_t number;
    const er_vectors *vectors;
} operator_state;

static OrtStatus *ORT_CALL create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info, void **kernel) {
    operator_state state = {.api = api};
    char name[64] = "";
    (void)op;
    TRY(read_number(api, info, &state.number));
    read_text(api, info, "variant", name, sizeof name);
    state.vectors = er_find_vectors(name);
    if (state.vectors == NULL)
        return refuse(api, "edge_spec.ConvolveRows: there is no such variant, or it cannot run on this CPU");
    operator_state *kept = malloc(sizeof *kept);
    if (kept == NULL)
        return api->CreateStatus(ORT_FAIL, "edge_spec: out of memory");
    *kept = state;
    *kernel = kept;
    return NULL;
}

static void ORT_CALL destroy(void *kernel) { free(kernel); }

static OrtStatus *ORT_CALL compute(void *kernel, OrtKernelContext *context) {
    const operator_state *state = kernel;
    const OrtApi *api = state->api;
    int64_t x[3], weights[2], run[1];
    size_t n_texts = 0, capacity = 0;
    void *data[N_INPUTS], *out_data = NULL;
    TRY(read_input(api, context, X, 3, x, &data[X]));
    TRY(read_input(api, context, WEIGHTS, 2, weights, &data[WEIGHTS]));
    TRY(read_input(api, context, RUN, 1, run, &data[RUN]));
    if (x[0] != 1 || weights[1] < 1 || weights[1] % ER_CHANNELS || x[2] != 3 * weights[1] || weights[0] < 1)
        return refuse(api, "edge_spec.ConvolveRows: inputs have shapes that do not fit each other");
    const char *wrong = read_run(data[RUN], run[0], &n_texts, &capacity);
    if (wrong != NULL)
        return refuse(api, wrong);
    const size_t n_channels = (size_t)weights[1], n_taps = (size_t)weights[0], n_rows = (size_t)x[1];
    int64_t dims[3] = {1, x[1], weights[1]};
    OrtValue *out;
    TRY(api->KernelContext_GetOutput(context, 0, dims, 3, &out));
    TRY(api->GetTensorMutableData(out, &out_data));
    recurrent_text *texts = malloc((n_texts + 1) * (sizeof *texts + sizeof(convolving)));
    if (texts == NULL)
        return api->CreateStatus(ORT_FAIL, "edge_spec.ConvolveRows: out of memory");
    convolving *w = (convolving *)(texts + n_texts);
    wrong = read_texts(data[RUN], (size_t)state->number, ER_STATE_HEAD + (n_taps - 1 + capacity) * n_channels, n_rows, texts);
    OrtStatus *status = wrong != NULL ? refuse(api, wrong) : NULL;
    if (status == NULL) {
        for (size_t i = 0; i < n_texts; i++) {
            const recurrent_text *text = &texts[i];
            w[i] = (convolving){
                .c = {.x = (float *)data[X] + text->first * 3 * n_channels, .kept = text->state, .weights = data[WEIGHTS],
                      .n_channels = n_channels, .n_taps = n_taps, .gated = true, .span = text->span},
                .first = er_n_old(&text->span), .end = er_n_rows(&text->span),
                .out = (float *)out_data + text->first * n_channels};
        }
        const size_t n = rows_of(texts, n_texts);
        memset((float *)out_data + n * n_channels, 0, (n_rows - n) * n_channels * sizeof(float));
        status = convolve_rows(api, context, state->vectors, w, n_texts);
    }
    for (size_t i = 0; status == NULL && i < n_texts; i++)
        er_move_on(&texts[i].span, texts[i].place);
    free(texts);
    return status;
}

static const char *ORT_CALL name(const OrtCustomOp *op) { (void)op; return "ConvolveRows"; }
static int ORT_CALL input_type(const OrtCustomOp *op, size_t i) {
    (void)op;
    return i == RUN ? ORT_INT64 : ORT_FLOAT;
}
static size_t ORT_CALL n_inputs(const OrtCustomOp *op) { (void)op; return N_INPUTS; }

const OrtCustomOp er_convolve_rows = OPERATOR(name, input_type, n_inputs, er_required, create, compute, destroy);
