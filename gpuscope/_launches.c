/* Launches, waits and what they wait for. CUPTI calls note_launch around each, which writes what CUPTI
 * would record, for record/cupti/library.py. CUPTI's own records make every call of an API dearer.
 *
 * All of it is the process's, as CUPTI and the threads are that it calls on, which may belong to any
 * interpreter or to none. Nothing here is Python's but what Python calls. */

#include "_fastpath.h"
#include <pthread.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

typedef int (*GetTimestamp)(uint64_t *now);

typedef struct { /* CUpti_CallbackData */
    int is_exit;
    const char *function;
    const void *arguments;
    const uint32_t *returned;
    const char *symbol;
    void *context;
    uint32_t context_id;
    uint64_t *kept;
    uint32_t correlation;
} CallbackData;

typedef struct { /* CUpti_ActivityAPI, but for the kind: see layout.py */
    uint32_t kind, callback;
    uint64_t start, end;
    uint32_t process, thread, correlation, returned;
    uint32_t site, reserved; /* these CUPTI does not tell */
    uint64_t handle;         /* context and number of the stream; 0: not asked */
    uint64_t event;          /* handle of the event; 0: it is about none */
} Launch;

enum { DRIVER, RUNTIME, DOMAINS };
static const uint32_t launch_kinds[DOMAINS] = {0x1004, 0x1005};

/* What a call is about, by domain and number. */
enum { OF_EVENT = 1, OF_STREAM = 2, BOTH = 3, PER_THREAD = 4, IS_QUERY = 8, OF_CONTEXT = 16 };
enum { STREAM_FIRST = 32, CALLBACKS = 2048, NOT_READY = 600 };
static uint8_t roles[DOMAINS][CALLBACKS];
typedef int (*GetStreamId)(void *context, void *stream, uint8_t per_thread, uint32_t *number);
static GetStreamId get_stream_id;
typedef int (*IsCapturing)(void *stream, int *status);
static IsCapturing is_capturing; /* the driver's */

#define LAUNCHES 1600
typedef struct Page {
    struct Page *next; /* set when this one is full */
    uint32_t used;
    Launch launches[LAUNCHES];
} Page;

/* One thread writes, whoever holds `writers_lock` reads. */
typedef struct Writer {
    struct Writer *next;
    Page *first, *last; /* the reader's, and the thread's */
    uint32_t read;      /* of the first */
    uint32_t process, thread;
    int is_over; /* the thread ended */
    uint32_t correlations[DOMAINS]; /* of the calls that it is in; 0: none */
    uint64_t starts[DOMAINS];
    uint32_t sites[DOMAINS];
    uint32_t took[DOMAINS]; /* to note that it began, ns, where that is timed */
} Writer;

static GetTimestamp get_timestamp;
static Writer *writers;
static pthread_mutex_t writers_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t writer_key; /* ends a writer with its thread */
static __thread Writer *own_writer;
static size_t page_bytes, most_page_bytes, launches_dropped;
enum { TIMED_OF = 17, MOST_NS = 20000 }; /* of so many calls one is timed; what took longer was interrupted */
static uint64_t noting_ns, noting_squares, timed_calls; /* what noting took, of so many calls */

static Page *
new_page(void)
{
    Page *page = NULL;
    if (__atomic_add_fetch(&page_bytes, sizeof(Page), __ATOMIC_RELAXED) <=
        __atomic_load_n(&most_page_bytes, __ATOMIC_RELAXED))
        page = malloc(sizeof(Page));
    if (page == NULL) {
        __atomic_sub_fetch(&page_bytes, sizeof(Page), __ATOMIC_RELAXED);
        __atomic_add_fetch(&launches_dropped, 1, __ATOMIC_RELAXED);
        return NULL;
    }
    page->next = NULL;
    page->used = 0;
    return page;
}

static void
free_page(Page *page)
{
    free(page);
    __atomic_sub_fetch(&page_bytes, sizeof(Page), __ATOMIC_RELAXED);
}

static void
end_writer(void *writer)
{
    own_writer = NULL; /* another destructor may launch, too */
    __atomic_store_n(&((Writer *)writer)->is_over, 1, __ATOMIC_RELEASE);
}

static Writer *
new_writer(void)
{
    Writer *writer = calloc(1, sizeof(Writer));
    Page *page = writer == NULL ? NULL : new_page();
    if (page == NULL || pthread_setspecific(writer_key, writer) != 0) {
        if (page != NULL)
            free_page(page);
        free(writer);
        return NULL;
    }
    writer->first = writer->last = page;
    writer->process = (uint32_t)getpid();
#ifdef __linux__
    writer->thread = (uint32_t)syscall(SYS_gettid);
#endif
    pthread_mutex_lock(&writers_lock);
    writer->next = writers;
    writers = writer;
    pthread_mutex_unlock(&writers_lock);
    own_writer = writer;
    return writer;
}

/* Note what a call is about, by its first arguments: an event, a stream, both, or the current
 * context. A created stream may be of another context. What is captured orders nothing. */
static void
note_subject(Launch *launch, uint8_t role, const CallbackData *data)
{
    GetStreamId get = __atomic_load_n(&get_stream_id, __ATOMIC_RELAXED);
    IsCapturing ask = __atomic_load_n(&is_capturing, __ATOMIC_RELAXED);
    int about = role & BOTH, event_at = (role & STREAM_FIRST) != 0, capturing = 0;
    uint32_t number = UINT32_MAX;
    void *given[2] = {NULL, NULL};
    if (about != 0 && (data->arguments == NULL || launch->returned != 0))
        return;
    if (about != 0)
        memcpy(given, data->arguments, (about == BOTH ? 2 : 1) * sizeof(given[0]));
    void *event = given[event_at], *stream = given[about == BOTH && !event_at];
    void *asked = stream == NULL && (role & PER_THREAD) ? (void *)2 : stream; /* CU_STREAM_PER_THREAD */
    uint64_t is_created = (uintptr_t)stream > 2;
    void *context = is_created ? NULL : data->context;
    if (about == BOTH && ask != NULL && (ask(asked, &capturing) != 0 || capturing))
        return;
    if (role & OF_EVENT)
        launch->event = (uintptr_t)event;
    if ((role & OF_STREAM) && get(context, stream, (role & PER_THREAD) != 0, &number) != 0)
        return;
    if (role & (OF_STREAM | OF_CONTEXT))
        launch->handle = is_created << 62 | (uint64_t)data->context_id << 32 | number;
}

static uint64_t
now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint32_t
since(uint64_t began) /* 0: it is not timed */
{
    return began == 0 ? 0 : (uint32_t)(now() - began);
}

/* CUpti_CallbackFunc: any thread, with the GIL or without. */
static void
note_launch(void *Py_UNUSED(user), int domain, uint32_t callback, const CallbackData *data)
{
    Writer *writer = own_writer;
    int which = domain - 1; /* CUPTI_CB_DOMAIN_DRIVER_API is 1, the runtime's 2 */
    if (which < 0 || which >= DOMAINS || data->correlation == 0 || (writer == NULL && data->is_exit))
        return;
    uint8_t role = callback < CALLBACKS ? roles[which][callback] : 0;
    uint64_t began = data->correlation % TIMED_OF == 0 ? now() : 0;
    if (writer == NULL && (writer = new_writer()) == NULL) {
        if (role & LAUNCHES_GRAPH)
            graph_call_is_lost();
        return;
    }
    if (!data->is_exit) {
        if (which == DRIVER && writer->correlations[RUNTIME] == data->correlation)
            return; /* how the runtime does it */
        writer->correlations[which] = data->correlation;
        writer->sites[which] = site_of_call();
        __atomic_load_n(&get_timestamp, __ATOMIC_RELAXED)(&writer->starts[which]);
        if (role & OF_GRAPH)
            graph_call_begins(role, data->arguments, data->correlation, writer->starts[which]);
        writer->took[which] = since(began);
        return;
    }
    if (writer->correlations[which] != data->correlation)
        return;
    writer->correlations[which] = 0;
    uint32_t returned = data->returned == NULL ? 0 : *data->returned;
    if (role & OF_GRAPH)
        graph_call_ends(role, data->arguments, data->correlation, returned);
    if (role & INSTANTIATES_GRAPH)
        return; /* no work */
    if ((role & IS_QUERY) && returned == NOT_READY)
        return; /* what polls, polls often */
    Page *page = writer->last;
    if (page->used == LAUNCHES) {
        Page *next = new_page();
        if (next == NULL)
            return;
        __atomic_store_n(&page->next, next, __ATOMIC_RELEASE);
        page = writer->last = next;
    }
    Launch *launch = &page->launches[page->used];
    launch->kind = launch_kinds[which];
    launch->callback = callback;
    launch->start = writer->starts[which];
    __atomic_load_n(&get_timestamp, __ATOMIC_RELAXED)(&launch->end);
    launch->process = writer->process;
    launch->thread = writer->thread;
    launch->correlation = data->correlation;
    launch->returned = returned;
    launch->site = writer->sites[which];
    launch->handle = launch->event = launch->reserved = 0;
    note_subject(launch, role, data);
    __atomic_store_n(&page->used, page->used + 1, __ATOMIC_RELEASE);
    if (began != 0) {
        uint64_t took = (uint64_t)writer->took[which] + since(began);
        took = took < MOST_NS ? took : MOST_NS;
        __atomic_add_fetch(&noting_ns, took, __ATOMIC_RELAXED);
        __atomic_add_fetch(&noting_squares, took * took, __ATOMIC_RELAXED);
        __atomic_add_fetch(&timed_calls, 1, __ATOMIC_RELAXED);
    }
}

/* Count what a writer has; copy what there is room for and free what was read, if there is a place. */
static size_t
read_writer(Writer *writer, Launch *into, size_t room)
{
    size_t count = 0;
    Page *page = writer->first;
    uint32_t read = writer->read;
    for (;;) {
        uint32_t used = __atomic_load_n(&page->used, __ATOMIC_ACQUIRE);
        size_t more = used - read;
        if (into != NULL && more > room - count)
            more = room - count;
        if (into != NULL)
            memcpy(into + count, page->launches + read, more * sizeof(Launch));
        count += more;
        read += (uint32_t)more;
        Page *next = __atomic_load_n(&page->next, __ATOMIC_ACQUIRE);
        if (read < LAUNCHES || next == NULL)
            break;
        if (into != NULL)
            free_page(page);
        page = next;
        read = 0;
    }
    if (into != NULL) {
        writer->first = page;
        writer->read = read;
    }
    return count;
}

/* The same of all writers. `writers_lock` is held. */
static size_t
read_writers(Launch *into, size_t room)
{
    size_t count = 0;
    for (Writer **at = &writers; *at != NULL;) {
        Writer *writer = *at;
        int is_over = __atomic_load_n(&writer->is_over, __ATOMIC_ACQUIRE);
        count += read_writer(writer, into == NULL ? NULL : into + count, room - count);
        if (into != NULL && is_over && read_writer(writer, NULL, 0) == 0) {
            *at = writer->next;
            free_page(writer->first);
            free(writer);
        } else
            at = &writer->next;
    }
    return count;
}

/* Move what was noted, if anything was, into bytes, the second of `item`, and this to the end of a
 * list; -1: error, nothing was moved. With the lock no garbage is collected: it may run Python. */
static int
move_launches(PyObject *list, PyObject *item)
{
    pthread_mutex_lock(&writers_lock);
    size_t count = read_writers(NULL, 0);
    PyObject *records = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(Launch)));
    int moved = records == NULL ? -1 : count == 0 ? 0 : PyList_Append(list, item);
    if (moved == 0 && count > 0) {
        read_writers((Launch *)(void *)PyBytes_AS_STRING(records), count);
        PyTuple_SET_ITEM(item, 1, Py_NewRef(records));
    }
    pthread_mutex_unlock(&writers_lock);
    Py_XDECREF(records);
    return moved;
}

/* take_launches(into, next_number) -> how many were dropped since the last time. Appends (number,
 * records) of what was noted since then, if anything was: no interrupt comes between. */
static PyObject *
take_launches(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *list, *next_number;
    if (!PyArg_ParseTuple(args, "O!O:take_launches", &PyList_Type, &list, &next_number))
        return NULL;
    size_t dropped = __atomic_exchange_n(&launches_dropped, 0, __ATOMIC_RELAXED);
    PyObject *number = PyObject_CallNoArgs(next_number);
    PyObject *item = number == NULL ? NULL : PyTuple_New(2);
    int moved = -1;
    if (item != NULL) {
        PyTuple_SET_ITEM(item, 0, Py_NewRef(number));
        moved = move_launches(list, item);
    }
    Py_XDECREF(number);
    Py_XDECREF(item);
    if (moved < 0) {
        __atomic_add_fetch(&launches_dropped, dropped, __ATOMIC_RELAXED);
        return NULL;
    }
    return PyLong_FromSize_t(dropped);
}

/* limit_launches(bytes): what is not taken yet may take that much memory. */
static PyObject *
limit_launches(PyObject *Py_UNUSED(module), PyObject *bytes)
{
    size_t most = PyLong_AsSize_t(bytes);
    if (PyErr_Occurred())
        return NULL;
    __atomic_store_n(&most_page_bytes, most, __ATOMIC_RELAXED);
    Py_RETURN_NONE;
}

/* time_of_noting() -> ns, their squares, and of how many calls that is, since it was asked last */
static PyObject *
time_of_noting(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    unsigned long long ns = __atomic_exchange_n(&noting_ns, 0, __ATOMIC_RELAXED);
    unsigned long long squares = __atomic_exchange_n(&noting_squares, 0, __ATOMIC_RELAXED);
    unsigned long long calls = __atomic_exchange_n(&timed_calls, 0, __ATOMIC_RELAXED);
    return Py_BuildValue("KKK", ns, squares, calls);
}

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static int has_key;

static void
make_key(void)
{
    has_key = pthread_key_create(&writer_key, end_writer) == 0;
}

/* serve_launches(address of cuptiGetTimestamp, of cuptiGetStreamIdEx, of cuStreamIsCapturing or 0,
 * role of each call of an API by domain and number) -> address of note_launch */
static PyObject *
serve_launches(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *clock, *streams, *captures;
    Py_buffer given;
    if (!PyArg_ParseTuple(args, "OOOy*:serve_launches", &clock, &streams, &captures, &given))
        return NULL;
    size_t size = (size_t)given.len;
    memcpy(roles, given.buf, size < sizeof(roles) ? size : sizeof(roles));
    PyBuffer_Release(&given);
    void *at = PyLong_AsVoidPtr(clock), *stream_at = PyLong_AsVoidPtr(streams);
    void *capture_at = PyLong_AsVoidPtr(captures);
    if (PyErr_Occurred())
        return NULL;
    if (at == NULL || stream_at == NULL) {
        PyErr_SetString(PyExc_ValueError, "launches need the addresses of CUPTI's functions");
        return NULL;
    }
    pthread_once(&key_once, make_key);
    if (!has_key)
        return PyErr_NoMemory();
    __atomic_store_n(&get_timestamp, (GetTimestamp)(uintptr_t)at, __ATOMIC_RELAXED);
    __atomic_store_n(&get_stream_id, (GetStreamId)(uintptr_t)stream_at, __ATOMIC_RELAXED);
    __atomic_store_n(&is_capturing, (IsCapturing)(uintptr_t)capture_at, __ATOMIC_RELAXED);
    return PyLong_FromVoidPtr((void *)(uintptr_t)note_launch);
}

static PyMethodDef functions[] = {
    {"serve_launches", serve_launches, METH_VARARGS, NULL},
    {"limit_launches", limit_launches, METH_O, NULL},
    {"take_launches", take_launches, METH_VARARGS, NULL},
    {"time_of_noting", time_of_noting, METH_NOARGS, NULL},
    {NULL},
};

ADD_FUNCTIONS(add_launches)
