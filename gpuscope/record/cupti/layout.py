"""The layout of CUPTI's activity records, and finding them in the buffers it fills.

Pure: bytes in, NumPy arrays out; no library of CUDA's is loaded and no GPU is needed. Records of
different kinds lie one behind the other, each as long as its kind's layout in the version
of libcupti that wrote it. Newer layouts append fields to older ones, so one table of
offsets serves all versions. Source: ``cupti_activity.h`` of CUDA 12.9 and 13.0 to 13.5.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpuscope._compiled import library
from gpuscope._types import Array
from gpuscope.errors import TraceFormatError

MEMCPY, MEMSET, DRIVER, RUNTIME, CONTEXT = 1, 2, 4, 5, 9
KERNEL, MARKER, MARKER_DATA, OVERHEAD, PEER_COPY = 10, 12, 13, 17, 22
CUDA_EVENT, STREAM, SYNCHRONIZATION, EXTERNAL, GRAPH = 36, 37, 38, 39, 51
"""Numbers of ``CUpti_ActivityKind``; KERNEL is CONCURRENT_KERNEL, which serialises nothing."""
NOTED_DRIVER, NOTED_RUNTIME = 0x1000 + DRIVER, 0x1000 + RUNTIME
"""API calls that were noted by ``_launches.c`` in CUPTI's place."""

OLDEST = 28
"""``CUPTI_API_VERSION`` of CUDA 12.9; from 13.0 on it reads 130000 and more."""

_SIZES: Mapping[int, tuple[tuple[int, int], ...]] = {
    KERNEL: ((OLDEST, 208), (130000, 216), (130100, 224), (130300, 232), (130400, 248)),
    MEMCPY: ((OLDEST, 96), (130400, 112)),
    MEMSET: ((OLDEST, 88), (130400, 104)),
    PEER_COPY: ((OLDEST, 96),),
    CONTEXT: ((OLDEST, 32), (130100, 40)),
    MARKER_DATA: ((OLDEST, 32), (130000, 40)),
    **dict.fromkeys((DRIVER, RUNTIME), ((OLDEST, 40),)),
    **dict.fromkeys((NOTED_DRIVER, NOTED_RUNTIME), ((OLDEST, 64),)),
    **dict.fromkeys((MARKER, OVERHEAD, CUDA_EVENT, SYNCHRONIZATION, GRAPH), ((OLDEST, 56),)),
    **dict.fromkeys((STREAM, EXTERNAL), ((OLDEST, 24),)),
}
"""Kind → (first version, bytes) in ascending order."""


def _fields(*runs: tuple[int, str, str]) -> dict[str, tuple[int, str]]:
    """Return field → (offset, NumPy type).

    Parameters
    ----------
    runs
        Fields of one type, one behind the other: offset of the first, their type, their names.
    """
    return {
        name: (first + index * int(code[1]), code)
        for first, code, names in runs
        for index, name in enumerate(names.split())
    }


_API = _fields(
    (4, "u4", "callback"), (8, "u8", "start end"), (24, "u4", "process thread correlation returned")
)
_NOTED = {**_API, **_fields((40, "u4", "site"), (48, "u8", "handle event"))}

FIELDS: Mapping[int, Mapping[str, tuple[int, str]]] = {
    KERNEL: _fields(
        (6, "u2", "registers"),
        (16, "u8", "start end"),
        (40, "u4", "device context stream grid_x grid_y grid_z block_x block_y block_z"),
        (76, "u4", "static_shared dynamic_shared local_memory"),
        (92, "u4", "correlation"),
        (104, "u8", "name"),
        (120, "u8", "queued submitted"),
        (144, "u8", "graph_node"),
        (156, "u4", "graph"),
        (168, "u4", "channel"),
        (176, "u4", "cluster_x cluster_y cluster_z"),
    ),
    MEMCPY: _fields(
        (4, "u1", "copy_kind src_kind dst_kind"),
        (8, "u8", "bytes start end"),
        (32, "u4", "device context stream correlation"),
        (64, "u8", "graph_node"),
        (72, "u4", "graph channel"),
    ),
    MEMSET: _fields(
        (4, "u4", "value"),
        (8, "u8", "bytes start end"),
        (32, "u4", "device context stream correlation"),
        (50, "u2", "dst_kind"),
        (64, "u8", "graph_node"),
        (72, "u4", "graph channel"),
    ),
    PEER_COPY: _fields(
        (4, "u1", "copy_kind src_kind dst_kind"),
        (8, "u8", "bytes start end"),
        (32, "u4", "device context stream"),
        (60, "u4", "correlation"),
        (72, "u8", "graph_node"),
        (80, "u4", "graph channel"),
    ),
    **dict.fromkeys((DRIVER, RUNTIME), _API),
    **dict.fromkeys((NOTED_DRIVER, NOTED_RUNTIME), _NOTED),
    CONTEXT: _fields(
        (4, "u4", "context device"),
        (16, "u4", "parent"),
        (20, "u1", "is_green"),
        (22, "u2", "sm_count"),
    ),
    STREAM: _fields((4, "u4", "context stream priority flag")),
    MARKER: _fields(
        (4, "u4", "flags"),
        (8, "u8", "time"),
        (16, "u4", "marker"),
        (24, "u4", "process thread"),
        (40, "u8", "name domain"),
    ),
    MARKER_DATA: _fields(
        (4, "u4", "flags marker payload_kind"), (16, "u8", "payload"), (24, "u4", "color category")
    ),
    SYNCHRONIZATION: _fields(
        (4, "u4", "type"),
        (8, "u8", "start end"),
        (24, "u4", "correlation context stream"),
        (40, "u8", "sync"),
    ),
    CUDA_EVENT: _fields((4, "u4", "correlation context stream"), (48, "u8", "sync")),
    GRAPH: _fields(
        (4, "u4", "correlation"), (8, "u8", "start end"), (24, "u4", "device graph context stream")
    ),
}
"""Kind → field → (offset in bytes, NumPy type): the fields that traces use."""


def record_sizes(version: int) -> dict[int, int]:
    """Return the bytes of each kind's record in libcupti's ``CUPTI_API_VERSION``.

    Raises
    ------
    TraceFormatError
        The version is older than CUDA 12.9's.
    """
    if version < OLDEST:
        raise TraceFormatError(
            f"libcupti has API version {version}; the record layouts known here begin with "
            f"{OLDEST} (CUDA 12.9): install a newer nvidia-cuda-cupti"
        )
    return {
        kind: [size for first, size in sizes if version >= first][-1]
        for kind, sizes in _SIZES.items()
    }


_WINDOW = 96
"""Records that are walked one by one to find how their kinds repeat."""
_LONGEST_PERIOD = 32
_WALK = 8192
"""Records walked one by one where kinds do not repeat."""


@dataclass(frozen=True)
class Found:
    """Where the records of a buffer begin.

    Attributes
    ----------
    offsets
        Kind → offsets in bytes, ascending.
    unread
        Bytes from a record on that is of an unknown kind or cut short: what follows it cannot be
        found.
    unread_kind
        That record's kind, or ``None``.
    """

    offsets: Mapping[int, Array]
    unread: int = 0
    unread_kind: int | None = None


def find_records(buffer: Array, sizes: Mapping[int, int]) -> Found:
    """Return where each record of ``buffer`` begins.

    Launching the same things again and again writes the same kinds again and again: what
    repeats is found by comparing arrays, the rest is walked.

    Parameters
    ----------
    buffer
        Bytes as CUPTI delivered them, uint8, shape (n,).
    sizes
        Kind → bytes, from :func:`record_sizes`.
    """
    words = buffer[: len(buffer) // 4 * 4].view(np.uint32)
    kinds = words.data
    end = len(words)
    steps = {kind: size // 4 for kind, size in sizes.items()}
    pieces: dict[int, list[Array]] = {}
    position, unread_kind = 0, None
    while position < end and unread_kind is None:
        starts, seen, after, unread_kind = _walk(kinds, position, end, steps, _WINDOW)
        period = _period(seen) if unread_kind is None and len(seen) == _WINDOW else 0
        if period:
            rounds, after = _rounds(words, starts[:period], seen[:period], position, steps)
            for start, kind in zip(starts[:period], seen[:period], strict=True):
                step = (after - position) // rounds
                pieces.setdefault(kind, []).append(
                    np.arange(start, start + rounds * step, step, dtype=np.int64)
                )
        else:
            if unread_kind is None and len(seen) == _WINDOW:
                more, more_seen, after, unread_kind = _walk(kinds, after, end, steps, _WALK)
                starts, seen = starts + more, seen + more_seen
            where, what = np.array(starts, np.int64), np.array(seen, np.int64)
            for kind in set(seen):
                pieces.setdefault(kind, []).append(where[what == kind])
        position = after
    offsets = {kind: np.sort(np.concatenate(places)) * 4 for kind, places in pieces.items()}
    return Found(offsets, len(buffer) - position * 4, unread_kind)


def _walk(
    kinds: memoryview, position: int, end: int, steps: Mapping[int, int], limit: int
) -> tuple[list[int], list[int], int, int | None]:
    """Walk up to ``limit`` records; positions and sizes in 4-byte words."""
    starts: list[int] = []
    seen: list[int] = []
    for _ in range(limit):
        if position >= end:
            break
        kind = kinds[position]
        step = steps.get(kind)
        if step is None or position + step > end:
            return starts, seen, position, kind
        starts.append(position)
        seen.append(kind)
        position += step
    return starts, seen, position, None


def _period(seen: list[int]) -> int:
    """Return after how many records the kinds repeat, or 0."""
    for period in range(1, _LONGEST_PERIOD + 1):
        if seen[period:] == seen[:-period]:
            return period
    return 0


def _rounds(
    words: Array, starts: list[int], seen: list[int], position: int, steps: Mapping[int, int]
) -> tuple[int, int]:
    """Return how often the kinds ``seen`` come in a row, and the position behind them."""
    step = sum(steps[kind] for kind in seen)
    most = (len(words) - position) // step
    rounds, chunk = 1, 1024
    while rounds < most:
        stop = min(most, rounds + chunk)
        good = stop
        for start, kind in zip(starts, seen, strict=True):
            first = start + rounds * step
            differs = np.flatnonzero(words[first : start + (stop - 1) * step + 1 : step] != kind)
            if len(differs):
                good = min(good, rounds + int(differs[0]))
        rounds = good
        if good < stop:
            break
        chunk *= 4
    return rounds, position + rounds * step


_CHUNK = 2048
"""Records read at a time: all fields of so many are in the processor's cache together."""


def read_records(buffer: Array, found: Found) -> dict[int, dict[str, Array]]:
    """Return kind → field → values for every kind whose fields are known."""
    return {
        kind: _read(buffer, offsets, FIELDS[kind])
        for kind, offsets in found.offsets.items()
        if kind in FIELDS
    }


def _read(buffer: Array, offsets: Array, fields: Mapping[str, tuple[int, str]]) -> dict[str, Array]:
    views = {
        code: buffer[: len(buffer) // int(code[1]) * int(code[1])].view(code)
        for code in {code for _, code in fields.values()}
    }
    columns: dict[str, Array] = {
        name: np.empty(len(offsets), code) for name, (_, code) in fields.items()
    }
    for first in range(0, len(offsets), _CHUNK):
        chunk = offsets[first : first + _CHUNK]
        step = int(chunk[1] - chunk[0]) if len(chunk) > 1 else 8
        even = bool((np.diff(chunk) == step).all())
        base, stop = int(chunk[0]), first + len(chunk)
        for name, (at, code) in fields.items():
            width = int(code[1])
            if even:
                begin, stride = (base + at) // width, step // width
                last = begin + (len(chunk) - 1) * stride + 1
                columns[name][first:stop] = views[code][begin:last:stride]
            else:
                columns[name][first:stop] = views[code][(chunk + at) // width]
    return columns


_TEXTS = ((KERNEL, "name"), (MARKER, "name"), (MARKER, "domain"))
_DEVICES = tuple((kind, "device") for kind in (KERNEL, MEMCPY, PEER_COPY, MEMSET))
_finder = library("records")
_ROOM = 1 << 14
"""So many texts of one buffer are looked for in C."""


def texts_and_devices(buffer: Array, sizes: Mapping[int, int]) -> tuple[set[int], set[int]]:
    """Return the addresses of texts and the numbers of devices that records hold, each once.

    Parameters
    ----------
    buffer, sizes
        As for :func:`find_records`.
    """
    if _finder is not None:
        devices, room = np.zeros(1, np.uint64), np.empty(_ROOM, np.uint64)
        fields = _fields_for_c(sizes)
        count = _finder.find_texts(
            *(ctypes.c_void_p(buffer.ctypes.data), ctypes.c_uint64(len(buffer))),
            *(ctypes.c_void_p(fields.ctypes.data), len(fields)),
            *(ctypes.c_void_p(room.ctypes.data), ctypes.c_uint64(_ROOM)),
            ctypes.c_void_p(devices.ctypes.data),
        )
        if count >= 0:
            numbers = np.flatnonzero(np.unpackbits(devices.view(np.uint8), bitorder="little"))
            return set(room[:count].tolist()), set(numbers.tolist())
    offsets = find_records(buffer, sizes).offsets
    kinds: tuple[set[int], set[int]] = set(), set()
    for values, names in zip(kinds, (_TEXTS, _DEVICES), strict=True):
        for kind, name in names:
            if kind in offsets:
                at, code = FIELDS[kind][name]
                width = int(code[1])
                whole = buffer[: len(buffer) // width * width].view(code)
                column = pa.array(whole[(offsets[kind] + at) // width])
                values.update(column.unique().to_pylist())
    return kinds[0] - {0}, kinds[1]


def sites(buffer: Array) -> set[int]:
    """Return the numbers of the sites that launches name which were noted; of CUPTI's, none."""
    nbytes = _SIZES[NOTED_RUNTIME][0][1]
    if len(buffer) < nbytes or buffer[:4].view(np.uint32)[0] not in (NOTED_DRIVER, NOTED_RUNTIME):
        return set()
    words = buffer.view(np.uint32).reshape(-1, nbytes // 4)
    column = pa.array(words[:, FIELDS[NOTED_RUNTIME]["site"][0] // 4])
    return set(column.unique().to_pylist()) - {0}


def _fields_for_c(sizes: Mapping[int, int]) -> Array:
    """Return, by kind, its bytes, where it has two texts, and where its device."""
    kinds = max(kind for kind in sizes if kind < NOTED_DRIVER) + 1
    fields = np.zeros((kinds, 4), np.uint32)
    for kind, nbytes in sizes.items():
        if kind < kinds:
            fields[kind, 0] = nbytes
    for kind in (KERNEL, MARKER):
        texts = [FIELDS[kind][name][0] for of, name in _TEXTS if of == kind]
        fields[kind, 1 : 1 + len(texts)] = texts
    for kind, name in _DEVICES:
        fields[kind, 3] = FIELDS[kind][name][0]
    return fields
