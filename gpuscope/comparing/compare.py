"""``compare``: two runs, call by call; and a prediction checked by what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuscope._checks import MappingOf, SeveralOf, door
from gpuscope.comparing.changes import changes
from gpuscope.comparing.forecasts import FORECAST, RECORDED, forecasts_in, with_bands
from gpuscope.comparing.pair import CompareResult, compared_traces
from gpuscope.errors import InvalidArgument, MissingEvidence
from gpuscope.trace.folder import load_run
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run
from gpuscope.trace.store import read_parquet

_FREE = ("name", "alone_repeats", "detail", "hazards", "colors")
"""Fields of an experiment that may differ: they change nothing that is compared."""


@door("first", "second", names=(SeveralOf(str, 2), None))
def compare(
    first: Trace | Run | str | Path,
    second: Trace | Run | str | Path,
    *,
    names: tuple[str, str] | None = None,
) -> CompareResult:
    """Compare two runs call by call: how far they differ, and how sure that is.

    Calls of one workload pair by rank, round and index; with the same seed they arrive alike.
    Intervals are of 95 %, of all numbers together: by rounds or, of fewer than three, by parts of
    the calls (:func:`gpuscope.comparing.rounds.effects_of`).

    Parameters
    ----------
    first, second
        Each a trace, the result of :func:`gpuscope.run` with one setting, the folder of
        ``gpuscope run --out`` with one, or a trace in a file that ends in ``.parquet``.
        One may be what :func:`gpuscope.what_if` returned. The second: the recording beside what
        is forecast. The first, or a prediction of :func:`gpuscope.experiments.predict`: the second,
        the run that was made afterwards, is checked against its bands.
    names
        What to call them; default: their settings, or A and B where these are the same.

    Raises
    ------
    InvalidArgument
        A run has several settings.
    MissingEvidence
        They have no workload in common of which a latency or a rate is known.
    TraceFormatError, GpuscopeError
        A file cannot be read.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 100, "stream": "s", "repeats": 20}},
    ... }
    >>> longer = {**one["workloads"]["w"], "duration_us": 150}
    >>> result = gs.compare(gs.run(one, gpu), gs.run({**one, "workloads": {"w": longer}}, gpu))
    >>> result.findings[0].rule, result.changes
    ('change.worse', ('workloads.w.duration_us: 100.0 → 150.0',))
    """
    forecasts = forecasts_in(first) or forecasts_in(second)
    if forecasts and forecasts_in(first):
        first, names = forecasts[1], names or (FORECAST, "run")
    elif forecasts:
        second, names = forecasts[1], names or (RECORDED, FORECAST)
    both = _trace_of("first", first), _trace_of("second", second)
    if names is None:
        before, after = (str(trace.metadata.setting or "") for trace in both)
        names = (before, after) if before and after and before != after else ("A", "B")
    if names[0] == names[1]:
        raise InvalidArgument(f"names are two that differ, not {names[0]!r} twice")
    result = compared_traces(both, (names[0], names[1]))
    is_check = both[0].is_simulated and not both[1].is_simulated and not _differ(*both)
    return with_bands(result, forecasts) if forecasts or is_check else result


@door(predicted=MappingOf(Trace), measured=MappingOf(Trace))
def check(
    predicted: Mapping[str, Trace], measured: Mapping[str, Trace]
) -> dict[str, CompareResult]:
    """Check a prediction by what was measured: setting → both compared.

    Raises
    ------
    MissingEvidence
        They have no setting in common, or are of different experiments.
    InvalidArgument
        The first is no prediction.
    """
    if not all(trace.is_simulated for trace in predicted.values()):
        raise InvalidArgument("the first is no prediction: it was measured")
    checked = {}
    for name in (name for name in predicted if name in measured):
        both = predicted[name], measured[name]
        if differ := _differ(*both):
            raise MissingEvidence(
                f"different experiments in setting {name!r}: {'; '.join(differ[:3])}. "
                "Predict the experiment that was measured: predict(measured.experiment)"
            )
        result = compared_traces(both, ("predicted", "measured"))
        checked[name] = with_bands(result, ())
    if not checked:
        raise MissingEvidence(
            f"no setting in common: predicted are {list(predicted)}, measured are "
            f"{list(measured)}. Predict the experiment that was measured"
        )
    return checked


def _differ(first: Trace, second: Trace) -> list[str]:
    """Say in what the experiments of two traces differ, as far as that changes numbers."""
    every = changes(first, second)
    return [str(change) for change in every if change.path.partition(".")[0] not in _FREE]


def _trace_of(which: str, given: Trace | Run | str | Path) -> Trace:
    if isinstance(given, Trace):
        return given
    if isinstance(given, str | Path) and Path(given).suffix == ".parquet":
        return read_parquet(Path(given))
    traces = given if isinstance(given, Run) else load_run(Path(given))
    if len(traces) != 1:
        names = ", ".join(map(repr, traces))
        raise InvalidArgument(
            f"{which} has {len(traces)} settings ({names}): give the trace of one, run[name]"
        )
    return next(iter(traces.values()))
