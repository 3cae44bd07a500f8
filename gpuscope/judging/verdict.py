"""A verdict for machines: one JSON object of at most 2 kB, and an exit code."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from gpuscope._text import clean, shortened

Judged: TypeAlias = Literal[
    "equal", "slower", "faster", "holds", "violated", "found", "nothing found", "cannot tell"
]
"""``"equal"``, ``"slower"``, ``"faster"``: of a diff. ``"holds"``, ``"violated"``: of a budget, or
of a forecast and its band. ``"found"``, ``"nothing found"``: of what is worth mending."""
SCHEMA = "gpuscope.verdict/1"
EXIT: dict[str, int] = {"slower": 1, "violated": 1, "cannot tell": 3}
"""Verdict → exit code; 0 of all others, and 2 of a usage error or of any other error."""
LIMIT = 2000
"""Bytes of a verdict."""
_REASON, _TEXT = 600, 80
_PARTS, _SPANS = 5, 8


class Rounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was measured.

    Attributes
    ----------
    unit
        ``"round"``, ``"process"``, ``"saved round"`` or ``"capture"``.
    pairs
        Of a diff, how many of each side were compared; of a check, how many there were.
    left_out
        Pairs whose clocks or throttling differed.
    control
        Pairs of A and A.
    """

    unit: str
    pairs: int
    left_out: int = 0
    control: int = 0


class PartOf(msgspec.Struct, frozen=True):
    """A part of a difference: the changes of all parts add up to it.

    Attributes
    ----------
    part
        ``"kernels"``, ``"copies"``, ``"gaps"``, ``"launch"``, ``"waits"``, ``"SMs"``, ``"host"``;
        ``"rest"``: all that are not listed.
    change_us
        How much longer it takes in a call or step.
    """

    part: str
    what: str
    change_us: float


class EvidenceRows(msgspec.Struct, frozen=True):
    """Rows that show it: ids in the trace of that name."""

    trace: str
    spans: list[int]


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a command found.

    Attributes
    ----------
    schema
        Its name and version: fields may be added; one that goes or changes makes a new version.
    command
        What judged: ``"diff"``, ``"check"``, ``"why"``, ``"predict"``.
    reason
        In a sentence.
    what
        The number that decided: workload and column, as a budget names it; or a budget's key.
    effect, interval
        The change of that number as a share of what it was, and its interval of 95 %. Of a limit:
        ``value`` and ``limit`` instead, and the interval of the value.
    smallest_visible
        The smallest change that would have been seen four times of five.
    clocks_mhz
        Median SM clock of either side.
    is_simulated
        Whether a model computed the times.
    """

    schema: str = SCHEMA
    command: str
    verdict: Judged
    reason: str
    what: str | None = None
    effect: float | None = None
    value: float | None = None
    limit: float | None = None
    interval: tuple[float | None, float | None] | None = None
    smallest_visible: float | None = None
    rounds: Rounds | None = None
    clocks_mhz: tuple[float | None, float | None] | None = None
    is_simulated: bool = False
    parts: list[PartOf] = []
    evidence: list[EvidenceRows] = []
    next: list[str] = []

    @property
    def exit_code(self) -> int:
        """0: it holds, or nothing is slower; 1: violated or slower; 3: cannot be told."""
        return EXIT.get(self.verdict, 0)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON of at most 2,000 bytes, as :func:`json.dumps` writes it."""
        facts: dict[str, Any] = {"schema": self.schema, **msgspec.to_builtins(self)}
        for name in ("parts", "evidence", "next"):
            facts.setdefault(name, [])
        while len(json.dumps(facts)) > LIMIT:
            most = max(("parts", "evidence", "next"), key=lambda name: len(json.dumps(facts[name])))
            if not facts[most]:
                facts["reason"] = shortened(facts["reason"], 0, len(facts["reason"]) // 2)
            elif most == "parts" and len(facts[most]) > 1:
                facts[most] = _fewer(facts[most])
            else:
                facts[most].pop()
        return facts


def _fewer(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the last part that is named; its change counts for the rest."""
    *named, last = [part for part in parts if part["part"] != "rest"]
    rest_us = sum(part["change_us"] for part in parts if part["part"] == "rest")
    rest = {"part": "rest", "what": "", "change_us": _number(rest_us + last["change_us"])}
    return [*named, rest] if named else []


def rounded(value: float | None) -> float | None:
    """Return a number with six digits, as JSON has it: none for what is no number."""
    return None if value is None or not math.isfinite(value) else _number(value)


def _number(value: float) -> float:
    return float(f"{value:.6g}")


def reason_of(text: str) -> str:
    """Return a sentence that may quote foreign names."""
    return shortened(clean(text), 0, _REASON)


def parts_of(changes: Iterable[tuple[str, str, float]]) -> list[PartOf]:
    """Return part, what it is and its change in ns: the largest, and all others as the rest."""
    ordered = sorted(changes, key=lambda change: -abs(change[2]))
    parts = [
        PartOf(part, shortened(clean(what), 0, _TEXT), _number(ns / 1e3))
        for part, what, ns in ordered[:_PARTS]
        if ns
    ]
    if any(ns for _, _, ns in ordered[_PARTS:]):
        parts.append(PartOf("rest", "", _number(sum(ns for _, _, ns in ordered[_PARTS:]) / 1e3)))
    return parts


def evidence_of(spans: Mapping[str, Sequence[int]]) -> list[EvidenceRows]:
    """Return the first few rows of each trace."""
    return [
        EvidenceRows(shortened(clean(trace), 0, _TEXT), [*ids[:_SPANS]])
        for trace, ids in spans.items()
        if ids
    ]
