"""What would help: gains of changes, their bands, and that what helps nothing is told so."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_critical_path import kernel, launch, rows, wait

import gpuscope as gs
from gpuscope.analysis.mechanisms import MECHANISMS
from gpuscope.errors import MissingEvidence
from gpuscope.trace.naming import kernel_name

SITE = '[["train.py", {}, "step"]]'
LINE = "train.py:{} in step"


def gains(trace, window_ns=None):
    """Return (change, about) → gain, of all changes that were tried."""
    result = gs.analysis.what_would_help(trace, window_ns)
    found = result.changes
    ranks = [change.rank for change in found]
    assert ranks == sorted(ranks, reverse=True)
    for change in found:
        assert 0 <= change.low_ns <= change.gain_ns <= change.high_ns
        assert change.basis != "bound" or change.low_ns == 0
    return {(change.change, change.about): change.gain_ns for change in found}


def test_a_kernel_gains_what_the_next_constraint_leaves():
    trace = rows(
        launch(1, 1, 0, 10), kernel(2, "slow", 20, 1_020, 10), launch(3, 1, 10, 20),
        kernel(4, "other", 30, 830, 20, stream=8), launch(5, 1, 20, 30),
        kernel(6, "hidden", 40, 240, 30, stream=9),
        edges=[(1, 2, "launch"), (3, 4, "launch"), (5, 6, "launch")],
    )  # fmt: skip
    found = gains(trace)
    fast = "make the kernel twice as fast"
    assert found[fast, "slow"] == 1_020 - 830
    assert found[fast, "other"] == found[fast, "hidden"] == 0


def test_a_handle_whose_end_nobody_saw_ends_nothing():
    gpu = gs.open_device("sim:h200", quiet=True, jitter=False)
    step, stream = gs.workloads.Step(gpu, 2_000_000, name="slow"), gpu.create_stream()
    with step, stream, gs.profile(gpu) as recording:
        step.execute(stream=stream)
        stream.synchronize()
        with gs.annotate("later"):  # as rows of clocks, it lasts longer than all work
            gpu.backend.wait_until_ns(gpu.now_ns() + 10_000_000)
    trace = recording.trace
    assert trace.where(kind="handle").texts("status") == ["completion not seen"]
    assert gains(trace)["make the kernel twice as fast", "slow"] == 1_000_000


def test_without_a_wait_the_host_runs_ahead():
    spans, edges, at = [], [], 0
    for number in range(10):
        base = 10 * number
        spans += [
            launch(base + 1, 1, at, at + 10_000, SITE.format(3)),
            kernel(base + 2, "k", at + 12_000, at + 212_000, at + 10_000),
            wait(base + 3, "cudaStreamSynchronize", at + 10_000, at + 220_000, stream=7),
        ]
        spans[-1][-1]["site"] = SITE.format(4)
        edges += [(base + 1, base + 2, "launch"), (base + 2, base + 3, "host wait")]
        at += 300_000
    found = gains(rows(*spans, edges=edges))
    dropped = found["do not wait for the GPU", LINE.format(4)]
    assert 8 * 90_000 < dropped < 10 * 100_000, "then kernels follow each other"
    assert found["shorten the Python before", LINE.format(3)] == 9 * 80_000
    assert found["make the kernel twice as fast", "k"] == 10 * 100_000


def test_launches_that_a_full_queue_holds_go_on_when_kernels_are_faster():
    lasted = []
    for ns in (40_000, 20_000):
        gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
        spin = gs.workloads.spin_kernel(gpu)
        with gpu.create_stream() as stream, gs.profile(gpu, stacks=False) as recording:
            for _ in range(2_500):
                stream.launch(spin, ns, grid=1, block=32)
        path = gs.analysis.critical_path(recording.trace)
        lasted.append(path.end_ns - path.start_ns)
        if len(lasted) == 1:
            gain_ns = gains(recording.trace)["make the kernel twice as fast", "spin"]
    assert gain_ns == pytest.approx(lasted[0] - lasted[1], rel=1e-3)


def test_a_range_of_launches_as_one_graph_and_a_pause_between():
    spans, edges, at, number = [], [], 0, 1
    for _ in range(5):
        begin = at
        for _ in range(10):
            spans += [launch(number, 1, at, at + 10_000),
                      kernel(number + 1, "k", at + 12_000, at + 15_000, at + 10_000)]  # fmt: skip
            edges.append((number, number + 1, "launch"))
            number, at = number + 2, at + 30_000
        more = {"thread": 1, "process": 1}
        spans.append((number, "range", "rank", begin, at, more))
        number, at = number + 1, at + 500_000
    found = gains(rows(*spans, edges=edges))
    assert 5 * 270_000 <= found["record as one graph", "rank"] <= 5 * 300_000
    pause = "shorten the Python before", "cudaLaunchKernel"
    assert found[pause] == 4 * 500_000
    assert pause not in gains(rows(*spans, edges=edges), (0, 300_000))


def test_numbered_ranges_are_one():
    told = []
    for name in ("step", "step {}"):
        gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
        spin = gs.workloads.spin_kernel(gpu)
        with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
            for number in range(6):
                with gs.annotate(name.format(number)):
                    for _ in range(10):
                        stream.launch(spin, 10_000, grid=200, block=32)
                    if number % 2:
                        stream.synchronize()
        trace, path = recording.trace, gs.analysis.critical_path(recording.trace, to="step")
        forecast = gs.what_if(trace, graphs=["step"])["forecast"]
        told.append(
            (gains(trace), path.by("range"), path.start_ns, forecast.array("end_ns").tolist())
        )
    assert told[0] == told[1]
    gained, by_range, *_ = told[0]
    assert gained["record as one graph", "step"] > 500_000
    assert not any(change == "use another stream" for change, _ in gained), "one chain"
    assert list(by_range) == ["step"]


def test_a_slow_host_function_is_told_as_that():
    ran = []
    for waits_ns in (1_000_000, 0):
        gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
        spin = gs.workloads.spin_kernel(gpu)

        def slow(gpu=gpu, waits_ns=waits_ns):
            gpu.backend.wait_until_ns(gpu.now_ns() + waits_ns)

        with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
            for number in range(5):
                with gs.annotate(f"step {number}"):
                    stream.launch(spin, 50_000, grid=1, block=32)
                    stream.host_call(slow)
                    stream.launch(spin, 50_000, grid=1, block=32)
                    stream.synchronize()
        ran.append(recording.trace)
    slow_ns, quick_ns = (gs.analysis.critical_path(trace).end_ns for trace in ran)
    first = gs.analysis.what_would_help(ran[0]).changes[0]
    assert first.change == "shorten the host function"
    assert first.about.startswith("slow at ")
    assert "test_help.py:" in first.about
    assert first.gain_ns * 0.95 <= slow_ns - quick_ns <= first.high_ns
    cause = gs.analysis.idle_causes(ran[0]).causes[0]
    assert (cause.cause, cause.range) == ("in a host function (slow)", "step")
    assert cause.line == first.about.removeprefix("slow at ")
    by_kind = gs.analysis.critical_path(ran[0]).by("kind")
    assert next(iter(by_kind)) == "host function"
    assert by_kind["host function"] == 5_000_000
    assert "slow" not in gs.analysis.critical_path(ran[0]).by("kernel")


def test_pageable_copies_block_and_other_copies_could_be_beside_kernels():
    spans, edges, at = [], [], 0
    for number in range(1, 31, 3):
        copy = {"stream": 7, "queued_ns": at + 1_000, "process": 1, "nbytes": 50_000_000,
                "src_kind": "pageable", "dst_kind": "device"}  # fmt: skip
        spans += [
            wait(number, "cudaMemcpyAsync", at, at + 5_000_000),
            (number + 1, "memcpy", "HtoD copy", at + 1_000, at + 4_900_000, copy),
        ]
        edges.append((number, number + 1, "launch"))
        at += 6_000_000
    found = gains(rows(*spans, edges=edges))
    gain_ns = found["pin the memory", "copies of pageable memory"]
    assert 9 * 4_900_000 < gain_ns < 10 * 5_000_000


@pytest.mark.parametrize(
    ("nbytes", "kinds", "has_gain"),
    [(50_000_000, ("pageable", "device"), True), (64 << 10, ("pageable", "device"), False)],
)
def test_small_pageable_copies_do_not_block(nbytes, kinds, has_gain):
    spans, edges, at = [], [], 0
    for number in range(1, 31, 3):
        copy = {"stream": 7, "queued_ns": at + 1_000, "process": 1, "nbytes": nbytes,
                "src_kind": kinds[0], "dst_kind": kinds[1]}  # fmt: skip
        spans += [
            wait(number, "cudaMemcpyAsync", at, at + 5_000_000),
            (number + 1, "memcpy", "HtoD copy", at + 1_000, at + 4_900_000, copy),
        ]
        edges.append((number, number + 1, "launch"))
        at += 6_000_000
    found = gains(rows(*spans, edges=edges))
    assert any(change == "pin the memory" for change, _ in found) == has_gain


def test_a_call_that_copies_waits_for_the_kernels_before():
    """The copy begins late since a kernel runs, not since its launch takes so long."""
    spans, edges, at = [], [], 0
    for number in range(1, 41, 4):
        copy = {"stream": 7, "queued_ns": at + 1_020_000, "process": 1, "nbytes": 1,
                "src_kind": "device", "dst_kind": "pageable"}  # fmt: skip
        spans += [
            launch(number, 1, at, at + 5_000, SITE.format(3)),
            kernel(number + 1, "k", at + 6_000, at + 1_000_000, at + 5_000),
            wait(number + 2, "cudaMemcpyAsync", at + 6_000, at + 1_020_000),
            (number + 3, "memcpy", "DtoH copy", at + 1_006_000, at + 1_008_000, copy),
        ]
        edges += [(number, number + 1, "launch"), (number + 2, number + 3, "launch"),
                  (number + 3, number + 2, "host wait")]  # fmt: skip
        at += 1_030_000
    path = gs.analysis.critical_path(rows(*spans, edges=edges)).by("kernel")
    assert path["k"] == 10 * 994_000
    found = gains(rows(*spans, edges=edges))
    assert found["make the kernel twice as fast", "k"] == 10 * 497_000


def test_who_shares_a_stream_waits_for_events_or_for_sms_is_told():
    gpu = gs.open_device("sim:h200", quiet=True)
    spin = gs.workloads.spin_kernel(gpu)
    one, two = gpu.create_stream(name="one"), gpu.create_stream(name="two")
    with gs.profile(gpu) as recording:
        with gs.annotate("a"):
            one.launch(spin, 2_000_000, grid=132, block=32)
        for name in "bc":  # which would have room beside each other
            with gs.annotate(name):
                one.launch(spin, 500_000, grid=1, block=32)
        two.launch(spin, 500_000, grid=1, block=32)
        two.wait(one.record())
        two.launch(spin, 700_000, grid=1, block=32)
    found = gains(recording.trace)
    assert found["drop the wait between streams", "two for one"] > 0
    assert found["use another stream", "one"] > 0
    assert ("give it priority or a partition", "two") in found


def ranks_in_steps(late_ns):
    """Return five steps of two ranks, of which one is late to an all-reduce in each: (rank, ns)."""
    spans, edges, at = [], [], 0
    for number, (late_rank, ns) in enumerate(late_ns):
        for process in (0, 1):
            span = 10 * number + 4 * process
            more = {"thread": 1, "process": process, "site": SITE.format(3)}
            begin = at + ns * (process == late_rank)
            spans += [
                (span + 1, "api", "cudaLaunchKernel", begin, begin + 5_000, more),
                (span + 2, "kernel", NCCL, begin + 8_000, at + ns + 100_000,
                 {"stream": 7 + process, "queued_ns": begin + 5_000, "process": process}),
                (span + 3, "sync", "stream synchronize", begin + 5_000, at + ns + 110_000,
                 {**more, "stream": 7 + process, "site": SITE.format(4)}),
            ]  # fmt: skip
            edges += [(span + 1, span + 2, "launch"), (span + 2, span + 3, "host wait")]
        last, other = (10 * number + 4 * rank + 2 for rank in (late_rank, 1 - late_rank))
        edges.append((last, other, "collective"))
        at += ns + 110_000
    ranks = tuple({"rank": rank, "world_size": 2, "process": rank} for rank in range(2))
    return rows(*spans, edges=edges, ranks=ranks)


def test_a_rank_that_keeps_the_others_waiting():
    found = gains(ranks_in_steps([(1, 600_000)] * 5))
    gain_ns = found["let the rank keep up", f"rank 1, {LINE.format(3)}"]
    assert gain_ns == pytest.approx(4 * 600_000, rel=0.02), "all but before its first call"


def test_ranks_that_come_late_in_turns_are_no_stragglers():
    trace = ranks_in_steps([(0, 600_000), (1, 500_000)] * 3)
    assert "let the rank keep up" not in {change for change, _ in gains(trace)}
    told = {finding.rule for finding in gs.findings(trace).findings}
    assert "program.straggler" not in told


def test_nothing_can_be_said_of_nothing():
    with pytest.raises(MissingEvidence):
        gs.analysis.what_would_help(rows())


def launches(count, gap_ns, name="k", lasts_ns=3_000, **more):
    """Return spans and edges of launches that are so far apart."""
    spans, edges, at = [], [], 0
    for number in range(1, 2 * count, 2):
        spans += [
            launch(number, 1, at, at + 5_000, SITE.format(7)),
            kernel(number + 1, name, at + 6_000, at + 6_000 + lasts_ns, at + 5_000),
        ]
        spans[-1][-1].update(more)
        edges.append((number, number + 1, "launch"))
        at += 5_000 + gap_ns
    return spans, edges


def test_kernels_of_the_only_partition_would_have_the_other_sms():
    spans, edges = [], []
    for number in range(10):  # one behind the other: the host is ahead
        begin = 20_000 + number * 1_320_000
        spans += [launch(2 * number + 1, 1, 1_000 * number, 1_000 * number + 500),
                  kernel(2 * number + 2, "k", begin, begin + 1_320_000, 1_000 * number + 500)]  # fmt: skip
        spans[-1][-1].update(partition="a", device=0)
        edges.append((2 * number + 1, 2 * number + 2, "launch"))
    facts = {
        "partitions": {"a": {"sm_count": 33}},
        "devices": {"cuda:0": {"index": 0, "sm_count": 132}},
    }
    found = gains(rows(*spans, edges=edges, **facts))
    larger = found["give it a larger partition", "a, 33 of 132 SMs"]
    assert larger == pytest.approx(10 * 1_320_000 * 3 / 4, rel=0.02)
    spans[-1][-1]["partition"] = None  # the whole GPU is used, too
    found = gains(rows(*spans, edges=edges, **facts))
    assert not any(change == "give it a larger partition" for change, _ in found)


def test_sms_go_to_the_partition_whose_kernels_need_them():
    spans, edges, at, number = [], [], 20_000, 1
    for _ in range(10):  # b waits for a, and takes a tenth of its time on twice its SMs
        for name, stream, lasts_ns in (("a", 7, 1_000_000), ("b", 8, 100_000)):
            spans += [launch(number, 1, 1_000 * number, 1_000 * number + 500),
                      kernel(number + 1, name, at, at + lasts_ns, 1_000 * number + 500,
                             stream=stream)]  # fmt: skip
            spans[-1][-1].update(partition=name, device=0)
            edges += [(number, number + 1, "launch")]
            edges += [(number - 1, number + 1, "event wait")] * (number > 1)
            at, number = at + lasts_ns, number + 2
    facts = {
        "partitions": {"a": {"sm_count": 44}, "b": {"sm_count": 88}},
        "devices": {"cuda:0": {"index": 0, "sm_count": 132}},
    }
    found = gains(rows(*spans, edges=edges, **facts))
    about = "a, 44 of 132 SMs, of which about 110 would suit it"
    assert found["give it a larger partition", about] == pytest.approx(
        10 * (1_000_000 * (1 - 44 / 110) + 100_000 * (1 - 88 / 22)), rel=0.02
    )


def test_memory_that_is_kept_needs_no_calls():
    spans, edges = launches(10, 100_000)
    mallocs = [
        (100 + number, "api", "cudaMalloc_v3020", span[4] + 10_000, span[4] + 70_000,
         {"thread": 1, "process": 1, "site": SITE.format(7)})
        for number, span in enumerate(spans[::2])
    ]  # fmt: skip
    found = gains(rows(*spans, *mallocs, edges=edges))
    assert found["keep the memory", f"calls mostly at {LINE.format(7)}"] == 10 * 60_000


def test_a_graph_takes_a_run_of_launches_without_a_wait():
    spans, edges = launches(40, 10_000)
    found = gains(rows(*spans, edges=edges))
    assert any(change == "record as graphs" and ns > 0 for (change, _), ns in found.items())
    waits = [wait(200 + n, "cudaStreamSynchronize", span[4] + 5_000, span[4] + 8_000, stream=7)
             for n, span in enumerate(spans[::16])]  # fmt: skip
    edges += [(span[0] + 1, 200 + n, "host wait") for n, span in enumerate(spans[::16])]
    found = gains(rows(*spans, *waits, edges=edges))
    assert not any(change == "record as graphs" for change, _ in found)


@pytest.mark.parametrize(("wait_at", "is_offered"), [(3, False), (9, True)])
def test_no_graph_is_offered_across_a_wait(wait_at, is_offered):
    spans, edges, at, number = [], [], 0, 1
    for _ in range(10):
        begin = at
        for place in range(10):
            spans += [launch(number, 1, at, at + 10_000, SITE.format(7)),
                      kernel(number + 1, "k", at + 12_000, at + 15_000, at + 10_000)]  # fmt: skip
            edges.append((number, number + 1, "launch"))
            number, at = number + 2, at + 30_000
            if place == wait_at:
                spans.append(wait(number, "cudaStreamSynchronize", at, at + 5_000, stream=7))
                edges.append((number - 1, number, "host wait"))
                number, at = number + 1, at + 6_000
        spans.append((number, "range", "step", begin, at, {"thread": 1, "process": 1}))
        number += 1
    found = gains(rows(*spans, edges=edges))
    assert (("record as one graph", "step") in found) == is_offered


def after_each_count(follower):
    """Return a trace that waits for a count each time, and what it launches then."""
    spans, edges, at, number = [], [], 0, 1
    for _ in range(30):
        copy = {"stream": 7, "queued_ns": at + 11_000, "process": 1, "nbytes": 4}
        spans += [
            launch(number, 1, at, at + 5_000, SITE.format(7)),
            kernel(number + 1, "cub::DeviceReduceKernel", at + 6_000, at + 60_000, at + 5_000),
            wait(number + 2, "cudaMemcpyAsync", at + 6_000, at + 11_000),
            (number + 3, "memcpy", "DtoH copy", at + 61_000, at + 62_000, copy),
            wait(number + 4, "cudaStreamSynchronize", at + 12_000, at + 64_000, stream=7),
            launch(number + 5, 1, at + 70_000, at + 75_000, SITE.format(7)),
            kernel(number + 6, follower, at + 76_000, at + 80_000, at + 75_000),
        ]
        spans[-3][-1]["site"] = SITE.format(7)
        edges += [(number, number + 1, "launch"), (number + 2, number + 3, "launch"),
                  (number + 5, number + 6, "launch"), (number + 3, number + 4, "host wait")]  # fmt: skip
        number, at = number + 7, at + 100_000
    return rows(*spans, edges=edges)


def test_a_wait_for_the_count_of_a_mask_is_told_as_that():
    mask, value = ("keep the mask on the GPU", "do not wait for the GPU")
    found = gains(after_each_count("cub::DeviceSelectSweepKernel"))
    assert found[mask, LINE.format(7)] > 0
    assert not any(change == value for change, _ in found)
    found = gains(after_each_count("gemm"))
    assert found[value, LINE.format(7)] > 0
    assert not any(change == mask for change, _ in found)


def polls(*, loops):
    """Return a trace of kernels beside a copy, which is begun anew when a query finds it done."""
    spans, edges, at, number, copy = [], [], 0, 1, None
    for step in range(40):
        for _ in range(5):
            spans += [launch(number, 1, at, at + 5_000, SITE.format(7)),
                      kernel(number + 1, "k", at + 6_000, at + 9_000, at + 5_000)]  # fmt: skip
            edges.append((number, number + 1, "launch"))
            number, at = number + 2, at + 20_000
        if loops and step:
            spans.append(wait(number, "cudaEventQuery", at - 2_000, at - 1_000))
            number += 1
        if step:
            spans.append(wait(number, "cudaEventQuery", at, at + 3_000))
            edges.append((copy, number, "host wait"))
            number += 1
        begun = {"stream": 8, "queued_ns": at + 8_000, "process": 1, "nbytes": 1 << 20}
        spans += [wait(number, "cudaMemcpyAsync", at + 4_000, at + 8_000),
                  (number + 1, "memcpy", "HtoD copy", at + 9_000, at + 111_500, begun)]  # fmt: skip
        edges.append((number, number + 1, "launch"))
        copy, number, at = number + 1, number + 2, at + 12_000
    return rows(*spans, edges=edges)


def test_a_query_is_no_wait_and_what_it_begins_ends_nothing():
    path = gs.analysis.critical_path(polls(loops=False))
    assert "copy" not in path.by("kind")
    assert path.by("kind")["host"] > 0.7 * (path.end_ns - path.start_ns)
    looping = gs.analysis.critical_path(polls(loops=True))
    assert next(iter(looping.by("kind"))) == "copy", "a loop of queries waits"


def test_work_behind_the_legacy_default_stream_could_be_beside_it():
    spans, edges, at, number = [], [], 0, 1
    for step in range(40):
        for stream in (13, 14, 7):
            start = at + 300_000
            spans += [launch(number, 1, 10_000 * number, 10_000 * number + 3_000, SITE.format(7)),
                      kernel(number + 1, "walk", start, start + 200_000, 10_000 * number + 3_000,
                             stream=stream)]  # fmt: skip
            spans[-1][-1].update(device=0, launch_config='{"grid":[1,1,1],"block":[32,1,1]}')
            edges.append((number, number + 1, "launch"))
            number += 2
            at += 202_000 if stream != 13 or step % 2 else 0
    streams = {
        str(stream): {"name": str(stream), "blocking": stream != 7, "legacy_default": stream == 7}
        for stream in (7, 13, 14)
    }
    trace = rows(*spans, edges=edges, streams=streams)
    found = gains(trace)
    assert max(ns for (change, _), ns in found.items() if change.startswith("keep off")) > 0
    unknown = rows(*spans, edges=edges)
    assert not any(change.startswith("keep off") for change, _ in gains(unknown))


@pytest.mark.parametrize(
    ("compiler", "end_ns", "is_told"),
    [("compile_fx", 1_900_000_000, True), ("compile_fx", 400_000, False),
     ("forward", 1_900_000_000, False)],
)  # fmt: skip
def test_compiling_for_longer_than_what_is_repeated_is_told(compiler, end_ns, is_told):
    spans, edges = launches(20, 20_000, name="triton_poi_fused_add_0")
    late = [(*span[:3], span[3] + 2 * 10**9, span[4] + 2 * 10**9, span[5]) for span in spans]
    first = [launch(500, 1, 0, 5_000, SITE.format(3)), kernel(501, "k", 6_000, 9_000, 5_000)]
    stack = stacks_of(900, [["i/c.py", 2, compiler]], 100_000, end_ns)
    trace = rows(*first, stack, *late, edges=[(500, 501, "launch"), *edges])
    told = [f for f in gs.findings(trace).findings if f.rule == "program.compiles"]
    assert len(told) == is_told
    for finding in told:
        assert finding.severity == "warning"
        assert finding["compiled"].value == end_ns - 100_000


def test_the_line_of_a_kernel_is_where_that_was_launched():
    spans, edges, at = [], [], 0
    for number in range(0, 40, 4):  # two lines: one long kernel, and two that take longer together
        for place, (name, ns, line) in enumerate((("long", 300, 3), ("a", 200, 9), ("b", 200, 9))):
            span = 10 * number + 2 * place + 1
            spans += [launch(span, 1, 2 * span, 2 * span + 1, SITE.format(line)),
                      kernel(span + 1, name, 10_000 + at, 10_000 + at + 100 * ns, 2 * span + 1)]  # fmt: skip
            spans[-1][-1]["site"] = SITE.format(line)
            edges.append((span, span + 1, "launch"))
            at += 100 * ns
    found = gs.findings(rows(*spans, edges=edges))
    (busy,) = (each for each in found.findings if each.rule == "program.busy")
    assert busy.subject == {"kernel": "long", "line": LINE.format(3)}
    path = dict(found.sections)["Critical path"]
    assert next(iter(path.by("line"))) == LINE.format(9), "most of the path is of another line"


def test_what_the_second_change_adds_is_told_beside_the_first():
    spans, edges, at = [], [], 0
    for number in range(1, 121, 3):  # a pause, then a kernel that the host waits for
        spans += [
            launch(number, 1, at, at + 5_000, SITE.format(7)),
            kernel(number + 1, "k", at + 6_000, at + 206_000, at + 5_000),
            wait(number + 2, "cudaStreamSynchronize", at + 6_000, at + 210_000, stream=7),
        ]
        spans[-1][-1]["site"] = SITE.format(9)
        edges += [(number, number + 1, "launch"), (number + 1, number + 2, "host wait")]
        at += 700_000
    result = gs.analysis.what_would_help(rows(*spans, edges=edges))
    first, then = result.changes[0], result.then
    assert first.change == "do not wait for the GPU"
    assert (then.change, then.about) == ("shorten the Python before", LINE.format(7))
    assert then.gain_ns == pytest.approx(40 * (490_000 - 200_000), rel=0.03)
    told = {finding.rule for finding in gs.findings(rows(*spans, edges=edges)).findings}
    assert {"program.may-help", "program.then"} <= told
    alone = gs.analysis.what_would_help(rows(*spans[:2], edges=edges[:1]))
    assert alone.then is None


def test_the_last_pause_of_a_thread_is_before_no_call_of_another():
    spans, edges = launches(10, 20_000)
    later = spans[-1][4] + 900_000
    spans += [(900, "range", "end", later, later + 1_000, {"thread": 1, "process": 1}),
              launch(901, 2, later + 2_000, later + 4_000, SITE.format(9)),
              kernel(902, "k", later + 5_000, later + 9_000, later + 4_000)]  # fmt: skip
    found = gains(rows(*spans, edges=[*edges, (901, 902, "launch")]))
    assert ("shorten the Python before", LINE.format(9)) not in found


@pytest.mark.parametrize(("copies", "is_told"), [(True, True), (False, False)])
def test_a_gpu_on_which_only_copies_run_is_told_as_that(copies, is_told):
    spans, edges, at = [], [], 0
    for number in range(1, 81, 2):
        nbytes = {"stream": 7, "queued_ns": at + 3_000, "process": 1, "nbytes": 1 << 20}
        is_copy = copies and number % 8 != 1
        spans += [
            launch(number, 1, at, at + 3_000, SITE.format(7)),
            (number + 1, "memcpy", "HtoD copy", at + 4_000, at + 103_900, nbytes) if is_copy
            else kernel(number + 1, "k", at + 4_000, at + 103_900, at + 3_000),
        ]  # fmt: skip
        edges.append((number, number + 1, "launch"))
        at += 100_000
    found = gs.findings(rows(*spans, edges=edges)).findings
    (busy,) = (finding for finding in found if finding.rule == "program.busy")
    kernels = [value.value for value in busy.values if value.name == "kernels"]
    assert bool(kernels) == is_told
    assert not is_told or kernels[0] == pytest.approx(0.25, abs=0.03)


def test_products_in_float32_could_be_in_a_narrower_type():
    spans, edges, at, number = [], [], 0, 1
    for name, line in (
        ("ampere_sgemm_128x64_nn", 3),
        ("nvjet_sm90_tst_320x128_64x3_1x2_h_bz_TNT", 4),
    ):
        for _ in range(10):
            spans += [launch(number, 1, number * 10, number * 10 + 5, SITE.format(line)),
                      kernel(number + 1, name, at + 10_000, at + 160_000, number * 10 + 5)]  # fmt: skip
            edges.append((number, number + 1, "launch"))
            number, at = number + 2, at + 150_000
    found = gains(rows(*spans, edges=edges))
    gain_ns = found["multiply in a narrower type", f"float32 products mostly at {LINE.format(3)}"]
    assert gain_ns == 10 * 140_000
    spans[20:] = [(*span[:2], span[2].replace("tst", "sst"), *span[3:]) for span in spans[20:]]
    narrow = gains(rows(*spans[20:], edges=edges[10:]))
    assert not any(change == "multiply in a narrower type" for change, _ in narrow)


def test_other_kernels_in_float32_may_take_half_as_long():
    spans, edges = [], []
    for at, name in enumerate(["ampere_sgemm_128x64_nn", "void add_kernel<float>(float*)"] * 10):
        called = at * 10
        spans += [launch(2 * at + 1, 1, called, called + 5, SITE.format(3)),
                  kernel(2 * at + 2, name, at * 150_000 + 10_000, at * 150_000 + 160_000,
                         called + 5)]  # fmt: skip
        edges.append((2 * at + 1, 2 * at + 2, "launch"))
    found = gains(rows(*spans, edges=edges))
    about = f"float32 products mostly at {LINE.format(3)}"
    is_told = kernel_name("void add_kernel<float>(float*)").endswith("float32)")
    gain_ns = 10 * 140_000 + 10 * 75_000 * is_told
    assert found["multiply in a narrower type", about] == pytest.approx(gain_ns, abs=100)


def stacks_of(number, frames, start_ns, end_ns, state="runs without Python's lock"):
    lines = [["train.py", 7, "step"]]
    more = {"thread": 1, "process": 1, "site": json.dumps(lines), "value": 10.0, "status": state,
            "payload": json.dumps([*frames, *lines])}  # fmt: skip
    return (number, "stack", frames[0][2], start_ns, end_ns, more)


@pytest.mark.parametrize("compiler", ["compile_fx", "forward"])
def test_time_in_compilers_is_told_as_that(compiler):
    spans, edges = launches(20, 400_000_000)
    starts = [span[3] for span in spans if span[1] == "api"]
    pauses = [(start - 300_000_000, start - 150_000_000) for start in starts[1:]]
    seen = [
        stacks_of(900 + at, [["i/c.py", 2, compiler]], *pause) for at, pause in enumerate(pauses)
    ]
    found = gs.analysis.what_would_help(rows(*spans, *seen, edges=edges)).changes
    told = [change for change in found if change.change == "compile less often"]
    assert len(told) == (compiler == "compile_fx")
    for change in told:
        assert change.times == len(pauses)
        assert change.about == f"mostly at {LINE.format(7)}"
        assert change.gain_ns == pytest.approx(19 * 400_000_000, rel=0.02)


@pytest.mark.parametrize(("kernels", "is_told"), [(("a", "b"), True), (("a",), False)])
def test_a_library_that_measures_kernels_is_told_as_that(kernels, is_told):
    spans, edges, at, number = [], [], 0, 1
    for tried in range(12):
        calls = ("cudaEventRecord", "", "cudaEventRecord", "cudaEventSynchronize")
        for call in calls:
            if call:
                spans.append((number, "api", call, at, at + 2_000,
                              {"thread": 1, "process": 1, "site": SITE.format(7)}))  # fmt: skip
            else:
                name = kernels[tried % len(kernels)]
                spans += [launch(number, 1, at, at + 2_000, SITE.format(7)),
                          kernel(number + 1, name, at + 2_500, at + 9_000, at + 2_000)]  # fmt: skip
                edges.append((number, number + 1, "launch"))
            number += 2
            at += 10_000
        at += 500_000
    found = gs.analysis.what_would_help(rows(*spans, edges=edges)).changes
    told = [change for change in found if change.change == "try kernels out less often"]
    assert len(told) == is_told
    for change in told:
        assert change.times == 12
        assert change.gain_ns > 11 * 500_000
        assert change.about == f"calls mostly at {LINE.format(7)}"


def test_what_autograd_launches_is_no_work_of_another():
    spans, edges, at = [], [], 0
    for number in range(0, 80, 4):
        for offset, thread, site in ((1, 1, SITE.format(3)), (3, 2, None)):
            called = at + offset * 10_000
            spans += [launch(number + offset, thread, called, called + 5_000, site),
                      kernel(number + offset + 1, "k", called + 6_000, called + 20_000,
                             called + 5_000)]  # fmt: skip
            edges.append((number + offset, number + offset + 1, "launch"))
        at += 60_000
    found = gains(rows(*spans, edges=edges))
    assert not any(change == "use another stream" for change, _ in found)


@pytest.mark.parametrize(("passes", "reduced"), [(4, 4), (4, 1), (1, 1)])
def test_gradients_that_are_reduced_in_each_micro_step(passes, reduced):
    """Of several backward passes a step, all but the last may leave them."""
    found = gains(reduced_steps(passes, reduced))
    change = "reduce gradients once a step"
    if reduced == 1:
        assert not any(name == change for name, _ in found)
    else:
        assert found[change, "4 times a step"] == pytest.approx(5 * 3 * 3 * 400_000, rel=0.01)


def test_what_launches_a_reduction_goes_with_it():
    found = gains(reduced_steps(4, 4, reduce_ns=1_000, before_ns=500_000, kernels=30))
    gain_ns = found["reduce gradients once a step", "4 times a step"]
    assert gain_ns == pytest.approx(5 * 3 * 3 * 500_000, rel=0.02)


def reduced_steps(passes, reduced, reduce_ns=400_000, before_ns=0, kernels=1):
    """Return five steps of so many passes, of which the last so many reduce three gradients.

    Threads take turns where they launch several kernels in each.
    """
    spans, edges, at, number = [], [], 0, 1
    device_ns = 0

    def add(name, thread, lasts_ns, stream=7):
        nonlocal at, number, device_ns
        call = (number, "api", "cudaLaunchKernel", at, at + 1_000, {"thread": thread, "process": 1})
        start_ns = max(at + 2_000, device_ns)
        device_ns = start_ns + lasts_ns
        spans.extend([call, kernel(number + 1, name, start_ns, device_ns, at + 1_000, stream)])
        edges.append((number, number + 1, "launch"))
        at, number = at + 2_000, number + 2

    for _ in range(5):
        for micro in range(passes):
            for _ in range(kernels):
                add("gemm forward", 1, 100_000 // kernels)
            for _ in range(3):
                for _ in range(kernels):
                    add("gemm backward", 2, 100_000 // kernels)
                if micro >= passes - reduced:
                    at += before_ns
                    add("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 2, reduce_ns)
        add("multi_tensor_apply_kernel", 1, 10_000)
    return rows(*spans, edges=edges)


def test_python_between_launches_in_runs_is_no_pause():
    """Where half of a thread's gaps are short, ten times as long ones are the program's own."""
    found = {}
    for usual_ns in (20_000, 80_000):
        spans, edges = launches(400, usual_ns)
        shifts = 100_000 * (np.arange(400) // 5)  # each fifth gap is longer
        for at, (span, shift) in enumerate(zip(spans, np.repeat(shifts, 2), strict=True)):
            begin, end, more = span[3] + shift, span[4] + shift, dict(span[5])
            if "queued_ns" in more:
                more["queued_ns"] += shift
            spans[at] = (*span[:3], begin, end, more)
        found[usual_ns] = {change for change, _ in gains(rows(*spans, edges=edges))}
    assert "shorten the Python before" not in found[20_000]
    assert "record as graphs" in found[20_000]
    assert "shorten the Python before" in found[80_000]


def test_collections_that_hold_a_thread_up_are_told():
    spans, edges = launches(40, 3_000_000)
    collections = [
        (500 + at, "sync", "garbage collection", span[4] + 100_000, span[4] + 2_100_000,
         {"thread": 1, "process": 1, "site": SITE.format(7)})
        for at, span in enumerate(spans[:-2:2])
    ]  # fmt: skip
    trace = rows(*spans, *collections, edges=edges, thread_names={"1": "main"})
    assert gains(trace)["collect garbage less often", "main"] == 39 * 2_000_000
    causes = gs.analysis.idle_causes(trace).causes
    assert causes[0].cause == "in Python's garbage collector"


@pytest.mark.parametrize(("blocks", "lasts_ns", "is_told"), [
    (33, 1_000_000, True), (132, 1_000_000, False), (33, 10_000, False),
])  # fmt: skip
def test_kernels_with_few_blocks_could_have_more(blocks, lasts_ns, is_told):
    config = f'{{"grid":[{blocks},1,1],"block":[256,1,1]}}'
    spans, edges = launches(40, 1_000, lasts_ns=lasts_ns, launch_config=config, device=0)
    facts = {"devices": {"cuda:0": {"index": 0, "sm_count": 132}}}
    found = gains(rows(*spans, edges=edges, **facts))
    about = f"k mostly at {LINE.format(7)}, {blocks} blocks on 132 SMs"
    assert (("use more thread blocks", about) in found) == is_told
    if is_told:
        at_most_ns = 40 * lasts_ns * (1 - blocks / 132)
        assert found["use more thread blocks", about] <= at_most_ns


ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<{}>, X>(int)"
CONVERTS = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(X)>(int)"
)
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false>(float)"
LAYOUT = "void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, false>(__half)"
JOINS = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<unsigned, 4, 64, 64>(unsigned)"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
TYPICAL_KERNELS = ("compute in float32", "move tensors less", "fuse kernels", "overlap collectives")


@pytest.mark.parametrize(
    ("step", "change", "about", "saved"),
    [
        (["volta_dgemm_128x64_nn", ADD.format("float")], "compute in float32", "kernels", 14 / 15),
        (["gemm", ADD.format("double")], "compute in float32", "kernels", 1 / 2),
        (["gemm", CONVERTS], "move tensors less", "copies and conversions", 1),
        (["gemm", LAYOUT], "move tensors less", "changes of memory layout", 1),
        (["gemm", JOINS], "move tensors less", "concatenations", 1),
        (["gemm", ADD.format("float"), SOFTMAX], "fuse kernels", "kernels", 1),
    ],
)
def test_what_kernels_are_for_is_told_where_it_takes_much(step, change, about, saved):
    found = gains(in_steps(step))
    about = f"{about} mostly at {LINE.format(7)}"
    assert found[change, about] == pytest.approx(40 * 1_000_000 * saved, rel=0.01)
    assert {name for name, _ in found}.isdisjoint({*TYPICAL_KERNELS} - {change})
    seldom = gains(in_steps(step + ["gemm"] * 12))
    assert {name for name, _ in seldom}.isdisjoint(TYPICAL_KERNELS)


def test_element_wise_kernels_between_products_are_no_chain():
    found = gains(in_steps(["gemm", ADD.format("float"), "gemm", SOFTMAX]))
    assert {name for name, _ in found}.isdisjoint(TYPICAL_KERNELS)


@pytest.mark.parametrize("ranks", [1, 2])
def test_collectives_that_nothing_runs_beside_are_told_of_recorded_ranks(ranks):
    facts = [{"process": number, "rank": number, "world_size": 2} for number in range(1, ranks + 1)]
    found = {change for change, _ in gains(in_steps(["gemm", NCCL], ranks=facts))}
    assert ("overlap collectives" in found) == (ranks == 2)


@pytest.mark.parametrize("world_size", [1, 2])
def test_collectives_of_one_rank_of_several_are_told(world_size):
    facts = [{"process": 1, "rank": 0, "world_size": world_size}]
    found = gs.findings(in_steps(["gemm", NCCL], ranks=facts)).findings
    told = [finding for finding in found if finding.rule == "program.one-rank"]
    assert len(told) == world_size - 1
    for finding in told:
        assert (finding.severity, finding.subject) == ("warning", {"rank": "0", "ranks": "2"})
        (share,) = finding.values
        assert share.value == pytest.approx(1 / 2, abs=0.01)


@pytest.mark.parametrize(("seen_ns", "is_told"), [(4_000_000_000, True), (500_000_000, False)])
def test_what_a_long_warm_up_went_into_is_told(seen_ns, is_told):
    spans, edges, at = [], [], 6_000_000_000
    for number in range(0, 200, 5):
        spans += [
            (number + 1, "range", "step", at, at + 10_000_000, {"thread": 1, "process": 1}),
            launch(number + 2, 1, at, at + 10_000, SITE.format(7)),
            kernel(number + 3, "gemm", at + 20_000, at + 9_900_000, at + 10_000),
        ]
        edges.append((number + 2, number + 3, "launch"))
        at += 10_000_000
    first = [launch(901, 1, 0, 10_000, SITE.format(2)), kernel(902, "k", 20_000, 30_000, 10_000)]
    lines = '[["train.py", 2, "compiled"]]'
    stack = (903, "stack", "compiled", 1_000_000, 1_000_000 + seen_ns,
             {"thread": 1, "process": 1, "site": lines, "payload": lines, "value": 800.0,
              "status": "holds Python's lock"})  # fmt: skip
    found = gs.findings(rows(*first, stack, *spans, edges=[(901, 902, "launch"), *edges])).findings
    told = [finding for finding in found if finding.rule == "program.warm-up"]
    assert len(told) == is_told
    for finding in told:
        assert finding.subject == {"function": "train.py:2 in compiled"}
        share = next(value.value for value in finding.values if value.name == "share")
        assert share == pytest.approx(4 / 6, abs=0.01)


def in_steps(kernels, **metadata):
    """Return forty steps of kernels of 1 ms, launched long before they run."""
    spans, edges, at = [], [], 0
    for number, name in enumerate(kernels * 40):
        called = number * 1_000
        spans += [
            launch(2 * number + 1, 1, called, called + 500, SITE.format(7)),
            kernel(2 * number + 2, name, at + 2_000, at + 1_002_000, called + 500),
        ]
        edges.append((2 * number + 1, 2 * number + 2, "launch"))
        at += 1_000_000
    return rows(*spans, edges=edges, **metadata)


def test_a_graph_has_no_calls_for_memory():
    spans, edges = launches(64, 10_000)
    frees = [
        (500 + at, "api", "cudaFree_v3020", span[4] + 2_000, span[4] + 4_000,
         {"thread": 1, "process": 1})
        for at, span in enumerate(spans[::8])
    ]  # fmt: skip
    assert any(change == "record as graphs" for change, _ in gains(rows(*spans, edges=edges)))
    found = gains(rows(*spans, *frees, edges=edges))
    assert not any(change == "record as graphs" for change, _ in found)


def test_what_is_slow_is_said_first_with_how_often_and_how_long():
    spans, edges, at = [], [], 0
    for number in range(1, 121, 3):
        spans += [
            launch(number, 1, at, at + 5_000, SITE.format(7)),
            kernel(number + 1, "k", at + 6_000, at + 206_000, at + 5_000),
            wait(number + 2, "cudaStreamSynchronize", at + 6_000, at + 210_000, stream=7),
        ]
        spans[-1][-1]["site"] = SITE.format(9)
        edges += [(number, number + 1, "launch"), (number + 1, number + 2, "host wait")]
        at += 700_000
    first, second, *_ = gs.findings(rows(*spans, edges=edges)).findings
    assert (first.rule, second.rule) == ("program.slow", "program.may-help")
    values = {each.name: each.value for each in first.values}
    assert values["times"] == 39, "the first step is warm-up"
    assert values["took"] == 39 * 204_000
    assert values["each"] == 204_000
    assert second.subject["change"] == "do not wait for the GPU"


def test_a_program_that_nothing_would_help_says_so():
    gpu = gs.open_device("sim:h200", quiet=True, jitter=False)
    spin = gs.workloads.spin_kernel(gpu)
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        for _ in range(50):
            stream.launch(spin, 1_000_000, grid=132, block=1024)
        stream.synchronize()
    first = gs.findings(recording.trace).findings[0]
    assert (first.rule, first.severity) == ("program.limit", "note")


@pytest.mark.parametrize(
    ("pause_ns", "first"), [(80_000, "program.busy"), (300_000, "program.slow")]
)
def test_what_gains_little_beside_a_busy_gpu_is_not_said_first(pause_ns, first):
    spans, edges, at = [], [], 0
    for number in range(0, 120, 3):
        spans += [
            launch(number + 1, 1, at, at + 5_000, SITE.format(7)),
            kernel(number + 2, "gemm", at + 6_000, at + 1_006_000, at + 5_000),
            wait(number + 3, "cudaStreamSynchronize", at + 6_000, at + 1_010_000, 7),
        ]
        edges.append((number + 1, number + 2, "launch"))
        at += 1_010_000 + pause_ns - 10_000
    found = gs.findings(rows(*spans, edges=edges)).findings
    of_program = [finding for finding in found if finding.family == "program"]
    assert (of_program[0].rule, of_program[0].severity) == (first, "warning")
    assert "program.may-help" in {finding.rule for finding in of_program}


def test_two_changes_in_a_row_gain_no_more_than_all_the_time():
    spans, edges = launches(200, 300_000)
    result = gs.analysis.what_would_help(rows(*spans, edges=edges))
    first = result.changes[0]
    assert result.then is None or first.told_ns + result.then.gain_ns <= result.span_ns
    table = {row["change"]: row["saves (ms)"] for row in result.readable()[0]}
    assert table[f"{first.change}: {first.about}"] == first.told_ns / 1e6


@pytest.mark.parametrize(("lines", "words"), [((7, 7, 7), "mostly at"), ((7, 8, 9), "such as at")])
def test_a_line_with_less_than_half_of_it_is_said_to_be_one_of_several(lines, words):
    spans, edges = launches(60, 10_000)
    apis = [span for span in spans if span[1] == "api"]
    for at, span in enumerate(apis):
        span[5]["site"] = SITE.format(lines[at % 3])
    found = gains(rows(*spans, edges=edges))
    (about,) = (about for change, about in found if change == "record as graphs")
    assert about.startswith(f"launches {words} train.py:")


def test_each_mechanism_is_declared_whole():
    assert len(MECHANISMS) > 15
    for change, declared in MECHANISMS.items():
        assert declared.change == change
        assert declared.fault.count("{}") <= 1
        assert declared.how.format("x")
        assert declared.cases.__doc__.startswith("Yield ")
        assert 0 < declared.weight <= 1
