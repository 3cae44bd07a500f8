"""Processes that gpuscope starts import nothing of the folder that they are started in.

``PLACES`` lists every place in the package that starts a process, and the first test compares it with
the places that there are: enter a new one, and how a test starts it if it is a Python.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpuscope as gs
import gpuscope_lessons
from gpuscope import cli
from gpuscope.experiments import nsight, pool
from gpuscope.experiments.experiment import Experiment
from gpuscope.judging.programs import Command, ProgramSide, recorded_runs

PACKAGE = Path(gs.__file__).parent
LESSONS = Path(gpuscope_lessons.__file__).parent
STARTS = {
    "subprocess": {"Popen", "run", "call", "check_call", "check_output", "getoutput"},
    "os": {"fork", "forkpty", "system", "popen", "posix_spawn", "posix_spawnp"}
    | {name for name in dir(os) if name.startswith(("exec", "spawn"))},
    "multiprocessing": {"Process", "Pool", "get_context"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "pty": {"fork", "spawn"},
    "futures": {"ProcessPoolExecutor"},
    "distributed": {"LocalCluster", "Nanny"},
}
FORK, PROGRAM, THEIRS = "a copy of this process", "no Python", "a program of the user's"
PLACES = {
    "_compiled.program": PROGRAM,
    "_nsys.missing_libraries": PROGRAM,
    "_nsys.export_sqlite": PROGRAM,
    "cli.machine.lab_command": "lab",
    "cli.recording._start": THEIRS,  # of which the last test is
    "experiments.nsight._run": "nsight",
    "experiments.pool._started": "pool",
    "experiments.processes.arrange": "it wraps os.execv and os.execve for a program of the user's",
    "judging.programs._done": "program, run",
    "judging.programs._git": PROGRAM,
    "gpuscope_lessons.apart.check": FORK,
    "gpuscope_lessons.cuda.compiling._bounded": PROGRAM,
    "gpuscope_lessons.cuda.separate.run": PROGRAM,
    "gpuscope_lessons.holding._attempt": FORK,
    "gpuscope_lessons.holding._end_all": FORK,
    "gpuscope_lessons.holding._inside": FORK,
    "gpuscope_lessons.sandbox._holds": FORK,
    "gpuscope_lessons.warden.__init__": "warden",
    "record.counters._begin": PROGRAM,
    "widgets.painter.__init__": "painter",
}
SPIN = {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}
ONE = {"name": "one", "alone_repeats": 0, "streams": {"s": {}}, "workloads": {"w": SPIN}}
PROGRAM_TEXT = """
import gpuscope as gs
gpu = gs.open_device("sim:h200", quiet=True)
gs.Gemm(gpu, m=8, n=8, k=8).execute(stream=gpu.create_stream())
gpu.synchronize()
"""
HOSTILE = """
import sys
from _frozen_importlib import module_from_spec
from _frozen_importlib_external import PathFinder
here = __file__.rpartition("/")[0]
with open(f"{here}/imported", "a") as log:
    log.write(f"{__name__}\\n")
spec = PathFinder.find_spec(__name__, [path for path in sys.path if path not in ("", here)])
if spec is None:
    raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)
sys.modules[__name__] = module = module_from_spec(spec)
spec.loader.exec_module(module)
"""
"""Takes the place of a module: notes that it was imported, and imports the real one."""


def starts_in(path):
    """Yield the functions of a module that start a process, as it is spelled there."""
    tree = ast.parse(path.read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = getattr(node.value, "id", getattr(node.value, "attr", ""))
            if node.attr not in STARTS.get(owner, ()) or is_annotation(node, tree):
                continue
        elif isinstance(node, ast.ImportFrom):
            names = STARTS.get((node.module or "").rpartition(".")[2], set())
            assert not names & {alias.name for alias in node.names}, "call it by its module's name"
            continue
        else:
            continue
        inner = [each for each in functions if each.lineno <= node.lineno <= each.end_lineno]
        yield inner[-1].name if inner else "<module>"


def is_annotation(node, tree):
    """Whether it only names a type, or a context."""
    return not any(
        node is part
        for each in ast.walk(tree)
        if isinstance(each, ast.Call | ast.Assign)
        for part in ast.walk(each)
    )


def test_the_list_of_places_that_start_a_process_is_whole():
    found = {
        ".".join([*path.relative_to(folder).with_suffix("").parts, name])
        for package, folder in ((PACKAGE, PACKAGE), (LESSONS, LESSONS.parent))
        for path in package.rglob("*.py")
        for name in starts_in(path)
    }
    assert found == PLACES.keys()
    of_python = {part for how in PLACES.values() for part in how.split(", ")} & STARTERS.keys()
    assert of_python == STARTERS.keys()
    for path in [*PACKAGE.rglob("*.c"), *PACKAGE.rglob("*.h")]:
        text = path.read_text("utf-8")
        assert not [
            call for call in (" fork(", "execv", "posix_spawn", "system(") if call in text
        ], path


# -- each of them, in a folder of hostile modules -------------------------------------------
@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A folder that has a file for every module of Python and of what is installed."""
    folder = tmp_path_factory.mktemp("hostile")
    names = {*sys.stdlib_module_names, *importlib.metadata.packages_distributions()}
    names |= {"sitecustomize", "usercustomize", "cupti", "cupy", "nvtx", "torch"}
    for name in names - {"gpuscope", "gpuscope_lessons", "__main__"}:
        (folder / f"{name}.py").write_text(HOSTILE)
    return folder


class Started(Exception):
    """A process was to be started: with these arguments."""


def record_a_program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM_TEXT)
    ProgramSide("a", Command.parse([str(tmp_path / "program.py")])).measure(0)


def start_nsight(tmp_path):
    nsight.profile(ONE, tmp_path / "a.nsys-rep", program="/bin/true", device="sim:h200")


def start_warden(_):
    pytest.importorskip("IPython")
    from gpuscope_lessons.warden import Warden

    Warden(gpu=False)


def start_painter(_):
    from gpuscope.widgets.painter import Painter

    Painter()


def start_lab(tmp_path):
    pytest.importorskip("jupyterlab")
    cli.commands.machine.lab_command(tmp_path)


STARTERS = {
    "pool": lambda _: pool.Processes(1)._started(),
    "painter": start_painter,
    "warden": start_warden,
    "nsight": start_nsight,
    "program": record_a_program,
    "run": lambda _: recorded_runs(Experiment.from_dict(ONE), "sim:h200", 1),
    "lab": start_lab,
}


@pytest.mark.parametrize("name", STARTERS)
def test_a_process_imports_nothing_of_its_folder(name, hostile, tmp_path, monkeypatch):
    import gpuscope.cli.commands  # noqa: F401 - the module of which start_lab takes its command

    real = subprocess.run
    made = tmp_path / "made"

    def started(command, **options):
        raise Started([*map(str, command)], options.get("env"))

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", started)
        patch.setattr(subprocess, "run", started)
        with pytest.raises(Started) as caught:
            STARTERS[name](tmp_path)
    words, environment = caught.value.args
    words = words[words.index(sys.executable) :]  # under nsys, which is not here
    for at, word in enumerate(words):
        if word.startswith("["):  # the folders of a parent that has its own in front
            words[at] = json.dumps([str(hostile), *json.loads(word)])
    if name == "lab":
        words = [*words[: words.index(str(tmp_path))], "--version"]
    if "--out" in words:
        words[words.index("--out") + 1] = str(made)
    if name == "run":  # its description went with the folder that was made for it
        described = tmp_path / "one.json"
        described.write_text(Experiment.from_dict(ONE).to_toml(), "utf-8")
        described = described.rename(tmp_path / "one.toml")
        words[words.index("run") + 1] = str(described)
    log = hostile / "imported"
    log.unlink(missing_ok=True)
    done = real(
        words, cwd=hostile, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        check=False,
    )  # fmt: skip
    imported = set(log.read_text().split()) if log.exists() else set()
    taken = {name for name in imported if importlib.util.find_spec(name) is not None}
    assert not taken, "in place of Python's own, or of a package"
    for refused in (b"can't open file", b"ImportError", b"ModuleNotFoundError"):
        assert refused not in done.stderr, "it did not start"
    if "--out" in words:
        assert (done.returncode, [*made.glob("*.parquet")] != []) == (0, True), done.stderr


def test_a_recorded_program_imports_what_it_imports_without(hostile):
    (hostile / "program.py").write_text(PROGRAM_TEXT)
    log = hostile / "imported"
    imported = []
    recorder = (sys.executable, "-P", "-m", "gpuscope.cli", "record", "--no-report", "--out", "out")
    for command in ((sys.executable, "program.py"), (*recorder, "program.py")):
        log.unlink(missing_ok=True)
        done = subprocess.run(
            command, cwd=hostile, stdin=subprocess.DEVNULL, capture_output=True, check=False,
            env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        imported.append(set(log.read_text().split()))
    alone, recorded = imported
    assert "numpy" in alone, "as any program imports its neighbours"
    assert recorded <= alone
    assert [*(hostile / "out").glob("program-*.parquet")]
    with contextlib.suppress(FileNotFoundError):
        (hostile / "program.py").unlink()
