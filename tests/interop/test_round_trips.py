"""Round trips: a trace of ours, written in a tool's format, comes back as it was."""

from __future__ import annotations

import contextlib
import json
import math

import made
import pyarrow as pa
import pytest

import gpuscope as gs
from gpuscope.trace import Trace, schema

TRACES = {
    "program": made.program,
    "steps": made.steps,
    "stacks": made.stacks,
    **{f"whole {seed}": lambda seed=seed: made.whole(seed) for seed in range(4)},
}
FORMATS = {
    "chrome": "run.json",
    "chrome, gzipped": "run.json.gz",
    "nsys": "run.sqlite",
    "parquet": "run.parquet",
}


def sampled(row):
    """Whether a row becomes a counter's sample in Chrome's JSON: no arrow leads to it."""
    value = row["value"]
    return row["kind"] == "counter" and value is not None and math.isfinite(value)


def is_nan(value):
    return isinstance(value, float) and math.isnan(value)


def told(row, name):
    """Return what a format tells of a row."""
    kept = {key: value for key, value in row.items() if value is not None and not is_nan(value)}
    if "chrome" in name:
        if row["process"] is None:
            kept.pop("process", None)
        if "payload" in kept:  # one that is no JSON stands there as a text
            with contextlib.suppress(ValueError):
                kept["payload"] = json.loads(kept["payload"])
    return kept


def there_and_back(trace, name, tmp_path):
    path = gs.export(trace, tmp_path / FORMATS[name], keep_private=True)
    return gs.load_trace(path, keep_private=True)


def ordered(rows):
    return sorted(rows, key=lambda row: (row["kind"], row["start_ns"], row["name"], row["id"] or 0))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("which", TRACES)
def test_every_row_comes_back(which, name, tmp_path):
    trace = TRACES[which]()
    back = there_and_back(trace, name, tmp_path)
    before, after = ordered(trace.spans.to_pylist()), ordered(back.spans.to_pylist())
    assert len(after) == len(before)
    for one, other in zip(before, after, strict=True):
        if "chrome" in name and one["process"] is None:
            other["process"] = None  # a track has a number, also where nobody gave it one
        assert told(other, name) == told(one, name)
    assert back.spans.schema.names == list(schema.SPAN_TYPES)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("which", TRACES)
def test_edges_and_metadata_come_back(which, name, tmp_path):
    trace = TRACES[which]()
    back = there_and_back(trace, name, tmp_path)
    counters = {row["id"] for row in trace.spans.to_pylist() if sampled(row)}
    kept = [
        edge
        for edge in trace.edges.to_pylist()
        if "chrome" not in name or not counters & {edge["from"], edge["to"]}
    ]
    key = tuple(schema.EDGE_TYPES)

    def by_ends(edges):
        return sorted(tuple(edge[one] for one in key) for edge in edges)

    assert by_ends(back.edges.to_pylist()) == by_ends(kept)
    assert back.metadata.to_json() == trace.metadata.to_json()
    assert back.provenance == trace.provenance


@pytest.mark.parametrize("name", FORMATS)
def test_analysis_says_the_same_of_what_came_back(name, tmp_path):
    trace = made.program()
    back = there_and_back(trace, name, tmp_path)
    for analysis in (gs.analysis.overlap, gs.analysis.confinement, gs.analysis.gaps,
                     gs.analysis.summary):  # fmt: skip
        assert analysis(back).rows() == analysis(trace).rows()
    assert (
        gs.analysis.overlap(back, by="partition").rows()
        == gs.analysis.overlap(trace, by="partition").rows()
    )


def test_what_is_told_of_the_machine_stays_at_home(tmp_path):
    trace = made.steps()
    position = trace.spans.schema.get_field_index("host")
    named = pa.array(["bob-laptop"] * len(trace)).dictionary_encode()
    spans = trace.spans.set_column(position, "host", named)
    trace = Trace(spans, trace.edges, trace.metadata)
    for file in ("run.json", "run.sqlite", "run.parquet"):
        gs.export(trace, tmp_path / file)
        assert b"bob-laptop" not in (tmp_path / file).read_bytes()
