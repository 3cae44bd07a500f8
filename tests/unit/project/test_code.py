"""The package keeps to its limits: size, `Any`s, private reads, imports by string, public names.

`scripts/count_code.py` says how each is counted; `--where` lists the places.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import gpuscope

ROOT = Path(__file__).resolve().parents[3]

ROOMS = {
    "": 4_397,
    "analyses": 513,
    "analysis": 7_124,
    "cli": 1_809,
    "device": 5_883,
    "experiments": 2_531,
    "figures": 799,
    "formats": 4_441,
    "judging": 1_828,
    "learn": 5_114,
    "races": 1_821,
    "record": 5_295,
    "report": 686,
    "search": 1_896,
    "simulator": 6_670,
    "telling": 2_124,
    "timeline": 6_301,
    "trace": 3_321,
    "widgets": 4_918,
    "workloads": 2_793,
}
"""Code lines of each room and of the root: may only go down, unless a feature is added: then by
what the feature takes."""
ANY_PER_1000 = 4
"""May only go down."""
ALIASES_OF_ANY = 2
DIALECT = 24
PRIVATE_READS = 0
BY_STRING = 0
LONG_MODULES = 8
"""May only go down."""
TOP_NAMES = 33
"""`what_if` is what a recording is opened for, as `run` is for an experiment; `TorchModule` what
models are measured by, and `tune` what one carves for; `no_default_stream` guards any program,
and `confirm` tries a hazard; `merge` is what opens the traces of several ranks; `findings` says why
a program is slow, and `try_delay` proves it; `diff` says whether a change made it slower, and
`judging` is its room."""


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("count_code", ROOT / "scripts" / "count_code.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["count_code"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["count_code"]


@pytest.fixture(scope="module")
def counts(script):
    return script.count()


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_stay_small(counts, room):
    assert counts.rooms[room] <= ROOMS[room]


def test_every_room_has_its_limit(counts):
    assert set(counts.rooms) == set(ROOMS)


def test_aliases_hide_few_anys(counts):
    assert len(counts.aliases) <= ALIASES_OF_ANY, counts.aliases


def test_locals_say_what_they_hold(counts):
    assert len(counts.dialect) <= DIALECT


def test_few_values_are_any(counts):
    assert counts.any_per_1000 <= ANY_PER_1000


def test_no_file_reads_the_private_names_of_another(counts):
    assert len(counts.private) <= PRIVATE_READS, counts.private


def test_no_module_of_ours_is_imported_by_string(counts):
    assert len(counts.by_string) <= BY_STRING, counts.by_string


def test_few_modules_are_long(counts):
    assert len(counts.long) <= LONG_MODULES, counts.long


def test_few_names_are_at_the_top(script):
    assert script.top_names() == len(gpuscope.__all__)
    assert script.top_names() <= TOP_NAMES


SAMPLE = '''"""A docstring
of two lines."""

from typing import Any  # one code line, one Any

from gpuscope.record import _hidden


class Own:
    """Any: not counted."""

    _kept: Any = 1

    def use(self, other):
        # a comment
        return (
            self._kept, other._kept, other._theirs, getattr(other, "_theirs"), self._theirs,
            other._foreign, other.__class__,
        )
'''


def test_each_figure_is_counted_as_the_script_says(script):
    tree = script.ast.parse(SAMPLE)
    assert script.code_and_anys(SAMPLE, tree) == (9, 2)
    names = [name for _, name in script.private_reads(tree, {"_theirs", "_kept", "_hidden"})]
    assert sorted(names) == ["_hidden", "_theirs", "_theirs"]


@pytest.mark.parametrize(
    ("call", "counts"),
    [
        ('import_module("gpuscope.trace")', True),
        ('importlib.import_module(f"gpuscope.{name}")', True),
        ("import_module(name)", True),
        ('__import__("gpuscope")', True),
        ('import_module("cuda.bindings.driver")', False),
        ("find_spec(name)", False),
    ],
)
def test_imports_by_string_are_those_that_may_name_a_module_of_ours(script, call, counts):
    assert bool(script.imports_by_string(script.ast.parse(call))) is counts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from typing import Any\nArray = Any", ["Array"]),
        (
            "Array: TypeAlias = Any\nArrays = tuple[Array]\nOther = dict[str, Any]",
            ["Array", "Arrays"],
        ),
        ("Array = object\nvalue = f(Any)", []),
    ],
)
def test_an_alias_of_any_counts_wherever_it_stands(script, text, names):
    assert [name for _, name in script.aliases_of_any(script.ast.parse(text))] == names


def test_code_is_counted_as_it_would_be_formatted(script):
    packed = "x = [\n    1,\n    2, 3,\n]  # fmt: skip\n"
    assert script.formatted({"a.py": packed}) == {"a.py": "x = [\n    1,\n    2,\n    3,\n]  #\n"}


def test_words_of_the_house_count_where_they_are_bound(script):
    tree = script.ast.parse("for one in found:\n    place = told(one)\n    self.own = 1\n")
    assert script.dialect(tree) == [(1, "one"), (2, "place")]
