"""An experiment as code to copy: gpuscope's own, or its carving by cuda.core and in C++."""

from __future__ import annotations

import json
import pprint
import textwrap
from collections.abc import Callable, Mapping

from gpuscope.device.carve import REMAINDER, CarvePlan
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


def cuda_core_code(experiment: Experiment, plan: CarvePlan | None, index: int) -> str:
    """Return Python that carves as planned and makes the streams, by ``cuda.core``."""
    head = (
        f"{_says(experiment, plan, '#')}\n"
        "from cuda.core import ContextOptions, Device, SMResourceOptions, StreamOptions\n\n"
        f"device = Device({index})\ndevice.set_current()\n\n"
    )
    carve, close = "", ""
    if plan is not None:
        layout = plan.layout
        carve = (
            f"quanta, remainder = device.resources.sm.split(SMResourceOptions(\n"
            f"    count=[{layout.quantum_sm_count}] * {layout.quanta}\n))\n"
            f"if len(quanta) != {layout.quanta}:\n"
            '    raise SystemExit(f"this GPU has {len(quanta)} quanta: plan anew")\n'
            "contexts = {\n"
            + "".join(
                f"    {part.name!r}: device.create_context(ContextOptions(  # {part.sm_count} SMs\n"
                f"        resources={_python_list(part.parts)}\n    )),\n"
                for part in plan.partitions
            )
            + "}\n"
        )
        close = "for context in contexts.values():\n    context.close()\n"
    streams = "streams = {\n"
    for name, spec in experiment.resolve()[-1].streams.items():
        home = "device" if spec.partition is None else f"contexts[{spec.partition!r}]"
        options = f"nonblocking={not spec.blocking}, priority={spec.priority}"
        made = f"{home}.create_stream(options=StreamOptions(\n        {options}\n    ))"
        streams += f"    {name!r}: {made},\n"
    return (
        f"{head}{carve}{streams}}}\n\n"
        "# Launch on the streams here.\n\n"
        f"device.sync()\nfor stream in streams.values():\n    stream.close()\n{close}"
    )


_CPP_HEAD = """\
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

static void check(CUresult result) {
    if (result == CUDA_SUCCESS) return;
    const char *what = nullptr;
    cuGetErrorString(result, &what);
    std::fprintf(stderr, "%s\\n", what ? what : "unknown CUDA error");
    std::exit(1);
}
"""
_CPP_CONTEXT = """
static CUgreenCtx make_context(CUdevice device, std::vector<CUdevResource> parts) {
    CUdevResourceDesc description;
    check(cuDevResourceGenerateDesc(&description, parts.data(), (unsigned int)parts.size()));
    CUgreenCtx context;
    check(cuGreenCtxCreate(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
    return context;
}
"""


def cpp_code(experiment: Experiment, plan: CarvePlan | None, index: int) -> str:
    """Return C++ that carves as planned and makes the streams, by the driver's own calls."""
    lines = [
        "check(cuInit(0));",
        "CUdevice device;",
        f"check(cuDeviceGet(&device, {index}));",
        "CUcontext primary;",
        "check(cuDevicePrimaryCtxRetain(&primary, device));",
        "check(cuCtxSetCurrent(primary));",
        "",
    ]
    contexts: dict[str, str] = {}
    if plan is not None:
        layout = plan.layout
        lines += [
            "CUdevResource sms, remainder;",
            "check(cuDeviceGetDevResource(device, &sms, CU_DEV_RESOURCE_TYPE_SM));",
            f"unsigned int groups = {layout.quanta};",
            "std::vector<CUdevResource> quanta(groups);",
            f"const unsigned int quantum = {layout.quantum_sm_count};",
            "check(cuDevSmResourceSplitByCount(",
            "    quanta.data(), &groups, &sms, &remainder, 0, quantum));",
            f"if (groups != {layout.quanta}) {{",
            '    std::fprintf(stderr, "this GPU has %u quanta: plan anew\\n", groups);',
            "    return 1;",
            "}",
            "",
        ]
        for number, part in enumerate(plan.partitions):
            numbers, rest = _quanta(part.parts)
            items = ", ".join([*(f"quanta[{n}]" for n in numbers), *rest])
            contexts[part.name] = f"context_{number}"
            lines += [
                f"// {_quoted(part.name)}: {part.sm_count} SMs",
                f"CUgreenCtx context_{number} = make_context(device, {{{items}}});",
            ]
        lines.append("")
    made = experiment.resolve()[-1].streams
    for number, (name, spec) in enumerate(made.items()):
        flags = "CU_STREAM_DEFAULT" if spec.blocking else "CU_STREAM_NON_BLOCKING"
        lines.append(f"CUstream stream_{number};  // {_quoted(name)}")
        lines.append(
            f"check(cuStreamCreateWithPriority(&stream_{number}, {flags}, {spec.priority}));"
            if spec.partition is None
            else f"check(cuGreenCtxStreamCreate(&stream_{number}, {contexts[spec.partition]}, "
            f"{flags}, {spec.priority}));"
        )
    lines += ["", "// Launch on the streams here.", "", "check(cuCtxSynchronize());"]
    lines += [f"check(cuStreamDestroy(stream_{number}));" for number in range(len(made))]
    lines += [f"check(cuGreenCtxDestroy({name}));" for name in contexts.values()]
    lines += ["check(cuDevicePrimaryCtxRelease(device));", "return 0;"]
    body = "".join(f"{_wrapped(line)}\n" for line in lines)
    context = _CPP_CONTEXT if plan is not None else ""
    return f"{_says(experiment, plan, '//')}{_CPP_HEAD}{context}\nint main() {{\n{body}}}\n"


_Code = Callable[[Experiment, CarvePlan | None, int], str]
CARVINGS: Mapping[str, _Code] = {"cuda.core": cuda_core_code, "C++": cpp_code}
"""What can be copied besides gpuscope's own: what to call it → what writes it."""


def _says(experiment: Experiment, plan: CarvePlan | None, mark: str) -> str:
    lines = [f"The partitions and streams of {_quoted(experiment.name)}."]
    if plan is not None:
        layout = plan.layout
        rest = layout.remainder_sm_count
        lines.append(
            f"Planned for {layout.sm_count} SMs: {layout.quanta} quanta of "
            f"{layout.quantum_sm_count}" + (f" and a remainder of {rest}." if rest else ".")
        )
    return "".join(f"{mark} {line}\n" for line in lines)


def _quoted(name: str) -> str:
    """Return a foreign name for a comment: on one line, which no character of it ends or joins."""
    return json.dumps(clean(name, 80))


def _python(value: object) -> str:
    """Write a value as Python, to stand behind a name four columns from the left."""
    text = pprint.pformat(value, width=_WIDTH - 4, sort_dicts=False)
    return text.replace("\n", "\n    ")


def _quanta(parts: tuple[int, ...]) -> tuple[list[int], list[str]]:
    """Return the numbers of the quanta among the parts, and the name of what else is."""
    numbers = sorted(part for part in parts if part != REMAINDER)
    return numbers, ["remainder"] * (REMAINDER in parts)


def _python_list(parts: tuple[int, ...]) -> str:
    numbers, rest = _quanta(parts)
    return f"[quanta[n] for n in {numbers}]" + "".join(f" + [{name}]" for name in rest)


def _wrapped(line: str) -> str:
    if line.lstrip().startswith("//") or "//" in line:
        return f"    {line}"  # a comment must not go on in the next line
    return textwrap.fill(
        line,
        _WIDTH,
        initial_indent="    ",
        subsequent_indent=" " * 8,
        break_long_words=False,
        break_on_hyphens=False,
    )
