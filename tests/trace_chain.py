"""All that can be done with a trace: every damaged file that loads must survive it."""

from __future__ import annotations

import itertools

import gpuscope as gs
from gpuscope import analysis, figures, telling
from gpuscope.errors import GpuscopeError
from gpuscope.timeline.canvas.compose import compose_frame
from gpuscope.timeline.canvas.state import TimelineState
from gpuscope.timeline.raster import png
from gpuscope.trace.run import Run
from gpuscope.widgets.details import describe, links

SUFFIXES = (".parquet", ".sqlite", ".json", ".json.gz")
ROWS, FEW = 12, 4
"""Spans that are explained and described, in all and where it is to be quick."""


def attempt(what, *given, **options):
    """Call a function; it may say that evidence is missing, and nothing worse."""
    try:
        return what(*given, **options)
    except GpuscopeError:
        return None


def judged(trace, *, whole=True):
    """Judge a trace by everything in ``gpuscope.analysis``."""
    most = 3 if whole else 2
    names = [str(name) for name in dict.fromkeys(trace.texts("category"))][:most] or ["w"]
    for judge, third in ((analysis.overlap, "workload"), (analysis.concurrency, "workload"),
                         (analysis.gaps, "device")):  # fmt: skip
        for by in ("stream", "partition", third):
            found = attempt(judge, trace, by=by)
            if found is not None:
                repr(found)
                found.rows()
    for judge in (analysis.summary, analysis.launch_latency, analysis.latency,
                  analysis.confinement, analysis.range_projection):  # fmt: skip
        found = attempt(judge, trace)
        if found is not None:
            repr(found)
            found.rows()
    attempt(analysis.settings_table, {"a": trace, "b": trace})
    for of, at in itertools.product(names, repeat=2):
        attempt(analysis.queue_depth, trace, of=of, at=at)
        if of != at:
            attempt(analysis.interference, trace, trace, of=of, given=at)
    return names


def as_predicted(trace):
    return trace.with_metadata(simulated=True), trace.with_metadata(simulated=False)


def explained(trace, *, whole=True):
    """Ask of some spans why they started, and all that is known of them."""
    ids = [] if not len(trace) else trace.array("id")[: ROWS if whole else FEW].tolist()
    for row, span in enumerate(ids):
        attempt(lambda span=span: str(telling.explain(trace, span)))
        describe(trace, row)
        links(trace, span)


def drawn(trace, names, *, whole=True):
    """Draw every figure of a trace, and the state of the widget."""
    made = [
        attempt(figures.timeline, trace, sm=True),
        attempt(figures.timelines, {"a": trace, "b": trace}) if whole else None,
        attempt(figures.sm_map, trace),
        attempt(figures.confinement, trace),
        attempt(lambda: figures.compared(gs.compare(*as_predicted(trace)))),
        *(attempt(figures.latency, {"a": trace}, name) for name in names),
    ]
    for figure in made:
        if figure is not None:
            figure.to_json().encode()
    if whole and made[0] is not None:
        png(made[0])
    state = TimelineState(trace, None)
    state.show_sms(shown=True)
    state.hide([label for label, _ in state.labels][:1])
    state.select(0 if len(trace) else None)
    window = state.first_view(trace)
    state.neighbour(window, 1, 0)
    state.named("k")
    compose_frame(state.snapshot(window, following=False), None)


def exported(trace, folder, *, whole=True):
    """Export to every format that needs no other program, and load what was written."""
    for suffix in SUFFIXES:
        path = gs.export(trace, folder / f"chain{suffix}", keep_private=True)
        again = gs.load_trace(path, keep_private=True)
        assert rows_of(again) == rows_of(trace), suffix
        assert again.metadata.to_json() == trace.metadata.to_json()
        assert again.edges.num_rows <= trace.edges.num_rows
    if not whole:
        return
    gs.export(trace, folder / "public.json")
    gs.export(trace, folder / "chain.html")
    run = Run({"a": trace, "b": trace}, analysis.settings_table({}), {"name": "e"})
    gs.export(run, folder / "run.html")


def rows_of(trace):
    """Return what each row is and when; a counter's sample, in Chrome's form, has no end."""
    kinds, names = trace.texts("kind"), trace.texts("name")
    times = (trace.spans.column(name).to_pylist() for name in ("start_ns", "end_ns"))
    rows = zip(kinds, names, *times, strict=True)
    found = [(*row[:3], None if row[0] == "counter" else row[3]) for row in rows]
    return sorted(found, key=repr)


def through(trace, folder, *, whole=True):
    """Do with a trace all that can be done.

    Parameters
    ----------
    whole
        Whether pages of HTML and pictures are made, too, which take longer than the rest.
    """
    repr(trace)
    trace._repr_html_()
    names = judged(trace, whole=whole)
    explained(trace, whole=whole)
    drawn(trace, names, whole=whole)
    exported(trace, folder, whole=whole)
