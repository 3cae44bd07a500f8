"""Parts of the time of requests: of the calls that served them, and before each call."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np

from gpuscope._types import Ints
from gpuscope.analysis.call_parts import handle_parts, launched_inside
from gpuscope.analysis.part import Part, filled
from gpuscope.analysis.span_rows import OPEN
from gpuscope.analysis.work_parts import WorkParts
from gpuscope.errors import MissingEvidence
from gpuscope.trace.facts import RequestFacts
from gpuscope.trace.metadata import Description


class RequestParts:
    """What a trace tells of the time of its requests, from their arrival to their last token.

    Prompts are read in the order of their arrival: the calls of prefill that ended after the first
    token of the request before, up to that of a request, were for it. Each further token came with
    the last step of decode that had ended by then.
    """

    def __init__(self, work: WorkParts) -> None:
        self._work = work
        rows = work.rows
        self._facts: dict[int, RequestFacts] = {}
        self._first_tokens: dict[tuple[str | None, int], list[int]] = defaultdict(list)
        for row in np.flatnonzero(rows.having("kind", ("range",)) & (rows.ends != OPEN)).tolist():
            facts = RequestFacts.of(rows.text("payload", row))
            if facts is not None and facts.tokens_ns:
                self._facts[row] = facts
                served = rows.text("category", row), int(rows.processes[row])
                self._first_tokens[served].append(int(rows.starts[row]) + facts.tokens_ns[0])

    def __contains__(self, row: int) -> bool:
        return row in self._facts

    def parts(self, row: int) -> list[Part]:
        """Return the parts of the time of a request, in order."""
        rows = self._work.rows
        workload, process = rows.text("category", row), int(rows.processes[row])
        plan: Description = (rows.metadata.experiment or {}).get("workloads", {}).get(workload, {})
        prefill, decode = (self._calls(plan.get(key), process) for key in ("prefill", "decode"))
        arrival = int(rows.starts[row])
        end = rows.end_ns(row)
        tokens = sorted(min(arrival + token_ns, end) for token_ns in self._facts[row].tokens_ns)
        first = tokens[0]
        earlier = [token for token in self._first_tokens[workload, process] if token < first]
        ends = rows.ends[prefill]
        prompt = prefill[(ends > max(earlier, default=-1)) & (ends > arrival) & (ends <= first)]
        serving = np.r_[prefill, decode]
        parts = self._served(prompt, serving, arrival, first)
        for token, then in pairwise(tokens):
            last = int(np.searchsorted(rows.ends[decode], then, "right")) - 1
            steps = decode[last : last + 1] if last >= 0 else decode[:0]
            parts += self._served(steps[rows.ends[steps] > token], serving, token, then)
        return filled(parts, arrival, end, "unexplained", "unexplained")

    def _calls(self, workload: object, process: int) -> Ints:
        """Return the calls of a workload in the order of their ends."""
        rows = self._work.rows
        if not isinstance(workload, str):
            raise MissingEvidence(
                "the trace does not say which workloads served its requests: open the trace that "
                "the experiment recorded, whose metadata has its workloads"
            )
        calls = rows.having("kind", ("handle",)) & rows.having("category", (workload,))
        places = np.flatnonzero(calls & (rows.processes == process) & (rows.ends != OPEN))
        return places[np.argsort(rows.ends[places], kind="stable")]

    def _served(self, calls: Ints, serving: Ints, since: int, until: int) -> list[Part]:
        """Return the parts of [since, until), in which calls served a request, one by one."""
        if not len(calls):
            return [Part("unexplained", since, until)] if since < until else []
        rows = self._work.rows
        launched = {work_row for call in calls.tolist() for work_row in launched_inside(rows, call)}
        stretches: list[list[Part]] = []
        at = until
        for call in calls[::-1].tolist():
            start, end = max(int(rows.starts[call]), since), min(int(rows.ends[call]), at)
            if end < at:
                after = (
                    Part("not looking", end, at) if at == until else self._queue(serving, end, at)
                )
                stretches.append([after])
            if start < end:
                inner = handle_parts(self._work, call, launched)
                stretches.append(filled(inner, start, end, "launch call", "not looking"))
            at = min(at, start)
        if since < at:
            stretches.append([self._queue(serving, since, at)])
        return [part for stretch in reversed(stretches) for part in stretch]

    def _queue(self, serving: Ints, since: int, until: int) -> Part:
        """Return the part before a call: which calls for others were made then, the last named."""
        rows = self._work.rows
        ahead = serving[(rows.starts[serving] < until) & (rows.ends[serving] > since)]
        if not len(ahead):
            return Part("request queue", since, until)
        last = int(ahead[np.argmax(rows.ends[ahead])])
        return Part("request queue", since, until, int(rows.ids[last]), len(ahead) - 1)
