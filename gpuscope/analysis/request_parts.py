"""Parts of the time of requests: of the calls that served them, and before each call."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import msgspec
import numpy as np

from gpuscope._types import Ints
from gpuscope.analysis.call_parts import handle_parts
from gpuscope.analysis.part import Part, filled
from gpuscope.analysis.span_rows import OPEN
from gpuscope.analysis.work_parts import WorkParts
from gpuscope.errors import MissingEvidence
from gpuscope.trace.metadata import Description, RequestFacts


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
            try:
                facts = msgspec.json.decode(rows.text("payload", row) or "", type=RequestFacts)
            except msgspec.DecodeError:
                continue  # another range
            if facts.tokens_ns:
                self._facts[row] = facts
                served = rows.text("category", row), int(rows.processes[row])
                self._first_tokens[served].append(int(rows.starts[row]) + facts.tokens_ns[0])

    def __contains__(self, row: int) -> bool:
        return row in self._facts

    def parts(self, row: int) -> list[Part]:
        """Return the parts of the time of a request, in order."""
        rows = self._work.rows
        workload, process = rows.text("category", row), int(rows.processes[row])
        described = (rows.metadata.experiment or {}).get("workloads", {})
        plan: Description = described.get(workload, {}) if isinstance(described, dict) else {}
        prefill, decode = (
            self._calls(plan.get(key) if isinstance(plan, dict) else None, process)
            for key in ("prefill", "decode")
        )
        arrival = int(rows.starts[row])
        first, *_ = tokens = [arrival + token_ns for token_ns in self._facts[row].tokens_ns]
        earlier = [token for token in self._first_tokens[workload, process] if token < first]
        ends = rows.ends[prefill]
        prompt = prefill[(ends > max(earlier, default=-1)) & (ends > arrival) & (ends <= first)]
        serving = np.r_[prefill, decode]
        parts = self._served(prompt, serving, arrival, first)
        for token, then in pairwise(tokens):
            last = int(np.searchsorted(rows.ends[decode], then, "right")) - 1
            steps = decode[last : last + 1] if last >= 0 else decode[:0]
            parts += self._served(steps[rows.ends[steps] > token], serving, token, then)
        return list(filled(parts, arrival, rows.end_ns(row), "unexplained", "unexplained"))

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
        rows = self._work.rows
        parts: list[Part] = []
        at = since
        for call in calls.tolist():
            start, end = int(rows.starts[call]), min(int(rows.ends[call]), until)
            if start > at:
                ahead = serving[(rows.starts[serving] < start) & (rows.ends[serving] > at)]
                last = ahead[np.argmax(rows.ends[ahead])] if len(ahead) else None
                cause = None if last is None else int(rows.ids[last])
                parts.append(Part("request queue", at, start, cause, max(0, len(ahead) - 1)))
            if end > max(at, start):
                inner = handle_parts(self._work, call)
                parts += filled(inner, max(at, start), end, "launch call", "not looking")
                at = end
        if at < until:
            parts.append(Part("not looking" if len(calls) else "unexplained", at, until))
        return parts
