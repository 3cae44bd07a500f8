/* Matrix products that were checked: queued by cuBLAS, in the workspace of their stream. */

#include "_products.h"
#include <pthread.h>

static int
traverse_type(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void
untracked_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    plain_dealloc(self);
}

static PyObject *
product_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Sizes sizes;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Product takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "(ppiiiii)(iiKK)(KKKKK):Product", &sizes.transpose_a,
                          &sizes.transpose_b, &sizes.m, &sizes.n, &sizes.k, &sizes.row_a,
                          &sizes.row_b, &sizes.data, &sizes.compute, &sizes.one, &sizes.zero,
                          &sizes.bytes_out, &sizes.bytes_a, &sizes.bytes_b, &sizes.below_a,
                          &sizes.below_b))
        return NULL;
    Product *self = (Product *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->sizes = sizes;
    return (PyObject *)self;
}

static PyType_Slot product_slots[] = {
    {Py_tp_doc, "A matrix product that was checked."},
    {Py_tp_new, product_new},
    {Py_tp_dealloc, untracked_dealloc},
    {Py_tp_traverse, traverse_type},
    {0, NULL},
};

static PyType_Spec product_spec = TYPE_SPEC("Product", Product, product_slots, 0);

/* What the GEMMs of one stream compute in, one after the other: a GEMM may be two kernels, the
 * second of which reads what the first left there, so another thread's must not come between. */
struct Workspace {
    PyObject_HEAD
    PyObject *memory;
    unsigned long long at, nbytes, stream;
    unsigned long long number; /* of no other workspace: addresses and streams come again */
    pthread_mutex_t lock;      /* waited for without the GIL */
    int has_lock;
};

static PyMemberDef workspace_members[] = {
    {"memory", T_OBJECT_EX, offsetof(Workspace, memory), READONLY, NULL},
    {"ptr", T_ULONGLONG, offsetof(Workspace, at), READONLY, NULL},
    {NULL},
};

/* Recursive: a callback of the GEMM may run a destructor's. */
static int
make_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t kind;
    if (pthread_mutexattr_init(&kind) != 0)
        return 0;
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    int made = pthread_mutex_init(lock, &kind) == 0;
    pthread_mutexattr_destroy(&kind);
    return made;
}

static PyObject *
workspace_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    State *state = state_of_type(type);
    PyObject *memory;
    unsigned long long at, nbytes, stream;
    if (state == NULL || !PyArg_ParseTuple(args, "OKKK:Workspace", &memory, &at, &nbytes, &stream))
        return NULL;
    Workspace *self = (Workspace *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->has_lock = make_lock(&self->lock);
    if (!self->has_lock) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->memory = Py_NewRef(memory);
    self->at = at;
    self->nbytes = nbytes;
    self->stream = stream;
    self->number = ++state->workspaces_made;
    return (PyObject *)self;
}

static int
workspace_traverse(Workspace *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->memory);
    return 0;
}

static void
workspace_dealloc(Workspace *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->memory);
    if (self->has_lock)
        pthread_mutex_destroy(&self->lock);
    plain_dealloc((PyObject *)self);
}

static PyType_Slot workspace_slots[] = {
    {Py_tp_doc, "What the GEMMs of one stream compute in."},
    {Py_tp_new, workspace_new},
    {Py_tp_dealloc, workspace_dealloc},
    {Py_tp_traverse, workspace_traverse},
    {Py_tp_members, workspace_members},
    {0, NULL},
};

static PyType_Spec workspace_spec = TYPE_SPEC("Workspace", Workspace, workspace_slots, 0);

/* A thread's cuBLAS handle, and what it was told last. */
struct BlasHandle {
    PyObject_HEAD
    unsigned long long raw;
    unsigned long long workspace; /* its number; 0: none */
    int sm_count;
};

static PyObject *
blas_handle_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    unsigned long long raw;
    if (!PyArg_ParseTuple(args, "K:BlasHandle", &raw))
        return NULL;
    BlasHandle *self = (BlasHandle *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->raw = raw;
    return (PyObject *)self;
}

static PyType_Slot blas_handle_slots[] = {
    {Py_tp_doc, "A thread's cuBLAS handle."},
    {Py_tp_new, blas_handle_new},
    {Py_tp_dealloc, untracked_dealloc},
    {Py_tp_traverse, traverse_type},
    {0, NULL},
};

static PyType_Spec blas_handle_spec = TYPE_SPEC("BlasHandle", BlasHandle, blas_handle_slots, 0);

static PyObject *
lane_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    State *state = state_of_type(type);
    PyObject *workspace, *calls, *local, *tag;
    long long device;
    int sm_count;
    if (state == NULL ||
        !PyArg_ParseTuple(args, "O!OOOLi:Lane", state->workspace_type, &workspace, &calls, &local,
                          &tag, &device, &sm_count))
        return NULL;
    Lane *self = (Lane *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    if (state->get_current_context == NULL || state->get_current_context(&self->context) != 0)
        self->context = NULL;
    self->workspace = (Workspace *)Py_NewRef(workspace);
    self->calls = Py_NewRef(calls);
    self->local = Py_NewRef(local);
    self->tag = Py_NewRef(tag);
    self->device = device;
    self->sm_count = sm_count;
    return (PyObject *)self;
}

#define LANE_KEEPS(X) X(workspace) X(calls) X(local) X(tag) X(handle)

/* No tp_clear: a lane cannot be changed, so every cycle that it is in has something that can. */
static int
lane_traverse(Lane *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
#define VISIT(name) Py_VISIT(self->name);
    LANE_KEEPS(VISIT)
    return 0;
}

static void
lane_dealloc(Lane *self)
{
    PyObject_GC_UnTrack(self);
    Py_TRASHCAN_BEGIN(self, lane_dealloc)
#define CLEAR(name) Py_CLEAR(self->name);
    LANE_KEEPS(CLEAR)
    plain_dealloc((PyObject *)self);
    Py_TRASHCAN_END
}

static PyType_Slot lane_slots[] = {
    {Py_tp_doc, "Where products on one stream go."},
    {Py_tp_new, lane_new},
    {Py_tp_dealloc, lane_dealloc},
    {Py_tp_traverse, lane_traverse},
    {0, NULL},
};

static PyType_Spec lane_spec = TYPE_SPEC("Lane", Lane, lane_slots, 0);

/* Queue a product and record an event behind it, if any; returns cuBLAS's status, -1 where another
 * context than the one asked for is current. The GIL is given up once: to win it back costs more,
 * with many threads, than a call. What is set already is not set again. */
static int
queue_product(State *state, BlasHandle *handle, Workspace *workspace, void *context, int sm_count,
              const Sizes *product, const unsigned long long at[3], void *event, int *recorded)
{
    int status = 0;
    void *raw = (void *)(uintptr_t)handle->raw, *current = NULL;
    void *stream = (void *)(uintptr_t)workspace->stream;
    Py_BEGIN_ALLOW_THREADS;
    pthread_mutex_lock(&workspace->lock);
    if (context != NULL && (state->get_current_context(&current) != 0 || current != context))
        status = -1;
    if (status == 0 &&
        (handle->workspace != workspace->number || handle->sm_count != sm_count)) {
        handle->workspace = 0;
        /* Setting the stream resets the workspace, so the workspace comes after it. */
        status = state->set_stream(raw, stream);
        if (status == 0)
            status = state->set_workspace(raw, (void *)(uintptr_t)workspace->at, workspace->nbytes);
        if (status == 0)
            status = state->set_sm_count(raw, sm_count);
        if (status == 0) {
            handle->workspace = workspace->number;
            handle->sm_count = sm_count;
        }
    }
    if (status == 0)
        status = state->gemm_ex(
            raw, product->transpose_b, product->transpose_a, product->n, product->m, product->k,
            (void *)(uintptr_t)product->one, (void *)(uintptr_t)at[2], product->data,
            product->row_b, (void *)(uintptr_t)at[1], product->data, product->row_a,
            (void *)(uintptr_t)product->zero, (void *)(uintptr_t)at[0], product->data, product->n,
            product->compute, -1 /* CUBLAS_GEMM_DEFAULT */);
    pthread_mutex_unlock(&workspace->lock);
    if (status == 0 && event != NULL)
        *recorded = state->event_record(event, stream) == 0;
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
multiply(PyObject *module, PyObject *args)
{
    State *state = state_of(module);
    PyObject *handle, *workspace, *product;
    int sm_count;
    unsigned long long at[3];
    if (state->gemm_ex == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "products are not served");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!iO!(KKK):multiply", state->blas_handle_type, &handle,
                          state->workspace_type, &workspace, &sm_count, state->product_type,
                          &product, &at[0], &at[1], &at[2]))
        return NULL;
    return PyLong_FromLong(queue_product(state, (BlasHandle *)handle, (Workspace *)workspace, NULL,
                                         sm_count, &((Product *)product)->sizes, at, NULL, NULL));
}

/* This thread's handle; a new reference. NULL without an error: it has none yet. */
static BlasHandle *
handle_in_lane(State *state, Lane *lane)
{
    uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
    if (lane->handle == NULL || lane->thread != thread) {
        PyObject *handle = PyObject_GetAttr(lane->local, state->s.native);
        if (handle == NULL || Py_TYPE(handle) != state->blas_handle_type) {
            Py_XDECREF(handle);
            PyErr_Clear();
            return NULL;
        }
        Py_XSETREF(lane->handle, (BlasHandle *)handle);
        lane->thread = thread;
    }
    return (BlasHandle *)Py_NewRef(lane->handle);
}

int
queue_in_lane(State *state, Lane *lane, int sm_count, const Sizes *product,
              const unsigned long long at[3], void *event)
{
    BlasHandle *handle = lane->context == NULL ? NULL : handle_in_lane(state, lane);
    if (handle == NULL)
        return TO_PYTHON;
    Workspace *workspace = (Workspace *)Py_NewRef(lane->workspace);
    int recorded = 0;
    int status = queue_product(state, handle, workspace, lane->context, sm_count, product, at,
                               event, &recorded);
    Py_DECREF(workspace);
    Py_DECREF(handle);
    return status != 0 ? TO_PYTHON : recorded ? RECORDED : QUEUED;
}

Lane *
lane_of(State *state, PyObject *stream)
{
    if (!is_own_process(state) || Py_TYPE(stream) != state->stream_type)
        return NULL;
    PyObject *lane = PyObject_GetAttr(stream, state->s.lane);
    PyObject *graph = lane == NULL ? NULL : PyObject_GetAttr(stream, state->s.graph);
    PyObject *closed = graph == NULL ? NULL : PyObject_GetAttr(stream, state->s.closed);
    int usable = closed == Py_False && graph == Py_None && Py_TYPE(lane) == state->lane_type;
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
multiply_on(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *state = state_of(module);
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "multiply_on(stream, plan, operands, sm_count, event)");
        return NULL;
    }
    Lane *lane = lane_of(state, args[0]);
    if (lane == NULL)
        return PyLong_FromLong(TO_PYTHON);
    int done = TO_PYTHON, sm_count = (int)PyLong_AsLong(args[3]);
    unsigned long long at[3];
    void *event = PyErr_Occurred() ? NULL : PyLong_AsVoidPtr(args[4]);
    PyObject *product = PyErr_Occurred() ? NULL : PyObject_GetAttr(args[1], state->s.quick);
    if (product != NULL && Py_TYPE(product) == state->product_type && read_addresses(args[2], at))
        done = queue_in_lane(state, lane, sm_count, &((Product *)product)->sizes, at,
                             state->event_record == NULL ? NULL : event);
    Py_XDECREF(product);
    Py_DECREF(lane);
    PyErr_Clear();
    return PyLong_FromLong(done);
}

static PyMethodDef functions[] = {
    {"multiply", multiply, METH_VARARGS, NULL},
    {"multiply_on", (PyCFunction)(void (*)(void))multiply_on, METH_FASTCALL, NULL},
    {NULL},
};

int
add_products(PyObject *module)
{
    State *state = state_of(module);
    return add_type(module, &product_spec, &state->product_type) < 0 ||
                   add_type(module, &workspace_spec, &state->workspace_type) < 0 ||
                   add_type(module, &blas_handle_spec, &state->blas_handle_type) < 0 ||
                   add_type(module, &lane_spec, &state->lane_type) < 0
               ? -1
               : PyModule_AddFunctions(module, functions);
}
