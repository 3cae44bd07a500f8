"""Idle SMs inside kernels."""

from __future__ import annotations

import pytest

import gpuscope as gs
from gpuscope import analysis, telling
from gpuscope.errors import MissingEvidence
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata


def made(blocks, scopes=(), *, kernels=((1, "k", 0, 1000),), partition=None, metadata=None):
    """Return a trace: blocks are (kernel's id, SM, start, end), scopes (block, start, end)."""
    rows = [
        (number, None, "kernel", name, None, start, end) for number, name, start, end in kernels
    ]
    rows += [
        (100 + at, kernel, "block", "k", sm, start, end)
        for at, (kernel, sm, start, end) in enumerate(blocks)
    ]
    rows += [
        (1000 + at, 100 + block, "scope", "s", blocks[block][1], start, end)
        for at, (block, start, end) in enumerate(scopes)
    ]
    names = ("id", "parent", "kind", "name", "sm", "start_ns", "end_ns")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    count = len(rows)
    columns |= {
        "partition": [partition] * count,
        "device": [0] * count,
        "source": ["proton"] * count,
    }
    return Trace.from_columns(columns, metadata=metadata or TraceMetadata())


def test_shares_are_of_the_sms_that_a_kernel_may_use():
    metadata = TraceMetadata(partitions={"p": {"sm_count": 4}})
    trace = made(
        [(1, 0, 0, 1000), (1, 1, 0, 500), (1, 1, 250, 750)], partition="p", metadata=metadata
    )
    (found,) = analysis.idle_sms(trace).kernels
    assert (found.kernel, found.partition, found.launches) == ("k", "p", 1)
    assert (found.sms, found.empty) == (4, 2)
    assert found.held == (1000 + 750) / 4000  # blocks that share an SM count once
    assert found.in_scopes is None
    assert found.at_once


def test_sms_are_those_of_the_device_or_those_that_were_seen():
    blocks = [(1, 0, 0, 1000), (1, 5, 0, 1000)]
    (found,) = analysis.idle_sms(made(blocks)).kernels
    assert (found.sms, found.empty, found.held) == (2, 0, 1)
    device = TraceMetadata(devices={"cuda:0": {"index": 0, "sm_count": 8}})
    (found,) = analysis.idle_sms(made(blocks, metadata=device)).kernels
    assert (found.sms, found.empty, found.held) == (8, 6, 0.25)


def test_time_between_scopes_is_idle():
    blocks = [(1, 0, 0, 1000), (1, 1, 0, 1000)]
    trace = made(blocks, [(0, 0, 400), (0, 300, 600), (1, 0, 1000)])
    (found,) = analysis.idle_sms(trace).kernels
    assert (found.held, found.in_scopes) == (1, 0.8)


def test_blocks_outside_their_kernel_count_within_it():
    (found,) = analysis.idle_sms(made([(1, 0, -100 + 100, 1500)])).kernels
    assert found.held == 1


def test_blocks_that_follow_each_other_are_no_persistent_kernel():
    (found,) = analysis.idle_sms(made([(1, 0, 0, 500), (1, 0, 500, 1000)])).kernels
    assert not found.at_once


def test_launches_of_a_kernel_are_summed_and_others_apart():
    kernels = ((1, "k", 0, 1000), (2, "k", 2000, 5000), (3, "l", 6000, 7000))
    trace = made([(1, 0, 0, 1000), (2, 1, 2000, 5000), (3, 0, 6000, 7000)], kernels=kernels)
    first, second = analysis.idle_sms(trace).kernels
    assert (first.kernel, first.launches, first.sms, first.held) == ("k", 2, 2, 0.5)
    assert first.spans == (2, 1)
    assert (second.kernel, second.held) == ("l", 1)


def test_without_blocks_nothing_is_known():
    with pytest.raises(MissingEvidence, match="thread blocks"):
        analysis.idle_sms(made([]))


def findings(trace):
    return [each for each in gs.findings(trace).findings if each.rule.startswith("sms")]


def test_an_idle_persistent_kernel_is_a_finding():
    trace = made([(1, 0, 0, 1000), (1, 1, 0, 400)], [(0, 0, 1000), (1, 0, 400)])
    (found,) = findings(trace)
    assert found.rule == "sms.at-once"
    assert {value.name: value.value for value in found.values} == pytest.approx(
        {"idle": 0.3, "unheld": 0.3, "between": 0, "sms": 2}
    )
    assert [shown.span for shown in found.spans] == [1]
    assert "30 %" in telling.to_text(found)


@pytest.mark.parametrize(
    ("blocks", "scopes"),
    [
        ([(1, 0, 0, 1000)], [(0, 0, 950)]),  # busy
        ([(1, 0, 0, 1000), (1, 1, 0, 100)], []),  # not looked into
    ],
)
def test_what_is_no_finding(blocks, scopes):
    assert not findings(made(blocks, scopes))
