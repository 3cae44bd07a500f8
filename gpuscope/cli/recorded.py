"""What the processes of a recorded program left: written as traces, and told."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuscope._files import make_folder, write_text
from gpuscope._tables import paragraph, terminal_width
from gpuscope._text import counted, shortened
from gpuscope.analyses.registry import findings_alone
from gpuscope.cli.app import complain
from gpuscope.device.diagnose import check_cupti
from gpuscope.errors import GpuscopeError
from gpuscope.experiments.recorded import JOURNAL, VARIABLE, ProcessFacts
from gpuscope.experiments.so_far import SO_FAR, cut_short, last_trace, read_facts
from gpuscope.formats.registry import of_suffix
from gpuscope.formats.writing import export
from gpuscope.report import trace_report
from gpuscope.telling.media import to_text
from gpuscope.trace.facts import RecordingCost
from gpuscope.trace.merging import are_ranks
from gpuscope.trace.model import Trace
from gpuscope.trace.store import read_parquet

_SHOWN, _MOST = 60, 5
_TOLD, _FOUND, _TALLEST = 4, 2, 4
"""Files that are told one by one, findings of the first trace, and lines of one."""
_OTHERS_S, _LOOK_S = 2.0, 0.05
"""How long processes of the program's that go on may take to end."""
_RESOURCE_TRACKER, _FORK_SERVER = b"multiprocessing.resource_tracker", b"multiprocessing.forkserver"
"""Processes of Python's own, which use no GPU and end with the program."""
_Traces = list[tuple[str, Trace]]
"""Whose a trace is, and the trace."""


@dataclass(frozen=True)
class Wanted:
    """What is to be made of what processes left.

    Attributes
    ----------
    work
        Where they left it.
    target, suffix
        Where traces go, and what they are.
    program
        Number of the program's first process.
    order
        What its processes had in their environment.
    report
        Whether there is to be a report for each trace.
    """

    work: Path
    target: Path
    suffix: str
    program: int
    order: str
    report: bool


@contextlib.contextmanager
def whatever_happens(so: str) -> Iterator[None]:
    """Say what fails, and what follows, and go on."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - as said
        complain(f"gpuscope: {so}: {error or type(error).__name__}")


def publish(wanted: Wanted) -> bool:
    """Write what the processes left, and say so; where the program's output does not go.

    Returns
    -------
    bool
        Whether there is something, and nothing is missing as far as that is known.
    """
    work = wanted.work
    if not work.exists():
        complain(f"gpuscope: the program removed {work}: what was recorded is lost")
        return False
    running = _running(wanted.order)
    facts_of_file, unreadable = read_facts(work)
    done: list[Path] = []
    ours: list[Path] = []
    traces: _Traces = []
    costs: list[tuple[RecordingCost, bool]] = []
    messages: list[str] = []  # when all is written, and what was found is told
    lacking: dict[int, str] = {}
    has_traces = False
    for path, facts in facts_of_file.items():
        who = facts.who
        messages += [f"{who}: {note}" for note in facts.notes]
        files = _traces_of(path)
        has_traces |= bool(files)
        if not facts.ended and (facts.pid in running or _is_alive(facts.pid)):
            running.pop(facts.pid, None)
            messages.append(
                f"{who} still runs: it will write its trace to {work}; should it be killed: "
                f"python -P -m gpuscope.experiments.so_far {work}"
            )
            lacking[facts.pid] = who
            continue
        if lack := _lack(facts, files):
            messages.append(f"{who} {lack}")
            lacking[facts.pid] = who
        published = [
            file
            for file in files
            if _is_published(file, facts, wanted, ours, traces, costs, messages)
        ]
        if published == files:
            done.append(path)
        else:
            lacking[facts.pid] = who
        done += published
    lacking |= running
    messages += [
        f"process {pid} ({command}) still runs: if it uses a GPU, it will write its trace to {work}"
        for pid, command in running.items()
    ]
    with whatever_happens("what was found is not shown"):
        _tell(traces)
    for message in messages:
        complain(f"gpuscope: {message}")
    if not has_traces and not lacking and not unreadable:
        complain(f"gpuscope: nothing was recorded: {_why_nothing(work)}")
    if len(ours) > _TOLD:
        complain(f"gpuscope: wrote {len(ours) - _TOLD} more files beside them")
    for path in ours[:1]:
        is_merged = are_ranks([trace for _, trace in traces]) and wanted.target.is_dir()
        complain(f"gpuscope: gpuscope why {wanted.target if is_merged else path} says more")
    for path in unreadable:
        complain(f"gpuscope: {path} is of no process of gpuscope's, or damaged: it stays there")
    if lacking:
        complain(
            f"gpuscope: not all is recorded of {len(lacking)} process{'es' * (len(lacking) > 1)}, "
            "told above: record the program again, or wait for what still runs"
        )
    _clear(work, done, is_used=bool(running))
    _tell_cost(costs)
    return has_traces and not lacking


def _lack(facts: ProcessFacts, files: list[Path]) -> str:
    """Return what is not in the traces of a process that is gone, or ``""``."""
    if not facts.ended:
        return (
            "was killed or crashed: its trace ends before that"
            if files
            else "was killed or crashed before anything that it did was written: that is lost"
        )
    if facts.lost:
        partly = " but for what had been written before" if files else ""
        return f"has ended, but what it did is lost{partly}: {', '.join(facts.lost)}"
    return ""


def _why_nothing(work: Path) -> str:
    """Return why no process left a trace: none could, or none had what to record."""
    probe = work / "probe"
    try:
        write_text(probe, "can be written")
        probe.unlink()
    except (GpuscopeError, OSError) as error:
        return f"{error}. Choose another --out, or make room"
    cupti = check_cupti()
    unseen = f"\ngpuscope: CUDA is not seen here: {cupti.found}: {cupti.todo}"
    return (
        "no process of the program worked with CUDA or on a device of gpuscope of the kinds that "
        f"--device names{unseen * (not cupti.ok)}"
    )


def _running(order: str) -> dict[int, str]:
    """Return the Python processes that have this order and do not end soon (Linux).

    Returns
    -------
    dict
        Number → the command.
    """
    entry = f"{VARIABLE}={order}".encode()
    end_s = time.monotonic() + _OTHERS_S
    while True:
        running: dict[int, str] = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                is_python = (process / "exe").readlink().name.startswith("python")
                if is_python and entry in (process / "environ").read_bytes().split(b"\0"):
                    command = _command(process)
                    if not _is_helper(process, command):
                        text = command.decode("utf-8", "replace")
                        running[int(process.name)] = shortened(text, _SHOWN)
        if not running or time.monotonic() >= end_s:
            return running
        time.sleep(_LOOK_S)


def _command(process: Path) -> bytes:
    return (process / "cmdline").read_bytes().replace(b"\0", b" ").strip()


def _is_helper(process: Path, command: bytes) -> bool:
    """Whether a process is Python's own: its workers have the command of the server they are of."""
    if _FORK_SERVER not in command:
        return _RESOURCE_TRACKER in command
    parent = (process / "stat").read_bytes().rpartition(b")")[2].split()[1].decode()
    return _FORK_SERVER not in _command(process.with_name(parent))


def _traces_of(facts: Path) -> list[Path]:
    """Return the files of a process, by number: its traces, and the journals of what has none."""
    of_number: dict[str, Path] = {}
    for ending in (JOURNAL, ".parquet"):
        for path in sorted(facts.parent.glob(f"{facts.stem}-*{ending}")):
            if not path.name.endswith(SO_FAR):
                of_number[path.stem] = path
    return [of_number[stem] for stem in sorted(of_number, key=lambda stem: (len(stem), stem))]


def _clear(work: Path, done: list[Path], *, is_used: bool) -> None:
    """Remove what is done with, and the folder unless it is used or there is more in it."""
    for path in done:
        path.unlink(missing_ok=True)
        path.with_suffix(JOURNAL).unlink(missing_ok=True)
        path.with_suffix(SO_FAR).unlink(missing_ok=True)
        for partial in work.glob(f".{path.stem}.*"):  # a killed process's
            shutil.rmtree(partial)
    for so_far in work.glob(f"*{SO_FAR}"):  # of a process that removed its journal: it used no GPU
        if not so_far.with_name(so_far.name.removesuffix(SO_FAR) + JOURNAL).exists():
            so_far.unlink()
    if left := sorted(path.name for path in work.iterdir()):
        complain(
            f"gpuscope: {work} stays, with {', '.join(left[:_MOST])}{', …' * (len(left) > _MOST)}"
        )
    elif not is_used:
        work.rmdir()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text("utf-8")
    except ProcessLookupError:
        return False
    except OSError:  # not ours, or no /proc
        return True


def _base(wanted: Wanted, facts: ProcessFacts) -> tuple[str, str]:
    """Return the path of a process's traces without what tells them apart, and the suffix."""
    target = wanted.target
    who = f"{facts.name}-{facts.pid}"
    chosen = of_suffix(target.name)
    if chosen is None or target.is_dir():
        return str(target / who), wanted.suffix
    ending = next(end for end in chosen.suffixes if target.name.lower().endswith(end))
    base = str(target)[: -len(ending)]
    return base if facts.pid == wanted.program else f"{base}-{who}", ending


def _is_published(
    file: Path,
    facts: ProcessFacts,
    wanted: Wanted,
    ours: list[Path],
    traces: _Traces,
    costs: list[tuple[RecordingCost, bool]],
    messages: list[str],
) -> bool:
    """Write a trace, and its report, under names that nobody uses; returns whether that worked.

    Parameters
    ----------
    ours
        What this command has written; what is written now is added.
    traces, costs, messages
        What was written, to be told, what its recording cost and whether it tells nodes of graphs,
        and what is to be said after that; likewise.
    """
    try:
        if file.suffix == JOURNAL:
            trace = last_trace(file, facts)
        else:
            trace = read_parquet(file)
            if not facts.ended or file.name in facts.lost:
                trace = cut_short(trace, file.stat().st_mtime_ns, facts)
        base, suffix = _base(wanted, facts)
        make_folder(Path(base).parent)
        path = _unused(base, suffix, ours, with_page=wanted.report)
        try:
            written = [export(trace, path)]
        except BaseException:
            path.unlink(missing_ok=True)  # empty, and ours
            raise
        page = path.with_name(f"{path.name.removesuffix(suffix)}.html")
        if wanted.report and not page.exists():
            written.append(trace_report(trace, page, title=facts.who))
    except (GpuscopeError, OSError) as error:
        messages.append(f"{error}\ngpuscope: the trace is {file}")
        return False
    ours += written
    if (cost := trace.metadata.recording_cost) is not None:
        costs.append((cost, bool((trace.array("graph_node", fill=-1) >= 0).any())))
    if len(ours) <= _TOLD:
        traces.append((facts.who, trace))
        messages += [f"wrote {path}" for path in written]
    return True


def _tell(traces: _Traces) -> None:
    """Say what traces come to, and what is in them: all of it is to be one screen."""
    width = terminal_width()
    for number, (who, trace) in enumerate(traces):
        texts = [to_text(finding) for finding in findings_alone(trace).findings[:_FOUND]]
        lines = "\n".join(texts).splitlines()
        lines = lines[:1] if number else lines
        for line in [*lines, f"{who}: {counted(trace.kind_counts())}; {trace.origin}"]:
            words = shortened(line, 2 * width, _TALLEST * width)
            complain(paragraph(f"gpuscope: {words}", width))


def _tell_cost(costs: list[tuple[RecordingCost, bool]]) -> None:
    """Say what recording cost the process that it cost most, and whether its graphs cost more."""
    if costs:
        cost, has_nodes = max(costs, key=lambda of_process: of_process[0].share)
        complain(
            f"gpuscope: recording cost {100 * cost.share:.1f} % ± {100 * cost.within:.1f} of the "
            f"thread that launched most: {cost.call_ns / 1e3:.2f} µs ± "
            f"{cost.call_within_ns / 1e3:.2f} a call of CUDA's"
            f"{', and more on the GPU, for each node of a graph' * has_nodes}"
        )


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
