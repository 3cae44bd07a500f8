/* Which launches of graphs CUPTI records whole, one record a launch, and which node by node.
 *
 * CUPTI crashes where it is to record a graph whole that was instantiated while it recorded none whole
 * (libcupti 13.0, driver 580: benchmarks/graph_records.py). So graphs are noted as they are
 * instantiated, always with whole graphs on, and a launch of one that was not noted switches them
 * off for good, in CUPTI's callback before the launch. They are switched on by the first instantiation
 * only: before it no graph is known, and other threads may be inside launches that no callback saw
 * begin. Nodes are timed once in a while by having whole graphs off for a launch that begins while no
 * other is under way, and until none is: where they changed inside launches of another thread, one
 * program of six crashed (tests/gpu/test_graphs_gpu.py).
 *
 * All of it is the process's. CUPTI calls on any thread, with Python's lock or without; the lock here
 * is held while CUPTI switches its records, which asks for no buffer, so for no lock of Python's. */

#include "_fastpath.h"
#include <pthread.h>

typedef int (*Switch)(uint32_t kind); /* cuptiActivityEnable, cuptiActivityDisable */
enum { GRAPH_KIND = 51 };             /* CUPTI_ACTIVITY_KIND_GRAPH_TRACE */

typedef struct {
    uintptr_t handle; /* of an instantiated graph; 0: none */
    uint64_t timed;   /* when its nodes were last, by CUPTI's clock; 0: never */
} Graph;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Switch enable, disable;
static Graph *graphs; /* a hash table, at most half full */
static size_t slots, count;
static int64_t period = -1; /* between two launches whose nodes are timed, ns; 0: none is; -1: all */
static int is_whole;        /* whether CUPTI's records of whole graphs are on now */
static int instantiating;   /* calls that are under way, of those that began since `times_begun` */
static int launching;       /* launches of known graphs that are under way, of those since then */
static int met_unknown;
static uint32_t times_begun; /* how often what was known of graphs was forgotten */
static __thread struct {
    uint32_t correlation, begun;
} under_way; /* this thread's call that has to be ended: an instantiation, or a launch */

static Graph *
slot_of(Graph *table, size_t size, uintptr_t handle)
{
    size_t slot = (size_t)((uint64_t)handle * 0x9E3779B97F4A7C15u >> 20) & (size - 1);
    while (table[slot].handle != 0 && table[slot].handle != handle)
        slot = (slot + 1) & (size - 1);
    return &table[slot];
}

static Graph *
find(uintptr_t handle)
{
    Graph *graph = slots == 0 ? NULL : slot_of(graphs, slots, handle);
    return graph == NULL || graph->handle == 0 ? NULL : graph;
}

/* Note a graph, or one that has the handle of one that is gone; without memory it stays unknown. */
static void
add(uintptr_t handle)
{
    if (2 * (count + 1) > slots) {
        size_t size = slots == 0 ? 64 : 2 * slots;
        Graph *larger = calloc(size, sizeof(Graph));
        if (larger == NULL)
            return;
        for (size_t slot = 0; slot < slots; slot++)
            if (graphs[slot].handle != 0)
                *slot_of(larger, size, graphs[slot].handle) = graphs[slot];
        free(graphs);
        graphs = larger;
        slots = size;
    }
    Graph *graph = slot_of(graphs, slots, handle);
    count += graph->handle == 0;
    *graph = (Graph){handle, 0};
}

static void
set_whole(int whole)
{
    if (whole != is_whole && (whole ? enable : disable)(GRAPH_KIND) == 0)
        is_whole = whole;
}

static void
stop_recording_whole(void)
{
    set_whole(0);
    __atomic_store_n(&period, -1, __ATOMIC_RELAXED);
    __atomic_store_n(&met_unknown, 1, __ATOMIC_RELAXED);
}

void
graph_call_is_lost(void)
{
    if (__atomic_load_n(&period, __ATOMIC_RELAXED) < 0)
        return;
    pthread_mutex_lock(&lock);
    if (period >= 0)
        stop_recording_whole();
    pthread_mutex_unlock(&lock);
}

void
graph_call_begins(uint8_t role, const void *arguments, uint32_t correlation, uint64_t now)
{
    if (__atomic_load_n(&period, __ATOMIC_RELAXED) < 0 || arguments == NULL)
        return;
    pthread_mutex_lock(&lock);
    if (period >= 0 && !(role & LAUNCHES_GRAPH)) {
        if (launching == 0)
            set_whole(1);
        if (is_whole) { /* else it stays unknown */
            instantiating++;
            under_way.correlation = correlation;
            under_way.begun = times_begun;
        }
    } else if (period >= 0) {
        uintptr_t handle;
        memcpy(&handle, arguments, sizeof(handle));
        Graph *graph = find(handle);
        if (graph == NULL)
            stop_recording_whole();
        else {
            int is_alone = launching++ == 0 && instantiating == 0;
            under_way.correlation = correlation;
            under_way.begun = times_begun;
            if (is_alone && !(role & INSTANTIATES_GRAPH) && period > 0 &&
                (graph->timed == 0 || now >= graph->timed + (uint64_t)period)) {
                set_whole(0);
                graph->timed = now;
            }
        }
    }
    pthread_mutex_unlock(&lock);
}

void
graph_call_ends(uint8_t role, const void *arguments, uint32_t correlation, uint32_t returned)
{
    if (under_way.correlation != correlation)
        return;
    under_way.correlation = 0;
    pthread_mutex_lock(&lock);
    if (under_way.begun == times_begun && !(role & LAUNCHES_GRAPH)) {
        const uintptr_t *into;
        instantiating--;
        memcpy(&into, arguments, sizeof(into));
        if (returned == 0 && into != NULL && period >= 0)
            add(*into);
    } else if (under_way.begun == times_begun && --launching == 0 && period >= 0)
        set_whole(1);
    pthread_mutex_unlock(&lock);
}

/* serve_graphs(addresses of cuptiActivityEnable and of cuptiActivityDisable) */
static PyObject *
serve_graphs(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *on, *off;
    if (!PyArg_ParseTuple(args, "OO:serve_graphs", &on, &off))
        return NULL;
    void *on_at = PyLong_AsVoidPtr(on), *off_at = PyLong_AsVoidPtr(off);
    if (PyErr_Occurred())
        return NULL;
    enable = (Switch)(uintptr_t)on_at;
    disable = (Switch)(uintptr_t)off_at;
    Py_RETURN_NONE;
}

/* record_graphs(ns between two launches of a graph whose nodes are timed; 0: none is; -1: all are).
 * What was known of graphs is forgotten with -1: until then an unknown graph that was met counts. */
static PyObject *
record_graphs(PyObject *Py_UNUSED(module), PyObject *ns)
{
    long long wanted = PyLong_AsLongLong(ns);
    if (wanted == -1 && PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&lock);
    if (wanted < 0) {
        if (enable != NULL)
            set_whole(0);
        free(graphs);
        graphs = NULL;
        slots = count = 0;
        times_begun++;
        instantiating = launching = 0;
        __atomic_store_n(&met_unknown, 0, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&period, enable == NULL || met_unknown ? -1 : wanted, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* met_unknown_graph() -> whether a graph was launched that was instantiated before */
static PyObject *
met_unknown_graph(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(__atomic_load_n(&met_unknown, __ATOMIC_RELAXED));
}

static PyMethodDef functions[] = {
    {"serve_graphs", serve_graphs, METH_VARARGS, NULL},
    {"record_graphs", record_graphs, METH_O, NULL},
    {"met_unknown_graph", met_unknown_graph, METH_NOARGS, NULL},
    {NULL},
};

ADD_FUNCTIONS(add_graphs)
