"""libcupti through cupti-python, and the few of its calls that need C functions.

cupti-python finds and loads libcupti, and its calls that take and give numbers serve as
they are. Its buffer callbacks turn every record into a Python object while work is being
launched; here the two callbacks are C functions that keep a pointer and a length.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from gpuscope._compiled import fastpath
from gpuscope._libcupti import library_path
from gpuscope._optional import require
from gpuscope._types import Array, Bools
from gpuscope.device.api import DeviceInfo
from gpuscope.device.cuda import driver
from gpuscope.errors import CapabilityError
from gpuscope.record.cupti.layout import RUNTIME

_SIZE = ctypes.POINTER(ctypes.c_size_t)
REQUESTED = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), _SIZE, _SIZE)
COMPLETED = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)

DRIVER_API, RUNTIME_API = 1, 2
"""Numbers of ``CUpti_CallbackDomain``."""
LAST_CALLBACK = 2000
"""The numbers of API calls are below, in each domain."""
_CALLBACKS = 2048
_MULTIPLE_SUBSCRIBERS = 39
_NOT_COMPATIBLE = 12
_ZEROED_BUFFERS = 5
_SYSTEM_THREAD_IDS = 1
_FLUSH_FORCED = 1
_NAME_BYTES = 128
LAUNCH, BLOCKING, OF_EVENT, OF_STREAM, OF_CONTEXT, RECORDS, AWAITS, MEMORY, OTHER, ENDS = range(10)
"""What an API call does: it queues work; it copies, and its name says that the host waits; the host
waits for an event, a stream, a context, or asks whether it is done; it records an event; it lets a
stream wait for one; it allocates or frees memory, not in a stream's order; anything else; it ends
an event, which no row tells of."""
_ROLES = {
    "Memcpy(?!.*(Async|Peer))": BLOCKING,
    "(Launch|GraphLaunch|Memcpy|Memset)": LAUNCH,
    "Event(Query|Synchronize)": OF_EVENT,
    "Stream(Query|Synchronize)": OF_STREAM,
    "(Thread|Device|Ctx)Synchronize": OF_CONTEXT,
    "EventRecord": RECORDS,
    "StreamWaitEvent": AWAITS,
    "EventDestroy": ENDS,
    "(Malloc|Free|HostAlloc|HostRegister)(?!.*Async)": MEMORY,
    "Mem(Host)?(Alloc|Free|Create|Map|Unmap|Register)(?!.*Async)": MEMORY,
}
_SUBJECTS = {OF_EVENT: 1, ENDS: 1, OF_STREAM: 2, OF_CONTEXT: 16, RECORDS: 3, AWAITS: 32 | 3}
_PER_THREAD, _QUERY = 4, 8
_OF_GRAPHS = {"GraphInstantiate": 64, "GraphLaunch": 128, "GraphUpload": 192}
"""What ``_launches.c`` knows of the subject of a call, and what its name tells of graphs: see
``_fastpath.h``."""


class _Subscription(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("holder", ctypes.c_void_p),
        ("holder_bytes", ctypes.c_size_t),
    )


class Refused(Exception):
    """Another client holds CUPTI's only subscription; its name is the argument."""


class Library:
    """The calls of libcupti that recording needs."""

    def __init__(self) -> None:
        self.path = library_path()
        self._python: Any = require(
            "cupti.cupti", package="cupti-python", feature="recording with CUPTI"
        )
        self._c = ctypes.CDLL(str(self.path))
        version = ctypes.c_uint32()
        self._c_call("cuptiGetVersion", ctypes.byref(version))
        self.version = version.value
        self.notes_launches = fastpath is not None
        """Whether launches can be noted without CUPTI's own records of API calls."""
        self._callback: Any = _CALLBACK(lambda *_: None)
        if fastpath is not None:
            served = (self._c.cuptiGetTimestamp, self._c.cuptiGetStreamIdEx)
            at = (ctypes.cast(function, ctypes.c_void_p).value for function in served)
            capturing = 0
            with contextlib.suppress(OSError, AttributeError):  # without it nothing is captured
                capturing = driver.address_of("cuStreamIsCapturing")
            calls = itertools.product((DRIVER_API, RUNTIME_API), range(_CALLBACKS))
            subjects = bytes(_subject(self.callback_name(*call)) for call in calls)
            self._callback = ctypes.c_void_p(fastpath.serve_launches(*at, capturing, subjects))
            switches = (self._c.cuptiActivityEnable, self._c.cuptiActivityDisable)
            fastpath.serve_graphs(
                *(ctypes.cast(switch, ctypes.c_void_p).value for switch in switches)
            )

    def _call(self, name: str, *arguments: int) -> Any:
        """Call cupti-python and translate its errors."""
        try:
            return getattr(self._python, name)(*arguments)
        except Exception as error:
            raise CapabilityError(f"CUPTI refuses {name}: {error}") from error

    def _c_call(self, name: str, *arguments: Any) -> None:
        """Call libcupti itself."""
        self._check(getattr(self._c, name)(*arguments), name)

    def _check(self, status: int, what: str) -> None:
        if status:
            text = ctypes.c_char_p()
            self._c.cuptiGetResultString(status, ctypes.byref(text))
            name = (text.value or b"").decode(errors="replace")
            raise CapabilityError(f"{what} failed: {name} ({status})")

    # -- who may record ---------------------------------------------------------------
    def subscribe(self) -> Any:
        """Take CUPTI's one subscription, so that others are refused; returns its handle.

        Raises
        ------
        Refused
            Somebody else holds it.
        """
        holder = ctypes.create_string_buffer(_NAME_BYTES)
        room = ctypes.cast(holder, ctypes.c_void_p), _NAME_BYTES
        request = _Subscription(ctypes.sizeof(_Subscription), b"gpuscope", *room)
        handle = ctypes.c_void_p()
        named = getattr(self._c, "cuptiSubscribe_v2", None)
        status = (
            named(ctypes.byref(handle), self._callback, None, ctypes.byref(request))
            if named is not None
            else self._c.cuptiSubscribe(ctypes.byref(handle), self._callback, None)
        )
        if status in (_MULTIPLE_SUBSCRIBERS, _NOT_COMPATIBLE):
            raise Refused(holder.value.decode(errors="replace"))
        self._check(status, "cuptiSubscribe")
        return handle

    def unsubscribe(self, handle: Any) -> None:
        """Give the subscription back."""
        self._c_call("cuptiUnsubscribe", handle)

    # -- buffers ----------------------------------------------------------------------
    def register(self, requested: Any, completed: Any) -> None:
        """Let CUPTI ask ``requested`` for buffers and give them to ``completed``."""
        self._c_call("cuptiActivityRegisterCallbacks", requested, completed)

    def promise_zeroed_buffers(self, *, promised: bool) -> None:
        """Spare CUPTI to zero buffers itself, which it would do in the launching thread."""
        value, size = ctypes.c_uint8(promised), ctypes.c_size_t(1)
        attribute = (_ZEROED_BUFFERS, ctypes.byref(size), ctypes.byref(value))
        self._c_call("cuptiActivitySetAttribute", *attribute)

    def flush(self, *, forced: bool) -> None:
        """Have CUPTI hand over what is complete, or, forced, everything."""
        self._call("activity_flush_all", _FLUSH_FORCED if forced else 0)

    def dropped(self) -> int:
        """Return how many records were dropped since the last call."""
        count = ctypes.c_size_t()
        self._c_call("cuptiActivityGetNumDroppedRecords", None, 0, ctypes.byref(count))
        return count.value

    # -- what is recorded -------------------------------------------------------------
    def enable(self, kind: int) -> None:
        """Collect records of a kind."""
        self._call("activity_enable", kind)

    def disable(self, kind: int) -> None:
        """Stop collecting records of a kind."""
        self._call("activity_disable", kind)

    def only_launches(self, kind: int) -> None:
        """Of a kind of API record keep those of launches, copies, memsets, graphs and waits.

        Call it behind :meth:`enable`: enabling a kind collects all of its calls. Enabling
        single calls without their kind collects nothing (libcupti 13.0).
        """
        which, domain = ("runtime", RUNTIME_API) if kind == RUNTIME else ("driver", DRIVER_API)
        choose = getattr(self._python, f"activity_enable_{which}_api")
        for callback in self._calls(domain, _is_other):
            choose(callback, 0)

    @cache  # noqa: B019 - one library lives as long as the process
    def _calls(self, domain: int, wanted: Callable[[str], bool]) -> tuple[int, ...]:
        names = {number: self.callback_name(domain, number) for number in range(1, LAST_CALLBACK)}
        return tuple(number for number, name in names.items() if name and wanted(name))

    def note_launches(self, subscription: Any, *domains: int) -> None:
        """Note launches, waits, and what is done with graphs and captures, of these domains alone.

        Of polls only the one is noted that saw the work done.
        """
        for domain in (RUNTIME_API, DRIVER_API):
            for callback in self._calls(domain, _is_noted):
                self._c_call(
                    "cuptiEnableCallback", int(domain in domains), subscription, domain, callback
                )

    def record_graphs(self, period_ns: int) -> None:
        """Record launches of graphs whole, but for one in so many ns of each graph; -1: none whole.

        It needs launches of both APIs to be noted.
        """
        if fastpath is not None:
            fastpath.record_graphs(period_ns)

    @property
    def met_unknown_graph(self) -> bool:
        """Whether a graph was launched that cannot be recorded whole, and none is since."""
        return fastpath is not None and bool(fastpath.met_unknown_graph())

    def limit_launches(self, nbytes: int) -> None:
        """Let what was noted and not taken use that much memory; the rest is dropped."""
        if fastpath is not None:
            fastpath.limit_launches(nbytes)

    def take_launches(self, into: list[tuple[int, bytes]], next_number: Callable[[], int]) -> int:
        """Append what was noted, with a number; returns how many were dropped."""
        return 0 if fastpath is None else int(fastpath.take_launches(into, next_number))

    def time_of_noting(self) -> tuple[float, float] | None:
        """Return how long noting a call took since this was asked last.

        Returns
        -------
        tuple or None
            Mean and its standard error, ns; ``None`` of less than two calls.
        """
        ns, squares, calls = (0, 0, 0) if fastpath is None else fastpath.time_of_noting()
        if calls < 2:
            return None
        mean = ns / calls
        return mean, math.sqrt(max(0.0, squares / calls - mean * mean) / (calls - 1))

    @cache  # noqa: B019 - one library lives as long as the process
    def callback_name(self, domain: int, number: int) -> str:
        """Return the name of an API call, such as ``cudaLaunchKernel_v7000``; empty if none."""
        text = ctypes.c_char_p()
        status = self._c.cuptiGetCallbackName(domain, number, ctypes.byref(text))
        return text.value.decode() if not status and text.value else ""

    # -- ids, devices and time -----------------------------------------------------------------
    def use_system_thread_ids(self) -> Callable[[], None]:
        """Let records carry the system's thread ids; returns what restores the old choice."""
        before = self._call("get_thread_id_type")
        self._call("set_thread_id_type", _SYSTEM_THREAD_IDS)
        return lambda: self._call("set_thread_id_type", before)

    def now_ns(self) -> int:
        """Return CUPTI's time, ns."""
        return int(self._call("get_timestamp"))

    def context_id(self, handle: int) -> int:
        """Return the number that records have for a context."""
        return int(self._call("get_context_id", handle))

    def device_info(self, index: int) -> DeviceInfo:
        """Describe a GPU that records name; see :func:`~gpuscope.device.cuda.driver.info_of`."""
        return driver.info_of(index)

    def stream_id(self, context: int, stream: int, *, per_thread: bool) -> int:
        """Return the number that records have for a stream of a context.

        Parameters
        ----------
        per_thread
            Whether stream 0 means this thread's default stream.
        """
        return int(self._call("get_stream_id_ex", context, stream, int(per_thread)))


def is_apart(apis: Mapping[str, Array]) -> Bools:
    """Whether each API call queues nothing, but orders work, waits for it, or gets memory."""
    apart: Bools = (apis["role"] > BLOCKING) & (apis["role"] < OTHER)
    return apart


def is_wait(apis: Mapping[str, Array]) -> Bools:
    """Whether the host waits in each API call, or sees that work is done."""
    waits: Bools = is_apart(apis) & (apis["role"] < RECORDS) & (apis["returned"] == 0)
    return waits


@cache
def role_of(name: str) -> int:
    """Return what an API call of this name does."""
    names = (begin for begin in _ROLES if re.match(f"_*(cuda|cu){begin}", name))
    return _ROLES.get(next(names, ""), OTHER)


def is_capture(name: str) -> bool:
    """Whether an API call of this name begins to capture a stream."""
    return "StreamBeginCapture" in name


def _is_noted(name: str) -> bool:
    return role_of(name) != OTHER or is_capture(name) or bool(_of_graphs(name))


def _is_other(name: str) -> bool:
    return role_of(name) >= OTHER or "Query" in name  # of each poll it would tell


def _subject(name: str) -> int:
    """Return what a call is about, as ``_launches.c`` knows it."""
    if of_graphs := _of_graphs(name):
        return of_graphs
    subject = _SUBJECTS.get(role_of(name), 0)
    return subject and subject | _PER_THREAD * ("_ptsz" in name) | _QUERY * ("Query" in name)


def _of_graphs(name: str) -> int:
    return next((bits for part, bits in _OF_GRAPHS.items() if part in name), 0)


def text_at(address: int) -> str:
    """Return the C string at an address that a record holds; empty for 0."""
    return ctypes.string_at(address).decode(errors="replace") if address else ""


@cache
def _demangler() -> Callable[[str], str]:
    """Return the C++ runtime's demangler, or one that changes nothing where it is absent."""
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return lambda name: name
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    free.argtypes = [ctypes.c_void_p]

    def demangle(name: str) -> str:
        status = ctypes.c_int()
        address = function(name.encode(), None, None, ctypes.byref(status))
        if not address:
            return name
        try:
            return text_at(address)
        finally:
            free(address)

    return demangle


def demangled(name: str) -> str:
    """Return a kernel's name as its source has it."""
    return _demangler()(name) if name.startswith("_Z") else name
