/* Launch sites: which lines of Python a thread is in, outside installed packages.
 *
 * Whoever asks is called by the very thread whose frames are read: they are suspended in that call,
 * whether it holds Python's lock or not, and hold their code objects. Nothing is written to them, no
 * reference is taken, and no function of Python's is called that would need the lock. Of a code
 * object all that a line is made of is copied at its first sight; later its address tells it, until
 * it is destroyed: the destructor of code objects notes addresses that a thread remembers.
 *
 * All of it is the process's. Codes and sites are kept as long as it lives. */

#include "_codes.h"
#include <pthread.h>

#define DEPTH 2  /* lines of a site */
#define WALK 64  /* frames that are looked at */
#define SETS 256 /* of codes that a thread remembers, by address: each is a line of the cache */
#define WAYS 4
#define SEEN 512 /* sites that a thread remembers */
#define BUCKETS (1 << 14)
#define MOST_SITES (1 << 18)

#define IN_LIBRARY ((uintptr_t)1) /* beside the address of a code */

typedef struct Site {
    struct Site *next;
    uint32_t number, count;
    Line lines[DEPTH]; /* the innermost first */
} Site;

typedef struct {
    struct {
        uintptr_t at;   /* of the code object; 0: none */
        uintptr_t code; /* a `Code *`, and IN_LIBRARY if it is a library's */
    } codes[SETS][WAYS];
    const Site *sites[SEEN];
    uint64_t destroyed; /* how many codes had been, when it last looked */
    uint8_t next[SETS]; /* way that is overwritten next */
} Memory;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Site *sites[BUCKETS], *by_number[MOST_SITES + 1];
static uint32_t site_count;
static int walkers;              /* recordings that ask for sites */
static pthread_key_t memory_key;
static __thread Memory *own_memory;

static void
forget(void *memory)
{
    own_memory = NULL;
    free(memory);
}

static void
renew_lock(void)
{
    pthread_mutex_init(&lock, NULL);
}

static Memory *
memory_of_thread(void)
{
    void *memory;
    if (own_memory == NULL && posix_memalign(&memory, 64, sizeof(Memory)) == 0) {
        memset(memory, 0, sizeof(Memory));
        if (pthread_setspecific(memory_key, memory) == 0)
            own_memory = memory;
        else
            free(memory);
    }
    return own_memory;
}

/* Forget what was destroyed since this thread last looked: the address may be another code's. */
static void
forget_destroyed(Memory *memory)
{
    uintptr_t gone[DESTROYED];
    int count = destroyed_since(&memory->destroyed, gone);
    if (count < 0)
        memset(memory->codes, 0, sizeof(memory->codes));
    for (int i = 0; i < count; i++)
        for (int way = 0; way < WAYS; way++)
            if (memory->codes[hash_of_address(gone[i]) >> 24][way].at == gone[i])
                memory->codes[hash_of_address(gone[i]) >> 24][way].at = 0;
}

/* Return the code at an address, and IN_LIBRARY if it is a library's or what is there is no code; 0: no
 * memory. */
static uintptr_t
code_of(Memory *memory, uintptr_t at)
{
    uint32_t hash = hash_of_address(at), set = hash >> 24;
    for (int way = 0; way < WAYS; way++)
        if (memory->codes[set][way].at == at)
            return memory->codes[set][way].code;
    if (Py_TYPE((const PyObject *)at) != &PyCode_Type)
        return IN_LIBRARY;
    const PyCodeObject *of = (const PyCodeObject *)at;
    const PyObject *table = of->co_linetable;
    Code *copied = copied_code(of->co_filename, of->co_qualname, PyBytes_AS_STRING(table),
                               (size_t)PyBytes_GET_SIZE(table), of->co_firstlineno);
    const Code *code = copied == NULL ? NULL : interned_code(copied);
    if (code == NULL)
        return 0;
    remember_code(at);
    uint8_t way = memory->next[set]++ % WAYS;
    memory->codes[set][way].at = at;
    return memory->codes[set][way].code = (uintptr_t)code | (code->is_library ? IN_LIBRARY : 0);
}

static int
has_lines(const Site *site, const Line *lines, uint32_t count)
{
    if (site == NULL || site->count != count)
        return 0;
    for (uint32_t i = 0; i < count; i++)
        if (site->lines[i].code != lines[i].code || site->lines[i].offset != lines[i].offset)
            return 0;
    return 1;
}

static uint32_t
number_of(Memory *memory, const Line *lines, uint32_t count)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (uint32_t i = 0; i < count; i++)
        hash = (hash ^ (uintptr_t)lines[i].code ^ (uint64_t)lines[i].offset << 40) *
               0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
    const Site *seen = memory->sites[hash % SEEN];
    if (has_lines(seen, lines, count))
        return seen->number;
    pthread_mutex_lock(&lock);
    Site **bucket = &sites[hash % BUCKETS], *site = *bucket;
    while (site != NULL && !has_lines(site, lines, count))
        site = site->next;
    if (site == NULL && site_count < MOST_SITES && (site = calloc(1, sizeof(Site))) != NULL) {
        site->number = ++site_count;
        site->count = count;
        memcpy(site->lines, lines, count * sizeof(Line));
        site->next = *bucket;
        by_number[site->number] = *bucket = site;
    }
    pthread_mutex_unlock(&lock);
    if (site == NULL)
        return 0;
    memory->sites[hash % SEEN] = site;
    return site->number;
}

/* Return the number of the lines that the calling thread is in; 0: none, or not known. */
static uint32_t
find_site(void)
{
    PyThreadState *thread = PyGILState_GetThisThreadState();
    Memory *memory = thread == NULL || !codes_are_served() ? NULL : memory_of_thread();
    if (memory == NULL)
        return 0;
#if PY_VERSION_HEX >= 0x030D0000
    const char *frame = (const char *)thread->current_frame;
#else
    const char *frame = thread->cframe == NULL ? NULL : (const char *)thread->cframe->current_frame;
#endif
    if (memory->destroyed != codes_destroyed())
        forget_destroyed(memory);
    Line lines[DEPTH];
    uint32_t count = 0;
    for (int i = 0; frame != NULL && i < WALK && count < DEPTH; i++) {
        const char *own = frame;
        frame = *(const char *const *)(own + PREVIOUS);
        if (own[OWNER] >= OWNED_BY_C)
            continue;
        uintptr_t at = *(const uintptr_t *)(own + CODE) & ~(uintptr_t)CODE_TAG;
        uintptr_t found = at == 0 ? IN_LIBRARY : code_of(memory, at);
        if (found == 0)
            return 0;
        if (found & IN_LIBRARY)
            continue;
        const char *instruction = *(const char *const *)(own + INSTRUCTION);
        ptrdiff_t offset = instruction - ((const PyCodeObject *)at)->co_code_adaptive;
        lines[count++] = (Line){(const Code *)found, offset < 0 ? 0 : (uint32_t)offset};
    }
    return count == 0 ? 0 : number_of(memory, lines, count);
}

uint32_t
site_of_call(void)
{
    return __atomic_load_n(&walkers, __ATOMIC_RELAXED) > 0 ? find_site() : 0;
}

/* site_here() -> number of the lines that call this, while sites are asked for; else 0 */
static PyObject *
site_here(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromUnsignedLong(site_of_call());
}

/* site_unlocked() -> the same without Python's lock, also if nobody asks for sites */
static PyObject *
site_unlocked(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    uint32_t number;
    Py_BEGIN_ALLOW_THREADS
    number = find_site();
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLong(number);
}

/* ask_for_sites(1 or -1): one more or one less that does. */
static PyObject *
ask_for_sites(PyObject *Py_UNUSED(module), PyObject *step)
{
    long by = PyLong_AsLong(step);
    if (by == -1 && PyErr_Occurred())
        return NULL;
    __atomic_add_fetch(&walkers, (int)by, __ATOMIC_RELAXED);
    Py_RETURN_NONE;
}

/* site_lines(number) -> ((file, qualified name, first line, line table, offset), ...) */
static PyObject *
site_lines(PyObject *Py_UNUSED(module), PyObject *argument)
{
    unsigned long number = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred())
        return NULL;
    pthread_mutex_lock(&lock);
    const Site *site = number <= site_count ? by_number[number] : NULL;
    pthread_mutex_unlock(&lock);
    return site == NULL ? PyTuple_New(0) : parts_of_lines(site->lines, site->count);
}

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static int has_key;

static void
make_key(void)
{
    has_key = pthread_key_create(&memory_key, forget) == 0 &&
              pthread_atfork(NULL, NULL, renew_lock) == 0;
}

/* is_library(UTF-8 of a file's name) -> whether it is no program's */
static PyObject *
is_of_library(PyObject *Py_UNUSED(module), PyObject *file)
{
    if (!codes_are_served())
        return PyErr_Format(PyExc_RuntimeError, "sites are not served yet: import gpuscope");
    const char *text = PyBytes_AsString(file);
    return text == NULL ? NULL : PyBool_FromLong(is_library(text));
}

/* serve_sites(prefixes, marks) -> whether the frames of this Python are known. Files that begin
 * with a prefix or hold a mark are no sites; the first call of a process decides. */
static PyObject *
serve_sites(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *begins, *holds;
    if (!PyArg_ParseTuple(args, "O!O!:serve_sites", &PyTuple_Type, &begins, &PyTuple_Type, &holds))
        return NULL;
    pthread_once(&key_once, make_key);
    if (FRAMES_ARE_KNOWN && has_key && serve_codes(begins, holds) < 0)
        return NULL;
    return PyBool_FromLong(codes_are_served());
}

static PyMethodDef functions[] = {
    {"serve_sites", serve_sites, METH_VARARGS, NULL},
    {"ask_for_sites", ask_for_sites, METH_O, NULL},
    {"site_here", site_here, METH_NOARGS, NULL},
    {"site_unlocked", site_unlocked, METH_NOARGS, NULL},
    {"site_lines", site_lines, METH_O, NULL},
    {"is_library", is_of_library, METH_O, NULL},
    {NULL},
};

ADD_FUNCTIONS(add_sites)
