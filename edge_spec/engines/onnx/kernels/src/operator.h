/* What the operators for ONNX Runtime share: error handling, jobs on its threads, and the entries of an OrtCustomOp
 * that are the same for all of them. */
#ifndef EDGE_ROWS_OPERATOR_H
#define EDGE_ROWS_OPERATOR_H

#include <stdbool.h>

#include "ort_interface.h"

#define TRY(call)                  \
    do {                           \
        OrtStatus *status_ = call; \
        if (status_ != NULL)       \
            return status_;        \
    } while (0)

static inline OrtStatus *refuse(const OrtApi *api, const char *message) {
    return api->CreateStatus(ORT_INVALID_ARGUMENT, message);
}

/* A text attribute into name[size]; "" if it is absent. */
static inline void read_text(const OrtApi *api, const OrtKernelInfo *info, const char *attribute, char *name,
                             size_t size) {
    OrtStatus *status = api->KernelInfoGetAttribute_string(info, attribute, name, &size);
    if (status != NULL) {
        api->ReleaseStatus(status);
        name[0] = '\0';
    }
}

typedef void (*er_job)(void *user, size_t i);

/* Threads that run jobs 0 .. n - 1. */
typedef struct er_pool er_pool;
struct er_pool {
    OrtStatus *(*run)(er_pool *pool, er_job job, size_t n, void *user);
};

/* Jobs 0 .. n - 1, in this thread if `alone`. */
static inline OrtStatus *share_jobs(er_pool *pool, bool alone, er_job job, size_t n, void *user) {
    if (!alone && n > 1)
        return pool->run(pool, job, n, user);
    for (size_t i = 0; i < n; i++)
        job(user, i);
    return NULL;
}

/* The same on the threads of a session. */
static inline OrtStatus *run_jobs(const OrtApi *api, OrtKernelContext *context, bool alone,
                                  er_job job, size_t n, void *user) {
    if (!alone && n > 1)
        return api->KernelContext_ParallelFor(context, job, n, 0, user);
    for (size_t i = 0; i < n; i++)
        job(user, i);
    return NULL;
}

static inline const char *ORT_CALL er_no_provider(const OrtCustomOp *op) { (void)op; return NULL; }
static inline int ORT_CALL er_float(const OrtCustomOp *op, size_t i) { (void)op; (void)i; return ORT_FLOAT; }
static inline int ORT_CALL er_required(const OrtCustomOp *op, size_t i) { (void)op; (void)i; return ORT_INPUT_REQUIRED; }
static inline int ORT_CALL er_default_memory(const OrtCustomOp *op, size_t i) {
    (void)op, (void)i;
    return ORT_MEMORY_DEFAULT;
}
static inline size_t ORT_CALL er_one_output(const OrtCustomOp *op) { (void)op; return 1; }
static inline int ORT_CALL er_one(const OrtCustomOp *op) { (void)op; return 1; }
static inline int ORT_CALL er_last_version(const OrtCustomOp *op) { (void)op; return INT32_MAX; }

/* An operator with one float output; what is told of its inputs are functions. */
#define OPERATOR(name_, inputs_, n_inputs_, characteristic_, create_, compute_, destroy_)                      \
    {                                                                                                          \
        .version = ORT_VERSION, .GetName = name_, .GetExecutionProviderType = er_no_provider,                  \
        .GetInputType = inputs_, .GetInputTypeCount = n_inputs_, .GetOutputType = er_float,                    \
        .GetOutputTypeCount = er_one_output, .KernelDestroy = destroy_,                                        \
        .GetInputCharacteristic = characteristic_,                                                             \
        .GetOutputCharacteristic = er_required, .GetInputMemoryType = er_default_memory,                       \
        .GetVariadicInputMinArity = er_one, .GetVariadicInputHomogeneity = er_one,                             \
        .GetVariadicOutputMinArity = er_one, .GetVariadicOutputHomogeneity = er_one,                           \
        .CreateKernelV2 = create_, .KernelComputeV2 = compute_, .GetStartVersion = er_one,                     \
        .GetEndVersion = er_last_version,                                                                      \
    }

#endif
