"""A trace of sampled stacks of two threads, made by hand."""

from __future__ import annotations

import json

from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.schema import HOLDS_LOCK, RUNS

MAIN, LOADER = 11, 12
OUTER, INNER, READ = ["train.py", 80, "main"], ["train.py", 7, "step"], ["load.py", 3, "read"]


def built(stacks, *, kernel=False, **metadata):
    """Build a trace of stacks: thread, start, end, lines from the innermost on, samples, status."""
    rows = [
        {"kind": "stack", "name": lines[0][2] if lines else "no Python", "thread": thread,
         "process": 5, "start_ns": start, "end_ns": end, "status": status,
         "payload": json.dumps(lines) if lines else None, "value": samples, "source": "host"}
        for thread, start, end, lines, samples, status in stacks
    ]  # fmt: skip
    if kernel:
        rows.append({"kind": "kernel", "name": "k", "device": 0, "start_ns": 0, "end_ns": 9,
                     "source": "cupti"})  # fmt: skip
    rows = [{"id": number, **row} for number, row in enumerate(rows)]
    names = dict.fromkeys(name for row in rows for name in row)
    facts = {"thread_names": {str(MAIN): "main; thread"}, **metadata}
    return Trace.from_columns(
        {name: [row.get(name) for row in rows] for name in names}, None, TraceMetadata(**facts)
    )


SEEN = [
    (LOADER, 1000, 1400, [READ, OUTER], 4.0, RUNS),
    (MAIN, 1200, 1300, [OUTER], 1.0, HOLDS_LOCK),
    (MAIN, 1000, 1100, [INNER, OUTER], 1.0, HOLDS_LOCK),
    (MAIN, 1100, 1200, [INNER, OUTER], 2.0, RUNS),
    (MAIN, 1500, 1600, [], 1.0, RUNS),
]
