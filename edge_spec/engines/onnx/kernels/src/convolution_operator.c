/* Short convolutions as an operator of ONNX Runtime, in the domain edge_spec:
 *
 *     ConvolveRows(x f32[1, rows, 3 * channels], kept f32[taps - 1 + capacity, channels], weights f32[taps, channels],
 *                  place i32[2], run i32[3]) -> f32[1, rows, channels]
 *
 * See convolution.h for what is computed of b, c and x, which lie side by side in a row, and recurrent.h for `place` and
 * `run`. `kept` and `place` are written, although they are inputs. Attribute: variant, for tests.
 */
#include <stdlib.h>

#include "recurrent_operator.h"

enum { X, KEPT, WEIGHTS, PLACE, RUN, N_INPUTS };

typedef struct {
    const OrtApi *api;
    const er_convolution_variant *variant;
} operator_state;

static OrtStatus *ORT_CALL create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info, void **kernel) {
    operator_state state = {.api = api};
    char name[64] = "";
    (void)op;
    read_text(api, info, "variant", name, sizeof name);
    state.variant = er_convolution_find(name);
    if (state.variant == NULL)
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
    int64_t x[3], kept[2], weights[2], place[1], run[1];
    void *data[N_INPUTS], *out_data = NULL;
    TRY(read_input(api, context, X, 3, x, &data[X]));
    TRY(read_input(api, context, KEPT, 2, kept, &data[KEPT]));
    TRY(read_input(api, context, WEIGHTS, 2, weights, &data[WEIGHTS]));
    TRY(read_input(api, context, PLACE, 1, place, &data[PLACE]));
    TRY(read_input(api, context, RUN, 1, run, &data[RUN]));
    if (x[0] != 1 || weights[1] < 1 || weights[1] % ER_CHANNELS || x[2] != 3 * weights[1] || kept[1] != weights[1] ||
        weights[0] < 1 || kept[0] < weights[0] - 1 || place[0] != 2 || run[0] != 3)
        return refuse(api, "edge_spec.ConvolveRows: inputs have shapes that do not fit each other");
    er_convolution c = {.x = data[X], .kept = data[KEPT], .weights = data[WEIGHTS], .n_channels = (size_t)weights[1],
                        .n_taps = (size_t)weights[0], .gated = true};
    if (!er_read_span(data[PLACE], data[RUN], (size_t)x[1], (size_t)(kept[0] - weights[0] + 1), &c.span))
        return refuse(api, "edge_spec.ConvolveRows: the layer is at another place of the text");
    int64_t dims[3] = {1, x[1], weights[1]};
    OrtValue *out;
    TRY(api->KernelContext_GetOutput(context, 0, dims, 3, &out));
    TRY(api->GetTensorMutableData(out, &out_data));
    convolving w = {&c, state->variant, er_n_old(&c.span), er_n_rows(&c.span), out_data};
    TRY(convolve_rows(api, context, c.span.n_new * c.n_channels * c.n_taps < ALONE, &w));
    er_move_on(&c.span, data[PLACE]);
    return NULL;
}

static const char *ORT_CALL name(const OrtCustomOp *op) { (void)op; return "ConvolveRows"; }
static int ORT_CALL input_type(const OrtCustomOp *op, size_t i) {
    (void)op;
    return i == PLACE || i == RUN ? ORT_INT32 : ORT_FLOAT;
}
static size_t ORT_CALL n_inputs(const OrtCustomOp *op) { (void)op; return N_INPUTS; }

const OrtCustomOp er_convolve_rows = OPERATOR(name, input_type, n_inputs, er_required, create, compute, destroy);
