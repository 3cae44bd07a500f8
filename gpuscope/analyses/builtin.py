"""The analyses of gpuscope itself, each declared once, in the order of their sections.

They stand above ``analysis``, ``figures`` and the findings, since a declaration names one of each;
Plotly is imported when a figure is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from gpuscope import analysis
from gpuscope.analyses.declared import Analysis, Figures
from gpuscope.analysis.critical_path_analysis import steady_path
from gpuscope.analysis.help_analysis import help_in_steps
from gpuscope.analysis.queue_analysis import described_workloads
from gpuscope.analysis.result import Result
from gpuscope.analysis.steps_analysis import steady_part
from gpuscope.errors import MissingEvidence
from gpuscope.telling.of_counters import of_counters
from gpuscope.telling.of_program import of_program
from gpuscope.telling.of_trace import (
    of_clocks,
    of_confinement,
    of_hazards,
    of_idle_sms,
    of_idle_tracks,
    of_unloaded_calls,
)
from gpuscope.telling.of_waits import of_waits
from gpuscope.trace.model import Trace

_MOST_FIGURES = 6
_NAMED = 20
"""Handles without a figure that are named."""


def confinements(traces: Mapping[str, Trace]) -> Figures:
    """Yield for each trace with partitions which share of their work ran inside them."""
    from gpuscope import figures  # noqa: PLC0415 - only who draws needs Plotly

    for trace in traces.values():
        if trace.metadata.partitions:
            with contextlib.suppress(MissingEvidence):
                yield figures.confinement(trace)


def latencies(traces: Mapping[str, Trace]) -> Figures:
    """Yield a distribution for each handle, those first that were called most."""
    calls: dict[str, int] = {}
    for trace in traces.values():
        for handle in analysis.latency(trace).handles:
            calls[handle.name] = calls.get(handle.name, 0) + handle.n
    yield from latencies_of(traces, sorted(calls, key=calls.__getitem__, reverse=True))


def of_the_host(traces: Mapping[str, Trace]) -> Figures:
    """Yield flame graphs of the traces whose stacks were sampled."""
    from gpuscope import figures  # noqa: PLC0415 - only who draws needs Plotly

    for trace in traces.values():
        with contextlib.suppress(MissingEvidence):
            yield figures.host_times(trace)


def latencies_of(traces: Mapping[str, Trace], handles: list[str]) -> Figures:
    """Yield a distribution for each of some handles; the names of those beyond a few."""
    from gpuscope import figures  # noqa: PLC0415 - only who draws needs Plotly

    for handle in handles[:_MOST_FIGURES]:
        try:
            yield figures.latency(traces, handle)
        except MissingEvidence as error:
            yield str(error)
    rest = handles[_MOST_FIGURES:]
    if rest:
        more = f" and {len(rest) - _NAMED:,} more" if len(rest) > _NAMED else ""
        names = ", ".join(rest[:_NAMED])
        yield f"Without a figure: {names}{more}. figures.latency(traces, name) draws any."


def repeated(trace: Trace) -> analysis.StepsResult:
    """Return the steps of a trace.

    Raises
    ------
    MissingEvidence
        Nothing in it is repeated.
    """
    result = analysis.steps(trace)
    if not result.steps:
        raise MissingEvidence(result.basis)
    return result


def of_programs(judge: Callable[[Trace], Result]) -> Callable[[Trace], Result]:
    """Return an analysis that an experiment, which says what its workloads are, does without."""

    def judged(trace: Trace) -> Result:
        if described_workloads(trace)[0]:
            raise MissingEvidence("an experiment says what its workloads are")
        return judge(trace)

    return judged


def steady_kernels(trace: Trace) -> analysis.KernelsResult:
    """Sum kernels and copies of the steady time."""
    return analysis.top_kernels(steady_part(trace))


_A_PROGRAM = "the launches of a program"
FIRST = (
    Analysis(
        "idle",
        "What the GPU waited for",
        of_programs(analysis.idle_causes),
        _A_PROGRAM,
        findings=of_program,
    ),
    Analysis(
        "host",
        "What Python did meanwhile",
        of_programs(analysis.host_times),
        "samples of stacks",
        figures=of_the_host,
    ),
    Analysis("help", "What would help", of_programs(help_in_steps), _A_PROGRAM),
    Analysis("path", "Critical path", of_programs(steady_path), _A_PROGRAM),
    Analysis("ranks", "Ranks", of_programs(analysis.ranks), "collectives of several ranks"),
    Analysis("steps", "Steps", of_programs(repeated), _A_PROGRAM),
    Analysis("ranges", "Ranges", of_programs(analysis.range_projection), "ranges that launched"),
    Analysis("kernels", "Kernels and copies", of_programs(steady_kernels), _A_PROGRAM),
)
"""Those that say on the first page of a program why it is slow."""
BUILT_IN = (
    *FIRST,
    Analysis("hazards", "Hazards", analysis.hazards, "a search for hazards", findings=of_hazards),
    Analysis("collectives", "Collectives", analysis.collectives, "collectives of several ranks"),
    Analysis(
        "confinement",
        "Did the work stay where it was put?",
        analysis.confinement,
        "work that was given to a partition",
        confinements,
        of_confinement,
    ),
    Analysis("streams", "Partitions and streams", analysis.summary),
    Analysis("overlap", "Overlap of streams", analysis.overlap),
    Analysis("sites", "Launch sites", analysis.launch_sites, "the lines that launched its work"),
    Analysis("gaps", "Gaps", analysis.gaps, "kernels or copies", findings=of_idle_tracks),
    Analysis(
        "sms",
        "Idle SMs inside kernels",
        analysis.idle_sms,
        "where thread blocks ran",
        findings=of_idle_sms,
    ),
    Analysis(
        "counters",
        "What each partition used",
        analysis.partition_use,
        "samples of hardware counters",
        findings=of_counters,
    ),
    Analysis("latency", "Latency", analysis.latency, figures=latencies, findings=of_waits),
    Analysis(
        "queues",
        "Was the GPU under load?",
        analysis.queue_depths,
        "calls that were timed beside a background",
        findings=of_unloaded_calls,
    ),
    Analysis("requests", "Requests", analysis.requests, "requests"),
    Analysis("clocks", "Clocks", analysis.clocks, "readings of clocks", findings=of_clocks),
)
