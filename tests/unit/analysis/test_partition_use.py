"""What partitions used by sampled counters: told, bounded, estimated; on a genuine H200 trace, too."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope import analysis, telling
from gpuscope.analysis.counters_analysis import span_use
from gpuscope.analysis.sm_shares import covered, shares
from gpuscope.device.families import memory_rate
from gpuscope.errors import MissingEvidence
from gpuscope.simulator import profiles
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.telling.verdict import verdict_of
from gpuscope.trace import Trace
from gpuscope.trace.counters import BUSY, LOST, READ, TENSOR, WRITTEN, samples_of
from gpuscope.trace.facts import DeviceFacts, PartitionFacts
from gpuscope.trace.metadata import TraceMetadata

GENUINE = Path(__file__).parents[2] / "data" / "counters_h200.parquet"
SMS = 132
GRANTED = {"a": 16, "b": 32, "c": 84}
LENGTH = 100_000
COPIES = "device_copy_bytes_per_us"


class Made:
    """A trace made of kernels and samples, which are a length of time apart."""

    def __init__(self, memory_bytes_per_us: int | None = None) -> None:
        self.rows: list[dict] = []
        self._rate = memory_bytes_per_us

    def kernel(self, name, partition, start, end, blocks=None, device=0, kind="kernel"):
        """Add a kernel; times are in lengths of a sample."""
        config = None if blocks is None else json.dumps({"grid": [blocks, 1, 1]})
        row = {"kind": kind, "name": name, "partition": partition, "launch_config": config}
        self._add(row, start, end, device)

    def samples(self, *busy, since=0, device=0, name=BUSY):
        for number, value in enumerate(busy):
            row = {"kind": "counter", "name": name, "value": float(value)}
            self._add(row, since + number, since + number + 1, device)

    def _add(self, row, start, end, device):
        times = {"start_ns": round(start * LENGTH), "end_ns": round(end * LENGTH)}
        row |= {"id": len(self.rows) + 1, "device": device, "source": "cupti"}
        self.rows.append({**row, **times})

    @property
    def trace(self) -> Trace:
        names = sorted(set().union(*self.rows))
        columns = {name: [row.get(name) for row in self.rows] for name in names}
        metadata = TraceMetadata(
            devices={
                f"cuda:{index}": DeviceFacts(
                    index=index, sm_count=SMS, name="GPU", memory_bytes_per_us=self._rate
                )
                for index in (0, 1)
            },
            partitions={name: PartitionFacts(sm_count=sms) for name, sms in GRANTED.items()},
        )
        return Trace.from_columns(columns, metadata=metadata)

    @property
    def shares(self):
        (divided,) = shares(self.trace)
        return divided


def column(divided, partition):
    return divided.partitions.index(partition)


def test_a_sample_in_which_one_partition_ran_is_its_own():
    made = Made()
    made.kernel("k", "a", 0, 2)
    made.samples(14.8, 16.2, 0.3)
    divided = made.shares
    assert divided.busy[:, 0].tolist() == [14.8, 16.2, 0.3]  # not cut off at its grant
    assert divided.is_told[:2, 0].all()
    assert divided.ran[:, 0].tolist() == [1, 1, 0]


def test_bounds_follow_from_grants_and_the_time_that_others_ran():
    made = Made()
    made.kernel("k", "a", 0, 1)
    made.kernel("k", "b", 0.5, 1)
    made.samples(24.0)
    divided = made.shares
    slack = 32 * 0.01 + 16 * 0.01  # the clocks may differ by 1 µs, a hundredth of a sample
    low, high = divided.low[0], divided.high[0]
    assert low == pytest.approx([24 - 16, 24 - 16], abs=slack)
    assert high == pytest.approx([16, 16], abs=slack)
    assert np.isnan(divided.busy[0]).all()  # nothing says how they share


def test_bounds_that_meet_tell_directly():
    made = Made()
    for name in "abc":
        made.kernel("k", name, 0, 1)
    made.samples(132.0)
    divided = made.shares
    assert divided.is_told.all()
    assert divided.busy[0] == pytest.approx([16, 32, 84], abs=0.1)


def test_no_more_sms_than_thread_blocks_can_be_on():
    made = Made()
    made.kernel("few", "a", 0, 1, blocks=5)
    made.kernel("k", "b", 0, 1)
    made.samples(5 + 20.0)
    divided = made.shares
    assert divided.high[0, column(divided, "a")] == pytest.approx(5, abs=0.2)
    assert divided.low[0, column(divided, "b")] == pytest.approx(20, abs=0.2)


def test_what_a_kernel_uses_alone_estimates_it_in_company():
    made = Made()
    made.kernel("k", "a", 0, 2)
    made.kernel("k", "b", 3, 5)
    made.kernel("k", "a", 6, 7)
    made.kernel("k", "b", 6, 7)
    made.samples(10, 10, 0, 30, 30, 0, 36)
    divided = made.shares
    a, b = column(divided, "a"), column(divided, "b")
    assert not divided.is_told[6].any()
    assert divided.busy[6].sum() == pytest.approx(36)
    assert divided.busy[6, a] == pytest.approx(9, abs=0.1)
    assert divided.busy[6, b] == pytest.approx(27, abs=0.1)


def test_an_estimate_stays_inside_its_bounds():
    made = Made()
    made.kernel("k", "a", 0, 1)
    made.kernel("k", "b", 2, 3)
    made.kernel("k", "a", 4, 5)
    made.kernel("k", "b", 4, 5)
    made.samples(16, 0, 8, 0, 47)  # scaled alone, a would have 31
    divided = made.shares
    a, b = column(divided, "a"), column(divided, "b")
    assert divided.busy[4, a] <= 16.2
    assert divided.busy[4, b] == pytest.approx(31, abs=0.3)


@given(
    st.lists(st.tuples(*[st.integers(0, 84)] * 3), min_size=1, max_size=6),
    st.lists(st.sampled_from(["a", "b", "c", "ab", "bc", "abc"]), min_size=6, max_size=6),
)
def test_bounds_hold_and_shares_add_up(levels, parts):
    """Whatever partitions really use below their grants, bounds hold it, and sums are kept."""
    made, true = Made(), []
    for number, (level, ran) in enumerate(zip(levels, parts, strict=False)):
        used = {
            name: min(sms, GRANTED[name]) if name in ran else 0
            for name, sms in zip("abc", level, strict=True)
        }
        for name in ran:
            made.kernel(f"k{level}", name, number, number + 1)
        made.samples(sum(used.values()), since=number)
        true.append(used)
    divided = made.shares
    for number, used in enumerate(true):
        for name, sms in used.items():
            if name not in divided.partitions:
                continue
            part = column(divided, name)
            assert divided.low[number, part] - 1e-9 <= sms + 0.01 * SMS
            assert sms <= divided.high[number, part] + 0.01 * SMS
        if not np.isnan(divided.busy[number]).any():
            inside = divided.busy[number].sum()
            assert inside == pytest.approx(sum(used.values()), abs=0.02 * SMS)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=20), st.data())
def test_covered_time_is_that_of_the_intervals(steps, data):
    edges = np.cumsum(steps)
    edges = edges[: len(edges) // 2 * 2].reshape(-1, 2)
    start = data.draw(st.integers(0, int(edges.max())))
    end = data.draw(st.integers(start, int(edges.max()) + 10))
    expected = sum(max(0, min(end, stop) - max(start, begin)) for begin, stop in edges.tolist())
    assert covered(edges, np.array([start]), np.array([end])).tolist() == [expected]


def test_copies_on_the_device_keep_sms_busy_and_those_of_the_host_do_not():
    made = Made()
    made.kernel("k", "a", 0, 1)
    made.kernel("copy", "b", 0, 1, kind="memcpy")
    made.rows[-1]["copy_kind"] = "HtoD"
    made.samples(12)
    assert made.shares.partitions == ("a",)
    made.rows[1]["copy_kind"] = "DtoD"
    assert set(made.shares.partitions) == {"a", "b"}


def test_each_gpu_has_samples_of_its_own():
    made = Made()
    made.kernel("k", "a", 0, 1)
    made.kernel("k", None, 0, 1, device=1)
    made.samples(12)
    made.samples(100, device=1)
    first, second = gs.analysis.partition_use(made.trace).partitions
    assert (first.device, first.partition, first.busy) == (0, "a", 12)
    assert (second.device, second.partition, second.busy, second.granted) == (1, None, 100, SMS)


def test_lost_samples_are_no_idle_time():
    made = Made()
    made.kernel("k", "a", 0, 4)
    made.samples(16, since=0)
    made.samples(0, since=1, name=LOST)
    made.samples(16, 16, since=2)
    (samples,) = samples_of(made.trace)
    result = analysis.partition_use(made.trace)
    assert samples.lost.tolist() == [[LENGTH, 2 * LENGTH]]
    assert result.lost_ns == LENGTH
    assert result.partitions[0].busy == 16
    assert result.partitions[0].ran_ns == 3 * LENGTH


def test_samples_of_two_recordings_count_once():
    made = Made()
    made.kernel("k", "a", 0, 2)
    made.samples(4, 5)
    made.samples(9, since=0.5)
    (samples,) = samples_of(made.trace)
    assert samples.values[BUSY].tolist() == [4, 5]


def test_shares_of_tensor_pipes_and_memory_are_of_what_ran_alone():
    made = Made()
    made.kernel("k", "a", 0, 1)
    made.kernel("k", "a", 1, 2)
    made.kernel("l", "b", 1.1, 2)
    made.samples(10, 30)
    made.samples(4, 9, name=TENSOR)
    made.samples(100, 900, name=READ)
    made.samples(50, 700, name=WRITTEN)
    a = next(use for use in analysis.partition_use(made.trace).partitions if use.partition == "a")
    assert a.tensor == pytest.approx(0.4)
    assert (a.read, a.written, a.moved) == (100, 50, None)


def test_without_samples_or_work_it_says_so():
    made = Made()
    made.kernel("k", "a", 0, 1)
    with pytest.raises(MissingEvidence):
        analysis.partition_use(made.trace)
    made = Made()
    made.samples(0, 0)
    with pytest.raises(MissingEvidence):
        analysis.partition_use(made.trace)


def test_work_before_the_first_sample_is_said_to_have_none():
    made = Made()
    made.kernel("k", "a", 0, 3)
    made.kernel("k", "a", 3, 4)
    made.samples(0, since=5)
    with pytest.raises(MissingEvidence):
        analysis.partition_use(made.trace)
    made.samples(16, since=3)
    assert analysis.partition_use(made.trace).sampled == pytest.approx(0.25)


def test_more_than_all_had_is_told_of_nobody():
    made = Made()
    made.kernel("k", "a", 0, 2)
    made.kernel("k", "b", 1, 2)
    made.samples(16, 132)
    result = analysis.partition_use(made.trace)
    divided = made.shares
    assert not divided.is_told[1].any()
    assert np.isnan(divided.busy[1]).all()
    assert divided.high[1].tolist() == [132, 132]
    assert result.beyond_ns == LENGTH


def test_memory_that_copies_of_the_host_move_is_of_no_kernel():
    made = Made()
    made.kernel("k", "a", 0, 0.02)
    made.kernel("k", "a", 1, 2)
    made.kernel("copy", "b", 0, 1, kind="memcpy")
    made.rows[-1]["copy_kind"] = "HtoD"
    made.samples(0.3, 16)
    made.samples(0, 7, name=READ)
    made.samples(50, 8, name=WRITTEN)
    (use,) = analysis.partition_use(made.trace).partitions
    assert (use.read, use.written) == (7, 8)


def test_a_name_that_was_carved_twice_has_no_size():
    gpu = gs.open_device("sim:h200", quiet=True)
    kernel = gs.workloads.spin_kernel(gpu)
    with gs.profile(gpu, counters=True) as recording:
        for count in (16, 64):
            with gpu.carve({"d": count}) as parts:
                stream = parts["d"].create_stream()
                stream.launch(kernel, 50_000, grid=count, block=32)
                stream.synchronize()
    (use,) = (
        use for use in analysis.partition_use(recording.trace).partitions if use.partition == "d"
    )
    assert use.granted is None
    assert use.busy == pytest.approx(40)
    assert found(recording.trace, "counters.unused") == []


def test_long_samples_weigh_more():
    made = Made()
    made.kernel("k", "a", 0, 4)
    made.samples(10)
    made._add({"kind": "counter", "name": BUSY, "value": 14.0}, 1, 4, 0)
    (use,) = analysis.partition_use(made.trace).partitions
    assert use.busy == span_use(made.trace, 1).busy == 13
    assert use.busy_p95 == 14


def test_company_is_that_of_all_others_together():
    made = Made()
    for number in range(3):
        at = 10 * number
        made.kernel("k", "a", at, at + 1)
        made.kernel("m", "b", at, at + 0.4)
        made.kernel("m", "c", at + 0.4, at + 0.8)
        made.kernel("k", "a", at + 5, at + 6.5)
        made.samples(40, since=at)
        made.samples(16, 8, since=at + 5)
    kernel = next(use for use in analysis.partition_use(made.trace).kernels if use.kernel == "k")
    assert (kernel.beside_ns, kernel.alone_ns) == (LENGTH, 1.5 * LENGTH)


VALUES = [None, float("nan"), float("inf"), -5.0, 1e308, 0.0, 3.0]
GRIDS = [None, "x", '{"grid": [0, 1, 1]}', '{"grid": [9999999999, 9999999999, 9]}']
TIMES = st.tuples(st.sampled_from([0, 5, 10**6, 1 << 52]), st.sampled_from([0, 1, 10**6, None]))
NAMES = st.sampled_from([BUSY, LOST, READ, TENSOR])
DEVICES = st.sampled_from([None, 0, 3])


@given(
    st.lists(st.tuples(TIMES, DEVICES, st.sampled_from(GRIDS)), min_size=1, max_size=5),
    st.lists(st.tuples(TIMES, DEVICES, NAMES, st.sampled_from(VALUES)), min_size=1, max_size=7),
)
def test_what_a_file_says_of_counters_breaks_nothing(kernels, samples):
    made = Made()
    for (start, lasts), device, grid in kernels:
        row = {"kind": "kernel", "name": "k", "partition": "a", "launch_config": grid}
        _add_raw(made, row, start, lasts, device)
    for (start, lasts), device, name, value in samples:
        row = {"kind": "counter", "name": name, "value": value}
        _add_raw(made, row, start, lasts, device)
    try:
        result = analysis.partition_use(made.trace)
    except MissingEvidence:
        return
    for use in result.partitions:
        assert 0 <= use.low <= use.high < 1e12
    assert len(telling.findings(made.trace).findings) > 0


def _add_raw(made, row, start, lasts, device):
    end = None if lasts is None else start + lasts
    row |= {"id": len(made.rows) + 1, "device": device, "source": "cupti"}
    made.rows.append({**row, "start_ns": start, "end_ns": end})


# -- findings --------------------------------------------------------------------------------
def found(trace, rule):
    every = telling.findings(trace).findings
    return [finding for finding in every if finding.rule == rule]


def values(finding):
    return {quantity.name: quantity.value for quantity in finding.values}


def test_sms_that_are_granted_and_not_used_and_how_many_would_do():
    made = Made()
    made.kernel("k", "c", 0, 40, blocks=512)
    made.samples(*[84] * 30, *[50] * 4, *[20] * 6)
    (finding,) = found(made.trace, "counters.unused")
    assert values(finding)["used"] == pytest.approx(71.0)
    assert values(finding)["enough"] == 74  # 512 blocks take 7 waves on 74 as on 84
    assert values(finding)["waves"] == 7


def test_a_size_is_told_only_where_blocks_explain_the_use():
    made = Made()
    made.kernel("k", "c", 0, 4, blocks=512)
    made.samples(40, 40, 40, 40)
    (finding,) = found(made.trace, "counters.unused")
    assert "enough" not in values(finding)


def test_what_uses_its_sms_is_no_finding():
    made = Made()
    made.kernel("k", "c", 0, 4, blocks=840)
    made.samples(84, 84, 83, 84)
    assert found(made.trace, "counters.unused") == []


def moving(rate, peak):
    made = Made(peak)
    made.kernel("k", "c", 0, 4)
    made.samples(84, 84, 84, 84)
    made.samples(*[rate / 2] * 4, name=READ)
    made.samples(*[rate / 2] * 4, name=WRITTEN)
    return made.trace


def test_a_kernel_that_moves_what_memory_can():
    trace = moving(3960.0, 4_200_000)
    (finding,) = found(trace, "counters.memory")
    assert values(finding) == {"moved": 3960, "peak": 4200}
    (use,) = analysis.partition_use(trace).partitions
    assert use.of_peak == pytest.approx(3960 / 4200)
    assert found(moving(3300.0, 4_200_000), "counters.memory") == []


def test_without_a_measured_peak_nothing_is_bound_by_memory():
    trace = moving(3960.0, None)
    assert found(trace, "counters.memory") == []
    assert analysis.partition_use(trace).partitions[0].of_peak is None


def test_what_was_measured_of_a_gpu_is_found_by_its_name(tmp_path):
    assert memory_rate("NVIDIA H200") == GpuProfile.load("h200").constants[COPIES]
    assert memory_rate("another") is None
    profile = json.loads(resources.files(profiles).joinpath("h200.json").read_text("utf-8"))
    profile["device"]["name"] = "mine"
    profile["constants"][COPIES] = 1_234_567
    (tmp_path / "mine.json").write_text(json.dumps(profile))
    gs.open_device(f"sim:{tmp_path / 'mine.json'}", quiet=True)
    assert memory_rate("mine") == 1_234_567


def test_a_product_without_tensor_pipes():
    made = Made()
    made.kernel("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3", "a", 0, 4)
    made.samples(16, 16, 16, 16)
    made.samples(0, 0, 0, 0, name=TENSOR)
    (finding,) = found(made.trace, "counters.pipes")
    assert values(finding)["pipes"] == 0


def test_memory_that_another_partition_takes():
    made = Made()
    for number in range(4):
        made.kernel("k", "a", 3 * number, 3 * number + 1)
        made.kernel("k", "a", 20 + 3 * number, 20 + 3 * number + 1.5)
    made.kernel("copy", "c", 20, 32)
    made.samples(*[16] * 12)
    made.samples(*[10] * 12, name=READ)
    made.samples(*[0] * 12, name=WRITTEN)
    made.samples(*[100] * 12, since=20)
    made.samples(*[2000] * 12, since=20, name=READ)
    made.samples(*[1900] * 12, since=20, name=WRITTEN)
    (finding,) = found(made.trace, "counters.beside")
    assert finding.names["partition"] == "a"
    assert values(finding)["slower"] == pytest.approx(1.5)
    assert values(finding)["moved"] == pytest.approx(3900)


# -- why one run is slower than another --------------------------------------------------------
def experiment(sms, nbytes):
    workload = {"kind": "copy", "nbytes": nbytes, "stream": "s", "repeats": 5}
    return {
        "name": "x",
        "alone_repeats": 0,
        "counters": True,
        "partitions": {"p": sms},
        "streams": {"s": {"partition": "p"}},
        "workloads": {"w": workload},
    }


def used_by_kernels(before, after):
    (split,) = gs.diff(before, after, device=gs.open_device("sim:h200", quiet=True)).splits
    assert "busy SMs A" in next(row for row in split.rows() if row["part"] == "kernels")
    (used,) = {part.used for part in split.parts if part.used}
    return used


def test_a_diff_tells_more_bytes_from_fewer_sms():
    nbytes = 256 << 20
    before, after = used_by_kernels(experiment(32, nbytes), experiment(32, 2 * nbytes))
    assert (before.sms, after.sms) == (32, 32)
    assert after.nbytes / before.nbytes == pytest.approx(2, rel=0.02)
    before, after = used_by_kernels(experiment(32, nbytes), experiment(16, nbytes))
    assert (before.sms, after.sms) == (32, 16)
    assert after.nbytes / before.nbytes == pytest.approx(1, rel=0.02)


# -- a genuine trace ---------------------------------------------------------------------------
@pytest.fixture(scope="module")
def genuine():
    """Recorded on an H200 with ``counters="50 us"``: see the phases below."""
    return gs.load_trace(GENUINE)


def test_genuine_grids_are_what_is_busy(genuine):
    """Spinning kernels have a block on each SM of their partition."""
    (divided,) = shares(genuine)
    for number, name in enumerate(divided.partitions):
        kernels = genuine.where(kind="kernel", name="spin", partition=name)
        inside = np.zeros(len(divided.samples), bool)
        for start, end in zip(kernels.array("start_ns"), kernels.array("end_ns"), strict=True):
            samples = divided.samples
            inside |= (samples.starts >= start + 1000) & (samples.ends <= end - 1000)
        busy = divided.busy[inside & divided.is_told[:, number], number]
        assert len(busy) > 100
        assert np.mean(np.abs(busy - divided.granted[number]) <= 0.5) >= 0.99


def test_a_genuine_product_does_not_fill_its_partition(genuine):
    used = {use.partition: use for use in analysis.partition_use(genuine).partitions}
    assert 14 < used["a"].busy < 16
    assert used["a"].busy_most <= 16.5
    assert used["a"].directly > 0.9
    product = next(
        kernel
        for kernel in analysis.partition_use(genuine).kernels
        if kernel.kernel.startswith("GEMM") and kernel.partition == "a"
    )
    assert 14.3 < product.busy < 14.9
    assert product.tensor > 0.9


def test_a_genuine_span_says_what_it_used(genuine):
    spins = genuine.where(kind="kernel", name="spin", partition="a").array("id")
    use = span_use(genuine, int(spins[1]))
    assert use.granted == 16
    assert use.busy == pytest.approx(16, abs=0.5)
    assert use.directly == 1
    assert use.tensor == 0
    assert "16 of its 16 SMs" in telling.explain(genuine, int(spins[1])).used


def test_what_has_no_sample_in_its_time_says_nothing():
    made = Made()
    made.kernel("k", "a", 0.2, 0.8)
    made.samples(3)
    assert span_use(made.trace, 1) is None


def test_confinement_is_answered_by_counters_too(genuine):
    stayed = verdict_of(genuine, [], analysis.confinement(genuine)).stayed
    assert stayed.rule == "answer.stayed"
    assert stayed["sms"].value in (16, 32, 84)
    assert stayed["most"].value <= stayed["sms"].value + 0.5


@pytest.mark.parametrize("suffix", [".json", ".sqlite", ".parquet"])
def test_samples_survive_a_file(genuine, tmp_path, suffix):
    path = tmp_path / f"trace{suffix}"
    gs.export(genuine, path)
    (before,), (after,) = samples_of(genuine), samples_of(gs.load_trace(path))
    assert len(after) == len(before)
    apart = np.diff(before.starts) - np.diff(after.starts)
    assert (apart == 0).all()
    for name, quantity in before.values.items():
        np.testing.assert_allclose(after.values[name], quantity, rtol=1e-12)


def test_the_rest_of_a_simulated_run_says_that_a_model_did():
    gpu = gs.open_device("sim:h200", quiet=True)
    kernel = gs.workloads.spin_kernel(gpu)
    with gpu.carve({"a": 16}) as parts, gs.profile(gpu, counters=True) as recording:
        stream = parts["a"].create_stream()
        stream.launch(kernel, 50_000, grid=4, block=32)
        stream.synchronize()
    trace = recording.trace
    (use,) = analysis.partition_use(trace).partitions
    assert (use.busy, use.granted, use.directly) == (4, 16, 1)
    assert analysis.partition_use(trace).is_simulated
    assert verdict_of(trace, [], analysis.confinement(trace)).stayed.names.get("counted") is None
