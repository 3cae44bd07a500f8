"""Fragments of HTML that the dashboard shows; every foreign text in them is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuscope._text import shown
from gpuscope.analysis.result import format_value
from gpuscope.device.api import DeviceInfo
from gpuscope.device.carve import CarvePlan
from gpuscope.figures.style import HOST_COLOUR, OKABE_ITO
from gpuscope.trace.model import Run, Trace

_MUTED = "color:var(--jp-ui-font-color2,#57606a)"
_CELL = "padding:3px 14px 3px 0;text-align:"
_COLUMNS = {
    "partition": ("runs in", "left"),
    "kernels": ("kernels", "right"),
    "latency_n": ("latency n", "right"),
    "latency_p50_us": ("p50 µs", "right"),
    "latency_p90_us": ("p90 µs", "right"),
    "latency_p99_us": ("p99 µs", "right"),
    "tflop_per_s": ("TFLOP/s", "right"),
    "share_of_alone_on_whole_gpu": ("share of alone", "right"),
}


def problem(words: str) -> str:
    """Return an error for the place where it arose; screen readers announce it."""
    lines = "<br>".join(shown(line) for line in words.splitlines())
    return (
        '<div role="alert" class="gpuscope-error" style="line-height:1.4;padding:4px 10px;'
        'border-left:4px solid #c62828;color:var(--jp-error-color1,#c62828)">'
        f"<b>Error:</b> {lines}</div>"
    )


def note(words: str) -> str:
    """Return a quiet remark."""
    return f'<div style="line-height:1.4;{_MUTED}">{shown(words)}</div>'


def device(info: DeviceInfo, why_no_gpu: str) -> str:
    """Say what the device is, and whether anything seen on it is real."""
    if info.kind != "sim":
        return note(f"{info.name}, {info.sm_count} SMs ({info.driver})")
    words = f"{info.name}, {info.sm_count} SMs: no GPU is used, all times come from a model."
    if why_no_gpu:
        words += f" Why: {why_no_gpu}"
    return f'<div style="line-height:1.4"><b>SIMULATED, not measured</b> on {shown(words)}</div>'


def plan(granted: CarvePlan) -> str:
    """Show what was asked, what would be granted, and how the SMs are shared out."""
    total = granted.layout.sm_count
    bar, said = "", []
    for index, part in enumerate(granted.partitions):
        width = 100 * part.sm_count / total
        colour = OKABE_ITO[index % len(OKABE_ITO)]
        bar += f'<div style="width:{width:.2f}%;background:{colour}"></div>'
        said.append(f"<b>{shown(part.name, 40)}</b>: {part.asked} asked, {part.sm_count} granted")
    if granted.remainder_sm_count:
        said.append(f"{granted.remainder_sm_count} in no partition")
    return (
        '<div class="gpuscope-plan" style="line-height:1.4"><div style="display:flex;height:8px;'
        f'margin:4px 0;max-width:640px;background:{HOST_COLOUR}">{bar}</div>'
        f"of {total} SMs – {' · '.join(said)}</div>"
    )  # fmt: skip


def results(run: Run, background: Sequence[str]) -> str:
    """Return overlap, gain, and a row a workload; queued workloads state no latency."""
    return "".join(
        _setting(name, trace, run, background) for name, trace in run.traces.items()
    )  # fmt: skip


def _setting(name: str, trace: Trace, run: Run, background: Sequence[str]) -> str:
    rows = [row for row in run.comparison.to_pylist() if row["setting"] == name]
    if not rows:
        return note(f"{name}: no kernel was recorded.")
    rows.sort(key=lambda row: row["workload"] in background)
    head = "".join(
        f'<th style="{_CELL}{side}">{title}</th>'
        for title, side in (("workload", "left"), *_COLUMNS.values())
    )
    body = "".join(_row(row, queued=row["workload"] in background) for row in rows)
    facts = rows[0]
    timed = [row for row in rows if row["workload"] not in background and row["latency_n"]]
    few = any(row["latency_p99_us"] is None for row in timed)
    more = " No p99: it needs 1,000 samples, so raise Repeats." if few else ""
    tight = ""
    if facts["overlap_tight"] is not None:
        tight = f" (tight <b>{format_value(facts['overlap_tight'])}</b>)"
        more += " Tight: with every kernel shortened by what the events around it do not know."
    return (
        f'<div class="gpuscope-results" style="line-height:1.5"><b>{shown(name, 60)}</b>: '
        f"overlap <b>{format_value(facts['overlap'])}</b>{tight}, "
        f"gain <b>{format_value(facts['gain'])}</b>"
        f'<table style="margin:6px 0;border-collapse:collapse"><thead><tr>{head}</tr></thead>'
        f'<tbody>{body}</tbody></table><div style="{_MUTED}">'
        "Overlap: the part of the shorter busy time in which both ran. Gain: what the kernels "
        "take alone, in their places, over what they took together. Latency: from execute() to "
        f"completion seen.{more}<br>{shown(trace.provenance)}</div></div>"
    )


def _row(row: Mapping[str, Any], *, queued: bool) -> str:
    cells = [f'<td style="{_CELL}left">{shown(row["workload"], 40)}</td>']
    for column, (_, side) in _COLUMNS.items():
        value = row[column]
        if column == "partition":
            said = shown(value if value is not None else "whole GPU", 40)
        elif queued and column.startswith("latency"):
            said = "–"
        elif column.endswith("share_of_alone_on_whole_gpu") and value is not None:
            said = f"{100 * value:.1f} %"
        else:
            said = format_value(value)
        cells.append(f'<td style="{_CELL}{side}">{said}</td>')
    return f"<tr>{''.join(cells)}</tr>"
