"""What a tuning found: a table, its figure, and its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope._checks import door
from gpuscope._text import clean
from gpuscope.comparing.choice_figure import tuning as tuning_figure
from gpuscope.comparing.tunings import TunedWords, Tuning, tuned_words
from gpuscope.search.tuned_code import write_tuning

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class TuneResult(Tuning):
    """What :func:`gpuscope.tune` found: a table, a winner if there is one, and ways to use it.

    ``best`` is the winner; ``None`` where noise does not tell it from others: then take ``choice``.
    Each is a ``TunedSetting``.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "partitions": {"a": 8},
    ...     "streams": {"s": {"partition": "a"}},
    ...     "workloads": {"w": {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "s",
    ...                         "repeats": 3}},
    ... }
    >>> result = gs.tune(one, {"partitions.a": [8, 64, 120]}, "w.tflop_per_s", device=gpu)
    >>> result.best.label, dict(result.best.sizes)
    ('a = 120', {'a': 120})
    """

    @property
    def words(self) -> TunedWords:
        """Which setting to take, which is best or why none is, how it was found, in words."""
        return tuned_words(self)

    @property
    def outcome(self) -> str:
        """Which setting is best, or why none is, in words."""
        return self.words.outcome

    @property
    def note(self) -> str:
        """What to take, outcome, method, forecasts and provenance in one paragraph."""
        stopped = "stopped early (with a path, the same call goes on)" if self.stopped else ""
        words = (stopped, self.words.joined, self.forecasts, self.words.errors, self.provenance)
        return clean(". ".join(filter(None, words)))

    def figure(self) -> go.Figure:
        """Draw the objective against what it costs: :func:`gpuscope.figures.tuning`."""
        return tuning_figure(self)

    @door("path", "setting")
    def export(self, path: str | Path, setting: str | None = None) -> Path:
        """Write the result for somebody else; the suffix says as what.

        ``.yaml`` is SGLang's ``manual_divisions``, ``.json`` all facts, ``.html`` a report;
        ``.py`` (cuda.core) and ``.cpp`` (CUDA driver) are code that makes just these partitions.

        Parameters
        ----------
        path
            The file.
        setting
            The label of the setting whose partitions are written; ``choice`` if not given.

        Raises
        ------
        InvalidArgument
            Of another suffix, or no setting was named where it is not known which to take.
        GpuscopeError
            The file cannot be written.
        """
        return write_tuning(self, path, setting)
