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

CODE_LINES = 47_459
"""May only go down, unless a feature is added: then by what the feature takes."""
ANY_PER_1000 = 6
"""May only go down."""
PRIVATE_READS = 0
BY_STRING = 0
LONG_MODULES = 0
"""May only go down."""
TOP_NAMES = 26
"""`what_if` is what a recording is opened for, as `run` is for an experiment; `TorchModule` what
models are measured by, and `tune` what one carves for; `no_default_stream` guards any program,
and `confirm` tries a hazard; `merge` is what opens the traces of several ranks."""


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


def test_the_package_stays_small(counts):
    assert counts.code <= CODE_LINES


def test_few_values_are_any(counts):
    assert counts.any_per_1000 <= ANY_PER_1000


def test_no_file_reads_the_private_names_of_another(counts):
    assert len(counts.private) <= PRIVATE_READS, counts.private


def test_no_module_of_ours_is_imported_by_string(counts):
    assert len(counts.by_string) <= BY_STRING, counts.by_string


def test_long_modules_say_why(counts):
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
    ("lines", "doc", "long"),
    [(450, "Short.", False), (451, "A module.", True), (451, "It is long because\n…", False)],
)
def test_a_long_module_gives_its_reason(script, lines, doc, long):
    text = f'"""{doc}"""' + "\n" * (lines - doc.count("\n"))
    assert script.is_long(text, script.ast.parse(text)) is long
