"""Types of the fields of a GPU profile."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_SMS = 4096

PositiveInt = Annotated[int, Field(gt=0, le=10**15)]
"""More than any GPU has of anything, and little enough to reckon with."""
PositiveFloat = Annotated[float, Field(ge=1e-12, le=1e12)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=1e12)]
Exponent = Annotated[float, Field(ge=1, le=1000)]
SmCount = Annotated[int, Field(gt=0, le=4096)]
Side = Annotated[int, Field(gt=0, le=65536)]
Share = Annotated[float, Field(ge=0, le=1)]
Times = Annotated[
    list[Annotated[tuple[PositiveInt, PositiveFloat], Field(min_length=2, max_length=2)]],
    Field(min_length=1),
]
Quantiles = list[Annotated[tuple[Share, PositiveFloat], Field(min_length=2, max_length=2)]]
Range = Annotated[tuple[PositiveInt, PositiveInt], Field(min_length=2, max_length=2)]
Tile = Annotated[tuple[Side, Side, Side, Side], Field(min_length=4, max_length=4)]


class ProfilePart(BaseModel):
    """Base of the parts of a profile."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
