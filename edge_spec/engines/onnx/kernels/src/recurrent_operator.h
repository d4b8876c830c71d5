/* What the operators of layers with a state share: their inputs, the texts of a call, and the jobs of their convolutions.
 *
 * States are not inputs, since every text has its own: the input `run`, i64, says where they lie in memory. Its numbers are
 *
 *     how many texts there are, how many rows a layer can keep, how many floats it has;
 *     for each text the address of its states, then how many tokens are committed before its new rows, n_pending, n_new
 *     and n_read, see recurrent.h.
 *
 * The states of a text are those of its layers one after the other; the attribute `number` says which is the operator's.
 * A layer has ER_STATE_HEAD floats, of which the first two are its place, i32, and then what each operator says. New rows are
 * those of the texts in their order; rows after these are padding, and their outputs are 0.
 */
#ifndef EDGE_ROWS_RECURRENT_OPERATOR_H
#define EDGE_ROWS_RECURRENT_OPERATOR_H

#include <stdlib.h>
#include <string.h>

#include "operator.h"
#include "vectors.h"

enum {
    /* Channels that a job convolves. */
    JOB_CHANNELS = 256,
    /* Below this many multiplications waking other threads costs more than it saves. */
    ALONE = 1 << 18,
    RUN_HEAD = 3,
    RUN_TEXT = 5,
    MOST_KEPT = 1 << 20,
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

/* Which layer of its kind an operator is. */
static inline OrtStatus *read_number(const OrtApi *api, const OrtKernelInfo *info, int64_t *number) {
    TRY(api->KernelInfoGetAttribute_int64(info, "number", number));
    return *number >= 0 && *number < 65536 ? NULL : refuse(api, "edge_spec: an impossible number of a layer");
}

/* A text of a call, and what one layer has of it. */
typedef struct {
    int32_t *place;
    float *state; /* what comes after the place */
    size_t first; /* its first row among the new rows of all texts */
    er_span span;
} recurrent_text;

/* How many texts there are and how many rows a layer can keep; what is wrong with the numbers, or NULL. */
static inline const char *read_run(const int64_t *run, int64_t n, size_t *n_texts, size_t *capacity) {
    if (n < RUN_HEAD || run[0] < 0 || run[0] > n || n != RUN_HEAD + RUN_TEXT * run[0] || run[1] < 0 || run[1] > MOST_KEPT)
        return "edge_spec: inputs have shapes that do not fit each other";
    *n_texts = (size_t)run[0];
    *capacity = (size_t)run[1];
    return NULL;
}

/* The texts themselves; changes nothing. floats: of a layer. */
static inline const char *read_texts(const int64_t *run, size_t number, size_t floats, size_t n_rows,
                                     recurrent_text *texts) {
    size_t first = 0;
    if (run[2] < 0 || (size_t)run[2] != floats)
        return "edge_spec: states have shapes that do not fit the inputs";
    for (int64_t i = 0; i < run[0]; i++) {
        const int64_t *own = run + RUN_HEAD + RUN_TEXT * i;
        float *state = (float *)(uintptr_t)own[0] + number * floats;
        recurrent_text *text = &texts[i];
        *text = (recurrent_text){.place = (int32_t *)state, .state = state + ER_STATE_HEAD, .first = first};
        if (!er_read_span(text->place, own + 1, (size_t)run[1], &text->span))
            return "edge_spec: the layer is at another place of the text";
        if (text->span.n_new > n_rows - first)
            return "edge_spec: inputs have shapes that do not fit each other";
        first += text->span.n_new;
    }
    return NULL;
}

/* How many new rows all texts have. */
static inline size_t rows_of(const recurrent_text *texts, size_t n_texts) {
    return n_texts > 0 ? texts[n_texts - 1].first + texts[n_texts - 1].span.n_new : 0;
}

/* Rows [first, end) of a text's convolution, all channels. */
typedef struct {
    er_convolution c;
    size_t first, end;
    float *out;
} convolving;

typedef struct {
    const convolving *texts;
    const er_vectors *vectors;
    size_t n_jobs; /* of a text */
} convolving_all;

static inline void convolve_job(void *user, size_t job) {
    const convolving_all *all = user;
    const convolving *w = &all->texts[job / all->n_jobs];
    const size_t channel = job % all->n_jobs * JOB_CHANNELS, left = w->c.n_channels - channel;
    const size_t n = left < JOB_CHANNELS ? left : JOB_CHANNELS;
    all->vectors->convolve(&w->c, w->first, w->end, channel, n, w->out);
    if (w->end == er_n_rows(&w->c.span))
        er_keep_inputs(&w->c, channel, n);
}

/* All texts have as many channels and taps. */
static inline OrtStatus *convolve_rows(const OrtApi *api, OrtKernelContext *context,
                                       const er_vectors *vectors, const convolving *texts, size_t n_texts) {
    if (n_texts == 0)
        return NULL;
    const size_t n_channels = texts->c.n_channels, n_jobs = (n_channels + JOB_CHANNELS - 1) / JOB_CHANNELS;
    size_t n_rows = 0;
    for (size_t i = 0; i < n_texts; i++)
        n_rows += texts[i].end - texts[i].first;
    convolving_all all = {texts, vectors, n_jobs};
    return run_jobs(api, context, n_rows * n_channels * texts->c.n_taps < ALONE, convolve_job, n_texts * n_jobs, &all);
}

#endif
