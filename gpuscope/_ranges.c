/* Ranges: what annotate does at each range. */

#include "_fastpath.h"

typedef struct {
    Stateful base;
    PyObject *range; /* (text, NVTX attributes, push, pop), of range_of */
    PyObject *open;  /* rows of recordings that are open */
    int pushed;      /* NVTX ranges that are open */
} Range;

static PyMemberDef range_members[] = {
    {"_range", T_OBJECT_EX, offsetof(Range, range), READONLY, NULL},
    {"_open", T_OBJECT, offsetof(Range, open), 0, NULL},
    {NULL},
};

static int
is_served(const State *state)
{
    if (state->nvtx_names == NULL)
        PyErr_SetString(PyExc_RuntimeError, "ranges are not served: import gpuscope");
    return state->nvtx_names != NULL;
}

static int
range_traverse(Range *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->range);
    Py_VISIT(self->open);
    return 0;
}

static int
range_clear(Range *self)
{
    Py_CLEAR(self->range);
    Py_CLEAR(self->open);
    return 0;
}

static void
range_dealloc(Range *self)
{
    PyObject_GC_UnTrack(self);
    Py_TRASHCAN_BEGIN(self, range_dealloc)
    range_clear(self);
    plain_dealloc((PyObject *)self);
    Py_TRASHCAN_END
}

/* What a name needs to become an NVTX range; a new reference. */
static PyObject *
range_of(State *state, Range *self, PyObject *name)
{
    if (!PyUnicode_CheckExact(name))
        return PyObject_CallMethodOneArg((PyObject *)self, state->s.check, name);
    PyObject *function = PyDict_GetItemWithError(state->annotate_names, state->s.range_of);
    if (function == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_RuntimeError, "gpuscope.record.annotate has no range_of");
        return NULL;
    }
    Py_INCREF(function);
    PyObject *found = PyObject_CallOneArg(function, name);
    Py_DECREF(function);
    return found;
}

static int
range_init(Range *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", NULL};
    if (!is_served(self->base.state))
        return -1;
    PyObject *name;
    if (kwargs == NULL && PyTuple_GET_SIZE(args) == 1)
        name = PyTuple_GET_ITEM(args, 0);
    else if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:annotate", names, &name))
        return -1;
    PyObject *found = range_of(self->base.state, self, name);
    if (found == NULL)
        return -1;
    if (!PyTuple_Check(found) || PyTuple_GET_SIZE(found) != 4) {
        PyErr_SetString(PyExc_TypeError, "range_of gives a text, attributes, push and pop");
        Py_DECREF(found);
        return -1;
    }
    Py_XSETREF(self->range, found);
    Py_CLEAR(self->open);
    self->pushed = 0;
    return 0;
}

/* What calling a part of the range gives; the range is kept meanwhile, whoever replaces it. */
static PyObject *
call_part(Range *self, Py_ssize_t function, Py_ssize_t argument)
{
    if (self->range == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this range was never given a name");
        return NULL;
    }
    PyObject *range = Py_NewRef(self->range);
    PyObject *called = PyTuple_GET_ITEM(range, function);
    PyObject *answer = argument < 0 ? PyObject_CallNoArgs(called)
                                    : PyObject_CallOneArg(called, PyTuple_GET_ITEM(range, argument));
    Py_DECREF(range);
    return answer;
}

static PyObject *
range_enter(Range *self, PyObject *Py_UNUSED(ignored))
{
    State *state = self->base.state;
    int heard = !is_served(state) ? -1 : is_set(state->nvtx_names, state->s.heard);
    if (heard < 0)
        return NULL;
    if (heard) {
        if (done(call_part(self, 2, 1)) < 0)
            return NULL;
        self->pushed++;
    }
    int running = is_set(state->ranges_names, state->s.running);
    if (running > 0)
        running = done(PyObject_CallMethodNoArgs((PyObject *)self, state->s.begin_rows));
    return running < 0 ? NULL : Py_NewRef((PyObject *)self);
}

/* 1: rows are open; 0: none; -1: error. */
static int
has_open_rows(Range *self)
{
    if (self->open == NULL || self->open == Py_None)
        return 0;
    PyObject *open = Py_NewRef(self->open);
    int truth = PyObject_IsTrue(open);
    Py_DECREF(open);
    return truth;
}

static PyObject *
range_exit(Range *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count))
{
    int open = has_open_rows(self);
    if (open < 0)
        return NULL;
    if (open) {
        PyObject *name = is_served(self->base.state) ? self->base.state->s.end_rows : NULL;
        if (name == NULL || done(PyObject_CallMethodNoArgs((PyObject *)self, name)) < 0)
            return NULL;
    }
    if (self->pushed) {
        self->pushed--;
        if (done(call_part(self, 3, -1)) < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef range_methods[] = {
    {"__enter__", (PyCFunction)range_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))range_exit, METH_FASTCALL, NULL},
    {NULL},
};

static PyType_Slot range_slots[] = {
    {Py_tp_doc, "Range(name)\n--\n\nWhat annotate does at each range."},
    {Py_tp_new, stateful_new},
    {Py_tp_init, range_init},
    {Py_tp_dealloc, range_dealloc},
    {Py_tp_traverse, range_traverse},
    {Py_tp_clear, range_clear},
    {Py_tp_methods, range_methods},
    {Py_tp_members, range_members},
    {0, NULL},
};

static PyType_Spec range_spec = TYPE_SPEC("Range", Range, range_slots, Py_TPFLAGS_BASETYPE);

/* serve_ranges(namespaces of record/nvtx.py, record/ranges.py and record/annotate.py) */
static PyObject *
serve_ranges(PyObject *module, PyObject *args)
{
    State *state = state_of(module);
    PyObject *nvtx, *ranges, *own;
    if (!PyArg_ParseTuple(args, "O!O!O!:serve_ranges", &PyDict_Type, &nvtx, &PyDict_Type, &ranges,
                          &PyDict_Type, &own) ||
        keep(state, args) < 0)
        return NULL;
    state->nvtx_names = nvtx;
    state->ranges_names = ranges;
    state->annotate_names = own;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"serve_ranges", serve_ranges, METH_VARARGS, NULL},
    {NULL},
};

int
add_ranges(PyObject *module)
{
    return add_type(module, &range_spec, NULL) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
