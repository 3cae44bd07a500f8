"""Racy programs on the simulated GPU: each is found, and its mended twin is not accused."""

from __future__ import annotations

import pytest
from races import CUSAN, TRIED

import gpuscope as gs


@pytest.fixture
def gpu():
    device = gs.open_device("sim:h200", quiet=True)
    yield device
    device.close()


def found(gpu, race, *, mended):
    with gs.profile(gpu, hazards=True) as recording:
        race.program(gpu, mended=mended)
    facts = gs.analysis.hazards(recording.trace)
    assert not facts.facts.unseen
    return facts.found


@pytest.mark.parametrize("race", [*CUSAN, *TRIED], ids=str)
def test_a_racy_program_is_found(gpu, race):
    facts = found(gpu, race, mended=False)
    assert facts
    assert all(map(race.is_found, facts)), facts


@pytest.mark.parametrize("race", [*CUSAN, *TRIED], ids=str)
def test_its_mended_twin_is_not_accused(gpu, race):
    assert found(gpu, race, mended=True) == ()
