"""``gpuscope record``: a program runs as under python, and leaves a trace of each process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope import cli

ROOT = Path(gs.__file__).parents[1]
RECORD = (sys.executable, "-m", "gpuscope.cli", "record")
WORK = """
import gpuscope as gs

def work(count):
    gpu = gs.open_device("sim:h200", quiet=True)
    stream = gpu.create_stream(name="s")
    for _ in range(count):
        gs.mm_out(gpu.empty((8, 8)), gpu.random((8, 8)), gpu.random((8, 8)), stream=stream)
    return gpu, stream
"""
TOLD = """
import atexit, json, os, sys
from work import work

atexit.register(lambda: print("at the end"))
print(json.dumps([sys.argv[1:], __name__, os.path.basename(__file__), sys.path, sys.stdin.read()]))
print(sorted(set(sys.modules) & {"sitecustomize", "greeting"}))
kept = work(3)
if sys.argv[-1] == "fail":
    raise ValueError("of the program")
sys.exit(7)
"""


@pytest.fixture
def place(tmp_path):
    """A folder with a program, and the environment to run it in."""
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "work.py").write_text(WORK)
    (folder / "told.py").write_text(TOLD)
    return folder


def run(place, *command, given="", path=(), **options):
    """Run a command in a folder; returns its exit status and what it wrote."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *map(str, path)])}
    done = subprocess.run(
        command, cwd=place, env=environment, input=given, capture_output=True, text=True,
        timeout=300, check=False, **options,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def traces(folder):
    """Return name → trace of a folder."""
    return {path.name: gs.load_trace(path) for path in sorted(Path(folder).glob("*.parquet"))}


@pytest.mark.parametrize("how", [("told.py",), ("-m", "told")], ids=["script", "module"])
def test_a_program_runs_as_under_python(place, how):
    site = place / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys; sys.modules['greeting'] = sys")
    arguments = (*how, "--out", "its own", "--help", "-m", "x")
    plain = run(place, sys.executable, *arguments, given="typed", path=[site])
    recorded = run(
        place, *RECORD, "--no-report", "--out", "a", *arguments, given="typed", path=[site]
    )
    assert plain[0] == recorded[0] == 7
    assert recorded[1] == plain[1]  # arguments, sys.path, stdin, atexit, modules
    assert "'greeting', 'sitecustomize'" in plain[1]
    ((name, trace),) = traces(place / "a").items()
    assert name.startswith("told-")
    assert name in recorded[2]
    assert trace.kind_counts()["kernel"] == 3
    assert trace.metadata.complete


def test_what_it_raises_is_told_as_python_tells_it(place):
    plain = run(place, sys.executable, "told.py", "fail")
    recorded = run(place, *RECORD, "--out", "trace.json", "told.py", "fail")
    assert recorded[0] == plain[0] == 1
    assert recorded[2].startswith(plain[2])
    assert gs.load_trace(place / "trace.json").kind_counts()["kernel"] == 3
    assert "3 kernel" in (place / "trace.html").read_text("utf-8")


WITH_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs a command: what is started in the background inherits that Ctrl-C is ignored."""


def test_ctrl_c_keeps_the_trace(place):
    (place / "server.py").write_text(
        "from work import work\nimport time\nkept = work(2)\n"
        "try:\n    print('up', flush=True)\n    time.sleep(100)\n"
        "finally:\n    print('down', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", WITH_CTRL_C, *RECORD, "--no-report", "--keep", "60s", "--format",
         "csv", "server.py"],
        cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=300)
    assert said == "down\n"
    assert process.returncode == -signal.SIGINT, complained  # as Python ends
    assert "KeyboardInterrupt" in complained
    (path,) = (place / "out" / "server").iterdir()
    assert path.read_text("utf-8").count(',"kernel",') == 2
    assert not list((place / "out").glob("*.unfinished"))


PARENT = """
import multiprocessing, os, signal, subprocess, sys, time
from work import work

HOLD = "from work import work; kept = work({}); print('up', flush=True); "

def child(*command, of):
    code = HOLD.format(of) + "; ".join(command)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    process.stdout.readline()
    return process

if __name__ == "__main__":
    kept = work(1)
    started = [
        multiprocessing.get_context(how).Process(target=work, args=(number,), name=how)
        for how, number in (("fork", 2), ("spawn", 3))
    ]
    for process in started:
        process.start()
    left = child("import os", "os._exit(9)", of=4)
    ended = child("import time", "time.sleep(100)", of=5)
    ended.terminate()
    killed = child("import os, time", "time.sleep(100)", of=6)
    folder = os.path.dirname(os.environ["SEEN"])
    while not [name for name in os.listdir(folder) if name.endswith(f"-{killed.pid}-1.parquet")]:
        time.sleep(0.05)
    killed.kill()
    idle = subprocess.run([sys.executable, "-c", "import gpuscope"])
    for process in started:
        process.join()
    print(left.wait(), ended.wait(), killed.wait(), [process.exitcode for process in started])
    stays = child("import time", "time.sleep(100)", of=7)
    print(stays.pid, flush=True)
    os._exit(5)
"""


TERMINATED = """
import os, signal
from gpuscope.trace import store
from work import work

real = store.save_trace

def save(*given):
    os.kill(os.getpid(), signal.SIGTERM)
    return real(*given)

store.save_trace = save
kept = work(3)
"""


def test_a_process_that_is_terminated_while_it_ends_keeps_its_trace(place):
    (place / "ends.py").write_text(TERMINATED)  # as multiprocessing.Pool does to its workers
    status, _, said = run(place, *RECORD, "--no-report", "--out", "a", "ends.py")
    assert status == -signal.SIGTERM
    assert "killed" not in said
    (trace,) = traces(place / "a").values()
    assert trace.metadata.complete
    assert len(trace.where(kind="kernel")) == 3


def test_each_process_of_it_writes_its_own_trace(place, monkeypatch):
    (place / "parent.py").write_text(PARENT)
    monkeypatch.setenv("SEEN", str(place / "all.unfinished" / "x"))
    status, said, complained = run(place, *RECORD, "--no-report", "--out", "all", "parent.py")
    first, pid = said.splitlines()
    os.kill(int(pid), signal.SIGKILL)
    assert (status, first) == (5, "9 -15 -9 [0, 0]"), complained
    found = {name.rpartition("-")[0]: trace for name, trace in traces(place / "all").items()}
    counts = sorted(trace.kind_counts()["kernel"] for trace in traces(place / "all").values())
    assert counts == [1, 2, 3, 4, 5, 6]
    assert {"parent", "fork", "spawn", "command"} == set(found)
    assert [trace.metadata.complete for trace in traces(place / "all").values()].count(False) == 1
    assert "was killed or crashed" in complained
    assert f"process {pid} (command) still runs" in complained
    assert (place / "all.unfinished").exists()
    assert len(complained.splitlines()) <= 40, "one screen"
    first_trace, _, _ = complained.partition("wrote")
    findings, _, what_is_in_it = first_trace.partition("gpuscope: process ")
    assert findings.startswith("gpuscope: ")
    assert "SIMULATED" in what_is_in_it, "what was found comes first"


def test_a_program_profiles_itself_and_drops_devices_as_without(place):
    (place / "own.py").write_text(
        "import gpuscope as gs\nfrom work import work\n"
        "for count in (1, 2):\n"
        "    gpu = gs.open_device('sim:h200', quiet=True)\n"
        "    with gpu.create_stream(name='s') as stream, gs.profile() as recording:\n"
        "        gs.Gemm(gpu, m=8, n=8, k=8).execute(stream=stream)\n"
        "    print(recording.trace.kind_counts()['kernel'])\n"
        "    del gpu, stream, recording\n"
    )
    status, said, complained = run(place, *RECORD, "--no-report", "--out", "own", "own.py")
    assert (status, said) == (0, "1\n1\n"), complained
    assert [trace.kind_counts()["kernel"] for trace in traces(place / "own").values()] == [1, 1]


def test_what_cannot_be_recorded_is_said(place, monkeypatch, capsys):
    (place / "idle.py").write_text("print('idle')")
    (place / "there").mkdir()
    (place / "there" / "notes.txt").write_text("mine")
    status, said, complained = run(place, *RECORD, "idle.py")
    assert (status, said) == (1, "idle\n"), "it exits with 0, and nothing was recorded"
    assert "nothing was recorded" in complained
    monkeypatch.chdir(place)
    for options, why in (
        (("--out", "there", "idle.py"), "'there' or 'there.unfinished' is there already"),
        (("--format", "docx", "idle.py"), "--format '.docx' is none of"),
        (("--keep", "long", "idle.py"), "--keep is 'long'"),
        (
            ("--graphs", "launch", "--detail", "full", "idle.py"),
            "--graphs launch and --detail full",
        ),
        (("missing.py",), "there is no script 'missing.py'"),
    ):
        monkeypatch.setattr(sys, "argv", ["gpuscope", "record", *options])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert (ended.value.code, why in capsys.readouterr().err) == (2, True)
    assert sorted(path.name for path in place.iterdir()) == [
        "idle.py", "out", "there", "told.py", "work.py",
    ]  # fmt: skip
    assert list((place / "out").iterdir()) == []
