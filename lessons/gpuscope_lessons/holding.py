"""The process that starts notebooks, each in a sandbox, and ends what exceeds its limits."""

from __future__ import annotations

import gc
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from gpuscope_lessons.graded import Checked, ToldLine, run
from gpuscope_lessons.handed_in import Code
from gpuscope_lessons.sandbox import (
    Box,
    adopt_orphans,
    become,
    die_with_parent,
    limit,
    see_own_processes,
    shut_in,
    strongest,
)

_MOST_BYTES = 10_000_000
"""Of what the checks of a notebook say."""
_ENDED = "its process ended with exit status {}"
_KILLED = _ENDED.format(128 + signal.SIGKILL)
_POLL_S, _END_S = 0.2, 0.005
_GRACE_S = 2.0
"""Beyond its time, in which a cell may end by the error that it gets."""


@dataclass(frozen=True)
class HoldingOrder:
    """What to run, and within which limits.

    Attributes
    ----------
    cells
        In their order.
    exercises
        Names that a learner is to define: the only ones of the lesson's that are not restored.
    seconds, cell_seconds, memory_bytes
        As in :class:`gpuscope_lessons.Limits`.
    hidden
        A folder that no notebook shall see: that of all that was handed in.
    """

    cells: list[Code]
    exercises: set[str]
    seconds: float
    cell_seconds: float
    memory_bytes: int
    hidden: str


@dataclass(frozen=True)
class Report:
    """What came of a notebook.

    Attributes
    ----------
    checks
        Those that were reached.
    ending
        Why no more were.
    cpu_s
        Time of processors.
    isolation
        Of what it was shut in with: see :attr:`gpuscope_lessons.sandbox.Box.isolation`; ``None``:
        nobody said, since it did not run or its warden ended.
    """

    checks: list[Checked]
    ending: str
    cpu_s: float = 0.0
    isolation: frozenset[str] | None = None


def hold(order: HoldingOrder, box: Box, *, gpu: bool) -> Report:
    """Run a notebook; where a cell ends its process, or never ends, run the others again."""
    before_s, end_s = _cpu_s(), time.monotonic() + order.seconds
    checks: dict[str, Checked] = {}
    failed: dict[int, str] = {}
    killed: set[int] = set()
    while True:
        cell, ending = _attempt(order, box, failed, checks, end_s, gpu=gpu)
        if cell == len(order.cells) or time.monotonic() >= end_s or cell in failed or cell < 0:
            break
        if ending == _KILLED and cell not in killed:  # maybe by a system without memory: once more
            killed.add(cell)
        else:
            failed[cell] = ending
    return Report([*checks.values()], ending, _cpu_s() - before_s, box.isolation)


def _cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _attempt(
    order: HoldingOrder,
    box: Box,
    failed: Mapping[int, str],
    checks: dict[str, Checked],
    end_s: float,
    *,
    gpu: bool,
) -> tuple[int, str]:
    """Run all cells but those that failed; returns the last one that was begun, and the ending."""
    work = tempfile.mkdtemp(dir=Path.cwd())
    read, write = os.pipe()
    if box.user is not None:
        os.chown(work, box.user, box.user)
    child = os.fork()
    if not child:
        _inside(order, box, failed, work, write, gpu=gpu)
    os.close(write)
    try:
        return _watch(child, read, order, checks, end_s)
    finally:
        os.close(read)
        _end_all(box, child)
        shutil.rmtree(work, ignore_errors=True)


def _inside(
    order: HoldingOrder, box: Box, failed: Mapping[int, str], work: str, write: int, *, gpu: bool
) -> NoReturn:
    """Become the process that holds a notebook's processes; the last of its line runs the cells."""
    try:
        die_with_parent(os.getppid())
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(null, standard)
        os.chdir(work)
        needed = [Path(path).resolve() for path in (*sys.path, work)]
        may_hide = not any(path.is_relative_to(order.hidden) for path in needed)
        shut_in(box, [order.hidden] if may_hide else [])
        for _ in range(2):  # the first child is the init of a namespace: all end with it
            parent = os.getpid()
            child = os.fork()
            if child:
                os.close(write)
                _wait_as_init(child)
            die_with_parent(parent)
            see_own_processes(box)
        limit(box, seconds=order.seconds, memory_bytes=order.memory_bytes, gpu=gpu)
        die_with_parent(parent)  # another user has to ask again
        os.environ.update(HOME=work, TMPDIR=work, LOGNAME="learner")  # its user has no name
        tempfile.tempdir = work
        os.mkdir("notebook")  # noqa: PTH102
        os.chdir("notebook")
        run(order.cells, order.exercises, order.cell_seconds, failed, write)
        os._exit(0)
    finally:
        os._exit(1)


def _wait_as_init(child: int) -> NoReturn:
    while True:
        gone, status = os.wait()
        if gone == child:
            os._exit(_exit_status(status))


def _exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


class _Reader:
    """What a notebook tells through a pipe.

    Attributes
    ----------
    cell, since_s
        The one that was begun last, and when on the monotonic clock.
    nbytes
        Of all that was told.
    is_open
        Whether a process has the other end.
    """

    def __init__(self, pipe: int, checks: dict[str, Checked]) -> None:
        self._pipe, self._checks, self._rest = pipe, checks, b""
        self.cell, self.since_s, self.nbytes, self.is_open = -1, time.monotonic(), 0, True

    def read(self, patience_s: float) -> bool:
        """Take what comes within some time; returns whether anything came."""
        if not self.is_open:
            time.sleep(min(patience_s, _END_S))
            return False
        if not select.select([self._pipe], [], [], patience_s)[0]:
            return False
        data = os.read(self._pipe, 1 << 16)
        self.nbytes, self.is_open = self.nbytes + len(data), bool(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            with suppress(ValueError, msgspec.MsgspecError, RecursionError):  # a notebook wrote it
                heard = msgspec.json.decode(line, type=ToldLine)
                if heard.check is not None:
                    self._checks.setdefault(heard.check.name, heard.check)
                self.cell, self.since_s = heard.cell, time.monotonic()
        return self.is_open


def _watch(
    child: int, pipe: int, order: HoldingOrder, checks: dict[str, Checked], end_s: float
) -> tuple[int, str]:
    """Follow a notebook until it ends or exceeds a limit."""
    reader, gone, status = _Reader(pipe, checks), 0, 0
    while True:
        if not gone:  # before reading: all that it wrote can be read then
            gone, status = os.waitpid(child, os.WNOHANG)
        if reader.read(0 if gone else _POLL_S) and reader.nbytes < _MOST_BYTES:
            continue
        now_s, cell = time.monotonic(), reader.cell
        spent_s = now_s - reader.since_s
        is_done = cell >= len(order.cells)
        if is_done and (gone or spent_s >= _GRACE_S):
            return len(order.cells), "it was not reached"
        if gone:
            return cell, _ENDED.format(_exit_status(status))
        if now_s >= end_s:
            return cell, f"the notebook was stopped after {order.seconds:g} s"
        if spent_s >= order.cell_seconds + _GRACE_S and not is_done:
            return cell, f"it took longer than {order.cell_seconds:g} s and had to be stopped"
        if reader.nbytes >= _MOST_BYTES:
            return cell, "it wrote where only checks write"
        if _memory_bytes(_descendants(child)) > order.memory_bytes:
            return cell, f"its processes took more than {order.memory_bytes / 1e9:g} GB together"


def _children(pid: int | str) -> list[int]:
    """Return the children of a process, where the system lists them."""
    children: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return children


def _descendants(pid: int) -> list[int]:
    below = _children(pid)
    for child in below:  # it grows
        below += _children(child)
    return below


def _memory_bytes(pids: Sequence[int]) -> int:
    """Return the memory of processes; what several share counts once."""
    kb = 0
    for pid in pids:
        with suppress(OSError, ValueError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    kb += int(line.split()[1])
    return kb * 1024


def _end_all(box: Box, child: int) -> None:
    """Kill a notebook's process and all that it started: orphans become this one's children."""
    if box.user is not None and "network" not in box.isolation and not os.fork():
        become(box.user)
        os.kill(-1, signal.SIGKILL)
        os._exit(0)
    while True:
        for pid in {child, *_children("self")}:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def serve() -> None:
    """Run the orders that come as lines of JSON, and answer each by a report.

    Arguments are whether notebooks use the GPU, and the processors to stay on.
    """
    die_with_parent(os.getppid())
    adopt_orphans()
    gpu, cores = sys.argv[1] == "gpu", sys.argv[2:]
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(map(int, cores)))
    box = strongest()
    gc.freeze()
    for line in sys.stdin.buffer:
        report = hold(msgspec.json.decode(line, type=HoldingOrder), box, gpu=gpu)
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()
