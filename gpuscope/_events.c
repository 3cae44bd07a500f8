/* Events: recorded in streams. */

#include "_fastpath.h"

/* 1: the handle was read; 0: it cannot be. Sets no error. */
static int
read_handle(State *state, PyObject *owner, unsigned long long *into)
{
    PyObject *handle = PyObject_GetAttr(owner, state->s.handle);
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
record(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *state = state_of(module);
    unsigned long long event, stream;
    if (count != 2 || !is_own_process(state) || state->event_record == NULL ||
        Py_TYPE(args[0]) != state->event_type || Py_TYPE(args[1]) != state->queue_type ||
        !read_handle(state, args[0], &event) || !read_handle(state, args[1], &stream) ||
        stream <= 2)
        Py_RETURN_FALSE;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = state->event_record((void *)(uintptr_t)event, (void *)(uintptr_t)stream);
    Py_END_ALLOW_THREADS;
    return PyBool_FromLong(status == 0);
}

/* serve_events(Event, Stream, address of cuEventRecord) */
static PyObject *
serve_events(PyObject *module, PyObject *args)
{
    State *state = state_of(module);
    PyTypeObject *event, *queue;
    unsigned long long at;
    if (!PyArg_ParseTuple(args, "O!O!K:serve_events", &PyType_Type, &event, &PyType_Type, &queue,
                          &at) ||
        keep(state, (PyObject *)event) < 0 || keep(state, (PyObject *)queue) < 0)
        return NULL;
    state->event_record = (EventRecord)(uintptr_t)at;
    state->event_type = event;
    state->queue_type = queue;
    state->forks = forks_of_process;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"serve_events", serve_events, METH_VARARGS, NULL},
    {"record", (PyCFunction)(void (*)(void))record, METH_FASTCALL, NULL},
    {NULL},
};

ADD_FUNCTIONS(add_events)
