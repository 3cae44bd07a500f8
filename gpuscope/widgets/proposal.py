"""What a carver's proposal amounts to: pure functions of its rows and of a plan."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gpuscope.device.carve import REMAINDER, CarvePlan, SmLayout
from gpuscope.device.sizes import REST, Size, check_name
from gpuscope.errors import InvalidPartition
from gpuscope.timeline.text import clean

NAME_LIMIT = 60
"""Characters of a foreign name in a message."""


def strip_of(layout: SmLayout, plan: CarvePlan | None, ids: Sequence[int]) -> dict[str, Any]:
    """Return the SMs in the driver's groups, each with its owner.

    Parameters
    ----------
    ids
        Of the plan's partitions, in its order; 0 owns what is free, -1 what others hold.
    """
    planned = plan.partitions if plan is not None else ()
    owned = [(number, part.parts) for number, part in zip(ids, planned, strict=False)]
    used = {part for _, parts in owned for part in parts}
    every = [*range(layout.quanta), *([REMAINDER] if layout.remainder_sm_count else [])]
    free = set(plan.remainder_parts) if plan is not None else set(every)
    owned.append((0, tuple(part for part in every if part in free)))
    owned.append((-1, tuple(part for part in every if part not in used | free)))
    return {
        "total": layout.sm_count,
        "quantum": layout.quantum_sm_count,
        "remainder": layout.remainder_sm_count,
        "groups": [
            _group(layout, owner, part)
            for owner, parts in owned
            for part in sorted(parts, key=lambda part: (part == REMAINDER, part))
        ],
    }


def _group(layout: SmLayout, owner: int, part: int) -> dict[str, Any]:
    kind = "remainder" if part == REMAINDER else f"quantum {part + 1}"
    return {"owner": owner, "sm_count": layout.sm_count_of([part]), "kind": kind}


def size_of(row: Mapping[str, Any]) -> int | str:
    """Return what a row of the proposal amounts to."""
    return REST if row["asked"] == REST else row["granted"]


def warning_of(row: Mapping[str, Any], layout: SmLayout) -> str:
    """Say that something else is granted than what was asked for; empty if it is not."""
    asked, granted = row["asked"], row["granted"]
    if row["count_error"] or granted is None or asked in (REST, granted):
        return ""
    quantum = layout.quantum_sm_count
    return f"{asked} asked, {granted} granted: the nearest that is there in quanta of {quantum}"


def check(rows: list[dict[str, Any]]) -> tuple[dict[int, str], dict[int, Size]]:
    """Say beside each field what is wrong with it.

    Returns
    -------
    tuple
        Row id → a name that is its own; row id → size asked for, of those that ask for one.
    """
    labels: dict[int, str] = {}
    sizes: dict[int, Size] = {}
    for row in rows:
        name = row["name"]
        row["name_error"] = row["count_error"] = ""
        if name in labels.values():
            row["name_error"] = f"two partitions are called {clean(name, NAME_LIMIT)!r}"
        try:
            check_name(name)
        except InvalidPartition as error:
            row["name_error"] = str(error)
        labels[row["id"]] = f"partition {row['id']}" if row["name_error"] else name
        try:
            sizes[row["id"]] = Size.parse(row["asked"])
        except InvalidPartition as error:
            row["count_error"] = str(error)
    return labels, sizes


def wanted(row: Mapping[str, Any], size: Size, active: Collection[int]) -> Size | int:
    """Return what to ask for: what is not ``active`` keeps what it was granted."""
    is_kept = not size.is_rest and row["id"] not in active and row["granted"]
    return int(row["granted"]) if is_kept else size


def problems_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with rows, each with the name of its partition."""
    return [
        f"partition {clean(row['name'], NAME_LIMIT)!r}: {row[what]}"
        for row in rows
        for what in ("name_error", "count_error")
        if row[what]
    ]


def new_row(number: int, name: str, asked: int | str) -> dict[str, Any]:
    """Return a row of a proposal that nobody has looked at yet."""
    words = dict.fromkeys(("color", "sm_ids", "name_error", "count_error", "count_warning"), "")
    return {"id": number, "name": name, "asked": asked, "granted": None, **words}


def fresh_name(names: Collection[str]) -> str:
    """Return a name that none of these is."""
    return next(name for name in (f"p{n}" for n in itertools.count(1)) if name not in names)
