"""Chrome traces that gpuscope wrote: their arguments are the trace's own columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa

from gpuscope.errors import TraceFormatError
from gpuscope.formats.chrome import events as raw
from gpuscope.formats.chrome.events import ChromeEvent
from gpuscope.formats.chrome.json_text import JSON, TIMES
from gpuscope.formats.chrome.write import CATEGORIES, FLOWS, HAZARD
from gpuscope.formats.private import scrub
from gpuscope.trace import arrow, schema
from gpuscope.trace.arrow import NONE
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace

_KINDS = {category: kind for kind, category in CATEGORIES.items()}
"""Kineto's categories → kinds; any other is the kind itself."""
_ON_STREAMS = ("kernel", "memcpy", "memset", "host function", "block", "graph")


def check_version(version: object, needed: object) -> None:
    """Refuse a trace of ours that another version wrote in another schema.

    Raises
    ------
    TraceFormatError
        It has another schema version.
    """
    if version != needed:
        raise TraceFormatError(
            f"gpuscope wrote it with schema version {version!r}, but this gpuscope reads version "
            f"{schema.SCHEMA_VERSION}: use the gpuscope that wrote it, or record again"
        )


def metadata(top: dict[str, msgspec.Raw]) -> TraceMetadata | None:
    """Return the metadata of a trace of ours, ``None`` for others' traces.

    Raises
    ------
    TraceFormatError
        It says that gpuscope wrote it, but not with this schema.
    """
    other = raw.values(top["otherData"]) if "otherData" in top else None
    if not isinstance(other, dict) or not str(other.get("writer")).startswith("gpuscope "):
        return None
    check_version(other.get("schema_version"), schema.SCHEMA_VERSION)
    return TraceMetadata.from_facts(other.get("metadata"))


_ARGUMENTS = (*schema.SPAN_TYPES, "bytes", "target_stream")
"""The columns, and what two of them are called here."""
_FIELDS = [
    (name, msgspec.Raw, raw.ABSENT) if name in JSON else (name, int | float | str | None, None)
    for name in _ARGUMENTS
]
_DECODE = msgspec.json.Decoder(msgspec.defstruct("Arguments", _FIELDS, gc=False)).decode
_ENDS = msgspec.json.Decoder(dict[str, int])
_BASE = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=0, lt=schema.LATEST_NS)])
_AT_ONCE = 1 << 14
"""Rows that are Python's at the same time."""


def trace(
    events: list[ChromeEvent],
    top: dict[str, msgspec.Raw],
    facts: TraceMetadata,
    *,
    keep_private: bool,
) -> Trace:
    """Return the trace that gpuscope wrote."""
    base = _BASE.decode(top.get("baseTimeNanoseconds", b"0"))
    uuids = {device.index: device.uuid for device in facts.devices.values()}
    events = [event for event in events if event.cat != HAZARD]  # the metadata have them
    spans = [event for event in events if event.ph in "XBiC"]
    parts = [_rows(spans[at : at + _AT_ONCE], base, uuids) for at in range(0, len(spans), _AT_ONCE)]
    table = _completed(schema.concat(parts, schema.SPAN_TYPES))
    return Trace(table if keep_private else scrub(table), _edges(events), facts)


def _rows(events: list[ChromeEvent], base: int, uuids: Mapping[int | None, str | None]) -> pa.Table:
    """Return the rows of some events; older samples of counters lack an id and a source."""
    given = [_DECODE(next(filter(bytes, (event.columns, event.args)), b"{}")) for event in events]
    columns: dict[str, list[Any]] = {
        name: [getattr(arguments, name) for arguments in given] for name in _ARGUMENTS
    }
    starts, has_start = raw.nanoseconds([event.ts for event in events])
    if not has_start.all():
        raise TraceFormatError("a span has no start")
    lasts, lasting = raw.nanoseconds([event.dur for event in events])
    columns["start_ns"] = (starts + base).tolist()
    ends = arrow.nullable(starts + lasts + base, ~lasting).to_pylist()
    of_counters = [None if value is None else value + base for value in columns["end_ns"]]
    columns["end_ns"] = _either(ends, of_counters)
    for name in TIMES:
        columns[name] = [None if value is None else value + base for value in columns[name]]
    for name in JSON:
        columns[name] = [
            None if value is raw.ABSENT else bytes(value).decode() for value in columns[name]
        ]
    columns["kind"] = [
        _KINDS.get(event.cat or "", event.cat or "") if kind is None else kind
        for event, kind in zip(events, columns["kind"], strict=True)
    ]
    columns["name"] = raw.texts([event.name for event in events], "").to_pylist()
    columns["nbytes"] = _either(columns.pop("bytes"), columns["nbytes"])
    columns["device_uuid"] = [uuids.get(device) for device in columns["device"]]
    # An event that a thread recorded names the stream as a call does.
    called = columns.pop("target_stream")
    host = [
        kind not in _ON_STREAMS and (stream is None or target is not None)
        for kind, stream, target in zip(columns["kind"], columns["stream"], called, strict=True)
    ]
    columns["stream"] = _either(called, columns["stream"])
    for name, of_event in (("process", "pid"), ("thread", "tid")):
        numbers = raw.whole([getattr(event, of_event) for event in events]).to_pylist()
        of_host = zip(numbers, host, strict=True)
        host_ids = [number if on_host else None for number, on_host in of_host]
        columns[name] = _either(columns[name], host_ids)
    return schema.table(columns, schema.SPAN_TYPES)


def _either(first: list[Any], second: list[Any]) -> list[Any]:
    """Return the first value of each row or, where there is none, the second."""
    return [other if value is None else value for value, other in zip(first, second, strict=True)]


def _completed(table: pa.Table) -> pa.Table:
    """Give samples of counters that do not say their own an id and the source of the rest."""
    ids = np.asarray(table.column("id").cast(pa.int64()).fill_null(NONE))
    lacking = ids == NONE
    ids = np.where(
        lacking, max(int(ids.max(initial=0)), 0) + np.cumsum(lacking, dtype=np.int64), ids
    )
    sources = table.column("source").cast(pa.string())
    usual = next(iter(sources.drop_null().slice(0, 1).to_pylist()), "chrome")
    columns = dict(zip(table.column_names, table.columns, strict=True))
    sources = sources.fill_null(usual).dictionary_encode()
    return pa.table({**columns, "id": ids, "source": sources})


def _edges(events: list[ChromeEvent]) -> pa.Table:
    """Return the edges; each arrow's beginning says where it leads from and to."""
    begins = [event for event in events if event.ph == "s"]
    ends = [_ENDS.decode(event.args) for event in begins]
    if not all("from" in end and "to" in end for end in ends):
        raise TraceFormatError("an arrow leads from nowhere or to nowhere")
    columns: dict[str, list[Any]] = {side: [end[side] for end in ends] for side in ("from", "to")}
    kinds = {FLOWS["launch"]: "launch"}
    columns["kind"] = [kinds.get(event.cat or "", str(event.cat)) for event in begins]
    return schema.table(columns, schema.EDGE_TYPES)
