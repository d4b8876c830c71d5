/* What the operators of layers with a state share: their inputs, and the jobs of their convolution. */
#ifndef EDGE_ROWS_RECURRENT_OPERATOR_H
#define EDGE_ROWS_RECURRENT_OPERATOR_H

#include "convolution.h"
#include "operator.h"

enum {
    /* Channels that a job convolves. */
    JOB_CHANNELS = 256,
    /* Below this many multiplications waking other threads costs more than it saves. */
    ALONE = 1 << 18,
};

/* An input's data and its shape, which must have `rank` dimensions. */
static inline OrtStatus *read_input(const OrtApi *api, OrtKernelContext *context, size_t i, size_t rank, int64_t *dims,
                                    void **data) {
    const OrtValue *value;
    OrtShape *shape;
    size_t n_dims = 0;
    TRY(api->KernelContext_GetInput(context, i, &value));
    TRY(api->GetTensorTypeAndShape(value, &shape));
    OrtStatus *status = api->GetDimensionsCount(shape, &n_dims);
    if (status == NULL && n_dims == rank)
        status = api->GetDimensions(shape, dims, rank);
    api->ReleaseTensorTypeAndShapeInfo(shape);
    if (status != NULL)
        return status;
    if (n_dims != rank)
        return refuse(api, "edge_spec: an input has the wrong number of dimensions");
    return api->GetTensorMutableData((OrtValue *)value, data);
}

/* Rows [first, end) of a convolution, all channels. */
typedef struct {
    const er_convolution *c;
    const er_convolution_variant *variant;
    size_t first, end;
    float *out;
} convolving;

static inline void convolve_job(void *user, size_t job) {
    const convolving *w = user;
    const size_t channel = job * JOB_CHANNELS, left = w->c->n_channels - channel;
    const size_t n = left < JOB_CHANNELS ? left : JOB_CHANNELS;
    w->variant->convolve(w->c, w->first, w->end, channel, n, w->out);
    if (w->end == er_n_rows(&w->c->span))
        er_keep_inputs(w->c, channel, n);
}

static inline OrtStatus *convolve_rows(const OrtApi *api, OrtKernelContext *context, bool alone, convolving *w) {
    return run_jobs(api, context, alone, convolve_job, (w->c->n_channels + JOB_CHANNELS - 1) / JOB_CHANNELS, w);
}

#endif
