"""Notebooks of a small lesson, handed in: for tests of grading."""

from __future__ import annotations

import json

from gpuscope_lessons.grading import grade

OPEN = """
import gpuscope as gs
import gpuscope_lessons as learn
gpu = gs.open_device(quiet=True)
lesson = learn.Lesson(1, "A lesson", gpu)
lesson.predict("two", "What is 1 + 1?", learn.Value())
"""
CHECK = (
    'lesson.check("double", "Write it.", lambda _: double(4) == 8 or f"double(4) is {double(4)}")'
)
QUIZ = 'lesson.quiz("three", "What is 1 + 2?", learn.Value(), 3)'
LATER = 'lesson.check("last", "Nothing to do.", lambda _: True)'
RIGHT = "def double(x):\n    return 2 * x"


def cell(name, source, *tags, outputs=()):
    return {
        "id": name, "cell_type": "code", "source": source, "metadata": {"tags": list(tags)},
        "outputs": list(outputs),
    }  # fmt: skip


def book(path, task=RIGHT, *, check=CHECK, before=(), after=(), outputs=()):
    """Write a notebook with an exercise."""
    lesson = [
        cell("open", OPEN), *before, cell("task", task, "exercise"), cell("check", check), *after,
        cell("quiz", QUIZ), cell("last", LATER), cell("results", "lesson", outputs=outputs),
    ]  # fmt: skip
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps({"cells": lesson, "nbformat": 4, "nbformat_minor": 5}))


def graded(folders, name="double", **options):
    """Return the grades of one exercise, by learner."""
    grades = grade(*folders, **options).grades
    return {grade.learner: grade for grade in grades if grade.name in (name, "")}
