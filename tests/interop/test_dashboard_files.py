"""What the dashboard's Save buttons write opens in the programs that it is for."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from front_end import pages  # noqa: F401 - a fixture
from patience import PATIENCE_S

from gpuscope.widgets.dashboard import Dashboard


@pytest.fixture
def saved(pages, tmp_path, monkeypatch):  # noqa: F811 - the fixture
    """Return a function: suffix → the file that the button writes, and the run's trace."""
    monkeypatch.chdir(tmp_path)
    dashboard = Dashboard("sim:h200")
    dashboard.form.workloads.edit("small", repeats=20)
    dashboard.start()
    assert dashboard.wait(PATIENCE_S)
    (trace,) = dashboard.run.values()

    def save(suffix):
        pages(dashboard.bar).act("export", suffix=suffix)
        assert dashboard.wait(PATIENCE_S)
        assert dashboard.bar.alarm == ""
        return tmp_path / f"dashboard-run-1{suffix}", trace

    yield save
    dashboard.close()


def test_nsys_stats_reads_it(saved, nsys):
    path, trace = saved(".sqlite")
    rows = nsys("gpukernsum", path)
    assert sum(int(row["Instances"]) for row in rows) == trace.kind_counts()["kernel"]


def test_perfetto_reads_it(saved, perfetto):
    path, trace = saved(".json.gz")
    ((count,),) = perfetto(path, "select count(*) from slice where category = 'kernel'")[0]
    assert count == trace.kind_counts()["kernel"]


def test_arrow_reads_it(saved):
    path, trace = saved(".parquet")
    assert pq.read_table(path).num_rows >= len(trace)
