/* Stands for libcuda and libcupti at once where `_counters.c` is tested.
 *
 * Its behaviour is planted by the environment:
 *
 *     FAKE_VERSION     of libcupti; 130001 else
 *     FAKE_RESULTS     "FUNCTION=RESULT,...": what these functions answer instead
 *     FAKE_LONGER      the function whose parameters are longer by 8 bytes
 *     FAKE_WSL         1: CUPTI says that counters are not had under WSL
 *     FAKE_CONTEXT     1: sampling wants a current context
 *     FAKE_PASSES      a metric with this in its name needs a second pass
 *     FAKE_SAMPLES     how many samples there are, and FAKE_AT_ONCE how many come with a decoding
 *     FAKE_GAP         before which sample one is missing
 *     FAKE_OVERFLOW    at which sample the buffer overflows, by which 10 are lost; -1: always
 *     FAKE_FLAGGED     1: it is not a result that tells so, but a flag
 *     FAKE_AHEAD_S     by so much samples are later than the clock, so that none is missing at the end
 *     FAKE_LOG         a file that gets a line for each call
 *
 * Sample n begins n intervals after the first session began. Of 1000 cycles, n % 1000 were active
 * in each of 132 SMs, and in one of four tensor pipes; 1000 + n bytes were read, 2000 + n written.
 * The parameters of every function are seen as words of 8 bytes, the first of which is their size:
 * the program's own structures are not used here. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK, INVALID_PARAMETER = 1, OUT_OF_MEMORY = 8, NOT_INITIALIZED = 15 };
enum { OTHER, DATA_FULL, END_OF_RECORDS };
#define SMS 132
#define LOST 10

typedef struct {
    uint64_t most, count;
    int64_t numbers[]; /* -1: the first one of a session, which is not one */
} Image;

static int has_context, is_running;
static int64_t next, overflows_left = 1;
static uint64_t base_ns, every_ns, opened;
static uint64_t passes;

static int64_t
planted(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoll(text, NULL, 10);
}

static void
note(const char *text)
{
    const char *path = getenv("FAKE_LOG");
    int file = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    dprintf(file, "%s\n", text);
    close(file);
}

/* Note a call, and return what it answers, as far as that is planted or wrong in its size. */
static int
answer(const char *name, const uint64_t *words, uint64_t nbytes)
{
    const char *longer = getenv("FAKE_LONGER"), *results = getenv("FAKE_RESULTS");
    const char *found = results == NULL ? NULL : strstr(results, name);
    note(name);
    int is_longer = longer != NULL && strcmp(longer, name) == 0;
    if (words[0] != nbytes + (is_longer ? 8 : 0) || words[1] != 0)
        return INVALID_PARAMETER;
    if (is_longer && words[nbytes / 8] != 0)
        return INVALID_PARAMETER;
    if (found != NULL && found[strlen(name)] == '=')
        return atoi(found + strlen(name) + 1);
    return OK;
}

#define ANSWER(nbytes) \
    do { \
        int answered = answer(__func__, words, nbytes); \
        if (answered != OK) \
            return answered; \
    } while (0)

/* -- libcuda --------------------------------------------------------------------------------- */
int
cuInit(unsigned flags)
{
    (void)flags;
    const char *results = getenv("FAKE_RESULTS");
    return results != NULL && strstr(results, "cuInit=") != NULL ? 100 : 0;
}

int
cuDeviceGet(int *device, int number)
{
    *device = number;
    return 0;
}

int
cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = SMS;
    return attribute == 16 && device == 0 ? 0 : 1;
}

int
cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = &has_context;
    return device;
}

int
cuCtxSetCurrent(void *context)
{
    has_context = context == &has_context;
    return 0;
}

/* -- libcupti: what it is, and what it can --------------------------------------------------- */
int
cuptiGetVersion(uint32_t *version)
{
    *version = (uint32_t)planted("FAKE_VERSION", 130001);
    return OK;
}

int
cuptiGetResultString(int result, const char **text)
{
    *text = result == OK ? "OK" : "PLANTED";
    return OK;
}

int
cuptiProfilerInitialize(uint64_t *words)
{
    ANSWER(16);
    return OK;
}

int
cuptiDeviceGetChipName(uint64_t *words)
{
    ANSWER(32);
    words[3] = (uint64_t)(uintptr_t)"GH100";
    return OK;
}

int
cuptiProfilerDeviceSupported(uint64_t *words)
{
    ANSWER(52);
    int32_t *levels = (int32_t *)(words + 2);
    for (int i = 1; i <= 7; i++)
        levels[i] = planted("FAKE_WSL", 0) && (i == 1 || i == 7) ? 1 : 3;
    return levels[8] == 3 ? OK : INVALID_PARAMETER;
}

int
cuptiPmSamplingGetCounterAvailability(uint64_t *words)
{
    ANSWER(40);
    if (words[4] != 0)
        memset((void *)(uintptr_t)words[4], 7, words[3]);
    words[3] = 16;
    return OK;
}

/* -- libcupti: what is counted --------------------------------------------------------------- */
int
cuptiProfilerHostInitialize(uint64_t *words)
{
    ANSWER(48);
    const uint8_t *availability = (const uint8_t *)(uintptr_t)words[4];
    if ((int32_t)words[2] != 1 || strcmp((const char *)(uintptr_t)words[3], "GH100") != 0
        || availability[15] != 7)
        return INVALID_PARAMETER;
    words[5] = (uint64_t)(uintptr_t)&passes;
    passes = 1;
    return OK;
}

int
cuptiProfilerHostDeinitialize(uint64_t *words)
{
    ANSWER(24);
    return OK;
}

int
cuptiProfilerHostConfigAddMetrics(uint64_t *words)
{
    ANSWER(40);
    const char **names = (const char **)(uintptr_t)words[3];
    const char *needs_two = getenv("FAKE_PASSES");
    for (uint64_t i = 0; i < words[4]; i++)
        if (needs_two != NULL && strstr(names[i], needs_two) != NULL)
            passes = 2;
    return OK;
}

int
cuptiProfilerHostGetConfigImageSize(uint64_t *words)
{
    ANSWER(32);
    words[3] = sizeof(passes);
    return OK;
}

int
cuptiProfilerHostGetConfigImage(uint64_t *words)
{
    ANSWER(40);
    memcpy((void *)(uintptr_t)words[4], &passes, sizeof(passes));
    return OK;
}

int
cuptiProfilerHostGetNumOfPasses(uint64_t *words)
{
    ANSWER(40);
    memcpy(&words[4], (void *)(uintptr_t)words[3], sizeof(passes));
    return OK;
}

static double
value_of(const char *name, int64_t number)
{
    double active = (double)(number % 1000) * SMS;
    if (number < 0)
        return 1e9;
    if (strcmp(name, "sm__cycles_active.sum") == 0)
        return active;
    if (strcmp(name, "sm__cycles_elapsed.sum") == 0)
        return 1000.0 * SMS;
    if (strcmp(name, "sm__pipe_tensor_cycles_active_realtime.sum") == 0)
        return active;
    return (double)number + (strcmp(name, "dram__bytes_read.sum") == 0 ? 1000 : 2000);
}

int
cuptiProfilerHostEvaluateToGpuValues(uint64_t *words)
{
    ANSWER(72);
    const Image *image = (const Image *)(uintptr_t)words[3];
    const char **names = (const char **)(uintptr_t)words[6];
    double *values = (double *)(uintptr_t)words[8];
    if (words[5] >= image->count)
        return INVALID_PARAMETER;
    for (uint64_t i = 0; i < words[7]; i++)
        values[i] = value_of(names[i], image->numbers[words[5]]);
    return OK;
}

/* -- libcupti: sampling ---------------------------------------------------------------------- */
int
cuptiPmSamplingEnable(uint64_t *words)
{
    ANSWER(32);
    if (planted("FAKE_CONTEXT", 0) && !has_context)
        return NOT_INITIALIZED;
    opened++;
    words[3] = (uint64_t)(uintptr_t)&opened;
    return OK;
}

int
cuptiPmSamplingSetConfig(uint64_t *words)
{
    char text[128];
    ANSWER(64);
    int32_t modes[2];
    memcpy(modes, &words[7], sizeof(modes));
    every_ns = words[6];
    snprintf(text, sizeof(text), "config %llu %llu %d %d", (unsigned long long)words[5],
             (unsigned long long)every_ns, modes[0], modes[1]);
    note(text);
    return OK;
}

int
cuptiPmSamplingGetCounterDataSize(uint64_t *words)
{
    ANSWER(56);
    words[6] = sizeof(Image) + 8 * (uint32_t)words[5];
    return OK;
}

int
cuptiPmSamplingCounterDataImageInitialize(uint64_t *words)
{
    ANSWER(40);
    Image *image = (Image *)(uintptr_t)words[4];
    image->most = (words[3] - sizeof(Image)) / 8;
    image->count = 0;
    return OK;
}

static int is_first;

int
cuptiPmSamplingStart(uint64_t *words)
{
    ANSWER(24);
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    if (base_ns == 0)
        base_ns = (uint64_t)(time.tv_sec + planted("FAKE_AHEAD_S", 3600)) * 1000000000u + (uint64_t)time.tv_nsec;
    is_running = is_first = 1;
    return OK;
}

int
cuptiPmSamplingStop(uint64_t *words)
{
    ANSWER(24);
    is_running = 0;
    return OK;
}

int
cuptiPmSamplingDisable(uint64_t *words)
{
    ANSWER(24);
    return OK;
}

/* Say whether the buffer overflows now. */
static int
overflows(void)
{
    int64_t at = planted("FAKE_OVERFLOW", INT64_MAX);
    if (at < 0)
        return 1;
    if (next < at || overflows_left == 0)
        return 0;
    overflows_left--;
    next += LOST;
    return 1;
}

int
cuptiPmSamplingDecodeData(uint64_t *words)
{
    ANSWER(45);
    Image *image = (Image *)(uintptr_t)words[3];
    int64_t end = planted("FAKE_SAMPLES", 100), left = planted("FAKE_AT_ONCE", 1000);
    int64_t overflow_at = planted("FAKE_OVERFLOW", INT64_MAX);
    int32_t reason = END_OF_RECORDS;
    ((uint8_t *)words)[44] = 0;
    if (overflows()) {
        ((uint8_t *)words)[44] = 1;
        if (!planted("FAKE_FLAGGED", 0))
            return OUT_OF_MEMORY;
        left = 0;
    }
    if (overflows_left > 0 && overflow_at < end)
        end = overflow_at;
    if (is_first && left > 0 && image->count < image->most) {
        image->numbers[image->count++] = -1;
        is_first = 0;
    }
    for (; left > 0 && next < end && image->count < image->most; left--)
        image->numbers[image->count++] = next++;
    if (next < end)
        reason = image->count == image->most ? DATA_FULL : OTHER;
    memcpy(&words[5], &reason, sizeof(reason));
    return OK;
}

int
cuptiPmSamplingGetCounterDataInfo(uint64_t *words)
{
    ANSWER(56);
    const Image *image = (const Image *)(uintptr_t)words[2];
    words[4] = image->most;
    words[5] = words[6] = image->count;
    return OK;
}

int
cuptiPmSamplingCounterDataGetSampleInfo(uint64_t *words)
{
    ANSWER(64);
    const Image *image = (const Image *)(uintptr_t)words[3];
    if (words[5] >= image->count)
        return INVALID_PARAMETER;
    int64_t number = image->numbers[words[5]];
    if (number < 0) { /* from long before until the first sample */
        words[6] = base_ns - 1000 * every_ns;
        words[7] = base_ns;
        return OK;
    }
    int64_t gap = planted("FAKE_GAP", INT64_MAX);
    words[6] = base_ns + (uint64_t)(number + (number >= gap)) * every_ns;
    words[7] = words[6] + every_ns;
    return OK;
}
