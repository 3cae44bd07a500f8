/* Samples hardware counters of one GPU, and writes them to a file: a program of its own, since
 * CUPTI refuses partitions to a process in which its profiler was initialised.
 *
 *     _counters LIBRARIES NANOSECONDS FILE
 *
 * LIBRARIES is the folder of libcupti; the GPU is CUDA's first (CUDA_VISIBLE_DEVICES says which).
 * It says on its standard output, a line each:
 *
 *     ready SMS CHIP busy[ tensor][ dram]   sampling goes on, and what it tells
 *     refused REASON detail                 there are no samples; it ends with 1
 *     failed detail                         sampling ended early; it ends with 2
 *     ended SAMPLES GAPS CPU_MS             it ends
 *
 * REASON is `libraries` (cannot be loaded), `old` (no sampling in them), `administrators`, `taken`,
 * `unsupported` (by this GPU or machine) or `failed`.
 *
 * It ends when its standard input does, when its parent has ended, or by SIGTERM. FILE begins with
 * 16 bytes, "GSPMSMP1" and the size of a record; records follow, as `Record` below. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What is one sample in the file; all four values of a gap are NaN. */
typedef struct {
    uint64_t start_ns, end_ns;
    double busy_sms, tensor_sms, read_bytes, written_bytes;
} Record;
_Static_assert(sizeof(Record) == 48, "as Python reads it");

/* -- parameters of libcupti 12.9 and 13.0, as in their headers, under names of our own --------- */
typedef struct { size_t size; void *none; } Initialize;
typedef struct { size_t size; void *none; size_t device; const char *chip; } ChipName;
typedef struct {
    size_t size; void *none; int device, supported, architecture, sli, vgpu, confidential, cmp, wsl;
    int interface;
} DeviceSupported;
typedef struct { size_t size; void *none; size_t device, nbytes; uint8_t *image; } Availability;
typedef struct {
    size_t size; void *none; int type; const char *chip; const uint8_t *availability; void *host;
} HostInitialize;
typedef struct { size_t size; void *none, *host; } HostEnd;
typedef struct { size_t size; void *none, *host; const char **names; size_t count; } HostMetrics;
typedef struct { size_t size; void *none, *host; size_t nbytes; } HostImageSize;
typedef struct { size_t size; void *none, *host; size_t nbytes; uint8_t *image; } HostImage;
typedef struct {
    size_t size; void *none; size_t nbytes; uint8_t *image; size_t passes;
} HostPasses;
typedef struct {
    size_t size; void *none, *host; const uint8_t *data; size_t nbytes, index;
    const char **names; size_t count; double *values;
} HostValues;
typedef struct { size_t size; void *none; size_t device; void *sampler; } Enable;
typedef struct { size_t size; void *none, *sampler; } OfSampler; /* disable, start, stop */
typedef struct {
    size_t size; void *none, *sampler; size_t nbytes; const uint8_t *config;
    size_t hardware_nbytes; uint64_t every; int trigger, append;
} SetConfig;
typedef struct {
    size_t size; void *none, *sampler; const char **names; size_t count; uint32_t most;
    size_t nbytes;
} DataSize;
typedef struct { size_t size; void *none, *sampler; size_t nbytes; uint8_t *data; } DataInit;
typedef struct {
    size_t size; void *none, *sampler; uint8_t *data; size_t nbytes; int reason; uint8_t overflow;
} Decode;
typedef struct {
    size_t size; void *none; const uint8_t *data; size_t nbytes, total, populated, completed;
} DataInfo;
typedef struct {
    size_t size; void *none, *sampler; const uint8_t *data; size_t nbytes, index;
    uint64_t start, end;
} SampleInfo;

#define SIZE(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))
#define CALL(function, parameters, type, last) call(function, &(parameters), SIZE(type, last))
#define LONGER 8 /* by so much the parameters of a newer libcupti may be longer */

/* -- results of libcupti --------------------------------------------------------------------- */
enum {
    OK, INVALID_PARAMETER = 1, INVALID_CONTEXT = 3, OUT_OF_MEMORY = 8, NOT_COMPATIBLE = 14,
    NOT_INITIALIZED = 15, HARDWARE_BUSY = 26, NOT_SUPPORTED = 27, VIRTUALIZED = 33,
    INSUFFICIENT_PRIVILEGES = 35, VIRTUALIZED_PRIVILEGES = 40, CONFIDENTIAL = 41, CMP = 42,
    MIG = 43, SLI = 44, WSL = 45, INVALID_CHIP = 46,
};
#define ABSENT (-1)    /* libcupti has no such function */
#define PASSES (-2)    /* the metrics need more than one pass */
#define UNWRITTEN (-3) /* the disk is full */
#define UNKNOWN (-4)   /* libcupti is of a version that this does not know */

/* -- what is sampled, from the largest set down ------------------------------------------------ */
enum { ACTIVE, ELAPSED, TENSOR, READ, WRITTEN, METRICS };
static const char *const METRIC[METRICS] = {
    "sm__cycles_active.sum", "sm__cycles_elapsed.sum",
    "sm__pipe_tensor_cycles_active_realtime.sum", "dram__bytes_read.sum", "dram__bytes_write.sum",
};
#define PIPES 4 /* tensor pipes of an SM, whose cycles are summed */
typedef struct { int tensor, dram; } Set;
static const Set SETS[] = {{1, 1}, {0, 1}, {1, 0}, {0, 0}};
#define SET_COUNT (sizeof(SETS) / sizeof(SETS[0]))
/* To decode a sample of the larger sets takes some 45 us of CPU, one of the last set 10 us: samples
 * shorter than this have the last one. */
#define SHORT_NS 50000

#define ROOM_BYTES ((size_t)512 << 20) /* of the hardware's buffer; with 64 MiB samples were lost */
#define MOST_SAMPLES 8192 /* in an image of busy SMs; where it becomes full, samples are lost */
#define USUAL_SAMPLES 4096 /* in one of all counters, which takes as much memory, 60 MB */
#define MOST_RESTARTS 100 /* in a row without a sample */
#define LONGEST_POLL_MS 50
#define SAMPLES_A_POLL 250
#define DRAIN_NS 8000000000ull
#define UNFINISHED 3 /* intervals before its end of which there may be no sample yet */
#define END_OF_RECORDS 2
#define DATA_FULL 1
#define MULTIPROCESSORS 16 /* CUDA's number of that attribute */
#define PM_SAMPLING 3      /* CUPTI's number of that interface */
#define IS_SUPPORTED 3
#define CUPTI_13 130000    /* a version of CUDA 13's; CUDA 12 counted up to 28 */
#define OLDEST 24          /* of CUDA 12.6, the first that samples */

static struct {
    void *cupti, *cuda;
    char chip[64];
    int sms;
    uint8_t *availability;
    void *host, *sampler;
    Set set;
    const char *names[METRICS];
    size_t count;
    uint8_t *config, *data;
    size_t config_nbytes, data_nbytes;
    uint64_t every_ns, last_end_ns, samples, gaps;
    size_t taken; /* samples in the image that were written */
    int file, is_first, context;
    int device;
    char problem[512];
} state = {.file = -1};
static volatile sig_atomic_t is_over;

static uint64_t
now_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* -- calling libcupti -------------------------------------------------------------------------- */
/* Call a function whose parameters begin with their size; remembers what went wrong. */
static int
call(const char *name, void *parameters, size_t nbytes)
{
    int (*function)(void *) = (int (*)(void *))dlsym(state.cupti, name);
    if (function == NULL) {
        snprintf(state.problem, sizeof(state.problem), "%s is not in it", name);
        return ABSENT;
    }
    size_t longer[32] = {0};
    memcpy(longer, parameters, nbytes);
    longer[0] = nbytes;
    int result = function(longer);
    if (result == INVALID_PARAMETER) { /* one of a newer version may take longer ones */
        memset(longer, 0, sizeof(longer));
        memcpy(longer, parameters, nbytes);
        longer[0] = nbytes + LONGER;
        result = function(longer);
    }
    memcpy(parameters, longer, nbytes);
    if (result != OK) {
        int (*text_of)(int, const char **) =
            (int (*)(int, const char **))dlsym(state.cupti, "cuptiGetResultString");
        const char *text = NULL;
        if (text_of != NULL)
            text_of(result, &text);
        snprintf(state.problem, sizeof(state.problem), "%s: %s (%d)", name, text ? text : "error",
                 result);
    }
    return result;
}

static int
of_sampler(const char *name)
{
    OfSampler parameters = {.sampler = state.sampler};
    return CALL(name, parameters, OfSampler, sampler);
}

static const char *
reason_of(int result)
{
    switch (result) {
    case ABSENT:
        return "old";
    case UNKNOWN:
        return "libraries";
    case HARDWARE_BUSY:
        return "taken";
    case INSUFFICIENT_PRIVILEGES:
    case VIRTUALIZED_PRIVILEGES:
        return "administrators";
    case NOT_SUPPORTED:
    case NOT_COMPATIBLE:
    case VIRTUALIZED:
    case CONFIDENTIAL:
    case CMP:
    case MIG:
    case SLI:
    case WSL:
    case INVALID_CHIP:
        return "unsupported";
    default:
        return "failed";
    }
}

/* -- saying, and writing ----------------------------------------------------------------------- */
static int
refuse(const char *reason)
{
    printf("refused %s %s\n", reason, state.problem);
    fflush(stdout);
    return 1;
}

/* Write all of it; returns 0, or -1 and remembers why. */
static int
write_all(const void *bytes, size_t nbytes)
{
    const uint8_t *rest = bytes;
    while (nbytes > 0) {
        ssize_t written = write(state.file, rest, nbytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            snprintf(state.problem, sizeof(state.problem), "disk: %s", strerror(errno));
            return -1;
        }
        rest += written;
        nbytes -= (size_t)written;
    }
    return 0;
}

/* -- beginning --------------------------------------------------------------------------------- */
/* Keep what this opens away from the standard input and output, where they were closed. */
static void
fill_standard_files(void)
{
    int file = 0;
    while (file >= 0 && file <= STDERR_FILENO)
        file = open("/dev/null", O_RDWR);
    if (file >= 0)
        close(file);
}

/* Load the first of some libraries that can be; remembers why the others cannot. */
static void *
load_first(const char *folder, const char *const *names, size_t count)
{
    char path[4096];
    size_t told = 0;
    for (size_t i = 0; i < count; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        if (library != NULL)
            return library;
        if (told < sizeof(state.problem))
            told += (size_t)snprintf(state.problem + told, sizeof(state.problem) - told, "%s%s",
                                     told ? "; " : "", dlerror());
    }
    return NULL;
}

static int
load(const char *libraries)
{
    const char *const beside[] = {"libnvperf_target.so", "libnvperf_host.so"};
    const char *const names[] = {"libcupti.so.13", "libcupti.so.12"};
    if (libraries[0] != '/') {
        snprintf(state.problem, sizeof(state.problem), "%s is not absolute", libraries);
        return -1;
    }
    for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++)
        load_first(libraries, &beside[i], 1); /* else libcupti looks for them itself */
    state.problem[0] = '\0';
    state.cupti = load_first(libraries, names, sizeof(names) / sizeof(names[0]));
    if (state.cupti == NULL)
        return -1;
    const char *cuda = getenv("GPUSCOPE_LIBCUDA");
    state.cuda = dlopen(cuda ? cuda : "libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (state.cuda == NULL)
        snprintf(state.problem, sizeof(state.problem), "%s", dlerror());
    return state.cuda == NULL ? -1 : 0;
}

/* Look whether libcupti is of a version whose parameters are known, and samples. */
static int
check_version(void)
{
    int (*ask)(uint32_t *) = (int (*)(uint32_t *))dlsym(state.cupti, "cuptiGetVersion");
    uint32_t version = 0;
    if (ask == NULL || ask(&version) != OK) {
        snprintf(state.problem, sizeof(state.problem), "libcupti does not tell its version");
        return UNKNOWN;
    }
    if (version < OLDEST || dlsym(state.cupti, "cuptiPmSamplingEnable") == NULL) {
        snprintf(state.problem, sizeof(state.problem), "this libcupti (%u) has no PM sampling",
                 version);
        return ABSENT;
    }
    if (version >= CUPTI_13 + 10000) {
        snprintf(state.problem, sizeof(state.problem), "libcupti %u is not known", version);
        return UNKNOWN;
    }
    return OK;
}

/* Initialise CUDA, and learn how many SMs the GPU has. */
static int
initialise_cuda(void)
{
    int (*initialise)(unsigned) = (int (*)(unsigned))dlsym(state.cuda, "cuInit");
    int (*device_of)(int *, int) = (int (*)(int *, int))dlsym(state.cuda, "cuDeviceGet");
    int (*attribute)(int *, int, int) =
        (int (*)(int *, int, int))dlsym(state.cuda, "cuDeviceGetAttribute");
    int result = -1;
    if (initialise != NULL && device_of != NULL && attribute != NULL)
        result = initialise(0);
    if (result == 0)
        result = device_of(&state.device, 0);
    if (result == 0)
        result = attribute(&state.sms, MULTIPROCESSORS, state.device);
    if (result != 0)
        snprintf(state.problem, sizeof(state.problem), "CUDA has no GPU here (%d)", result);
    return result == 0 ? 0 : -1;
}

/* Make a context, where libcupti wants one. */
static int
make_context(void)
{
    int (*retain)(void **, int) =
        (int (*)(void **, int))dlsym(state.cuda, "cuDevicePrimaryCtxRetain");
    int (*enter)(void *) = (int (*)(void *))dlsym(state.cuda, "cuCtxSetCurrent");
    void *context = NULL;
    if (state.context || retain == NULL || enter == NULL)
        return -1;
    state.context = 1;
    return retain(&context, state.device) != 0 || enter(context) != 0 ? -1 : 0;
}

/* Learn which chip it is and what of it can be counted here. */
static int
look(void)
{
    Initialize initialize = {0};
    int result = CALL("cuptiProfilerInitialize", initialize, Initialize, none);
    if (result != OK)
        return result;
    ChipName chip = {0};
    result = CALL("cuptiDeviceGetChipName", chip, ChipName, chip);
    if (result != OK)
        return result;
    snprintf(state.chip, sizeof(state.chip), "%s", chip.chip);
    Availability availability = {0};
    const char *name = "cuptiPmSamplingGetCounterAvailability";
    result = CALL(name, availability, Availability, image);
    if (result != OK)
        return result;
    state.availability = calloc(1, availability.nbytes ? availability.nbytes : 1);
    if (state.availability == NULL)
        return OUT_OF_MEMORY;
    availability.image = state.availability;
    return CALL(name, availability, Availability, image);
}

/* Add to what went wrong what CUPTI says of this GPU and machine, where that is not "supported". */
static void
explain(void)
{
    DeviceSupported parameters = {.device = state.device, .interface = PM_SAMPLING};
    char problem[sizeof(state.problem)];
    memcpy(problem, state.problem, sizeof(problem));
    int result = CALL("cuptiProfilerDeviceSupported", parameters, DeviceSupported, interface);
    const char *const names[] = {
        "its architecture", "SLI", "vGPU", "confidential computing", "CMP", "WSL"};
    const int levels[] = {parameters.architecture, parameters.sli, parameters.vgpu,
                          parameters.confidential, parameters.cmp, parameters.wsl};
    size_t told = strlen(problem);
    memcpy(state.problem, problem, sizeof(problem));
    if (result != OK || parameters.supported == IS_SUPPORTED)
        return;
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++)
        if (levels[i] != IS_SUPPORTED && told < sizeof(problem))
            told += (size_t)snprintf(state.problem + told, sizeof(problem) - told,
                                     "; not sampled with %s", names[i]);
}

static void
end_host(void)
{
    if (state.host != NULL) {
        HostEnd end = {.host = state.host};
        CALL("cuptiProfilerHostDeinitialize", end, HostEnd, host);
    }
    state.host = NULL;
    free(state.config);
    state.config = NULL;
}

/* Ask for a set of counters; it has to be told in one pass. */
static int
configure(Set set)
{
    HostInitialize initialize = {
        .type = 1, .chip = state.chip, .availability = state.availability};
    int result = CALL("cuptiProfilerHostInitialize", initialize, HostInitialize, host);
    if (result != OK)
        return result;
    state.host = initialize.host;
    state.set = set;
    state.count = 0;
    state.names[state.count++] = METRIC[ACTIVE];
    state.names[state.count++] = METRIC[ELAPSED];
    if (set.tensor)
        state.names[state.count++] = METRIC[TENSOR];
    if (set.dram) {
        state.names[state.count++] = METRIC[READ];
        state.names[state.count++] = METRIC[WRITTEN];
    }
    HostMetrics metrics = {.host = state.host, .names = state.names, .count = state.count};
    result = CALL("cuptiProfilerHostConfigAddMetrics", metrics, HostMetrics, count);
    if (result != OK)
        return result;
    HostImageSize size = {.host = state.host};
    result = CALL("cuptiProfilerHostGetConfigImageSize", size, HostImageSize, nbytes);
    if (result != OK)
        return result;
    state.config_nbytes = size.nbytes;
    state.config = calloc(1, size.nbytes ? size.nbytes : 1);
    if (state.config == NULL)
        return OUT_OF_MEMORY;
    HostImage image = {.host = state.host, .nbytes = size.nbytes, .image = state.config};
    result = CALL("cuptiProfilerHostGetConfigImage", image, HostImage, image);
    if (result != OK)
        return result;
    HostPasses passes = {.nbytes = size.nbytes, .image = state.config};
    result = CALL("cuptiProfilerHostGetNumOfPasses", passes, HostPasses, passes);
    if (result != OK)
        return result;
    if (passes.passes != 1) {
        snprintf(state.problem, sizeof(state.problem), "%zu passes are needed", passes.passes);
        return PASSES;
    }
    return OK;
}

static size_t
most_samples(void)
{
    return state.every_ns < SHORT_NS ? MOST_SAMPLES : USUAL_SAMPLES;
}

static int
reset_data(void)
{
    DataInit data = {.sampler = state.sampler, .nbytes = state.data_nbytes, .data = state.data};
    state.taken = 0;
    return CALL("cuptiPmSamplingCounterDataImageInitialize", data, DataInit, data);
}

static void
disable(void)
{
    if (state.sampler != NULL)
        of_sampler("cuptiPmSamplingDisable");
    state.sampler = NULL;
    free(state.data);
    state.data = NULL;
}

/* Take the counters, and start to sample them. */
static int
begin(void)
{
    Enable enable = {0};
    int result = CALL("cuptiPmSamplingEnable", enable, Enable, sampler);
    int wants_context = result == INVALID_CONTEXT || result == NOT_INITIALIZED;
    if (wants_context && make_context() == 0)
        result = CALL("cuptiPmSamplingEnable", enable, Enable, sampler);
    if (result != OK)
        return result;
    state.sampler = enable.sampler;
    SetConfig config = {
        .sampler = state.sampler, .nbytes = state.config_nbytes, .config = state.config,
        .hardware_nbytes = ROOM_BYTES, .every = state.every_ns,
        .trigger = 1, /* by time */ .append = 0 /* what comes too late is lost */};
    result = CALL("cuptiPmSamplingSetConfig", config, SetConfig, append);
    if (result != OK)
        return result;
    DataSize size = {.sampler = state.sampler, .names = state.names, .count = state.count,
                     .most = most_samples()};
    result = CALL("cuptiPmSamplingGetCounterDataSize", size, DataSize, nbytes);
    if (result != OK)
        return result;
    state.data_nbytes = size.nbytes;
    state.data = calloc(1, size.nbytes ? size.nbytes : 1);
    if (state.data == NULL)
        return OUT_OF_MEMORY;
    result = reset_data();
    if (result != OK)
        return result;
    state.is_first = 1;
    return of_sampler("cuptiPmSamplingStart");
}

/* Begin with the largest set that can be had. */
static int
begin_largest(void)
{
    int result = PASSES;
    for (size_t i = state.every_ns < SHORT_NS ? SET_COUNT - 1 : 0; i < SET_COUNT; i++) {
        result = configure(SETS[i]);
        if (result == OK)
            result = begin();
        if (result == OK)
            return OK;
        disable();
        end_host();
        if (result == HARDWARE_BUSY || result == INSUFFICIENT_PRIVILEGES
            || result == VIRTUALIZED_PRIVILEGES || result == ABSENT)
            break; /* whatever is asked for */
    }
    return result;
}

/* -- sampling ---------------------------------------------------------------------------------- */
/* Make a record of a sample's values. */
static Record
record_of(const SampleInfo *sample, const double *values)
{
    double sms_a_cycle = values[1] > 0 ? state.sms / values[1] : NAN;
    size_t at = 2;
    Record record = {sample->start, sample->end, values[0] * sms_a_cycle, NAN, NAN, NAN};
    if (state.set.tensor)
        record.tensor_sms = values[at++] * sms_a_cycle / PIPES;
    if (state.set.dram) {
        record.read_bytes = values[at];
        record.written_bytes = values[at + 1];
    }
    return record;
}

/* Append a gap, if there is one between the last sample and a moment; returns how many. */
static size_t
append_gap(Record *records, uint64_t until_ns)
{
    if (state.last_end_ns == 0 || until_ns <= state.last_end_ns + state.every_ns / 10)
        return 0;
    records[0] = (Record){state.last_end_ns, until_ns, NAN, NAN, NAN, NAN};
    state.gaps++;
    return 1;
}

/* Read one decoded sample. */
static int
read_sample(size_t index, SampleInfo *sample, double *values)
{
    *sample = (SampleInfo){.sampler = state.sampler, .data = state.data,
                           .nbytes = state.data_nbytes, .index = index};
    int result = CALL("cuptiPmSamplingCounterDataGetSampleInfo", *sample, SampleInfo, end);
    if (result != OK)
        return result;
    HostValues evaluate = {.host = state.host, .data = state.data, .nbytes = state.data_nbytes,
                           .index = index, .names = state.names, .count = state.count,
                           .values = values};
    return CALL("cuptiProfilerHostEvaluateToGpuValues", evaluate, HostValues, values);
}

/* Write the samples that were decoded since, up to a number, and the gaps between them. */
static int
write_samples(size_t count)
{
    static Record records[2 * MOST_SAMPLES];
    size_t ready = 0, samples = 0;
    int result = OK;
    for (; state.taken < count && state.taken < most_samples(); state.taken++) {
        SampleInfo sample;
        double values[METRICS] = {0};
        result = read_sample(state.taken, &sample, values);
        if (result != OK)
            break;
        if (state.is_first) { /* it reaches from enabling to starting */
            state.is_first = 0;
            if (state.last_end_ns == 0)
                state.last_end_ns = sample.end;
            continue;
        }
        ready += append_gap(&records[ready], sample.start);
        records[ready++] = record_of(&sample, values);
        state.last_end_ns = sample.end;
        samples++;
    }
    if (write_all(records, ready * sizeof(Record)) != 0)
        return UNWRITTEN;
    state.samples += samples;
    return result;
}

/* Decode and write what has come; says whether there is more, and whether all has come.
 *
 * Returns OUT_OF_MEMORY where more came than the hardware's buffer holds. */
static int
take(int *is_full, int *is_end)
{
    Decode decode = {
        .sampler = state.sampler, .data = state.data, .nbytes = state.data_nbytes};
    int result = CALL("cuptiPmSamplingDecodeData", decode, Decode, overflow);
    *is_full = decode.reason == DATA_FULL;
    *is_end = decode.reason == END_OF_RECORDS;
    if (result != OK)
        return result;
    DataInfo info = {.data = state.data, .nbytes = state.data_nbytes};
    result = CALL("cuptiPmSamplingGetCounterDataInfo", info, DataInfo, completed);
    if (result != OK)
        return result;
    *is_end = *is_end && info.completed == state.taken;
    result = write_samples(info.completed);
    if (result == OK && (*is_full || state.taken > most_samples() / 2))
        result = reset_data(); /* not each time: that costs as much as hundreds of samples */
    if (result == OK && decode.overflow && !*is_full) {
        snprintf(state.problem, sizeof(state.problem), "the hardware's buffer overflowed");
        result = OUT_OF_MEMORY;
    }
    return result;
}

/* Wait for a time, or until there is nothing left to sample for. */
static void
rest(int wait_ms, pid_t parent)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    char ignored[64];
    if (poll(&input, 1, wait_ms) > 0 && read(0, ignored, sizeof(ignored)) <= 0)
        is_over = 1;
    if (getppid() != parent)
        is_over = 1;
}

/* Stop, and write what is left. */
static int
finish(void)
{
    int is_full = 0, is_end = 0;
    uint64_t stopped_ns = now_ns(CLOCK_REALTIME);
    int result = of_sampler("cuptiPmSamplingStop");
    uint64_t until_ns = now_ns(CLOCK_MONOTONIC) + DRAIN_NS;
    for (int empty = 0; result == OK && empty < 3 && now_ns(CLOCK_MONOTONIC) < until_ns;) {
        uint64_t before = state.samples;
        result = take(&is_full, &is_end);
        empty = state.samples > before ? 0 : empty + 1;
        if (result == OUT_OF_MEMORY)
            result = OK;
        if (is_end)
            break;
    }
    Record gap;
    int is_late = stopped_ns > state.last_end_ns + UNFINISHED * state.every_ns;
    if (is_late && append_gap(&gap, stopped_ns) && write_all(&gap, sizeof(gap)) != 0)
        return UNWRITTEN;
    return result;
}

/* Sample until it is over; returns the last result. */
static int
sample(pid_t parent)
{
    uint64_t poll_ms = state.every_ns * SAMPLES_A_POLL / 1000000u;
    int wait_ms = poll_ms > LONGEST_POLL_MS ? LONGEST_POLL_MS : poll_ms < 1 ? 1 : (int)poll_ms;
    int restarts = 0, is_full = 0, is_end = 0;
    while (!is_over) {
        uint64_t before = state.samples;
        int result = take(&is_full, &is_end);
        if (state.samples > before)
            restarts = 0;
        if (result == OUT_OF_MEMORY && restarts++ < MOST_RESTARTS) { /* samples were lost */
            of_sampler("cuptiPmSamplingStop");
            disable();
            result = begin();
        }
        if (result != OK)
            return result;
        rest(is_full ? 0 : wait_ms, parent);
    }
    return finish();
}

static void
end_it(int number)
{
    (void)number;
    is_over = 1;
}

int
main(int count, char **words)
{
    pid_t parent = getppid();
    if (count == 2 && strcmp(words[1], "--crc") == 0) {
        printf("%u\n", SOURCE_CRC);
        return 0;
    }
    if (count != 4) {
        fprintf(stderr, "usage: _counters LIBRARIES NANOSECONDS FILE\n");
        return 1;
    }
    fill_standard_files();
    struct sigaction end = {.sa_handler = end_it};
    sigaction(SIGTERM, &end, NULL);
    signal(SIGINT, SIG_IGN); /* a terminal sends it to the parent, too */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* write() tells it */
    state.every_ns = strtoull(words[2], NULL, 10);
    if (state.every_ns == 0) {
        snprintf(state.problem, sizeof(state.problem), "%s is no interval", words[2]);
        return refuse("failed");
    }
    state.file = open(words[3], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    uint32_t header[4] = {0, 0, sizeof(Record), 0};
    memcpy(header, "GSPMSMP1", 8);
    if (state.file < 0 || write_all(header, sizeof(header)) != 0) {
        snprintf(state.problem, sizeof(state.problem), "disk: %s", strerror(errno));
        return refuse("failed");
    }
    if (load(words[1]) != 0)
        return refuse("libraries");
    int result = check_version();
    if (result != OK)
        return refuse(reason_of(result));
    if (initialise_cuda() != 0)
        return refuse("unsupported");
    result = look();
    if (result == OK)
        result = begin_largest();
    if (result != OK) {
        explain();
        return refuse(reason_of(result));
    }
    printf("ready %d %s busy%s%s\n", state.sms, state.chip, state.set.tensor ? " tensor" : "",
           state.set.dram ? " dram" : "");
    fflush(stdout);
    result = sample(parent);
    if (result != OK)
        printf("failed %s\n", state.problem);
    fflush(stdout);
    disable();
    end_host();
    printf("ended %llu %llu %llu\n", (unsigned long long)state.samples,
           (unsigned long long)state.gaps,
           (unsigned long long)(now_ns(CLOCK_PROCESS_CPUTIME_ID) / 1000000u));
    fflush(stdout);
    return result == OK ? 0 : 2;
}
