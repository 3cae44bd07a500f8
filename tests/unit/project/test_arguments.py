"""Every public callable, given what it cannot take: an error of ours that names the argument."""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import gpuscope as gs
import gpuscope_lessons as learn
from gpuscope import analyses, analysis, device, figures, races, report, telling, workloads
from gpuscope._checks import MappingOf, SeveralOf, require_kind
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.device.device import Device
from gpuscope.device.ranks import Ranks
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.search.sweeps import load_sweep
from gpuscope.simulator import calibrate, calibrate_host
from gpuscope.simulator.recorded import RecordedWork
from gpuscope.trace import Trace, put_inside, save_trace
from gpuscope.trace.facts import HazardFact
from gpuscope.workloads.collective import Collective
from gpuscope.workloads.copy import Copy
from gpuscope.workloads.softmax import Softmax
from gpuscope.workloads.spin import Spin
from gpuscope.workloads.traced import TracedCopy, TracedGemm


class Unhelpful:
    """Says that it is everything, and is nothing."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


HOSTILE: dict[str, Any] = {
    "None": None,
    "bool": True,
    "negative": -1,
    "zero": 0,
    "huge": 2**70,
    "gigantic": 10**5000,
    "fraction": 1.5,
    "NaN": math.nan,
    "infinite": math.inf,
    "NumPy NaN": np.float32("nan"),
    "text": "no such thing",
    "no text": "",
    "long text": "x" * 5000,
    "control": "\x1b[31m",
    "surrogate": "\ud800",
    "NUL": "a\0b",
    "bytes": b"x",
    "list": [],
    "list of None": [None],
    "no tuple": (),
    "dict": {},
    "dict of None": {None: None},
    "dict of object": {"a": object()},
    "object": Unhelpful(),
    "type": int,
    "function": lambda: None,
    "read-only": np.broadcast_to(np.float32(0), (4, 4)),
    "object array": np.array([None, "a"], dtype=object),
    "no dimensions": np.array(3),
}  # fmt: skip

EXPERIMENT = {
    "name": "one", "alone_repeats": 0, "streams": {"s": {}, "t": {}},
    "workloads": {
        "w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2},
        "v": {"kind": "spin", "duration_us": 10, "stream": "t", "repeats": 2},
    },
}  # fmt: skip
SHAPES = {"m": 4, "n": 4, "k": 4}


class Observer:
    def call_begins(self, call: Any) -> None: ...
    def call_ends(self, call: Any) -> None: ...
    def activity(self, activity: Any) -> None: ...


@gs.workloads.workload
def nothing(ctx, value=None):
    """Launch nothing."""


def plain(_context: Any) -> None: ...


@functools.wraps(gs.workloads.workload)
def decorated(function: Any, **stated: Any) -> Any:
    """Call it as a decorator does."""
    return gs.workloads.workload(function, **stated)


Target = tuple[Callable[..., Any], dict[str, Any]]


def targets_of_device(gpu: Device) -> dict[str, Target]:
    """Public callables of what runs, each with arguments that it takes."""
    stream, other = gpu.create_stream(name="s"), gpu.create_stream()
    event = gpu.create_event()
    kernel = gpu.compile("", "k", model=KernelModel(lambda *_: KernelCost(1, 10)))
    a, b, out = (gpu.empty((4, 4)) for _ in range(3))
    gemm = gs.Gemm(gpu, **SHAPES, dtype="float32")
    call = nothing(gpu)
    stream.record(event)
    since = stream.record()
    since.synchronize()
    module = gs.TorchModule(lambda _x: None, a, graph=False, owner=gpu)
    found: dict[str, Target] = {
        "Device.empty": (gpu.empty, {"shape": 4, "dtype": "float32"}),
        "Device.empty_pinned": (gpu.empty_pinned, {"shape": 4, "dtype": "float32"}),
        "Device.random": (gpu.random, {"shape": 4, "dtype": "float32", "seed": 0}),
        "Device.asarray": (gpu.asarray, {"values": [1, 2], "dtype": "float32"}),
        "Device.to_host": (gpu.to_host, {"array": a}),
        "Device.scratch": (gpu.scratch, {"nbytes": 16}),
        "Device.compile": (gpu.compile, {"source": "", "name": "k", "model": kernel.model, "holds_sms": False}),
        "Device.create_stream": (
            gpu.create_stream, {"name": None, "priority": 0, "blocking": False}
        ),
        "Device.create_event": (gpu.create_event, {"timing": True}),
        "Device.wrap_stream": (gpu.wrap_stream, {"stream": stream, "name": None}),
        "Device.find_stream": (gpu.find_stream, {"handle": 1}),
        "Device.choose_stream": (gpu.choose_stream, {"stream": stream}),
        "Stream.launch": (stream.launch, {
            "kernel": kernel, "grid": 1, "block": 32, "flop_count": None, "nbytes": None,
            "blocks": None,
        }),
        "Stream.copy": (stream.copy, {"destination": out, "source": a}),
        "Stream.host_call": (stream.host_call, {"function": int}),
        "Stream.record": (stream.record, {"event": event, "timing": True}),
        "Stream.wait": (stream.wait, {"event": event}),
        "Event.record": (event.record, {"stream": other}),
        "Event.elapsed_ns": (since.elapsed_ns, {"since": event}),
        "Gemm": (gs.Gemm, {
            "owner": gpu, **SHAPES, "dtype": "float32", "sm_count_target": "auto", "name": None,
            "seed": 0, "max_in_flight": 1,
        }),
        "Copy": (Copy, {"owner": gpu, "nbytes": 64, "name": None, "seed": 0, "max_in_flight": 1}),
        "Spin": (Spin, {
            "owner": gpu, "duration_ns": 10, "blocks": 1, "name": None, "max_in_flight": 1,
        }),
        "workload()": (nothing, {
            "owner": gpu, "name": None, "max_in_flight": 1, "flop_count": None, "nbytes": None,
            "arguments": None,
        }),
        "Gemm.execute": (gemm.execute, {"a": a, "b": b, "out": out, "stream": stream}),
        "FunctionHandle.execute": (call.execute, {"stream": stream}),
        "FunctionHandle": (gs.workloads.FunctionHandle, {
            "owner": gpu, "function": plain, "name": None, "max_in_flight": 1, "flop_count": None,
            "nbytes": None, "arguments": None, "accesses": None,
        }),
        "workload": (decorated, {
            "function": plain, "flop_count": None, "nbytes": None, "reads": None, "writes": None,
        }),
        "TorchModule": (gs.TorchModule, {
            "module": lambda _x: None, "inputs": a, "graph": False, "owner": gpu, "name": None,
            "flop_count": None, "nbytes": None,
        }),
        "TorchModule.execute": (module.execute, {"stream": stream}),
        "Copy.execute": (Copy(gpu, nbytes=64).execute, {"stream": stream}),
        "Spin.execute": (Spin(gpu, duration_ns=10).execute, {"stream": stream}),
        "Softmax": (Softmax, {
            "owner": gpu, "rows": 4, "columns": 4, "name": None, "seed": 0, "max_in_flight": 1,
        }),
        "Softmax.execute": (Softmax(gpu, rows=4, columns=4).execute, {"stream": stream}),
        "Collective": (Collective, {
            "owner": gpu, "kind": "all_reduce", "nbytes": 64, "dtype": "float32", "name": None,
            "seed": 0, "ranks": Ranks(0, 2),
        }),
        "WorkloadContext.scratch": (
            gs.device.WorkloadContext(gpu, stream).scratch, {"nbytes": 16, "stream": None}
        ),
        "Scratch.view": (gpu.scratch(64).view, {"shape": 4, "dtype": "float32"}),
        "try_delay": (gs.try_delay, {
            "run": lambda plant: plant(), "device": gpu, "behind": stream, "delays_us": [1.0],
            "turns": 3,
        }),
        "confirm": (gs.confirm, {
            "hazard": HazardFact("read after write"), "program": int, "device": gpu,
        }),
        "mm_out": (gs.mm_out, {"out": out, "a": a, "b": b, "stream": stream}),
        "CallerStreamGuard": (gs.CallerStreamGuard, {"stream": stream, "bind": False}),
        "profile": (entering(gs.profile), {
            "device": gpu, "source": "auto", "detail": "launches", "launch_ids": True,
            "memory_limit": 1 << 20, "wait": True, "live": False, "keep": None, "hazards": False, "stacks": True, "graphs": "nodes",
            "sample": 0,
            "counters": False,
        }),
    }  # fmt: skip
    if gpu.capabilities.partitions:
        parts = gpu.carve({"a": 8})
        with gpu.create_stream() as third, third.capture() as graph:
            third.launch(kernel, grid=1, block=32)
        with gs.profile(gpu) as recording:
            gemm.execute(stream=stream)
        recorded = RecordedWork(gpu, recording.trace)
        found |= {
            "Device.carve": (gpu.carve, {
                "sizes": {"b": 8}, "rounding": "exact", "allow_shared": False,
            }),
            "Device.plan_carve": (gpu.plan_carve, {
                "sizes": {"b": 8}, "rounding": "nearest", "allow_shared": False, "keep": (),
                "instead_of": (),
            }),
            "Partition.create_stream": (parts["a"].create_stream, {"name": None, "priority": 0}),
            "Stream.capture": (entering(stream.capture), {"name": None}),
            "Graph.launch": (graph.launch, {"stream": stream}),
            "plan_carve": (gs.device.plan_carve, {
                "layout": gs.device.SmLayout(8, 16, 4), "sizes": {"b": 8}, "rounding": "nearest",
                "allow_shared": False, "keep": (), "held": None,
            }),
            "RecordedWork": (RecordedWork, {
                "owner": gpu, "trace": recording.trace, "second": None, "of_stream": None,
                "graph": False, "name": "w", "max_in_flight": 1,
            }),
            "RecordedWork.execute": (recorded.execute, {"stream": stream}),
            "TracedGemm.execute": (TracedGemm(gpu, **SHAPES).execute, {"stream": stream}),
            "TracedCopy.execute": (TracedCopy(gpu, nbytes=64).execute, {"stream": stream}),
            "TracedGemm": (TracedGemm, {
                "owner": gpu, **SHAPES, "name": None, "seed": 0, "max_in_flight": 1,
            }),
            "TracedCopy": (TracedCopy, {
                "owner": gpu, "nbytes": 64, "name": None, "seed": 0, "max_in_flight": 1,
            }),
        }  # fmt: skip
    return found


def targets_of_traces(gpu: Device) -> dict[str, Target]:
    """Public callables of what was seen."""
    run = gs.run({**EXPERIMENT, "settings": {"x": {}, "y": {}}}, gpu)
    trace = run["x"]
    span = int(trace.where(kind="kernel").array("id")[0])
    shares = gs.search.measure_interference(
        gpu, {"p": 8, "q": "rest"},
        {
            "w": {"kind": "spin", "duration_us": 10, "partition": "p"},
            "v": {"kind": "spin", "duration_us": 10, "partition": "q"},
        }, repeats=2, rounds=1,
    )  # fmt: skip
    tuned = gs.tune(EXPERIMENT, {"workloads.w.repeats": [1]}, "w.kernel_median_us", None, gpu)
    swept = gs.search.sweep(EXPERIMENT, {"workloads.w.repeats": [1, 2]}, gpu)
    columns = {
        "id": [1], "kind": ["kernel"], "name": ["k"], "start_ns": [0], "source": ["cupti"],
    }  # fmt: skip
    counted = gs.load_trace(Path(__file__).parents[2] / "data" / "counters_h200.parquet")
    inside = Trace.from_columns({
        "id": [1, 2], "parent": [None, 1], "kind": ["kernel", "block"], "name": ["k", "k"],
        "start_ns": [0, 0], "end_ns": [9, 9], "sm": [None, 0], "value": [None, 9.0],
        "source": ["proton", "proton"],
    })  # fmt: skip
    predicted = gs.experiments.predict(EXPERIMENT)
    finding = telling.findings(trace).findings[0]
    gaps_declared = next(known for known in analyses.known_analyses() if known.name == "gaps")
    kernels = [int(number) for number in trace.where(kind="kernel").array("id")[:2]]
    driven: dict[str, Any] = {"device": gpu, "viewer": None, "stop": None}
    pair = {name: {"kind": "spin", "duration_us": 10, "partition": name} for name in ("p", "q")}
    return {
        "Trace": (Trace, {
            "spans": trace.spans, "edges": trace.edges, "metadata": trace.metadata,
        }),
        "Trace.from_columns": (Trace.from_columns, {
            "spans": columns, "edges": {}, "metadata": trace.metadata,
        }),
        "Trace.array": (trace.array, {"name": "start_ns", "fill": 0}),
        "Trace.texts": (trace.texts, {"name": "name"}),
        "Trace.where": (trace.where, {
            "mask": np.ones(len(trace), bool), "kind": "kernel", "stream": 1, "start_ns": 0,
        }),
        "Trace.with_metadata": (trace.with_metadata, {"setting": "a", "simulated": True}),
        "Trace.concat": (Trace.concat, {"traces": [trace, trace]}),
        "Trace.stream_name": (trace.stream_name, {"stream": 1}),
        "Trace.sql": (trace.sql, {"query": "FROM spans", "write": False}),
        "telling.explain": (telling.explain, {"trace": trace, "span": span}),
        "analysis.parts": (analysis.parts, {"trace": trace, "span": span}),
        "save_trace": (save_trace, {"trace": trace, "path": "a.parquet"}),
        "load_trace": (gs.load_trace, {
            "path": "a.parquet", "limits": None, "keep_private": False,
        }),
        "merge": (gs.merge, {"traces": [trace, trace]}),
        "put_inside": (put_inside, {"trace": inside, "inside": inside, "clock_mhz": None}),
        "name_partition": (gs.device.name_partition, {"partition": 0, "name": "decode"}),
        "export": (gs.export, {
            "trace": trace, "path": "a.json.gz", "merge_into": None, "keep_private": False,
            "keep_code": True,
            "progress": None, "cancel": None,
        }),
        "what_if": (gs.what_if, {
            "trace": trace, "partitions": {"a": 8, "b": 8}, "rounding": "exact",
            "streams": {"s": {"partition": "a", "priority": 0}}, "move": {"w": "t"},
            "add_waits": [kernels], "drop_waits": [], "scale": {"w": 2.0}, "faster": {"w": 2.0},
            "graphs": ["w"],
            "second": None, "recorded_sms": None, "gpu_profile": "h200",
        }),
        "what_if without partitions": (gs.what_if, {
            "trace": trace, "drop_waits": "all", "recorded_sms": {}, "streams": {},
        }),
        "html_report": (report.html_report, {"run": run, "path": "r.html", "title": None}),
        "trace_report": (
            report.trace_report,
            {
                "trace": trace, "path": "r.html", "title": None, "note": None, "window_ns": None,
                "selected": None,
            },
        ),
        "prediction_report": (report.prediction_report, {
            "predicted": predicted, "measured": run, "path": "r.html",
        }),
        "sweep_report": (report.sweep_report, {"result": swept, "path": "r.html"}),
        "interference_report": (report.interference_report, {"result": shares, "path": "r.html"}),
        "tune_report": (report.tune_report, {"result": tuned, "path": "r.html"}),
        "analysis.clocks": (analysis.clocks, {"trace": trace}),
        "analysis.collectives": (analysis.collectives, {"trace": trace}),
        "analysis.hazards": (analysis.hazards, {"trace": trace}),
        "analysis.critical_path": (analysis.critical_path, {"trace": trace, "to": None}),
        "CriticalPathResult.by": (analysis.critical_path(trace).by, {"by": "kind"}),
        "CriticalPathResult.slack": (analysis.critical_path(trace).slack, {"span": kernels[0]}),
        "analysis.what_would_help": (
            analysis.what_would_help, {"trace": trace, "window_ns": None}
        ),
        "analysis.launch_sites": (analysis.launch_sites, {"trace": trace, "by": "line"}),
        "analysis.ranks": (analysis.ranks, {"trace": trace}),
        "analysis.top_kernels": (analysis.top_kernels, {"trace": trace}),
        "analysis.requests": (analysis.requests, {"trace": trace, "slo": {"ttft_ms": 1}}),
        "telling.findings": (telling.findings, {"trace": trace}),
        "telling.findings_by_setting": (telling.findings_by_setting, {"traces": run}),
        "telling.confinement_verdict": (telling.confinement_verdict, {"trace": trace}),
        "telling.outcome": (telling.outcome, {"run": run}),
        "telling.compared": (telling.compared, {"run": run}),
        "telling.describe_settings": (telling.describe_settings, {"run": run}),
        "telling.to_text": (telling.to_text, {"finding": finding, "about": ""}),
        "telling.to_html": (telling.to_html, {"findings": [finding]}),
        "telling.to_markdown": (telling.to_markdown, {"findings": [finding]}),
        "telling.to_json": (telling.to_json, {"finding": finding}),
        "telling.tuned": (telling.tuned, {"result": tuned}),
        "analyses.cards": (analyses.cards, {"trace": trace}),
        "Analysis.ask": (gaps_declared.ask, {"trace": trace}),
        "Analysis.found_in": (gaps_declared.found_in, {"trace": trace}),
        "Analysis.card_of": (gaps_declared.card_of, {"trace": trace}),
        "figures.swept": (figures.swept, {"result": swept, "workload": "w"}),
        "SweepResult.select": (swept.select, {
            "columns": ["workload"], "where": {"workloads.w.repeats": 1},
        }),
        "SweepResult.most": (swept.most, {"number": 100}),
        "TuneResult.most": (tuned.most, {"number": 100}),
        "TuneResult.interval": (tuned.interval, {"setting": tuned.settings[0]}),
        "TuneResult.free_sms": (tuned.free_sms, {"setting": tuned.settings[0]}),
        "TuneResult.effects": (tuned.effects, {"setting": tuned.settings[0]}),
        "TunedSetting.mean": (tuned.settings[0].mean, {"goal": tuned.objective}),
        "InterferenceResult.cell": (shares.cell, {"of": "w", "given": "v"}),
        "OverlapResult.pair": (analysis.overlap(trace).pair, {"a": "s", "b": "t"}),
        "Experiment.from_dict": (gs.experiments.Experiment.from_dict, {"data": EXPERIMENT}),
        "Experiment.from_file": (gs.experiments.Experiment.from_file, {"path": "no.toml"}),
        "Experiment.from_toml": (gs.experiments.Experiment.from_toml, {"text": ""}),
        "Size.parse": (gs.device.Size.parse, {"value": 8}),
        "formats.table": (gs.formats.table, {"known": ()}),
        "formats.Limits": (gs.formats.Limits, {"file_bytes": 1, "text_bytes": 1, "rows": 1}),
        "analysis.summary": (analysis.summary, {"trace": trace, "whole": False}),
        "analysis.overlap": (analysis.overlap, {"trace": trace, "by": "stream"}),
        "analysis.concurrency": (analysis.concurrency, {"trace": trace, "by": "stream"}),
        "analysis.gaps": (analysis.gaps, {
            "trace": trace, "by": "stream", "min_ns": 0, "whole": False,
        }),
        "analysis.idle_sms": (analysis.idle_sms, {"trace": inside}),
        "analysis.partition_use": (analysis.partition_use, {"trace": counted}),
        "analysis.host_times": (analysis.host_times, {"trace": trace, "window_ns": None}),
        "analysis.idle_causes": (analysis.idle_causes, {"trace": trace, "window_ns": None}),
        "analysis.steps": (analysis.steps, {"trace": trace}),
        "analysis.latency": (analysis.latency, {"trace": trace}),
        "analysis.launch_latency": (analysis.launch_latency, {"trace": trace}),
        "analysis.confinement": (analysis.confinement, {"trace": trace, "intended": None}),
        "analysis.queue_depth": (analysis.queue_depth, {"trace": trace, "of": "w", "at": "v"}),
        "analysis.queue_depths": (analysis.queue_depths, {"trace": trace}),
        "analysis.range_projection": (analysis.range_projection, {
            "trace": trace, "name": None, "domain": None, "whole_graphs": True,
        }),
        "analysis.interference": (analysis.interference, {
            "together": trace, "alone": trace, "of": "w", "given": "v", "inside": 1.0,
        }),
        "analysis.settings_table": (analysis.settings_table, {"traces": run}),
        "compare": (gs.compare, {"first": trace, "second": run, "names": ("a", "b")}),
        "figures.compared": (figures.compared, {
            "result": gs.compare(trace, trace), "findings": None, "split": None,
        }),
        "diff": (gs.diff, {
            "first": EXPERIMENT, "second": EXPERIMENT, "setting": None, "at": None, "device": gpu,
            "rounds": 3, "within": None, "progress": None, "stop": None,
        }),
        "check": (gs.judging.check, {
            "target": run, "budget": gs.judging.Budget.parse("escapes = 0"), "device": None,
            "rounds": None, "baseline": None, "save_baseline": None, "other_machine": False,
            "stop": None,
        }),
        "Budget.read": (gs.judging.Budget.read, {"path": "budget.toml"}),
        "Budget.parse": (gs.judging.Budget.parse, {"text": "escapes = 0", "folder": Path()}),
        "Command.parse": (gs.judging.Command.parse, {"text": "train.py", "folder": None}),
        "DiffResult.split": (gs.diff(trace, trace).split, {"workload": "w"}),
        "figures.confinement": (figures.confinement, {"judged": trace}),
        "figures.host_times": (figures.host_times, {"judged": trace}),
        "figures.interference": (figures.interference, {"result": shares}),
        "figures.latency": (figures.latency, {"traces": run, "handle": "w"}),
        "figures.sm_map": (figures.sm_map, {
            "trace": trace, "bins": 300, "window_ns": None, "device": None,
        }),
        "figures.timeline of a window": (figures.timeline, {
            "trace": trace, "window_ns": (0, 100),
        }),
        "figures.sm_map of a window": (figures.sm_map, {"trace": trace, "window_ns": (0, 100)}),
        "figures.timelines of windows": (figures.timelines, {
            "traces": run, "windows_ns": {"x": (0, 100)},
        }),
        "figures.timeline": (figures.timeline, {
            "trace": trace, "window_ns": None, "max_spans": 100, "title": None, "sm": False,
            "host": True,
        }),
        "figures.timelines": (figures.timelines, {
            "traces": run, "windows_ns": None, "max_spans": 100, "title": None,
        }),
        "open_device": (gs.open_device, {
            "spec": "sim:h200", "pace": "none", "jitter": True, "unified_stream": False,
            "quiet": True,
        }),
        "predict": (gs.experiments.predict, {
            "experiment": EXPERIMENT, "gpu_profile": "h200", "jitter": True, "viewer": None,
            "stop": None,
        }),
        "run": (gs.run, {"experiment": EXPERIMENT, **driven}),
        "sweep": (gs.search.sweep, {
            "experiment": EXPERIMENT, "parameters": {"workloads.w.repeats": [1]}, "path": None,
            "executor": None, "shard": None, "reference": None, **driven,
        }),
        "tune": (gs.tune, {
            "experiment": EXPERIMENT, "vary": {"workloads.w.repeats": [1]},
            "objective": "w.kernel_median_us", "slo": None, "confidence": 0.9, "repeats": 3,
            "gpu_profile": "h200", "path": None, "executor": None, **driven,
        }),
        "manual_divisions": (gs.search.manual_divisions, {"results": {1: tuned}, "labels": None}),
        "figures.tuning": (figures.tuning, {"result": tuned}),
        "TuneResult.export": (tuned.export, {"path": "t.json", "setting": None}),
        "load_sweep": (load_sweep, {"path": "swept"}),
        "measure_interference": (gs.search.measure_interference, {
            "partitions": {"p": 8, "q": 8}, "workloads": pair, "repeats": 2, "rounds": 1, "pairs": None,
            "seed": 0, "rounding": "exact", "inside": 1.0, "executor": None, **driven,
        }),
        "nsight.profile": (gs.experiments.nsight.profile, {
            "experiment": EXPERIMENT, "report": "a.nsys-rep", "tool": "nsys",
            "device": "sim:h200", "graph_nodes": False, "launches": 1, "program": "/bin/false",
            "keep_private": False, "cancel": None,
        }),
        "calibrate": (calibrate, {
            "device": gpu, "path": "gpu.json", "progress": None, "budget_s": 1.0, "executor": None,
        }),
        "calibrate_host": (calibrate_host, {
            "device": gpu, "path": "host.json", "profile": "h200", "progress": None,
        }),
        "annotate": (entering(gs.annotate), {"name": "a"}),
    }  # fmt: skip


def entering(manager: Callable[..., Any]) -> Callable[..., None]:
    """Call what gives a context, and enter that."""

    @functools.wraps(manager)
    def enter(**arguments: Any) -> None:
        with manager(**arguments):
            pass

    return enter


@functools.wraps(learn.CudaProgram, updated=())
def empty_program(device: Any, signature: Any, kernels: Any, **stated: Any) -> Any:
    """Make a program that does nothing."""
    return learn.CudaProgram(device, "void f() {}", signature, kernels, **stated)


def targets_of_notebooks(gpu: Device, trace: Trace) -> dict[str, Target]:
    """Public callables of widgets and lessons."""
    timeline = gs.Timeline(trace)
    lesson = learn.Lesson(0, "walk", gpu)
    asked = lesson.predict("p", "?", learn.Value())
    asked.give(1)
    choice = learn.Choice(["a", "b"])
    empty = Trace.from_columns({})
    dashboard = gs.Dashboard("sim:h200", EXPERIMENT)
    carver = gs.widgets.PartitionCarver(gpu, {"a": 8})
    step = workloads.Step(gpu, 10, name="s")
    program = empty_program(gpu, "void f()", {})
    watched = races.Watched(gs.profile(gpu).__enter__(), [])
    return {
        "races.watch": (entering(races.watch), {"device": gpu, "seconds": 1.0}),
        "Watched.mark": (watched.mark, {"name": "here"}),
        "Device.as_pinned": (gpu.as_pinned, {"memory": np.zeros(4, "float32")}),
        "PinnedArray.note_access": (gpu.empty_pinned(4).note_access, {"name": "DMA", "writes": False}),
        "device.byte_ranges": (device.byte_ranges, {"array": gpu.empty(4)}),
        "search.executor_of": (entering(gs.search.executor_of), {
            "executor": "processes:1", "processes": ThreadPoolExecutor,
        }),
        "Timeline": (gs.Timeline, {"source": trace, "height": 300, "followed_ns": 1000}),
        "Timeline.show": (timeline.show, {"trace": trace}),
        "Timeline.watch": (gs.Timeline(empty).watch, {"recording": "none"}),
        "Timeline.find": (timeline.find, {"text": "w"}),
        "Timeline.select": (timeline.select, {"span": None}),
        "Timeline.select_range": (timeline.select_range, {"low_ns": 0, "high_ns": 1}),
        "Timeline.zoom": (timeline.zoom, {"by": 0.5, "at": 0.5}),
        "Timeline.pan": (timeline.pan, {"by": 0.5}),
        "Timeline.step": (timeline.step, {"along": 1, "across": 0}),
        "Dashboard": (gs.Dashboard, {"device": "sim:h200", "experiment": EXPERIMENT}),
        "PartitionCarver": (gs.widgets.PartitionCarver, {"device": gpu, "sizes": {"a": 8}}),
        "StreamTable": (gs.widgets.StreamTable, {"streams": {"s": {}}, "partitions": ["a"]}),
        "WorkloadTable": (gs.widgets.WorkloadTable, {"workloads": {"w": {}}, "streams": ["s"]}),
        "learn.case": (learn.case, {"name": "A"}),
        "telling.find": (telling.find, {"trace": trace, "name": None, "nth": 0, "kind": None}),
        "learn.label": (learn.label, {"trace": trace}),
        "learn.observe": (learn.observe, {"device": gpu, "name": "cupy", "function": int}),
        "learn.recording_of": (learn.recording_of, {"name": "cupy"}),
        "learn.pytorch": (learn.pytorch, {"device": gpu}),
        "workloads.spin_kernel": (workloads.spin_kernel, {"device": gpu, "name": "spin"}),
        "device.address": (device.address, {"array": gpu.empty(4)}),
        "learn.CudaProgram": (empty_program, {
            "device": gpu, "signature": "void f()", "kernels": {"void s()": step}, "seconds": 1.0,
            "pinned_bytes": 1 << 22,
        }),
        "CudaProgram.require": (learn.CudaProgram.require, {"device": gpu}),
        "CudaProgram.pinned": (program.pinned, {"count": 4}),
        "Question.give": (asked.give, {}),
        "learn.Choice": (learn.Choice, {"options": ["a", "b"]}),
        "learn.Order": (learn.Order, {"items": ["a", "b"]}),
        "learn.Value": (learn.Value, {"unit": "µs", "within": 0.1}),
        "learn.Interval": (learn.Interval, {"unit": "µs", "factor": 4.0}),
        "learn.Lesson": (learn.Lesson, {"number": 1, "title": "t", "device": gpu}),
        "Lesson.predict": (lesson.predict, {"name": "q", "question": "?", "kind": choice}),
        "Lesson.reveal": (lesson.reveal, {
            "name": "p", "measured": 1.0, "trace": None, "why": None, "rule": "",
            "since_ns": None, "window_ns": None, "then": "",
        }),
        "Lesson.reveal with a trace": (lesson.reveal, {
            "name": "p", "measured": 1.0, "trace": trace, "why": "w", "since_ns": 0,
            "window_ns": (0, 100),
        }),
        "Lesson.check": (lesson.check, {"name": "c", "task": "t", "test": bool, "hints": ["h"], "rule": "", "needs": None}),
        "Lesson.quiz": (lesson.quiz, {
            "name": "z", "question": "?", "kind": choice, "answer": "a", "hints": ["h"],
            "rule": "",
        }),
        "Lesson.to_csv": (lesson.to_csv, {"path": "a.csv", "learner": ""}),
        "Lesson.watch": (lesson.watch, {"program": int, "device": None}),
        "Grades.to_csv": (learn.Grades().to_csv, {"path": "a.csv"}),
        "learn.Limits": (learn.Limits, {"seconds": 1, "cell_seconds": 1, "memory_bytes": 10**9}),
        "learn.grade": (learn.grade, {
            "folder": "handed_in", "lessons": "lessons", "gpu": False, "limits": learn.Limits(),
            "executor": None, "journal": "j", "points": learn.Points(),
        }),
        "Points.read": (learn.Points.read, {"path": "points.toml"}),
        "Points.of": (learn.Points().of, {"lesson": "01", "exercise": "timer"}),
        "Grades.marks": (learn.Grades().marks, {"points": learn.Points()}),
        "Marks.to_canvas": (learn.Grades().marks().to_canvas, {"path": "a.csv"}),
        "Marks.to_moodle": (learn.Grades().marks().to_moodle, {"path": "a.csv"}),
        "learn.give_out": (learn.give_out, {"lessons": "lessons", "out": "out"}),
        "workloads.Step": (workloads.Step, {"owner": gpu, "duration_ns": 10, "name": "s", "after": ()}),
        "Step.execute": (step.execute, {"stream": None}),
        "Timeline.wait": (timeline.wait, {"timeout_s": 0}),
        "Dashboard.code": (dashboard.code, {"kind": "gpuscope"}),
        "Dashboard.open": (dashboard.open, {"experiment": EXPERIMENT}),
        "Dashboard.wait": (dashboard.wait, {"timeout_s": 0}),
        "StreamTable.remove": (
            gs.widgets.StreamTable({"s": {}}, ["a"]).remove, {"name": "s"}
        ),
        "PartitionCarver.add": (carver.add, {"name": None}),
        "PartitionCarver.propose": (carver.propose, {"sizes": {"a": 8}}),
        "PartitionCarver.remove": (carver.remove, {"name": "a"}),
        "PartitionCarver.set_sizes": (carver.set_sizes, {"sizes": {"a": 8}, "colors": None}),
    }  # fmt: skip


DOCUMENTED_TYPE_ERRORS = ("CallerStreamGuard", "try_delay", "workload")
"""Whose docstring says TypeError; of a guard, contract A6 does."""


CALLED = ("viewer", "live", "progress", "program", "test", "needs", "processes")


def variants(taken: Any) -> Iterator[tuple[str, Any]]:
    """Yield hostile values, and what an argument takes with one of them inside."""
    yield from HOSTILE.items()
    if type(taken) is dict and taken is not EXPERIMENT:
        for key, value in taken.items():
            for what, inner in variants(value):
                yield f"{{{key!r}: {what}}}", {**taken, key: inner}
        for what, inner in HOSTILE.items():
            if inner.__hash__ is not None:
                yield f"{{{what}: …}}", {inner: next(iter(taken.values()), None)}
    elif type(taken) in (list, tuple) and taken:
        for what, inner in variants(taken[0]):
            yield f"[{what}]", type(taken)([inner, *taken[1:]])


def said(error: Exception) -> str:
    try:
        return str(error)[:90]
    except Exception:  # noqa: BLE001 - of what was given
        return "(no text)"


def check(targets: dict[str, Target]) -> None:
    """Give each target each hostile value in place of each argument."""
    wrong = []
    for label, (function, arguments) in targets.items():
        allowed: tuple[type[Exception], ...] = (GpuscopeError,)
        if label in DOCUMENTED_TYPE_ERRORS:
            allowed += (TypeError,)
        for name, taken in arguments.items():
            for what, value in variants(taken):
                if name in CALLED and callable(value):
                    continue  # it is called, and what it raises is its own
                try:
                    made = function(**{**arguments, name: value})
                except allowed as error:
                    text = str(error)
                    if not text or len(text) > 2000:
                        wrong.append(f"{label}({name}={what}): an error of {len(text)} characters")
                    continue
                except Exception as error:  # noqa: BLE001 - that is what is looked for
                    wrong.append(f"{label}({name}={what}): {type(error).__name__}: {said(error)}")
                    continue
                close = getattr(made, "close", None)
                if callable(close) and not isinstance(made, Device):
                    close()
    assert not wrong, f"{len(wrong)} raw errors:\n" + "\n".join(wrong)


# -- that none is missing -------------------------------------------------------------------
ROOMS = (
    "", ".analysis", ".device", ".experiments", ".figures", ".formats", ".races", ".report", ".search",
    ".simulator", ".telling", ".analyses", ".trace", ".widgets", ".workloads", "_lessons",
)  # fmt: skip
INSIDE = "gpuscope calls it, or a class derived from it does"
EXEMPT = {
    "Device": "open_device makes them",
    "Stream": "Device.create_stream makes them",
    "Event": "Device.create_event makes them",
    "Graph": "Stream.capture makes them",
    "Partition": "Device.carve makes them",
    "Partitions": "Device.carve makes them",
    "PinnedArray": "Device.empty_pinned makes them",
    "PinnedArray.over": INSIDE,
    "Watched": "watch makes them",
    "Scratch": "Device.scratch makes them",
    "Completion": "Handle.completion makes them",
    "WorkloadContext": "execute makes them",
    "Access": "part of what Recording.happened returns",
    "Happened": "part of what Recording.happened returns",
    "Attempt": "Lesson.watch makes them",
    "Attempt.*": "what they raise is what a check says to a learner",
    "Collective.execute": "it takes several processes",
    "CudaProgram(source)": "a learner's: a check says to the learner why it does not compile",
    "KernelModel.reads": "what it was made with",
    "KernelModel.writes": "what it was made with",
    "Question": "Lesson.predict and quiz make them",
    "Question.tell": INSIDE,
    "Experiment": "a model of pydantic's, whose own errors tests of experiments hold",
    "WorkloadSpec": "a model of pydantic's, whose own errors tests of experiments hold",
    "WorkloadSpec.interval_ns": INSIDE,
    "WorkloadSpec.make": INSIDE,
    "Handle": "a base class",
    "Handle.execute": "a base class",
    "Workload": "the decorator makes them",
    "TunedWords": INSIDE,
    "Stream.hold": INSIDE,
    "Stream.join": INSIDE,
    "Graph.hold": INSIDE,
    "Graph.keep": INSIDE,
    "Partition.adopt": INSIDE,
    "Partition.release": INSIDE,
    "Device.told_from": INSIDE,
    "Capabilities.require": INSIDE,
    "Limits.check": INSIDE,
    "Limits.check_places": INSIDE,
    "Limits.check_room": INSIDE,
    "Limits.check_rows": INSIDE,
    "Limits.check_text": INSIDE,
    "KernelCost.alone_ns": INSIDE,
    "SmLayout.sm_count_of": INSIDE,
    "SmLayout.sm_mask": INSIDE,
    "Size.describe": INSIDE,
    "Size.sm_count": INSIDE,
    "Speed.of": INSIDE,
    "Timeline.send_tiles": INSIDE,
    "action": INSIDE,
    "describe": INSIDE,
    "edit": INSIDE,
    "follow": INSIDE,
    "rename": INSIDE,
    "show": INSIDE,
    "is_right": "Question.give calls it",
    "read": "Question.give calls it",
    "PartitionCarver(lock)": INSIDE,
    "StreamTable(lock)": INSIDE,
    "WorkloadTable(lock)": INSIDE,
}
"""Name of a class, method or, in brackets, parameter → why nothing hostile is tried."""


def public() -> Iterator[tuple[str, Any]]:
    """Yield what the reference calls public and can be called: functions, classes, methods."""
    seen: set[int] = set()
    for room in ROOMS:
        module = importlib.import_module(f"gpuscope{room}")
        for name in getattr(module, "__all__", None) or dir(module):
            value = getattr(module, name)
            home = getattr(value, "__module__", None) or ""
            if name.startswith("_") or not callable(value) or not home.startswith("gpuscope"):
                continue
            if id(value) in seen or (isinstance(value, type) and issubclass(value, BaseException)):
                continue
            seen.add(id(value))
            yield name, value
            for method in dir(value) if isinstance(value, type) else ():
                function = bare(inspect.getattr_static(value, method))
                own = inspect.isfunction(function) and function.__module__.startswith("gpuscope")
                if not method.startswith("_") and own:
                    yield f"{value.__name__}.{method}", function


def bare(function: Any) -> Any:
    """Return a function without what binds and what checks it."""
    inner = inspect.unwrap(function)
    return inspect.unwrap(getattr(inner, "__func__", inner))


def untried(tried: dict[Any, set[str]]) -> Iterator[str]:
    """Yield the parameters of public callables that are in no table."""
    for name, value in public():
        alone = name.rpartition(".")[2]
        if {name, alone, f"{name.partition('.')[0]}.*"} & EXEMPT.keys() or (
            is_result(value) and value not in tried
        ):
            continue
        for parameter in inspect.signature(value).parameters.values():
            several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            exempt = parameter.name in ("self", "cls") or f"{name}({parameter.name})" in EXEMPT
            if not several and not exempt and parameter.name not in tried.get(bare(value), ()):
                yield f"{name}({parameter.name})"


def is_result(value: Any) -> bool:
    """Whether it holds what a call returned: who makes one states it right."""
    return isinstance(value, type) and (
        dataclasses.is_dataclass(value) or issubclass(value, msgspec.Struct | Mapping)
    )


def test_every_parameter_of_every_public_callable_is_in_a_table():
    gpu = gs.open_device("sim:h200", quiet=True)
    seen = targets_of_traces(gpu)
    trace = seen["Trace.array"][0].__self__
    every = [targets_of_device(gpu), seen, targets_of_notebooks(gpu, trace)]
    tried: dict[Any, set[str]] = {}
    for function, arguments in (target for table in every for target in table.values()):
        called = type(function).__call__ if function is nothing else function
        tried.setdefault(bare(called), set()).update(arguments)
    gpu.close()
    missing = [*untried(tried)]
    assert not missing, "\n".join(missing)
    names = {name for name, _ in public()}
    known = names | {name.rpartition(".")[2] for name in names}
    assert {name.partition("(")[0].removesuffix(".*") for name in EXEMPT} <= known


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("spec", ["sim:h200", "cpu"])
def test_what_runs_refuses_what_it_cannot_take(spec):
    gpu = gs.open_device(spec, quiet=True)
    check(targets_of_device(gpu))
    gpu.close()


def test_what_was_seen_refuses_what_it_cannot_take():
    gpu = gs.open_device("sim:h200", quiet=True)
    check(targets_of_traces(gpu))
    gpu.close()


def test_widgets_and_lessons_refuse_what_they_cannot_take(monkeypatch):
    unraised = []
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    gpu = gs.open_device("sim:h200", quiet=True)
    check(targets_of_notebooks(gpu, gs.run(EXPERIMENT, gpu)["default"]))
    gc.collect()
    gpu.close()
    assert not [str(one.exc_value) for one in unraised]


@pytest.mark.parametrize(
    "fields",
    [
        {"arrival": "fixed", "rate_hz": 1e-308},
        {"arrival": "poisson", "rate_hz": 5e-324},
        {"kind": "trace", "path": "x" * 5000},
        {"kind": "trace", "path": ""},
        {"kind": "trace", "path": "decode_h200", "second": "x" * 5000},
    ],
)
def test_a_field_that_no_run_can_do_with_is_refused(fields):
    spin = EXPERIMENT["workloads"]["w"]
    kept = {"stream": "s", "repeats": 2} if "kind" in fields else spin
    with pytest.raises(GpuscopeError):
        gs.experiments.predict(
            {**EXPERIMENT, "workloads": {"w": {**kept, **fields}}, "streams": {"s": {}}}
        )


def test_a_forecast_takes_numbers_of_numpy():
    gpu = gs.open_device("sim:h200", quiet=True)
    trace = gs.run(EXPERIMENT, gpu)["default"]
    first, then = trace.where(kind="kernel").array("id")[:2]
    forecast = gs.what_if(
        trace, add_waits=[(first, then)], scale={"w": np.float32(2)},
        streams={"s": {"priority": np.int64(0)}},
    )  # fmt: skip
    changes = forecast.experiment["what_if"]
    assert changes["add_waits"] == [[int(first), int(then)]]
    assert changes["scale"] == {"w": 2.0}


@pytest.mark.parametrize(
    ("value", "kind", "at_fault"),
    [
        ({"a": 1.0, "b": math.nan}, MappingOf(float), "x['b'] is nan"),
        ({"a": 1.0, 7: 2.0}, MappingOf(float), "a key of x is 7"),
        ({"a": [1, 2], "b": [1, 2.5]}, MappingOf(SeveralOf(int, 2)), "x['b'][1] is 2.5"),
        ([(1, 2), (3, "4")], SeveralOf(SeveralOf(int, 2)), "x[1][1] is '4'"),
        ([(1, 2), (3,)], SeveralOf(SeveralOf(int, 2)), "x[1] is tuple"),
    ],
)
def test_of_a_container_the_item_at_fault_is_named(value, kind, at_fault):
    with pytest.raises(InvalidArgument) as refused:
        require_kind("x", value, kind, None)
    assert str(refused.value).startswith(at_fault)


def test_a_sweep_beside_a_link_to_nothing_is_an_error_of_ours(tmp_path):
    gpu = gs.open_device("sim:h200", quiet=True)
    gs.search.sweep(EXPERIMENT, {"workloads.w.repeats": [1]}, gpu, path=tmp_path)
    (tmp_path / "point-0.parquet").symlink_to("nowhere")
    with pytest.raises(GpuscopeError, match=r"point-0\.parquet"):
        load_sweep(tmp_path)
