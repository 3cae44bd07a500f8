"""Experiment: the validated description of a run, from TOML, JSON or Python."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from gpuscope.errors import GpuscopeError, InvalidExperiment


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StreamSpec(_Model):
    """A stream to make.

    Attributes
    ----------
    partition
        The partition it is made in; ``None`` for the whole GPU.
    priority
        CUDA's: lower runs first.
    """

    partition: str | None = None
    priority: Annotated[int, Field(ge=-5, le=0)] = 0


class _Workload(_Model):
    stream: str
    repeats: PositiveInt = 100
    warmup: NonNegativeInt = 3
    background: bool = False
    max_queued: Annotated[int, Field(ge=1, le=64)] = 1
    rate_hz: PositiveFloat | None = None
    arrival: Literal["back_to_back", "fixed", "poisson"] = "back_to_back"

    @model_validator(mode="after")
    def _arrival_has_rate(self) -> Self:
        if (self.arrival == "back_to_back") != (self.rate_hz is None):
            raise ValueError(
                "rate_hz goes with arrival = 'fixed' or 'poisson', and only with these"
            )
        if self.background and self.rate_hz is not None:
            raise ValueError("a background workload runs back to back: leave rate_hz out")
        return self


class GemmSpec(_Workload):
    """A matrix product ``out[m, n] = a[m, k] @ b[k, n]``, launched again and again.

    Attributes
    ----------
    stream
        Name of the stream to launch on.
    repeats
        Calls in all, over every round; what a background workload does instead is run
        as long as the others do.
    warmup
        Calls before anything is recorded.
    max_queued
        Calls in flight at most: 1 waits for each, which measures latency; 4 keeps the
        GPU busy.
    arrival, rate_hz
        ``"back_to_back"``; or ``"fixed"`` or ``"poisson"`` at ``rate_hz`` a second.
    """

    kind: Literal["gemm"]
    m: PositiveInt
    n: PositiveInt
    k: PositiveInt
    dtype: Literal["float16", "bfloat16", "float32", "float64"] = "float16"
    sm_count_target: Literal["auto", "off"] | PositiveInt = "auto"


class CopySpec(_Workload):
    """An element-wise copy kernel over ``nbytes``, read and written."""

    kind: Literal["copy"]
    nbytes: PositiveInt


class SpinSpec(_Workload):
    """A kernel of ``blocks`` thread blocks that spin for ``duration_us``."""

    kind: Literal["spin"]
    duration_us: Annotated[float, Field(gt=0, le=10_000_000)]
    blocks: PositiveInt = 1


WorkloadSpec = Annotated[GemmSpec | CopySpec | SpinSpec, Field(discriminator="kind")]
Size = PositiveInt | Literal["rest"]


class Setting(_Model):
    """A named variant: what differs from the experiment itself.

    Attributes
    ----------
    partitions
        Replaces the experiment's.
    streams
        Replaces the streams it names; the others stay.
    sm_count_target
        For every GEMM of the setting.
    """

    partitions: dict[str, Size] | None = None
    streams: dict[str, StreamSpec] = Field(default_factory=dict)
    sm_count_target: Literal["auto", "off"] | PositiveInt | None = None


class ResolvedSetting(_Model):
    """One setting, complete: what is carved, made and launched."""

    name: str
    partitions: dict[str, Size]
    streams: dict[str, StreamSpec]
    workloads: dict[str, WorkloadSpec]


class Experiment(_Model):
    """What to carve, which streams to make, what to launch on them, and in which settings.

    Attributes
    ----------
    partitions
        Name → SM count, or ``"rest"`` for one of them; empty leaves the GPU whole.
    streams, workloads, settings
        By name. Without settings there is one, called ``"default"``.
    rounds
        Settings take turns this many times, so that drift meets all of them alike.
    alone_repeats
        Calls a round of each workload alone, from which gain and shares follow; 0 for none.
    rounding
        What to do with a count that the GPU cannot give.
    seed
        Of operands and arrivals.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.Experiment.from_dict({
    ...     "name": "one", "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "gemm", "m": 64, "n": 64, "k": 64, "stream": "s"}},
    ... }).name
    'one'
    """

    name: str
    seed: NonNegativeInt = 0
    rounds: Annotated[int, Field(ge=1, le=1000)] = 1
    alone_repeats: NonNegativeInt = 20
    rounding: Literal["exact", "up", "down"] = "exact"
    partitions: dict[str, Size] = Field(default_factory=dict)
    streams: Annotated[dict[str, StreamSpec], Field(min_length=1)]
    workloads: Annotated[dict[str, WorkloadSpec], Field(min_length=1)]
    settings: dict[str, Setting] = Field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Experiment:
        """Validate a description.

        Raises
        ------
        InvalidExperiment
            Names the path of every field that is wrong, and what is allowed there.
        """
        try:
            experiment = cls.model_validate(data)
        except ValidationError as error:
            raise InvalidExperiment(
                "the experiment does not validate:\n"
                + "\n".join(f"  {_explain(one)}" for one in error.errors())
            ) from error
        for setting in experiment.resolve():
            _check_names(experiment, setting)
        return experiment

    @classmethod
    def from_file(cls, path: str | Path) -> Experiment:
        """Read a ``.toml`` or ``.json`` file.

        Raises
        ------
        InvalidExperiment
            It is not TOML or JSON, or does not validate.
        GpuscopeError
            It cannot be read.
        """
        source = Path(path)
        try:
            text = source.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise GpuscopeError(f"cannot read experiment {source.name!r}: {error}") from error
        try:
            data = json.loads(text) if source.suffix == ".json" else tomllib.loads(text)
        except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
            form = "JSON" if source.suffix == ".json" else "TOML"
            raise InvalidExperiment(f"{source.name!r} is not {form}: {error}") from error
        if not isinstance(data, dict):
            raise InvalidExperiment(f"{source.name!r} holds no table of fields")
        return cls.from_dict(data)

    def to_dict(self) -> dict[str, Any]:
        """Return a description that :meth:`from_dict` takes back."""
        return self.model_dump(mode="json")

    def resolve(self) -> list[ResolvedSetting]:
        """Return every setting, complete."""
        resolved = []
        for name, setting in (self.settings or {"default": Setting()}).items():
            workloads = {
                label: spec.model_copy(update={"sm_count_target": setting.sm_count_target})
                if setting.sm_count_target is not None and isinstance(spec, GemmSpec)
                else spec
                for label, spec in self.workloads.items()
            }
            partitions = self.partitions if setting.partitions is None else setting.partitions
            resolved.append(
                ResolvedSetting.model_construct(
                    name=name,
                    partitions=partitions,
                    streams={**self.streams, **setting.streams},
                    workloads=workloads,
                )
            )
        return resolved


def _check_names(experiment: Experiment, setting: ResolvedSetting) -> None:
    """Check that streams name partitions and workloads name streams that are there."""
    named = experiment.settings.get(setting.name)
    for name, stream in setting.streams.items():
        if stream.partition is not None and stream.partition not in setting.partitions:
            here = f"settings.{setting.name}." if named and name in named.streams else ""
            allowed = (
                ", ".join(map(repr, setting.partitions)) or "none (this setting carves nothing)"
            )
            raise InvalidExperiment(
                f"{here}streams.{name}.partition: {stream.partition!r} is no partition of setting "
                f"{setting.name!r}; allowed: {allowed}"
            )
    if named is not None:
        for name in named.streams:
            if name not in experiment.streams:
                raise InvalidExperiment(
                    f"settings.{setting.name}.streams.{name}: no such stream; allowed: "
                    + ", ".join(map(repr, experiment.streams))
                )
    for name, workload in setting.workloads.items():
        if workload.stream not in setting.streams:
            raise InvalidExperiment(
                f"workloads.{name}.stream: {workload.stream!r} is no stream; allowed: "
                + ", ".join(map(repr, setting.streams))
            )
    if all(workload.background for workload in setting.workloads.values()):
        raise InvalidExperiment(
            "workloads: every one is in the background, so nothing would end the run; set "
            "background = false for at least one"
        )


_MODELS: dict[str, type[BaseModel]] = {
    "streams": StreamSpec,
    "settings": Setting,
    "gemm": GemmSpec,
    "copy": CopySpec,
    "spin": SpinSpec,
}


def _explain(error: ErrorDetails) -> str:
    """Write one validation error: the field's path, what was found, what is allowed."""
    place = [str(part) for part in error["loc"]]
    model = Experiment if len(place) == 1 else _MODELS.get(place[0])
    if place[0] == "workloads" and len(place) > 2:
        model = _MODELS.get(place.pop(2))
    path = ".".join(place)
    if error["type"] == "extra_forbidden":
        if place[0] == "settings" and "streams" in place[:-1]:
            model = StreamSpec
        allowed = ", ".join(model.model_fields) if model is not None else "see the documentation"
        return f"{path}: unknown key; allowed: {allowed}"
    if error["type"] == "missing":
        return f"{path}: missing; this field is required"
    found = error.get("input")
    shown = "" if isinstance(found, dict | list) else f", but found {found!r}"
    text = error["msg"].removeprefix("Value error, ")
    return f"{path}: {text[0].lower()}{text[1:]}{shown}"
