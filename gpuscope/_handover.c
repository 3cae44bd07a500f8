/* What Python's threads hand over to each other: who woke whom up, for record/handover.py.
 *
 * A thread that has just woken up runs this with the interpreter's lock, for which others wait, and
 * with cold caches: in Python it took several times as long (benchmarks/waits.py). */

#include "_fastpath.h"
#include <time.h>

typedef struct { /* of ranges.py: MOMENT */
    int64_t since, at, by_at; /* a time that is unknown is 0 */
    uint32_t thread, site, name, by_thread, by_site, by_name;
} HandOver;

typedef struct {
    uintptr_t condition;
    int64_t at;
    uint32_t thread, site, name;
} WakeUp;

enum { WAKE_UPS = 4096 };
static WakeUp wake_ups[WAKE_UPS];        /* of each condition the last, as far as there is room */
static __thread struct {
    unsigned long number;
    unsigned forks;
} this_thread;

static WakeUp *
place_of(PyObject *condition)
{
    return &wake_ups[(uint64_t)(uintptr_t)condition * 0x9E3779B97F4A7C15u >> 40 & (WAKE_UPS - 1)];
}

static uint32_t
thread_number(void)
{
    if (this_thread.number == 0 || this_thread.forks != forks_of_process) {
        this_thread.number = PyThread_get_thread_native_id();
        this_thread.forks = forks_of_process;
    }
    return (uint32_t)this_thread.number;
}

static int64_t
now(void) /* as time.time_ns */
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* hands_over(condition, name): the calling thread wakes up who waits for it. */
static PyObject *
hands_over(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    unsigned long name = count == 2 ? PyLong_AsUnsignedLong(args[1]) : 0;
    if (count != 2 || PyErr_Occurred())
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "a condition and a name");
    *place_of(args[0]) =
        (WakeUp){(uintptr_t)args[0], now(), thread_number(), site_of_call(), (uint32_t)name};
    Py_RETURN_NONE;
}

/* handed_over(condition, since, is_woken, name, shortest) -> bytes of a HandOver of the calling thread's,
 * which waited since then and was woken or gave up; None: that took less than the shortest time */
static PyObject *
handed_over(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 5)
        return PyErr_Format(PyExc_TypeError, "a condition, a time, if it is woken, a name, a time");
    int64_t since = PyLong_AsLongLong(args[1]);
    int64_t shortest = PyErr_Occurred() ? 0 : PyLong_AsLongLong(args[4]);
    unsigned long name = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLong(args[3]);
    int is_woken = PyErr_Occurred() ? -1 : PyObject_IsTrue(args[2]);
    if (is_woken < 0)
        return NULL;
    HandOver found = {.since = since, .at = now()};
    if (found.at - since < shortest)
        Py_RETURN_NONE;
    found.thread = thread_number();
    found.site = site_of_call();
    found.name = (uint32_t)name;
    const WakeUp *by = place_of(args[0]);
    if (is_woken && by->condition == (uintptr_t)args[0] && by->at >= since) {
        found.by_at = by->at;
        found.by_thread = by->thread;
        found.by_site = by->site;
        found.by_name = by->name;
    }
    return PyBytes_FromStringAndSize((const char *)&found, sizeof(found));
}

static PyMethodDef functions[] = {
    {"hands_over", (PyCFunction)(void (*)(void))hands_over, METH_FASTCALL, NULL},
    {"handed_over", (PyCFunction)(void (*)(void))handed_over, METH_FASTCALL, NULL},
    {NULL},
};

ADD_FUNCTIONS(add_handovers)
