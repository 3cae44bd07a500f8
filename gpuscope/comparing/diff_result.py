"""What a diff found: how far each number differs, how sure that is, and why."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpuscope._checks import door, given
from gpuscope._text import clean
from gpuscope.analysis.result import about_several, sentences
from gpuscope.comparing.effects import FEWEST, Effect, Verdict, control_of, effect, leading
from gpuscope.comparing.pair import CompareResult, compared_traces, paired_of
from gpuscope.comparing.pairing import Pairs
from gpuscope.comparing.rounds import PROGRAM, Values, values_of_program
from gpuscope.comparing.shifts import serial_correlation
from gpuscope.comparing.split import SplitResult, SplitSide, joined, split, with_cause
from gpuscope.comparing.split_sides import of_background, of_calls, of_program
from gpuscope.comparing.turns import Turns, numbers, rounds_of
from gpuscope.errors import MissingEvidence
from gpuscope.telling.finding import Finding
from gpuscope.trace.model import Trace

if TYPE_CHECKING:
    import plotly.graph_objects as go

_APART = (
    "the interval is of the rounds of these two runs, and tells no version from another run of the "
    "same: a process apart may differ by more, most where the host counts"
)

_CAPTURES = (
    "fewer than three rounds: how far repeated measurements differ is known of other runs, and "
    "gpuscope run with rounds = 3 or more measures it"
)


@dataclass(frozen=True)
class DiffResult(CompareResult):
    """What :func:`gpuscope.diff` found.

    Attributes
    ----------
    differences
        Of each judged number an :class:`~gpuscope.comparing.effects.Effect`.
    turns
        The rounds; ``None`` of two traces with fewer than three.
    splits
        The time of a call, round or step in parts, of each workload.
    uncompared
        Which workloads one side has alone; while there are any, nothing is equal.
    caution
        What else is to be known before the verdict is relied on.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 100, "stream": "s", "repeats": 20}},
    ... }
    >>> longer = {"w": {**one["workloads"]["w"], "duration_us": 105}}
    >>> result = gs.diff(one, {**one, "workloads": longer}, device=gpu)
    >>> result.verdict, gs.diff(one, one, device=gpu).verdict
    ('slower', 'equal')
    >>> split = result.splits[0]
    >>> round(sum(part.change_ns for part in split.parts) - split.after_ns + split.before_ns)
    0
    """

    turns: Turns | None = field(default=None, repr=False)
    splits: tuple[SplitResult, ...] = field(default=(), repr=False)
    uncompared: tuple[str, ...] = ()
    caution: str = ""

    @property
    def effects(self) -> tuple[Effect, ...]:
        """How far each judged number differs."""
        return self.differences

    @property
    def verdict(self) -> Verdict:
        """``"slower"`` if any number is; ``"equal"`` only if all are."""
        verdict = super().verdict
        return "cannot tell" if verdict == "equal" and self.uncompared else verdict

    @property
    def decisive(self) -> Effect:
        """The number that decided: of several that differ so, the clearest."""
        if self.verdict in ("slower", "faster"):
            decided = [
                difference for difference in self.effects if difference.verdict == self.verdict
            ]
            return leading(decided)
        subject = self.findings[0].subject
        key = subject["workload"], subject["column"]
        return next(
            difference
            for difference in self.effects
            if (difference.workload, difference.column) == key
        )

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The headline, then what others pay or gain, and how many calls are faster."""
        return with_cause(super().findings, self.splits)

    @property
    def told(self) -> str:
        """The verdict with the number that decided: ``"Slower by load's calls/s -7.8 %"``."""
        about, word = self.decisive, self.verdict.capitalize()
        if self.verdict not in ("slower", "faster"):
            return word
        quantity = about.about.title if about.about.is_rate else about.about.quantity
        return f"{word} by {about.workload}'s {quantity} {100 * about.change:+.3g} %"

    @property
    def headline(self) -> str:
        """The verdict, and what it comes to."""
        subject, about = self.findings[0].subject, self.decisive
        is_seen = self.verdict in ("slower", "faster")
        is_told = (about.workload, about.column) == (subject["workload"], subject["column"])
        start = (self.verdict.capitalize() if is_told else self.told) if is_seen else ""
        return ". ".join(filter(None, [start, *self.uncompared, super().headline]))

    def figure(self) -> go.Figure:
        """Draw both on one axis, curves and differences, and why: ``figures.compared``."""
        from gpuscope.figures import compared  # noqa: PLC0415 - only who draws

        workload = self.decisive.workload
        of = next(
            (split_result for split_result in self.splits if split_result.of == workload), None
        )
        return compared(self, findings=self.findings, split=of)

    @door(workload=str)
    def split(self, workload: str) -> SplitResult:
        """Return the time of a workload's call, or of a step of the program, in parts.

        Raises
        ------
        MissingEvidence
            The traces do not tell.
        """
        for split_result in self.splits:
            if split_result.of == workload:
                return split_result
        raise MissingEvidence(
            f"nothing tells what the time of {given(workload)} consists of; known are "
            f"{[split_result.of for split_result in self.splits]}"
        )

    @property
    def definition(self) -> str:
        """How it was measured."""
        if self.turns is None:
            how = super().definition if self.measured else "one capture of each"
            return sentences(how, self.caution)
        unit, left = self.turns.unit, len(self.turns.left_out)
        several = "processes" if unit == "process" else f"{unit}s"
        control = ""
        if self.is_simulated and unit == "round":
            control = ", simulated: A against A is equal to the ns"
        elif len(self.turns.control) >= FEWEST:
            control = f", wider by what A differs from A ({len(self.turns.control)} pairs)"
        subject = self.findings[0].subject if self.findings else {}
        untold = [
            f"{difference.workload}'s {difference.about.quantity} "
            f"({difference.low:+.1%} to {difference.high:+.1%})"
            for difference in self.effects
            if difference.verdict == "cannot tell"
            and math.isfinite(difference.reach)
            and (difference.workload, difference.column)
            != (subject.get("workload"), subject.get("column"))
        ]
        apart = f"{left} pairs of {several} left out, as {self.turns.left_out[0]}" if left else ""
        clocks = self.turns.clocks_mhz()
        mhz = [f"{clock:.0f}" for clock in clocks if clock is not None]
        covered = {
            "round": "pairs of rounds in turns, in one process",
            "process": "pairs of processes in turns",
            "saved round": "pairs of rounds of two runs",
        }[unit]
        if not self.turns.are_pairs:
            covered = "rounds of each of two runs"
        return sentences(
            f"{len(self.turns.pairs)} {covered}; low to high: 95 % of all numbers together, by "
            f"ranks or, of few, by Student's t{control}; smallest seen: the change that would have "
            "been seen four times of five",
            apart,
            f"cannot be told within {self.effects[0].within:.0%}: {', '.join(untold)}"
            if untold
            else "",
            f"SM clock {' and '.join(mhz)} MHz" if mhz else "",
            self.caution,
        )


# -- judging ------------------------------------------------------------------------------
def judged(turns: Turns, names: tuple[str, str], within: float | None) -> DiffResult:
    """Compare rounds that were measured."""
    pairs = turns.pairs
    cautions = list[str]()
    if turns.stopped:
        cautions.append(f"stopped early, after {len(pairs)} pairs")
    if turns.left_out and len(turns.left_out) >= len(pairs):
        cautions.append(
            f"in {len(turns.left_out)} of {len(pairs) + len(turns.left_out)} pairs the conditions "
            "differed: lock the clocks, or find what slows the GPU"
        )
    if turns.others:
        several = "another process uses" if turns.others == 1 else f"{turns.others} others use"
        cautions.append(f"{several} this GPU: what is measured is theirs, too")
    keys = _of_the_time(numbers(pairs or turns.measured))
    uncompared = tuple(_only_in_one([side.values for pair in pairs[:1] for side in pair], names))
    if not keys:
        raise MissingEvidence(
            f"{names[0]!r} and {names[1]!r} have no workload in common of which a latency or a "
            "rate is known"
        )
    effects = [
        effect(
            *key,
            [before.values[key] for before, _ in pairs],
            [after.values[key] for _, after in pairs],
            control_of(
                [first.values[key] for first, _ in turns.control],
                [second.values[key] for _, second in turns.control],
            ),
            judged=len(keys),
            within=within,
            are_pairs=turns.are_pairs,
        )
        for key in keys
    ]
    cautions += _hanging_together(turns, effects)
    if turns.left_out and len(turns.left_out) >= len(pairs):
        effects = [replace(difference, verdict="cannot tell") for difference in effects]
    measured_pairs = pairs or turns.measured
    if turns.unit == "process" and keys[0][0] == PROGRAM:
        return _of_programs(turns, names, effects, cautions)
    both = tuple(Trace.concat([pair[at].trace for pair in measured_pairs]) for at in (0, 1))
    result = _result((both[0], both[1]), names, effects, turns, cautions)
    return replace(result, uncompared=uncompared)


def _hanging_together(turns: Turns, effects: Sequence[Effect]) -> Iterator[str]:
    """Say of which number rounds, or pairs of neighbours, depend on those beside them."""
    if len(turns.pairs) < FEWEST or turns.pairs[0][0].trace.is_simulated:
        return
    unit = "pairs" if turns.are_pairs else turns.unit.removeprefix("saved ") + "s"
    common = numbers(turns.pairs)
    for about in effects:
        key = about.workload, about.column
        if key not in common:  # a p99 of all calls, of which a round has too few
            continue
        rounds = [np.array([pair[at].values[key] for pair in turns.pairs]) for at in (0, 1)]
        series = [rounds[1] - rounds[0]] if turns.are_pairs else rounds
        correlation = serial_correlation(series, len(effects))
        if correlation is not None:
            yield (
                f"neighbouring {unit} hang together ({about.workload}'s {about.about.quantity}: "
                f"correlation {correlation:.2f}): the interval, which takes them for independent, "
                "is too narrow"
            )


def _of_programs(
    turns: Turns, names: tuple[str, str], effects: Sequence[Effect], cautions: Sequence[str]
) -> DiffResult:
    """Return the result of programs: the traces are those of the median processes."""
    ordered: list[list[Trace]] = []
    for at in (0, 1):
        rounds = [pair[at] for pair in turns.pairs or turns.measured]
        rounds.sort(key=lambda process: next(iter(process.values.values())))
        middle = rounds.pop((len(rounds) - 1) // 2)
        ordered.append([middle.trace, *(process.trace for process in rounds)])
    whole = [joined([of_program(trace) for trace in traces]) for traces in ordered]
    of = _split_program(effects[0].column, names, whole, len(ordered[0]))
    both = ordered[0][0], ordered[1][0]
    if both[0].is_simulated:
        cautions = [*cautions, "simulated: what the program does between its calls takes no time"]
    return _made(both, names, effects, {}, turns, (of,), cautions)


def _of_the_time(keys: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return what is judged: of a program the time of a step or, without steps, the steady time."""
    columns = {column for _, column in keys}
    left_out = {"idle_share", *({"steady_ms"} if "step_ms" in columns else ())}
    return [key for key in keys if key[1] not in left_out]


def _split_program(
    column: str, names: tuple[str, str], whole: Sequence[SplitSide], processes: int
) -> SplitResult:
    """Split the time of a program's step; where one side has none, the steady time."""
    if column == "step_ms":
        return split(PROGRAM, "a step", names, whole[0], whole[1])
    once = [replace(side, units=processes) for side in whole]
    return split(PROGRAM, "the steady time", names, once[0], once[1])


def _only_in_one(both: Sequence[Values], names: tuple[str, str]) -> Iterator[str]:
    """Say which workloads one side has alone; nothing of no sides."""
    by_side = [dict.fromkeys(workload for workload, _ in values) for values in both]
    for name, workloads, other_workloads in zip(
        names[: len(by_side)], by_side, by_side[::-1], strict=True
    ):
        if alone := [workload for workload in workloads if workload not in other_workloads]:
            yield f"Only in {name}, and not compared: {clean(', '.join(alone))}"


def _result(
    both: tuple[Trace, Trace],
    names: tuple[str, str],
    effects: Sequence[Effect],
    turns: Turns | None,
    cautions: Sequence[str],
) -> DiffResult:
    """Return the result of experiments."""
    judged_workloads = dict.fromkeys(difference.workload for difference in effects)
    timed = {difference.workload for difference in effects if not difference.about.is_rate}
    pairs = paired_of(both, effects)
    served = {difference.workload for difference in effects if difference.column.startswith("ttft")}
    splits = []
    for workload in judged_workloads:
        with contextlib.suppress(MissingEvidence):
            if workload in pairs:
                ids = pairs[workload].first, pairs[workload].second
                halves = [of_calls(*side) for side in zip(both, ids, strict=True)]
            elif workload in timed:
                continue
            else:
                halves = [of_background(trace, workload) for trace in both]
            unit = f"a {'request' if workload in served else 'call'} of {workload}"
            splits.append(split(workload, unit, names, halves[0], halves[1]))
    return _made(both, names, effects, pairs, turns, tuple(splits), cautions)


def _made(
    both: tuple[Trace, Trace],
    names: tuple[str, str],
    effects: Sequence[Effect],
    pairs: Mapping[str, Pairs],
    turns: Turns | None,
    splits: tuple[SplitResult, ...],
    cautions: Sequence[str],
) -> DiffResult:
    return DiffResult(
        names,
        both,
        tuple(effects),
        pairs,
        turns=turns,
        splits=splits,
        caution="; ".join(cautions),
        **about_several(both),
    )


def of_traces(
    first: Trace, second: Trace, names: tuple[str, str], within: float | None
) -> DiffResult:
    """Compare two traces that were saved, as :func:`gpuscope.compare` does, and say why.

    Of programs one capture of each tells no noise.
    """
    both = first, second
    if not all((trace.metadata.experiment or {}).get("workloads") for trace in both):
        return _of_captures(both, names)
    compared = compared_traces(both, names, within)
    is_exact = compared.is_simulated and compared.is_by_rounds  # rounds of a number draw the same
    cautions = [] if is_exact else [_APART if compared.is_by_rounds else _CAPTURES]
    turns = None
    if compared.is_by_rounds:
        rounds = [rounds_of(*side) for side in zip(both, compared.measured or (), strict=True)]
        pairs = list(zip(*rounds, strict=False))
        turns = Turns("saved round", pairs, [], pairs, are_pairs=is_exact)
        cautions = [*_hanging_together(turns, compared.differences), *cautions]
    result = _result(both, names, compared.differences, turns, cautions)
    uncompared = tuple(_only_in_one([side.whole for side in compared.measured or ()], names))
    return replace(result, uncompared=uncompared, measured=compared.measured)


def _of_captures(both: tuple[Trace, Trace], names: tuple[str, str]) -> DiffResult:
    """Compare a capture of either of two programs."""
    values = [values_of_program(trace) for trace in both]
    keys = _of_the_time([key for key in values[0] if key in values[1]])
    effects = [Effect(*key, values[0][key], values[1][key], is_capture=True) for key in keys]
    of = _split_program(keys[0][1], names, [of_program(trace) for trace in both], 1)
    caution = "one capture of each tells no noise: nothing is called faster or slower"
    return _made(both, names, effects, {}, None, (of,), [caution])
