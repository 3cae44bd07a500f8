"""Rows as bars of a track: copies by direction, stacks by state, readings by clock and power."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gpuscope._types import Ints
from gpuscope.trace import schema
from gpuscope.trace.columns import codes, combined
from gpuscope.trace.gpu_states import COUNTERS, POWER, REASONS, SM_CLOCK, reasons_of, throttling

CLOCK, THROTTLED, BESIDE = "clock", "clock, throttled", "clock, beside"
"""What stands for the kind ``counter`` of readings: the bar of a reading, the same where the GPU
was throttled, and the other counters of it, whose values the bar tells."""

UPLOAD, DOWNLOAD = "upload", "download"
"""What stands for the kind ``memcpy`` of copies to the GPU and to the host."""
_DIRECTIONS = {"HtoD": UPLOAD, "DtoH": DOWNLOAD}
STACK, SYSTEM_CALL = "stack", schema.IN_CALL.strip()
STATES = (schema.HOLDS_LOCK, schema.WAITS_FOR_LOCK, schema.RUNS, schema.WITHOUT_LOCK, SYSTEM_CALL)
"""What stands for the kind ``stack`` of those that say what their thread did."""


def as_bars(spans: pa.Table) -> pa.Table:
    """Return rows with copies by direction, stacks by state, each reading's counters as one bar."""
    return _readings(_stacks(_copies(spans)))


def _copies(spans: pa.Table) -> pa.Table:
    """Return rows with uploads and downloads told apart, also by name where that is "copy"."""
    code, directions = codes(spans.column("copy_kind"))
    if _DIRECTIONS.keys().isdisjoint(directions):
        return spans
    rows = np.flatnonzero(np.isin(directions, list(_DIRECTIONS))[code])
    looks = np.array([_DIRECTIONS.get(direction, "") for direction in directions], object)[code]
    name, names = codes(spans.column("name"))
    plain = rows[np.array([text == "copy" for text in names], bool)[name[rows]]]
    spans = _changed(spans, "kind", rows, looks[rows].tolist())
    return _changed(spans, "name", plain, looks[plain].tolist()) if len(plain) else spans


def state_of(status: object) -> str:
    """Return which of ``STATES`` a stack's status tells, or that it is a stack."""
    state = SYSTEM_CALL if str(status).startswith(schema.IN_CALL) else str(status)
    return state if state in STATES else STACK


def _stacks(spans: pa.Table) -> pa.Table:
    """Return rows with sampled stacks told apart by what their threads did."""
    code, kinds = codes(spans.column("kind"))
    rows = np.flatnonzero(np.array([kind == STACK for kind in kinds], bool)[code])
    if not len(rows):
        return spans
    status, statuses = codes(spans.column("status"))
    states = np.array([state_of(text) for text in statuses], object)
    return _changed(spans, "kind", rows, states[status[rows]].tolist())


def _readings(spans: pa.Table) -> pa.Table:
    """Return rows with the first counter of each reading as its bar, named by all it read."""
    code, kinds = codes(spans.column("kind"))
    if "counter" not in kinds:
        return spans
    name, names = codes(spans.column("name"))
    is_reading = np.array([kind == "counter" for kind in kinds], bool)[code]
    is_reading &= np.array([text in COUNTERS for text in names], bool)[name]
    rows = np.flatnonzero(is_reading)
    if not len(rows):
        return spans
    part = spans.take(pa.array(rows))
    when = (codes(part.column(column))[0] for column in ("start_ns", "end_ns", "device", "process"))
    first, of = combined(*when)
    read: list[dict[str, float]] = [{} for _ in first]
    values = part.column("value").to_pylist()
    for number, text, value in zip(of.tolist(), name[rows].tolist(), values, strict=True):
        read[number].setdefault(str(names[text]), 0.0 if value is None else value)
    why = [throttling(reasons_of(int(reading.get(REASONS, 0)))) for reading in read]
    looks = np.full(len(rows), BESIDE, object)
    looks[first] = [THROTTLED if words else CLOCK for words in why]
    texts = [_words(reading, words) for reading, words in zip(read, why, strict=True)]
    spans = _changed(spans, "kind", rows, looks.tolist())
    return _changed(spans, "name", rows[first], texts)


def _changed(spans: pa.Table, column: str, rows: Ints, texts: Sequence[str]) -> pa.Table:
    """Return rows with other texts in some of them."""
    code, values = codes(spans.column(column))
    distinct = {text: len(values) + number for number, text in enumerate(dict.fromkeys(texts))}
    code = code.copy()
    code[rows] = [distinct[text] for text in texts]
    coded = pa.DictionaryArray.from_arrays(
        pa.array(code.astype(np.int32) - 1, mask=code == 0),
        pa.array([*values[1:], *distinct], pa.string()),
    )
    return schema.with_column(spans, column, coded)


def _words(reading: dict[str, float], throttled: tuple[str, ...]) -> str:
    parts = [f"{reading[SM_CLOCK]:.0f} MHz"] if SM_CLOCK in reading else []
    parts += [f"{reading[POWER]:.0f} W"] if POWER in reading else []
    return ", ".join([*parts, *throttled])
