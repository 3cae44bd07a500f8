"""What nsys's writer would get: exactly our spans. A backend of our own stands for nsys's."""

from __future__ import annotations

import enum
import json
import math
import os
import sqlite3
import sys
from collections import Counter
from types import ModuleType

import made
import nvtx.writer
import pytest

import gpuscope as gs
from gpuscope import _nsys


class TimeBase(enum.Enum):
    RELATIVE = "relative"
    UTC = "utc"


class Session(nvtx.writer.Session):
    """nsys's session: an nvtx one with its backend, a report to merge into, a base of times."""

    def __init__(self, name, *, report_merge=None, time_base=TimeBase.UTC):
        backend = nvtx.writer.load_backend(os.environ["NSYS_WRITER_BACKEND"])
        config = f"merge={report_merge or ''} base={time_base.value}"
        super().__init__(name, backend=backend, config=config)


@pytest.fixture
def writer(monkeypatch, nvtxw):
    """Install a stand-in for nsys's package, with our backend behind it."""
    module = ModuleType("nsys_writer")
    module.Session, module.TimeBase = Session, TimeBase
    monkeypatch.setitem(sys.modules, "nsys_writer", module)
    monkeypatch.setenv("NSYS_WRITER_BACKEND", str(nvtxw))
    monkeypatch.setenv("PATH", "/nowhere")


def read(path):
    """Return the configuration, and the events in words."""
    names, places, found, config = {}, {}, [], None
    for line in path.read_text("utf-8").splitlines():
        fact = json.loads(line)
        call = fact.pop("call")
        if call == "session":
            config = fact["config"]
        elif call == "place":
            places[fact["id"]] = fact["scope"]
        elif call == "category":
            names["category", fact["of"], fact["id"]] = fact["name"]
        elif call in ("domain", "string", "scope", "stream", "counter"):
            names[fact["id"]] = fact
        elif call in ("event", "sample"):
            found.append(fact)
    for fact in found:
        stream = names[fact.pop("stream")]
        domain = stream["of"]
        fact["domain"] = names[domain]["name"]
        fact["scope"] = names[places[stream["id"]]]["name"]
        assert names[places[stream["id"]]]["of"] == domain
        if "message" in fact:
            assert names[fact["message"]]["of"] == domain
            fact["name"] = names[fact.pop("message")]["name"]
            fact["category"] = names.get(("category", domain, fact["category"]))
        else:
            fact["name"] = names[fact.pop("counter")]["name"]
    return config, found


def expected(trace, base=0):
    """Return what a row must arrive as: kind, name, times, domain, category, colour."""
    for row in trace.spans.to_pylist():
        kind, is_open = row["kind"], row["end_ns"] is None
        value = row["value"]
        start = row["start_ns"] - base
        domain = (row["domain"] or "") if kind in ("range", "mark") else "gpuscope"
        category = row["category"] if kind in ("range", "mark") else kind
        if kind == "counter" and value is not None and math.isfinite(value):
            yield "sample", row["name"], start, value, domain
        elif is_open and kind in ("mark", "event", "counter"):
            yield "mark", row["name"], start, None, domain, category, row["color"] or 0
        elif is_open:
            yield "start", row["name"], start, None, domain, category, row["color"] or 0
        else:
            style = "start/end" if row["range_style"] == "start/end" else "push/pop"
            end = row["end_ns"] - base
            yield style, row["name"], start, end, domain, category, row["color"] or 0


def arrived(found):
    for fact in found:
        if "value" in fact:
            yield "sample", fact["name"], fact["timestamp"], fact["value"], fact["domain"]
            continue
        start = fact.get("timestamp", fact.get("timestampBegin"))
        yield (fact["kind"], fact["name"], start, fact.get("timestampEnd"), fact["domain"],
               fact["category"], fact["color"])  # fmt: skip


@pytest.mark.filterwarnings("ignore:nsys is not here")
@pytest.mark.parametrize("seed", ["program", "steps", 1, 2, 3])
def test_exactly_our_spans(tmp_path, writer, seed):
    made_by = {"program": made.program, "steps": made.steps}.get(seed)
    trace = made_by() if made_by else made.whole(seed)
    path = gs.export(trace, tmp_path / "run.nsys-rep")
    base = 0
    if trace.metadata.time_base != "unix":
        base = int(trace.array("start_ns").min())
    config, found = read(path)
    assert config == f"merge= base={'relative' if base else 'utc'}"
    assert Counter(arrived(found)) == Counter(expected(trace, base))
    assert [one.name for one in tmp_path.iterdir()] == ["run.nsys-rep"]
    for scope in {fact["scope"] for fact in found}:  # what is in one scope nests
        ends = []
        ranges = [f for f in found if f["scope"] == scope and f.get("timestampEnd") is not None]
        for fact in sorted(ranges, key=lambda f: (f["timestampBegin"], -f["timestampEnd"])):
            while ends and ends[-1] <= fact["timestampBegin"]:
                ends.pop()
            assert not ends or fact["timestampEnd"] <= ends[-1]
            ends.append(fact["timestampEnd"])


@pytest.mark.filterwarnings("ignore:nsys is not here")
def test_places(tmp_path, writer):
    _, found = read(gs.export(made.program(), tmp_path / "run.nsys-rep"))
    scopes = {fact["scope"] for fact in found}
    assert "GPU 0 NVIDIA H200 (simulated) · decode (16 SMs)/d0" in scopes
    assert "python/MainThread" in scopes


def test_merging(tmp_path, writer, monkeypatch):
    """A copy of a report gets our spans; what nsys reads back is counted."""
    old = tmp_path / "old.nsys-rep"
    old.write_text("old")
    events = {"old": 5, "new": 5 + len(made.steps())}  # whatever a report is called meanwhile

    def export_sqlite(report, target, nsys):
        with sqlite3.connect(target) as database:
            database.execute("CREATE TABLE NVTX_EVENTS (eventType INTEGER)")
            rows = [(59,)] * events["old" if report == old else "new"]
            database.executemany("INSERT INTO NVTX_EVENTS VALUES (?)", rows)
        return target

    monkeypatch.setattr(_nsys, "find", lambda tool, path=None: tmp_path / "nsys")
    monkeypatch.setattr(_nsys, "export_sqlite", export_sqlite)
    new = gs.export(made.steps(), tmp_path / "new.nsys-rep", merge_into=old)
    assert read(new)[0] == f"merge={old} base=utc"
    assert old.read_text() == "old"
    events["new"] -= 1
    with pytest.warns(UserWarning, match="nsys reads 599 ranges and marks back where 600"):
        gs.export(made.steps(), tmp_path / "new.nsys-rep", merge_into=old)
    with pytest.raises(gs.errors.ExportError, match="another name"):
        gs.export(made.steps(), old, merge_into=old)
    with pytest.raises(gs.errors.ExportError, match=r"no report 'none\.nsys-rep'"):
        gs.export(made.steps(), new, merge_into=tmp_path / "none.nsys-rep")
    with pytest.raises(gs.errors.ExportError, match="times are virtual"):
        gs.export(made.program(), new, merge_into=old)
    with pytest.raises(gs.errors.ExportError, match=r"only a \.nsys-rep"):
        gs.export(made.program(), tmp_path / "run.json", merge_into=old)


def test_a_failing_writer_leaves_nothing(tmp_path, writer, monkeypatch):
    monkeypatch.setattr(Session, "create_stream", lambda *_, **__: (_ for _ in ()).throw(
        nvtx.writer.WriterError(1, "StreamOpen")))  # fmt: skip
    (tmp_path / "run.nsys-rep").write_text("older")
    with pytest.raises(gs.errors.ExportError, match="StreamOpen failed"):
        gs.export(made.steps(), tmp_path / "run.nsys-rep")
    assert (tmp_path / "run.nsys-rep").read_text() == "older"
    assert len(list(tmp_path.iterdir())) == 1


def test_without_the_writer_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nsys_writer", None)
    monkeypatch.delenv("NSYS_WRITER_BACKEND", raising=False)
    monkeypatch.setattr(_nsys, "find", _nothing)
    with pytest.raises(
        gs.errors.MissingDependency, match="install a current Nsight Systems, then run"
    ):
        gs.export(made.steps(), tmp_path / "run.nsys-rep")
    package = tmp_path / "nsys" / "target-linux-x64" / "python" / "packages" / "nsys_writer"
    package.mkdir(parents=True)
    command = tmp_path / "nsys" / "target-linux-x64" / "nsys"
    command.touch()
    monkeypatch.setattr(_nsys, "find", lambda tool, path=None: command)
    with pytest.raises(gs.errors.MissingDependency, match=f"-m pip install {package}"):
        gs.export(made.steps(), tmp_path / "run.nsys-rep")
    assert not (tmp_path / "run.nsys-rep").exists()


def _nothing(tool, path=None):
    raise gs.errors.MissingDependency("there is none")
