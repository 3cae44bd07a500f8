"""Experiment: the validated description of a run, from TOML, JSON or Python."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, NonNegativeInt, ValidationError
from pydantic_core import PydanticSerializationError

from gpuscope import _foreign
from gpuscope._checks import door, given
from gpuscope._optional import require
from gpuscope.device.sizes import Rounding
from gpuscope.errors import GpuscopeError, InvalidExperiment
from gpuscope.experiments import refusals
from gpuscope.experiments.refusals import Place, listed
from gpuscope.experiments.setting import (
    Name,
    PartitionName,
    PartitionSize,
    ResolvedSetting,
    Setting,
    StreamSpec,
    check_names,
)
from gpuscope.workloads.registry import AnyWorkload, find_kind
from gpuscope.workloads.requests import RequestsSpec
from gpuscope.workloads.spec import ExtendedModel, WorkloadSpec


def _device_name(name: str) -> str:
    kind, _, rest = name.partition(":")
    if not (kind == "cuda" and rest.isdecimal()) and not (kind == "sim" and rest):
        raise ValueError(f"should be 'cuda:N' or 'sim:h200', but found {name!r}")
    return name


DeviceName = Annotated[str, AfterValidator(_device_name)]
Color = Annotated[str, Field(pattern=r"^#[0-9A-Fa-f]{6}$")]


def fields_of(text: str) -> dict[str, Any]:
    """Return what a TOML text says.

    Raises
    ------
    InvalidExperiment
        It is not TOML.
    """
    try:
        fields: dict[str, Any] = _foreign.loads(text, "TOML", _foreign.WRITTEN_BYTES)
    except _foreign.Malformed as error:
        raise InvalidExperiment(f"this is not TOML: {error}") from error
    return fields


class Experiment(ExtendedModel):
    """A description of partitions, streams, workloads and the settings to compare.

    Attributes
    ----------
    partitions
        Name → SM count, a percentage of the GPU's SMs as ``"25%"``, or ``"rest"`` for one of
        them; empty leaves the GPU whole.
    streams, workloads, settings
        By name. Without settings there is one, called ``"default"``.
    devices
        Names of devices, as :func:`~gpuscope.open_device` takes them: each is that of a rank, a
        process that does the whole experiment. Empty for the one device that a run is given.
    rounds
        How often the settings take turns, in the order given, then backwards, and so on: drift
        over rounds, and what a setting leaves warm for the next, affect all alike.
    alone_repeats
        Calls per round of each workload alone, the reference for gain and shares; 0 for none. A
        background workload runs alone for at least as long as it ran with the others.
    rounding
        What to do with a count or percentage that the GPU cannot grant.
    seed
        Random seed of operands and arrivals.
    detail
        What is recorded while workloads run together, as :func:`~gpuscope.profile` takes it.
    hazards
        Whether hazards are looked for while workloads run together.
    counters
        Whether hardware counters of the GPU are sampled meanwhile, as ``profile`` does.
    energy
        Whether the energy is measured that the GPU draws in each round, and at rest before it. On a
        GPU, a round then lasts at least 2 s: its foreground makes more calls than ``repeats``.
    colors
        Partition → its colour in figures, as ``"#RRGGBB"``; others get one by position.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.experiments.Experiment.from_dict({
    ...     "name": "one", "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "gemm", "m": 64, "n": 64, "k": 64, "stream": "s"}},
    ... }).name
    'one'
    """

    _later = ("devices", "detail", "hazards", "counters", "energy", "colors")

    name: Name
    seed: NonNegativeInt = 0
    rounds: Annotated[int, Field(ge=1, le=1000)] = 1
    alone_repeats: NonNegativeInt = 20
    rounding: Rounding = "exact"
    detail: Literal["launches", "full"] = "launches"
    hazards: bool = False
    counters: bool = False
    energy: bool = False
    devices: Annotated[list[DeviceName], Field(max_length=64)] = Field(default_factory=list)
    partitions: dict[PartitionName, PartitionSize] = Field(default_factory=dict)
    streams: Annotated[dict[Name, StreamSpec], Field(min_length=1)]
    workloads: Annotated[dict[Name, AnyWorkload], Field(min_length=1)]
    settings: dict[Name, Setting] = Field(default_factory=dict)
    colors: dict[str, Color] = Field(default_factory=dict)

    def __init__(self, **fields: object) -> None:
        refusals.check_plain(fields)
        try:
            super().__init__(**fields)
        except ValidationError as error:
            wrong = refusals.problems(error, fields, partial(_model_at, fields))
            raise InvalidExperiment(refusals.explain(wrong), wrong) from None
        for setting in self.resolve():
            check_names(setting, self.settings.get(setting.name), self.streams)
        carved = {name for setting in self.resolve() for name in setting.partitions}
        for name in self.colors:
            if name not in carved:
                refusals.refuse(("colors", name), f"no setting carves a partition {name!r}")

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Experiment:
        """Create an experiment from a dict and validate it.

        Raises
        ------
        InvalidExperiment
            Names the path of every invalid field and the values allowed.
        """
        if not isinstance(data, Mapping):
            raise InvalidExperiment(
                f"an experiment is a dict of fields, not {type(data).__name__}: it needs "
                "'name', 'streams' and 'workloads'"
            )
        for key in data:
            if not isinstance(key, str):
                allowed = listed(cls.model_fields)
                raise InvalidExperiment(f"{given(key)}: unknown key; allowed: {allowed}")
        return cls(**data)

    @classmethod
    @door("text")
    def from_toml(cls, text: str) -> Experiment:
        """Read a TOML text.

        Raises
        ------
        InvalidExperiment
            It is not TOML, or the experiment is invalid.
        """
        return cls.from_dict(fields_of(text))

    @classmethod
    @door("path")
    def from_file(cls, path: str | Path) -> Experiment:
        """Read a ``.toml`` or ``.json`` file.

        Raises
        ------
        InvalidExperiment
            It is not TOML or JSON, or the experiment is invalid.
        GpuscopeError
            It cannot be read.
        """
        source = Path(path)
        form: _foreign.Form = "JSON" if source.suffix == ".json" else "TOML"
        try:
            data = _foreign.load(source, form, _foreign.WRITTEN_BYTES)
        except _foreign.Malformed as error:
            raise InvalidExperiment(f"{source.name!r} is not {form}: {error}") from error
        except (OSError, ValueError) as error:
            why = (isinstance(error, OSError) and error.strerror) or error
            raise GpuscopeError(
                f"cannot read experiment {source.name!r}: {why}. Check the path"
            ) from error
        if not isinstance(data, dict):
            raise InvalidExperiment(f"{source.name!r} holds no table of fields")
        return cls.from_dict(data)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that :meth:`from_dict` reads."""
        try:
            return self.model_dump(mode="json")
        except PydanticSerializationError as error:
            if "KeyboardInterrupt" in str(error):  # pydantic keeps no more of an interrupt
                raise KeyboardInterrupt from error
            raise

    def to_toml(self) -> str:
        """Return a TOML text that :meth:`from_toml` reads, without fields at their defaults.

        Raises
        ------
        MissingDependency
            tomli-w is not installed; the extras ``cli`` and ``notebook`` include it.
        """
        tomli_w = require("tomli_w", feature="Experiment.to_toml()")
        return str(tomli_w.dumps(self.model_dump(mode="json", exclude_defaults=True)))

    @property
    def driven(self) -> set[str]:
        """Names of the workloads that run only as requests need them."""
        requests = [spec for spec in self.workloads.values() if isinstance(spec, RequestsSpec)]
        return {name for spec in requests for name in (spec.prefill, spec.decode)}

    def resolve(self) -> list[ResolvedSetting]:
        """Return every setting with all fields filled in."""
        resolved = []
        for name, setting in (self.settings or {"default": Setting()}).items():
            workloads = {
                label: spec.model_copy(update={"sm_count_target": setting.sm_count_target})
                if setting.sm_count_target is not None and hasattr(spec, "sm_count_target")
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
                    rounding=setting.rounding or self.rounding,
                )
            )
        return resolved


Description = Experiment | Mapping[str, object] | str | Path
"""An experiment, its fields, or a TOML or JSON file."""


def as_experiment(description: Description) -> Experiment:
    """Return a description as an experiment, validated.

    Raises
    ------
    InvalidExperiment
        It does not validate.
    GpuscopeError
        The file cannot be read.
    """
    if isinstance(description, Experiment):
        return description
    if isinstance(description, str | Path):
        return Experiment.from_file(description)
    return Experiment.from_dict(description)


def _model_at(fields: object, path: Place) -> type[BaseModel]:
    """Return whose key it is that nobody knows."""
    match path:
        case (_,):
            return Experiment
        case ("settings", _, _):
            return Setting
        case ("workloads", name, _) if isinstance(fields, Mapping):
            kind = str(fields["workloads"][name]["kind"]).partition(":")[0]
            return find_kind(kind) or WorkloadSpec
        case _:
            return StreamSpec
