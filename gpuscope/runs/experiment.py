"""Experiment: the validated description of a run, from TOML, JSON or Python."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticSerializationError

from gpuscope._checks import given
from gpuscope._text import clean
from gpuscope.errors import GpuscopeError, InvalidExperiment


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Extended(_Model):
    """Has fields that came later: where they say nothing, descriptions are as they were before.

    So what was recorded with an older version can be compared, and resumed, with this one.
    """

    _later: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        described: dict[str, Any] = handler(self)
        for name in self._later:
            if getattr(self, name) == type(self).model_fields[name].get_default(
                call_default_factory=True
            ):
                described.pop(name, None)
        return described


class StreamSpec(_Extended):
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


class Workload(_Extended):
    """What workloads of every kind have; :class:`GemmSpec` says what it means."""

    _later = ("guard", "waits_on")

    stream: str
    repeats: PositiveInt = 100
    warmup: NonNegativeInt = 3
    background: bool = False
    max_queued: Annotated[int, Field(ge=1, le=64)] = 1
    rate_hz: PositiveFloat | None = None
    arrival: Literal["back_to_back", "fixed", "poisson"] = "back_to_back"
    waits_on: list[str] = Field(default_factory=list)
    guard: bool = True

    @model_validator(mode="after")
    def _arrival_has_rate(self) -> Self:
        if (self.arrival == "back_to_back") != (self.rate_hz is None):
            raise ValueError(
                "rate_hz goes with arrival = 'fixed' or 'poisson', and only with these"
            )
        if self.background and self.rate_hz is not None:
            raise ValueError("a background workload runs back to back: leave rate_hz out")
        return self


class GemmSpec(Workload):
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
    waits_on
        Workloads: before each call, its stream waits for the call of each of them that was
        launched last.
    guard
        False leaves out what makes the work go to its stream: as with a library that was
        never told, it goes to CUDA's legacy default stream, which is in no partition. It
        still counts as given to its stream, so confinement shows the escape.
    """

    kind: Literal["gemm"]
    m: PositiveInt
    n: PositiveInt
    k: PositiveInt
    dtype: Literal["float16", "bfloat16", "float32", "float64"] = "float16"
    sm_count_target: Literal["auto", "off"] | PositiveInt = "auto"


class CopySpec(Workload):
    """An element-wise copy kernel over ``nbytes``, read and written."""

    kind: Literal["copy"]
    nbytes: PositiveInt


class TracedGemmSpec(Workload):
    """A float16 product by a kernel that tells when and where its thread blocks ran."""

    kind: Literal["traced_gemm"]
    m: PositiveInt
    n: PositiveInt
    k: PositiveInt


class TracedCopySpec(Workload):
    """A copy of ``nbytes`` by a kernel that tells when and where its thread blocks ran."""

    kind: Literal["traced_copy"]
    nbytes: PositiveInt


class SpinSpec(Workload):
    """A kernel of ``blocks`` thread blocks that spin for ``duration_us``."""

    kind: Literal["spin"]
    duration_us: Annotated[float, Field(gt=0, le=10_000_000)]
    blocks: PositiveInt = 1


class PythonSpec(Workload):
    """A function of the user's, made a workload with ``@gpuscope.workloads.workload``.

    Attributes
    ----------
    kind
        ``"python:package.module:function"``; imported when the experiment is run, never
        when it is loaded or shown.
    args
        Keyword arguments of every call.
    """

    kind: str
    args: dict[str, StrictBool | StrictInt | float | StrictStr] = Field(default_factory=dict)

    @field_validator("kind")
    @classmethod
    def _kind_names_a_function(cls, kind: str) -> str:
        _, *names = kind.split(":")
        parts = [part for name in names for part in name.split(".")]
        if len(names) != 2 or not all(map(str.isidentifier, parts)):
            raise ValueError(f"should be {_PYTHON!r}, but found {kind!r}")
        return kind

    @field_validator("args")
    @classmethod
    def _args_are_arguments(cls, args: dict[str, Any]) -> dict[str, Any]:
        for name in args:
            if not name.isidentifier() or name == "stream":
                raise ValueError(
                    f"{name!r} is no argument's name: it takes letters, digits and _, and the "
                    "stream is the workload's own field"
                )
        return args

    @property
    def module(self) -> str:
        """Name of the module."""
        return self.kind.split(":")[1]

    @property
    def function(self) -> str:
        """Name of the function in it."""
        return self.kind.split(":")[2]


_PYTHON = "python:package.module:function"


def _kind_of(value: Any) -> str | None:
    """Return which kind of workload a table describes; ``None`` if it does not say."""
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    if isinstance(kind, str) and kind.partition(":")[0] == "python":
        return "python"
    return None if kind is None else str(kind)


WorkloadSpec = Annotated[
    Annotated[GemmSpec, Tag("gemm")]
    | Annotated[CopySpec, Tag("copy")]
    | Annotated[SpinSpec, Tag("spin")]
    | Annotated[TracedGemmSpec, Tag("traced_gemm")]
    | Annotated[TracedCopySpec, Tag("traced_copy")]
    | Annotated[PythonSpec, Tag("python")],
    Discriminator(_kind_of),
]
Size = PositiveInt | Literal["rest"]
Color = Annotated[str, Field(pattern=r"^#[0-9A-Fa-f]{6}$")]


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


class Experiment(_Extended):
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
        A background workload runs alone for at least as long as it ran with the others.
    rounding
        What to do with a count that the GPU cannot give.
    seed
        Of operands and arrivals.
    colors
        Partition → its colour in pictures, as ``"#RRGGBB"``; the others have one by their place.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.runs.Experiment.from_dict({
    ...     "name": "one", "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "gemm", "m": 64, "n": 64, "k": 64, "stream": "s"}},
    ... }).name
    'one'
    """

    _later = ("colors",)

    name: str
    seed: NonNegativeInt = 0
    rounds: Annotated[int, Field(ge=1, le=1000)] = 1
    alone_repeats: NonNegativeInt = 20
    rounding: Literal["exact", "up", "down", "nearest"] = "exact"
    partitions: dict[str, Size] = Field(default_factory=dict)
    streams: Annotated[dict[str, StreamSpec], Field(min_length=1)]
    workloads: Annotated[dict[str, WorkloadSpec], Field(min_length=1)]
    settings: dict[str, Setting] = Field(default_factory=dict)
    colors: dict[str, Color] = Field(default_factory=dict)

    def __init__(self, **fields: Any) -> None:
        _check_plain(fields)
        try:
            super().__init__(**fields)
        except ValidationError as error:
            problems = _problems(error)
            raise InvalidExperiment(_explain(problems), problems) from None
        _check_texts(self)
        for setting in self.resolve():
            _check_names(self, setting)
        carved = {name for setting in self.resolve() for name in setting.partitions}
        for name in self.colors:
            if name not in carved:
                _refuse(("colors", name), f"no setting carves a partition {name!r}")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Experiment:
        """Validate a description.

        Raises
        ------
        InvalidExperiment
            Names the path of every field that is wrong, and what is allowed there.
        """
        if not isinstance(data, Mapping):
            raise InvalidExperiment(
                f"an experiment is a dict of fields, not {type(data).__name__}: it needs "
                "'name', 'streams' and 'workloads'"
            )
        unknown = [key for key in data if not isinstance(key, str)]
        if unknown:
            raise InvalidExperiment(f"{unknown[0]!r}: unknown key; allowed: {_keys(cls)}")
        return cls(**data)

    @classmethod
    def from_toml(cls, text: str) -> Experiment:
        """Read a TOML text.

        Raises
        ------
        InvalidExperiment
            It is not TOML, or does not validate.
        """
        try:
            return cls.from_dict(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise InvalidExperiment(f"this is not TOML: {error}") from error

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
        except (OSError, ValueError) as error:
            why = str((isinstance(error, OSError) and error.strerror) or error)
            if isinstance(error, UnicodeDecodeError):
                why = f"it is not UTF-8 text ({error})"
            raise GpuscopeError(
                f"cannot read experiment {source.name!r}: {why}. Check the path, or save it as "
                "UTF-8"
            ) from error
        try:
            _check_size(source.name, text)
            data = json.loads(text) if source.suffix == ".json" else tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            if isinstance(error, InvalidExperiment):
                raise
            form = "JSON" if source.suffix == ".json" else "TOML"
            raise InvalidExperiment(f"{source.name!r} is not {form}: {error}") from error
        if not isinstance(data, dict):
            raise InvalidExperiment(f"{source.name!r} holds no table of fields")
        return cls.from_dict(data)

    def to_dict(self) -> dict[str, Any]:
        """Return a description that :meth:`from_dict` takes back."""
        try:
            return self.model_dump(mode="json")
        except PydanticSerializationError as error:
            if "KeyboardInterrupt" in str(error):  # pydantic keeps no more of an interrupt
                raise KeyboardInterrupt from error
            raise

    def to_toml(self) -> str:
        """Return a TOML text that :meth:`from_toml` takes back, without fields at their default."""
        import tomli_w  # noqa: PLC0415 - only saving needs it

        return tomli_w.dumps(self.model_dump(mode="json", exclude_defaults=True))

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


def _refuse(place: tuple[str, ...], words: str) -> NoReturn:
    where = ".".join(place) or "the experiment"
    raise InvalidExperiment(clean(f"{where}: {words}"), {place: words})


_LONGEST = 1 << 20
_MOST_DOTS = 1000
_DEEPEST = 20
_LARGEST = (1 << 63) - 1
_LARGEST_ARG = 10**300
"""Of an argument of a function of the user's."""


def _check_size(name: str, text: str) -> None:
    """Refuse what takes a parser minutes: tomllib looks at a key's parts over and over."""
    dots = max((line.count(".") for line in text.splitlines()), default=0)
    if len(text) > _LONGEST or dots > _MOST_DOTS:
        raise InvalidExperiment(
            f"{name!r} is no experiment: {len(text):,} characters, and {dots:,} dots on one line, "
            f"where {_LONGEST:,} and {_MOST_DOTS:,} are more than enough"
        )


def _check_plain(fields: Mapping[str, Any]) -> None:
    """Refuse texts and numbers that no file and no column can hold, wherever they stand.

    Before anything else looks at them: libraries fail in ways of their own.
    """
    todo: list[tuple[tuple[str, ...], Any]] = [((), fields)]
    while todo:
        place, value = todo.pop()
        if len(place) > _DEEPEST:
            _refuse(place[:3], f"is nested more than {_DEEPEST} deep, as no experiment is")
        if isinstance(value, str):
            if not _is_unicode(value):
                _refuse(place, f"{value!r} is not valid Unicode")
        elif isinstance(value, int):
            largest = _LARGEST_ARG if "args" in place else _LARGEST
            if not -largest <= value <= largest:
                _refuse(place, f"should be {largest:.0e} at most, without its sign")
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                todo.append((place, key))
                todo.append(((*place, key if isinstance(key, str) else "?"), inner))
        elif isinstance(value, list | tuple):
            todo += [((*place, str(index)), inner) for index, inner in enumerate(value)]


def _is_unicode(text: str) -> bool:
    return text == text.encode("utf-8", "replace").decode()


def _check_texts(experiment: Experiment) -> None:
    """Check that every name is one."""
    named: dict[tuple[str, ...], Iterable[str]] = {
        ("name",): [experiment.name],
        ("partitions",): experiment.partitions,
        ("streams",): experiment.streams,
        ("workloads",): experiment.workloads,
        ("settings",): experiment.settings,
        **{("settings", key, "partitions"): one.partitions or () for key, one in
           experiment.settings.items()},
    }  # fmt: skip
    for place, names in named.items():
        for name in names:
            if not name:
                _refuse(place, f"{name!r} is no name: it takes at least one character")


def _check_names(experiment: Experiment, setting: ResolvedSetting) -> None:
    """Check that streams name partitions, and workloads streams and workloads, that are there."""
    named = experiment.settings.get(setting.name)
    for name, stream in setting.streams.items():
        if stream.partition is not None and stream.partition not in setting.partitions:
            here = ("settings", setting.name) if named and name in named.streams else ()
            allowed = (
                ", ".join(map(repr, setting.partitions)) or "none (this setting carves nothing)"
            )
            _refuse(
                (*here, "streams", name, "partition"),
                f"{stream.partition!r} is no partition of setting {setting.name!r}; allowed: "
                f"{allowed}",
            )
    if named is not None:
        for name in named.streams:
            if name not in experiment.streams:
                _refuse(
                    ("settings", setting.name, "streams", name),
                    "no such stream; allowed: " + ", ".join(map(repr, experiment.streams)),
                )
    for name, workload in setting.workloads.items():
        if workload.stream not in setting.streams:
            _refuse(
                ("workloads", name, "stream"),
                f"{workload.stream!r} is no stream; allowed: "
                + ", ".join(map(repr, setting.streams)),
            )
        others = [other for other in setting.workloads if other != name]
        for other in workload.waits_on:
            if other not in others:
                _refuse(
                    ("workloads", name, "waits_on"),
                    f"{other!r} is no other workload; allowed: "
                    + (", ".join(map(repr, others)) or "none"),
                )
    if all(workload.background for workload in setting.workloads.values()):
        _refuse(
            ("workloads",),
            "every one is in the background, so nothing would end the run; set background = false "
            "for at least one",
        )


KINDS: dict[str, type[Workload]] = {
    "gemm": GemmSpec,
    "copy": CopySpec,
    "spin": SpinSpec,
    "traced_gemm": TracedGemmSpec,
    "traced_copy": TracedCopySpec,
    "python": PythonSpec,
}


_ALL_KINDS = ", ".join(repr(_PYTHON if kind == "python" else kind) for kind in KINDS)


def _keys(model: type[BaseModel]) -> str:
    return ", ".join(map(repr, model.model_fields))


def _problems(error: ValidationError) -> dict[tuple[str, ...], str]:
    """Say of each field that is wrong what is allowed, and what was found."""
    texts: dict[tuple[str, ...], list[str]] = {}
    found: dict[tuple[str, ...], str] = {}
    for one in error.errors():
        value = one.get("input")
        if one["type"].startswith("union_tag") and not isinstance(value, Mapping):
            one["type"] = "model_type"  # no table at all, rather than one of no kind
        place, allowed = _problem(one)
        said = texts.setdefault(place, [])
        if allowed not in said:
            said.append(allowed)
        simple = one["type"] not in _WITHOUT_INPUT and not isinstance(value, Mapping | list | tuple)
        found[place] = f", but found {given(value)}" if simple else ""
    return {
        place: " or ".join(said).replace(" or should be ", " or ") + found[place]
        for place, said in texts.items()
    }


def _explain(problems: Mapping[tuple[str, ...], str]) -> str:
    return "the experiment does not validate:\n" + "\n".join(
        clean(f"  {'.'.join(place)}: {words}") for place, words in problems.items()
    )


_TABLE, _WHOLE, _BOOL = ("should be " + w for w in ("a table", "a whole number", "true or false"))
_NEEDS = {
    "dict_type": _TABLE, "model_type": _TABLE, "model_attributes_type": _TABLE,
    "int_type": _WHOLE, "int_parsing": _WHOLE, "int_from_float": _WHOLE,
    "bool_type": _BOOL, "bool_parsing": _BOOL,
    "string_type": "should be a text", "string_pattern_mismatch": "should be '#RRGGBB'",
    "list_type": "should be a list of names",
    "arg_type": "should be a text, a finite number, true or false",
}  # fmt: skip
_WITHOUT_INPUT = ("extra_forbidden", "missing", "union_tag_not_found", "union_tag_invalid",
                  "value_error", "too_short")  # fmt: skip


def _problem(error: ErrorDetails) -> tuple[tuple[str, ...], str]:
    """Return the path of the field that is wrong, and what it should be."""
    place = [str(part) for part in error["loc"]]
    # pydantic puts into the path which kind of workload, or which of several types, it tried
    model: type[BaseModel] | None = (
        KINDS.get(place.pop(2)) if place[0] == "workloads" and len(place) > 2 else None
    )
    kind = error["type"]
    if place[0] == "partitions":
        del place[2:]
    elif place[2:3] == ["partitions"]:
        del place[4:]
    elif place[2:3] == ["sm_count_target"]:
        del place[3:]
    elif model is PythonSpec and place[2:3] == ["args"] and len(place) > 3:
        del place[4:]
        kind = "arg_type"
    if kind.startswith("union_tag"):
        place.append("kind")
        tag = error.get("ctx", {}).get("tag")
        lacks = "missing" if tag is None else f"{tag!r} is no kind of workload"
        return tuple(place), f"{lacks}; allowed: {_ALL_KINDS}"
    path = tuple(place)
    if kind == "extra_forbidden":
        if len(place) == 1:
            model = Experiment
        elif place[0] == "settings":
            model = Setting if len(place) == 3 else StreamSpec
        return path, f"unknown key; allowed: {_keys(model or StreamSpec)}"
    if kind == "missing":
        return path, "missing; this field is required"
    if kind == "too_short":
        return path, "at least one is needed"
    if kind == "value_error":
        return path, error["msg"].removeprefix("Value error, ")
    return path, _NEEDS.get(kind) or error["msg"].removeprefix("Input ")
