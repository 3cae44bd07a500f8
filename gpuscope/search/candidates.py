"""The settings of all points of a grid, each once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuscope._columns import heading
from gpuscope.device.carve import SmLayout, plan_carve
from gpuscope.device.device import Device
from gpuscope.errors import InvalidPartition
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.setting import ResolvedSetting
from gpuscope.search.grid import Point, Value, at, points_of
from gpuscope.workloads.requests import RequestsSpec


@dataclass(frozen=True)
class Candidate:
    """One setting of the grid.

    Attributes
    ----------
    indices
        Its values' places in the parameters; ``None`` if these change nothing of it.
    homes
        Workload → the partition that it runs on; ``None`` for the whole GPU.
    """

    label: str
    point: Point
    setting: str
    experiment: Experiment
    sizes: Mapping[str, int]
    indices: tuple[int, ...] | None
    homes: Mapping[str, str | None]
    error: str = ""

    def sms_for(self, workloads: Iterable[str], sm_count: int) -> int:
        """Return how many SMs workloads have together; those of requests are their decode's."""
        homes = {self.homes[name] for name in workloads}
        return sm_count if None in homes else sum(self.sizes[home] for home in homes if home)


def candidates_of(
    experiment: Experiment, parameters: Mapping[str, tuple[Value, ...]], device: Device
) -> tuple[list[Candidate], list[int]]:
    """Return the settings of a grid, each once, and which of them are the reference."""
    points = points_of(parameters)
    met: dict[str, set[str]] = {}
    candidates: dict[str, Candidate] = {}
    for point in points:
        changed = at(experiment, point)
        label = ", ".join(f"{heading(path)} = {value}" for path, value in point.items())
        indices = tuple(parameters[path].index(value) for path, value in point.items())
        for setting in changed.resolve():
            key = setting.model_dump_json(exclude={"name"})
            met.setdefault(key, set()).add(label)
            if key not in candidates:
                sizes, error = _sizes(setting, device.layout)
                candidates[key] = Candidate(
                    label, point, setting.name, changed, sizes, indices, _homes(setting), error
                )
    same = [key for key, labels in met.items() if len(labels) == len(points) > 1]
    varied = {candidate.setting for key, candidate in candidates.items() if key not in same}
    for key, candidate in candidates.items():
        if key in same:
            candidates[key] = replace(candidate, label=candidate.setting, point={}, indices=None)
        elif len(varied) > 1:
            candidates[key] = replace(candidate, label=f"{candidate.label}, {candidate.setting}")
    keys = list(candidates)
    described = [setting.model_dump_json(exclude={"name"}) for setting in experiment.resolve()]
    first = next((key for key in [*same, *described] if key in candidates), None)
    reference = [] if first is None or candidates[first].error else [keys.index(first)]
    return list(candidates.values()), reference


def due(
    experiment: Experiment, points: Sequence[Point], layout: SmLayout
) -> Iterator[tuple[Experiment, dict[str, dict[str, Value | None]]]]:
    """Yield for each point its experiment, and setting → the point that its rows are of.

    A setting that is the same at several points is measured at the first of them that can be
    carved, and its rows have no value of what differs between these. Each point measures one.
    """
    changed = [at(experiment, point) for point in points]
    in_settings = {"settings", "partitions", "streams", "workloads"}
    same: dict[str, list[int]] = {}
    resolved: list[dict[str, str]] = []
    for number, varied in enumerate(changed):
        settings, around = varied.resolve(), varied.model_dump_json(exclude=in_settings)
        resolved.append({setting.name: setting.model_dump_json() + around for setting in settings})
        if not any(_sizes(setting, layout)[1] for setting in settings):
            for key in resolved[-1].values():
                same.setdefault(key, []).append(number)
    for number, keys in enumerate(resolved):
        numbers = {name: same.get(key, [number]) for name, key in keys.items()}
        first = [name for name, several in numbers.items() if several[0] == number]
        measured = first or [*numbers][-1:]
        of = {
            name: {
                path: value
                if all(points[other][path] == value for other in numbers[name])
                else None
                for path, value in points[number].items()
            }
            for name in first
        }
        narrowed = {
            name: setting for name, setting in changed[number].settings.items() if name in measured
        }
        yield changed[number].model_copy(update={"settings": narrowed}), of


def _homes(setting: ResolvedSetting) -> dict[str, str | None]:
    """Return which partition each workload runs on."""
    homes = {}
    for name, spec in setting.workloads.items():
        runs = setting.workloads[spec.decode] if isinstance(spec, RequestsSpec) else spec
        homes[name] = setting.streams[runs.stream].partition
    return homes


def _sizes(setting: ResolvedSetting, layout: SmLayout) -> tuple[dict[str, int], str]:
    """Return the SMs that a setting's partitions get, or why they cannot be had."""
    if not setting.partitions:
        return {}, ""
    try:
        return plan_carve(layout, setting.partitions, rounding=setting.rounding).granted(), ""
    except InvalidPartition as error:
        return {}, str(error)
