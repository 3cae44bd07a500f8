"""``record``: a program as it is, in processes of its own, under a recording."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
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
from gpuscope._text import clean, counted
from gpuscope.cli import FAILED
from gpuscope.cli.app import app, complain
from gpuscope.cli.recorded import Wanted, publish, whatever_happens
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.experiments.processes import BOOTSTRAP
from gpuscope.experiments.recorded import VARIABLE, RecordingOrder
from gpuscope.experiments.so_far import SoFar, read_facts
from gpuscope.formats.registry import of_suffix, suffixes
from gpuscope.record.source import MOST_SAMPLES, Options

_FIRST_S, _LIVE_S = 1.0, 2.0
_SHARE = 0.2
"""How much of its time this process may write what there is so far."""
_NICENESS = 5
"""The program goes first."""
_SHOWN = 60


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
    graphs: Annotated[
        Literal["nodes", "launch", "sampled"],
        typer.Option(
            help="Of CUDA graphs record each node, or each launch as a whole, which costs less; "
            "sampled: of each graph the nodes of the first launch in a second instead."
        ),
    ] = "nodes",
    sample: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_SAMPLES, help="Sample the stacks of Python's threads so often a second."
        ),
    ] = 200,
    samples: Annotated[
        bool, typer.Option("--samples/--no-samples", help="Sample what Python's threads do.")
    ] = True,
    counters: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTH",
            help="Sample busy SMs, tensor pipes and memory of the GPUs, each sample so long: "
            "100us. Default: not at all.",
        ),
    ] = None,
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
    has ended, a trace of each process that used a device is written, and a report. Where it exits
    with 0 and nothing was recorded, or not all, this exits with 1.

    Examples: gpuscope record train.py -n 3

    gpuscope record --keep 60s --out out/server -m my_server -p 8000
    """
    script = Path(program[0])
    if not module and not _is_there(script):
        raise InvalidArgument(f"there is no script {program[0]!r}: name one, or a module after -m")
    suffix = f".{suffix.removeprefix('.')}"
    if of_suffix(f"trace{suffix}") is None:
        raise InvalidArgument(f"--format {suffix!r} is none of {suffixes('write')}")
    if graphs != "nodes" and detail == "full":
        raise InvalidArgument(f"--graphs {graphs} and --detail full exclude each other: take one")
    keep_ns = None if keep is None else length_ns("--keep", keep)
    name = program[0].rpartition(".")[2] if module else script.resolve().stem
    target, work = _claimed(out, name)
    hertz = sample if samples else 0
    folder = str(work.resolve())
    counters_ns = 0 if counters is None else length_ns("--counters", counters)
    Options(counters_ns=counters_ns)  # which says what it can be
    ordered = RecordingOrder(
        folder, device, detail, keep_ns, live, stacks, graphs, hertz, counters_ns
    )
    order = json.dumps(asdict(ordered))
    process = _start([*(["-m"] if module else []), *program], order)
    with _passing_signals_to(process):
        with whatever_happens("what there is so far is not shown"):
            _watch(process, work, live=live)
        status = process.wait()
    is_complete = False
    with whatever_happens(f"what was recorded is in {work}"):
        is_complete = publish(Wanted(work, target, suffix, process.pid, order, report))
    if status < 0:  # a signal ended it, and so it ends this
        with contextlib.suppress(OSError):  # that of SIGKILL is always the usual one
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    raise typer.Exit(status or (0 if is_complete else FAILED))


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


def _start(arguments: list[str], order: str) -> subprocess.Popen[bytes]:
    arrange_nvtx()  # also for the program's processes: it is inherited
    path = [str(BOOTSTRAP), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {VARIABLE: order, "PYTHONPATH": os.pathsep.join(path)}
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
