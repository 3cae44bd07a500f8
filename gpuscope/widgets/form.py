"""The dashboard's controls, and the experiment that they describe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, get_args

import ipywidgets as ipw

from gpuscope._text import shown
from gpuscope.device.carve import CarvePlan
from gpuscope.device.device import Device
from gpuscope.errors import GpuscopeError, InvalidExperiment, InvalidPartition
from gpuscope.experiment import Experiment, GemmSpec, WorkloadSpec
from gpuscope.figures.text import clean
from gpuscope.widgets import html

WHOLE_GPU = "whole GPU"
TEMPLATE: dict[str, Any] = {
    "name": "dashboard",
    "seed": 1,
    "partitions": {"small": 16, "load": "rest"},
    "streams": {"small": {"partition": "small"}, "load": {"partition": "load"}},
    "workloads": {
        "small": {
            "kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "small",
            "repeats": 2000, "arrival": "poisson", "rate_hz": 1000,
        },
        "load": {
            "kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "load",
            "background": True, "max_queued": 6,
        },
    },
}  # fmt: skip
"""What the controls start from: ``examples/quickstart.toml`` in one setting."""


def parse_partitions(words: str) -> dict[str, int | str]:
    """Read ``"small: 16, load: rest"``; ``"none"`` or nothing leaves the GPU whole.

    Raises
    ------
    InvalidPartition
        An entry is not ``name: count``, or a name comes twice.
    """
    sizes: dict[str, int | str] = {}
    if words.strip().lower() in ("", "none"):
        return sizes
    for entry in words.split(","):
        name, colon, size = (part.strip() for part in entry.rpartition(":"))
        if not colon or not name or not size:
            raise InvalidPartition(
                f"{entry.strip()!r} is not 'name: count': write them like 'small: 16, load: rest', "
                "or 'none' to leave the GPU whole"
            )
        if name in sizes:
            raise InvalidPartition(f"two partitions are called {name!r}: give each its own name")
        if name == WHOLE_GPU:
            raise InvalidPartition(f"{name!r} means no partition: choose another name")
        try:
            sizes[name] = size if size == "rest" else int(size)
        except ValueError:
            raise InvalidPartition(
                f"partition {name!r}: an SM count is a whole number or 'rest', not "
                f"{clean(size, 40)!r}"
            ) from None
    return sizes


class WorkloadControls:
    """Size, data type and place of one GEMM.

    Attributes
    ----------
    box
        The widgets in a row.
    """

    def __init__(self, name: str, title: str, spec: GemmSpec, partition: str | None) -> None:
        self.name = name
        self.stream = spec.stream
        self._first_choice = partition
        self.size = ipw.BoundedIntText(
            spec.m,
            min=1,
            max=32768,
            description="Size m = n = k",
            style=_wide(),
            layout=_width(210),
        )
        self.dtype = ipw.Dropdown(
            options=get_args(GemmSpec.model_fields["dtype"].annotation), value=spec.dtype,
            description="Data type", style=_wide(), layout=_width(190),
        )  # fmt: skip
        self.place = ipw.Dropdown(
            options=[WHOLE_GPU], description="Stream in", style=_wide(), layout=_width(240)
        )
        label = ipw.HTML(f"<b>{shown(title, 40)}</b>", layout=_width(140))
        self.box = ipw.HBox([label, self.size, self.dtype, self.place], layout=row())

    @property
    def inputs(self) -> list[Any]:
        """What a person can change."""
        return [self.size, self.dtype, self.place]

    def offer_places(self, plan: CarvePlan | None, position: int) -> None:
        """Offer the partitions of a plan; keep the choice if it is still there.

        Where it is not, or where there was nothing to choose from, the partition at
        ``position`` is taken.
        """
        granted = plan.granted() if plan is not None else {}
        options = [(f"{name} ({count} SMs)", name) for name, count in granted.items()]
        options.append((WHOLE_GPU, WHOLE_GPU))
        names = [name for _, name in options]
        had_choice = len(self.place.options) > 1
        choice = self.place.value if had_choice else self._first_choice
        self._first_choice = None
        if choice not in names:
            choice = names[position if granted else 0]
        if tuple(options) != tuple(self.place.options):
            self.place.options = options
        self.place.value = choice

    def describe(self) -> dict[str, Any]:
        """Return the fields of the workload that the controls decide."""
        size = self.size.value
        return {"m": size, "n": size, "k": size, "dtype": self.dtype.value}


class Form:
    """The controls of a :class:`~gpuscope.widgets.dashboard.Dashboard`.

    Parameters
    ----------
    experiment
        What they start from; fields without a control stay as they are there.
    planner
        Returns the device on which a carving is planned.
    changed
        Called by :meth:`check` when it has its answer.
    lock
        Guards the controls: callbacks may run beside the main thread.

    Attributes
    ----------
    partitions, rounding, repeats, small, load
        The controls.
    plan
        What the partitions would be granted, or what is wrong with them, in HTML.
    is_valid
        Whether they can be granted.
    """

    def __init__(
        self,
        experiment: Experiment,
        planner: Callable[[], Device],
        changed: Callable[[], None],
        lock: threading.RLock,
    ) -> None:
        self._planner = planner
        self._changed = changed
        self._lock = lock
        self.is_valid = False
        settings = experiment.resolve()  # the first that carves has the most to show
        setting = next((one for one in settings if one.partitions), settings[-1])
        small, load = _pair(experiment)
        specs = {name: _gemm(setting.workloads[name]) for name in (small, load)}
        self._base = experiment.to_dict()
        self._base["workloads"] = {
            name: spec.model_dump(mode="json") for name, spec in specs.items()
        }
        self._base["streams"] = {
            name: spec.model_dump(mode="json") for name, spec in setting.streams.items()
        }
        sizes = ", ".join(f"{name}: {size}" for name, size in setting.partitions.items())
        self.partitions = ipw.Text(
            sizes or "none", description="Partitions", placeholder="small: 16, load: rest, or none",
            continuous_update=True, style=_wide(), layout=_width(400),
        )  # fmt: skip
        self.rounding = ipw.Dropdown(
            options=["exact", "up", "down"], value=experiment.rounding,
            description="Rounding", style=_wide(), layout=_width(160),
        )  # fmt: skip
        self.plan = ipw.HTML(layout=ipw.Layout(min_height="44px"))
        controls = []
        for (name, spec), what in zip(specs.items(), ("timed", "background"), strict=True):
            place = setting.streams[spec.stream].partition or (WHOLE_GPU if sizes else None)
            controls.append(WorkloadControls(name, f"{name}, {what}", spec, place))
        self.small, self.load = controls
        self.repeats = ipw.BoundedIntText(
            specs[small].repeats, min=1, max=1_000_000, description="Repeats", style=_wide(),
            layout=_width(160),
        )  # fmt: skip
        self.box = ipw.VBox(
            [
                ipw.HBox([self.partitions, self.rounding], layout=row()),
                self.plan,
                self.small.box,
                self.load.box,
            ]
        )
        for control in (self.partitions, self.rounding):
            control.observe(self.check, names="value")

    @property
    def inputs(self) -> list[Any]:
        """What a person can change."""
        return [
            self.partitions, self.rounding, self.repeats, *self.small.inputs, *self.load.inputs
        ]  # fmt: skip

    def check(self, _change: object = None) -> None:
        """Ask the device what it would grant, touching nothing, and show the answer."""
        with self._lock:
            try:
                sizes = parse_partitions(self.partitions.value)
                plan = None
                if sizes:
                    plan = self._planner().plan_carve(sizes, rounding=self.rounding.value)
            except GpuscopeError as error:
                self.plan.value = html.problem(str(error))
                self.is_valid = False
                self._changed()
                return
            for position, workload in ((0, self.small), (-2, self.load)):
                workload.offer_places(plan, position)
            words = "No partitions: both streams share the whole GPU."
            self.plan.value = html.plan(plan) if plan is not None else html.note(words)
            self.is_valid = True
            self._changed()

    def experiment(self) -> Experiment:
        """Return what the controls describe.

        Raises
        ------
        InvalidPartition, InvalidExperiment
            They describe nothing that can be run; says why.
        """
        with self._lock:
            sizes = parse_partitions(self.partitions.value)
            data = {**self._base, "partitions": sizes, "rounding": self.rounding.value}
            data["workloads"] = {name: dict(spec) for name, spec in data["workloads"].items()}
            data["streams"] = {name: dict(spec) for name, spec in data["streams"].items()}
            for workload in (self.small, self.load):
                place = workload.place.value
                data["workloads"][workload.name].update(workload.describe())
                data["streams"][workload.stream]["partition"] = (
                    None if place == WHOLE_GPU else place
                )
            data["workloads"][self.small.name]["repeats"] = self.repeats.value
            label = " | ".join(f"{name} {size}" for name, size in sizes.items())
            data["settings"] = {label or "no partition": {}}
        return Experiment.from_dict(data)


def _pair(experiment: Experiment) -> tuple[str, str]:
    """Return the names of the timed and of the background workload."""
    gemms = {
        name: spec
        for name, spec in experiment.workloads.items()
        if isinstance(spec, GemmSpec) and spec.m == spec.n == spec.k
    }
    timed = [name for name, spec in gemms.items() if not spec.background]
    queued = [name for name, spec in gemms.items() if spec.background]
    if len(experiment.workloads) != 2 or len(timed) != 1 or len(queued) != 1:
        raise InvalidExperiment(
            f"the dashboard drives one GEMM in the foreground and one in the background, each with "
            f"m = n = k, but experiment {experiment.name!r} has other workloads "
            f"({', '.join(map(repr, experiment.workloads))}): run it with gpuscope.run()"
        )
    return timed[0], queued[0]


def _gemm(spec: WorkloadSpec) -> GemmSpec:
    assert isinstance(spec, GemmSpec)  # noqa: S101 - _pair() chose among these only
    return spec


def _wide() -> dict[str, str]:
    return {"description_width": "initial"}


def _width(px: int) -> Any:
    return ipw.Layout(width=f"{px}px")


def row() -> Any:
    """Return the layout of controls side by side, on as many lines as they need."""
    return ipw.Layout(flex_flow="row wrap", align_items="center", grid_gap="2px 14px")
