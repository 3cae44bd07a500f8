"""What was changed between the experiments of two traces, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpuscope.trace.metadata import Description
from gpuscope.trace.model import Trace


class Changed(NamedTuple):
    """A field of two descriptions that differs, its values as text."""

    path: str
    before: str
    after: str

    def __str__(self) -> str:
        if not (self.before and self.after):
            return f"{self.path}: {'added' if self.after else 'removed'}"
        return f"{self.path}: {self.before} → {self.after}"

    @property
    def phrase(self) -> str:
        """How a sentence begins that is about it."""
        if not (self.before and self.after):
            return f"{'With' if self.after else 'Without'} {self.path}"
        return f"With {self.path} = {self.after}"


def changes(before: Trace, after: Trace) -> Iterator[Changed]:
    """Yield field by field what differs between what two traces ran, if both are of experiments."""
    described = _described(before), _described(after)
    if all(described):
        yield from _changed(*described, "")


def _described(trace: Trace) -> Description:
    """Return the experiment of a trace as its setting has it."""
    experiment = dict(trace.metadata.experiment or {})
    settings = _mapping(experiment.pop("settings", None))
    changed = _mapping(settings.get(trace.metadata.setting or ""))
    streams = {**_mapping(experiment.get("streams")), **_mapping(changed.get("streams"))}
    experiment |= {key: value for key, value in changed.items() if value is not None}
    return experiment | {"streams": streams} if experiment else {}


def _mapping(value: object) -> Description:
    """Return a part of a description, which may be anybody's."""
    return value if isinstance(value, Mapping) else {}


def _changed(before: object, now: object, path: str) -> Iterator[Changed]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*before, *now]):
            inside = f"{path}.{key}" if path else str(key)
            yield from _changed(before.get(key), now.get(key), inside)
    elif before is None and isinstance(now, Mapping):
        yield Changed(path, "", "added")
    elif now is None and isinstance(before, Mapping):
        yield Changed(path, "removed", "")
    elif before != now:
        yield Changed(path, _told(before, now), _told(now, before))


def _told(value: object, other: object) -> str:
    """Write a value; descriptions leave out some that say nothing, as a guard that is on."""
    if value is None and isinstance(other, bool):
        value = not other
    if isinstance(value, bool):
        return str(value).lower()
    if not value and isinstance(other, list):
        return "none"
    return "–" if value is None or isinstance(value, Mapping) else str(value)
