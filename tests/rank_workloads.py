"""Workloads of experiments on several ranks that go wrong on one of them."""

import os
import sys
import time

from gpuscope.workloads import workload


@workload
def dies(ctx, *, rank: int) -> None:
    """End the process of one rank."""
    if os.environ["RANK"] == str(rank):
        os._exit(3)


@workload
def fails(ctx, *, rank: int) -> None:
    """Fail on one rank."""
    if os.environ["RANK"] == str(rank):
        raise ValueError("no such luck")


@workload
def sleeps(ctx) -> None:
    """Never return."""
    sys.stderr.write("asleep\n")
    time.sleep(600)
