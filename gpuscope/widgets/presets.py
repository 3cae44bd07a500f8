"""What a dashboard can start from: experiments that each show one thing."""

from __future__ import annotations

from collections.abc import Mapping

from gpuscope.widgets.table import Values

_CARVED: Values = {"small": 16, "load": "rest"}


def _gemm(m: int, n: int, k: int, **more: object) -> Values:
    return {"kind": "gemm", "m": m, "n": n, "k": k, **more}


_SMALL, _LOAD = ("small", _gemm(512, 512, 512)), ("load", _gemm(4096, 4096, 4096))


def _preset(
    timed: tuple[str, Values],
    queued: tuple[str, Values],
    partitions: Values,
    *,
    priority: int = 0,
    guard: bool = True,
) -> Values:
    """Describe timed calls at random moments beside work in the background."""
    homes: list[str | None] = [*partitions] or [None, None]
    (first, timed_fields), (second, queued_fields) = timed, queued
    return {
        "name": "dashboard",
        "seed": 1,
        "partitions": partitions,
        "streams": {
            first: {"partition": homes[0], "priority": priority},
            second: {"partition": homes[1]},
        },
        "workloads": {
            first: {
                **timed_fields,
                "stream": first,
                "repeats": 2000,
                "arrival": "poisson",
                "rate_hz": 1000,
                "guard": guard,
            },
            second: {**queued_fields, "stream": second, "background": True, "max_queued": 6},
        },
    }


TEMPLATE = _preset(_SMALL, _LOAD, _CARVED)
"""What a dashboard starts from: ``examples/quickstart.toml`` in one setting."""
PRESETS: Mapping[str, Values] = {
    "small beside load, partitions": TEMPLATE,
    "small beside load, no partitions": _preset(_SMALL, _LOAD, {}),
    "small beside load, priority instead": _preset(_SMALL, _LOAD, {}, priority=-5),
    "decode beside prefill": _preset(
        ("decode", _gemm(16, 4096, 4096)),
        ("prefill", _gemm(4096, 4096, 4096)),
        {"decode": 32, "prefill": "rest"},
    ),
    "requests: prefill | decode": {
        "name": "dashboard",
        "seed": 1,
        "partitions": {"prefill": "rest", "decode": 32},
        "streams": {name: {"partition": name} for name in ("prefill", "decode")},
        "workloads": {
            "prefill": _gemm(4096, 8192, 8192, stream="prefill"),
            "decode": _gemm(16, 16384, 16384, stream="decode"),
            "chat": {
                "kind": "requests",
                "prefill": "prefill",
                "decode": "decode",
                "repeats": 200,
                "arrival": "poisson",
                "rate_hz": 400,
                "output_tokens": "geometric 16",
                "slo": {"ttft_ms": 8, "tbt_ms": 0.4},
            },
        },
    },
    "copy beside compute": _preset(
        ("compute", _gemm(1024, 1024, 1024)),
        ("copy", {"kind": "copy", "nbytes": 1 << 28}),
        {"compute": 64, "copy": "rest"},
    ),
    "escape: a guard left out": _preset(_SMALL, _LOAD, _CARVED, guard=False),
}
"""Name → what the controls start from."""
