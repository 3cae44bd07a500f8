"""Programs that look right and are not, and programs that look odd and are right, for all exercises.

Fakes get their order from time instead of a wait, their values from elsewhere, or hand over what
only looks like an answer. In the form of :mod:`lesson_programs`.
"""

from __future__ import annotations

from lesson_programs import Answers

SLEEP = "gpu.backend.wait_until_ns(gpu.now_ns() + 100_000_000)"
EQUAL = "class Equal(float):\n    __eq__ = __lt__ = __gt__ = __le__ = __ge__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n    __sub__ = __rsub__ = __abs__ = lambda self, *_: self\n    __hash__ = None\n\n\n"

FAKES: Answers = {
    "01": {
        "timer": [
            ("the host's clock, less what a launch and a wait take", """
def gpu_time_ns(stream, handle):
    stream.synchronize()
    before = gpu.now_ns()
    handle.execute(stream=stream)
    stream.synchronize()
    return gpu.now_ns() - before - 25_000
"""),
            ("the host's clock, from one event to the next, asked for", """
def gpu_time_ns(stream, handle):
    first = stream.record()
    handle.execute(stream=stream)
    second = stream.record()
    while not first.is_done:
        pass
    before = gpu.now_ns()
    while not second.is_done:
        pass
    return gpu.now_ns() - before
"""),
            ("it sleeps in place of a wait", "second.synchronize()", SLEEP),
            ("it sleeps, and asks again until there is an answer", "    second.synchronize()\n    return second.elapsed_ns(since=first)", f"    while True:\n        {SLEEP}\n        try:\n            return second.elapsed_ns(since=first)\n        except gs.errors.StreamError:\n            pass"),
            ("another stream is waited for, for long", "second.synchronize()", f"{SLEEP}\n    gpu.create_stream().synchronize()"),
            ("durations that were asked for, found by looking around", """
def gpu_time_ns(stream, handle):
    import gc
    handle.execute(stream=stream)
    stream.synchronize()
    steps = {one.name: one for one in gc.get_objects() if type(one) is gs.workloads.Step}
    return steps["one"].duration_ns + steps["two"].duration_ns
"""),
            ("an object that is near everything", "def gpu_time_ns", EQUAL + "def gpu_time_ns", "return second.elapsed_ns(since=first)", "return Equal(second.elapsed_ns(since=first))"),
            ("not a number, of NumPy", "return second.elapsed_ns(since=first)", "return np.float64('nan')"),
            ("a text", "return second.elapsed_ns(since=first)", "return str(second.elapsed_ns(since=first))"),
            ("events around a copy of the handle that does less", "handle.execute(stream=stream)", "gs.workloads.Step(gpu, 20_000, name='one').execute(stream=stream)"),
            ("the stream is waited for first, so that events measure the launch, too", "    first = stream.record()", "    stream.synchronize()\n    first = stream.record()"),
            ("the time of its own kernels, beside the handle", """
def gpu_time_ns(stream, handle):
    handle.execute(stream=stream)
    first = stream.record()
    work.execute(stream=stream)
    second = stream.record()
    second.synchronize()
    return second.elapsed_ns(since=first)
"""),
            ("adds up nominal durations found by gc, waits, measures nothing", """
import gc
def gpu_time_ns(stream, handle):
    handle.execute(stream=stream)
    stream.synchronize()
    found = {}
    for thing in gc.get_objects():
        if type(thing) is gs.workloads.Step and thing.name in ("one", "two"):
            found[thing.name] = thing.duration_ns
    return sum(found.values()) + 1_500
"""),
        ],
        "read": [
            ("it sleeps on the GPU's clock", "stream.synchronize()", SLEEP),
            ("it looks at the host's clock", "stream.synchronize()", "end = gpu.now_ns() + 20_000_000\n    while gpu.now_ns() < end:\n        gpu.backend.wait_until_ns(gpu.now_ns() + 25_000)"),
            ("it sleeps until 25 µs before the end of the others", "stream.synchronize()", "gpu.backend.wait_until_ns(gpu.now_ns() + 39_900_000)"),
            ("it makes the GPU's time pass by calls", "stream.synchronize()", "other = gpu.create_stream()\n    for _ in range(8000):\n        other.is_done"),
            ("it asks another stream, for long", "stream.synchronize()", "idle = gpu.create_stream()\n    gpu.backend.wait_until_ns(gpu.now_ns() + 20_000_000)\n    idle.synchronize()"),
            ("the source's memory, which nobody copies", """
def read_first(stream, page, sevens):
    work.execute(stream=stream)
    stream.copy(page, page.copy())
    stream.synchronize()
    return float(gpu.backend.to_host(sevens)[0])
"""),
            ("another array is copied, and the source looked at", """
def read_first(stream, page, sevens):
    value = float(gpu.backend.to_host(sevens)[0])
    zeros = gpu.empty(4, "float32")
    work.execute(stream=stream)
    stream.copy(page, zeros)
    stream.synchronize()
    return value
"""),
            ("the source is looked at, and nobody waits for the copy", """
def read_first(stream, page, sevens):
    value = float(gpu.backend.to_host(sevens)[0])
    work.execute(stream=stream)
    stream.copy(page, sevens)
    return value
"""),
            ("the host fills the page", """
def read_first(stream, page, sevens):
    page[:] = gpu.backend.to_host(sevens)
    work.execute(stream=stream)
    stream.copy(page, page.copy())
    stream.synchronize()
    return float(page[0])
"""),
            ("a stream of the same name", "def read_first(stream, page, sevens):\n", "def read_first(stream, page, sevens):\n    stream = gpu.create_stream(name=stream.name)\n"),
            ("a kernel of its own, of the same name", "work.execute(stream=stream)", "gs.workloads.Step(gpu, work.duration_ns, name='work').execute(stream=stream)"),
            ("an event of before is waited for, after a sleep", "stream.synchronize()", "gpu.backend.wait_until_ns(gpu.now_ns() + 20_000_000)\n    gpu.create_event().synchronize()"),
        ],
    },
    "02": {
        "spread": [
            ("late launches, hidden by kernels that take twenty times longer", """
def launch_all(kernels, streams):
    for kernel, stream in zip(kernels, streams):
        kernel.duration_ns *= 20
        kernel.execute(stream=stream)
        gpu.backend.wait_until_ns(gpu.now_ns() + 20_000_000)
"""),
            ("other kernels of the same names and lengths", """
def launch_all(kernels, streams):
    for kernel, stream in zip(kernels, streams):
        gs.workloads.Step(gpu, kernel.duration_ns, name=kernel.name).execute(stream=stream)
"""),
            ("others of the same names, made before and told how long", """
made = {name: gs.workloads.Step(gpu, 1, name=name) for name in "abc"}


def launch_all(kernels, streams):
    for kernel, stream in zip(kernels, streams):
        made[kernel.name].duration_ns = kernel.duration_ns
        made[kernel.name].execute(stream=stream)
"""),
            ("one after the other, paced by the clock", """
def launch_all(kernels, streams):
    for kernel, stream in zip(kernels, streams):
        kernel.execute(stream=stream)
        gpu.backend.wait_until_ns(gpu.now_ns() + kernel.duration_ns)
"""),
            ("two together, the third behind", "zip(kernels, streams)", "zip(kernels, [streams[0], streams[1], streams[0]])"),
        ],
        "late": [
            ("it sleeps as long as all take", "    for stream in streams:\n        stream.synchronize()", "    gpu.backend.wait_until_ns(gpu.now_ns() + sum(kernel.duration_ns for kernel in kernels))"),
            ("it sleeps, and waits for one stream", "    for stream in streams:\n        stream.synchronize()", f"    {SLEEP}\n    streams[0].synchronize()"),
            ("it sleeps, and waits for streams of its own", "    for stream in streams:\n        stream.synchronize()", f"    {SLEEP}\n    for _ in streams:\n        gpu.create_stream().synchronize()"),
            ("it sleeps, and waits for events of before", "    for kernel", "    events = [stream.record() for stream in streams]\n    for kernel", "    for stream in streams:\n        stream.synchronize()", f"    {SLEEP}\n    for event in events:\n        event.synchronize()"),
            ("it waits for the longest, as it knows the durations", "    for stream in streams:\n        stream.synchronize()", "    longest = max(range(3), key=lambda i: kernels[i].duration_ns)\n    streams[longest].synchronize()"),
            ("it looks at the clock", "    for stream in streams:\n        stream.synchronize()", "    end = gpu.now_ns() + 50_000_000\n    while gpu.now_ns() < end:\n        gpu.backend.wait_until_ns(gpu.now_ns() + 25_000)"),
            ("a wait for an idle stream that is joined to nothing", "    for stream in streams:\n        stream.synchronize()", f"    other = gpu.create_stream()\n    {SLEEP}\n    other.synchronize()"),
            ("host functions, which nobody waits for", "    for stream in streams:\n        stream.synchronize()", f"    for stream in streams:\n        stream.host_call(lambda: None)\n    {SLEEP}"),
        ],
        "pytorch": [
            ("kernels of its own, which end at once", "            function()", "            gs.workloads.Step(gpu, 1_000, name='abc'[(s, t, u).index(stream)]).execute(stream=stream.cuda_stream)"),
            ("a stream is closed in between, which waits", "            function()", "            function()\n        gpu.wrap_stream(stream.cuda_stream).close()"),
            ("PyTorch itself, where it is not handed in", "    for function", "    import torch\n    for function"),
            ("a part of PyTorch that is not there", "torch.cuda.stream(stream)", "torch.cuda.device(stream)"),
        ],
    },
    "03": {
        "diamond": [
            ("the clock in place of the second event", "s.wait(t.record())", "gpu.backend.wait_until_ns(gpu.now_ns() + first.duration_ns + right.duration_ns + 1_000_000)"),
            ("the clock in place of both", """
def diamond(first, left, right, last, s, t):
    first.execute(stream=s)
    gpu.backend.wait_until_ns(gpu.now_ns() + first.duration_ns + 100_000)
    left.execute(stream=s)
    right.execute(stream=t)
    gpu.backend.wait_until_ns(gpu.now_ns() + right.duration_ns + 100_000)
    last.execute(stream=s)
"""),
            ("a kernel that takes its time, in place of the event", """
def diamond(first, left, right, last, s, t):
    first.execute(stream=s)
    gs.workloads.Step(gpu, first.duration_ns + 50_000, name="delay").execute(stream=t)
    left.execute(stream=s)
    right.execute(stream=t)
    s.wait(t.record())
    last.execute(stream=s)
"""),
            ("others of the same names, which read nothing", """
def diamond(first, left, right, last, s, t):
    new = [gs.workloads.Step(gpu, step.duration_ns, name=step.name) for step in (first, left, right, last)]
    first, left, right, last = new
    first.execute(stream=s)
    t.wait(s.record())
    left.execute(stream=s)
    right.execute(stream=t)
    last.execute(stream=s)
"""),
            ("others of the same names, made before, which read nothing", """
made = {name: gs.workloads.Step(gpu, 1, name=name) for name in ("first", "left", "right", "last")}


def diamond(first, left, right, last, s, t):
    for step in (first, left, right, last):
        made[step.name].duration_ns = step.duration_ns
    made["first"].execute(stream=s)
    t.wait(s.record())
    made["left"].execute(stream=s)
    made["right"].execute(stream=t)
    s.wait(t.record())
    made["last"].execute(stream=s)
"""),
            ("one other of the same name", "last.execute(stream=s)", "gs.workloads.Step(gpu, last.duration_ns, name='last').execute(stream=s)", "    s.wait(t.record())\n", "    s.wait(t.record())\n"),
            ("the host waits before it returns", "    last.execute(stream=s)", "    early = s.record()\n    last.execute(stream=s)\n    early.synchronize()"),
            ("a host function in t waits for the clock", "t.wait(s.record())", "t.host_call(lambda: None)"),
            ("a thread waits for first and launches right", """
def diamond(first, left, right, last, s, t):
    import threading
    first.execute(stream=s)
    done = s.record()
    left.execute(stream=s)

    def other():
        done.synchronize()
        right.execute(stream=t)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    s.wait(t.record())
    last.execute(stream=s)
"""),
        ],
        "overwrite": [
            ("the next round before this one", """
def twice(a, b):
    a.copy(out, eights)
    a.copy(out, sevens)
    b.wait(a.record())
    late.execute(stream=b)
    b.copy(result, out)
"""),
            ("the consumer copies the source", "b.copy(result, out)", "b.copy(result, sevens)"),
            ("the consumer copies the source, and nobody waits", "b.copy(result, out)", "b.copy(result, sevens)", "    a.wait(b.record())\n", ""),
            ("the host writes the result", """
def twice(a, b):
    a.copy(out, sevens)
    b.wait(a.record())
    late.execute(stream=b)
    b.copy(gpu.empty_pinned(COUNT), out)
    a.wait(b.record())
    a.copy(out, eights)
    result[:] = 7
"""),
            ("sevens in place of eights, and eights by the host", """
def twice(a, b):
    a.copy(out, sevens)
    b.wait(a.record())
    late.execute(stream=b)
    b.copy(result, out)
    a.wait(b.record())
    a.copy(out, sevens)
"""),
            ("sevens are made on the host", """
def twice(a, b):
    page = gpu.empty_pinned(COUNT)
    page[:] = 7
    a.copy(out, page)
    b.wait(a.record())
    late.execute(stream=b)
    b.copy(result, out)
    a.wait(b.record())
    a.copy(out, eights)
"""),
            ("the clock in place of the event", "a.wait(b.record())", "gpu.backend.wait_until_ns(gpu.now_ns() + late.duration_ns + 5_000_000)"),
            ("the host asks until b is done", "a.wait(b.record())", "while not b.is_done:\n        pass"),
            ("streams of its own with their names", "def twice(a, b):\n", "def twice(a, b):\n    a, b = (gpu.create_stream(name=name) for name in 'ab')\n"),
            ("late of its own, shorter", "late.execute(stream=b)", "gs.workloads.Step(gpu, 1_000_000, name='late').execute(stream=b)"),
            ("a copies the result, too", "b.copy(result, out)", "a.copy(result, out)"),
            ("zeros are written over, so that nobody sees eights", "    a.wait(b.record())\n    a.copy(out, eights)", "    b.copy(out, eights)"),
        ],
        "pytorch": [
            ("it sleeps in place of both", "t.wait_stream(s)", SLEEP, "s.wait_stream(t)", SLEEP),
            ("it sleeps in place of the way back", "s.wait_stream(t)", SLEEP),
            ("it asks once, having slept", "s.wait_stream(t)", f"{SLEEP}\n    assert t.query()"),
            ("gpuscope's events, of the wrong stream", "s.wait_stream(t)", "gpu.wrap_stream(s.cuda_stream).wait(gpu.wrap_stream(s.cuda_stream).record())"),
            ("last is another kernel", "        last()", "        gs.workloads.Step(gpu, 3_000_000, name='last').execute(stream=s.cuda_stream)"),
            ("wait_stream does nothing by now", "    t.wait_stream(s)", "    type(t).wait_stream = lambda *_: None\n    t.wait_stream(s)"),
        ],
    },
    "04": {
        "thread": [
            ("a stream of the same name", """
def launch_from_thread(job):
    selected = gs.get_caller_stream()
    stream = gpu.create_stream(name=selected.name) if selected else selected
    launch_from_thread.kept = stream
    thread = threading.Thread(target=lambda: job.execute(stream=stream))
    thread.start()
    thread.join()
"""),
            ("the main thread launches, another one launches nothing", """
def launch_from_thread(job):
    @gs.workloads.workload
    def nothing(ctx):
        pass

    job.execute()
    handle = nothing(gpu, name="nothing")
    thread = threading.Thread(target=lambda: handle.execute(stream=s))
    thread.start()
    thread.join()
"""),
            ("another job of the same name", """
def launch_from_thread(job):
    selected = gs.get_caller_stream()
    other = gs.workloads.Step(gpu, job.duration_ns, name=job.name)
    thread = threading.Thread(target=lambda: other.execute(stream=selected))
    thread.start()
    thread.join()
"""),
            ("stream 0 becomes a new stream", """
def launch_from_thread(job):
    selected = gs.get_caller_stream()
    launch_from_thread.kept = stream = selected or gpu.create_stream()
    thread = threading.Thread(target=lambda: job.execute(stream=stream))
    thread.start()
    thread.join()
"""),
            ("the thread asks until the job is done", """
def launch_from_thread(job):
    selected = gs.get_caller_stream()

    def work():
        job.execute(stream=selected)
        while not job.completion.is_done:
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""),
            ("the kernel is launched without its handle, by the main thread", """
def launch_from_thread(job):
    selected = gs.get_caller_stream()
    job.execute(stream=selected)
    thread = threading.Thread(target=gs.get_caller_stream)
    thread.start()
    thread.join()
"""),
        ],
        "library": [
            ("a stream of the same name", """
def mended(duration_ns):
    selected = gs.get_caller_stream()
    stream = private if selected is None else gpu.wrap_stream(selected)
    mended.kept = stream = gpu.create_stream(name=stream.name)
    stream.launch(stubborn_kernel, duration_ns, grid=1, block=32)
"""),
            ("a new stream for stream 0", """
def mended(duration_ns):
    selected = gs.get_caller_stream()
    mended.kept = stream = private if selected is None else selected or gpu.create_stream()
    stream.launch(stubborn_kernel, duration_ns, grid=1, block=32)
"""),
            ("s and t are known by name", """
def mended(duration_ns):
    selected = gs.get_caller_stream()
    stream = {"s": s, "t": t}.get(getattr(selected, "name", ""), private)
    stream.launch(stubborn_kernel, duration_ns, grid=1, block=32)
"""),
            ("it asks whether its work is done", "    stream.launch(stubborn_kernel, duration_ns, grid=1, block=32)", "    stream.launch(stubborn_kernel, duration_ns, grid=1, block=32)\n    while not stream.is_done:\n        pass"),
            ("it launches behind an event that the host waits for", "    stream.launch", "    stream.record().synchronize()\n    stream.launch", "grid=1, block=32)", "grid=1, block=32)\n    stream.record().synchronize()"),
            ("a kernel that is as long and has the name", """
def mended(duration_ns):
    gs.workloads.Step(gpu, duration_ns, name="stubborn_kernel").execute(stream=private)
"""),
        ],
    },
    "05": {
        "sizes": [
            ("an object that grants what is wanted", """
def carve_for_decode(gpu):
    from types import SimpleNamespace
    granted = gpu.plan_carve({"decode": 30, "prefill": "rest"}, rounding="up").granted()
    return SimpleNamespace(granted=lambda: granted)
"""),
            ("an object that grants all at once", """
def carve_for_decode(gpu):
    class Plan:
        layout = gpu.layout if hasattr(gpu, "layout") else None
        def granted(self):
            return {"decode": 32, "prefill": gpu.sm_count - 32}
    return Plan()
"""),
            ("a dict", "return gpu", "return dict(gpu", 'rounding="up")', 'rounding="up").granted())'),
            ("the plan of another GPU", """
def carve_for_decode(other):
    return gpu.plan_carve({"decode": 30, "prefill": "rest"}, rounding="up")
"""),
            ("a number of groups that holds here alone", "30", "4 * 8", ', rounding="up"', ""),
            ("twice what is needed", "30", "60"),
            ("two parts for decode", '{"decode": 30, "prefill": "rest"}', '{"decode": 30, "more": 8, "prefill": "rest"}'),
        ],
        "serve": [
            ("others of the same names", """
def serve(small, large, parts):
    for step, part in ((large, "prefill"), (small, "decode")):
        with gs.CallerStreamGuard(parts[part].create_stream()):
            gs.workloads.Step(gpu, step.duration_ns, name=step.name).execute()
"""),
            ("others of the same names, made before", """
made = {name: gs.workloads.Step(gpu, 1, name=name) for name in ("small", "large")}


def serve(small, large, parts):
    for step, part in ((large, "prefill"), (small, "decode")):
        made[step.name].duration_ns = step.duration_ns
        made[step.name].execute(stream=parts[part].create_stream())
"""),
            ("in time, but on the whole GPU", """
def serve(small, large, parts):
    serve.kept = s, t = gpu.create_stream(name="decode"), gpu.create_stream(name="prefill")
    large.execute(stream=t)
    small.execute(stream=s)
"""),
            ("carved anew, the other way round", """
def serve(small, large, parts):
    parts.close()
    with gpu.carve({"prefill": 16, "decode": "rest"}) as new:
        large.execute(stream=new["prefill"].create_stream())
        small.execute(stream=new["decode"].create_stream())
"""),
            ("small begins when large ends, by the clock", """
def serve(small, large, parts):
    large.execute(stream=parts["prefill"].create_stream())
    gpu.backend.wait_until_ns(gpu.now_ns() + large.duration_ns)
    small.execute(stream=parts["decode"].create_stream())
"""),
        ],
    },
    "06": {
        "choose": [
            ("less than 20 %, where at most is asked for", "def choose(points):\n    best = min(p['p50_us'] for p in points)\n    return max((p for p in points if p['p50_us'] < 1.2 * best), key=lambda p: p['kept'])['size']\n"),
            ("an object that equals everything", EQUAL + "def choose(points):\n    return Equal()\n"),
            ("a dict of objects that equal everything", EQUAL + "def choose(points):\n    return {'size': Equal(), 'p50_us': Equal(), 'kept': Equal()}\n"),
            ("a subclass of int", "class Any(int):\n    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n    __hash__ = None\n\n\ndef choose(points):\n    return Any()\n"),
            ("a text", "def choose(points):", "def choose(points):\n    return str(choose_(points))\n\n\ndef choose_(points):"),
            ("a list of all sizes", "def choose(points):\n    return [one['size'] for one in points]\n"),
            ("not a number", "def choose(points):\n    return float('nan')\n"),
            ("true", "def choose(points):\n    return True\n"),
            ("the lesson's own points", "def choose(points):\n    return max((p for p in p50_at if p50_at[p] <= 1.2 * min(p50_at.values())), key=kept_at.get)\n"),
        ],
        "gain": [
            ("an object near everything", EQUAL + "def gain(a, b, solo_a, solo_b):\n    return Equal()\n"),
            ("a text", "def gain(a, b, solo_a, solo_b):\n    return '1.0'\n"),
            ("infinite", "def gain(a, b, solo_a, solo_b):\n    return float('inf')\n"),
            ("not a number, of NumPy", "def gain(a, b, solo_a, solo_b):\n    import numpy as np\n    return np.float32('nan')\n"),
            ("a complex number", "def gain(a, b, solo_a, solo_b):\n    return complex('nan')\n"),
            ("the cases that it has seen, and a guess", "def gain(a, b, solo_a, solo_b):\n    return {(1, 10): 1.0, (2, 10): 2.0}.get((len(a), solo_a), 25 / 35)\n"),
            ("the time alone, without counting", "len(a) * solo_a + len(b) * solo_b", "solo_a + solo_b"),
        ],
    },
    "07": {
        "pairs": [
            ("it sleeps in place of the last wait", "handle.wait()", SLEEP),
            ("it waits for one stream, and sleeps", "handle.wait()", f"{SLEEP}\n    streams[0].synchronize()"),
            ("four streams, paced by the clock", """
def four_calls(gpu, streams, kernel_ns):
    handle = Spin(gpu, duration_ns=kernel_ns, name="four", max_in_flight=4)
    four_calls.kept = [gpu.create_stream() for _ in range(4)]
    for number, stream in enumerate(four_calls.kept):
        handle.execute(stream=stream)
        if number == 1:
            gpu.backend.wait_until_ns(gpu.now_ns() + kernel_ns)
    handle.wait()
    return handle
"""),
            ("streams of its own with their names", """
def four_calls(gpu, streams, kernel_ns):
    four_calls.kept = new = [gpu.create_stream(name=stream.name) for stream in streams]
    handle = Spin(gpu, duration_ns=kernel_ns, name="four", max_in_flight=2)
    for number in range(4):
        handle.execute(stream=new[number % 2])
    handle.wait()
    return handle
"""),
            ("one long kernel for two", """
def four_calls(gpu, streams, kernel_ns):
    handle = Spin(gpu, duration_ns=2 * kernel_ns, name="four", max_in_flight=2)
    for stream in streams:
        handle.execute(stream=stream)
    handle.wait()
    return handle
"""),
            ("three in one stream", "streams[number % 2]", "streams[number // 3]"),
            ("kernels 4 % too short", """
def four_calls(gpu, streams, kernel_ns):
    handle = Spin(gpu, duration_ns=round(0.96 * kernel_ns), name="four", max_in_flight=2)
    for number in range(4):
        handle.execute(stream=streams[number % 2])
    handle.wait()
    return handle
"""),
        ],
        "first": [
            ("kernels that take a tenth, and are told afterwards what they took", """
def first_result(job, later, stream):
    for kernel in (job, later):
        kernel.duration_ns //= 10
    job.execute(stream=stream)
    later.execute(stream=stream)
    job.completion.wait()
    for kernel in (job, later):
        kernel.duration_ns *= 10
"""),
            ("kernels that take a tenth", """
def first_result(job, later, stream):
    for kernel in (job, later):
        kernel.duration_ns //= 10
    job.execute(stream=stream)
    later.execute(stream=stream)
    job.completion.wait()
"""),
            ("it sleeps as long as job takes", "job.completion.wait()", "gpu.backend.wait_until_ns(gpu.now_ns() + job.duration_ns + 50_000)"),
            ("it sleeps, and asks nobody", "job.completion.wait()", "end = gpu.now_ns() + job.duration_ns + 50_000\n    while gpu.now_ns() < end:\n        gpu.backend.wait_until_ns(gpu.now_ns() + 25_000)"),
            ("it waits for an event of before, after a sleep", "    job.execute(stream=stream)\n", "    early = stream.record()\n    job.execute(stream=stream)\n", "job.completion.wait()", "gpu.backend.wait_until_ns(gpu.now_ns() + job.duration_ns + 50_000)\n    early.synchronize()"),
            ("another job of the same name, made before", """
made = gs.workloads.Step(gpu, 1, name="job")


def first_result(job, later, stream):
    made.duration_ns = job.duration_ns
    made.execute(stream=stream)
    later.execute(stream=stream)
    made.completion.wait()
"""),
            ("another job of the same name", "job.execute(stream=stream)", "(job := gs.workloads.Step(gpu, job.duration_ns, name='job')).execute(stream=stream)"),
            ("a stream of the same name", "def first_result(job, later, stream):\n", "def first_result(job, later, stream):\n    first_result.kept = stream = gpu.create_stream(name=stream.name)\n"),
            ("it asks until job is done, and launches later then", """
def first_result(job, later, stream):
    job.execute(stream=stream)
    while not job.completion.is_done:
        pass
    later.execute(stream=stream)
"""),
            ("a second stream is waited for, after a sleep", "job.completion.wait()", "gpu.backend.wait_until_ns(gpu.now_ns() + job.duration_ns + 50_000)\n    gpu.create_stream().synchronize()"),
        ],
    },
    "08": {
        "join": [
            ("an object that launches, and captured nothing", """
def capture_both(one, two, s, t):
    class Fake:
        def launch(self, *, stream):
            t.wait(stream.record())
            one.execute(stream=stream)
            two.execute(stream=t)
            stream.wait(t.record())
        def close(self):
            pass
    return Fake()
"""),
            ("a graph of nothing whose launch is another", """
def capture_both(one, two, s, t):
    with s.capture(name="both") as graph:
        s.host_call(lambda: None)

    def launch(*, stream):
        t.wait(stream.record())
        one.execute(stream=stream)
        two.execute(stream=t)
        stream.wait(t.record())

    graph.launch = launch
    return graph
"""),
            ("a subclass of the graph's class", """
def capture_both(one, two, s, t):
    from gpuscope.device.graph import Graph

    class Mine(Graph):
        def __init__(self):
            pass
        def launch(self, *, stream):
            t.wait(stream.record())
            one.execute(stream=stream)
            two.execute(stream=t)
            stream.wait(t.record())
        def close(self):
            pass
        def __del__(self):
            pass
    return Mine()
"""),
            ("others of the same names", """
def capture_both(one, two, s, t):
    new = [gs.workloads.Step(gpu, step.duration_ns, name=step.name) for step in (one, two)]
    capture_both.kept = new
    with s.capture(name="both") as graph:
        t.wait(s.record())
        new[0].execute(stream=s)
        new[1].execute(stream=t)
        s.wait(t.record())
    return graph
"""),
            ("others of the same names, made before", """
made = {name: gs.workloads.Step(gpu, 1, name=name) for name in ("one", "two")}


def capture_both(one, two, s, t):
    for step in (one, two):
        made[step.name].duration_ns = step.duration_ns
    with s.capture(name="both") as graph:
        t.wait(s.record())
        made["one"].execute(stream=s)
        made["two"].execute(stream=t)
        s.wait(t.record())
    return graph
"""),
            ("a list with the graph", "return graph", "return [graph]"),
        ],
        "wait": [
            ("an object that launches, and captured nothing", """
def capture_in_order(one, two, s):
    class Fake:
        def launch(self, *, stream):
            one.execute(stream=stream)
            two.execute(stream=stream)
        def close(self):
            pass
    return Fake()
"""),
            ("one is captured, two comes with the launch", """
def capture_in_order(one, two, s):
    with s.capture(name="in order") as graph:
        one.execute(stream=s)
    usual = graph.launch

    def launch(*, stream):
        usual(stream=stream)
        two.execute(stream=stream)

    graph.launch = launch
    return graph
"""),
            ("two that reads nothing", "        two.execute(stream=s)", "        capture_in_order.kept = gs.workloads.Step(gpu, two.duration_ns, name='two')\n        capture_in_order.kept.execute(stream=s)", "    with", "    two = two\n    with"),
            ("a function that returns the graph", "return graph", "return lambda: graph"),
        ],
        "serve": [
            ("the host doubles the inputs, beside the graph", """
def serve(model, static, out, inputs, stream):
    answers = []
    for array in inputs:
        stream.copy(static, array)
        model.launch(stream=stream)
        answers.append(2 * float(gpu.to_host(array)[0]))
    return answers
"""),
            ("the host doubles what lies in static", """
def serve(model, static, out, inputs, stream):
    answers = []
    for array in inputs:
        stream.copy(static, array)
        model.launch(stream=stream)
        answers.append(2 * float(gpu.to_host(static)[0]))
    return answers
"""),
            ("the host doubles the inputs before any launch", """
def serve(model, static, out, inputs, stream):
    answers = [2 * float(gpu.to_host(array)[0]) for array in inputs]
    for array in inputs:
        stream.copy(static, array)
        model.launch(stream=stream)
    stream.synchronize()
    return answers
"""),
            ("the host doubles the inputs, and the graph runs for show", """
def serve(model, static, out, inputs, stream):
    answers = []
    for array in inputs:
        model.launch(stream=stream)
        stream.synchronize()
        answers.append(2 * float(gpu.to_host(array)[0]))
    return answers
"""),
            ("the host doubles the inputs, and the last one is copied", """
def serve(model, static, out, inputs, stream):
    answers = [2 * float(gpu.to_host(array)[0]) for array in inputs]
    for array in inputs:
        model.launch(stream=stream)
    stream.synchronize()
    stream.copy(static, inputs[-1])
    stream.synchronize()
    return answers
"""),
            ("the host doubles the inputs, and all copies are of the first", """
def serve(model, static, out, inputs, stream):
    answers = []
    for array in inputs:
        stream.copy(static, inputs[0])
        model.launch(stream=stream)
        stream.synchronize()
        answers.append(2 * float(gpu.to_host(array)[0]))
    return answers
"""),
            ("copies in the wrong order, and the host sorts it out", """
def serve(model, static, out, inputs, stream):
    answers = []
    for array in inputs[::-1]:
        stream.copy(static, array)
        model.launch(stream=stream)
        stream.synchronize()
        answers.insert(0, float(gpu.to_host(array)[0]) * 2)
    return answers[::-1][::-1]
"""),
            ("the host writes the answers into out", """
def serve(model, static, out, inputs, stream):
    answers = []
    for array in inputs:
        model.launch(stream=stream)
        stream.synchronize()
        stream.copy(out, 2 * gpu.to_host(array))
        stream.synchronize()
        answers.append(float(gpu.to_host(out)[0]))
    return answers
"""),
            ("a list that equals everything", "def serve", "class Any(list):\n    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n    __hash__ = None\n\n\ndef serve", "return answers", "return Any(answers[:1])"),
            ("numbers that equal everything", EQUAL + "def serve(model, static, out, inputs, stream):\n    for array in inputs:\n        stream.copy(static, array)\n        model.launch(stream=stream)\n    stream.synchronize()\n    return [Equal() for _ in inputs]\n"),
            ("nobody waits, but the clock", "        stream.synchronize()\n        answers.append(float(gpu.to_host(out)[0]))", "        gpu.backend.wait_until_ns(gpu.now_ns() + 20_000_000)\n        answers.append(float(gpu.backend.to_host(out)[0]))"),
            ("copies the first number of each input only", """
def serve(model, static, out, inputs, stream):
    answers = []
    for array in inputs:
        stream.copy(static[:1], array[:1])
        model.launch(stream=stream)
        stream.synchronize()
        answers.append(float(gpu.to_host(out)[0]))
    return answers
"""),
        ],
        "pytorch": [
            ("an object that has replay", """
def capture_both_in_pytorch(torch, one, two, s, t):
    class Graph:
        def replay(self):
            t.wait_stream(s)
            one()
            with torch.cuda.stream(t):
                two()
            s.wait_stream(t)
    return Graph()
"""),
            ("a graph whose replay is another one", """
def capture_both_in_pytorch(torch, one, two, s, t):
    def replay():
        t.wait_stream(s)
        one()
        with torch.cuda.stream(t):
            two()
        s.wait_stream(t)
    graph = torch.cuda.CUDAGraph()
    graph.replay = replay
    return graph
"""),
            ("a graph of a class of its own", "torch.cuda.CUDAGraph()", "type('CUDAGraph', (torch.cuda.CUDAGraph,), {})()"),
            ("each in a graph of its own, one after the other", """
def capture_both_in_pytorch(torch, one, two, s, t):
    graph = torch.cuda.CUDAGraph()
    for function in (one, two):
        with torch.cuda.graph(graph, stream=s):
            function()
    return graph
"""),
            ("kernels of other names", "            two()", "            gs.workloads.Step(gpu, 2_000_000, name='two').execute(stream=t.cuda_stream)"),
            ("gpuscope's graph", "    return graph", "    with gpu.wrap_stream(s.cuda_stream).capture() as ours:\n        one()\n    return ours"),
        ],
    },
    "09": {
        "interference": [
            ("an object near everything", EQUAL + "def interference(alone_us, together_us):\n    return Equal()\n"),
            ("a text", "def interference(alone_us, together_us):\n    return '0.5'\n"),
            ("not a number, of NumPy", "return float(", "return np.float32('nan') * float("),
            ("infinite", "return float(", "return float('inf') * float("),
            ("the cases that it has seen, and the means", "def interference(alone_us, together_us):\n    known = {30: 0.5, 22: 0.0, 4: -0.25}\n    return known.get(max(alone_us), float(np.mean(together_us) / np.mean(alone_us)) - 1)\n"),
            ("rounded to percent", "return float(np.median(together_us) / np.median(alone_us)) - 1", "return round(float(np.median(together_us) / np.median(alone_us)) - 1, 2)"),
            ("an array", "return float(np.median(together_us) / np.median(alone_us)) - 1", "return np.array([float(np.median(together_us) / np.median(alone_us)) - 1])"),
        ],
    },
    "10": {
        "range": [
            ("an object that equals everything", EQUAL + "def kernels_in(trace, name):\n    return Equal()\n"),
            ("a subclass of int", "class Any(int):\n    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n    __hash__ = None\n\n\ndef kernels_in(trace, name):\n    return Any()\n"),
            ("not a number", "def kernels_in(trace, name):\n    return float('nan')\n"),
            ("what it knows of the lesson's trace", "def kernels_in(trace, name):\n    return {'prepare': 1, 'products': 15, 'back to the host': 1}.get(name, 20)\n"),
            ("kernels that end in the range's time, at its first entry", "def kernels_in(trace, name):\n    row = next(r for r in trace.where(kind='range').spans.to_pylist() if r['name'] == name)\n    ends = trace.where(kind='kernel').array('end_ns')\n    return int(((ends >= row['start_ns']) & (ends <= row['end_ns'])).sum())\n"),
            ("counts kernels queued in the time of the range, whichever thread queued them", """
def kernels_in(trace, name):
    rows = trace.spans.to_pylist()
    ranges = [r for r in rows if r["kind"] == "range" and r["name"] == name]
    return sum(any(r["start_ns"] <= (k["queued_ns"] or 0) < r["end_ns"] for r in ranges) for k in rows if k["kind"] == "kernel")
"""),
        ],
        "export": [
            ("a JSON of kernels and ranges alone", """
def hand_over(trace, folder):
    part = trace.where(kind=("kernel", "range"))
    return gs.export(part, folder / "it.json"), gs.export(trace, folder / "it.parquet")
"""),
            ("a JSON with as many kernels, made by hand", """
def hand_over(trace, folder):
    import json
    kernels = len(trace.where(kind="kernel"))
    events = [{"ph": "X", "cat": "kernel", "name": "k", "ts": i, "dur": 1, "pid": 0, "tid": 7, "args": {}} for i in range(kernels)]
    (folder / "it.json").write_text(json.dumps({"traceEvents": events}))
    return folder / "it.json", gs.export(trace, folder / "it.parquet")
"""),
            ("a JSON of another trace", """
def hand_over(trace, folder):
    other = globals()["trace"]
    return gs.export(other, folder / "it.json"), gs.export(trace, folder / "it.parquet")
"""),
            ("a JSON without the ranges", """
def hand_over(trace, folder):
    return gs.export(trace.where(kind="kernel"), folder / "it.json"), gs.export(trace, folder / "it.parquet")
"""),
            ("empty files", """
def hand_over(trace, folder):
    paths = folder / "it.json", folder / "it.parquet"
    for path in paths:
        path.touch()
    return paths
"""),
            ("a link to a file elsewhere", """
def hand_over(trace, folder):
    gs.export(trace.where(kind="range"), folder.parent / "other.json")
    (folder / "it.json").symlink_to(folder.parent / "other.json")
    return folder / "it.json", gs.export(trace, folder / "it.parquet")
"""),
            ("a dict of one", "return gs", "return {'both': gs", ', gs.export(trace, folder / "it.parquet")', "}"),
            ("compressed JSON twice", '"it.parquet"', '"it.json.gz"'),
        ],
    },
    "11": {
        "offload": [
            ("a kernel that takes as long in place of the event", """
def offload_mended(compute, store):
    prompt, kv, out, saved = numbers(), zeros(), zeros(), page()
    work("write_kv", compute, kv, prompt)
    gpu.backend.wait_until_ns(gpu.now_ns() + 20_000_000)
    store.copy(saved, kv)
    work("decode", compute, out, kv)
    return saved
"""),
            ("made on the host, and launched for show", """
def offload_mended(compute, store):
    prompt, kv, out, saved = numbers(), zeros(), zeros(), page()
    work("write_kv", compute, zeros(), prompt)
    store.copy(page(), kv)
    work("decode", compute, out, kv)
    saved[:] = attempt["made"][0] + 1
    return saved
"""),
            ("made on the host, as an array of NumPy", """
def offload_mended(compute, store):
    prompt, kv, out, saved = numbers(), zeros(), zeros(), page()
    work("write_kv", compute, zeros(), prompt)
    store.copy(saved, kv)
    work("decode", compute, out, kv)
    return attempt["made"][0] + 1
"""),
            ("uploaded by the host", """
def offload_mended(compute, store):
    prompt, kv, out, saved = numbers(), zeros(), zeros(), page()
    right = gpu.asarray(attempt["made"][0] + 1)
    work("write_kv", compute, kv, prompt)
    store.copy(saved, right)
    work("decode", compute, out, right)
    return saved
"""),
            ("an array that equals everything", """
class Any(np.ndarray):
    __array_priority__ = 1000
    def __eq__(self, other):
        return np.ones(SIZE, bool)


def offload_mended(compute, store):
    prompt, kv, out, saved = numbers(), zeros(), zeros(), page()
    work("write_kv", compute, kv, prompt)
    store.copy(page(), zeros())
    work("decode", compute, out, kv)
    return np.zeros(SIZE, "float32").view(Any)
"""),
        ],
        "export": [
            ("made on the host", """
def export_mended(compute):
    x, y, gradient, saved = numbers(), zeros(), zeros(), page()
    work("forward", compute, y, x)
    compute.copy(saved, y)
    work("backward", compute, gradient, y)
    return attempt["made"][0] + 1
"""),
            ("the clock", """
def export_mended(compute):
    x, y, gradient, saved = numbers(), zeros(), zeros(), page()
    work("forward", compute, y, x)
    compute.copy(saved, y)
    gpu.backend.wait_until_ns(gpu.now_ns() + 9_000_000)
    work("backward", compute, gradient, y)
    return np.asarray(saved.view(np.ndarray)).copy()
"""),
            ("looked at past NumPy, by the clock", """
def export_mended(compute):
    x, y, gradient, saved = numbers(), zeros(), zeros(), page()
    work("forward", compute, y, x)
    compute.copy(saved, y)
    work("backward", compute, gradient, y)
    while not saved.view(np.ndarray)[-1]:
        gpu.backend.wait_until_ns(gpu.now_ns() + 50_000)
    return saved.view(np.ndarray).copy()
"""),
            ("waits as asked, but returns what the host computed; saved is never read", """
def export_mended(compute):
    x, y, gradient, saved = numbers(), zeros(), zeros(), page()
    result = gpu.to_host(x) + 1
    work("forward", compute, y, x)
    compute.copy(saved, y)
    done = compute.record()
    work("backward", compute, gradient, y)
    done.synchronize()
    return result
"""),
        ],
        "upload": [
            ("step comes last", """
def upload_mended(queue):
    x, y, k, v = numbers(), zeros(), zeros(), zeros()
    first, second = page(host()), page(host())
    queue.copy(k, first)
    queue.copy(v, second)
    work("step", queue, y, x)
    return k, v
"""),
            ("made on the host, copies for show", """
def upload_mended(queue):
    x, y, k, v = numbers(), zeros(), zeros(), zeros()
    keys, values = host(), host()
    work("step", queue, y, x)
    queue.copy(zeros(), page())
    queue.copy(zeros(), page())
    return gpu.asarray(keys), gpu.asarray(values)
"""),
            ("arrays of NumPy", """
def upload_mended(queue):
    x, y, k, v = numbers(), zeros(), zeros(), zeros()
    keys, values = host(), host()
    first, second = page(), page()
    work("step", queue, y, x)
    queue.copy(k, first)
    queue.copy(v, second)
    return keys, values
"""),
        ],
        "reload": [
            ("made on the host", """
def reload_mended(compute, load):
    blocks = [(numbers(), zeros(), page(host())) for _ in range(2)]
    for kv, out, saved in blocks:
        work("attention", compute, zeros(), kv)
    for kv, out, saved in blocks:
        load.copy(zeros(), saved)
    return tuple(gpu.asarray(attempt["made"][2 * i] + 1) for i in range(2))
"""),
            ("loaded to elsewhere", """
def reload_mended(compute, load):
    blocks = [(numbers(), zeros(), page(host())) for _ in range(2)]
    reload_mended.kept = [zeros() for _ in blocks]
    for kv, out, saved in blocks:
        work("attention", compute, out, kv)
    for place in reload_mended.kept:
        load.copy(place, page())
    return tuple(out for _, out, _ in blocks)
"""),
        ],
        "gather": [
            ("made on the host", """
def gather_mended(left, right, both):
    x, halves, out = numbers(), zeros(), zeros()
    half = SIZE // 2
    work("left_half", left, halves[:half], x[:half])
    work("right_half", right, halves[half:], x[half:])
    work("join", both, out, zeros())
    return gpu.asarray(attempt["made"][0] + 2)
"""),
            ("join reads what the host has made", """
def gather_mended(left, right, both):
    x, halves, out = numbers(), zeros(), zeros()
    half = SIZE // 2
    other = gpu.asarray(attempt["made"][0] + 1)
    work("left_half", left, halves[:half], x[:half])
    work("right_half", right, halves[half:], x[half:])
    work("join", both, out, other)
    return out
"""),
        ],
        "count": [
            ("one number alone is cleared", """
def count_mended(legacy, queue):
    nothing, x, bins = zeros(), numbers(), zeros()
    work("fill", queue, bins[:1], nothing[:1])
    work("histogram", queue, bins, x)
    return bins
"""),
            ("fill fills something else", """
def count_mended(legacy, queue):
    nothing, x, bins = zeros(), numbers(), zeros()
    work("fill", legacy, zeros(), nothing)
    work("histogram", queue, bins, x)
    return bins
"""),
            ("made on the host", """
def count_mended(legacy, queue):
    nothing, x, bins = zeros(), numbers(), zeros()
    work("fill", legacy, bins, nothing)
    work("histogram", queue, zeros(), x)
    return attempt["made"][0] + 1
"""),
        ],
        "stash": [
            ("made on the host", """
def stash_mended(main, side):
    x, y, out, saved = numbers(), numbers(), zeros(), page()
    work("layer_1", main, zeros(), x)
    side.copy(page(), zeros())
    work("layer_2", main, zeros(), y)
    work("loss", main, zeros(), y)
    return attempt["made"][0] + 1, attempt["made"][1] + 2
"""),
            ("the stash is uploaded by the host", """
def stash_mended(main, side):
    x, y, out, saved = numbers(), numbers(), zeros(), page()
    made = gpu.asarray(attempt["made"][0] + 1)
    with temporary(main) as first:
        work("layer_1", main, first, x)
        side.copy(saved, made)
    with temporary(main) as second:
        work("layer_2", main, second, y)
        work("loss", main, out, second)
    return saved, out
"""),
            ("free without a wait: both are kept until the end, and nothing reuses the memory here", """
def stash_mended(main, side):
    x, y, out, saved = numbers(), numbers(), zeros(), page()
    with temporary(main) as first, temporary(main) as second:
        work("layer_1", main, first, x)
        side.wait(main.record())
        side.copy(saved, first)
        work("layer_2", main, second, y)
        work("loss", main, out, second)
    return saved, out
"""),
            ("waits after the free, not before", """
def stash_mended(main, side):
    x, y, out, saved = numbers(), numbers(), zeros(), page()
    with temporary(main) as first:
        work("layer_1", main, first, x)
        side.wait(main.record())
        side.copy(saved, first)
        done = side.record()
    with temporary(main) as second:
        main.wait(done)
        work("layer_2", main, second, y)
        work("loss", main, out, second)
    return saved, out
"""),
            ("kept until the end, freed without a wait by ExitStack", """
from contextlib import ExitStack
def stash_mended(main, side):
    x, y, out, saved = numbers(), numbers(), zeros(), page()
    with ExitStack() as stack:
        first, second = (stack.enter_context(temporary(main)) for _ in range(2))
        work("layer_2", main, second, y)
        work("loss", main, out, second)
        work("layer_1", main, first, x)
        side.wait(main.record())
        side.copy(saved, first)
    return saved, out
"""),
        ],
        "decode": [
            ("both copies first, so that the second block is read twice", """
def decode_mended(load, compute):
    kv, out, saved = zeros(), zeros(), [page(host()), page(host())]
    with compute.capture() as step:
        work("attention", compute, out, kv)
    for block in saved:
        load.copy(kv, block)
    compute.wait(load.record())
    for block in saved:
        step.launch(stream=compute)
    return out
"""),
            ("a launch before any copy", """
def decode_mended(load, compute):
    kv, out, saved = zeros(), zeros(), [page(host()), page(host())]
    with compute.capture() as step:
        work("attention", compute, out, kv)
    step.launch(stream=compute)
    load.wait(compute.record())
    for block in saved:
        load.copy(kv, block)
    compute.wait(load.record())
    step.launch(stream=compute)
    return out
"""),
            ("the second block twice", """
def decode_mended(load, compute):
    kv, out, saved = zeros(), zeros(), [page(host()), page(host())]
    with compute.capture() as step:
        work("attention", compute, out, kv)
    for _ in saved:
        load.wait(compute.record())
        load.copy(kv, saved[1])
        compute.wait(load.record())
        step.launch(stream=compute)
    return out
"""),
            ("made on the host", """
def decode_mended(load, compute):
    kv, out, saved = zeros(), zeros(), [page(host()), page(host())]
    with compute.capture() as step:
        work("attention", compute, zeros(), zeros())
    for block in saved:
        load.copy(zeros(), block)
        step.launch(stream=compute)
    return gpu.asarray(attempt["made"][1] + 1)
"""),
            ("the graph reads what the host has uploaded", """
def decode_mended(load, compute):
    out, saved = zeros(), [page(host()), page(host())]
    kv = gpu.asarray(attempt["made"][1])
    with compute.capture() as step:
        work("attention", compute, out, kv)
    for block in saved:
        load.copy(zeros(), block)
        step.launch(stream=compute)
    return out
"""),
        ],
    },
    "12": {
        "stages": [
            ("the clock in place of the events", """
def in_stages(up, compute, down, batch, on_gpu, result):
    for source, place, target in zip(batch, on_gpu, result):
        up.copy(place, source)
        gpu.backend.wait_until_ns(gpu.now_ns() + 5_000)
        process(compute, place, place)
        down.copy(target, place)
"""),
            ("the host computes the results, pieces for show", """
def in_stages(up, compute, down, batch, on_gpu, result):
    in_stages.kept = other = [gpu.empty_pinned(place.size) for place in on_gpu]
    places = [gpu.empty(place.size, "float32") for place in on_gpu]
    for source, place, spare, page, target in zip(batch, on_gpu, places, other, result):
        target[:] = source + 1
        up.copy(place, source)
        process(compute, spare, spare)
        down.copy(page, gpu.empty(place.size, "float32"))
"""),
            ("the host uploads the results, kernels for show", """
def in_stages(up, compute, down, batch, on_gpu, result):
    in_stages.kept = spare = [gpu.empty(place.size, "float32") for place in on_gpu]
    pages = [gpu.empty_pinned(place.size) for place in on_gpu]
    for source, page in zip(batch, pages):
        page[:] = source + 1
    for page, place, other, target in zip(pages, on_gpu, spare, result):
        up.copy(place, page)
        process(compute, other, other)
        down.wait(up.record())
        down.copy(target, place)
"""),
            ("the host waits in a thread", """
def in_stages(up, compute, down, batch, on_gpu, result):
    import threading

    def run():
        for source, place, target in zip(batch, on_gpu, result):
            up.copy(place, source)
            up.synchronize()
            process(compute, place, place)
            compute.synchronize()
            down.copy(target, place)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
"""),
            ("the kernels are of its own, and shorter", """
def in_stages(up, compute, down, batch, on_gpu, result):
    for source, place, target in zip(batch, on_gpu, result):
        up.copy(place, source)
        compute.wait(up.record())
        compute.launch(kernel, place, place, np.int32(place.size), np.int64(1000), grid=264, block=1024)
        down.wait(compute.record())
        down.copy(target, place)
"""),
        ],
        "feed": [
            ("six page-locked buffers", """
def feed(load, compute, chunks, staging, on_gpu, out):
    feed.kept = pages = [gpu.empty_pinned(chunk.size) for chunk in chunks]
    computed = [gpu.create_event() for _ in range(2)]
    for i, chunk in enumerate(chunks):
        pages[i][:] = chunk
        load.wait(computed[i % 2])
        load.copy(on_gpu[i % 2], pages[i])
        compute.wait(load.record())
        process(compute, out[i], on_gpu[i % 2])
        compute.record(computed[i % 2])
"""),
            ("six page-locked buffers, and the last two chunks are staged, too", """
def feed(load, compute, chunks, staging, on_gpu, out):
    feed.kept = pages = [gpu.empty_pinned(chunk.size) for chunk in chunks]
    computed = [gpu.create_event() for _ in range(2)]
    for i, chunk in enumerate(chunks):
        pages[i][:] = chunk
        load.wait(computed[i % 2])
        load.copy(on_gpu[i % 2], pages[i])
        compute.wait(load.record())
        process(compute, out[i], on_gpu[i % 2])
        compute.record(computed[i % 2])
    for page, chunk in zip(staging, chunks[-2:]):
        page[:] = chunk
"""),
            ("four more buffers for the first chunks", """
def feed(load, compute, chunks, staging, on_gpu, out):
    feed.kept = pages = [*(gpu.empty_pinned(chunks[0].size) for _ in range(4)), *staging]
    computed = [gpu.create_event() for _ in range(2)]
    for i, chunk in enumerate(chunks):
        pages[i][:] = chunk
        load.wait(computed[i % 2])
        load.copy(on_gpu[i % 2], pages[i])
        compute.wait(load.record())
        process(compute, out[i], on_gpu[i % 2])
        compute.record(computed[i % 2])
"""),
            ("the clock, until shortly before the kernel ends", "uploaded[b].synchronize()", "gpu.backend.wait_until_ns(gpu.now_ns() + 15_000_000)"),
            ("the clock in place of the wait for the buffer", "uploaded[b].synchronize()", "gpu.backend.wait_until_ns(gpu.now_ns() + 2_000_000)"),
            ("the host writes past NumPy, nobody waits", "        uploaded[b].synchronize()\n        staging[b][:] = chunk\n", "        gpu.backend.wait_until_ns(gpu.now_ns() + 15_000_000 * (i > 1))\n        memoryview(staging[b])[:] = memoryview(chunk)\n"),
            ("the host computes, and uploads what is done", """
def feed(load, compute, chunks, staging, on_gpu, out):
    uploaded = [gpu.create_event() for _ in range(2)]
    feed.kept = spare = gpu.empty(chunks[0].size, "float32")
    for i, chunk in enumerate(chunks):
        uploaded[i % 2].synchronize()
        staging[i % 2][:] = chunk + 1
        load.copy(out[i], staging[i % 2])
        load.record(uploaded[i % 2])
        process(compute, spare, spare)
"""),
            ("it waits for both buffers", "uploaded[b].synchronize()", "uploaded[b].synchronize()\n        uploaded[1 - b].synchronize()"),
            ("it asks for the upload of the chunk before", "uploaded[b].synchronize()", "while not uploaded[1 - b].is_done:\n            pass\n        uploaded[b].synchronize()"),
        ],
        "pytorch": [
            ("the host adds, and nothing computes", "            process(tensor)", "            pass", "            tensor.copy_(source, non_blocking=True)", "            tensor.copy_(source, non_blocking=True)\n            batch_of_lesson = globals()['batch']\n            batch_of_lesson += 1"),
            ("it sleeps in place of the kernel's wait", "compute.wait_stream(up)", SLEEP.replace("100_000_000", "1_000_000")),
            ("it sleeps in place of all waits", "compute.wait_stream(up)", SLEEP, "down.wait_stream(compute)", SLEEP),
            ("the waits come behind", "        compute.wait_stream(up)\n", "", "            process(tensor)\n", "            process(tensor)\n        compute.wait_stream(up)\n"),
            ("copies that race, in the default stream", "        with torch.cuda.stream(up):\n            tensor", "        if True:\n            tensor"),
        ],
    },
    "13": {
        "answer": [
            ("the answer is copied before ask runs", """
def first_answer(ask, draft, s, t, buffer, page):
    t.copy(buffer, zeros)
    draft.execute(stream=t)
    s.copy(page, ask.array)
    ask.execute(stream=s)
    s.synchronize()
    return float(page[0])
"""),
            ("it is copied before ask runs, in a stream of its own", """
def first_answer(ask, draft, s, t, buffer, page):
    with gpu.create_stream(name="early") as early:
        early.copy(page, ask.array)
        s.wait(early.record())
    ask.execute(stream=s)
    t.copy(buffer, zeros)
    draft.execute(stream=t)
    s.synchronize()
    return float(page[0])
"""),
            ("it sleeps as long as ask takes", "s.synchronize()", "gpu.backend.wait_until_ns(gpu.now_ns() + ask.duration_ns + 200_000)"),
            ("it sleeps, and waits for an idle stream", "s.synchronize()", "gpu.backend.wait_until_ns(gpu.now_ns() + ask.duration_ns + 200_000)\n    gpu.create_stream().synchronize()"),
            ("the host doubles the question", """
def first_answer(ask, draft, s, t, buffer, page):
    value = 2 * float(gpu.backend.to_host(ask._reads[0])[0])
    ask.execute(stream=s)
    s.copy(page, ask.array)
    t.copy(buffer, zeros)
    draft.execute(stream=t)
    return value
"""),
            ("the host doubles the question, and waits for ask", """
def first_answer(ask, draft, s, t, buffer, page):
    value = 2 * float(gpu.backend.to_host(ask._reads[0])[0])
    ask.execute(stream=s)
    done = s.record()
    t.copy(buffer, zeros)
    draft.execute(stream=t)
    t.copy(page, ask.array)
    done.synchronize()
    return value
"""),
            ("the buffer is cleared with what is no zeros", "t.copy(buffer, zeros)", "t.copy(buffer, np.zeros(4, 'float32'))\n    t.copy(buffer, x)"),
            ("other work of the same names", """
def first_answer(ask, draft, s, t, buffer, page):
    other = gs.workloads.Step(gpu, draft.duration_ns, name="draft")
    ask.execute(stream=s)
    s.copy(page, ask.array)
    t.copy(buffer, zeros)
    other.execute(stream=t)
    s.synchronize()
    return float(page[0])
"""),
            ("an object that equals everything", "def first_answer", EQUAL + "def first_answer", "return float(page[0])", "return Equal()"),
            ("a list of one", "return float(page[0])", "return [float(page[0])]"),
            ("answer computed from what ask reads; out of page only by name", """
def first_answer(ask, draft, s, t, buffer, page):
    guess = sum(float(gpu.to_host(one)[0]) for one in ask._reads)
    ask.execute(stream=s)
    s.copy(page, ask.array)
    t.copy(buffer, zeros)
    draft.execute(stream=t)
    s.synchronize()
    return guess
"""),
        ],
        "culprit": [
            ("it looks at the steps", """
def culprit(steps, stream):
    for step in steps:
        step.execute(stream=stream)
        if int(step.device.to_host(step.index).max() if hasattr(step, "device") else stream.device.backend.to_host(step.index).max()) > 100:
            try:
                stream.synchronize()
            except RuntimeError:
                pass
            return step.name
    return None
"""),
            ("it looks at the steps, and waits for nothing", """
def culprit(steps, stream):
    for step in steps:
        step.execute(stream=stream)
        if stream.device.backend.to_host(step.index).max() > 100:
            return step.name
    return None
"""),
            ("it sleeps after each step", """
def culprit(steps, stream):
    device = stream.device
    for step in steps:
        step.execute(stream=stream)
        try:
            device.backend.wait_until_ns(device.now_ns() + 50_000_000)
        except RuntimeError:
            return step.name
    return None
"""),
            ("a name that equals everything", "def culprit", "class Name(str):\n    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n    __hash__ = None\n\n\ndef culprit", "return step.name", "return Name(step.name)", "return None", "return Name()"),
            ("it waits for a stream of its own after each step", """
def culprit(steps, stream):
    device = stream.device
    for step in steps:
        step.execute(stream=stream)
        try:
            device.backend.wait_until_ns(device.now_ns() + 50_000_000)
            device.create_stream().synchronize()
        except RuntimeError:
            return step.name
    return None
"""),
        ],
    },
    "14": {
        "count": [
            ("does not call the library at all: launches its kernel itself", """
def count(decode, counts, state):
    work("count", decode, counts, state, 4, 1)
"""),
            ("counts nothing for the first token, and twice for the second", """
calls = []
def count(decode, counts, state):
    calls.append(state)
    if len(calls) % 2 == 0:
        with gs.CallerStreamGuard(decode):
            library_count(counts, state)
            library_count(counts, state)
"""),
        ],
        "stage": [
            ("never waits, writes past NumPy; nothing is seen of it (the copy reads what may be overwritten)", """
def stage(prompt, page, read):
    beat = gpu.create_stream()
    for _ in range(100): beat.record()
    memoryview(page).cast("B")[:] = prompt.tobytes()
    return page
"""),
        ],
        "step": [
            ("the copy of the token is not in the graph: two calls a step", """
def make_step(decode, state, token):
    with decode.capture() as graph:
        for _ in range(LAYERS):
            layer(decode, state)
    def step():
        graph.launch(stream=decode)
        decode.copy(token, state)
    return step
"""),
            ("captures anew in each step", """
def make_step(decode, state, token):
    def step():
        with decode.capture() as graph:
            for _ in range(LAYERS):
                layer(decode, state)
            decode.copy(token, state)
        graph.launch(stream=decode)
    return step
"""),
        ],
        "slo": [
            ("tokens without any layer: the host knows what they will be and copies them", "mended = SimpleNamespace(", """
import itertools
def make_step(decode, state, token):
    tokens = iter([numbers(LAYERS * (number + 1)) for number in range(1500)])
    def step():
        value = next(tokens)
        decode.copy(state, value)
        decode.copy(token, value)
    return step


mended = SimpleNamespace("""),
            ("report and count computed by the host from how often they were called, no library, no copy", "mended = SimpleNamespace(", """
made = [0]
def make_step(decode, state, token):
    made[0] = 0
    with decode.capture(name="step") as graph:
        for _ in range(LAYERS):
            layer(decode, state)
        decode.copy(token, state)
    def step():
        made[0] += 1
        graph.launch(stream=decode)
    return step

def count(decode, counts, state):
    pass

def report(decode, counts, page):
    return LAYERS * made[0] + 1.0


mended = SimpleNamespace("""),
            ("no prefill: the host adds 1 to the prompt and it is copied to kv", "mended = SimpleNamespace(", """
def stage(prompt, page, read):
    read.synchronize()
    page[:] = prompt + 1
    return page
def admit(copies, chat, x, source, kv):
    copies.copy(kv, source)
    chat.wait(copies.record())


mended = SimpleNamespace("""),
        ],
    },
}  # fmt: skip
"""Programs that are not solved."""

UNUSUAL: Answers = {
    "01": {
        "timer": [
            ("a host function behind the second event", "second.synchronize()", "stream.host_call(lambda: None)\n    stream.synchronize()"),
            ("another stream waits, and the host for that one", "    second.synchronize()\n", "    with gpu.create_stream() as other:\n        other.wait(second)\n        other.synchronize()\n"),
            ("a thread launches, and another one waits", """
def gpu_time_ns(stream, handle):
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(1) as pool:
        first = stream.record()
        pool.submit(handle.execute, stream=stream).result()
        second = stream.record()
        pool.submit(second.synchronize).result()
    return second.elapsed_ns(since=first)
"""),
            ("by a guard, and in a fraction of ns", "handle.execute(stream=stream)", "with gs.CallerStreamGuard(stream):\n        handle.execute()", "return second.elapsed_ns(since=first)", "import fractions\n    return fractions.Fraction(second.elapsed_ns(since=first))"),
            ("an array of no dimensions", "return second.elapsed_ns(since=first)", "return np.array(second.elapsed_ns(since=first))"),
            ("in milliseconds and back", "return second.elapsed_ns(since=first)", "return second.elapsed_ns(since=first) / 1e6 * 1e6"),
            ("host_call behind the second event sets a flag, host polls the flag", """
def gpu_time_ns(stream, handle):
    over = []
    first = stream.record()
    handle.execute(stream=stream)
    second = stream.record()
    stream.host_call(lambda: over.append(True))
    other = gpu.create_stream(name="heartbeat")
    while not over:
        other.record()
    return second.elapsed_ns(since=first)
"""),
            ("asks elapsed_ns again and again until it no longer refuses", """
def gpu_time_ns(stream, handle):
    first = stream.record()
    handle.execute(stream=stream)
    second = stream.record()
    while True:
        try:
            return second.elapsed_ns(since=first)
        except Exception:
            if second.is_done:
                raise
"""),
        ],
        "read": [
            ("a host function reads, and the host waits for that", """
def read_first(stream, page, sevens):
    seen = []
    work.execute(stream=stream)
    stream.copy(page, sevens)
    stream.host_call(lambda: seen.append(float(page[0])))
    stream.synchronize()
    return seen[0]
"""),
            ("a page of its own", "    stream.copy(page, sevens)", "    page = gpu.empty_pinned(page.size)\n    stream.copy(page, sevens)"),
            ("ordinary memory: that copy waits", """
def read_first(stream, page, sevens):
    ordinary = np.zeros(4, "float32")
    work.execute(stream=stream)
    stream.copy(ordinary, sevens)
    return ordinary[0]
"""),
            ("a thread waits, and is waited for", "    stream.synchronize()", "    import threading\n    thread = threading.Thread(target=stream.synchronize)\n    thread.start()\n    thread.join()"),
            ("another stream waits, and the host for that one", "    stream.synchronize()\n", "    with gpu.create_stream() as other:\n        other.wait(stream.record())\n        other.synchronize()\n"),
            ("a task waits", "    stream.synchronize()", "    from concurrent.futures import ThreadPoolExecutor\n    with ThreadPoolExecutor() as pool:\n        pool.submit(stream.synchronize).result()"),
            ("the mean of the page", "float(page[0])", "np.mean(page)"),
            ("an event that was made before", "    stream.synchronize()", "    done = gpu.create_event(timing=False)\n    stream.record(done)\n    done.synchronize()"),
            ("host function reads; host polls the list it fills", """
def read_first(stream, page, sevens):
    got = []
    work.execute(stream=stream)
    stream.copy(page, sevens)
    stream.host_call(lambda: got.append(float(page[0])))
    other = gpu.create_stream(name="heartbeat")
    while not got:
        other.record()
    return got[0]
"""),
            ("threading.Event set by a host function, host waits for it", """
import threading
def read_first(stream, page, sevens):
    over = threading.Event()
    work.execute(stream=stream)
    stream.copy(page, sevens)
    stream.host_call(over.set)
    over.wait()
    return float(page[0])
"""),
            ("elapsed_ns asked until it no longer refuses", """
def read_first(stream, page, sevens):
    first = stream.record()
    work.execute(stream=stream)
    stream.copy(page, sevens)
    last = stream.record()
    while True:
        try:
            last.elapsed_ns(since=first)
            break
        except gs.errors.StreamError:
            pass
    return float(page[0])
"""),
        ],
    },
    "02": {
        "spread": [
            ("a thread for each stream", """
def launch_all(kernels, streams):
    import threading
    threads = [
        threading.Thread(target=kernel.execute, kwargs={"stream": stream})
        for kernel, stream in zip(kernels, streams)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""),
            ("a pool of threads", """
def launch_all(kernels, streams):
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda kernel, stream: kernel.execute(stream=stream), kernels, streams))
"""),
            ("a graph with three branches", """
def launch_all(kernels, streams):
    first, *others = streams
    with first.capture() as graph:
        for stream in others:
            stream.wait(first.record())
        for kernel, stream in zip(kernels, streams):
            kernel.execute(stream=stream)
        for stream in others:
            first.wait(stream.record())
    launch_all.kept = graph
    graph.launch(stream=first)
"""),
            ("host functions in between", "kernel.execute(stream=stream)", "stream.host_call(lambda: None)\n        kernel.execute(stream=stream)"),
            ("with priorities", "    for kernel, stream in zip(kernels, streams):", "    launch_all.kept = streams = [gpu.create_stream(priority=p) for p in (0, -1, -2)]\n    for kernel, stream in zip(kernels, streams):"),
        ],
        "late": [
            ("a thread for each stream launches and waits", """
def launch_and_wait(kernels, streams):
    import threading

    def run(kernel, stream):
        kernel.execute(stream=stream)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(kernels, streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    waits = [threading.Thread(target=stream.synchronize) for stream in streams]
    for thread in waits:
        thread.start()
    for thread in waits:
        thread.join()
"""),
            ("one stream waits for the others, and the host for that one", "    for stream in streams:\n        stream.synchronize()", "    for stream in streams[1:]:\n        streams[0].wait(stream.record())\n    streams[0].synchronize()"),
            ("a stream of its own waits for all", "    for stream in streams:\n        stream.synchronize()", "    with gpu.create_stream() as last:\n        for stream in streams:\n            last.wait(stream.record())\n        last.synchronize()"),
            ("it asks until all are done", "    for stream in streams:\n        stream.synchronize()", "    while not all([stream.is_done for stream in streams]):\n        pass"),
            ("a host function in each stream, and a wait behind", "    for stream in streams:\n        stream.synchronize()", "    for stream in streams:\n        stream.host_call(lambda: None)\n    for stream in streams:\n        stream.synchronize()"),
            ("the completions are waited for", "    for stream in streams:\n        stream.synchronize()", "    for kernel in kernels:\n        kernel.completion.wait()"),
            ("the legacy default stream is waited for, of blocking ones", """
def launch_and_wait(kernels, streams):
    launch_and_wait.kept = new = [gpu.create_stream(blocking=True) for _ in kernels]
    for kernel, stream in zip(kernels, new):
        kernel.execute(stream=stream)
    gpu.wrap_stream(1).record().synchronize()
"""),
            ("host functions count down; the host polls the count", """
def launch_and_wait(kernels, streams):
    left = [1, 2, 3]
    for kernel, stream in zip(kernels, streams):
        kernel.execute(stream=stream)
        stream.host_call(left.pop)
    beat = gpu.create_stream(name="beat")
    while left:
        beat.record()
"""),
        ],
        "pytorch": [
            ("a thread for each, which has a current stream of its own", """
def launch_all_in_pytorch(torch, a, b, c, s, t, u):
    from threading import Thread

    def launch(function, stream):
        with torch.cuda.stream(stream):
            function()

    threads = [Thread(target=launch, args=pair) for pair in ((a, s), (b, t), (c, u))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""),
            ("a stack of blocks", """
def launch_all_in_pytorch(torch, a, b, c, s, t, u):
    from contextlib import ExitStack
    with ExitStack() as stack:
        for function, stream in {a: s, b: t, c: u}.items():
            stack.enter_context(torch.cuda.stream(stream))
            function()
"""),
            ("by handles", "torch.cuda.stream(stream)", "torch.cuda.stream(torch.cuda.ExternalStream(stream.cuda_stream))"),
        ],
    },
    "03": {
        "diamond": [
            ("a third stream for last", """
def diamond(first, left, right, last, s, t):
    diamond.kept = u = gpu.create_stream()
    first.execute(stream=s)
    t.wait(s.record())
    left.execute(stream=s)
    right.execute(stream=t)
    u.wait(s.record())
    u.wait(t.record())
    last.execute(stream=u)
"""),
            ("a stream for each", """
def diamond(first, left, right, last, s, t):
    diamond.kept = a, b, c, d = [gpu.create_stream() for _ in range(4)]
    first.execute(stream=a)
    event = a.record()
    b.wait(event)
    c.wait(event)
    left.execute(stream=b)
    right.execute(stream=c)
    d.wait(b.record())
    d.wait(c.record())
    last.execute(stream=d)
"""),
            ("a graph, launched once", """
def diamond(first, left, right, last, s, t):
    with s.capture() as graph:
        first.execute(stream=s)
        t.wait(s.record())
        left.execute(stream=s)
        right.execute(stream=t)
        s.wait(t.record())
        last.execute(stream=s)
    diamond.kept = graph
    graph.launch(stream=s)
"""),
            ("a host function at the end", "    last.execute(stream=s)", "    last.execute(stream=s)\n    s.host_call(lambda: None)"),
            ("threads launch in turn", """
def diamond(first, left, right, last, s, t):
    import threading

    def launch(step, stream):
        thread = threading.Thread(target=step.execute, kwargs={"stream": stream})
        thread.start()
        thread.join()

    launch(first, s)
    t.wait(s.record())
    launch(left, s)
    launch(right, t)
    s.wait(t.record())
    launch(last, s)
"""),
            ("more waits than are needed", "    left.execute(stream=s)", "    t.wait(s.record())\n    s.wait(s.record())\n    left.execute(stream=s)"),
        ],
        "overwrite": [
            ("the next round goes to a buffer of its own", "    a.wait(b.record())\n    a.copy(out, eights)", "    twice.kept = own = gpu.empty(COUNT)\n    a.copy(own, eights)"),
            ("this round goes to a buffer of its own", """
def twice(a, b):
    twice.kept = own = gpu.empty(COUNT)
    a.copy(own, sevens)
    b.wait(a.record())
    late.execute(stream=b)
    b.copy(result, own)
    a.copy(out, eights)
"""),
            ("the consumer takes a copy of its own first", """
def twice(a, b):
    twice.kept = own = gpu.empty(COUNT)
    a.copy(out, sevens)
    b.wait(a.record())
    b.copy(own, out)
    a.wait(b.record())
    late.execute(stream=b)
    b.copy(result, own)
    a.copy(out, eights)
"""),
            ("a third stream carries the order", "    a.wait(b.record())", "    twice.kept = c = gpu.create_stream()\n    c.wait(b.record())\n    a.wait(c.record())"),
            ("a host function behind the read", "    a.wait(b.record())", "    b.host_call(lambda: None)\n    a.wait(b.record())"),
            ("one event for both directions", "    b.wait(a.record())", "    event = gpu.create_event()\n    a.record(event)\n    b.wait(event)", "    a.wait(b.record())", "    b.record(event)\n    a.wait(event)"),
        ],
        "pytorch": [
            ("t waits twice", "t.wait_stream(s)", "t.wait_stream(s)\n    t.wait_stream(s)"),
            ("a helper of its own", """
def diamond_in_pytorch(torch, first, left, right, last, s, t):
    def behind(stream, *others):
        for other in others:
            stream.wait_stream(other)
        return torch.cuda.stream(stream)

    with behind(s):
        first()
    with behind(t, s):
        right()
    with behind(s):
        left()
    with behind(s, t):
        last()
"""),
            ("gpuscope's events between PyTorch's streams", "s.wait_stream(t)", "gpu.wrap_stream(s.cuda_stream).wait(gpu.wrap_stream(t.cuda_stream).record())"),
        ],
    },
    "04": {
        "thread": [
            ("a pool of threads", """
def launch_from_thread(job):
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(1) as pool:
        pool.submit(job.execute, stream=gs.get_caller_stream()).result()
"""),
            ("a thread that takes its work from a queue", """
def launch_from_thread(job):
    import queue
    jobs = queue.Queue()

    def work():
        handle, stream = jobs.get()
        with gs.CallerStreamGuard(stream):
            handle.execute()

    thread = threading.Thread(target=work)
    thread.start()
    jobs.put((job, gs.get_caller_stream()))
    thread.join()
"""),
            ("a class of threads", """
def launch_from_thread(job):
    class Launching(threading.Thread):
        def __init__(self, stream):
            super().__init__()
            self.stream = stream

        def run(self):
            job.execute(stream=self.stream)

    thread = Launching(gs.get_caller_stream())
    thread.start()
    thread.join()
"""),
            ("a timer", """
def launch_from_thread(job):
    thread = threading.Timer(0, job.execute, kwargs={"stream": gs.get_caller_stream()})
    thread.start()
    thread.join()
"""),
            ("a thread in a thread", """
def launch_from_thread(job):
    selected = gs.get_caller_stream()

    def outer():
        thread = threading.Thread(target=lambda: job.execute(stream=selected))
        thread.start()
        thread.join()

    thread = threading.Thread(target=outer)
    thread.start()
    thread.join()
"""),
        ],
        "library": [
            ("by match", """
def mended(duration_ns):
    match gs.get_caller_stream():
        case None:
            stream = private
        case selected:
            stream = gpu.wrap_stream(selected)
    stream.launch(stubborn_kernel, duration_ns, grid=1, block=32)
"""),
            ("by an error", """
def mended(duration_ns):
    try:
        stream = gpu.wrap_stream(gs.get_caller_stream())
    except Exception:
        stream = private
    stream.launch(stubborn_kernel, duration_ns, grid=1, block=32)
"""),
            ("an event is recorded behind", "grid=1, block=32)", "grid=1, block=32)\n    stream.record(timing=False)"),
            ("a number of NumPy", "stubborn_kernel, duration_ns", "stubborn_kernel, __import__('numpy').int64(duration_ns)"),
        ],
    },
    "05": {
        "sizes": [
            ("the first number that is granted", """
def carve_for_decode(gpu):
    for wanted in range(30, gpu.sm_count):
        try:
            return gpu.plan_carve({"decode": wanted, "prefill": "rest"})
        except gs.errors.InvalidPartition:
            continue
"""),
            ("both numbers, asked for", """
def carve_for_decode(gpu):
    decode = gpu.plan_carve({"decode": 30}, rounding="up").granted()["decode"]
    return gpu.plan_carve({"decode": decode, "prefill": "rest"})
"""),
            ("arguments in a dict", """
def carve_for_decode(gpu):
    sizes = dict(prefill="rest")
    sizes["decode"] = 30
    return gpu.plan_carve(sizes=sizes, **{"rounding": "up"})
"""),
        ],
        "serve": [
            ("a thread for each", """
def serve(small, large, parts):
    import threading
    jobs = [(large, parts["prefill"].create_stream()), (small, parts["decode"].create_stream())]
    serve.kept = [stream for _, stream in jobs]
    threads = [threading.Thread(target=job.execute, kwargs={"stream": stream}) for job, stream in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""),
            ("both are waited for, at the end", """
def serve(small, large, parts):
    d, p = (parts[name].create_stream() for name in ("decode", "prefill"))
    small.execute(stream=d)
    large.execute(stream=p)
    d.synchronize()
    p.synchronize()
"""),
            ("streams of other names", """
def serve(small, large, parts):
    for job, name in ((large, "prefill"), (small, "decode")):
        with gs.CallerStreamGuard(parts[name].create_stream(name=job.name)):
            job.execute()
"""),
        ],
    },
    "06": {
        "choose": [
            ("by NumPy", """
def choose(points):
    import numpy as np
    p50, kept, size = (np.array([one[key] for one in points]) for key in ("p50_us", "kept", "size"))
    return size[np.argmax(np.where(p50 <= 1.2 * p50.min(), kept, -1))]
"""),
            ("as a number with a point", ')["size"]', ')["size"] + 0.0'),
            ("by reduce", """
def choose(points):
    from functools import reduce
    best = min(one["p50_us"] for one in points)
    near = (one for one in points if one["p50_us"] <= 1.2 * best)
    return reduce(lambda a, b: a if a["kept"] > b["kept"] else b, near)["size"]
"""),
            ("a dict of its own", "return max(near, key=lambda one: one[\"kept\"])[\"size\"]", "return dict(max(near, key=lambda one: one[\"kept\"]))"),
        ],
        "gain": [
            ("a fraction", "return (len(a) * solo_a + len(b) * solo_b) / makespan", "import fractions\n    return fractions.Fraction(len(a) * solo_a + len(b) * solo_b, makespan)"),
            ("a decimal", "return (len(a) * solo_a + len(b) * solo_b) / makespan", "import decimal\n    return decimal.Decimal(len(a) * solo_a + len(b) * solo_b) / makespan"),
            ("by NumPy", """
def gain(a, b, solo_a, solo_b):
    import numpy as np
    spans = np.array([*a, *b])
    return np.dot([len(a), len(b)], [solo_a, solo_b]) / np.ptp(spans)
"""),
            ("an array of no dimensions", "return (len(a) * solo_a + len(b) * solo_b) / makespan", "import numpy as np\n    return np.asarray((len(a) * solo_a + len(b) * solo_b) / makespan)"),
        ],
    },
    "07": {
        "pairs": [
            ("a thread for each stream", """
def four_calls(gpu, streams, kernel_ns):
    import threading
    handle = Spin(gpu, duration_ns=kernel_ns, name="four", max_in_flight=4)

    def two(stream):
        for _ in range(2):
            handle.execute(stream=stream)

    threads = [threading.Thread(target=two, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handle.wait()
    return handle
"""),
            ("four handles", """
def four_calls(gpu, streams, kernel_ns):
    handles = [Spin(gpu, duration_ns=kernel_ns, name="four") for _ in range(4)]
    for number, handle in enumerate(handles):
        handle.execute(stream=streams[number % 2])
    gpu.synchronize()
    four_calls.kept = handles
    return handles[0]
"""),
            ("it asks until both streams are done", "handle.wait()", "while not all([stream.is_done for stream in streams]):\n        pass"),
            ("one stream waits for the other, and the host for that one", "handle.wait()", "streams[0].wait(streams[1].record())\n    streams[0].synchronize()"),
            ("a host function behind each, and a wait", "handle.wait()", "for stream in streams:\n        stream.host_call(lambda: None)\n        stream.synchronize()"),
        ],
        "first": [
            ("a host function between the two, and an event", "    later.execute(stream=stream)\n    job.completion.wait()", "    stream.host_call(lambda: None)\n    done = stream.record()\n    later.execute(stream=stream)\n    done.synchronize()"),
            ("another stream waits for job, and the host for that one", "    later.execute(stream=stream)\n    job.completion.wait()", "    first_result.kept = other = gpu.create_stream()\n    other.wait(stream.record())\n    later.execute(stream=stream)\n    other.synchronize()"),
            ("a thread waits, and is waited for", "job.completion.wait()", "from concurrent.futures import ThreadPoolExecutor\n    with ThreadPoolExecutor() as pool:\n        pool.submit(job.completion.wait).result()"),
            ("it asks until an event is done", "    later.execute(stream=stream)\n    job.completion.wait()", "    done = stream.record(timing=False)\n    later.execute(stream=stream)\n    while not done.is_done:\n        pass"),
            ("a host function of another stream behind job", "    later.execute(stream=stream)\n    job.completion.wait()", "    first_result.kept = other = gpu.create_stream()\n    other.wait(stream.record())\n    other.host_call(lambda: None)\n    later.execute(stream=stream)\n    other.synchronize()"),
            ("host function between the two, polled", """
def first_result(job, later, stream):
    over = []
    job.execute(stream=stream)
    stream.host_call(lambda: over.append(1))
    later.execute(stream=stream)
    beat = gpu.create_stream(name="beat")
    while not over:
        beat.record()
"""),
        ],
    },
    "08": {
        "join": [
            ("a third stream", """
def capture_both(one, two, s, t):
    capture_both.kept = u = gpu.create_stream()
    with s.capture(name="both") as graph:
        start = s.record()
        for stream, step in ((t, one), (u, two)):
            stream.wait(start)
            step.execute(stream=stream)
            s.wait(stream.record())
    return graph
"""),
            ("by guards", "one.execute(stream=s)", "with gs.CallerStreamGuard(s):\n            one.execute()", "two.execute(stream=t)", "with gs.CallerStreamGuard(t):\n            two.execute()"),
            ("a host function joins", "        s.wait(t.record())", "        s.wait(t.record())\n        s.host_call(lambda: None)"),
            ("events made before", """
def capture_both(one, two, s, t):
    fork, join = gpu.create_event(timing=False), gpu.create_event(timing=False)
    with s.capture() as graph:
        s.record(fork)
        t.wait(fork)
        two.execute(stream=t)
        t.record(join)
        one.execute(stream=s)
        s.wait(join)
    return graph
"""),
        ],
        "wait": [
            ("over another stream, in order", """
def capture_in_order(one, two, s):
    capture_in_order.kept = u = gpu.create_stream()
    with s.capture(name="in order") as graph:
        one.execute(stream=s)
        u.wait(s.record())
        two.execute(stream=u)
        s.wait(u.record())
    return graph
"""),
            ("a host function between them", "        two", "        s.host_call(lambda: None)\n        two"),
            ("in a loop, by a guard", "        one.execute(stream=s)\n        two.execute(stream=s)", "        with gs.CallerStreamGuard(s):\n            for step in (one, two):\n                step.execute()"),
        ],
        "serve": [
            ("a tuple of NumPy's numbers", "float(gpu.to_host(out)[0])", "gpu.to_host(out)[0]", "return answers", "return tuple(answers)"),
            ("an array", "return answers", "return np.array(answers)"),
            ("results are copied to a page", """
def serve(model, static, out, inputs, stream):
    page, answers = gpu.empty_pinned(4), []
    for array in inputs:
        stream.copy(static, array)
        model.launch(stream=stream)
        stream.copy(page, out)
        stream.synchronize()
        answers.append(int(page[0]))
    return answers
"""),
            ("a buffer of its own in between", """
def serve(model, static, out, inputs, stream):
    answers, serve.kept = [], gpu.empty(4, "float32")
    for array in inputs:
        stream.copy(serve.kept, array)
        stream.copy(static, serve.kept)
        model.launch(stream=stream)
        stream.synchronize()
        answers.append(float(gpu.to_host(out)[0]))
    return answers
"""),
            ("a host function reads each answer", """
def serve(model, static, out, inputs, stream):
    answers, page = [], gpu.empty_pinned(4)
    for array in inputs:
        stream.copy(static, array)
        model.launch(stream=stream)
        stream.copy(page, out)
        stream.host_call(lambda: answers.append(float(page[0])))
    stream.synchronize()
    return answers
"""),
            ("a page for each answer, and an event for each", """
def serve(model, static, out, inputs, stream):
    pages, events = [gpu.empty_pinned(4) for _ in inputs], []
    for array, page in zip(inputs, pages):
        stream.copy(static, array)
        model.launch(stream=stream)
        stream.copy(page, out)
        events.append(stream.record())
    answers = []
    for event, page in zip(events, pages):
        event.synchronize()
        answers.append(float(page[0]))
    return answers
"""),
        ],
        "pytorch": [
            ("two graphs, of which one is returned", "    return graph", "    other = torch.cuda.CUDAGraph()\n    with torch.cuda.graph(other, stream=s):\n        one()\n    return graph"),
            ("an exception, caught in the block", "        s.wait_stream(t)", "        try:\n            raise ValueError\n        except ValueError:\n            s.wait_stream(t)"),
        ],
    },
    "09": {
        "interference": [
            ("the standard library's median", """
def interference(alone_us, together_us):
    from statistics import median
    return median(together_us) / median(alone_us) - 1
"""),
            ("a fraction", """
def interference(alone_us, together_us):
    from fractions import Fraction
    from statistics import median
    return Fraction(median(together_us)) / Fraction(median(alone_us)) - 1
"""),
            ("sorted by hand", """
def interference(alone_us, together_us):
    def middle(times):
        times = sorted(times)
        half = len(times) // 2
        return (times[half] + times[~half]) / 2
    return middle(together_us) / middle(alone_us) - 1
"""),
            ("quantiles", "np.median(together_us) / np.median(alone_us)", "np.quantile(together_us, 0.5) / np.quantile(alone_us, 0.5)"),
        ],
    },
    "10": {
        "range": [
            ("a number of NumPy", "return gs", "import numpy as np\n    return np.int64(gs", "[name].kernels", "[name].kernels)"),
            ("a number with a point", "[name].kernels", "[name].kernels * 1.0"),
        ],
        "export": [
            ("a dict of paths", """
def hand_over(trace, folder):
    return {name: gs.export(trace, folder / f"it.{name}") for name in ("json", "parquet")}
"""),
            ("compressed JSON", "it.json", "it.json.gz"),
            ("compressed JSON, in a dict of texts", """
def hand_over(trace, folder):
    return {"perfetto": str(gs.export(trace, folder / "a.json.gz")), "gpuscope": str(gs.export(trace, folder / "a.parquet"))}
"""),
            ("a set", "return gs", "return {gs", 'it.parquet")', 'it.parquet")}'),
            ("one by one", """
def hand_over(trace, folder):
    for name in ("x.y.json", "x.y.parquet"):
        yield gs.export(trace, folder / name)
"""),
        ],
    },
    "11": {
        "offload": [
            ("a third stream carries the order", """
def offload_mended(compute, store):
    prompt, kv, out, saved = numbers(), zeros(), zeros(), page()
    offload_mended.kept = other = gpu.create_stream()
    work("write_kv", compute, kv, prompt)
    other.wait(compute.record())
    store.wait(other.record())
    store.copy(saved, kv)
    work("decode", compute, out, kv)
    return saved
"""),
            ("a host function behind the copy", """
def offload_mended(compute, store):
    prompt, kv, out, saved = numbers(), zeros(), zeros(), page()
    work("write_kv", compute, kv, prompt)
    store.wait(compute.record())
    store.copy(saved, kv)
    store.host_call(lambda: None)
    work("decode", compute, out, kv)
    return saved
"""),
        ],
        "export": [
            ("a host function takes the copy", """
def export_mended(compute):
    x, y, gradient, saved = numbers(), zeros(), zeros(), page()
    taken = []
    work("forward", compute, y, x)
    compute.copy(saved, y)
    compute.host_call(lambda: taken.append(saved.copy()))
    done = compute.record()
    work("backward", compute, gradient, y)
    done.synchronize()
    return taken[0]
"""),
            ("a thread waits", """
def export_mended(compute):
    from concurrent.futures import ThreadPoolExecutor
    x, y, gradient, saved = numbers(), zeros(), zeros(), page()
    work("forward", compute, y, x)
    compute.copy(saved, y)
    done = compute.record()
    work("backward", compute, gradient, y)
    with ThreadPoolExecutor() as pool:
        pool.submit(done.synchronize).result()
    return saved.copy()
"""),
        ],
        "upload": [
            ("host functions stage both", """
def upload_mended(queue):
    x, y, k, v = numbers(), zeros(), zeros(), zeros()
    keys, values, staging = host(), host(), page()
    work("step", queue, y, x)
    queue.host_call(lambda: np.copyto(staging, keys))
    queue.copy(k, staging)
    queue.host_call(lambda: np.copyto(staging, values))
    queue.copy(v, staging)
    return k, v
"""),
        ],
        "gather": [
            ("an event for each half", """
def gather_mended(left, right, both):
    x, halves, out = numbers(), zeros(), zeros()
    half, events = SIZE // 2, [gpu.create_event(timing=False) for _ in range(2)]
    work("left_half", left, halves[:half], x[:half])
    left.record(events[0])
    work("right_half", right, halves[half:], x[half:])
    right.record(events[1])
    for event in events[::-1]:
        both.wait(event)
    work("join", both, out, halves)
    return out
"""),
        ],
        "stash": [
            ("memory for each layer", """
def stash_mended(main, side):
    x, y, out, saved = numbers(), numbers(), zeros(), page()
    stash_mended.kept = first, second = zeros(), zeros()
    work("layer_1", main, first, x)
    side.wait(main.record())
    side.copy(saved, first)
    work("layer_2", main, second, y)
    work("loss", main, out, second)
    return saved, out
"""),
        ],
        "decode": [
            ("the copies are captured, too", """
def decode_mended(load, compute):
    kv, out, saved = zeros(), zeros(), [page(host()), page(host())]
    for block in saved:
        with compute.capture() as step:
            compute.copy(kv, block)
            work("attention", compute, out, kv)
        step.launch(stream=compute)
    return out
"""),
        ],
    },
    "12": {
        "stages": [
            ("buffers of its own on the GPU", """
def in_stages(up, compute, down, batch, on_gpu, result):
    in_stages.kept = places = [gpu.empty(chunk.size, "float32") for chunk in batch]
    for source, place, target in zip(batch, places, result):
        up.copy(place, source)
        compute.wait(up.record())
        process(compute, place, place)
        down.wait(compute.record())
        down.copy(target, place)
"""),
            ("the kernel writes to other memory than it reads", """
def in_stages(up, compute, down, batch, on_gpu, result):
    in_stages.kept = places = [gpu.empty(chunk.size, "float32") for chunk in batch]
    for source, place, other, target in zip(batch, on_gpu, places, result):
        up.copy(place, source)
        compute.wait(up.record())
        process(compute, other, place)
        down.wait(compute.record())
        down.copy(target, other)
"""),
            ("six streams of its own", """
def in_stages(up, compute, down, batch, on_gpu, result):
    in_stages.kept = streams = [gpu.create_stream() for _ in range(6)]
    for stream, source, place, target in zip(streams, batch, on_gpu, result):
        stream.copy(place, source)
        process(stream, place, place)
        stream.copy(target, place)
"""),
            ("a host function behind each download", "        down.copy(target, place)", "        down.copy(target, place)\n        down.host_call(lambda: None)"),
        ],
        "feed": [
            ("host functions stage, in the order of the stream", """
def feed(load, compute, chunks, staging, on_gpu, out):
    computed = [gpu.create_event() for _ in range(2)]
    for i, chunk in enumerate(chunks):
        b = i % 2
        load.host_call(lambda chunk=chunk, page=staging[b]: np.copyto(page, chunk))
        load.wait(computed[b])
        load.copy(on_gpu[b], staging[b])
        compute.wait(load.record())
        process(compute, out[i], on_gpu[b])
        compute.record(computed[b])
"""),
            ("six buffers on the GPU", """
def feed(load, compute, chunks, staging, on_gpu, out):
    feed.kept = places = [gpu.empty(chunk.size, "float32") for chunk in chunks]
    uploaded = [gpu.create_event() for _ in range(2)]
    for i, chunk in enumerate(chunks):
        uploaded[i % 2].synchronize()
        staging[i % 2][:] = chunk
        load.copy(places[i], staging[i % 2])
        load.record(uploaded[i % 2])
        compute.wait(uploaded[i % 2])
        process(compute, out[i], places[i])
"""),
            ("a thread waits for the upload", "uploaded[b].synchronize()", "import threading\n        thread = threading.Thread(target=uploaded[b].synchronize)\n        thread.start()\n        thread.join()"),
            ("a host function behind each upload", "        load.record(uploaded[b])", "        load.host_call(lambda: None)\n        load.record(uploaded[b])"),
            ("another stream waits for the upload, and the host for that one", "        uploaded[b].synchronize()\n", "        with gpu.create_stream() as other:\n            other.wait(uploaded[b])\n            other.synchronize()\n"),
        ],
        "pytorch": [
            ("a thread launches all", "    for source", "    from threading import Thread\n    thread = Thread(target=launch_stages, args=(torch, up, compute, down, batch, on_gpu, result, process))\n    thread.start()\n    thread.join()\n\n\ndef launch_stages(torch, up, compute, down, batch, on_gpu, result, process):\n    for source"),
            ("another stream for every chunk", """
def in_stages_in_pytorch(torch, up, compute, down, batch, on_gpu, result, process):
    for source, tensor, target in zip(batch, on_gpu, result):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            stream.wait_stream(up)
            tensor.copy_(source, non_blocking=True)
            process(tensor)
            stream.wait_stream(down)
            target.copy_(tensor, non_blocking=True)
"""),
        ],
    },
    "13": {
        "answer": [
            ("a host function reads the answer", """
def first_answer(ask, draft, s, t, buffer, page):
    seen = []
    ask.execute(stream=s)
    s.copy(page, ask.array)
    s.host_call(lambda: seen.append(float(page[0])))
    t.copy(buffer, zeros)
    draft.execute(stream=t)
    s.synchronize()
    return seen[0]
"""),
            ("a page of its own, a number of NumPy", "s.copy(page, ask.array)", "page = gpu.empty_pinned(4)\n    s.copy(page, ask.array)", "return float(page[0])", "return page[0]"),
            ("a thread waits", "    s.synchronize()", "    import threading\n    thread = threading.Thread(target=s.synchronize)\n    thread.start()\n    thread.join()"),
            ("the buffer is cleared in a stream of its own", "    t.copy(buffer, zeros)\n", "    first_answer.kept = u = gpu.create_stream()\n    u.copy(buffer, zeros)\n    t.wait(u.record())\n"),
            ("all in streams of its own", "def first_answer(ask, draft, s, t, buffer, page):\n", "def first_answer(ask, draft, s, t, buffer, page):\n    first_answer.kept = s, t = gpu.create_stream(), gpu.create_stream()\n"),
            ("the answer is copied in a third stream", "    s.copy(page, ask.array)", "    first_answer.kept = u = gpu.create_stream()\n    u.wait(s.record())\n    u.copy(page, ask.array)", "    s.synchronize()", "    u.synchronize()"),
        ],
        "culprit": [
            ("a thread waits for each step", """
def culprit(steps, stream):
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(1) as pool:
        for step in steps:
            step.execute(stream=stream)
            try:
                pool.submit(stream.synchronize).result()
            except RuntimeError:
                return step.name
    return None
"""),
            ("a host function behind each step", "            stream.synchronize()", "            stream.host_call(lambda: None)\n            stream.synchronize()"),
            ("asks each stream's query until done; recursion", """
def culprit(steps, stream):
    match list(steps):
        case []:
            return None
        case [step, *rest]:
            try:
                step.execute(stream=stream)
                while not stream.is_done:
                    pass
            except RuntimeError:
                return str(step.name)
            return culprit(rest, stream)
"""),
            ("asks an event until it is done, then lets the stream tell", """
def culprit(steps, stream):
    for step in steps:
        try:
            step.execute(stream=stream)
            end = stream.record()
            while not end.is_done:
                pass
        except RuntimeError:
            return step.name
    return None
"""),
        ],
    },
}  # fmt: skip
"""Programs that are solved."""
