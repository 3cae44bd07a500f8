"""The command line: parse, run, render."""

from __future__ import annotations

import sys

from gpuscope._optional import needed_for
from gpuscope._text import clean_lines
from gpuscope.errors import GpuscopeError, InvalidExperiment

FAILED, BAD_USAGE = 1, 2


def main() -> None:
    """Run the command line; errors of ours become exit codes here and nowhere else."""
    try:
        with needed_for("the gpuscope command"):
            from gpuscope.cli.commands import app  # noqa: PLC0415 - needs the extra `cli`
        app()
    except GpuscopeError as error:
        sys.stderr.write(clean_lines(f"gpuscope: {error}\n"))
        raise SystemExit(BAD_USAGE if isinstance(error, InvalidExperiment) else FAILED) from None
