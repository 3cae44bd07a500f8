"""Points, weights, participation, and the files that Canvas and Moodle import."""

from __future__ import annotations

import csv

import pytest

from gpuscope.errors import InvalidArgument, NotFound
from gpuscope_lessons.grades import Grade, Grades
from gpuscope_lessons.points import Points

ASKED = {
    "01.ipynb": {"guess": "prediction", "timer": "exercise", "read": "exercise", "why": "quiz"},
    "02.ipynb": {"spread": "exercise"},
    "03.ipynb": {"unused": "exercise"},
}


def grades(**solved: str) -> Grades:
    """Return grades: learner → what they solved, with an answer to the prediction."""
    every = []
    for learner, names in solved.items():
        for lesson in ("01.ipynb", "02.ipynb"):
            for name, kind in ASKED[lesson].items():
                verdict = "solved" if name in names.split() else "not solved"
                answer = "3" if name == "guess" else None
                every.append(
                    Grade(learner, f"{learner}/{lesson}", lesson, name, kind, answer, verdict)
                )
    return Grades(grades=tuple(every), asked=ASKED)


def rows(path):
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines))


def test_points_are_of_code_alone_and_answers_count_apart():
    table = grades(ada="timer read spread why", bob="spread").marks().rows()
    columns = ("learner", "points", "of", "answered", "of questions")
    assert [tuple(row[name] for name in columns) for row in table] == [
        ("ada", 3, 3, 1, 2),
        ("bob", 1, 3, 1, 2),
    ]


def test_weights_and_points_of_a_file(tmp_path):
    path = tmp_path / "points.toml"
    path.write_text('exercise = 2\n["01"]\nweight = 0.5\ntimer = 10\n["03"]\nweight = 0')
    marks = grades(ada="timer spread").marks(Points.read(path))
    assert [(m.lesson, m.points, m.most_points) for m in marks.marks] == [
        ("01.ipynb", 5, 6),
        ("02.ipynb", 2, 2),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("exercise = -1", "exercise = -1"),
        ("exercise = true", "a number from 0 is needed"),
        ("exercise = inf", "a number from 0 is needed"),
        ("exercises = 1", "'exercises' at the top"),
        ("[01", "no TOML"),
        ('["1"]\nweight = 2', r"a lesson '1'.*did you mean '01'"),
        ('["01"]\ntime = 2', r"an exercise 'time' of 01; it has \['timer', 'read'\]"),
        ('["01"]\nguess = 2', "an exercise 'guess'"),
    ],
)
def test_points_that_mean_nothing_are_refused(tmp_path, text, says):
    path = tmp_path / "points.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=says):
        grades(ada="timer").marks(Points.read(path))
    with pytest.raises(NotFound, match=r"'none\.toml'"):
        Points.read(tmp_path / "none.toml")


def test_the_best_of_several_notebooks_counts():
    twice = Grades(
        grades=tuple(
            Grade("ada", f"ada/{copy}.ipynb", "02.ipynb", "spread", "exercise", None, verdict)
            for copy, verdict in (("02", "solved"), ("02 (1)", "not solved"))
        ),
        asked=ASKED,
    )
    (mark,) = twice.marks().marks
    assert (mark.points, mark.most_points) == (1, 1)


def test_what_was_not_graded_is_told_and_has_no_points():
    bad = Grade("bob", "bob/x.ipynb", "", reason="it is no file")
    every = Grades(grades=(*grades(ada="spread").grades, bad), asked=ASKED)
    by_learner = {row["learner"]: row for row in every.marks().rows()}
    assert by_learner["bob"]["not graded"] == "x.ipynb: it is no file"
    assert (by_learner["bob"]["points"], by_learner["bob"]["of"]) == (0, 3)


def test_what_canvas_imports(tmp_path):
    """Its importer: "Student" and "ID" first, "Section" last before the assignments."""
    path = grades(ada="timer spread", bob="").marks().to_canvas(tmp_path / "canvas.csv")
    assert rows(path) == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "01", "02", "participation"],
        ["    Points Possible", "", "", "", "", "2", "1", "2"],
        ["ada", "", "", "ada", "", "1", "1", "1"],
        ["bob", "", "", "bob", "", "0", "0", "1"],
    ]


def test_what_moodle_imports(tmp_path):
    """Percents: a new grade item there has a maximum of 100, and no more is let in."""
    path = grades(ada="timer spread", bob="").marks().to_moodle(tmp_path / "moodle.csv")
    assert rows(path) == [
        ["username", "01", "02", "participation"],
        ["ada", "50.0", "100.0", "50.0"],
        ["bob", "0.0", "0.0", "50.0"],
    ]


def test_tables_hold_neither_formulas_nor_escape_sequences(tmp_path):
    grade = Grade("=cmd()", "a", "01.ipynb", "timer", "exercise", None, "not solved", 0, "\x1b[2Jx")
    every = Grades(grades=(grade,), asked=ASKED)
    (_, row) = rows(every.to_csv(tmp_path / "grades.csv"))
    assert (row[0], row[-1]) == ("'=cmd()", "\ufffd[2Jx")
    assert rows(every.marks().to_canvas(tmp_path / "c.csv"))[2][0] == "'=cmd()"
