"""``record``: a program as it is, in processes of its own, under a recording."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer

from gpuscope._checks import length_ns
from gpuscope._files import make_folder
from gpuscope._libcupti import arrange_nvtx
from gpuscope._tables import paragraph, terminal_width
from gpuscope._text import clean, counted, shortened
from gpuscope.analyses import findings
from gpuscope.cli.app import app, complain
from gpuscope.device.diagnose import check_cupti
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.experiments.processes import BOOTSTRAP
from gpuscope.experiments.recorded import JOURNAL, VARIABLE, Facts, Order
from gpuscope.experiments.so_far import SO_FAR, SoFar, cut_short, last_trace, read_facts
from gpuscope.formats.registry import of_suffix, suffixes
from gpuscope.formats.writing import export
from gpuscope.report import trace_report
from gpuscope.telling.media import to_text
from gpuscope.trace.model import Trace
from gpuscope.trace.store import read_parquet

_FIRST_S, _LIVE_S = 1.0, 2.0
_SHARE = 0.2
"""How much of its time this process may write what there is so far."""
_NICENESS = 5
"""The program goes first."""
_SHOWN, _MOST = 60, 5
_TOLD, _FOUND, _TALLEST = 4, 2, 4
"""Files that are told one by one, findings of the first trace, and lines of one."""


@app.command("record", context_settings={"allow_interspersed_args": False})
def record_command(
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="PROGRAM [ARGS]...",
            help="The script, or with -m the module; what follows is its own.",
        ),
    ],
    *,
    module: Annotated[bool, typer.Option("-m", help="PROGRAM is a module, as for python.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A folder for the traces; or a file for the program's, those of its children "
            "beside it. Nothing is overwritten. Default: a new folder in out/."
        ),
    ] = None,
    device: Annotated[
        Literal["auto", "cuda", "sim", "cpu"],
        typer.Option(help="Record only these; auto: whatever the program uses."),
    ] = "auto",
    keep: Annotated[str | None, typer.Option(help="Keep the latest rows only: 60s, 10min.")] = None,
    detail: Annotated[
        Literal["launches", "full"],
        typer.Option(help="full: all API calls and synchronisations, too."),
    ] = "launches",
    live: Annotated[
        bool, typer.Option("--live", help="Say every 2 s what was recorded so far.")
    ] = False,
    stacks: Annotated[
        bool, typer.Option("--stacks/--no-stacks", help="Note which lines launched the work.")
    ] = True,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write a report for each trace.")
    ] = True,
    suffix: Annotated[
        str,
        typer.Option("--format", help=f"Of the traces in a folder: {suffixes('write')}."),
    ] = ".parquet",
) -> None:
    """Run a Python program as it is, and record what it does on GPUs, in all its processes.

    It runs as under python: arguments, input, output, Ctrl-C and exit code are its own. When it
    has ended, a trace of each process that used a device is written, and a report.

    Examples: gpuscope record train.py -n 3

    gpuscope record --keep 60s --out out/server -m my_server -p 8000
    """
    script = Path(program[0])
    if not module and not _is_there(script):
        raise InvalidArgument(f"there is no script {program[0]!r}: name one, or a module after -m")
    suffix = f".{suffix.removeprefix('.')}"
    if of_suffix(f"trace{suffix}") is None:
        raise InvalidArgument(f"--format {suffix!r} is none of {suffixes('write')}")
    keep_ns = None if keep is None else length_ns("--keep", keep)
    name = program[0].rpartition(".")[2] if module else script.resolve().stem
    target, work = _claimed(out, name)
    order = Order(str(work.resolve()), device, detail, keep_ns, live, stacks)
    process = _start([*(["-m"] if module else []), *program], order)
    with _passing_signals_to(process):
        with _whatever_happens("what there is so far is not shown"):
            _watch(process, work, live=live)
        status = process.wait()
    with _whatever_happens(f"what was recorded is in {work}"):
        _publish(work, target, suffix, process.pid, report=report)
    if status < 0:  # a signal ended it, and so it ends this
        with contextlib.suppress(OSError):  # that of SIGKILL is always the usual one
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    raise typer.Exit(status)


def _is_there(script: Path) -> bool:
    try:
        return script.exists()
    except (OSError, ValueError):  # no file can have such a name
        return False


def _claimed(out: Path | None, name: str) -> tuple[Path, Path]:
    """Return where traces go, and a new folder beside it for what processes write meanwhile."""
    named = Path("out") / name if out is None else out
    if not named.name:
        raise InvalidArgument(f"--out {str(out)!r} is no new folder and no file: name one")
    make_folder(named.parent)
    for number in itertools.count(1):
        target = named if number == 1 else named.with_name(f"{name}-{number}")
        work = target.with_name(f"{target.name}.unfinished")
        try:
            if not target.exists() or (target.is_dir() and not any(target.iterdir())):
                with contextlib.suppress(FileExistsError):
                    work.mkdir()
                    return target, work
        except (OSError, ValueError) as error:
            raise GpuscopeError(
                f"nothing can be written to {clean(target.name, _SHOWN)!r}: "
                f"{getattr(error, 'strerror', None) or error}. Choose another --out"
            ) from error
        if out is not None:
            raise GpuscopeError(
                f"{str(target)!r} or {str(work)!r} is there already: choose another --out"
            )
    raise AssertionError


@contextlib.contextmanager
def _whatever_happens(so: str) -> Iterator[None]:
    """Say what fails, and what follows: the exit status is the program's all the same."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - as said
        complain(f"gpuscope: {so}: {error or type(error).__name__}")


def _start(arguments: list[str], order: Order) -> subprocess.Popen[bytes]:
    arrange_nvtx()  # also for the program's processes: it is inherited
    path = [str(BOOTSTRAP), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {VARIABLE: json.dumps(asdict(order)), "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.Popen(  # noqa: S603 - what the user asked to run
        [sys.executable, *arguments], env={**os.environ, **environment}
    )


@contextlib.contextmanager
def _passing_signals_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave it to the program what signals do; a terminal sends Ctrl-C to both."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGINT or not _in_a_terminal():
            process.send_signal(number)

    before = {
        number: signal.signal(number, pass_on)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_a_terminal() -> bool:
    """Whether this process is in the foreground of a terminal."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _watch(process: subprocess.Popen[bytes], work: Path, *, live: bool) -> None:
    """Write traces of what there is so far until the program ends."""
    so_far, pause_s = SoFar(work), _FIRST_S
    os.nice(_NICENESS)
    while _still_runs(process, pause_s):
        began_s = time.monotonic()
        kinds = so_far.save()
        if live:
            every = read_facts(work)[0].values()
            for facts in every:
                kinds += sum(map(Counter, facts.traces.values()), Counter())
            complain(f"gpuscope: so far {counted(kinds) or 'nothing'} in processes: {len(every)}")
        pause_s = _LIVE_S if live else max(_FIRST_S, (time.monotonic() - began_s) / _SHARE)


def _still_runs(process: subprocess.Popen[bytes], pause_s: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(pause_s)
    return process.poll() is None


def _publish(work: Path, target: Path, suffix: str, program: int, *, report: bool) -> None:
    """Write what the processes left, and say so; where the program's output does not go."""
    if not work.exists():
        complain(f"gpuscope: the program removed {work}: what was recorded is lost")
        return
    every, unreadable = read_facts(work)
    done: list[Path] = []
    ours: list[Path] = []
    has_traces = False
    for path, facts in every.items():
        who = f"process {facts.pid} ({facts.name})"
        for note in facts.notes:
            complain(f"gpuscope: {who}: {note}")
        files = _traces_of(path)
        has_traces |= bool(files)
        if not facts.ended and _is_alive(facts.pid):
            complain(
                f"gpuscope: {who} still runs: it will write its trace to {work}; should it be "
                f"killed: python -m gpuscope.experiments.so_far {work}"
            )
            continue
        if not facts.ended:
            complain(f"gpuscope: {who} was killed or crashed: its trace ends before that")
        base = _base(target, suffix, facts, is_program=facts.pid == program)
        published = [
            file
            for file in files
            if _is_published(file, facts, *base, ours, report=report, title=who)
        ]
        done += [*published, *([path] if published == files else [])]
    if not has_traces:
        cupti = check_cupti()
        unseen = f"\ngpuscope: CUDA is not seen here: {cupti.found}: {cupti.todo}"
        complain(
            "gpuscope: nothing was recorded: no process of the program used CUDA or a device of "
            f"gpuscope of the kinds that --device names{unseen * (not cupti.ok)}"
        )
    if len(ours) > _TOLD:
        complain(f"gpuscope: wrote {len(ours) - _TOLD} more files beside them")
    for path in ours[:1]:
        complain(f"gpuscope: gpuscope why {path} says more")
    for path in unreadable:
        complain(f"gpuscope: {path} is of no process of gpuscope's, or damaged: it stays there")
    _clear(work, done)


def _traces_of(facts: Path) -> list[Path]:
    """Return the files of a process, by number: its traces, and the journals of what has none."""
    of_number: dict[str, Path] = {}
    for ending in (JOURNAL, ".parquet"):
        for path in sorted(facts.parent.glob(f"{facts.stem}-*{ending}")):
            if not path.name.endswith(SO_FAR):
                of_number[path.stem] = path
    return [of_number[stem] for stem in sorted(of_number, key=lambda stem: (len(stem), stem))]


def _clear(work: Path, done: list[Path]) -> None:
    """Remove what is done with, and the folder unless there is more in it."""
    for path in done:
        path.unlink(missing_ok=True)
        path.with_suffix(JOURNAL).unlink(missing_ok=True)
        path.with_suffix(SO_FAR).unlink(missing_ok=True)
        for partial in work.glob(f".{path.stem}.*"):  # a killed process's
            shutil.rmtree(partial)
    if left := sorted(path.name for path in work.iterdir()):
        complain(
            f"gpuscope: {work} stays, with {', '.join(left[:_MOST])}{', …' * (len(left) > _MOST)}"
        )
    else:
        work.rmdir()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text("utf-8")
    except ProcessLookupError:
        return False
    except OSError:  # not ours, or no /proc
        return True


def _base(target: Path, suffix: str, facts: Facts, *, is_program: bool) -> tuple[str, str]:
    """Return the path of a process's traces without what tells them apart, and the suffix."""
    who = f"{facts.name}-{facts.pid}"
    chosen = of_suffix(target.name)
    if chosen is None or target.is_dir():
        return str(target / who), suffix
    ending = next(end for end in chosen.suffixes if target.name.lower().endswith(end))
    base = str(target)[: -len(ending)]
    return base if is_program else f"{base}-{who}", ending


def _is_published(
    file: Path, facts: Facts, base: str, suffix: str, ours: list[Path], *, report: bool, title: str
) -> bool:
    """Write a trace, and its report, under names that nobody uses; returns whether that worked.

    Parameters
    ----------
    ours
        What this command has written; what is written now is added.
    """
    try:
        trace = last_trace(file) if file.suffix == JOURNAL else read_parquet(file)
        if file.suffix != JOURNAL and not facts.ended:
            trace = cut_short(trace, facts.at_ns)
        make_folder(Path(base).parent)
        path = _unused(base, suffix, ours, with_page=report)
        try:
            written = [export(trace, path)]
        except BaseException:
            path.unlink(missing_ok=True)  # empty, and ours
            raise
        page = path.with_name(f"{path.name.removesuffix(suffix)}.html")
        if report and not page.exists():
            written.append(trace_report(trace, page, title=title))
    except (GpuscopeError, OSError) as error:
        complain(f"gpuscope: {error}\ngpuscope: the trace is {file}")
        return False
    ours += written
    if len(ours) <= _TOLD:
        with _whatever_happens("what was found is not shown"):
            _tell(trace, title, is_first=len(ours) == len(written))
        for path in written:
            complain(f"gpuscope: wrote {path}")
    return True


def _tell(trace: Trace, title: str, *, is_first: bool) -> None:
    """Say what a trace comes to, and what is in it: all of it is to be one screen."""
    width = terminal_width()
    texts = [to_text(finding) for finding in findings(trace).findings[:_FOUND]]
    lines = [line for text in texts for line in text.splitlines()]
    lines = lines if is_first else lines[:1]
    for line in [*lines, f"{title}: {counted(trace.kind_counts())}; {trace.origin}"]:
        words = shortened(line, 2 * width, _TALLEST * width)
        complain(paragraph(f"gpuscope: {words}", width))


def _unused(base: str, suffix: str, ours: list[Path], *, with_page: bool) -> Path:
    """Make an empty file under a name that nobody uses, nor as a report, and return its path."""
    for number in itertools.count(1):
        name = base if number == 1 else f"{base}-{number}"
        path, taken = Path(f"{name}{suffix}"), Path(f"{name}.html")
        if not (with_page and os.path.lexists(taken)):
            try:
                path.open("x").close()
            except FileExistsError:
                taken = path
            else:
                return path
        if number == 1 and taken not in ours:  # as of another image of the same process
            complain(f"gpuscope: {taken} is there already")
    raise AssertionError
