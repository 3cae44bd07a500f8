"""Grading a class: what learners hand in is run within limits, and the lesson's own checks judge."""

from __future__ import annotations

import csv
import json
import os
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from graded_books import CHECK, RIGHT, book, cell, graded
from lesson_answers import KEYS
from playing import NOTEBOOKS, cells
from typer.testing import CliRunner

import gpuscope as gs
import gpuscope_lessons as learn
from gpuscope.cli.commands import app
from gpuscope.errors import GpuscopeError, InvalidArgument, NotFound, TraceFormatError
from gpuscope_lessons import grading, handed_in
from gpuscope_lessons.grading import Limits, grade, grade_notebook
from gpuscope_lessons.outcome import RESULTS
from gpuscope_lessons.warden import Warden


def test_what_is_solved_and_what_is_not(folders):
    mine = folders[0]
    book(mine / "ada" / "one.ipynb")
    book(mine / "bob" / "one.ipynb", "def double(x):\n    return 3 * x")
    book(mine / "cleo" / "one.ipynb", "def double(x) return")
    book(mine / "dan" / "one.ipynb", "double = helper", before=[cell("mine", f"{RIGHT}\nhelper = double")])  # fmt: skip
    book(mine / "eve.ipynb", "def double(x):\n    return 9", check=CHECK.replace("8", "9"))
    found = graded(folders)
    assert {name: grade.verdict for name, grade in found.items()} == {
        "ada": "solved", "bob": "not solved", "cleo": "not solved", "dan": "solved",
        "eve": "not solved",
    }  # fmt: skip
    assert found["bob"].reason == "double(4) is 12"
    assert "cell task raised SyntaxError" in found["cleo"].reason
    assert found["eve"].notebook == "eve.ipynb"


def test_a_cell_written_anew_is_found_by_its_function(folders):
    for name in ("new cell", "no ids"):
        path = folders[0] / f"{name}.ipynb"
        book(path)
        notebook = json.loads(path.read_text())
        for number, one in enumerate(notebook["cells"]):
            if name == "no ids" or one["id"] == "task":
                one["id"] = None if name == "no ids" else f"new {number}"
                one["metadata"] = {}
        path.write_text(json.dumps(notebook))
    found = graded(folders)
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(
        ("new cell", "no ids"), "solved"
    )


TEXT = 'DOUBLE = r"""\nx\n"""'
TEXT_CHECK = 'lesson.check("double", "Write it.", lambda _: DOUBLE.strip() == "2 * x")'


def test_a_text_written_anew_is_found_by_its_name(folders):
    book(folders[1] / "01_a_lesson.ipynb", TEXT, check=TEXT_CHECK)
    path = folders[0] / "ada" / "one.ipynb"
    book(path, TEXT.replace("x", "2 * x").replace('r"', '"'))
    notebook = json.loads(path.read_text())
    for each in notebook["cells"]:
        if each["id"] == "task":
            each["id"], each["metadata"] = "new", {}
    path.write_text(json.dumps(notebook))
    assert graded(folders)["ada"].verdict == "solved"


def test_what_is_not_available_where_it_is_graded_counts_for_nobody(folders, monkeypatch, tmp_path):
    check = CHECK.replace('}")', '}", needs=learn.CudaProgram.require)')
    assert check != CHECK
    book(folders[1] / "01_a_lesson.ipynb", check=check)
    book(folders[0] / "ada" / "one.ipynb", check=check)
    monkeypatch.setenv("PATH", str(tmp_path))
    grades = grade(*folders)
    assert {each.name: each.verdict for each in grades.grades}["double"] == "not available"
    (row,) = grades.rows()
    assert row["solved"] == "1 of 1", "the last exercise, of those but this one"
    assert "double" not in row["not solved"]


FORGED = {
    "own check": 'lesson.check("double", "It.", lambda _: True)',
    "own check, stored": 'learn.Feedback(lesson.check("double", "It.", lambda _: True).result, "", "")',
    "other lesson": 'lesson = type("Lesson", (), {"check": lambda *a: 7})()',
    "check of the lesson": 'lesson.check = lambda name, *a: learn.Lesson.check(lesson, name, "", lambda _: True)',
    "check of the class": "known = learn.Lesson.check\n"
    'learn.Lesson.check = lambda self, name, *a: known(self, name, "", lambda _: True)',
    "judge": "def judge(*a, **k): return True",
    "gs": "from types import SimpleNamespace\ngs = SimpleNamespace(learn=None)",
}
"""Cells that a learner may add, behind a function that is wrong."""
JUDGE = "def judge(x, wanted):\n    return x == wanted or f'it is {x}'"
JUDGED = 'lesson.check("double", "Write it.", lambda _: judge(double(4), 8))'


@pytest.mark.parametrize("where", ["in the exercise", "in a cell of its own", "before all"])
def test_a_grade_comes_from_the_checks_of_the_lesson_alone(tmp_path, where):
    lessons, handed_in = tmp_path / "lessons", tmp_path / "handed_in"
    judge = cell("judge", JUDGE)
    book(lessons / "01.ipynb", "def double(x):\n    return None", before=[judge], check=JUDGED)
    wrong = "def double(x):\n    return 9"
    for name, forged in FORGED.items():
        task, before = wrong, [judge]
        if where == "in the exercise":
            task = f"{wrong}\n{forged}"
        elif where == "before all":
            before = [cell("mine", forged), judge]
        else:
            before = [judge, cell("mine", forged)]
        book(handed_in / f"{name}.ipynb", task, before=before, check=JUDGED)
    found = graded((handed_in, lessons))
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(FORGED, "not solved")
    assert {one.reason.rpartition("; ")[2] for one in found.values()} == {"it is 9"}


def test_what_takes_too_long_or_too_much_or_ends_the_process(folders):
    mine = folders[0]
    book(mine / "loops" / "one.ipynb", "while True: pass")
    book(mine / "fills" / "one.ipynb", "import numpy\nnumpy.ones(2 * 10**9)")
    book(mine / "exits" / "one.ipynb", "import os\nos._exit(7)")
    book(mine / "ends" / "one.ipynb", "exit()")
    limits = Limits(cell_seconds=5, memory_bytes=2_000_000_000)
    found = graded(folders, limits=limits)
    assert {name: grade.verdict for name, grade in found.items()} == {
        "loops": "not solved", "fills": "not solved", "exits": "not finished", "ends": "not solved",
    }  # fmt: skip
    assert "took longer than 5 s" in found["loops"].reason
    assert "MemoryError" in found["fills"].reason
    assert found["exits"].reason == "its process ended with exit status 7"
    last = graded(folders, "last", limits=limits)
    assert {grade.verdict for grade in last.values()} == {"solved"}


HIDES = "import time\nwhile True:\n    try:\n        time.sleep(9)\n    except BaseException: pass"
NEAR = 'lesson.check("double", "It.", lambda _: abs(double(4) - 8) < 1 or f"it is {double(4)}")'
REPLACED = {
    "a builtin": "abs = lambda _: 0",
    "a builtin, for all": "import builtins\nbuiltins.abs = lambda _: 0",
    "a builtin, from the function": "def double(x):\n    global abs\n    abs = lambda _: 0\n    return 9",
    "the name that a check is under": "lesson.check = lambda *_: lesson.check('double', '', lambda _: True)",
    "the type of what a check says": "learn.Feedback.result = None",
    "the device": "gpu.close()\ngpu = lesson = gs = None",
}  # fmt: skip


def test_a_learners_names_are_not_the_lessons(tmp_path):
    lessons, handed_in = tmp_path / "lessons", tmp_path / "handed_in"
    book(lessons / "01.ipynb", "def double(x):\n    return None", check=NEAR)
    for name, source in REPLACED.items():
        wrong = "" if "def double" in source else "def double(x):\n    return 9\n"
        book(handed_in / f"{name}.ipynb", f"{wrong}{source}", check=NEAR)
    grades = grade(handed_in, lessons).grades
    found = {one.learner: one for one in grades if one.name == "double"}
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(
        REPLACED, "not solved"
    )
    assert {one.reason.rpartition("; ")[2] for one in found.values()} == {"it is 9"}
    assert {one.verdict for one in grades if one.name == "last"} == {"solved"}


WATCHES = """
class Seen:
    def value(self, x): return x
def judge(x, wanted, *, near=0):
    seen = lesson.watch(lambda: Seen().value(x))
    seen.nothing_races()
    if gs.analysis.hazards(seen.trace).found or seen.number() > wanted + near: return f"it is {x}"
    return x == wanted or f"it is {x}"
"""
SEES_NOTHING = "SimpleNamespace(hazards=lambda _: SimpleNamespace(found=[]), Attempt=None)"
TAMPERED = {
    "code of a helper": "judge.__code__ = (lambda x, wanted, *, near=0: True).__code__",
    "a default of a helper": "judge.__kwdefaults__ = {'near': 9}\nSeen.value = lambda self, x: 8",
    "names of a helper": "judge.__globals__.update(judge=lambda *_: True, Seen=None)",
    "a built-in name of a helper": "judge.__globals__['lesson'] = judge.__globals__['print'] = 8",
    "a class of the lesson's": "Seen.value.__code__ = (lambda self, x: 8).__code__",
    "code of a method": "learn.Attempt.number.__code__ = (lambda *_: 8).__code__",
    "a property": "learn.Attempt.trace = property(lambda _: 8)",
    "how names are found": "learn.Lesson.__getattribute__ = lambda *_: lambda *_, **__: 8",
    "a class": "lesson.__class__ = type('Easy', (learn.Lesson,), {'check': lambda *_: 8})",
    "a constant": "import gpuscope_lessons.lesson as of\nof._SEEDS = 0",
    "a built-in name": "import gpuscope_lessons.lesson as of\nof.range = lambda _: []",
    "an analysis": f"from types import SimpleNamespace\ngs.analysis.hazards = {SEES_NOTHING}.hazards",
    "a room": f"from types import SimpleNamespace\ngs.analysis = gs.learn = {SEES_NOTHING}",
    "a device": "gpu.calls = None\ngpu.now_ns = lambda: 8",
    "what is gone": "del learn.Lesson.check, gs.analysis.hazards",
    "what puts back": "import builtins, gpuscope_lessons.apart as of\nof._put_back = None\n"
    "builtins.setattr = builtins.vars = lambda *_: {}\nlearn.Lesson.check = lambda *_: 8",
}  # fmt: skip
"""What a cell may replace beforehand of what judges."""


def test_what_judges_is_put_back(tmp_path):
    lessons, handed_in, judge = tmp_path / "lessons", tmp_path / "handed_in", cell("judge", WATCHES)
    book(lessons / "01.ipynb", "def double(x):\n    return None", before=[judge], check=JUDGED)
    for name, tampered in TAMPERED.items():
        task = f"{tampered}\ndef double(x):\n    return 9"
        book(handed_in / f"{name}.ipynb", task, before=[judge], check=JUDGED)
    book(handed_in / "right.ipynb", before=[judge], check=JUDGED)
    found = graded((handed_in, lessons))
    assert found.pop("right").verdict == "solved"
    assert {name: each.reason.rpartition("; ")[2] for name, each in found.items()} == dict.fromkeys(
        TAMPERED, "it is 9"
    )


def test_an_exercise_that_ends_its_process_costs_no_other(folders):
    for name, task in {
        "hides": HIDES,
        "is killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "ends": "import os\nos._exit(0)",
        "ends once it is checked": "import os\ndef double(x):\n    os._exit(0)",
    }.items():
        book(folders[0] / f"{name}.ipynb", task)
    # The other cells take 0.2 s: a busy machine has to be 40 times as slow to end one of them.
    grades = grade(*folders, limits=Limits(cell_seconds=8)).grades
    assert {one.verdict for one in grades if one.name == "double"} == {"not finished"}
    assert {one.verdict for one in grades if one.name == "last"} == {"solved"}
    reasons = {one.learner: one.reason for one in grades if one.name == "double"}
    assert reasons.pop("hides") == "it took longer than 8 s and had to be stopped"
    assert {name: int(reason.rpartition(" ")[2]) for name, reason in reasons.items()} == {
        "is killed": -9, "ends": 0, "ends once it is checked": 0,
    }  # fmt: skip


def test_a_check_that_is_interrupted_says_so(folders):
    late = "import time\ndef double(x):\n    time.sleep(60)"
    book(folders[0] / "ada" / "one.ipynb", late)
    found = graded(folders, limits=Limits(cell_seconds=1))["ada"]
    assert found.verdict in ("not solved", "not finished")
    assert "took longer than 1 s" in found.reason


def test_a_notebook_has_its_time_and_no_more(folders):
    book(folders[0] / "ada" / "one.ipynb", "import time\ntime.sleep(60)")
    found = graded(folders, "last", limits=Limits(seconds=2, cell_seconds=50))["ada"]
    assert (found.verdict, found.reason) == ("not finished", "the notebook was stopped after 2 s")


def test_answers_are_those_of_the_saved_outputs(folders):
    results = [
        {"lesson": 1, "name": "two", "kind": "prediction", "question": "What is 1 + 1?",
         "answer": "3", "measured": "2", "verdict": "wrong", "attempts": 1, "device": "a GPU"},
        {"lesson": 1, "name": "three", "kind": "exercise", "question": "What is 1 + 2?",
         "answer": "3", "measured": "", "verdict": "solved", "attempts": 4, "device": "a GPU"},
    ]  # fmt: skip
    mine = folders[0]
    book(mine / "ada" / "one.ipynb", outputs=[{"data": {RESULTS: results}}])
    book(mine / "bob" / "one.ipynb", outputs=[{"data": {RESULTS: [{"name": 7}]}}, {}])
    grades = grade(*folders)
    told = {
        (grade.learner, grade.name): (grade.answer, grade.verdict, grade.attempts)
        for grade in grades.grades
    }
    assert told["ada", "two"] == ("3", "wrong", 1)
    assert told["ada", "three"] == ("3", "solved", 4)
    assert told["bob", "two"] == told["bob", "three"] == (None, "not answered", 0)
    rows = {row["learner"]: row for row in grades.rows()}
    assert (rows["ada"]["solved"], rows["ada"]["answered"]) == ("2 of 2", "2 of 2")
    assert (rows["bob"]["solved"], rows["bob"]["answered"]) == ("2 of 2", "0 of 2")


def test_a_lesson_saves_its_results_in_its_outputs():
    lesson = learn.Lesson(1, "A lesson", gs.open_device("sim:h200", quiet=True))
    lesson.predict("two", "What is 1 + 1?", learn.Value()).give(2)
    lesson.reveal("two", 2)
    ((result,), text) = (lesson._repr_mimebundle_()[key] for key in (RESULTS, "text/plain"))
    assert (result["name"], result["verdict"], result["answer"]) == ("two", "right", "2")
    assert text == repr(lesson)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no JSON", "it is no notebook of Jupyter"),
        ("[]", "it is no notebook of Jupyter"),
        ('{"cells": 7}', "it is no notebook of Jupyter"),
        ('{"cells": [{"cell_type": "code"}]}', "it is no notebook of Jupyter"),
        ('{"cells": []}', "it has no cell of any lesson's exercises"),
    ],
)
def test_what_is_no_lesson_is_told(folders, text, reason):
    (folders[0] / "ada.ipynb").write_text(text)
    grades = grade(*folders)
    (only,) = grades.grades
    assert only.verdict == "not graded"
    assert reason in only.reason
    assert reason in str(grades.rows()[0]["not solved"])


def test_a_folder_without_notebooks_is_refused(folders, tmp_path):
    with pytest.raises(NotFound, match="no notebooks in 'handed_in'"):
        grade(*folders)
    book(folders[0] / "one.ipynb")
    with pytest.raises(NotFound, match="no notebooks in 'elsewhere'"):
        grade(folders[0], tmp_path / "elsewhere")


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_any_executor_grades(folders, pool):
    book(folders[0] / "ada" / "one.ipynb")
    with pool(1) as executor:
        assert graded(folders, executor=executor)["ada"].verdict == "solved"


def test_workers_named_by_a_text_grade(folders):
    for name in ("ada", "bob", "cyd"):
        book(folders[0] / name / "one.ipynb")
    assert len(grade(*folders, executor="processes:3").rows()) == 3
    with pytest.raises(InvalidArgument, match="executor is 'threads:2'"):
        grade(*folders, executor="threads:2")


def test_who_stops_grading_leaves_no_process(folders):
    book(folders[0] / "ada.ipynb", "import time\ntime.sleep(60)")
    stop = threading.Event()
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    path = folders[0] / "ada.ipynb"
    lessons = [folders[1] / "01_a_lesson.ipynb"]
    grades = grade_notebook(
        path, folder=folders[0], lessons=lessons, gpu=False, limits=Limits(), stop=stop
    )
    timer.join()
    by_name = {grade.name: grade for grade in grades.grades}
    assert by_name["double"].verdict == "not finished"
    assert by_name["double"].reason == "grading was stopped"
    assert grades.not_held == (), "nobody said what held it"


def test_the_command_writes_a_table(folders, tmp_path):
    book(folders[0] / "ada" / "=one.ipynb", "def double(x):\n    return 3 * x")
    out = tmp_path / "grades.csv"
    told = CliRunner().invoke(
        app,
        [
            "grade",
            str(folders[0]),
            "--lessons",
            str(folders[1]),
            "--out",
            str(out),
            "--json",
            "--workers",
            "processes:1",
        ],
    )
    assert told.exit_code == 0, told.output
    (row,) = json.loads(told.output)["notebooks"]
    assert row["solved"] == "1 of 2"
    with out.open(encoding="utf-8") as lines:
        by_name = {row["name"]: row for row in csv.DictReader(lines)}
    assert by_name["double"]["reason"] == "double(4) is 12"
    assert list(by_name) == ["two", "double", "three", "last"]


def test_a_lesson_that_was_solved(tmp_path):
    name = "08_graphs.ipynb"
    solved = KEYS[name].solved
    mine = [{**one, "source": solved.get(one["id"], one["source"])} for one in cells(name)]
    (tmp_path / "mine.ipynb").write_text(json.dumps({"cells": mine}))
    grades = [grade for grade in grade(tmp_path, NOTEBOOKS).grades if grade.verdict != "not answered"]  # fmt: skip
    assert {grade.lesson for grade in grades} == {name}
    assert {grade.verdict for grade in grades} == {"solved"}
    assert len(grades) == len(solved)


# -- whatever a notebook holds -----------------------------------------------------------------
def altered(path, keys, value):
    """Write a notebook whose last cell has another value in one place."""
    book(path, outputs=[{"data": {RESULTS: []}}])
    notebook = json.loads(path.read_text())
    inside = notebook["cells"][-1]
    for key in keys[:-1]:
        inside = inside[key]
    inside[keys[-1]] = value
    path.write_text(json.dumps(notebook))


PLACES = [
    ("metadata",),
    ("metadata", "tags"),
    ("outputs",),
    ("outputs", 0),
    ("outputs", 0, "data"),
    ("outputs", 0, "data", RESULTS),
    ("id",),
    ("cell_type",),
]


@pytest.mark.parametrize("value", [None, 7, True, "text", [], [7], [["a"]], {}, {"a": 7}], ids=repr)
def test_what_is_malformed_beside_an_exercise_is_left_out(tmp_path, value):
    for keys in PLACES:
        altered(tmp_path / "one.ipynb", keys, value)
        read = handed_in.read_cells(tmp_path / "one.ipynb")
        assert [one.source for one in read if one.is_exercise] == [RIGHT], keys
        assert handed_in.answers(read) == {}


def test_notebooks_with_malformed_fields_are_graded(folders):
    for name, keys in (("ada", ("metadata",)), ("bob", ("outputs",)), ("cyd", ("id",))):
        altered(folders[0] / f"{name}.ipynb", keys, ["a"] if name == "cyd" else None)
    found = graded(folders)
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(
        ("ada", "bob", "cyd"), "solved"
    )


UNREADABLE = [
    b"[" * 100_000,
    b'{"cells": ' + b"[" * 100_000,
    '{"cells": "ü"}'.encode("latin-1"),
    b'{"cells": [7]}',
    b'{"cells": [null]}',
    b'{"cells": [{"source": 7}]}',
    b'{"cells": [{"source": {"a": "b"}}]}',
    b'{"cells": [{"source": [7]}]}',
    b"",
    b'{"cells": [{"source": "\\ud800"}]}',
    b"null",
    b"\x00" * 100,
]


def test_what_cannot_be_read_is_not_graded_and_all_else_is(folders):
    book(folders[0] / "ada" / "one.ipynb")
    for number, text in enumerate(UNREADABLE):
        (folders[0] / f"bad {number}.ipynb").write_bytes(text)
    os.mkfifo(folders[0] / "pipe.ipynb")
    (folders[0] / "dangling.ipynb").symlink_to("nowhere.ipynb")
    with (folders[0] / "huge.ipynb").open("wb") as huge:
        huge.truncate(10**9)
    found = graded(folders)
    assert found.pop("ada").verdict == "solved"
    assert {one.verdict for one in found.values()} == {"not graded"}
    reasons = {name: found.pop(name).reason for name in ("pipe", "dangling", "huge")}
    assert reasons["pipe"] == "it is no file"
    assert reasons["dangling"] == "it is a link: hand in the notebook itself"
    assert reasons["huge"].startswith("it has more than")
    assert len(found) == len(UNREADABLE)
    for one in found.values():
        assert "it is no notebook of Jupyter" in one.reason


def test_a_learner_whose_folder_has_no_notebook_is_in_every_table(folders, tmp_path):
    book(folders[0] / "ada" / "one.ipynb")
    (folders[0] / "bob" / "drafts").mkdir(parents=True)
    (folders[0] / "bob" / "one.pdf").write_text("a picture of a notebook")
    (folders[0] / ".git").mkdir()
    grades = grade(*folders)
    (of_bob,) = [one for one in grades.grades if one.learner != "ada"]
    assert (of_bob.learner, of_bob.verdict) == ("bob", "not graded")
    assert of_bob.reason == "there is no notebook in this folder"
    assert [row["learner"] for row in grades.rows()] == ["ada", "bob"]
    marks = grades.marks()
    assert {row["learner"]: row["points"] for row in marks.rows()} == {"ada": 2, "bob": 0}
    assert of_bob.reason in marks.not_graded["bob"][0]
    assert "bob" in grades.to_csv(tmp_path / "grades.csv").read_text()


def test_folders_beside_notebooks_are_no_learners(folders):
    book(folders[0] / "ada.ipynb")
    (folders[0] / "pictures").mkdir()
    assert set(graded(folders)) == {"ada"}


def test_a_notebook_cannot_take_its_checks_away(folders):
    tasks = {
        "ada": "import os, pathlib\nfor one in pathlib.Path().iterdir(): os.remove(one)",
        "bob": "import os\nos.mkdir('checks.json')",
        "cyd": "import os, shutil\nshutil.rmtree(os.getcwd())",
    }
    for name, task in tasks.items():
        book(folders[0] / f"{name}.ipynb", f"{task}\n{RIGHT}")
    assert {name: one.verdict for name, one in graded(folders).items()} == dict.fromkeys(
        tasks, "solved"
    )


def test_errors_whose_texts_fail_or_cannot_be_written_are_told(folders):
    fails = "class Odd(Exception):\n    def __str__(self): return 1 / 0\nraise Odd"
    book(folders[0] / "ada.ipynb", fails)
    book(folders[0] / "bob.ipynb", 'raise ValueError("\\ud800")')
    found = graded(folders)
    assert "cell task raised Odd" in found["ada"].reason
    assert "raised ValueError: \\ud800" in found["bob"].reason


def test_an_error_in_grading_one_notebook_costs_no_other(folders, monkeypatch):
    book(folders[0] / "ada.ipynb")
    book(folders[0] / "bob.ipynb")
    ask = Warden.ask

    def fails_once(warden, order, stop):
        if not calls:
            calls.append(order)
            raise OSError(28, "No space left on device")
        return ask(warden, order, stop)

    calls = []
    monkeypatch.setattr(Warden, "ask", fails_once)
    verdicts = sorted(grade.verdict for grade in graded(folders).values())
    assert verdicts == ["not graded", "solved"]


def test_a_lesson_that_is_no_notebook_is_named_before_anything_is_graded(folders):
    book(folders[0] / "ada.ipynb")
    (folders[1] / "02_broken.ipynb").write_text("no JSON")
    with pytest.raises(TraceFormatError, match=r"the lesson '02_broken.ipynb'"):
        grade(*folders)


# -- stopped, and written ----------------------------------------------------------------------
def interrupted(folders, monkeypatch, *options):
    """Grade by the command; Ctrl-C comes once the first notebook is graded."""
    for name in ("ada", "bob", "cyd", "dan"):
        task = RIGHT if name == "ada" else "import time\ntime.sleep(600)"
        book(folders[0] / f"{name}.ipynb", task)
    wait = grading.wait_for_all

    def waits(futures):
        monkeypatch.setattr(grading, "wait_for_all", wait)
        wait(list(futures)[:1])
        raise KeyboardInterrupt

    monkeypatch.setattr(grading, "wait_for_all", waits)
    arguments = ["grade", str(folders[0]), "--lessons", str(folders[1]), *options]
    return CliRunner().invoke(app, arguments)


def test_after_ctrl_c_the_table_has_what_was_graded(folders, tmp_path, monkeypatch):
    out = tmp_path / "grades.csv"
    told = interrupted(folders, monkeypatch, "--out", str(out), "--json")
    assert told.exit_code == 1, told.output
    assert json.loads(told.output)["stopped"]
    with out.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    verdicts = {row["learner"]: row["verdict"] for row in rows if row["name"] in ("double", "")}
    assert verdicts["ada"] == "solved"
    assert verdicts.keys() == {"ada", "bob", "cyd", "dan"}
    assert {row["reason"] for row in rows if row["learner"] == "dan"} == {"grading was stopped"}


def test_where_a_table_cannot_be_written_nothing_is_graded(folders, tmp_path, monkeypatch):
    book(folders[0] / "ada.ipynb")
    monkeypatch.setattr("gpuscope_lessons.grade", lambda *_, **__: pytest.fail("it was graded"))
    old = tmp_path / "grades.csv"
    old.write_text("mine")
    arguments = ["grade", str(folders[0]), "--lessons", str(folders[1]), "--out"]
    for out in (tmp_path / "missing" / "g.csv", tmp_path, old):
        told = CliRunner().invoke(app, [*arguments, str(out)])
        assert isinstance(told.exception, GpuscopeError)
    assert "--force" in str(told.exception)
    assert old.read_text() == "mine"


def test_a_table_is_replaced_when_told(folders, tmp_path):
    book(folders[0] / "ada.ipynb")
    out = tmp_path / "grades.csv"
    out.write_text("mine")
    arguments = ["grade", str(folders[0]), "--lessons", str(folders[1]), "--out", str(out)]
    told = CliRunner().invoke(app, [*arguments, "--force"])
    assert told.exit_code == 0, told.output
    assert "solved" in out.read_text("utf-8")
