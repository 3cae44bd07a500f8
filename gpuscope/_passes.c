/* Passes over the edges of a graph of times, for analysis/causes.py: what would have been when, and
 * what led there. */

#include "_fastpath.h"

/* The columns of int64 that a call was given; held until they are released. */
typedef struct {
    Py_buffer views[4];
    int count;
} Columns;

static void
release(Columns *columns)
{
    while (columns->count > 0)
        PyBuffer_Release(&columns->views[--columns->count]);
}

/* Take columns, the last of which is written to if `writes`; -1: error. */
static int
take(Columns *columns, PyObject *const *args, Py_ssize_t count, int writes)
{
    for (columns->count = 0; columns->count < count; columns->count++) {
        Py_buffer *view = &columns->views[columns->count];
        int flags = writes && columns->count == count - 1 ? PyBUF_WRITABLE : PyBUF_SIMPLE;
        if (PyObject_GetBuffer(args[columns->count], view, flags) < 0)
            break;
        if (view->itemsize != 8 || (uintptr_t)view->buf % 8 != 0) {
            columns->count++;
            PyErr_SetString(PyExc_ValueError, "a column is int64, in one piece");
            break;
        }
    }
    if (columns->count == count && !PyErr_Occurred())
        return 0;
    release(columns);
    return -1;
}

/* longest(source, target, lag, times): edge by edge, let no target come earlier than so long after
 * its source. */
static PyObject *
longest(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Columns columns;
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "source, target, lag and times");
    if (take(&columns, args, 4, 1) < 0)
        return NULL;
    const Py_buffer *views = columns.views;
    const int64_t *source = views[0].buf, *target = views[1].buf, *lag = views[2].buf;
    int64_t *times = views[3].buf;
    Py_ssize_t edges = views[0].len / 8, nodes = views[3].len / 8, at = -1;
    if (views[1].len == views[0].len && views[2].len == views[0].len) {
        Py_BEGIN_ALLOW_THREADS
        for (at = 0; at < edges; at++) {
            uint64_t from = (uint64_t)source[at], to = (uint64_t)target[at];
            if (from >= (uint64_t)nodes || to >= (uint64_t)nodes)
                break;
            int64_t then = (int64_t)((uint64_t)times[from] + (uint64_t)lag[at]);
            if (then > times[to])
                times[to] = then;
        }
        Py_END_ALLOW_THREADS
    }
    release(&columns);
    if (at < edges)
        return PyErr_Format(PyExc_ValueError, "edges of nodes that there are, with a lag each");
    Py_RETURN_NONE;
}

/* leading_to(cause, source, node, path) -> how many edges lead to a node: its cause, the cause of that
 * one's source, and so on. They are written into the path, as far as there is room. */
static PyObject *
leading_to(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Columns columns;
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "cause, source, node and path");
    int64_t node = PyLong_AsLongLong(args[2]);
    if (node == -1 && PyErr_Occurred())
        return NULL;
    PyObject *const given[] = {args[0], args[1], args[3]};
    if (take(&columns, given, 3, 1) < 0)
        return NULL;
    const int64_t *cause = columns.views[0].buf, *source = columns.views[1].buf;
    int64_t *path = columns.views[2].buf;
    uint64_t nodes = (uint64_t)columns.views[0].len / 8, edges = (uint64_t)columns.views[1].len / 8;
    Py_ssize_t room = columns.views[2].len / 8, length = 0;
    Py_BEGIN_ALLOW_THREADS
    while (length < room && (uint64_t)node < nodes) {
        int64_t edge = cause[node];
        if ((uint64_t)edge >= edges)
            break;
        path[length++] = edge;
        node = source[edge];
    }
    Py_END_ALLOW_THREADS
    release(&columns);
    return PyLong_FromSsize_t(length);
}

static PyMethodDef functions[] = {
    {"longest", (PyCFunction)(void (*)(void))longest, METH_FASTCALL, NULL},
    {"leading_to", (PyCFunction)(void (*)(void))leading_to, METH_FASTCALL, NULL},
    {NULL},
};

ADD_FUNCTIONS(add_passes)
