"""The CUDA device where there is none: versions, missing packages, and splits of fake SMs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

import gpuscope as gs
from gpuscope.device import select
from gpuscope.device.carve import REMAINDER, plan_carve
from gpuscope.device.cuda import driver
from gpuscope.device.cuda.partition import (
    ComposedQuanta,
    GreenContexts,
    HeterogeneousSplit,
    splitter_of,
)
from gpuscope.errors import (
    CapabilityError,
    DeviceUnavailable,
    InvalidPartition,
    MissingDependency,
)

# -- what a driver can do -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "text"), [(12040, "12.4"), (13010, "13.1"), (12000, "12.0"), (13000, "13.0")]
)
def test_versions_are_written_as_people_know_them(version, text):
    assert driver.version_text(version) == text


def test_a_driver_before_green_contexts_says_what_is_required_and_found():
    found = driver.capabilities(12020, pools=True)
    assert not found.partitions
    assert not found.arbitrary_split
    assert found.partition_path is None
    assert found.streams
    with pytest.raises(CapabilityError, match=r"carving.*12\.4 or newer.*12\.2 was found"):
        found.require("partitions", feature="carving SMs into partitions")


@pytest.mark.parametrize("version", [12040, 12090, 13000])
def test_drivers_up_to_13_0_compose_quanta(version):
    found = driver.capabilities(version, pools=True)
    assert found.partitions
    assert found.partition_path == "composed quanta"
    assert not found.arbitrary_split
    assert "13.1 or newer" in found.reasons["arbitrary_split"]
    assert driver.version_text(version) in found.reasons["arbitrary_split"]
    found.require("partitions", feature="carving")


@pytest.mark.parametrize("version", [13010, 13020, 14000])
def test_newer_drivers_split_as_asked(version):
    found = driver.capabilities(version, pools=True)
    assert found.partition_path == "heterogeneous split"
    assert found.partitions
    assert found.arbitrary_split
    assert found.reasons == {}


def test_a_device_without_memory_pools():
    found = driver.capabilities(13010, pools=False)
    assert not found.stream_ordered_memory
    with pytest.raises(CapabilityError, match="no memory pools"):
        found.require("stream_ordered_memory", feature="scratch tagged by stream")


@pytest.mark.parametrize(
    ("version", "runtime", "refused"),
    [(12040, 13000, True), (12090, 13020, True), (13000, 13020, False), (13010, 12090, False),
     (12040, 12090, False)],
)  # fmt: skip
def test_a_driver_must_be_of_cupys_major_version(version, runtime, refused):
    """CUDA's minor versions are compatible with each other, its major versions are not."""
    if not refused:
        driver.check_driver(version, runtime)
        return
    with pytest.raises(DeviceUnavailable, match="too old") as caught:
        driver.check_driver(version, runtime)
    assert f"CUDA {driver.version_text(version)} was found" in str(caught.value)
    assert "13.0 or newer" in str(caught.value)
    assert "pip install 'gpuscope[cuda12]'" in str(caught.value)


# -- packages that are missing, or too many -------------------------------------------------


@pytest.fixture
def without_cuda(monkeypatch):
    """Make every CUDA package impossible to import, and forget devices that are open."""
    for name in ("cuda", "cuda.core", "cuda.bindings", "cuda.bindings.driver", "cupy", "nvmath"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(select, "_cuda", {})


class FakeDriver(SimpleNamespace):
    """The bindings of a driver that starts, or not."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=SimpleNamespace(name="CUDA_SUCCESS"))

    def __init__(self, version=13000, status=None, error=None):
        super().__init__(version=version, status=status or self.CUresult.CUDA_SUCCESS, error=error)

    def cuInit(self, flags):  # noqa: N802 - the driver's name
        if self.error:
            raise self.error
        return (self.status,)

    def cuDriverGetVersion(self):  # noqa: N802 - the driver's name
        return self.CUresult.CUDA_SUCCESS, self.version


@pytest.fixture
def fake_driver(monkeypatch, without_cuda):
    def put(**facts):
        monkeypatch.setitem(sys.modules, "cuda.bindings.driver", FakeDriver(**facts))

    return put


def test_a_driver_that_starts_tells_its_version(fake_driver):
    fake_driver(version=12080)
    assert driver.driver_version() == 12080


def test_a_driver_that_does_not_start_is_named_with_its_code(fake_driver):
    fake_driver(status=SimpleNamespace(name="CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"))
    with pytest.raises(DeviceUnavailable, match=r"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH.*nvidia-smi"):
        driver.driver_version()


def test_no_driver_at_all(fake_driver):
    fake_driver(error=RuntimeError("Failed to dlopen libcuda.so.1"))
    with pytest.raises(DeviceUnavailable, match=r"no NVIDIA driver.*sim:h200"):
        driver.driver_version()


def installed(monkeypatch, *wheels):
    monkeypatch.setattr(driver, "installed", lambda name: "14.2.0" if name in wheels else None)


@pytest.mark.parametrize(
    "wheels",
    [("cupy-cuda12x", "cupy-cuda13x"), ("cupy-cuda11x", "cupy-cuda13x")],
)
def test_two_cupy_wheels_are_both_named(monkeypatch, wheels):
    installed(monkeypatch, *wheels)
    with pytest.raises(MissingDependency, match="pip uninstall") as caught:
        driver.import_cupy()
    assert "pip install 'gpuscope[cuda12]' or pip install 'gpuscope[cuda13]'" in str(caught.value)
    for wheel in wheels:
        assert wheel in str(caught.value)


@pytest.mark.parametrize("wheels", [(), ("cupy-cuda12x",), ("cupy-cuda13x",)])
def test_one_cupy_wheel_or_none_is_no_conflict(monkeypatch, wheels):
    installed(monkeypatch, *wheels)
    driver.check_cupy_wheels()


@pytest.mark.usefixtures("without_cuda")
def test_a_missing_cupy_is_named_with_feature_package_and_extra(monkeypatch):
    installed(monkeypatch)
    with pytest.raises(MissingDependency) as caught:
        driver.import_cupy()
    for text in (
        "a CUDA device",
        "cupy-cuda13x",
        "pip install 'gpuscope[cuda13]'",
        "'gpuscope[cuda12]'",
    ):
        assert text in str(caught.value)
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, gs.errors.GpuscopeError)


def test_installed_finds_what_is_there():
    assert driver.installed("numpy")
    assert driver.installed("no-such-distribution-of-anybody") is None


# -- opening ------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_cuda")
@pytest.mark.parametrize("spec", ["cuda", "cuda:0", "cuda:3"])
def test_cuda_never_falls_back(spec, capsys, monkeypatch):
    monkeypatch.setattr(driver, "has_driver", lambda: True)
    with pytest.raises(MissingDependency, match="cuda-bindings"):
        gs.open_device(spec)
    monkeypatch.setattr(driver, "has_driver", lambda: False)
    with pytest.raises(gs.errors.DeviceUnavailable, match="no NVIDIA driver was found"):
        gs.open_device(spec)
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("without_cuda")
def test_auto_falls_back_and_says_why_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(driver, "has_driver", lambda: True)
    gpu = gs.open_device("auto")
    assert gpu.is_simulated
    opened, why = capsys.readouterr().out.splitlines()
    assert "NVIDIA H200 (simulated)" in opened
    assert "no GPU used: a CUDA device needs the package cuda-bindings" in why
    assert "pip install" in why


@pytest.mark.usefixtures("without_cuda")
def test_who_gets_a_simulated_gpu_is_not_told_to_open_one(capsys, monkeypatch):
    monkeypatch.setattr(driver, "has_driver", lambda: False)
    assert gs.open_device("auto").is_simulated
    _, why = capsys.readouterr().out.splitlines()
    assert why.strip() == (
        "no GPU used: no NVIDIA driver was found (libcuda.so.1 cannot be loaded)"
    )
    with pytest.raises(
        gs.errors.DeviceUnavailable, match=r"use a machine.*open_device\('sim:h200'\)"
    ):
        gs.open_device("cuda:0")


@pytest.mark.usefixtures("without_cuda")
def test_quiet_prints_nothing_and_asking_for_sim_needs_no_reason(capsys):
    gs.open_device("auto", quiet=True)
    assert capsys.readouterr().out == ""
    gs.open_device("sim:h200")
    assert "no GPU used" not in capsys.readouterr().out


def test_a_driver_too_old_for_cupy_is_why_auto_simulates(fake_driver, monkeypatch, capsys):
    fake_driver(version=12080)
    runtime = SimpleNamespace(runtimeGetVersion=lambda: 13000)
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cuda.core", SimpleNamespace())
    installed(monkeypatch, "cupy-cuda13x")
    assert gs.open_device("auto").is_simulated
    assert "CUDA 12.8 was found" in capsys.readouterr().out
    with pytest.raises(DeviceUnavailable, match=r"12\.8 was found.*13\.0 or newer"):
        gs.open_device("cuda:0")


def test_a_gpu_that_is_not_there_is_named_with_those_that_are(fake_driver, monkeypatch):
    fake_driver(version=13000)
    runtime = SimpleNamespace(
        runtimeGetVersion=lambda: 13000, getDeviceCount=lambda: 2, CUDARuntimeError=RuntimeError
    )
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cuda.core", SimpleNamespace())
    installed(monkeypatch, "cupy-cuda13x")
    with pytest.raises(DeviceUnavailable, match="no device cuda:7; there are 2: cuda:0, cuda:1"):
        gs.open_device("cuda:7")


@pytest.mark.parametrize("spec", ["gpu", "cuda:x", "cuda:-1", "cuda:0:1", "sim", ""])
def test_unknown_devices_are_refused_with_those_there_are(spec):
    with pytest.raises(DeviceUnavailable, match=r"'auto', 'cuda:N'.*'sim:h200'"):
        gs.open_device(spec)


@pytest.mark.parametrize("spec", [None, 0])
def test_what_is_no_text_names_no_device(spec):
    with pytest.raises(DeviceUnavailable, match=f"spec is {spec}; text such as 'cuda:0'"):
        gs.open_device(spec)


# -- fake SMs -----------------------------------------------------------------------------


class DriverRefusal(Exception):
    """What a driver call raises."""


@dataclass
class Options:
    """Stands for SMResourceOptions and ContextOptions."""

    count: object = None
    backfill: bool = False
    resources: object = None


CORE = SimpleNamespace(SMResourceOptions=Options, ContextOptions=Options)


class OldSms:
    """SMs as drivers 12.4 to 13.0 split them on an H200: equal groups, once, 15 of 8 and 12."""

    min_partition_size = 8
    coscheduled_alignment = 8

    def __init__(self, sm_count=132, kept_apart=12, *, splittable=True):
        self.sm_count = sm_count
        self.kept_apart = kept_apart
        self.splittable = splittable
        self.asked = []

    def split(self, options, *, dry_run=False):
        counts = list(options.count)
        self.asked.append(counts)
        if not self.splittable:
            raise DriverRefusal("CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION")
        if len(set(counts)) > 1:
            raise DriverRefusal("only supports homogeneous count values")
        if sum(counts) > self.sm_count - self.kept_apart:
            raise DriverRefusal("too many groups")
        rest = self.sm_count - sum(counts)
        groups = [OldSms(count, 0, splittable=False) for count in counts]
        return groups, OldSms(rest, 0, splittable=False) if rest else None


class NewSms:
    """SMs as drivers from 13.1 on split them: any multiples of the alignment, told by ids.

    Attributes
    ----------
    refusal
        What every split is refused with.
    dry_refusal
        What every dry run with counts is refused with.
    takes_sizes
        Whether groups of different sizes are granted.
    """

    min_partition_size = 2
    coscheduled_alignment = 2

    def __init__(self, ids=range(132), alignment=2):
        self.ids = list(ids)
        self.min_partition_size = self.coscheduled_alignment = alignment
        self.calls = []
        self.refusal = None
        self.dry_refusal = None
        self.takes_sizes = True
        self.grant = lambda counts: counts

    @property
    def sm_count(self):
        return len(self.ids)

    def split(self, options, *, dry_run=False):
        counts = list(options.count)
        self.calls.append(SimpleNamespace(counts=counts, backfill=options.backfill, dry=dry_run))
        if refusal := self.refusal or (dry_run and self.dry_refusal):
            raise DriverRefusal(refusal)
        if not self.takes_sizes and len({*counts}) > 1:
            raise DriverRefusal("CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION")
        if any(count % self.coscheduled_alignment for count in counts):
            raise DriverRefusal("unaligned count")
        if sum(counts) > self.sm_count:
            raise DriverRefusal("more SMs than there are")
        ids = iter(self.ids)
        groups = [
            NewSms([next(ids) for _ in range(count)], self.coscheduled_alignment)
            for count in self.grant(counts)
        ]
        return groups, NewSms(ids, self.coscheduled_alignment)


def total(resources):
    return sum(one.sm_count for one in resources)


def test_old_drivers_split_into_as_many_quanta_as_they_give():
    sms = OldSms()
    splitter = ComposedQuanta(CORE, sms)
    layout = splitter.layout
    assert (layout.quantum_sm_count, layout.quanta, layout.remainder_sm_count) == (8, 15, 12)
    assert sms.asked == [[8] * 16, [8] * 15], "16 groups were refused, so one fewer was asked for"
    assert layout.grantable()[:4] == [8, 12, 16, 20]


def test_gpus_without_a_remainder():
    splitter = ComposedQuanta(CORE, OldSms(sm_count=64, kept_apart=0))
    assert splitter.layout.quanta == 8
    assert splitter.layout.remainder_sm_count == 0
    plan = plan_carve(splitter.layout, {"a": 24, "b": "rest"})
    assert [total(one) for one in splitter.resources(plan.partitions)] == [24, 40]


def test_partitions_are_composed_of_quanta_that_no_other_has():
    splitter = ComposedQuanta(CORE, OldSms())
    plan = plan_carve(splitter.layout, {"a": 64, "b": 32, "c": 12, "d": "rest"})
    splitter.check(plan)
    resources = splitter.resources(plan.partitions)
    assert [total(one) for one in resources] == [64, 32, 12, 24]
    every = [id(one) for group in resources for one in group]
    assert len(every) == len(set(every)) == 16
    assert [len(one) for one in resources] == [8, 4, 1, 3], "12 is the remainder, whole"


def test_a_driver_that_splits_nothing_is_an_error():
    with pytest.raises(InvalidPartition, match="INVALID_RESOURCE_CONFIGURATION"):
        ComposedQuanta(CORE, OldSms(splittable=False))
    stingy = OldSms()
    stingy.split = lambda options, dry_run=False: ([], None)
    with pytest.raises(InvalidPartition, match="refuses to split its SMs into groups of 8"):
        ComposedQuanta(CORE, stingy)


def test_new_drivers_are_asked_for_the_counts_themselves():
    sms = NewSms()
    splitter = HeterogeneousSplit(CORE, sms)
    assert (splitter.layout.quantum_sm_count, splitter.layout.sm_count) == (2, 132)
    plan = plan_carve(splitter.layout, {"a": 64, "b": 10, "c": 2})
    splitter.check(plan)
    resources = splitter.resources(plan.partitions)
    tried, checked, split = sms.calls
    assert tried.counts == [4, 2]
    assert checked.counts == split.counts == [64, 10, 2]
    assert all(call.backfill for call in sms.calls)
    assert [total(one) for one in resources] == [64, 10, 2]
    ids = [sm for (group,) in resources for sm in group.ids]
    assert len(set(ids)) == 76


def test_the_rest_need_not_be_a_multiple_of_the_alignment():
    """132 SMs in steps of 8 leave 4: only what a split leaves over can hold them."""
    sms = NewSms(alignment=8)
    splitter = HeterogeneousSplit(CORE, sms)
    assert splitter.layout.remainder_sm_count == 4
    for sizes, granted in (
        ({"a": 16, "b": "rest"}, [16, 116]),
        ({"b": "rest", "a": 16}, [116, 16]),
        ({"all": "rest"}, [132]),
    ):
        plan = plan_carve(splitter.layout, sizes)
        splitter.check(plan)
        resources = splitter.resources(plan.partitions)
        assert [total(one) for one in resources] == granted
        ids = [sm for (group,) in resources for sm in group.ids]
        assert sorted(ids) == list(range(132))


def new_driver(resource):
    """Return what splits these SMs with a driver of CUDA 13.3, and what is possible."""
    return splitter_of(CORE, resource, driver.capabilities(13030, pools=True))


@pytest.mark.parametrize("dry_refusal", [None, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"])
def test_whatever_becomes_of_dry_runs_new_drivers_split_as_asked(dry_refusal):
    sms = NewSms(alignment=8)
    sms.dry_refusal = dry_refusal
    splitter, can = new_driver(sms)
    assert (can.partition_path, can.arbitrary_split) == ("heterogeneous split", True)
    plan = plan_carve(splitter.layout, {"a": 64, "b": 24, "c": "rest"})
    splitter.check(plan)
    assert [total(one) for one in splitter.resources(plan.partitions)] == [64, 24, 44]


def test_new_drivers_that_refuse_different_sizes_are_split_into_quanta():
    sms = NewSms(alignment=8)
    sms.takes_sizes = False
    splitter, can = new_driver(sms)
    assert can.partitions
    assert (can.partition_path, can.arbitrary_split) == ("composed quanta", False)
    assert "16 and 8 SMs (CUDA_ERROR_INVALID" in can.reasons["arbitrary_split"]
    plan = plan_carve(splitter.layout, {"a": 64, "b": 24, "c": "rest"})
    splitter.check(plan)
    assert [total(one) for one in splitter.resources(plan.partitions)] == [64, 24, 44]


def test_a_driver_that_refuses_every_split_has_no_partitions():
    sms = NewSms(alignment=8)
    sms.refusal = "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
    splitter, can = new_driver(sms)
    assert splitter is None
    assert can.partition_path is None
    with pytest.raises(CapabilityError, match=r"carving.*INVALID_RESOURCE_CONFIGURATION"):
        can.require("partitions", feature="carving")


def test_a_gpu_of_few_sms_is_asked_for_what_it_has():
    _, can = new_driver(NewSms(range(16), alignment=8))
    assert can.partition_path == "heterogeneous split"


def test_old_drivers_are_not_asked_for_different_sizes():
    sms = OldSms()
    before = driver.capabilities(13000, pools=True)
    splitter, can = splitter_of(CORE, sms, before)
    assert isinstance(splitter, ComposedQuanta)
    assert can == before
    assert all(len({*counts}) == 1 for counts in sms.asked)


def test_a_refusal_of_the_driver_is_told_with_what_was_asked():
    sms = NewSms()
    splitter = HeterogeneousSplit(CORE, sms)
    sms.refusal = "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
    plan = plan_carve(splitter.layout, {"a": 64, "b": 10})
    for ask in (lambda: splitter.check(plan), lambda: splitter.resources(plan.partitions)):
        with pytest.raises(InvalidPartition, match=r"a: 64, b: 10 \(CUDA_ERROR_INVALID"):
            ask()


@pytest.mark.parametrize(
    ("grant", "text"),
    [
        (lambda counts: [count + 2 for count in counts], "'a': 64 SMs were planned.*grants 66"),
        (lambda counts: counts[:1], "2 partitions were planned, but the driver grants 1"),
        (lambda counts: [], "2 partitions were planned, but the driver grants 0"),
    ],
)
def test_what_the_driver_grants_is_checked(grant, text):
    sms = NewSms()
    splitter = HeterogeneousSplit(CORE, sms)
    sms.grant = grant
    plan = plan_carve(splitter.layout, {"a": 64, "b": 10})
    for ask in (lambda: splitter.check(plan), lambda: splitter.resources(plan.partitions)):
        with pytest.raises(InvalidPartition, match=text):
            ask()


def test_new_drivers_refuse_a_carving_beside_a_live_one():
    """A split starts from the whole GPU: the second would be given the first one's SMs."""
    sms = NewSms()
    splitter = HeterogeneousSplit(CORE, sms)
    first = plan_carve(splitter.layout, {"a": 16})
    ((a,),) = splitter.resources(first.partitions)
    held = {"a": first.partitions[0].parts}
    second = plan_carve(splitter.layout, {"b": 16}, held=held)
    with pytest.raises(InvalidPartition, match="beside live partitions"):
        splitter.check(second)
    shared = plan_carve(splitter.layout, {"b": 132}, held=held, allow_shared=True)
    assert shared.partitions[0].shares_with
    with pytest.raises(InvalidPartition, match="allow_shared"):
        splitter.check(shared)
    rest = plan_carve(splitter.layout, {"b": "rest"}, held=held)
    splitter.check(rest)
    ((b,),) = splitter.resources(rest.partitions)
    assert sorted(a.ids + b.ids) == list(range(132)), "what the first left over can be had"
    alone = plan_carve(splitter.layout, {"b": 16})
    splitter.check(alone)
    assert [total(one) for one in splitter.resources(alone.partitions)] == [16]


# -- contexts: all or none ------------------------------------------------------------------


class Machine:
    """A fake device that keeps count of what is open, in the order in which it closes."""

    def __init__(self):
        self.open = []
        self.closed = []
        self.contexts = 0
        self.streams = 0
        self.fail_context = self.fail_stream = self.fail_close = None
        self.shrink = 0

    def create_context(self, options):
        self.contexts += 1
        if self.contexts == self.fail_context:
            raise DriverRefusal("CUDA_ERROR_OUT_OF_MEMORY")
        return FakeContext(self, f"context {self.contexts}", options.resources)


class Closable:
    def __init__(self, machine, name):
        self.machine = machine
        self.name = name
        machine.open.append(name)

    def close(self):
        self.machine.open.remove(self.name)
        self.machine.closed.append(self.name)
        if self.name == self.machine.fail_close:
            raise DriverRefusal("CUDA_ERROR_LAUNCH_FAILED")


class FakeContext(Closable):
    def __init__(self, machine, name, parts):
        super().__init__(machine, name)
        sm = SimpleNamespace(sm_count=total(parts) - machine.shrink)
        self.resources = SimpleNamespace(sm=sm)

    def create_stream(self):
        self.machine.streams += 1
        if self.machine.streams == self.machine.fail_stream:
            raise DriverRefusal("CUDA_ERROR_OUT_OF_MEMORY")
        return Closable(self.machine, f"stream {self.machine.streams}")


class Probe:
    """Finds the SMs that it is told to find."""

    def __init__(self, error=None, cluster_error=None):
        self.error = error
        self.cluster_error = cluster_error
        self.seen = []

    def sm_ids(self, streams, counts):
        self.seen.append([stream.name for stream in streams])
        if self.error:
            raise self.error
        firsts = [sum(counts[:index]) for index in range(len(counts))]
        return [
            tuple(range(first, first + count))
            for first, count in zip(firsts, counts, strict=True)
        ]  # fmt: skip

    def cluster_sm_count(self, stream, sm_count):
        if self.cluster_error:
            raise self.cluster_error
        return sm_count - sm_count % 16


@pytest.fixture
def planned():
    splitter = ComposedQuanta(CORE, OldSms())
    return splitter, plan_carve(splitter.layout, {"a": 64, "b": 24, "c": "rest"}).partitions


def test_each_partition_gets_a_context_and_its_sm_ids(planned):
    splitter, partitions = planned
    machine, probe = Machine(), Probe()
    granted = GreenContexts(CORE, machine, splitter).make(partitions, probe)
    assert [one.sm_count for one in granted] == [64, 24, 44]
    assert [len(one.sm_ids) for one in granted] == [64, 24, 44]
    assert [one.sm_count_target for one in granted] == [64, 0, 0], "16 of 24, 32 of 44 hold some"
    assert [one.raw.context.name for one in granted] == ["context 1", "context 2", "context 3"]
    assert len({one.context for one in granted}) == 3
    assert probe.seen == [["stream 1", "stream 2", "stream 3"]], "all probed at the same time"
    assert machine.open == ["context 1", "context 2", "context 3"], "the probe's streams are closed"
    assert REMAINDER in partitions[2].parts


def refusals():
    def context(machine, probe):
        machine.fail_context = 3

    def stream(machine, probe):
        machine.fail_stream = 3

    def count(machine, probe):
        machine.shrink = 2

    def ids(machine, probe):
        probe.error = InvalidPartition("24 SMs were granted, but 23 were seen")

    def cluster(machine, probe):
        probe.cluster_error = DriverRefusal("occupancy")

    def interrupt(machine, probe):
        probe.error = KeyboardInterrupt()

    def closing(machine, probe):
        machine.fail_close = "stream 2"

    def twice(machine, probe):
        probe.error = InvalidPartition("the probe's error")
        machine.fail_close = "context 3"

    return [
        (context, InvalidPartition, r"'c': the driver refuses a green context of 44 SMs.*MEMORY"),
        (stream, DriverRefusal, "OUT_OF_MEMORY"),
        (count, InvalidPartition, "64 SMs were planned, but the driver grants 62"),
        (ids, InvalidPartition, "23 were seen"),
        (cluster, DriverRefusal, "occupancy"),
        (interrupt, KeyboardInterrupt, None),
        (closing, DriverRefusal, "LAUNCH_FAILED"),
        (twice, DriverRefusal, "LAUNCH_FAILED"),
    ]


@pytest.mark.parametrize(
    ("arrange", "error", "text"), refusals(), ids=lambda v: getattr(v, "__name__", str(v))[:40]
)
def test_nothing_is_left_of_a_carving_that_fails(planned, arrange, error, text):
    splitter, partitions = planned
    machine, probe = Machine(), Probe()
    arrange(machine, probe)
    with pytest.raises(error, match=text):
        GreenContexts(CORE, machine, splitter).make(partitions, probe)
    assert machine.open == []
    assert machine.contexts == 3
    kinds = [name.split()[0] for name in machine.closed]
    assert kinds == sorted(kinds, reverse=True), "streams are closed before their contexts"
    again = Machine()
    assert len(GreenContexts(CORE, again, splitter).make(partitions, Probe())) == 3


def test_a_split_that_fails_makes_no_context():
    sms = NewSms()
    splitter = HeterogeneousSplit(CORE, sms)
    partitions = plan_carve(splitter.layout, {"a": 64, "b": 10}).partitions
    sms.refusal = "no"
    machine = Machine()
    with pytest.raises(InvalidPartition, match="refuses to split"):
        GreenContexts(CORE, machine, splitter).make(partitions, Probe())
    assert machine.contexts == 0


def test_a_closed_context_serves_the_next_carving_of_its_parts(planned):
    """Drivers up to 13.0 do not give back what a destroyed green context held."""
    splitter, partitions = planned
    machine = Machine()
    contexts = GreenContexts(CORE, machine, splitter)
    first = contexts.make(partitions, Probe())
    for one in first:
        contexts.close(one.raw)
    again = contexts.make(partitions, Probe())
    assert [one.raw.context for one in again] == [one.raw.context for one in first]
    assert machine.contexts == 3
    shared = contexts.make(partitions[:1], Probe())  # the same parts twice at one time
    assert shared[0].raw.context is not again[0].raw.context
    for one in [*again, *shared]:
        contexts.close(one.raw)
    contexts.clear()
    assert machine.open == []


def test_where_the_driver_splits_anew_a_closed_context_is_destroyed():
    splitter = HeterogeneousSplit(CORE, NewSms())
    partitions = plan_carve(splitter.layout, {"a": 64}).partitions
    machine = Machine()
    contexts = GreenContexts(CORE, machine, splitter)
    (one,) = contexts.make(partitions, Probe())
    contexts.close(one.raw)
    assert machine.open == []


def test_the_driver_s_library_alone_describes_a_gpu(monkeypatch):
    def put(value):
        def answer(place, *_):
            place._obj.value = value
            return 0

        return answer

    def described(place, attribute, _device):
        return put({16: 132, 75: 9, 76: 0}[attribute])(place)

    def named(name, length, device):
        assert (length, device.value) == (256, 0)
        name.value = b"NVIDIA H200"
        return 0

    def numbered(number, _device):
        number.raw = bytes(range(16))
        return 0

    library = SimpleNamespace(
        cuDeviceGet=lambda place, index: put(index)(place) or 101 * index,
        cuDriverGetVersion=put(13010), cuDeviceGetName=named, cuDeviceGetUuid_v2=numbered,
        cuDeviceTotalMem_v2=put(150 << 30), cuDeviceGetAttribute=described,
    )  # fmt: skip
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda _name: library)
    monkeypatch.setattr(driver, "driver_release", lambda: "580.1")
    info = driver.info_of(0)
    assert (info.key, info.name, info.sm_count) == ("cuda:0", "NVIDIA H200", 132)
    assert info.uuid == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert (info.compute_capability, info.memory_bytes) == ((9, 0), 150 << 30)
    assert info.driver == "driver 580.1, CUDA 13.1"
    with pytest.raises(gs.errors.GpuscopeError, match="GPU 1"):
        driver.info_of(1)
