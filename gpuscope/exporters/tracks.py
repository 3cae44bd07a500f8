"""The tracks of a trace as other tools show them, and what they call them."""

from __future__ import annotations

from gpuscope.trace.model import Trace
from gpuscope.trace.tracks import Group, Layout, TrackKey

LAYOUT = Layout(
    {
        "api": Group.THREAD, "sync": Group.THREAD, "range": Group.THREAD, "mark": Group.THREAD,
        "handle": Group.HANDLES, "block": Group.SM, "counter": Group.COUNTER,
    },
    {
        Group.THREAD: ("process", "thread"),
        Group.HANDLES: ("process", "thread", "category"),
        Group.STREAM: ("device", "partition", "stream"),
        Group.SM: ("device", "sm"),
        Group.COUNTER: ("process", "device"),
    },
    others=Group.STREAM,
)  # fmt: skip


def names(track: TrackKey, trace: Trace) -> tuple[str, str]:
    """Return what to call a track: the process or GPU, then the row in it."""
    facts = trace.metadata
    if not track.is_device:
        where = facts.process_names.get(str(track.process))
        owner = where or ("host" if track.process is None else f"process {track.process}")
        row = facts.thread_names.get(str(track.thread))
        row = row or ("thread" if track.thread is None else f"thread {track.thread}")
        if track.group == Group.HANDLES:
            row = f"handle {track.category or 'without a name'} · {row}"
        return owner, row
    number = 0 if track.device is None else track.device
    name = facts.device(number).name
    owner = f"GPU {number}" + (f" {name}" if name is not None else "")
    if track.group == Group.COUNTER:
        return owner, "counters"
    if track.group == Group.SM:
        return f"{owner} · SMs", f"SM {track.sm}"
    if track.partition is not None:
        count = facts.partition(track.partition).sm_count
        owner += f" · {track.partition}" + (f" ({count} SMs)" if count is not None else "")
    return owner, trace.stream_name(track.stream)
