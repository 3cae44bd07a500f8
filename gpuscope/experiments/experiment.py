"""Experiment: the validated description of a run, from TOML, JSON or Python."""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    NonNegativeInt,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticSerializationError

from gpuscope._checks import door, given
from gpuscope._optional import require
from gpuscope.device.sizes import EXPECTED, Rounding, Size
from gpuscope.errors import GpuscopeError, InvalidExperiment, InvalidPartition
from gpuscope.experiments.refusals import (
    Place,
    check_plain,
    check_size,
    explain,
    listed,
    problems,
    refuse,
)
from gpuscope.workloads.builtin import CollectiveSpec, SmCountTarget
from gpuscope.workloads.registry import AnyWorkload, find_kind
from gpuscope.workloads.requests import RequestsSpec
from gpuscope.workloads.spec import ExtendedModel, Model, WorkloadSpec


class StreamSpec(ExtendedModel):
    """A stream to make.

    Attributes
    ----------
    partition
        The partition it is made in; ``None`` for the whole GPU.
    priority
        CUDA's: lower runs first.
    blocking
        Whether it knows the barrier of the legacy default stream; streams of partitions
        cannot.
    """

    _later = ("blocking",)

    partition: str | None = None
    priority: Annotated[int, Field(ge=-5, le=0)] = 0
    blocking: bool = False

    @model_validator(mode="after")
    def _blocking_is_of_the_whole_gpu(self) -> Self:
        if self.blocking and self.partition is not None:
            raise ValueError(
                "a partition's stream never blocks: leave out blocking, or partition for a "
                "stream of the whole GPU"
            )
        return self


def _plain_size(value: object) -> int | str:
    try:
        return Size.parse(value).plain
    except InvalidPartition:
        raise PydanticCustomError("size", EXPECTED) from None


PartitionSize = Annotated[int | str, PlainValidator(_plain_size)]
"""A :class:`~gpuscope.device.Size` as descriptions write it."""


def _device_name(name: str) -> str:
    kind, _, rest = name.partition(":")
    if not (kind == "cuda" and rest.isdecimal()) and not (kind == "sim" and rest):
        raise ValueError(f"should be 'cuda:N' or 'sim:h200', but found {name!r}")
    return name


DeviceName = Annotated[str, AfterValidator(_device_name)]
Color = Annotated[str, Field(pattern=r"^#[0-9A-Fa-f]{6}$")]


class Setting(ExtendedModel):
    """A named variant: what differs from the experiment itself.

    Attributes
    ----------
    partitions
        Replaces the experiment's.
    streams
        Replaces the streams it names; the others stay.
    sm_count_target
        For every workload of the setting that has the field: every GEMM.
    rounding
        Replaces the experiment's.
    """

    _later = ("rounding",)

    partitions: dict[str, PartitionSize] | None = None
    streams: dict[str, StreamSpec] = Field(default_factory=dict)
    sm_count_target: SmCountTarget | None = None
    rounding: Rounding | None = None


class ResolvedSetting(Model):
    """One setting, complete: what is carved, made and launched."""

    name: str
    partitions: dict[str, PartitionSize]
    streams: dict[str, StreamSpec]
    workloads: dict[str, AnyWorkload]
    rounding: Rounding


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
        How often the settings take turns, in the order given: drift over rounds affects all
        equally, what a setting leaves warm the next one.
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

    _later = ("devices", "detail", "hazards", "colors")

    name: str
    seed: NonNegativeInt = 0
    rounds: Annotated[int, Field(ge=1, le=1000)] = 1
    alone_repeats: NonNegativeInt = 20
    rounding: Rounding = "exact"
    detail: Literal["launches", "full"] = "launches"
    hazards: bool = False
    devices: Annotated[list[DeviceName], Field(max_length=64)] = Field(default_factory=list)
    partitions: dict[str, PartitionSize] = Field(default_factory=dict)
    streams: Annotated[dict[str, StreamSpec], Field(min_length=1)]
    workloads: Annotated[dict[str, AnyWorkload], Field(min_length=1)]
    settings: dict[str, Setting] = Field(default_factory=dict)
    colors: dict[str, Color] = Field(default_factory=dict)

    def __init__(self, **fields: object) -> None:
        check_plain(fields)
        try:
            super().__init__(**fields)
        except ValidationError as error:
            wrong = problems(error, fields, partial(_model_at, fields))
            raise InvalidExperiment(explain(wrong), wrong) from None
        _check_texts(self)
        for setting in self.resolve():
            _check_names(self, setting)
        carved = {name for setting in self.resolve() for name in setting.partitions}
        for name in self.colors:
            if name not in carved:
                refuse(("colors", name), f"no setting carves a partition {name!r}")

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
    @door(text=str)
    def from_toml(cls, text: str) -> Experiment:
        """Read a TOML text.

        Raises
        ------
        InvalidExperiment
            It is not TOML, or the experiment is invalid.
        """
        try:
            return cls.from_dict(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise InvalidExperiment(f"this is not TOML: {error}") from error

    @classmethod
    @door(path=(str, Path))
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
        try:
            text = source.read_text("utf-8")
        except (OSError, ValueError) as error:
            why = f"{(isinstance(error, OSError) and error.strerror) or error}. Check the path"
            if isinstance(error, UnicodeDecodeError):
                why = f"it is not UTF-8 text ({error}). Save it as UTF-8"
            raise GpuscopeError(f"cannot read experiment {source.name!r}: {why}") from error
        check_size(source.name, text)
        try:
            data = json.loads(text) if source.suffix == ".json" else tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            form = "JSON" if source.suffix == ".json" else "TOML"
            raise InvalidExperiment(f"{source.name!r} is not {form}: {error}") from error
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
        requests = [one for one in self.workloads.values() if isinstance(one, RequestsSpec)]
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


def _check_texts(experiment: Experiment) -> None:
    """Check that every name is one."""
    named: dict[Place, Iterable[str]] = {
        ("name",): [experiment.name],
        ("partitions",): experiment.partitions,
        ("streams",): experiment.streams,
        ("workloads",): experiment.workloads,
        ("settings",): experiment.settings,
        **{
            ("settings", name, "partitions"): setting.partitions or ()
            for name, setting in experiment.settings.items()
        },
    }
    for place, names in named.items():
        for name in names:
            if not name:
                refuse(place, f"{name!r} is no name: it takes at least one character")


def _check_names(experiment: Experiment, setting: ResolvedSetting) -> None:
    """Check that streams name partitions, and workloads streams and workloads, that are there."""
    named = experiment.settings.get(setting.name)
    for name, stream in setting.streams.items():
        if stream.partition is not None and stream.partition not in setting.partitions:
            here = ("settings", setting.name) if named and name in named.streams else ()
            allowed = listed(setting.partitions, "none (this setting carves nothing)")
            words = f"{stream.partition!r} is no partition of setting {setting.name!r}"
            refuse((*here, "streams", name, "partition"), f"{words}; allowed: {allowed}")
    for name in named.streams if named else ():
        if name not in experiment.streams:
            words = f"no such stream; allowed: {listed(experiment.streams)}"
            refuse(("settings", setting.name, "streams", name), words)
    for name, workload in setting.workloads.items():
        if workload.launches and workload.stream not in setting.streams:
            words = f"{workload.stream!r} is no stream; allowed: {listed(setting.streams)}"
            refuse(("workloads", name, "stream"), words)
        others = [other for other in setting.workloads if other != name]
        for other in workload.waits_on:
            if other not in others:
                words = f"{other!r} is no other workload; allowed: {listed(others)}"
                refuse(("workloads", name, "waits_on"), words)
    _check_requests(setting)
    _check_collectives(setting)
    if all(workload.background for workload in setting.workloads.values()):
        refuse(
            ("workloads",),
            "every one is in the background, so nothing would end the run; set background = false "
            "for at least one",
        )


def _check_requests(setting: ResolvedSetting) -> None:
    """Check that requests name two workloads that launch, each of them theirs alone."""
    taken: dict[str, str] = {}
    for name, spec in setting.workloads.items():
        if not isinstance(spec, RequestsSpec):
            continue
        for part in ("prefill", "decode"):
            place, other = ("workloads", name, part), getattr(spec, part)
            if other not in setting.workloads or not setting.workloads[other].launches:
                launching = [key for key, one in setting.workloads.items() if one.launches]
                allowed = listed(launching, "none (describe one)")
                refuse(place, f"{other!r} is no workload that launches; allowed: {allowed}")
            if other in taken:
                refuse(place, f"{other!r} serves {taken[other]} already: describe another one")
            taken[other] = f"{name!r} as {part}"
            wrong = setting.workloads[other]
            if wrong.background or wrong.rate_hz is not None:
                words = "requests say when it runs: leave out background, arrival and rate_hz"
                refuse(("workloads", other), words)


def _check_collectives(setting: ResolvedSetting) -> None:
    """Check that no two collectives share SMs, on which their order may differ between ranks."""
    places: dict[str, str | None] = {
        name: setting.streams[spec.stream].partition
        for name, spec in setting.workloads.items()
        if isinstance(spec, CollectiveSpec)
    }
    for (other, theirs), (name, mine) in itertools.combinations(places.items(), 2):
        if theirs is None or mine in (None, theirs):
            refuse(
                ("workloads", name, "stream"),
                f"{other!r} is a collective that may use the same SMs: ranks that begin the two in "
                "different orders would wait for each other forever. Give each a partition of its "
                "own",
            )


def _model_at(fields: object, place: Place) -> type[BaseModel]:
    """Return whose key it is that nobody knows."""
    match place:
        case (_,):
            return Experiment
        case ("settings", _, _):
            return Setting
        case ("workloads", name, _) if isinstance(fields, Mapping):
            kind = str(fields["workloads"][name]["kind"]).partition(":")[0]
            return find_kind(kind) or WorkloadSpec
        case _:
            return StreamSpec
