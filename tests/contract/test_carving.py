"""Carving: exact or refused, disjoint, rolled back, closed in order."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import gpuscope as gs


def test_partitions_are_disjoint_and_cover_the_gpu(gpu):
    with gpu.carve({"a": 64, "b": 32, "c": 16, "d": 8, "e": "rest"}) as parts:
        assert [part.sm_count for part in parts.values()] == [64, 32, 16, 8, gpu.sm_count - 120]
        ids = [set(part.sm_ids) for part in parts.values()]
        assert [len(one) for one in ids] == [part.sm_count for part in parts.values()]
        assert set().union(*ids) == set(range(gpu.sm_count))
        assert sum(map(len, ids)) == gpu.sm_count
        assert parts[0] is parts["a"]
        assert list(parts) == ["a", "b", "c", "d", "e"]
        assert parts.remainder is None


def test_what_nobody_asked_for_is_the_remainder(gpu):
    with gpu.carve([16, 20]) as parts:
        assert [part.asked for part in parts.values()] == [16, 20]
        left = parts.remainder
        assert left.sm_count == gpu.sm_count - 36
        taken = set(parts[0].sm_ids) | set(parts[1].sm_ids)
        assert set(left.sm_ids) == set(range(gpu.sm_count)) - taken
        assert parts.remainder is left
    assert left.closed


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"a": 0}, "whole number of SMs from 1, .* found 0"),
        ({"a": -8}, "whole number of SMs from 1, .* found -8"),
        ({"a": 7}, "8 above"),
        ({"a": 200}, "200 SMs asked for .* has 132"),
        ({"a": "rest", "b": "rest"}, "only one"),
        ({}, "no partition"),
        ({"a": 128}, "124 below and 132 above"),
        ({"a": 64, "b": 72}, "136 SMs asked for"),
        ({"a": True}, "whole number"),
        ("16", "dict"),
    ],
)
def test_bad_counts_are_refused_and_nothing_is_held(gpu, sizes, text):
    with pytest.raises(gs.errors.InvalidPartition, match=text):
        gpu.carve(sizes)
    assert gpu.registry.held_parts() == {}
    gpu.carve({"all": gpu.sm_count}).close()


def test_a_second_carving_over_a_live_one_is_refused_unless_shared(gpu):
    with gpu.carve({"a": 104, "b": 16}) as parts:
        with pytest.raises(gs.errors.InvalidPartition, match=r"'a'.*'b'|allow_shared"):
            gpu.carve({"c": 24})
        with gpu.carve({"d": 12}) as more:  # what is left can be carved
            assert not set(more["d"].sm_ids) & (set(parts["a"].sm_ids) | set(parts["b"].sm_ids))
            assert more["d"].shares_with == ()
        with gpu.carve({"e": 24}, allow_shared=True) as shared:
            assert set(shared["e"].shares_with) & {"a", "b"}
            for name in ("a", "b"):  # and they name it
                named = parts[name].shares_with == ("e",)
                assert named == (name in shared["e"].shares_with)
    with gpu.carve({"c": 24}):
        pass


def test_planning_touches_nothing(gpu, monkeypatch):
    def refuse(*_):
        raise AssertionError("a plan made something")

    monkeypatch.setattr(gpu.backend, "make_partitions", refuse)
    plan = gpu.plan_carve({"a": 10, "b": "rest"}, rounding="down")
    assert plan.granted() == {"a": 8, "b": gpu.sm_count - 8}
    assert gpu.registry.held_parts() == {}


def test_an_unclosed_carving_that_is_collected_warns_and_frees_its_sms(gpu):
    parts = gpu.carve({"forgotten": gpu.sm_count})
    with pytest.warns(ResourceWarning, match="forgotten"):
        del parts
        gc.collect()
    with gpu.carve({"again": gpu.sm_count}):
        pass


def test_closing_waits_for_work_and_is_idempotent(gpu):
    parts = gpu.carve({"a": 16, "b": "rest"})
    a, out = gpu.random((256, 256)), gpu.empty((256, 256))
    with gs.CallerStreamGuard(parts["a"].create_stream()):
        gs.mm_out(out, a, a)
    parts.close()
    parts.close()
    reference = gpu.to_host(a).astype(np.float64)
    assert np.allclose(gpu.to_host(out), reference @ reference, atol=1e-4)
    with pytest.raises(gs.errors.ClosedError):
        parts.__enter__()


def test_devices_that_do_not_exist():
    for spec in ("cuda:x", "gpu", "", "sim:", "sim:nothing", None, "cuda:-1"):
        with pytest.raises(gs.errors.DeviceUnavailable, match=r"auto|sim:h200|text such as"):
            gs.open_device(spec)
