"""Launch sites: the lines that C finds are those that Python names, and traces hold them."""

from __future__ import annotations

import asyncio
import json
import linecache
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import gpuscope as gs
from gpuscope import _sites
from gpuscope.record.cupti import layout
from gpuscope.trace.sites import lines_of, site_words

pytestmark = pytest.mark.skipif(bool(_sites.missing), reason=_sites.missing or "-")


class Compared:
    """Asks C without Python's lock, and Python, for the lines of its caller."""

    def __init__(self):
        self.count = 0
        self.wrong = []

    def __call__(self, *_):
        number = _sites.fastpath.site_unlocked()
        (_, _, name), *callers = _sites._lines(number)
        expected = _sites.frames(2)[:1]
        self.count += 1
        if name != "Compared.__call__" or callers != expected:
            self.wrong.append((callers, expected))


@pytest.fixture
def compared():
    compared = Compared()
    yield compared
    assert compared.count
    assert not compared.wrong


def made(number, compared):
    """A function of a file of its own, whose address another one may have had."""
    names = {"compared": compared}
    source = "\n" * (number % 50) + f"def f{number}():\n compared()\n x = 1\n compared()\n"
    exec(compile(source, f"/home/user/é{number % 7}.py", "exec"), names)  # noqa: S102
    return names[f"f{number}"]


def test_functions_at_addresses_of_others_are_told_apart(compared):
    for number in range(3000):
        made(number, compared)()


def test_lines_of_generators_tasks_callbacks_and_finalizers(compared):
    def generated():
        while True:
            compared()
            yield

    async def task():
        compared()
        await asyncio.sleep(0)
        compared()

    class Finalized:
        def __del__(self):
            compared()

    numbers = generated()
    for _ in range(3):
        next(numbers)
    asyncio.run(task())
    del (Finalized()).__dict__
    list(map(compared, range(2)))
    sorted([2, 1], key=lambda value: (compared(), value)[1])
    [compared() for _ in range(2)]
    eval(compile("compared()", "a person wrote it", "eval"))  # noqa: S307


def test_lines_while_others_run_profile_and_trace(compared):
    def run(first):
        for number in range(first, first + 100):
            made(number, compared)()

    threads = [threading.Thread(target=run, args=(100 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for hook in (sys.setprofile, sys.settrace):
        hook(lambda *_: None)
        run(0)
        hook(None)
    for thread in threads:
        thread.join()


def test_a_thread_without_python_has_no_site():
    names = {"fastpath": _sites.fastpath, "seen": []}
    library = compile("seen.append(fastpath.site_unlocked())", "/x/site-packages/y.py", "exec")
    thread = threading.Thread(target=exec, args=(library, names))
    thread.start()
    thread.join()
    assert names["seen"] == [0]


def test_a_forked_child_finds_sites():
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        (_, _, name), *_ = _sites._lines(_sites.fastpath.site_unlocked())
        os.write(writer, name.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 99) == b"test_a_forked_child_finds_sites"


# -- in traces -------------------------------------------------------------------------------
def step(stream, gemm):
    gemm.execute(stream=stream)
    gemm.wait()


def recorded(**options):
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    gemm, x, y = gs.Gemm(gpu, m=64, n=64, k=64), gpu.empty(1000), gpu.empty(1000)
    with gpu.create_stream() as stream, gs.profile(gpu, **options) as recording:
        for _ in range(3):
            step(stream, gemm)
        stream.copy(x, y)
    return recording.trace


def line_of(text):
    source = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(source, 1) if line.strip() == text)


def test_calls_waits_and_work_of_a_trace_have_their_sites():
    trace = recorded()
    of = {kind: set() for kind in ("api", "sync", "handle", "kernel", "memcpy")}
    for kind, site in zip(trace.texts("kind"), trace.texts("site"), strict=True):
        of[kind].add(lines_of(site))
    caller = line_of("step(stream, gemm)"), "recorded"
    execute = {(line_of("gemm.execute(stream=stream)"), "step")}
    copy = (line_of("stream.copy(x, y)"), "recorded")
    innermost = {
        kind: {(site[0].line, site[0].function) for site in sites} for kind, sites in of.items()
    }
    assert innermost["kernel"] == innermost["handle"] == execute
    assert innermost["api"] == execute | {copy}
    assert innermost["memcpy"] == {copy}
    assert (line_of("gemm.wait()"), "step") in innermost["sync"]
    assert {(site[1].line, site[1].function) for site in of["kernel"]} == {caller}
    files = {Path(line.file) for site in of["kernel"] for line in site}
    assert all(file.name == Path(__file__).name and not file.is_absolute() for file in files)


def test_sites_can_be_left_out():
    assert set(recorded(stacks=False).texts("site")) == {None}


@pytest.mark.parametrize("ask", ["print({})", "import atexit; atexit.register(lambda: print({}))"])
def test_files_are_named_from_the_programs_folder(tmp_path, ask):
    program, library = tmp_path / "app" / "main.py", tmp_path / "elsewhere" / "kit" / "helper.py"
    for path in (program, library):
        path.parent.mkdir(parents=True)
    library.write_text("def help():\n return ask()\n")
    program.write_text(
        "import json, sys\n"
        "from gpuscope import _sites\n"
        f"names = {{'ask': _sites.site_here}}\n"
        f"exec(compile(open({str(library)!r}).read(), {str(library)!r}, 'exec'), names)\n"
        "_sites.ask_for_sites(1)\n"
        "site = names['help']()\n" + ask.format("_sites.site_text(site)") + "\n"
    )
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=True, cwd="/"
    )
    assert json.loads(done.stdout) == [["kit/helper.py", 2, "help"], ["main.py", 6, "<module>"]]


@pytest.mark.parametrize("text", [None, "", "nonsense", "[1]", '[["a.py"]]', '{"a": 1}'])
def test_what_is_no_site_is_none(text):
    assert lines_of(text) == ()
    assert site_words(text) == ""


def test_sites_of_a_buffer_are_those_of_launches_that_were_noted():
    nbytes = layout.record_sizes(layout.OLDEST)[layout.NOTED_RUNTIME]
    words = np.zeros((3, nbytes // 4), np.uint32)
    words[:, 0], words[:, 10] = layout.NOTED_RUNTIME, (7, 0, 9)
    assert layout.sites(words.view(np.uint8).ravel()) == {7, 9}
    words[:, 0] = layout.RUNTIME
    assert layout.sites(words.view(np.uint8).ravel()) == set()
    assert layout.sites(np.zeros(0, np.uint8)) == set()


def test_lines_that_a_program_generates_are_no_sites():
    program = (
        "from gpuscope import _sites\n"
        "names = {'ask': _sites.site_here}\n"
        "exec('def launcher(): return ask()', names)\n"
        "_sites.ask_for_sites(1)\n"
        "print(_sites.site_text(names['launcher']()))\n"
    )
    for command in (["-c", program], ["-"]):
        done = subprocess.run(
            [sys.executable, *command], input=program, capture_output=True, text=True, check=True
        )
        functions = [function for _, _, function in json.loads(done.stdout)]
        assert functions == (["launcher", "<module>"] if command[0] == "-c" else ["<module>"])


def test_lines_of_a_notebook_s_cells_have_the_cell_s_number(monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell(history_length=0)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    shell.user_ns["here"] = _sites.site_here
    _sites.ask_for_sites(1)
    try:
        shell.run_cell("def called():\n    return here()", store_history=True)
        shell.run_cell("x = 1\nsites = [\n    here(),\n    called(),\n]", store_history=True)
    finally:
        _sites.ask_for_sites(-1)
    outside, inside = map(_sites.site_text, shell.user_ns["sites"])
    first = lines_of(outside)[0]
    assert str(first) == "cell In[2], line 3"
    assert linecache.getline(str(_sites.path_of(first.file)), first.line).strip() == "here(),"
    assert site_words(inside) == "cell In[1], line 2 in called, from cell In[2], line 4"
