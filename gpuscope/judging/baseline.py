"""A baseline: numbers that were stored to be compared with, and the machine that they are of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import msgspec

from gpuscope import _foreign
from gpuscope._files import write_text
from gpuscope.comparing.rounds import MeasuredTrace
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.judging.budget import Limit
from gpuscope.judging.machine import Machine
from gpuscope.judging.measured import Seen


class Baseline(msgspec.Struct, frozen=True):
    """Numbers that others are compared with, and the machine that they are of.

    Attributes
    ----------
    values
        Setting → key of a limit → the number of each process, or round or part of the calls.
    whole
        Setting → key of a limit → the number of all of them.
    judged
        Setting → how many numbers a comparison of it with another judges together.
    unit
        What values are of, as :class:`gpuscope.comparing.rounds.MeasuredTrace` has it.
    """

    machine: Machine
    date: str
    of: str
    values: dict[str, dict[str, list[float]]]
    schema: str = "gpuscope.baseline/1"
    whole: dict[str, dict[str, float]] = {}
    judged: dict[str, int] = {}
    unit: str = "process"

    def measured(self, setting: str, limit: Limit) -> MeasuredTrace:
        """Return the number of a limit as it is compared with another; nothing if it has none."""
        number = limit.workload, limit.column
        values = self.values.get(setting, {}).get(limit.name, [])
        whole = dict(self.whole.get(setting, {}))
        if values:
            whole.setdefault(limit.name, fmean(values))
        if limit.name not in whole:
            return MeasuredTrace({}, {}, self.unit)
        samples = {number: values} if values else {}
        return MeasuredTrace({number: whole[limit.name]}, samples, self.unit)

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Read a file.

        Raises
        ------
        GpuscopeError
            It cannot be read, or is no baseline.
        """
        try:
            baseline = msgspec.convert(_foreign.load(path), cls)
        except (_foreign.Malformed, msgspec.MsgspecError) as error:
            raise GpuscopeError(f"{path.name!r} is no baseline: {error}") from error
        except (OSError, ValueError) as error:
            raise GpuscopeError(
                f"cannot read baseline {path.name!r}: {getattr(error, 'strerror', None) or error}: "
                "gpuscope check --save-baseline makes one"
            ) from error
        if baseline.schema != "gpuscope.baseline/1":
            raise GpuscopeError(f"{path.name!r} is a baseline of another version: make it anew")
        return baseline


def differing(machine: Machine, stored: Baseline, *, other_machine: bool) -> Iterator[str]:
    """Yield what is to be known of where a baseline comes from.

    Raises
    ------
    GpuscopeError
        It is of another machine, and nobody said that this is wanted.
    """
    if differs := machine.differs(stored.machine):
        words = "; ".join(differs)
        if not other_machine:
            raise GpuscopeError(
                f"the baseline is of another machine ({words}): measure it on this one "
                "(--save-baseline), or compare all the same (--other-machine)"
            )
        yield f"the baseline is of another machine: {words}"
    if versions := machine.other_versions(stored.machine):
        yield f"other versions than the baseline's: {'; '.join(versions)}"


def save(path: Path, seen: Seen, limits: Sequence[Limit]) -> None:
    """Write a baseline of what was measured."""
    keys = {
        limit.name: (limit.workload, limit.column) for limit in limits if limit.worse is not None
    }
    if not keys:
        raise InvalidArgument("no limit of this budget is relative to a baseline: nothing to save")
    gave = {setting: seen.measured(setting) for setting in seen.numbers}
    values = {
        setting: {
            name: [float(value) for value in measured.samples[key]]
            for name, key in keys.items()
            if key in measured.samples
        }
        for setting, measured in gave.items()
    }
    whole = {
        setting: {
            name: float(measured.whole[key]) for name, key in keys.items() if key in measured.whole
        }
        for setting, measured in gave.items()
    }
    together = {setting: seen.judged(setting) for setting in seen.numbers}
    unit = next(iter(gave.values())).unit
    first = next(iter(seen.traces.values()))
    name = str((first.metadata.experiment or {}).get("name", "a program"))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    baseline = Baseline(seen.machine, date, name, values, whole=whole, judged=together, unit=unit)
    text = msgspec.json.format(msgspec.json.encode(baseline))
    write_text(path, text.decode())
