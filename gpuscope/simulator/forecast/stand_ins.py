"""What forecasts an experiment: a simulated GPU, with recordings of code that it cannot run."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from gpuscope.device.device import Device
from gpuscope.device.select import open_device
from gpuscope.errors import MissingEvidence
from gpuscope.experiments.execution import run
from gpuscope.experiments.experiment import Experiment
from gpuscope.formats.reading import load_trace
from gpuscope.formats.writing import export
from gpuscope.search.scale_out import locked
from gpuscope.simulator.profiles.profile import Profile
from gpuscope.workloads.builtin import PYTHON, TraceSpec
from gpuscope.workloads.spec import WorkloadSpec

_FEW = 24
"""SMs of the second recording, about: it tells what bounds kernels."""
_COMMON = tuple(name for name in WorkloadSpec.model_fields if name != "kind")


def is_real(device: Device) -> bool:
    """Whether a device's times are measured, and not those of a model."""
    return not device.is_simulated


def _foreign(experiment: Experiment) -> list[str]:
    """Return the workloads whose code is the user's: a simulated GPU cannot run it."""
    return [name for name, spec in experiment.workloads.items() if PYTHON in spec.kind.split(":")]


def forecaster(
    experiment: Experiment, device: Device, parameters: Iterable[str], gpu_profile: str
) -> tuple[Device | None, list[str], str]:
    """Return the simulated GPU that forecasts for a device, for which workloads, and how.

    Without one, the words say why. The workloads are those of which recordings have to
    :func:`stand in <stand_ins>`.

    Parameters
    ----------
    parameters
        Paths that are varied.
    gpu_profile
        Of the simulated GPU, if the device is a real one.
    """
    profile, names = device.info.key.removeprefix("sim:"), []
    if is_real(device):
        profile, names = gpu_profile, _foreign(experiment)
        if Profile.load(profile).layout != device.layout:
            return None, [], no_forecasts(f"the GPU profile {profile} is of another GPU")
        for name in names:
            if any(path.startswith(f"workloads.{name}.") for path in parameters):
                why = f"{name}, whose code only a GPU runs, is varied itself"
                return None, [], no_forecasts(why)
    simulated = open_device(f"sim:{profile}", jitter=False, quiet=True)
    words = f"forecasts: SIMULATED{' from recordings' if names else ''} with the GPU profile "
    return simulated, names, words + simulated.info.key.removeprefix("sim:")


def no_forecasts(why: str) -> str:
    """Say why there are no forecasts, and what is done instead."""
    return f"no forecasts: {why}; settings all over the grid were measured first"


def stand_ins(
    experiment: Experiment,
    names: Iterable[str],
    device: Device,
    folder: Path,
    stop: threading.Event,
) -> dict[str, TraceSpec]:
    """Record one call of each of some workloads alone: on the whole GPU, and on few SMs.

    Parameters
    ----------
    names
        Of the workloads.
    folder
        Where the recordings are kept; those that are there are used.

    Returns
    -------
    dict
        Workload → the recording as a workload, on the same stream and as often.

    Raises
    ------
    MissingEvidence
        A call launched no kernel that was seen.
    KeyboardInterrupt
        It was stopped.
    """
    few = next((count for count in device.layout.grantable() if count >= _FEW), None)
    found = {}
    for number, name in enumerate(names):
        spec = experiment.workloads[name]
        paths = []
        for count in (None, few):
            path = folder / f"recorded-{number}{'' if count is None else '-few'}.parquet"
            paths.append(path)
            if not path.exists():
                _record(experiment, name, count, device, path, stop)
        check = load_trace(paths[0])
        if not len(check.where(kind="kernel")):
            raise MissingEvidence(f"one call of {name!r} launched no kernel that was seen")
        found[name] = TraceSpec(
            kind="trace",
            path=str(paths[0]),
            second=str(paths[1]),
            graph=True,  # as one launch, with the gaps between its kernels that were recorded
            **{field: getattr(spec, field) for field in _COMMON},
        )
    return found


def _record(
    experiment: Experiment,
    name: str,
    count: int | None,
    device: Device,
    path: Path,
    stop: threading.Event,
) -> None:
    spec = experiment.workloads[name].model_copy(
        update={
            "stream": name, "repeats": 1, "background": False, "max_queued": 1, "rate_hz": None,
            "arrival": "back_to_back", "waits_on": [],
        }
    )  # fmt: skip
    partitions = {} if count is None else {name: count}
    alone = Experiment(
        name=name, seed=experiment.seed, alone_repeats=0, partitions=partitions,
        streams={name: {"partition": name if partitions else None}}, workloads={name: spec},
    )  # fmt: skip
    with locked([device.info]):
        done = run(alone, device, stop=stop)
    if done.stopped:
        raise KeyboardInterrupt  # whoever called ends with what there is
    export(done["default"], path)
