"""``%%gpuscope`` and ``%gpuscope``: profile a notebook's cells, whatever library they use."""

from __future__ import annotations

import argparse
import contextlib
import keyword
import shlex
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from gpuscope import figures, telling
from gpuscope._files import check_new
from gpuscope._libcupti import arrange_nvtx
from gpuscope._text import clean, clean_lines
from gpuscope.analyses import known_analyses
from gpuscope.analyses.registry import findings_alone
from gpuscope.analysis.result import Result
from gpuscope.device.device import Device
from gpuscope.errors import GpuscopeError
from gpuscope.experiments.profiling import profile
from gpuscope.formats.writing import export, writable
from gpuscope.record.recorder import Recording
from gpuscope.trace.model import Trace
from gpuscope.trace.schema import GPU_WORK

LAST = "_gpuscope"
"""The user's variable that holds the last trace, as ``_`` holds the last result."""

_COMMANDS = ("start", "stop", "status")
_SHOWN = ("hazards", "streams", "overlap")
"""What is shown of a cell's trace below its timeline, besides what plugins find."""


@magics_class
class GpuscopeMagics(Magics):
    """The magics of ``%load_ext gpuscope``."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._shell = shell
        self._running: tuple[contextlib.ExitStack, Recording, argparse.Namespace] | None = None

    @magic_arguments()
    @argument("command", nargs="?", help="Without a cell: start, stop or status.")
    @argument("-o", "--output", metavar="NAME", help="Keep the trace in this variable, too.")
    @argument("-d", "--device", metavar="NAME", help="The variable of the device to record.")
    @argument("--live", action="store_true", help="Show a timeline that grows meanwhile.")
    @argument(
        "--detail",
        choices=("launches", "full"),
        default="launches",
        help="full: all API calls and synchronisations, too.",
    )
    @argument("--hazards", action="store_true", help="Look for work that nothing orders.")
    @argument("--no-stacks", dest="stacks", action="store_false", help="Note no launch sites.")
    @argument("--keep", metavar="TIME", help="Keep the latest rows only: 60s, 10min.")
    @argument(
        "--export",
        metavar="PATH",
        help="Write the trace there, also over a file of that name; the suffix says how.",
    )
    @argument("--no-display", action="store_true", help="Record only.")
    @line_cell_magic
    def gpuscope(self, line: str, cell: str | None = None) -> None:
        """Profile a cell, or what runs between ``%gpuscope start`` and ``%gpuscope stop``.

        Everything that the process launches on the GPU is recorded, by whatever library, and
        on simulated devices that are open. Under the cell: what to act on, and whether work
        stayed in its partition; timeline, overlap of streams, summary. The trace is in
        ``_gpuscope``. If the cell fails, what it did until then is kept and shown, and its error
        is raised.

        Examples: ``%%gpuscope -o trace --export step.json`` above a cell;
        ``%gpuscope start --live`` and later ``%gpuscope stop``. A cell that awaits at its top
        level needs start and stop in cells of their own.
        """
        try:
            wants_help = not {"-h", "--help"}.isdisjoint(shlex.split(line))
            options = None if wants_help else parse_argstring(GpuscopeMagics.gpuscope, line)
        except ValueError as error:  # a quotation that does not end
            raise UsageError(f"{clean(line, 60)}: {error}") from error
        if options is None:
            _say((GpuscopeMagics.gpuscope.__doc__ or "").removeprefix("::").strip())
            return
        if options.export is not None:
            with _plain_errors():
                writable(target := Path(options.export))
                check_new(target, replace=True)
        name = options.output
        if name is not None and (not name.isidentifier() or keyword.iskeyword(name)):
            raise UsageError(f"-o {name!r} is no variable name")
        if cell is not None:
            if options.command is not None:
                raise UsageError(
                    f"above a cell there are options only, found {options.command!r}: "
                    "%gpuscope start, stop and status stand on a line of their own"
                )
            self._profile(cell, options)
        elif options.command == "start":
            self._start(options)
        elif options.command == "stop":
            self._stop(_given(line, options))
        elif options.command == "status":
            self._status()
        else:
            raise UsageError(f"%gpuscope {' | '.join(_COMMANDS)}, or %%gpuscope above a cell")

    def _profile(self, cell: str, options: argparse.Namespace) -> None:
        if _awaits(self._shell, cell):
            raise UsageError(
                "a cell that awaits at its top level cannot run under %%gpuscope: put "
                "%gpuscope start and %gpuscope stop into the cells before and after it"
            )
        with _plain_errors():
            with self._profile_of(options) as recording, _silent(self._shell):
                result = self._shell.run_cell(cell)
            try:
                self._keep(recording, options)
            finally:
                result.raise_error()

    def _profile_of(self, options: argparse.Namespace) -> AbstractContextManager[Recording]:
        device = None
        if options.device is not None:
            device = self._shell.user_ns.get(options.device)
            if not isinstance(device, Device):
                raise UsageError(f"--device {options.device!r} names no device that is open here")
        names = ("detail", "live", "keep", "hazards", "stacks")
        return profile(device, **{name: getattr(options, name) for name in names})

    def _start(self, options: argparse.Namespace) -> None:
        if self._running is not None:
            raise UsageError("a recording is on already: %gpuscope stop ends it")
        with _plain_errors(), contextlib.ExitStack() as stack:
            recording = stack.enter_context(self._profile_of(options))
            self._running = stack.pop_all(), recording, options

    def _stop(self, later: dict[str, object]) -> None:
        if self._running is None:
            raise UsageError("no recording is on: %gpuscope start begins one")
        stack, recording, options = self._running
        self._running = None
        for name, value in later.items():
            setattr(options, name, value)
        with _plain_errors():
            stack.close()
            self._keep(recording, options)

    def _status(self) -> None:
        if self._running is None:
            last = self._shell.user_ns.get(LAST)
            _say("no recording is on" + (f"; last: {last!r}" if isinstance(last, Trace) else ""))
            return
        _, recording, _ = self._running
        _say(f"recording: {recording.snapshot()!r}")

    def _keep(self, recording: Recording, options: argparse.Namespace) -> None:
        trace = recording.trace
        names = [LAST, *([options.output] if options.output else [])]
        self._shell.push(dict.fromkeys(names, trace))
        if options.export:
            _say(f"wrote {export(trace, Path(options.export))}")
        if not options.no_display:
            _show(trace, with_timeline=not options.live)


def _given(line: str, options: argparse.Namespace) -> dict[str, object]:
    """Return the options that ``%gpuscope stop`` states and that still make a difference."""
    words = shlex.split(line)
    begun = options.live or options.device or options.keep
    if begun or any(word.startswith("--detail") for word in words):
        raise UsageError("--live, --detail, --keep and --device belong to %gpuscope start")
    stated = {"output": options.output, "export": options.export, "no_display": options.no_display}
    return {name: value for name, value in stated.items() if value}


def _awaits(shell: InteractiveShell, cell: str) -> bool:
    """Whether a cell awaits at its top level; one that is no Python does not."""
    try:
        transformed = shell.transform_cell(cell)
    except SyntaxError:
        return False
    return bool(shell.should_run_async(cell, transformed_cell=transformed))


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Show errors of ours by their words alone: nobody needs our stack in a notebook."""
    try:
        yield
    except GpuscopeError as error:
        raise UsageError(str(error).replace("profile(device)", "--device NAME")) from error


@contextlib.contextmanager
def _silent(shell: InteractiveShell) -> Iterator[None]:
    """Leave it to the outer cell to show what the inner one raised: once."""
    shell._showtraceback = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        del shell._showtraceback


def _say(words: str) -> None:
    sys.stdout.write(f"{clean_lines(words)}\n")


def _show(trace: Trace, *, with_timeline: bool) -> None:
    has_work = not trace.kind_counts().keys().isdisjoint(GPU_WORK)
    if not has_work:
        _say(
            f"{trace!r}\nno work of a GPU was recorded: a simulated device has to be open before "
            "the recording begins, and CUDA's work needs CUPTI (gpuscope doctor says what is "
            "missing)"
        )
    for finding in findings_alone(trace).findings if has_work else ():
        _say(telling.to_text(finding))
    if with_timeline:
        display(figures.timeline(trace))
    for known in known_analyses():
        if known.name in _SHOWN or known.origin:
            answer = known.ask(trace)
            if isinstance(answer, Result):
                display(answer)


def load(shell: InteractiveShell) -> None:
    """Register the magics, and let NVTX ranges reach recordings from now on."""
    arrange_nvtx()
    shell.register_magics(GpuscopeMagics)
