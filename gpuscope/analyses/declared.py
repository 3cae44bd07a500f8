"""The declaration of an analysis: all that reports, commands, cards and findings need of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpuscope._checks import door, given
from gpuscope.analysis.result import Result
from gpuscope.errors import GpuscopeError, InvalidArgument, MissingEvidence
from gpuscope.telling.finding import Finding
from gpuscope.trace.model import Trace

if TYPE_CHECKING:
    import plotly.graph_objects as go

Figures: TypeAlias = "Iterable[go.Figure | str]"
"""Figures, and plain text that stands between them."""


class AnalysisFailed(GpuscopeError):
    """An analysis of a plugin raised something that is no error of ours."""

    @property
    def finding(self) -> Finding:
        """What stands where its findings would."""
        return Finding("plugin", "warning", {"failure": str(self)})


@dataclass(frozen=True)
class Analysis:
    """An analysis, declared once: its section, command output, card and findings derive from it.

    Parameters
    ----------
    name
        What it is called in the JSON of ``gpuscope why``: lower-case letters and ``_``.
    title
        The heading of its section in reports, of its table in ``gpuscope why``, and of its card.
    judge
        From a trace to a result, whose rows and definition are shown. It raises
        :class:`~gpuscope.errors.MissingEvidence` where the trace does not hold what it takes.
    needs
        What most traces do not hold and this analysis takes, in words: where evidence is missing,
        nothing is said. Empty: then the reason is said.
    figures
        From label → trace to the figures of its section. Import Plotly inside, not with the
        module: whoever only prints rows does without.
    findings
        From a trace to what calls for action in it.
    card
        From a result to the findings that a card on the dashboard shows, notes among them.
    origin
        Which plugin declares it; empty for gpuscope's own. gpuscope sets it.

    Raises
    ------
    InvalidArgument
        A field has no such value.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.analyses import Analysis
    >>> streams = Analysis("streams", "Partitions and streams", gs.analysis.summary)
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.workloads.spin_kernel(gpu)
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     stream.launch(kernel, 5_000, grid=1, block=32)
    >>> len(streams.ask(recording.trace).rows())
    1
    """

    name: str
    title: str
    judge: Callable[[Trace], Result]
    needs: str = ""
    figures: Callable[[Mapping[str, Trace]], Figures] | None = None
    findings: Callable[[Trace], Iterable[Finding]] | None = None
    card: Callable[[Result], Iterable[Finding]] | None = None
    origin: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.replace("_", "a").isalpha():
            raise InvalidArgument(f"name is letters and _, not {given(self.name)}")
        if not isinstance(self.title, str) or not self.title:
            raise InvalidArgument(f"title is the heading of a section, not {given(self.title)}")
        for field in ("judge", "figures", "findings", "card"):
            function = getattr(self, field)
            if not callable(function) and (function is not None or field == "judge"):
                raise InvalidArgument(f"{field} is a function, not {given(function)}")

    @door(trace=Trace)
    def ask(self, trace: Trace) -> Result | str:
        """Return the result; or why there is none, which is empty where that goes without saying.

        What a plugin raises is such a reason, and names it.
        """
        try:
            with self.naming():
                result = self.judge(trace)
                if not isinstance(result, Result):
                    raise TypeError(f"judge returned {given(result)}, not a Result")
                return result
        except MissingEvidence as error:
            return "" if self.needs else str(error)
        except AnalysisFailed as error:
            return str(error)

    @door(trace=Trace)
    def found_in(self, trace: Trace) -> tuple[Finding, ...]:
        """Return its findings; of one that fails, that."""
        try:
            with self.naming():
                return tuple(self.findings(trace)) if self.findings else ()
        except AnalysisFailed as error:
            return (error.finding,)

    @door(trace=Trace)
    def card_of(self, trace: Trace) -> tuple[Finding, ...]:
        """Return what its card shows; nothing where it has none."""
        result = self.ask(trace) if self.card else ""
        try:
            with self.naming():
                return tuple(self.card(result)) if self.card and isinstance(result, Result) else ()
        except AnalysisFailed as error:
            return (error.finding,)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Name the plugin in what its code raises; errors of ours stay.

        Raises
        ------
        AnalysisFailed
            A plugin raised something that is no error of ours.
        """
        try:
            yield
        except GpuscopeError:
            raise
        except Exception as error:
            if not self.origin:
                raise
            raise AnalysisFailed(
                f"the analysis {self.name!r} of {self.origin} failed ({type(error).__name__}: "
                f"{error}). Mend or uninstall the package"
            ) from error
