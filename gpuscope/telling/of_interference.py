"""What interference comes to: who makes whose kernels long."""

from __future__ import annotations

from gpuscope._checks import door
from gpuscope.analysis.interference_analysis import InterferenceResult
from gpuscope.telling.finding import Finding, Quantity, counts


@door(result=InterferenceResult)
def interfered(result: InterferenceResult) -> Finding:
    """Return the pair of workloads whose value is the greatest, or that none is known.

    The pair whose forecast is the greatest of those not measured is named beside it.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.telling.of_interference import interfered
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> small = {"kind": "gemm", "m": 512, "n": 512, "k": 512, "partition": "a"}
    >>> large = {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "partition": "b"}
    >>> result = gs.search.measure_interference(
    ...     gpu, {"a": 16, "b": "rest"}, {"small": small, "large": large}, repeats=5, rounds=2)
    >>> interfered(result).rule
    'interferes'
    """
    measured = {cell: cell.value for cell in result.cells if cell.value is not None}
    forecast = {cell: cell.forecast for cell in result.cells if cell.forecast is not None}
    values = counts(
        told=len(measured),
        untold=len(result.cells) - len(measured) - len(forecast),
        forecast=len(forecast),
    )
    subject, longer = {}, []
    if measured:
        most = max(measured, key=measured.__getitem__)
        subject = {"workload": most.of, "given": most.given}
        longer.append(Quantity("longer", measured[most], "%", most.low, most.high))
    if forecast:
        likely = max(forecast, key=forecast.__getitem__)
        subject |= {"other": likely.of, "beside": likely.given}
        ends = likely.forecast_low, likely.forecast_high
        longer.append(Quantity("likely", forecast[likely], "%", *ends))
    if not longer:
        return Finding("interferes.unknown", "warning", {}, values)
    rule = "interferes" if measured else "interferes.forecast"
    return Finding(
        rule, "note", subject, (*longer, *(quantity for quantity in values if quantity.value))
    )
