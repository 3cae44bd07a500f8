"""What a sweep comes to: which point to take, what that gains and costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuscope._checks import door
from gpuscope._columns import COMPARED
from gpuscope.analysis.settings import SweepResult
from gpuscope.comparing.choice import Option, PointChoice, choices
from gpuscope.comparing.effects import change_of
from gpuscope.comparing.of_tuning import fewest
from gpuscope.telling.finding import Finding, Quantity, counts
from gpuscope.telling.of_setting import unit_of


@door(result=SweepResult, workload=(str, None))
def swept(result: SweepResult, workload: str | None = None) -> Iterator[Finding]:
    """Yield which point to take of each work; where there is no choice, the best and the worst.

    First how many points were not measured or cannot be run, if there are any.

    Parameters
    ----------
    workload
        Whose numbers decide; by default the first that is not in the background.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> from gpuscope.comparing.of_sweep import swept
    >>> result = gs.search.sweep(one, {"workloads.w.duration_us": [10, 90]}, gpu)
    >>> [(finding.rule, finding.subject["best"]) for finding in swept(result)]
    [('swept', 'w.duration_us = 10')]
    """
    if result.unmeasured:
        values = counts(unmeasured=result.unmeasured)
        yield Finding("swept.unmeasured", "warning", {"reason": result.why_unmeasured}, values)
    if result.refused:
        values = counts(refused=result.refused)
        yield Finding("swept.refused", "warning", {"reason": result.why_refused}, values)
    every = choices(result, workload)
    for choice in every:
        if choice.taken is not None:
            yield from _take(choice, choice.taken)
        elif choice.best is not None:
            yield _untold(choice, choice.best, int(result.experiment.get("rounds") or 1))
    if every and not any(choice.best for choice in every):
        yield from _ends(every)


def _take(choice: PointChoice, taken: Option) -> Iterator[Finding]:
    """Yield which point to take, with what that gains and costs, then its equals."""
    column = COMPARED[choice.column]
    value, low, high = choice.value(taken)
    subject: dict[str, str | list[str]] = {
        "choice": taken.label,
        "workload": choice.workload,
        "column": choice.column,
        "objective": f"{choice.workload}'s {column.quantity}",
        "cost": "; ".join(_costs(choice, taken)),
    }
    values = [Quantity("mean", value, unit_of(column), low, high)]
    against, by = _against_reference(choice, taken)
    yield Finding("take", "note", {**subject, **against}, (*values, *by))
    if equals := [option.label for option in choice.ties if option is not taken]:
        subject = {"choice": taken.label, "equals": equals, "ties": fewest([choice.workload])}
        yield Finding("take.ties", "note", subject)


def _costs(choice: PointChoice, taken: Option) -> Iterator[str]:
    """Yield what a point costs others, and what is worse there than at the reference."""
    for name, share in choice.kept(taken).items():
        yield f"{name} keeps {Quantity('kept', share, '%')} of its rate alone"
    for effect in choice.lost(taken):
        was, now = (
            Quantity("", end, unit_of(effect.about)) for end in (effect.before, effect.after)
        )
        yield f"worse: {effect.workload}'s {effect.about.quantity} is {now} instead of {was}"


def _against_reference(
    choice: PointChoice, option: Option
) -> tuple[dict[str, str], list[Quantity]]:
    """Return the reference, and how far an option differs from it."""
    if choice.reference in (None, option) or not choice.value(choice.reference)[0]:
        return {}, []
    by = choice.difference(choice.reference, option)
    change = change_of(by)
    subject = {"reference": repr(choice.reference.label), "changes": str(change)}
    return subject, [change]


def _untold(choice: PointChoice, best: Option, rounds: int) -> Finding:
    """Return that noise hides what the best point gains, and what would tell it."""
    column = COMPARED[choice.column]
    value, low, high = choice.value(best)
    subject = {
        "workload": choice.workload,
        "column": choice.column,
        "objective": f"{choice.workload}'s {column.quantity}",
        "best": best.label,
    }
    against, by = _against_reference(choice, best)
    mean = Quantity("mean", value, unit_of(column), low, high)
    values = (mean, *by, *counts(rounds=4 * rounds))
    return Finding("take.none", "note", {**subject, **against}, values)


def _ends(every: Sequence[PointChoice]) -> Iterator[Finding]:
    """Yield where the number that is judged is best and worst, of the work of the first choice."""
    first, column = every[0], COMPARED[every[0].column]
    by_value = [
        (option.rows[first.workload][first.column], option)
        for choice in every
        if (choice.workload, choice.column) == (first.workload, first.column)
        for option in choice.options
    ]
    if len(by_value) < 2:
        return
    by_value.sort(key=lambda pair: -column.better * pair[0])
    subject = {"workload": first.workload, "quantity": column.quantity}
    subject |= {"best": by_value[0][1].label, "worst": by_value[-1][1].label}
    names = zip(("good", "bad"), (by_value[0], by_value[-1]), strict=True)
    values = (Quantity(name, value, unit_of(column)) for name, (value, _) in names)
    yield Finding("swept", "note", subject, tuple(values))
