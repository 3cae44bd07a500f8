"""Interference of which only some pairs are measured: which ones, and what becomes of the rest."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

import gpuscope as gs

KINDS = {
    "copy": {"kind": "copy", "nbytes": 2**26},
    "small": {"kind": "gemm", "m": 1024, "n": 1024, "k": 1024},
    "large": {"kind": "gemm", "m": 2048, "n": 2048, "k": 2048},
    "gemv": {"kind": "gemm", "m": 1, "n": 8192, "k": 8192},
    "spin": {"kind": "spin", "duration_us": 50},
    "long": {"kind": "spin", "duration_us": 90},
}


@pytest.fixture
def gpu():
    return gs.open_device("sim:h200", quiet=True)


def measure(gpu, number=6, **more):
    names = [*KINDS][:number]
    workloads = {name: {**KINDS[name], "partition": name} for name in names}
    options = {"repeats": 3, "rounds": 1, "inside": 0.1, **more}
    sizes = dict.fromkeys(names, 16)
    return gs.search.measure_interference(gpu, sizes, workloads, **options)


def measured(result):
    return {(cell.of, cell.given) for cell in result.cells if cell.median_ns is not None}


@pytest.mark.parametrize(
    ("number", "pairs", "least"),
    [(2, 1, 1), (3, 3, 2), (4, 4, 1), (4, 5, 2), (5, 5, 2), (6, 6, 1), (6, 7, 2), (6, 9, 3)],
)
def test_every_workload_is_beside_others_in_both_orders(gpu, number, pairs, least):
    turns = set()
    measure(gpu, number, pairs=pairs, viewer=lambda progress: turns.add(progress.setting))
    met = [tuple(turn.split(" with ")) for turn in turns if " with " in turn]
    assert len(met) == 2 * pairs
    assert {(b, a) for a, b in met} == set(met)
    victims = Counter(a for a, _ in met)
    assert len(victims) == number
    assert min(victims.values()) >= least


@pytest.mark.parametrize("number", [3, 4, 5, 6])
@pytest.mark.parametrize("seed", range(3))
def test_the_pairs_relate_every_sensitivity_to_every_pressure(gpu, number, seed):
    turns = set()
    measure(
        gpu, number, pairs=number if number > 3 else 3, seed=seed,
        viewer=lambda progress: turns.add(progress.setting),
    )  # fmt: skip
    edges = [turn.split(" with ") for turn in turns if " with " in turn]
    reached, ends = {("of", edges[0][0])}, 0
    while len(reached) > ends:
        ends = len(reached)
        for a, b in edges:
            if {("of", a), ("given", b)} & reached:
                reached |= {("of", a), ("given", b)}
    assert ends == 2 * number


def test_pairs_left_out_are_forecast_and_those_measured_are_as_ever(gpu):
    every, some = measure(gpu), measure(gpu, pairs=7)
    assert [(cell.of, cell.given) for cell in some.cells] == [
        (cell.of, cell.given) for cell in every.cells
    ]
    forecast = {(cell.of, cell.given) for cell in some.cells if cell.forecast is not None}
    assert len(measured(some)) + len(forecast) == 30
    assert len(forecast) == 16
    assert all(some[pair] is None for pair in forecast)
    assert not any(cell.forecast for cell in every.cells)
    assert {cell.alone_n for cell in some.cells} == {3}
    for cell in some.cells:
        if cell.forecast is not None:
            assert cell.forecast_low <= cell.forecast <= cell.forecast_high
    assert measured(some) < measured(every)


def test_the_seed_chooses_the_pairs(gpu):
    chosen = [measured(measure(gpu, pairs=6, seed=seed)) for seed in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]


@pytest.mark.parametrize("pairs", [0, 5, 16, True, 6.5, "7"])
def test_too_few_pairs_are_refused_before_anything_runs(gpu, pairs):
    before_ns = gpu.now_ns()
    with pytest.raises(gs.errors.InvalidArgument, match="from 6 to 15 is needed: 6 workloads"):
        measure(gpu, pairs=pairs)
    assert gpu.now_ns() == before_ns


def test_stopped_early_pairs_left_out_are_not_forecast_from_too_few(gpu):
    stop = threading.Event()

    def viewer(progress):
        if " with " in progress.setting:
            stop.set()

    result = measure(gpu, pairs=6, viewer=viewer, stop=stop)
    assert result.stopped
    assert not any(cell.forecast for cell in result.cells)
    reasons = Counter(cell.reason for cell in result.cells)
    assert reasons["not measured"] == 11
    assert sum("too few others" in (reason or "") for reason in reasons.elements()) == 18
