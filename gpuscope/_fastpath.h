/* What the units of gpuscope._fastpath share: the state of a module, of which each interpreter has
 * one of its own.
 *
 * Nothing else can be changed, but for what is the process's: how often it was forked (_fastpath.c),
 * the launches that were noted (_launches.c), their sites (_sites.c) and graphs (_graphs.c), code
 * objects (_codes.c), who woke whom up (_handover.c), and sampled stacks (_stacks.c). */

#ifndef GPUSCOPE_FASTPATH_H
#define GPUSCOPE_FASTPATH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

/* Names that are looked up: field of `Names`, text. */
#define NAMES(X)                                                                                   \
    X(guard, "guard") X(watchers, "watchers") X(dict, "__dict__") X(enter, "_enter")               \
    X(exit, "_exit") X(check, "_check") X(tell_entered, "_tell_entered")                           \
    X(tell_left, "_tell_left") X(cupy, "cupy") X(torch, "torch") X(cuda, "cuda")                   \
    X(stream, "stream") X(use, "use") X(cupy_stream, "cupy_stream")                                \
    X(get_current_stream, "get_current_stream") X(cupys_name, "CuPy") X(bind, "bind")              \
    X(range_of, "range_of") X(heard, "heard") X(running, "running")                                \
    X(begin_rows, "_begin_rows") X(end_rows, "_end_rows") X(shape, "shape")                        \
    X(strides, "strides") X(dtype, "dtype") X(data, "data") X(ptr, "ptr")                          \
    X(device_id, "device_id") X(mem, "mem") X(tags, "tags") X(lane, "lane")                        \
    X(closed, "closed") X(graph, "graph") X(observers, "observers") X(native, "native")            \
    X(quick, "quick") X(hold, "hold") X(handle, "handle")

typedef struct {
#define FIELD(name, text) PyObject *name;
    NAMES(FIELD)
#undef FIELD
} Names;

/* Functions of cuBLAS and of the CUDA driver. */
typedef int (*SetStream)(void *handle, void *stream);
typedef int (*SetWorkspace)(void *handle, void *at, size_t nbytes);
typedef int (*SetSmCount)(void *handle, int count);
typedef int (*GemmEx)(void *handle, int transpose_a, int transpose_b, int m, int n, int k,
                      const void *alpha, const void *a, int type_a, int lda, const void *b,
                      int type_b, int ldb, const void *beta, void *c, int type_c, int ldc,
                      int compute, int algorithm);
typedef int (*GetCurrentContext)(void **context);
typedef int (*EventRecord)(void *event, void *stream);

typedef struct Known Known; /* see _operands.c */

typedef struct {
    /* What was ever served, the types and the names: kept as long as the module, so that all that
     * follows is borrowed of it, also while it is replaced. */
    PyObject *kept;
    Names s;
    PyTypeObject *guard_type, *product_type, *workspace_type, *blas_handle_type, *lane_type;

    /* of caller.py; NULL before it serves */
    PyObject *slot;             /* namespace of the slot: `watchers` is read each time */
    PyObject *of_thread;        /* threading.local whose `guard` is the innermost one */
    PyObject *accepted;         /* set of types that can be selected */
    PyObject *never, *left;     /* what `_before` holds of a guard not entered yet, or left */
    PyObject *get_running_loop; /* asyncio's, in C */
    PyObject *bind;             /* stream -> list of what was bound */
    PyTypeObject *bound_type;   /* of these: (library, current, given, restore) */
    PyObject *cupy, *cupys_current; /* CuPy and its get_current_stream, once looked up; not kept */

    /* of annotate.py; NULL before it serves */
    PyObject *nvtx_names;     /* namespace of record/nvtx.py: `heard` is read each time */
    PyObject *ranges_names; /* namespace of record/ranges.py: `running` */
    PyObject *annotate_names; /* annotate.py's own: `range_of` */

    /* of blas.py; NULL before it serves */
    SetStream set_stream;
    SetWorkspace set_workspace;
    SetSmCount set_sm_count;
    GemmEx gemm_ex;
    GetCurrentContext get_current_context;
    PyTypeObject *stream_type;
    Known *known;
    unsigned long long workspaces_made;

    /* of driver.py; NULL before it serves */
    EventRecord event_record;
    PyTypeObject *event_type, *queue_type; /* cuda.core's Event and Stream */

    unsigned forks; /* of the process, when products or events were served last */
} State;

extern struct PyModuleDef fastpath_definition;
extern unsigned forks_of_process;

/* The units, as slots of the module: each adds its types and functions. */
int add_guards(PyObject *module);
int add_ranges(PyObject *module);
int add_products(PyObject *module);
int add_operands(PyObject *module);
int add_events(PyObject *module);
int add_launches(PyObject *module);
int add_graphs(PyObject *module);
int add_sites(PyObject *module);
int add_handovers(PyObject *module);
int add_stacks(PyObject *module);
int add_passes(PyObject *module);

/* The number of the lines of Python that the calling thread is in; 0: none, or nobody asks. Any
 * thread, with the global lock or without. */
uint32_t site_of_call(void);

/* What a call that CUPTI tells of does with graphs: it instantiates one, launches one, or, both, uploads
 * one. The other six bits of a role are in _launches.c; library.py sets them all. */
enum { INSTANTIATES_GRAPH = 64, LAUNCHES_GRAPH = 128, OF_GRAPH = 192 };

/* Take a call with one of these bits when it begins, at a time of CUPTI's clock, and when it ends. */
void graph_call_begins(uint8_t role, const void *arguments, uint32_t correlation, uint64_t now);
void graph_call_is_lost(void); /* instead, where it cannot be noted */
void graph_call_ends(uint8_t role, const void *arguments, uint32_t correlation, uint32_t returned);

/* A unit that adds nothing but its `functions`. */
#define ADD_FUNCTIONS(add)                                                                         \
    int add(PyObject *module) { return PyModule_AddFunctions(module, functions); }

/* A type of the module, which Python cannot change. */
#define TYPE_SPEC(type, object, its_slots, more)                                                   \
    {.name = "gpuscope._fastpath." type, .basicsize = sizeof(object), .slots = its_slots,          \
     .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | (more)}

/* Add a type to the module, and tell where it is if somebody asks; -1: error. */
int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **at);

/* Keep what was served; -1: error, which also NULL is. */
int keep(State *state, PyObject *object);

/* The stream that the innermost guard selected outside any event loop, else NULL; a new reference.
 * It may leave an error. */
PyObject *guarded_stream(State *state);

int known_traverse(Known *known, visitproc visit, void *arg);
void known_free(Known *known);

/* An object that begins with the state of its type's module, as those of `Stateful` do. */
typedef struct {
    PyObject_HEAD
    State *state; /* of the module, which the type keeps */
} Stateful;
PyObject *stateful_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);

/* Free an object of a type of ours that has nothing more to let go of. */
void plain_dealloc(PyObject *self);

static inline State *
state_of(PyObject *module)
{
    return PyModule_GetState(module);
}

/* Of the module that a type of ours, or one below it, was made in; NULL: error. */
static inline State *
state_of_type(PyTypeObject *type)
{
    PyObject *module = PyType_GetModuleByDef(type, &fastpath_definition);
    return module == NULL ? NULL : PyModule_GetState(module);
}

/* Of a call whose answer does not matter: 0; -1: error. */
static inline int
done(PyObject *answer)
{
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

/* 1: this is the process that products and events were served in, not a child of it. */
static inline int
is_own_process(const State *state)
{
    return state->forks == forks_of_process;
}

/* 1: a namespace's variable is true; 0: it is not, or is absent; -1: error. */
static inline int
is_set(PyObject *names, PyObject *variable)
{
    PyObject *value = PyDict_GetItemWithError(names, variable);
    if (value == NULL)
        return PyErr_Occurred() ? -1 : 0;
    if (PyBool_Check(value) || PyLong_CheckExact(value) || PyTuple_CheckExact(value))
        return PyObject_IsTrue(value);
    Py_INCREF(value); /* asking others may run Python, which may replace it */
    int truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

#endif
