"""Finds workload kinds by name: gpuscope's own, and other packages' by their entry points.

A kind is declared once, as a subclass of :class:`~gpuscope.workloads.spec.WorkloadSpec`.
Experiments, the command line, the dashboard and the docs read what they need from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated

from pydantic import PlainValidator, SerializeAsAny
from pydantic_core import PydanticCustomError

from gpuscope._checks import closest, given
from gpuscope._plugins import Plugins
from gpuscope.errors import InvalidExperiment, MissingDependency
from gpuscope.workloads.builtin import BUILT_IN
from gpuscope.workloads.python_kind import PYTHON
from gpuscope.workloads.spec import WorkloadSpec

_RESERVED = {"args", "function", "name"}


def _wrong(name: str, spec: object) -> str:
    """Return why an object is not the kind of that name; empty if it is."""
    if name in BUILT_IN:
        return "gpuscope has a kind of that name"
    if not (isinstance(spec, type) and issubclass(spec, WorkloadSpec)):
        return f"{given(spec)} is no subclass of gpuscope.workloads.WorkloadSpec"
    if inspect.isabstract(spec):
        return f"{spec.__name__} has no method make()"
    if spec.kind_name() != name:
        return f"{spec.__name__} calls itself {spec.kind_name()!r}"
    if taken := _RESERVED & {field.name for field in spec.kind_fields()}:
        return f"{spec.__name__} has a field {min(taken)!r}, a name that the dashboard needs"
    return ""


_PLUGINS: Plugins[type[WorkloadSpec]] = Plugins("gpuscope.workloads", "kind", _wrong)
"""Kinds of other packages."""


def find_kind(name: str) -> type[WorkloadSpec] | None:
    """Return the kind of that name, ``None`` if there is none; loads no other.

    Raises
    ------
    InvalidExperiment
        It is another package's and cannot be used; says whose, and why.
    """
    try:
        return BUILT_IN.get(name) or _PLUGINS.find(name)
    except MissingDependency as error:
        raise InvalidExperiment(str(error)) from error


def kinds() -> dict[str, type[WorkloadSpec]]:
    """Return every kind that can be used, by name.

    Examples
    --------
    >>> import gpuscope as gs
    >>> [*gs.workloads.kinds()][:3]
    ['gemm', 'copy', 'spin']
    """
    return {**BUILT_IN, **_PLUGINS.usable()}


def broken_kinds() -> list[str]:
    """Return what is wrong with each kind, or package, that cannot be used."""
    return _PLUGINS.problems()


def forget_kinds() -> None:
    """Look for other packages' kinds anew: something was installed since."""
    _PLUGINS.forget()


def _of_its_kind(value: object) -> WorkloadSpec:
    """Validate a workload by the kind that it names."""
    if isinstance(value, WorkloadSpec):
        return value
    if not isinstance(value, Mapping):
        raise PydanticCustomError("dict_type", "should be a table")
    kind = value.get("kind")
    called = kind if isinstance(kind, str) else given(kind)
    name = PYTHON if called.partition(":")[0] == PYTHON else called
    plugins = [other for other in _PLUGINS.names() if other not in BUILT_IN]
    words = f"{called!r} is no kind of workload{closest(name, [*BUILT_IN, *plugins])}"
    if kind is None:
        words = "missing"
    else:
        try:
            if (spec := find_kind(name)) is not None:
                return spec.model_validate(value)
        except InvalidExperiment as error:
            words = str(error)
    spellings = [*(spec.kind_spelling() for spec in BUILT_IN.values()), *plugins]
    allowed = ", ".join(map(repr, spellings))
    raise PydanticCustomError("kind", "{words}", {"words": f"{words}; allowed: {allowed}"})


AnyWorkload = Annotated[SerializeAsAny[WorkloadSpec], PlainValidator(_of_its_kind)]
"""A workload of whatever kind it names."""
