/* Matrix products as _products.c queues them, for _operands.c, which finds out what to queue. */

#ifndef GPUSCOPE_PRODUCTS_H
#define GPUSCOPE_PRODUCTS_H

#include "_fastpath.h"

/* A matrix product that was checked, as cuBLAS is asked for it: outT = bT . aT. */
typedef struct {
    int transpose_a, transpose_b, m, n, k, row_a, row_b, data, compute;
    unsigned long long one, zero; /* where they are */
    unsigned long long bytes_out, bytes_a, bytes_b, below_a, below_b;
} Sizes;

/* Objects of the types here are made at once and never changed from Python. */
typedef struct {
    PyObject_HEAD
    Sizes sizes;
} Product;

typedef struct Workspace Workspace;
typedef struct BlasHandle BlasHandle;

/* Where products on one stream go, known from one that Python launched there. */
typedef struct {
    PyObject_HEAD
    Workspace *workspace;
    PyObject *calls;    /* has `observers`: where there are any, Python launches */
    PyObject *local;    /* has `native`, this thread's handle */
    PyObject *tag;      /* what memory that is used there remembers */
    BlasHandle *handle; /* of the thread that was here last */
    uint64_t thread;    /* its number, which no other thread gets */
    void *context;      /* current then, so right for the handle */
    long long device;
    int sm_count;
} Lane;

/* How far a product got. Python does what was not, which also says what is wrong. */
enum { TO_PYTHON, QUEUED, RECORDED };

/* Where products on a stream go, if nothing of it has to be asked in Python; a new reference.
 * Sets no error. */
Lane *lane_of(State *state, PyObject *stream);

/* Queue a product of three addresses, and record an event behind it unless that is NULL. Sets no
 * error. */
int queue_in_lane(State *state, Lane *lane, int sm_count, const Sizes *product,
                  const unsigned long long at[3], void *event);

#endif
