"""What docs/howto/all_reduce.md tells of collectives on several GPUs, from ranks_gpu.json."""

from __future__ import annotations

from typing import Any

import numpy as np

Rows = list[dict[str, Any]]

_NAMES = {
    "all_reduce": ("all-reduce", "#4C5B6B"),
    "all_gather": ("all-gather", "#E08A2E"),
    "reduce_scatter": ("reduce-scatter", "#2F8F83"),
    "all_to_all": ("all-to-all", "#8A5FA8"),
}
_SIZE = 128 << 20
_WHOLE = "whole GPU"


def of_ranks(results: dict[str, Any]) -> dict[int, Rows]:
    """Return the rows of collectives by how many ranks took part."""
    words = {label: label.split() for label in results["parts"]}
    return {
        int(count): results["parts"][label]["table"]
        for label, (part, count) in sorted(words.items())
        if part == "collectives"
    }


def ranks_table(measured: dict[str, Any], simulated: dict[str, Any]) -> list[str]:
    """What collectives of 128 MiB take on the most GPUs, and how far off the simulator is."""
    tables, models = of_ranks(measured), of_ranks(simulated)
    most = max(tables)
    at = {(row["kind"], row["sms"], row["beside_gemm"]): row for row in _largest(tables[most])}
    counts = sorted({row["sms"] for row in tables[most]} - {_WHOLE})
    lines = [
        f"| SMs | {' | '.join(name for name, _ in _NAMES.values())} |",
        f"| --- |{' --- |' * len(_NAMES)}",
    ]
    for count in [*counts, _WHOLE]:
        cells = []
        for kind in _NAMES:
            alone, beside = at[kind, count, False], at[kind, count, True]
            times = f"{alone['time_us']:,.0f} → {beside['time_us']:,.0f}"
            cells.append(f"{times} ({beside['gemm_keeps']:.0%})")
        lines.append(f"| {count} | {' | '.join(cells)} |")
    lines += [
        "",
        "What simulated times are off, of all kinds and sizes: median (90th percentile, worst).",
        "",
        "| GPUs | alone | beside GEMMs, on partitions | beside GEMMs, whole GPU |",
        "| --- | --- | --- | --- |",
    ]
    for ranks, rows in tables.items():
        cells = [_off(rows, models[ranks], beside=False)]
        cells += [_off(rows, models[ranks], beside=True, whole=whole) for whole in (False, True)]
        lines.append(f"| {ranks} | {' | '.join(cells)} |")
    return ["", *lines, ""]


def _largest(rows: Rows) -> Rows:
    return [row for row in rows if row["bytes"] == _SIZE]


def _off(measured: Rows, simulated: Rows, *, beside: bool, whole: bool | None = None) -> str:
    """Return the errors of the times of one setting; ``whole`` chooses some."""
    key = ("kind", "bytes", "sms", "beside_gemm")
    of_model = {tuple(row[name] for name in key): row["time_us"] for row in simulated}
    off = [
        abs(of_model[tuple(row[name] for name in key)] / row["time_us"] - 1)
        for row in measured
        if row["beside_gemm"] is beside and whole in (None, row["sms"] == _WHOLE)
    ]
    return f"{np.median(off):.0%} ({np.quantile(off, 0.9):.0%}, {max(off):.0%})"


def ranks_picture(measured: dict[str, Any], simulated: dict[str, Any]) -> str:
    """Times of collectives of 128 MiB over SMs, a panel for each number of GPUs, as SVG."""
    tables, models = of_ranks(measured), of_ranks(simulated)
    width, height, top, panel, tall, most_us = 760, 300, 40, 290, 200, 1600
    size = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f'<rect width="{width}" height="{height}" fill="#FFFFFF"/>',
    ]
    for number, ranks in enumerate(tables):
        left = 60 + number * (panel + 70)
        title = f"{ranks} GPUs: collectives of 128 MiB, µs"
        lines.append(f'<text x="{left}" y="20" font-weight="bold">{title}</text>')
        for step in range(5):
            y = top + tall * (1 - step / 4)
            lines.append(
                f'<path d="M{left} {y:.0f}h{panel}" stroke="#E3E9EF"/><text x="{left - 6}" '
                f'y="{y + 4:.0f}" text-anchor="end">{most_us * step // 4:,}</text>'
            )
        lines += [
            f'<text x="{left + panel * count / 68:.0f}" y="{top + tall + 16}" '
            f'text-anchor="middle">{count}</text>'
            for count in (8, 16, 24, 32, 48, 64)
        ]
        for kind, (_, color) in _NAMES.items():
            line, dots = (
                sorted(
                    (left + panel * row["sms"] / 68, top + tall * (1 - row["time_us"] / most_us))
                    for row in _largest(rows)
                    if row["kind"] == kind and row["sms"] != _WHOLE and not row["beside_gemm"]
                )
                for rows in (models[ranks], tables[ranks])
            )
            path = "L".join(f"{x:.0f} {y:.0f}" for x, y in line)
            lines.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2"/>')
            lines += [f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4" fill="{color}"/>' for x, y in dots]
    names = ", ".join(f'<tspan fill="{color}">{name}</tspan>' for name, color in _NAMES.values())
    told = f"dots: measured on H100s, alone: {names}; lines: simulated; across: SMs"
    lines += [
        f'<text x="60" y="{height - 12}">{told}</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
