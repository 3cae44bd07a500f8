"""Racy programs on a GPU: each is found, its mended twin is right and is not accused."""

from __future__ import annotations

import pytest
from races import CUSAN, values

import gpuscope as gs

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu():
    return gs.open_device("cuda:0", quiet=True)


def found(gpu, race, *, mended):
    with gs.profile(gpu, hazards=True) as recording:
        race.program(gpu, mended=mended)
    result = gs.analysis.hazards(recording.trace)
    assert not result.facts.unseen
    rows = set(recording.trace.array("id").tolist())
    for fact in result.found:
        assert fact.first in rows
        assert fact.second in rows or fact.kind == "host access too early"
    return result.found


@pytest.mark.parametrize("race", CUSAN, ids=str)
def test_a_racy_program_is_found(gpu, race):
    facts = found(gpu, race, mended=False)
    expected = race.kind, race.first, race.second
    assert expected in [(fact.kind, fact.first_name, fact.second_name) for fact in facts]
    assert race.mend in [fact.mend.split("  #")[0] for fact in facts]
    assert all(fact.kind == race.kind for fact in facts)


@pytest.mark.parametrize("race", CUSAN, ids=str)
def test_its_mended_twin_is_not_accused(gpu, race):
    assert found(gpu, race, mended=True) == ()


@pytest.mark.parametrize("race", CUSAN, ids=str)
def test_its_mended_twin_is_right(gpu, race):
    """As on the simulated GPU."""
    expected = gs.open_device("sim:h200", quiet=True)
    right = values(expected, race.program(expected, mended=True))
    for _ in range(3):
        assert values(gpu, race.program(gpu, mended=True)) == right
