"""Proton's scopes inside a Triton kernel on a partition, put into CUPTI's record of that kernel."""

from __future__ import annotations

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.trace import put_inside

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_alone("compares times to the µs")]
torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
proton = pytest.importorskip("triton.profiler")
pl = pytest.importorskip("triton.profiler.language")
tl = pytest.importorskip("triton.language")

SMS = 16
LAUNCHES = 20
WITHIN_NS = 1_000
BLOCK = 1024


@triton.jit
def looked_into(x_ptr, count, BLOCK: tl.constexpr):  # noqa: N803 - as Triton has it
    pl.enter_scope("all")
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pl.enter_scope("load")
    x = tl.load(x_ptr + at)
    pl.exit_scope("load")
    pl.enter_scope("work")
    for _ in range(count):
        x = x * 1.0001 + 0.5
    pl.exit_scope("work")
    tl.store(x_ptr + at, x)
    pl.exit_scope("all")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Record launches on a partition by CUPTI while Proton looks into them; trace and SM ids."""
    pl.enable_semantic("triton")
    file = tmp_path_factory.mktemp("proton") / "looked_into"
    gpu = gs.open_device("cuda:0", quiet=True)
    x = torch.zeros(SMS * BLOCK, device="cuda")
    torch.cuda.synchronize()
    with (
        gpu.carve({"looked into": SMS, "rest": "rest"}) as parts,
        parts["looked into"].create_stream(name="s") as stream,
    ):
        theirs = torch.cuda.ExternalStream(stream.handle)
        # Proton adds to the kernel as it is compiled, so all launches of its session are recorded.
        with gs.profile(gpu) as recording:
            proton.start(str(file), backend="instrumentation", data="trace")
            try:
                with torch.cuda.stream(theirs), gs.CallerStreamGuard(stream):
                    for number in range(LAUNCHES):
                        looked_into[(SMS,)](x, 2_000 + 500 * (number % 7), BLOCK, num_warps=4)
            finally:
                proton.finalize()
            theirs.synchronize()
        sm_ids = parts["looked into"].sm_ids
    inside = gs.load_trace(file.with_suffix(".chrome_trace"))
    yield recording.trace, inside, sm_ids
    gpu.close()


@pytest.fixture(scope="module")
def both(recorded):
    trace, inside, _ = recorded
    return put_inside(trace, inside)


def test_proton_saw_what_cupti_saw(recorded):
    trace, inside, _ = recorded
    kernels = trace.where(kind="kernel", name="looked_into")
    assert len(kernels) == len(inside.where(kind="kernel")) == LAUNCHES
    assert {*kernels.texts("partition")} == {"looked into"}
    assert inside.kind_counts()["block"] == LAUNCHES * SMS


def test_scopes_are_inside_cuptis_kernels_within_a_microsecond(both):
    rows = {row["id"]: row for row in both.spans.to_pylist()}
    furthest, delays = 0, {}
    for row in rows.values():
        if row["kind"] not in ("block", "scope"):
            continue
        kernel = row
        while kernel["kind"] != "kernel":
            kernel = rows[kernel["parent"]]
        early = kernel["start_ns"] - row["start_ns"]
        furthest = max(furthest, early, row["end_ns"] - kernel["end_ns"])
        delays[kernel["id"]] = min(delays.get(kernel["id"], np.inf), -early)
    assert furthest <= WITHIN_NS
    # One offset holds for all launches: first blocks begin equally late in each.
    assert len(delays) == LAUNCHES
    assert np.ptp([*delays.values()]) <= 5 * WITHIN_NS
    assert both.metadata.clocks["proton"].residual_ns is not None


def test_scopes_are_on_the_partitions_sms(both, recorded):
    _, _, sm_ids = recorded
    placed = both.where(kind=("block", "scope"))
    assert {*placed.array("sm").tolist()} <= {*sm_ids}
    assert {*placed.texts("partition")} == {"looked into"}
    result = gs.analysis.confinement(both)["looked into"]
    assert result.fraction == 1
    assert result.escaping_sm_ids == ()


def test_idle_sms_are_those_of_the_partition(both):
    (of_kernel,) = (
        each for each in gs.analysis.idle_sms(both).kernels if each.kernel == "looked_into"
    )
    assert (of_kernel.sms, of_kernel.launches, of_kernel.at_once) == (SMS, LAUNCHES, True)
    assert 0 < of_kernel.in_scopes <= of_kernel.held <= 1
