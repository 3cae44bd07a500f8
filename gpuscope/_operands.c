/* Matrix products that are known by their operands. */

#include "_products.h"

/* How an attribute of a type written in C is read. Not by way of its descriptor: with many threads
 * the count of references to it goes from core to core, which costs more than the reading. */
typedef struct {
    PyTypeObject *type; /* of the owner */
    PyObject *name;
    PyGetSetDef *how; /* NULL: as any attribute */
} Getter;

enum { SHAPE, STRIDES, DTYPE, DATA, PTR, DEVICE_ID, MEM, GETTERS };

typedef struct {
    long long words[12]; /* shape and strides of out, a and b */
    PyObject *dtypes[3]; /* by identity */
} Key;

typedef struct {
    Key key;
    Product *product;
} Entry;

#define ENTRIES 8192 /* a power of 2 */
#define PROBES 8

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

/* Entries and triples keep what they point to. */
struct Known {
    Getter getters[GETTERS];
    PyTypeObject *array_type, *memory_type; /* of arrays that are launched on; of memory of ours */
    int are_fixed; /* only the shape of an array can be changed: an array is known by itself */
    int reading;   /* how many calls read a triple, which is not replaced meanwhile */
    Entry entries[ENTRIES];
    Triple triples[TRIPLES];
};

int
known_traverse(Known *known, visitproc visit, void *arg)
{
    for (int i = 0; known != NULL && i < ENTRIES; i++) {
        const Entry *entry = &known->entries[i];
        if (entry->product == NULL)
            continue;
        Py_VISIT(entry->product);
        for (int j = 0; j < 3; j++)
            Py_VISIT(entry->key.dtypes[j]);
    }
    for (int i = 0; known != NULL && i < TRIPLES; i++) {
        const Triple *triple = &known->triples[i];
        if (triple->product == NULL)
            continue;
        Py_VISIT(triple->product);
        for (int j = 0; j < 3; j++) {
            Py_VISIT(triple->arrays[j]);
            Py_VISIT(triple->tags[j]);
        }
    }
    return 0;
}

static void
release_dtypes(Key *key)
{
    for (int i = 0; i < 3; i++)
        Py_XDECREF(key->dtypes[i]);
}

static void
release_triple(Triple *triple)
{
    Py_XDECREF(triple->product);
    for (int i = 0; i < 3; i++) {
        Py_XDECREF(triple->arrays[i]);
        Py_XDECREF(triple->tags[i]);
    }
}

void
known_free(Known *known)
{
    for (int i = 0; known != NULL && i < ENTRIES; i++)
        if (known->entries[i].product != NULL) {
            Py_DECREF(known->entries[i].product);
            release_dtypes(&known->entries[i].key);
        }
    for (int i = 0; known != NULL && i < TRIPLES; i++)
        release_triple(&known->triples[i]);
    PyMem_Free(known);
}

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
find_getters(State *state, Known *known, PyTypeObject *array, PyTypeObject *pointer)
{
    Getter getters[GETTERS] = {
        [SHAPE] = {array, state->s.shape, NULL},   [STRIDES] = {array, state->s.strides, NULL},
        [DTYPE] = {array, state->s.dtype, NULL},   [DATA] = {array, state->s.data, NULL},
        [PTR] = {pointer, state->s.ptr, NULL},     [DEVICE_ID] = {pointer, state->s.device_id, NULL},
        [MEM] = {pointer, state->s.mem, NULL},
    };
    int are_fixed = 1;
    for (int i = 0; i < GETTERS; i++) {
        Getter *getter = &getters[i];
        PyObject *found = PyObject_GetAttr((PyObject *)getter->type, getter->name);
        /* The type keeps its descriptor; another type's would take our object for one of its own. */
        if (found != NULL && Py_TYPE(found) == &PyGetSetDescr_Type &&
            PyType_IsSubtype(getter->type, PyDescr_TYPE(found)))
            getter->how = ((PyGetSetDescrObject *)found)->d_getset;
        are_fixed &= i == SHAPE || (found != NULL && is_read_only(found));
        Py_XDECREF(found);
    }
    memcpy(known->getters, getters, sizeof(getters)); /* at once: looking them up may run Python */
    known->are_fixed = are_fixed;
    PyErr_Clear();
}

static PyObject *
get(const Known *known, PyObject *owner, int attribute)
{
    const Getter *getter = &known->getters[attribute];
    if (getter->how != NULL && getter->how->get != NULL && Py_TYPE(owner) == getter->type)
        return getter->how->get(owner, getter->how->closure);
    return PyObject_GetAttr(owner, getter->name);
}

static int
read_pair(const Known *known, PyObject *array, int attribute, long long *into)
{
    PyObject *pair = get(known, array, attribute);
    int found = pair != NULL && PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2;
    for (int i = 0; found && i < 2; i++) {
        into[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(pair, i));
        found = into[i] != -1 || !PyErr_Occurred();
    }
    Py_XDECREF(pair);
    return found;
}

static int
read_shapes(const Known *known, PyObject *const *arrays, Key *key)
{
    for (int i = 0; i < 3; i++)
        if (Py_TYPE(arrays[i]) != known->array_type ||
            !read_pair(known, arrays[i], SHAPE, key->words + 4 * i))
            return 0;
    return 1;
}

/* What the shapes leave open. The dtypes are new references in any case, or NULL. */
static int
read_key(const Known *known, PyObject *const *arrays, Key *key)
{
    memset(key->dtypes, 0, sizeof(key->dtypes));
    for (int i = 0; i < 3; i++) {
        if (!read_pair(known, arrays[i], STRIDES, key->words + 4 * i + 2))
            return 0;
        key->dtypes[i] = get(known, arrays[i], DTYPE);
        if (key->dtypes[i] == NULL)
            return 0;
    }
    return 1;
}

/* Its entry, or the one to put it in. */
static Entry *
entry_of(Known *known, const Key *key)
{
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < 12; i++)
        hash = (hash ^ (uint64_t)key->words[i]) * 1099511628211u;
    for (int i = 0; i < 3; i++)
        hash = (hash ^ (uint64_t)(uintptr_t)key->dtypes[i]) * 1099511628211u;
    hash ^= hash >> 29;
    for (int i = 0; i < PROBES; i++) {
        Entry *entry = &known->entries[(hash + (uint64_t)i) % ENTRIES];
        if (entry->product == NULL || memcmp(&entry->key, key, sizeof(Key)) == 0)
            return entry;
    }
    return &known->entries[hash % ENTRIES];
}

/* What is known by a key, a new reference, or NULL. */
static Product *
known_product(Known *known, const Key *key)
{
    Entry *entry = entry_of(known, key);
    int found = entry->product != NULL && memcmp(&entry->key, key, sizeof(Key)) == 0;
    return found ? (Product *)Py_NewRef(entry->product) : NULL;
}

/* know(out, a, b, product): operands like these were checked. */
static PyObject *
know(PyObject *module, PyObject *args)
{
    State *state = state_of(module);
    Known *known = state->known;
    PyObject *arrays[3], *product;
    Key key = {.dtypes = {NULL}};
    if (!PyArg_ParseTuple(args, "OOOO!:know", &arrays[0], &arrays[1], &arrays[2],
                          state->product_type, &product))
        return NULL;
    if (known == NULL || !read_shapes(known, arrays, &key) || !read_key(known, arrays, &key)) {
        release_dtypes(&key);
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    Entry *entry = entry_of(known, &key);
    Entry before = *entry;
    entry->key = key; /* with its references */
    entry->product = (Product *)Py_NewRef(product);
    if (before.product != NULL) {
        Py_DECREF(before.product);
        release_dtypes(&before.key);
    }
    Py_RETURN_NONE;
}

static int
read_number(const Known *known, PyObject *owner, int attribute, unsigned long long *into)
{
    PyObject *value = get(known, owner, attribute);
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
read_memory(State *state, PyObject *array, const Lane *lane, unsigned long long *at,
            PyObject **tags)
{
    const Known *known = state->known;
    PyObject *data = get(known, array, DATA);
    if (data == NULL)
        return 0;
    unsigned long long device = 0;
    int found = read_number(known, data, PTR, at) &&
                read_number(known, data, DEVICE_ID, &device) &&
                (long long)device == lane->device;
    PyObject *memory = found ? get(known, data, MEM) : NULL;
    found = memory != NULL;
    if (found && Py_TYPE(memory) == known->memory_type) {
        *tags = PyObject_GetAttr(memory, state->s.tags);
        found = *tags != NULL && PyAnySet_Check(*tags);
    }
    Py_XDECREF(memory);
    Py_DECREF(data);
    return found;
}

static Triple *
triple_of(Known *known, PyObject *const *arrays)
{
    uint64_t hash = 0;
    for (int i = 0; i < 3; i++)
        hash = (hash ^ ((uint64_t)(uintptr_t)arrays[i] >> 4)) * 0x9E3779B97F4A7C15u;
    return &known->triples[hash >> 32 & (TRIPLES - 1)];
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
remember(Known *known, PyObject *const *arrays, const Key *key, const Lane *lane, Product *product,
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
    Triple *triple = triple_of(known, arrays), before = new;
    if (made && known->reading == 0) {
        before = *triple;
        *triple = new;
    }
    release_triple(&before);
}

/* Whether memory does not know a lane's stream yet; -1: that cannot be asked. */
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
read_operands(State *state, PyObject *const *arrays, Key *key, const Lane *lane, Sizes *sizes,
              unsigned long long at[3], int *is_new)
{
    Known *known = state->known;
    Product *product = read_key(known, arrays, key) ? known_product(known, key) : NULL;
    release_dtypes(key);
    if (product == NULL)
        return 0;
    *sizes = product->sizes;
    PyObject *tags[3] = {NULL, NULL, NULL};
    int usable = 1;
    for (int i = 0; usable && i < 3; i++)
        usable = read_memory(state, arrays[i], lane, &at[i], &tags[i]);
    if (usable) { /* out overlaps neither; Python looks closer where the outer bounds do */
        unsigned long long last = at[0] + sizes->bytes_out;
        unsigned long long low_a = at[1] - sizes->below_a, low_b = at[2] - sizes->below_b;
        *is_new = is_new_to(lane, tags);
        usable = *is_new >= 0 && !(low_a < last && at[0] < low_a + sizes->bytes_a) &&
                 !(low_b < last && at[0] < low_b + sizes->bytes_b);
    }
    if (usable && known->are_fixed)
        remember(known, arrays, key, lane, product, at, tags);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(tags[i]);
    Py_DECREF(product);
    return usable;
}

/* The same of a triple that was read before. */
static int
read_triple(Known *known, PyObject *const *arrays, const Key *key, const Lane *lane, Sizes *sizes,
            unsigned long long at[3], int *is_new)
{
    const Triple *triple = triple_of(known, arrays);
    int usable;
    known->reading++; /* a set of tags may compare in Python, which may multiply */
    usable = is_triple(triple, arrays, key, lane);
    if (usable) {
        *sizes = triple->product->sizes; /* a copy: no count of references goes from core to core */
        memcpy(at, triple->at, sizeof(triple->at));
        *is_new = is_new_to(lane, triple->tags);
        usable = *is_new >= 0;
    }
    known->reading--;
    return usable;
}

/* Whether somebody is told of calls, or that cannot be asked. */
static int
is_observed(State *state, Lane *lane)
{
    PyObject *observers = PyObject_GetAttr(lane->calls, state->s.observers);
    int observed = observers == NULL ? -1 : PyObject_IsTrue(observers);
    Py_XDECREF(observers);
    return observed != 0;
}

/* mm_out(out, a, b, stream) -> whether it was queued: operands like these were checked before, and
 * a stream of ours is selected on which products ran. */
static PyObject *
mm_out(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *state = state_of(module);
    Known *known = state->known;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "mm_out(out, a, b, stream)");
        return NULL;
    }
    if (known == NULL || Py_TYPE(args[0]) != known->array_type)
        Py_RETURN_FALSE;
    PyObject *stream = args[3] == Py_None ? guarded_stream(state) : Py_NewRef(args[3]);
    Lane *lane = stream == NULL ? NULL : lane_of(state, stream);
    int queued = 0, is_new = 0;
    Key key;
    if (lane != NULL && !is_observed(state, lane) && read_shapes(known, args, &key)) {
        unsigned long long at[3];
        Sizes sizes;
        queued = (read_triple(known, args, &key, lane, &sizes, at, &is_new) ||
                  (!PyErr_Occurred() &&
                   read_operands(state, args, &key, lane, &sizes, at, &is_new))) &&
                 queue_in_lane(state, lane, lane->sm_count, &sizes, at, NULL);
    }
    Py_XDECREF(lane);
    PyErr_Clear();
    int held = 0; /* memory that is new to the stream, until the product is done */
    if (queued && is_new)
        held = done(PyObject_CallMethodObjArgs(stream, state->s.hold, args[0], args[1], args[2], NULL));
    Py_XDECREF(stream);
    return held < 0 ? NULL : PyBool_FromLong(queued);
}

/* serve_products((array, pointer, memory, stream types), (addresses of cublasSetStream, SetWorkspace,
 * SetSmCountTarget, GemmEx and cuCtxGetCurrent)) */
static PyObject *
serve_products(PyObject *module, PyObject *args)
{
    State *state = state_of(module);
    PyTypeObject *types[4]; /* of arrays, pointers, memory and streams */
    unsigned long long at[5];
    if (!PyArg_ParseTuple(args, "(O!O!O!O!)(KKKKK):serve_products", &PyType_Type, &types[0],
                          &PyType_Type, &types[1], &PyType_Type, &types[2], &PyType_Type, &types[3],
                          &at[0], &at[1], &at[2], &at[3], &at[4]))
        return NULL;
    for (int i = 0; i < 5; i++)
        if (at[i] == 0) {
            PyErr_SetString(PyExc_ValueError, "products need the addresses of five functions");
            return NULL;
        }
    for (int i = 0; i < 4; i++)
        if (keep(state, (PyObject *)types[i]) < 0)
            return NULL;
    if (state->known == NULL && (state->known = PyMem_Calloc(1, sizeof(Known))) == NULL)
        return PyErr_NoMemory();
    find_getters(state, state->known, types[0], types[1]);
    state->known->array_type = types[0];
    state->known->memory_type = types[2];
    state->stream_type = types[3];
    state->set_stream = (SetStream)(uintptr_t)at[0];
    state->set_workspace = (SetWorkspace)(uintptr_t)at[1];
    state->set_sm_count = (SetSmCount)(uintptr_t)at[2];
    state->gemm_ex = (GemmEx)(uintptr_t)at[3];
    state->get_current_context = (GetCurrentContext)(uintptr_t)at[4];
    state->forks = forks_of_process;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"serve_products", serve_products, METH_VARARGS, NULL},
    {"know", know, METH_VARARGS, NULL},
    {"mm_out", (PyCFunction)(void (*)(void))mm_out, METH_FASTCALL, NULL},
    {NULL},
};

ADD_FUNCTIONS(add_operands)
