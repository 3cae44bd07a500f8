"""Collectives on simulated GPUs: results, times, order, and what is refused."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device.device import Device
from gpuscope.device.ranks import NoMeeting, Ranks
from gpuscope.errors import CapabilityError, InvalidOperand
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.trace.facts import CollectiveFacts
from gpuscope.workloads import collective
from tests.ranked import as_ranks

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def expected(kind, xs, rank):
    parts = [np.array_split(x.astype("float64"), len(xs)) for x in xs]
    if kind == "all_reduce":
        return np.sum([x.astype("float64") for x in xs], axis=0)
    if kind == "all_gather":
        return np.concatenate(xs).astype("float64")
    if kind == "reduce_scatter":
        return np.sum([part[rank] for part in parts], axis=0)
    return np.concatenate([part[rank] for part in parts])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "dtype"), [(2, "float32"), (4, "float64"), (3, "bfloat16")])
def test_every_rank_has_the_true_result(kind, count, dtype):
    def act(gpu: Device, ranks: Ranks):
        with (
            gs.workloads.Collective(
                gpu, kind, nbytes=6000, dtype=dtype, ranks=ranks, seed=3
            ) as handle,
            gpu.create_stream() as stream,
        ):
            before = gpu.to_host(handle.x)
            out = handle.execute(stream=stream)
            handle.wait()
            return before, gpu.to_host(out)

    found = as_ranks(count, act)
    assert all(isinstance(one, tuple) for one in found), found
    xs = [before for before, _ in found]
    assert not np.array_equal(xs[0], xs[1])
    rounding = 0.02 if dtype == "bfloat16" else 1e-6
    for rank, (_, after) in enumerate(found):
        assert after.dtype == xs[0].dtype
        wanted = expected(kind, xs, rank)
        assert after.shape == wanted.shape
        assert np.allclose(after.astype("float64"), wanted, atol=rounding)


def test_sums_grow_from_call_to_call_and_what_is_written_between_counts():
    def act(gpu: Device, ranks: Ranks):
        with (
            gs.workloads.Collective(gpu, nbytes=4096, ranks=ranks) as handle,
            gpu.create_stream() as stream,
        ):
            first = gpu.to_host(handle.x)
            for _ in range(3):
                handle.execute(stream=stream)
            handle.wait()
            grown = gpu.to_host(handle.x)
            handle.x[...] = float(ranks.rank + 1)
            gpu.synchronize()
            handle.execute(stream=stream)
            handle.wait()
            return first, grown, gpu.to_host(handle.x)

    found = as_ranks(2, act)
    total = found[0][0] + found[1][0]
    for _, grown, last in found:
        assert np.allclose(grown, 4 * total)
        assert np.array_equal(last, np.full(1024, 3, "float32"))


def test_the_late_rank_waits_for_nobody_and_all_end_together():
    late_ns = 50_000

    def act(gpu: Device, ranks: Ranks):
        with (
            gs.workloads.Collective(gpu, nbytes=1 << 20, ranks=ranks) as handle,
            gpu.carve({"comm": 16}) as parts,
            parts["comm"].create_stream() as stream,
            gs.profile(gpu) as recording,
        ):
            gpu.backend.wait_until_ns(1_600_000_000_010_000_000 + late_ns * ranks.rank)
            handle.execute(stream=stream)
            handle.wait()
        (row,) = recording.trace.where(kind="kernel").spans.to_pylist()
        (call,) = recording.trace.where(kind="handle").spans.to_pylist()
        return row, CollectiveFacts.of(call["payload"])

    (first, facts), (last, others) = as_ranks(2, act)
    assert facts == others == CollectiveFacts("all_reduce", 0, "all_reduce", 2, 1 << 20)
    assert first["name"] == "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    assert first["end_ns"] == last["end_ns"]
    assert last["start_ns"] - first["start_ns"] == late_ns
    alone = GpuProfile.load("h200").collective_cost("all_reduce", 1 << 20, 2, 16).block_ns
    assert last["end_ns"] - last["start_ns"] == alone


def test_groups_of_several_streams_go_on_side_by_side_in_either_order():
    def act(gpu: Device, ranks: Ranks):
        with (
            gs.workloads.Collective(gpu, nbytes=1 << 20, name="a", ranks=ranks) as a,
            gs.workloads.Collective(gpu, nbytes=1 << 24, name="b", ranks=ranks) as b,
            gpu.carve({"a": 16, "b": 16}) as parts,
            parts["a"].create_stream() as of_a,
            parts["b"].create_stream() as of_b,
        ):
            order = [(a, of_a), (b, of_b)]
            for handle, stream in order if ranks.rank else reversed(order):
                handle.execute(stream=stream)
                gpu.backend.wait_until_ns(gpu.now_ns() + 300_000)
            gpu.synchronize()
            return gpu.to_host(a.x), gpu.to_host(b.x)

    one, other = as_ranks(2, act)
    assert np.array_equal(one[0], other[0])
    assert np.array_equal(one[1], other[1])


def test_ranks_that_launch_other_collectives_are_told_so():
    def act(gpu: Device, ranks: Ranks):
        nbytes = 4096 * (1 + ranks.rank)
        with (
            gs.workloads.Collective(gpu, nbytes=nbytes, name="sum", ranks=ranks) as handle,
            gpu.create_stream() as stream,
        ):
            handle.execute(stream=stream)
            stream.synchronize()

    found = as_ranks(2, act)
    assert all(isinstance(one, NoMeeting) for one in found)
    assert "4,096 bytes" in str(found[0])
    assert "8,192 bytes" in str(found[0])


def test_a_rank_that_launches_fewer_does_not_hang_the_others():
    def act(gpu: Device, ranks: Ranks):
        with (
            gs.workloads.Collective(gpu, nbytes=4096, name="sum", ranks=ranks) as handle,
            gpu.create_stream() as stream,
        ):
            for _ in range(2 - ranks.rank):
                handle.execute(stream=stream)
            stream.synchronize()

    first, second = as_ranks(2, act)
    assert second is None
    assert isinstance(first, NoMeeting)
    assert "rank 0 waits for collective 1 of group 'sum'" in str(first)
    assert "rank 1 has ended" in str(first)


def test_hazards_know_what_a_collective_reads_and_writes():
    def act(gpu: Device, ranks: Ranks):
        with (
            gs.workloads.Collective(gpu, nbytes=4096, ranks=ranks) as handle,
            gpu.create_stream(name="s") as stream,
            gpu.create_stream(name="t") as other,
            gs.profile(gpu, hazards=True) as recording,
        ):
            handle.execute(stream=stream)
            other.copy(gpu.empty(1024), handle.x)
        return gs.analysis.hazards(recording.trace)

    for found in as_ranks(2, act):
        assert [fact.kind for fact in found.found] == ["read after write"]


def test_graphs_are_refused():
    def act(gpu: Device, ranks: Ranks):
        with (
            gs.workloads.Collective(gpu, nbytes=4096, ranks=ranks) as handle,
            gpu.create_stream() as stream,
        ):
            with pytest.raises(CapabilityError, match="which no graph takes"):
                handle.use_graph()
            with pytest.raises(CapabilityError, match="which no graph takes"), stream.capture():
                handle.execute(stream=stream)
            handle.execute(stream=stream)
            handle.wait()
            return handle.sequence

    assert as_ranks(2, act) == [1, 1]


@pytest.mark.parametrize("variables", [{}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_one_rank_is_refused(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CapabilityError, match=r"devices = \['cuda:0', 'cuda:1'\]"):
        gs.workloads.Collective(gs.open_device("sim:h200", quiet=True), nbytes=4096)


def test_simulated_gpus_of_a_foreign_launcher_are_refused(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CapabilityError, match="name them in an experiment"):
        gs.workloads.Collective(gs.open_device("sim:h200", quiet=True), nbytes=4096)


def test_wrong_arguments_are_refused():
    gpu = gs.open_device("sim:h200", quiet=True)
    with pytest.raises(InvalidOperand, match="'all_reduce', 'all_gather'"):
        gs.workloads.Collective(gpu, "broadcast", nbytes=4096)
    with pytest.raises(InvalidOperand, match="nbytes"):
        gs.workloads.Collective(gpu, nbytes=0)


def test_the_model_gives_what_was_measured_on_two_h200s():
    text = (Path(__file__).parents[2] / "data" / "all_reduce_h200.json").read_text("utf-8")
    profile = GpuProfile.load("h200")
    off = [
        profile.collective_cost("all_reduce", one["nbytes"], 2, one["sm_count"]).block_ns
        / (1e3 * one["us"])
        - 1
        for one in json.loads(text)["times"]
    ]
    assert len(off) == 117
    assert np.median(np.abs(off)) < 0.03
    assert np.max(np.abs(off)) < 0.12


@pytest.mark.parametrize(("ranks", "most"), [(2, 0.32), (4, 0.16)])
def test_the_model_gives_what_was_measured_on_h100s(ranks, most):
    results = Path(__file__).parents[3] / "benchmarks" / "results" / "ranks_gpu.json"
    table = json.loads(results.read_text("utf-8"))["parts"][f"collectives {ranks}"]["table"]
    profile = GpuProfile.load("h100")
    off = []
    for row in table:
        if not row["beside_gemm"]:
            facts = CollectiveFacts(row["kind"], 0, "g", ranks, row["bytes"])
            cost = profile.collective_cost(row["kind"], facts.bus_bytes, ranks, row["granted"])
            off.append(cost.block_ns / 1e3 / row["time_us"] - 1)
    assert len(off) == 112
    assert np.median(np.abs(off)) < 0.04
    assert np.max(np.abs(off)) < most


def test_bus_factors_are_those_of_nccl_tests():
    def factors(kind):
        return [CollectiveFacts(kind, 0, "g", n, 1000).bus_bytes / 1000 for n in (2, 4, 8)]

    assert factors("all_reduce") == [1, 1.5, 1.75]
    assert all(factors(kind) == [0.5, 0.75, 0.875] for kind in KINDS[1:])


class FakeDistributed:
    """What a communicator asks of ``torch.distributed``; destroying would wait for all ranks."""

    def __init__(self):
        self.destroyed = []

    def is_initialized(self):
        return True

    def destroy_process_group(self, group="all"):
        self.destroyed.append(group)


@pytest.fixture
def distributed(monkeypatch):
    fake = FakeDistributed()
    torch = SimpleNamespace(
        distributed=fake, float32=None, cuda=SimpleNamespace(device=lambda _: nullcontext()),
        from_dlpack=lambda array: array,
    )  # fmt: skip
    monkeypatch.setattr(collective, "_torch", lambda: torch)
    monkeypatch.setattr(collective._Communicator, "has_failed", False)
    monkeypatch.delattr(sys, "last_value", raising=False)
    return fake


def communicator():
    device = SimpleNamespace(info=SimpleNamespace(index=0))
    element = SimpleNamespace(name="float32")

    class Bytes:
        def view(self, _):
            return self

    made = collective._Communicator(device, "all_reduce", Bytes(), Bytes(), element)
    made._group = "mine"
    return made


def test_communicators_are_destroyed_by_a_rank_that_ends_as_it_should(distributed):
    communicator().close()
    assert distributed.destroyed == ["mine"]
    collective._leave(distributed)
    assert distributed.destroyed == ["mine", "all"]


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_a_rank_that_fails_destroys_no_communicator(distributed, error):
    made = communicator()
    with pytest.raises(error):
        try:
            raise error
        finally:
            made.close()
    collective._leave(distributed)
    assert distributed.destroyed == []


def test_a_rank_that_an_exception_ended_destroys_none_at_exit(distributed, monkeypatch):
    monkeypatch.setattr(sys, "last_value", ZeroDivisionError(), raising=False)
    communicator().close()
    collective._leave(distributed)
    assert distributed.destroyed == []
