"""Values of a trace as Nsight's columns take them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from gpuscope.exporters import nsys_schema as nsys
from gpuscope.exporters.numbers import NOTHING, Ids
from gpuscope.trace.columns import codes, combined, rows_of
from gpuscope.trace.model import Trace

CONFIG = (
    *(f"grid{axis}" for axis in "XYZ"), *(f"block{axis}" for axis in "XYZ"), "registersPerThread",
    "staticSharedMemory", "dynamicSharedMemory",
)  # fmt: skip


def config(text: str | None) -> list[int]:
    """Return the numbers of a launch configuration in the order of ``CONFIG``.

    A trace knows the shared memory as one sum: it stands as dynamic.
    """
    try:
        facts = json.loads(text or "{}")
        numbers = [*facts.get("grid", [NOTHING] * 3), *facts.get("block", [NOTHING] * 3)]
        static = facts.get("static_shared_memory", NOTHING)
        shared = facts.get("dynamic_shared_memory", facts.get("shared_memory", NOTHING))
        numbers += [facts.get("registers", NOTHING), static, shared]
        found = [int(one) for one in numbers]
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        found = []
    good = len(found) == len(CONFIG) and all(-1 << 63 <= one < 1 << 63 for one in found)
    return found if good else [NOTHING] * len(CONFIG)


def payload(text: str | None) -> tuple[int | None, float | None, str | None]:
    """Return a payload as whole number, as number, or as text."""
    if text is None:
        return None, None, None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None, None, text
    if isinstance(value, int) and not isinstance(value, bool) and -1 << 63 <= value < 1 << 63:
        return value, None, None
    return (None, value, None) if isinstance(value, float) else (None, None, text)


def is_empty(column: nsys.Column) -> bool:
    """Whether there is no value: null is what a row has anyway."""
    return not isinstance(column, list) and bool((column == NOTHING).all())


def values_of(column: nsys.Column) -> list[object]:
    """Return a column as Python's numbers, ``None`` where there is none."""
    if isinstance(column, list):
        return column
    missing = column == NOTHING
    if not missing.any():
        return list(column.tolist())
    values = column.astype(object)
    values[missing] = None
    return list(values.tolist())


def listed(table: str, lines: Sequence[nsys.Row]) -> Iterator[nsys.Chunk]:
    """Turn rows into columns."""
    if lines:
        names = list(dict.fromkeys(name for line in lines for name in line))
        yield table, names, [[line.get(name) for line in lines] for name in names], 0


def names_of_ranges(trace: Trace, ids: Ids) -> list[nsys.Row]:
    """Return the NVTX events that name domains and categories, by process.

    Their numbers are the columns' codes; 0, the default domain and no category, is null.
    """
    rows = rows_of(trace, "range", "mark")
    if not len(rows):
        return []
    domain, domains = codes(trace.spans.column("domain"))
    category, categories = codes(trace.spans.column("category"))
    pid = ids.pid[rows]
    thread = ids.thread(rows).tolist()
    named = combined(pid, domain[rows])[0].tolist()
    told = combined(pid, domain[rows], category[rows])[0].tolist()

    def event(one: int, kind: int, text: str, **facts: int) -> nsys.Row:
        number = int(domain[rows[one]])
        return {"start": 0, "eventType": kind, "text": text, "domainId": number,
                "globalTid": thread[one], **facts}  # fmt: skip

    return [
        *(event(one, nsys.DOMAIN, domains[domain[rows[one]]])
          for one in named if domain[rows[one]]),
        *(event(one, nsys.CATEGORY, categories[number], category=number)
          for one in told if (number := int(category[rows[one]]))),
    ]  # fmt: skip
