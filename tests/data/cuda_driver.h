/* The driver calls that generated C++ uses, as CUDA 12.4 and newer declare them, without what
 * they do: enough for a compiler to check names, arguments and types. */
#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H
#define CUDA_VERSION 12040

typedef enum cudaError_enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 } CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUstream_st *CUstream;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
typedef enum { CU_DEV_RESOURCE_TYPE_INVALID = 0, CU_DEV_RESOURCE_TYPE_SM = 1 } CUdevResourceType;
typedef enum { CU_GREEN_CTX_DEFAULT_STREAM = 0x1 } CUgreenCtxCreate_flags;
typedef enum { CU_STREAM_DEFAULT = 0x0, CU_STREAM_NON_BLOCKING = 0x1 } CUstream_flags;
typedef struct CUdevSmResource_st { unsigned int smCount; } CUdevSmResource;
typedef struct CUdevResource_st {
    CUdevResourceType type;
    union { CUdevSmResource sm; unsigned char bytes[140]; };
} CUdevResource;

extern "C" {
CUresult cuInit(unsigned int flags);
CUresult cuGetErrorString(CUresult error, const char **text);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type);
CUresult cuDevSmResourceSplitByCount(
    CUdevResource *result, unsigned int *nbGroups, const CUdevResource *input,
    CUdevResource *remainder, unsigned int flags, unsigned int minCount);
CUresult cuDevResourceGenerateDesc(
    CUdevResourceDesc *desc, CUdevResource *resources, unsigned int nbResources);
CUresult cuGreenCtxCreate(
    CUgreenCtx *context, CUdevResourceDesc desc, CUdevice device, unsigned int flags);
CUresult cuGreenCtxDestroy(CUgreenCtx context);
CUresult cuGreenCtxGetDevResource(
    CUgreenCtx context, CUdevResource *resource, CUdevResourceType type);
CUresult cuGreenCtxStreamCreate(
    CUstream *stream, CUgreenCtx context, unsigned int flags, int priority);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority);
CUresult cuStreamDestroy(CUstream stream);
}
#endif
