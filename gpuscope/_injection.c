/* What the CUDA driver loads while it initialises in a process whose CUDA_INJECTION64_PATH names
 * this: tells gpuscope's recorder, if the process is a Python that has one, before CUDA is used.
 *
 * It needs no symbol of Python to be loaded: children of any kind inherit the variable. */

#define _GNU_SOURCE
#include <dlfcn.h>

__attribute__((visibility("default"))) int
InitializeInjection(void)
{
    int (*is_up)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    int (*take)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    void (*give)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
    int (*run)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "PyRun_SimpleString");

    if (is_up && take && give && run && is_up()) {
        int state = take();
        run("getattr(__import__('sys').modules.get('gpuscope.experiments.processes'), 'begin_cuda', int)()");
        give(state);
    }
    return 1;
}
