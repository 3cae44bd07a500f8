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
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer

from gpuscope._checks import length_ns
from gpuscope._files import make_folder
from gpuscope._libcupti import arrange_nvtx
from gpuscope.cli.app import app, complain
from gpuscope.device.diagnose import check_cupti
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.formats.registry import of_suffix, suffixes
from gpuscope.formats.writing import export
from gpuscope.report import trace_report
from gpuscope.runs.processes import BOOTSTRAP, VARIABLE, Facts, Order, read_facts
from gpuscope.trace.model import Trace
from gpuscope.trace.store import read_parquet

_LIVE_S = 2.0


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
    if not module and not script.exists():
        raise InvalidArgument(f"there is no script {program[0]!r}: name one, or a module after -m")
    suffix = f".{suffix.removeprefix('.')}"
    if of_suffix(f"trace{suffix}") is None:
        raise InvalidArgument(f"--format {suffix!r} is none of {suffixes('write')}")
    keep_ns = None if keep is None else length_ns("--keep", keep)
    name = program[0].rpartition(".")[2] if module else script.resolve().stem
    target, work = _claimed(out, name)
    order = Order(str(work.resolve()), device, detail, keep_ns, live)
    process = _start([*(["-m"] if module else []), *program], order)
    with _passing_signals_to(process):
        while live and _still_runs(process):
            _show_so_far(work)
        status = process.wait()
    _publish(work, target, suffix, process.pid, report=report)
    if status < 0:  # a signal ended it, and so it ends this
        with contextlib.suppress(OSError):  # that of SIGKILL is always the usual one
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    raise typer.Exit(status)


def _claimed(out: Path | None, name: str) -> tuple[Path, Path]:
    """Return where traces go, and a new folder beside it for what processes write meanwhile."""
    named = Path("out") / name if out is None else out
    make_folder(named.parent)
    for number in itertools.count(1):
        target = named if number == 1 else named.with_name(f"{name}-{number}")
        work = target.with_name(f"{target.name}.unfinished")
        if not target.exists() or (target.is_dir() and not any(target.iterdir())):
            with contextlib.suppress(FileExistsError):
                work.mkdir()
                return target, work
        if out is not None:
            raise GpuscopeError(
                f"{target.name!r} or {work.name!r} is there already: choose another --out"
            )
    raise AssertionError


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


def _still_runs(process: subprocess.Popen[bytes]) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_LIVE_S)
    return process.poll() is None


def _show_so_far(work: Path) -> None:
    every = read_facts(work)
    kinds = sum((Counter(kinds) for facts in every for kinds in facts.traces.values()), Counter())
    complain(f"gpuscope: so far {_counts(kinds) or 'nothing'} in processes: {len(every)}")


def _counts(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())


def _publish(work: Path, target: Path, suffix: str, program: int, *, report: bool) -> None:
    """Write what the processes left, and say so; where the program's output does not go."""
    every, left = read_facts(work), False
    for facts in every:
        who = f"process {facts.pid} ({facts.name})"
        for note in facts.notes:
            complain(f"gpuscope: {who}: {note}")
        if not facts.ended and _is_alive(facts.pid):
            complain(f"gpuscope: {who} still runs: it will write its trace to {work}")
            left = True
            continue
        if not facts.ended:
            complain(f"gpuscope: {who} was killed or crashed: its trace ends before that")
        for number, file in enumerate(facts.traces):
            base, ending = _base(target, suffix, facts, is_program=facts.pid == program)
            base += f"-{number + 1}" if number else ""
            try:
                _write(_read(work / file, facts), base, ending, report=report, title=who)
            except GpuscopeError as error:
                complain(f"gpuscope: {error}\ngpuscope: the trace is {work / file}")
                left = True
    if not any(facts.traces for facts in every):
        cupti = check_cupti()
        unseen = f"\ngpuscope: CUDA is not seen here: {cupti.found}: {cupti.todo}"
        complain(
            "gpuscope: nothing was recorded: no process of the program used CUDA or a device of "
            f"gpuscope{unseen * (not cupti.ok)}"
        )
    if not left:
        shutil.rmtree(work)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text("utf-8")
    except ProcessLookupError:
        return False
    except OSError:  # not ours, or no /proc
        return True


def _base(target: Path, suffix: str, facts: Facts, *, is_program: bool) -> tuple[str, str]:
    """Return the path of a process's trace without its suffix, and the suffix."""
    who = f"{facts.name}-{facts.pid}"
    chosen = of_suffix(target.name)
    if chosen is None or target.is_dir():
        make_folder(target)
        return str(target / who), suffix
    ending = next(end for end in chosen.suffixes if target.name.lower().endswith(end))
    base = str(target)[: -len(ending)]
    return base if is_program else f"{base}-{who}", ending


def _read(path: Path, facts: Facts) -> Trace:
    trace = read_parquet(path)
    if facts.ended:
        return trace
    when = time.strftime("%H:%M:%S", time.localtime(facts.at_ns / 1e9))
    note = f"the process was killed or crashed: what it did after {when} is not here"
    return trace.with_metadata(complete=False, notes=(*trace.metadata.notes, note))


def _write(trace: Trace, base: str, suffix: str, *, report: bool, title: str) -> None:
    written = [export(trace, f"{base}{suffix}")]
    page = Path(f"{base}.html")
    if report and not page.exists():
        written.append(trace_report(trace, page, title=title))
    complain(f"gpuscope: {title}: {_counts(trace.kind_counts())}")
    if trace.metadata.incomplete:
        complain(f"gpuscope: {trace.metadata.incomplete}")
    for path in written:
        complain(f"gpuscope: wrote {path}")
