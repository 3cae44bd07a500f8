"""Hazards: work that nothing orders and that shares bytes, as a recording found them."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope._checks import door
from gpuscope.analysis.result import Result, Row, about, sentences
from gpuscope.errors import MissingEvidence
from gpuscope.trace.facts import HazardFact, HazardFacts
from gpuscope.trace.model import Trace


@dataclass(frozen=True)
class HazardsResult(Result):
    """Hazards, one row for each group of equal ones.

    Attributes
    ----------
    facts
        What the recording found, and among how much.
    """

    facts: HazardFacts

    @property
    def found(self) -> tuple[HazardFact, ...]:
        """The hazards."""
        return self.facts.found

    @property
    def verdict(self) -> str:
        """What was found, among how much, in words."""
        count = sum(fact.count for fact in self.found) + self.facts.left_out
        what = "none found" if not count else f"{count:,} hazard{'s' if count > 1 else ''}"
        unsure = f", {self.facts.undecided:,} undecided" if self.facts.undecided else ""
        return (
            f"{what} among {self.facts.accesses:,} accesses, {self.facts.unseen:,} unseen{unsure}"
        )

    def _rows(self) -> list[Row]:
        """One row per group."""
        return [
            {
                "kind": fact.kind,
                "first": fact.first_name,
                "on": fact.first_stream,
                "second": fact.second_name,
                "on stream": fact.second_stream,
                "times": fact.count,
                "bytes": fact.nbytes,
                "missing": fact.mend,
                "status": fact.status,
            }
            for fact in self.found
        ]

    @property
    def definition(self) -> str:
        """The verdict, and what was not seen."""
        names = ", ".join(self.facts.unseen_names)
        return sentences(self.verdict, f"unseen: {names}" if names else "")


@door(trace=Trace)
def hazards(trace: Trace) -> HazardsResult:
    """Return the hazards that a recording found: pairs of accesses that nothing orders.

    Raises
    ------
    MissingEvidence
        Nobody looked for hazards when the trace was recorded.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> x, y = gpu.empty(1000), gpu.empty(1000)
    >>> with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
    ...     with gs.profile(gpu, hazards=True) as recording:
    ...         a.copy(x, y)
    ...         b.copy(y, x)
    >>> gs.analysis.hazards(recording.trace).verdict
    '1 hazard among 2 accesses, 0 unseen'
    """
    facts = trace.metadata.hazards
    if facts is None:
        raise MissingEvidence(
            "hazards were not looked for when this trace was recorded: record with "
            "profile(hazards=True)"
        )
    return HazardsResult(facts, **about(trace))
