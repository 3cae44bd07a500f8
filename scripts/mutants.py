"""How many planted defects the tests notice.

    make mutants                                   100 mutants of the package, by a fixed seed
    make mutants ARGS='--paths gpuscope/analysis --tests tests/unit/analysis --count 20'

Mutants, a place and an operator of cosmic-ray each, are drawn by ``--seed``. First the tests run
once in a checkout of the last commit whose places are marked, and note which test reaches which
mark, also in processes that it starts: as long as ``make test UI=no``. That is kept in
.cache/reached/ until others are asked for, or ``--anew``. Then each mutant is made in such a
checkout, and the tests that reach it run there until one fails: those that reach the fewest
places first, ``--most`` of them. Printed is what they say of each mutant, and the share of those
that one noticed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parents[1]
PYTHON = str(ROOT / ".venv" / "bin" / "python")
KEPT = ROOT / ".cache" / "reached"
WITHOUT_TESTS = ("gpuscope/device/cuda/",)
"""What runs on a GPU alone, as in coverage's settings."""
LEFT_OUT = ("RemoveDecorator", "ExceptionReplacer")
"""Operators that are not used: most of what they make cannot be imported."""


class Site(NamedTuple):
    """A place of a file, relative to the root, and what changes it."""

    path: str
    line: int
    operator: str
    occurrence: int


def sites(path: Path) -> Iterator[list[Site]]:
    """Yield the mutants of each place of a file, but for annotations, which nothing evaluates."""
    source = path.read_text("utf-8")
    annotations = [
        ((each.lineno, each.col_offset), (each.end_lineno or 0, each.end_col_offset or 0))
        for node in ast.walk(ast.parse(source))
        for each in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if each is not None
    ]
    places: dict[tuple[tuple[int, int], tuple[int, int]], list[Site]] = {}
    nodes = list(ast_nodes(get_ast(source)))
    for name in sorted(operator_names()):
        operator = get_operator(name)
        if name.rpartition("/")[2] in LEFT_OUT or operator.arguments():
            continue
        positions = [place for node in nodes for place in operator().mutation_positions(node)]
        for occurrence, place in enumerate(positions):
            if not any(start <= place[0] and place[1] <= end for start, end in annotations):
                site = Site(str(path.relative_to(ROOT)), place[0][0], name, occurrence)
                places.setdefault(place, []).append(site)
    yield from places.values()


def drawn(paths: Sequence[str], count: int, seed: int) -> list[Site]:
    """Return a mutant of so many places of these folders or files, more of longer files."""
    files = [
        file
        for name in paths
        for file in sorted((ROOT / name).rglob("*.py") if (ROOT / name).is_dir() else [ROOT / name])
        if not str(file.relative_to(ROOT)).startswith(WITHOUT_TESTS)
    ]
    rng = random.Random(seed)  # noqa: S311
    by_size = Counter(rng.choices(files, [file.stat().st_size for file in files], k=count))
    mutants = []
    for file, places_wanted in by_size.items():
        places = list(sites(file))
        chosen = rng.sample(places, min(places_wanted, len(places)))
        mutants += [rng.choice(of_place) for of_place in chosen]
    return mutants


# -- which test reaches which place --------------------------------------------------------
NOTES = """
import json
import os

_known = set()


def at(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if test and (number, test) not in _known:
        _known.add((number, test))
        file = os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, (json.dumps([number, test]) + chr(10)).encode())
        os.close(file)
"""
"""The module that a marked place calls."""


def marked_lines(source: str, line: int) -> list[tuple[int, int]]:
    """Return where a statement can stand that says that a line is reached: line and column.

    It is before the statement of the line. What runs as a module is imported is reached by
    whatever runs a function of that module.
    """
    lines = source.splitlines()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    place: tuple[int, int] | None = None
    bodies: list[tuple[int, int]] = []

    def visit(node: ast.AST, *, inside: bool) -> None:
        nonlocal place
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                first = _first_line(child)
                begins_line = not lines[first - 1][: child.col_offset].strip()
                begins_line &= not lines[first - 1].lstrip().startswith("elif ")
                if inside and begins_line and first <= line <= (child.end_lineno or 0):
                    place = (first, child.col_offset)
            if isinstance(child, functions):
                body = child.body[1:] if ast.get_docstring(child) else child.body
                if body and not lines[body[0].lineno - 1][: body[0].col_offset].strip():
                    bodies.append((_first_line(body[0]), body[0].col_offset))
                runs = body and _first_line(body[0]) <= line
                visit(child, inside=inside or bool(runs))
            else:
                visit(child, inside=inside)

    visit(ast.parse(source), inside=False)
    return [place] if place else bodies


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


def marked(source: str, line_of: dict[int, int]) -> str:
    """Return a module that notes that it reaches these lines, number → line."""
    lines = source.splitlines()
    marks = {
        (*place, number) for number, line in line_of.items() for place in marked_lines(source, line)
    }
    for line, column, number in sorted(marks, reverse=True):
        call = f"import gpuscope._reached; gpuscope._reached.at({number})"
        lines.insert(line - 1, " " * column + call)
    return "\n".join(lines) + "\n"


def reach(mutants: Sequence[Site], tests: Sequence[str], *, anew: bool) -> list[list[str]]:
    """Return of each mutant the tests that reach it, those that reach the fewest first."""
    noted, asked = KEPT / "reached.jsonl", KEPT / "asked.json"
    asking = json.dumps([_git("rev-parse", "HEAD"), mutants, tests])
    if anew or not asked.exists() or asked.read_text("utf-8") != asking:
        KEPT.mkdir(parents=True, exist_ok=True)
        noted.unlink(missing_ok=True)
        with Copy() as folder:
            (folder / "gpuscope/_reached.py").write_text(NOTES.format(path=str(noted)), "utf-8")
            for path in {site.path for site in mutants}:
                line_of = {n: site.line for n, site in enumerate(mutants) if site.path == path}
                source = (folder / path).read_text("utf-8")
                (folder / path).write_text(marked(source, line_of), "utf-8")
            command = [PYTHON, "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal"]
            command += ["-p", "no:cacheprovider", "-m", "not gpu and not ui", *tests]
            done = subprocess.run(command, cwd=folder, env=_environment(folder), check=False)
        if done.returncode not in (0, 1) or not noted.exists():
            sys.exit("the tests did not run, or reach no mutant")
        asked.write_text(asking, "utf-8")
    reached: list[set[str]] = [set() for _ in mutants]
    for line in noted.read_text("utf-8").splitlines():
        number, test = json.loads(line)
        if (ROOT / test.partition("::")[0]).exists():  # else it is one that a test makes
            reached[number].add(test)
    places = Counter(test for of_mutant in reached for test in of_mutant)
    return [sorted(of_mutant, key=lambda test: (places[test], test)) for of_mutant in reached]


# -- what they say of a mutant -------------------------------------------------------------
class Copy:
    """A checkout of the last commit, in a folder of its own."""

    def __enter__(self) -> Path:
        self._parent = tempfile.TemporaryDirectory()
        self._folder = Path(self._parent.name) / "tree"
        _git("worktree", "add", "--detach", "--quiet", str(self._folder))
        for built in (ROOT / "gpuscope").glob("*.so"):
            shutil.copy(built, self._folder / "gpuscope")
        for name in (".venv", ".cache"):
            (self._folder / name).symlink_to(ROOT / name)
        return self._folder

    def __exit__(self, *_: object) -> None:
        _git("worktree", "remove", "--force", str(self._folder))
        self._parent.cleanup()


def outcome(folder: Path, site: Site, tests: Sequence[str], timeout_s: float) -> str:
    """Return what tests say of a mutant: ``killed``, ``survived`` or ``timeout``.

    A test that fails in this copy without the mutant, too, has no say.
    """
    file = folder / site.path
    source = file.read_text("utf-8")
    mutant = mutate_code(source, get_operator(site.operator)(), site.occurrence)
    while tests:
        file.write_text(mutant, "utf-8")
        try:
            failed = _failing(folder, tests, timeout_s)
        except subprocess.TimeoutExpired:
            return "timeout"
        finally:
            file.write_text(source, "utf-8")
        if not failed:
            return "survived"
        if not _failing(folder, failed, timeout_s):
            return "killed"
        tests = [name for name in tests if name not in failed]
    return "unreached"


def _failing(folder: Path, tests: Sequence[str], timeout_s: float) -> list[str]:
    """Return the first of these tests that fails, or all of them where none can run."""
    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider", *tests],
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode == 0:
        return []
    named = re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return [name for name in named if name in tests] or list(tests)


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{folder}:{folder / 'lessons'}"}


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def main() -> None:
    """Make mutants, and print what the tests say of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paths", nargs="+", default=["gpuscope"])
    parser.add_argument("--tests", nargs="+", default=["tests", "lessons/tests"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=100, help="tests for a mutant")
    parser.add_argument("--timeout-s", type=float, default=600)
    parser.add_argument("--anew", action="store_true", help="note anew which test reaches what")
    asked = parser.parse_args()
    mutants = drawn(asked.paths, asked.count, asked.seed)
    reached = reach(mutants, asked.tests, anew=asked.anew)
    outcomes: Counter[str] = Counter()
    with Copy() as folder:
        for site, tests in zip(mutants, reached, strict=True):
            found = "unreached"
            if tests:
                found = outcome(folder, site, tests[: asked.most], asked.timeout_s)
            outcomes[found] += 1
            operator = site.operator.rpartition("/")[2]
            print(f"{found:9} {len(tests):5} tests  {site.path}:{site.line} {operator}", flush=True)
    noticed = outcomes["killed"] + outcomes["timeout"]
    print(f"{noticed} of {outcomes.total()} noticed ({noticed / outcomes.total():.0%}): ", end="")
    print(", ".join(f"{count} {name}" for name, count in outcomes.most_common()))


if __name__ == "__main__":
    main()
