"""``nsys stats`` reads our SQLite: its tables equal our own figures, to the ns."""

from __future__ import annotations

import json
import sqlite3
import statistics
from collections import Counter, defaultdict

import made
import pytest

import gpuscope as gs

COPY_NAMES = {
    "HtoD": "[CUDA memcpy HtoD]", "DtoH": "[CUDA memcpy DtoH]", "DtoD": "[CUDA memcpy DtoD]",
    None: "[CUDA memcpy Unknown]",
}  # fmt: skip


def rows_of(trace, *kinds):
    return [row for row in trace.spans.to_pylist() if row["kind"] in kinds]


def calls_of(trace):
    """Return what Nsight has as API calls: events that a thread recorded are calls, too."""
    found = rows_of(trace, "api", "sync", "event")
    return [row for row in found if row["kind"] != "event" or row["thread"] is not None]


def end_of(row, ends):
    return row["end_ns"] if row["end_ns"] is not None else ends


def summary(lengths):
    """Return total, count, mean, median, least and greatest."""
    return (sum(lengths), len(lengths), statistics.fmean(lengths), statistics.median(lengths),
            min(lengths), max(lengths))  # fmt: skip


def told(row, count="Instances"):
    return (int(row["Total Time (ns)"]), int(row[count]), float(row["Avg (ns)"]),
            float(row["Med (ns)"]), int(row["Min (ns)"]), int(row["Max (ns)"]))  # fmt: skip


def close(found, expected):
    """Compare tables: whole ns are equal; means and medians are rounded to 0.1 ns."""
    assert found.keys() == expected.keys()
    for key, figures in expected.items():
        assert found[key] == pytest.approx(figures, abs=0.06, rel=0), key
        assert [found[key][one] for one in (0, 1, 4, 5)] == [figures[one] for one in (0, 1, 4, 5)]


@pytest.fixture(params=["program", "steps", 3, 5], ids=str)
def exported(request, tmp_path):
    made_by = {"program": made.program, "steps": made.steps}.get(request.param)
    trace = made_by() if made_by else made.whole(request.param)
    # nsys's own CSV leaves a line break in a name as it is.
    trace = trace.where(["\n" not in name for name in trace.texts("name")])
    return trace, gs.export(trace, tmp_path / "run.sqlite", keep_private=True)


def test_kernels(exported, nsys):
    trace, path = exported
    expected = defaultdict(list)
    for row in rows_of(trace, "kernel"):
        config = json.loads(row["launch_config"] or "{}")
        shape = [" ".join(f"{one:4}" for one in config.get(name, [0, 0, 0]))
                 for name in ("grid", "block")]  # fmt: skip
        expected[row["name"], *shape].append(row)
    found = {
        (row["Name"], row["GridXYZ"], row["BlockXYZ"]): row for row in nsys("gpukernsum", path)
    }
    assert found.keys() == expected.keys()
    for key, rows in expected.items():
        assert int(found[key]["Instances"]) == len(rows)
        lengths = [row["end_ns"] - row["start_ns"] for row in rows if row["end_ns"] is not None]
        if len(lengths) == len(rows):
            close({key: told(found[key])}, {key: summary(lengths)})


def test_api_calls(exported, nsys):
    trace, path = exported
    expected = defaultdict(list)
    for row in calls_of(trace):
        expected[row["name"]].append(row)
    found = {row["Name"]: row for row in nsys("cudaapisum", path)}
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        assert int(found[name]["Num Calls"]) == len(rows)
        if all(row["end_ns"] is not None for row in rows):
            lengths = [row["end_ns"] - row["start_ns"] for row in rows]
            close({name: told(found[name], "Num Calls")}, {name: summary(lengths)})


def test_ranges(exported, nsys):
    trace, path = exported
    ranges = rows_of(trace, "range")
    times = [one for row in rows_of(trace, "range", "mark")
             for one in (row["start_ns"], row["end_ns"] or 0)]  # fmt: skip
    expected = defaultdict(list)
    for row in ranges:
        name = f"{row['domain']}:{row['name']}" if row["domain"] else row["name"]
        style = "StartEnd" if row["range_style"] == "start/end" else "PushPop"
        # nsys lets an open range end with the last of them.
        expected[name, style].append(end_of(row, max(times)) - row["start_ns"])
    found = {(row["Range"], row["Style"]): told(row) for row in nsys("nvtxsum", path)}
    close(found, {key: summary(lengths) for key, lengths in expected.items()})


def test_gpu_trace(exported, nsys):
    trace, path = exported
    base = int(trace.array("start_ns").min())
    devices = {one.index: one.name for one in trace.metadata.devices.values()}
    by_call = {edge["to"]: edge["from"] for edge in trace.edges.to_pylist()
               if edge["kind"] == "launch"}  # fmt: skip
    expected = Counter()
    for row in rows_of(trace, "kernel", "memcpy", "memset"):
        name = {"kernel": row["name"], "memcpy": COPY_NAMES.get(row["copy_kind"]),
                "memset": "[CUDA memset]"}[row["kind"]]  # fmt: skip
        length = "None" if row["end_ns"] is None else str(row["end_ns"] - row["start_ns"])
        number = row["device"] or 0
        correlation = None if row["id"] in by_call else str(row["correlation"])
        expected[str(row["start_ns"] - base), length, str(row["stream"]), correlation,
                 f"{devices.get(number, '')} ({number})", name] += 1  # fmt: skip
    linked = {(key[0], key[1], key[2], key[4], key[5]) for key in expected if key[3] is None}
    found = Counter()
    for row in nsys("gputrace", path):
        key = [row[name] for name in ("Start (ns)", "Duration (ns)", "Strm", "CorrId", "Device",
                                      "Name")]  # fmt: skip
        if (key[0], key[1], key[2], key[4], key[5]) in linked:
            key[3] = None
        found[tuple(key)] += 1
    assert {(*key[:3], *key[4:]) for key in found} == {(*key[:3], *key[4:]) for key in expected}
    assert sum(found.values()) == sum(expected.values())
    if not linked:
        assert found == expected


@pytest.mark.parametrize("make", [made.program, made.steps])
def test_launches(make, tmp_path, nsys):
    """Launch calls with their kernels: API time, queueing, kernel time, whole."""
    trace = make()
    path = gs.export(trace, tmp_path / "run.sqlite", keep_private=True)
    rows = {row["id"]: row for row in trace.spans.to_pylist()}
    expected = defaultdict(list)
    for edge in trace.edges.to_pylist():
        call, kernel = rows[edge["from"]], rows[edge["to"]]
        if edge["kind"] != "launch" or kernel["kind"] != "kernel":
            continue
        queued = kernel["start_ns"] - call["end_ns"]
        expected[call["process"], call["thread"], 0, call["name"], kernel["name"]].append(
            (call["end_ns"] - call["start_ns"], queued if queued >= 0 else None,
             kernel["end_ns"] - kernel["start_ns"],
             max(call["end_ns"], kernel["end_ns"]) - call["start_ns"])
        )  # fmt: skip
    found = {
        (int(row["PID"]), int(row["TID"]), int(row["DevId"]), row["API Name"], row["Kernel Name"]):
        row for row in nsys("kernexecsum", path)
    }  # fmt: skip
    assert found.keys() == expected.keys()
    for key, launches in expected.items():
        row = found[key]
        columns = dict(zip("AQKT", zip(*launches, strict=True), strict=True))
        assert int(row["Count"]) == len(launches)
        for letter, column in columns.items():
            values = [one for one in column if one is not None]
            if letter == "Q":
                assert int(row["QCount"]) == len(values)
            if values:
                assert int(row[f"{letter}Min (ns)"]) == min(values)
                assert int(row[f"{letter}Max (ns)"]) == max(values)
                mean, median = float(row[f"{letter}Avg (ns)"]), float(row[f"{letter}Med (ns)"])
                assert mean == pytest.approx(statistics.fmean(values), abs=0.06, rel=0)
                assert median == pytest.approx(statistics.median(values), abs=0.06, rel=0)


@pytest.mark.parametrize("make", [made.program, made.steps])
def test_projection(make, tmp_path, nsys):
    """Ranges projected on the GPU, by nsys and by us."""
    trace = make()
    path = gs.export(trace, tmp_path / "run.sqlite", keep_private=True)
    base = int(trace.array("start_ns").min())
    ours = Counter(
        (f"gpuscope:{row['name']}", row["start_ns"] - base, row["host_ns"],
         row["gpu_start_ns"] - base, row["projected_ns"])
        for row in gs.analysis.range_projection(trace).ranges.to_pylist()
        if row["projected_ns"] is not None
    )  # fmt: skip
    columns = ("Orig Start (ns)", "Orig Duration (ns)", "Projected Start (ns)",
               "Projected Duration (ns)")  # fmt: skip
    found = Counter(
        (row["Name"], *(int(row[name]) for name in columns)) for row in nsys("nvtxgpuproj", path)
    )
    assert found == ours
    assert ours


def test_api_trace(exported, nsys):
    trace, path = exported
    base = int(trace.array("start_ns").min())
    expected = Counter(
        (row["start_ns"] - base, row["name"], str(row["correlation"])) for row in calls_of(trace)
    )
    found = Counter(
        (int(row["Start (ns)"]), row["Name"], row["CorrID"]) for row in nsys("cudaapitrace", path)
    )
    assert found == expected


def test_writer_and_green_contexts(tmp_path):
    trace = made.program()
    path = gs.export(trace, tmp_path / "run.sqlite", keep_private=True)
    database = sqlite3.connect(path)
    facts = dict(database.execute("SELECT name, value FROM META_DATA_EXPORT"))
    assert facts["EXPORT_PRODUCT_NAME"] == "gpuscope"
    contexts = database.execute(
        "SELECT contextId, parentContextId FROM TARGET_INFO_CUDA_CONTEXT_INFO WHERE isGreenContext"
    ).fetchall()
    named = {one.context for one in trace.metadata.partitions.values()}
    assert {context for context, _ in contexts} == named
    assert all(parent not in named for _, parent in contexts)
    counted = dict(database.execute(
        "SELECT greenContextId, count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY 1"
    ).fetchall())  # fmt: skip
    by_context = Counter(row["green_context"] for row in rows_of(trace, "kernel"))
    assert counted == dict(by_context)
    database.close()
