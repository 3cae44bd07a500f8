"""Write the pages of docs/ that follow from other files: docs/h200.md, docs/figures.md, the
tables and the differences from hardware in docs/simulator.md from benchmark results,
docs/gpu_profile.md from the profile's schema, docs/coverage.md from docs/rules.md and notebooks.

    python scripts/docs_pages.py [--check]

With --check nothing is written; exit 1 says that a page is out of date.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
import statistics
import sys
import textwrap
from operator import itemgetter
from pathlib import Path
from typing import Any

from coverage_page import coverage_page
from figures_page import figures_page
from pydantic import BaseModel
from ranks_page import ranks_picture, ranks_table

from gpuscope.simulator.profiles import schema
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.workloads.builtin import BUILT_IN

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from facts import BESIDE  # noqa: E402
from latencies import is_close  # noqa: E402
from saturation import CLOSE as SATURATED  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
NOTE = """Kernel times come from {source}. (Without a partition, events alone would mostly time the
wait for SMs.) `overlap_tight` shrinks every span by its stated uncertainty; it is empty if no
uncertainty is stated. A share of alone above 1 is noise: the reference is measured last, on a
hotter GPU."""

COUNTS = """Counts agree if nsys sees each of our kernels equally often in every pass. nsys records
the whole program: one call before the passes, the warm-up pass and the measured pass. gpuscope
records only the measured pass. So where gpuscope counts {ours}, nsys counts 1 + 2 × {ours}."""

CALIBRATION = """## Your own GPU

    gpuscope calibrate --out gpu.json
    gpuscope predict examples/quickstart.toml --gpu-profile gpu.json

In Python: `gpuscope.simulator.calibrate(path="gpu.json")`, then `open_device("sim:gpu.json")`.

Calibration takes less than 3 minutes and needs CUPTI (`gpuscope doctor` says how to install it).
Run it on an idle GPU, in a process that has not recorded yet: once CUPTI is on, calls cost more. It
prints the median and 90th percentile of the errors of predicted GEMM times, both for the shapes in
the fit and for a fifth of the shapes, which a second fit leaves out. The file is written at the
end, completely or not at all.

- **Host costs**: calls that launch nothing are timed 100 at a time through gpuscope, Python
  included; the median of seven such measurements counts. Creating a partition includes the probe
  of its SMs. Recorded kernels give the medians of three times: from the end of a launch call to the
  kernel's start, from a kernel's end to the host's return from a wait, and between two queued
  GEMMs. What a launch costs, before the kernel is queued and after it, and how that varies, comes
  from small experiments, recorded as every experiment is: in one launches follow each other at
  once, in others they come at random moments, since the later a launch comes, the longer it takes.
  They run now and then between the other measurements, since a host is also slower for seconds; of
  these samples, the median counts.
- **Power**: a 4096³ product of each dtype runs for 0.4 s. By how much slower it goes at the end
  than in the first 20 ms says what it draws.
- **Copies**: 64 MiB to the device and back, with one rate for both directions; 512 MiB on the
  device; the element-wise copy kernel over 64 and 512 MiB on every measured SM count.
- **GEMMs**: up to 640 shapes in four dtypes, on up to eight SM counts, each call alone. A few
  shapes are fixed and the others random: sides from 16 to 8192, half of them not multiples of 64.
  Times are fitted to calls in which cuBLAS is not told the SM count; calls with the count told say
  which tiles cuBLAS prefers. Calls that would take longer than 60 ms are left out and counted. On a
  slow GPU fewer shapes are measured, but at least 40.
- **Kernels**: the tile is read from the kernel's name (cuBLAS and CUTLASS, from Volta to
  Blackwell). Otherwise it is inferred from the kernel's grids, if some tile explains at least two
  of them. Kernels whose tile remains unknown are listed and not used in the fit.

Without green contexts (drivers before CUDA 12.4), everything is measured on all SMs. The simulated
GPU then cannot be carved, and the cost of a partition is that of an H200. A GPU without bfloat16
gets the times of float16 for it. `measured.source` in the file states both. The number of blocks
that an SM holds is estimated from the registers and shared memory of a Hopper SM; the fit absorbs a
constant factor.

Errors on an H100 and an H200 are on [the simulator's page](simulator.md).
""".splitlines()

FAMILIES = {
    "random": "random, four dtypes",
    "odd16": "odd sides, float16 and bfloat16",
    "thin32": "tall and thin, float32",
}
GROUPS = {
    "carving": "Carving",
    "host cost": "Host cost",
    "observer": "What guards, launches and recording cost",
    "throughput": "Throughput",
    "quickstart": "The quickstart",
    "contracts": "The stream contracts",
    "recording": "Recording",
    "events": "Recording by events",
    "latency": "Latency of a small GEMM, alone",
    "shapes": "The simulator's times of fresh shapes",
}


def number(value: float) -> str:
    return f"{value:.4g}"


def spread(found: dict[str, float]) -> str:
    return f"{number(found['median'])} ({number(found['min'])} to {number(found['max'])})"


SOAKS = (
    "soak_live",
    "soak_live_raises",
    "long_recording",
    "memory_soak",
    "interrupts",
)
"""Results of benchmarks that look for what is lost or wrong, where they were run."""


WHY_MISSED = {
    "kernels by samples of 10 µs": "Medians are 0.0 and −0.5 µs; why the worst are off is not "
    "understood. Tried: five counters and 64 MiB of hardware buffer (15 of 40 kernels without "
    "a loss nearby, the worst 0.3 and 344 µs), busy SMs alone and 512 MiB (27 of 40, 96 and 136).",
    "p99, live / recorded": "Slow calls wait for Python's lock while this process takes what was "
    "recorded and passes on a picture. Tried: painting in another process (4 to 8 times → 1.42), "
    "then one message a picture, one thread that stays and packed calls (1.09, 1.32 and 1.38 in "
    "three runs). Listing the calls that ended still holds the lock for 1.4 ms a picture.",
    "with launch ids, over a C callback": "Tried: CUPTI's own records of runtime and driver calls "
    "(1.09 to 1.29 µs), and a callback in C that notes launches in their place (0.49 to 0.52). "
    "CUPTI's records of kernels alone add 0.25 µs. Its clock is not the reason: a reading takes "
    "33 ns, one of the system's 28.",
    "beyond the bare process": "At the end the GPU is opened, to wait for its work and to see that "
    "every record arrived: that imports what recording alone has no need of. Rows are made of what "
    "CUPTI wrote in the program's process, before its trace is published.",
    "annotate, enter and exit, recording": "0.36 and 0.46 µs in two runs on 2026-11-22: it "
    "varies with the host.",
    "bound to CuPy": "CuPy's calls, to ask for its stream and to set it twice, take 0.59 µs of "
    "1.2, the unbound guard 0.38. Tried: binding in C, and keeping what CuPy's lookups return.",
    "quickstart: p99 of the small GEMM": "2.97 and 1.91 times in two runs on 2026-11-22. "
    "The p99 on the partition is the host's: p50 is 37 to 58 µs, and single calls wait "
    "up to 160 µs.",
    "by gpuscope, kernels only": "Of it, CUPTI's records of kernels cost 0.65 µs on an H200's "
    "host; what a launch costs varies with the host.",
    "modules: gpuscope record / bare": "CUPTI's records of kernels alone cost 1.19 × there, calls "
    "noted in C, too, 1.25 × (`gs.profile()`); handing the buffers to a file adds 1.4 %. Before, a "
    "thread of the process read and wrote: 1.24 to 1.5 × in other programs.",
    "by gpuscope, with launch ids": "As for kernels only, and 0.5 µs to note each call.",
    "Gemm.execute + wait: what hazards=True adds": "The wait is a second note. Tried: accesses "
    "kept with the handle, then notes that no second observer takes (before: 27 µs, simulated).",
    "stream.copy: what hazards=True adds": "A copy has two operands, whose bytes are found anew "
    "at each call: a handle keeps them. Tried as above (before: 20 µs, simulated).",
    "graph, 1 queued, two threads": "With one call in flight the stream idles while the host waits "
    "and launches again, and both threads need Python's lock for that. Tried: one thread for both "
    "(the same), and four calls queued (met).",
    "carve {64, 32, 16, 8, rest}": "6.85 ms on a faster host, on 2026-11-22.",
    "CallerStreamGuard enter + exit, unbound": "0.46 µs on a faster host, on 2026-11-22.",
    "stop → finished Trace": "1.5 M/s on a faster host, on 2026-11-22.",
    "the same with launch ids, 500,000": "1.7 M/s on a faster host, on 2026-11-22.",
    "annotate, enter and exit": "Half of that on a faster host, on 2026-11-22.",
    "what recording with launch ids adds at p50": "0.47 µs on another host, on 2026-11-22; 3.5 on "
    "2026-11-27, when CUPTI's records of waits were on, which notes in C took the place of.",
    "live timeline beside torch.mm": "0.45 µs on 2026-11-27. On 2026-11-28 the host varied: the "
    "eight pairs differ from -0.3 to 8.2 µs.",
    "by events / bare": "1.45 × on another host, on 2026-11-22, and not looked into on this one.",
    "guard, enter and exit, as on a host": "0.19 µs on another host, on 2026-11-22: how long "
    "Python's own steps take beside a launch differs, too.",
    "fresh shapes, not told, float32": "Its median is to be half of that of the simple rule, too, "
    "which it is not.",
}
"""Part of what a row says → why its goal is missed, and what was tried."""


def missed(rows: list[dict[str, Any]]) -> list[str]:
    """Why goals of these rows are missed."""
    reasons = []
    for row in rows:
        if row["goal"] != BESIDE and not row["met"]:
            part = next((part for part in WHY_MISSED if part in row["what"]), None)
            if part is None:
                raise SystemExit(f"say in WHY_MISSED why this goal is missed: {row['what']}")
            reasons.append(f"- *{row['what'].replace('|', chr(92) + '|')}*: {WHY_MISSED[part]}")
    return ["Missed:", "", *reasons, ""] if reasons else []


def at_clocks(stood: dict[str, Any] | None) -> str:
    """At which SM clock and power a section was measured."""
    if not stood:
        return "Clocks: not recorded."
    low, high = stood["lowest_mhz"], stood["highest_mhz"]
    slowed = ", ".join(stood["throttled"])
    return (
        f"Clocks: SM {stood['sm_clock_mhz']} MHz ({low} to {high}), {stood['power_w']} W; "
        f"{f'throttled: {slowed}' if slowed else 'not throttled'}."
    )


def h200_page(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    lines = [
        "# Figures measured on an H200",
        "",
        "Generated from `benchmarks/results/` by `make docs`; do not edit. A goal that was missed",
        "is marked **no**. *Told* means that cuBLAS was told the partition's SM count. Ratios",
        "compare measurements of one run, taken in turns on the same data. Values in parentheses",
        "are the least and the greatest, unless stated otherwise.",
        "",
        f"- Date: {facts['date']}",
        f"- Device: {facts['device']}, {facts['sm_count']} SMs, {facts['driver']}",
        f"- Versions: {versions}",
        f"- Command: `{facts['command']}` (`make bench-gpu`)",
        "",
        *([*(f"- {note}" for note in facts["notes"]), ""] if facts.get("notes") else []),
    ]
    for group, title in GROUPS.items():
        rows = [row for row in facts["rows"] if row["group"] == group]
        if not rows:
            continue
        dates = sorted({row.get("date", facts["date"]) for row in rows})
        clocks = at_clocks(facts.get("clocks", {}).get(group))
        lines += [f"## {title} ({', '.join(dates)})", "", clocks, "", *goals_table(rows)]
    recorders = json.loads((RESULTS / "recorders.json").read_text("utf-8"))
    lines += [
        f"## Recorders side by side ({recorders['date']}, `{recorders['command']}`)", "",
        f"On {recorders['machine']}, {recorders['driver']}. Each recorder has processes of its",
        "own, which take turns with bare ones; the recording begins before the loops that are",
        "timed and ends after them.", "", *goals_table(recorders["rows"]),
    ]  # fmt: skip
    if (path := RESULTS / "clock_sampler.json").exists():
        sampler = json.loads(path.read_text("utf-8"))
        lines += [
            f"## Reading clocks ({sampler['date']}, `{sampler['command']}`)", "",
            f"On {sampler['machine']}, beside a loop that launches empty kernels.",
            at_clocks(sampler["clocks"]), "", *goals_table(sampler["rows"]),
        ]  # fmt: skip
    counted = json.loads((RESULTS / "counters.json").read_text("utf-8"))
    lines += [
        f"## Sampled hardware counters ({counted['date']}, `{counted['command']}`)", "",
        f"On {counted['machine']}, {counted['driver']}. Kernels of known grids have one thread",
        "block an SM. *Without* leaves launch configurations out: grants alone bound the shares.",
        "", *goals_table(counted["rows"]),
    ]  # fmt: skip
    programs = json.loads((RESULTS / "recording_programs.json").read_text("utf-8"))
    lines += [
        "## Recorded programs", "",
        f"On {programs['machine']}, {programs['driver']}. Models and loops of Hugging Face's with",
        "random weights. Blocks that are recorded stand between blocks that are not, in one",
        "process: what each lost of the rate of its two neighbours, and the quartiles of that.",
        "The neighbours, too, are slower than a process that was never recorded; its rate stands",
        "first. Or each has a process of its own, where that is said.", "",
    ]  # fmt: skip
    for command, rows in itertools.groupby(
        sorted(programs["rows"], key=itemgetter("date", "command"), reverse=True),
        key=itemgetter("date", "command"),
    ):
        lines += ["{}, `{}`:".format(*command), "", *costs_table([*rows])]
    orders = json.loads((RESULTS / "graph_records.json").read_text("utf-8"))
    lines += [
        f"## Graphs recorded whole ({orders['date']}, `{orders['command']}`)", "",
        f"On {orders['machine']}, {orders['driver']}. Steps: `I` a graph of 100 kernels is",
        "instantiated, `L` each graph is launched 200 times, `k+`, `k-`, `g+`, `g-` switch records",
        "of kernels and of whole graphs, `c-` has a callback switch whole graphs off before a",
        "launch, `c+` on before an instantiation. Told is each `L`: whether graphs or their nodes",
        "are recorded, and how long a launch takes.", "", *orders_table(orders["rows"]),
    ]  # fmt: skip
    ends = json.loads((RESULTS / "record_end.json").read_text("utf-8"))
    lines += [
        f"## After a recorded program ({ends['date']}, `{ends['command']}`)", "",
        f"On {ends['machine']}, {ends['driver']}. A program of PyTorch leaves",
        f"{ends['rows'][0]['rows'][0]:,} rows: how long after its last statement.", "",
        *goals_table(ends["rows"]),
    ]  # fmt: skip
    lines += soaks_section()
    lines += traced_section(json.loads((RESULTS / "traced.json").read_text("utf-8")))
    models = json.loads((RESULTS / "models.json").read_text("utf-8"))
    lines += [
        f"## Models that share the GPU ({models['date']}, `{models['command']}`)", "",
        "Decoder layers of hidden size 4096 with random weights, batch 16. The idle gap is that of",
        "a stream between two calls of its workload, alone and beside another one that a thread of",
        "its own, or the same thread, launches.", "", *goals_table(models["rows"]),
    ]  # fmt: skip
    lines += hazards_section()
    lines += tuned_section(json.loads((RESULTS / "tune.json").read_text("utf-8")))
    lines += ["## Details", ""]
    for row in (*facts["rows"], *recorders["rows"]):
        lines += details(row)
    return "\n".join(lines) + "\n"


def goals_table(rows: list[dict[str, Any]]) -> list[str]:
    """Goals and what was measured, and why some were missed."""
    lines = ["| what | goal | measured | met |", "| --- | --- | --- | --- |"]
    for row in rows:
        value = f"{number(row['value'])} {row['unit']}".strip()
        met = "–" if row["goal"] == BESIDE else "yes" if row["met"] else "**no**"
        what = row["what"].replace("|", "\\|")
        lines.append(f"| {what} | {row['goal']} | {value} | {met} |")
    return [*lines, "", *missed(rows)]


def costs_table(rows: list[dict[str, Any]]) -> list[str]:
    """What each way to record costs each program."""
    lines = ["| what | median | quartiles |", "| --- | --- | --- |"]
    for row in rows:
        low, high = (number(row["spread"][name]) for name in ("min", "max"))
        added = row.get("added_us")
        more = f", {number(added['median'])} µs a launch" if added else ""
        if "after_s" in row:
            more = f"; {number(row['after_s']['median'])} s to its end"
            more += f", {number(row['megabytes'])} MB" if row["megabytes"] else ""
        value = f"{number(row['value'])} {row['unit']}{more}"
        lines.append(f"| {row['what']} | {value} | {low} to {high} |")
    return [*lines, ""]


def orders_table(rows: list[dict[str, Any]]) -> list[str]:
    """What became of each order in which graphs were instantiated and records switched."""
    lines = ["| steps | launches | process |", "| --- | --- | --- |"]
    for row in rows:
        told = (
            f"{'whole' if each['graphs'] else 'nodes' if each['kernels'] else 'nothing'}, "
            f"{each['us']:.0f} µs"
            for each in row["launches"]
        )
        ended = "crashed" if row["value"] < 0 else "failed" if row["value"] else "ended"
        lines.append(f"| `{row['what']}` | {'; '.join(told)} | {ended} |")
    return [*lines, ""]


def hazards_section() -> list[str]:
    """What confirming hazards by delay finds, and what looking for them costs."""
    lines = ["## Hazards", ""]
    for name in ("hazards_confirm", "hazards_cost", "hazards_torch"):
        facts = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
        lines += [f"`{facts['command']}`, {facts['date']}:", "", *goals_table(facts["rows"])]
    return lines


def soaks_section() -> list[str]:
    """Losses, wrong values and broken devices after minutes of stress."""
    lines = ["## Stress tests", ""]
    lines += ["| what | goal | measured | met | date, command |", "| --- | --- | --- | --- | --- |"]
    for path in (RESULTS / f"{name}.json" for name in SOAKS):
        if not path.exists():
            continue
        facts = json.loads(path.read_text("utf-8"))
        for row in facts["rows"]:
            met = "–" if row["goal"] == BESIDE else "yes" if row["met"] else "**no**"
            lines.append(
                f"| {row['what']} | {row['goal']} | {row['value']:,} {row['unit']} | {met} "
                f"| {facts['date']}, `{facts['command']}` |"
            )
    return [*lines, ""]


def traced_section(facts: dict[str, Any]) -> list[str]:
    """The cost of recording the SM and the times of every thread block."""
    lines = [
        f"## Traced kernels ({facts['date']}, `{facts['command']}`)",
        "",
        "Time with the recording of thread blocks on / off, measured in turns. The goal is ≤ 1.03,",
        "or ≤ 0.1 µs.",
        "",
        "| work | off, µs | on / off, median (least to most) | met |",
        "| --- | --- | --- | --- |",
    ]
    for kind in ("gemm", "copy"):
        for name, one in facts[kind].items():
            ratio = one["on_over_off"]["median"]
            is_met = ratio <= 1.03 or (ratio - 1) * one["off_us"] <= 0.1
            met = "yes" if is_met else "**no**"
            costs = f"{number(one['off_us'])} | {spread(one['on_over_off'])}"
            lines.append(f"| {kind} {name} | {costs} | {met} |")
    best = facts["gemm"]["4096³"]
    ours, cublas = number(best["tflop_per_s"]), number(best["gemm_tflop_per_s"])
    rates = f"reaches {ours} TFLOP/s at 4096³, cuBLAS {cublas}"
    step = facts["timer"]["step_ns"]
    lines += ["", f"The traced GEMM {rates}. `%globaltimer` has steps of {step} ns.", ""]
    return lines


def tuned_section(facts: dict[str, Any]) -> list[str]:
    """What tuned splits are worth: against every split, and against SGLang's table."""
    lines = [
        f"## Tuned splits ({facts['date']}, `python benchmarks/tune.py`)",
        "",
        "A prefill in the background and a decode step, both of decoder layers with random weights",
        "(`examples/decoder.py`), each on a partition. Sought is the greatest rate of prefill",
        "while decode's median latency is at most 1.5 times that alone on the whole GPU. The best",
        "of all 15 splits has the best median of the turns stated; it and the tuned split were",
        "then measured again, five times each in turns. Goals: rate of the tuned split ≥ 97 % of",
        "the best one's, decode within its limit, with at most 25 runs (a third of 15 × 5).",
        "124 | 8 stands for 120 | 12, on whose remainder cuBLAS refused a product of decode.",
        "",
        "| models | tuned: prefill SMs (runs) | best (turns) | rate | decode, µs (≤) | met |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in facts["pairs"].values():
        words = "; ".join(
            ", ".join(f"{name} {value}" for name, value in row["pair"][part].items())
            for part in ("prefill", "decode")
        )
        within = row["chosen_us"] <= row["slo_us"]
        is_met = row["ratio"] >= 0.97 and row["tuned_runs"] <= 25 and within
        lines.append(
            f"| {words} | {row['chosen']} ({row['tuned_runs']}) | {row['best']} "
            f"({row['grid_turns']}) | {100 * row['ratio']:.1f} % | {number(row['chosen_us'])} "
            f"({number(row['slo_us'])}) | {'yes' if is_met else '**no**'} |"
        )
    if facts["table"]:
        lines += [
            "",
            "SGLang's default split for a decode batch against a tuned one, hidden size 4096, at",
            "the same limit for decode: prefill's calls a second, and decode's latency in µs;",
            "medians of five runs each, in turns.",
            "",
            "| batch | limit | default: prefill SMs | rate | latency | tuned | rate | latency |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
    for row in facts["table"]:
        cells = [row["batch"], number(row["slo_us"])]
        for name in ("default", "tuned"):
            keys = (name, f"{name}_rate", f"{name}_us")
            cells += [number(row[key]) if key in row else "–" for key in keys]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return [*lines, ""]


def details(row: dict[str, Any]) -> list[str]:
    lines = []
    if "spread" in row and "first_ms" not in row:
        bare = f"; bare {spread(row['bare_us'])} µs" if "bare_us" in row else ""
        lines += [f"{row['what']}: {spread(row['spread'])} {row['unit']}{bare}.", ""]
    if "first_ms" in row:
        text = f"{row['what']}: {spread(row['spread'])} {row['unit']}; the first call, which "
        disjoint = "disjoint" if row["disjoint"] else "not disjoint"
        text += f"compiles the probe kernel, {number(row['first_ms'])} ms. The probe saw "
        text += f"{row['union']} SMs, {disjoint}. Repeated with the contexts kept: "
        lines += [f"{text}{spread(row['again_ms'])} ms.", ""]
    if "us" in row:
        lines += ["Host cost of one call, µs, median (least to most):", ""]
        lines += [f"- {name}: {spread(found)}" for name, found in row["us"].items()]
        lines.append("")
    if "ours_us" in row:
        text = f"{row['what']}: ours {spread(row['ours_us'])} µs, "
        lines += [f"{text}PyTorch {spread(row['torch_us'])} µs.", ""]
    if "comparison" in row:
        names = list(row["comparison"][0])
        lines += ["The quickstart in full:", "", "| " + " | ".join(names) + " |"]
        lines.append("| " + " | ".join("---" for _ in names) + " |")
        for one in row["comparison"]:
            cells = ("" if v is None else number(v) if isinstance(v, float) else
                     str(v).replace("|", "\\|") for v in one.values())  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
        queued = ", ".join(f"{name}: {count}" for name, count in row["least_queued"].items())
        text = f"Fewest load kernels queued at any sample: {queued}. "
        source = row.get("source", "events around each launch").replace("cupti", "CUPTI")
        lines += ["", f"{text}The run took {number(row['seconds'])} s.", ""]
        lines += [NOTE.format(source=source), ""]
    if "kernels" in row and isinstance(row["kernels"], dict):
        lines += ["Kernels of the program under both, median ns and counts:", ""]
        lines += [
            "| kernel | ours | nsys | difference | counts |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| `{name}` | {one['ours_ns']:.0f} | {one['nsys_ns']:.0f} | "
            f"{100 * one['difference']:+.2f} % | {one['ours_count']}, {one['nsys_count']} |"
            for name, one in row["kernels"].items()
        ]
        ours = min(one["ours_count"] for one in row["kernels"].values())
        lines += ["", *prose(COUNTS.format(ours=ours)), ""]
    return lines


def percent(value: float, *, signed: bool = False) -> str:
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def prose(*parts: str, indent: str = "") -> list[str]:
    """A paragraph, or with an indent a point of a list, in lines."""
    return textwrap.wrap(
        " ".join(parts), 99, subsequent_indent=indent, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def row_with(facts: dict[str, Any], key: str) -> dict[str, Any]:
    """The one row of benchmark results that has a key."""
    (row,) = [one for one in facts["rows"] if key in one]
    return row


def error_table(facts: dict[str, Any]) -> list[str]:
    row = row_with(facts, "in_fit")
    inside, told = row["in_fit"]["all"], row["told"]
    return [
        *prose(
            f"Computed by `{facts['command']}` on {facts['date']}: {row['shapes']} shapes in",
            f"{row['folds']} folds, each predicted by a fit to the others. A shape is in one fold,",
            "with all its dtypes and SM counts.",
        ),
        "",
        *errors_by_dtype(row["error"]),
        "",
        *prose(
            f"Without leaving a fold out, the median error is {percent(inside['median'])} and the",
            f"p90 {percent(inside['p90'])}. For {told['rows']} float16 squares from 2048³,",
            "measured separately with the SM count told and used in no fit, the median error is",
            f"{percent(told['median'])} and the largest {percent(told['max'])}.",
        ),
    ]


def memory_law(cases: dict[str, Any], blocks: dict[str, Any]) -> list[str]:
    """The constants of memory and cache, and how far kernels beside others are off."""
    h100, h200 = (GpuProfile.load(name).file for name in ("h100", "h200"))
    memory, exposure = h100.memory, h100.memory.exposure
    of_h200 = h200.memory.exposure
    whole = blocks["rows"][-1]
    closes = {}
    for fitted in (True, False):
        rows = [
            row["kernel_median_us"] for row in cases["rows"]
            if row["fitted"] == fitted and row["setting"] != "free" and "kernel_median_us" in row
        ]  # fmt: skip
        close = sum(abs(row["error"]) <= 0.2 for row in rows)
        closes[fitted] = f"{close} of {len(rows)}"
    held, none = (round(nbytes / 1e6) for nbytes in memory.cached_bytes)
    return prose(
        f"Of an H100, `calibrate` finds exposures of {exposure.copies:.2f} for copies,",
        f"{exposure.products['float16']:.2f} for float16 and",
        f"{exposure.products['float32']:.2f} for float32 products, of an H200",
        f"{of_h200.copies:.2f}, {of_h200.products['float16']:.2f} and",
        f"{of_h200.products['float32']:.2f}; {percent(memory.misses['float16'])} of the operands",
        "that a product's tiles load count as moved on an H100, and",
        f"{percent(h200.memory.misses['float16'])} on an H200, whose memory is faster and whose",
        "cache is not. An H100's cache holds all that work touches up to",
        f"{held} MB and nothing from {none} MB on; {memory.cache_bytes / 1e6:.0f} MB of others",
        f"replace all of it. Of a copy on {whole['sms']} SMs the first thread blocks end at",
        f"{percent(whole['end_of_blocks']['0'])} of its time. Kernel medians on partitions beside",
        f"others (`benchmarks/contention.py`, {cases['seen']['on']}) are within 20 % for",
        f"{closes[True]} cases that are measured for the fit, and for {closes[False]} others. Left",
        "out are products of vectors on 40 SMs, which the library splits into two kernels; that is",
        "not modelled. The constants of `sim:h200` are fitted to an H200",
        "(`benchmarks/memory_law.py`); its pairs, which are in no fit, are below.",
    )


def softmax_table(facts: dict[str, Any]) -> list[str]:
    """How far the simulated softmax is off where nothing was fitted, by SM count."""
    off: dict[int, list[float]] = {}
    profile = GpuProfile.load("h100")
    for row in facts["held_out"]:
        cost = profile.softmax_cost(row["rows"], row["columns"], row["sm_count"])
        simulated_us = cost.alone_ns(row["sm_count"]) / 1e3
        off.setdefault(row["sm_count"], []).append(abs(simulated_us / row["us"] - 1))
    lines = prose(
        "A softmax takes its launch and the soft maximum of what bounds it: the latency of its",
        "blocks, of which an SM holds eight; the SM's work for blocks and columns; and its data,",
        "from the SM's load units, the cache and memory. Rows that the level-1 cache does not hold",
        "are read again, from memory where too many are in work",
        "(`simulator/models/row_model.py`). `calibrate` fits the constants; `sim:h200` has the",
        "H100's. Sizes that were not measured, on",
        f"{facts['machine'].partition(', ')[2]} ({facts['date']}, `{facts['command']}`), alone:",
    )
    lines += ["", "| SMs | cases | off by, median | worst |", "| --- | --- | --- | --- |"]
    every = [error for errors in off.values() for error in errors]
    for name, errors in (*((str(key), off[key]) for key in sorted(off)), ("all", every)):
        lines.append(
            f"| {name} | {len(errors)} | {percent(statistics.median(errors))} "
            f"| {percent(max(errors))} |"
        )
    return lines


def errors_by_dtype(errors: dict[str, Any]) -> list[str]:
    lines = [
        "| dtype | rows | median error | p90 | whole-GPU rate × SM share: median | p90 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for dtype, found in errors.items():
        cells = (percent(found[key]) for key in ("median", "p90", "share_median", "share_p90"))
        lines.append(f"| {dtype} | {found['rows']} | " + " | ".join(cells) + " |")
    return lines


def fresh_table(facts: dict[str, Any]) -> list[str]:
    """Errors on shapes drawn with a seed that the fit never saw."""
    row = row_with(facts, "fresh")
    again, measured = row["reproduced"], row["facts"]
    return [
        *prose(
            f"Measured by `make bench-gpu` on an {measured['device']} on {measured['date']} (seed",
            f"{measured['seed']}), cuBLAS not told the SM count:",
        ),
        "",
        *errors_by_dtype(row["fresh"]),
        "",
        *prose(
            f"{percent(row['off_by_half'])} of these rows are off by more than 1.5×,",
            f"{percent(row['off_by_two'])} by more than 2×. For 16-bit products whose rows are not",
            "aligned to 16 bytes, including shapes of the fit that were measured again, the median",
            f"error is {percent(row['unaligned']['median'])} and the p90",
            f"{percent(row['unaligned']['p90'])}.",
            f"Measurements themselves repeat within {percent(again['median'])} at the median and",
            f"{percent(again['p90'])} at p90 ({again['rows']} rows of the fit measured again).",
        ),
        "",
        *prose(
            "The same shapes, with cuBLAS told the SM count. The fit contains no such time:",
        ),
        "",
        *errors_by_dtype(row["fresh_told"]),
        "",
        "Small float16 squares in µs, without and with the SM count told:",
        "",
        "| product | SMs | not told: measured | simulated | told: measured | simulated |",
        "| --- | --- | --- | --- | --- | --- |",
        *(
            f"| {one['n']}³ | {one['sms']} | "
            + " | ".join(f"{one[key]:.1f}" for key in
                         ("us", "simulated_us", "told_us", "simulated_told_us"))
            + " |"
            for one in row["squares"]
        ),
    ]  # fmt: skip


def pairs_table(facts: dict[str, Any]) -> list[str]:
    """Makespans of concurrent workloads."""
    row = row_with(facts, "pairs")
    worst = max(row["pairs"], key=lambda each: abs(each["error"]))
    lines = [
        *prose(
            f"The median error is {percent(row['median'])}, the worst {percent(row['worst'])}.",
            "Where it is worst, equal kernels alone took up to",
            f"{percent(worst['alone_apart'])} longer one after another.",
            "*Slowest* is the duration of a workload's longest kernel beside the other workload /",
            "its median duration alone, for a and b.",
        ),
        "",
        "| a | b | SMs | measured ms | simulated ms | error | slowest, measured | simulated |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in row["pairs"]:
        sms = " \\| ".join(map(str, one["sms"])) if one["sms"] else "not partitioned"
        slowest, measured = (
            ", ".join(f"{one[key][name]:.2f}" for name in "ab")
            for key in ("slowest", "measured_slowest")
        )
        cells = (one["a"], one["b"], sms, f"{one['measured_us'] / 1e3:.2f}",
                 f"{one['simulated_us'] / 1e3:.2f}", percent(one["error"], signed=True),
                 measured, slowest)  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    others = row_with(facts, "thirteen")
    return [
        *lines,
        "",
        *prose(
            "Thirteen other splits of these workloads were measured later, on 2026-11-28: the",
            f"median error is {percent(others['median'])}, the worst {percent(others['worst'])}.",
            "Their errors under the model of then led to measuring products of a vector that come",
            "from memory, and to modelling launches of blocks; no constant is fitted to them.",
        ),
    ]


def forecast_table(results: dict[str, Any]) -> list[str]:
    """Errors of forecasts of recorded work."""
    rows = [
        ("a step on 8 to 116 SMs, from one recording on 132", "steps_1", "12 %, 30 %"),
        ("the same, from two, on 132 and 24", "steps_2", "5 %, 12 %"),
        ("cycles of two models at a time, from one", "pairs_1", "12 %, 30 %"),
        ("the same, from two", "pairs_2", "12 %, 30 %"),
        ("the end after a planted change", "planted", "5 %, 15 %"),
        ("the same, of the programs that rules were corrected on", "fitted", "none"),
    ]
    results = {**results, "fitted": {"summary": results["planted"]["fitted"]}}
    lines = [
        *prose(
            f"Computed by `python benchmarks/what_if.py` on {results['date']} from recordings of",
            "six PyTorch models on an H200: two transformer layers as prefill and decode, a",
            "convolution stack, and element-wise kernels with reductions. A case is one model on",
            "one SM count. The constants that judge a model's steps are fitted to the other five;",
            "the form of the model and the kinds of kernels were chosen with knowledge of all six.",
        ),
        "",
        "| what | cases | median error | p90 | worst | goal |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for what, name, goal in rows:
        if name in results:
            found = results[name]["summary"]
            cells = (str(found["n"]), *(percent(found[key]) for key in ("median", "p90", "worst")))
            lines.append(f"| {what} | {' | '.join(cells)} | {goal} |")
    lines += ["", "By model, median and worst error of a step:", ""]
    lines += ["| model | one recording | two |", "| --- | --- | --- |"]
    for model in dict.fromkeys(row["model"] for row in results["steps_1"]["rows"]):
        both: list[str] = []
        for name in ("steps_1", "steps_2"):
            mine = [abs(row["error"]) for row in results[name]["rows"] if row["model"] == model]
            both.append(f"{percent(statistics.median(mine))}, {percent(max(mine))}")
        lines.append(f"| {model} | {' | '.join(both)} |")
    lines += [
        "",
        *prose(
            "The shares of bandwidth and the stalls that two models cause each other were chosen",
            "with knowledge of these pairs; each has one value for all kernels of a kind.",
        ),
    ]
    lines += ["", *planted_table(results["planted"]), "", *bands_table(results["bands"])]
    first = results["pairs_2"]["rows"][0]
    lines += [
        "",
        (
            f"![Cycle times of {first['a']} beside {first['b']}: forecast and measured]"
            "(images/forecast.svg)"
        ),
    ]
    return lines


def planted_table(planted: dict[str, Any]) -> list[str]:
    """Planted changes, by their kind: those that judge, and those that rules were corrected on."""
    kinds: dict[str, tuple[list[float], list[float]]] = {}
    for row in planted["rows"]:
        kinds.setdefault(row["kind"], ([], []))[not row["judges"]].append(abs(row["error"]))
    judging = [row for row in planted["rows"] if row["judges"]]
    inside = sum(row["low_us"] <= row["measured_us"] <= row["high_us"] for row in judging)
    worst = max(row["as_it_was"] for row in judging)
    cells = {
        kind: [
            f"{len(errors)} | {percent(statistics.median(errors))} | {percent(max(errors))}"
            if errors
            else "0 | – | –"
            for errors in both
        ]
        for kind, both in kinds.items()
    }
    return [
        *prose(
            f"Planted changes: programs were recorded on an {planted['device']}",
            f"({planted['date']}), forecast with a change, and run with that change. Those that",
            "judge, of one to three streams on partitions and without, are drawn from the seed",
            f"{planted['seed']}; no rule was corrected on them. On the others, of two streams,",
            "the rate of copies and rules for waits, shared SMs and graphs were corrected. The end",
            f"of {inside} of the {len(judging)} that judge lies in the band as it was forecast",
            "then. Replayed without a change, every kernel starts within",
            f"{max(worst, 1e-4):.2%} of the makespan.".replace("%", " %"),
            *(
                f"First forecasts of the seed {one['seed']}, on which rules were corrected then, "
                f"were off by {percent(one['summary']['median'])} at the median and "
                f"{percent(one['summary']['p90'])} at p90."
                for one in planted.get("before", ())
            ),
        ),
        "",
        "| change | judging cases | median error | worst | corrected on | median error | worst |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(f"| {kind} | {' | '.join(both)} |" for kind, both in cells.items()),
    ]


def bands_table(bands: dict[str, Any]) -> list[str]:
    """In how many bands of forecasts the truth lies, and how wide they are."""
    return [
        *prose(
            f"Bands (`python benchmarks/what_if.py --bands`, {bands['date']}): a figure is",
            f"expected in its band in {percent(bands['promised'])} of cases. Random programs and",
            "changes were forecast from one run on the simulated GPU, and run with the change on",
            "another of its hosts, whose calls vary as measured; steps of the six PyTorch models",
            "are of the H200. The spreads of kernels' times were chosen with knowledge of these",
            f"models; no seed of the programs, from {bands['seed']} on, was used for another",
            f"purpose. Of {bands['unchanged']} random experiments in which nothing was changed,",
            f"{bands['as_they_were']} came back within 1 % in every column of the comparison; the",
            f"furthest was off by {100 * bands['furthest']:.2f} %.",
        ),
        "",
        "| figure | cases | in the band | median half width | median error |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {row['what']} | {row['n']} | {percent(row['inside'] / row['n'])} | "
            f"{percent(row['half_width'])} | {percent(row['error'])} |"
            for row in bands["rows"]
        ),
    ]


def forecast_picture(results: dict[str, Any]) -> str:
    """A split of two models: cycle times forecast from two recordings, and measured, as SVG."""
    rows = results["pairs_2"]["rows"]
    first = rows[0]
    mine = [row for row in rows if (row["a"], row["b"]) == (first["a"], first["b"])]
    splits = list(dict.fromkeys(
        "none" if row["sms"] is None else " | ".join(map(str, row["sms"])) for row in mine
    ))  # fmt: skip
    width, height, left, top, panel = 760, 300, 60, 40, 310
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{width}" height="{height}" fill="#FFFFFF"/>',
    ]
    for number, name in enumerate("ab"):
        at = left + number * (panel + 60)
        of = [row for row in mine if row["of"] == name]
        greatest = max(max(row["measured_us"], row["forecast_us"]) for row in of)
        power = 10.0 ** math.floor(math.log10(greatest / 4))
        round_steps = (power * times for times in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10))
        most = 4 * next(one for one in round_steps if 4 * one >= greatest)
        lines.append(f'<text x="{at}" y="20" font-weight="bold">{first[name]}: cycle, ms</text>')
        for step in range(5):
            value, y = most * step / 4, top + (height - 90) * (1 - step / 4)
            lines.append(
                f'<path d="M{at} {y:.0f}h{panel}" stroke="#E3E9EF"/>'
                f'<text x="{at - 6}" y="{y + 4:.0f}" text-anchor="end">{value / 1e3:.2g}</text>'
            )
        each = panel / len(splits)
        for place, row in enumerate(of):
            for bar, (key, color) in enumerate(
                (("measured_us", "#4C5B6B"), ("forecast_us", "#E08A2E"))
            ):
                tall = (height - 90) * row[key] / most
                lines.append(
                    f'<rect x="{at + place * each + 6 + bar * (each - 14) / 2:.0f}" '
                    f'y="{top + height - 90 - tall:.0f}" width="{(each - 14) / 2:.0f}" '
                    f'height="{tall:.0f}" fill="{color}"/>'
                )
            lines.append(
                f'<text x="{at + (place + 0.5) * each:.0f}" y="{height - 32}" '
                f'text-anchor="middle" font-size="10">{splits[place]}</text>'
            )
    lines += [
        (
            f'<rect x="{left}" y="{height - 18}" width="10" height="10" fill="#4C5B6B"/>'
            f'<text x="{left + 15}" y="{height - 9}">measured</text>'
        ),
        (
            f'<rect x="{left + 90}" y="{height - 18}" width="10" height="10" fill="#E08A2E"/>'
            f'<text x="{left + 105}" y="{height - 9}">forecast</text>'
            f'<text x="{left + 190}" y="{height - 9}">below each: SMs of {first["a"]} | '
            f"{first['b']}; none: the whole GPU for both</text>"
        ),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


Rows = list[dict[str, Any]]


def all_reduce_table(measured: Rows, simulated: Rows) -> list[str]:
    """What an all-reduce takes by size and SMs, alone and beside GEMMs, and as simulated."""
    sms = list(dict.fromkeys(row["sms"] for row in measured))
    sizes = list(dict.fromkeys(row["size"] for row in measured))
    at, of_model = (
        {(row["size"], row["sms"], row["beside_gemm"]): row for row in rows}
        for rows in (measured, simulated)
    )
    lines = [
        f"| SMs | {' | '.join(sizes)} | bus GB/s at {sizes[-1]} |",
        f"| --- |{' --- |' * (len(sizes) + 1)}",
    ]
    for count in sms:
        cells = []
        for size in sizes:
            alone, beside = at[size, count, False], at[size, count, True]
            kept = f"{beside['gemm_keeps']:.0%}"
            cells.append(f"{alone['time_us']:,.0f} → {beside['time_us']:,.0f} ({kept})")
        last = [at[sizes[-1], count, beside]["bus_gb_per_s"] for beside in (False, True)]
        cells.append(f"{last[0]:.0f} → {last[1]:.0f}")
        lines.append(f"| {count} | {' | '.join(cells)} |")

    def told(*, beside: bool) -> str:
        off = [
            abs(of_model[key]["time_us"] / row["time_us"] - 1)
            for key, row in at.items()
            if key[2] is beside
        ]
        return f"{statistics.median(off):.0%} off at the median and {max(off):.0%} at most"

    points = {
        few: max(
            abs(100 * (of_model[key]["gemm_keeps"] - row["gemm_keeps"]))
            for key, row in at.items()
            if key[2] and (key[1] == "8") is few
        )
        for few in (True, False)
    }
    said = prose(
        f"On two simulated H200s the times alone are {told(beside=False)},",
        f"those beside GEMMs {told(beside=True)}.",
        f"What GEMMs keep is up to {points[True]:.0f} points off beside 8 SMs, and up to",
        f"{points[False]:.0f} beside more.",
    )
    return [*lines, "", *said]


def queue_table(facts: dict[str, Any]) -> list[str]:
    """Return what a sweep's points cost besides themselves, and the efficiency over workers."""
    counts = ["1", "16", "64", "125", "250", "500", "1000"]
    us, most = facts["us"], facts["most_points_per_s"]
    told = (
        f"For each point, the asking process takes {us['submit_s']} µs to submit it and "
        f"{us['take_s']} µs to take and save its result; Dask's scheduler takes "
        f"{us['schedule_s']:,} µs (CPU times of {facts['tasks']:,} tasks that do nothing, on "
        f"{facts['cores']} cores, Dask {facts['dask']}, {facts['date']}, `{facts['command']}`)."
    )
    asking = us["submit_s"] + us["take_s"] > us["schedule_s"]
    limit = (
        f"{'The asking process' if asking else 'The scheduler'} limits: it takes {most} points a "
        f"second at most. With N workers, points should take N / {most} s or more; a job array "
        "(`--shard`) has an asking process in each job, no scheduler, and no such limit."
    )
    return [
        told,
        "",
        f"| a point takes | {' | '.join(f'{int(count):,}' for count in counts)} workers |",
        f"| --- |{' --- |' * len(counts)}",
        *(
            f"| {point} s | {' | '.join(f'{row[count]:.0%}' for count in counts)} |"
            for point, row in facts["efficiency"].items()
        ),
        "",
        "![Efficiency of a simulated sweep over its workers](../images/scale_out.svg)",
        "",
        limit,
    ]


def queue_picture(efficiency: dict[str, dict[str, float]]) -> str:
    """Efficiency of a simulated sweep over its workers, as SVG."""
    width, height, left, top, wide, tall = 760, 300, 60, 40, 560, 200
    size = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f'<rect width="{width}" height="{height}" fill="#FFFFFF"/>',
        f'<text x="{left}" y="20" font-weight="bold">points\' share of the workers\' time</text>',
        f'<text x="{left + wide / 2:.0f}" y="{height - 12}" text-anchor="middle">workers</text>',
    ]

    def place(count: str, share: float) -> tuple[float, float]:
        return left + wide * math.log10(int(count)) / 3, top + tall * (1 - share)

    for step in range(5):
        _, y = place("1", step / 4)
        lines.append(
            f'<path d="M{left} {y:.0f}h{wide}" stroke="#E3E9EF"/><text x="{left - 6}" '
            f'y="{y + 4:.0f}" text-anchor="end">{step / 4:.0%}</text>'
        )
    for count in ("1", "10", "100", "1000"):
        x, y = place(count, 0)
        lines.append(
            f'<text x="{x:.0f}" y="{y + 16:.0f}" text-anchor="middle">{int(count):,}</text>'
        )
    for (point, row), color in zip(
        efficiency.items(), ("#E08A2E", "#2E7DB5", "#4C5B6B"), strict=True
    ):
        places = [place(count, share) for count, share in row.items()]
        path = "L".join(f"{x:.0f} {y:.0f}" for x, y in places)
        lines.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        x, y = places[-1]
        lines.append(
            f'<text x="{x + 8:.0f}" y="{y + 4:.0f}" fill="{color}">{point} s a point</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def all_reduce_picture(measured: Rows, simulated: Rows) -> str:
    """Time of an all-reduce of 128 MiB over SMs, and what GEMMs beside it keep, as SVG."""
    width, height, left, top, panel, tall = 760, 300, 60, 40, 290, 200
    size = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f'<rect width="{width}" height="{height}" fill="#FFFFFF"/>',
    ]

    def axes(at: int, title: str, most: float, form: str) -> None:
        lines.append(f'<text x="{at}" y="20" font-weight="bold">{title}</text>')
        for step in range(5):
            y = top + tall * (1 - step / 4)
            lines.append(
                f'<path d="M{at} {y:.0f}h{panel}" stroke="#E3E9EF"/><text x="{at - 6}" '
                f'y="{y + 4:.0f}" text-anchor="end">{format(most * step / 4, form)}</text>'
            )
        for count in (8, 16, 24, 32, 48, 64):
            lines.append(
                f'<text x="{at + panel * count / 68:.0f}" y="{top + tall + 16}" '
                f'text-anchor="middle">{count}</text>'
            )

    def drawn(at: int, key: str, most: float, *, beside: bool) -> None:
        color = "#E08A2E" if beside else "#4C5B6B"
        line, dots = (
            [
                (at + panel * int(row["sms"]) / 68, top + tall * (1 - row[key] / most))
                for row in rows
                if row["size"] == "128 MiB"
                and row["sms"].isdecimal()
                and row["beside_gemm"] is beside
            ]
            for rows in (simulated, measured)
        )
        path = "L".join(f"{x:.0f} {y:.0f}" for x, y in line)
        lines.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        for x, y in dots:
            lines.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4.5" fill="{color}"/>')

    right = left + panel + 90
    axes(left, "all-reduce of 128 MiB, µs", 1200, ",.0f")
    axes(right, "what 4096³ GEMMs keep of their rate", 1, ".0%")
    drawn(left, "time_us", 1200, beside=False)
    drawn(left, "time_us", 1200, beside=True)
    drawn(right, "gemm_keeps", 1, beside=True)
    lines += [
        f'<text x="{left}" y="{height - 12}">dots: measured on two H200s,',
        '<tspan fill="#4C5B6B">alone</tspan> and <tspan fill="#B86A15">beside GEMMs</tspan>;',
        "lines: simulated; below: SMs of the sum's partition</text>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def differences(cpu: dict[str, Any], latencies: dict[str, Any]) -> list[str]:
    """Differences between simulation and hardware that the results show."""
    beside = [one for one in row_with(cpu, "pairs")["pairs"] if one["sms"]]

    def most(key: str, *names: str) -> float:
        return max(
            one[key][name] for one in beside for name in "ab"
            if {one["a"].split()[-1], one["b"].split()[-1]} == set(names)
            and one[name].endswith(names[0])
        )  # fmt: skip

    def both(*names: str) -> str:
        measured, seen = (most(key, *names) for key in ("measured_slowest", "slowest"))
        return f"{measured:.2f}× as long (simulated {seen:.2f}×)"

    apart = {
        name[-6:-3]: max(one["floor"] for one in latencies["rows"] if one["what"] == name)
        for name in ("latency_p50_us", "latency_p90_us", "latency_p99_us")
    }
    points = [
        (
            "- **What concurrent kernels do to each other follows one law**: the slowest",
            "kernel beside another workload took, compared with its median alone, gemm4096 beside",
            "gemm4096",
            f"{both('gemm4096')}, sgemm2048 beside gemm4096 {both('sgemm2048', 'gemm4096')},",
            f"gemm8192 beside gemv {both('gemm8192', 'gemv')}, small512 beside gemm8192",
            f"{both('small512', 'gemm8192')}.",
        ),
        (
            "- **The host that was measured is not yours, and not the same an hour later.**",
            "Measured",
            "twice within minutes, the quickstart's quantiles differ by up to",
            f"{percent(apart['p50'])} (p50), {percent(apart['p90'])} (p90) and",
            f"{percent(apart['p99'])} (p99). Calibrate on your own machine.",
        ),
    ]
    return [line for point in points for line in prose(*point, indent="  ")]


def other_gpu_table(shapes: dict[str, Any]) -> list[str]:
    """Errors of the profile that a calibration made of a GPU nobody had calibrated on before."""
    profile = GpuProfile.load("h100")
    off: dict[tuple[str, bool], list[float]] = {}
    for row in shapes["rows"]:
        m, n, k = row["shape"]
        for told, times in ((False, row["us"]), (True, row["told_us"])):
            for sms, us in times.items():
                heard = row["told"][sms] if told else 0
                cost = profile.gemm_cost(m, n, k, row["dtype"], int(sms), heard)
                error = abs(cost.alone_ns(int(sms)) / 1e3 / us - 1)
                off.setdefault((row["family"], told), []).append(error)
    every = [error for errors in off.values() for error in errors]
    measured = profile.file.measured
    lines = [
        *prose(
            f"`sim:h100` is what `calibrate` made of an {shapes['device']} on {shapes['date']}: of",
            f"{measured.shapes} shapes it measured {measured.rows:,} times, and as many with the",
            f"SM count told, in {shapes['calibrated_s']} s; the fit takes less than a minute.",
            "Shapes that it did not measure (`benchmarks/fresh_shapes.py`), on 8, 24, 64, 120 and",
            f"132 SMs, are off by {percent(statistics.median(every))} at the median and",
            f"{percent(sorted(every)[int(0.9 * len(every))])} at p90. How the library prefers",
            "tiles was modelled after the odd shapes among them had been off by 50 % at p90, told.",
        ),
        "",
        "| shapes | SM count told | rows | median error | p90 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (family, told), errors in off.items():
        p90 = sorted(errors)[int(0.9 * len(errors))]
        lines.append(
            f"| {FAMILIES[family]} | {'yes' if told else 'no'} | {len(errors)} | "
            f"{percent(statistics.median(errors))} | {percent(p90)} |"
        )
    return lines


def saturation_table(saturation: dict[str, Any]) -> list[str]:
    """Requests near saturation, measured and simulated."""
    rows, seen = saturation["rows"], saturation["seen"]
    close = [row for row in rows if abs(row["error"]) <= max(SATURATED, row["floor"])]
    lines = [
        *prose(
            f"Measured twice on an {seen['device']} on {seen['measured_on']}, with its host's",
            f"calibration of that minute: {len(close)} of {len(rows)} are within",
            f"{percent(SATURATED)}, or within what two measurements differ by, which is in",
            "brackets. Times in ms, goodput in requests a second.",
        ),
        "",
        "| load | what | measured | simulated | error |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        scale = 1e6 if row["what"].endswith("_ns") else 1.0
        lines.append(
            f"| {row['load']} | {row['what'].removesuffix('_ns').replace('_', ' ')} | "
            f"{row['measured'] / scale:.4g} (± {percent(row['floor'])}) | "
            f"{row['simulated'] / scale:.4g} | {percent(row['error'])} |"
        )
    return lines


def latencies_table(latencies: dict[str, Any]) -> list[str]:
    """Quantiles of every setting, simulated and measured."""
    rows, names = latencies["rows"], ("latency_p50_us", "latency_p90_us", "latency_p99_us")
    held = [one for one in rows if one["held_out"]]
    each = ", ".join(str(close) for _, close in latencies.get("close_behind_each", ()))
    each = each and f"; with one calibration alone {each}"
    lines = [
        *prose(
            f"Measured on an {latencies['device']} on {latencies['measured_on']}. Of the",
            f"{len(rows)} quantiles {sum(map(is_close, rows))} are within 20 %, or within what two",
            "measurements differ by",
            *(
                [
                    f"(of the {len(held)} of experiments that nothing was fitted to",
                    f"{sum(map(is_close, held))}{each});",
                ]
                if held
                else [";"]
            ),
            "the median error is",
            f"{percent(statistics.median(abs(one['error']) for one in rows))}, the worst",
            f"{percent(max(abs(one['error']) for one in rows))}. In brackets is by how much a",
            "second measurement, minutes later, differed, where one was made. Times in µs.",
        ),
        "",
        "| experiment | setting | p50 measured | simulated | p90 | simulated | p99 | simulated |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    settings = dict.fromkeys((one["experiment"], one["setting"]) for one in rows)
    for experiment, setting in settings:
        cells = [experiment, setting.replace("|", "\\|")]
        for name in names:
            (one,) = (
                row for row in rows
                if (row["experiment"], row["setting"], row["what"]) == (experiment, setting, name)
            )  # fmt: skip
            apart = f" (± {percent(one['floor'])})" if one["floor"] else ""
            cells.append(number(one["measured"]) + apart)
            cells.append(number(one["simulated"]))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def profile_page() -> str:
    """The fields of a GPU profile, from its schema."""
    lines = [
        "# GPU profiles",
        "",
        "Generated from `gpuscope/simulator/profiles/schema.py` by `make docs`; do not edit.",
        "",
        "A GPU profile is a JSON file that describes a GPU to the simulator: its SMs, the cost of",
        "host calls, and the constants of its kernels' times. `sim:h100` and `sim:h200`",
        "ship with the package;",
        '`open_device("sim:PATH.json")` opens your own. Every field is required, no other field is',
        "allowed, and numbers are finite. If a field is wrong, `InvalidProfile` names its path,",
        "such as `gemm.float16.0.times.load_us`. [How a GEMM is",
        "timed](simulator.md#how-a-gemm-is-timed) explains the constants.",
        "",
        "No figure comes from a datasheet. `gpuscope calibrate` measures a GPU.",
        "`python scripts/fit_profile.py` uses the same code to fit `sim:h200` to the measurements",
        "in `benchmarks/data/`.",
        "",
        *CALIBRATION,
        "",
    ]
    parts: list[tuple[str, type[BaseModel]]] = [
        ("At the top", schema.ProfileFile),
        ("`device`", schema.DeviceLayout),
        ("`measured`", schema.Measured),
        ("`constants`", schema.HostCosts),
        ("`transfers`", schema.Transfers),
        ("`copy`", schema.CopyTimes),
        ("`rows`", schema.RowTimes),
        ("`memory`", schema.MemoryTimes),
        ("`memory.exposure`", schema.Exposure),
        ("`gemm.DTYPE.N`, for float16, bfloat16, float32 and float64", schema.GemmKernels),
        ("`gemm.DTYPE.N.times`", schema.KernelTimes),
        ("`gemm.DTYPE.N.choice`", schema.KernelChoice),
    ]
    for title, model in parts:
        properties = model.model_json_schema()["properties"]
        lines += [f"## {title}", "", f"{inspect.cleandoc(model.__doc__ or '')}", ""]
        lines += ["| field | value | what |", "| --- | --- | --- |"]
        lines += [
            f"| `{name}` | {allowed(found)} | {' '.join(model_field.description.split())} |"
            for (name, found), model_field in zip(
                properties.items(), model.model_fields.values(), strict=True
            )
        ]
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def allowed(found: dict[str, Any]) -> str:
    """What a field's JSON schema allows, in words."""
    if "const" in found:
        return f"{found['const']}"
    if "enum" in found:
        return ", ".join(map(str, found["enum"]))
    kind = {"integer": "whole number", "number": "number", "string": "text", "array": "list",
            "boolean": "true or false"}.get(found.get("type", ""), "table")  # fmt: skip
    bounds = {"exclusiveMinimum": ">", "minimum": "≥", "maximum": "≤"}
    words = [f"{sign} {found[name]:g}" for name, sign in bounds.items() if name in found]
    return " ".join([kind, ", ".join(words)]).strip()


def between(text: str, name: str, inside: list[str]) -> str:
    """Put lines between the two marks of a name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"no {begin} … {end}")
    return "\n".join([before + begin, *inside, end + after])


def pages() -> dict[Path, str]:
    found = {}
    gpu, cpu, latencies, other, shapes, timeline, scale, browser, grading, noise, *files = (
        json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
        for name in (
            "h200",
            "cpu",
            "latencies",
            "latencies_h100",
            "shapes_h100",
            "timeline",
            "scale",
            "browser",
            "grading",
            "diff_noise",
            "importing",
            "exporting",
        )
    )
    found[ROOT / "docs" / "h200.md"] = h200_page(gpu)
    found[ROOT / "docs" / "gpu_profile.md"] = profile_page()
    found[ROOT / "docs" / "figures.md"] = figures_page(
        cpu, timeline, scale, browser, grading, files, noise
    )
    simulator = ROOT / "docs" / "simulator.md"
    text = simulator.read_text("utf-8")
    parts = {
        "error table": error_table(cpu),
        "fresh table": fresh_table(cpu),
        "pairs table": pairs_table(cpu),
        "latencies table": latencies_table(latencies),
        "other latencies table": latencies_table(other),
        "saturation table": saturation_table(
            json.loads((RESULTS / "saturation_h100.json").read_text("utf-8"))
        ),
        "other GPU table": other_gpu_table(shapes),
        "memory law": memory_law(
            *(
                json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
                for name in ("contention_h100", "copy_blocks")
            )
        ),
        "softmax table": softmax_table(json.loads((RESULTS / "softmax.json").read_text("utf-8"))),
        "differences": differences(cpu, latencies),
    }
    for name, inside in parts.items():
        text = between(text, name, inside)
    forecasts = json.loads((RESULTS / "what_if.json").read_text("utf-8"))
    found[simulator] = between(text, "forecast table", forecast_table(forecasts))
    found[ROOT / "docs" / "images" / "forecast.svg"] = forecast_picture(forecasts)
    sums = [
        json.loads((RESULTS / f"all_reduce{kind}.json").read_text("utf-8"))["rows"]
        for kind in ("", "_simulated")
    ]
    howto = ROOT / "docs" / "howto" / "all_reduce.md"
    text = between(howto.read_text("utf-8"), "all-reduce table", all_reduce_table(*sums))
    of_ranks = [
        json.loads((RESULTS / f"ranks_gpu{kind}.json").read_text("utf-8"))
        for kind in ("", "_simulated_h100")
    ]
    found[howto] = between(text, "ranks table", ranks_table(*of_ranks))
    found[ROOT / "docs" / "images" / "ranks.svg"] = ranks_picture(*of_ranks)
    found[ROOT / "docs" / "images" / "all_reduce.svg"] = all_reduce_picture(*sums)
    queue = json.loads((RESULTS / "scale_out_queue.json").read_text("utf-8"))
    several = ROOT / "docs" / "howto" / "several_gpus.md"
    found[several] = between(several.read_text("utf-8"), "queue table", queue_table(queue))
    found[ROOT / "docs" / "images" / "scale_out.svg"] = queue_picture(queue["efficiency"])
    help_page = ROOT / "docs" / "howto" / "find_what_would_help.md"
    culprits = json.loads((RESULTS / "culprits.json").read_text("utf-8"))
    found[help_page] = between(
        help_page.read_text("utf-8"), "culprits table", culprits_table(culprits)
    )
    slower = ROOT / "docs" / "howto" / "did_it_get_slower.md"
    seen = json.loads((RESULTS / "diff.json").read_text("utf-8"))
    found[slower] = between(slower.read_text("utf-8"), "diff table", diff_table(seen))
    experiment = ROOT / "docs" / "experiment.md"
    found[experiment] = between(experiment.read_text("utf-8"), "kinds", kinds_table())
    rules, notes = (ROOT / "docs" / name for name in ("rules.md", "coverage.toml"))
    page = coverage_page(rules.read_text("utf-8"), notes.read_text("utf-8"))
    found[ROOT / "docs" / "coverage.md"] = page
    return found


def culprits_table(results: dict[str, Any]) -> list[str]:
    """Return what was named first of slow programs, and what mending it gained."""
    rows = results["rows"]
    named, inside = (sum(row[key] for row in rows) for key in ("is the culprit", "in band"))
    machine = results["machine"].partition(", ")[2].partition(";")[0]
    lines = [
        f"Recorded on {machine} ({results['date']}, `{results['command']}`):",
        f"of {len(rows)} programs the culprit was named first of {named}, and what mending gained",
        f"lay within its bounds for {inside}, as shares of the loop's time. Where not, the mended",
        "program does more than leave the culprit out, or the recording slowed the host down.",
        "",
        "| program | named first | predicted | on the path | measured | within |",
        "| --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for row in rows:
        shares = " | ".join(
            f"{100 * share:.1f} %" for share in (row["predicted"], row["band"][1], row["gain"])
        )
        what = row["named first"].partition(":")[0].partition(",")[0].partition(" before")[0]
        is_inside = "yes" if row["in band"] else "**no**"
        lines.append(f"| `{row['program']}` | {what} | {shares} | {is_inside} |")
    profiled = results["profiled"]
    told = sum(row["is the culprit"] for row in profiled)
    hosts = sum(
        row["HolisticTraceAnalysis"]["idle by"].get("host_wait", 0) > 0.5 for row in profiled
    )
    idle = max(abs(row["idle %"] - row["HolisticTraceAnalysis"]["idle %"]) for row in profiled)
    return [
        *lines, "",
        f"Of {len(profiled)} traces that torch.profiler took of 20 steps, which tell neither waits",
        f"nor lines, it names {told} culprits first. HolisticTraceAnalysis 0.5 says of {hosts} of",
        "the same traces that the GPU waited for the host, and names no culprit; its idle shares",
        f"differ by at most {idle:.1f} points: gpuscope leaves warm-up out.",
    ]  # fmt: skip


def diff_table(results: dict[str, Any]) -> list[str]:
    """Return how often equal sides were called different, and what was seen of known changes."""
    rows = {row["what"]: row for row in results["rows"]}
    machine = results["machine"].partition(", ")[2]
    lines = [
        f"On an {machine} ({results['date']}, `{results['command']}`;",
        f"{results['note']}), each diff of about 30 s:",
        "",
        "| compared with itself | false alarms | p50 within | one capture of each, floor 2 % |",
        "| --- | --- | --- | --- |",
    ]
    for what, row in rows.items():
        if not what.startswith("same: ") or not what.endswith(": false alarms"):
            continue
        name = what.removeprefix("same: ").removesuffix(": false alarms")
        captures = rows[f"same: {name}: one capture of each, floor 2 %"]
        reach = [max(abs(low), abs(high)) for of, _, low, high, _ in row["numbers"] if "p50" in of]
        within = " and ".join(f"{100 * each:.1f} %" for each in reach)
        alarms = f"{captures['value']} {captures['unit']} are false alarms"
        lines.append(f"| {name} | {row['value']} {row['unit']} | {within} | {alarms} |")
    lines += ["", "| a kernel of 100 µs takes longer by | seen | interval holds it |"]
    lines.append("| --- | --- | --- |")
    for what, row in rows.items():
        if what.startswith("changed by ") and what.endswith(": seen"):
            held = rows[what.replace(": seen", ": interval holds it")]
            share = what.removeprefix("changed by ").partition(" of")[0]
            cells = f"{row['value']} {row['unit']} | {held['value']} {held['unit']}"
            lines.append(f"| {share} | {cells} |")
    return lines


def kinds_table() -> list[str]:
    """Return what each workload kind of gpuscope declares."""
    lines = ["| kind | its fields | what |", "| --- | --- | --- |"]
    for spec in BUILT_IN.values():
        fields = []
        for field in spec.kind_fields():
            choices = f" (or {', '.join(f'`{json.dumps(other)}`' for other in field.choices[1:])})"
            hint = f" ({field.hint[0].lower()}{field.hint[1:]})" if field.hint else ""
            fields.append(f"`{field.text}`{choices if field.choices else hint}")
        summary = inspect.cleandoc(spec.__doc__ or "").partition("\n\n")[0]
        summary = " ".join(summary.split()).replace("``", "`")
        lines.append(f'| `"{spec.kind_spelling()}"` | {", ".join(fields)} | {summary} |')
    return lines


def main() -> int:
    stale = [path for path, text in pages().items()
             if not path.exists() or path.read_text("utf-8") != text]  # fmt: skip
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run python scripts/docs_pages.py")
        return 1 if stale else 0
    for path, text in pages().items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
