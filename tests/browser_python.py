"""Makes this process like Python in a browser, as far as gpuscope can tell: import it first.

Pyodide starts no threads and no processes, has no other programs, no native ids of threads, no
timers and no ``resource``, and the default integer of its NumPy has 32 bits.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np


def _no_thread(*_: object, **__: object) -> None:
    raise RuntimeError("can't start new thread")


def _no_process(*_: object, **__: object) -> None:
    raise OSError(138, "emscripten does not support processes.")


del threading.get_native_id, threading.Thread.native_id, signal.setitimer, signal.alarm
threading.Thread.start = _no_thread
os.fork = subprocess.Popen.__init__ = _no_process
shutil.which = lambda *_, **__: None
sys.modules["resource"] = None


def _is_python(value: object) -> bool:
    """Return whether NumPy chooses the integer type: it is given Python's own numbers."""
    if isinstance(value, list | tuple | range):
        return all(map(_is_python, value))
    return isinstance(value, int)


def _narrow(found: Any) -> Any:
    if isinstance(found, tuple):
        return tuple(map(_narrow, found))
    fits = np.iinfo(np.int32)
    is_long = isinstance(found, np.ndarray) and found.dtype == np.int64
    within = is_long and (not found.size or (found.max() <= fits.max and found.min() >= fits.min))
    return found.astype(np.int32) if within else found


def _made(name: str, types_at: int) -> None:
    """Have a function that makes arrays of Python's numbers make 32-bit integers of them."""
    make = getattr(np, name)

    def narrow(*given: Any, **options: Any) -> Any:
        asked = options.get("dtype", given[types_at] if len(given) > types_at else None)
        values = given[1:2] if name == "full" else given[:types_at]
        chosen = asked is int or (asked is None and _is_python(values))
        made = make(*given, **options)
        return _narrow(made) if chosen else made

    setattr(np, name, narrow)


def _indices(name: str) -> None:
    """Have a function that returns positions, or counts, return 32-bit integers."""
    find = getattr(np, name)
    setattr(np, name, lambda *given, **options: _narrow(find(*given, **options)))


def _cumsum() -> None:
    add = np.cumsum

    def narrow(values: Any, axis: Any = None, dtype: Any = None, **options: Any) -> Any:
        small = np.asanyarray(values).dtype.kind in "biu" and np.asanyarray(values).itemsize <= 4
        return add(values, axis, np.int32 if small and dtype is None else dtype, **options)

    np.cumsum = narrow


for one, at in {"array": 1, "asarray": 1, "arange": 3, "zeros": 1, "full": 2}.items():
    _made(one, at)
for one in ("flatnonzero", "nonzero", "argsort", "lexsort", "searchsorted", "bincount"):
    _indices(one)
_cumsum()
