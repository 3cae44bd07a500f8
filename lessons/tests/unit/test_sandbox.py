"""Whatever a notebook does, it is ended, others are graded, and nothing of theirs is touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest
from graded_books import book, graded

from gpuscope_lessons import holding
from gpuscope_lessons.grading import Limits, grade
from gpuscope_lessons.handed_in import Code
from gpuscope_lessons.sandbox import Box
from gpuscope_lessons.warden import Warden

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")

LIMITS = Limits(seconds=20, cell_seconds=3, memory_bytes=1_000_000_000)
HOSTILE = {
    "forks": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError: pass",
    "hides": "import os, time\nif not os.fork():\n    os.setsid()\n    if not os.fork():\n"
    "        time.sleep(987654)\n    os._exit(0)\nos.wait()",
    "ignores": "import signal, time\nfor n in (1, 2, 3, 15): signal.signal(n, signal.SIG_IGN)\n"
    "while True:\n    try:\n        time.sleep(9)\n    except BaseException: pass",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)",
    "kills its parent and waits": "import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(9)",
    "kills all": "import os\nos.kill(-1, 9)",
    "prints": "while True: print('x' * 10**6)",
    "fills the disk": "n = 0\nwhile True:\n    with open(f'f{n}', 'wb') as f:\n"
    "        f.write(bytes(10**7))\n    n += 1",
    "fills memory": "import os\nheld = []\nfor _ in range(9): os.fork()\nheld = bytearray(10**8)\n"
    "import time\ntime.sleep(99)",
    "crashes": "import ctypes\nctypes.string_at(0)",
    "writes verdicts": "import os\nwhile True:\n    for n in range(3, 50):\n        try:\n"
    "            os.write(n, b'{\"cell\": 1}\\n' * 10**5)\n        except OSError: pass",
}


def in_environment(text: bytes) -> bool:
    """Whether a process has a text in its environment."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if text in (process / "environ").read_bytes():
                return True
    return False


def test_whatever_a_notebook_does_it_ends_and_the_others_are_graded(folders):
    for name, task in HOSTILE.items():
        book(folders[0] / f"{name}.ipynb", task)
    for name in ("ada", "zoe"):
        book(folders[0] / f"{name}.ipynb")
    grades = grade(*folders, limits=LIMITS)
    by_learner = {grade.learner: grade for grade in grades.grades if grade.name == "double"}
    assert by_learner.keys() == {*HOSTILE, "ada", "zoe"}
    assert by_learner.pop("ada").verdict == by_learner.pop("zoe").verdict == "solved"
    assert {grade.verdict for grade in by_learner.values()} <= {"not solved", "not finished"}
    last = {grade.learner: grade.verdict for grade in grades.grades if grade.name == "last"}
    assert last["ignores"] == last["crashes"] == last["kills its parent"] == "solved"
    assert last["kills its parent and waits"] == "solved", "no process of an ended try tells it"


def box_or_skip(*needed: str) -> None:
    """Skip where the system does not allow these."""
    script = (
        "import os, sys, tempfile\nfrom gpuscope_lessons.sandbox import strongest\n"
        "os.chdir(tempfile.mkdtemp())\nprint(*strongest().isolation)"
    )
    held = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)  # fmt: skip
    if not set(needed) <= set(held.stdout.split()):
        pytest.skip(f"this system holds no {needed}")


def reached(folders, task: str) -> str:
    """Return what a function of a notebook returned, as its check tells it."""
    book(folders[0] / "ada.ipynb", f"def double(x):\n{textwrap.indent(task, '    ')}")
    return graded(folders)["ada"].reason


def test_a_notebook_has_no_network(folders):
    box_or_skip("network")
    assert "Network is unreachable" in reached(
        folders, "import socket\nsocket.create_connection(('192.0.2.1', 9), 2)"
    )


def test_a_notebook_sees_only_its_own_processes(folders):
    box_or_skip("network")
    assert reached(folders, f"import os\nos.kill({os.getpid()}, 0)").endswith("No such process")


def test_a_notebook_writes_only_files_of_its_own(folders, tmp_path):
    box_or_skip("files")
    victim = tmp_path / "grades.csv"
    victim.write_text("mine")
    assert "Read-only file system" in reached(folders, f"open({str(victim)!r}, 'w')")
    assert victim.read_text() == "mine"
    assert reached(folders, "open('new', 'w').write('ab')\nreturn len(open('new').read())") == (
        "double(4) is 2"
    )


def test_a_notebook_sees_nothing_of_what_others_handed_in(folders):
    box_or_skip("files")
    book(folders[0] / "zoe" / "one.ipynb")
    listing = f"import os\nreturn os.listdir({str(folders[0])!r})"
    assert reached(folders, listing) == "double(4) is []"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_who_grades_as_root_gives_notebooks_a_user_of_their_own(folders):
    box_or_skip("user")
    assert int(reached(folders, "import os\nreturn os.getuid()").rpartition(" ")[2]) > 10**6
    assert reached(folders, "import os\nos.setuid(0)").endswith("Operation not permitted")


def test_limits_hold_when_the_grader_is_killed(folders):
    mark = f"sleep-{os.getpid()}".encode()
    task = (
        "import subprocess, time\n"
        f"subprocess.Popen(['/bin/sleep', '600'], env={{'MARK': {mark.decode()!r}}})\n"
        "time.sleep(600)"
    )
    book(folders[0] / "ada.ipynb", task)
    script = (
        "import sys\nfrom gpuscope_lessons.grading import grade\n"
        f"grade({str(folders[0])!r}, {str(folders[1])!r})"
    )
    grader = subprocess.Popen([sys.executable, "-c", script])

    def within(seconds: float, *, what: bool) -> bool:
        end = time.monotonic() + seconds
        while in_environment(mark) is not what and time.monotonic() < end:
            time.sleep(0.05)
        return in_environment(mark) is what

    assert within(60, what=True)
    grader.send_signal(signal.SIGKILL)
    grader.wait()
    assert within(30, what=False)


def test_without_namespaces_limits_and_cleaning_up_are_left():
    """In a process of its own: it adopts orphans and waits for all its children."""
    cells = [
        {"id": "one", "source": HOSTILE["hides"], "asks": None},
        {"id": "two", "source": "import time\nwhile True: pass", "asks": ["x"]},
    ]
    order = {
        "cells": cells, "exercises": [], "seconds": 9, "cell_seconds": 1,
        "memory_bytes": 10**9, "hidden": "/nowhere",
    }  # fmt: skip
    script = f"""
import json, os, sys, tempfile
import msgspec
from gpuscope_lessons.holding import HoldingOrder, hold, adopt_orphans, _children
from gpuscope_lessons.sandbox import Box
os.chdir(tempfile.mkdtemp())
adopt_orphans()
order = msgspec.json.decode({json.dumps(json.dumps(order))}, type=HoldingOrder)
report = hold(order, Box(frozenset(), None), gpu=False)
print(json.dumps([report.ending, sorted(report.isolation), _children("self")]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=100)  # fmt: skip
    assert json.loads(done.stdout) == ["it was not reached", [], []]


def test_a_warden_that_is_killed_costs_one_notebook(folders, monkeypatch):
    for name in ("ada", "bob", "cyd"):
        book(folders[0] / f"{name}.ipynb")
    ask, killed = Warden.ask, []

    def killed_first(warden, order, stop):
        if not killed:
            killed.append(warden)
            warden._process.kill()
        return ask(warden, order, stop)

    monkeypatch.setattr(Warden, "ask", killed_first)
    verdicts = sorted(grade.verdict for grade in graded(folders).values())
    assert verdicts == ["not finished", "solved", "solved"]


def test_what_the_system_kills_is_tried_once_more(monkeypatch):
    """A system without memory kills whom it likes."""
    killed = "its process ended with exit status 137"
    endings, left_out = [(0, killed), (0, killed), (1, "it was not reached")], []

    def attempt(order, box, failed, checks, end_s, *, gpu):
        left_out.append(dict(failed))
        return endings[len(left_out) - 1]

    monkeypatch.setattr(holding, "_attempt", attempt)
    order = holding.HoldingOrder([Code("one", "")], set(), 9, 9, 1, "")
    holding.hold(order, Box(frozenset(), None), gpu=False)
    assert left_out == [{}, {}, {0: killed}]


def test_memory_of_several_processes_counts_together(folders):
    task = "import os, time\nfor _ in range(2): os.fork()\nheld = b'x' * (5 * 10**8)\ntime.sleep(99)"  # fmt: skip
    book(folders[0] / "ada.ipynb", task)
    found = graded(folders, limits=Limits(seconds=40, cell_seconds=30, memory_bytes=10**9))["ada"]
    assert "its processes took more than 1 GB together" in found.reason
