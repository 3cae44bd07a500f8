"""What programs and files may rely on, as the latest release had it: tests/stable.json.

    python scripts/stable.py [--write]

Says what has gone or changed since: it has to be deprecated for a release first (docs/stable.md).
With --write, at a release, the file is written anew.
"""

from __future__ import annotations

import inspect
import json
import pydoc
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import msgspec
import typer

import gpuscope
from gpuscope.cli.commands import app
from gpuscope.experiments import Experiment
from gpuscope.judging.verdict import Verdict
from gpuscope.trace import schema
from gpuscope.workloads import kinds

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests" / "stable.json"
REFERENCE = ROOT / "docs" / "reference" / "index.md"


def stable() -> dict[str, object]:
    """Return all of it, as lists and mappings of texts."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {
        "version": gpuscope.__version__,
        "names": {name: parameters(name) for name in {*names(), *moved()}},
        "commands": {
            name: sorted(word for parameter in command.params for word in parameter.opts)
            for name, command in commands.items()
        },
        "experiment": sorted(keys(Experiment.model_json_schema(), "")),
        "kinds": {
            name: sorted(field.name for field in spec.kind_fields())
            for name, spec in kinds().items()
        },
        "columns": {name: str(kind) for name, kind in schema.SPAN_TYPES.items()},
        "edges": {name: str(kind) for name, kind in schema.EDGE_TYPES.items()},
        "verdict": sorted(field.encode_name for field in msgspec.structs.fields(Verdict)),
    }


def names() -> list[str]:
    """Return the public names that the reference lists, without ``gpuscope.``.

    Of a room those that it offers, not what it takes from private modules for itself.
    """
    text = REFERENCE.read_text("utf-8")
    listed = re.findall(r"^   ([\w.]+)$", text, re.MULTILINE)
    for name in re.findall(r"automodule:: gpuscope\.([\w.]+)", text):
        module = pydoc.locate(f"gpuscope.{name}")
        listed += [
            f"{name}.{member}"
            for member, value in vars(module).items()
            if member[0] != "_"
            and re.match(r"gpuscope\.(?!_)", str(getattr(value, "__module__", "")))
        ]
    return sorted(listed)


def moved() -> list[str]:
    """Return the names of the latest release that still work, wherever they are now."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        before = json.loads(FILE.read_text("utf-8"))["names"]
        return [name for name in before if pydoc.locate(f"gpuscope.{name}") is not None]


def parameters(name: str) -> list[str]:
    """Return what a function or class takes by name; empty for what is not called."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        value = pydoc.locate(f"gpuscope.{name}")
    if value is None:
        raise SystemExit(f"{REFERENCE.name} lists gpuscope.{name}, which there is not")
    try:
        taken = inspect.signature(value).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    return sorted(name for name in taken if name not in {"args", "kwargs"})


def keys(model: dict, path: str, root: dict | None = None) -> Iterator[str]:
    """Yield the keys of a JSON schema, ``*`` for those that users name."""
    root = root or model
    if "$ref" in model:
        model = root["$defs"][model["$ref"].rpartition("/")[2]]
    for key, inner in model.get("properties", {}).items():
        yield f"{path}{key}"
        yield from keys(inner, f"{path}{key}.", root)
    if isinstance(model.get("additionalProperties"), dict):
        yield from keys(model["additionalProperties"], f"{path}*.", root)


def gone(before: object, now: object, where: str = "") -> Iterator[str]:
    """Yield what was there before and is not, or is another, now."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key, value in before.items():
            if key not in now:
                yield f"{where}{key}"
            else:
                yield from gone(value, now[key], f"{where}{key}: ")
    elif isinstance(before, list) and isinstance(now, list):
        yield from (f"{where}{value}" for value in before if value not in now)
    elif before != now:
        yield f"{where}{before} is now {now}"


def main() -> int:
    now = stable()
    if "--write" in sys.argv:
        FILE.write_text(json.dumps(now, indent=1) + "\n", "utf-8")
        return 0
    before = json.loads(FILE.read_text("utf-8"))
    del now["version"], before["version"]
    lost = list(gone(before, now))
    print("\n".join(lost), end="\n" if lost else "")
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
