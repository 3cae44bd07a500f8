"""Recording: everything launched is a row, on the right stream, with what it waited for."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.trace import schema
from gpuscope.workloads.copy import Copy
from gpuscope.workloads.spin import Spin


def rows(trace, kind):
    """Rows of a kind; not those that only CUPTI sees, such as what fills operands."""
    found = trace.where(kind=kind).spans.to_pylist()
    if kind not in ("kernel", "api", "memcpy") or "cupti" not in trace.texts("source"):
        return found
    setup = {
        row["external_correlation"]
        for row in trace.where(kind="api").spans.to_pylist()
        if row["name"] in ("random", "asarray")
    }
    return [row for row in found if row["external_correlation"] not in {None, *setup}]


def test_every_launch_is_a_kernel_row_on_its_stream(gpu):
    with gpu.carve({"a": 16, "b": "rest"}) as parts:
        one, two = (parts[name].create_stream(name=f"s-{name}") for name in parts)
        small, big = gs.Gemm(gpu, m=64, n=64, k=64, name="small"), Copy(gpu, nbytes=1 << 20)
        with gs.profile(gpu) as recording:
            for _ in range(5):
                with gs.CallerStreamGuard(one):
                    small.execute()
                big.execute(stream=two)
            small.wait()
        trace = recording.trace
    kernels = rows(trace, "kernel")
    assert len(kernels) == 10
    assert [row["partition"] for row in kernels].count("a") == 5
    for row in kernels:
        assert row["partition"] == row["intended_partition"]
        assert row["end_ns"] >= row["start_ns"]
        # A short kernel may be done before its call returns, if the host is kept from running.
        assert row["queued_ns"] <= row["end_ns"] or not gpu.is_simulated
        assert trace.stream_name(row["stream"]) == f"s-{row['partition']}"
        assert row["source"] in (("simulated",) if gpu.is_simulated else ("cupti", "events"))
    assert {row["flop_count"] for row in kernels} == {2 * 64**3, None}
    assert {row["category"] for row in kernels} == {"small", big.name}
    launches = {edge["to"]: edge["from"] for edge in trace.edges.to_pylist()
                if edge["kind"] == "launch"}  # fmt: skip
    api = {row["id"]: row for row in rows(trace, "api")}
    for row in kernels:
        assert api[launches[row["id"]]]["correlation"] == row["correlation"]
        assert api[launches[row["id"]]]["start_ns"] <= row["end_ns"]
    assert trace.metadata.partitions["a"].sm_count == 16
    assert len(trace.metadata.partitions["a"].sm_ids) == 16
    assert trace.metadata.simulated == gpu.is_simulated
    assert trace.metadata.counts["dropped"] == 0


def test_handles_have_a_row_from_entry_to_completion_seen(gpu):
    handle = gs.Gemm(gpu, m=64, n=64, k=64, name="g")
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        handle.execute(stream=stream)
        handle.wait()
        handle.execute(stream=stream)  # nobody looks for this one
    found = rows(recording.trace, "handle")
    seen = [row for row in found if row["end_ns"] is not None]
    (open_row,) = [row for row in found if row["end_ns"] is None]
    assert len(seen) == 1
    assert open_row["status"] == "completion not seen"
    kernel = rows(recording.trace, "kernel")[0]
    assert seen[0]["start_ns"] <= kernel["start_ns"]
    assert seen[0]["end_ns"] >= kernel["end_ns"] - 10_000  # clocks agree to a few µs
    result = gs.analysis.latency(recording.trace)["g"]
    assert (result.n, result.unseen) == (1, 1)


def test_copies_of_strided_operands_are_rows(gpu):
    out, left, right = gpu.empty((8, 8)), gpu.random((32, 32)), gpu.random((8, 8))
    gs.mm_out(out, left[::4, ::4], right)
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        gs.mm_out(out, left[::4, ::4], right, stream=stream)
    copied, product = rows(recording.trace, "kernel")[:2]
    assert copied["end_ns"] <= product["start_ns"]
    assert copied["stream"] == product["stream"] == stream.id
    calls = [row["name"] for row in rows(recording.trace, "api") if row["name"] == "rearrange"]
    assert len(calls) == 1
    if gpu.is_simulated:
        assert gs.telling.explain(recording.trace, product["id"]).unexplained_ns == 0


def test_a_product_without_elements_launches_nothing(gpu):
    spin, late = Spin(gpu, duration_ns=100_000), Spin(gpu, duration_ns=1000)
    out, left, right = gpu.empty((0, 4)), gpu.empty((0, 8)), gpu.empty((8, 4))
    with gpu.create_stream() as one, gpu.create_stream() as two, gs.profile(gpu) as recording:
        spin.execute(stream=one)
        gs.mm_out(out, left, right, stream=one)
        two.wait(one.record())
        late.execute(stream=two)
    trace = recording.trace
    assert trace.metadata.complete, trace.metadata.notes
    first, second = rows(trace, "kernel")
    waits = [edge for edge in trace.edges.to_pylist() if edge["kind"] == "event wait"]
    assert [(edge["from"], edge["to"]) for edge in waits] == [(first["id"], second["id"])]


def test_event_waits_are_edges_from_what_had_to_come_first(gpu):
    first, second = Spin(gpu, duration_ns=200_000, name="first"), Spin(gpu, duration_ns=1000)
    with gpu.create_stream() as one, gpu.create_stream() as two, gs.profile(gpu) as recording:
        first.execute(stream=one)
        two.wait(one.record())
        second.execute(stream=two)
        two.synchronize()
    kernels = {row["category"]: row for row in rows(recording.trace, "kernel")}
    waits = [(e["from"], e["to"]) for e in recording.trace.edges.to_pylist()
             if e["kind"] == "event wait"]  # fmt: skip
    assert waits == [(kernels["first"]["id"], kernels[second.name]["id"])]
    slack = 0 if gpu.is_simulated else 2000
    assert kernels["first"]["end_ns"] <= kernels[second.name]["end_ns"] + slack
    (host,) = [e for e in recording.trace.edges.to_pylist() if e["kind"] == "host wait"]
    assert host["from"] == kernels[second.name]["id"]


def test_a_wait_for_the_device_is_behind_the_last_work_of_every_stream(gpu):
    # So long that they end in this order, however long the launches take.
    spins = [Spin(gpu, duration_ns=ms * 1_000_000, name=str(ms)) for ms in (20, 60, 40)]
    with gpu.create_stream() as one, gpu.create_stream() as two, gs.profile(gpu) as recording:
        for spin, stream in zip(spins, (one, one, two), strict=True):
            spin.execute(stream=stream)
        gpu.synchronize()
        gpu.synchronize()
    trace = recording.trace
    ids = {row["id"]: row["category"] for row in rows(trace, "kernel")}
    first, second = (row["id"] for row in rows(trace, "sync"))
    behind = [edge for edge in trace.edges.to_pylist() if edge["kind"] == "host wait"]
    assert {ids[edge["from"]] for edge in behind if edge["to"] == first} == {"60", "40"}
    assert not [edge for edge in behind if edge["to"] == second]
    *_, last = (part for part in gs.analysis.parts(trace, first) if part.kind == "running")
    assert ids[last.span] == "60"


def test_copies_tell_their_memory_and_which_made_the_host_wait(gpu):
    large, small = 1 << 20, 1 << 10
    on_gpu = {count: gpu.empty(count) for count in (large, small)}
    pageable = {count: np.zeros(count, np.float32) for count in (large, small)}
    pinned = gpu.empty_pinned(large)
    pairs = [
        (on_gpu[large], pageable[large]), (pageable[large], on_gpu[large]),
        (pageable[small], on_gpu[small]), (on_gpu[small], pageable[small]),
        (on_gpu[large], pinned), (pinned, on_gpu[large]), (on_gpu[large], on_gpu[large]),
    ]  # fmt: skip
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        for destination, source in pairs:
            stream.copy(destination, source)
        stream.synchronize()
    trace = recording.trace
    copies = sorted(rows(trace, "memcpy"), key=lambda row: row["queued_ns"])
    assert [(row["src_kind"], row["dst_kind"]) for row in copies] == [
        ("pageable", "device"), ("device", "pageable"), ("device", "pageable"),
        ("pageable", "device"), ("pinned", "device"), ("device", "pinned"), ("device", "device"),
    ]  # fmt: skip
    calls = {e["to"]: e["from"] for e in trace.edges.to_pylist() if e["kind"] == "launch"}
    waits = {(e["from"], e["to"]) for e in trace.edges.to_pylist() if e["kind"] == "host wait"}
    waited = [(row["id"], calls[row["id"]]) in waits for row in copies]
    assert waited[1:3] == [True, True]
    assert waited[4:] == [False, False, False]
    if gpu.is_simulated:
        assert waited[0], "the host waits for large memory on its way up"
        assert not waited[3], "small memory is staged"


@pytest.mark.parametrize("reads", [False, True])
def test_what_waits_behind_a_graph_names_its_last_node(gpu, reads):
    spin = Spin(gpu, duration_ns=100_000)
    spin.execute()
    legacy = gpu.wrap_stream(1)
    with gpu.create_stream() as captured, captured.capture() as graph:
        for _ in range(3):
            captured.launch(spin._kernel, 100_000, grid=1, block=32)
    with graph, gpu.create_stream(blocking=True) as one, gpu.create_stream() as two:
        with gs.profile(gpu) as recording:
            graph.launch(stream=one)
            done = one.record()
            two.wait(done)
            spin.execute(stream=two)  # behind an event
            if reads:
                recording.batches()
            done.synchronize()
            graph.launch(stream=two)  # behind its own launch
            graph.launch(stream=one)
            one.synchronize()
            graph.launch(stream=one)
            spin.execute(stream=legacy)  # behind its barrier
            gpu.synchronize()
        trace = recording.trace
    kernels = {row["id"]: row for row in rows(trace, "kernel")}
    last_ns, seen = {}, set()
    for row in kernels.values():
        launch = row["correlation"]
        last_ns[launch] = max(row["end_ns"], last_ns.get(launch, 0))
    for edge in trace.edges.to_pylist():
        before, after = (kernels.get(edge[end]) for end in ("from", "to"))
        inside = before and after and before["correlation"] == after["correlation"]
        if before is not None and not inside:
            assert before["end_ns"] == last_ns[before["correlation"]], edge
            if before["graph"] is not None:
                seen.add(edge["kind"])
    assert seen == {"host wait", "event wait", "graph", "legacy default stream"}
    if gpu.is_simulated:  # a host of its own may look late
        for wait in rows(trace, "sync"):
            assert gs.analysis.parts(trace, wait["id"])[-1].duration_ns < 100_000, "not looking"


@pytest.mark.parametrize("source", ["auto", "events"])
@pytest.mark.parametrize("between", ["kernel", "record", "wait"])
def test_the_legacy_default_streams_barrier_is_edges(gpu, between, source):
    spins = {
        name: Spin(gpu, duration_ns=100_000, name=name) for name in ("before", "between", "after")
    }
    free = Spin(gpu, duration_ns=1000, name="free")
    legacy = gpu.wrap_stream(1)
    with (
        gpu.carve({"a": 16}) as parts,
        gpu.create_stream(blocking=True) as one,
        gpu.create_stream(blocking=True) as two,
        gpu.create_stream() as apart,
    ):
        assert (one.kind, apart.kind, legacy.kind) == (
            "blocking", "non-blocking", "legacy default"
        )  # fmt: skip
        inside = parts["a"].create_stream()
        done = apart.record()
        assert inside.kind == "non-blocking"
        with gs.profile(gpu, source=source) as recording:
            spins["before"].execute(stream=one)
            if between == "kernel":
                spins["between"].execute(stream=legacy)
            elif between == "record":
                legacy.record()
            else:
                legacy.wait(gpu.create_event())  # never recorded, it orders nothing
                legacy.wait(done)
            for stream in (apart, inside):
                free.execute(stream=stream)
                stream.synchronize()
            spins["after"].execute(stream=two)
            two.synchronize()
    trace = recording.trace
    ids = {row["id"]: row["category"] for row in rows(trace, "kernel")}
    barriers = [
        (ids[edge["from"]], ids[edge["to"]]) for edge in trace.edges.to_pylist()
        if edge["kind"] == "legacy default stream"
    ]  # fmt: skip
    order = ["before", "between", "after"] if between == "kernel" else ["before", "after"]
    assert barriers == list(itertools.pairwise(order))
    kernels = {row["category"]: row for row in rows(trace, "kernel")}
    for first, second in itertools.pairwise(order):
        assert kernels[first]["end_ns"] <= kernels[second]["start_ns"] + (
            0 if gpu.is_simulated else 10_000
        )


def test_per_thread_default_streams_know_the_legacy_default_streams_barrier(gpu):
    spins = [Spin(gpu, duration_ns=50_000, name=name) for name in ("mine", "all", "theirs")]

    def launch(spin):
        stream = gpu.wrap_stream(2)
        assert stream.blocking
        spin.execute(stream=stream)
        stream.synchronize()

    with gs.profile(gpu) as recording:
        launch(spins[0])
        spins[1].execute(stream=gpu.wrap_stream(0))
        other = threading.Thread(target=launch, args=(spins[2],))
        other.start()
        other.join()
    ids = {row["id"]: row["category"] for row in rows(recording.trace, "kernel")}
    barriers = [
        (ids[edge["from"]], ids[edge["to"]]) for edge in recording.trace.edges.to_pylist()
        if edge["kind"] == "legacy default stream"
    ]  # fmt: skip
    assert barriers == [("mine", "all"), ("all", "theirs")]


def test_a_handle_reused_on_another_stream_shows_the_wait(gpu):
    handle = gs.Gemm(gpu, m=64, n=64, k=64)
    handle.operands()
    with gpu.create_stream() as one, gpu.create_stream() as two, gs.profile(gpu) as recording:
        handle.execute(stream=one)
        handle.execute(stream=two)
        handle.wait()
    kinds = [edge["kind"] for edge in recording.trace.edges.to_pylist()]
    assert kinds.count("event wait") == 1


def test_ranges_nest_and_hold_the_calls_made_inside(gpu):
    handle = gs.Gemm(gpu, m=64, n=64, k=64)
    handle.operands()

    @gs.annotate("decorated")
    def work(stream):
        handle.execute(stream=stream)

    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        with gs.annotate("outer"), gs.annotate("inner"):
            work(stream)
        handle.wait()
    ranges = {row["name"]: row for row in rows(recording.trace, "range")}
    assert set(ranges) == {"outer", "inner", "decorated"}
    assert ranges["outer"]["parent"] is None
    assert ranges["inner"]["parent"] == ranges["outer"]["id"]
    assert ranges["decorated"]["parent"] == ranges["inner"]["id"]
    assert {row["domain"] for row in ranges.values()} == {"gpuscope"}
    (call,) = rows(recording.trace, "handle")
    assert call["parent"] == ranges["decorated"]["id"]
    launch = next(row for row in rows(recording.trace, "api") if row["name"].startswith("gemm"))
    assert launch["parent"] == call["id"]
    assert ranges["outer"]["start_ns"] <= ranges["inner"]["start_ns"]
    assert ranges["inner"]["end_ns"] <= ranges["outer"]["end_ns"]


def test_a_guard_says_what_was_intended_whatever_stream_is_used(gpu):
    with gpu.carve({"mine": 16, "other": "rest"}) as parts:
        mine, private = parts["mine"].create_stream(), gpu.create_stream(name="private")
        spin = Spin(gpu, duration_ns=1000)
        with gs.profile(gpu) as recording, gs.CallerStreamGuard(mine):
            private.launch(spin._kernel, 1000, grid=1, block=32)
        private.close()
    (kernel,) = rows(recording.trace, "kernel")
    assert kernel["intended_partition"] == "mine"
    assert kernel["partition"] is None
    assert recording.trace.stream_name(kernel["stream"]) == "private"


def test_an_experiment_without_a_guard_shows_the_escape(gpu):
    experiment = {
        "name": "escape",
        "alone_repeats": 0,
        "partitions": {"mine": 16, "other": "rest"},
        "streams": {"s": {"partition": "mine"}},
        "workloads": {
            "spin": {"kind": "spin", "duration_us": 50, "stream": "s", "guard": False},
            "tame": {"kind": "spin", "duration_us": 50, "stream": "s", "waits_on": ["spin"]},
        },
    }
    trace = gs.run(experiment, gpu)["default"]
    for row in rows(trace, "kernel"):
        assert row["intended_partition"] == "mine"
        assert row["partition"] == ("mine" if row["category"] == "tame" else None)
    assert gs.analysis.confinement(trace)["mine"].fraction == pytest.approx(0.5, abs=0.1)


def test_batches_never_change_and_make_up_the_trace(gpu):
    handle = gs.Gemm(gpu, m=64, n=64, k=64)
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        seen = []
        for _ in range(5):
            handle.execute(stream=stream)
            handle.wait()
            seen += recording.batches(since=len(seen))
        halfway = recording.snapshot()
        sizes = [batch.spans.num_rows for batch in seen]
    assert len(halfway) >= sum(sizes)
    final = recording.batches()
    assert [batch.spans.num_rows for batch in final[: len(seen)]] == sizes
    joined = schema.concat([batch.spans for batch in final], schema.SPAN_TYPES)
    assert joined.equals(recording.trace.spans)
    ids = recording.trace.array("id")
    assert len(np.unique(ids)) == len(ids)


def test_what_was_recorded_survives_an_exception(gpu):
    handle = gs.Gemm(gpu, m=64, n=64, k=64)
    with gpu.create_stream() as stream:
        with pytest.raises(ZeroDivisionError), gs.profile(gpu) as recording:
            with gs.annotate("open"):
                handle.execute(stream=stream)
            raise ZeroDivisionError
        assert len(rows(recording.trace, "kernel")) == 1
        with gs.profile(gpu) as again:
            handle.execute(stream=stream)
        assert len(rows(again.trace, "kernel")) == 1


def test_the_trace_is_there_only_when_the_recording_ended(gpu):
    with gs.profile(gpu) as recording, pytest.raises(gs.errors.GpuscopeError, match="still on"):
        _ = recording.trace
    assert set(recording.trace.texts("kind")) <= {"counter"}  # a GPU's clocks are read meanwhile


def test_one_recording_does_not_mix_clocks(gpu):
    other = gs.open_device("sim:h200", quiet=True)
    with pytest.raises(gs.errors.GpuscopeError, match=r"profile\(device\)"), gs.profile():
        pass
    with gs.profile(other) as recording:
        other.create_stream().close()
    assert recording.trace.metadata.time_base == "virtual"


def test_nested_recordings_both_see_everything(gpu):
    handle = gs.Gemm(gpu, m=64, n=64, k=64)
    with gpu.create_stream() as stream, gs.profile(gpu) as outer:
        handle.execute(stream=stream)
        with gs.profile(gpu) as inner:
            handle.execute(stream=stream)
    assert len(rows(inner.trace, "kernel")) == 1
    assert len(rows(outer.trace, "kernel")) == 2


def test_a_saved_trace_opens_again(gpu, tmp_path):
    handle = gs.Gemm(gpu, m=64, n=64, k=64)
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        handle.execute(stream=stream)
    path = gs.export(recording.trace, tmp_path / "t.parquet")
    back = gs.load_trace(path)
    assert back.spans.to_pylist() == recording.trace.spans.to_pylist()
    assert back.edges.to_pylist() == recording.trace.edges.to_pylist()
    assert back.metadata == recording.trace.metadata
