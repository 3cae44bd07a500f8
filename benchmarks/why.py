"""How exact critical paths, slack and gains are: random programs, changed and run again.

Each program of ``tests/why_programs.py`` is recorded on the simulated GPU. Then a kernel or a pause
of it is made longer, or a kernel twice as fast, and it is run so: did its end move as was said?

*delays*: by max(0, d − slack). *speed-ups*: as ``gs.analysis.what_would_help`` says, within its
bands. *adds up*: the parts of every path, to the ns. *causes*: those of work are those that
``gs.analysis.parts`` names. *rows*: how much time of one core 10⁶ rows take, and how much memory.

Run ``python benchmarks/why.py [--programs 130]``; writes ``results/why.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import resource
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from facts import row, write

import gpuscope as gs
from gpuscope.analysis.causes import find_causes
from gpuscope.analysis.trace_parts import trace_parts
from gpuscope.analysis.work_causes import KINDS
from gpuscope.trace import Trace, schema

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
import why_programs  # noqa: E402

RESULTS = HERE / "results" / "why.json"
CALLS_NS = 1
"""Ends that are off by no more are exact."""
NOTHING = 0.001
"""Of the whole: a gain that is less is none."""
ROWS = 1_000_000
Seen = list[dict[str, Any]]


def delays(program: Any, ran: Any, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Plant delays in up to three kernels and two pauses."""
    whole_ns, path = ran.length_ns(), gs.analysis.critical_path(ran.trace)
    for kind, most in (("kernel", 3), ("pause", 2)):
        places = [at for at in why_programs.places(program, kind) if at in ran.rows]
        for at in rng.sample(places, min(most, len(places))):
            ns = rng.choice([1_000, 20_000, 200_000, 1_000_000])
            slack_ns = path.slack(ran.rows[at])
            delay_ns = program.delay_ns(at, ns)
            moved_ns = why_programs.run(program.delayed(at, ns)).length_ns() - whole_ns
            told_ns = 0 if slack_ns is None else max(0, delay_ns - slack_ns)
            yield {"told": told_ns, "truth": moved_ns, "whole": whole_ns, "what": f"{kind} delayed"}


def speed_ups(program: Any, ran: Any) -> Iterator[dict[str, Any]]:
    """Make each kernel twice as fast."""
    whole_ns, helps = ran.length_ns(), gs.analysis.what_would_help(ran.trace)
    for name in why_programs.NAMES:
        changes = [c for c in helps.changes if c.about == name and "twice as fast" in c.change]
        if changes:
            faster = why_programs.run(program.with_faster(name, 2.0))
            change = changes[0]
            yield {"told": change.gain_ns, "low": change.low_ns, "high": change.high_ns,
                   "truth": whole_ns - faster.length_ns(), "whole": whole_ns,
                   "what": "kernel twice as fast"}  # fmt: skip


def adds_up(trace: Trace) -> bool:
    """Whether the parts of its path follow each other and add up."""
    path = gs.analysis.critical_path(trace)
    parts = path.parts
    follow = all(a.end_ns == b.start_ns for a, b in itertools.pairwise(parts))
    lasted = sum(part.duration_ns for part in parts)
    sums = [sum(path.by(by).values()) for by in ("kind", "line", "range", "kernel", "stream")]
    return follow and {lasted, *sums} == {path.end_ns - path.start_ns}


def causes_agree(trace: Trace) -> Counter[bool]:
    """Return how often the cause of work is, and is not, the last that its parts name."""
    causes, parts = find_causes(trace), trace_parts(trace)
    agree: Counter[bool] = Counter()
    for work in np.flatnonzero(causes.rows.is_work).tolist():
        edge = int(causes.cause[2 * work])
        kind, span = KINDS[causes.kind[edge]], int(causes.rows.ids[causes.source[edge] // 2])
        until = [p for p in parts.parts(work) if p.end_ns <= causes.rows.starts[work]]
        named = [part for part in until if part.kind != "unexplained"]
        if named:
            last = named[-1]
            same = last.kind in ("on the way", kind) or (last.kind, kind) == (
                "launch call",
                "launch",
            )
            agree[same and last.span == span] += 1
    return agree


def summed(family: str, what: str, seen: Seen) -> Iterator[dict[str, Any]]:
    """Yield rows about one kind of change in a family of programs."""
    told, truth, whole = (np.array([s[k] for s in seen], float) for k in ("told", "truth", "whole"))
    off = np.abs(told - truth)
    is_contended = family in (*why_programs.CONTENDED, "contended")
    exact, p90 = float(np.mean(off <= CALLS_NS)), float(np.quantile(off / whole, 0.9))
    name = f"{what}, {family}"
    detail = {"n": len(seen), "worst": round(float((off / whole).max()), 4)}
    goal = "(beside it)" if is_contended else "at least 99 %"
    yield row(
        f"{name}: exact",
        goal,
        round(100 * exact, 2),
        "%",
        met=is_contended or exact >= 0.99,
        **detail,
    )
    yield row(
        f"{name}: off at p90", "at most 2 % of the whole", round(100 * p90, 3), "%", met=p90 <= 0.02
    )
    nothing = truth <= NOTHING * whole
    if nothing.any():
        right = float(np.mean(told[nothing] <= NOTHING * whole[nothing]))
        yield row(f"{name}: zero told right", "at least 95 %", round(100 * right, 1), "%",
                  met=right >= 0.95, n=int(nothing.sum()))  # fmt: skip
    if "low" in seen[0]:
        low, high = (np.array([s[k] for s in seen], float) for k in ("low", "high"))
        holds = float(np.mean((truth >= low - CALLS_NS) & (truth <= high + CALLS_NS)))
        width = float(np.quantile((high - low) / whole, 0.9))
        yield row(
            f"{name}: in the band", "at least 90 %", round(100 * holds, 1), "%", met=holds >= 0.9
        )
        yield row(f"{name}: width of the band at p90", "at most twice the error at p90",
                  round(100 * width, 3), "%", met=width <= 2 * p90 + 1e-9)  # fmt: skip


def large(trace: Trace, rows: int) -> Trace:
    """Return a trace of so many rows: one again and again."""
    span_ns = int(trace.array("end_ns", fill=0).max() - trace.array("start_ns").min()) + 1_000
    calls = int(trace.array("correlation", fill=0).max()) + 1
    copies = []
    for number in range(-(-rows // len(trace))):
        spans = schema.added(trace.spans, number * span_ns, "start_ns", "end_ns", "queued_ns")
        spans = schema.added(spans, number * calls, "correlation", "external_correlation")
        copies.append(Trace(spans, trace.edges, trace.metadata))
    return Trace.concat(copies)


def time_rows() -> list[dict[str, Any]]:
    """Return how long 10⁶ rows take, in this process, and its greatest memory."""
    ran = why_programs.run(why_programs.draw("streams", 10))
    trace = large(ran.trace, ROWS)
    begun_s = time.process_time()
    gs.analysis.critical_path(trace).by("line")
    path_s = time.process_time() - begun_s
    gs.analysis.what_would_help(trace)
    whole_s = time.process_time() - begun_s
    begun_s = time.process_time()
    gs.findings(trace)
    page_s = time.process_time() - begun_s
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    figures = (
        ("critical path", "(beside it)", path_s, "s", True),
        ("path and what would help", "at most 20 s", whole_s, "s", whole_s <= 20),
        ("first page, causes known", "(beside it)", page_s, "s", True),
        ("memory, all of the process", "at most 4 GB", peak_gb, "GB", peak_gb <= 4),
    )
    return [
        row(f"10⁶ rows: {what}", goal, round(value, 1), unit, met=met, n=len(trace))
        for what, goal, value, unit, met in figures
    ]


def main() -> int:
    """Run, print a table and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=int, default=130, help="of each family")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--rows", action="store_true", help="only 10⁶ rows, in this process")
    given = parser.parse_args()
    if given.rows:
        print(json.dumps(time_rows()))
        return 0
    seen: dict[tuple[str, str], Seen] = defaultdict(list)
    paths: Counter[bool] = Counter()
    agree: Counter[bool] = Counter()
    for family in why_programs.FAMILIES:
        for seed in range(given.first, given.first + given.programs):
            program = why_programs.draw(family, seed)
            ran = why_programs.run(program)
            rng = random.Random(seed)  # noqa: S311 - to repeat, not to hide
            for found in (*delays(program, ran, rng), *speed_ups(program, ran)):
                seen[found["what"], family].append(found)
            paths[adds_up(ran.trace)] += 1
            agree += causes_agree(ran.trace)
        print(family, "done", flush=True)
    rows = [
        row(what, "all", right[True], unit, met=not right[False], n=right.total())
        for what, right, unit in (
            ("paths whose parts add up to the ns", paths, "paths"),
            ("causes of work that parts name, too", agree, "causes"),
        )
    ]
    for what in ("kernel delayed", "pause delayed", "kernel twice as fast"):
        exact = [name for name in why_programs.FAMILIES if name not in why_programs.CONTENDED]
        groups = {"not contended": exact, "contended": why_programs.CONTENDED}
        for family in why_programs.FAMILIES:
            rows += summed(family, what, seen[what, family])
        for group, families in groups.items():
            together = [each for family in families for each in seen[what, family]]
            rows += summed(group, what, together)
    alone = subprocess.run(
        [sys.executable, __file__, "--rows"], check=True, capture_output=True, text=True
    )
    rows += json.loads(alone.stdout)
    write(RESULTS, "python benchmarks/why.py", "2 cores, simulated H200", rows)
    for each in rows:
        mark = "" if each["met"] else "  MISSED"
        print(f"{each['what']:64s} {each['value']:>10} {each['unit']:7s} {each['goal']}{mark}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
