"""`import gpuscope` is cheap and loads nothing heavy; its public names are all there."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import gpuscope

HEAVY = {
    "IPython",
    "anywidget",
    "cuda",
    "cupy",
    "ipywidgets",
    "jupyterlab",
    "nvmath",
    "pandas",
    "plotly",
    "pyarrow",
    "pydantic",
    "torch",
}
CHILD = """
import json, sys, time
started = time.perf_counter()
import gpuscope
seconds = time.perf_counter() - started
print(json.dumps([seconds, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def import_afresh() -> tuple[float, set[str]]:
    """Import gpuscope in a new interpreter: seconds taken, top-level modules loaded."""
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    seconds, modules = json.loads(done.stdout)
    return seconds, set(modules)


def source() -> ast.Module:
    return ast.parse(Path(gpuscope.__file__).read_text(encoding="utf-8"))


def names_for_type_checkers() -> dict[str, str]:
    """Name → home, as `if TYPE_CHECKING:` tells mypy; a module's home is its own name."""
    homes = {}
    for block in source().body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for line in block.body:
                if isinstance(line, ast.ImportFrom) and (line.module or "").startswith("IPython"):
                    continue  # a type, no public name
                assert isinstance(line, ast.ImportFrom), ast.unparse(line)
                for alias in line.names:
                    # without `as`, strict mypy takes a name for private
                    assert alias.asname == alias.name, f"write 'as {alias.name}'"
                    whole = line.module == "gpuscope"
                    homes[alias.name] = f"gpuscope.{alias.name}" if whole else line.module
    return homes


def test_import_loads_nothing_heavy() -> None:
    _, modules = import_afresh()
    assert "gpuscope" in modules
    assert not modules & HEAVY


def test_import_is_quick() -> None:
    fastest = min(import_afresh()[0] for _ in range(3))
    assert fastest < 0.3


def test_the_names_for_type_checkers_resolve() -> None:
    assert [*names_for_type_checkers()] == gpuscope.__all__


@pytest.mark.parametrize("name", gpuscope.__all__)
def test_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(gpuscope, name)
    assert value is getattr(gpuscope, name)
    if not isinstance(value, ModuleType):
        home = importlib.import_module(names_for_type_checkers()[name])
        assert value is getattr(home, name)
    # a class's own docstring, not one inherited from its base
    text = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
    assert (text or "").strip()


def test_public_names_show_in_dir() -> None:
    assert set(gpuscope.__all__) <= set(dir(gpuscope))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        gpuscope.no_such_name  # noqa: B018


# -- knots ---------------------------------------------------------------------------------
def modules_that_each_knows() -> dict[str, set[str]]:
    """Return for each module which modules it imports anywhere, also for type checkers alone.

    An ``__init__`` only names what its room offers, lazily.
    """
    root = Path(gpuscope.__file__).parent
    files = {
        ".".join(("gpuscope", *path.relative_to(root).with_suffix("").parts)): path
        for path in root.rglob("*.py")
        if path.name != "__init__.py"
    }
    known: dict[str, set[str]] = {}
    for module, path in files.items():
        lines = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        imported = {
            name
            for line in lines
            if isinstance(line, ast.ImportFrom)
            for alias in line.names
            for name in (line.module or "", f"{line.module}.{alias.name}")
        }
        known[module] = (imported & set(files)) - {module}
    return known


def test_no_modules_know_each_other():
    left = modules_that_each_knows()
    while ready := [module for module, known in left.items() if not known & set(left)]:
        for module in ready:
            del left[module]
    assert not left, f"among these are some that know each other: {sorted(left)}"
