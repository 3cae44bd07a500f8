"""How many planted defects the tests notice.

    make mutants                                   100 mutants of the package, by a fixed seed
    make mutants ARGS='--paths gpuscope/analysis --tests tests/unit/analysis --count 20'

First the tests run once and coverage.py notes which test reaches which line: twice the time of
``make test``. That is kept in .cache/reached/ until other ``--tests`` are asked for, or ``--anew``.
Then each mutant, a place and an operator of cosmic-ray drawn by ``--seed``, is made in a checkout
of the last commit, and the tests that reach its line run there until one fails: those that reach
the fewest lines first, ``--most`` of them. Printed is what they say of each mutant, and the share
of those that one noticed.
"""

from __future__ import annotations

import argparse
import ast
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
from typing import NamedTuple, Self

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from coverage import CoverageData

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


def reach(tests: Sequence[str], *, anew: bool) -> CoverageData:
    """Return which test reaches which line, from the last run of these tests or a new one."""
    KEPT.mkdir(parents=True, exist_ok=True)
    data, asked = KEPT / "coverage", KEPT / "tests"
    if anew or not data.exists() or asked.read_text("utf-8") != "\n".join(tests):
        data.unlink(missing_ok=True)
        command = [PYTHON, "-m", "pytest", "-q", "-n", "auto", "-m", "not gpu and not ui"]
        command += ["--cov", "--cov-context=test", "--cov-report=", "--cov-fail-under=0", *tests]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if done.returncode:
            sys.exit("tests fail without a mutant: mend these first")
        shutil.move(ROOT / ".coverage", data)
        asked.write_text("\n".join(tests), "utf-8")
    kept = CoverageData(str(data))
    kept.read()
    return kept


class Reached:
    """Which tests reach a line, those with the fewest lines first."""

    def __init__(self, data: CoverageData) -> None:
        self._by_file: dict[str, dict[int, list[str]]] = {}
        self._lines: Counter[str] = Counter()
        for file in data.measured_files():
            name = str(Path(file).relative_to(ROOT))
            self._by_file[name] = data.contexts_by_lineno(file)
            for contexts in self._by_file[name].values():
                self._lines.update({context.partition("|")[0] for context in contexts})

    def tests(self, site: Site) -> list[str]:
        """Return the ids of the tests that reach the line of a site."""
        contexts = self._by_file.get(site.path, {}).get(site.line, [])
        names = {context.partition("|")[0] for context in contexts} - {""}
        return sorted(names, key=lambda name: (self._lines[name], name))


class Copy:
    """A checkout of the last commit in which mutants are made.

    Parameters
    ----------
    folder
        Where it is to be; must not exist.
    timeout_s
        How long the tests of a mutant may take.
    """

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self._folder, self._timeout_s = folder, timeout_s

    def __enter__(self) -> Self:
        _git("worktree", "add", "--detach", "--quiet", str(self._folder))
        for built in (ROOT / "gpuscope").glob("*.so"):
            shutil.copy(built, self._folder / "gpuscope")
        for name in (".venv", ".cache"):
            (self._folder / name).symlink_to(ROOT / name)
        return self

    def __exit__(self, *_: object) -> None:
        _git("worktree", "remove", "--force", str(self._folder))

    def outcome(self, site: Site, tests: Sequence[str]) -> str:
        """Return what tests say of a mutant: ``killed``, ``survived`` or ``timeout``.

        A test that fails in this copy without the mutant, too, has no say.
        """
        file = self._folder / site.path
        source = file.read_text("utf-8")
        mutant = mutate_code(source, get_operator(site.operator)(), site.occurrence)
        while tests:
            file.write_text(mutant, "utf-8")
            try:
                failed = self._failing(tests)
            except subprocess.TimeoutExpired:
                return "timeout"
            finally:
                file.write_text(source, "utf-8")
            if not failed:
                return "survived"
            if not self._failing(failed):
                return "killed"
            tests = [name for name in tests if name not in failed]
        return "unreached"

    def _failing(self, tests: Sequence[str]) -> list[str]:
        """Return the first of these tests that fails, or all of them where none can run."""
        command = [PYTHON, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, *tests],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(self._folder)},
            capture_output=True,
            text=True,
            timeout=self._timeout_s,
            check=False,
        )
        if done.returncode == 0:
            return []
        named = re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
        return [name for name in named if name in tests] or list(tests)


def _git(*words: str) -> None:
    subprocess.run(["git", *words], cwd=ROOT, check=True)


def main() -> None:
    """Make mutants, and print what the tests say of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paths", nargs="+", default=["gpuscope"])
    parser.add_argument("--tests", nargs="+", default=["tests"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=100, help="tests for a mutant")
    parser.add_argument("--timeout-s", type=float, default=600)
    parser.add_argument("--anew", action="store_true", help="note anew which test reaches what")
    asked = parser.parse_args()
    reached = Reached(reach(asked.tests, anew=asked.anew))
    outcomes: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        Copy(Path(folder) / "tree", asked.timeout_s) as copy,
    ):
        for number, site in enumerate(drawn(asked.paths, asked.count, asked.seed), 1):
            tests = reached.tests(site)
            found = "unreached"
            if tests:
                found = copy.outcome(site, tests[: asked.most])
            outcomes[found] += 1
            operator = site.operator.rpartition("/")[2]
            print(f"{number:4} {found:9} {len(tests):5} tests  {site.path}:{site.line} {operator}")
            sys.stdout.flush()
    noticed = outcomes["killed"] + outcomes["timeout"]
    print(f"{noticed} of {outcomes.total()} noticed ({noticed / outcomes.total():.0%}): ", end="")
    print(", ".join(f"{count} {name}" for name, count in outcomes.most_common()))


if __name__ == "__main__":
    main()
