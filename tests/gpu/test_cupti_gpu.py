"""The cupti source on a real GPU: everything is seen, nothing is silently wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.workloads.spin import Spin

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    x = torch.randn(256, 256, device="cuda")
    torch.mm(x, x)
    torch.cuda.synchronize()
    return device


def rows(trace, kind, **equal):
    return trace.where(kind=kind, **equal).spans.to_pylist()


def alone(script, *, code=0, **env):
    """Run a script in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(script)],
        capture_output=True, text=True, timeout=100, check=False,
        env={**{name: os.environ[name] for name in os.environ if "NVTX" not in name}, **env},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def launch_edges(trace):
    return [edge for edge in trace.edges.to_pylist() if edge["kind"] == "launch"]


def test_every_library_s_kernels_are_rows_with_their_launch(gpu):
    cupy = pytest.importorskip("cupy")
    x, y = torch.randn(256, 256, device="cuda"), cupy.ones((64, 64), cupy.float32)
    cupy.matmul(y, y)
    with gs.profile(gpu) as recording:
        for _ in range(7):
            torch.mm(x, x)
        y + y
        x.cpu()
        torch.cuda.synchronize()
    trace = recording.trace
    assert trace.metadata.complete
    assert trace.metadata.counts["dropped"] == 0
    kernels = rows(trace, "kernel")
    assert len([row for row in kernels if "add" in row["name"]]) >= 1
    assert len([row for row in kernels if "gemm" in row["name"] or "nvjet" in row["name"]]) >= 7
    (copy,) = rows(trace, "memcpy")
    assert (copy["nbytes"], copy["copy_kind"]) == (x.numel() * 4, "DtoH")
    api = {row["id"]: row for row in rows(trace, "api")}
    launches = {edge["to"]: api[edge["from"]] for edge in launch_edges(trace)}
    for row in [*kernels, copy]:
        launch = launches[row["id"]]
        assert launch["correlation"] == row["correlation"]
        assert launch["start_ns"] <= row["start_ns"] <= row["end_ns"]
        assert launch["thread"] == row["thread"] == threading.get_native_id()
        assert row["source"] == launch["source"] == "cupti"
    assert len({row["id"] for row in trace.spans.to_pylist()}) == len(trace)
    assert not any(row["name"].startswith("gpuscope") for row in kernels)


def test_without_launch_ids_there_are_kernels_only_and_analyses_say_so(gpu):
    x = torch.randn(256, 256, device="cuda")
    with gs.profile(gpu, launch_ids=False) as recording:
        torch.mm(x, x)
    trace = recording.trace
    assert trace.kind_counts()["kernel"] >= 1
    assert "api" not in trace.kind_counts()
    with pytest.raises(gs.errors.MissingEvidence, match="launch"):
        gs.analysis.launch_latency(trace)


def test_streams_have_our_names_the_per_thread_default_one_too(gpu):
    handle = Spin(gpu, duration_ns=1000, name="spin")
    handle.execute()
    with gpu.create_stream(name="mine") as mine, gs.profile(gpu) as recording:
        handle.execute(stream=mine)
        handle.execute()
    first, second = rows(recording.trace, "kernel")
    assert recording.trace.stream_name(first["stream"]) == "mine"
    assert "context" not in recording.trace.stream_name(second["stream"])


def test_full_detail_adds_all_calls_and_synchronisations(gpu):
    x = torch.randn(256, 256, device="cuda")
    with gs.profile(gpu, detail="full") as recording:
        torch.mm(x, x)
        torch.cuda.synchronize()
    names = {row["name"] for row in rows(recording.trace, "api")}
    assert any(name.startswith("cudaGetDevice") for name in names)
    assert any(row["source"] == "cupti" for row in rows(recording.trace, "sync"))


def test_a_guard_gives_foreign_launches_to_its_partition_and_escapes_are_named(gpu):
    x = torch.randn(512, 512, device="cuda", dtype=torch.float16)
    side = torch.cuda.Stream()
    with gpu.carve({"a": 32, "b": "rest"}) as parts:
        one, two = parts["a"].create_stream(), parts["b"].create_stream()
        for stream in (one, two):
            with gs.CallerStreamGuard(stream, bind=True):
                torch.mm(x, x)
        torch.cuda.synchronize()
        with gs.profile(gpu) as recording:
            with gs.CallerStreamGuard(two, bind=True):
                for _ in range(3):
                    torch.mm(x, x)
            with gs.CallerStreamGuard(one, bind=True):
                for _ in range(5):
                    torch.mm(x, x)
                with torch.cuda.stream(side):
                    torch.mm(x, x)
            torch.mm(x, x)
            torch.cuda.synchronize()
    trace = recording.trace
    inside = rows(trace, "kernel", intended_partition="a")
    assert [row["partition"] for row in inside].count("a") == 5
    assert [row["partition"] for row in inside].count(None) == 1
    assert len(rows(trace, "kernel", intended_partition="b", partition="b")) == 3
    assert len(rows(trace, "kernel", intended_partition=None)) == 1
    result = gs.analysis.confinement(trace)
    found = {part.partition: part for part in result.partitions}
    assert found["b"].fraction == 1
    assert found["a"].fraction < 1


def test_guards_in_tasks_count_only_where_no_other_task_ran(gpu):
    import asyncio

    x = torch.randn(256, 256, device="cuda")

    async def steady(stream):
        with gs.CallerStreamGuard(stream, bind=True):
            torch.mm(x, x)

    async def napping(stream):
        with gs.CallerStreamGuard(stream):
            await asyncio.sleep(0.01)

    async def other():
        await asyncio.sleep(0.005)
        torch.mm(x, x)

    async def main():
        await steady(stream)
        await asyncio.gather(napping(stream), other())

    with gpu.carve({"a": 16, "b": "rest"}) as parts:
        stream = parts["a"].create_stream()
        with gs.profile(gpu) as recording:
            asyncio.run(main())
            torch.cuda.synchronize()
    trace = recording.trace
    given = rows(trace, "kernel", intended_partition="a")
    assert given
    assert {row["partition"] for row in given} == {"a"}
    assert trace.metadata.counts["in_shared_tasks"] >= 1


def test_graphs_made_before_the_recording_are_seen_node_by_node(gpu):
    x = torch.randn(256, 256, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        y.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    with gs.profile(gpu) as recording:
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
    trace = recording.trace
    nodes = rows(trace, "kernel")
    assert len(nodes) == 4
    assert all(row["graph"] and row["graph_node"] for row in nodes)
    launches = [row for row in rows(trace, "api") if "GraphLaunch" in row["name"]]
    assert {edge["from"] for edge in launch_edges(trace)} == {row["id"] for row in launches}


def test_nvtx_ranges_of_every_library_arrive_with_their_data():
    printed = alone(
        """
        import gpuscope as gs
        gpu = gs.open_device("cuda:0", quiet=True)
        import nvtx, torch
        x = torch.randn(64, 64, device="cuda"); torch.mm(x, x)
        with gs.profile(gpu) as recording:
            with gs.annotate("ours"), nvtx.annotate(
                "theirs", domain="dom", color="red", category="cat", payload=7):
                torch.cuda.nvtx.range_push("torch's")
                torch.mm(x, x)
                torch.cuda.nvtx.range_pop()
            nvtx.mark("here", domain="dom")
            open_range = nvtx.start_range("left open", domain="dom")
            torch.cuda.synchronize()
        t = recording.trace
        ranges = {r["name"]: r for r in t.where(kind="range").spans.to_pylist()}
        assert set(ranges) == {"ours", "theirs", "torch's", "left open"}, set(ranges)
        theirs = ranges["theirs"]
        assert (theirs["domain"], theirs["category"], theirs["payload"]) == ("dom", "cat", "7")
        assert theirs["color"] == 0xFFFF0000
        assert theirs["parent"] == ranges["ours"]["id"]
        assert ranges["torch's"]["parent"] == theirs["id"]
        assert ranges["left open"]["end_ns"] is None
        assert ranges["ours"]["domain"] == "gpuscope"
        (mark,) = t.where(kind="mark").spans.to_pylist()
        assert mark["name"] == "here" and mark["end_ns"] == mark["start_ns"]
        (result,) = [r for r in gs.analysis.range_projection(t).rows() if "torch's" in str(r)]
        print(result)
        """
    )
    assert "torch's" in printed


def test_ranges_are_ours_where_nvtx_was_used_too_early():
    alone(
        """
        import nvtx
        nvtx.push_range("too early"); nvtx.pop_range(); nvtx.get_domain("gpuscope")
        import gpuscope as gs
        gpu = gs.open_device("cuda:0", quiet=True)
        with gs.profile(gpu) as recording, gs.annotate("ours"):
            pass
        t = recording.trace
        assert [r["name"] for r in t.where(kind="range").spans.to_pylist()] == ["ours"]
        assert any("NVTX_INJECTION64_PATH" in note for note in t.metadata.notes), t.metadata.notes
        """
    )
    printed = alone(
        """
        import os, gpuscope as gs
        gs.open_device("cuda:0", quiet=True)
        print(os.environ["NVTX_INJECTION64_PATH"])
        """,
        NVTX_INJECTION64_PATH="/somewhere/else.so",
    )
    assert printed.strip() == "/somewhere/else.so"


PROFILER = """
import warnings
import gpuscope as gs, torch
from torch.profiler import ProfilerActivity, profile
gpu = gs.open_device("cuda:0", quiet=True)
x = torch.randn(512, 512, device="cuda"); torch.mm(x, x); torch.cuda.synchronize()
def kernels(trace): return trace.kind_counts().get("kernel", 0)
def theirs():
    torch.mm(x, x); torch.cuda.synchronize()
with gs.profile(gpu) as r: torch.mm(x, x)
each = kernels(r.trace); assert each
"""


def test_another_client_before_us_is_named():
    alone(
        PROFILER
        + """
with profile(activities=[ProfilerActivity.CUDA]) as theirs_on:
    try:
        with gs.profile(gpu): pass
    except gs.errors.RecorderBusy as error:
        assert "PyTorch" in str(error) and "events" in str(error), error
    else:
        raise AssertionError("not refused")
    with gs.profile(gpu, source="events") as r: gs.Gemm(gpu, m=64, n=64, k=64).execute()
    assert kernels(r.trace) == 1
    theirs()
assert sum(e.count for e in theirs_on.key_averages() if "gemm" in e.key or "xmma" in e.key), "stole"
with gs.profile(gpu) as r: torch.mm(x, x)       # it has finished: nobody is in the way
assert kernels(r.trace) == each and r.trace.metadata.complete
assert any("PyTorch" in note for note in r.trace.metadata.notes)
"""
    )


def test_a_client_that_takes_over_is_found_and_the_next_recording_works():
    alone(
        PROFILER
        + """
with profile(activities=[ProfilerActivity.CUDA]): theirs()   # from now on it may take over
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    with gs.profile(gpu) as r:
        torch.mm(x, x)
        with profile(activities=[ProfilerActivity.CUDA]) as p: theirs()
        torch.mm(x, x)
t = r.trace
print(t, t.metadata.notes, t.metadata.counts)
assert not t.metadata.complete and any("took the recording over" in n for n in t.metadata.notes)
assert any("incomplete" in str(w.message) for w in told)
with gs.profile(gpu) as r: torch.mm(x, x)
assert kernels(r.trace) == each and r.trace.metadata.complete, r.trace.metadata.notes
"""
    )


def test_a_client_that_comes_while_we_hold_the_subscription_is_refused_not_us():
    alone(
        PROFILER
        + """
with gs.profile(gpu) as r:
    torch.mm(x, x)
    with profile(activities=[ProfilerActivity.CUDA]) as p: theirs()
    torch.mm(x, x)
assert kernels(r.trace) == 3 * each and r.trace.metadata.complete, r.trace.metadata.notes
"""
    )


def test_recording_again_and_nested_and_on_another_thread(gpu):
    x = torch.randn(256, 256, device="cuda")

    def kernels(trace):
        return trace.kind_counts().get("kernel", 0)

    with gs.profile(gpu) as recording:
        torch.mm(x, x)
    each = kernels(recording.trace)
    with gs.profile(gpu) as outer:
        torch.mm(x, x)
        with gs.profile(gpu, launch_ids=False) as inner:
            torch.mm(x, x)
        torch.mm(x, x)
    assert (kernels(inner.trace), kernels(outer.trace)) == (each, 3 * each)
    assert "memcpy" not in outer.trace.kind_counts()
    found = []

    def elsewhere():
        with gs.profile(gpu) as recording:
            torch.mm(x, x)
        found.append(recording.trace)

    for _ in range(3):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert [kernels(trace) for trace in found] == [each] * 3
    with pytest.raises(ZeroDivisionError), gs.profile(gpu) as recording:
        torch.mm(x, x)
        raise ZeroDivisionError
    assert kernels(recording.trace) == each


def test_results_are_the_same_bits_with_and_without(gpu):
    x = torch.randn(512, 512, device="cuda")
    before = torch.mm(x, x)
    with gs.profile(gpu, detail="full"):
        during = torch.mm(x, x)
    assert torch.equal(before, during)
    assert torch.equal(before, torch.mm(x, x))


def test_many_threads_launch_and_nothing_is_lost(gpu):
    x = [torch.randn(64, 64, device="cuda") for _ in range(8)]
    n = 2000

    def launch(one):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(n):
                one.add_(1)

    with gs.profile(gpu) as recording:
        threads = [threading.Thread(target=launch, args=(one,)) for one in x]
        for thread in threads:
            thread.start()
        seen = 0
        while any(thread.is_alive() for thread in threads):
            seen = len(recording.batches())
            time.sleep(0.02)
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
    trace = recording.trace
    assert seen
    assert trace.kind_counts()["kernel"] == 8 * n
    per_thread = np.unique(trace.where(kind="kernel").array("thread"), return_counts=True)[1]
    assert per_thread.tolist() == [n] * 8
    assert len(launch_edges(trace)) == 8 * n


def test_the_memory_limit_drops_counts_and_says_so(gpu):
    x = torch.randn(64, 64, device="cuda")
    with (
        pytest.warns(UserWarning, match="incomplete.*memory limit"),
        gs.profile(gpu, memory_limit=32 << 20) as recording,
    ):
        for _ in range(300_000):
            x.add_(1)
    metadata = recording.trace.metadata
    assert not metadata.complete
    kernels = recording.trace.kind_counts()["kernel"]
    assert 0 < kernels < 300_000
    assert metadata.counts["dropped"] >= 300_000 - kernels


@pytest.mark.gpu_alone("measures how soon a call returns")
def test_work_still_running_is_waited_for_or_stays_open(gpu):
    long = Spin(gpu, duration_ns=60_000_000, name="long")
    long.execute()
    long.wait()
    with gpu.create_stream() as stream:
        with gs.profile(gpu) as recording:
            long.execute(stream=stream)
        (row,) = rows(recording.trace, "kernel")
        assert row["end_ns"] - row["start_ns"] > 50_000_000
        with gs.profile(gpu, wait=False) as recording:
            began = time.perf_counter()
            long.execute(stream=stream)
        assert time.perf_counter() - began < 0.05
        kernels = rows(recording.trace, "kernel")
        assert all(row["end_ns"] is None for row in kernels)
        assert any("without waiting" in note for note in recording.trace.metadata.notes)
        long.wait()


def test_a_forked_child_is_told(gpu):
    alone(
        """
        import os, sys, gpuscope as gs
        gpu = gs.open_device("cuda:0", quiet=True)
        with gs.profile(gpu): pass
        child = os.fork()
        if not child:
            try:
                with gs.profile(gpu): pass
            except gs.errors.GpuscopeError as error:
                os._exit(0 if "fork" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        """
    )


def test_a_recording_nobody_ends_ends_with_the_interpreter():
    alone(
        """
        import gpuscope as gs, torch
        gpu = gs.open_device("cuda:0", quiet=True)
        recording = gs.profile(gpu)
        recording.__enter__()
        x = torch.randn(64, 64, device="cuda")
        for _ in range(100): torch.mm(x, x)
        """
    )


def test_without_a_device_of_ours_a_process_is_recorded():
    alone(
        """
        import gpuscope as gs, torch
        x = torch.randn(64, 64, device="cuda"); torch.mm(x, x); torch.cuda.synchronize()
        with gs.profile() as recording:
            for _ in range(10): torch.mm(x, x)
            torch.cuda.synchronize()
        assert recording.trace.kind_counts()["kernel"] >= 10
        """
    )


@pytest.mark.gpu_alone("compares times to 1 %")
def test_kernels_are_timed_as_the_gpu_s_own_timer_tells(gpu):
    spin = Spin(gpu, duration_ns=5_000_000, name="spin")
    spin.execute()
    spin.wait()
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        before = time.time_ns()
        spin.execute(stream=stream)
        spin.wait()
        after = time.time_ns()
    (row,) = rows(recording.trace, "kernel")
    assert row["end_ns"] - row["start_ns"] == pytest.approx(5_000_000, rel=0.01)
    assert before - 5000 <= row["start_ns"] <= row["end_ns"] <= after + 5000
    assert recording.trace.metadata.clocks["cupti"].residual_ns < 5000


def test_the_confinement_example_is_resident_where_traced(gpu):
    from pathlib import Path

    from gpuscope.experiments.execution import run

    examples = Path(__file__).parents[2] / "examples"
    trace = run(examples / "confinement.toml", gpu)["64 | 32 | 16 | 8 | rest"]
    found = {part.partition: part for part in gs.analysis.confinement(trace).partitions}
    assert {name: part.fraction for name, part in found.items()} == dict.fromkeys(
        ("p64", "p32", "p16", "p8", "rest"), 1.0
    )
    kinds = {name: {one.kind for one in part.evidence} for name, part in found.items()}
    assert kinds["p64"] == kinds["rest"] == {"resident"}
    assert kinds["p32"] == {"allocated"}


def test_under_nsight_systems_the_tool_is_named_or_both_record(tmp_path):
    import shutil
    from pathlib import Path

    there = sorted(Path("/opt/nvidia").glob("nsight-compute/*/host/target-linux-x64/nsys"))
    nsys = shutil.which("nsys") or (str(there[-1]) if there else None)
    if nsys is None:
        pytest.skip("no Nsight Systems here")
    script = """
import gpuscope as gs
gpu = gs.open_device("cuda:0", quiet=True)
try:
    with gs.profile(gpu) as r: gs.Gemm(gpu, m=64, n=64, k=64).execute()
    print("RECORDED", r.trace, r.trace.metadata.notes)
except gs.errors.RecorderBusy as error:
    print("BUSY", error)
with gs.profile(gpu, source="events") as r: gs.Gemm(gpu, m=64, n=64, k=64).execute()
assert r.trace.kind_counts()["kernel"] == 1
"""
    done = subprocess.run(
        [nsys, "profile", "-t", "cuda,nvtx", "--sample=none", "--cpuctxsw=none",
         "-o", str(tmp_path / "report"), sys.executable, "-c", script],
        capture_output=True, text=True, timeout=100, check=False,
        env={name: os.environ[name] for name in os.environ if "NVTX" not in name},
    )  # fmt: skip
    sys.stdout.write(done.stdout[-3000:])
    assert "BUSY" in done.stdout or "RECORDED" in done.stdout, done.stdout + done.stderr
    assert "Error" not in done.stderr, done.stderr
