/* What runs at every launch, in C: guards, ranges, matrix products, and noting that it was made.
 * gpuscope._fastpath, optional.
 *
 * What is rare stays in Python: a guard under an event loop or one that is left out of order goes to
 * the methods `_enter` and `_exit` of its class; a range that is a row
 * of a recording to `_begin_rows` and `_end_rows`; a product whose like was not checked before, or
 * that is recorded, captured, or refused by cuBLAS, to Python, which does it from the start.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

/* -- what caller.py gives -------------------------------------------------------------- */
static PyObject *slot;             /* namespace of the process's slot: `watchers` is read each time */
static PyObject *of_thread;        /* threading.local whose `guard` is the innermost one */
static PyObject *accepted;         /* set of types that can be selected */
static PyObject *never, *left;     /* what `_before` holds of a guard not entered yet, or left */
static PyObject *get_running_loop; /* asyncio's, in C */
static PyObject *bind;             /* stream -> list of what was bound */
static PyTypeObject *bound_type;   /* of these: (library, current, given, restore) */

/* -- what annotate.py gives ------------------------------------------------------------ */
static PyObject *nvtx_names;     /* namespace of record/nvtx.py: `heard` is read each time */
static PyObject *recorder_names; /* namespace of record/recorder.py: `running` */
static PyObject *annotate_names; /* annotate.py's own: `range_of` */

static PyObject *s_guard, *s_watchers, *s_dict, *s_enter, *s_exit, *s_check;
static PyObject *s_tell_entered, *s_tell_left, *s_cupy, *s_torch, *s_cuda, *s_stream, *s_use;
static PyObject *s_cupy_stream, *s_get_current_stream, *s_cupys_name, *s_bind, *s_handle;
static PyObject *s_shape, *s_strides, *s_dtype, *s_data, *s_ptr, *s_device_id, *s_mem;
static PyObject *s_tags, *s_lane, *s_closed, *s_graph, *s_observers, *s_native, *s_quick, *s_hold;
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

/* 1: an event loop runs on this thread; 0: not; -1: error. */
static int
has_loop(void)
{
    PyObject *loop = PyObject_CallNoArgs(get_running_loop);
    Py_XDECREF(loop);
    return loop == NULL ? -1 : loop != Py_None;
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
    if (PyTuple_GET_SIZE(args) == 1) { /* the usual ways, sooner */
        bind = kwargs == NULL ? Py_False : PyDict_GetItemWithError(kwargs, s_bind);
        if (bind != NULL && (kwargs == NULL || PyDict_GET_SIZE(kwargs) == 1))
            stream = PyTuple_GET_ITEM(args, 0);
        else
            bind = Py_False;
    }
    if (stream == NULL &&
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O:CallerStreamGuard", names, &stream, &bind))
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

/* What asks CuPy for its current stream, looked up once; a new reference. */
static PyObject *
cupys_current(PyObject *cupy)
{
    static PyObject *known, *function;
    if (cupy != known) {
        PyObject *cuda = PyObject_GetAttr(cupy, s_cuda);
        PyObject *module = cuda == NULL ? NULL : PyObject_GetAttr(cuda, s_stream);
        PyObject *found = module == NULL ? NULL : PyObject_GetAttr(module, s_get_current_stream);
        Py_XDECREF(cuda);
        Py_XDECREF(module);
        if (found == NULL)
            return NULL;
        Py_XSETREF(function, found);
        Py_XSETREF(known, Py_NewRef(cupy));
    }
    return Py_NewRef(function);
}

/* Bind a stream that CuPy knows already, where PyTorch is not imported; NULL without an error:
 * Python is to do it, which also says what is wrong. */
static PyObject *
bind_cupy_alone(PyObject *stream)
{
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *cupy = PyDict_GetItemWithError(modules, s_cupy);
    if (cupy == NULL || PyDict_GetItemWithError(modules, s_torch) != NULL)
        return NULL;
    PyObject *ours = PyObject_GetAttr(stream, s_cupy_stream);
    PyObject *current = ours == NULL || ours == Py_None ? NULL : cupys_current(cupy);
    PyObject *before = current == NULL ? NULL : PyObject_CallNoArgs(current);
    PyObject *restore = before == NULL ? NULL : PyObject_GetAttr(before, s_use);
    PyObject *one = restore == NULL ? NULL : bound_type->tp_alloc(bound_type, 4);
    PyObject *bound = one == NULL ? NULL : PyList_New(1);
    if (bound != NULL) {
        PyObject *parts[] = {s_cupys_name, current, ours, restore};
        for (Py_ssize_t i = 0; i < 4; i++)
            PyTuple_SET_ITEM(one, i, Py_NewRef(parts[i]));
        PyList_SET_ITEM(bound, 0, Py_NewRef(one));
        PyObject *used = PyObject_CallMethodNoArgs(ours, s_use);
        if (used == NULL)
            Py_CLEAR(bound);
        Py_XDECREF(used);
    }
    PyObject *rest[] = {ours, current, before, restore, one};
    for (size_t i = 0; i < sizeof(rest) / sizeof(*rest); i++)
        Py_XDECREF(rest[i]);
    PyErr_Clear();
    return bound;
}

/* 1: every library has the stream that it was given; 0: Python is to look closer; -1: error. */
static int
is_still_bound(PyObject *bound)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bound); i++) {
        PyObject *one = PyList_GET_ITEM(bound, i);
        if (!PyTuple_Check(one) || PyTuple_GET_SIZE(one) != 4)
            return 0;
        Py_INCREF(one);
        PyObject *now = PyObject_CallNoArgs(PyTuple_GET_ITEM(one, 1));
        int same = now == NULL ? -1 : PyObject_RichCompareBool(now, PyTuple_GET_ITEM(one, 2), Py_EQ);
        Py_XDECREF(now);
        Py_DECREF(one);
        if (same <= 0)
            return same;
    }
    return 1;
}

/* Give the libraries theirs back, the second also if the first refuses; -1: the first error. */
static int
unbind(PyObject *bound)
{
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bound); i++) {
        PyObject *restore = Py_NewRef(PyTuple_GET_ITEM(PyList_GET_ITEM(bound, i), 3));
        PyObject *restored = PyObject_CallNoArgs(restore);
        Py_DECREF(restore);
        Py_XDECREF(restored);
        if (restored == NULL && type == NULL)
            PyErr_Fetch(&type, &value, &traceback);
        else if (restored == NULL)
            PyErr_Clear();
    }
    if (type == NULL)
        return 0;
    PyErr_Restore(type, value, traceback);
    return -1;
}

/* Call a method that tells watchers, if there are any. */
static int
tell(Guard *self, PyObject *method)
{
    int watched = is_set(slot, s_watchers);
    if (watched <= 0)
        return watched;
    PyObject *told = PyObject_CallMethodNoArgs((PyObject *)self, method);
    Py_XDECREF(told);
    return told == NULL ? -1 : 0;
}

static PyObject *
guard_enter(Guard *self, PyObject *Py_UNUSED(ignored))
{
    int loop = self->unused == NULL ? 1 : has_loop();
    PyObject *names = loop ? NULL : names_of_thread();
    if (loop < 0 || (!loop && names == NULL))
        return NULL;
    if (loop || self->unused == NULL)
        return PyObject_CallMethodNoArgs((PyObject *)self, s_enter);
    Py_CLEAR(self->unused); /* of threads that enter at once, one succeeds */
    int binds = self->bound == Py_False ? 0 : PyObject_IsTrue(self->bound);
    if (binds) {
        PyObject *bound = binds < 0 ? NULL : bind_cupy_alone(self->stream);
        if (bound == NULL && binds > 0)
            bound = PyObject_CallOneArg(bind, self->stream);
        if (bound == NULL) {
            self->unused = Py_NewRef(Py_True);
            return NULL;
        }
        Py_XSETREF(self->bound, bound);
    }
    PyObject *before = PyDict_GetItemWithError(names, s_guard);
    if (before == NULL && PyErr_Occurred())
        return NULL;
    Py_XSETREF(self->before, Py_NewRef(before == NULL ? Py_None : before));
    if (PyDict_SetItem(names, s_guard, (PyObject *)self) < 0 || tell(self, s_tell_entered) < 0)
        return NULL;
    return Py_NewRef(self->stream);
}

static PyObject *
guard_exit(Guard *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count))
{
    int loop = self->before == NULL ? 1 : has_loop();
    PyObject *names = loop ? NULL : names_of_thread();
    if (loop < 0 || (!loop && names == NULL))
        return NULL;
    PyObject *bound = self->bound != NULL && PyList_CheckExact(self->bound) ? self->bound : NULL;
    int usual = !loop && PyDict_GetItemWithError(names, s_guard) == (PyObject *)self &&
                (bound != NULL || self->bound == Py_False);
    if (PyErr_Occurred())
        return NULL;
    Py_XINCREF(bound);
    if (usual && bound != NULL)
        usual = is_still_bound(bound);
    PyObject *answer = NULL;
    if (usual == 0)
        answer = PyObject_CallMethodNoArgs((PyObject *)self, s_exit);
    else if (usual > 0 && PyDict_SetItem(names, s_guard, self->before) == 0) {
        Py_XSETREF(self->before, Py_NewRef(left));
        if (tell(self, s_tell_left) == 0 && (bound == NULL || unbind(bound) == 0))
            answer = Py_NewRef(Py_None);
    }
    Py_XDECREF(bound);
    return answer;
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

/* -- matrix products: what blas.py gives ---------------------------------------------------- */
typedef int (*SetStream)(void *handle, void *stream);
typedef int (*SetWorkspace)(void *handle, void *at, size_t nbytes);
typedef int (*SetSmCount)(void *handle, int count);
typedef int (*GemmEx)(void *handle, int transpose_a, int transpose_b, int m, int n, int k,
                      const void *alpha, const void *a, int type_a, int lda, const void *b,
                      int type_b, int ldb, const void *beta, void *c, int type_c, int ldc,
                      int compute, int algorithm);
typedef int (*GetCurrentContext)(void **context);
typedef int (*EventRecord)(void *event, void *stream);

static SetStream set_stream;
static SetWorkspace set_workspace;
static SetSmCount set_sm_count;
static GemmEx gemm_ex;
static GetCurrentContext get_current_context;
static EventRecord event_record;
static PyTypeObject *array_type;   /* of arrays that are launched on */
static PyTypeObject *pointer_type; /* of their `data` */
static PyTypeObject *memory_type;  /* of memory of ours under that: has `tags` */
static PyTypeObject *stream_type;
static int is_child; /* of a fork: what was opened before is the parent's */

static void
note_child(void)
{
    is_child = 1;
}

/* A matrix product that was checked, as cuBLAS is asked for it: outT = bT . aT. */
typedef struct {
    int transpose_a, transpose_b, m, n, k, row_a, row_b, data, compute;
    unsigned long long one, zero; /* where they are */
    unsigned long long bytes_out, bytes_a, bytes_b, below_a, below_b;
} Sizes;

typedef struct {
    PyObject_HEAD
    Sizes sizes;
} Product;

static int
product_init(Product *self, PyObject *args, PyObject *kwargs)
{
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Product takes no keywords");
        return -1;
    }
    Sizes *to = &self->sizes;
    return PyArg_ParseTuple(args, "(ppiiiii)(iiKK)(KKKKK):Product", &to->transpose_a,
                            &to->transpose_b, &to->m, &to->n, &to->k, &to->row_a, &to->row_b,
                            &to->data, &to->compute, &to->one, &to->zero, &to->bytes_out,
                            &to->bytes_a, &to->bytes_b, &to->below_a, &to->below_b)
               ? 0
               : -1;
}

static void
plain_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot product_slots[] = {
    {Py_tp_doc, "A matrix product that was checked."},
    {Py_tp_init, product_init},
    {Py_tp_dealloc, plain_dealloc},
    {0, NULL},
};

static PyType_Spec product_spec = {
    .name = "gpuscope._fastpath.Product",
    .basicsize = sizeof(Product),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = product_slots,
};

/* What the GEMMs of one stream compute in, one after the other: a GEMM may be two kernels, the
 * second of which reads what the first left there, so another thread's must not come between. */
typedef struct {
    PyObject_HEAD
    PyObject *memory;
    unsigned long long at, nbytes, stream;
    unsigned long long number; /* of no other workspace: addresses and streams come again */
    pthread_mutex_t lock;      /* waited for without the GIL */
    int has_lock;
} Workspace;

static PyMemberDef workspace_members[] = {
    {"memory", T_OBJECT_EX, offsetof(Workspace, memory), READONLY, NULL},
    {"ptr", T_ULONGLONG, offsetof(Workspace, at), READONLY, NULL},
    {NULL},
};

static int
workspace_init(Workspace *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    static unsigned long long made;
    PyObject *memory;
    if (self->has_lock) {
        PyErr_SetString(PyExc_TypeError, "a workspace is made once");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "OKKK:Workspace", &memory, &self->at, &self->nbytes, &self->stream))
        return -1;
    pthread_mutexattr_t kind; /* recursive: a callback of the GEMM may run a destructor's */
    if (pthread_mutexattr_init(&kind) != 0)
        return PyErr_NoMemory(), -1;
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    self->has_lock = pthread_mutex_init(&self->lock, &kind) == 0;
    pthread_mutexattr_destroy(&kind);
    if (!self->has_lock)
        return PyErr_NoMemory(), -1;
    self->memory = Py_NewRef(memory);
    self->number = ++made;
    return 0;
}

static void
workspace_dealloc(Workspace *self)
{
    Py_CLEAR(self->memory);
    if (self->has_lock)
        pthread_mutex_destroy(&self->lock);
    plain_dealloc((PyObject *)self);
}

static PyType_Slot workspace_slots[] = {
    {Py_tp_doc, "What the GEMMs of one stream compute in."},
    {Py_tp_init, workspace_init},
    {Py_tp_dealloc, workspace_dealloc},
    {Py_tp_members, workspace_members},
    {0, NULL},
};

static PyType_Spec workspace_spec = {
    .name = "gpuscope._fastpath.Workspace",
    .basicsize = sizeof(Workspace),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = workspace_slots,
};

/* A thread's cuBLAS handle, and what it was told last. */
typedef struct {
    PyObject_HEAD
    unsigned long long raw;
    unsigned long long workspace; /* its number; 0: none */
    int sm_count;
} BlasHandle;

static int
blas_handle_init(BlasHandle *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    return PyArg_ParseTuple(args, "K:BlasHandle", &self->raw) ? 0 : -1;
}

static PyType_Slot blas_handle_slots[] = {
    {Py_tp_doc, "A thread's cuBLAS handle."},
    {Py_tp_init, blas_handle_init},
    {Py_tp_dealloc, plain_dealloc},
    {0, NULL},
};

static PyType_Spec blas_handle_spec = {
    .name = "gpuscope._fastpath.BlasHandle",
    .basicsize = sizeof(BlasHandle),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = blas_handle_slots,
};

/* Where products on one stream go, known from one that Python launched there. */
typedef struct {
    PyObject_HEAD
    Workspace *workspace;
    PyObject *calls; /* has `observers`: where there are any, Python launches */
    PyObject *local; /* has `native`, this thread's handle */
    PyObject *tag;   /* what memory that is used there remembers */
    BlasHandle *handle; /* of the thread that was here last */
    uint64_t thread;    /* its number, which no other thread gets */
    void *context;      /* current then, so right for the handle */
    long long device;
    int sm_count;
} Lane;

static PyTypeObject *product_type, *workspace_type, *blas_handle_type, *lane_type, *guard_type;

static int
lane_init(Lane *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *workspace, *calls, *local, *tag;
    if (!PyArg_ParseTuple(args, "O!OOOLi:Lane", workspace_type, &workspace, &calls, &local, &tag,
                          &self->device, &self->sm_count))
        return -1;
    if (get_current_context == NULL || get_current_context(&self->context) != 0)
        self->context = NULL;
    Py_XSETREF(self->workspace, (Workspace *)Py_NewRef(workspace));
    Py_XSETREF(self->calls, Py_NewRef(calls));
    Py_XSETREF(self->local, Py_NewRef(local));
    Py_XSETREF(self->tag, Py_NewRef(tag));
    return 0;
}

static int
lane_traverse(Lane *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->calls);
    Py_VISIT(self->local);
    Py_VISIT(self->tag);
    return 0;
}

static int
lane_clear(Lane *self)
{
    Py_CLEAR(self->calls);
    Py_CLEAR(self->local);
    Py_CLEAR(self->tag);
    return 0;
}

static void
lane_dealloc(Lane *self)
{
    PyObject_GC_UnTrack(self);
    lane_clear(self);
    Py_CLEAR(self->workspace);
    Py_CLEAR(self->handle);
    plain_dealloc((PyObject *)self);
}

static PyType_Slot lane_slots[] = {
    {Py_tp_doc, "Where products on one stream go."},
    {Py_tp_init, lane_init},
    {Py_tp_dealloc, lane_dealloc},
    {Py_tp_traverse, lane_traverse},
    {Py_tp_clear, lane_clear},
    {0, NULL},
};

static PyType_Spec lane_spec = {
    .name = "gpuscope._fastpath.Lane",
    .basicsize = sizeof(Lane),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = lane_slots,
};

/* Queue a product and record an event behind it, if any; returns cuBLAS's status, -1 where another
 * context than the one asked for is current. The GIL is given up once: to win it back costs more,
 * with many threads, than a call. What is set already is not set again. */
static int
queue_product(BlasHandle *handle, Workspace *workspace, void *context, int sm_count,
              const Sizes *product, const unsigned long long at[3], void *event, int *recorded)
{
    int status = 0;
    void *raw = (void *)(uintptr_t)handle->raw, *current = NULL;
    void *stream = (void *)(uintptr_t)workspace->stream;
    Py_BEGIN_ALLOW_THREADS;
    pthread_mutex_lock(&workspace->lock);
    if (context != NULL && (get_current_context(&current) != 0 || current != context))
        status = -1;
    if (status == 0 &&
        (handle->workspace != workspace->number || handle->sm_count != sm_count)) {
        handle->workspace = 0;
        /* Setting the stream resets the workspace, so the workspace comes after it. */
        status = set_stream(raw, stream);
        if (status == 0)
            status = set_workspace(raw, (void *)(uintptr_t)workspace->at, workspace->nbytes);
        if (status == 0)
            status = set_sm_count(raw, sm_count);
        if (status == 0) {
            handle->workspace = workspace->number;
            handle->sm_count = sm_count;
        }
    }
    if (status == 0)
        status = gemm_ex(raw, product->transpose_b, product->transpose_a, product->n, product->m,
                         product->k, (void *)(uintptr_t)product->one, (void *)(uintptr_t)at[2],
                         product->data, product->row_b, (void *)(uintptr_t)at[1], product->data,
                         product->row_a, (void *)(uintptr_t)product->zero,
                         (void *)(uintptr_t)at[0], product->data, product->n, product->compute,
                         -1 /* CUBLAS_GEMM_DEFAULT */);
    pthread_mutex_unlock(&workspace->lock);
    if (status == 0 && event != NULL)
        *recorded = event_record(event, stream) == 0;
    Py_END_ALLOW_THREADS;
    return status;
}

/* 1: three addresses were read. */
static int
read_addresses(PyObject *operands, unsigned long long at[3])
{
    int found = PyTuple_Check(operands) && PyTuple_GET_SIZE(operands) == 3;
    for (Py_ssize_t i = 0; found && i < 3; i++) {
        PyObject *address = PyTuple_GET_ITEM(operands, i);
        found = PyLong_Check(address);
        at[i] = found ? PyLong_AsUnsignedLongLong(address) : 0;
    }
    return found && !PyErr_Occurred();
}

/* multiply(handle, workspace, sm_count, product, operands) -> cuBLAS's status */
static PyObject *
multiply(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *handle, *workspace, *product;
    int sm_count;
    unsigned long long at[3];
    if (!PyArg_ParseTuple(args, "O!O!iO!(KKK):multiply", blas_handle_type, &handle, workspace_type,
                          &workspace, &sm_count, product_type, &product, &at[0], &at[1], &at[2]))
        return NULL;
    if (gemm_ex == NULL || !((Workspace *)workspace)->has_lock) {
        PyErr_SetString(PyExc_RuntimeError, "products are not served");
        return NULL;
    }
    return PyLong_FromLong(queue_product((BlasHandle *)handle, (Workspace *)workspace, NULL, sm_count,
                                         &((Product *)product)->sizes, at, NULL, NULL));
}

/* This thread's handle; a new reference. NULL without an error: it has none yet. */
static BlasHandle *
handle_in_lane(Lane *lane)
{
    uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
    if (lane->handle == NULL || lane->thread != thread) {
        PyObject *handle = PyObject_GetAttr(lane->local, s_native);
        if (handle == NULL || Py_TYPE(handle) != blas_handle_type) {
            Py_XDECREF(handle);
            PyErr_Clear();
            return NULL;
        }
        Py_XSETREF(lane->handle, (BlasHandle *)handle);
        lane->thread = thread;
    }
    return (BlasHandle *)Py_NewRef(lane->handle);
}

enum { TO_PYTHON, QUEUED, RECORDED }; /* Python does what was not, which also says what is wrong */

/* How far it got. Sets no error. */
static int
queue_in_lane(Lane *lane, int sm_count, const Sizes *product, const unsigned long long at[3],
              void *event)
{
    BlasHandle *handle = lane->context == NULL ? NULL : handle_in_lane(lane);
    if (handle == NULL)
        return TO_PYTHON;
    Workspace *workspace = (Workspace *)Py_NewRef(lane->workspace);
    int recorded = 0;
    int status = queue_product(handle, workspace, lane->context, sm_count, product, at, event,
                               &recorded);
    Py_DECREF(workspace);
    Py_DECREF(handle);
    return status != 0 ? TO_PYTHON : recorded ? RECORDED : QUEUED;
}

/* Where products on a stream go, if nothing of it has to be asked in Python; a new reference. */
static Lane *
lane_of(PyObject *stream)
{
    if (is_child || Py_TYPE(stream) != stream_type)
        return NULL;
    PyObject *lane = PyObject_GetAttr(stream, s_lane);
    PyObject *graph = lane == NULL ? NULL : PyObject_GetAttr(stream, s_graph);
    PyObject *closed = graph == NULL ? NULL : PyObject_GetAttr(stream, s_closed);
    int usable = closed == Py_False && graph == Py_None && Py_TYPE(lane) == lane_type;
    Py_XDECREF(graph);
    Py_XDECREF(closed);
    if (usable)
        return (Lane *)lane;
    Py_XDECREF(lane);
    PyErr_Clear();
    return NULL;
}

/* multiply_on(stream, plan, operands, sm_count, event) -> 0: nothing was done; 1: it was queued;
 * 2: and the event, if its address is not 0, was recorded behind it */
static PyObject *
multiply_on(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "multiply_on(stream, plan, operands, sm_count, event)");
        return NULL;
    }
    Lane *lane = lane_of(args[0]);
    if (lane == NULL)
        return PyLong_FromLong(TO_PYTHON);
    int done = TO_PYTHON;
    unsigned long long at[3];
    PyObject *product = PyObject_GetAttr(args[1], s_quick);
    int sm_count = PyLong_AsLong(args[3]);
    void *event = PyLong_AsVoidPtr(args[4]);
    if (product != NULL && Py_TYPE(product) == product_type && !PyErr_Occurred() &&
        read_addresses(args[2], at))
        done = queue_in_lane(lane, sm_count, &((Product *)product)->sizes, at,
                             event_record == NULL ? NULL : event);
    Py_XDECREF(product);
    Py_DECREF(lane);
    PyErr_Clear();
    return PyLong_FromLong(done);
}

/* -- products that are known by their operands ---------------------------------------------- */
/* How an attribute of a type written in C is read. Not by way of its descriptor: with many threads
 * the count of references to it goes from core to core, which costs more than the reading. */
typedef struct {
    PyObject **name;
    PyTypeObject **type;
    PyGetSetDef *how; /* NULL: as any attribute */
} Getter;

enum { SHAPE, STRIDES, DTYPE, DATA, PTR, DEVICE_ID, MEM };
static Getter getters[] = {
    {&s_shape, &array_type, NULL}, {&s_strides, &array_type, NULL},
    {&s_dtype, &array_type, NULL}, {&s_data, &array_type, NULL},
    {&s_ptr, &pointer_type, NULL}, {&s_device_id, &pointer_type, NULL},
    {&s_mem, &pointer_type, NULL},
};

/* Whether only the shape of an array can be changed: then an array is known by itself. */
static int are_fixed;

static int
is_read_only(PyObject *descriptor)
{
    if (Py_TYPE(descriptor) == &PyGetSetDescr_Type)
        return ((PyGetSetDescrObject *)descriptor)->d_getset->set == NULL;
    PyObject *setter = Py_TYPE(descriptor) == &PyProperty_Type
                           ? PyObject_GetAttrString(descriptor, "fset")
                           : NULL;
    Py_XDECREF(setter);
    return setter == Py_None;
}

static void
find_getters(void)
{
    are_fixed = 1;
    for (size_t i = 0; i < sizeof(getters) / sizeof(*getters); i++) {
        PyObject *found = PyObject_GetAttr((PyObject *)*getters[i].type, *getters[i].name);
        int is_getter = found != NULL && Py_TYPE(found) == &PyGetSetDescr_Type;
        /* The type keeps its descriptor. */
        getters[i].how = is_getter ? ((PyGetSetDescrObject *)found)->d_getset : NULL;
        are_fixed &= i == SHAPE || (found != NULL && is_read_only(found));
        Py_XDECREF(found);
    }
    PyErr_Clear();
}

static PyObject *
get(PyObject *owner, int attribute)
{
    const Getter *getter = &getters[attribute];
    if (getter->how != NULL && getter->how->get != NULL && Py_TYPE(owner) == *getter->type)
        return getter->how->get(owner, getter->how->closure);
    return PyObject_GetAttr(owner, *getter->name);
}

typedef struct {
    long long words[12]; /* shape and strides of out, a and b */
    PyObject *dtypes[3]; /* by identity; kept by the entry */
} Key;

typedef struct {
    Key key;
    Product *product;
} Entry;

#define ENTRIES 8192 /* a power of 2 */
#define PROBES 8
static Entry entries[ENTRIES];

static int
read_pair(PyObject *array, int attribute, long long *into)
{
    PyObject *pair = get(array, attribute);
    int found = pair != NULL && PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2;
    for (int i = 0; found && i < 2; i++) {
        into[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(pair, i));
        found = into[i] != -1 || !PyErr_Occurred();
    }
    Py_XDECREF(pair);
    return found;
}

static int
read_shapes(PyObject *const *arrays, Key *key)
{
    for (int i = 0; i < 3; i++)
        if (Py_TYPE(arrays[i]) != array_type || !read_pair(arrays[i], SHAPE, key->words + 4 * i))
            return 0;
    return 1;
}

/* What the shapes leave open. The dtypes in a key are borrowed: the arrays keep them. */
static int
read_key(PyObject *const *arrays, Key *key)
{
    for (int i = 0; i < 3; i++) {
        if (!read_pair(arrays[i], STRIDES, key->words + 4 * i + 2))
            return 0;
        key->dtypes[i] = get(arrays[i], DTYPE);
        if (key->dtypes[i] == NULL)
            return 0;
        Py_DECREF(key->dtypes[i]);
    }
    return 1;
}

/* Its entry, or the one to put it in. */
static Entry *
entry_of(const Key *key)
{
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < 12; i++)
        hash = (hash ^ (uint64_t)key->words[i]) * 1099511628211u;
    for (int i = 0; i < 3; i++)
        hash = (hash ^ (uint64_t)(uintptr_t)key->dtypes[i]) * 1099511628211u;
    hash ^= hash >> 29;
    for (int i = 0; i < PROBES; i++) {
        Entry *entry = &entries[(hash + (uint64_t)i) % ENTRIES];
        if (entry->product == NULL || memcmp(&entry->key, key, sizeof(Key)) == 0)
            return entry;
    }
    return &entries[hash % ENTRIES];
}

/* What is known by a key, borrowed, or NULL. */
static Product *
known_product(const Key *key)
{
    Entry *entry = entry_of(key);
    return entry->product != NULL && memcmp(&entry->key, key, sizeof(Key)) == 0 ? entry->product
                                                                                : NULL;
}

/* know(out, a, b, product): operands like these were checked. */
static PyObject *
know(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *arrays[3], *product;
    Key key;
    if (!PyArg_ParseTuple(args, "OOOO!:know", &arrays[0], &arrays[1], &arrays[2], product_type,
                          &product))
        return NULL;
    if (array_type == NULL || !read_shapes(arrays, &key) || !read_key(arrays, &key)) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    Entry *entry = entry_of(&key);
    Entry before = *entry;
    entry->key = key;
    entry->product = (Product *)Py_NewRef(product);
    for (int i = 0; i < 3; i++)
        Py_INCREF(key.dtypes[i]);
    if (before.product != NULL) {
        Py_DECREF(before.product);
        for (int i = 0; i < 3; i++)
            Py_DECREF(before.key.dtypes[i]);
    }
    Py_RETURN_NONE;
}

static int
read_number(PyObject *owner, int attribute, unsigned long long *into)
{
    PyObject *value = get(owner, attribute);
    if (value == NULL)
        return 0;
    *into = PyLong_Check(value) ? PyLong_AsUnsignedLongLong(value) : 0;
    int found = PyLong_Check(value) && !(*into == (unsigned long long)-1 && PyErr_Occurred());
    Py_DECREF(value);
    return found;
}

/* Where an array is, and the tags of memory of ours under it. 0: it is elsewhere, or cannot be
 * read. */
static int
read_memory(PyObject *array, const Lane *lane, unsigned long long *at, PyObject **tags)
{
    PyObject *data = get(array, DATA);
    if (data == NULL)
        return 0;
    unsigned long long device = 0;
    int found = read_number(data, PTR, at) && read_number(data, DEVICE_ID, &device) &&
                (long long)device == lane->device;
    PyObject *memory = found ? get(data, MEM) : NULL;
    found = memory != NULL;
    if (found && Py_TYPE(memory) == memory_type) {
        *tags = PyObject_GetAttr(memory, s_tags);
        found = *tags != NULL && PyAnySet_Check(*tags);
    }
    Py_XDECREF(memory);
    Py_DECREF(data);
    return found;
}

/* Three arrays that were multiplied, and what reading them tells. A shape that is set in place
 * keeps the order of the elements, so the same shape is the same product. */
typedef struct {
    PyObject *arrays[3]; /* weak references */
    PyObject *tags[3];   /* NULL: the memory is not ours */
    long long shapes[3][2];
    unsigned long long at[3];
    long long device;
    Product *product;
} Triple;

#define TRIPLES 4096 /* a power of 2 */
static Triple triples[TRIPLES];

static Triple *
triple_of(PyObject *const *arrays)
{
    uint64_t hash = 0;
    for (int i = 0; i < 3; i++)
        hash = (hash ^ ((uint64_t)(uintptr_t)arrays[i] >> 4)) * 0x9E3779B97F4A7C15u;
    return &triples[hash >> 32 & (TRIPLES - 1)];
}

static int
refers_to(PyObject *weak, const PyObject *array)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *target = NULL;
    if (PyWeakref_GetRef(weak, &target) < 0)
        PyErr_Clear();
    Py_XDECREF(target); /* the caller holds the array, if it is that */
#else
    PyObject *target = PyWeakref_GetObject(weak);
#endif
    return target == array;
}

static int
is_triple(const Triple *triple, PyObject *const *arrays, const Key *key, const Lane *lane)
{
    if (triple->product == NULL || triple->device != lane->device)
        return 0;
    for (int i = 0; i < 3; i++)
        if (!refers_to(triple->arrays[i], arrays[i]) ||
            memcmp(triple->shapes[i], key->words + 4 * i, sizeof(triple->shapes[i])) != 0)
            return 0;
    return 1;
}

static void
remember(PyObject *const *arrays, const Key *key, const Lane *lane, Product *product,
         const unsigned long long at[3], PyObject *const *tags)
{
    Triple new = {.device = lane->device, .product = (Product *)Py_NewRef(product)};
    int made = 1;
    for (int i = 0; i < 3; i++) {
        new.arrays[i] = PyWeakref_NewRef(arrays[i], NULL);
        made &= new.arrays[i] != NULL;
        new.tags[i] = Py_XNewRef(tags[i]);
        new.at[i] = at[i];
        memcpy(new.shapes[i], key->words + 4 * i, sizeof(new.shapes[i]));
    }
    PyErr_Clear();
    Triple *triple = triple_of(arrays), before = new;
    if (made) {
        before = *triple;
        *triple = new;
    }
    for (int i = 0; i < 3; i++) {
        Py_XDECREF(before.arrays[i]);
        Py_XDECREF(before.tags[i]);
    }
    Py_XDECREF(before.product);
}

/* Whether memory does not know a lane's stream yet; -1: that cannot be asked. Compares identities,
 * so no Python runs. */
static int
is_new_to(const Lane *lane, PyObject *const *tags)
{
    int is_new = 0;
    for (int i = 0; i < 3 && is_new >= 0; i++) {
        int tagged = tags[i] == NULL ? 1 : PySet_Contains(tags[i], lane->tag);
        is_new = tagged < 0 ? -1 : is_new | !tagged;
    }
    return is_new;
}

/* Read what is to be multiplied. 0: Python is to look closer. */
static int
read_operands(PyObject *const *arrays, Key *key, const Lane *lane, Sizes *sizes,
              unsigned long long at[3], int *is_new)
{
    Product *product = read_key(arrays, key) ? known_product(key) : NULL;
    if (product == NULL)
        return 0;
    Py_INCREF(product);
    *sizes = product->sizes;
    PyObject *tags[3] = {NULL, NULL, NULL};
    int usable = 1;
    for (int i = 0; usable && i < 3; i++)
        usable = read_memory(arrays[i], lane, &at[i], &tags[i]);
    if (usable) { /* out overlaps neither; Python looks closer where the outer bounds do */
        unsigned long long last = at[0] + sizes->bytes_out;
        unsigned long long low_a = at[1] - sizes->below_a, low_b = at[2] - sizes->below_b;
        *is_new = is_new_to(lane, tags);
        usable = *is_new >= 0 && !(low_a < last && at[0] < low_a + sizes->bytes_a) &&
                 !(low_b < last && at[0] < low_b + sizes->bytes_b);
    }
    if (usable && are_fixed)
        remember(arrays, key, lane, product, at, tags);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(tags[i]);
    Py_DECREF(product);
    return usable;
}

/* The stream that the innermost guard selected outside any event loop, else NULL; a new reference. */
static PyObject *
guarded_stream(void)
{
    PyObject *loop = get_running_loop == NULL ? NULL : PyObject_CallNoArgs(get_running_loop);
    PyObject *names = loop == Py_None ? names_of_thread() : NULL;
    PyObject *guard = names == NULL ? NULL : PyDict_GetItemWithError(names, s_guard);
    Py_XDECREF(loop);
    if (guard == NULL || !PyObject_TypeCheck(guard, guard_type))
        return NULL;
    return Py_XNewRef(((Guard *)guard)->stream);
}

/* Whether somebody is told of calls, or that cannot be asked. */
static int
is_observed(Lane *lane)
{
    PyObject *observers = PyObject_GetAttr(lane->calls, s_observers);
    int observed = observers == NULL ? -1 : PyObject_IsTrue(observers);
    Py_XDECREF(observers);
    return observed != 0;
}

/* mm_out(out, a, b, stream) -> whether it was queued: operands like these were checked before, and
 * a stream of ours is selected on which products ran. */
static PyObject *
mm_out(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "mm_out(out, a, b, stream)");
        return NULL;
    }
    if (array_type == NULL || Py_TYPE(args[0]) != array_type)
        Py_RETURN_FALSE;
    PyObject *stream = args[3] == Py_None ? guarded_stream() : Py_NewRef(args[3]);
    Lane *lane = stream == NULL ? NULL : lane_of(stream);
    int queued = 0, is_new = 0;
    Key key;
    if (lane != NULL && !is_observed(lane) && read_shapes(args, &key)) {
        unsigned long long at[3];
        Sizes sizes; /* a copy: no count of references goes from core to core */
        const Triple *triple = triple_of(args);
        if (is_triple(triple, args, &key, lane)) {
            sizes = triple->product->sizes;
            memcpy(at, triple->at, sizeof(at));
            is_new = is_new_to(lane, triple->tags);
            queued = is_new >= 0;
        } else
            queued = read_operands(args, &key, lane, &sizes, at, &is_new);
        queued = queued && queue_in_lane(lane, lane->sm_count, &sizes, at, NULL);
    }
    Py_XDECREF(lane);
    PyErr_Clear();
    PyObject *held = Py_None; /* memory that is new to the stream, until the product is done */
    if (queued && is_new)
        held = PyObject_CallMethodObjArgs(stream, s_hold, args[0], args[1], args[2], NULL);
    else
        Py_INCREF(held);
    Py_XDECREF(stream);
    if (held == NULL)
        return NULL;
    Py_DECREF(held);
    return PyBool_FromLong(queued);
}

/* serve_products((array, pointer, memory, stream types), (addresses of cublasSetStream, SetWorkspace,
 * SetSmCountTarget, GemmEx and cuCtxGetCurrent)) */
static PyObject *
serve_products(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *array, *pointer, *memory, *stream;
    unsigned long long at[5];
    if (!PyArg_ParseTuple(args, "(O!O!O!O!)(KKKKK):serve_products", &PyType_Type, &array,
                          &PyType_Type, &pointer, &PyType_Type, &memory, &PyType_Type, &stream,
                          &at[0], &at[1], &at[2], &at[3], &at[4]))
        return NULL;
    set_stream = (SetStream)(uintptr_t)at[0];
    set_workspace = (SetWorkspace)(uintptr_t)at[1];
    set_sm_count = (SetSmCount)(uintptr_t)at[2];
    gemm_ex = (GemmEx)(uintptr_t)at[3];
    get_current_context = (GetCurrentContext)(uintptr_t)at[4];
    Py_XSETREF(array_type, (PyTypeObject *)Py_NewRef(array));
    Py_XSETREF(pointer_type, (PyTypeObject *)Py_NewRef(pointer));
    Py_XSETREF(memory_type, (PyTypeObject *)Py_NewRef(memory));
    Py_XSETREF(stream_type, (PyTypeObject *)Py_NewRef(stream));
    find_getters();
    is_child = 0;
    Py_RETURN_NONE;
}

/* -- events: what context.py gives ----------------------------------------------------------- */
static PyTypeObject *event_type, *queue_type; /* cuda.core's Event and Stream */

/* 1: the handle was read; 0: it cannot be. Sets no error. */
static int
read_handle(PyObject *owner, unsigned long long *into)
{
    PyObject *handle = PyObject_GetAttr(owner, s_handle);
    PyObject *number = handle == NULL ? NULL : PyNumber_Long(handle);
    *into = number == NULL ? 0 : PyLong_AsUnsignedLongLong(number);
    int found = number != NULL && !PyErr_Occurred();
    Py_XDECREF(handle);
    Py_XDECREF(number);
    PyErr_Clear();
    return found;
}

/* record(event, stream) -> whether it was recorded; Python does what was not. A stream other than
 * the default ones knows its context, so it does not matter which is current. */
static PyObject *
record(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    unsigned long long event, stream;
    if (count != 2 || is_child || event_record == NULL || Py_TYPE(args[0]) != event_type ||
        Py_TYPE(args[1]) != queue_type || !read_handle(args[0], &event) ||
        !read_handle(args[1], &stream) || stream <= 2)
        Py_RETURN_FALSE;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = event_record((void *)(uintptr_t)event, (void *)(uintptr_t)stream);
    Py_END_ALLOW_THREADS;
    return PyBool_FromLong(status == 0);
}

/* serve_events(Event, Stream, address of cuEventRecord) */
static PyObject *
serve_events(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *event, *queue;
    unsigned long long at;
    if (!PyArg_ParseTuple(args, "O!O!K:serve_events", &PyType_Type, &event, &PyType_Type, &queue,
                          &at))
        return NULL;
    event_record = (EventRecord)(uintptr_t)at;
    Py_XSETREF(event_type, (PyTypeObject *)Py_NewRef(event));
    Py_XSETREF(queue_type, (PyTypeObject *)Py_NewRef(queue));
    is_child = 0;
    Py_RETURN_NONE;
}

/* -- launches: what record/cupti/library.py gives ------------------------------------------------ */
/* CUPTI calls note_launch around each launch, which writes what CUPTI would record of it. CUPTI's
 * own records of API calls make every call dearer, also those that are left out. */
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
} Launch;

enum { DRIVER, RUNTIME, DOMAINS };
static const uint32_t launch_kinds[DOMAINS] = {0x1004, 0x1005};

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
} Writer;

static GetTimestamp get_timestamp;
static Writer *writers;
static pthread_mutex_t writers_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t writer_key; /* ends a writer with its thread */
static __thread Writer *own_writer;
static size_t page_bytes, most_page_bytes, launches_dropped;

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

/* CUpti_CallbackFunc: any thread, with the GIL or without. */
static void
note_launch(void *Py_UNUSED(user), int domain, uint32_t callback, const CallbackData *data)
{
    Writer *writer = own_writer;
    int which = domain - 1; /* CUPTI_CB_DOMAIN_DRIVER_API is 1, the runtime's 2 */
    if (which < 0 || which >= DOMAINS || data->correlation == 0 ||
        (writer == NULL && (data->is_exit || (writer = new_writer()) == NULL)))
        return;
    if (!data->is_exit) {
        if (which == DRIVER && writer->correlations[RUNTIME] == data->correlation)
            return; /* how the runtime does it */
        writer->correlations[which] = data->correlation;
        get_timestamp(&writer->starts[which]);
        return;
    }
    if (writer->correlations[which] != data->correlation)
        return;
    writer->correlations[which] = 0;
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
    get_timestamp(&launch->end);
    launch->process = writer->process;
    launch->thread = writer->thread;
    launch->correlation = data->correlation;
    launch->returned = data->returned == NULL ? 0 : *data->returned;
    __atomic_store_n(&page->used, page->used + 1, __ATOMIC_RELEASE);
}

/* Count what a writer has for the reader; copy as much of it as there is room for, and free what
 * was read, if there is a place. */
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

static size_t
read_writers(Launch *into, size_t room)
{
    size_t count = 0;
    pthread_mutex_lock(&writers_lock);
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
    pthread_mutex_unlock(&writers_lock);
    return count;
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
    if (read_writers(NULL, 0) > 0) {
        PyObject *number = PyObject_CallNoArgs(next_number);
        PyObject *item = number == NULL ? NULL : PyTuple_Pack(2, number, Py_None);
        size_t count = item == NULL ? 0 : read_writers(NULL, 0);
        PyObject *records = item == NULL ? NULL
                                         : PyBytes_FromStringAndSize(
                                               NULL, (Py_ssize_t)(count * sizeof(Launch)));
        int taken = records != NULL && PyList_Append(list, item) == 0;
        if (taken) {
            read_writers((Launch *)(void *)PyBytes_AS_STRING(records), count);
            PyTuple_SET_ITEM(item, 1, Py_NewRef(records));
        }
        Py_XDECREF(number);
        Py_XDECREF(item);
        Py_XDECREF(records);
        if (!taken) {
            __atomic_add_fetch(&launches_dropped, dropped, __ATOMIC_RELAXED);
            return NULL;
        }
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

/* serve_launches(address of cuptiGetTimestamp) -> address of note_launch */
static PyObject *
serve_launches(PyObject *Py_UNUSED(module), PyObject *address)
{
    static int has_key;
    void *at = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred())
        return NULL;
    if (!has_key && pthread_key_create(&writer_key, end_writer) != 0)
        return PyErr_NoMemory();
    has_key = 1;
    get_timestamp = (GetTimestamp)(uintptr_t)at;
    return PyLong_FromVoidPtr((void *)(uintptr_t)note_launch);
}

/* -- the module --------------------------------------------------------------------------- */
static PyObject *
serve_guards(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *of_process, *loop, *binder, *type;
    if (!PyArg_ParseTuple(args, "OOOO!:serve_guards", &of_process, &loop, &binder, &PyType_Type,
                          &type))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "what is bound is told by tuples");
        return NULL;
    }
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
    Py_XSETREF(bind, Py_NewRef(binder));
    Py_XSETREF(bound_type, (PyTypeObject *)Py_NewRef(type));
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
    {"serve_products", serve_products, METH_VARARGS, NULL},
    {"multiply", multiply, METH_VARARGS, NULL},
    {"multiply_on", (PyCFunction)(void (*)(void))multiply_on, METH_FASTCALL, NULL},
    {"know", know, METH_VARARGS, NULL},
    {"serve_events", serve_events, METH_VARARGS, NULL},
    {"record", (PyCFunction)(void (*)(void))record, METH_FASTCALL, NULL},
    {"mm_out", (PyCFunction)(void (*)(void))mm_out, METH_FASTCALL, NULL},
    {"serve_launches", serve_launches, METH_O, NULL},
    {"limit_launches", limit_launches, METH_O, NULL},
    {"take_launches", take_launches, METH_VARARGS, NULL},
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
        {&s_end_rows, "_end_rows"}, {&s_range_of, "range_of"}, {&s_shape, "shape"},
        {&s_strides, "strides"}, {&s_dtype, "dtype"}, {&s_data, "data"},
        {&s_ptr, "ptr"}, {&s_device_id, "device_id"}, {&s_mem, "mem"},
        {&s_tags, "tags"}, {&s_lane, "lane"},
        {&s_closed, "closed"}, {&s_graph, "graph"}, {&s_observers, "observers"},
        {&s_native, "native"}, {&s_quick, "quick"}, {&s_hold, "hold"},
        {&s_tell_entered, "_tell_entered"}, {&s_tell_left, "_tell_left"},
        {&s_cupy, "cupy"}, {&s_torch, "torch"}, {&s_cuda, "cuda"},
        {&s_stream, "stream"}, {&s_use, "use"}, {&s_cupy_stream, "cupy_stream"},
        {&s_get_current_stream, "get_current_stream"}, {&s_cupys_name, "CuPy"},
        {&s_bind, "bind"}, {&s_handle, "handle"},
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
    const struct {
        PyType_Spec *spec;
        PyTypeObject **at;
    } types[] = {
        {&guard_spec, &guard_type},
        {&range_spec, NULL},
        {&product_spec, &product_type},
        {&workspace_spec, &workspace_type},
        {&blas_handle_spec, &blas_handle_type},
        {&lane_spec, &lane_type},
    };
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        PyObject *type = PyType_FromSpec(types[i].spec);
        if (type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0) {
            Py_XDECREF(type);
            Py_DECREF(module);
            return NULL;
        }
        if (types[i].at != NULL)
            Py_XSETREF(*types[i].at, (PyTypeObject *)Py_NewRef(type));
        Py_DECREF(type);
    }
    pthread_atfork(NULL, NULL, note_child);
    return module;
}
