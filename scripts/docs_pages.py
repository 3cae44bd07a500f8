"""Write the pages of docs/ that follow from benchmark results: docs/h200.md and the error
table in docs/simulator.md.

    python scripts/docs_pages.py [--check]

With --check nothing is written; exit 1 says that a page is out of date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- error table: begin -->", "<!-- error table: end -->"
QUICK_BEGIN = "<!-- quickstart table: begin -->"
QUICK_END = "<!-- quickstart table: end -->"


NOTE = """Kernel times: {source}. Timed by events, without a partition the small kernel's median
and the overlap would be mostly waiting for SMs; `overlap_tight` takes every span as short as
its stated uncertainty allows, and is empty where none is stated. A share of alone above 1 is
noise: the reference is measured after, on a hotter GPU."""

BESIDE = "(beside it)"
"""Goal of a row that is there for comparison."""

GROUPS = {
    "carving": "Carving",
    "host cost": "Host cost",
    "throughput": "Throughput",
    "quickstart": "The quickstart",
    "contracts": "The stream contracts",
    "recording": "Recording",
}


def number(value: float) -> str:
    return f"{value:.4g}"


def spread(found: dict[str, float]) -> str:
    return f"{number(found['median'])} ({number(found['min'])} to {number(found['max'])})"


def h200_page(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    lines = [
        "# Figures measured on an H200",
        "",
        "Generated from `benchmarks/results/h200.json` by `make docs`; do not edit.",
        "",
        f"- Date: {facts['date']}",
        f"- Device: {facts['device']}, {facts['sm_count']} SMs, {facts['driver']}",
        f"- Versions: {versions}",
        f"- Command: `{facts['command']}` (`make bench-gpu`)",
        "",
        "Ratios compare within one run, in turns, on the same data.",
        "",
        *(f"- {note}" for note in facts.get("notes", ())),
        "",
    ]
    for group, title in GROUPS.items():
        rows = [row for row in facts["rows"] if row["group"] == group]
        if not rows:
            continue
        dates = sorted({row.get("date", facts["date"]) for row in rows})
        lines += [f"## {title} ({', '.join(dates)})", ""]
        lines += ["| what | goal | measured | met |", "| --- | --- | --- | --- |"]
        for row in rows:
            value = f"{number(row['value'])} {row['unit']}".strip()
            met = "–" if row["goal"] == BESIDE else "yes" if row["met"] else "**no**"
            lines.append(f"| {row['what']} | {row['goal']} | {value} | {met} |")
        lines.append("")
    lines += traced_section(json.loads((RESULTS / "traced.json").read_text("utf-8")))
    lines += ["## Details", ""]
    for row in facts["rows"]:
        lines += details(row)
    return "\n".join(lines) + "\n"


def traced_section(facts: dict[str, Any]) -> list[str]:
    """What writing the SM and the times of every thread block costs."""
    lines = [
        f"## Traced kernels ({facts['date']}, `{facts['command']}`)",
        "",
        "Recording thread blocks on / off, in turns; the goal is ≤ 1.03.",
        "",
        "| work | off, µs | on / off, median (least to most) | met |",
        "| --- | --- | --- | --- |",
    ]
    for kind in ("gemm", "copy"):
        for name, one in facts[kind].items():
            met = "yes" if one["on_over_off"]["median"] <= 1.03 else "**no**"
            costs = f"{number(one['off_us'])} | {spread(one['on_over_off'])}"
            lines.append(f"| {kind} {name} | {costs} | {met} |")
    best = facts["gemm"]["4096³"]
    ours, cublas = number(best["tflop_per_s"]), number(best["gemm_tflop_per_s"])
    rates = f"{ours} TFLOP/s at 4096³, cuBLAS {cublas}"
    step = facts["timer"]["step_ns"]
    lines += ["", f"The traced GEMM does {rates}. `%globaltimer` steps by {step} ns.", ""]
    return lines


def details(row: dict[str, Any]) -> list[str]:
    lines = []
    if "spread" in row and "first_ms" not in row:
        bare = f"; bare {spread(row['bare_us'])} µs" if "bare_us" in row else ""
        lines += [f"{row['what']}: {spread(row['spread'])} {row['unit']}{bare}.", ""]
    if "first_ms" in row:
        text = f"{row['what']}: {spread(row['spread'])} {row['unit']}; the first call, which "
        text += f"compiles the probe kernel, {number(row['first_ms'])} ms. SMs seen: "
        text += f"{row['union']}, disjoint: {row['disjoint']}. The same again, with the contexts "
        lines += [f"{text}that were kept: {spread(row['again_ms'])} ms.", ""]
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
        text = f"Load kernels queued at every sample, at least: {queued}. "
        source = row.get("source", "events around each launch")
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
        lines.append("")
    return lines


def error_table(facts: dict[str, Any]) -> str:
    (row,) = [one for one in facts["rows"] if "error" in one]
    lines = [
        BEGIN,
        f"Measured by `{facts['command']}` on {facts['date']}; each shape is left out in turn.",
        "",
        "| dtype | rows | median error | p90 | whole-GPU rate × SM share: median | p90 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for dtype, found in row["error"].items():
        cells = (f"{100 * found[key]:.0f} %" for key in
                 ("median", "p90", "share_median", "share_p90"))  # fmt: skip
        lines.append(f"| {dtype} | {found['rows']} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, END])


def quickstart_table(cpu: dict[str, Any], gpu: dict[str, Any]) -> str:
    """The quickstart simulated and measured, side by side."""
    simulated = {(one["setting"], one["workload"]): one
                 for row in cpu["rows"] for one in row.get("comparison", ())}  # fmt: skip
    lines = [
        QUICK_BEGIN,
        "| setting | workload | what | simulated | measured |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in gpu["rows"]:
        for one in row.get("comparison", ()):
            other = simulated[one["setting"], one["workload"]]
            for name in ("latency_p50_us", "latency_p99_us", "tflop_per_s", "overlap", "gain"):
                if one[name] is None or other[name] is None:
                    continue
                if name in ("overlap", "gain") and one["workload"] != "load":
                    continue
                cells = (one["setting"].replace("|", "\\|"), one["workload"], name,
                         number(other[name]), number(one[name]))  # fmt: skip
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, QUICK_END])


def between(text: str, begin: str, end: str, inside: str) -> str:
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return before + inside + after


def pages() -> dict[Path, str]:
    found = {}
    results = RESULTS / "h200.json"
    found[ROOT / "docs" / "h200.md"] = h200_page(json.loads(results.read_text("utf-8")))
    simulator = ROOT / "docs" / "simulator.md"
    text = simulator.read_text("utf-8")
    cpu = json.loads((RESULTS / "cpu.json").read_text("utf-8"))
    gpu = json.loads(results.read_text("utf-8"))
    text = between(text, BEGIN, END, error_table(cpu))
    found[simulator] = between(text, QUICK_BEGIN, QUICK_END, quickstart_table(cpu, gpu))
    return found


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
