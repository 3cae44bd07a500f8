/* Guards: what a CallerStreamGuard does at each launch. */

#include "_fastpath.h"

/* Python can set and delete all of them, also while a method here calls Python. */
#define FIELDS(X)                                                                                  \
    X(stream, "stream") X(before, "_before") X(bound, "_bound") X(unused, "_unused")               \
    X(task, "task") X(token, "_token")

typedef struct {
    Stateful base;
#define FIELD(name, text) PyObject *name;
    FIELDS(FIELD)
#undef FIELD
} Guard;

static PyMemberDef guard_members[] = {
#define MEMBER(name, text) {text, T_OBJECT_EX, offsetof(Guard, name), 0, NULL},
    FIELDS(MEMBER){NULL},
};

static int
is_served(const State *state)
{
    if (state->slot == NULL)
        PyErr_SetString(PyExc_RuntimeError, "guards are not served yet: import gpuscope");
    return state->slot != NULL;
}

/* The namespace of this thread in `of_thread`: kept with the thread's state, which ends with it. */
static PyObject *
names_of_thread(State *state) /* borrowed */
{
    PyObject *of_thread = state->of_thread, *dict = PyThreadState_GetDict();
    if (dict == NULL)
        return PyErr_NoMemory();
    PyObject *names = PyDict_GetItemWithError(dict, of_thread);
    if (names == NULL && !PyErr_Occurred()) {
        PyObject *made = PyObject_GetAttr(of_thread, state->s.dict);
        if (made != NULL && PyDict_SetItem(dict, of_thread, made) == 0)
            names = made;
        Py_XDECREF(made);
    }
    return names;
}

/* 1: an event loop runs on this thread; 0: not; -1: error. */
static int
has_loop(State *state)
{
    PyObject *loop = PyObject_CallNoArgs(state->get_running_loop);
    Py_XDECREF(loop);
    return loop == NULL ? -1 : loop != Py_None;
}

PyObject *
guarded_stream(State *state)
{
    if (state->slot == NULL || has_loop(state) != 0)
        return NULL;
    PyObject *names = names_of_thread(state);
    PyObject *guard = names == NULL ? NULL : PyDict_GetItemWithError(names, state->s.guard);
    if (guard == NULL || !PyObject_TypeCheck(guard, state->guard_type))
        return NULL;
    return Py_XNewRef(((Guard *)guard)->stream);
}

static int
guard_traverse(Guard *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
#define VISIT(name, text) Py_VISIT(self->name);
    FIELDS(VISIT)
    return 0;
}

static int
guard_clear(Guard *self)
{
#define CLEAR(name, text) Py_CLEAR(self->name);
    FIELDS(CLEAR)
    return 0;
}

static void
guard_dealloc(Guard *self)
{
    PyObject_GC_UnTrack(self);
    Py_TRASHCAN_BEGIN(self, guard_dealloc) /* a guard may keep any number of others */
    guard_clear(self);
    plain_dealloc((PyObject *)self);
    Py_TRASHCAN_END
}

static int
guard_init(Guard *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", "bind", NULL};
    State *state = self->base.state;
    if (!is_served(state))
        return -1;
    PyObject *stream = NULL, *bind = Py_False;
    if (PyTuple_GET_SIZE(args) == 1) { /* the usual ways, sooner */
        bind = kwargs == NULL ? Py_False : PyDict_GetItemWithError(kwargs, state->s.bind);
        if (bind != NULL && (kwargs == NULL || PyDict_GET_SIZE(kwargs) == 1))
            stream = PyTuple_GET_ITEM(args, 0);
        else
            bind = Py_False;
    }
    if (stream == NULL &&
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O:CallerStreamGuard", names, &stream, &bind))
        return -1;
    int known = PySet_Contains(state->accepted, (PyObject *)Py_TYPE(stream));
    if (known < 0)
        return -1;
    if (!known && done(PyObject_CallMethodOneArg((PyObject *)self, state->s.check, stream)) < 0)
        return -1;
    Py_XSETREF(self->stream, Py_NewRef(stream));
    Py_XSETREF(self->before, Py_NewRef(state->never));
    Py_XSETREF(self->bound, Py_NewRef(bind));
    Py_XSETREF(self->unused, Py_NewRef(Py_True));
    return 0;
}

/* What asks CuPy for its current stream, looked up once; a new reference. */
static PyObject *
cupys_current(State *state, PyObject *cupy)
{
    if (cupy == state->cupy)
        return Py_NewRef(state->cupys_current);
    PyObject *cuda = PyObject_GetAttr(cupy, state->s.cuda);
    PyObject *module = cuda == NULL ? NULL : PyObject_GetAttr(cuda, state->s.stream);
    PyObject *found = module == NULL ? NULL : PyObject_GetAttr(module, state->s.get_current_stream);
    Py_XDECREF(cuda);
    Py_XDECREF(module);
    if (found != NULL) {
        PyObject *before[] = {state->cupy, state->cupys_current};
        state->cupy = Py_NewRef(cupy);
        state->cupys_current = Py_NewRef(found);
        Py_XDECREF(before[0]);
        Py_XDECREF(before[1]);
    }
    return found;
}

/* Bind a stream that CuPy knows already, where PyTorch is not imported; NULL without an error:
 * Python is to do it, which also says what is wrong. */
static PyObject *
bind_cupy_alone(State *state, PyObject *stream)
{
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *cupy = PyDict_GetItemWithError(modules, state->s.cupy);
    if (cupy == NULL || PyDict_GetItemWithError(modules, state->s.torch) != NULL) {
        PyErr_Clear();
        return NULL;
    }
    Py_INCREF(cupy);
    PyObject *ours = PyObject_GetAttr(stream, state->s.cupy_stream);
    PyObject *current = ours == NULL || ours == Py_None ? NULL : cupys_current(state, cupy);
    PyObject *before = current == NULL ? NULL : PyObject_CallNoArgs(current);
    PyObject *restore = before == NULL ? NULL : PyObject_GetAttr(before, state->s.use);
    PyTypeObject *type = state->bound_type;
    PyObject *one = restore == NULL ? NULL : type->tp_alloc(type, 4);
    PyObject *bound = one == NULL ? NULL : PyList_New(1);
    if (one != NULL) {
        PyObject *parts[] = {state->s.cupys_name, current, ours, restore};
        for (Py_ssize_t i = 0; i < 4; i++)
            PyTuple_SET_ITEM(one, i, Py_NewRef(parts[i]));
    }
    if (bound != NULL) {
        PyList_SET_ITEM(bound, 0, Py_NewRef(one));
        if (done(PyObject_CallMethodNoArgs(ours, state->s.use)) < 0)
            Py_CLEAR(bound);
    }
    PyObject *rest[] = {cupy, ours, current, before, restore, one};
    for (size_t i = 0; i < sizeof(rest) / sizeof(*rest); i++)
        Py_XDECREF(rest[i]);
    PyErr_Clear();
    return bound;
}

/* A library of a list that Python may change meanwhile, a new reference; NULL: it is none, or the
 * list ends before it. */
static PyObject *
bound_at(PyObject *bound, Py_ssize_t place)
{
    PyObject *one = place < PyList_GET_SIZE(bound) ? PyList_GET_ITEM(bound, place) : NULL;
    return one != NULL && PyTuple_Check(one) && PyTuple_GET_SIZE(one) == 4 ? Py_NewRef(one) : NULL;
}

/* 1: every library has the stream that it was given; 0: Python is to look closer; -1: error. */
static int
is_still_bound(PyObject *bound)
{
    int same = 1;
    for (Py_ssize_t i = 0; same > 0 && i < PyList_GET_SIZE(bound); i++) {
        PyObject *one = bound_at(bound, i);
        if (one == NULL)
            return 0;
        PyObject *now = PyObject_CallNoArgs(PyTuple_GET_ITEM(one, 1));
        same = now == NULL ? -1 : PyObject_RichCompareBool(now, PyTuple_GET_ITEM(one, 2), Py_EQ);
        Py_XDECREF(now);
        Py_DECREF(one);
    }
    return same;
}

/* Give the libraries theirs back, the second also if the first refuses; -1: the first error. */
static int
unbind(PyObject *bound)
{
    PyObject *type = NULL, *value = NULL, *traceback = NULL, *one;
    for (Py_ssize_t i = 0; (one = bound_at(bound, i)) != NULL; i++) {
        int restored = done(PyObject_CallNoArgs(PyTuple_GET_ITEM(one, 3)));
        Py_DECREF(one);
        if (restored < 0 && type == NULL)
            PyErr_Fetch(&type, &value, &traceback);
        else if (restored < 0)
            PyErr_Clear();
    }
    if (type == NULL)
        return 0;
    PyErr_Restore(type, value, traceback);
    return -1;
}

/* Call a method that tells watchers, if there are any. */
static int
tell(State *state, Guard *self, PyObject *method)
{
    int watched = is_set(state->slot, state->s.watchers);
    return watched <= 0 ? watched : done(PyObject_CallMethodNoArgs((PyObject *)self, method));
}

/* Put what binding a stream gives in `_bound`; -1: error, and the guard may be entered again. */
static int
enter_bound(State *state, Guard *self, PyObject *stream, PyObject *asked)
{
    int binds = asked == Py_False ? 0 : PyObject_IsTrue(asked);
    if (binds == 0)
        return 0;
    PyObject *bound = binds < 0 ? NULL : bind_cupy_alone(state, stream);
    if (bound == NULL && binds > 0)
        bound = PyObject_CallOneArg(state->bind, stream);
    if (bound == NULL) {
        Py_XSETREF(self->unused, Py_NewRef(Py_True));
        return -1;
    }
    Py_XSETREF(self->bound, bound);
    return 0;
}

static PyObject *
guard_enter(Guard *self, PyObject *Py_UNUSED(ignored))
{
    State *state = self->base.state;
    int loop = is_served(state) ? has_loop(state) : -1;
    PyObject *names = loop == 0 ? names_of_thread(state) : NULL;
    if (loop < 0 || (loop == 0 && names == NULL))
        return NULL;
    if (loop || self->unused == NULL || self->stream == NULL || self->bound == NULL)
        return PyObject_CallMethodNoArgs((PyObject *)self, state->s.enter);
    PyObject *stream = Py_NewRef(self->stream), *bound = Py_NewRef(self->bound);
    Py_CLEAR(self->unused); /* of threads that enter at once, one succeeds */
    int entered = enter_bound(state, self, stream, bound);
    if (entered == 0) {
        PyObject *before = PyDict_GetItemWithError(names, state->s.guard);
        if (before == NULL && PyErr_Occurred())
            entered = -1;
        else
            Py_XSETREF(self->before, Py_NewRef(before == NULL ? Py_None : before));
    }
    if (entered == 0)
        entered = PyDict_SetItem(names, state->s.guard, (PyObject *)self);
    if (entered == 0)
        entered = tell(state, self, state->s.tell_entered);
    Py_DECREF(bound);
    if (entered == 0)
        return stream;
    Py_DECREF(stream);
    return NULL;
}

static PyObject *
guard_exit(Guard *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count))
{
    State *state = self->base.state;
    int loop = is_served(state) ? has_loop(state) : -1;
    PyObject *names = loop == 0 ? names_of_thread(state) : NULL;
    if (loop < 0 || (loop == 0 && names == NULL))
        return NULL;
    PyObject *innermost = loop ? NULL : PyDict_GetItemWithError(names, state->s.guard);
    if (innermost == NULL && PyErr_Occurred())
        return NULL;
    PyObject *bound = NULL;
    int usual = innermost == (PyObject *)self;
    if (usual && self->bound != NULL && PyList_CheckExact(self->bound)) {
        bound = Py_NewRef(self->bound);
        usual = is_still_bound(bound);
    } else
        usual = usual && self->bound == Py_False;
    PyObject *before = usual > 0 ? Py_XNewRef(self->before) : NULL, *answer = NULL;
    if (usual >= 0 && before == NULL)
        answer = PyObject_CallMethodNoArgs((PyObject *)self, state->s.exit);
    else if (before != NULL && PyDict_SetItem(names, state->s.guard, before) == 0) {
        Py_XSETREF(self->before, Py_NewRef(state->left));
        if (tell(state, self, state->s.tell_left) == 0 && (bound == NULL || unbind(bound) == 0))
            answer = Py_NewRef(Py_None);
    }
    Py_XDECREF(before);
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
    {Py_tp_new, stateful_new},
    {Py_tp_init, guard_init},
    {Py_tp_dealloc, guard_dealloc},
    {Py_tp_traverse, guard_traverse},
    {Py_tp_clear, guard_clear},
    {Py_tp_methods, guard_methods},
    {Py_tp_members, guard_members},
    {0, NULL},
};

static PyType_Spec guard_spec = TYPE_SPEC("Guard", Guard, guard_slots, Py_TPFLAGS_BASETYPE);

/* serve_guards(slot, asyncio's get_running_loop, bind, type of what it gives) */
static PyObject *
serve_guards(PyObject *module, PyObject *args)
{
    State *state = state_of(module);
    PyObject *slot, *loop, *binder;
    PyTypeObject *type;
    if (!PyArg_ParseTuple(args, "OOOO!:serve_guards", &slot, &loop, &binder, &PyType_Type, &type))
        return NULL;
    if (!PyType_IsSubtype(type, &PyTuple_Type) || !PyType_HasFeature(type, Py_TPFLAGS_BASETYPE)) {
        PyErr_SetString(PyExc_TypeError, "what is bound is told by tuples");
        return NULL;
    }
    const char *names[] = {"__dict__", "of_thread", "accepted", "never", "left"};
    PyObject *parts[5];
    for (size_t i = 0; i < 5; i++) {
        parts[i] = PyObject_GetAttrString(slot, names[i]);
        int kept = keep(state, parts[i]);
        Py_XDECREF(parts[i]);
        if (kept < 0)
            return NULL;
    }
    if (!PyDict_Check(parts[0]) || !PyAnySet_Check(parts[2])) {
        PyErr_SetString(PyExc_TypeError, "a slot has a namespace and a set of accepted types");
        return NULL;
    }
    if (keep(state, loop) < 0 || keep(state, binder) < 0 || keep(state, (PyObject *)type) < 0)
        return NULL;
    state->slot = parts[0];
    state->of_thread = parts[1];
    state->accepted = parts[2];
    state->never = parts[3];
    state->left = parts[4];
    state->get_running_loop = loop;
    state->bind = binder;
    state->bound_type = type;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"serve_guards", serve_guards, METH_VARARGS, NULL},
    {NULL},
};

int
add_guards(PyObject *module)
{
    return add_type(module, &guard_spec, &state_of(module)->guard_type) < 0
               ? -1
               : PyModule_AddFunctions(module, functions);
}
