"""What declares a workload kind: the fields of its specs, and how they become a handle."""

from __future__ import annotations

import inspect
import json
import random
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

if TYPE_CHECKING:  # describing work loads no NumPy
    from gpuscope.device.device import Device
    from gpuscope.workloads.handle import Handle


RARE: dict[str, JsonValue] = {"rare": True}
"""Of a field that the dashboard shows behind all others."""
_TYPES: Mapping[object, Literal["flag", "text", "several"]] = {
    bool: "flag", str: "text", list[str]: "several"
}  # fmt: skip
"""Type → the control for it."""
_LEAST_HZ = 1e-6


class Model(BaseModel):
    """A frozen part of an experiment that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ExtendedModel(Model):
    """Omits fields that were added later from its description while they have their default.

    What an older version recorded can then be compared with, and resumed by, this one.
    """

    _later: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        described: dict[str, object] = handler(self)
        for name in self._later:
            if has_default(self, name):
                described.pop(name, None)
        return described


def has_default(model: BaseModel, name: str) -> bool:
    """Whether a field of a model has its default value."""
    default = type(model).model_fields[name].get_default(call_default_factory=True)
    return bool(getattr(model, name) == default)


@dataclass(frozen=True)
class KindField:
    """A field of a workload or a stream, as the dashboard, the command line and the docs show it.

    Attributes
    ----------
    start
        What the dashboard starts from.
    choices
        The only values that it takes; empty where there are others.
    labels
        What the dashboard calls the choices, if not by themselves.
    type
        Of its control on the dashboard.
    rare
        Whether the dashboard shows it behind all others.
    """

    name: str
    label: str
    start: object
    required: bool
    choices: tuple[str | bool, ...] = ()
    labels: tuple[str, ...] = ()
    type: Literal["choice", "flag", "text", "several", "number"] = "number"
    hint: str = ""
    rare: bool = False

    @classmethod
    def of(cls, name: str, info: FieldInfo) -> KindField:
        """Read what a model says of its field."""
        extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
        unit = f" ({extra['unit']})" if "unit" in extra else ""
        required = info.is_required()
        default = info.get_default(call_default_factory=True)
        choices: tuple[str | bool, ...] = ()
        if get_origin(info.annotation) is Literal:
            choices = get_args(info.annotation)
        elif "labels" in extra:
            choices = (bool(default), not default)
        labels = extra.get("labels")
        return cls(
            name=name,
            label=f"{info.title or name}{unit}",
            start=next(iter(info.examples or [""])) if required else default,
            required=required,
            choices=choices,
            labels=tuple(map(str, labels)) if isinstance(labels, list) else (),
            type="choice" if choices else _TYPES.get(info.annotation, "number"),
            hint=info.description or "",
            rare=bool(extra.get("rare", False)),
        )

    @property
    def options(self) -> dict[str | bool, str]:
        """Choice → what the dashboard calls it."""
        return dict(zip(self.choices, self.labels or map(str, self.choices), strict=True))

    @property
    def text(self) -> str:
        """Return its name, and its default if it has one, as in TOML."""
        if self.required or isinstance(self.start, list | dict):
            return self.name
        return f"{self.name} = {json.dumps(self.start)}"


class WorkloadSpec(ExtendedModel):
    """A workload of an experiment. A subclass declares a kind of workload.

    A subclass has ``kind: Literal["name"]``, the fields of its own, and :meth:`make`. Its
    docstring's first sentence describes the kind in the docs and in ``gpuscope kinds``. Of a
    field, ``Field(title=…)`` is its label on the dashboard, ``description`` its tooltip,
    ``examples=[…]`` begins with its starting value there, and ``json_schema_extra={"unit": …}``
    is its unit, ``{"labels": […]}`` what its choices are called, the default first of a flag's.
    A package makes a kind known by an entry point of the group
    ``gpuscope.workloads``: the kind's name = the subclass.

    Attributes
    ----------
    kind
        The name of the kind.
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

    Examples
    --------
    >>> from typing import Literal
    >>> from gpuscope.workloads.spec import WorkloadSpec
    >>> from gpuscope.workloads.spin import Spin
    >>> class NapSpec(WorkloadSpec):
    ...     '''A kernel that holds one SM for a millisecond.'''
    ...     kind: Literal["nap"]
    ...     def make(self, device, *, name, seed):
    ...         return Spin(device, duration_ns=1_000_000, name=name)
    >>> NapSpec.kind_name(), NapSpec.kind_summary()
    ('nap', 'A kernel that holds one SM for a millisecond.')
    """

    _later: ClassVar[tuple[str, ...]] = ("guard", "waits_on")
    launches: ClassVar[bool] = True
    """Whether it has a handle and a stream of its own."""

    stream: str = Field(title="Stream")
    repeats: PositiveInt = Field(100, title="Repeats")
    warmup: NonNegativeInt = Field(
        3, title="Warm-up", description="Calls before anything is recorded"
    )
    background: bool = Field(
        default=False,
        title="Runs",
        description="In the background: as long as the timed ones do",
        json_schema_extra={"labels": ["timed calls", "in the background"]},
    )
    max_queued: int = Field(
        1,
        ge=1,
        le=64,
        title="Queued at most",
        description="Calls in flight; 1 waits for each, which measures latency",
    )
    rate_hz: PositiveFloat | None = Field(None, title="Rate", json_schema_extra={"unit": "1/s"})
    arrival: Literal["back_to_back", "fixed", "poisson"] = Field(
        "back_to_back",
        title="Arrivals",
        json_schema_extra={"labels": ["back to back", "at a fixed rate", "at random (Poisson)"]},
    )
    waits_on: list[str] = Field(
        default_factory=list,
        title="Waits on",
        description="Before each call, its stream waits for their latest call",
    )
    guard: bool = Field(
        default=True,
        title="Guard",
        description="Off: nothing sends it to its stream, so it goes to the legacy default stream",
        json_schema_extra={"labels": ["on", "off: it escapes"]},
    )
    kind: str

    @model_validator(mode="after")
    def _arrival_has_rate(self) -> Self:
        if (self.arrival == "back_to_back") != (self.rate_hz is None):
            raise ValueError(
                "rate_hz goes with arrival = 'fixed' or 'poisson', and only with these"
            )
        if self.rate_hz is not None and self.rate_hz < _LEAST_HZ:
            raise ValueError(f"rate_hz is at least {_LEAST_HZ}: a call in eleven days")
        if self.background and self.rate_hz is not None:
            raise ValueError("a background workload runs back to back: leave rate_hz out")
        return self

    def interval_ns(self, rng: random.Random, number: int) -> int:
        """Return the time from the arrival of the call before to that of call ``number``."""
        del number
        if self.rate_hz is None:
            return 0
        poisson = self.arrival == "poisson"
        return round(1e9 * (rng.expovariate(self.rate_hz) if poisson else 1 / self.rate_hz))

    @abstractmethod
    def make(self, device: Device, *, name: str, seed: int) -> Handle:
        """Make the handle that it describes.

        Parameters
        ----------
        name
            The workload's name, which is to be the handle's.
        seed
            Of the handle's operands.
        """

    @classmethod
    def kind_name(cls) -> str:
        """Return the name of the kind."""
        match get_args(cls.model_fields["kind"].annotation):
            case (str(name),):
                return name
        raise TypeError(f"{cls.__name__} needs a field kind: Literal['…'], its one name")

    @classmethod
    def kind_spelling(cls) -> str:
        """Return what stands after ``kind =`` in an experiment."""
        return cls.kind_name()

    @classmethod
    def kind_label(cls) -> str:
        """Return what the dashboard calls the kind."""
        return cls.kind_name().replace("_", " ")

    @classmethod
    def kind_summary(cls) -> str:
        """Return one sentence on the kind."""
        summary = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0]
        return " ".join(summary.split()).replace("``", "")

    @classmethod
    def kind_fields(cls) -> list[KindField]:
        """Return the fields that workloads of other kinds need not have."""
        return [
            KindField.of(name, info)
            for name, info in cls.model_fields.items()
            if name not in WorkloadSpec.model_fields
        ]
