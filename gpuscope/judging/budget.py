"""A budget: limits on what an experiment or a program gives, read from TOML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuscope import _foreign
from gpuscope._checks import closest, door, given
from gpuscope._columns import COMPARED, PROGRAM, TOGETHER, Column
from gpuscope._limits import Sign, limit_of, worse_of
from gpuscope._text import clean, format_value
from gpuscope.errors import GpuscopeError, InvalidArgument

COUNTS = ("escapes", "hazards", "default_stream")
"""Limits on how many there are: escapes of kernels from partitions, hazards, and work on the legacy
default stream."""
SHARES = ("idle_share",)
"""Limits on a setting, or on a program, beside the columns of comparisons."""


@dataclass(frozen=True)
class Limit:
    """A limit of a budget.

    Attributes
    ----------
    workload
        Empty: of a setting or program as a whole.
    setting
        The only one that it is of; ``None``: each that has the workload.
    sign, value
        Of an absolute limit, in the column's unit.
    worse
        Of a limit relative to a baseline: the share by which it may be worse; else ``None``.
    """

    workload: str
    column: str
    setting: str | None = None
    sign: Sign = "<="
    value: float = 0.0
    worse: float | None = None

    @property
    def name(self) -> str:
        """The key, as the budget has it."""
        return f"{self.workload}.{self.column}" if self.workload else self.column

    @property
    def about(self) -> Column | None:
        """What the number is; ``None`` of a count."""
        return (COMPARED | PROGRAM).get(self.column)

    @property
    def bound(self) -> str:
        """What the number is to be."""
        if self.worse is not None:
            return f"at most {100 * self.worse:g} % worse"
        value = self.about.text(self.value) if self.about else format_value(self.value)
        return f"{self.sign} {value}"

    def __str__(self) -> str:
        return f"{self.name} {self.bound}"


@dataclass(frozen=True)
class Budget:
    r"""Limits, and the baseline that some are relative to.

    Examples
    --------
    >>> from gpuscope.judging import Budget
    >>> budget = Budget.parse('escapes = 0\n[limits]\n"small.latency_p99_us" = "<= 120"')
    >>> [str(limit) for limit in budget.limits]
    ['escapes <= 0', 'small.latency_p99_us <= 120 µs']
    """

    limits: tuple[Limit, ...]
    baseline: Path | None = None

    @property
    def is_relative(self) -> bool:
        """Whether it takes a baseline."""
        return any(limit.worse is not None for limit in self.limits)

    @classmethod
    @door("path")
    def read(cls, path: str | Path) -> Budget:
        """Read a file; a baseline's path is relative to its folder.

        Raises
        ------
        InvalidArgument
            It is no budget.
        GpuscopeError
            It cannot be read.
        """
        source = Path(path)
        try:
            text = _foreign.decoded(_foreign.read_bytes(source, _foreign.WRITTEN_BYTES))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise GpuscopeError(f"cannot read budget {source.name!r}: {why}") from error
        return cls.parse(text, source.parent)

    @classmethod
    @door("text", "folder")
    def parse(cls, text: str, folder: Path = Path()) -> Budget:
        """Read a budget's text.

        Raises
        ------
        InvalidArgument
            It is no TOML, or a key or limit is none.
        """
        try:
            data = _foreign.loads(text, "TOML", _foreign.WRITTEN_BYTES)
        except _foreign.Malformed as error:
            raise InvalidArgument(f"this budget is not TOML: {error}") from error
        settings, limits, stored = (data.pop(key, {}) for key in ("settings", "limits", "baseline"))
        for name, table in (("settings", settings), ("limits", limits), ("baseline", stored)):
            _check_table(name, table)
        all_limits = [*_limits("", data, None), *_limits("limits.", limits, None)]
        for setting, table in settings.items():
            _check_table(f"settings.{setting}", table)
            all_limits += _limits(f"settings.{setting}.", table, setting)
        file = stored.pop("file", None)
        if file is not None and not isinstance(file, str):
            raise InvalidArgument(f"baseline.file is {given(file)}; a path is needed")
        all_limits += [_relative(key, value) for key, value in stored.items()]
        if not all_limits:
            raise InvalidArgument(
                "this budget has no limits: give escapes = 0, or [limits] with "
                "'workload.column' = '<= number'"
            )
        if stored and file is None:
            raise InvalidArgument("baseline needs a file: gpuscope check --save-baseline makes one")
        _check_together(all_limits)
        return cls(tuple(all_limits), None if file is None else folder / file)


def _check_table(name: str, table: object) -> None:
    if not isinstance(table, Mapping):
        raise InvalidArgument(f"{clean(name)} is {given(table)}; a table of limits is needed")


def _limits(where: str, table: Mapping[str, object], setting: str | None) -> Iterator[Limit]:
    """Yield the limits of a table."""
    for key, value in table.items():
        path = clean(f"{where}{key}")
        if key in COUNTS:
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidArgument(f"{path} is {given(value)}; a count is needed, such as 0")
            yield Limit("", key, setting, "<=", value)
            continue
        workload, column = _column(path, key)
        sign, number = limit_of(path, (COMPARED | PROGRAM)[column], value)
        yield Limit(workload, column, setting, sign, number)


def _check_together(limits: Sequence[Limit]) -> None:
    """Raise where no number is within two limits on the same."""
    for least in (limit for limit in limits if limit.sign == ">=" and limit.worse is None):
        for most in (limit for limit in limits if limit.sign == "<=" and limit.worse is None):
            is_same = least.name == most.name and (
                None in (least.setting, most.setting) or least.setting == most.setting
            )
            if is_same and least.value > most.value:
                raise InvalidArgument(
                    f"{least.name} cannot be {least.bound} and {most.bound}: one of its limits "
                    "never holds"
                )


def _relative(key: str, value: object) -> Limit:
    path = clean(f"baseline.{key}")
    workload, column = _column(path, key)
    return Limit(workload, column, worse=worse_of(path, (COMPARED | PROGRAM)[column], value))


def _column(path: str, key: str) -> tuple[str, str]:
    """Return workload and column of a key."""
    workload, _, column = key.rpartition(".")
    whole = [*TOGETHER, *SHARES, *PROGRAM]
    columns = [name for name, about in COMPARED.items() if about.kind == "number"]
    if not workload and column in whole:
        return "", column
    if not workload:
        raise InvalidArgument(
            f"{path} is no limit{closest(column, [*whole, *COUNTS])}: give 'workload.column', "
            f"or one of {', '.join([*COUNTS, *dict.fromkeys(whole)])}"
        )
    if column not in columns:
        raise InvalidArgument(
            f"{path}: {clean(column)!r} is no column{closest(column, columns)}; there are: "
            f"{', '.join(columns)}"
        )
    return workload, column
