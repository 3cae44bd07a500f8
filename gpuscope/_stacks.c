/* Stacks of all Python threads of the main interpreter, read about every so often by a thread without
 * Python's lock, for _stacks.py.
 *
 * - What is others' is read by process_vm_readv on the own process: a stale pointer is an error there,
 *   no crash.
 * - Only who has Python's lock, or had it last, can move its frames. All other threads' stand still:
 *   where the lock has not changed hands since a thread's stack was read, it is the same still.
 * - The frames of the one that moves are copied twice in one call of the system. A sample whose copies
 *   differ, but for the innermost instruction, is kept and marked as torn: to drop it, or to try again,
 *   would favour code that is slow.
 * - A code object is known by its address. One that is met first is remembered, so that its end is
 *   noted (_codes.c), then met again, then copied: if no end was noted after all that, it lived from
 *   the second meeting on, and the copy is its own.
 *
 * All of it is the process's. A child that is forked has no thread that reads. */

#define _GNU_SOURCE
#define Py_BUILD_CORE 1
#include "_codes.h"

#if defined(__linux__) && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED) && \
    defined(__has_include)
#if __has_include("internal/pycore_interp.h") && __has_include("internal/pycore_runtime.h")
#define CAN_SAMPLE 1
#endif
#endif

#ifdef CAN_SAMPLE
#include "internal/pycore_interp.h"
#include "internal/pycore_runtime.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { INNER = 24, OUTER = 8 };      /* lines of a stack that are kept, from both ends */
enum { WALK = 256 };                 /* frames that are looked at */
enum { WINDOW = 16 << 10 };          /* bytes of frames that are copied at once */
enum { FRAME_BYTES = 72 };           /* of a frame, before its locals */
enum { THREADS = 512, RING = 1 << 16, MOST_STACKS = 1 << 17, BUCKETS = 1 << 14 };
enum { SETS = 2048, WAYS = 4 };      /* of codes that are remembered, by address */
enum { MOST_TEXT = 1 << 16, MOST_TABLE = 1 << 22 };
enum { TRIES = 4, SLOW_NS = 40000 }; /* what took longer has been interrupted: a code may have been made */
enum { HOLDS = 1, WAITS = 2, ON_CPU = 4, TORN = 8, CUT = 16 };

typedef struct {
    uintptr_t at, code, previous, instruction;
    uint8_t owner;
} Frame;

typedef struct Stack {
    struct Stack *next;
    uint32_t number, count, inner; /* lines; those before a gap, or all */
    Line lines[];
} Stack;

typedef struct {          /* samples in turn of a thread that tell the same; of _stacks.py: StackRun */
    uint64_t first, last; /* Unix time, ns */
    uint32_t thread, stack, count;
    int16_t call; /* number of the system call that it is in; -1: none */
    uint16_t state;
} Run;

typedef struct {
    uint64_t id; /* 0: free */
    unsigned long switches;
    uint32_t tick;
    int file, is_steady;
    Run run;
} Thread;

typedef struct {
    uintptr_t at;
    const Code *code; /* NULL: it was met, and is not copied yet */
    Code *copied;     /* until it is certain */
    uint32_t nbytes, first_traceable;
} Place;

typedef struct {
    unsigned long long ticks, samples, steady, torn, cut, failed, late, lost, cpu_ns;
} Counts;

static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static Counts counts;
static Place places[SETS][WAYS];
static uint8_t next_way[SETS];
static uint64_t destroyed_seen;
static Stack *buckets[BUCKETS], *stacks[MOST_STACKS];
static uint32_t stack_count;
static Thread known[THREADS];
static PyThreadState *order[THREADS], threads[THREADS];
static int thread_count;
static PyInterpreterState *interpreter;
static char copies[2][WINDOW];

static Run *ring;
static uint64_t head, tail;
static int is_running;
static pthread_t sampler;
static int64_t period;
static pid_t self;

static int
get(void *into, uintptr_t from, size_t nbytes)
{
    struct iovec here = {into, nbytes}, there = {(void *)from, nbytes};
    return process_vm_readv(self, &here, 1, &there, 1, 0) == (ssize_t)nbytes;
}

static uint64_t
now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* -- codes ------------------------------------------------------------------------------------ */
static Place *
place_of(uintptr_t at)
{
    uint32_t set = hash_of_address(at) % SETS;
    for (int way = 0; way < WAYS; way++)
        if (places[set][way].at == at)
            return &places[set][way];
    return NULL;
}

static void
forget(Place *place)
{
    if (place != NULL) {
        free(place->copied);
        *place = (Place){0};
    }
}

static Place *
new_place(uintptr_t at)
{
    uint32_t set = hash_of_address(at) % SETS;
    Place *place = &places[set][next_way[set]++ % WAYS];
    forget(place);
    place->at = at;
    return place;
}

/* Forget codes that were destroyed; whether one of these frames' was. */
static int
forget_destroyed(const Frame *frames, int count)
{
    if (codes_destroyed() == destroyed_seen)
        return 0;
    uintptr_t gone[DESTROYED];
    int number = destroyed_since(&destroyed_seen, gone), is_gone = number < 0;
    if (number < 0)
        for (int set = 0; set < SETS; set++)
            for (int way = 0; way < WAYS; way++)
                forget(&places[set][way]);
    for (int i = 0; i < number; i++) {
        forget(place_of(gone[i]));
        for (int j = 0; j < count; j++)
            is_gone |= frames[j].code == gone[i];
    }
    return is_gone;
}

/* Copy an object of Python's that knows its size; NULL: it is none, or not there. */
static void *
text_at(uintptr_t at)
{
    PyCompactUnicodeObject head;
    if (!get(&head, at, sizeof(head)) || Py_TYPE((PyObject *)&head) != &PyUnicode_Type ||
        !head._base.state.compact || head._base.length < 0 || head._base.length > MOST_TEXT)
        return NULL;
    size_t kind = head._base.state.kind;
    size_t nbytes = ((size_t)head._base.length + 1) * kind;
    nbytes += head._base.state.ascii ? sizeof(PyASCIIObject) : sizeof(PyCompactUnicodeObject);
    PyASCIIObject *text = kind != 1 && kind != 2 && kind != 4 ? NULL : malloc(nbytes);
    if (text != NULL && (!get(text, at, nbytes) || text->length != head._base.length ||
                         memcmp(&text->state, &head._base.state, sizeof(text->state)) != 0)) {
        free(text);
        text = NULL;
    }
    return text;
}

static void *
table_at(uintptr_t at, size_t *nbytes)
{
    PyBytesObject head;
    if (!get(&head, at, offsetof(PyBytesObject, ob_sval)) || Py_TYPE((PyObject *)&head) != &PyBytes_Type ||
        Py_SIZE((PyObject *)&head) < 0 || Py_SIZE((PyObject *)&head) > MOST_TABLE)
        return NULL;
    *nbytes = (size_t)Py_SIZE((PyObject *)&head);
    char *table = malloc(*nbytes + 1);
    if (table != NULL && !get(table, at + offsetof(PyBytesObject, ob_sval), *nbytes)) {
        free(table);
        table = NULL;
    }
    return table;
}

/* Copy what is at a place; whether it looks like a code. */
static int
copy(Place *place)
{
    PyCodeObject of;
    if (!get(&of, place->at, offsetof(PyCodeObject, co_code_adaptive)) ||
        Py_TYPE((PyObject *)&of) != &PyCode_Type)
        return 0;
    size_t nbytes = 0;
    void *file = text_at((uintptr_t)of.co_filename), *name = text_at((uintptr_t)of.co_qualname);
    void *table = table_at((uintptr_t)of.co_linetable, &nbytes);
    if (file != NULL && name != NULL && table != NULL)
        place->copied = copied_code(file, name, table, nbytes, of.co_firstlineno);
    free(file);
    free(name);
    free(table);
    place->nbytes = (uint32_t)Py_SIZE((PyObject *)&of) * (uint32_t)sizeof(_Py_CODEUNIT);
    place->first_traceable = (uint32_t)of._co_firsttraceable * (uint32_t)sizeof(_Py_CODEUNIT);
    return place->copied != NULL;
}

/* -- frames ----------------------------------------------------------------------------------- */
static Frame
frame_of(uintptr_t at, const char *bytes)
{
    Frame frame = {.at = at, .owner = (uint8_t)bytes[OWNER]};
    memcpy(&frame.code, bytes + CODE, sizeof(uintptr_t));
    memcpy(&frame.previous, bytes + PREVIOUS, sizeof(uintptr_t));
    memcpy(&frame.instruction, bytes + INSTRUCTION, sizeof(uintptr_t));
    return frame;
}

static int
is_python(const Frame *frame)
{
    return frame->owner < OWNED_BY_C && frame->code != 0;
}

/* Copy the frames of a thread, the innermost first; how many, −1: they could not be read. Those of one
 * that moves are copied twice, and marked as torn if the copies differ. */
static int
copy_frames(const PyThreadState *at_state, PyThreadState *thread, int moves, Frame *frames, uint16_t *state)
{
    uintptr_t current[3] = {0, 0, 0}, link[2] = {0, 0}, low = 0, where = 0;
    size_t window = 0;
    for (int tries = 0; tries < 3; tries++) { /* a call through C moves where the current frame is */
        if (moves && !get(thread, (uintptr_t)at_state, sizeof(*thread)))
            return -1;
        uintptr_t top = (uintptr_t)thread->datastack_top + 512; /* it may have grown since */
        low = (uintptr_t)thread->datastack_chunk;
        top = top > (uintptr_t)thread->datastack_limit ? (uintptr_t)thread->datastack_limit : top;
        window = low == 0 || top <= low ? 0 : top - low;
        if (window > WINDOW) {
            low = top - WINDOW;
            window = WINDOW;
        }
#if PY_VERSION_HEX >= 0x030D0000
        where = (uintptr_t)at_state + offsetof(PyThreadState, current_frame);
        uintptr_t outer = where;
#else
        where = (uintptr_t)thread->cframe + offsetof(_PyCFrame, current_frame);
        uintptr_t outer = (uintptr_t)at_state + offsetof(PyThreadState, cframe);
#endif
        struct iovec here[] = {{&link[0], 8},       {&current[0], 8}, {copies[0], window}, {&current[2], 8},
                               {copies[1], window}, {&current[1], 8}, {&link[1], 8}};
        struct iovec there[] = {{(void *)outer, 8},    {(void *)where, 8}, {(void *)low, window},
                                {(void *)where, 8},    {(void *)low, window}, {(void *)where, 8},
                                {(void *)outer, 8}};
        unsigned parts = moves ? 7 : 3;
        size_t nbytes = moves ? 40 + 2 * window : 16 + window;
        if (process_vm_readv(self, here, parts, there, parts, 0) != (ssize_t)nbytes)
            return -1;
#if PY_VERSION_HEX < 0x030D0000
        if (moves && (link[0] != (uintptr_t)thread->cframe || link[1] != link[0]))
            continue;
#endif
        break;
    }
    int is_same = !moves || (link[0] == link[1] && current[0] == current[1] && current[0] == current[2]);
    int count = 0;
    uintptr_t at = current[0];
    for (; at != 0 && count < WALK; at = frames[count++].previous) {
        char bytes[FRAME_BYTES], again[FRAME_BYTES];
        int is_inside = window >= FRAME_BYTES && at >= low && at - low <= window - FRAME_BYTES;
        if (is_inside)
            memcpy(bytes, copies[0] + (at - low), FRAME_BYTES);
        else if (!get(bytes, at, FRAME_BYTES))
            break;
        frames[count] = frame_of(at, bytes);
        if (!moves)
            continue;
        if (is_inside)
            memcpy(again, copies[1] + (at - low), FRAME_BYTES);
        else if (!get(again, at, FRAME_BYTES))
            break;
        Frame second = frame_of(at, again), *first = &frames[count];
        is_same &= first->code == second.code && first->previous == second.previous &&
                   first->owner == second.owner &&
                   (count == 0 || first->instruction == second.instruction);
    }
    *state |= (at != 0 ? CUT : 0) | (is_same ? 0 : TORN);
    return count;
}

static uint32_t
number_of(const Line *lines, uint32_t count, uint32_t inner)
{
    uint64_t hash = 0xCBF29CE484222325u ^ inner;
    for (uint32_t i = 0; i < count; i++)
        hash = (hash ^ (uintptr_t)lines[i].code ^ (uint64_t)lines[i].offset << 40) * 0x9E3779B97F4A7C15u;
    Stack **bucket = &buckets[(hash ^ hash >> 32) % BUCKETS], *stack = *bucket;
    while (stack != NULL && (stack->count != count || stack->inner != inner ||
                             memcmp(stack->lines, lines, count * sizeof(Line)) != 0))
        stack = stack->next;
    if (stack == NULL && stack_count + 1 < MOST_STACKS &&
        (stack = malloc(sizeof(Stack) + count * sizeof(Line))) != NULL) {
        *stack = (Stack){*bucket, ++stack_count, count, inner};
        memcpy(stack->lines, lines, count * sizeof(Line));
        stacks[stack->number] = *bucket = stack;
    }
    return stack == NULL ? 0 : stack->number;
}

/* Return the number of the stack that frames are, whose codes are certain; 0: it has no lines. */
static uint32_t
stack_of(const Frame *frames, int count, uint16_t *state)
{
    Line inner[INNER], outer[OUTER], lines[INNER + OUTER];
    uint32_t kept = 0, rest = 0;
    memset(lines, 0, sizeof(lines));
    memset(inner, 0, sizeof(inner));
    memset(outer, 0, sizeof(outer));
    for (int i = 0; i < count; i++) {
        const Place *place = is_python(&frames[i]) ? place_of(frames[i].code) : NULL;
        if (place == NULL || place->code == NULL) {
            *state |= is_python(&frames[i]) ? TORN : 0;
            continue;
        }
        uintptr_t begin = frames[i].code + offsetof(PyCodeObject, co_code_adaptive);
        intptr_t offset = (intptr_t)(frames[i].instruction - begin);
        if (offset < -(intptr_t)sizeof(_Py_CODEUNIT) || offset >= (intptr_t)place->nbytes) {
            *state |= TORN; /* it is of another code */
            continue;
        }
        if (frames[i].owner != OWNED_BY_GENERATOR && offset < (intptr_t)place->first_traceable)
            continue; /* it is not complete yet */
        Line line = {place->code, offset < 0 ? 0 : (uint32_t)offset};
        if (kept < INNER)
            inner[kept++] = line;
        else
            outer[rest++ % OUTER] = line;
    }
    memcpy(lines, inner, kept * sizeof(Line));
    uint32_t last = rest < OUTER ? rest : OUTER;
    for (uint32_t i = 0; i < last; i++)
        lines[kept + i] = outer[(rest - last + i) % OUTER];
    *state |= rest > OUTER ? CUT : 0;
    return kept == 0 ? 0 : number_of(lines, kept + last, rest > OUTER ? kept : kept + last);
}

/* Read the stack of a thread: its number; 0: it has no lines, or they could not be read. */
static uint32_t
read_stack(const PyThreadState *at_state, PyThreadState *thread, int moves, uint16_t *state)
{
    static Frame frames[WALK];
    uint64_t began = now(CLOCK_MONOTONIC);
    forget_destroyed(NULL, 0);
    int count = 0, is_certain = 0;
    for (int tries = 0; tries < TRIES && !is_certain; tries++) {
        uint16_t seen = 0;
        count = copy_frames(at_state, thread, moves, frames, &seen);
        if (count < 0) {
            counts.failed++;
            *state |= TORN;
            return 0;
        }
        int is_new = 0;
        for (int i = 0; i < count; i++) {
            if (!is_python(&frames[i]))
                continue;
            Place *place = place_of(frames[i].code);
            if (place == NULL) { /* its end is noted from now on; is it there still? */
                new_place(frames[i].code);
                remember_code(frames[i].code);
                is_new = 1;
            } else if (place->code == NULL && place->copied == NULL && !copy(place))
                forget(place);
        }
        if (is_new)
            continue;
        if (forget_destroyed(frames, count))
            seen |= TORN;
        for (int i = 0; i < count && !(seen & TORN); i++) {
            Place *place = is_python(&frames[i]) ? place_of(frames[i].code) : NULL;
            if (place != NULL && place->copied != NULL) {
                place->code = interned_code(place->copied);
                place->copied = NULL;
            }
        }
        *state |= seen;
        is_certain = 1;
    }
    if (!is_certain)
        *state |= TORN;
    uint32_t number = stack_of(frames, count, state);
    if (moves && now(CLOCK_MONOTONIC) - began > SLOW_NS)
        *state |= TORN;
    return number;
}

/* -- threads ---------------------------------------------------------------------------------- */
/* What the system says a thread does: the number of its call, −1: none; whether it waits for the lock. */
static int16_t
call_of(Thread *thread, uint32_t number, uintptr_t gil, size_t nbytes, uint16_t *state)
{
    char text[128];
    if (thread->file < 0) {
        snprintf(text, sizeof(text), "/proc/self/task/%u/syscall", number);
        if ((thread->file = open(text, O_RDONLY | O_CLOEXEC)) < 0)
            return -1;
    }
    ssize_t length = pread(thread->file, text, sizeof(text) - 1, 0);
    if (length <= 0)
        return -1;
    text[length] = 0;
    if (text[0] == 'r') { /* running */
        *state |= ON_CPU;
        return -1;
    }
    char *rest;
    long call = strtol(text, &rest, 10);
    uintptr_t first = (uintptr_t)strtoull(rest, NULL, 16);
    if (call == SYS_futex && first >= gil && first < gil + nbytes)
        *state |= WAITS;
    return (int16_t)call;
}

static void
keep_run(Run *run)
{
    if (run->count == 0)
        return;
    if (head - __atomic_load_n(&tail, __ATOMIC_ACQUIRE) >= RING)
        counts.lost += run->count;
    else {
        ring[head % RING] = *run;
        __atomic_store_n(&head, head + 1, __ATOMIC_RELEASE);
    }
    run->count = 0;
}

static void
let_go(Thread *thread)
{
    keep_run(&thread->run);
    if (thread->id != 0 && thread->file >= 0)
        close(thread->file);
    *thread = (Thread){.file = -1};
}

static Thread *
thread_of(uint64_t id, uint32_t tick)
{
    Thread *unused = NULL;
    for (uint32_t i = 0; i < THREADS; i++) {
        Thread *thread = &known[(id + i) % THREADS];
        if (thread->id == id)
            return thread;
        if (unused == NULL && (thread->id == 0 || thread->tick + 1 < tick))
            unused = thread;
        if (thread->id == 0)
            break;
    }
    if (unused != NULL) {
        let_go(unused);
        unused->id = id;
    }
    return unused;
}

/* Read the states of all threads: those of the last time in one call, if they still are. */
static void
read_threads(void)
{
    struct iovec here[64], there[64];
    uintptr_t first;
    if (!get(&first, (uintptr_t)&interpreter->threads.head, sizeof(first))) {
        thread_count = 0;
        return;
    }
    int is_same = thread_count > 0 && thread_count <= 64 && first == (uintptr_t)order[0];
    for (int i = 0; i < thread_count && is_same; i++) {
        here[i] = (struct iovec){&threads[i], sizeof(PyThreadState)};
        there[i] = (struct iovec){order[i], sizeof(PyThreadState)};
    }
    is_same = is_same &&
              process_vm_readv(self, here, (unsigned)thread_count, there, (unsigned)thread_count, 0) ==
                  (ssize_t)((size_t)thread_count * sizeof(PyThreadState));
    for (int i = 0; i < thread_count && is_same; i++)
        is_same = threads[i].interp == interpreter &&
                  threads[i].next == (i + 1 < thread_count ? order[i + 1] : NULL);
    if (is_same)
        return;
    for (thread_count = 0; first != 0 && thread_count < THREADS; thread_count++) {
        PyThreadState *thread = &threads[thread_count];
        if (!get(thread, first, sizeof(*thread)) || thread->interp != interpreter ||
            thread->prev != (thread_count == 0 ? NULL : order[thread_count - 1])) {
            counts.failed++; /* it was freed, or the list changed */
            break;
        }
        order[thread_count] = (PyThreadState *)first;
        first = (uintptr_t)thread->next;
    }
}

/* Take a sample of each thread. `looking` is held. */
static void
look(uint32_t tick)
{
    uintptr_t gil_at;
#if PY_VERSION_HEX >= 0x030C0000
    if (!get(&gil_at, (uintptr_t)&interpreter->ceval.gil, sizeof(gil_at)))
        return;
#else
    gil_at = (uintptr_t)&_PyRuntime.ceval.gil;
#endif
    counts.ticks++;
    read_threads();
    for (int i = 0; i < thread_count; i++) {
        struct _gil_runtime_state gil, later;
        PyThreadState *state_copy = &threads[i];
        Thread *thread = state_copy->native_thread_id == 0 ? NULL : thread_of(state_copy->id + 1, tick);
        if (thread == NULL || !get(&gil, gil_at, sizeof(gil)))
            continue;
#if PY_VERSION_HEX < 0x030D0000
        if (state_copy->cframe == NULL)
            continue;
#endif
        uintptr_t holder;
        int locked;
        memcpy(&holder, &gil.last_holder, sizeof(holder));
        memcpy(&locked, &gil.locked, sizeof(locked));
        int is_last = holder == (uintptr_t)order[i];
        uint16_t state = locked == 1 && is_last ? HOLDS : 0;
        uint32_t stack;
        if (!is_last && thread->is_steady && thread->switches == gil.switch_number) {
            stack = thread->run.stack; /* it cannot have run since */
            state |= thread->run.state & CUT;
            counts.steady++;
        } else
            stack = read_stack(order[i], state_copy, is_last, &state);
        if (!is_last && (!get(&later, gil_at, sizeof(later)) || later.switch_number != gil.switch_number))
            state |= TORN; /* it may have got the lock meanwhile */
        thread->is_steady = !is_last && !(state & TORN);
        thread->switches = gil.switch_number;
        thread->tick = tick;
        uint32_t number = (uint32_t)state_copy->native_thread_id;
        int16_t call = state & HOLDS ? -1 : call_of(thread, number, gil_at, sizeof(gil), &state);
        counts.samples++;
        counts.torn += (state & TORN) != 0;
        counts.cut += (state & CUT) != 0;
        uint64_t time = now(CLOCK_REALTIME);
        Run *run = &thread->run;
        if (run->count == 0 || run->stack != stack || run->state != state || run->call != call) {
            keep_run(run);
            *run = (Run){time, time, number, stack, 0, call, state};
        }
        run->last = time;
        run->count++;
    }
    for (int i = 0; i < THREADS; i++) /* what has ended is told soon */
        if (known[i].id != 0 && known[i].tick + 1 < tick)
            let_go(&known[i]);
}

static void *
sample(void *Py_UNUSED(nothing))
{
    uint64_t noise = 88172645463325252u, due = now(CLOCK_MONOTONIC);
    uint32_t tick = 0;
    pthread_setname_np(pthread_self(), "gpuscope stacks");
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    while (__atomic_load_n(&is_running, __ATOMIC_ACQUIRE)) {
        if (period > 0) { /* uneven by a half, lest it beats with the program */
            noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
            due += (uint64_t)period / 2 + noise % ((uint64_t)period + 1);
            uint64_t time = now(CLOCK_MONOTONIC);
            if (time > due + (uint64_t)period) {
                counts.late++;
                due = time;
            }
            struct timespec until = {(time_t)(due / 1000000000u), (long)(due % 1000000000u)};
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        }
        pthread_mutex_lock(&looking);
        look(++tick);
        pthread_mutex_unlock(&looking);
    }
    pthread_mutex_lock(&looking);
    for (int i = 0; i < THREADS; i++)
        let_go(&known[i]);
    counts.cpu_ns += now(CLOCK_THREAD_CPUTIME_ID);
    pthread_mutex_unlock(&looking);
    return NULL;
}

static void
in_child(void)
{
    is_running = 0; /* its thread is not there */
    pthread_mutex_init(&looking, NULL);
    tail = head; /* what was seen is the parent's, and so are its threads */
    for (int i = 0; i < THREADS; i++) {
        known[i].run.count = 0;
        let_go(&known[i]);
    }
    thread_count = 0;
}

static void
watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* Be ready to look; 0, or the errno of what does not work here. */
static int
prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char probe = 1, seen = 0;
    pthread_once(&once, watch_forks);
    self = getpid();
    interpreter = PyInterpreterState_Main();
    if (!get(&seen, (uintptr_t)&probe, 1))
        return errno == 0 ? EFAULT : errno;
    if (ring == NULL && (ring = calloc(RING, sizeof(Run))) == NULL)
        return ENOMEM;
    return 0;
}

/* sample_stacks(period_ns) -> 0, or the errno of why not; with 0 ns without a pause */
static PyObject *
sample_stacks(PyObject *Py_UNUSED(module), PyObject *ns)
{
    long long wanted = PyLong_AsLongLong(ns);
    if (PyErr_Occurred())
        return NULL;
    int error = !codes_are_served() ? ENOTSUP : is_running ? EBUSY : prepare();
    if (error == 0) {
        sigset_t all, before;
        sigfillset(&all); /* signals are the program's */
        period = wanted;
        is_running = 1;
        pthread_sigmask(SIG_SETMASK, &all, &before);
        error = pthread_create(&sampler, NULL, sample, NULL);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        is_running = error == 0;
    }
    return PyLong_FromLong(error);
}

/* end_stacks(): take no more samples; again does nothing. */
static PyObject *
end_stacks(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    if (__atomic_exchange_n(&is_running, 0, __ATOMIC_ACQ_REL)) {
        Py_BEGIN_ALLOW_THREADS
        pthread_join(sampler, NULL);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

/* look_once() -> 0, or the errno of why not. Takes a sample of each thread now; those before are told. */
static PyObject *
look_once(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    static uint32_t tick = 1;
    pthread_mutex_lock(&looking);
    int error = !codes_are_served() ? ENOTSUP : is_running ? EBUSY : prepare();
    if (error == 0) {
        look(tick += 2);
        for (int i = 0; i < THREADS; i++)
            let_go(&known[i]);
    }
    pthread_mutex_unlock(&looking);
    return PyLong_FromLong(error);
}

/* take_runs() -> bytes of what is told since the last time */
static PyObject *
take_runs(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    uint64_t until = __atomic_load_n(&head, __ATOMIC_ACQUIRE);
    PyObject *runs = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)((until - tail) * sizeof(Run)));
    if (runs == NULL)
        return NULL;
    char *into = PyBytes_AS_STRING(runs);
    uint64_t from = tail;
    for (; from < until; from++, into += sizeof(Run))
        memcpy(into, &ring[from % RING], sizeof(Run));
    __atomic_store_n(&tail, from, __ATOMIC_RELEASE);
    return runs;
}

/* stack_lines(number) -> its lines as parts, the innermost first, and how many come before a gap */
static PyObject *
stack_lines(PyObject *Py_UNUSED(module), PyObject *argument)
{
    unsigned long number = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred())
        return NULL;
    pthread_mutex_lock(&looking);
    const Stack *stack = number <= stack_count ? stacks[number] : NULL;
    pthread_mutex_unlock(&looking);
    PyObject *lines = stack == NULL ? PyTuple_New(0) : parts_of_lines(stack->lines, stack->count);
    return lines == NULL ? NULL : Py_BuildValue("NI", lines, stack == NULL ? 0 : stack->inner);
}

/* stack_counts() -> what was done: ticks, samples, taken again as steady, torn, cut, not read, late, lost,
 * and CPU time of samplers that ended, ns */
static PyObject *
stack_counts(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&looking);
    Counts told = counts;
    pthread_mutex_unlock(&looking);
    return Py_BuildValue("KKKKKKKKK", told.ticks, told.samples, told.steady, told.torn, told.cut,
                         told.failed, told.late, told.lost, told.cpu_ns);
}

static PyMethodDef functions[] = {
    {"sample_stacks", sample_stacks, METH_O, NULL},
    {"end_stacks", end_stacks, METH_NOARGS, NULL},
    {"look_once", look_once, METH_NOARGS, NULL},
    {"take_runs", take_runs, METH_NOARGS, NULL},
    {"stack_lines", stack_lines, METH_O, NULL},
    {"stack_counts", stack_counts, METH_NOARGS, NULL},
    {NULL},
};

#else
static PyMethodDef functions[] = {{NULL}};
#endif

ADD_FUNCTIONS(add_stacks)
