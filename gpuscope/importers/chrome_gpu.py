"""What the arguments of GPU work and API calls tell in Kineto's traces."""

from __future__ import annotations

import itertools
import json
import re
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.importers import chrome_events as raw
from gpuscope.importers.chrome_spans import Spans
from gpuscope.importers.limits import Limits
from gpuscope.trace import arrow
from gpuscope.trace.arrow import NONE, Columns
from gpuscope.trace.metadata import StreamFacts

_ARGUMENTS = {
    "device": "device", "context": "context", "stream": "stream", "correlation": "correlation",
    "external_correlation": "External id", "graph": "graph id", "graph_node": "graph node id",
    "nbytes": "bytes",
}  # fmt: skip
"""Column → Kineto's name of the argument."""
_CONFIG = {"grid": "grid", "block": "block", "registers": "registers per thread",
           "shared_memory": "shared memory"}  # fmt: skip
_COPY = re.compile(r"Memcpy (\w+) \((\w+) -> (\w+)\)")
_FOREIGN = 1_000_000_000
"""A stream whose number another device has, too, is numbered from here."""
WANTED = (*_ARGUMENTS.values(), *_CONFIG.values())
"""Names of the arguments that are read."""
AS_WRITTEN = ("grid", "block")
_AT_ONCE = 4096
"""Launch configurations that are Python's at the same time."""

_T = TypeVar("_T")


def places(
    spans: Spans, called: Array, on_gpu: Array, told: raw.Values, limits: Limits
) -> tuple[Columns, dict[str, StreamFacts]]:
    """Return the columns that arguments tell, of all spans, and what is known of streams.

    ``told`` is emptied on the way.
    """
    count = len(spans.rows)
    columns: Columns = {"launch_config": _launch_configs(count, called, told)}
    for name, argument in _ARGUMENTS.items():
        values = raw.whole(told.pop(argument))
        known = np.asarray(values.is_valid(), dtype=bool)
        numbers = np.full(count, NONE, np.int64)
        if known.any():
            numbers[called[known]] = np.asarray(values.drop_null())
        columns[name] = numbers
    in_graph = columns["graph"] > 0
    columns["graph"] = np.where(in_graph, columns["graph"], NONE)
    columns["graph_node"] = np.where(in_graph, columns["graph_node"], NONE)
    process, thread = spans.process[spans.rows], spans.thread[spans.rows]
    columns["device"] = np.where(on_gpu & (columns["device"] == NONE), process,
                                 columns["device"])  # fmt: skip
    small = (columns["device"] >= 0) & (columns["device"] < 1 << 15)
    columns["device"] = np.where(small, columns["device"], NONE)
    streams = np.where(on_gpu & (columns["stream"] == NONE), thread, columns["stream"])
    streams = np.where(on_gpu & (streams >= 0), streams, NONE)
    columns["stream"], facts = _streams(columns["device"], streams, limits)
    return columns, facts


def _streams(device: Array, stream: Array, limits: Limits) -> tuple[Array, dict[str, StreamFacts]]:
    """Return a number for each stream of each device; Kineto's repeat."""
    codes, distinct = arrow.coded_array(device, stream)
    limits.check_places(len(distinct))
    facts: dict[str, StreamFacts] = {}
    numbers = []
    for place, (index, number) in enumerate(distinct.tolist()):
        if number == NONE:
            numbers.append(NONE)
            continue
        free = str(number) not in facts
        own = number if free else _FOREIGN + place
        name = f"stream {number}" if free else f"stream {number} of GPU {index}"
        facts[str(own)] = StreamFacts(name, device=f"cuda:{index}")
        numbers.append(own)
    return np.array(numbers or [NONE], np.int64)[codes], facts


def _launch_configs(count: int, called: Array, told: raw.Values) -> pa.DictionaryArray:
    """Return the launch configurations as JSON, each distinct one once."""
    # As bytes until distinct: a tuple of each takes several times as much.
    keys = map(_key, *(told.pop(name) for name in _CONFIG.values()))
    parts = [pa.array([], pa.binary())]
    while some := list(itertools.islice(keys, _AT_ONCE)):
        parts.append(pa.array(some, pa.binary()))
    coded = pa.concat_arrays(parts).dictionary_encode()
    codes = np.full(count, NONE, np.int64)
    codes[called] = np.asarray(coded.indices.fill_null(NONE))
    return arrow.text_column(codes, (_config(key.as_py()) for key in coded.dictionary))


def _key(grid: msgspec.Raw, block: msgspec.Raw, registers: object, shared: object) -> bytes | None:
    """Return a configuration as a list in JSON, if it has its sizes."""
    if grid is raw.ABSENT or block is raw.ABSENT:
        return None
    more = (str(one).encode() if type(one) is int else b"null" for one in (registers, shared))
    return b"[%b,%b,%b,%b]" % (bytes(grid), bytes(block), *more)


def _config(key: bytes) -> str | None:
    """Return a launch configuration as JSON, if it has the numbers of one."""
    try:
        facts = dict(zip(_CONFIG, msgspec.json.decode(key), strict=True))
    except msgspec.DecodeError:  # a number that is out of any range
        return None
    sizes = [*listed(facts["grid"], int), *listed(facts["block"], int)]
    if len(sizes) != 6:
        return None
    told = {"grid": sizes[:3], "block": sizes[3:]}
    more = {name: facts[name] for name in ("registers", "shared_memory")}
    return json.dumps(told | {name: one for name, one in more.items() if isinstance(one, int)})


def copies(names: pa.DictionaryArray, is_copy: Array) -> Columns:
    """Return what the names of copies tell: direction and kinds of memory."""
    if not is_copy.any():
        return {}
    found = [_COPY.match(name or "") for name in names.dictionary.to_pylist()]
    codes = np.where(is_copy, np.asarray(names.indices.fill_null(NONE)), NONE).astype(np.int64)
    return {
        column: arrow.text_column(
            codes, [None if one is None else word(one.group(place)) for one in found]
        )
        for place, column, word in (
            (1, "copy_kind", str), (2, "src_kind", str.lower), (3, "dst_kind", str.lower),
        )
    }  # fmt: skip


def listed(found: object, kind: type[_T]) -> list[_T]:
    """Return the values of one type in what should be a list."""
    return [one for one in found if isinstance(one, kind)] if isinstance(found, list) else []
