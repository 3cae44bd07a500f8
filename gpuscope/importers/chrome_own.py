"""Chrome traces that gpuscope wrote: their arguments are the trace's own columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.errors import TraceFormatError
from gpuscope.importers import chrome_events as raw
from gpuscope.importers.chrome_events import Event
from gpuscope.importers.private import scrub
from gpuscope.trace import arrow, schema
from gpuscope.trace.arrow import NONE, Columns
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace

_KINDS = {"gpu_memcpy": "memcpy", "gpu_memset": "memset", "cuda_runtime": "api",
          "user_annotation": "range"}  # fmt: skip
"""Kineto's categories → kinds; any other is the kind itself."""
_LAUNCH = "ac2g"
_ON_STREAMS = ("kernel", "memcpy", "memset", "host function", "block", "graph")
_TIMES = ("queued_ns", "submitted_ns")
_BESIDE = ("id", "kind", "name", "start_ns", "end_ns")
"""Columns that the event itself tells."""


def check_version(found: object, needed: object) -> None:
    """Refuse a trace of ours that another version wrote in another schema.

    Raises
    ------
    TraceFormatError
        It has another schema version.
    """
    if found != needed:
        raise TraceFormatError(
            f"gpuscope wrote it with schema version {found!r}, but this gpuscope reads version "
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


class _Arguments(msgspec.Struct, gc=False):
    """Arguments that are read one by one; `_type_of_arguments` adds the other columns."""

    id: int | None = None
    kind: str | None = None
    bytes: int | None = None
    target_stream: int | None = None


def _type_of_arguments() -> Any:
    """Return the type of the events' arguments: the columns, and what these are called here."""
    fields: list[Any] = []
    for name, kind in schema.SPAN_TYPES.items():
        if name in _Arguments.__struct_fields__:
            continue
        if name in ("launch_config", "payload"):
            fields.append((name, msgspec.Raw, raw.ABSENT))
        elif pa.types.is_dictionary(kind):
            fields.append((name, str | None, None))
        elif pa.types.is_floating(kind):
            fields.append((name, float | None, None))
        else:
            fields.append((name, int | None, None))
    return msgspec.defstruct("Arguments", fields, bases=(_Arguments,), gc=False)


_DECODE = msgspec.json.Decoder(_type_of_arguments()).decode
_NOTHING = b"{}"


def trace(
    events: list[Event], top: dict[str, msgspec.Raw], facts: TraceMetadata, *, keep_private: bool
) -> Trace:
    """Return the trace that gpuscope wrote."""
    base = msgspec.json.decode(top.get("baseTimeNanoseconds", msgspec.Raw(b"0")), type=_Base)
    spans = [one for one in events if one.ph in "XBiC"]
    flows = [one for one in events if one.ph == "s"]
    told = [_DECODE(one.args if bytes(one.args) else _NOTHING) for one in spans]
    starts, known = raw.nanoseconds([one.ts for one in spans])
    lasts, lasting = raw.nanoseconds([one.dur for one in spans])
    if not known.all():
        raise TraceFormatError("a span has no start")
    kinds = [
        _KINDS.get(one.cat or "", one.cat or "") if more.kind is None else more.kind
        for one, more in zip(spans, told, strict=True)
    ]
    kind, kind_names = arrow.coded(pa.array(kinds, pa.string()))
    columns: Columns = {
        name: _column(name, [getattr(one, name) for one in told], base)
        for name in schema.SPAN_TYPES
        if name not in _BESIDE
    }
    ids = _numbers(raw.whole([one.id for one in told]))
    # A counter's sample has its number only.
    lacking = ids == NONE
    ids = np.where(lacking, max(int(ids.max(initial=0)), 0) + np.cumsum(lacking), ids)
    host = ~np.array([one in _ON_STREAMS for one in kind_names] or [True])[kind]
    columns |= _places(spans, told, host, columns)
    columns |= {
        "id": ids,
        "kind": arrow.text_column(kind, [*kind_names]),
        "name": raw.texts([one.name for one in spans], ""),
        "start_ns": starts + base,
        "end_ns": arrow.nullable(starts + lasts + base, ~lasting),
        "nbytes": _first(raw.whole([one.bytes for one in told]), columns["nbytes"]),
        "device_uuid": uuids(_numbers(columns["device"]), facts),
    }
    columns["source"] = _filled(columns["source"])
    table = arrow.table(columns, len(spans))
    return Trace(table if keep_private else scrub(table), _edges(flows), facts)


def _column(name: str, values: list[Any], base: int) -> pa.Array:
    kind = schema.SPAN_TYPES[name]
    if name in ("launch_config", "payload"):
        values = [None if value is raw.ABSENT else bytes(value).decode() for value in values]
    if all(value is None for value in values):
        return pa.nulls(len(values))
    if name in _TIMES:
        values = [None if value is None else value + base for value in values]
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, kind)


def _first(one: pa.Array, other: pa.Array) -> pa.Array:
    return other if pa.types.is_null(one.type) else one


def _places(
    spans: list[Event], told: Sequence[_Arguments], host: Array, columns: Columns
) -> Columns:
    """Return process, thread and stream, which the events' own numbers tell in part."""
    target = raw.whole([one.target_stream for one in told])
    streams = _numbers(columns["stream"])
    named = _numbers(target)
    # An event that a thread recorded names the stream as a call does.
    host = host & ~((streams != NONE) & (named == NONE))
    found: Columns = {}
    for name, values in (("process", [one.pid for one in spans]),
                         ("thread", [one.tid for one in spans])):  # fmt: skip
        given = _numbers(columns[name])
        own = _numbers(raw.whole(values))
        numbers = np.where((given == NONE) & host, own, given)
        found[name] = arrow.nullable(numbers, numbers == NONE)
    both = np.where(named == NONE, streams, named)
    found["stream"] = arrow.nullable(both, both == NONE)
    return found


def _numbers(column: pa.Array) -> Array:
    if pa.types.is_null(column.type):
        return np.full(len(column), NONE, np.int64)
    return np.asarray(column.cast(pa.int64()).fill_null(NONE))


def _filled(sources: pa.Array) -> pa.Array:
    """Return the sources; a counter's sample, which cannot say its own, has that of the rest."""
    known = sources.drop_null()
    usual = known[0].as_py() if len(known) else "chrome"
    return sources.cast(pa.string()).fill_null(usual).dictionary_encode()


def uuids(device: Array, facts: TraceMetadata) -> pa.DictionaryArray:
    """Return the devices' UUIDs, which the metadata has by index."""
    known = {one.index: one.uuid for one in facts.devices.values()}
    codes, indices = arrow.coded(device)
    return arrow.text_column(codes, [known.get(index) for index in indices])


_Base = Annotated[int, msgspec.Meta(ge=0, lt=schema.LATEST_NS)]


class _Ends(msgspec.Struct, rename={"source": "from", "target": "to"}):
    source: int
    target: int


def _edges(flows: list[Event]) -> pa.Table:
    """Return the edges; each arrow's beginning says where it leads from and to."""
    decode = msgspec.json.Decoder(_Ends).decode
    ends = [decode(flow.args) for flow in flows]
    kinds = ["launch" if flow.cat == _LAUNCH else str(flow.cat) for flow in flows]
    source, target = (
        np.array([getattr(end, side) for end in ends], np.int64) for side in ("source", "target")
    )
    return arrow.edges(source, target, pa.array(kinds, pa.string()).dictionary_encode())
