"""Rows of other libraries' work: which call launched which, and what nobody saw."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from itertools import compress
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from gpuscope._threads import thread_number
from gpuscope._types import Ints
from gpuscope.record.rows import node_of
from gpuscope.record.source import Ordered
from gpuscope.trace import joins
from gpuscope.trace.arrow import NONE
from gpuscope.trace.facts import HazardFact, HazardFacts
from gpuscope.trace.model import Trace

_FIRST = 1 << 60
"""Ids of rows from here on stand for a call, until its row is known."""
_NODES = 1 << 40
"""So many further on, they stand for the next node of the graph that a call launched."""
_NAMES = 8
_WORK = ("kernel", "memcpy", "memset")
RowOf: TypeAlias = Callable[[int | None, str], int | None]


def row_of_node(row: int, node: int) -> int:
    """Return what stands for the row of a node, by that of the call that launched its graph."""
    return row + _NODES * node


class OutsideCalls:
    """When other libraries' calls that were seen were made, on which threads."""

    def __init__(self) -> None:
        self._threads, self._starts, self._ends = array("q"), array("q"), array("q")

    @property
    def next_row(self) -> int:
        """What will stand for the row of the next call's work."""
        return _FIRST + len(self._threads)

    def add(self, start_ns: int, end_ns: int) -> int:
        """Note a call of this thread; returns what stands for the row of its work."""
        row = self.next_row
        self._starts.append(start_ns)
        self._ends.append(end_ns)
        self._threads.append(thread_number())
        return row

    def _calls_of(self, work: Trace) -> Ints:
        """Return which call each piece of work is of; ``NONE`` where none was seen."""
        threads, queued = (work.array(name, fill=NONE) for name in ("thread", "queued_ns"))
        intervals = [
            np.array(part[: len(self._threads)])
            for part in (self._threads, self._starts, self._ends)
        ]
        return joins.innermost(threads, queued, *intervals)

    def rows_in(self, trace: Trace) -> RowOf:
        """Return what finds a row in a GPU's trace: by what a note calls it, and its work's name.

        CUPTI numbers the nodes of graphs, and what other libraries launch, in its own way.
        """
        work = trace.where(kind=_WORK, source="cupti")
        called, first = np.unique(self._calls_of(work), return_index=True)
        ids = work.array("id")[first]
        row_of = dict(zip((called + _FIRST).tolist(), ids.tolist(), strict=True))
        nodes_of = _rows_of_nodes(work)

        def row(number: int | None, name: str) -> int | None:
            if number is None or number >= _FIRST:
                return None if number is None else row_of.get(_FIRST + number % _NODES)
            launch, node = node_of(number)
            rows = nodes_of.get(launch, [])
            named = [row for node_name, row in rows if node_name == name]
            if node < len(rows) and (rows[node][0] == name or not named):
                return rows[node][1]
            return named[0] if named else number

        return row

    def placed(self, facts: HazardFacts, trace: Trace, *orders: Ordered) -> HazardFacts:
        """Return the facts with the rows of the calls' work, and work that nobody saw counted.

        Work of a call is what the thread launched meanwhile, as CUPTI tells it. Left out are
        pairs that have an order by waits that only CUPTI saw; where that may be so, they count as
        undecided.
        """
        work = trace.where(kind=_WORK, source="cupti")
        at, row = self._calls_of(work), self.rows_in(trace)
        queued, ids = work.array("queued_ns", fill=NONE), work.array("id")
        ours = work.array("external_correlation", fill=NONE) != NONE
        outside = (at == NONE) & (queued != NONE) & ~ours
        names = list(compress(work.texts("name"), outside))
        place_of = {number: position for position, number in enumerate(ids.tolist())}
        numbers, streams = (work.array(name, fill=NONE) for name in ("correlation", "stream"))

        def is_ordered(fact: HazardFact) -> bool | None:
            places = [place_of.get(number or NONE) for number in (fact.first, fact.second)]
            pair = [(int(numbers[at]), int(streams[at])) for at in places if at is not None]
            if len({number for number, _ in pair}) < len(pair):  # of one launch of a graph, whose
                return False  # nodes have streams, but no order by them
            verdicts = [ordered(*pair) for ordered in orders if len(pair) == 2]
            return any(verdicts) or (None if None in verdicts else False)

        placed_facts = []
        for fact in facts.found:
            rows = row(fact.first, fact.first_name), row(fact.second, fact.second_name)
            placed_facts.append(replace(fact, first=rows[0], second=rows[1]))
        verdicts = [is_ordered(fact) for fact in placed_facts]
        return replace(
            facts,
            unseen=facts.unseen + len(names),
            unseen_names=(*facts.unseen_names, *Counter(filter(None, names)))[:_NAMES],
            found=tuple(
                fact
                for fact, verdict in zip(placed_facts, verdicts, strict=True)
                if verdict is False
            ),
            undecided=verdicts.count(None),
        )


def _rows_of_nodes(work: Trace) -> dict[int, list[tuple[str | None, int]]]:
    """Return launch of a graph → name and row of its nodes' work, in the order of the nodes.

    Nodes without work of their own, such as host functions, have none.
    """
    launches = work.array("external_correlation", fill=NONE)
    nodes, ids = work.array("graph_node", fill=NONE), work.array("id")
    names = work.texts("name")
    rows: dict[int, list[tuple[str | None, int]]] = {}
    for at in np.argsort(nodes, kind="stable").tolist():
        if nodes[at] != NONE and launches[at] != NONE:
            rows.setdefault(int(launches[at]), []).append((names[at], int(ids[at])))
    return rows
