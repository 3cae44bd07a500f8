"""``confirm``: run a program again with one piece of its work delayed, and compare its results."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

import numpy as np
from msgspec.structs import replace

from gpuscope._checks import door
from gpuscope._threads import thread_number
from gpuscope._types import Untyped
from gpuscope.device.api import Activity
from gpuscope.device.calls import QUEUES_WORK, Call
from gpuscope.device.captured import Captured
from gpuscope.device.device import Device
from gpuscope.device.select import observing, open_devices
from gpuscope.device.stream import Stream
from gpuscope.device.views import GraphView, StreamView
from gpuscope.errors import GpuscopeError
from gpuscope.experiments.profiling import profile
from gpuscope.races import operators
from gpuscope.races.hazard_log import HazardLog, Streams, queue_of
from gpuscope.races.outside import row_of_node
from gpuscope.races.wrapped import wrapped
from gpuscope.record.rows import node_row
from gpuscope.trace.facts import HazardFact
from gpuscope.workloads.delay import Delay

Program = Callable[[], object]
_LEAST_NS, _MOST_NS = 20_000_000, 2_000_000_000
"""A delay outlasts what else the program does, within these bounds: it ends by itself."""

_Key = tuple[str, str, bool]
"""Name of a piece of work, and of its stream; whether it is captured."""
_Launch = tuple[_Key, int]
"""The n-th piece of work of a name on a stream."""
_NUMBERED = re.compile(r"(?:(stream|graph) )?0x[0-9a-f]+|(stream|graph) \d+")
"""A name that nobody gave: its number is another one in each run."""


class _Untried(GpuscopeError):
    """Why a hazard could not be tried."""


@door(hazard=HazardFact, program=Callable, device=(Device, None))
def confirm(hazard: HazardFact, program: Program, device: Device | None = None) -> HazardFact:
    """Run a program with the first work of a hazard delayed, and compare what it returns.

    The program runs five times: twice as it is, whose results must agree byte by byte; once to
    find the hazard in it; once with a kernel that spins queued in front of the first work; and,
    as the race may be lost every time, once with the host waiting behind that work, or in a graph
    that the program captures with the second work delayed. All of them end by themselves.

    Parameters
    ----------
    hazard
        One of :attr:`HazardsResult.found <gpuscope.analysis.HazardsResult>`.
    program
        A function without arguments that does everything anew: it makes its arrays, launches, and
        returns what the hazard could spoil, such as the array that the consumer writes: an array
        of the device or of a library, a NumPy array, a number, or several of these. It must not
        wait for the device itself where the hazard is.
    device
        As :func:`~gpuscope.profile` takes it.

    Returns
    -------
    HazardFact
        The hazard with a ``status``: ``"confirmed"``, a result changed; ``"not reproduced"``;
        or ``"could not be tried: …"`` and why.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> def program():
    ...     made, read = gpu.asarray([0.0, 0.0]), gpu.asarray([0.0, 0.0])
    ...     with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
    ...         a.copy(made, gpu.asarray([1.0, 1.0]))
    ...         b.copy(read, made)
    ...     return read
    >>> with gs.profile(gpu, hazards=True) as recording:
    ...     _ = program()
    >>> (hazard,) = gs.analysis.hazards(recording.trace).found
    >>> gs.confirm(hazard, program, gpu).status
    'confirmed'
    """
    try:
        return replace(hazard, status=_tried(hazard, program, device))
    except _Untried as why:
        return replace(hazard, status=f"could not be tried: {why}")


def _tried(hazard: HazardFact, program: Program, device: Device | None) -> str:
    """Return what became of a program whose first work of a hazard was delayed."""
    result = _result(program)
    if result != _result(program):
        raise _Untried("not deterministic: results differ from run to run, without a delay too")
    if not result:
        raise _Untried("the program returns nothing that could be compared")
    first, second, took_ns = _find(hazard, program, device)
    length_ns = min(_MOST_NS, max(_LEAST_NS, 4 * took_ns))
    for gpu in open_devices():
        if gpu.capabilities.streams:  # a kernel that is captured must be loaded
            with gpu.create_stream() as stream:
                Delay(gpu, 0).in_stream(stream)
    other: _DelayBefore = _WaitBehind(first, length_ns)
    if first[0][2] and second is not None:  # no host waits behind a graph's node
        other = _DelayBefore(second, length_ns)
    for watch in (_DelayBefore(first, length_ns), other):
        with _watching(watch):
            changed = _result(program) != result
        if watch.work is None:
            raise _Untried("in a further run the work was not launched")
        if changed:
            return "confirmed"
    return "not reproduced"


def _result(program: Program) -> list[bytes]:
    """Run the program; returns the bytes of all that it returns."""
    value = program()
    for device in open_devices():
        device.synchronize()
    return list(_bytes_of(value))


def _bytes_of(value: object) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        for item in value:
            yield from _bytes_of(item)
        return
    if value is None:
        return
    try:
        if hasattr(value, "untyped_storage"):  # PyTorch's, some of whose types NumPy lacks
            tensor: Untyped = value
            value = tensor.detach().cpu().reshape(-1).view(sys.modules["torch"].uint8).numpy()
        elif not isinstance(value, np.ndarray | np.generic | int | float | bool | str | bytes):
            for device in open_devices():
                with suppress(GpuscopeError):
                    array = device.backend.adopt(value)
                    if array is not None:
                        value = device.to_host(array)
                        break
        array = np.asarray(value)
    except Exception as error:  # an array of another library may refuse in its own way
        raise _Untried(f"NumPy cannot read what the program returns ({error})") from error
    if array.dtype == object:
        raise _Untried(f"the program returns {type(value).__name__}, which is no array or number")
    yield array.tobytes()


def _find(
    hazard: HazardFact, program: Program, device: Device | None
) -> tuple[_Launch, _Launch | None, int]:
    """Return which launches the first and the second work are, and how long a run takes, ns."""
    census = _Census()
    with _watching(census), profile(device, hazards=True) as recording:
        logs = [observer for observer in recording.observers if isinstance(observer, HazardLog)]
        census.log = logs[0] if logs else None
        program()
    facts = recording.trace.metadata.hazards
    ((begin_ns, end_ns),) = recording.trace.metadata.windows_ns
    shown = facts is not None and any(_names(fact) == _names(hazard) for fact in facts.found)
    # As the log tells them: of an operator the trace has the row of what it launched.
    for fact in logs[0].facts().found if logs and shown else ():
        rows = fact.first or 0, fact.second or 0
        first, second = (census.launch_of.get(row) for row in rows)
        if first is None or _names(fact) != _names(hazard):
            continue
        if first == second:
            first, second = (census.nodes.get(row) for row in rows)
        if first is None or second == first:
            raise _Untried("both are in one graph, which was captured before: capture it anew")
        return first, second, end_ns - begin_ns
    raise _Untried(
        f"the program shows no {hazard.kind} of {hazard.second_name!r} after "
        f"{hazard.first_name!r} whose first work is a launch of ours, or an operator or a graph "
        "of PyTorch's"
    )


def _names(hazard: HazardFact) -> tuple[str, ...]:
    """Return what a hazard has in common with itself in another run."""
    streams = map(_name, (hazard.first_stream, hazard.second_stream))
    return hazard.kind, hazard.first_name, hazard.second_name, *streams


def _name(name: str) -> str:
    """Return a name as it is in each run."""
    numbered = _NUMBERED.fullmatch(name)
    return name if numbered is None else numbered[1] or numbered[2] or ""


class _Queued(NamedTuple):
    """Work that is queued next: what stands for it, where, and its rows in a recording's log."""

    work: object
    stream: StreamView[object]
    launch: _Launch
    rows: list[int]


class _Watch:
    """Watches what is queued, by us and by PyTorch; counts it by name and stream."""

    log: HazardLog | None = None
    """Of the recording, if there is one."""

    def __init__(self) -> None:
        self._counts: Counter[_Key] = Counter()
        self._streams = Streams()
        self._replay: object = None

    def call_begins(self, call: Call) -> None:
        """Count a call that queues work."""
        if call.kind in QUEUES_WORK and call.stream is not None:
            nodes = range(max(1, len(call.graph.captured.nodes)) if call.graph is not None else 1)
            rows = [node_row(call.correlation, node) for node in nodes]
            self._count(call, call.stream, call.name, rows)

    def call_captured(self, call: Call) -> None:
        """Count a call that makes a graph's node."""
        if call.kind in QUEUES_WORK and call.stream is not None:
            self._count(call, call.stream, call.name, [])

    def dispatch(
        self,
        torch: Untyped,
        function: Untyped,
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> object:
        """Run an operator of PyTorch's, and count it."""
        operator, stream = operators.operator_of(function), self._current(torch)
        if operator is None or stream is None:
            return function(*args, **kwargs)
        work, rows = object(), [self.log.outside.next_row] if self.log is not None else []
        self._count(work, stream, operator.name, rows, captured=operators.is_capturing(torch))
        result = function(*args, **kwargs)
        self.ends(work, stream)
        return result

    def replay_begins(self, torch: Untyped, graph: Untyped) -> None:
        """Count a launch of a graph of PyTorch's."""
        stream, self._replay, rows = self._current(torch), object(), []
        captured = self.log.graphs.get(graph) if self.log is not None else None
        if self.log is not None and captured is not None:
            row, nodes = self.log.outside.next_row, range(len(captured.nodes))
            rows = [row_of_node(row, node) for node in nodes]
            self.launches(captured, rows)
        if stream is not None:
            self._count(self._replay, stream, "CUDAGraph", rows)

    def replay_ends(self, torch: Untyped, *_told: object) -> None:
        """Pass on its end."""
        stream = self._current(torch)
        if stream is not None:
            self.ends(self._replay, stream)

    def _current(self, torch: Untyped) -> Stream | None:
        gpu = torch._C._cuda_getDevice()
        stream = self._streams.stream(gpu, operators.current_stream(torch, gpu))
        return cast("Stream | None", stream)

    def launches(self, captured: Captured, rows: list[int]) -> None:
        """Take note of the rows of the nodes of PyTorch's graph that is launched next."""

    def _count(
        self,
        work: object,
        stream: StreamView[object],
        name: str,
        rows: list[int],
        *,
        captured: bool = False,
    ) -> None:
        key = _name(name), _name(stream.name), captured or stream.capturing
        self.begins(_Queued(work, stream, (key, self._counts[key]), rows))
        self._counts[key] += 1

    def begins(self, queued: _Queued) -> None:
        """Take note of work that is queued next."""

    def ends(self, work: object, stream: Stream) -> None:
        """Take note that it is queued."""

    def call_ends(self, call: Call) -> None:
        """Pass on the end of a call that queues work."""
        if call.kind in QUEUES_WORK and call.stream is not None:
            self.ends(call, cast("Stream", call.stream))

    def activity(self, activity: Activity) -> None:
        """Pass over what a device did."""


@contextmanager
def _watching(watch: _Watch) -> Iterator[None]:
    """Let it watch the devices, and PyTorch where it is imported."""
    torch = operators.pytorch()
    with ExitStack() as undo:
        undo.enter_context(observing(watch))
        if torch is not None:
            begins = partial(watch.replay_begins, torch)
            ends = partial(watch.replay_ends, torch)
            undo.enter_context(wrapped(torch.cuda.CUDAGraph, "replay", ends, begins))
            undo.enter_context(operators.watching(torch, partial(watch.dispatch, torch)))
        yield


class _Census(_Watch):
    """Notes which row is the n-th of its name and stream."""

    def __init__(self) -> None:
        super().__init__()
        self.launch_of: dict[int, _Launch] = {}
        self.nodes: dict[int, _Launch] = {}
        """Rows of the nodes of PyTorch's graphs → where they were captured."""
        self._captured: WeakKeyDictionary[GraphView, list[_Launch]] = WeakKeyDictionary()
        self._others: WeakKeyDictionary[Captured, dict[int, _Launch]] = WeakKeyDictionary()

    def launches(self, captured: Captured, rows: list[int]) -> None:
        """Note where each of the nodes was captured, if that was seen."""
        launch_of = self._others.get(captured, {})
        launch_of_row = {
            rows[node]: launch for node, launch in launch_of.items() if node < len(rows)
        }
        self.nodes.update(launch_of_row)

    def begins(self, queued: _Queued) -> None:
        """Note the row of the work, or those of a graph's nodes."""
        work, graph = queued.work, queued.stream.graph
        queue = queue_of(queued.stream, thread_number())
        captured = self.log.captured(queue) if self.log is not None else None
        if graph is not None:
            self._captured.setdefault(graph, []).append(queued.launch)
        elif captured is not None:
            if queued.launch[0][2]:  # if it makes no node, the next one takes the number
                self._others.setdefault(captured, {})[len(captured.nodes)] = queued.launch
        elif isinstance(work, Call) and work.graph is not None and work.graph in self._captured:
            self.launch_of.update(zip(queued.rows, self._captured[work.graph], strict=False))
        else:
            self.launch_of.update(dict.fromkeys(queued.rows, queued.launch))


class _DelayBefore(_Watch):
    """Plants a delay in front of one piece of work."""

    def __init__(self, launch: _Launch, length_ns: int) -> None:
        super().__init__()
        self._launch, self._length_ns = launch, length_ns
        self.work: object = None
        """What stands for the work, once it was launched."""

    def begins(self, queued: _Queued) -> None:
        """Take the work, if it is the one."""
        if queued.launch == self._launch and self.work is None:
            self.work = queued.work
            self.take(cast("Stream", queued.stream))

    def take(self, stream: Stream) -> None:
        """Delay the work that is queued next."""
        self._delay_on(stream).in_stream(stream)

    def _delay_on(self, stream: Stream) -> Delay:
        return Delay(cast("Device", stream.device), self._length_ns)


class _WaitBehind(_DelayBefore):
    """Has the host wait until one piece of work is done, or as long as a delay lasts."""

    def take(self, stream: Stream) -> None:
        """Wait behind the work, not before it."""

    def ends(self, work: object, stream: Stream) -> None:
        """Wait for the work, if it is the one."""
        if work is self.work:
            self._delay_on(stream).of_host(until=stream.record())
