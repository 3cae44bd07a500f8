/* What lines of Python are made of, for who finds launch sites (_sites.c) and who samples stacks
 * (_stacks.c): frames, and code objects, of which all that a line needs is copied at first sight.
 * Later its address tells a code, until it is destroyed. */

#ifndef GPUSCOPE_CODES_H
#define GPUSCOPE_CODES_H

#include "_fastpath.h"

/* Where _PyInterpreterFrame has its code object, the frame that called it, the instruction that it
 * is at, and who owns it; from FRAME_OWNED_BY_CSTACK on it is no frame of Python code. */
#if PY_VERSION_HEX >= 0x030E0000
enum { CODE = 0, PREVIOUS = 8, INSTRUCTION = 56, OWNER = 74, OWNED_BY_C = 3 };
#elif PY_VERSION_HEX >= 0x030C0000
enum { CODE = 0, PREVIOUS = 8, INSTRUCTION = 56, OWNER = 70, OWNED_BY_C = 3 };
#else
enum { CODE = 32, PREVIOUS = 48, INSTRUCTION = 56, OWNER = 69, OWNED_BY_C = 3 };
#endif
enum { OWNED_BY_GENERATOR = 1 };
#define CODE_TAG 7 /* bits of a reference that 3.14 uses for itself */
#define FRAMES_ARE_KNOWN (PY_VERSION_HEX < 0x030F0000)

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

enum { DESTROYED = 256 }; /* so many addresses of destroyed codes are kept */

/* Tell which files are no program's, by how they begin or what they hold, and have codes that are
 * destroyed noted; 0: done, or it was before; -1: error. */
int serve_codes(PyObject *begins, PyObject *holds);
int codes_are_served(void);

/* Copy what a line is made of; NULL: no memory. Give it away for the one that has this content, which
 * is kept as long as the process; NULL: too many. */
Code *copied_code(PyObject *file, PyObject *name, const char *table, size_t table_bytes, int first_line);
const Code *interned_code(Code *code);

uint32_t hash_of_address(uintptr_t at);

/* Have it noted when the code at an address is destroyed. */
void remember_code(uintptr_t at);

/* How many that were remembered have been destroyed, and which since there were `seen`, which becomes
 * how many there are; -1: more than are kept. */
uint64_t codes_destroyed(void);
int destroyed_since(uint64_t *seen, uintptr_t into[DESTROYED]);

/* Of each line (file, qualified name, first line, line table, offset); NULL: error. */
int is_library(const char *file); /* once serve_sites was called */
PyObject *parts_of_lines(const Line *lines, uint32_t count);

#endif
