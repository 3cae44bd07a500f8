"""What had to end before work: by waits, graphs, streams, the legacy default stream."""

from __future__ import annotations

from functools import cached_property
from typing import TypeAlias

import numpy as np

from gpuscope._types import Ints
from gpuscope.analysis.part import ORDER, PartKind
from gpuscope.analysis.span_rows import SpanRows
from gpuscope.trace.columns import combined

Pairs: TypeAlias = tuple[Ints, Ints]
"""Rows that had to end, and the row that followed each."""


class WorkOrders:
    """What had to end before each piece of work of a trace.

    What is linked to any node of a graph's launch holds for all of it: the launch waited, and was
    waited for until its last node had ended.

    Attributes
    ----------
    pairs
        Rule → pairs.
    last
        Row → the row that ended last of what was queued with it: of a graph's nodes, of what a
        call of a handle queued in a stream.
    is_first
        Row → whether it follows no other node of its launch.
    """

    def __init__(self, rows: SpanRows) -> None:
        self._rows, works = rows, np.flatnonzero(rows.is_work)
        correlations, callers = rows.numbers["correlation"], rows.numbers["external_correlation"]
        nodes = works[(rows.graphs[works] >= 0) & (correlations[works] >= 0)]
        launch = self._last_of(nodes, correlations, rows.graphs)
        last = self._last_of(works[callers[works] >= 0], callers, rows.streams)
        self.last = np.where(rows.ends[launch] > rows.ends[last], launch, last)
        self.is_first = np.ones(len(rows.ids), bool)
        works = works[np.argsort(launch[works], kind="stable")]
        self.pairs: dict[PartKind, Pairs] = {}
        for kind in ORDER:
            before, after = rows.edges_of("graph" if kind == "graph order" else kind)
            inside = launch[before] == launch[after]
            self.is_first[after[inside]] = False
            # All of a launch follows what one of its nodes does.
            whole = launch[after[~inside]]
            low, high = (launch[works].searchsorted(whole, side) for side in ("left", "right"))
            count = high - low
            at = np.arange(count.sum()) + np.repeat(low - np.cumsum(count) + count, count)
            spread = np.repeat(self.last[before[~inside]], count)
            self.pairs[kind] = np.r_[before[inside], spread], np.r_[after[inside], works[at]]
        self.pairs["stream order"] = self._in_order(launch, nodes)
        linked, more = self.pairs["legacy default stream"], self._behind_legacy()
        self.pairs["legacy default stream"] = np.r_[linked[0], more[0]], np.r_[linked[1], more[1]]

    @cached_property
    def _by_row(self) -> tuple[Ints, Ints, Ints]:
        """What followed, in order, with what had to end before it and the number of the rule."""
        before, after = (np.concatenate(rows) for rows in zip(*self.pairs.values(), strict=True))
        rule = np.repeat(np.arange(len(ORDER)), [len(self.pairs[kind][0]) for kind in ORDER])
        order = np.lexsort((_RANK[rule], after))
        return after[order], before[order], rule[order]

    def before(self, row: int) -> dict[int, PartKind]:
        """Return the work that had to end before a row started, and by which rule."""
        after, before, rule = self._by_row
        places = slice(after.searchsorted(row), after.searchsorted(row, "right"))
        waits: dict[int, PartKind] = {}
        for work, number in zip(before[places].tolist(), rule[places].tolist(), strict=True):
            waits.setdefault(work, ORDER[number])
        return waits

    def _last_of(self, members: Ints, *keys: Ints) -> Ints:
        """Return row → the member that ended last of those with its keys; of others, itself."""
        ends, last = self._rows.ends, np.arange(len(self._rows.ids))
        if len(members):
            numbers = (np.unique(key[members], return_inverse=True)[1] for key in keys)
            _, code = combined(*numbers)
            order = np.lexsort((-members, ends[members], code))
            is_last = np.r_[code[order][1:] != code[order][:-1], True]
            last[members] = members[order[is_last][code]]
        return last

    def _in_order(self, launch: Ints, nodes: Ints) -> Pairs:
        """Return the last work before each in its stream: before all of its launch."""
        (order, first), (places, latest) = self._rows.queues, self._rows.latest
        begin = np.arange(len(order))
        nodes = nodes[places[nodes] >= 0]
        if len(nodes):
            numbers = (first[places[nodes]], np.unique(launch[nodes], return_inverse=True)[1])
            _, code = combined(*numbers)
            least = np.full(int(code.max()) + 1, len(order))
            np.minimum.at(least, code, places[nodes])
            begin[places[nodes]] = least[code]
        follows = np.flatnonzero(begin > first)
        return order[latest[begin[follows] - 1]], order[follows]

    def _behind_legacy(self) -> Pairs:
        """Return the last work that the legacy default stream put before each, if any.

        Its work follows that of blocking streams, and theirs follows its.
        """
        rows, pairs = self._rows, [np.zeros((2, 0), np.int64)]
        legacy, blocking = (
            rows.is_work & np.isin(rows.streams, streams)
            for streams in (rows.legacy_streams, rows.blocking_streams)
        )
        for leaders, followers in ((blocking, legacy), (legacy, blocking)):
            for device in np.unique(rows.devices[followers]).tolist():
                after = np.flatnonzero(followers & (rows.devices == device))
                before = np.flatnonzero(leaders & (rows.devices == device) & (rows.queued >= 0))
                before = before[np.lexsort((-before, rows.ends[before]))]
                at = rows.ends[before].searchsorted(rows.starts[after], "right") - 1
                queued = np.r_[rows.queued[before], -1]  # the last is of those that follow none
                while (later := queued[at] > rows.queued[after]).any():
                    at[later] -= 1
                pairs.append(np.stack([before[at[at >= 0]], after[at >= 0]]))
        before, after = np.concatenate(pairs, axis=1)
        return before, after


_RANK = np.array([2, 0, 1, 3])
"""Of each of ``ORDER``: of two rules that say the same, the lower counts."""
