"""A baseline: numbers that were stored to be compared with, and the machine that they are of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from gpuscope import _foreign
from gpuscope._files import write_text
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.judging.budget import Limit
from gpuscope.judging.machine import Machine
from gpuscope.judging.measured import Seen


class Baseline(msgspec.Struct, frozen=True):
    """Numbers that others are compared with, and the machine that they are of.

    Attributes
    ----------
    values
        Setting → key of a limit → the number of each process.
    """

    machine: Machine
    date: str
    of: str
    values: dict[str, dict[str, list[float]]]
    schema: str = "gpuscope.baseline/1"

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
    exact = seen.is_exact
    values = {
        setting: {
            name: numbers[key][:1] if exact else numbers[key][1:]
            for name, key in keys.items()
            if key in numbers
        }
        for setting, numbers in seen.numbers.items()
    }
    first = next(iter(seen.traces.values()))
    name = str((first.metadata.experiment or {}).get("name", "a program"))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    text = msgspec.json.format(msgspec.json.encode(Baseline(seen.machine, date, name, values)))
    write_text(path, text.decode())
