"""Requests: a workload made of calls of two others, as an inference server makes them."""

from __future__ import annotations

import math
import random
import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, TypeGuard

from pydantic import (
    Field,
    NonNegativeFloat,
    PlainValidator,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gpuscope.errors import InvalidExperiment
from gpuscope.workloads.spec import RARE, WorkloadSpec, has_default

if TYPE_CHECKING:  # describing work loads no NumPy
    from gpuscope.device.device import Device
    from gpuscope.workloads.handle import Handle

MOST = 1_000_000
"""Tokens of a request at most."""
_EXPECTED = (
    "should be a whole number from 1 on, a list of such numbers, 'uniform LEAST MOST' or "
    "'geometric MEAN'"
)
_DRAWN = re.compile(r"uniform (\d+) (\d+)|geometric (\d+(?:\.\d+)?)")


def _is_length(value: object) -> TypeGuard[int]:
    return type(value) is int and 1 <= value <= MOST


def _lengths(value: object) -> int | str | list[int]:
    """Read lengths, also as text from the dashboard."""
    if isinstance(value, str):
        words = " ".join(value.replace(",", " ").split())
        if re.fullmatch(r"[\d ]+", words):
            value = [int(word) for word in words.split()]
            value = value[0] if len(value) == 1 else value
        elif drawn := _DRAWN.fullmatch(words):
            least, most, mean = drawn.groups()
            if mean is not None and 1 <= float(mean) <= MOST:
                return words
            if mean is None and 1 <= int(least) <= int(most) <= MOST:
                return words
    if _is_length(value) or (isinstance(value, list) and value and all(map(_is_length, value))):
        return value
    raise PydanticCustomError("lengths", _EXPECTED)


Lengths = Annotated[int | str | list[int], PlainValidator(_lengths)]
"""How long requests are: a number, a list that begins anew at its end, or a distribution."""


def draw(lengths: int | str | list[int], number: int, rng: random.Random) -> int:
    """Return the length of request ``number``."""
    if isinstance(lengths, int):
        return lengths
    if isinstance(lengths, list):
        return lengths[number % len(lengths)]
    name, *values = lengths.split()
    if name == "uniform":
        return rng.randint(int(values[0]), int(values[1]))
    missing = 1 - 1 / float(values[0])  # chance that another token follows
    if not missing:
        return 1
    return min(MOST, 1 + int(math.log(1 - rng.random()) / math.log(missing)))


class RequestsSpec(WorkloadSpec):
    """Requests that arrive, are prefilled and decoded in batches by calls of two other workloads.

    The other workloads are described as usual, each on a stream of its own, and run only as
    requests need them. Their ``repeats`` say nothing.

    Attributes
    ----------
    prefill, decode
        Names of the workloads of which a request needs calls.
    repeats
        Requests in all, over every round.
    arrival, rate_hz
        ``"fixed"`` or ``"poisson"`` at ``rate_hz`` requests a second.
    times_ms
        In place of these: recorded times of arrival. If there are more requests, the intervals
        between them begin anew.
    prompt_chunks
        Calls of ``prefill`` that the prompt takes; the last one yields the first token.
    output_tokens
        Tokens of the answer: each but the first takes part in one call of ``decode``.
    batch
        Requests that a call of ``decode`` serves at most.
    slo
        ``ttft_ms`` and ``tbt_ms``, or one of them: the longest time to the first token, and the
        longest mean time between tokens, with which a request counts for the goodput.
    """

    launches: ClassVar[bool] = False

    kind: Literal["requests"]
    stream: Literal[""] = ""
    prefill: str = Field(
        title="Prefill", examples=["prefill"], description="The workload that reads a prompt"
    )
    decode: str = Field(
        title="Decode",
        examples=["decode"],
        description="The workload that makes the next token of each running request",
    )
    batch: PositiveInt = Field(16, title="Batch", description="Requests of a decode step at most")
    output_tokens: Lengths = Field(
        64,
        title="Tokens out",
        description="A number, numbers, 'uniform LEAST MOST' or 'geometric MEAN'",
    )
    prompt_chunks: Lengths = Field(
        1,
        title="Prefill calls",
        description="Calls of the prefill workload for one prompt: as tokens out",
        json_schema_extra=RARE,
    )
    times_ms: list[NonNegativeFloat] = Field(
        default_factory=list,
        title="Arrivals (ms)",
        description="Recorded times, where arrivals are back to back",
        json_schema_extra=RARE,
    )
    slo: dict[Literal["ttft_ms", "tbt_ms"], PositiveFloat] = Field(
        default_factory=dict,
        title="SLO",
        description='The longest times that count for goodput: {"ttft_ms": 20, "tbt_ms": 0.7}',
    )

    @model_validator(mode="after")
    def _launches_nothing(self) -> Self:
        for name in ("background", "guard", "max_queued", "waits_on", "warmup"):
            if not has_default(self, name):
                raise ValueError(
                    f"requests launch nothing themselves: leave out {name}, or state it of "
                    f"{self.prefill!r} and {self.decode!r}"
                )
        if bool(self.times_ms) == (self.rate_hz is not None):
            raise ValueError(
                "say when requests arrive: by arrival = 'poisson' or 'fixed' and rate_hz, or by "
                "times_ms"
            )
        if self.times_ms != sorted(self.times_ms):
            raise ValueError("times_ms should be in ascending order")
        return self

    def make(self, device: Device, *, name: str, seed: int) -> Handle:
        """Refuse: its calls are those of two other workloads."""
        del device, seed
        raise InvalidExperiment(
            f"workloads.{name}: requests launch nothing themselves and have no handle: run the "
            "experiment that also describes their prefill and decode"
        )

    def interval_ns(self, rng: random.Random, number: int) -> int:
        """Return the time from the arrival before to that of request ``number``."""
        if not self.times_ms:
            return super().interval_ns(rng, number)
        index = number % len(self.times_ms)
        before = self.times_ms[index - 1] if index else 0.0
        return round(1e6 * (self.times_ms[index] - before))
