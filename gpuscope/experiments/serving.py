"""Requests being served: which calls of prefill and decode they need, and when each token came.

Continuous batching in its simplest form. Prompts are prefilled one after the other, in the order of
their arrival. A decode step yields the next token of every running request; one that was prefilled
joins the next step that has room, and leaves with its last token.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from gpuscope.trace.facts import RequestFacts
from gpuscope.workloads.requests import RequestsSpec, draw


@dataclass(eq=False)
class Request:
    """A request on its way.

    Attributes
    ----------
    chunks, steps
        Calls of prefill, and of decode, that are still to be launched for it.
    missing
        Tokens that were not seen yet.
    tokens_ns
        When each of the others was.
    """

    number: int
    arrival_ns: int
    chunks: int
    steps: int
    missing: int
    tokens_ns: list[int] = field(default_factory=list)

    @property
    def facts(self) -> RequestFacts:
        """What its row holds of it."""
        return RequestFacts(tuple(time_ns - self.arrival_ns for time_ns in self.tokens_ns))


class Serving:
    """The requests of one round. Its two feeds may be used by a thread each.

    Parameters
    ----------
    numbers
        Of the requests: those of a run are numbered over all rounds.
    tell
        Called with each request whose last token was seen.

    Attributes
    ----------
    prefill, decode
        What feeds the two workloads.
    planned, finished
        How many requests there are, and how many have their last token.
    """

    def __init__(
        self,
        spec: RequestsSpec,
        numbers: range,
        rng: random.Random,
        tell: Callable[[Request], None],
    ) -> None:
        self._tell = tell
        self.batch = spec.batch
        self.lock = threading.Lock()
        self.arriving: deque[Request] = deque()
        self.prefilled: deque[Request] = deque()
        self.running: list[Request] = []
        self.planned = len(numbers)
        self.finished = 0
        arrival_ns = 0
        for number in numbers:
            arrival_ns += spec.interval_ns(rng, number)
            chunks = draw(spec.prompt_chunks, number, rng)
            tokens = draw(spec.output_tokens, number, rng)
            self.arriving.append(Request(number, arrival_ns, chunks, tokens - 1, tokens))
        self.prefill: Feed = _Prefill(self)
        self.decode: Feed = _Decode(self)

    def keep(self, numbers: Container[int]) -> None:
        """Leave out all other requests."""
        self.arriving = deque(request for request in self.arriving if request.number in numbers)
        self.planned = len(self.arriving)

    def begin(self, now_ns: int) -> None:
        """Start the clock of arrivals."""
        for request in self.arriving:
            request.arrival_ns += now_ns

    def note_tokens(self, requests: Iterable[Request], now_ns: int) -> None:
        """Give each of these its next token; the lock is held."""
        for request in requests:
            request.tokens_ns.append(now_ns)
            request.missing -= 1
            if not request.missing:
                self.finished += 1
                self._tell(request)


def share(total: int, rounds: int, number: int) -> range:
    """Return which of ``total`` are in a round, split as evenly as can be."""
    return range(total * number // rounds, total * (number + 1) // rounds)


def draws(seed: int, name: str, number: int) -> random.Random:
    """Return what draws a workload's arrivals and lengths in a round."""
    return random.Random(f"{seed} {name} {number}")  # noqa: S311 - arrivals


class _Prefill:
    """Reads prompts, the oldest first; the last call for one yields its first token."""

    def __init__(self, serving: Serving) -> None:
        self._of = serving
        self._in_flight: deque[tuple[Request, bool]] = deque()

    @property
    def due_ns(self) -> int | None:
        """When the next call is due; ``None`` until calls that are in flight have ended."""
        arriving = self._of.arriving
        return arriving[0].arrival_ns if arriving else None

    @property
    def over(self) -> bool:
        """Whether no further call will be due."""
        return not self._of.arriving

    def take(self) -> None:
        """Decide for what the call is that is launched next."""
        arriving = self._of.arriving
        request = arriving[0]
        request.chunks -= 1
        self._in_flight.append((request, not request.chunks))
        if not request.chunks:
            arriving.popleft()

    def ended(self, now_ns: int) -> None:
        """Take note that the oldest call in flight was seen done."""
        request, is_last = self._in_flight.popleft()
        if is_last:
            with self._of.lock:
                self._of.note_tokens([request], now_ns)
                if request.steps:
                    self._of.prefilled.append(request)


class _Decode:
    """Makes the next token of all running requests, as many as a step serves."""

    def __init__(self, serving: Serving) -> None:
        self._of = serving
        self._in_flight: deque[list[Request]] = deque()

    @property
    def due_ns(self) -> int | None:
        """When the next call is due; ``None`` until calls that are in flight have ended."""
        return 0 if self._of.running or self._of.prefilled else None

    @property
    def over(self) -> bool:
        """Whether no further call will be due."""
        return self._of.finished == self._of.planned

    def take(self) -> None:
        """Decide for what the call is that is launched next."""
        of = self._of
        while of.prefilled and len(of.running) < of.batch:
            of.running.append(of.prefilled.popleft())
        self._in_flight.append(of.running)
        for request in of.running:
            request.steps -= 1
        of.running = [request for request in of.running if request.steps]

    def ended(self, now_ns: int) -> None:
        """Take note that the oldest call in flight was seen done."""
        with self._of.lock:
            self._of.note_tokens(self._in_flight.popleft(), now_ns)


Feed: TypeAlias = _Prefill | _Decode
"""Says when a workload's next call is due, and follows its calls in their order."""
