"""Workloads named by module and name: functions made workloads, and subclasses of ``Handle``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping

from gpuscope.device.device import Device
from gpuscope.errors import GpuscopeError, InvalidExperiment
from gpuscope.workloads.function import workload
from gpuscope.workloads.handle import Handle


def make_by_name(
    device: Device,
    module: str,
    attribute: str,
    args: Mapping[str, object],
    *,
    name: str,
    seed: int,
    path: str,
) -> Handle:
    """Import a workload and make its handle.

    Parameters
    ----------
    args
        Keyword arguments: of each call of a function, or of the class. A class is also given
        ``name`` and ``seed``, where it has such parameters.
    path
        Of the workload in its experiment, for the error's text.

    Raises
    ------
    InvalidExperiment
        There is no such workload, or it does not take such arguments.
    GpuscopeError
        Importing the module fails.
    """
    found = find_workload(module, attribute, path=f"{path}.kind")
    called: Callable[..., object]
    if isinstance(found, workload):
        called, keywords = found.function, dict(args)
    else:
        called = found
        known = inspect.signature(found).parameters
        offered = {"name": name, "seed": seed}
        keywords = {key: offered[key] for key in offered if key in known} | dict(args)
    try:
        inspect.signature(called).bind(None, **keywords)
    except TypeError as error:
        raise InvalidExperiment(
            f"{path}.args: 'python:{module}:{attribute}' does not take them: {error}"
        ) from error
    if isinstance(found, workload):
        return found(device, name=name, arguments=args)
    make: Callable[..., Handle] = found
    handle = make(device, **keywords)
    handle.name = name
    return handle


def find_workload(module: str, name: str, *, path: str) -> workload[object] | type[Handle]:
    """Import ``module`` and return its workload, or its subclass of ``Handle``, ``name``.

    Parameters
    ----------
    path
        Of the field that names it, for the error's text.

    Raises
    ------
    InvalidExperiment
        There is no such module, it has no such name, or that is no workload.
    GpuscopeError
        Importing the module fails.
    """
    try:
        found: object = importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module == missing or module.startswith(f"{missing}."):
            raise InvalidExperiment(
                f"{path}: there is no module {missing!r}: install it, or name its folder in "
                "PYTHONPATH"
            ) from error
        raise GpuscopeError(f"{path}: importing {module!r} fails: {error}") from error
    except Exception as error:
        raise GpuscopeError(
            f"{path}: importing {module!r} fails: {type(error).__name__}: {error}"
        ) from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise InvalidExperiment(f"{path}: module {module!r} has no {name!r}") from error
    if isinstance(found, workload) or (isinstance(found, type) and issubclass(found, Handle)):
        return found
    raise InvalidExperiment(
        f"{path}: {name!r} of module {module!r} is {type(found).__name__}, not a workload: "
        "decorate the function with @gpuscope.workloads.workload, or name a subclass of "
        "gpuscope.workloads.Handle"
    )
