/* What runs at every launch, in C: guards and ranges. gpuscope._fastpath, optional.
 *
 * What is rare stays in Python: a guard in a task, one that binds, one that is watched or is
 * left out of order goes to the methods `_enter` and `_exit` of its class; a range that is a row
 * of a recording to `_begin_rows` and `_end_rows`.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

/* -- what caller.py gives -------------------------------------------------------------- */
static PyObject *slot;             /* namespace of the process's slot: `watchers` is read each time */
static PyObject *of_thread;        /* threading.local whose `guard` is the innermost one */
static PyObject *accepted;         /* set of types that can be selected */
static PyObject *never, *left;     /* what `_before` holds of a guard not entered yet, or left */
static PyObject *get_running_loop; /* asyncio's, in C */

/* -- what annotate.py gives ------------------------------------------------------------ */
static PyObject *nvtx_names;     /* namespace of record/nvtx.py: `heard` is read each time */
static PyObject *recorder_names; /* namespace of record/recorder.py: `running` */
static PyObject *annotate_names; /* annotate.py's own: `range_of` */

static PyObject *s_guard, *s_watchers, *s_dict, *s_enter, *s_exit, *s_check;
static PyObject *s_range_of, *s_heard, *s_running, *s_begin_rows, *s_end_rows;

/* The namespace of this thread in `of_thread`: kept with the thread's state, which ends with it. */
static PyObject *
names_of_thread(void) /* borrowed */
{
    PyObject *state = PyThreadState_GetDict();
    if (state == NULL)
        return PyErr_NoMemory();
    PyObject *names = PyDict_GetItemWithError(state, of_thread);
    if (names == NULL && !PyErr_Occurred()) {
        PyObject *made = PyObject_GetAttr(of_thread, s_dict);
        if (made != NULL && PyDict_SetItem(state, of_thread, made) == 0)
            names = made;
        Py_XDECREF(made);
    }
    return names;
}

/* 1: a namespace's variable is true; 0: it is not, or is absent; -1: error. */
static int
is_set(PyObject *names, PyObject *variable)
{
    PyObject *value = PyDict_GetItemWithError(names, variable);
    if (value == NULL)
        return PyErr_Occurred() ? -1 : 0;
    return PyObject_IsTrue(value);
}

/* 1: an event loop runs on this thread, or guards are watched; 0: not; -1: error. */
static int
needs_care(void)
{
    PyObject *loop = PyObject_CallNoArgs(get_running_loop);
    if (loop == NULL)
        return -1;
    int care = loop != Py_None;
    Py_DECREF(loop);
    return care ? 1 : is_set(slot, s_watchers);
}

/* -- Guard ------------------------------------------------------------------------------ */
typedef struct {
    PyObject_HEAD
    PyObject *stream;
    PyObject *before;
    PyObject *bound;
    PyObject *unused;
    PyObject *task;
    PyObject *token;
} Guard;

static PyMemberDef guard_members[] = {
    {"stream", T_OBJECT_EX, offsetof(Guard, stream), 0, NULL},
    {"_before", T_OBJECT_EX, offsetof(Guard, before), 0, NULL},
    {"_bound", T_OBJECT_EX, offsetof(Guard, bound), 0, NULL},
    {"_unused", T_OBJECT_EX, offsetof(Guard, unused), 0, NULL},
    {"task", T_OBJECT_EX, offsetof(Guard, task), 0, NULL},
    {"_token", T_OBJECT_EX, offsetof(Guard, token), 0, NULL},
    {NULL},
};

static int
guard_traverse(Guard *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->stream);
    Py_VISIT(self->before);
    Py_VISIT(self->bound);
    Py_VISIT(self->unused);
    Py_VISIT(self->task);
    Py_VISIT(self->token);
    return 0;
}

static int
guard_clear(Guard *self)
{
    Py_CLEAR(self->stream);
    Py_CLEAR(self->before);
    Py_CLEAR(self->bound);
    Py_CLEAR(self->unused);
    Py_CLEAR(self->task);
    Py_CLEAR(self->token);
    return 0;
}

static void
guard_dealloc(Guard *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    guard_clear(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static int
guard_init(Guard *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", "bind", NULL};
    PyObject *stream = NULL, *bind = Py_False;
    if (kwargs == NULL && PyTuple_GET_SIZE(args) == 1)
        stream = PyTuple_GET_ITEM(args, 0);
    else if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O:CallerStreamGuard", names, &stream,
                                          &bind))
        return -1;
    if (accepted == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "guards are not served yet: import gpuscope");
        return -1;
    }
    int known = PySet_Contains(accepted, (PyObject *)Py_TYPE(stream));
    if (known < 0)
        return -1;
    if (!known) {
        PyObject *checked = PyObject_CallMethodOneArg((PyObject *)self, s_check, stream);
        if (checked == NULL)
            return -1;
        Py_DECREF(checked);
    }
    Py_XSETREF(self->stream, Py_NewRef(stream));
    Py_XSETREF(self->before, Py_NewRef(never));
    Py_XSETREF(self->bound, Py_NewRef(bind));
    Py_XSETREF(self->unused, Py_NewRef(Py_True));
    return 0;
}

static PyObject *
guard_enter(Guard *self, PyObject *Py_UNUSED(ignored))
{
    if (self->unused != NULL && self->bound == Py_False) {
        int care = needs_care();
        PyObject *names = care ? NULL : names_of_thread();
        if (care < 0 || (!care && names == NULL))
            return NULL;
        if (!care && self->unused != NULL) {
            PyObject *before = PyDict_GetItemWithError(names, s_guard);
            if (before == NULL) {
                if (PyErr_Occurred())
                    return NULL;
                before = Py_None;
            }
            Py_INCREF(before);
            if (PyDict_SetItem(names, s_guard, (PyObject *)self) < 0) {
                Py_DECREF(before);
                return NULL;
            }
            Py_CLEAR(self->unused);
            Py_XSETREF(self->before, before);
            return Py_NewRef(self->stream);
        }
    }
    return PyObject_CallMethodNoArgs((PyObject *)self, s_enter);
}

static PyObject *
guard_exit(Guard *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count))
{
    if (self->bound == Py_False && self->before != NULL) {
        int care = needs_care();
        PyObject *names = care ? NULL : names_of_thread();
        if (care < 0 || (!care && names == NULL))
            return NULL;
        if (!care && PyDict_GetItemWithError(names, s_guard) == (PyObject *)self) {
            if (PyDict_SetItem(names, s_guard, self->before) < 0)
                return NULL;
            Py_XSETREF(self->before, Py_NewRef(left));
            Py_RETURN_NONE;
        }
        if (PyErr_Occurred())
            return NULL;
    }
    return PyObject_CallMethodNoArgs((PyObject *)self, s_exit);
}

static PyMethodDef guard_methods[] = {
    {"__enter__", (PyCFunction)guard_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))guard_exit, METH_FASTCALL, NULL},
    {NULL},
};

static PyType_Slot guard_slots[] = {
    {Py_tp_doc, "Guard(stream, *, bind=False)\n--\n\nWhat a CallerStreamGuard does at each launch."},
    {Py_tp_init, guard_init},
    {Py_tp_dealloc, guard_dealloc},
    {Py_tp_traverse, guard_traverse},
    {Py_tp_clear, guard_clear},
    {Py_tp_methods, guard_methods},
    {Py_tp_members, guard_members},
    {0, NULL},
};

static PyType_Spec guard_spec = {
    .name = "gpuscope._fastpath.Guard",
    .basicsize = sizeof(Guard),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = guard_slots,
};

/* -- Range ------------------------------------------------------------------------------ */
typedef struct {
    PyObject_HEAD
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
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    range_clear(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static int
range_init(Range *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", NULL};
    PyObject *name;
    if (kwargs == NULL && PyTuple_GET_SIZE(args) == 1)
        name = PyTuple_GET_ITEM(args, 0);
    else if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:annotate", names, &name))
        return -1;
    PyObject *range_of =
        annotate_names == NULL ? NULL : PyDict_GetItemWithError(annotate_names, s_range_of);
    if (range_of == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_RuntimeError, "ranges are not served: import gpuscope");
        return -1;
    }
    PyObject *found = PyUnicode_CheckExact(name)
                          ? PyObject_CallOneArg(range_of, name)
                          : PyObject_CallMethodOneArg((PyObject *)self, s_check, name);
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
    int heard = is_set(nvtx_names, s_heard);
    if (heard < 0)
        return NULL;
    if (heard) {
        PyObject *pushed = call_part(self, 2, 1);
        if (pushed == NULL)
            return NULL;
        Py_DECREF(pushed);
        self->pushed++;
    }
    int running = is_set(recorder_names, s_running);
    if (running > 0) {
        PyObject *begun = PyObject_CallMethodNoArgs((PyObject *)self, s_begin_rows);
        Py_XDECREF(begun);
        running = begun == NULL ? -1 : 0;
    }
    return running < 0 ? NULL : Py_NewRef((PyObject *)self);
}

static PyObject *
range_exit(Range *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count))
{
    int open = self->open == NULL ? 0 : PyObject_IsTrue(self->open);
    if (open < 0)
        return NULL;
    if (open) {
        PyObject *ended = PyObject_CallMethodNoArgs((PyObject *)self, s_end_rows);
        if (ended == NULL)
            return NULL;
        Py_DECREF(ended);
    }
    if (self->pushed) {
        self->pushed--;
        PyObject *popped = call_part(self, 3, -1);
        if (popped == NULL)
            return NULL;
        Py_DECREF(popped);
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
    {Py_tp_init, range_init},
    {Py_tp_dealloc, range_dealloc},
    {Py_tp_traverse, range_traverse},
    {Py_tp_clear, range_clear},
    {Py_tp_methods, range_methods},
    {Py_tp_members, range_members},
    {0, NULL},
};

static PyType_Spec range_spec = {
    .name = "gpuscope._fastpath.Range",
    .basicsize = sizeof(Range),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = range_slots,
};

/* -- the module --------------------------------------------------------------------------- */
static PyObject *
serve_guards(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *of_process, *loop;
    if (!PyArg_ParseTuple(args, "OO:serve_guards", &of_process, &loop))
        return NULL;
    const struct {
        PyObject **at;
        const char *name;
    } parts[] = {
        {&slot, "__dict__"}, {&of_thread, "of_thread"}, {&accepted, "accepted"},
        {&never, "never"},   {&left, "left"},
    };
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        PyObject *part = PyObject_GetAttrString(of_process, parts[i].name);
        if (part == NULL)
            return NULL;
        Py_XSETREF(*parts[i].at, part);
    }
    Py_XSETREF(get_running_loop, Py_NewRef(loop));
    Py_RETURN_NONE;
}

static PyObject *
serve_ranges(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *nvtx, *recorder, *own;
    if (!PyArg_ParseTuple(args, "O!O!O!:serve_ranges", &PyDict_Type, &nvtx, &PyDict_Type, &recorder,
                          &PyDict_Type, &own))
        return NULL;
    Py_XSETREF(nvtx_names, Py_NewRef(nvtx));
    Py_XSETREF(recorder_names, Py_NewRef(recorder));
    Py_XSETREF(annotate_names, Py_NewRef(own));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"serve_guards", serve_guards, METH_VARARGS, NULL},
    {"serve_ranges", serve_ranges, METH_VARARGS, NULL},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "gpuscope._fastpath", NULL, -1, methods,
};

PyMODINIT_FUNC
PyInit__fastpath(void)
{
    const struct {
        PyObject **at;
        const char *text;
    } texts[] = {
        {&s_guard, "guard"},   {&s_watchers, "watchers"}, {&s_dict, "__dict__"},
        {&s_enter, "_enter"}, {&s_exit, "_exit"},       {&s_check, "_check"},
        {&s_heard, "heard"},  {&s_running, "running"},  {&s_begin_rows, "_begin_rows"},
        {&s_end_rows, "_end_rows"}, {&s_range_of, "range_of"},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        if ((*texts[i].at = PyUnicode_InternFromString(texts[i].text)) == NULL)
            return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    PyObject *source_crc = PyLong_FromUnsignedLong(SOURCE_CRC);
    if (source_crc == NULL || PyModule_AddObjectRef(module, "source_crc", source_crc) < 0) {
        Py_XDECREF(source_crc);
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(source_crc);
    PyType_Spec *specs[] = {&guard_spec, &range_spec};
    for (size_t i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
        PyObject *type = PyType_FromSpec(specs[i]);
        if (type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0) {
            Py_XDECREF(type);
            Py_DECREF(module);
            return NULL;
        }
        Py_DECREF(type);
    }
    return module;
}
