/* The part of ONNX Runtime's C interface that our operators need.
 *
 * That interface only grows at its end, so table entries keep their positions, and this file replaces the 8,000 lines
 * of onnxruntime_c_api.h. Static assertions check the positions.
 */
#ifndef EDGE_ROWS_ORT_INTERFACE_H
#define EDGE_ROWS_ORT_INTERFACE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define ORT_CALL __stdcall
#else
#define ORT_CALL
#endif

/* The version we ask for and declare: the first with OrtApi::KernelContext_ParallelFor. */
enum { ORT_VERSION = 18 };
enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 };
enum { ORT_ANY = 0, ORT_FLOAT = 1, ORT_UINT8 = 2, ORT_INT32 = 6, ORT_INT64 = 7, ORT_HALF = 10 }; /* ONNXTensorElementDataType */
enum { ORT_INPUT_REQUIRED = 0, ORT_INPUT_OPTIONAL = 1, ORT_INPUT_VARIADIC = 2, ORT_MEMORY_DEFAULT = 0 };

typedef struct OrtStatus OrtStatus;
typedef struct OrtValue OrtValue;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtShape OrtShape; /* OrtTensorTypeAndShapeInfo there */
typedef struct OrtCustomOp OrtCustomOp;

/* Unused entries, from position `from` up to but without `to`. */
#define ORT_GAP(from, to) void *gap_##from[(to) - (from)]

typedef struct OrtApi {
    OrtStatus *(ORT_CALL *CreateStatus)(int code, const char *message);
    ORT_GAP(1, 26);
    OrtStatus *(ORT_CALL *CreateCustomOpDomain)(const char *name, OrtCustomOpDomain **domain);
    OrtStatus *(ORT_CALL *CustomOpDomain_Add)(OrtCustomOpDomain *domain, const OrtCustomOp *op);
    OrtStatus *(ORT_CALL *AddCustomOpDomain)(OrtSessionOptions *options, OrtCustomOpDomain *domain);
    ORT_GAP(29, 51);
    OrtStatus *(ORT_CALL *GetTensorMutableData)(OrtValue *value, void **data);
    ORT_GAP(52, 60);
    OrtStatus *(ORT_CALL *GetTensorElementType)(const OrtShape *shape, int *type);
    OrtStatus *(ORT_CALL *GetDimensionsCount)(const OrtShape *shape, size_t *rank);
    OrtStatus *(ORT_CALL *GetDimensions)(const OrtShape *shape, int64_t *dims, size_t rank);
    ORT_GAP(63, 65);
    OrtStatus *(ORT_CALL *GetTensorTypeAndShape)(const OrtValue *value, OrtShape **shape);
    ORT_GAP(66, 85);
    OrtStatus *(ORT_CALL *KernelInfoGetAttribute_float)(const OrtKernelInfo *info, const char *name, float *value);
    OrtStatus *(ORT_CALL *KernelInfoGetAttribute_int64)(const OrtKernelInfo *info, const char *name, int64_t *value);
    OrtStatus *(ORT_CALL *KernelInfoGetAttribute_string)(const OrtKernelInfo *info, const char *name, char *value,
                                                         size_t *size);
    ORT_GAP(88, 90);
    OrtStatus *(ORT_CALL *KernelContext_GetInput)(const OrtKernelContext *context, size_t i, const OrtValue **value);
    OrtStatus *(ORT_CALL *KernelContext_GetOutput)(OrtKernelContext *context, size_t i, const int64_t *dims,
                                                   size_t rank, OrtValue **value);
    ORT_GAP(92, 93);
    void (ORT_CALL *ReleaseStatus)(OrtStatus *status);
    ORT_GAP(94, 99);
    void (ORT_CALL *ReleaseTensorTypeAndShapeInfo)(OrtShape *shape);
    ORT_GAP(100, 237);
    OrtStatus *(ORT_CALL *HasSessionConfigEntry)(const OrtSessionOptions *options, const char *key, int *is_given);
    OrtStatus *(ORT_CALL *GetSessionConfigEntry)(const OrtSessionOptions *options, const char *key, char *value,
                                                 size_t *size);
    ORT_GAP(239, 249);
    OrtStatus *(ORT_CALL *KernelInfoGetConstantInput_tensor)(const OrtKernelInfo *info, size_t i, int *is_constant,
                                                             const OrtValue **value);
    ORT_GAP(250, 274);
    OrtStatus *(ORT_CALL *KernelContext_ParallelFor)(const OrtKernelContext *context, void (*job)(void *, size_t),
                                                     size_t n_jobs, size_t n_batches, void *user);
} OrtApi;

#define ORT_AT(name, position) \
    _Static_assert(offsetof(OrtApi, name) == (position) * sizeof(void *), #name " is entry " #position)
ORT_AT(AddCustomOpDomain, 28);
ORT_AT(GetTensorMutableData, 51);
ORT_AT(GetTensorElementType, 60);
ORT_AT(GetDimensions, 62);
ORT_AT(GetTensorTypeAndShape, 65);
ORT_AT(KernelInfoGetAttribute_float, 85);
ORT_AT(KernelInfoGetAttribute_string, 87);
ORT_AT(KernelContext_GetOutput, 91);
ORT_AT(ReleaseStatus, 93);
ORT_AT(ReleaseTensorTypeAndShapeInfo, 99);
ORT_AT(HasSessionConfigEntry, 237);
ORT_AT(KernelInfoGetConstantInput_tensor, 249);
ORT_AT(KernelContext_ParallelFor, 274);

typedef struct OrtApiBase {
    const OrtApi *(ORT_CALL *GetApi)(uint32_t version);
    const char *(ORT_CALL *GetVersionString)(void);
} OrtApiBase;

/* An operator. The entries that ONNX Runtime calls without a check must all be set. */
struct OrtCustomOp {
    uint32_t version;
    void *(ORT_CALL *CreateKernel)(const OrtCustomOp *, const OrtApi *, const OrtKernelInfo *);
    const char *(ORT_CALL *GetName)(const OrtCustomOp *);
    const char *(ORT_CALL *GetExecutionProviderType)(const OrtCustomOp *);
    int (ORT_CALL *GetInputType)(const OrtCustomOp *, size_t);
    size_t (ORT_CALL *GetInputTypeCount)(const OrtCustomOp *);
    int (ORT_CALL *GetOutputType)(const OrtCustomOp *, size_t);
    size_t (ORT_CALL *GetOutputTypeCount)(const OrtCustomOp *);
    void (ORT_CALL *KernelCompute)(void *, OrtKernelContext *);
    void (ORT_CALL *KernelDestroy)(void *);
    int (ORT_CALL *GetInputCharacteristic)(const OrtCustomOp *, size_t);
    int (ORT_CALL *GetOutputCharacteristic)(const OrtCustomOp *, size_t);
    int (ORT_CALL *GetInputMemoryType)(const OrtCustomOp *, size_t);
    int (ORT_CALL *GetVariadicInputMinArity)(const OrtCustomOp *);
    int (ORT_CALL *GetVariadicInputHomogeneity)(const OrtCustomOp *);
    int (ORT_CALL *GetVariadicOutputMinArity)(const OrtCustomOp *);
    int (ORT_CALL *GetVariadicOutputHomogeneity)(const OrtCustomOp *);
    OrtStatus *(ORT_CALL *CreateKernelV2)(const OrtCustomOp *, const OrtApi *, const OrtKernelInfo *, void **);
    OrtStatus *(ORT_CALL *KernelComputeV2)(void *, OrtKernelContext *);
    void *InferOutputShapeFn;
    int (ORT_CALL *GetStartVersion)(const OrtCustomOp *);
    int (ORT_CALL *GetEndVersion)(const OrtCustomOp *);
    void *GetMayInplace, *ReleaseMayInplace, *GetAliasMap, *ReleaseAliasMap;
};

#endif
