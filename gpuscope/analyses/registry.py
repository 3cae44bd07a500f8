"""Every analysis there is: the built-in ones, then those of plugins; and the findings of all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gpuscope._checks import MappingOf, door, given
from gpuscope._plugins import Plugins
from gpuscope.analyses.builtin import BUILT_IN, FIRST
from gpuscope.analyses.declared import Analysis
from gpuscope.analysis.result import Result
from gpuscope.telling.finding import Finding, FindingsResult
from gpuscope.telling.of_trace import by_setting, of_missing_rows, ranked
from gpuscope.trace.model import Trace


def _wrong(name: str, value: object) -> str:
    """Return why an object is no analysis of that name; empty if it is."""
    if not isinstance(value, Analysis):
        return f"it is {given(value)}, not a gpuscope.analyses.Analysis"
    if any(name == analysis.name for analysis in BUILT_IN):
        return "gpuscope has an analysis of that name"
    return "" if value.name == name else f"it calls itself {value.name!r}"


_PLUGINS: Plugins[Analysis] = Plugins("gpuscope.analyses", "analysis", _wrong)


def known_analyses() -> tuple[Analysis, ...]:
    """Return every analysis, the built-in ones first.

    Examples
    --------
    >>> from gpuscope.analyses import known_analyses
    >>> [known.name for known in known_analyses()][:3]
    ['idle', 'host', 'help']
    """
    plugged = (
        replace(analysis, origin=f"the package {_PLUGINS.package(name)!r}")
        for name, analysis in _PLUGINS.usable().items()
    )
    return (*BUILT_IN, *plugged)


def problems() -> tuple[str, ...]:
    """Return, by name, why plugins could not be loaded.

    Examples
    --------
    >>> from gpuscope.analyses import problems
    >>> problems()
    ()
    """
    return tuple(_PLUGINS.problems())


def forget_plugins() -> None:
    """Search for plugins again at the next use, for example after an installation in a notebook.

    Examples
    --------
    >>> from gpuscope.analyses import forget_plugins
    >>> forget_plugins()
    """
    _PLUGINS.forget()


@door(trace=Trace)
def findings(trace: Trace) -> FindingsResult:
    """Make the first page of a trace: what calls for action, then the rest, by urgency.

    Each analysis declares what it finds: escapes, hazards, missing rows, calls that wait for SMs
    that others hold, dry queues, gaps. In the trace of an experiment only partitions with
    background workloads are to be busy all the time. Of any other trace it is said why the program
    is slow and what would help, with the results that this rests on.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> norm = gs.workloads.spin_kernel(gpu, "norm")
    >>> with gpu.carve({"decode": 16}) as parts, gpu.create_stream() as other:
    ...     guard = gs.CallerStreamGuard(parts["decode"].create_stream())
    ...     with gs.profile(gpu) as recording, guard:
    ...         other.launch(norm, 90_000, grid=16, block=32)
    >>> result = gs.findings(recording.trace)
    >>> [finding.family for finding in result.findings][0]
    'escape'
    """
    result, by_analysis = _found(trace)
    to_act_on = [
        analysis
        for analysis, several in by_analysis.items()
        if analysis not in FIRST and any(finding.is_problem for finding in several)
    ]
    return replace(result, sections=tuple(_sections(trace, [*to_act_on, *FIRST])))


def findings_alone(trace: Trace) -> FindingsResult:
    """Make what a first page says, without the results below it."""
    return _found(trace)[0]


def _found(trace: Trace) -> tuple[FindingsResult, dict[Analysis, tuple[Finding, ...]]]:
    """Return what is said, and what each analysis declared of it."""
    by_analysis = {analysis: analysis.found_in(trace) for analysis in known_analyses()}
    declared = (finding for several in by_analysis.values() for finding in several)
    result = ranked(trace, [*of_missing_rows(trace), *declared])
    if result.is_of_program:  # nobody asks of an ordinary one whether it stayed on its SMs
        asked = tuple(finding for finding in result.findings if finding.rule != "confined.uncarved")
        result = replace(result, findings=asked)
    return result, by_analysis


def _sections(trace: Trace, analyses: Iterable[Analysis]) -> Iterator[tuple[str, Result]]:
    """Yield title and result of those analyses that have rows."""
    for analysis in analyses:
        result = analysis.ask(trace)
        if isinstance(result, Result) and not result.is_empty:
            yield analysis.title, result


@door(trace=Trace)
def cards(trace: Trace) -> Iterator[tuple[str, tuple[Finding, ...]]]:
    """Yield title and findings of the cards that analyses declare of a trace."""
    for analysis in known_analyses():
        if shown := analysis.card_of(trace):
            yield analysis.title, shown


@door(traces=MappingOf(Trace))
def findings_by_setting(traces: Mapping[str, Trace]) -> list[tuple[str, Finding]]:
    """Return the findings of several settings, the most urgent first, each once.

    That nothing was carved is left out where another setting carves, and that a workload waits for
    SMs where it does not in another setting.

    Parameters
    ----------
    traces
        Setting → trace, such as a run.

    Returns
    -------
    list
        The settings that a finding is about, as text, and the finding.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> norm = gs.workloads.spin_kernel(gpu, "norm")
    >>> with gpu.carve({"decode": 16}) as parts, gpu.create_stream() as other:
    ...     guard = gs.CallerStreamGuard(parts["decode"].create_stream())
    ...     with gs.profile(gpu) as recording, guard:
    ...         other.launch(norm, 90_000, grid=16, block=32)
    >>> traces = {"before": recording.trace, "after": recording.trace}
    >>> [(about, finding.rule) for about, finding in gs.telling.findings_by_setting(traces)][0]
    ('', 'escape.outside')
    """
    return by_setting({setting: findings_alone(trace) for setting, trace in traces.items()})
