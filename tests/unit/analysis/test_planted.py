"""What would help programs of somebody else's, each with one fault planted, on the simulated GPU."""

from __future__ import annotations

import planted_programs
import pytest

import gpuscope as gs
from gpuscope.analysis.help_analysis import help_in_steps
from gpuscope.telling.of_program import WORTH_A_MEND

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
NAMED = {
    "finetune_small": "do not wait for the GPU",
    "classify_images": "pin the memory",
    "denoise_video": "copy beside kernels",
    "detect_and_track": "keep off the legacy default stream",
    "chat_beside_embedding": "give it a larger partition",
    "rank_items": "use another stream",
    "decode_beside_prefill": "give it priority or a partition",
    "transcribe": "drop the wait between streams",
    "decode_tiny_model": "record as one graph",
    "train_with_statistics": "shorten the Python before",
    "simulate_fluid": "shorten the host function",
    "train_graph_network": "use more thread blocks",
    "language_model_forward": "multiply in a narrower type",
    "search_while_indexing": "do not wait for the GPU",
    "train_four_ranks": "let the rank keep up",
    "predict_clicks": "copy it in one piece",
    "render_views": "launch the same graph again",
}
"""Program → the change that mends it. Of the others no row tells the fault: a simulated device has
none of calls for memory, of looks that see nothing and of what Python computes."""
BESIDES = {"denoise_video": "copies to the host, which are a change of their own"}
"""Program → what its mend gains by besides the change."""


def length_ns(trace):
    ends = trace.array("end_ns", fill=0)
    return int(ends.max() - trace.array("start_ns").min())


@pytest.mark.parametrize("name", NAMED)
def test_what_is_planted_is_named_first_and_gains_no_more_than_is_said(name):
    program = planted_programs.PROGRAMS[name]
    trace = program.run(mended=False)
    change = help_in_steps(trace).changes[0]
    assert change.change == NAMED[name]
    rules = [finding.rule for finding in gs.findings(trace).findings]
    assert "program.may-help" in rules or "program.help" in rules
    mended = program.run(mended=True)
    left = help_in_steps(mended)
    assert all(
        other.expected_ns < WORTH_A_MEND * left.span_ns
        for other in left.changes
        if other.change == change.change
    )
    gained_ns = length_ns(trace) - length_ns(mended)
    off_ns = length_ns(trace) / 500  # one run's hosts are not the other's
    if name not in BESIDES:
        assert change.low_ns - off_ns <= gained_ns <= change.high_ns + off_ns


@pytest.mark.parametrize("name", ["healthy_training", "healthy_bandwidth"])
def test_a_program_without_a_fault_is_told_that_nothing_gains_much(name):
    trace = planted_programs.PROGRAMS[name].run(mended=False)
    first = gs.findings(trace).findings[0]
    assert first.rule == "program.limit"


def copied_out(*, waits_each):
    """Copy a small result out behind each kernel, which is waited for or comes from elsewhere."""
    gpu = gs.open_device("sim:h200", quiet=True)
    work = planted_programs.kernel(gpu, "work", 30)
    results, host = gpu.empty((40, 64)), gpu.empty_pinned((40, 64))
    compute, out = gpu.create_stream(name="compute"), gpu.create_stream(name="out")
    with compute, out, gs.profile(gpu) as recording:
        for step in range(40):
            compute.launch(work, grid=132, block=256)
            if not waits_each:
                out.wait(compute.record(timing=False))
            out.copy(host[step], results[step])
            if waits_each:
                out.synchronize()
        gpu.synchronize()
    return recording.trace


@pytest.mark.parametrize("waits_each", [False, True])
def test_copies_that_something_waits_for_are_not_one_piece(waits_each):
    changes = help_in_steps(copied_out(waits_each=waits_each)).changes
    assert "copy it in one piece" not in {change.change for change in changes}


def test_different_graphs_launched_once_are_not_the_same():
    gpu = gs.open_device("sim:h200", quiet=True)
    kernels = [planted_programs.kernel(gpu, f"k{number}", 10) for number in range(13)]
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        for number in range(12):
            with stream.capture(name="view") as graph:
                for at in (0, *(1 + (number + more) % 12 for more in range(8)), 0):
                    stream.launch(kernels[at], grid=132, block=256)
            graph.launch(stream=stream)
        stream.synchronize()
    changes = help_in_steps(recording.trace).changes
    assert "launch the same graph again" not in {change.change for change in changes}


def test_two_streams_that_wait_for_each_others_sms_gain_nothing_by_priority():
    gpu = gs.open_device("sim:h200", quiet=True)
    full = planted_programs.kernel(gpu, "full", 100)
    one, two = (gpu.create_stream(name=name) for name in ("one", "two"))
    with one, two, gs.profile(gpu) as recording:
        for _ in range(20):
            for stream in (one, two):
                stream.launch(full, grid=528, block=1024)
        gpu.synchronize()
    changes = help_in_steps(recording.trace).changes
    assert "give it priority or a partition" not in {change.change for change in changes}
