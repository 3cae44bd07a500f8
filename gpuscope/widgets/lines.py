"""What a stream or a workload is, in one line, whatever its values are."""

from __future__ import annotations

from collections.abc import Collection

from gpuscope.timeline.text import clean
from gpuscope.widgets.table import Values
from gpuscope.workloads.python_kind import PYTHON
from gpuscope.workloads.registry import kinds
from gpuscope.workloads.requests import RequestsSpec

PACED = ("fixed", "poisson")
"""Arrivals that have a rate."""
_DTYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}


def stream_line(values: Values) -> str:
    """Say what a stream is: "in decode, priority -1"."""
    home, priority = values["partition"], values["priority"]
    line = f"in {_short(home)}" if home else "on the whole GPU"
    line += f", priority {_short(priority)}" if priority != 0 else ""
    return line + (", blocking" if values["blocking"] and not home else "")


def workload_line(values: Values, driven: Collection[object]) -> str:
    """Say what a workload is: "gemm 512³ f16 on s, 2,000 × poisson 1 kHz".

    Parameters
    ----------
    driven
        Names of workloads that run only as requests need them.
    """
    if values["kind"] == RequestsSpec.kind_name():
        by = f"{_short(values['prefill'])} and {_short(values['decode'])}"
        return f"{_grouped(values['repeats'])} requests by {by}, {_arrivals(values)}"
    line = f"{_what(values)} on {_short(values['stream'])}, "
    if values["background"] is True:
        line += "in the background"
    elif values["name"] in driven:
        line += "as requests need it"
    else:
        line += f"{_grouped(values['repeats'])} × {_arrivals(values)}"
    if values["waits_on"]:
        line += f", waits on {', '.join(map(_short, values['waits_on']))}"
    return line + (", guard off: it escapes" if values["guard"] is False else "")


def _what(values: Values) -> str:
    """Say what a workload computes: "gemm 512³ f16"."""
    kind = values["kind"]
    if kind == PYTHON:
        return _short(values["function"] or "a Python function")
    spec = kinds().get(kind) if isinstance(kind, str) else None
    fields = spec.kind_fields() if spec else ()
    special = {field.name: values[field.name] for field in fields if not field.rare}
    words = [_short(kind).replace("_", " ")]
    sides = [_short(special.pop(side)) for side in "mnk" if side in special]
    if sides:
        words.append(f"{sides[0]}³" if len({*sides}) == 1 and len(sides) == 3 else "×".join(sides))
    for name, value in special.items():
        if name == "nbytes":
            words.append(_bytes(value) if isinstance(value, int) else _short(value))
        elif name == "duration_us":
            words.append(f"{_short(value)} µs")
        elif name == "dtype":
            words.append(_DTYPES.get(str(value), _short(value)))
        else:
            words.append(f"{name} {_short(value)}")
    return " ".join(words)


def _arrivals(values: Values) -> str:
    arrival, rate = values["arrival"], values["rate_hz"]
    if arrival not in PACED:
        return "back to back"
    if not isinstance(rate, int | float):
        return f"{arrival} {_short(rate)}"
    return f"{arrival} {rate / 1000:g} kHz" if rate >= 1000 else f"{arrival} {rate:g} Hz"


def _grouped(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else _short(value)


def _short(value: object) -> str:
    return clean(str(value), 40)


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
