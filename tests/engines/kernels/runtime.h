/* A stand-in for ONNX Runtime, as far as our operators use it: values that lie in memory of exactly their size, and jobs
 * that run in this thread or are shared with others.
 */
#ifndef RUNTIME_H
#define RUNTIME_H

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ort_interface.h"

enum { MOST_INPUTS = 9, MOST_DIMS = 9, MOST_OPERATORS = 8, MOST_OUTPUTS = 2, MOST_THREADS = 3 };

struct OrtStatus { const char *message; };
struct OrtValue { int type; size_t rank; int64_t dims[MOST_DIMS]; void *data; };
struct OrtShape { const OrtValue *of; };
struct OrtSessionOptions { const char *held; };
struct OrtCustomOpDomain { size_t n; const OrtCustomOp *operators[MOST_OPERATORS]; };
typedef struct { const char *name; int64_t number; } attribute;
struct OrtKernelInfo { const attribute *attributes; const char *variant; OrtValue *const *constants; };
struct OrtKernelContext { OrtValue *const *inputs; OrtValue outputs[MOST_OUTPUTS]; size_t n_threads; };

OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base);

/* --- values */

static size_t bytes_of(const OrtValue *value) {
    size_t n = value->type == ORT_UINT8 ? 1 : value->type == ORT_HALF ? 2 : value->type == ORT_INT64 ? 8 : 4;
    for (size_t i = 0; i < value->rank; i++)
        n *= (size_t)value->dims[i];
    return n;
}

static OrtValue value_of(int type, void *data, size_t rank, ...) {
    OrtValue value = {.type = type, .rank = rank, .data = data};
    va_list dims;
    va_start(dims, rank);
    for (size_t i = 0; i < rank; i++)
        value.dims[i] = (int64_t)va_arg(dims, size_t);
    va_end(dims);
    if (data == NULL)
        value.data = calloc(1, bytes_of(&value));
    return value;
}

/* --- the interface */

static OrtStatus *create_status(int code, const char *message) {
    OrtStatus *status = malloc(sizeof *status);
    (void)code;
    status->message = message;
    return status;
}
static void release_status(OrtStatus *status) { free(status); }

static OrtStatus *create_domain(const char *name, OrtCustomOpDomain **domain) {
    static OrtCustomOpDomain domains[2]; /* without and with a bound of experts */
    static size_t n;
    (void)name;
    *domain = &domains[n++];
    return NULL;
}
static OrtStatus *add_operator(OrtCustomOpDomain *domain, const OrtCustomOp *op) {
    domain->operators[domain->n++] = op;
    return NULL;
}
static OrtCustomOpDomain *registered;
static OrtStatus *add_domain(OrtSessionOptions *options, OrtCustomOpDomain *domain) {
    (void)options;
    registered = domain;
    return NULL;
}
static OrtStatus *has_entry(const OrtSessionOptions *options, const char *key, int *is_given) {
    (void)key;
    *is_given = options->held != NULL;
    return NULL;
}
static OrtStatus *get_entry(const OrtSessionOptions *options, const char *key, char *value, size_t *size) {
    (void)key;
    snprintf(value, *size, "%s", options->held);
    return NULL;
}

static OrtStatus *get_data(OrtValue *value, void **data) {
    *data = value->data;
    return NULL;
}
static OrtStatus *get_shape(const OrtValue *value, OrtShape **shape) {
    *shape = malloc(sizeof **shape);
    (*shape)->of = value;
    return NULL;
}
static void release_shape(OrtShape *shape) { free(shape); }
static OrtStatus *get_type(const OrtShape *shape, int *type) {
    *type = shape->of->type;
    return NULL;
}
static OrtStatus *get_rank(const OrtShape *shape, size_t *rank) {
    *rank = shape->of->rank;
    return NULL;
}
static OrtStatus *get_dims(const OrtShape *shape, int64_t *dims, size_t rank) {
    memcpy(dims, shape->of->dims, rank * sizeof *dims);
    return NULL;
}

static OrtStatus *get_number(const OrtKernelInfo *info, const char *name, int64_t *number) {
    for (const attribute *each = info->attributes; each->name != NULL; each++)
        if (strcmp(each->name, name) == 0) {
            *number = each->number;
            return NULL;
        }
    return create_status(ORT_FAIL, "there is no such attribute");
}
static OrtStatus *get_float(const OrtKernelInfo *info, const char *name, float *number) { /* in thousandths */
    int64_t thousandths;
    OrtStatus *status = get_number(info, name, &thousandths);
    if (status == NULL)
        *number = (float)thousandths / 1000;
    return status;
}
static OrtStatus *get_text(const OrtKernelInfo *info, const char *name, char *text, size_t *size) {
    (void)name;
    if (info->variant == NULL)
        return create_status(ORT_FAIL, "there is no such attribute");
    snprintf(text, *size, "%s", info->variant);
    return NULL;
}
static size_t n_known = SIZE_MAX; /* how many inputs there are, where that matters */

static OrtStatus *get_constant(const OrtKernelInfo *info, size_t i, int *is_constant, const OrtValue **value) {
    *is_constant = info->constants != NULL;
    *value = info->constants != NULL && i < n_known ? info->constants[i] : NULL;
    return NULL;
}

static OrtStatus *get_input(const OrtKernelContext *context, size_t i, const OrtValue **value) {
    *value = i < n_known ? context->inputs[i] : NULL;
    return NULL;
}
static OrtStatus *get_output(OrtKernelContext *context, size_t i, const int64_t *dims, size_t rank, OrtValue **value) {
    OrtValue *output = &context->outputs[i];
    free(output->data);
    *output = (OrtValue){.type = ORT_FLOAT, .rank = rank};
    memcpy(output->dims, dims, rank * sizeof *dims);
    output->data = malloc(bytes_of(output));
    memset(output->data, 0xff, bytes_of(output)); /* what nobody computes is no number */
    *value = output;
    return NULL;
}

typedef struct {
    void (*job)(void *, size_t);
    size_t n_jobs;
    void *user;
    atomic_size_t taken;
} shared_jobs;

static void *take_jobs(void *user) {
    shared_jobs *jobs = user;
    for (size_t i; (i = atomic_fetch_add(&jobs->taken, 1)) < jobs->n_jobs;)
        jobs->job(jobs->user, i);
    return NULL;
}

static size_t n_shared; /* how often several threads have shared jobs */

static OrtStatus *parallel_for(const OrtKernelContext *context, void (*job)(void *, size_t), size_t n_jobs,
                               size_t n_batches, void *user) {
    pthread_t threads[MOST_THREADS];
    shared_jobs jobs = {.job = job, .n_jobs = n_jobs, .user = user};
    (void)n_batches;
    n_shared += context->n_threads > 1;
    for (size_t i = 1; i < context->n_threads; i++)
        if (pthread_create(&threads[i], NULL, take_jobs, &jobs) != 0)
            abort();
    take_jobs(&jobs);
    for (size_t i = 1; i < context->n_threads; i++)
        pthread_join(threads[i], NULL);
    return NULL;
}

static const OrtApi api = {
    .CreateStatus = create_status, .ReleaseStatus = release_status, .CreateCustomOpDomain = create_domain,
    .CustomOpDomain_Add = add_operator, .AddCustomOpDomain = add_domain, .HasSessionConfigEntry = has_entry,
    .GetSessionConfigEntry = get_entry, .GetTensorMutableData = get_data, .GetTensorTypeAndShape = get_shape,
    .ReleaseTensorTypeAndShapeInfo = release_shape, .GetTensorElementType = get_type, .GetDimensionsCount = get_rank,
    .GetDimensions = get_dims, .KernelInfoGetAttribute_int64 = get_number, .KernelInfoGetAttribute_float = get_float,
    .KernelInfoGetAttribute_string = get_text, .KernelInfoGetConstantInput_tensor = get_constant,
    .KernelContext_GetInput = get_input, .KernelContext_GetOutput = get_output, .KernelContext_ParallelFor = parallel_for,
};
static const OrtApi *get_api(uint32_t version) { return version <= ORT_VERSION ? &api : NULL; }

/* --- operators */

/* Those of a session in which so many experts of a layer stay in memory, all if `held` is NULL. */
static const OrtCustomOpDomain *register_operators(const char *held) {
    const OrtApiBase base = {.GetApi = get_api};
    OrtSessionOptions options = {held};
    if (RegisterCustomOps(&options, &base) != NULL)
        abort();
    return registered;
}

typedef struct {
    const OrtCustomOp *op;
    void *kernel;
} running;

/* An operator with its attributes, the last of which has no name. NULL if it refuses them. */
static running begin(const OrtCustomOpDomain *domain, const char *name, const attribute *attributes,
                     const char *variant, OrtValue *const *constants) {
    for (size_t i = 0; i < domain->n; i++) {
        running it = {.op = domain->operators[i]};
        if (strcmp(it.op->GetName(it.op), name) != 0)
            continue;
        const OrtKernelInfo info = {attributes, variant, constants};
        OrtStatus *status = it.op->CreateKernelV2(it.op, &api, &info, &it.kernel);
        if (status != NULL)
            return (free(status), (running){NULL, NULL});
        return it;
    }
    abort();
}

static void end(running it) { it.op->KernelDestroy(it.kernel); }

/* What it computes first, to be freed; NULL if it refuses its inputs. */
static float *run(running it, OrtValue *const *inputs, size_t n_threads) {
    OrtKernelContext context = {.inputs = inputs, .n_threads = n_threads};
    OrtStatus *status = it.op->KernelComputeV2(it.kernel, &context);
    for (size_t i = 1; i < MOST_OUTPUTS; i++)
        free(context.outputs[i].data);
    if (status != NULL)
        return (free(status), free(context.outputs[0].data), NULL);
    return context.outputs[0].data;
}

#endif
