"""The whole trace of a setting: its rounds, what each workload did alone, and the energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpuscope._types import Ints
from gpuscope.analysis.intervals import ended_kernels
from gpuscope.analysis.rates import done_alone
from gpuscope.experiments.experiment import Experiment
from gpuscope.trace.facts import EnergyFacts, SoloFacts
from gpuscope.trace.model import Trace
from gpuscope.trace.run import incomplete

Alone = Mapping[tuple[str, str], Sequence[Trace]]
"""Setting (empty: on the whole GPU) and workload → what was recorded of it alone, by round."""


def whole(
    rounds: Sequence[Trace],
    setting: str,
    experiment: Experiment,
    alone: Alone,
    energy: Sequence[EnergyFacts],
) -> Trace:
    """Return a setting's rounds as one trace with what was measured beside them.

    Parameters
    ----------
    energy
        Of each round; of some only, it is left out.
    """
    solo = {}
    for name, spec in experiment.workloads.items():
        paced = spec.rate_hz is not None or name in experiment.driven
        in_place, on_all = (alone.get((where, name), ()) for where in (setting, ""))
        if measured := _solo(in_place, on_all, paced=paced):
            solo[name] = measured
    trace = Trace.concat([*rounds]).with_metadata(
        solo=solo,
        energy=tuple(energy) if len(energy) == len(rounds) else (),
        experiment=experiment.to_dict(),
        setting=setting,
    )
    beside = {
        f"{workload} alone{'' if where else ' on the whole GPU'}, round {number}": part
        for (where, workload), parts in alone.items()
        for number, part in enumerate(parts, 1)
        if where in (setting, "")
    }
    if missing := incomplete(beside):
        notes = (*trace.metadata.notes, f"what ran alone is {missing}")
        trace = trace.with_metadata(complete=False, notes=notes)
    return trace


def _solo(
    in_place: Sequence[Trace], whole_gpu: Sequence[Trace], *, paced: bool
) -> SoloFacts | None:
    """Return what one workload reached alone; ``None`` if no kernel and no call of it ended.

    Parameters
    ----------
    in_place
        Recordings of it on its own stream and partition.
    whole_gpu
        Recordings of it on the unpartitioned GPU.
    paced
        Whether its calls arrive at given times: their rate says nothing about the GPU.
    """
    kernels, whole_kernels = ([*map(ended_kernels, traces)] for traces in (in_place, whole_gpu))
    durations, whole_durations = _durations(kernels), _durations(whole_kernels)
    names = {name for trace in kernels for name in trace.texts("name")}
    on_all = None if paced else done_alone(whole_gpu)
    if not len(durations) and not on_all:
        return None
    # A workload that launches different kernels has no typical one.
    typical = np.median if len(names) == 1 else np.mean
    return SoloFacts(
        kernel_ns=float(typical(durations)) if len(durations) else None,
        n=len(durations),
        whole_gpu_kernel_ns=float(np.median(whole_durations)) if len(whole_durations) else None,
        whole_gpu_calls_per_s=on_all.calls_per_s if on_all else None,
        whole_gpu_tflop_per_s=on_all.tflop_per_s if on_all else None,
    )


def _durations(kernels: Sequence[Trace]) -> Ints:
    durations = [trace.array("end_ns") - trace.array("start_ns") for trace in kernels]
    return np.concatenate([np.zeros(0, np.int64), *durations])
