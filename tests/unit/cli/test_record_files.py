"""What ``gpuscope record`` does to files, and what it does where something happens to its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope import cli
from gpuscope.experiments import processes, recorded

ROOT = Path(gs.__file__).parents[1]
TESTS = Path(__file__).parents[2]
RECORD = (sys.executable, "-m", "gpuscope.cli", "record", "--no-report")
WORK = """
import json, os
import gpuscope as gs

FOLDER = json.loads(os.environ["GPUSCOPE_RECORD"])["folder"]

def work(count):
    gpu = gs.open_device("sim:h200", quiet=True)
    stream = gpu.create_stream(name="s")
    for _ in range(count):
        gs.mm_out(gpu.empty((8, 8)), gpu.random((8, 8)), gpu.random((8, 8)), stream=stream)
    return gpu, stream
"""


@pytest.fixture
def place(tmp_path):
    """A folder with what programs import."""
    (tmp_path / "work.py").write_text(WORK)
    return tmp_path


def run(place, *command, path=(), **options):
    """Run a command in a folder; returns its exit status and what it wrote."""
    paths = os.pathsep.join([str(ROOT), *map(str, path)])
    done = subprocess.run(
        command,
        cwd=place,
        env={**os.environ, "PYTHONPATH": paths},
        text=True,
        timeout=300,
        check=False,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )
    return done.returncode, done.stdout, done.stderr


def kernels(folder):
    """Return name → number of kernels of a folder's traces."""
    paths = sorted(Path(folder).glob("*.parquet"))
    return {path.name: gs.load_trace(path).kind_counts()["kernel"] for path in paths}


CHAIN = """
import os, sys
from work import work

left = int(sys.argv[1])
kept = work(left)
if left == 3:
    open("t.parquet", "w").write("mine")
    open("text", "w").write("no program")
    os.chmod("text", 0o700)
    for wrong in ("missing", "text"):
        try:
            os.execv(wrong, [wrong])
        except OSError:
            pass
    kept = kept, work(4)
if left > 1:
    os.execl(sys.executable, sys.executable, "chain.py", str(left - 1))
os.execvp("sh", ["sh", "-c", "exit 6"])
"""


@pytest.mark.parametrize("out", ["t.parquet", "folder"])
def test_each_image_of_an_exec_chain_has_a_trace_and_the_program_s_files_stay(place, out):
    (place / "chain.py").write_text(CHAIN)
    status, _, said = run(place, *RECORD, "--out", out, "chain.py", "3")
    assert status == 6, said
    assert (place / "t.parquet").read_text() == "mine"
    (place / "t.parquet").unlink()
    found = kernels(place if out == "t.parquet" else place / "folder")
    assert sorted(found.values()) == [1, 2, 3, 4]
    if out == "t.parquet":
        assert list(found) == ["t-2.parquet", "t-3.parquet", "t-4.parquet", "t-5.parquet"]
        assert "t.parquet is there already" in said
    else:
        assert "is there already" not in said, "they are the other images'"
    assert not list(place.glob("*.unfinished"))


REMOVES = "import shutil\nfrom work import *\nkept = work(2)\nshutil.rmtree(FOLDER)\n"
REMOVES_LAST = (
    "import atexit, shutil\nfrom work import *\n"
    "atexit.register(lambda: shutil.rmtree(FOLDER))\nkept = work(2)\n"
)
LEAVES = """
import pathlib
from work import *
folder = pathlib.Path(FOLDER)
(folder / "foreign.json").write_text('{"pid": "mine"}')
(folder / "list.json").write_text("[" * 100_000)
(folder / "folder.json").mkdir()
(folder / "notes.txt").write_text("mine")
kept = work(2)
"""
DAMAGES = """
import atexit, pathlib
from work import *

@atexit.register
def damage():
    for path in pathlib.Path(FOLDER).glob("*.json"):
        path.write_bytes(path.read_bytes()[:20])

kept = work(2)
"""
DAMAGES_TRACE = DAMAGES.replace("*.json", "*.parquet")
TAKES_NAME = "from work import *\nopen('a', 'w').write('mine')\nkept = work(2)\n"


def test_the_exit_status_is_the_program_s_whatever_happens_to_our_files(place):
    for name, program, traces, told in (
        ("removes", REMOVES, [2], "wrote"),
        ("last", REMOVES_LAST, [], "the program removed"),
        ("leaves", LEAVES, [2], "foreign.json is of no process"),
        ("damages", DAMAGES, [], ".json is of no process of gpuscope's, or damaged"),
        ("trace", DAMAGES_TRACE, [], "the trace is"),
    ):
        (place / f"{name}.py").write_text(f"{program}\nraise SystemExit(3)\n")
        status, _, said = run(place, *RECORD, "--out", f"out-{name}", f"{name}.py")
        assert status == 3, said
        assert told in said
        assert "Traceback" not in said
        assert sorted(kernels(place / f"out-{name}").values()) == traces, said
    left = place / "out-leaves.unfinished"
    assert sorted(path.name for path in left.iterdir()) == [
        "folder.json",
        "foreign.json",
        "list.json",
        "notes.txt",
    ]
    assert [path.suffix for path in (place / "out-damages.unfinished").glob("*.parquet")]
    assert [path.suffix for path in (place / "out-trace.unfinished").glob("*.parquet")]


def test_a_name_that_the_program_takes_and_an_error_output_that_is_full(place):
    (place / "takes.py").write_text(f"{TAKES_NAME}raise SystemExit(3)\n")
    status, _, said = run(place, *RECORD, "--out", "a", "takes.py")
    assert (status, (place / "a").read_text()) == (3, "mine")
    assert sorted(kernels(place / "a.unfinished").values()) == [2], said
    with Path("/dev/full").open("w") as full:
        status, _, _ = run(place, *RECORD, "--out", "b", "takes.py", stderr=full)
    assert status == 3
    assert sorted(kernels(place / "b").values()) == [2]
    unread, closed = os.pipe()
    os.close(unread)
    status, _, _ = run(place, *RECORD, "--out", "c", "takes.py", stderr=closed)
    os.close(closed)
    assert status == 3
    assert sorted(kernels(place / "c").values()) == [2]


def test_a_process_that_cannot_be_recorded_runs_all_the_same(place, monkeypatch):
    monkeypatch.setenv(recorded.VARIABLE, "{")
    for error_output in (Path("/dev/full"), place / "said"):
        with error_output.open("w") as stderr:
            command = (sys.executable, "-c", "print('runs'); raise SystemExit(3)")
            status, said, _ = run(place, *command, path=[processes.BOOTSTRAP], stderr=stderr)
        assert (status, said) == (3, "runs\n")
    assert "this process is not recorded" in (place / "said").read_text()


def test_an_out_that_cannot_be_is_refused_before_the_program_starts(place, monkeypatch, capsys):
    (place / "starts.py").write_text("open('started', 'w')")
    (place / "file").write_text("mine")
    monkeypatch.chdir(place)
    for out in ("x" * 300, "x" * 250, "/proc/nothing/t.parquet", "file/t.parquet"):
        monkeypatch.setattr(sys, "argv", ["gpuscope", "record", "--out", out, "starts.py"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr().err
        assert (ended.value.code, said.startswith("gpuscope: ")) == (2, True), said
        assert "hoose another" in said
    assert not (place / "started").exists()


WATCHED = """
import os, signal, sys, time
import fake_cupti, pytest
from gpuscope.device import select
from gpuscope.device.cuda import driver
from gpuscope.experiments import processes
from gpuscope.record.cupti.journal import JournalReader

driver.wait_for_current_context = lambda: None
select.open_device = lambda *_, **__: None
processes._FIRST_S = 0.01
world = fake_cupti.World(pytest.MonkeyPatch())
processes.begin_cuda()
for number in range(500):
    world.gpu.foreign(f"k{number % 7}")
(journal,) = processes._recorders[0]._journals.values()
read = lambda: JournalReader(journal.path).read(over=True)
while not journal._metadata or read().kind_counts().get("kernel", 0) < 500:
    time.sleep(0.01)
"""


@pytest.fixture
def watched(place):
    """Where programs find a libcupti that is made of Python, and that cupti-python is there."""
    (place / "cupti").mkdir()
    (place / "cupti" / "__init__.py").touch()
    (place / "watched.py").write_text(WATCHED)
    return [place, TESTS]


def test_what_cupti_saw_of_a_program_that_is_killed_is_there(place, watched):
    (place / "killed.py").write_text("from watched import *\nos.kill(os.getpid(), signal.SIGKILL)")
    status, _, said = run(place, *RECORD, "--out", "a", "killed.py", path=watched)
    assert status == -signal.SIGKILL, said
    ((name, count),) = kernels(place / "a").items()
    assert count == 500
    trace = gs.load_trace(place / "a" / name)
    assert set(trace.where(kind="kernel").texts("name")) == {f"k{number}" for number in range(7)}
    assert "killed or crashed" in trace.metadata.incomplete
    assert not list(place.glob("*.unfinished"))


def test_what_cupti_saw_is_looked_at_while_the_program_runs(place, watched):
    (place / "looks.py").write_text(
        "from watched import *\nimport pathlib, gpuscope as gs\n"
        "while not (found := [*journal.path.parent.glob('*.so-far.parquet')]):\n"
        "    time.sleep(0.05)\n"
        "print(gs.load_trace(found[0]).kind_counts()['kernel'] > 0)\n"
    )
    status, said, complained = run(place, *RECORD, "--live", "--out", "a", "looks.py", path=watched)
    assert (status, said) == (0, "True\n"), complained
    assert "so far" in complained
    ((name, count),) = kernels(place / "a").items()
    assert count == 500
    assert gs.load_trace(place / "a" / name).metadata.complete
    assert not list(place.glob("*.unfinished"))
