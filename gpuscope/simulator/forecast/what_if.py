"""What if it had run otherwise? A recorded trace, replayed with changes on the simulated GPU."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from numbers import Integral, Real
from pathlib import Path
from typing import Literal

from gpuscope._checks import IN_ANY_ORDER, SeveralOf, closest, door, given, require_kind
from gpuscope.analysis.settings import settings_table
from gpuscope.comparing.forecasts import FORECAST, HIGH, LOW, RECORDED, UNCHANGED
from gpuscope.device.sizes import Rounding, Sizes
from gpuscope.errors import InvalidArgument
from gpuscope.simulator.forecast.alone import fit_alone
from gpuscope.simulator.forecast.forecast import Carving, Change, as_trace, described
from gpuscope.simulator.forecast.program import Program, ReplayedWork
from gpuscope.simulator.forecast.reading import read_program
from gpuscope.simulator.forecast.replay import Replay
from gpuscope.simulator.forecast.served_anew import requests_of, with_copies
from gpuscope.simulator.forecast.waits import Waits, change_waits
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import range_label
from gpuscope.trace.run import Run


@door(
    *("trace", "move", "scale", "faster", "second", "recorded_sms", "gpu_profile"),
    streams=(Mapping, None),
    add_waits=SeveralOf(SeveralOf(int, 2)),
    drop_waits=(str, SeveralOf(SeveralOf(int, 2))),
    graphs=SeveralOf(str, of=IN_ANY_ORDER),
)
def what_if(
    trace: Trace,
    *,
    partitions: Sizes | None = None,
    rounding: Rounding = "exact",
    streams: Mapping[str, Change] | None = None,
    move: Mapping[str, str] | None = None,
    add_waits: Waits = (),
    drop_waits: Waits | Literal["all"] = (),
    scale: Mapping[str, float] | None = None,
    faster: Mapping[str, float] | None = None,
    graphs: Iterable[str] = (),
    second: Trace | None = None,
    recorded_sms: Mapping[str, int] | None = None,
    gpu_profile: str | Path = "h200",
) -> Run:
    """Forecast what a recorded trace would have been with changes.

    The recording is replayed on the simulated GPU: launches with the host's time between them,
    the order of streams, waits and synchronisation. A kernel's time on other SMs follows from
    its launch configuration and its recorded time.

    Parameters
    ----------
    trace
        A recording of one GPU: gpuscope's, PyTorch's or Nsight Systems'.
    partitions
        Partition → SMs, as for :meth:`Device.carve`; those of the recording if not given.
    rounding
        As for :meth:`Device.carve`.
    streams
        Stream → ``{"partition": name or None, "priority": number}``; what is left out stays.
    move
        Kernel → stream: kernels whose name or workload matches the pattern (``"*"`` stands for
        any text) go to that stream, which may be new. The order that their old stream gave them
        is lost: add waits for what they need.
    add_waits, drop_waits
        Pairs of span ids: the second waits for the first. ``"all"`` drops all waits between
        streams.
    scale
        Kernel → factor: that many times the work, in as many more blocks, by patterns as in
        ``move``.
    faster
        Kernel → factor: that many times as fast, in as many blocks, by patterns as in ``move``.
    graphs
        Names of ranges or handles, or patterns of them, with or without the number at a name's
        end: what is launched inside each becomes one graph.
    second
        The same work recorded on a small partition: makes times on other SMs more accurate.
    recorded_sms
        Partition → SMs, where the recording does not know its partitions' sizes.
    gpu_profile
        The simulated GPU's profile: the part after ``sim:`` in :func:`open_device`.

    Returns
    -------
    Run
        ``"recorded"`` is the trace; ``"forecast"`` what it would have been; ``"forecast, low"``
        and ``"forecast, high"`` the same with all times of kernels and of the host at the ends of
        the ranges in which nine of ten are expected; ``"forecast of no change"`` what the others
        are counted against (:func:`gpuscope.compare`): what the model has wrong of both cancels.
        Forecasts are marked as simulated. Requests are served anew: they arrive as they did, and
        their calls are made as they need them. Where nothing is changed, all times are those of
        the recording.

    Raises
    ------
    MissingEvidence
        The trace holds no finished GPU work, or that of several GPUs.
    InvalidArgument, InvalidPartition
        A change names what is not there, or cannot be.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
    ...     _ = gs.Gemm(gpu, m=4096, n=4096, k=4096).execute(stream=stream)
    >>> run = gs.what_if(
    ...     recording.trace, partitions={"a": 32, "b": "rest"}, streams={"s": {"partition": "a"}}
    ... )
    >>> list(run), run["forecast"].is_simulated  # doctest: +NORMALIZE_WHITESPACE
    (['recorded', 'forecast', 'forecast, low', 'forecast, high', 'forecast of no change'], True)
    """
    profile = GpuProfile.load(str(gpu_profile).removeprefix("sim:"))
    sm_counts = dict(recorded_sms or {})
    program = read_program(trace, profile, sm_counts, second)
    before = Carving.recorded(trace, program, sm_counts)
    has_other_changes = bool(move or add_waits or drop_waits or scale or faster or graphs)
    is_as_it_was = not has_other_changes and (
        before.changed(partitions, rounding, streams or {}).places == before.places
    )
    factors = {} if is_as_it_was else fit_alone(program, before.places)
    base = read_program(trace, profile, sm_counts, second)  # the other one is about to be changed
    base_factors = {}
    for work, fitted in zip(base.works, program.works, strict=True):
        work.kernel = fitted.kernel
        if fitted in factors:
            base_factors[work] = factors[fitted]
    sent = _moved(program, move or {}, before)
    after = before.changed(partitions, rounding, streams or {})
    before.check_sizes(after, sent)
    for work, factor in _factors(program, scale or {}, "scale").items():
        if work.kernel is not None:
            work.kernel = work.kernel.scaled(factor)
    for work, factor in _factors(program, faster or {}, "faster").items():
        factors[work] = factors.get(work, 1.0) / factor
    change_waits(program, trace, add_waits, drop_waits)
    grouped = _graphs(program, trace, graphs)
    untouched = before.untouched(after, program) if not has_other_changes else frozenset()
    anew = requests_of(trace, program, factors, sent, grouped)
    given_changes = {
        "partitions": partitions,
        "streams": streams,
        "move": move,
        "add_waits": add_waits,
        "drop_waits": drop_waits,
        "scale": scale,
        "faster": faster,
        "graphs": list(graphs),
    }
    changes = {
        name: json.loads(json.dumps(value, default=_plain))
        for name, value in given_changes.items()
        if value
    }

    how = program, after.places, untouched, factors, sent, grouped
    done = {
        name: Replay(*how, lean, anew.rounds, is_as_it_was).play()
        for name, lean in ((FORECAST, 0), (LOW, -1), (HIGH, 1))
    }
    ends_ns = [
        max(end_ns for _, end_ns in replayed.times_ns.values()) for replayed in done.values()
    ]
    text = described(program, changes, ends_ns)
    if anew.why:
        text += f"; no forecast of requests: {anew.why}"
    if anew.rounds:
        text += "; requests served anew, in other batches"
    longer = with_copies(trace, anew.copies)
    forecasts = {
        name: as_trace(longer, program, replayed, after, sent, text)
        for name, replayed in done.items()
    }
    same = requests_of(trace, base, base_factors, {}, {})
    as_it_was = Replay(
        *(base, before.places, untouched, base_factors),
        requests=same.rounds,
        is_as_it_was=is_as_it_was,
    )
    longer = with_copies(trace, same.copies)
    forecasts[UNCHANGED] = as_trace(longer, base, as_it_was.play(), before, {}, text)
    compared = settings_table({RECORDED: trace, FORECAST: forecasts[FORECAST]})
    return Run({RECORDED: trace, **forecasts}, compared, {"name": "what if", "what_if": changes})


def _plain(number: Real) -> int | float:
    """Return a number of NumPy or another library as one of Python's."""
    return int(number) if isinstance(number, Integral) else float(number)


# -- changes -------------------------------------------------------------------------------
def _matching(
    program: Program, patterns: Mapping[str, object], what: str
) -> dict[ReplayedWork, str]:
    """Return the kernels that each pattern means; the last that matches counts."""
    hits: dict[ReplayedWork, str] = {}
    for pattern in patterns:
        works = [
            work
            for work in program.works
            if fnmatchcase(work.row["name"], pattern)
            or fnmatchcase(work.row["category"] or "", pattern)
        ]
        if not works:
            every = (work.row["category"] or work.row["name"] for work in program.works)
            names = dict.fromkeys(every)
            raise InvalidArgument(
                f"{what}: no kernel's name or workload matches {given(pattern)}"
                f"{closest(pattern, names)}: a pattern is a whole name, with * for any text"
            )
        hits.update(dict.fromkeys(works, pattern))
    return hits


def _moved(program: Program, move: Mapping[str, str], carving: Carving) -> dict[ReplayedWork, int]:
    sent = {}
    for work, pattern in _matching(program, move, "move").items():
        name = move[pattern]
        if name not in carving.names.values() and not name.isdecimal():
            number = max(carving.names, default=0) + 1
            carving.names[number], carving.of[number] = name, (None, 0)
        sent[work] = carving.number(name)
    return sent


def _factors(
    program: Program, given_factors: Mapping[str, float], what: str
) -> dict[ReplayedWork, float]:
    """Return the factor of each kernel that a pattern means."""
    for pattern, factor in given_factors.items():
        if not 0 < factor < 1e6:
            raise InvalidArgument(f"{what}[{pattern!r}] is {given(factor)}: a factor above 0")
    matching = _matching(program, given_factors, what)
    return {work: float(given_factors[pattern]) for work, pattern in matching.items()}


def _graphs(program: Program, trace: Trace, names: Iterable[str]) -> dict[int, int]:
    """Return place of a call → place of the first call of the graph that it becomes part of."""
    grouped: dict[int, int] = {}
    columns = ["name", "start_ns", "end_ns", "process", "thread"]
    spans = trace.where(kind=("range", "handle")).spans.select(columns).to_pylist()
    span_names = {span["name"] for span in spans}
    for name in names:
        require_kind("a name in graphs", name, str)
        named = [
            span_name
            for span_name in span_names
            if fnmatchcase(span_name, name) or fnmatchcase(range_label(span_name), name)
        ]
        if not named:
            raise InvalidArgument(
                f"graphs: the trace has no range and no handle called {given(name)}"
                f"{closest(name, sorted(span_names))}: a pattern is a whole name, with * for "
                "any text"
            )
        for span in spans:
            if span["name"] not in named:
                continue
            inside = [
                number
                for number, call in enumerate(program.calls)
                if call.launches
                and call.thread[:2] == (span["process"] or 0, span["thread"] or 0)
                and span["start_ns"] <= call.start_ns
                and (span["end_ns"] is None or call.start_ns < span["end_ns"])
            ]
            grouped.update({number: inside[0] for number in inside if number not in grouped})
    return grouped
