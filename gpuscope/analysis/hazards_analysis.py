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
        """Among how much was searched, and what was not seen."""
        facts, names = self.facts, ", ".join(self.facts.unseen_names)
        unsure = f", {facts.undecided:,} undecided" if facts.undecided else ""
        searched = f"searched: {facts.accesses:,} accesses, {facts.unseen:,} unseen{unsure}"
        return sentences(searched, f"unseen: {names}" if names else "")


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
    >>> [fact.kind for fact in gs.analysis.hazards(recording.trace).found]
    ['use before a copy ended']
    """
    facts = trace.metadata.hazards
    if facts is None:
        raise MissingEvidence(
            "hazards were not looked for when this trace was recorded: record with "
            "profile(hazards=True)"
        )
    return HazardsResult(facts, **about(trace))
