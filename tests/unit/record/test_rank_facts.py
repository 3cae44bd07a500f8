"""A recording says which rank its process is."""

from __future__ import annotations

import sys
import types

import pytest

import gpuscope as gs
from gpuscope.trace.facts import CollectiveFacts, RankFacts
from gpuscope.trace.metadata import TraceMetadata


@pytest.fixture
def no_rank(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "torch.distributed", None)


def recorded() -> TraceMetadata:
    with gs.profile(gs.open_device("sim:h200", quiet=True)) as recording:
        pass
    return recording.trace.metadata


@pytest.mark.usefixtures("no_rank")
def test_a_process_without_a_rank_has_none():
    assert recorded().ranks == ()


@pytest.mark.usefixtures("no_rank")
def test_torchruns_variables_say_the_rank(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    metadata = recorded()
    (rank,) = metadata.ranks
    assert (rank.rank, rank.world_size, rank.device, rank.backend) == (3, 8, "sim:h200", "")
    assert rank.host
    assert metadata.clock == ""  # virtual times are on no machine's clock
    assert TraceMetadata.from_json(metadata.to_json()) == metadata


@pytest.mark.usefixtures("no_rank")
def test_a_variable_that_is_no_number_is_no_rank(monkeypatch):
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert recorded().ranks == ()


@pytest.mark.usefixtures("no_rank")
def test_a_process_group_says_the_rank_also_when_it_is_gone_at_the_end(monkeypatch):
    group = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1,
        get_world_size=lambda: 2, get_backend=lambda: "nccl",
    )  # fmt: skip
    with gs.profile(gs.open_device("cpu", quiet=True)) as recording:
        monkeypatch.setitem(sys.modules, "torch.distributed", group)
        recording.snapshot()
        monkeypatch.setitem(sys.modules, "torch.distributed", None)
    (rank,) = recording.trace.metadata.ranks
    assert (rank.rank, rank.world_size, rank.backend) == (1, 2, "nccl")
    assert recording.trace.metadata.clock  # Unix time


def test_the_facts_of_a_collective_are_read_as_they_were_written():
    facts = CollectiveFacts("all_gather", 7, group="world", world_size=4, nbytes=1 << 20)
    assert CollectiveFacts.of(facts.to_json()) == facts
    for other in (None, "", "{}", '{"tokens_ns": [1]}', '{"kind": "broadcast", "sequence": 1}'):
        assert CollectiveFacts.of(other) is None
    assert CollectiveFacts.of("[" * 100_000) is None  # refused by its depth


def test_ranks_of_a_trace_are_checked():
    with pytest.raises(gs.errors.TraceFormatError, match="ranks"):
        TraceMetadata(ranks=({"rank": -1},))
    assert TraceMetadata(ranks=({"rank": 1},)).ranks == (RankFacts(rank=1),)
