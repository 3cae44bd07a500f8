"""Does `gpuscope diff` judge noise of any shape as it says? Simulated rounds; needs no GPU.

    python benchmarks/diff_noise.py [--trials 20000] [--out …]

Of each kind of comparison and shape of noise, scaled to 1 % of what is measured: how often equal
sides are told apart (of independent numbers that are judged together, any), how often a side that
is 3 % slower is seen in one of them, how often a change of the size that is said to be seen four
times of five is seen in rounds that are drawn anew, and how often it is said that neighbouring
rounds hang together. All from a fixed seed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from facts import BESIDE, command, row, write

from gpuscope.analysis.certainty import TAIL
from gpuscope.comparing.effects import effect
from gpuscope.comparing.shifts import serial_correlation, shift

SEED = 20261128
NOISE, CHANGE = 0.01, 0.03
TOLD, AGAIN = 400, 25
"""Comparisons whose smallest change is asked for, and comparisons that are drawn anew for each."""


class Kind(NamedTuple):
    """A kind of comparison."""

    name: str
    rounds: int
    control: int
    judged: int
    are_pairs: bool


KINDS = (
    Kind("saved runs, 5 rounds, 2 numbers", 5, 0, 2, are_pairs=False),
    Kind("programs, 6 pairs, 1 number", 6, 0, 1, are_pairs=True),
    Kind("turns, 8 pairs, 2 numbers", 8, 5, 2, are_pairs=True),
    Kind("turns, 20 pairs, 3 numbers", 20, 12, 3, are_pairs=True),
)
Shape = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def one_in_ten(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.random(shape) < 0.1


INDEPENDENT: dict[str, Shape] = {
    "normal": lambda random, shape: random.normal(size=shape),
    "t, 3 degrees of freedom": lambda random, shape: random.standard_t(3, size=shape),
    "lognormal, σ = 1": lambda random, shape: np.exp(random.normal(size=shape)),
    "normal, one round in ten with 10 times the noise": lambda random, shape: (
        random.normal(size=shape) * np.where(one_in_ten(random, shape), 10, 1)
    ),
    "normal, one round in ten 30 % slower": lambda random, shape: (
        random.normal(size=shape) + math.log(1.3) / NOISE * one_in_ten(random, shape)
    ),
    "two modes 3 % apart, 1 % within": lambda random, shape: (
        random.normal(size=shape) + 3 * random.integers(0, 2, shape)
    ),
    "two modes 4 % apart, 0.5 % within": lambda random, shape: (
        random.normal(size=shape) / 2 + 4 * random.integers(0, 2, shape)
    ),
}
"""Noise whose rounds do not depend on each other, in units of 1 %."""


def correlated(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return noise of which neighbours along the last axis correlate by 0.5."""
    noise = random.normal(size=shape)
    for at in range(1, shape[-1]):
        noise[..., at] = 0.5 * noise[..., at - 1] + math.sqrt(0.75) * noise[..., at]
    return noise


IN_TIME: dict[str, Shape] = {
    "normal, and 1 % slower every round": lambda random, shape: (
        random.normal(size=shape) + np.arange(shape[-1])
    ),
    "normal, and a wave of 3 % over 11 rounds": lambda random, shape: (
        random.normal(size=shape)
        + 3 * np.sin(2 * math.pi * (np.arange(shape[-1]) / 11 + random.random((*shape[:-1], 1))))
    ),
    "a random walk": lambda random, shape: random.normal(size=shape).cumsum(-1),
    "normal, neighbours correlate by 0.5": correlated,
}
"""Noise in the order in which rounds are measured."""


def drawn(kind: Kind, noise: str, random: np.random.Generator, trials: int) -> list[np.ndarray]:
    """Return the logarithms of rounds of two equal sides: trials × rounds."""
    if noise in INDEPENDENT:
        return [*(NOISE * INDEPENDENT[noise](random, (2, trials, kind.rounds)))]
    if not kind.are_pairs:
        return [*(NOISE * IN_TIME[noise](random, (2, trials, kind.rounds)))]
    rounds = NOISE * IN_TIME[noise](random, (trials, 2 * kind.rounds))
    pairs = rounds.reshape(trials, kind.rounds, 2)
    is_turned = np.arange(kind.rounds) % 2 == 1  # ABBA
    return [np.where(is_turned, pairs[..., 1 - at], pairs[..., at]) for at in (0, 1)]


class Found(NamedTuple):
    """Shares of comparisons: see the module; and the standard error of what is told."""

    alarms: float
    seen: float
    told: float
    told_error: float
    hanging: float


def judged(kind: Kind, noise: str, trials: int) -> Found:
    """Simulate a kind of comparison in a shape of noise."""
    random = np.random.default_rng(SEED)
    tail = TAIL / kind.judged
    alarms = np.zeros(trials, bool)
    for _ in range(kind.judged):
        before, after = drawn(kind, noise, random, trials)
        _, low, high = shift(before, after, tail, are_pairs=kind.are_pairs)
        alarms |= (low > 0) | (high < 0)
    seen = low > -math.log1p(CHANGE)  # of one number that is shifted by so much
    control = random.normal(0, NOISE * math.sqrt(2), (TOLD, kind.control))
    sides = drawn(kind, noise, random, TOLD)
    series = [[after - before] if kind.are_pairs else [before, after]
              for before, after in zip(*sides, strict=True)]  # fmt: skip
    hanging = np.mean([serial_correlation(each) is not None for each in series])
    smallest = [
        effect(
            "w",
            "latency_p50_us",
            np.exp(before).tolist(),
            np.exp(after).tolist(),
            against_itself.tolist(),
            judged=kind.judged,
            are_pairs=kind.are_pairs,
        ).smallest
        for before, after, against_itself in zip(*sides, control, strict=True)
    ]
    shifts = np.repeat(np.log1p(smallest), AGAIN)
    before, after = drawn(kind, noise, random, TOLD * AGAIN)
    _, low, high = shift(before, after, tail, are_pairs=kind.are_pairs)
    each = ((low + shifts > 0) + (high - shifts < 0).astype(float)).reshape(TOLD, AGAIN).mean(1) / 2
    error = float(each.std()) / math.sqrt(TOLD)
    return Found(
        float(alarms.mean()), float(seen.mean()), float(each.mean()), error, float(hanging)
    )


def rows(trials: int) -> Iterator[dict]:
    allowed = 0.05 + 2 * math.sqrt(0.05 * 0.95 / trials)  # two standard errors of the simulation
    for kind in KINDS:
        for noise in [*INDEPENDENT, *IN_TIME]:
            alarms, seen, told, error, hanging = judged(kind, noise, trials)
            is_promised = noise in INDEPENDENT or (kind.are_pairs and noise != [*IN_TIME][-1])
            band = (0.75, 0.85) if noise == "normal" else (0.70, 0.90)
            in_band = band[0] - 2 * error <= told <= band[1] + 2 * error
            what = f"{kind.name}: {noise}"
            print(f"{what}: {alarms:.1%} false alarms, +3 % {seen:.0%}, four of five {told:.0%}, "
                  f"hanging together {hanging:.0%}", flush=True)  # fmt: skip
            yield row(f"{what}: false alarms", "≤ 5" if is_promised else BESIDE, 100 * alarms, "%",
                      met=alarms <= allowed or not is_promised)  # fmt: skip
            is_asked = noise == "normal" and not kind.are_pairs
            yield row(f"{what}: +3 % is seen", "≥ 80" if is_asked else BESIDE, 100 * seen, "%",
                      met=seen >= 0.8 or not is_asked)  # fmt: skip
            goal = f"{100 * band[0]:.0f} to {100 * band[1]:.0f}"
            yield row(f"{what}: four of five", goal if noise in INDEPENDENT else BESIDE, 100 * told,
                      "%", met=in_band or noise not in INDEPENDENT)  # fmt: skip
            yield row(f"{what}: neighbours are said to hang together", BESIDE, 100 * hanging, "%",
                      met=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    found = [*rows(options.trials)]
    missed = [each["what"] for each in found if not each["met"]]
    print(f"missed: {missed or 'none'}")
    if options.out is not None:
        write(options.out, command(), f"seed {SEED}", found)


if __name__ == "__main__":
    main()
