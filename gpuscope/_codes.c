/* Code objects as lines need them: copied, one for all that say the same, and when they are destroyed.
 *
 * All of it is the process's. Codes are kept as long as it lives. */

#include "_codes.h"
#include <pthread.h>

#define BUCKETS (1 << 14)
#define MOST_CODE_BYTES ((size_t)64 << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Code *codes[BUCKETS];
static size_t code_bytes;
static char **prefixes, **marks;       /* of files that are no program's; each ends with NULL */
static uint8_t is_remembered[1 << 16]; /* by anybody, perhaps: codes whose address has this hash */
static uintptr_t destroyed[DESTROYED]; /* the latest addresses of codes that were remembered */
static uint64_t destroyed_count;
static destructor destroy_code; /* Python's own */

static void
renew_lock(void)
{
    pthread_mutex_init(&lock, NULL);
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

int
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

Code *
copied_code(PyObject *file, PyObject *name, const char *table, size_t table_bytes, int first_line)
{
    size_t file_bytes = put_text(file, NULL), name_bytes = put_text(name, NULL);
    size_t content = file_bytes + name_bytes + table_bytes;
    Code *code = calloc(1, sizeof(Code) + content + 1);
    if (code == NULL)
        return NULL;
    put_text(file, code->content);
    code->is_library = is_library(code->content); /* it ends with a 0 still */
    put_text(name, code->content + file_bytes);
    memcpy(code->content + file_bytes + name_bytes, table, table_bytes);
    code->first_line = first_line;
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

const Code *
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

uint32_t
hash_of_address(uintptr_t at)
{
    return (uint32_t)(at >> 4) * 0x9E3779B1u;
}

/* Python's destructor of code objects, and a note where somebody may remember this one. Python offers
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


void
remember_code(uintptr_t at)
{
    __atomic_store_n(&is_remembered[hash_of_address(at) >> 16], 1, __ATOMIC_SEQ_CST);
}

uint64_t
codes_destroyed(void)
{
    return __atomic_load_n(&destroyed_count, __ATOMIC_ACQUIRE);
}

int
destroyed_since(uint64_t *seen, uintptr_t into[DESTROYED])
{
    int count = 0;
    pthread_mutex_lock(&lock);
    if (destroyed_count - *seen > DESTROYED)
        count = -1;
    else
        for (uint64_t number = *seen; number < destroyed_count; number++)
            into[count++] = destroyed[number % DESTROYED];
    *seen = destroyed_count;
    pthread_mutex_unlock(&lock);
    return count;
}

PyObject *
parts_of_lines(const Line *lines, uint32_t count)
{
    PyObject *all = PyTuple_New(count);
    for (uint32_t i = 0; all != NULL && i < count; i++) {
        const Code *code = lines[i].code;
        const char *name = code->content + code->file_bytes;
        PyObject *parts = Py_BuildValue(
            "s#s#iy#I", code->content, (Py_ssize_t)code->file_bytes, name,
            (Py_ssize_t)code->name_bytes, code->first_line, name + code->name_bytes,
            (Py_ssize_t)code->table_bytes, (unsigned)lines[i].offset);
        if (parts == NULL)
            Py_CLEAR(all);
        else
            PyTuple_SET_ITEM(all, i, parts);
    }
    return all;
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

static void
watch_forks(void)
{
    pthread_atfork(NULL, NULL, renew_lock);
}

int
codes_are_served(void)
{
    return __atomic_load_n(&prefixes, __ATOMIC_ACQUIRE) != NULL;
}

int
serve_codes(PyObject *begins, PyObject *holds)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    if (codes_are_served())
        return 0;
    char **of_marks = texts_of(holds), **of_prefixes = texts_of(begins);
    if (of_marks == NULL || of_prefixes == NULL) {
        if (!PyErr_Occurred())
            PyErr_NoMemory();
        return -1;
    }
    marks = of_marks;
    pthread_mutex_lock(&lock); /* another interpreter may be here, too */
    if (PyCode_Type.tp_dealloc != forget_code) {
        destroy_code = PyCode_Type.tp_dealloc;
        PyCode_Type.tp_dealloc = forget_code;
    }
    pthread_mutex_unlock(&lock);
    __atomic_store_n(&prefixes, of_prefixes, __ATOMIC_RELEASE);
    return 0;
}
