"""What a diff and a check come to for machines: verdicts, and Markdown for a pull request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gpuscope._tables import Rows
from gpuscope._text import clean
from gpuscope.analysis.result import Row
from gpuscope.comparing.diff_result import DiffResult
from gpuscope.comparing.effects import FEWEST, Effect
from gpuscope.comparing.pair import CompareResult
from gpuscope.comparing.split import shown
from gpuscope.judging.checking import CheckResult, JudgedLimit
from gpuscope.judging.verdict import (
    Judged,
    Rounds,
    Verdict,
    evidence_of,
    parts_of,
    reason_of,
    rounded,
)
from gpuscope.telling.finding import FindingsResult, Shown
from gpuscope.telling.media import unmarked

_ROWS = 12
"""Of a table in Markdown."""


# -- for programs -------------------------------------------------------------------------
def of_diff(result: DiffResult, again: str = "") -> Verdict:
    """Return the verdict on two sides.

    Parameters
    ----------
    again
        The command that was called.
    """
    about = result.decisive
    rounds, clocks = Rounds("capture", 1), None
    if result.turns is not None:
        turns = result.turns
        rounds = Rounds(turns.unit, len(turns.pairs), len(turns.left_out), len(turns.control))
        clocks = turns.clocks_mhz()
    split = next(
        (split_result for split_result in result.splits if split_result.of == about.workload), None
    )
    spans = result.findings[0].spans
    if split and split.changed and about.workload != result.findings[0].subject["workload"]:
        spans = shown(split, split.changed[0])
    return Verdict(
        command="diff",
        verdict=result.verdict,
        reason=reason_of(" ".join(filter(None, [result.headline, result.caution]))),
        what=f"{about.workload}.{about.column}",
        effect=rounded(about.change),
        interval=(rounded(about.low), rounded(about.high)) if math.isfinite(about.reach) else None,
        smallest_visible=rounded(about.smallest),
        rounds=rounds,
        clocks_mhz=clocks if clocks and any(clocks) else None,
        is_simulated=result.is_simulated,
        parts=parts_of((part.cause, part.name, part.change_ns) for part in split.parts)
        if split
        else [],
        evidence=evidence_of(_by_trace(spans)),
        next=[*_after_diff(result, about, again)],
    )


def _by_trace(spans: Sequence[Shown]) -> dict[str, list[int]]:
    """Return the rows of each trace."""
    of: dict[str, list[int]] = {}
    for shown_span in spans:
        of.setdefault(shown_span.trace, []).append(shown_span.span)
    return of


def _after_diff(result: DiffResult, about: Effect, again: str) -> Iterator[str]:
    """Yield what to do next."""
    if again and result.turns is not None and result.turns.unit != "saved round":
        if result.verdict == "cannot tell":
            more = max(about.needed or 0, 2 * len(result.turns.pairs), FEWEST)
            yield f"{again} --rounds {more}"
        elif "--out" not in again:
            yield f"{again} --out out/diff"


def of_check(result: CheckResult, again: str = "") -> Verdict:
    """Return the verdict on a budget: that of its first limit."""
    if not result.limits:
        rounds = Rounds(result.unit, result.rounds)
        return Verdict(command="check", verdict="holds", reason=result.headline, rounds=rounds)
    return of_limit(result, result.limits[0], result.headline, again)


def of_limit(result: CheckResult, kept: JudgedLimit, reason: str = "", again: str = "") -> Verdict:
    """Return the verdict on one limit of a budget."""
    limit, effect = kept.limit, kept.effect
    relative = limit.worse is not None
    bound = limit.worse if limit.worse is not None else limit.value
    ends = None if kept.low is None and kept.high is None else (kept.low, kept.high)
    following = []
    if again and kept.verdict == "cannot tell" and result.unit != "saved round":
        following.append(f"{again} --rounds {4 * max(result.rounds, FEWEST)}")
    notes = " ".join(f"{note}." for note in result.notes)
    return Verdict(
        command="check",
        verdict=kept.verdict,
        reason=reason_of(" ".join(filter(None, [reason or f"{kept.told}.", notes]))),
        what=limit.name if kept.setting in ("", "default") else f"{kept.setting}: {limit.name}",
        effect=rounded(kept.value) if relative else None,
        value=None if relative else rounded(kept.value),
        limit=rounded(bound),
        interval=ends and (rounded(ends[0]), rounded(ends[1])),
        smallest_visible=rounded(effect.smallest) if effect else None,
        rounds=Rounds(result.unit, result.rounds),
        clocks_mhz=(result.machine.clock_mhz, None) if result.machine.clock_mhz else None,
        is_simulated=result.is_simulated,
        evidence=evidence_of({kept.setting: kept.spans}),
        next=following,
    )


def of_findings(result: FindingsResult, again: str) -> Verdict:
    """Return what is worth mending in a trace."""
    first = result.findings[0]
    return Verdict(
        command="why",
        verdict="found"
        if any(finding.is_problem for finding in result.findings)
        else "nothing found",
        reason=reason_of(" ".join(finding.text for finding in result.findings)),
        what=first.rule,
        is_simulated=result.is_simulated,
        evidence=evidence_of(_by_trace(first.spans)),
        next=[f"{again} --all"] if again else [],
    )


def of_forecast(checked: CompareResult, setting: str) -> Verdict:
    """Return whether a run lies in the bands of its forecast."""
    inside = [finding for finding in checked.findings if finding.rule == "checked.inside"]
    outside = [finding for finding in checked.findings if finding.rule == "checked.outside"]
    judged: Judged = "violated" if outside else "holds" if inside else "cannot tell"
    first = next(iter([*outside, *inside, *checked.findings]))
    forecast, other = first["forecast"], first["other"]
    change = other.value / forecast.value - 1 if forecast.value else None
    return Verdict(
        command="predict",
        verdict=judged,
        reason=reason_of(f"{setting}: {first.text}"),
        what=f"{first.subject['workload']}.{first.subject['column']}",
        effect=rounded(change),
        value=rounded(other.value),
        interval=(rounded(forecast.low), rounded(forecast.high)),
        is_simulated=True,
    )


# -- for people on a page -----------------------------------------------------------------
def diff_markdown(result: DiffResult) -> str:
    """Return a diff for a comment on a change."""
    parts = [f"**gpuscope diff: {result.verdict}.** {_plain(result.headline)}", ""]
    parts += _table([_written(row) for row in result.rows()])
    for split in result.splits:
        rows = split.readable()[0][:_ROWS]
        if rows:
            parts += ["", f"Why, of {_plain(split.unit)} (µs; all parts add up to the change):", ""]
            parts += _table([_written(row) for row in rows])
    return "\n".join([*parts, "", f"<sub>{_plain(result.note)}</sub>"])


def check_markdown(result: CheckResult) -> str:
    """Return a check for a comment on a change: what does not hold first."""
    parts = [f"**gpuscope check: {result.verdict}.** {_plain(result.headline)}", ""]
    rows = [_written(row) for row in result.rows()]
    parts += _table(rows[:_ROWS])
    if len(rows) > _ROWS:
        parts += ["", f"and {len(rows) - _ROWS} more limits"]
    return "\n".join([*parts, "", f"<sub>{_plain(result.note)}</sub>"])


def _written(row: Row) -> dict[str, str]:
    return {
        _plain(name): f"{value:.4g}" if isinstance(value, float) else _plain(value or "–")
        for name, value in row.items()
    }


def _table(rows: Rows) -> list[str]:
    if not rows:
        return []
    names = [*dict.fromkeys(name for row in rows for name in row)]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    return lines + [f"| {' | '.join(str(row.get(name, '')) for name in names)} |" for row in rows]


def _plain(text: object) -> str:
    """Return foreign text for Markdown."""
    return unmarked(clean(text))
