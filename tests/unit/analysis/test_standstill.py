"""Why a thread stands still: each cause is told where it is, and of none where chance will do."""

from __future__ import annotations

import numpy as np
import pytest
from test_critical_path import kernel, launch, rows, wait

import gpuscope as gs
from gpuscope.analysis.causes import find_causes
from gpuscope.analysis.path_columns import last_node
from gpuscope.analysis.standstill import ProgramView
from gpuscope.trace.schema import HOLDS_LOCK, IN_CALL, NO_PYTHON, RUNS, WAITS_FOR_LOCK

SITE = '[["train.py", {}, "step"]]'
COMPILE, PROCESS, LOCK = (
    "compile it once", "give it a process of its own", "do not block with a lock held"
)  # fmt: skip
USUAL_NS = 20_000


def program(pauses_ns, grids=(), others=(), **facts):
    """Return a trace of launches with pauses before them, and rows of other threads."""
    spans, edges, at = [], [], 10_000_000
    for number, pause_ns in enumerate(pauses_ns):
        at += pause_ns
        ids = 2 * number + 1, 2 * number + 2
        spans += [
            launch(ids[0], 1, at, at + 5_000, SITE.format(7)),
            kernel(ids[1], "k", at + 6_000, at + 9_000, at + 5_000),
        ]
        grid = grids[number] if len(grids) else 1
        spans[-1][-1]["launch_config"] = f'{{"grid":[{grid},1,1],"block":[32,1,1]}}'
        edges.append((*ids, "launch"))
        at += 5_000
    return rows(*spans, *others, edges=edges, **facts)


def changes(trace):
    return {
        change.change: change
        for change in gs.analysis.what_would_help(trace).changes
        if change.change in (COMPILE, PROCESS, LOCK)
    }


def begins(span, thread, at=0):
    return (span, "mark", "thread begins", at, at, {"thread": thread, "process": 1})


def still_every(step, count, lengths_ns):
    """Return pauses, every so many of another length."""
    pauses_ns = np.full(count, USUAL_NS)
    pauses_ns[step::step] = lengths_ns[: len(pauses_ns[step::step])]
    return pauses_ns


# -- the interpreter ---------------------------------------------------------------------------
SWITCHES_NS = np.tile([5_100_000, 10_300_000, 15_600_000, 40_000_000], 20)


def test_pauses_of_whole_switch_intervals_are_the_interpreters():
    pauses_ns = still_every(10, 800, SWITCHES_NS)
    trace = program(pauses_ns, others=[begins(9001, 2)], thread_names={"2": "scorer"})
    found = changes(trace)
    assert found.keys() == {PROCESS}
    assert found[PROCESS].about.startswith("scorer computes in Python")
    paused = pauses_ns[pauses_ns > USUAL_NS]
    assert found[PROCESS].gain_ns == (paused - USUAL_NS).sum()
    assert found[PROCESS].low_ns > 0
    everything = gs.analysis.what_would_help(trace).changes
    assert everything[0] == found[PROCESS], "before all that gains at most so much"
    assert not any(change.change == "shorten the Python before" for change in everything)


def test_threads_that_hold_the_interpreter_by_turns_are_all_told():
    pauses_ns = still_every(10, 800, SWITCHES_NS)
    half_ns = int(pauses_ns.sum()) // 2
    seen = [(1, WAITS_FOR_LOCK, 0, 2), (2, HOLDS_LOCK, 0, 1), (3, HOLDS_LOCK, 1, 2)]
    stacks = [
        (9100 + thread, "stack", "f", first * half_ns, last * half_ns,
         {"thread": thread, "process": 1, "status": state, "value": 100.0})
        for thread, state, first, last in seen
    ]  # fmt: skip
    names = {"2": "scorer", "3": "reader"}
    marks = [begins(9001, 2), begins(9002, 3)]
    found = changes(program(pauses_ns, others=[*marks, *stacks], thread_names=names))
    assert found[PROCESS].about.startswith("scorer and 1 more compute in Python")
    alone = changes(program(pauses_ns, others=[*marks, *stacks[:2]], thread_names=names))
    assert alone[PROCESS].about.startswith("scorer computes in Python")


@pytest.mark.parametrize(
    ("pauses_ns", "others"),
    [
        pytest.param(SWITCHES_NS, [], id="no other thread"),
        pytest.param(SWITCHES_NS, [begins(9001, 2)], id="ours"),
        pytest.param(SWITCHES_NS, [begins(9001, 2, 10**12)], id="born later"),
        pytest.param(SWITCHES_NS + 2_000_000, [begins(9001, 2)], id="2 ms later"),
        pytest.param(
            SWITCHES_NS,
            [begins(9001, 2), wait(9002, "cudaDeviceSynchronize", 1, 10**9, thread=2)],
            id="asleep",
        ),
        pytest.param(
            np.random.default_rng(1).integers(4_500_000, 40_000_000, 80), [begins(9001, 2)],
            id="random",
        ),
    ],
)  # fmt: skip
def test_other_pauses_are_not_the_interpreters(pauses_ns, others, request):
    names = {"2": "gpuscope record" if request.node.callspec.id == "ours" else "scorer"}
    trace = program(still_every(10, 800, pauses_ns), others=others, thread_names=names)
    assert PROCESS not in changes(trace)


def stack(span, thread, begin_ns, end_ns, state, name="score"):
    more = {"thread": thread, "process": 1, "status": state, "value": 1.0}
    return (span, "stack", name, begin_ns, end_ns, more)


def sampled(holder):
    """Return rows of stacks: in its pauses the launching thread waits for the lock of another."""
    pauses_ns = still_every(10, 800, SWITCHES_NS)
    ends_ns = 10_000_000 + np.cumsum(pauses_ns + 5_000) - 5_000
    stacks = []
    for number, at in enumerate(np.flatnonzero(pauses_ns > USUAL_NS).tolist()):
        begin_ns, end_ns = int(ends_ns[at] - pauses_ns[at]), int(ends_ns[at])
        stacks += [
            stack(10_000 + 2 * number, 1, begin_ns, end_ns, WAITS_FOR_LOCK),
            stack(10_001 + 2 * number, holder, begin_ns, end_ns, HOLDS_LOCK),
        ]
    return pauses_ns, stacks


def test_who_holds_the_lock_by_samples_has_it():
    pauses_ns, stacks = sampled(holder=3)
    names = {"2": "loader", "3": "scorer"}
    others = [begins(9001, 2), begins(9002, 3), *stacks]
    found = changes(program(pauses_ns, others=others, thread_names=names))
    assert found[PROCESS].about.startswith("scorer ")


@pytest.mark.parametrize("state", [RUNS, f"{IN_CALL}futex"])
def test_nobody_who_holds_no_lock_by_samples_is_told(state):
    pauses_ns, stacks = sampled(holder=3)
    stacks = [(*row[:5], {**row[5], "status": state}) for row in stacks]
    trace = program(pauses_ns, others=[begins(9001, 3), *stacks])
    assert PROCESS not in changes(trace)


def test_a_thread_without_python_holds_no_lock():
    """Such as autograd's, where what the launching thread does lasts 5 ms by chance."""
    pauses_ns, _ = sampled(holder=3)
    stacks = [stack(10_000, 3, 1, 10**10, f"{IN_CALL}futex", NO_PYTHON)]
    assert PROCESS not in changes(program(pauses_ns, others=stacks))


def test_a_thread_may_wait_for_the_interpreter_each_time():
    others = [begins(9001, 2)]
    assert PROCESS in changes(program(np.full(60, 5_200_000), others=others))
    assert PROCESS not in changes(program(np.full(60, 4_000_000), others=others))
    lengths_ns = np.random.default_rng(2).integers(4_500_000, 40_000_000, 60)
    assert PROCESS not in changes(program(lengths_ns, others=others))


# -- kernels -----------------------------------------------------------------------------------
def new_grids(count, every):
    """Return grids, every so many of which is new, and pauses before these."""
    grids = np.array([number - number % every for number in range(count)]) // every
    pauses_ns = np.where(np.arange(count) % every == 0, 70_000_000, USUAL_NS)
    return grids, pauses_ns


def test_a_kernel_that_is_compiled_for_each_configuration_is_told():
    grids, pauses_ns = new_grids(400, 20)
    found = changes(program(pauses_ns, grids))
    assert found.keys() == {COMPILE}
    assert found[COMPILE].about == "k at train.py:7 in step"
    assert found[COMPILE].gain_ns == 19 * (70_000_000 - USUAL_NS), "once it has to be"


@pytest.mark.parametrize("seed", range(4))
def test_pauses_anywhere_else_are_no_compilation(seed):
    grids, pauses_ns = new_grids(400, 20)
    shuffled = np.random.default_rng(seed).permutation(pauses_ns)
    assert COMPILE not in changes(program(shuffled, grids))
    assert COMPILE not in changes(program(np.full(400, USUAL_NS), grids))
    loads_ns = np.where(pauses_ns > USUAL_NS, 1_000_000, USUAL_NS)
    assert COMPILE not in changes(program(loads_ns, grids)), "loading is no compiling"


# -- locks -------------------------------------------------------------------------------------
def held_up(late_ns=300_000, shift_ns=0):
    """Return a trace whose thread goes on after another's call, so much later each time."""
    count = 400
    pauses_ns = still_every(20, count, np.full(20, 9_000_000))
    ends = 10_000_000 + np.cumsum(pauses_ns + 5_000) - 5_000
    others = [begins(9000, 2)]
    for number, at in enumerate(np.flatnonzero(pauses_ns > USUAL_NS).tolist()):
        end = int(ends[at]) - late_ns + shift_ns
        others.append(wait(9001 + number, "cudaDeviceSynchronize", end - 8_000_000, end, thread=2))
        others[-1][-1]["site"] = SITE.format(32)
    return program(pauses_ns, others=others, thread_names={"2": "statistics"}), pauses_ns


def test_pauses_that_end_when_another_thread_returns_are_a_lock():
    trace, pauses_ns = held_up()
    found = changes(trace)
    assert found.keys() == {LOCK}
    assert found[LOCK].about == "statistics in cudaDeviceSynchronize at train.py:32 in step"
    assert found[LOCK].gain_ns == (pauses_ns[pauses_ns > USUAL_NS] - USUAL_NS).sum()


@pytest.mark.parametrize("shift_ns", [-5_000_000, 5_000_000])
def test_pauses_that_end_at_other_times_are_no_lock(shift_ns):
    assert LOCK not in changes(held_up(shift_ns=shift_ns)[0])


# -- all ---------------------------------------------------------------------------------------
def test_a_pause_has_one_cause():
    grids, pauses_ns = new_grids(400, 20)
    trace = program(pauses_ns, grids, others=[begins(9001, 2)])
    causes = find_causes(trace)
    node = last_node(causes)
    found = ProgramView(trace, causes, node, int(causes.times[-1]), int(causes.times[node]))
    every = [*found.compiled, *found.blocked, *found.switched]
    count = sum(standstill.edges.astype(int) for standstill in every)
    assert count.max() == 1
    assert not (found.unexplained & (count > 0)).any()
    assert (found.is_code == (found.unexplained | (count > 0))).all()
