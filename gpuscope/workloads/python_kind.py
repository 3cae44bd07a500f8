"""The workload kind ``python``: a function or a class of the user's, by module and name."""

from __future__ import annotations

import importlib
import inspect
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, StrictBool, StrictInt, StrictStr, field_validator

from gpuscope import workloads
from gpuscope.errors import GpuscopeError, InvalidExperiment
from gpuscope.workloads.spec import RARE, WorkloadSpec

if TYPE_CHECKING:  # describing work loads no NumPy
    from gpuscope.device.device import Device
    from gpuscope.workloads.function import Workload
    from gpuscope.workloads.handle import Handle

PYTHON = "python"
"""The kind of what is named by module and name."""
Amount = Annotated[int, Field(gt=0, lt=2**62)] | None


class PythonSpec(WorkloadSpec):
    """A function decorated with ``@gpuscope.workloads.workload``, or one that makes a handle.

    Attributes
    ----------
    kind
        ``"python:package.module:name"``; imported when the experiment is run, never when it
        is loaded or shown.
    args
        Keyword arguments of every call of the decorated function; or of the other, or the class,
        that makes the handle.
    flops, bytes
        Floating-point operations of a call, and bytes that it reads and writes.
    """

    kind: str
    args: dict[str, StrictBool | StrictInt | float | StrictStr] = Field(default_factory=dict)
    flops: Amount = Field(None, title="FLOP a call", json_schema_extra=RARE)
    bytes: Amount = Field(None, title="Bytes a call", json_schema_extra=RARE)

    _later = (*WorkloadSpec._later, "flops", "bytes")

    @classmethod
    def kind_name(cls) -> str:
        """Return what stands before the first colon."""
        return PYTHON

    @classmethod
    def kind_spelling(cls) -> str:
        """Return what stands after ``kind =`` in an experiment."""
        return f"{PYTHON}:package.module:function"

    @classmethod
    def kind_label(cls) -> str:
        """Return what the dashboard calls the kind."""
        return "Python function"

    @field_validator("kind")
    @classmethod
    def _kind_names_a_function(cls, kind: str) -> str:
        _, *names = kind.split(":")
        parts = [part for name in names for part in name.split(".")]
        if len(names) != 2 or not all(map(str.isidentifier, parts)):
            raise ValueError(f"should be {cls.kind_spelling()!r}, but found {kind!r}")
        return kind

    @field_validator("args")
    @classmethod
    def _args_are_arguments(cls, args: dict[str, object]) -> dict[str, object]:
        for name in args:
            if not name.isidentifier() or name == "stream":
                raise ValueError(
                    f"{name!r} is no argument's name: it takes letters, digits and _, and the "
                    "stream is the workload's own field"
                )
        return args

    @property
    def module(self) -> str:
        """Name of the module."""
        return self.kind.split(":")[1]

    @property
    def function(self) -> str:
        """Name of the function or class in it."""
        return self.kind.split(":")[2]

    def make(self, device: Device, *, name: str, seed: int) -> Handle:
        """Import what it names, and make a handle of it.

        What makes the handle is given ``name`` and ``seed`` too, where it has such parameters.

        Raises
        ------
        InvalidExperiment
            It names nothing that is there, nothing that is a workload, or one that does not
            take such arguments.
        GpuscopeError
            Importing the module fails.
        """
        from gpuscope.workloads.context import stated_facts  # noqa: PLC0415 - loads NumPy

        path = f"workloads.{name}"
        maker = self._imported(f"{path}.kind")
        called: Callable[..., object] = maker
        offered: dict[str, object] = {"name": name, "seed": seed}
        if isinstance(maker, workloads.Workload):
            called, offered = maker.function, {}
        signature = inspect.signature(called)
        keywords = {key: offered[key] for key in offered if key in signature.parameters} | self.args
        try:
            signature.bind(None, **keywords)
        except TypeError as error:
            raise InvalidExperiment(
                f"{path}.args: {self.kind!r} does not take them: {error}"
            ) from error
        if isinstance(maker, workloads.Workload):
            handle: object = maker(device, name=name, arguments=self.args)
        else:
            try:
                handle = maker(device, **keywords)
            except GpuscopeError:
                raise
            except Exception as error:
                raise GpuscopeError(
                    f"{path}: {self.function!r} fails: {type(error).__name__}: {error}"
                ) from error
        if not isinstance(handle, workloads.Handle):
            raise InvalidExperiment(
                f"{path}.kind: {self.function!r} of module {self.module!r} returns "
                f"{type(handle).__name__}, not a handle: return one, such as gpuscope.TorchModule"
                "(module, inputs, owner=device), or decorate it with @gpuscope.workloads.workload"
            )
        handle.name = name
        handle.stated |= stated_facts(self.flops, self.bytes)
        return handle

    def _imported(self, path: str) -> Workload[object] | Callable[..., object]:
        """Import its module, and return the workload, function or class that it names there."""
        try:
            module = _module(self.module)
        except Exception as error:
            if missing := _missing_of(self.module, error):
                raise InvalidExperiment(
                    f"{path}: there is no module {missing!r}: install it, name its folder in "
                    "PYTHONPATH, or start in its folder"
                ) from error
            raise GpuscopeError(
                f"{path}: importing {self.module!r} fails: {type(error).__name__}: {error}"
            ) from error
        try:
            named: object = operator.attrgetter(self.function)(module)
        except AttributeError as error:
            raise InvalidExperiment(
                f"{path}: module {self.module!r} has no {self.function!r}"
            ) from error
        is_other_class = isinstance(named, type) and not issubclass(named, workloads.Handle)
        if callable(named) and not is_other_class:
            return named
        raise InvalidExperiment(
            f"{path}: {self.function!r} of module {self.module!r} is {type(named).__name__}, not "
            "a workload: decorate the function with @gpuscope.workloads.workload, or name one that "
            "makes a handle, or name a subclass of gpuscope.workloads.Handle"
        )


def _module(name: str) -> ModuleType:
    """Import a module as a program of the user's in the current folder does.

    But what is found without that folder comes first: no file in it takes the place of a module of
    Python's or of a package. Once one is imported from there, the folder stays on ``sys.path``.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        here = str(Path.cwd())
        if _missing_of(name, error) is None or here in sys.path:
            raise
    sys.path.append(here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except BaseException:
        sys.path.remove(here)
        raise


def _missing_of(name: str, error: Exception) -> str | None:
    """Return which package or module of this dotted name was not found, if one was not."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return missing if missing and f"{name}.".startswith(f"{missing}.") else None
