"""Foreign TOML and JSON: all readers refuse what means harm, and read what is right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpuscope import _foreign
from gpuscope.cli.series import varied
from gpuscope.comparing.split_sides import configuration
from gpuscope.errors import GpuscopeError
from gpuscope.experiments import Experiment
from gpuscope.experiments.experiment import fields_of
from gpuscope.experiments.so_far import read_facts
from gpuscope.judging.baseline import Baseline
from gpuscope.judging.budget import Budget
from gpuscope.judging.machine import Machine
from gpuscope.search.point_table import POINTS, saved
from gpuscope.simulator.models.launch import Launch
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.simulator.recorded import _target
from gpuscope.trace.facts import DeviceFacts
from gpuscope.trace.folder import trace_names
from gpuscope.trace.sites import lines_of
from gpuscope_lessons.handed_in import read_cells
from gpuscope_lessons.journal import GradeJournal
from gpuscope_lessons.points import Points

ROOT = Path(__file__).parents[3]
DEEP = 100_000
BOM = b"\xef\xbb\xbf"
DIGITS = "9" * 5000
JSONS = {
    "open lists": b"[" * DEEP,
    "closed lists": b"[" * DEEP + b"]" * DEEP,
    "lists that Python's parser holds": b"[" * 500 + b"]" * 500,
    "open objects": b'{"a":' * DEEP,
    "closed objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "objects that Python's parser holds": b'{"a":' * 500 + b"1" + b"}" * 500,
    "deep in a key": b'{"schema":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "digits": b'{"schema": ' + DIGITS.encode() + b"}",
    "fewer digits": b"[" + b"9" * 400 + b"]",
    "many digits": b"9" * 100_000,
    "NaN": b'{"cells": NaN, "traces": NaN}',
    "infinity": b"[-Infinity]",
    "half a character": b'["\\ud800"]',
    "half a character in a key": b'{"\\ud800": 1}',
    "no UTF-8": b'["\xff"]',
    "UTF-16": '{"name": "e"}'.encode("utf-16"),
    "two marks": BOM + BOM + b"{}",
    "nothing": b"",
    "NUL": b"\0",
    "a number": b"1",
    "a list": b"[]",
    "a text": b'"cells"',
}
TOMLS = {
    "open lists": b"a = " + b"[" * DEEP,
    "closed lists": b"a = " + b"[" * DEEP + b"]" * DEEP,
    "open tables": b"a = " + b"{b = " * 50_000,
    "tables that Python's parser holds": b"a = " + b"{b = " * 150 + b"1" + b"}" * 150,
    "dots": b"a" + b".a" * DEEP + b" = 1",
    "fewer dots": b"a" + b".a" * 500 + b" = 1",
    "a header of dots": b"[a" + b".a" * 500 + b"]",
    "digits": b"exercise = " + DIGITS.encode(),
    "fewer digits": b"escapes = " + b"9" * 400,
    "hexadecimal digits": b"exercise = 0x" + b"f" * 100_000,
    "length": b"# " + b"x" * (2 << 20),
    "no UTF-8": b'name = "\xff"',
    "UTF-16": 'name = "e"'.encode("utf-16"),
    "two marks": BOM + BOM + b"name = 1",
    "no TOML": b"name = ",
    "NUL": b"\0",
    "a key that is none": b"there_is_no_such_key = 1",
}


def of_folder(read):
    """Make a reader of a folder one of the file in it, which leaves out what it cannot read."""

    def refuse(path):
        if not read(path.parent):
            raise GpuscopeError("left out")

    return refuse


def points_of(path):
    """Read points of a sweep whose file has a content for its only line."""
    folder = path.parent / "sweep"
    folder.mkdir()
    (folder / POINTS).write_bytes(path.read_bytes().replace(b"\n", b" ") + b"\n")
    return saved(folder, "point")


def former_points_of(path):
    """Read points of a former version whose facts are a file's content."""
    folder = path.parent / "sweep"
    folder.mkdir()
    schema = pa.schema({"number": pa.int64()}, {b"gpuscope.sweep": path.read_bytes()})
    pq.write_table(pa.table({"number": [0]}, schema), folder / "sweep-1.parquet")
    return saved(folder, "sweep")


def as_text(read):
    """Make a reader of a text one of a file that is UTF-8."""

    def read_text(path):
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise GpuscopeError("no text") from error
        return read(text)

    return read_text


def entries_of(path):
    """Read a journal of grading whose only line is a file's content."""
    with GradeJournal(path, [], []) as journal:
        if not journal._entries:
            raise GpuscopeError("left out")


JSON_READERS = {
    "experiment": ("e.json", Experiment.from_file),
    "baseline": ("b.json", Baseline.read),
    "profile": ("p.json", GpuProfile.read),
    "notebook": ("n.ipynb", read_cells),
    "facts of a recording": ("f.json", of_folder(lambda folder: read_facts(folder)[0])),
    "run": ("comparison.json", of_folder(trace_names)),
    "points of a sweep": ("f.txt", points_of),
    "points of a former sweep": ("f.txt", former_points_of),
    "journal of grading": ("j.txt", entries_of),
}
TOML_READERS = {
    "experiment": ("e.toml", Experiment.from_file),
    "experiment's text": ("e.toml", as_text(Experiment.from_toml)),
    "line of an experiment": ("e.toml", as_text(lambda text: Experiment(**fields_of(text)))),
    "budget": ("b.toml", Budget.read),
    "budget's text": ("b.toml", as_text(Budget.parse)),
    "points": ("p.toml", Points.read),
}


@pytest.mark.parametrize("reader", JSON_READERS)
@pytest.mark.parametrize("content", JSONS)
def test_hostile_json_is_refused(content, reader, tmp_path):
    name, read = JSON_READERS[reader]
    (tmp_path / name).write_bytes(JSONS[content])
    with pytest.raises(GpuscopeError):
        read(tmp_path / name)


@pytest.mark.parametrize("reader", TOML_READERS)
@pytest.mark.parametrize("content", TOMLS)
def test_hostile_toml_is_refused(content, reader, tmp_path):
    name, read = TOML_READERS[reader]
    (tmp_path / name).write_bytes(TOMLS[content])
    with pytest.raises(GpuscopeError):
        read(tmp_path / name)


@pytest.mark.parametrize("content", [name for name in JSONS if JSONS[name].startswith(b"[")])
def test_hostile_values_to_vary_are_refused(content):
    text = JSONS[content].decode("utf-8", "replace")
    if content not in ("a list", "no UTF-8"):
        with pytest.raises(GpuscopeError):
            varied(f"a={text}")


def test_a_value_to_vary_that_is_no_number_is_a_text():
    assert varied(f"a=NaN,{DIGITS},2") == ("a", ["NaN", DIGITS, 2])


EXPERIMENT = {
    "name": "é",
    "streams": {"s": {}},
    "workloads": {"w": {"kind": "gemm", "m": 8, "n": 8, "k": 8, "stream": "s"}},
}
MACHINE = Machine("g")
RIGHT = {
    "experiment": json.dumps(EXPERIMENT, ensure_ascii=False).encode(),
    "baseline": msgspec.json.encode(Baseline(MACHINE, "d", "é", {"s": {"w.p99": [1.0]}})),
    "profile": (ROOT / "gpuscope" / "simulator" / "profiles" / "h200.json").read_bytes(),
    "notebook": '{"cells": [{"cell_type": "markdown", "source": "é"}]}'.encode(),
    "run": b'{"traces": ["trace-a.parquet"]}',
}


@pytest.mark.parametrize("mark", [b"", BOM], ids=["without a mark", "with a mark"])
@pytest.mark.parametrize("reader", RIGHT)
def test_right_json_is_read_with_and_without_a_byte_order_mark(reader, mark, tmp_path):
    name, read = JSON_READERS[reader]
    (tmp_path / name).write_bytes(mark + RIGHT[reader])
    read(tmp_path / name)


@pytest.mark.parametrize("mark", [b"", BOM], ids=["without a mark", "with a mark"])
def test_right_toml_is_read_with_and_without_a_byte_order_mark(mark, tmp_path):
    path = tmp_path / "a.toml"
    experiment = Experiment.from_dict(EXPERIMENT)
    path.write_bytes(mark + experiment.to_toml().encode())
    assert Experiment.from_file(path) == experiment
    assert Experiment.from_toml(path.read_text("utf-8")) == experiment
    path.write_bytes(mark + b"escapes = 0")
    assert Budget.read(path) == Budget.parse("escapes = 0")
    path.write_bytes(mark + b"exercise = 2")
    assert Points.read(path).exercise == 2


def test_what_is_at_a_limit_is_read_and_what_is_above_is_not():
    levels = "[" * 100 + "1" + "]" * 100
    assert _foreign.loads(levels)
    digits = "9" * 300
    for form, text in (("JSON", digits), ("TOML", f"a = {digits}")):
        assert _foreign.loads(text, form)
        with pytest.raises(_foreign.Malformed):
            _foreign.loads(f"{text}9", form)
    with pytest.raises(_foreign.Malformed):
        _foreign.loads(f"[{levels}]")
    assert _foreign.loads("[12]", most_bytes=4) == [12]
    with pytest.raises(_foreign.Malformed):
        _foreign.loads("[123]", most_bytes=4)


def test_a_text_of_digits_is_no_number():
    assert _foreign.loads(json.dumps({DIGITS: DIGITS})) == {DIGITS: DIGITS}


def test_what_has_no_end_is_not_read_to_it():
    with pytest.raises(_foreign.Malformed):
        _foreign.load(Path("/dev/zero"), most_bytes=1000)


DEEP_TEXT = '{"other": ' + "[" * DEEP + "]" * DEEP + "}"


@pytest.mark.parametrize(
    ("read", "nothing"),
    [
        (DeviceFacts.of, None),
        (configuration, ""),
        (Launch.parse, None),
        (_target, None),
        (lines_of, ()),
    ],
)
def test_a_deep_text_in_a_trace_tells_nothing(read, nothing):
    assert read(DEEP_TEXT) == nothing


def test_a_profile_of_schema_5_stays_as_it_was_given(tmp_path):
    """One that lacks what is carried over is refused for what it lacks."""
    path = tmp_path / "old.json"
    shutil.copy(ROOT / "gpuscope" / "simulator" / "profiles" / "h200.json", path)
    tables = json.loads(path.read_text())
    path.write_text(json.dumps({**tables, "schema": 5, "constants": {"return_call_ns": 1}}))
    with pytest.raises(GpuscopeError, match=r"constants\.return_call_ns: unknown field"):
        GpuProfile.read(path)
