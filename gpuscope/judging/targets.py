"""What a diff or a check is given: an experiment, a program, a run that was saved, or a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from gpuscope._checks import given
from gpuscope.errors import InvalidArgument
from gpuscope.experiments.experiment import Experiment, as_experiment
from gpuscope.formats.reading import load_trace
from gpuscope.judging.programs import Command
from gpuscope.trace.folder import is_folder, load_run
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run

Given: TypeAlias = (
    Experiment | Mapping[str, object] | Command | Sequence[str] | Run | Trace | str | Path
)
"""An experiment, a program's command line, a saved run or a trace; or the path of one."""
Target: TypeAlias = Experiment | Command | Trace | Mapping[str, Trace]
"""The same, read; a mapping is a saved run: setting → trace."""


def target_of(which: str, target: object) -> Target:
    """Return what an argument is.

    Raises
    ------
    InvalidArgument
        It is none of these.
    GpuscopeError
        A file cannot be read.
    """
    match target:
        case Experiment() | Command() | Trace() | Run():
            return target
        case Mapping():
            return as_experiment(target)
        case list() | tuple():
            return Command.parse(target)
        case str() | Path():
            return _from_path(Path(target))
    raise InvalidArgument(
        f"{which} is {given(target)}: an experiment, a list of a program's words, a run, a trace "
        "or a path is needed"
    )


def _from_path(path: Path) -> Target:
    if _is_experiment(path):
        return as_experiment(path)
    if path.suffix == ".py":
        return Command.parse([str(path)])
    return load_run(path) if is_folder(path) else load_trace(path)


def _is_experiment(path: Path) -> bool:
    """Whether a file is an experiment: TOML, or JSON that is no trace of Chrome's."""
    if path.suffix == ".json":
        with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
            return b"traceEvents" not in file.read(1 << 16)
    return path.suffix in (".toml", ".json")
