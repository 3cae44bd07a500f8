"""Requests of a recording, served anew in its forecast: their batches would be others."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.analysis.requests_analysis import requests
from gpuscope.errors import InvalidExperiment, MissingEvidence
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.serving import Feed, Request, Serving, draws, share
from gpuscope.simulator.forecast.program import Program, ReplayedWork
from gpuscope.trace.metadata import NO_THREAD
from gpuscope.trace.model import Trace
from gpuscope.workloads.requests import RequestsSpec

Turn = list[int]
"""Places of the calls of one call of a handle: its launches, and the look at its end."""


@dataclass(frozen=True, eq=False)
class ServedRound:
    """The requests of one round.

    Attributes
    ----------
    make
        Returns them anew, given whom to tell of each that has its tokens.
    begin_ns, follows
        When the clock of their arrivals started, at the earliest: after the round before.
    rows
        Number of a request → id of its row.
    prefill, decode
        Calls of the two workloads, as many as the requests can need.
    lags_ns
        First place of a call → its lags from when the requests needed it.
    """

    make: Callable[[Callable[[Request], None]], Serving]
    begin_ns: int
    follows: ServedRound | None
    rows: Mapping[int, int]
    prefill: Sequence[Turn]
    decode: Sequence[Turn]
    lags_ns: Mapping[int, tuple[int, ...]]

    @property
    def turns(self) -> Sequence[Turn]:
        """All calls."""
        return [*self.prefill, *self.decode]


@dataclass
class Requests:
    """The requests of a recording, and what serving them needs besides what was recorded.

    Attributes
    ----------
    why
        Why they cannot be served anew; empty if they can, or if there are none.
    copies
        Of each call that is made again: id of a row → id of its copy.
    """

    rounds: list[ServedRound] = field(default_factory=list)
    why: str = ""
    copies: list[dict[int, int]] = field(default_factory=list)


def requests_of(
    trace: Trace,
    program: Program,
    factors: dict[ReplayedWork, float],
    streams: dict[ReplayedWork, int],
    graphs: dict[int, int],
) -> Requests:
    """Return what of requests a trace holds; adds copies of calls to the program where needed.

    Parameters
    ----------
    factors, streams, graphs
        As :func:`~gpuscope.simulator.forecast.replay.replay` takes them; they get what copies need.
    """
    try:
        requests(trace)
        experiment = Experiment.from_dict(trace.metadata.experiment or {})
    except MissingEvidence:
        return Requests()
    except InvalidExperiment:
        return Requests(why="the trace does not describe their workloads")
    ranges = trace.where(kind="range", thread=NO_THREAD)
    rows = ranges.spans.select(("id", "name", "category", "start_ns")).to_pylist()
    anew = Requests()
    first = int(trace.array("id").max()) + 1
    copier = _Copier(program, factors, streams, graphs, itertools.count(first), anew.copies)
    windows = np.array([low for low, _ in trace.metadata.windows_ns])
    turns = _turns(trace, program, windows)
    for name, spec in experiment.workloads.items():
        if not isinstance(spec, RequestsSpec):
            continue
        before: ServedRound | None = None
        requests_of_name = {row["name"]: row for row in rows if row["category"] == name}
        parts = [experiment.workloads[part] for part in (spec.prefill, spec.decode)]
        if any(part.max_queued > 1 or part.waits_on for part in parts):
            return Requests(why="their calls wait on others, or several are queued")
        for number in range(experiment.rounds):
            make = partial(_serving, spec, name, experiment, number)
            row_of_request = {
                request: requests_of_name[f"request {request.number}"]
                for request in make(lambda _: None).arriving
                if f"request {request.number}" in requests_of_name
            }
            if not row_of_request:
                continue
            first_asked = next(iter(row_of_request))
            begin_ns = row_of_request[first_asked]["start_ns"] - first_asked.arrival_ns
            at = int(np.searchsorted(windows, begin_ns, "right"))
            counts = {
                spec.prefill: sum(request.chunks for request in row_of_request),
                spec.decode: sum(request.steps for request in row_of_request),
            }
            if not all(turns[part, at] for part, count in counts.items() if count):
                return Requests(why="their calls' ends cannot be told, as beside a background")
            enough = {
                part: [*copier.enough(turns[part, at], count)] for part, count in counts.items()
            }
            rows_of = {request.number: row["id"] for request, row in row_of_request.items()}
            recorded = [turns[part, at] for part in counts]
            lags_ns = _lags(make, begin_ns, rows_of, recorded, program)
            for recorded_turns, every in zip(recorded, enough.values(), strict=True):
                for turn, like in zip(every, itertools.cycle(recorded_turns), strict=False):
                    usual_ns = lags_ns.get(like[0], (0,))  # copies find their thread free
                    lags_ns.setdefault(turn[0], usual_ns[-1:])
            prefill, decode = enough.values()
            before = ServedRound(make, begin_ns, before, rows_of, prefill, decode, lags_ns)
            anew.rounds.append(before)
    return anew


def _serving(
    spec: RequestsSpec,
    name: str,
    experiment: Experiment,
    number: int,
    tell: Callable[[Request], None],
) -> Serving:
    """Return the requests of a round, as the run drew them."""
    numbers = share(spec.repeats, experiment.rounds, number)
    return Serving(spec, numbers, draws(experiment.seed, name, number), tell)


def _lags(
    make: Callable[[Callable[[Request], None]], Serving],
    begin_ns: int,
    rows: Mapping[int, int],
    turns: Sequence[Sequence[Turn]],
    program: Program,
) -> dict[int, tuple[int, ...]]:
    """Return how long the host took to begin each recorded call from when requests needed it.

    The requests are served by the recording's times, as far as these go with each other.
    """
    serving = make(lambda _: None)
    serving.keep(rows)
    serving.begin(begin_ns)
    feeds: list[Feed] = [serving.prefill, serving.decode]
    needed_ns: list[int | None] = [begin_ns, None]
    calls = program.calls
    events = [(calls[turn[0]].start_ns, 1, of, turn) for of in (0, 1) for turn in turns[of]]
    events += [(calls[turn[-1]].end_ns, 0, of, turn) for of in (0, 1) for turn in turns[of]]
    lags_ns: dict[int, tuple[int, ...]] = {}
    for now_ns, begins, of, turn in sorted(events):
        if not begins:
            if turn[0] not in lags_ns:
                break
            feeds[of].ended(now_ns)
            needed_ns[of] = None
        elif (due_ns := feeds[of].due_ns) is None or (since_ns := needed_ns[of]) is None:
            break  # the recording lacks calls
        else:
            ready_ns = max(due_ns, since_ns)
            lags_ns[turn[0]] = program.lags_ns(calls[turn[0]].host, ready_ns, now_ns)
            feeds[of].take()
        for number, feed in enumerate(feeds):
            if feed.due_ns is None:
                needed_ns[number] = None
            elif needed_ns[number] is None:
                needed_ns[number] = now_ns
    return lags_ns


def _turns(trace: Trace, program: Program, windows: Array) -> Mapping[tuple[str, int], list[Turn]]:
    """Return a handle's name, and a round → its calls in their order."""
    handles = trace.where(kind="handle").spans.select(("id", "name", "start_ns")).to_pylist()
    of_handle: dict[int, Turn] = defaultdict(list)
    for position, call in enumerate(program.calls):
        if call.handle is not None:
            of_handle[call.handle].append(position)
    turns: dict[tuple[str, int], list[Turn]] = defaultdict(list)
    for row in sorted(handles, key=lambda row: row["start_ns"]):
        places = of_handle.get(row["id"], [])
        if places and not program.calls[places[-1]].launches:
            at = int(np.searchsorted(windows, row["start_ns"], "right"))
            turns[row["name"], at].append(places)
    return turns


@dataclass
class _Copier:
    """Makes calls of a program again, as many as requests can need.

    Attributes
    ----------
    fresh
        Ids of new rows.
    copies
        Gets for each copy the ids of rows → those of their copies.
    """

    program: Program
    factors: dict[ReplayedWork, float]
    streams: dict[ReplayedWork, int]
    graphs: dict[int, int]
    fresh: Iterator[int]
    copies: list[dict[int, int]]

    def enough(self, turns: list[Turn], count: int) -> Iterator[Turn]:
        """Yield as many calls: those that were recorded, and then copies of them."""
        yield from turns[:count]
        for turn in itertools.islice(itertools.cycle(turns), len(turns), count):
            yield self._copy(turn)

    def _copy(self, turn: Turn) -> Turn:
        program = self.program
        renamed: dict[int, int] = {}

        def copied(old: int | None) -> int | None:
            if old is not None and old not in renamed:
                renamed[old] = next(self.fresh)
            return None if old is None else renamed[old]

        again: dict[ReplayedWork, ReplayedWork] = {}
        places = dict(zip(turn, itertools.count(len(program.calls)), strict=False))
        for position in turn:
            call = program.calls[position]
            for work in call.launches:
                row = {**work.row, "id": copied(work.id)}
                inside = [again[other] for other in work.after if other in again]
                again[work] = replace(work, row=row, call=places[position], after=inside)
            copy_of_call = replace(
                call,
                launches=[again[work] for work in call.launches],
                waits_for=[again[work] for work in call.waits_for],
                row=copied(call.row),
                handle=copied(call.handle),
            )
            program.calls.append(copy_of_call)
        factors, streams = self.factors, self.streams
        factors.update({copy: factors[work] for work, copy in again.items() if work in factors})
        streams.update({copy: streams[work] for work, copy in again.items() if work in streams})
        leaders = self.graphs
        leaders.update(
            {new: places.get(leaders[old], new) for old, new in places.items() if old in leaders}
        )
        program.copies += again.values()
        for old in renamed.keys() & program.handles.keys():
            program.handles[renamed[old]] = [again[work] for work in program.handles[old]]
        self.copies.append(renamed)
        return [*places.values()]


def with_copies(trace: Trace, copies: Sequence[Mapping[int, int]]) -> Trace:
    """Return a trace with the rows and edges of calls that are made again."""
    if not copies:
        return trace
    row_of = {number: position for position, number in enumerate(trace.array("id").tolist())}
    parents = trace.array("parent", fill=-1).tolist()
    followers: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for edge in trace.edges.to_pylist():
        followers[edge["from"]].append(edge)
    rows = [(copy, old, new) for copy in copies for old, new in copy.items()]
    spans = trace.spans.take([row_of[old] for _, old, _ in rows])
    above = [(copy, parents[row_of[old]]) for copy, old, _ in rows]
    fresh = {
        "id": [new for _, _, new in rows],
        "parent": [None if old < 0 else copy.get(old, old) for copy, old in above],
    }
    for name, values in fresh.items():
        at = spans.schema.get_field_index(name)
        spans = spans.set_column(at, name, pa.array(values, trace.spans.schema.field(name).type))
    edges = [
        {**edge, "from": new, "to": copy[edge["to"]]}
        for copy, old, new in rows
        for edge in followers[old]
        if edge["to"] in copy
    ]
    return Trace(
        pa.concat_tables([trace.spans, spans]),
        pa.concat_tables([trace.edges, pa.Table.from_pylist(edges, schema=trace.edges.schema)]),
        trace.metadata,
    )
