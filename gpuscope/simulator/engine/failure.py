"""What work on the simulated GPU raised."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Failure:
    """What a piece of work raised: told once, by the first call that waits for that work.

    Attributes
    ----------
    before
        One that the same work or what it follows met earlier.
    reported
        Whether somebody was told.
    """

    error: Exception
    before: Failure | None
    reported: bool = False

    def first(self) -> Failure | None:
        """Return the earliest of them that nobody was told."""
        earliest, failure = None, self if not self.reported else self.before
        while failure is not None:
            if not failure.reported:
                earliest = failure
            failure = failure.before
        return earliest

    def tell(self) -> None:
        """Raise the error, unless somebody was told."""
        if not self.reported:
            self.reported = True
            raise self.error
