"""For each lesson: right and wrong answers, and what solves its exercises."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from playing import solutions
from race_answers import SOLVED, changed

Given = dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Key:
    """What a lesson's questions are answered with.

    Attributes
    ----------
    right, wrong
        Prediction or quiz → what is given.
    solved, failed
        Cell id → source that solves an exercise, or tries and fails.
    """

    right: Given
    wrong: Given
    solved: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


SAME, AFTER = "at the same time", "one after the other"

KEYS = {
    "01_launch_and_wait.ipynb": Key(
        right={
            "launch_time": ("far less than the kernel",),
            "wait_time": (3, 9),
            "order_of_events": (
                "the third launch returns", "the first kernel ends", "the wait returns",
            ),
            "early_read": (0,),
            "pageable_copy": ("when the copy is done",),
            "two_clocks": ("the host",),
            "never_waits": ("queue.is_done",),
        },
        wrong={
            "launch_time": ("about as long as the kernel",),
            "wait_time": (0.001, 0.004),
            "order_of_events": (
                "the first kernel ends", "the third launch returns", "the wait returns",
            ),
            "early_read": (7,),
            "pageable_copy": ("at once",),
            "two_clocks": ("exactly the same",),
            "never_waits": ("gpu.synchronize()",),
        },
        failed={
            "task-timer": """
def gpu_time_ns(stream, handle):
    stream.synchronize()
    before = gpu.now_ns()
    handle.execute(stream=stream)
    stream.synchronize()
    return gpu.now_ns() - before
""",
            "task-read": """
def read_first(stream, page, sevens):
    work.execute(stream=stream)
    stream.copy(page, sevens)
    gpu.synchronize()
    return float(page[0])
""",
        },
    ),
    "02_streams.ipynb": Key(
        right={
            "same_stream": (AFTER,),
            "two_streams": (SAME,),
            "two_big": ("about as long as two, one after the other",),
            "copies": ("only the one up and one down",),
            "legacy_between_blocking": ("a, then b, then c",),
            "legacy_between_nonblocking": ("all three at the same time",),
            "library_in_legacy": ("in a stream that cudaStreamCreate made",),
            "two_threads": (SAME,),
            "closing_a_stream": ("they are still done",),
        },
        wrong={
            "same_stream": (SAME,),
            "two_streams": (AFTER,),
            "two_big": ("about as long as one",),
            "copies": ("both pairs",),
            "legacy_between_blocking": ("all three at the same time",),
            "legacy_between_nonblocking": ("a, then b, then c",),
            "library_in_legacy": ("in any stream",),
            "two_threads": (AFTER,),
            "closing_a_stream": ("they are thrown away",),
        },
        failed={
            "task-spread": """
def launch_all(kernels, streams):
    for number, kernel in enumerate(kernels):
        kernel.execute(stream=streams[number % 2])
""",
            "task-late": """
def launch_and_wait(kernels, streams):
    for kernel, stream in zip(kernels, streams):
        kernel.execute(stream=stream)
""",
        },
    ),
    "03_events.ipynb": Key(
        right={
            "missing_wait": (0,),
            "mended": (7,),
            "who_waits": ("stream b",),
            "recorded_too_early": (0,),
            "recorded_again": ("late",),
            "host_waits": ("late ends", "event.synchronize() returns", "later ends"),
            "host_function": ("it notes 7, and out is 9",),
            "never_recorded": (0,),
            "asking": ("False, at once",),
            "another_gpu": ("all of them",),
        },
        wrong={
            "missing_wait": (7,),
            "mended": (0,),
            "who_waits": ("both",),
            "recorded_too_early": (7,),
            "recorded_again": ("late and later",),
            "host_waits": ("late ends", "later ends", "event.synchronize() returns"),
            "host_function": ("it notes 0, and out is 0",),
            "never_recorded": (7,),
            "asking": ("True, when late has ended",),
            "another_gpu": ("(3)",),
        },
        failed={
            "task-diamond": """
def diamond(first, left, right, last, s, t):
    first.execute(stream=s)
    left.execute(stream=s)
    right.execute(stream=s)
    last.execute(stream=s)
""",
            "task-overwrite": """
def twice(a, b):
    a.copy(out, sevens)
    b.wait(a.record())
    late.execute(stream=b)
    b.copy(result, out)
""",
        },
    ),
    "04_caller_stream.ipynb": Key(
        right={
            "nobody_selects": ("yes",),
            "guarded": ("in s, and still running",),
            "nested": ("s, t, s",),
            "explicit": ("in t",),
            "zero": ("0: the legacy default stream is selected",),
            "thread": ("nothing",),
            "confinement": (0.5,),
            "tasks": ("only the one that was awaited directly",),
        },
        wrong={
            "nobody_selects": ("no, it is still running",),
            "guarded": ("in s, and finished",),
            "nested": ("s, t, t",),
            "explicit": ("in s",),
            "zero": ("None: nothing is selected",),
            "thread": ("s",),
            "confinement": (1,),
            "tasks": ("both",),
        },
        failed={
            "task-thread": """
def launch_from_thread(job):
    thread = threading.Thread(target=lambda: job.execute(stream=s))
    thread.start()
    thread.join()
""",
            "task-library": """
def mended(duration_ns):
    stream = gpu.wrap_stream(gs.get_caller_stream() or private)
    stream.launch(stubborn_kernel, duration_ns, grid=1, block=32)
""",
        },
    ),
    "05_carving_sms.ipynb": Key(
        right={
            "rest": (116,),
            "seventeen": ("an error that names the nearest numbers",),
            "slower": (7,),
            "beside": (SAME,),
            "second_carving": ("an error that says who holds them",),
            "evidence": ("simulated",),
            "copies_beside": ("about as long as two, one after the other",),
            "after_closing": ("an error",),
            "partition_and_legacy": ("it does not wait",),
            "what_is_promised": (
                "neither: that any two of them run at the same time is not promised",
            ),
        },
        wrong={
            "rest": (120,),
            "seventeen": ("17 SMs",),
            "slower": (2,),
            "beside": (AFTER,),
            "second_carving": ("the first one shrinks",),
            "evidence": ("allocated",),
            "copies_beside": ("about as long as one",),
            "after_closing": ("it runs on the whole GPU",),
            "partition_and_legacy": ("it waits",),
            "what_is_promised": (
                "kernels of decode and kernels of prefill run at the same time: they share no SM",
            ),
        },
        failed={
            "task-sizes": """
def carve_for_decode(gpu):
    return gpu.plan_carve({"decode": 32, "prefill": "rest"})
""",
            "task-serve": """
def serve(small, large, parts):
    with gs.CallerStreamGuard(parts["prefill"].create_stream()):
        large.execute()
    large.wait()
    with gs.CallerStreamGuard(parts["decode"].create_stream()):
        small.execute()
""",
        },
    ),
    "06_latency_under_load.ipynb": Key(
        right={
            "no_partition": (60, 240),
            "priority": ("about the same",),
            "urgent": ("when the first blocks of load end",),
            "partition": ("much shorter",),
            "gain": ("about 1",),
            "memory": ("at least 20 % longer",),
            "product": ("at least 20 % longer",),
            "why_not_priority": (
                "the load's blocks sit on all SMs already and are not interrupted",
            ),
        },
        wrong={
            "no_partition": (1, 4),
            "priority": ("much shorter",),
            "urgent": ("at once",),
            "partition": ("longer",),
            "gain": ("about 2",),
            "memory": ("not at all",),
            "product": ("less than 20 % longer",),
            "why_not_priority": ("priorities need a partition to work",),
        },
        failed={
            "task-choose": """
def choose(points):
    return max(points, key=lambda one: one["kept"])["size"]
""",
            "task-gain": """
def gain(a, b, solo_a, solo_b):
    busy = sum(end - start for start, end in a + b)
    return (len(a) * solo_a + len(b) * solo_b) / busy
""",
        },
    ),
    "07_reuse_without_waiting.ipynb": Key(
        right={
            "same_stream": ("it goes on at once",),
            "other_stream": ("one after the other, and the host goes on",),
            "two_in_flight": (SAME,),
            "completion": ("job ends", "the wait returns", "later ends"),
            "host_operands": ("no: it has waited",),
            "scratch_same_stream": ("the same memory",),
            "scratch_other_stream": ("other memory",),
            "growth": (0,),
            "memory_across_streams": ("after v has waited for a later point of u",),
        },
        wrong={
            "same_stream": ("it waits for the first call",),
            "other_stream": (SAME,),
            "two_in_flight": (AFTER,),
            "completion": ("job ends", "later ends", "the wait returns"),
            "host_operands": ("yes",),
            "scratch_same_stream": ("other memory",),
            "scratch_other_stream": ("the same memory",),
            "growth": (100 * 1024 * 1024,),
            "memory_across_streams": ("at once",),
        },
        failed={
            "task-pairs": """
def four_calls(gpu, streams, kernel_ns):
    handle = Spin(gpu, duration_ns=kernel_ns, name="four")
    for number in range(4):
        handle.execute(stream=streams[number % 2])
    handle.wait()
    return handle
""",
            "task-first": """
def first_result(job, later, stream):
    job.execute(stream=stream)
    later.execute(stream=stream)
""",
        },
    ),
    "08_graphs.ipynb": Key(
        right={
            "captured": (0,),
            "cost": ("twenty launches take at least three times as long",),
            "partition": ("in the partition",),
            "values": (9,),
            "scalar": ("2 ms",),
            "twice": (AFTER,),
            "executables": (SAME,),
            "fork": ("about 2 ms",),
            "isolation": ("both",),
            "capture_default": ("(1) and (3)",),
            "update": ("the update fails; instantiate anew",),
            "child": ("an error",),
        },
        wrong={
            "captured": (20,),
            "cost": ("about the same",),
            "partition": ("on the whole GPU",),
            "values": (7,),
            "scalar": ("6 ms",),
            "twice": (SAME,),
            "executables": (AFTER,),
            "fork": ("about 4 ms",),
            "isolation": ("neither",),
            "capture_default": ("(1), (3) and (4)",),
            "update": (
                "both launches keep the old argument; the new kernel runs from the next launch on",
            ),
            "child": ("the graph becomes a child graph node",),
        },
        failed={
            "task-join": """
def capture_both(one, two, s, t):
    with s.capture(name="both") as graph:
        one.execute(stream=s)
        two.execute(stream=s)
    return graph
""",
            "task-wait": """
def capture_in_order(one, two, s):
    with s.capture(name="in order") as graph:
        one.execute(stream=s)
    return graph
""",
            "task-serve": """
def serve(model, static, out, inputs, stream):
    stream.copy(static, inputs[0])
    return [float(gpu.to_host(out)[0]) for _ in inputs]
""",
        },
    ),
    "09_reading_a_timeline.ipynb": Key(
        right={
            "gaps": ("at least three times as long as without",),
            "launch_latency": (6, 60),
            "tiny_kernels": ("the host",),
            "overlap": (0.67,),
            "waves": ("at least 8 % longer",),
            "case_a": ("work runs outside the partition that it was given to",),
            "case_b": ("the host waits after every launch",),
            "case_c": ("a wait is missing: something is read before it is written",),
            "case_c_which": (4,),
            "case_d": ("the legacy default stream puts everything in order",),
        },
        wrong={
            "gaps": ("as briefly as without the waits",),
            "launch_latency": (1000, 5000),
            "tiny_kernels": ("the GPU",),
            "overlap": (1,),
            "waves": ("the same time, to within a few percent",),
            "case_a": ("two workloads share one stream",),
            "case_b": ("the legacy default stream puts everything in order",),
            "case_c": ("the host waits after every launch",),
            "case_c_which": (1,),
            "case_d": ("the host waits after every launch",),
        },
        failed={
            "task-interference": """
def interference(alone_us, together_us):
    return float(np.mean(together_us) / np.mean(alone_us)) - 1
""",
        },
    ),
    "10_your_own_code.ipynb": Key(
        right={
            "where_the_host_waits": ("back to the host",),
            "range_on_the_gpu": ("no, the GPU goes on with them for long",),
            "who_is_slower": ("the GPU waits for the host",),
            "bound_guard": (1,),
            "for_nsys": ("mine.sqlite",),
        },
        wrong={
            "where_the_host_waits": ("products",),
            "range_on_the_gpu": ("yes",),
            "who_is_slower": ("neither",),
            "bound_guard": (0,),
            "for_nsys": ("mine.html",),
        },
        failed={
            "task-range": """
def kernels_in(trace, name):
    return len(trace.where(kind="kernel"))
""",
            "task-export": """
def hand_over(trace, folder):
    return gs.export(trace, folder / "it.sqlite"), gs.export(trace, folder / "it.parquet")
""",
        },
    ),
    "11_find_the_race.ipynb": Key(
        right={
            "offload": ("read after write: write_kv → copy",),
            "export": ("host access too early: copy → NumPy's copy",),
            "upload": ("host access too early: copy → NumPy's write",),
            "reload": ("write after read: attention → copy",),
            "gather": ("read after write: left_half → join",),
            "count": ("write after write: fill → histogram",),
            "stash": ("reuse of freed memory: copy → layer_2",),
            "decode": (
                "use before a copy ended: copy → attention; write after read: attention → copy",
            ),
            "megatron": ("none: all is in order",),
        },
        wrong={
            "offload": ("read after write: write_kv → decode",),
            "export": ("none: all is in order",),
            "upload": ("use before a copy ended: copy → copy",),
            "reload": ("read after write: attention → copy",),
            "gather": ("write after write: left_half → right_half",),
            "count": ("none: all is in order",),
            "stash": ("read after write: layer_1 → copy",),
            "decode": ("use before a copy ended: copy → attention",),
            "megatron": ("reuse of freed memory: layer → all_gather",),
        },
        solved={f"task-{task}": changed(task, changes) for task, changes in SOLVED.items()},
        failed={f"task-{task}": changed(task, []) for task in SOLVED},
    ),
    "12_copy_and_compute.ipynb": Key(
        right={
            "chunks": ("about half as long",),
            "pageable": ("nothing",),
            "order": ("at least 5 % longer",),
            "limit": ("a little over 9 ms",),
            "how_many": ("12 chunks",),
        },
        wrong={
            "chunks": ("about a third as long",),
            "pageable": ("an upload, a kernel and a download",),
            "order": ("about as long",),
            "limit": ("a little over 4 ms",),
            "how_many": ("768 chunks",),
        },
        failed={
            "task-stages": """
def in_stages(up, compute, down, batch, on_gpu, result):
    for source, place, target in zip(batch, on_gpu, result):
        up.copy(place, source)
        process(compute, place, place)
        down.copy(target, place)
""",
            "task-feed": """
def feed(load, compute, chunks, staging, on_gpu, out):
    for i, chunk in enumerate(chunks):
        staging[i % 2][:] = chunk
        load.copy(on_gpu[i % 2], staging[i % 2])
        compute.wait(load.record())
        process(compute, out[i], on_gpu[i % 2])
""",
        },
    ),
    "13_what_waits_unasked.ipynb": Key(
        right={
            "copy_between": (AFTER,),
            "one_nonblocking": ("b beside a, the copy after a",),
            "which_call_waits": ("(2) and (4)",),
            "freeing": ("cudaFree(p)",),
            "host_function": ("b and c",),
            "late_error": ("the copy of numbers",),
            "sticky": ("they return the same error until the process ends",),
            "launch_blocking": ("the launch of look_up",),
        },
        wrong={
            "copy_between": (SAME,),
            "one_nonblocking": (AFTER,),
            "which_call_waits": ("(2)",),
            "freeing": ("cudaEventRecord(e, s)",),
            "host_function": ("b, c, d and the host",),
            "late_error": ("s.synchronize()",),
            "sticky": ("they work",),
            "launch_blocking": ("s.synchronize()",),
        },
        failed={
            "task-answer": """
def first_answer(ask, draft, s, t, buffer, page):
    ask.execute(stream=s)
    s.copy(page, ask.array)
    t.copy(buffer, zeros)
    draft.execute(stream=t)
    gpu.synchronize()
    return float(page[0])
""",
            "task-culprit": """
def culprit(steps, stream):
    for step in steps:
        step.execute(stream=stream)
        if stream.is_done:
            return step.name
    return None
""",
        },
    ),
    "14_a_small_server.ipynb": Key(
        right={
            "admitted": ("both",),
            "counted": ("when the kernel in chat has ended",),
            "token_waits": ("less than a quarter",),
            "late_token": ("the document, though it runs on other SMs",),
        },
        wrong={
            "admitted": ("prefill may begin before its prompt is there",),
            "counted": ("right behind the library's kernel",),
            "token_waits": ("more than three quarters",),
            "late_token": ("the copy of the count, which takes long",),
        },
        failed={
            "task-admit": """
def admit(copies, chat, x, source, kv):
    copies.copy(x, source)
    chat.wait(copies.record())
    prefill(chat, kv, x)
""",
            "task-count": """
def count(decode, counts, state):
    decode.synchronize()
    library_count(counts, state)
""",
            "task-stage": """
def stage(prompt, page, read):
    page[:] = prompt
    return page
""",
            "task-step": """
def make_step(decode, state, token):
    with decode.capture() as graph:
        layer(decode, state)

    def step():
        for _ in range(LAYERS):
            graph.launch(stream=decode)
        decode.copy(token, state)

    return step
""",
            "task-place": """
def place(gpu, step_us, limit_us):
    return gpu.carve({"decode": 16, "prefill": "rest"})
""",
            "task-queues": """
def queues(part):
    return part.create_stream(name="chat"), part.create_stream(name="batch", priority=-5)
""",
            "task-report": """
def report(decode, counts, page):
    decode.copy(page, counts)
    gpu.synchronize()
    return float(page[0])
""",
        },
    ),
}  # fmt: skip
KEYS = {
    name: key if key.solved else replace(key, solved=solutions(name)) for name, key in KEYS.items()
}
