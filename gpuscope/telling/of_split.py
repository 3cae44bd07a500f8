"""Why two sides differ, in words: the part of a split that changed most, with what shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuscope.analysis.split_analysis import SplitPart, SplitResult
from gpuscope.telling.finding import Finding, Quantity, Shown
from gpuscope.telling.rules import RULES, fill

_RULES = ("change.better", "change.worse", "change.captures")


def with_cause(findings: Sequence[Finding], splits: Sequence[SplitResult]) -> tuple[Finding, ...]:
    """Return findings of a comparison, the first with its cause from a split if it has none."""
    first, *rest = findings
    for split in splits:
        if split.of == first.subject.get("workload") and first.rule in _RULES:
            part = _greatest(split)
            if part is not None and not first.subject.get("cause"):
                first = replace(
                    first,
                    subject={**first.subject, "cause": cause(split, part)},
                    spans=first.spans or shown(split, part),
                )
    return (first, *rest)


def _greatest(split: SplitResult) -> SplitPart | None:
    """Return the part that changed most in the direction of the whole."""
    way = 1 if split.after_ns > split.before_ns else -1
    changed = [part for part in split.changed if way * part.change_ns > 0]
    return max(changed, key=lambda part: abs(part.change_ns), default=None)


def cause(split: SplitResult, part: SplitPart) -> str:
    """Return what became of a part, as a clause."""
    amount = f"{Quantity('', abs(part.change_ns), 'ns')} in {split.unit}"
    configuration = f" [{part.configuration}]" if part.configuration else ""
    names = {
        "what": f"{part.name}{configuration}",
        "range": part.range or "",
        "line": part.line or "",
        "by": amount,
    }
    return fill(RULES[f"split.{part.change}"].text, names)


def shown(split: SplitResult, part: SplitPart) -> tuple[Shown, ...]:
    """Return the spans that show a part, of either side."""
    sides = zip(split.names, (part.first, part.second), strict=True)
    return tuple(Shown(name, span) for name, spans in sides for span in spans)
