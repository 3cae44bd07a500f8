"""The caller's stream for native code: a C function in a capsule."""

from __future__ import annotations

import ctypes

from gpuscope.device.caller import get_caller_stream, process_slot
from gpuscope.device.handles import raw_handle

CAPSULE_NAME = b"gpuscope.caller_stream.v1"
"""Name of the capsule that :func:`caller_stream_capsule` returns."""

_GETTER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))


def _native_getter(out: ctypes.Array[ctypes.c_uint64]) -> int:
    if (stream := get_caller_stream()) is None:
        return 0
    try:
        handle = raw_handle(stream)
    except Exception:  # noqa: BLE001 - C has no exceptions: the caller is told by the value
        return -1
    out[0] = handle
    return 1


def caller_stream_capsule() -> object:
    """Return a capsule with a C function that reads this process's caller stream.

    The function is ``int get(uint64_t *stream)``. It returns 1 and writes the
    ``cudaStream_t`` that the calling thread's innermost guard selected; 0, and writes
    nothing, where no guard is active; −1, and writes nothing, where the selected stream has
    no handle to give, such as a closed one: then launch nothing. It takes the GIL: call it
    from a thread that may wait for it, not while holding a lock that a Python thread may
    want, and not when the interpreter is shutting down. `docs/native.md` has an example.

    Returns
    -------
    capsule
        Named ``gpuscope.caller_stream.v1``; unpack it with ``PyCapsule_GetPointer``. The
        function lives as long as the process, also when this module is reloaded.
    """
    native = vars(process_slot()).setdefault("native", _GETTER(_native_getter))  # never freed
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    capsule: object = new(ctypes.cast(native, ctypes.c_void_p), CAPSULE_NAME, None)
    return capsule
