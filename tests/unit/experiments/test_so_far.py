"""Traces of journals: while their program runs, and after it was killed unwatched."""

from __future__ import annotations

import runpy
import sys

import pytest
from fake_cupti import World

import gpuscope as gs
from gpuscope.experiments.so_far import SoFar


@pytest.fixture
def written(monkeypatch, tmp_path):
    """A folder with a journal, and what makes it longer by ten kernels."""
    world = World(monkeypatch)
    recording = world.recording(devices=())
    recording.start()
    journal = recording.journal(tmp_path / "1-2-3.journal")

    def more():
        for _ in range(10):
            world.gpu.foreign("theirs")
        recording.advance()

    more()
    yield tmp_path, more
    recording.stop()
    journal.close(remove=True)
    assert not list(tmp_path.glob("*.journal"))


def test_a_trace_so_far_is_written_anew_where_the_journal_grew(written):
    folder, more = written
    so_far = SoFar(folder)
    path = folder / "1-2-3.so-far.parquet"
    assert so_far.save()["kernel"] == 10
    assert gs.load_trace(path).kind_counts()["kernel"] == 10
    path.unlink()
    assert so_far.save()["kernel"] == 10
    assert not path.exists()
    more()
    (folder / "4-5-6.journal").write_text("no journal, but long enough to have a header")
    assert so_far.save()["kernel"] == 20
    assert gs.load_trace(path).kind_counts()["kernel"] == 20
    (folder / "4-5-6.journal").unlink()


def test_journals_become_traces_by_hand(written, monkeypatch, capsys):
    folder, _ = written
    monkeypatch.setattr(sys, "argv", ["so_far", str(folder)])
    monkeypatch.delitem(sys.modules, "gpuscope.experiments.so_far")
    (folder / "4-5-6.journal").write_text("no journal, but long enough to have a header")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("gpuscope.experiments.so_far", run_name="__main__")
    assert ended.value.code == 1
    (folder / "4-5-6.journal").unlink()
    assert capsys.readouterr().out == f"wrote {folder / '1-2-3.parquet'}\n"
    trace = gs.load_trace(folder / "1-2-3.parquet")
    assert trace.kind_counts()["kernel"] == 10
    assert "killed or crashed" in trace.metadata.incomplete
