"""Hazards as people see them: findings, figures, reports, cells, exported files."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import gpuscope as gs
from gpuscope.report import trace_report
from gpuscope.timeline.picture import HAZARD
from gpuscope.timeline.raster import png
from gpuscope.trace.model import Trace
from gpuscope.widgets.timeline import Timeline


def recorded(*, ordered: bool) -> Trace:
    """A copy that another stream reads, with and without a wait."""
    gpu = gs.open_device("sim:h200", quiet=True)
    made, read, taken = (gpu.empty(100_000) for _ in range(3))
    with (
        gpu.create_stream(name="producer") as producer,
        gpu.create_stream(name="consumer") as consumer,
        gs.profile(gpu, hazards=True) as recording,
    ):
        producer.copy(made, taken)
        if ordered:
            consumer.wait(producer.record())
        consumer.copy(read, made)
    return recording.trace


@pytest.fixture(scope="module")
def racy() -> Trace:
    return recorded(ordered=False)


@pytest.fixture(scope="module")
def ordered() -> Trace:
    return recorded(ordered=True)


def test_a_hazard_comes_first_and_says_which_call_is_missing(racy, ordered):
    first = gs.telling.findings(racy).findings[0]
    assert (first.rule, first.severity) == ("hazard.use-before-a-copy-ended", "error")
    copies = racy.where(kind="memcpy").array("id").tolist()
    assert [shown.span for shown in first.spans] == copies
    assert first.mend.code.startswith("consumer.wait(producer.record())")
    assert "copy on consumer after copy on producer" in first.text
    assert "consumer.wait(producer.record())" in first.advice
    kinds = {one.family: one for one in gs.telling.findings(ordered).findings}
    assert "hazard" not in kinds
    assert not kinds["ordered"].is_problem
    assert (kinds["ordered"]["accesses"].value, kinds["ordered"]["unseen"].value) == (2, 0)


def test_nothing_is_said_where_nobody_looked():
    gpu = gs.open_device("sim:h200", quiet=True)
    with gs.profile(gpu) as recording:
        pass
    kinds = {one.family for one in gs.telling.findings(recording.trace).findings}
    assert not kinds & {"hazard", "ordered"}


def test_an_arrow_of_its_own_look_leads_from_the_first_to_the_second(racy, ordered):
    figure = gs.figures.timeline(racy)
    (arrow,) = [drawn for drawn in figure.data if drawn.name == HAZARD]
    copies = racy.where(kind="memcpy")
    start = racy.metadata.windows_ns[0][0]
    ends = [
        (copies.array("end_ns")[0] - start) / 1e3,
        (copies.array("start_ns")[1] - start) / 1e3,
    ]
    assert list(arrow.x[:2]) == pytest.approx(ends)
    assert arrow.y[0] != arrow.y[1]
    assert arrow.line.dash == "dot"
    assert HAZARD not in {drawn.name for drawn in gs.figures.timeline(ordered).data}


def test_the_still_picture_of_it_has_the_same_look(racy):
    figure = gs.figures.timeline(racy)
    picture = np.asarray(Image.open(io.BytesIO(png(figure))).convert("RGB")).astype(int)
    legend = figure.layout.height - figure.layout.margin.b
    vermilion = np.abs(picture[:legend] - [213, 94, 0]).max(axis=-1) <= 4
    assert np.count_nonzero(vermilion) > 50
    across = vermilion.any(axis=0)[np.flatnonzero(vermilion.any(axis=0))[0] :]
    assert np.count_nonzero(np.diff(across.astype(int)) == 1) > 1  # dots, with gaps between them


def test_the_live_timeline_draws_it_too(racy):
    timeline = Timeline(racy)
    lines = [drawn for drawn in timeline.figure.data if drawn.type == "scatter"]
    (arrow,) = [drawn for drawn in lines if drawn.line.dash == "dot"]
    assert len(arrow.x) == 3
    timeline.close()


@pytest.mark.parametrize("suffix", [".parquet", ".json.gz", ".sqlite"])
def test_they_survive_in_exported_files(racy, tmp_path, suffix):
    path = tmp_path / f"trace{suffix}"
    gs.export(racy, path)
    assert gs.load_trace(path).metadata.hazards == racy.metadata.hazards


def test_a_report_has_them(racy, ordered, tmp_path):
    text = trace_report(racy, tmp_path / "racy.html").read_text("utf-8")
    assert '<li class="hazard error">HAZARD' in text
    assert "consumer.wait(producer.record())" in text
    text = trace_report(ordered, tmp_path / "ordered.html").read_text("utf-8")
    assert "2 accesses, 0 unseen" in text
    assert '<li class="hazard' not in text


def test_an_experiment_looks_for_them():
    plan = {
        "name": "one", "alone_repeats": 0, "hazards": True, "streams": {"s": {}},
        "workloads": {"w": {"kind": "gemm", "m": 64, "n": 64, "k": 64, "stream": "s",
                            "repeats": 3}},
    }  # fmt: skip
    run = gs.run(plan, gs.open_device("sim:h200", quiet=True))
    facts = run["default"].metadata.hazards
    assert facts is not None
    assert facts.accesses >= 3
    assert not facts.found
