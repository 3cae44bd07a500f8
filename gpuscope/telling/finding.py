"""A finding: what a result comes to, as data; its words follow from its rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gpuscope._text import UNITS_NS, duration, format_value, percent, shown
from gpuscope.analysis.result import Result, Row
from gpuscope.errors import NotFound
from gpuscope.telling.rules import RULES, fill, names_listed

Severity: TypeAlias = Literal["error", "warning", "note"]
"""How urgent it is, the most urgent first: ``"error"``: a result cannot be relied on, or is not
what was asked for; ``"warning"``: something is to be done; ``"note"``: nothing is."""
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Quantity:
    """A named value, and between what it surely lies.

    Attributes
    ----------
    unit
        ``"ns"``, ``"µs"``, ``"ms"``; ``"%"``: the value is a share; ``"±%"``: a change, as
        a share of what was before; empty: a number.
    low, high
        Bounds; ``None`` where none is known.

    Examples
    --------
    >>> import gpuscope as gs
    >>> str(gs.telling.Quantity("overlap", 0.98, low=0.95)), str(gs.telling.Quantity("n", 1200))
    ('0.98 (at least 0.95)', '1,200')
    """

    name: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        text = self._text(self.value)
        if self.low is None or self.low == self.value:
            return text
        if self.high is None:
            return f"{text} (at least {self._text(self.low)})"
        return f"{text} ({self._text(self.low)} to {self._text(self.high)})"

    def _text(self, value: float) -> str:
        if self.unit in UNITS_NS:
            return duration(value * UNITS_NS[self.unit])
        if self.unit == "%":
            return percent(value)
        if self.unit == "±%":
            return f"{100 * value:{'+' if value else ''}.3g} %"
        return f"{format_value(value)} {self.unit}".rstrip()


def counts(**numbers: float) -> tuple[Quantity, ...]:
    """Return named numbers without a unit."""
    return tuple(Quantity(name, number) for name, number in numbers.items())


@dataclass(frozen=True)
class Shown:
    """A span that shows a finding: the id of a row, and the trace that has it.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.telling.Shown("shared", 17)
    Shown(trace='shared', span=17)
    """

    trace: str
    span: int


@dataclass(frozen=True)
class Mend:
    """What to do about a finding, as code.

    Attributes
    ----------
    of
        ``"program"``: Python that the program lacks. ``"experiment"``: a line of TOML.
        ``"analysis"``: Python that shows more.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.telling.Mend("consumer.wait(producer.record())").of
    'program'
    """

    code: str
    of: Literal["program", "experiment", "analysis"] = "program"


@dataclass(frozen=True)
class Finding:
    """What a result comes to; names in it may come from anywhere.

    Attributes
    ----------
    rule
        A stable id. What is in front of its dot is its family: ``"escape"``: work ran outside its
        partition. ``"hazard"``: work shares bytes, and nothing orders it. ``"incomplete"``: rows
        are missing. ``"waits"``: calls wait for SMs that other work holds. ``"program"``: why
        a program is slow. ``"dry-queue"``: a background that
        should keep the GPU busy did not. ``"gap"``: it stood still though work had been launched.
        ``"confined"``: no escape, or none that can be judged.
        ``"ordered"``: no hazard. ``"change"``: how two runs or settings compare.
        :data:`gpuscope.telling.RULES` has all, with their words.
    subject
        What it is about: role → name, or several.
    values
        What was measured or counted.
    spans
        Rows that show it, of one trace or of two that are compared.
    mend
        What to do.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> norm = gs.workloads.spin_kernel(gpu, "norm")
    >>> with gpu.carve({"decode": 16}) as parts, gpu.create_stream() as other:
    ...     guard = gs.CallerStreamGuard(parts["decode"].create_stream())
    ...     with gs.profile(gpu) as recording, guard:
    ...         other.launch(norm, 90_000, grid=16, block=32)
    >>> first = gs.telling.findings(recording.trace).findings[0]
    >>> first.rule, first.severity, first.subject["kernel"], first.subject["partition"]
    ('escape.outside', 'error', 'norm', 'decode')
    >>> first["kernels"].value > 0, first.spans[0].span >= 0
    (True, True)
    """

    rule: str
    severity: Severity
    subject: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    values: tuple[Quantity, ...] = ()
    spans: tuple[Shown, ...] = ()
    mend: Mend | None = None

    def __getitem__(self, name: str) -> Quantity:
        for quantity in self.values:
            if quantity.name == name:
                return quantity
        names = ", ".join(quantity.name for quantity in self.values)
        raise NotFound(f"{self.rule} has no value {name!r}; there are: {names}")

    @property
    def family(self) -> str:
        """What is in front of the rule's dot."""
        return self.rule.partition(".")[0]

    @property
    def is_problem(self) -> bool:
        """Whether something is to be done."""
        return self.severity != "note"

    @property
    def names(self) -> dict[str, str]:
        """What words are made of: subject and values as text, and the mend's code."""
        names = {role: names_listed(role, name) for role, name in self.subject.items()}
        names |= {quantity.name: str(quantity) for quantity in self.values}
        return names | ({"mend": self.mend.code} if self.mend else {})

    @property
    def clause(self) -> str:
        """What was found, in plain text that another clause may follow."""
        rule = RULES.get(self.rule)
        if rule is None:
            facts = [f"{name} {text}" for name, text in self.names.items() if name != "mend"]
            return f"{self.rule}: {', '.join(facts)}" if facts else self.rule
        return fill(rule.text, self.names)

    @property
    def text(self) -> str:
        """What was found, as a sentence in plain text."""
        return f"{self.clause}."

    @property
    def advice(self) -> str:
        """What to do about it, in plain text; may be empty."""
        rule = RULES.get(self.rule)
        return fill(rule.advice, self.names) if rule else (self.mend.code if self.mend else "")


@dataclass(frozen=True)
class FindingsResult(Result):
    """Findings, the most urgent first; some of them are the verdict on confinement.

    Attributes
    ----------
    sections
        Title and result of what they rest on, as the first page shows them: analyses that found
        something to act on; of a program those that say why it is slow, too.
    """

    findings: tuple[Finding, ...]
    sections: tuple[tuple[str, Result], ...] = ()

    @property
    def confinement(self) -> tuple[Finding, ...]:
        """The verdict on confinement: each escape, or why there is none."""
        return tuple(
            finding for finding in self.findings if finding.family in ("escape", "confined")
        )

    @property
    def is_of_program(self) -> bool:
        """Whether they say why a program is slow."""
        return any(finding.family == "program" for finding in self.findings)

    def _rows(self) -> list[Row]:
        """One row per finding."""
        return [
            {"rule": finding.rule, "found": finding.text, "what to do": finding.advice}
            for finding in self.findings
        ]

    def __str__(self) -> str:
        pages = [f"{title}\n{result}" for title, result in self.sections]
        return "\n\n".join([super().__str__(), *pages])

    def _repr_html_(self) -> str:
        pages = [f"<h4>{shown(title)}</h4>{page._repr_html_()}" for title, page in self.sections]
        return "".join([super()._repr_html_(), *pages])


def urgency(finding: Finding) -> tuple[int, int]:
    """Return what findings are ordered by, the most urgent first."""
    rules = list(RULES)
    position = rules.index(finding.rule) if finding.rule in RULES else len(rules)
    return SEVERITIES.index(finding.severity), position
