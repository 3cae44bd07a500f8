"""Programs as what is compared: recorded in processes of their own, as now or as of a revision."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuscope import _child, _interrupts
from gpuscope._checks import SeveralOf, door
from gpuscope._text import clean, shortened
from gpuscope.comparing.rounds import values_of_program
from gpuscope.comparing.turns import Round, conditions_of
from gpuscope.device.cuda.health import processes_by_uuid
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.experiments.experiment import Experiment
from gpuscope.trace.folder import load_run
from gpuscope.trace.model import Trace
from gpuscope.trace.store import read_parquet

_COMMAND_LINE = "gpuscope.cli:main"
_LAST = 2_000
"""Characters of a program's errors that are told."""


@dataclass(frozen=True)
class Command:
    """A Python program, and where it runs.

    Attributes
    ----------
    interpreter
        That runs it.
    program
        The script or, behind ``-m``, the module, and its arguments.
    folder
        Where it runs.

    Examples
    --------
    >>> from gpuscope.judging import Command
    >>> Command.parse("python train.py --steps 100").program
    ('train.py', '--steps', '100')
    """

    interpreter: str
    program: tuple[str, ...]
    folder: Path

    @classmethod
    @door(text=(str, SeveralOf(str)), folder=(Path, None))
    def parse(cls, text: str | Sequence[str], folder: Path | None = None) -> Command:
        """Read a command line such as ``"python train.py --steps 100"``.

        Raises
        ------
        InvalidArgument
            It does not run a script or module of Python's.
        """
        try:
            words = shlex.split(text) if isinstance(text, str) else [*map(str, text)]
        except ValueError as error:
            raise InvalidArgument(f"{clean(text)!r} is no command line: {error}") from error
        interpreter = sys.executable
        if words and Path(words[0]).name.startswith("python"):
            if os.sep in words[0]:
                interpreter = words[0]
                if shutil.which(interpreter) is None:
                    raise InvalidArgument(f"there is no program {clean(interpreter)!r}")
            words = words[1:]
        is_option = bool(words) and words[0].startswith("-") and words[0] != "-m"
        if not words or "\0" in "".join(words) or words == ["-m"] or is_option:
            raise InvalidArgument(
                f"{clean(text)!r} runs no script and no module: give 'python train.py …' or "
                "'python -m package …'"
            )
        return cls(interpreter, tuple(words), folder or Path.cwd())

    @property
    def title(self) -> str:
        """What it is called."""
        return " ".join(self.program)


class ProgramSide:
    """A program; each round is a process, recorded as ``gpuscope record`` does."""

    is_process = True

    def __init__(self, name: str, command: Command) -> None:
        self.name, self.command = name, command

    def measure(self, number: int) -> Round:
        """Run it once.

        Raises
        ------
        GpuscopeError
            It failed, used no GPU, or was not recorded to its end.
        """
        with tempfile.TemporaryDirectory(prefix="gpuscope-") as folder:
            out = Path(folder) / "run"
            line = [*self._gpuscope(), "record", "--no-report", "--out", str(out)]
            who = f"{self.name}, round {number + 1}: {self.command.title}"
            before = processes_by_uuid()
            _done([*line, *self.command.program], who, self.command.folder)
            traces = [read_parquet(path) for path in sorted(out.glob("*.parquet"))]
        trace = max(traces, key=len)
        return Round(values_of_program(trace), trace, conditions_of(trace, [before]))

    def _gpuscope(self) -> list[str]:
        """Return what runs gpuscope's command line by the program's interpreter."""
        if self.command.interpreter == sys.executable:
            return _child.python_command(_COMMAND_LINE)
        return [self.command.interpreter, "-P", "-m", "gpuscope.cli"]  # of its own packages


def recorded_runs(experiment: Experiment, device: str, number: int) -> list[dict[str, Trace]]:
    """Run an experiment in so many processes, one after another: setting → trace of each.

    Raises
    ------
    GpuscopeError
        One failed.
    """
    runs = []
    with tempfile.TemporaryDirectory(prefix="gpuscope-") as folder:
        file = Path(folder) / "experiment.json"
        file.write_text(json.dumps(experiment.to_dict()), "utf-8")
        for at in range(number):
            _interrupts.deliver()
            out = Path(folder) / f"run-{at}"
            options = "--device", device, "--out", str(out)
            line = _child.python_command(_COMMAND_LINE, "run", str(file), *options)
            _done(line, f"process {at + 1}", Path.cwd())
            runs.append(load_run(out))
    return runs


def _done(line: Sequence[str], who: str, folder: Path) -> None:
    """Run a command to its end.

    Raises
    ------
    GpuscopeError
        It failed.
    """
    done = subprocess.run(  # noqa: S603 - what the user asked to run
        line, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode:
        errors = shortened(done.stderr.decode("utf-8", "replace"), 0, _LAST)
        raise GpuscopeError(f"{who} ended with status {done.returncode}: {errors}")


# -- revisions ----------------------------------------------------------------------------
@contextlib.contextmanager
def checked_out(revision: str, folder: Path) -> Iterator[Path]:
    """Check a revision out beside the working tree; yields what ``folder`` is in it.

    Raises
    ------
    GpuscopeError
        There is no repository, or no such revision.
    """
    top = Path(_git(folder, "rev-parse", "--show-toplevel"))
    commit = _git(folder, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="gpuscope-") as parent:
        tree = Path(parent) / "tree"
        _git(top, "worktree", "add", "--detach", str(tree), commit)
        try:
            folder_in_tree = tree / folder.resolve().relative_to(top.resolve())
            if not folder_in_tree.is_dir():
                raise GpuscopeError(f"revision {clean(revision)} has no folder {folder.name!r}")
            yield folder_in_tree
        finally:
            _git(top, "worktree", "remove", "--force", str(tree))


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - a command of ours
            ["git", "-C", str(folder), *words],  # noqa: S607 - the user's git
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise GpuscopeError(f"git cannot be run: {error.strerror}") from error
    if done.returncode:
        raise GpuscopeError(
            f"git {words[0]}: {clean(done.stderr.decode('utf-8', 'replace').strip())}"
        )
    return done.stdout.decode("utf-8", "replace").strip()
