"""On which track of a timeline each span stands, as other tools show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.analysis.columns import codes, combined
from gpuscope.trace.model import Trace

Array = np.ndarray[Any, Any]

THREAD, HANDLE, STREAM, SM, COUNTER = range(5)
_GROUPS = {
    "api": THREAD, "sync": THREAD, "range": THREAD, "mark": THREAD, "handle": HANDLE,
    "block": SM, "counter": COUNTER,
}  # fmt: skip
_COLUMNS = ("process", "thread", "category", "device", "partition", "stream", "sm")
_USED = {
    THREAD: ("process", "thread"),
    HANDLE: ("process", "thread", "category"),
    STREAM: ("device", "partition", "stream"),
    SM: ("device", "sm"),
    COUNTER: ("process", "device"),
}


@dataclass(frozen=True)
class Track:
    """What the spans of a track have in common; ``None`` is unknown or does not apply.

    Attributes
    ----------
    group
        ``THREAD``: what a host thread did. ``HANDLE``: calls of handles, which may overlap.
        ``STREAM``: work of a GPU's stream. ``SM``: thread blocks. ``COUNTER``.
    process, thread
        The system's ids; of the trace's only process where a row names none.
    """

    group: int
    process: int | None
    thread: int | None
    category: str | None
    device: int | None
    partition: str | None
    stream: int | None
    sm: int | None

    @property
    def is_device(self) -> bool:
        """Whether a GPU did it."""
        return self.group in (STREAM, SM) or (self.group == COUNTER and self.device is not None)

    def names(self, trace: Trace) -> tuple[str, str]:
        """Return what to call it: the process or GPU, then the row in it."""
        facts = trace.metadata
        if not self.is_device:
            where = facts.process_names.get(str(self.process))
            owner = where or ("host" if self.process is None else f"process {self.process}")
            row = facts.thread_names.get(str(self.thread))
            row = row or ("thread" if self.thread is None else f"thread {self.thread}")
            if self.group == HANDLE:
                row = f"handle {self.category or 'without a name'} · {row}"
            return owner, row
        number = 0 if self.device is None else self.device
        known = [one for one in facts.devices.values() if one.get("index") == number]
        owner = f"GPU {number}" + (f" {known[0]['name']}" if known and "name" in known[0] else "")
        if self.group == COUNTER:
            return owner, "counters"
        if self.group == SM:
            return f"{owner} · SMs", f"SM {self.sm}"
        if self.partition is not None:
            count = facts.partitions.get(self.partition, {}).get("sm_count")
            owner += f" · {self.partition}" + (f" ({count} SMs)" if count is not None else "")
        return owner, trace.stream_name(self.stream)


def tracks(trace: Trace) -> tuple[list[Track], Array]:
    """Return the tracks of a trace, and each row's position among them."""
    kind, kinds = codes(trace.spans.column("kind"))
    group = np.array([_GROUPS.get(one, STREAM) for one in kinds], np.int64)[kind]
    coded = {name: codes(trace.spans.column(name)) for name in _COLUMNS}
    called = np.array([one == "event" for one in kinds])[kind] & (coded["thread"][0] > 0)
    group = np.where(called, THREAD, group)
    number, values = coded["process"]
    if len(values) == 2:  # nothing and one process
        coded["process"] = np.ones_like(number), values
    parts = {
        name: np.where(np.isin(group, [one for one, used in _USED.items() if name in used]),
                       code, 0)
        for name, (code, _) in coded.items()
    }  # fmt: skip
    first, track = combined(group, *parts.values())
    found = [
        Track(int(group[row]), *(coded[name][1][parts[name][row]] for name in _COLUMNS))
        for row in first
    ]
    return found, track
