"""What forecasts an experiment: a simulated GPU, with recordings of code that it cannot run."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Collection
from pathlib import Path

from gpuscope.device.device import Device
from gpuscope.device.select import open_device
from gpuscope.errors import MissingEvidence
from gpuscope.experiments.execution import run
from gpuscope.experiments.experiment import Experiment
from gpuscope.formats.reading import load_trace
from gpuscope.formats.writing import export
from gpuscope.search.scale_out import locked
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.workloads.builtin import TraceSpec
from gpuscope.workloads.python_kind import PYTHON
from gpuscope.workloads.spec import WorkloadSpec

_FEW = 24
"""SMs of the second recording, about: it tells what bounds kernels."""
_COMMON = tuple(name for name in WorkloadSpec.model_fields if name != "kind")


def is_real(device: Device) -> bool:
    """Whether a device's times are measured, and not those of a model."""
    return not device.is_simulated


class Simulated:
    """Forecasts by a simulated GPU, from recordings of what that cannot run.

    Parameters
    ----------
    device
        The device that is tuned.
    parameters
        Paths that are varied.
    gpu_profile
        Of the simulated GPU, if the device is a real one.

    Attributes
    ----------
    device
        The simulated GPU.
    words
        How it forecasts.

    Raises
    ------
    MissingEvidence
        It cannot forecast; says why.
    """

    def __init__(
        self,
        experiment: Experiment,
        device: Device,
        parameters: Collection[str],
        gpu_profile: str,
    ) -> None:
        self._experiment, self._real = experiment, device
        self._foreign: list[str] = []
        """Workloads whose code is the user's: a simulated GPU cannot run it."""
        profile = device.info.key.removeprefix("sim:")
        if is_real(device):
            profile, workloads = gpu_profile, experiment.workloads.items()
            self._foreign = [name for name, spec in workloads if PYTHON in spec.kind.split(":")]
            if GpuProfile.load(profile).layout != device.layout:
                raise MissingEvidence(f"the GPU profile {profile} is of another GPU")
            for name in self._foreign:
                if any(path.startswith(f"workloads.{name}.") for path in parameters):
                    raise MissingEvidence(f"{name}, whose code only a GPU runs, is varied itself")
        self.device = open_device(f"sim:{profile}", jitter=False, quiet=True)
        key = self.device.info.key.removeprefix("sim:")
        source = " from recordings" if self._foreign else ""
        self.words = f"forecasts: SIMULATED{source} with the GPU profile {key}"

    def prepare(self, folder: Path | None, stop: threading.Event) -> dict[str, TraceSpec]:
        """Record one call of each workload of the user's, on the whole GPU and on few SMs.

        Parameters
        ----------
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
        if self._foreign and folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="gpuscope-")
            folder = Path(self._temporary.name)
        few = next((count for count in self._real.layout.grantable() if count >= _FEW), None)
        specs = {}
        for number, name in enumerate(self._foreign):
            assert folder is not None  # noqa: S101 - made above
            paths = [folder / f"recorded-{number}{end}.parquet" for end in ("", "-few")]
            for path, count in zip(paths, (None, few), strict=True):
                if not path.exists():
                    self._record(name, {} if count is None else {name: count}, path, stop)
            if not len(load_trace(paths[0]).where(kind="kernel")):
                raise MissingEvidence(f"one call of {name!r} launched no kernel that was seen")
            spec = self._experiment.workloads[name]
            specs[name] = TraceSpec(
                kind="trace",
                path=str(paths[0]),
                second=str(paths[1]),
                graph=True,  # as one launch, with the gaps between its kernels that were recorded
                **{field: getattr(spec, field) for field in _COMMON},
            )
        return specs

    def _record(
        self, name: str, partitions: dict[str, int], path: Path, stop: threading.Event
    ) -> None:
        spec = self._experiment.workloads[name].model_copy(
            update={
                "stream": name,
                "repeats": 1,
                "background": False,
                "max_queued": 1,
                "rate_hz": None,
                "arrival": "back_to_back",
                "waits_on": [],
            }
        )
        alone = Experiment(
            name=name,
            seed=self._experiment.seed,
            alone_repeats=0,
            partitions=partitions,
            streams={name: {"partition": name if partitions else None}},
            workloads={name: spec},
        )
        with locked([self._real.info]):
            done = run(alone, self._real, stop=stop)
        if done.stopped:
            raise KeyboardInterrupt  # whoever called ends with what there is
        export(done["default"], path)
