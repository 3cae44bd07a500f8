"""What Kineto's synchronisations waited for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.formats.chrome.spans import WORK, Spans
from gpuscope.trace import waits
from gpuscope.trace.arrow import NONE, Columns

Edges = tuple[Array, Array, str]
"""Ids of the rows that edges lead from and to, and their kind."""
LOW = (1 << 32) - 1
"""Bits of a correlation id, and of a stream's number."""
_SYNCS = ("", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
"""Kineto's names of synchronisations, by CUPTI's numbers."""


def waited(spans: Spans, columns: Columns, names: pa.DictionaryArray, ids: Array) -> list[Edges]:
    """Return the edges of what waited, as far as Kineto's synchronisations tell."""
    words = [*names.dictionary.to_pylist(), None]
    codes = [_SYNCS.index(name) if name in _SYNCS else NONE for name in words]
    what = np.array(codes)[np.asarray(names.indices.fill_null(NONE))]
    number, of_stream = columns["correlation"] & LOW, what == waits.STREAM_SYNC
    table = {name: columns[name] for name in ("key", "device")}
    table |= {"number": number, "launch": number, "first": ids, "last": ids, "row": ids}
    table |= {"start": spans.starts[spans.rows], "end": spans.ends[spans.rows], "what": what}
    table |= {"of_key": np.where(of_stream, columns["key"], columns["of_key"]), "is_done": ids * 0}
    table["of_number"] = np.where(of_stream, number, columns["of_number"] & LOW)
    work, syncs = (
        {
            name: values[spans.is_(*kinds) & (columns["correlation"] > 0)]
            for name, values in table.items()
        }
        for kinds in (WORK, ("sync",))
    )
    wait, source, target = waits.wait_edges(waits.by_stream(work), syncs)
    return waits.by_kind(syncs["what"][wait], source, target)
