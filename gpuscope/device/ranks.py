"""Ranks: the processes of one program, each with a GPU of its own, and where they meet.

Simulated GPUs have a clock each. A collective makes their clocks depend on each other: it begins
on the last rank that reaches it, so no rank knows when it ends before the others told when they
began. :class:`Meeting` is a conservative parallel simulation of it: a rank goes on to the earliest
time at which the collective could end, by what is known of the others' clocks, and asks again.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from gpuscope import _interrupts
from gpuscope.errors import GpuscopeError, StreamError

Key: TypeAlias = "tuple[str, int]"
"""A collective: its group, and its number there."""
Brought: TypeAlias = object
"""What a rank brings to others: plain data that can be pickled."""


class NoMeeting(StreamError):
    """Ranks wait for others that will not come, or met for different things."""


class Place(Protocol):
    """Where ranks meet: in this process, or by a connection to it."""

    def gather(self, name: str, rank: int, value: Brought) -> list[Brought]:
        """Bring a value, and return those of all ranks, once all have brought theirs."""

    def begin(self, key: Key, rank: int, begun: Begun) -> None:
        """Say that a rank has begun a collective."""

    def end_ns(self, key: Key, rank: int, work_ns: int, now_ns: int) -> int:
        """Return when a collective ends, or a later time than ``now_ns`` up to which it lasts."""

    def brought(self, key: Key) -> list[Brought]:
        """Return what the ranks brought to a collective, until all have begun the next one."""


class Begun(NamedTuple):
    """How a rank began a collective.

    Attributes
    ----------
    start_ns
        When, on its virtual clock.
    what
        Which collective, in words: the same on all ranks.
    work_ns
        How long it takes once all ranks are there, at least.
    value
        What it brings.
    """

    start_ns: int
    what: str
    work_ns: int
    value: Brought


@dataclass
class _Collective:
    begun: dict[int, Begun] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)  # rank → ns that it took there


class Meeting:
    """Where the ranks of a program meet, in the process that started them.

    Each rank asks from one thread. Where all of them wait for each other, none of them could ever
    go on: each gets an error.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._changed = threading.Condition()
        self._values: dict[str, dict[int, Brought]] = {}
        self._collectives: dict[Key, _Collective] = {}
        self._clocks = dict.fromkeys(range(world_size), 0)
        """No rank begins a collective before its time here."""
        self._waiting: dict[int, tuple[str, Callable[[], bool]]] = {}
        self._gone: dict[int, str] = {}
        self._failure = ""

    def gather(self, name: str, rank: int, value: Brought) -> list[Brought]:
        """Bring a value, and return those of all ranks, once all have brought theirs."""
        with self._changed:
            values = self._values.setdefault(name, {})
            values[rank] = value
            self._wait(rank, f"the others at {name!r}", lambda: len(values) == self.world_size)
            if self._values.get(name) is values:  # the next time under this name is another one
                del self._values[name]
            return [values[other] for other in range(self.world_size)]

    def begin(self, key: Key, rank: int, begun: Begun) -> None:
        """Say that a rank has begun a collective.

        Raises
        ------
        NoMeeting
            Another rank has begun another one in its place.
        """
        with self._changed:
            collective = self._collectives.setdefault(key, _Collective())
            collective.begun[rank] = begun
            for peer, earlier in collective.begun.items():
                if earlier.what != begun.what and not self._failure:
                    self._failure = (
                        f"collective {key[1]} of group {key[0]!r} is {earlier.what} on rank {peer} "
                        f"and {begun.what} on rank {rank}: let every rank launch the same "
                        "collectives in the same order"
                    )
            if len(collective.begun) == self.world_size:  # so all have left the one before
                self._collectives.pop((key[0], key[1] - 1), None)
            self._changed.notify_all()
            self._check()

    def end_ns(self, key: Key, rank: int, work_ns: int, now_ns: int) -> int:
        """Return when a collective ends, or a later time than ``now_ns`` up to which it lasts.

        Parameters
        ----------
        work_ns
            How long it took on this rank, as if no other had kept it waiting.
        now_ns
            The rank's clock.

        Notes
        -----
        It ends when the last rank has begun, plus the longest that it takes on any of them.
        """
        with self._changed:
            collective = self._collectives[key]
            collective.done[rank] = work_ns
            self._clocks[rank] = now_ns

            def is_known() -> bool:
                return len(collective.done) == self.world_size or self._least(key) > now_ns

            self._changed.notify_all()
            self._wait(rank, f"collective {key[1]} of group {key[0]!r}", is_known)
            return self._least(key)

    def _least(self, key: Key) -> int:
        """Return when a collective ends at the earliest, by what is known."""
        begun, done = self._collectives[key].begun, self._collectives[key].done
        start_ns, work_ns = 0, 0
        for rank, clock_ns in self._clocks.items():
            rank_begun = begun.get(rank)
            start_ns = max(start_ns, clock_ns if rank_begun is None else rank_begun.start_ns)
            if rank_begun is not None:
                least_ns = max(rank_begun.work_ns, clock_ns - rank_begun.start_ns + 1)
                work_ns = max(work_ns, done.get(rank, least_ns))
        return start_ns + work_ns

    def brought(self, key: Key) -> list[Brought]:
        """Return what the ranks brought to a collective, until all have begun the next one."""
        with self._changed:
            begun = self._collectives[key].begun
            return [begun[rank].value for rank in range(self.world_size)]

    def leave(self, rank: int, why: str) -> None:
        """Let a rank take part no more: who waits for it waits in vain."""
        with self._changed:
            self._gone[rank] = why
            self._changed.notify_all()
            self._check()

    def _wait(self, rank: int, what: str, ready: Callable[[], bool]) -> None:
        self._waiting[rank] = what, ready
        self._changed.notify_all()
        try:
            while not ready():
                self._check()
                _interrupts.let_in(self._changed.wait)
        finally:
            self._waiting.pop(rank, None)

    def _check(self) -> None:
        """Raise what went wrong; find out whether nobody can go on."""
        stuck = len({*self._waiting, *self._gone}) == self.world_size
        if stuck and not any(ready() for _, ready in self._waiting.values()) and self._waiting:
            waits = [f"rank {rank} waits for {what}" for rank, (what, _) in self._waiting.items()]
            gone = [f"rank {rank} {why}" for rank, why in self._gone.items()]
            self._failure = self._failure or (
                f"the ranks do not meet: {'; '.join(waits + gone)}. Let every rank launch the "
                "same collectives in the same order"
            )
            self._changed.notify_all()
        if self._failure:
            raise NoMeeting(self._failure)

    # -- for other processes ----------------------------------------------------------
    def serve(self, listener: Listener) -> threading.Thread:
        """Answer the connections of other processes, one a rank, until the listener is closed."""
        thread = threading.Thread(target=self._accept, args=(listener,), daemon=True)
        thread.start()
        return thread

    def _accept(self, listener: Listener) -> None:
        while True:
            try:
                connection = listener.accept()
            except OSError:
                return  # it was closed
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        rank = -1
        try:
            rank = connection.recv()
            while True:
                name, arguments = connection.recv()
                answer: object
                try:
                    answer = getattr(self, name)(*arguments)
                except GpuscopeError as error:
                    answer = error
                connection.send(answer)
        except (EOFError, OSError):
            with contextlib.suppress(NoMeeting):  # who waits is told
                self.leave(rank, "has ended")


class Elsewhere:
    """A meeting in another process, by its address: see :class:`Place`."""

    def __init__(self, address: str, key: bytes, rank: int) -> None:
        self._connection = Client(address, authkey=key)
        self._lock = threading.Lock()
        self._connection.send(rank)

    def gather(self, name: str, rank: int, value: Brought) -> list[Brought]:
        """Bring a value, and return those of all ranks, once all have brought theirs."""
        return cast("list[Brought]", self.ask("gather", name, rank, value))

    def begin(self, key: Key, rank: int, begun: Begun) -> None:
        """Say that a rank has begun a collective."""
        self.ask("begin", key, rank, begun)

    def end_ns(self, key: Key, rank: int, work_ns: int, now_ns: int) -> int:
        """Return when a collective ends, or a later time than ``now_ns`` up to which it lasts."""
        return cast("int", self.ask("end_ns", key, rank, work_ns, now_ns))

    def brought(self, key: Key) -> list[Brought]:
        """Return what the ranks brought to a collective, until all have begun the next one."""
        return cast("list[Brought]", self.ask("brought", key))

    def ask(self, name: str, *arguments: Brought) -> Brought:
        """Call a method of the meeting."""
        try:
            with self._lock:
                self._connection.send((name, arguments))
                answer = _interrupts.let_in(self._connection.recv)
        except (EOFError, OSError) as error:
            raise NoMeeting("the process in which the ranks meet is gone") from error
        if isinstance(answer, GpuscopeError):
            raise answer
        return answer


@dataclass(frozen=True)
class Ranks:
    """The ranks of a program, as one of them sees them.

    Attributes
    ----------
    rank
        Of this one, from 0.
    world_size
        How many there are.
    meeting
        Where simulated GPUs meet; ``None`` in a program that gpuscope did not start.
    groups
        How many groups of each name were made.
    """

    rank: int
    world_size: int
    meeting: Place | None = None
    groups: Counter[str] = field(default_factory=Counter, compare=False, repr=False)

    def new_group(self, name: str) -> str:
        """Return the name of a new group: all ranks make theirs in the same order."""
        self.groups[name] += 1
        number = self.groups[name]
        return name if number == 1 else f"{name} ({number})"


@dataclass(frozen=True)
class Joint:
    """What a launch has in common with the same launch on other ranks.

    Attributes
    ----------
    key
        Which collective it is.
    what
        In words; the same on all ranks.
    """

    ranks: Ranks
    key: Key
    what: str


_mine: list[Ranks] = []


def take_part(ranks: Ranks) -> None:
    """Let this process be one of these ranks."""
    _mine[:] = [ranks]


def ranks_of_process() -> Ranks | None:
    """Return the ranks of the program that this process belongs to, if it has any.

    By gpuscope, by an initialised ``torch.distributed``, or by the variables that torchrun sets.
    """
    if _mine:
        return _mine[0]
    torch: Any = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return Ranks(torch.get_rank(), torch.get_world_size())
    rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if rank.isdecimal() and world_size.isdecimal():
        return Ranks(int(rank), int(world_size))
    return None
