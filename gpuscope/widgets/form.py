"""The dashboard's controls, and the experiment that they describe."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuscope.device.carve import CarvePlan
from gpuscope.device.device import Device
from gpuscope.errors import GpuscopeError, InvalidExperiment, InvalidPartition
from gpuscope.experiments.experiment import Experiment, fields_of
from gpuscope.experiments.setting import ResolvedSetting
from gpuscope.timeline.style import colours_of
from gpuscope.timeline.text import clean
from gpuscope.widgets.carver import PartitionCarver
from gpuscope.widgets.presets import TEMPLATE
from gpuscope.widgets.proposal import NAME_LIMIT
from gpuscope.widgets.runbar import EndEstimate
from gpuscope.widgets.table import Values
from gpuscope.widgets.tables import WHOLE_GPU, StreamTable, WorkloadTable


def experiment_of(given: Experiment | Mapping[str, object] | str | Path | None) -> Experiment:
    """Return an experiment in any form that ``gpuscope.run`` takes; the template for nothing.

    Raises
    ------
    InvalidExperiment, GpuscopeError
        It is invalid or cannot be read.
    """
    if isinstance(given, Experiment):
        return given
    if isinstance(given, str | Path):
        return Experiment.from_file(given)
    return Experiment.from_dict(TEMPLATE if given is None else given)


class _Planner(PartitionCarver):
    """A carver for a run that carves by itself: Apply touches no device."""

    def __init__(self, target: Callable[[], Device], lock: threading.RLock) -> None:
        self._target_of = target
        super().__init__(sizes={}, lock=lock)

    def _target(self) -> Device:
        return self._target_of()

    def _adopt(self, sizes: Mapping[str, int | str]) -> None:
        del sizes


class Form:
    """The controls of a :class:`~gpuscope.widgets.dashboard.Dashboard`.

    Parameters
    ----------
    experiment
        What they start from; fields without a control stay as they are there.
    target
        Returns the device on which a carving is planned.
    changed
        Called when something was changed and checked.
    say
        Called with what followed from a change, in words.
    lock
        Guards the controls: callbacks may run beside the main thread.

    Attributes
    ----------
    carver, streams, workloads
        The controls.
    problem
        What is wrong and shown by none of them; or empty.
    """

    def __init__(
        self,
        experiment: Experiment,
        target: Callable[[], Device],
        changed: Callable[[], None],
        say: Callable[[str], None],
        lock: threading.RLock,
    ) -> None:
        self._target = target
        self._changed = changed
        self._say = say
        self._lock = lock
        self._loading = True
        self._base: Values = {}
        self._lasts_s: float | None = None
        self.problem = ""
        self.carver = _Planner(target, lock)
        self.streams = StreamTable({}, lock=lock)
        self.workloads = WorkloadTable({}, (), lock=lock)
        self.streams.follow(self._streams_changed)
        self.workloads.follow(lambda _renamed: self._check())
        self.carver.heading = "Partitions"
        self.streams.heading = "Streams"
        self.workloads.heading = "Workloads"
        self.carver.observe(self._carved, names="sizes")
        self.carver.observe(self._proposed, names=["rows", "error", "pending"])
        self.load(experiment)

    @property
    def controls(self) -> list[PartitionCarver | StreamTable | WorkloadTable]:
        """The widgets, in the order in which a person needs them."""
        return [self.carver, self.streams, self.workloads]

    @property
    def is_valid(self) -> bool:
        """Whether they describe something that can be run."""
        return not self.problem and all(control.is_valid for control in self.controls)

    def load(self, experiment: Experiment) -> None:
        """Show another experiment; of several settings the first that carves, else the last."""
        settings = experiment.resolve()
        setting = next((setting for setting in settings if setting.partitions), settings[-1])
        base = experiment.to_dict()
        for part in ("partitions", "streams", "workloads", "settings", "colors"):
            base.pop(part, None)
        with self._lock:
            self._loading = True
            self._base = base
            sizes = self._granted(setting)
            self.carver.set_sizes(sizes, colors=experiment.colors)
            self.streams.partitions = list(setting.partitions)
            self.streams.describe(setting.streams)
            self.workloads.streams = list(setting.streams)
            self.workloads.describe(setting.workloads)
            self._loading = False
            self._check()

    def mend(self, code: str) -> None:
        """Change what a line of TOML says, such as ``workloads.small.guard = true``.

        Raises
        ------
        InvalidExperiment
            That is no experiment any more.
        """
        with self._lock:
            self.load(Experiment.from_dict(_merged(self.described(), fields_of(code))))

    def _granted(self, setting: ResolvedSetting) -> Mapping[str, int | str]:
        """Return counts rounded as the setting says; those that cannot be had as they are."""
        sizes = setting.partitions
        if not sizes or setting.rounding == "exact":
            return sizes
        try:
            granted = self._target().plan_carve(sizes, rounding=setting.rounding).granted()
        except GpuscopeError:
            return sizes
        return {name: "rest" if size == "rest" else granted[name] for name, size in sizes.items()}

    @property
    def carving(self) -> str:
        """The carving that is proposed and not applied, in words; empty if there is none."""
        if not self.carver.pending or not self.carver.is_valid:
            return ""
        granted = ", ".join(f"{name} {count}" for name, count in self.carver.proposal.items())
        return granted or "no partition"

    def experiment(self) -> Experiment:
        """Return what the controls describe.

        Raises
        ------
        InvalidPartition, InvalidExperiment
            They describe nothing that can be run, or a carving is not applied; says why.
        """
        with self._lock:
            _ = self.carver.proposal  # raises where it cannot be granted
            if self.carving:
                raise InvalidPartition(
                    f"the carving is not applied: it would grant {self.carving}. Apply or revert it"
                )
            problems = [self.problem, self.streams.said, self.workloads.said]
            if any(problems):
                raise InvalidExperiment("\n".join(filter(None, problems)))
            return Experiment.from_dict(self.described())

    @property
    def plans(self) -> tuple[dict[str, str], float | None, Experiment | None]:
        """Workload → what it is, in words; how long a run lasts in s, if known; what would run."""
        words = {row["values"]["name"]: row["line"] for row in self.workloads.rows}
        is_ready = self.is_valid and not self.carving
        return words, self._lasts_s, self.experiment() if is_ready else None

    def plan(self) -> CarvePlan | None:
        """Return the plan of what was applied; ``None`` where nothing is carved."""
        sizes = self.carver.sizes
        return self._target().plan_carve(sizes) if sizes else None

    def described(self) -> Values:
        """Return the experiment as a dict, whether or not it validates."""
        sizes = dict(self.carver.sizes)
        label = " | ".join(f"{name} {size}" for name, size in sizes.items())
        return {
            **self._base,
            "partitions": sizes,
            "streams": self.streams.described,
            "workloads": self.workloads.described,
            "settings": {label or "no partition": {}},
            "colors": {
                name: color
                for name, color in self.carver.colors.items()
                if color != colours_of(self.carver.colors)[name]
            },
        }

    @property
    def toml(self) -> str:
        """The experiment as TOML, or a comment that says why there is none."""
        try:
            return Experiment.from_dict(self.described()).to_toml()
        except GpuscopeError as error:
            return f"# {error}"

    # -- one thing follows another -------------------------------------------------------
    def _carved(self, change: Mapping[str, Mapping[str, object]]) -> None:
        """Let streams follow partitions that were renamed; without theirs, they are on all SMs."""
        if self._loading:
            return
        with self._lock:
            renamed = self.carver.renamed
            gone = change["old"].keys() - change["new"].keys() - renamed.keys()
            freed = [
                name
                for name, stream in self.streams.described.items()
                if stream["partition"] in gone
            ]
            self.streams.rename("partition", {**renamed, **dict.fromkeys(gone, WHOLE_GPU)})
            self.streams.partitions = list(self.carver.sizes)
            if freed:
                names = ", ".join(clean(name, NAME_LIMIT) for name in freed)
                self._say(f"On the whole GPU now, their partitions are gone: streams {names}.")

    def _proposed(self, _change: object) -> None:
        """Let streams choose from what is proposed, too: it is there after Apply."""
        if self._loading:
            return
        with self._lock:
            if self.streams.partitions != self._homes:
                self.streams.partitions = self._homes
        self._tell()

    @property
    def _homes(self) -> list[str]:
        """Names of the partitions that there are, and of those that Apply would make."""
        proposed = (row["name"] for row in self.carver.rows if not row["name_error"])
        return list(dict.fromkeys([*self.carver.sizes, *proposed]))

    def _streams_changed(self, renamed: dict[str, str]) -> None:
        if self._loading:
            return
        with self._lock:
            self.workloads.rename("stream", renamed)
            self.workloads.streams = self.streams.names

    def _check(self) -> None:
        """Judge everything as an experiment would, and say what is wrong where it is."""
        if self._loading:
            return
        with self._lock:
            problems: Mapping[tuple[str, ...], str] = {}
            self.problem, self._lasts_s = "", None
            try:
                described = self.described()
                described["partitions"] = dict.fromkeys(self._homes, 1) | described["partitions"]
                experiment = Experiment.from_dict(described)
                self._lasts_s = EndEstimate(experiment, time.monotonic).planned_s
            except InvalidExperiment as error:
                problems = error.problems
                shown = ("streams", "workloads")
                elsewhere = [words for path, words in problems.items() if path[0] not in shown]
                self.problem = "\n".join(elsewhere) or ("" if problems else str(error))
            self.streams.show(problems)
            self.workloads.show(problems)
            self._tell()

    def _tell(self) -> None:
        if not self._loading:
            self._changed()


def _merged(described: Values, changed: Values) -> Values:
    """Return a nested dict with what another one of some of its keys says."""
    return described | {
        key: _merged(described.get(key, {}), value) if isinstance(value, dict) else value
        for key, value in changed.items()
    }
