"""Green contexts that other libraries made, as the driver tells of them."""

from __future__ import annotations

from collections.abc import Callable

from gpuscope._optional import require
from gpuscope._types import Untyped
from gpuscope.device.cuda.driver import check


def of_stream(handle: int) -> tuple[int, int] | None:
    """Return the ``CUcontext`` of a stream's green context and its SMs; ``None``: it has none."""
    driver = _driver()
    result = driver.cuStreamGetGreenCtx(handle)
    check(result, "tell the green context of that stream")
    if not int(result[1]):
        return None
    context = driver.cuCtxFromGreenCtx(result[1])
    check(context, "tell the context of a green context")
    return int(context[1]), _sm_count(driver.cuGreenCtxGetDevResource, result[1])


def of_context(handle: int) -> tuple[int, int]:
    """Return a ``CUcontext`` and how many SMs it has."""
    driver = _driver()
    return handle, _sm_count(driver.cuCtxGetDevResource, driver.CUcontext(handle))


def _driver() -> Untyped:
    return require(
        "cuda.bindings.driver",
        package="cuda-bindings",
        feature="naming another library's partition",
    )


def _sm_count(ask: Callable[..., tuple[Untyped, ...]], context: Untyped) -> int:
    resource = ask(context, _driver().CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
    check(resource, "tell the SMs of a green context")
    return int(resource[1].sm.smCount)
