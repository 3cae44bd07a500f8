"""The command line: parse, run, render."""

from __future__ import annotations

import sys

from gpuscope._optional import needed_for
from gpuscope._text import clean_lines
from gpuscope.errors import GpuscopeError

FAILED, BAD_USAGE = 1, 2
"""Exit codes: what was judged does not hold, or less was done than was asked for; a wrong call or
another error. Of what is judged, 3 says that it cannot be told."""


def main() -> None:
    """Run the command line; errors of ours become exit codes here and nowhere else."""
    try:
        with needed_for("the gpuscope command"):
            from gpuscope.cli.commands import app  # noqa: PLC0415 - needs the extra `cli`
        app()
    except GpuscopeError as error:
        sys.stderr.write(clean_lines(f"gpuscope: {error}\n"))
        raise SystemExit(BAD_USAGE) from None
