"""A run of grading that is started again goes on; what changed is graded again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from graded_books import RIGHT, book, cell
from typer.testing import CliRunner

from gpuscope.cli.commands import app
from gpuscope.errors import GpuscopeError
from gpuscope_lessons.grading import Limits, grade
from gpuscope_lessons.journal import GradeJournal
from gpuscope_lessons.warden import Warden

WRONG = "def double(x):\n    return 3 * x"


@pytest.fixture
def asked(monkeypatch):
    """Names of the learners whose notebooks ran, as they are asked for."""
    ask, seen = Warden.ask, []

    def counted(warden, order, stop):
        seen.append(next(code.source for code in order.cells if code.id == "task"))
        return ask(warden, order, stop)

    monkeypatch.setattr(Warden, "ask", counted)
    return seen


def task(learner: str, body: str = RIGHT) -> str:
    return f"# {learner}\n{body}"


def verdicts(grades):
    return {grade.learner: grade.verdict for grade in grades.grades if grade.name == "double"}


def test_what_was_graded_is_not_graded_again(folders, tmp_path, asked):
    for name in ("ada", "bob"):
        book(folders[0] / name / "one.ipynb", task(name))
    journal = tmp_path / "j"
    first = grade(*folders, journal=journal)
    assert sorted(asked) == [task("ada"), task("bob")]
    asked.clear()
    assert grade(*folders, journal=journal) == first
    assert asked == []
    book(folders[0] / "bob" / "one.ipynb", task("bob", WRONG))
    book(folders[0] / "cyd" / "one.ipynb", task("cyd"))
    changed = grade(*folders, journal=journal)
    assert sorted(asked) == [task("bob", WRONG), task("cyd")]
    assert verdicts(changed) == {"ada": "solved", "bob": "not solved", "cyd": "solved"}


def test_another_lesson_or_limit_grades_again(folders, tmp_path, asked):
    book(folders[0] / "ada" / "one.ipynb", task("ada"))
    journal = tmp_path / "j"
    grade(*folders, journal=journal)
    book(folders[1] / "02_other.ipynb", before=[cell("other", "def other(): pass", "exercise")])
    (lesson,) = folders[1].glob("01*")
    grade(*folders, journal=journal)
    assert asked == [task("ada")], "another lesson changed"
    lesson.write_text(lesson.read_text().replace("double(4) == 8", "double(4) == 9"))
    assert verdicts(grade(*folders, journal=journal)) == {"ada": "not solved"}
    assert len(asked) == 2
    grade(*folders, journal=journal, limits=Limits(seconds=299))
    assert len(asked) == 3


def test_a_line_that_was_torn_costs_one_notebook(folders, tmp_path, asked):
    for name in ("ada", "bob"):
        book(folders[0] / name / "one.ipynb", task(name))
    journal = tmp_path / "j"
    first = grade(*folders, journal=journal, executor="processes:1")
    asked.clear()
    journal.write_bytes(journal.read_bytes()[:-20])
    for _ in range(2):
        assert grade(*folders, journal=journal) == first
    assert asked == [task("bob")]


def test_two_runs_do_not_share_a_journal(folders, tmp_path):
    book(folders[0] / "ada" / "one.ipynb")
    with (
        GradeJournal(tmp_path / "j", [], []),
        pytest.raises(GpuscopeError, match="another run of gpuscope grade writes 'j'"),
    ):
        grade(*folders, journal=tmp_path / "j")
    with pytest.raises(GpuscopeError, match="cannot write 'j'"):
        grade(*folders, journal=tmp_path / "missing" / "j")


def test_a_grader_that_is_killed_goes_on_where_it_was(folders, tmp_path, asked):
    for name in ("ada", "bob", "cyd"):
        body = RIGHT if name == "ada" else f"import time\ntime.sleep(20)\n{RIGHT}"
        book(folders[0] / name / "one.ipynb", task(name, body))
    out, journal = tmp_path / "grades.csv", tmp_path / "grades.csv.journal"
    arguments = ["grade", str(folders[0]), "--lessons", str(folders[1]), "--out", str(out)]
    grader = subprocess.Popen([sys.executable, "-m", "gpuscope.cli", *arguments, "--jobs", "1"])
    end = time.monotonic() + 100
    while (not journal.is_file() or not journal.read_bytes()) and time.monotonic() < end:
        time.sleep(0.05)
    grader.send_signal(signal.SIGKILL)
    grader.wait()
    assert not out.exists()
    for name in ("bob", "cyd"):
        book(folders[0] / name / "one.ipynb", task(name))
    told = CliRunner().invoke(app, [*arguments, "--json"])
    assert told.exit_code == 0, told.output
    assert sorted(asked) == [task("bob"), task("cyd")]
    points = {row["learner"]: row["points"] for row in json.loads(told.output)["learners"]}
    assert points == {"ada": 2, "bob": 2, "cyd": 2}
    asked.clear()
    assert CliRunner().invoke(app, arguments).exit_code == 0, "its own table may be replaced"
    assert asked == []
    assert CliRunner().invoke(app, [*arguments, "--force"]).exit_code == 0
    assert len(asked) == 3, "--force grades all again"
