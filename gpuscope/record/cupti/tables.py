"""CUPTI's records as columns of a trace: pure, without a library or a GPU.

Work (kernels, copies, memsets) and the API calls that launched it are joined by CUPTI's
correlation id; API calls and our own host calls by thread and time; NVTX markers by their id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from gpuscope._types import Array, Bools, Ints
from gpuscope.record.cupti import layout
from gpuscope.record.cupti.library import BLOCKING, is_wait
from gpuscope.trace import arrow
from gpuscope.trace.arrow import NONE
from gpuscope.trace.schema import COPY_KINDS, MEMORY_KINDS

Columns: TypeAlias = "dict[str, Array]"
"""Fields of records → their values."""
Column: TypeAlias = "Array | pa.Array | None"
"""A column of a table."""

KERNEL, COPY, SET, GRAPH = 0, 1, 2, 3
_WORK_KINDS = ("kernel", "memcpy", "memset", "graph")
_WORK = {
    layout.KERNEL: KERNEL,
    layout.MEMCPY: COPY,
    layout.PEER_COPY: COPY,
    layout.MEMSET: SET,
    layout.GRAPH: GRAPH,
}
"""Kind of record → what it is of."""
_CONFIG = (
    *(f"{size}_{axis}" for size in ("grid", "block", "cluster") for axis in "xyz"),
    *("registers", "static_shared", "dynamic_shared"),
)
_SHARED = ("start", "end", "device", "context", "stream", "correlation", "graph")
_TYPES = {
    **dict.fromkeys(("name", "bytes", "graph_node"), np.uint64),
    **dict.fromkeys(("copy_kind", "src_kind", "dst_kind"), np.uint8),
}
"""Type of what only some kinds of work have."""


def join_columns(parts: list[Columns]) -> Columns:
    """Concatenate columns of one shape."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def select(columns: Columns, rows: Array) -> Columns:
    """Return some rows, by number or mask."""
    return {name: values[rows] for name, values in columns.items()}


def work_of(records: Mapping[int, Columns]) -> Columns | None:
    """Return kernels, copies, memsets and whole graphs of a buffer in one set of columns."""
    parts = []
    for kind, work in _WORK.items():
        if kind not in records:
            continue
        raw = records[kind]
        count = len(raw["start"])
        part: Columns = {name: raw[name] for name in _SHARED}
        part["work"] = np.full(count, work, np.uint8)
        for name, kind_of in _TYPES.items():
            part[name] = raw[name].astype(kind_of) if name in raw else np.zeros(count, kind_of)
        config = np.zeros((count, len(_CONFIG)), np.uint32)
        if kind == layout.KERNEL:
            for column, name in enumerate(_CONFIG):
                config[:, column] = raw[name]
        part["config"] = config
        parts.append(part)
    return join_columns(parts) if parts else None


def apis_of(records: Mapping[int, Columns], *, noted: bool) -> Columns | None:
    """Return the API calls of a buffer, CUPTI's records of them or those that were ``noted``.

    ``runtime`` tells the runtime's from the driver's; ``site``, ``handle`` and ``event`` are 0
    where they were not noted.
    """
    runtime = layout.NOTED_RUNTIME if noted else layout.RUNTIME
    parts = []
    for kind in (runtime, layout.NOTED_DRIVER if noted else layout.DRIVER):
        if kind in records:
            part = dict(records[kind])
            part["runtime"] = np.full(len(part["start"]), kind == runtime)
            for name in ("site", "handle", "event"):
                part.setdefault(name, np.zeros(len(part["start"]), np.int64))
            parts.append(part)
    return join_columns(parts) if parts else None


def middle(apis: Columns) -> Ints:
    """Return the middle of each API call, ns."""
    middle: Ints = (apis["start"].astype(np.int64) + apis["end"].astype(np.int64)) // 2
    return middle


def no_apis() -> Columns:
    """Return no API calls."""
    names = (*layout.FIELDS[layout.NOTED_RUNTIME], "runtime", "role")
    return {name: np.zeros(0, np.int64) for name in names}


def api_columns(apis: Columns, codes: Ints, names: list[str]) -> dict[str, Column]:
    """Return the columns of API calls but their parents.

    Parameters
    ----------
    codes, names
        Number of each call's name, and the names.
    """
    count = len(apis["start"])
    failed = apis["returned"] != 0
    return {
        "id": apis["row"],
        "kind": arrow.text_column(is_wait(apis).astype(np.int64), ["api", "sync"]),
        "name": arrow.text_column(codes, names),
        "start_ns": apis["start"].astype(np.int64),
        "end_ns": apis["end"].astype(np.int64),
        "process": apis["process"].astype(np.int64),
        "thread": apis["thread"].astype(np.int64),
        "correlation": apis["correlation"].astype(np.int64),
        "status": _status(failed, "failed"),
        "source": arrow.constant("cupti", count),
    }


def site_column(sites: Array, text_of: Callable[[int], str]) -> pa.Array | None:
    """Return the column of sites by their numbers, if there are any."""
    codes, numbers = arrow.coded(sites)
    texts = [text_of(number) if number else "" for number in numbers]
    is_known = np.array([bool(text) for text in texts], bool)
    if not is_known.any():
        return None
    return arrow.text_column(np.where(is_known[codes], codes, NONE), texts)


def config_column(config: Array, work: Array) -> pa.Array:
    """Return the launch configurations as JSON, each distinct one once."""
    codes, distinct = arrow.distinct_rows(config)
    texts = []
    for sizes in distinct.tolist():
        facts = dict(zip(_CONFIG, sizes, strict=True))
        shown: dict[str, int | list[int]] = {
            name: [facts[f"{name}_{axis}"] for axis in "xyz"] for name in ("grid", "block")
        }
        if facts["cluster_x"]:
            shown["cluster"] = [facts[f"cluster_{axis}"] for axis in "xyz"]
        shown["registers"] = facts["registers"]
        shown["shared_memory"] = facts["static_shared"] + facts["dynamic_shared"]
        texts.append(json.dumps(shown))
    return arrow.text_column(np.where(work == KERNEL, codes, NONE), texts)


def _status(rows: Bools, word: str) -> pa.Array | None:
    """Return a column that has a word in some rows, if there are any."""
    return arrow.text_column(np.where(rows, 0, NONE), [word]) if rows.any() else None


def _known(numbers: Array, names: tuple[str, ...]) -> Array:
    """Return numbers into ``names``; one that is newer than these is 0, the unknown."""
    return np.where(numbers < len(names), numbers, 0).astype(np.int64)


# -- work ----------------------------------------------------------------------------------
def work_columns(work: Columns, name_at: Callable[[int], str]) -> dict[str, Column]:
    """Return the columns of work that its record alone tells.

    Parameters
    ----------
    name_at
        Address in a record → kernel's name.
    """
    count = len(work["start"])
    kind = work["work"].astype(np.int64)
    codes, addresses = arrow.coded(work["name"])
    graph_codes, graphs = arrow.coded(work["graph"])
    copies, moved = kind == COPY, (kind == COPY) | (kind == SET)
    copy_kinds = _known(work["copy_kind"], COPY_KINDS)
    names = [*map(name_at, addresses), *(f"{copy_kind} copy" for copy_kind in COPY_KINDS)]
    first_graph, memset = len(names), len(names) + len(graphs)
    names += [*(f"graph {number}" for number in graphs), "memset"]
    name_codes = np.select(
        [kind == KERNEL, copies, kind == GRAPH],
        [codes, len(addresses) + copy_kinds, first_graph + graph_codes],
        memset,
    )
    end = work["end"].astype(np.int64)
    columns: dict[str, Column] = {
        "kind": arrow.text_column(kind, _WORK_KINDS),
        "name": arrow.text_column(name_codes, names),
        "end_ns": arrow.nullable(end, end == 0),
        "device": work["device"].astype(np.int16),
        "context": work["context"].astype(np.int64),
        "graph": arrow.nullable(work["graph"], work["graph"] == 0),
        "graph_node": arrow.nullable(work["graph_node"], work["graph_node"] == 0),
        "correlation": work["correlation"].astype(np.int64),
        "launch_config": config_column(work["config"], kind),
        "status": _status(end == 0, "not finished"),
        "source": arrow.constant("cupti", count),
    }
    if moved.any():
        columns["nbytes"] = arrow.nullable(work["bytes"], ~moved)
        columns["copy_kind"] = arrow.text_column(np.where(copies, copy_kinds, NONE), COPY_KINDS)
        for column, rows in (("src_kind", copies), ("dst_kind", moved)):
            codes = _known(work[column], MEMORY_KINDS)
            columns[column] = arrow.text_column(np.where(rows, codes, NONE), MEMORY_KINDS)
    return columns


def first_pieces(work: Columns, which: Ints) -> Ints:
    """Return the row of each call's first kernel, or else first piece of work, by call."""
    inside = np.flatnonzero(which >= 0)
    other = work["work"][inside] != KERNEL
    inside = inside[np.lexsort((work["correlation"][inside], other))]
    _, first = np.unique(which[inside], return_index=True)
    return inside[first]


def stated(amounts: list[int | None], which: Ints, is_first: Bools) -> Ints:
    """Return the amounts that calls state, each at the first of its call's pieces of work."""
    stated = np.array([NONE if amount is None else amount for amount in amounts], np.int64)
    is_stated = np.where(which >= 0, stated[which], NONE)
    return np.where(is_first | (is_stated == NONE), is_stated, 0)


_TO_OR_FROM_HOST = np.array(["H" in kind for kind in COPY_KINDS])
_PAGEABLE = MEMORY_KINDS.index("pageable")


def blocking(work: Columns, calls: Columns) -> Bools:
    """Whether the host waited for each piece of work in the call that queued it.

    It does in copies from or to its memory by calls that are not asynchronous, or where that memory
    is pageable (CUDA Runtime API, "API synchronization behavior"), which returned when it was done.
    """
    copies = (work["work"] == COPY) & _TO_OR_FROM_HOST[_known(work["copy_kind"], COPY_KINDS)]
    pageable = (work["src_kind"] == _PAGEABLE) | (work["dst_kind"] == _PAGEABLE)
    waits = copies & ((calls["role"] == BLOCKING) | pageable)
    done: Bools = waits & (work["end"] > 0) & (calls["end"] >= work["end"])
    return done


# -- NVTX ----------------------------------------------------------------------------------
SIGNED = 4
_PAYLOADS = {0: "f8", 1: "u8", SIGNED: "i8"}
"""``CUpti_MetricValueKind`` → NumPy type: double, unsigned, signed."""


def payload_text(kind: int, raw: int) -> str | None:
    """Return a marker's payload as JSON, from its kind and 8 bytes; ``None`` without one."""
    if kind not in _PAYLOADS or (raw == 0 and kind != SIGNED):
        return None  # without a payload the record says: unsigned, 0
    return repr(np.array([raw], np.uint64).view(_PAYLOADS[kind])[0].item())
