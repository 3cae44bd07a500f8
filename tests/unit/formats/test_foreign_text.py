"""Text from anywhere controls no terminal: on the command line, in errors, in what is printed."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import sys
import traceback
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gpuscope as gs
import gpuscope_lessons as learn
from gpuscope import _shipped, analysis, cli, telling
from gpuscope._text import clean, clean_lines
from gpuscope.cli.commands import app
from gpuscope.device.diagnose import Check
from gpuscope.errors import GpuscopeError
from gpuscope.search.sweeps import load_sweep
from gpuscope.simulator.calibration import command as calibration_command
from gpuscope.simulator.calibration.calibrator import Calibration
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata
from gpuscope_lessons import shipped

EVIL = "x\x1b]52;c;aGk=\x07\x1b[31m\u202eevil\x9b2J\x00\x7f\u2066\r\u2028y\nforged"
"""Writes the clipboard, colours, turns around, clears, ends C strings, forges a line."""
H200 = Path(gs.__file__).parent / "simulator" / "profiles" / "h200.json"
BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def assert_safe(text: str) -> None:
    for char in text:
        assert char == "\n" or unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp"), text
        assert char not in BIDI, text
    assert "\nforged" not in text


def experiment(name: str = EVIL) -> dict:
    return {
        "name": name, "alone_repeats": 1, "partitions": {name: 16},
        "streams": {name: {"partition": name}},
        "workloads": {name: {"kind": "spin", "duration_us": 10, "stream": name, "repeats": 3}},
        "settings": {name: {}, f"{name} 2": {}},
    }  # fmt: skip


def a_trace() -> Trace:
    rows = [
        {"kind": "range", "start_ns": 0, "end_ns": 90, "thread": 12},
        {"kind": "api", "start_ns": 10, "end_ns": 20, "thread": 12, "correlation": 5},
        {"kind": "handle", "start_ns": 5, "end_ns": 80, "thread": 12, "correlation": 5},
        {"kind": "kernel", "start_ns": 30, "end_ns": 60, "stream": 7, "correlation": 5},
        {"kind": "kernel", "start_ns": 40, "end_ns": 70, "stream": 8, "correlation": 6},
    ]
    texts = ("name", "partition", "intended_partition", "category", "domain", "payload", "status",
             "host", "copy_kind", "launch_config", "source")  # fmt: skip
    plain = {**dict.fromkeys(texts, EVIL), "process": 11, "device": 0, "context": 1}
    rows = [{"id": number, **plain, **row} for number, row in enumerate(rows)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return Trace.from_columns(
        {name: [row.get(name) for row in rows] for name in names},
        {"from": [1], "to": [3], "kind": [EVIL]},
        TraceMetadata(
            devices={"cuda:0": {"index": 0, "name": EVIL, "uuid": EVIL, "driver": EVIL}},
            process_names={"11": EVIL}, thread_names={"12": EVIL}, versions={EVIL: EVIL},
            partitions={EVIL: {"asked": EVIL, "sm_count": 8}}, driver=EVIL, setting=EVIL,
            streams={"7": {"name": EVIL, "partition": EVIL}}, notes=(EVIL,), experiment={EVIL: 1},
            windows_ns=[[0, 100]], solo={EVIL: {"kernel_ns": 10, "n": 1}}, complete=False,
        ),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Files with such texts wherever one can stand."""
    here = tmp_path_factory.mktemp("evil")
    trace = a_trace()
    gs.export(trace, here / "t.parquet")
    for suffix in (".sqlite", ".json"):
        gs.export(trace, here / f"own{suffix}", keep_private=True)
    args = {"device": 0, "stream": 7, "correlation": 5, EVIL: EVIL}
    foreign = {
        EVIL: EVIL,
        "deviceProperties": [{"id": 0, "name": EVIL, "numSms": 4}],
        "traceEvents": [
            {"ph": "X", "cat": "kernel", "name": EVIL, "ts": 1, "dur": 5, "pid": 0, "tid": 7,
             "args": args},
            {"ph": "X", "cat": EVIL, "name": EVIL, "ts": 0, "dur": 9, "pid": 1, "tid": 1},
            {"ph": EVIL, "name": EVIL, "ts": 0},
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": EVIL}},
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": EVIL}},
        ],
    }  # fmt: skip
    (here / "chrome.json").write_text(json.dumps(foreign))
    (here / "run.json").write_text(json.dumps(experiment()))
    cli.experiments.write_run(gs.run(experiment(), "sim:h200"), here / "ran")
    plan = gs.experiments.Experiment.from_dict(experiment())
    (here / "examples").mkdir()
    (here / "examples" / "quickstart.toml").write_text(plan.to_toml())
    profile = json.loads(H200.read_text())
    profile["name"] = profile["device"]["name"] = profile["measured"]["driver"] = EVIL
    (here / "gpu.json").write_text(json.dumps(profile))
    for name, text in (
        ("no.toml", f"{json.dumps(EVIL)} = 3\nname = 3"), ("no.json", json.dumps({EVIL: EVIL})),
        ("deep.json", json.dumps({**experiment(), "streams": {EVIL: {EVIL: EVIL, "priority": EVIL}},
                                  "workloads": {EVIL: {"kind": EVIL}}, "seed": EVIL})),
        ("profile.json", json.dumps({**profile, EVIL: 1, "schema": EVIL})),
        ("budget.toml", f'escapes = 0\n[settings.{json.dumps(EVIL)}]\nescapes = 0\n'),
    ):  # fmt: skip
        (here / name).write_text(text)
    table = pq.read_table(here / "t.parquet")
    facts = table.schema.metadata
    for name, changed in (
        ("version", {b"gpuscope.schema_version": EVIL.encode()}),
        ("unknown", {b"gpuscope.metadata": json.dumps({EVIL: EVIL}).encode()}),
        (
            "typed",
            {b"gpuscope.metadata": json.dumps({"counts": {EVIL: EVIL}}).encode()},
        ),
    ):
        assert set(changed) <= set(facts)
        pq.write_table(
            table.replace_schema_metadata({**facts, **changed}), here / f"{name}.parquet"
        )
    name = EVIL.replace("\0", "")  # which no file's name holds
    for place, text in (
        ("lessons/one", '{"cells": []}'), (f"handed/{name}/{name}", '{"cells": []}'),
        (f"handed/{name}/no", EVIL),
    ):  # fmt: skip
        path = here / f"{place}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return here


TRACES = ("t.parquet", "own.sqlite", "own.json", "chrome.json")
BROKEN = ("version.parquet", "unknown.parquet", "typed.parquet", "no.json",
          f"none {EVIL}.json")  # fmt: skip
NO_EXPERIMENTS = ("no.toml", "no.json", "deep.json", "chrome.json", f"none {EVIL}.toml")
SIM = ("--device", "sim:h200")
COMMANDS = {
    "run": [
        *(("run.json", *on, "--out", "ran", *how) for on in (SIM, ("--device", "sim:gpu.json"))
          for how in ((), ("--json",))),
        *((name, *SIM, "--out", "none") for name in NO_EXPERIMENTS),
        ("run.json", "--device", EVIL), ("run.json", "--device", "sim:profile.json"),
        ("run.json", *SIM, "--out", f"run.json/{EVIL}"), ("run.json", "--nsys", "--out", "nsys"),
    ],
    "quickstart": [
        *(("--device", "sim:gpu.json", "--out", "first", *how) for how in ((), ("--json",))),
        ("--device", EVIL), ("--out", f"run.json/{EVIL}"),
    ],
    "predict": [
        *(("run.json", "--gpu-profile", "gpu.json", "--against", "ran", "--out", "told", *how)
          for how in ((), ("--json",))),
        *(("run.json", "--against", where) for where in ("told", EVIL)),
        ("run.json", "--gpu-profile", EVIL),
    ],
    "sweep": [
        *(("run.json", "--vary", "alone_repeats=1,2", *SIM, "--out", "swept", *how)
          for how in ((), ("--json",))),
        *(("run.json", "--vary", vary, *SIM, "--out", "swept")
          for vary in (EVIL, f"{EVIL}=1", f"seed={EVIL}", f"seed=[{EVIL}")),
        *((name, "--vary", "seed=1", *SIM, "--out", "swept") for name in NO_EXPERIMENTS),
    ],
    "tune": [
        *(("run.json", "--vary", "alone_repeats=1,2", "--objective", goal, "--repeats", "3", *SIM,
           "--out", "tuned", *how)
          for goal in (f"{EVIL}.kernel_median_us", EVIL) for how in ((), ("--json",))),
        *(("run.json", "--vary", "seed=1", "--objective", "x.y", "--slo", slo, *SIM, "--out", "t")
          for slo in (EVIL, f"{EVIL}<={EVIL}")),
        *((name, "--vary", "seed=1", "--objective", "x.y", *SIM, "--out", "tuned")
          for name in NO_EXPERIMENTS),
    ],
    "interference": [
        *(("run.json", *SIM, "--repeats", "2", "--rounds", "1", "--out", "met", *how)
          for how in ((), ("--json",), ("--setting", EVIL))),
        *((name, *SIM, "--out", "met") for name in NO_EXPERIMENTS),
    ],
    "calibrate": [(*SIM, "--out", f"{EVIL}.json", *how) for how in ((), ("--json",))],
    "view": [*((name, "--out", "page.html") for name in (*TRACES, *BROKEN)), ("t.parquet",)],
    "export": [
        *((name, "copy.parquet") for name in (*TRACES, *BROKEN)), ("t.parquet", EVIL),
        ("t.parquet", f"{EVIL}.json"),
    ],
    "merge": [
        *((one, other, "-o", "merged.parquet") for one in (*TRACES, *BROKEN) for other in TRACES),
        (EVIL, EVIL, "-o", EVIL),
    ],
    "summary": [(name, *how) for name in (*TRACES, *BROKEN) for how in ((), ("--json",))],
    "why": [(name, *how) for name in (*TRACES, *BROKEN) for how in ((), ("--json",))],
    "diff": [
        *(("run.json", *SIM, "--rounds", "3", "--setting", EVIL, "--setting", f"{EVIL} 2", *how)
          for how in ((), ("--json",), ("--markdown",), ("--out", "diffed"))),
        *((name, name, *how) for name in (*TRACES, *BROKEN, EVIL) for how in ((), ("--json",))),
        ("--a", EVIL, "--b", EVIL), ("--a", f"{EVIL}.py", "--at", EVIL),
    ],
    "check": [
        *(("run.json", *SIM, "--budget", "budget.toml", *how)
          for how in ((), ("--json",), ("--markdown",))),
        *((name, "--budget", "budget.toml", *how)
          for name in (*TRACES, *BROKEN, EVIL) for how in ((), ("--json",))),
        ("run.json", "--budget", EVIL), ("--program", EVIL, "--budget", "budget.toml"),
    ],
    "skill": [()],
    "record": [("--no-report", "--out", f"recorded/{EVIL}", f"{EVIL}.py"), ("--format", EVIL, EVIL)],
    "grade": [
        *(("handed", "--lessons", "lessons", *how) for how in ((), ("--json",))), (EVIL,),
        ("handed", "--lessons", EVIL), ("handed", "--lessons", "lessons", "--out", f"no/{EVIL}"),
    ],
    "lessons": [(f"new/{EVIL.replace(chr(0), '')}",), (f"run.json/{EVIL}",), ("handed",)],
    "assignment": [(f"given/{EVIL}", "--lessons", "lessons"), ("given", "--lessons", EVIL)],
    "sql": [
        *((name, "FROM spans", *how) for name in (*TRACES, *BROKEN, EVIL) for how in ((), ("--json",))),
        *(("run.json", query) for query in ("FROM findings", f"SELECT '{EVIL}'", EVIL)),
    ],
    "devices": [(), ("--json",)],
    "kinds": [(), ("--json",)],
    "doctor": [(), ("--json",)],
    "lab": [(EVIL,)],
}  # fmt: skip


def test_every_command_is_tried():
    assert set(COMMANDS) == {one.name for one in app.registered_commands}


@pytest.mark.parametrize("verb", COMMANDS)
def test_no_command_lets_foreign_text_control_the_terminal(verb, folder, monkeypatch, capsys):
    profile = GpuProfile.read(folder / "gpu.json").file

    def calibrate(device, path, *, progress):
        one = {"rows": 12, "median": 0.1, "p90": 0.2, "share_median": 0.2, "share_p90": 1.1}
        return Calibration(
            path=path, profile=profile, errors={EVIL: one}, held_out={}, told_errors={},
            unreadable=(EVIL,), skipped=6, notes=(EVIL,), measured_s=1, fitted_s=1,
        )  # fmt: skip

    device = gs.open_device(f"sim:{folder / 'gpu.json'}", quiet=True)
    checks = [Check(EVIL, ok=ok, found=EVIL, todo=EVIL) for ok in (True, False)]
    monkeypatch.setattr(calibration_command, "calibrate", calibrate)
    monkeypatch.setattr(cli.machine, "check_machine", lambda: (checks, checks))
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    for files in (_shipped, shipped):
        monkeypatch.setattr(files, "root", lambda: folder)
    monkeypatch.setattr(
        cli.experiments.nsight, "profile",
        lambda *_, **__: SimpleNamespace(report=Path(f"{EVIL}.nsys-rep"), trace=a_trace()),
    )  # fmt: skip

    def open_device(name, *, quiet):
        if name == "cuda:1":
            raise GpuscopeError(EVIL)
        return device

    monkeypatch.setattr(cli.machine, "open_device", open_device)
    monkeypatch.chdir(folder)
    for arguments in COMMANDS[verb]:
        monkeypatch.setattr(sys, "argv", ["gpuscope", verb, *arguments])
        with pytest.raises(SystemExit):
            cli.main()
        written = capsys.readouterr()
        assert written.out or written.err, arguments
        assert_safe(written.out)
        assert_safe(written.err)
        assert "Traceback" not in written.err


def test_the_command_line_writes_in_one_place():
    """Whatever a command prints, it prints by what makes it safe."""
    for path in Path(cli.__file__).parent.glob("*.py"):
        if path.name == "app.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if ast.unparse(node).startswith("sys.stderr.write(clean_lines("):
                continue  # before the extra that prints is there
            assert not name.endswith((".print", ".write", ".echo", ".secho")), (path.name, name)
            assert name not in ("print", "Console", "rich.print", "echo"), (path.name, name)


# -- errors -----------------------------------------------------------------------------------
def chain(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("name", [one for one in dir(gs.errors) if inspect.isclass(getattr(gs.errors, one)) and issubclass(getattr(gs.errors, one), GpuscopeError)])  # fmt: skip
def test_every_error_of_ours_is_safe_and_survives_pickling(name):
    error = getattr(gs.errors, name)(f"one\n{EVIL}\ud800")
    for text in (str(error), repr(error), chain(error), str(error.args)):
        assert_safe(text.replace("forged", ""))
    assert "\n" in str(error), "lines of ours stay"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - made here
    assert str(getattr(gs.errors, name)()) in ("", "None")


def test_errors_with_foreign_text_are_safe_with_all_that_caused_them(folder):
    gpu = gs.open_device("sim:h200", quiet=True)
    stream = gpu.create_stream(name=EVIL)
    trace = a_trace()
    attempts = [
        *(lambda one=one: gs.load_trace(folder / one) for one in BROKEN),
        *(
            lambda one=one: gs.experiments.Experiment.from_file(folder / one)
            for one in NO_EXPERIMENTS
        ),
        lambda: gs.experiments.Experiment.from_toml((folder / "no.toml").read_text()),
        lambda: gs.experiments.Experiment.from_dict({EVIL: 1}),
        lambda: gs.experiments.Experiment.from_dict({"\ud800": 1}),
        lambda: gs.experiments.Experiment.from_dict(
            {**experiment(), "colors": {f"{EVIL} 2": "#000000"}}
        ),
        lambda: gs.open_device(EVIL),
        lambda: gs.open_device(f"sim:{EVIL}"),
        lambda: gs.open_device(f"sim:{EVIL}.json"),
        lambda: gs.open_device(f"sim:{folder / 'profile.json'}"),
        lambda: gs.search.sweep(experiment(), {EVIL: [1]}, gpu),
        lambda: gs.search.sweep(experiment(), {f"partitions.{EVIL}": [EVIL]}, gpu),
        lambda: load_sweep(folder / EVIL),
        lambda: gs.export(trace, folder / EVIL),
        lambda: gs.export(trace, folder / EVIL / "x.json"),
        lambda: gpu.carve({EVIL: 10**9}),
        lambda: gpu.carve({EVIL: EVIL}),
        lambda: stream.wait(EVIL),
        lambda: telling.explain(trace, 77),
    ]
    for number, attempt in enumerate(attempts):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - of whatever kind
            pytest.fail(f"attempt {number} gave {attempt()!r}")
        lines = chain(caught.value).splitlines()
        said = [line for line in lines if not line.startswith("    ")]  # not our own source
        assert_safe("\n".join(said))
        assert_safe(repr(caught.value))
    stream.close()


# -- what is printed --------------------------------------------------------------------------
def test_whatever_is_printed_is_safe(tmp_path):
    gpu = gs.open_device("sim:h200", quiet=True)
    run = gs.run(experiment(), gpu)
    swept = gs.search.sweep(
        experiment(), {f"partitions.{EVIL}": [8, 16]}, gpu, path=tmp_path / "swept"
    )
    parts = gpu.carve({EVIL: 16})
    stream = parts[EVIL].create_stream(name=EVIL)
    handle = gs.Gemm(parts[EVIL], m=64, n=64, k=64, name=EVIL)
    trace = a_trace()
    shown = [
        run, swept, load_sweep(tmp_path / "swept"), parts, parts[EVIL], stream, handle, gpu,
        gpu.info, trace, trace.metadata, run.experiment, gs.experiments.Experiment.from_dict(experiment()),
        learn.Lesson(0, EVIL, gpu), *run.values(),
    ]  # fmt: skip
    simulated = next(iter(run.values()))
    judged = 0
    for name in dir(analysis):
        judge = getattr(analysis, name)
        if name.startswith("_") or not inspect.isfunction(judge):
            continue
        for arguments in ((trace,), (simulated,), (run,), (run, run), (simulated, simulated)):
            try:
                shown.append(judge(*arguments))
                judged += 1
            except (GpuscopeError, TypeError, AttributeError, ValueError) as error:
                assert_safe(str(error))
    assert judged > 10
    shown += [telling.explain(simulated, one) for one in
              simulated.where(kind="kernel").array("id").tolist()]  # fmt: skip
    shown += [getattr(one, "note", "") for one in shown]
    shown += [one.provenance for one in (trace, simulated)]
    for one in shown:
        if isinstance(one, pa.Table):  # data, which Arrow shows
            continue
        assert_safe(str(one))
        assert_safe(repr(one))
    handle.close()
    parts.close()


def test_opening_a_device_prints_a_safe_line(folder, capsys):
    gs.open_device(f"sim:{folder / 'gpu.json'}")
    assert_safe(capsys.readouterr().out)


# -- the place --------------------------------------------------------------------------------
def test_clean_text():
    assert clean("a\tb\nc\rd") == "a b c d"
    assert clean("\x1b[1m\x9b\x00\u202e\ud800\u2028") == "\ufffd[1m" + "\ufffd" * 5
    assert clean_lines("a\x1b\nb\x9b\r\n") == "a\ufffd\nb\ufffd \n"
    assert_safe(clean(EVIL))
