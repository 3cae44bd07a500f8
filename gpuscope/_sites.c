/* Launch sites: which lines of Python a thread is in, outside installed packages.
 *
 * Whoever asks is called by the very thread whose frames are read: they are suspended in that call,
 * whether it holds Python's lock or not, and hold their code objects. Nothing is written to them, no
 * reference is taken, and no function of Python's is called that would need the lock. Of a code
 * object all that a line is made of is copied at its first sight; later its address tells it, until
 * it is destroyed: the destructor of code objects notes addresses that a thread remembers.
 *
 * All of it is the process's. Codes and sites are kept as long as it lives. */

#include "_fastpath.h"
#include <pthread.h>

#define DEPTH 2  /* lines of a site */
#define WALK 64  /* frames that are looked at */
#define SETS 256 /* of codes that a thread remembers, by address: each is a line of the cache */
#define WAYS 4
#define SEEN 512 /* sites that a thread remembers */
#define DESTROYED 256
#define BUCKETS (1 << 14)
#define MOST_SITES (1 << 18)
#define MOST_CODE_BYTES ((size_t)64 << 20)

/* Where _PyInterpreterFrame has its code object, the frame that called it, the instruction that it
 * is at, and who owns it; from FRAME_OWNED_BY_CSTACK on it is no frame of Python code. */
#if PY_VERSION_HEX >= 0x030E0000
enum { CODE = 0, PREVIOUS = 8, INSTRUCTION = 56, OWNER = 74, OWNED_BY_C = 3 };
#elif PY_VERSION_HEX >= 0x030C0000
enum { CODE = 0, PREVIOUS = 8, INSTRUCTION = 56, OWNER = 70, OWNED_BY_C = 3 };
#else
enum { CODE = 32, PREVIOUS = 48, INSTRUCTION = 56, OWNER = 69, OWNED_BY_C = 3 };
#endif
#define IN_LIBRARY ((uintptr_t)1) /* beside the address of a code */
#define TAG 7 /* bits of a reference that 3.14 uses for itself */
#define IS_KNOWN (PY_VERSION_HEX < 0x030F0000)

typedef struct Code {
    struct Code *next; /* of its bucket */
    uint64_t hash;
    int is_library, first_line;
    uint32_t file_bytes, name_bytes, table_bytes;
    char content[]; /* file and qualified name in UTF-8, line table */
} Code;

typedef struct {
    const Code *code;
    uint32_t offset; /* of the instruction, bytes */
} Line;

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
static Code *codes[BUCKETS];
static Site *sites[BUCKETS], *by_number[MOST_SITES + 1];
static uint32_t site_count;
static size_t code_bytes;
static char **prefixes, **marks; /* of files that are no site; each ends with NULL */
static int walkers;              /* recordings that ask for sites */
static pthread_key_t memory_key;
static __thread Memory *own_memory;
static uint8_t is_remembered[1 << 16]; /* by a thread, perhaps: codes whose address has this hash */
static uintptr_t destroyed[DESTROYED]; /* the latest addresses of codes that were remembered */
static uint64_t destroyed_count;
static destructor destroy_code; /* Python's own */

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

static uint64_t
hash_of(const void *bytes, size_t count, uint64_t hash)
{
    const unsigned char *at = bytes;
    while (count-- > 0)
        hash = (hash ^ *at++) * 0x100000001B3u; /* FNV-1a */
    return hash;
}

/* Write a text as UTF-8, if there is a place; return how many bytes it takes. */
static size_t
put_text(PyObject *text, char *into)
{
    size_t count = 0;
    Py_ssize_t length = PyUnicode_GET_LENGTH(text);
    int kind = PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    for (Py_ssize_t i = 0; i < length; i++) {
        Py_UCS4 letter = PyUnicode_READ(kind, data, i);
        if (letter >= 0xD800 && letter < 0xE000)
            letter = '?'; /* UTF-8 has no lone surrogates */
        int more = letter < 0x80 ? 0 : letter < 0x800 ? 1 : letter < 0x10000 ? 2 : 3;
        static const unsigned char first[] = {0, 0xC0, 0xE0, 0xF0};
        if (into != NULL) {
            into[count] = (char)(first[more] | letter >> 6 * more);
            for (int rest = 1; rest <= more; rest++)
                into[count + (size_t)rest] = (char)(0x80 | (letter >> 6 * (more - rest) & 0x3F));
        }
        count += 1 + (size_t)more;
    }
    return count;
}

static int
is_library(const char *file)
{
    for (char **prefix = prefixes; *prefix != NULL; prefix++)
        if (strncmp(file, *prefix, strlen(*prefix)) == 0)
            return 1;
    for (char **mark = marks; *mark != NULL; mark++)
        if (strstr(file, *mark) != NULL)
            return 1;
    return 0;
}

/* Copy what a line is made of; NULL: no memory. */
static Code *
copy_of(const PyCodeObject *of)
{
    PyObject *file = of->co_filename, *name = of->co_qualname, *table = of->co_linetable;
    size_t file_bytes = put_text(file, NULL), name_bytes = put_text(name, NULL);
    size_t table_bytes = (size_t)PyBytes_GET_SIZE(table);
    size_t content = file_bytes + name_bytes + table_bytes;
    Code *code = calloc(1, sizeof(Code) + content + 1);
    if (code == NULL)
        return NULL;
    put_text(file, code->content);
    code->is_library = is_library(code->content); /* it ends with a 0 still */
    put_text(name, code->content + file_bytes);
    memcpy(code->content + file_bytes + name_bytes, PyBytes_AS_STRING(table), table_bytes);
    code->first_line = of->co_firstlineno;
    code->file_bytes = (uint32_t)file_bytes;
    code->name_bytes = (uint32_t)name_bytes;
    code->table_bytes = (uint32_t)table_bytes;
    code->hash = hash_of(code->content, content, (uint64_t)code->first_line);
    return code;
}

static size_t
nbytes_of(const Code *code)
{
    return code->file_bytes + code->name_bytes + code->table_bytes;
}

static int
is_same(const Code *a, const Code *b)
{
    return a->hash == b->hash && a->first_line == b->first_line &&
           a->file_bytes == b->file_bytes && a->name_bytes == b->name_bytes &&
           a->table_bytes == b->table_bytes && memcmp(a->content, b->content, nbytes_of(a)) == 0;
}

/* Return the one code that has this content, and free what is not kept; NULL: too many. */
static const Code *
interned_code(Code *code)
{
    pthread_mutex_lock(&lock);
    Code **bucket = &codes[code->hash % BUCKETS], *there = *bucket;
    while (there != NULL && !is_same(there, code))
        there = there->next;
    if (there == NULL && code_bytes + nbytes_of(code) <= MOST_CODE_BYTES) {
        code_bytes += sizeof(Code) + nbytes_of(code);
        code->next = *bucket;
        there = *bucket = code;
    }
    pthread_mutex_unlock(&lock);
    if (there != code)
        free(code);
    return there;
}

static uint32_t
hash_of_address(uintptr_t at)
{
    return (uint32_t)(at >> 4) * 0x9E3779B1u;
}

/* Python's destructor of code objects, and a note where a thread may remember this one. Python offers
 * watchers of code objects from 3.12 on only, to each interpreter for itself. */
static void
forget_code(PyObject *code)
{
    uintptr_t at = (uintptr_t)code;
    if (__atomic_load_n(&is_remembered[hash_of_address(at) >> 16], __ATOMIC_RELAXED)) {
        pthread_mutex_lock(&lock);
        destroyed[destroyed_count % DESTROYED] = at;
        __atomic_store_n(&destroyed_count, destroyed_count + 1, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&lock);
    }
    destroy_code(code);
}

/* Forget what was destroyed since this thread last looked: the address may be another code's. */
static void
forget_destroyed(Memory *memory)
{
    pthread_mutex_lock(&lock);
    if (destroyed_count - memory->destroyed > DESTROYED)
        memset(memory->codes, 0, sizeof(memory->codes));
    else
        for (; memory->destroyed < destroyed_count; memory->destroyed++) {
            uintptr_t at = destroyed[memory->destroyed % DESTROYED];
            for (int way = 0; way < WAYS; way++)
                if (memory->codes[hash_of_address(at) >> 24][way].at == at)
                    memory->codes[hash_of_address(at) >> 24][way].at = 0;
        }
    memory->destroyed = destroyed_count;
    pthread_mutex_unlock(&lock);
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
    Code *copied = copy_of((const PyCodeObject *)at);
    const Code *code = copied == NULL ? NULL : interned_code(copied);
    if (code == NULL)
        return 0;
    __atomic_store_n(&is_remembered[hash >> 16], 1, __ATOMIC_RELAXED);
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
    Memory *memory = thread == NULL || prefixes == NULL ? NULL : memory_of_thread();
    if (memory == NULL)
        return 0;
#if PY_VERSION_HEX >= 0x030D0000
    const char *frame = (const char *)thread->current_frame;
#else
    const char *frame = thread->cframe == NULL ? NULL : (const char *)thread->cframe->current_frame;
#endif
    if (memory->destroyed != __atomic_load_n(&destroyed_count, __ATOMIC_ACQUIRE))
        forget_destroyed(memory);
    Line lines[DEPTH];
    uint32_t count = 0;
    for (int i = 0; frame != NULL && i < WALK && count < DEPTH; i++) {
        const char *own = frame;
        frame = *(const char *const *)(own + PREVIOUS);
        if (own[OWNER] >= OWNED_BY_C)
            continue;
        uintptr_t at = *(const uintptr_t *)(own + CODE) & ~(uintptr_t)TAG;
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
    PyObject *lines = PyTuple_New(site == NULL ? 0 : site->count);
    for (uint32_t i = 0; site != NULL && lines != NULL && i < site->count; i++) {
        const Code *code = site->lines[i].code;
        const char *name = code->content + code->file_bytes;
        PyObject *line = Py_BuildValue(
            "s#s#iy#I", code->content, (Py_ssize_t)code->file_bytes, name,
            (Py_ssize_t)code->name_bytes, code->first_line, name + code->name_bytes,
            (Py_ssize_t)code->table_bytes, (unsigned)site->lines[i].offset);
        if (line == NULL)
            Py_CLEAR(lines);
        else
            PyTuple_SET_ITEM(lines, i, line);
    }
    return lines;
}

static char **
texts_of(PyObject *tuple)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    char **texts = calloc((size_t)count + 1, sizeof(char *));
    for (Py_ssize_t i = 0; texts != NULL && i < count; i++) {
        const char *text = PyUnicode_AsUTF8(PyTuple_GET_ITEM(tuple, i));
        texts[i] = text == NULL ? NULL : strdup(text);
        if (texts[i] == NULL)
            return NULL; /* what was copied is little, and the process's */
    }
    return texts;
}

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static int has_key;

static void
make_key(void)
{
    has_key = pthread_key_create(&memory_key, forget) == 0 &&
              pthread_atfork(NULL, NULL, renew_lock) == 0;
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
    if (IS_KNOWN && has_key && prefixes == NULL) {
        char **of_marks = texts_of(holds), **of_prefixes = texts_of(begins);
        if (of_marks == NULL || of_prefixes == NULL)
            return PyErr_Occurred() ? NULL : PyErr_NoMemory();
        marks = of_marks;
        pthread_mutex_lock(&lock); /* another interpreter may be here, too */
        if (PyCode_Type.tp_dealloc != forget_code) {
            destroy_code = PyCode_Type.tp_dealloc;
            PyCode_Type.tp_dealloc = forget_code;
        }
        pthread_mutex_unlock(&lock);
        __atomic_store_n(&prefixes, of_prefixes, __ATOMIC_RELEASE);
    }
    return PyBool_FromLong(prefixes != NULL);
}

static PyMethodDef functions[] = {
    {"serve_sites", serve_sites, METH_VARARGS, NULL},
    {"ask_for_sites", ask_for_sites, METH_O, NULL},
    {"site_here", site_here, METH_NOARGS, NULL},
    {"site_unlocked", site_unlocked, METH_NOARGS, NULL},
    {"site_lines", site_lines, METH_O, NULL},
    {NULL},
};

ADD_FUNCTIONS(add_sites)
