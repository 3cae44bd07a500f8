/* gpuscope._fastpath, optional: what runs at every launch, in C. Guards (_guards.c), ranges
 * (_ranges.c), matrix products (_products.c; _operands.c: those known by their operands), events
 * (_events.c), and noting that something was launched (_launches.c), and where (_sites.c).
 *
 * What is rare stays in Python: a guard under an event loop or one that is left out of order goes to
 * the methods `_enter` and `_exit` of its class; a range that is a row of a recording to
 * `_begin_rows` and `_end_rows`; a product whose like was not checked before, or that is recorded,
 * captured, or refused by cuBLAS, to Python, which does it from the start.
 *
 * Addresses that Python serves are called as they are, as ctypes would. Whatever else Python code
 * passes, sets or deletes raises an error, or is left to Python's part. */

#include "_fastpath.h"
#include <pthread.h>

unsigned forks_of_process;

static void
note_child(void)
{
    forks_of_process++;
}

static void
watch_forks(void)
{
    pthread_atfork(NULL, NULL, note_child);
}

PyObject *
stateful_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    State *state = state_of_type(type);
    Stateful *self = state == NULL ? NULL : (Stateful *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->state = state;
    return (PyObject *)self;
}

void
plain_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

int
keep(State *state, PyObject *object)
{
    return object == NULL ? -1 : PyList_Append(state->kept, object);
}

int
add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **at)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int failed = type == NULL || keep(state_of(module), type) < 0 ||
                 PyModule_AddType(module, (PyTypeObject *)type) < 0;
    Py_XDECREF(type); /* kept */
    if (!failed && at != NULL)
        *at = (PyTypeObject *)type;
    return failed ? -1 : 0;
}

static int
begin(PyObject *module)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    State *state = state_of(module);
    const struct {
        PyObject **at;
        const char *text;
    } names[] = {
#define ENTRY(name, text) {&state->s.name, text},
        NAMES(ENTRY)
#undef ENTRY
    };
    pthread_once(&once, watch_forks);
    state->kept = PyList_New(0);
    if (state->kept == NULL)
        return -1;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        PyObject *name = PyUnicode_InternFromString(names[i].text);
        int kept = keep(state, name);
        Py_XDECREF(name);
        if (kept < 0)
            return -1;
        *names[i].at = name;
    }
    PyObject *source_crc = PyLong_FromUnsignedLong(SOURCE_CRC);
    int added = source_crc == NULL ? -1 : PyModule_AddObjectRef(module, "source_crc", source_crc);
    Py_XDECREF(source_crc);
    return added;
}

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = state_of(module);
    Py_VISIT(state->kept);
    Py_VISIT(state->cupy);
    Py_VISIT(state->cupys_current);
    return known_traverse(state->known, visit, arg);
}

/* Let go of everything: to what is left of the module, nothing was ever served. */
static int
clear(PyObject *module)
{
    State *state = state_of(module), before = *state;
    memset(state, 0, sizeof(*state));
    known_free(before.known);
    Py_XDECREF(before.cupy);
    Py_XDECREF(before.cupys_current);
    Py_XDECREF(before.kept);
    return 0;
}

static void
free_module(void *module)
{
    clear(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, begin},        {Py_mod_exec, add_guards},   {Py_mod_exec, add_ranges},
    {Py_mod_exec, add_products}, {Py_mod_exec, add_operands}, {Py_mod_exec, add_events},
    {Py_mod_exec, add_launches}, {Py_mod_exec, add_graphs},   {Py_mod_exec, add_sites},
    {Py_mod_exec, add_handovers}, {Py_mod_exec, add_stacks},  {Py_mod_exec, add_passes},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

struct PyModuleDef fastpath_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gpuscope._fastpath",
    .m_size = sizeof(State),
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = free_module,
};

PyMODINIT_FUNC
PyInit__fastpath(void)
{
    return PyModuleDef_Init(&fastpath_definition);
}
