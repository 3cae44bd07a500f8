"""The package keeps to its limits: size, density, `Any`s, private reads, names.

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
    "": 16_090,
    "analyses": 3_913,
    "analysis": 87_734,
    "cli": 15_349,
    "comparing": 39_349,
    "device": 49_676,
    "experiments": 20_648,
    "figures": 2_418,
    "formats": 50_244,
    "judging": 13_123,
    "lessons": 33_430,
    "races": 21_111,
    "record": 62_026,
    "report": 5_243,
    "search": 16_825,
    "simulator": 66_581,
    "telling": 16_213,
    "timeline": 57_404,
    "trace": 35_807,
    "widgets": 32_989,
    "workloads": 21_081,
}
"""Tokens of each room and of the root: may only go down, unless a feature is added: then by
what the feature takes."""
DENSITY = 9.62
"""Tokens a line: may only go down."""
ANY_PER_10000 = 3.9
"""May only go down."""
ALIASES_OF_ANY = 2
DIALECT = 23
"""May only go down."""
PRIVATE_READS = 0
BY_STRING = 0
SEVERAL_CLASSES = 6
"""What is left are stand-ins of PyTorch's classes, and pairs of public names."""
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
    assert counts.any_per_10000 <= ANY_PER_10000


def test_no_file_reads_the_private_names_of_another(counts):
    assert len(counts.private) <= PRIVATE_READS, counts.private


def test_no_module_of_ours_is_imported_by_string(counts):
    assert len(counts.by_string) <= BY_STRING, counts.by_string


def test_lines_are_not_packed(counts):
    assert counts.density <= DENSITY


def test_a_class_name_means_one_thing(counts):
    assert len(counts.classes) <= SEVERAL_CLASSES, counts.classes


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
    assert script.tokens_and_anys(SAMPLE, tree)[1:] == (9, 2)
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


def test_the_same_code_has_as_many_tokens_on_whatever_lines(script):
    packed, loose = "x = f(1, 2); y = 3  # why\n", 'x = f(\n    1, 2\n)\n"""Why."""\ny = 3\n'
    count = {text: script.tokens_and_anys(text, script.ast.parse(text)) for text in (packed, loose)}
    assert count[packed] == (12, 1, 0)
    assert count[loose] == (11, 4, 0), "without the semicolon"


def test_classes_of_one_name_are_told_with_their_places(script):
    texts = {"a.py": "class Same: ...\nclass _Same: ...", "b.py": "\nclass Same: ...\nclass B: ..."}
    trees = {path: script.ast.parse(text) for path, text in texts.items()}
    assert script.several_classes(trees) == {"Same": ["a.py:1", "b.py:2"]}


def test_words_of_the_house_count_where_they_are_bound(script):
    tree = script.ast.parse("for one in found:\n    place = told(one)\n    self.own = 1\n")
    assert script.dialect(tree) == [(1, "one"), (2, "place")]
