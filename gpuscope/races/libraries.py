"""What other libraries do while hazards are looked for: PyTorch and CuPy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from gpuscope._types import Untyped
from gpuscope.races.cupy_calls import CuPy
from gpuscope.races.hazard_log import HazardLog, Streams
from gpuscope.races.hazard_notes import Memory, Queue
from gpuscope.races.operators import pytorch
from gpuscope.races.pytorch import PyTorch


@contextlib.contextmanager
def watching_libraries(log: HazardLog) -> Iterator[None]:
    """Tell of the libraries that are imported by now."""
    streams = Streams()
    with contextlib.ExitStack() as undo:
        torch, cupy = pytorch(), sys.modules.get("cupy")
        if torch is not None:
            undo.enter_context(PyTorch(torch, log, streams).watching())
        if cupy is not None:
            undo.enter_context(_watching_memory(cupy, log, streams))
            undo.enter_context(CuPy(cupy, log, streams).watching())
        yield


@contextlib.contextmanager
def _watching_memory(cupy: Untyped, log: HazardLog, streams: Streams) -> Iterator[None]:
    """Tell of memory that this thread gives back to CuPy's pool.

    It gives a piece out again to the stream that it was given to first, in that one's order.
    """
    homes: dict[int, Queue] = {}
    is_on = True

    def made(_hook: object, *, mem_size: int, mem_ptr: int, **_: int) -> None:
        if is_on:  # what was there before is over: the driver waited when it took it back
            log.note(Memory(mem_ptr, mem_ptr + mem_size))

    def given(_hook: object, *, device_id: int, mem_ptr: int, **_: int) -> None:
        if is_on:
            homes[mem_ptr] = streams.queue(device_id, int(cupy.cuda.get_current_stream().ptr))

    def freed(_hook: object, *, mem_ptr: int, mem_size: int, **_: int) -> None:
        home = homes.pop(mem_ptr, None)
        if is_on and home is not None:
            log.note(Memory(mem_ptr, mem_ptr + mem_size, home))

    methods = {
        "name": f"gpuscope {id(homes)}",
        "alloc_postprocess": made,
        "malloc_postprocess": given,
        "free_preprocess": freed,
    }
    hook = type("_Watching", (cupy.cuda.MemoryHook,), methods)()
    try:
        hook.__enter__()
        yield
    finally:
        is_on = False
        with contextlib.suppress(KeyError):  # hooks are of a thread: that of another one stays
            hook.__exit__()
