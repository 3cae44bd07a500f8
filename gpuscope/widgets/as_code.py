"""An experiment as code to copy: gpuscope's own, or its carving without gpuscope."""

from __future__ import annotations

import json
import pprint

from gpuscope.device.carve import CarvePlan, SmLayout
from gpuscope.experiments.carving_code import carving_code
from gpuscope.experiments.experiment import Experiment
from gpuscope.timeline.text import clean

_WIDTH = 96


def gpuscope_code(experiment: Experiment, key: str) -> str:
    """Return Python that runs an experiment on the device of that name, and judges it."""
    described = experiment.model_dump(mode="json", exclude_defaults=True)
    described["workloads"] = {  # what it is comes first
        name: {"kind": spec["kind"], **spec} for name, spec in described["workloads"].items()
    }
    fields = "".join(f"    {name}={_python(value)},\n" for name, value in described.items())
    carved = any(setting.partitions for setting in experiment.resolve())
    judged = "    gs.analysis.confinement(trace),\n" if carved else ""
    judged += "    gs.analysis.requests(trace),\n" if experiment.driven else ""
    return (
        "import gpuscope as gs\n\n"
        f"experiment = gs.experiments.Experiment(\n{fields})\n"
        f"gpu = gs.open_device({key!r})\n"
        "run = gs.run(experiment, gpu)\n"
        "trace = list(run.values())[-1]\n"
        "for result in (\n"
        '    gs.analysis.overlap(trace, by="workload"),\n'
        f"    gs.analysis.latency(trace),\n{judged}"
        "):\n"
        "    for row in result.rows():\n"
        "        print(row)\n"
        "gs.figures.timeline(trace)\n"
    )


def carving(language: str, experiment: Experiment, plan: CarvePlan | None, index: int) -> str:
    """Return code that carves as planned and makes the streams.

    Parameters
    ----------
    language
        One of :data:`gpuscope.experiments.carving_code.LANGUAGES`.
    """
    layout = plan.layout if plan else SmLayout(1, 0, 0)
    return carving_code(
        language,
        [f"The partitions and streams of {json.dumps(clean(experiment.name, 80))}."],
        plan.granted() if plan else {},
        experiment.resolve()[-1].streams,
        sm_count=layout.sm_count,
        quantum=layout.quantum_sm_count,
        index=index,
    )


def _python(value: object) -> str:
    """Write a value as Python, to stand behind a name four columns from the left."""
    text = pprint.pformat(value, width=_WIDTH - 4, sort_dicts=False)
    return text.replace("\n", "\n    ")
