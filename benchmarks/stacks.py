"""How true sampled stacks are, how safe, and what they cost: without a GPU.

    python benchmarks/stacks.py [--only truth|nasty|stored|endings|taken|cost] [--seconds S]
                                [--out FILE]

*truth*: twelve constructs take turns in a thread that reads the clock around each; told is how far
the share of samples in each one's line is off. *nasty*: threads make and free codes at addresses
that come again, call in pairs, recurse to the limit, resume generators, come and go, and names tell
which lines can stand in which others; samples are taken without a pause, and told is how many that
are not marked as torn cannot be. *stored*: what the twelve leave a second in a recording's journal
and in a trace, in so many threads, at the rate of `gpuscope record`. *endings*: processes that end
while they are sampled, in five ways; told is how many do not end as without a sampler. *taken*: the
CPU time of a stack that the recording has not seen before, of which it makes texts once a second.
*cost*: what a thread gets done while it is sampled, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import gc
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from facts import BESIDE, command, row, spread, write

import gpuscope as gs
from gpuscope import _stacks
from gpuscope.record.rows import Rows
from gpuscope.record.source import NewStacks
from gpuscope.record.stacks import StackSampler
from gpuscope.trace import Trace, schema
from gpuscope.trace.metadata import TraceMetadata

HERTZ = 1000
RECORD_HERTZ = 200
PARTS = ("truth", "nasty", "stored", "endings", "taken", "cost")
ROUNDS = 9
MORE = ("samples", "torn", "late", "impossible", "lost")
"""What is printed beside a value."""
Lines = tuple[_stacks.StackLine, ...]


# -- truth ---------------------------------------------------------------------------------
def spin(count: int) -> int:
    total = 0
    for number in range(count):
        total += number
    return total


def generator(count: int) -> Iterator[int]:
    for _ in range(count):
        yield spin(20)


def recursion(depth: int, count: int) -> int:
    return recursion(depth - 1, count) if depth else spin(count)


def exceptions(count: int) -> None:
    for _ in range(count):
        try:
            raise ValueError  # noqa: TRY301 - what is measured
        except ValueError:
            pass


def fibonacci(number: int) -> int:
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


async def coroutine(count: int) -> None:
    for _ in range(10):
        await asyncio.sleep(0)
        spin(count // 10)


BYTES = os.urandom(300_000)
NUMBERS = [random.random() for _ in range(60_000)]  # noqa: S311
CYCLES = [[] for _ in range(60_000)]  # type: ignore[var-annotated]
MADE = compile("x = 0\nfor n in range(60000):\n x += n\n", "<made>", "exec")


def negative(number: float) -> float:
    return -number


TWELVE: tuple[Callable[[], object], ...] = (
    lambda: spin(100_000),
    lambda: collections.deque(generator(3000), 0),
    lambda: recursion(60, 60_000),
    lambda: sorted(NUMBERS),
    lambda: zlib.compress(BYTES, 1),
    lambda: time.sleep(0.004),
    lambda: exceptions(30_000),
    lambda: exec(MADE, {}),  # noqa: S102 - as programs may
    lambda: gc.collect(),  # noqa: PLW0108 - it has a line
    lambda: asyncio.run(coroutine(60_000)),
    lambda: fibonacci(18),
    lambda: sorted(NUMBERS[:20_000], key=negative),
)
"""Each in a line of its own, which tells it."""


def twelve(seconds: float) -> dict[int, float]:
    """Run them in turns; returns line → time in it, s."""
    took_s: dict[int, float] = collections.Counter()
    end_s = time.perf_counter() + seconds
    while (began_s := time.perf_counter()) < end_s:
        for work in TWELVE:
            work()
            now_s = time.perf_counter()
            took_s[work.__code__.co_firstlineno] += now_s - began_s
            began_s = now_s
    return took_s


def truth(seconds: float) -> Iterator[dict]:
    """Yield by how many points the share of each line is off, and the worst."""
    _stacks.take()
    before = _stacks.counts()
    _stacks.begin(int(1e9 / HERTZ))
    took_s = twelve(seconds)
    _stacks.end()
    seen: dict[int, int] = collections.Counter()
    for run in _stacks.runs(_stacks.take()):
        if run.thread == threading.get_native_id():
            in_lines, _ = _stacks.lines(run.stack)
            at = next((line.line for line in in_lines if line.function == "<lambda>"), 0)
            seen[at] += run.samples
    after = _stacks.counts()
    every, all_s = sum(seen[at] for at in took_s), sum(took_s.values())
    off = {at: 100 * (seen[at] / every - took / all_s) for at, took in took_s.items()}
    for at, points in off.items():
        print(f"  line {at}: {100 * took_s[at] / all_s:5.1f} %, told {points:+.2f} points off")
    worst = max(map(abs, off.values()))
    samples = after.samples - before.samples
    yield row(
        f"worst of twelve lines at {HERTZ} Hz: share of samples against time", "≤ 1 point", worst,
        "points", met=worst <= 1, samples=every, torn=(after.torn - before.torn) / samples,
        late=after.late - before.late,
    )  # fmt: skip


# -- nasty programs ------------------------------------------------------------------------
PAIR = """
def right_{0}(k):
    return k + 1
def left_{0}(m):
    for k in range(m):
        right_{0}(k)
"""
for letter in "abcd":
    exec(compile(PAIR.format(letter), f"<pair_{letter}>", "exec"))  # noqa: S102


def churn() -> None:
    """Make a code, call it, and let it go."""
    number = random.randrange(1, 100_000)  # noqa: S311
    source = (
        "\n" * (number % 1000)
        + f"def f{number}(n):\n x = 0\n\n\n for k in range(n): x += k\n return x\n\nf{number}(90)\n"
    )
    exec(compile(source, f"<made_{number}>", "exec"), {})  # noqa: S102


def pairs() -> None:
    for letter in "abcd":
        globals()[f"left_{letter}"](20)


def generators(depth: int = 15) -> Iterator[int]:
    if depth:
        yield from generators(depth - 1)
    yield depth


def limits() -> None:
    try:
        recursion(10**6, 1)
    except RecursionError:
        recursion(200, 1)


def short_threads() -> None:
    threads = [threading.Thread(target=pairs) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


JOBS: dict[str, Callable[[], object]] = {
    "codes made and freed": churn,
    "codes made and freed, again": churn,
    "calls in pairs": pairs,
    "generators": lambda: collections.deque(generators(), 0),
    "recursion": limits,
    "short threads": short_threads,
    "coroutines": lambda: asyncio.run(coroutine(1000)),
    "exceptions": lambda: exceptions(100),
    "the collector": lambda: gc.collect(0),
}


def is_possible(in_lines: Lines) -> bool:
    """Whether lines can stand in each other, as far as names tell it."""
    callers = [*in_lines[1:], None]
    for line, caller in zip(in_lines, callers, strict=False):
        made = re.fullmatch(r"<made_(\d+)>", line.file)
        pair = re.fullmatch(r"(right|left)_([abcd])", line.function)
        if made:
            blank, name = int(made[1]) % 1000, f"f{made[1]}"
            calls = (line.file, blank + 8, "<module>")
            at = {"<module>": (1, blank + 1, blank + 8), name: range(blank + 1, blank + 7)}
            if line.line not in at.get(line.function, ()):
                return False
            if line.function == name and caller not in (calls, None):
                return False
        if pair:
            at_lines = {"right": (2, 3), "left": (4, 5, 6)}[pair[1]]
            if line.file != f"<pair_{pair[2]}>" or line.line not in at_lines:
                return False
            if pair[1] == "right" and caller not in ((line.file, 6, f"left_{pair[2]}"), None):
                return False
    return True


def nasty(seconds: float) -> Iterator[dict]:
    """Yield how many samples of nasty programs are impossible, and not marked."""
    goes, over = [True], threading.Event()
    seen: dict[tuple[int, bool], int] = collections.Counter()
    before = _stacks.counts()

    def take() -> None:
        while not over.wait(0.02):
            for run in _stacks.runs(_stacks.take()):
                seen[run.stack, bool(run.state & _stacks.TORN)] += run.samples

    def repeat(job: Callable[[], object]) -> None:
        while goes[0]:
            job()

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    threads = [threading.Thread(target=repeat, args=(job,)) for job in JOBS.values()]
    reader = threading.Thread(target=take)
    _stacks.begin(0)
    for thread in (*threads, reader):
        thread.start()
    time.sleep(seconds)
    goes[0] = False
    for thread in threads:
        thread.join()
    _stacks.end()
    over.set()
    reader.join()
    sys.setswitchinterval(interval_s)
    after = _stacks.counts()
    impossible: dict[bool, int] = collections.Counter()
    for (stack, torn), count in seen.items():
        if not is_possible(_stacks.lines(stack)[0]):
            impossible[torn] += count
            if not torn:
                print("  impossible:", *_stacks.lines(stack)[0][:3])
    kept = sum(seen.values())
    yield row(
        "impossible samples that are not marked as torn, of a million", "≤ 1",
        1e6 * impossible[False] / kept, "", met=impossible[False] <= kept / 1e6,
        impossible=impossible[False], samples=kept, torn=(after.torn - before.torn) / kept,
        torn_and_impossible=impossible[True], lost=after.lost - before.lost,
    )  # fmt: skip


# -- endings -------------------------------------------------------------------------------
BEGINNING = """
import os, sys, threading, time
import gpuscope as gs

def spin():
    while True:
        sum(range(100))

def run_on(count):
    for _ in range(count):
        threading.Thread(target=spin, daemon=True).start()

recording = gs.profile(gs.open_device("cpu", quiet=True), sample=1000)
recording.__enter__()
"""
ENDINGS = {
    "threads run on": ("run_on(3); time.sleep(0.05); print('ended')", 0),
    "children are forked": (
        """
run_on(2)
for _ in range(5):
    if (child := os.fork()) == 0:
        sum(range(100_000))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print('ended')
""",
        0,
    ),
    "threads come and go": (
        """
for _ in range(100):
    several = [threading.Thread(target=sum, args=(range(2_000),)) for _ in range(4)]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join()
print('ended')
""",
        0,
    ),
    "at once": ("run_on(2); print('ended', flush=True); os._exit(7)", 7),
    "by an error": ("run_on(2); print('ended'); raise SystemExit(3)", 3),
}
"""How a process ends → what it runs, and its exit status."""
PROCESSES = 200


def endings(_seconds: float) -> Iterator[dict]:
    """Yield how many sampled processes end otherwise than they should."""
    wrong = collections.Counter()
    for number in range(PROCESSES):
        name = [*ENDINGS][number % len(ENDINGS)]
        ending, status = ENDINGS[name]
        done = subprocess.run(
            [sys.executable, "-c", BEGINNING + ending], check=False, capture_output=True,
            text=True, timeout=60,
        )  # fmt: skip
        if done.returncode != status or done.stdout != "ended\n":
            wrong[name] += 1
            print(f"  {name}: status {done.returncode}", done.stderr[-300:])
    what = f"sampled processes of {PROCESSES} that do not end as they should"
    yield row(what, "0", sum(wrong.values()), "", met=not wrong, wrong=dict(wrong))


# -- stored --------------------------------------------------------------------------------
class Journal:
    """Counts what it gets, as the recording's packs it."""

    def __init__(self) -> None:
        self.nbytes = self.stacks = 0

    def note_stacks(self, stacks: NewStacks) -> None:
        self.nbytes += len(msgspec.msgpack.encode(stacks))
        self.stacks += len(stacks.texts)


def stored(seconds: float) -> Iterator[dict]:
    """Yield what samples take in a journal and in a Parquet file, a second and thread."""
    for count in (1, 4, 16):
        sampler, journal = StackSampler(RECORD_HERTZ, os.getpid()), Journal()
        sampler.journal = journal
        threads = [threading.Thread(target=twelve, args=(seconds,)) for _ in range(count)]
        if why := sampler.start():
            raise SystemExit(why)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sampler.close()
        rows = Rows(over=True, open_since_ns=schema.LATEST_NS)
        sampler.begin_reading()
        sampler.drain(rows)
        spans = schema.concat([batch.spans for batch in rows.batches], schema.SPAN_TYPES)
        trace = Trace(spans, schema.table({}, schema.EDGE_TYPES), TraceMetadata())
        with tempfile.TemporaryDirectory() as folder:
            path = gs.export(trace, Path(folder) / "stacks.parquet", keep_private=True)
            in_trace = path.stat().st_size
        for what, nbytes in (("journal", journal.nbytes), ("trace", in_trace)):
            each = nbytes / 1e3 / seconds / count
            yield row(
                f"stored in the {what} at {RECORD_HERTZ} Hz, {count} threads, each",
                "≤ 30 kB/s", each, "kB/s", met=each <= 30, runs=len(trace),
            )  # fmt: skip


# -- taken ---------------------------------------------------------------------------------
FUNCTION = """
def call_{0}(depth, following):
    if depth == 0:
        return sum(range(3_000))
    return functions[following[depth % len(following)]](depth - 1, following)
"""
FUNCTIONS, DEEP = 300, 30
"""Of how many functions stacks are made, and how deep they are."""


def taken(seconds: float) -> Iterator[dict]:
    """Yield the CPU time of each stack that is new."""
    space: dict[str, Any] = {}
    text = "".join(map(FUNCTION.format, range(FUNCTIONS)))
    exec(compile(text, "/site-packages/calls/several.py", "exec"), space)  # noqa: S102 - ours
    functions = space["functions"] = [space[f"call_{number}"] for number in range(FUNCTIONS)]
    sampler, journal = StackSampler(RECORD_HERTZ, os.getpid()), Journal()
    sampler.journal = journal
    if why := sampler.start():
        raise SystemExit(why)
    per_stack_ms, chance = [], random.Random(0)  # noqa: S311 - no secrets
    for _ in range(ROUNDS):
        end_s = time.perf_counter() + seconds / ROUNDS
        while time.perf_counter() < end_s:
            following = [chance.randrange(FUNCTIONS) for _ in range(DEEP)]
            functions[following[0]](DEEP, following)
        before, began_ns = journal.stacks, time.thread_time_ns()
        sampler.take()
        took_ns = time.thread_time_ns() - began_ns
        per_stack_ms.append(took_ns / 1e6 / max(journal.stacks - before, 1))
    sampler.close()
    yield row(
        f"a new stack of {DEEP} calls, taken by the recording", BESIDE,
        statistics.median(per_stack_ms), "ms", met=True,
        spread=spread(per_stack_ms), stacks=journal.stacks,
    )  # fmt: skip


# -- cost ----------------------------------------------------------------------------------
def cost(seconds: float) -> Iterator[dict]:
    """Yield what a thread loses of its work while it is sampled, between blocks that are not."""
    works: dict[str, Callable[[], object]] = {
        "a Python loop": lambda: spin(1000), "calls": lambda: fibonacci(10),
        "sorting": lambda: sorted(NUMBERS[:1000]),
    }  # fmt: skip

    def rate(work: Callable[[], object]) -> float:
        count, end_s = 0, time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            work()
            count += 1
        return count / seconds

    for name, work in works.items():
        lost: dict[int, list[float]] = {0: [], 200: [], 1000: []}
        before = rate(work)
        for number in range(ROUNDS * len(lost)):
            hertz = [*lost][number % len(lost)]
            if hertz:
                _stacks.begin(int(1e9 / hertz))
            sampled = rate(work)
            _stacks.end()
            _stacks.take()
            behind = rate(work)
            lost[hertz].append(100 * (1 - 2 * sampled / (before + behind)))
            before = behind
        for hertz, percent in lost.items():
            when = f"at {hertz} Hz" if hertz else "by nothing (A against A)"
            yield row(
                f"{name}: lost {when}",
                "± 2 %" if hertz == 200 else BESIDE, statistics.median(percent), "%",
                met=abs(statistics.median(percent)) <= 2 or hertz != 200, spread=spread(percent),
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--seconds", type=float, default=10, help="of truth and of nasty programs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/stacks.json"))
    asked = parser.parse_args()
    if why := _stacks.missing():
        raise SystemExit(f"Python's threads are not sampled: {why}")
    rows = []
    for name, measure in zip(
        PARTS, (truth, nasty, stored, endings, taken, lambda _: cost(0.2)), strict=True
    ):
        if name in (asked.only or PARTS):
            for found in measure(asked.seconds):
                told = f"{found['value']:8.3f} {found['unit']:7} {found['goal']:10} {found['what']}"
                print(told, {key: found[key] for key in MORE if key in found})
                rows.append(found)
    write(asked.out, command(), f"{os.cpu_count()} CPUs", rows)


if __name__ == "__main__":
    main()
