"""The command line: parse, call the session, render."""

from __future__ import annotations

from gpuscope.cli import calibration as calibration
from gpuscope.cli import doctor as doctor
from gpuscope.cli import experiments as experiments
from gpuscope.cli import machine as machine
from gpuscope.cli import traces as traces
from gpuscope.cli.app import BAD_USAGE, FAILED, app, complain
from gpuscope.errors import GpuscopeError, InvalidExperiment


def main() -> None:
    """Run the command line; errors of ours become exit codes here and nowhere else."""
    try:
        app()
    except GpuscopeError as error:
        complain(f"gpuscope: {error}")
        raise SystemExit(BAD_USAGE if isinstance(error, InvalidExperiment) else FAILED) from None
