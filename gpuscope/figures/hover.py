"""What a timeline says about a span under the pointer."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from gpuscope.figures import style
from gpuscope.figures.text import duration, escape
from gpuscope.figures.tracks import View, partition_label

_COLUMNS = (
    "kind", "name", "partition", "intended_partition", "stream", "source", "status",
    "start_uncertainty_ns", "end_uncertainty_ns",
)  # fmt: skip


def hovers(view: View, rows: pa.Table, unit: str, unit_ns: float) -> list[str]:
    """Return one text a drawn span; ``rows`` are those of ``view.drawn``."""
    trace = view.trace
    low = view.window_ns[0]
    texts: dict[str, list[Any]] = {name: rows.column(name).to_pylist() for name in _COLUMNS}
    streams = texts["stream"]
    early, late = texts["start_uncertainty_ns"], texts["end_uncertainty_ns"]
    said = []
    for place, row in enumerate(view.drawn.tolist()):
        kind = texts["kind"][place]
        start, end = int(view.start_ns[row]), int(view.end_ns[row])
        lasts = duration(end - start)
        if view.is_open[row]:
            lasts = f"OPEN: its end was not seen; {lasts} until the window's end"
        elif start == end:
            lasts = "an instant"
        lines = [
            f"<b>{escape(texts['name'][place], 120)}</b>",
            f"{style.KIND_STYLES[kind].label}, {lasts}",
            f"starts at {(start - low) / unit_ns:,.3f} {unit}",
        ]
        doubts = []
        if early[place]:
            doubts.append(f"true start up to {duration(early[place])} later")
        if late[place] and not view.is_open[row]:
            doubts.append(f"true end up to {duration(late[place])} earlier")
        if doubts:
            lines.append(", ".join(doubts))
        partition, intended = texts["partition"][place], texts["intended_partition"][place]
        is_host = view.tracks[int(view.track[row])].is_host
        if not is_host or partition is not None:
            lines.append(f"partition {escape(partition_label(trace, partition))}")
        if intended is not None and intended != partition:
            lines.append(f"<b>intended for partition {escape(intended, 40)}</b>")
        if streams[place] is not None or not is_host:
            lines.append(f"stream {escape(trace.stream_name(streams[place]), 60)}")
        if texts["status"][place] is not None:
            lines.append(f"status {escape(texts['status'][place], 60)}")
        lines.append(f"source: {escape(texts['source'][place], 40)}")
        said.append("<br>".join(lines))
    return said
