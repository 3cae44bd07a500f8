"""Answers to the exercises of all lessons but the eleventh: other right ones, and wrong ones with the reason.

Each is a line that says what it does, and what is put in the place of what in the solution that
the last hint gives; a single text is the whole program.
"""

from __future__ import annotations

Answers = dict[str, dict[str, list[tuple[str, ...]]]]
"""Lesson → exercise → answers."""

ENDS_ITS_PROCESS = (
    "it crashes behind the launches",
    "it leaves the process",
    "a loop without an end",
)
"""Of what is in C++: on a GPU, that is the process of the notebook."""
RIGHT: Answers = {
    "01": {
        "timer": [
            ("the stream is waited for", "second.synchronize()", "stream.synchronize()"),
            ("events are made beforehand", "first = stream.record()", "first = gpu.create_event()\n    stream.record(first)"),
            ("it asks until the event is done", "second.synchronize()", "while not second.is_done:\n        pass"),
            ("the device is waited for", "second.synchronize()", "gpu.synchronize()"),
            ("from a recording of its own", """
def gpu_time_ns(stream, handle):
    with gs.profile(gpu) as recording:
        handle.execute(stream=stream)
        stream.synchronize()
    kernels = recording.trace.where(kind="kernel")
    return int(kernels.array("end_ns").max() - kernels.array("start_ns").min())
"""),
        ],
        "read": [
            ("a host function behind the copy", "    stream.synchronize()", "    stream.host_call(lambda: None)\n    stream.synchronize()"),
            ("an event after the copy", "stream.synchronize()", "stream.record().synchronize()"),
            ("it asks until the stream is done", "stream.synchronize()", "while not stream.is_done:\n        pass"),
            ("it returns a number of NumPy", "float(page[0])", "page[0]"),
        ],
    },
    "02": {
        "spread": [
            ("backwards", "zip(kernels, streams)", "list(zip(kernels, streams))[::-1]"),
            ("it waits, after all are launched", "stream=stream)", "stream=stream)\n    gpu.synchronize()"),
            ("in streams of its own", "    for kernel, stream in zip(kernels, streams):", "    launch_all.streams = [gpu.create_stream() for _ in kernels]\n    for kernel, stream in zip(kernels, launch_all.streams):"),
            ("by guards", "kernel.execute(stream=stream)", "with gs.CallerStreamGuard(stream):\n            kernel.execute()"),
        ],
        "late": [
            ("a thread for each stream launches and waits", """
def launch_and_wait(kernels, streams):
    def one(kernel, stream):
        kernel.execute(stream=stream)
        stream.synchronize()
    threads = [threading.Thread(target=one, args=pair) for pair in zip(kernels, streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""),
            ("threads of a pool wait for events", """
from concurrent.futures import ThreadPoolExecutor
def launch_and_wait(kernels, streams):
    def one(kernel, stream):
        kernel.execute(stream=stream)
        stream.record().synchronize()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(one, kernels, streams))
"""),
            ("a host function of each stream sets a flag", """
def launch_and_wait(kernels, streams):
    flags = [threading.Event() for _ in streams]
    for kernel, stream, flag in zip(kernels, streams, flags):
        kernel.execute(stream=stream)
        stream.host_call(flag.set)
    for flag in flags:
        flag.wait()
"""),
            ("a host function of each stream puts something into a queue", """
import queue
def launch_and_wait(kernels, streams):
    queues = [queue.Queue() for _ in streams]
    for kernel, stream, its_queue in zip(kernels, streams, queues):
        kernel.execute(stream=stream)
        stream.host_call(lambda its_queue=its_queue: its_queue.put(1))
    for its_queue in queues[::-1]:
        its_queue.get()
"""),
            ("the device is waited for", "    for stream in streams:\n        stream.synchronize()", "    gpu.synchronize()"),
            ("each kernel is waited for", "    for stream in streams:\n        stream.synchronize()", "    for kernel in kernels:\n        kernel.wait()"),
            ("events, waited for backwards", "    for stream in streams:\n        stream.synchronize()", "    for event in [stream.record() for stream in streams][::-1]:\n        event.synchronize()"),
        ],
        "cuda": [
            ("backwards", "a<<<1, 32, 0, s>>>();\n", "", "u>>>();\n", "u>>>();\n  a<<<1, 32, 0, s>>>();\n"),
            ("each by cudaLaunchKernel", "a<<<1, 32, 0, s>>>()", "cudaLaunchKernel((void*)a, dim3(1), dim3(32), nullptr, 0, s)"),
            ("in streams of its own, which are closed at once", "  a<<<1, 32, 0, s>>>();", "  cudaStream_t v;\n  cudaStreamCreateWithFlags(&v, cudaStreamNonBlocking);\n  a<<<1, 32, 0, v>>>();\n  cudaStreamDestroy(v);"),
            ("in the default stream of the thread", "0, s>>>", "0, cudaStreamPerThread>>>"),
            ("one in the legacy default stream, the others in streams that do not wait for it", "<<<1, 32, 0, s>>>", "<<<1, 32>>>"),
            ("it waits, after all are launched", "u>>>();\n", "u>>>();\n  cudaDeviceSynchronize();\n"),
        ],
        "pytorch": [
            ("one block in the other", """
def launch_all_in_pytorch(torch, a, b, c, s, t, u):
    with torch.cuda.stream(s):
        a()
        with torch.cuda.stream(t):
            b()
            with torch.cuda.stream(u):
                c()
"""),
            ("backwards", "((a, s), (b, t), (c, u))", "((c, u), (b, t), (a, s))"),
            ("in streams of its own", "torch.cuda.stream(stream)", "torch.cuda.stream(torch.cuda.Stream())"),
            ("one in the default stream", "(c, u)", "(c, torch.cuda.default_stream())"),
            ("one outside of all blocks", "((a, s), (b, t), (c, u))", "((a, s), (b, t))", "            function()", "            function()\n    c()"),
            ("it waits, after all are launched", "            function()", "            function()\n    torch.cuda.synchronize()"),
        ],
    },
    "03": {
        "diamond": [
            ("last in t", "    s.wait(t.record())\n    last.execute(stream=s)", "    t.wait(s.record())\n    last.execute(stream=t)"),
            ("left and right change places", "left.execute(stream=s)\n    right.execute(stream=t)", "right.execute(stream=s)\n    left.execute(stream=t)"),
            ("right is launched first", "    left.execute(stream=s)\n    right.execute(stream=t)\n", "    right.execute(stream=t)\n    left.execute(stream=s)\n"),
            ("events of its own", "t.wait(s.record())", "event = gpu.create_event()\n    s.record(event)\n    t.wait(event)"),
            ("one event, recorded twice", "t.wait(s.record())", "event = gpu.create_event()\n    s.record(event)\n    t.wait(event)", "s.wait(t.record())", "t.record(event)\n    s.wait(event)"),
        ],
        "overwrite": [
            ("the event is named", "a.wait(b.record())", "read = b.record()\n    a.wait(read)"),
            ("a waits for more than it must", "    a.wait(b.record())", "    b.wait(a.record())\n    a.wait(b.record())"),
        ],
        "cuda": [
            ("last in t", "cudaEventRecord(done, t);\n  cudaStreamWaitEvent(s, done);\n  last<<<1, 32, 0, s>>>", "cudaEventRecord(done, s);\n  cudaStreamWaitEvent(t, done);\n  last<<<1, 32, 0, t>>>"),
            ("one event, recorded twice", "(done, t)", "(written, t)", "(s, done)", "(s, written)"),
            ("events that note times", "WithFlags(&written, cudaEventDisableTiming)", "(&written)"),
            ("last in a third stream", "cudaStreamWaitEvent(s, done);\n  last<<<1, 32, 0, s>>>();", "cudaStream_t u;\n  cudaStreamCreateWithFlags(&u, cudaStreamNonBlocking);\n  cudaStreamWaitEvent(u, done);\n  cudaEventRecord(written, s);\n  cudaStreamWaitEvent(u, written);\n  last<<<1, 32, 0, u>>>();\n  cudaStreamDestroy(u);"),
        ],
        "pytorch": [
            ("events in place of wait_stream", "    t.wait_stream(s)", "    written = torch.cuda.Event()\n    written.record(s)\n    t.wait_event(written)", "    s.wait_stream(t)", "    done = torch.cuda.Event()\n    done.record(t)\n    s.wait_event(done)"),
            ("one event, recorded in the current stream, twice", """
def diamond_in_pytorch(torch, first, left, right, last, s, t):
    event = torch.cuda.Event()
    with torch.cuda.stream(s):
        first()
        event.record()
        left()
        with torch.cuda.stream(t):
            event.wait()
            right()
            event.record()
        event.wait()
        last()
"""),
            ("streams make their events", "t.wait_stream(s)", "t.wait_event(s.record_event())", "s.wait_stream(t)", "s.wait_event(t.record_event())"),
            ("last in t", "    s.wait_stream(t)\n    with torch.cuda.stream(s):\n        last()", "    t.wait_stream(s)\n    with torch.cuda.stream(t):\n        last()"),
            ("last in a third stream", "    s.wait_stream(t)\n    with torch.cuda.stream(s):\n        last()", "    third = torch.cuda.Stream()\n    third.wait_stream(s)\n    third.wait_stream(t)\n    with torch.cuda.stream(third):\n        last()"),
            ("an event that notes its time", "t.wait_stream(s)", "t.wait_event(s.record_event(torch.cuda.Event(enable_timing=True)))"),
        ],
    },
    "04": {
        "thread": [
            ("the stream is named in the call", "        with gs.CallerStreamGuard(selected):\n            job.execute()", "        job.execute(stream=selected)"),
            ("a number becomes a stream first", "selected = gs.get_caller_stream()", "selected = gpu.wrap_stream(gs.get_caller_stream())"),
            ("it is handed over as an argument", """
def launch_from_thread(job):
    thread = threading.Thread(target=job.execute, kwargs={"stream": gs.get_caller_stream()})
    thread.start()
    thread.join()
"""),
        ],
        "library": [
            ("by a condition", "    stream = private if selected is None else gpu.wrap_stream(selected)\n", "    stream = private\n    if selected is not None:\n        stream = gpu.wrap_stream(selected)\n"),
            ("a stream is not wrapped, a number is", "gpu.wrap_stream(selected)", "selected", "    stream.launch", "    if isinstance(stream, int):\n        stream = gpu.wrap_stream(stream)\n    stream.launch"),
        ],
    },
    "05": {
        "sizes": [
            ("prefill comes first", '{"decode": 30, "prefill": "rest"}', '{"prefill": "rest", "decode": 30}'),
            ("it asks for one more until it is granted", """
def carve_for_decode(gpu):
    wanted = 30
    while True:
        try:
            return gpu.plan_carve({"decode": wanted, "prefill": "rest"})
        except gs.errors.InvalidPartition:
            wanted += 1
"""),
        ],
        "serve": [
            ("streams are named in the calls", """
def serve(small, large, parts):
    small.execute(stream=parts["decode"].create_stream())
    large.execute(stream=parts["prefill"].create_stream())
"""),
            ("both streams are closed, after both launches", """
def serve(small, large, parts):
    with parts["prefill"].create_stream() as p, parts["decode"].create_stream() as d:
        large.execute(stream=p)
        small.execute(stream=d)
"""),
            ("nested guards", """
def serve(small, large, parts):
    d, p = (parts[name].create_stream() for name in ("decode", "prefill"))
    with gs.CallerStreamGuard(d):
        with gs.CallerStreamGuard(p):
            large.execute()
        small.execute()
"""),
        ],
    },
    "06": {
        "choose": [
            ("the point itself", ')["size"]', ")"),
            ("by sorting", "max(near, key=lambda one: one[\"kept\"])[\"size\"]", "sorted(near, key=lambda one: one[\"kept\"])[-1][\"size\"]"),
        ],
        "gain": [("in two steps", "return (len(a) * solo_a + len(b) * solo_b) / makespan", "alone = sum([solo_a] * len(a)) + sum([solo_b] * len(b))\n    return alone / makespan")],
    },
    "07": {
        "pairs": [
            ("more in flight than streams", "max_in_flight=2", "max_in_flight=4"),
            ("the streams are waited for", "handle.wait()", "for stream in streams:\n        stream.synchronize()"),
            ("a handle for each stream", """
def four_calls(gpu, streams, kernel_ns):
    handles = [Spin(gpu, duration_ns=kernel_ns, name="four") for _ in streams]
    for _ in range(2):
        for handle, stream in zip(handles, streams):
            handle.execute(stream=stream)
    for handle in handles:
        handle.wait()
    return handles[0]
"""),
            ("pairs, each waited for", """
def four_calls(gpu, streams, kernel_ns):
    handle = Spin(gpu, duration_ns=kernel_ns, name="four", max_in_flight=2)
    for _ in range(2):
        for stream in streams:
            handle.execute(stream=stream)
        handle.wait()
    return handle
"""),
        ],
        "first": [
            ("an event between the two", """
def first_result(job, later, stream):
    job.execute(stream=stream)
    done = stream.record()
    later.execute(stream=stream)
    done.synchronize()
"""),
            ("the handle is waited for", "job.completion.wait()", "job.wait()"),
            ("a host function behind later", "    job.completion.wait()", "    stream.host_call(lambda: None)\n    job.completion.wait()"),
            ("it asks until job is done", "job.completion.wait()", "while not job.completion.is_done:\n        pass"),
        ],
    },
    "08": {
        "join": [
            ("streams change places", "one.execute(stream=s)\n        two.execute(stream=t)", "one.execute(stream=t)\n        two.execute(stream=s)"),
            ("two is launched first", "        one.execute(stream=s)\n        two.execute(stream=t)", "        two.execute(stream=t)\n        one.execute(stream=s)"),
            ("the capture begins in t", """
def capture_both(one, two, s, t):
    with t.capture(name="both") as graph:
        s.wait(t.record())
        one.execute(stream=s)
        two.execute(stream=t)
        t.wait(s.record())
    return graph
"""),
        ],
        "wait": [
            ("it waits before the capture", "    with", "    s.synchronize()\n    with"),
            ("over an event in one stream", "        two", "        s.wait(s.record())\n        two"),
        ],
        "serve": [
            ("the host waits in to_host alone", "        stream.synchronize()\n", ""),
            ("copied in another stream, behind an event", "        stream.copy(static, array)", "        with gpu.create_stream() as other:\n            other.copy(static, array)\n            stream.wait(other.record())"),
            ("copied over the host", "        stream.copy(static, array)", "        stream.copy(static, gpu.to_host(array))"),
            ("nobody waits until all are launched", """
def serve(model, static, out, inputs, stream):
    results = [gpu.empty(4, "float32") for _ in inputs]
    for array, result in zip(inputs, results):
        stream.copy(static, array)
        model.launch(stream=stream)
        stream.copy(result, out)
    stream.synchronize()
    return [float(gpu.to_host(result)[0]) for result in results]
"""),
        ],
        "cuda": [
            ("t is joined before s has work", "  one<<<1, 32, 0, s>>>();\n", "", "cudaEventRecord(join, t);\n", "cudaEventRecord(join, t);\n  one<<<1, 32, 0, s>>>();\n"),
            ("one event for both", "(join, t)", "(fork, t)", "(s, join)", "(s, fork)"),
            ("the graph is kept", "  cudaGraphDestroy(graph);\n", ""),
            ("a capture of all threads", "ModeThreadLocal", "ModeGlobal"),
            ("the streams change roles", "BeginCapture(s,", "BeginCapture(t,", "EndCapture(s,", "EndCapture(t,", "(fork, s)", "(fork, t)", "(t, fork)", "(s, fork)", "(join, t)", "(join, s)", "(s, join)", "(t, join)"),
        ],
        "pytorch": [
            ("events in place of wait_stream", "t.wait_stream(s)", "t.wait_event(s.record_event())", "s.wait_stream(t)", "t.record_event().wait()"),
            ("the streams change roles", "stream=s)", "stream=t)", "t.wait_stream(s)", "s.wait_stream(t)", "torch.cuda.stream(t)", "torch.cuda.stream(s)", "        s.wait_stream(t)\n    return", "        t.wait_stream(s)\n    return"),
            ("two is captured first", "        one()\n        with torch.cuda.stream(t):\n            two()\n", "        with torch.cuda.stream(t):\n            two()\n        one()\n"),
            ("t is joined before s has work", "        one()\n", "", "        s.wait_stream(t)\n", "        with torch.cuda.stream(s):\n            t_is_done = t.record_event()\n            one()\n        s.wait_event(t_is_done)\n"),
            ("in the stream that torch.cuda.graph takes by itself", "(graph, stream=s)", "(graph)", "t.wait_stream(s)", "t.wait_stream(torch.cuda.current_stream())", "s.wait_stream(t)", "torch.cuda.current_stream().wait_stream(t)"),
            ("each in a stream of its own", "        one()\n", "        u = torch.cuda.Stream()\n        u.wait_stream(s)\n        with torch.cuda.stream(u):\n            one()\n        s.wait_stream(u)\n"),
        ],
    },
    "09": {"interference": [("as a difference", "float(np.median(together_us) / np.median(alone_us)) - 1", "(np.median(together_us) - np.median(alone_us)) / np.median(alone_us)")]},
    "10": {
        "range": [("summed over the rows", "gs.analysis.range_projection(trace)[name].kernels", "sum(row[\"kernels\"] for row in gs.analysis.range_projection(trace).ranges.to_pylist() if row[\"name\"] == name)")],
        "export": [
            ("the other way round", 'gs.export(trace, folder / "it.json"), gs.export(trace, folder / "it.parquet")', 'gs.export(trace, folder / "b.parquet"), gs.export(trace, folder / "a.json")'),
            ("as texts, in a list", 'gs.export(trace, folder / "it.json"), gs.export(trace, folder / "it.parquet")', '[str(gs.export(trace, folder / name)) for name in ("a.json", "a.parquet")]'),
        ],
    },
    "12": {
        "stages": [
            ("chunk i in stream i % 3", """
def in_stages(up, compute, down, batch, on_gpu, result):
    streams = [up, compute, down]
    for i in range(6):
        stream = streams[i % 3]
        stream.copy(on_gpu[i], batch[i])
        process(stream, on_gpu[i], on_gpu[i])
        stream.copy(result[i], on_gpu[i])
"""),
            ("all uploads are queued first, then all kernels, then all downloads", """
def in_stages(up, compute, down, batch, on_gpu, result):
    uploaded, computed = [], []
    for place, source in zip(on_gpu, batch):
        up.copy(place, source)
        uploaded.append(up.record())
    for place, event in zip(on_gpu, uploaded):
        compute.wait(event)
        process(compute, place, place)
        computed.append(compute.record())
    for target, place, event in zip(result, on_gpu, computed):
        down.wait(event)
        down.copy(target, place)
"""),
            ("one event of its own, recorded again and again", "    for source", "    done = gpu.create_event()\n    for source", "compute.wait(up.record())", "up.record(done)\n        compute.wait(done)"),
            ("the streams change places", "in_stages(up, compute, down,", "in_stages(down, up, compute,"),
            ("events without timing", "up.record()", "up.record(timing=False)"),
            ("backwards", "zip(batch, on_gpu, result)", "list(zip(batch, on_gpu, result))[::-1]"),
        ],
        "feed": [
            ("events are kept in lists", """
def feed(load, compute, chunks, staging, on_gpu, out):
    uploaded, computed = [], []
    for i, chunk in enumerate(chunks):
        b = i % 2
        if i >= 2:
            uploaded[i - 2].synchronize()
            load.wait(computed[i - 2])
        staging[b][:] = chunk
        load.copy(on_gpu[b], staging[b])
        uploaded.append(load.record())
        compute.wait(uploaded[i])
        process(compute, out[i], on_gpu[b])
        computed.append(compute.record())
"""),
            ("load waits before the host does", "        uploaded[b].synchronize()\n        staging[b][:] = chunk\n        load.wait(computed[b])\n", "        load.wait(computed[b])\n        uploaded[b].synchronize()\n        staging[b][:] = chunk\n"),
            ("NumPy's copyto", "staging[b][:] = chunk", "np.copyto(staging[b], chunk)"),
            ("a new event for compute", "compute.wait(uploaded[b])", "compute.wait(load.record())"),
            ("the buffers change places", "b = i % 2", "b = (i + 1) % 2"),
            ("it asks until the upload is done", "uploaded[b].synchronize()", "while not uploaded[b].is_done:\n            pass"),
        ],
        "cuda": [
            ("breadth first", """
IN_STAGES = r'''
void in_stages(cudaStream_t up, cudaStream_t compute, cudaStream_t down, float** batch,
               float** on_gpu, float** result, int chunks, int count, int grid, long long ns) {
  size_t bytes = count * sizeof(float);
  cudaEvent_t uploaded[16], computed[16];
  for (int i = 0; i < chunks; ++i) {
    cudaEventCreate(&uploaded[i]);
    cudaEventCreate(&computed[i]);
    cudaMemcpyAsync(on_gpu[i], batch[i], bytes, cudaMemcpyHostToDevice, up);
    cudaEventRecord(uploaded[i], up);
  }
  for (int i = 0; i < chunks; ++i) {
    cudaStreamWaitEvent(compute, uploaded[i], 0);
    process<<<dim3(grid), dim3(1024), 0, compute>>>(on_gpu[i], on_gpu[i], count, ns);
    cudaEventRecord(computed[i], compute);
  }
  for (int i = 0; i < chunks; ++i) {
    cudaStreamWaitEvent(down, computed[i], 0);
    cudaMemcpyAsync(result[i], on_gpu[i], bytes, cudaMemcpyDeviceToHost, down);
  }
}
'''
"""),
            ("by cudaLaunchKernel", "    process<<<grid, 1024, 0, compute>>>(on_gpu[i], on_gpu[i], count, ns);", "    void* arguments[] = {&on_gpu[i], &on_gpu[i], &count, &ns};\n    cudaLaunchKernel(process, dim3(grid), dim3(1024), arguments, 0, compute);"),
        ],
        "pytorch": [
            ("chunk i in stream i % 3", """
def in_stages_in_pytorch(torch, up, compute, down, batch, on_gpu, result, process):
    for i, (source, tensor, target) in enumerate(zip(batch, on_gpu, result)):
        with torch.cuda.stream((up, compute, down)[i % 3]):
            tensor.copy_(source, non_blocking=True)
            process(tensor)
            target.copy_(tensor, non_blocking=True)
"""),
            ("all uploads are queued first, then all kernels, then all downloads", """
def in_stages_in_pytorch(torch, up, compute, down, batch, on_gpu, result, process):
    uploaded, computed = [], []
    with torch.cuda.stream(up):
        for tensor, source in zip(on_gpu, batch):
            tensor.copy_(source, non_blocking=True)
            uploaded.append(up.record_event())
    with torch.cuda.stream(compute):
        for tensor, event in zip(on_gpu, uploaded):
            compute.wait_event(event)
            process(tensor)
            computed.append(compute.record_event())
    with torch.cuda.stream(down):
        for target, tensor, event in zip(result, on_gpu, computed):
            down.wait_event(event)
            target.copy_(tensor, True)
"""),
            ("one event, recorded again and again", "    for source", "    event = torch.cuda.Event()\n    for source", "compute.wait_stream(up)", "event.record(up)\n        compute.wait_event(event)", "down.wait_stream(compute)", "event.record(compute)\n        event.wait(down)"),
            ("the streams change places", "torch, up, compute, down,", "torch, down, up, compute,"),
            ("backwards", "zip(batch, on_gpu, result)", "list(zip(batch, on_gpu, result))[::-1]"),
            ("memory is kept for the streams, which it need not", "            process(tensor)", "            process(tensor)\n            tensor.record_stream(compute)"),
        ],
    },
    "13": {
        "answer": [
            ("draft goes first, and the copy may be to ordinary memory", """
def first_answer(ask, draft, s, t, buffer, page):
    ordinary = np.zeros(4, "float32")
    t.copy(buffer, zeros)
    draft.execute(stream=t)
    ask.execute(stream=s)
    s.copy(ordinary, ask.array)
    return float(ordinary[0])
"""),
            ("the copy without a stream comes before both kernels", "    t.copy(buffer, zeros)\n", "", "    ask.execute(stream=s)\n", "    legacy.copy(buffer, zeros)\n    ask.execute(stream=s)\n"),
            ("an event is waited for", "s.synchronize()", "s.record().synchronize()"),
            ("it asks until the stream is done", "s.synchronize()", "while not s.is_done:\n        pass"),
            ("the buffer is cleared in s, before ask, and t waits for that", "    ask.execute(stream=s)\n", "    s.copy(buffer, zeros)\n    t.wait(s.record())\n    ask.execute(stream=s)\n", "    t.copy(buffer, zeros)\n", ""),
            ("draft is in the thread's default stream", "    t.copy(buffer, zeros)\n    draft.execute(stream=t)\n", "    mine = gpu.wrap_stream(2)\n    mine.copy(buffer, zeros)\n    draft.execute(stream=mine)\n"),
            ("streams change places", "s, t, buffer, page", "t, s, buffer, page"),
        ],
        "culprit": [
            ("an event behind each step", "stream.synchronize()", "stream.record().synchronize()"),
            ("the device is waited for", "stream.synchronize()", "stream.device.synchronize()"),
            ("one try around all", """
def culprit(steps, stream):
    try:
        for step in steps:
            step.execute(stream=stream)
            stream.synchronize()
    except RuntimeError:
        return step.name
"""),
            ("it asks until the step is done, and then waits", "            stream.synchronize()", "            while not stream.is_done:\n                pass\n            stream.synchronize()"),
            ("launch and wait in one try", "        step.execute(stream=stream)\n        try:\n", "        try:\n            step.execute(stream=stream)\n"),
        ],
    },
    "14": {
        "admit": [
            ("an event of its own for each wait", "copies.wait(chat.record())", "free = gpu.create_event()\n    chat.record(free)\n    copies.wait(free)"),
            ("chat waits for the copy by an event that is recorded again", "chat.wait(copies.record())", "copied = gpu.create_event()\n    copies.record(copied)\n    chat.wait(copied)"),
            ("chat waits for all of copies, twice", "    chat.wait(copies.record())\n", "    chat.wait(copies.record())\n    chat.wait(copies.record())\n"),
            ("events without timing", "copies.record()", "copies.record(timing=False)"),
        ],
        "count": [
            ("the guard is made first", "    with gs.CallerStreamGuard(decode):\n", "    guard = gs.CallerStreamGuard(decode)\n    with guard:\n"),
            ("in a stream of its own, with two waits", """
side = []

def count(decode, counts, state):
    if not side:
        side.append(gpu.create_stream(name="side"))
    side[0].wait(decode.record())
    with gs.CallerStreamGuard(side[0]):
        library_count(counts, state)
    decode.wait(side[0].record())
"""),
            ("in the thread's default stream, with two waits", "    with gs.CallerStreamGuard(decode):\n", "    own = gpu.wrap_stream(2)\n    own.wait(decode.record())\n    with gs.CallerStreamGuard(own):\n", "library_count(counts, state)", "library_count(counts, state)\n    decode.wait(own.record())"),
        ],
        "stage": [
            ("NumPy's copyto", "page[:] = prompt", "np.copyto(page, prompt)"),
            ("it asks until the copy is done", "read.synchronize()", "while not read.is_done:\n        pass"),
            ("in two halves", "page[:] = prompt", "half = len(page) // 2\n    page[:half] = prompt[:half]\n    page[half:] = prompt[half:]"),
            ("only if it is not done", "    read.synchronize()\n", "    if not read.is_done:\n        read.synchronize()\n"),
        ],
        "step": [
            ("a function with a name", "    return lambda: graph.launch(stream=decode)", "\n    def step():\n        graph.launch(stream=decode)\n\n    return step"),
            ("captured in another stream", "    with decode.capture(name=\"step\") as graph:", "    decode_, decode = decode, gpu.create_stream()\n    with decode.capture() as graph:", "stream=decode)", "stream=decode_)"),
            ("captured at the first step", """
def make_step(decode, state, token):
    graphs = []

    def step():
        if not graphs:
            with decode.capture() as graph:
                for _ in range(LAYERS):
                    layer(decode, state)
                decode.copy(token, state)
            graphs.append(graph)
        graphs[0].launch(stream=decode)

    return step
"""),
        ],
        "place": [
            ("prefill is named first", "{\"decode\": least, \"prefill\": \"rest\"}", "{\"prefill\": \"rest\", \"decode\": least}"),
            ("from above", "next(sms for sms in range(1, gpu.sm_count) if step_us(sms) <= limit_us)", "min(sms for sms in range(gpu.sm_count - 1, 0, -1) if step_us(sms) <= limit_us)"),
            ("it asks for one more until it is granted", """
def place(gpu, step_us, limit_us):
    for sms in range(1, gpu.sm_count):
        if step_us(sms) <= limit_us:
            try:
                return gpu.carve({"decode": sms, "prefill": "rest"})
            except gs.errors.InvalidPartition:
                pass
"""),
            ("it plans first", "    return gpu.carve(", "    granted = gpu.plan_carve({\"decode\": least, \"prefill\": \"rest\"}, rounding=\"up\").granted()\n    return gpu.carve(granted) if granted else gpu.carve("),
        ],
        "queues": [
            ("the least number that is higher", "priority=-5", "priority=-1"),
            ("both are stated", "name=\"batch\"", "name=\"batch\", priority=0"),
            ("batch is made first", "    return part.create_stream(name=\"chat\", priority=-5), part.create_stream(name=\"batch\")", "    batch = part.create_stream(name=\"batch\")\n    return part.create_stream(name=\"chat\", priority=-3), batch"),
        ],
        "report": [
            ("an event is waited for", "decode.synchronize()", "decode.record().synchronize()"),
            ("the copy may be to ordinary memory", "decode.copy(page, counts)", "page = np.zeros(4, \"float32\")\n    decode.copy(page, counts)"),
            ("it asks until the stream is done", "decode.synchronize()", "while not decode.is_done:\n        pass"),
            ("in another stream, behind an event", "    decode.copy(page, counts)\n    decode.synchronize()\n", "    with gpu.create_stream(name=\"other\") as other:\n        other.wait(decode.record())\n        other.copy(page, counts)\n        other.synchronize()\n"),
            ("a number of NumPy", "float(page[0])", "page[0]"),
        ],
        "slo": [
            ("decode has more SMs than it needs", "{\"decode\": least,", "{\"decode\": 24,"),
            ("a new stream for the report", "    decode.copy(page, counts)\n    decode.synchronize()\n", "    with gpu.create_stream(name=\"other\") as other:\n        other.wait(decode.record())\n        other.copy(page, counts)\n        other.synchronize()\n"),
            ("documents of the lowest priority there is", "priority=-5", "priority=-1"),
        ],
    },
}  # fmt: skip

WRONG: Answers = {
    "01": {
        "timer": [
            ("an object between all numbers", "def gpu_time_ns", "class Equal(float):\n    __eq__ = __lt__ = __gt__ = lambda self, other: True\n    __hash__ = None\n\ndef gpu_time_ns", "second.elapsed_ns(since=first)", "Equal()"),
            ("the time that was asked for is no measurement", "return second.elapsed_ns(since=first)", "return handle.duration_ns"),
            ("a constant", "return second.elapsed_ns(since=first)", "return 5_000_000"),
            ("the host's clock", "def gpu_time_ns(stream, handle):\n    stream.synchronize()\n    before = gpu.now_ns()\n    handle.execute(stream=stream)\n    stream.synchronize()\n    return gpu.now_ns() - before\n"),
            ("the host's clock counts what ran before", "def gpu_time_ns(stream, handle):\n    before = gpu.now_ns()\n    handle.execute(stream=stream)\n    stream.synchronize()\n    return gpu.now_ns() - before\n"),
            ("both events before the kernel", "    handle.execute(stream=stream)\n    second = stream.record()", "    second = stream.record()\n    handle.execute(stream=stream)"),
            ("events in another stream", "first = stream.record()", "stream, other = gpu.create_stream(), stream\n    first = stream.record()", "stream=stream", "stream=other"),
            ("the kernel in another stream", "handle.execute(stream=stream)", "handle.execute()"),
            ("the kernel runs twice", "handle.execute(stream=stream)", "handle.execute(stream=stream)\n    handle.execute(stream=stream)"),
            ("the kernel does not run", "    handle.execute(stream=stream)\n", ""),
            ("half of two runs", "handle.execute(stream=stream)", "handle.execute(stream=stream)\n    handle.execute(stream=stream)", "(since=first)", "(since=first) // 2"),
            ("nobody waits for the second event", "    second.synchronize()\n", ""),
            ("in microseconds", "(since=first)", "(since=first) / 1000"),
            ("the events change places", "second.elapsed_ns(since=first)", "first.elapsed_ns(since=second)"),
            ("another kernel instead", "handle.execute(stream=stream)", "work.execute(stream=stream)"),
            ("it waits for what never happens", "second.synchronize()", "while not first.closed:\n        pass"),
        ],
        "read": [
            ("an object that equals everything", "def read_first", "class Equal(float):\n    __eq__ = __lt__ = __gt__ = lambda self, other: True\n    __hash__ = None\n\ndef read_first", "float(page[0])", "Equal()"),
            ("not a number", "float(page[0])", "float('nan')"),
            ("an array", "float(page[0])", "page[:1].copy()"),
            ("it waits for all streams", "stream.synchronize()", "gpu.synchronize()"),
            ("nobody waits", "    stream.synchronize()\n", ""),
            ("a loop that reads memory, which no compiler and no simulator need to see change", "stream.synchronize()", "while page[0] == 0:\n        pass"),
            ("a constant", "return float(page[0])", "return 7.0"),
            ("it waits before the copy", "    stream.copy(page, sevens)\n    stream.synchronize()", "    stream.synchronize()\n    stream.copy(page, sevens)"),
            ("it waits after the read", "    stream.synchronize()\n    return float(page[0])", "    value = float(page[0])\n    stream.synchronize()\n    return value"),
            ("the kernel is left out", "    work.execute(stream=stream)\n", ""),
            ("the copy overtakes the kernel", "work.execute(stream=stream)", "work.execute(stream=gpu.create_stream())"),
            ("the event is before the copy", "    stream.copy(page, sevens)\n    stream.synchronize()", "    done = stream.record()\n    stream.copy(page, sevens)\n    done.synchronize()"),
            ("the copy runs twice", "stream.copy(page, sevens)", "stream.copy(page, sevens)\n    stream.copy(page, sevens)"),
            ("it reads the source instead", "return float(page[0])", "return float(gpu.to_host(sevens)[0])"),
            ("the copy waits, not the host", "stream.synchronize()", "stream.wait(stream.record())"),
            ("another stream is waited for", "stream.synchronize()", "gpu.create_stream().synchronize()"),
            ("the kernel is waited for, not the copy", "stream.synchronize()", "work.wait()"),
            ("the event is recorded, and not waited for", "stream.synchronize()", "stream.record()"),
            ("it sleeps longer than the kernel takes", "stream.synchronize()", "import time\n    time.sleep(0.02)"),
        ],
    },
    "02": {
        "spread": [
            ("all in one stream", "stream=stream", "stream=streams[0]"),
            ("two share a stream", "zip(kernels, streams)", "zip(kernels, streams[:2] * 2)"),
            ("the host waits in between", "kernel.execute(stream=stream)", "kernel.execute(stream=stream)\n        stream.synchronize()"),
            ("each waits for the one before", "kernel.execute(stream=stream)", "stream.wait(streams[0].record())\n        kernel.execute(stream=stream)"),
            ("one is left out", "zip(kernels, streams)", "zip(kernels[:2], streams)"),
            ("one runs twice", "zip(kernels, streams)", "zip([*kernels, kernels[0]], [*streams, streams[0]])"),
            ("no stream: gpuscope waits", "stream=stream", ""),
            ("short kernels of its own", "kernel.execute(stream=stream)", "gs.workloads.Step(gpu, 1000, name=kernel.name).execute(stream=stream)"),
            ("the same kernel three times", "kernel.execute(stream=stream)", "kernels[0].execute(stream=stream)"),
            ("nothing is launched", "kernel.execute(stream=stream)", "pass"),
            ("it never ends", "kernel.execute(stream=stream)", "while True:\n            pass"),
            ("the legacy default stream in the middle", "stream=stream", "stream=gpu.wrap_stream(1)"),
            ("a new stream each, closed at once: that waits", "    for kernel, stream in zip(kernels, streams):\n        kernel.execute(stream=stream)", "    for kernel in kernels:\n        with gpu.create_stream() as stream:\n            kernel.execute(stream=stream)"),
        ],
        "late": [
            ("threads, one after the other", """
def launch_and_wait(kernels, streams):
    for kernel, stream in zip(kernels, streams):
        kernel.execute(stream=stream)
        thread = threading.Thread(target=stream.synchronize)
        thread.start()
        thread.join()
"""),
            ("one of three flags is waited for", """
def launch_and_wait(kernels, streams):
    flags = [threading.Event() for _ in streams]
    for kernel, stream, flag in zip(kernels, streams, flags):
        kernel.execute(stream=stream)
        stream.host_call(flag.set)
    flags[0].wait()
"""),
            ("the last stream only", "    for stream in streams:\n        stream.synchronize()", "    streams[-1].synchronize()"),
            ("the first stream only", "    for stream in streams:\n        stream.synchronize()", "    streams[0].synchronize()"),
            ("nobody waits", "    for stream in streams:\n        stream.synchronize()", "    pass"),
            ("each is waited for at once", "kernel.execute(stream=stream)", "kernel.execute(stream=stream)\n        stream.synchronize()"),
            ("one stream", "kernel.execute(stream=stream)", "kernel.execute(stream=streams[0])"),
            ("streams wait, not the host", "stream.synchronize()", "stream.wait(streams[0].record())"),
            ("it asks once and does not wait", "stream.synchronize()", "stream.is_done"),
            ("events are recorded before the launches", "    for kernel", "    events = [stream.record() for stream in streams]\n    for kernel", "    for stream in streams:\n        stream.synchronize()", "    for event in events:\n        event.synchronize()"),
            ("one is left out", "zip(kernels, streams)", "zip(kernels[1:], streams)"),
            ("all are launched twice", "kernel.execute(stream=stream)", "kernel.execute(stream=stream)\n        kernel.execute(stream=stream)"),
            ("it sleeps for the time that the kernels of the lesson take", "    for stream in streams:\n        stream.synchronize()", "    import time\n    time.sleep(0.012)"),
            ("short kernels of its own", "kernel.execute(stream=stream)", "gs.workloads.Step(gpu, 1000, name=kernel.name).execute(stream=stream)"),
        ],
        "cuda": [
            ("all in one stream", "0, t", "0, s", "0, u", "0, s"),
            ("all in the default stream", ", 0, s>>>", ">>>", ", 0, t>>>", ">>>", ", 0, u>>>", ">>>"),
            ("the host waits in between", "  b<<<", "  cudaDeviceSynchronize();\n  b<<<"),
            ("one is left out", "  c<<<1, 32, 0, u>>>();\n", ""),
            ("one twice", "  c<<<", "  a<<<1, 32, 0, u>>>();\n  c<<<"),
            ("blocking streams, and the legacy default stream between", "  a<<<1, 32, 0, s>>>();", "  cudaStream_t v;\n  cudaStreamCreate(&v);\n  a<<<1, 32, 0, v>>>();", "<<<1, 32, 0, t>>>", "<<<1, 32>>>"),
            ("u waits for s", "  c<<<", "  cudaEvent_t e;\n  cudaEventCreate(&e);\n  cudaEventRecord(e, s);\n  cudaStreamWaitEvent(u, e);\n  c<<<"),
            ("another function", "void launch_all", "void launch_some"),
            ("other parameters", ", cudaStream_t u", "", "0, u", "0, t"),
            ("it does not compile", "b<<<1, 32, 0, t>>>();", "b<<<1, 32, 0, t>>>()"),
            ("it crashes behind the launches", "u>>>();\n", "u>>>();\n  *(volatile int*)nullptr = 1;\n"),
            ("it leaves the process", "u>>>();\n", "u>>>();\n  exit(0);\n"),
            ("a loop without an end", "u>>>();\n", "u>>>();\n  for (;;) usleep(1000);\n"),
            ("no text", """
LAUNCH_ALL = 3
"""),
        ],
        "pytorch": [
            ("all in one stream", "(b, t), (c, u)", "(b, s), (c, s)"),
            ("all outside of the blocks", "            function()", "            pass\n        function()"),
            ("two in the default stream", "(b, t), (c, u)", "(b, torch.cuda.default_stream()), (c, torch.cuda.default_stream())"),
            ("one is left out", ", (c, u)", ""),
            ("one twice", "(c, u)", "(c, u), (a, u)"),
            ("the host waits for each", "            function()", "            function()\n        stream.synchronize()"),
            ("the host waits for the device in between", "            function()", "            function()\n        torch.cuda.synchronize()"),
            ("u waits for s", "    for function", "    a, first = (lambda: (first(), u.wait_stream(s))), a\n    for function"),
            ("an event orders them", "            function()", "            function()\n            event = torch.cuda.current_stream().record_event()\n        u.wait_event(event)"),
            ("another function", "def launch_all_in_pytorch", "def launch_some_in_pytorch"),
            ("other parameters", "(torch, a, b, c, s, t, u)", "(torch, a, b, c, s)"),
            ("a loop without an end", "            function()", "            function()\n    while True:\n        pass"),
            ("a stream that is none", "torch.cuda.stream(stream)", "torch.cuda.stream(3)"),
        ],
    },
    "03": {
        "diamond": [
            ("nothing orders right before last", "    s.wait(t.record())\n", ""),
            ("nothing orders first before right", "    t.wait(s.record())\n", ""),
            ("the host waits in place of events", "t.wait(s.record())", "s.synchronize()", "s.wait(t.record())", "t.synchronize()"),
            ("the host waits for one of the two", "s.wait(t.record())", "t.synchronize()"),
            ("the device is waited for", "    s.wait(t.record())", "    gpu.synchronize()"),
            ("all in one stream", "stream=t", "stream=s"),
            ("the second wait is for the stream itself", "s.wait(t.record())", "s.wait(s.record())"),
            ("the event of t is recorded too early", "    right.execute(stream=t)\n    s.wait(t.record())", "    early = t.record()\n    right.execute(stream=t)\n    s.wait(early)"),
            ("right waits for left, too", "    right.execute(stream=t)", "    t.wait(s.record())\n    right.execute(stream=t)"),
            ("t waits before first is launched", "    first.execute(stream=s)\n    t.wait(s.record())", "    t.wait(s.record())\n    first.execute(stream=s)"),
            ("right is left out", "    right.execute(stream=t)\n", ""),
            ("last runs twice", "    last.execute(stream=s)", "    last.execute(stream=s)\n    last.execute(stream=s)"),
            ("last comes first", "    first.execute(stream=s)\n", "    last.execute(stream=s)\n    first.execute(stream=s)\n", "    s.wait(t.record())\n    last.execute(stream=s)\n", ""),
            ("the host asks until t is done", "s.wait(t.record())", "while not t.is_done:\n        pass"),
            ("an event that is never recorded", "s.wait(t.record())", "s.wait(gpu.create_event())"),
            ("it waits for what never happens", "s.wait(t.record())", "while not t.closed:\n        pass"),
        ],
        "overwrite": [
            ("nothing orders the reader before the next writer", "    a.wait(b.record())\n", ""),
            ("the wait is behind the write", "    a.wait(b.record())\n    a.copy(out, eights)", "    a.copy(out, eights)\n    a.wait(b.record())"),
            ("stream b is dropped", "def twice(a, b):\n    a.copy(out, sevens)\n    late.execute(stream=a)\n    a.copy(result, out)\n    a.copy(out, eights)\n"),
            ("late runs beside, in the wrong stream", "late.execute(stream=b)", "late.execute(stream=a)"),
            ("the event is recorded before the read", "    b.copy(result, out)\n    a.wait(b.record())", "    a.wait(b.record())\n    b.copy(result, out)"),
            ("the event is recorded before late", "    late.execute(stream=b)\n    b.copy(result, out)\n    a.wait(b.record())", "    early = b.record()\n    late.execute(stream=b)\n    b.copy(result, out)\n    a.wait(early)"),
            ("the host waits", "a.wait(b.record())", "b.synchronize()"),
            ("the device is waited for", "a.wait(b.record())", "gpu.synchronize()"),
            ("the first wait is lost", "    b.wait(a.record())\n", ""),
            ("late is left out", "    late.execute(stream=b)\n", ""),
            ("the next round is left out", "    a.copy(out, eights)", ""),
            ("the next round is written by b", "a.copy(out, eights)", "b.copy(out, eights)"),
            ("it is copied back in the end", "    a.copy(out, eights)", "    a.copy(out, eights)\n    a.copy(result, sevens)"),
            ("it waits for its own stream", "a.wait(b.record())", "a.wait(a.record())"),
        ],
        "cuda": [
            ("t does not wait", "  cudaStreamWaitEvent(t, written);\n", ""),
            ("s does not wait", "  cudaStreamWaitEvent(s, done);\n", ""),
            ("recorded too early", "  first<<<1, 32, 0, s>>>();\n  cudaEventRecord(written, s);\n", "  cudaEventRecord(written, s);\n  first<<<1, 32, 0, s>>>();\n"),
            ("never recorded", "  cudaEventRecord(written, s);\n", ""),
            ("the wait is behind right", "  cudaStreamWaitEvent(t, written);\n", "", "t>>>();\n", "t>>>();\n  cudaStreamWaitEvent(t, written);\n"),
            ("the host waits for the event", "cudaStreamWaitEvent(t, written)", "cudaEventSynchronize(written)"),
            ("the host waits at the end", "  cudaEventDestroy(written);", "  cudaStreamSynchronize(s);\n  cudaEventDestroy(written);"),
            ("the host asks until it is done", "cudaStreamWaitEvent(t, written)", "while (cudaEventQuery(written) == cudaErrorNotReady);"),
            ("all in one stream", "0, t", "0, s"),
            ("an event of nothing", "  cudaEventCreateWithFlags(&done, cudaEventDisableTiming);\n", "  done = (cudaEvent_t)0x77;\n"),
            ("destroyed before it is recorded", "  cudaEventRecord(done, t);", "  cudaEventDestroy(done);\n  cudaEventRecord(done, t);"),
            ("t waits for left, too", "  left<<<1, 32, 0, s>>>();\n", "", "  cudaEventRecord(written, s);", "  left<<<1, 32, 0, s>>>();\n  cudaEventRecord(written, s);"),
        ],
        "pytorch": [
            ("t does not wait", "    t.wait_stream(s)\n", ""),
            ("s does not wait", "    s.wait_stream(t)\n", ""),
            ("t waits too early", "    with torch.cuda.stream(s):\n        first()\n    t.wait_stream(s)\n", "    t.wait_stream(s)\n    with torch.cuda.stream(s):\n        first()\n"),
            ("t waits behind right", "    t.wait_stream(s)\n", "", "        right()\n", "        right()\n    t.wait_stream(s)\n"),
            ("t waits for left, too", "    t.wait_stream(s)\n", "", "        left()\n", "        left()\n    t.wait_stream(s)\n"),
            ("s waits for itself", "s.wait_stream(t)", "s.wait_stream(s)"),
            ("the wrong one waits", "s.wait_stream(t)", "t.wait_stream(s)"),
            ("an event that is never recorded", "s.wait_stream(t)", "s.wait_event(torch.cuda.Event())"),
            ("the event is recorded in the default stream", "s.wait_stream(t)", "done = torch.cuda.Event()\n    done.record()\n    s.wait_event(done)"),
            ("the host waits for s", "t.wait_stream(s)", "s.synchronize()"),
            ("the host waits for the device", "s.wait_stream(t)", "torch.cuda.synchronize()"),
            ("the host waits for an event", "s.wait_stream(t)", "t.record_event().synchronize()"),
            ("the host asks until t is done", "s.wait_stream(t)", "while not t.query():\n        pass"),
            ("the host waits at the end", "        last()", "        last()\n    s.synchronize()"),
            ("all in one stream", "torch.cuda.stream(t)", "torch.cuda.stream(s)"),
            ("last is outside of the blocks", "    with torch.cuda.stream(s):\n        last()", "    last()"),
            ("last runs twice", "        last()", "        last()\n        last()"),
        ],
    },
    "04": {
        "thread": [
            ("no thread", "def launch_from_thread(job):\n    job.execute()\n"),
            ("no thread, but one that does nothing", "    def work", "    job.execute()\n\n    def work", "            job.execute()", "            pass"),
            ("a fixed stream", "gs.CallerStreamGuard(selected)", "gs.CallerStreamGuard(s)"),
            ("the selection is asked for in the thread", "        with gs.CallerStreamGuard(selected):\n            job.execute()", "        with gs.CallerStreamGuard(gs.get_caller_stream()):\n            job.execute()"),
            ("no selection", "        with gs.CallerStreamGuard(selected):\n            job.execute()", "        job.execute()"),
            ("the legacy default stream", "gs.CallerStreamGuard(selected)", "gs.CallerStreamGuard(0)"),
            ("stream 0 counts as no selection", "        with gs.CallerStreamGuard(selected):\n            job.execute()", "        job.execute(stream=selected or None)"),
            ("stream 0 counts as no selection, by a condition", "        with gs.CallerStreamGuard(selected):\n            job.execute()", "        if selected:\n            job.execute(stream=selected)\n        else:\n            job.execute()"),
            ("0 is taken for the per-thread default stream", "gs.CallerStreamGuard(selected)", "gs.CallerStreamGuard(selected or 2)"),
            ("the thread is not started", "    thread.start()\n    thread.join()\n", ""),
            ("the job runs twice", "            job.execute()", "            job.execute()\n            job.execute()"),
            ("the job waits for the GPU", "            job.execute()", "            job.execute()\n        gpu.synchronize()"),
            ("in a new stream", "gs.CallerStreamGuard(selected)", "gs.CallerStreamGuard(gpu.create_stream())"),
            ("both streams", "            job.execute()", "            job.execute()\n        job.execute(stream=t)"),
            ("a short kernel of its own", "            job.execute()", "            gs.workloads.Step(gpu, 1000, name='job').execute()"),
            ("the thread waits for what never happens", "            job.execute()", "            job.execute()\n        threading.Event().wait()"),
        ],
        "library": [
            ("stream 0 counts as no selection", "private if selected is None else gpu.wrap_stream(selected)", "gpu.wrap_stream(selected or private)"),
            ("always the private stream", "private if selected is None else gpu.wrap_stream(selected)", "private"),
            ("nothing selected is stream 0", "private if selected is None else gpu.wrap_stream(selected)", "gpu.wrap_stream(selected or 0)"),
            ("a fixed stream", "private if selected is None else gpu.wrap_stream(selected)", "s"),
            ("it waits", "grid=1, block=32)", "grid=1, block=32)\n    stream.synchronize()"),
            ("both", "grid=1, block=32)", "grid=1, block=32)\n    private.launch(stubborn_kernel, duration_ns, grid=1, block=32)"),
            ("cut short", "stubborn_kernel, duration_ns", "stubborn_kernel, 1000"),
            ("the polite kernel instead", "stubborn_kernel", "polite_kernel"),
            ("a new stream", "private if selected is None else gpu.wrap_stream(selected)", "gpu.create_stream()"),
            ("nothing is launched", "    stream.launch(stubborn_kernel, duration_ns, grid=1, block=32)", "    pass"),
            ("only integers", "private if selected is None else gpu.wrap_stream(selected)", "gpu.wrap_stream(selected) if isinstance(selected, int) else private"),
        ],
    },
    "05": {
        "sizes": [
            ("an H200's number", "30", "32"),
            ("it is not rounded", ', rounding="up"', ""),
            ("rounded down", '"up"', '"down"'),
            ("as it was", "30", "16"),
            ("more than it has to", "30", "60"),
            ("the rest is nobody's", ', "prefill": "rest"', ""),
            ("prefill gets a part of the rest", '"rest"', "8"),
            ("names change places", '"decode": 30, "prefill": "rest"', '"prefill": 30, "decode": "rest"'),
            ("other names", '"decode"', '"small"'),
            ("no plan", "return gpu", "gpu"),
            ("what is granted, instead of the plan", 'rounding="up")', 'rounding="up").granted()'),
            ("decided by the name of the GPU", "30, ", "32 if gpu.sm_count == 132 else 30, ", ', rounding="up"', ""),
            ("it never ends", "    return", "    while True:\n        pass\n    return"),
        ],
        "serve": [
            ("the host waits", "        large.execute()", "        large.execute()\n    large.wait()"),
            ("the stream is closed, which waits", "    with gs.CallerStreamGuard(parts[\"prefill\"].create_stream()):\n        large.execute()", "    with parts[\"prefill\"].create_stream() as p:\n        large.execute(stream=p)"),
            ("both in prefill", '"decode"', '"prefill"'),
            ("both in decode", '"prefill"', '"decode"'),
            ("they change places", "large.execute()", "X.execute()", "small.execute()", "large.execute()", "X.execute()", "small.execute()"),
            ("on the whole GPU", 'parts["prefill"].create_stream()', "gpu.create_stream()"),
            ("one stream, of prefill", "    with gs.CallerStreamGuard(parts[\"decode\"].create_stream()):\n        small.execute()", "        small.execute()"),
            ("small is left out", "small.execute()", "pass"),
            ("large runs twice", "        large.execute()", "        large.execute()\n        large.execute()"),
            ("decode waits for prefill", "        small.execute()", "        gpu.synchronize()\n        small.execute()"),
            ("decode waits for an event of prefill", """
def serve(small, large, parts):
    d, p = (parts[name].create_stream() for name in ("decode", "prefill"))
    large.execute(stream=p)
    d.wait(p.record())
    small.execute(stream=d)
"""),
            ("outside of all guards", "def serve(small, large, parts):\n    large.execute()\n    small.execute()\n"),
            ("nothing", "def serve(small, large, parts):\n    pass\n"),
            ("short kernels of its own", "large.execute()", "gs.workloads.Step(gpu, 1000, name='large').execute()"),
        ],
    },
    "06": {
        "choose": [
            ("what the load keeps, alone", "max(near,", "max(points,"),
            ("the fastest", "max(near, key=lambda one: one[\"kept\"])", "min(points, key=lambda one: one[\"p50_us\"])"),
            ("the smallest that is fast enough", "max(near, key=lambda one: one[\"kept\"])", "min(near, key=lambda one: one[\"size\"])"),
            ("the largest", "max(near, key=lambda one: one[\"kept\"])", "max(near, key=lambda one: one[\"size\"])"),
            ("twice as slow counts as near", "1.2", "2"),
            ("only the best counts as near", "1.2", "1.0"),
            ("20 µs instead of 20 %", "1.2 * best", "best + 20"),
            ("what keeps least", "max(near,", "min(near,"),
            ("a constant", "def choose(points):\n    return 16\n"),
            ("the first one", "def choose(points):\n    return points[0][\"size\"]\n"),
            ("a size that is not there", ')["size"]', ')["size"] + 1'),
            ("p50 over kept", "def choose(points):\n    return min(points, key=lambda one: one[\"p50_us\"] / one[\"kept\"])[\"size\"]\n"),
        ],
        "gain": [
            ("not a number", "return (", "return float('nan') * ("),
            ("an object that is less than all", "def gain", "class Less:\n    __sub__ = __abs__ = lambda self, *_: self\n    __gt__ = lambda self, other: False\n\ndef gain", "return (", "return Less() or ("),
            ("over the sum of all durations", "makespan = max(end for _, end in spans) - min(start for start, _ in spans)", "makespan = sum(end - start for start, end in spans)"),
            ("over the last end", " - min(start for start, _ in spans)", ""),
            ("of one kernel each", "len(a) * solo_a + len(b) * solo_b", "solo_a + solo_b"),
            ("counts change places", "len(a) * solo_a + len(b) * solo_b", "len(b) * solo_a + len(a) * solo_b"),
            ("the other way round", "return (len(a) * solo_a + len(b) * solo_b) / makespan", "return makespan / (len(a) * solo_a + len(b) * solo_b)"),
            ("a alone", "len(a) * solo_a + len(b) * solo_b", "len(a) * solo_a"),
            ("a constant", "return (", "return 1.0 or ("),
            ("by the longer one", "spans = a + b", "spans = max(a, b, key=len)"),
            ("over the time in which anything ran, without pauses", """
def gain(a, b, solo_a, solo_b):
    busy, until = 0, 0
    for start, end in sorted(a + b):
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return (len(a) * solo_a + len(b) * solo_b) / busy
"""),
            ("the ends of the lists are not the first and the last in time", "max(end for _, end in spans) - min(start for start, _ in spans)", "spans[-1][1] - spans[0][0]"),
            ("less 1", "/ makespan", "/ makespan - 1"),
            ("integers", "/ makespan", "// makespan"),
            ("from b's first start", "min(start for start, _ in spans)", "min(start for start, _ in b)"),
        ],
    },
    "07": {
        "pairs": [
            ("a kernel cut short", "duration_ns=kernel_ns", "duration_ns=1000"),
            ("one set of memory", ", max_in_flight=2", ""),
            ("one stream", "streams[number % 2]", "streams[0]"),
            ("the host waits in between", "handle.execute(stream=streams[number % 2])", "handle.execute(stream=streams[number % 2])\n        handle.wait()"),
            ("nobody waits in the end", "    handle.wait()\n", ""),
            ("two calls", "range(4)", "range(2)"),
            ("six calls", "range(4)", "range(6)"),
            ("one stream is waited for", "handle.wait()", "streams[0].synchronize()"),
            ("the streams wait for each other", "        handle.execute", "        streams[number % 2].wait(streams[1 - number % 2].record())\n        handle.execute"),
            ("no streams: gpuscope waits", "stream=streams[number % 2]", ""),
            ("another duration", "duration_ns=kernel_ns", "duration_ns=kernel_ns // 2"),
            ("two and two in one stream each, one after the other", "streams[number % 2]", "streams[number // 2]"),
            ("four at a time", "max_in_flight=2", "max_in_flight=4", "streams[number % 2]", "gpu.create_stream()"),
            ("three at a time", "max_in_flight=2", "max_in_flight=3", "streams[number % 2]", "gpu.create_stream()"),
        ],
        "first": [
            ("the stream is waited for", "job.completion.wait()", "stream.synchronize()"),
            ("nobody waits", "    job.completion.wait()\n", ""),
            ("later is waited for", "job.completion.wait()", "later.wait()"),
            ("the device is waited for", "job.completion.wait()", "gpu.synchronize()"),
            ("it waits before it launches later", "    later.execute(stream=stream)\n    job.completion.wait()", "    job.completion.wait()\n    later.execute(stream=stream)"),
            ("later is left out", "    later.execute(stream=stream)\n", ""),
            ("later in another stream", "later.execute(stream=stream)", "later.execute(stream=gpu.create_stream())"),
            ("later comes first", "    job.execute(stream=stream)\n    later.execute(stream=stream)", "    later.execute(stream=stream)\n    job.execute(stream=stream)"),
            ("the event is recorded behind later", "job.completion.wait()", "stream.record().synchronize()"),
            ("job runs twice", "    later", "    job.execute(stream=stream)\n    later"),
            ("no stream: gpuscope waits", "job.execute(stream=stream)", "job.execute()"),
            ("it waits for what never happens", "job.completion.wait()", "while job.duration_ns:\n        pass"),
        ],
    },
    "08": {
        "join": [
            ("two is left out", "        two.execute(stream=t)\n", ""),
            ("only one is captured, two runs by itself", "        two.execute(stream=t)\n", "", "    return graph", "    two.execute(stream=t)\n    return graph"),
            ("one after the other", "two.execute(stream=t)", "two.execute(stream=s)"),
            ("two waits for one", "        t.wait(s.record())\n        one.execute(stream=s)", "        one.execute(stream=s)\n        t.wait(s.record())"),
            ("no join", "        s.wait(t.record())\n", ""),
            ("no fork", "        t.wait(s.record())\n", ""),
            ("one twice", "two.execute(stream=t)", "one.execute(stream=t)"),
            ("the join comes too early", "        two.execute(stream=t)\n        s.wait(t.record())", "        s.wait(t.record())\n        two.execute(stream=t)"),
            ("nothing is captured", "def capture_both(one, two, s, t):\n    with s.capture() as graph:\n        pass\n    return graph\n"),
            ("short kernels of its own", "two.execute(stream=t)", "gs.workloads.Step(gpu, 1000, name='two').execute(stream=t)"),
            ("it waits within", "        s.wait(t.record())", "        t.synchronize()\n        s.wait(t.record())"),
            ("the join is behind the block", "        s.wait(t.record())", "    s.wait(t.record())"),
            ("two captures", "def capture_both(one, two, s, t):\n    with s.capture() as graph:\n        one.execute(stream=s)\n    with t.capture():\n        two.execute(stream=t)\n    return graph\n"),
            ("it runs them, too", "    return graph", "    one.execute(stream=s)\n    return graph"),
        ],
        "wait": [
            ("two first", "        one.execute(stream=s)\n        two.execute(stream=s)", "        two.execute(stream=s)\n        one.execute(stream=s)"),
            ("one twice", "two.execute(stream=s)", "one.execute(stream=s)"),
            ("two is left out", "        two.execute(stream=s)\n", ""),
            ("one is left out", "        one.execute(stream=s)\n", ""),
            ("two twice", "two.execute(stream=s)", "two.execute(stream=s)\n        two.execute(stream=s)"),
            ("the wait is still there", "        two", "        s.synchronize()\n        two"),
            ("the device is waited for", "        two", "        gpu.synchronize()\n        two"),
            ("an event is waited for", "        two", "        s.record().synchronize()\n        two"),
            ("it asks whether one is done", "        two", "        while not s.is_done:\n            pass\n        two"),
            ("side by side", "        one.execute(stream=s)\n        two.execute(stream=s)", "        t.wait(s.record())\n        one.execute(stream=s)\n        two.execute(stream=t)\n        s.wait(t.record())"),
            ("one runs outside", "    with", "    one.execute(stream=s)\n    with", "        one.execute(stream=s)\n        two", "        two"),
            ("the call is waited for", "        two", "        one.completion.wait()\n        two"),
            ("two captures", "        two", "        pass\n    with s.capture() as graph:\n        two"),
            ("two is launched outside", "        two", "        pass\n    two"),
            ("they run already", "    return graph", "    graph.launch(stream=s)\n    return graph"),
        ],
        "serve": [
            ("another name for the array", "stream.copy(static, array)", "static = array"),
            ("by an assignment, which goes to the legacy default stream", "stream.copy(static, array)", "static[:] = array"),
            ("the copy comes after the launch", "        stream.copy(static, array)\n        model.launch(stream=stream)\n", "        model.launch(stream=stream)\n        stream.copy(static, array)\n"),
            ("the other direction", "stream.copy(static, array)", "stream.copy(array, static)"),
            ("into the output", "stream.copy(static, array)", "stream.copy(out, array)"),
            ("the first input for all", "stream.copy(static, array)", "stream.copy(static, inputs[0])"),
            ("copied once, before the loop", "    for array", "    stream.copy(static, inputs[0])\n    for array", "        stream.copy(static, array)\n", ""),
            ("in another stream, without an event", "        stream.copy(static, array)", "        gpu.create_stream().copy(static, array)"),
            ("another stream waits, not the graph's", "        stream.copy(static, array)", "        other = gpu.create_stream()\n        other.copy(static, array)\n        other.wait(stream.record())"),
            ("the launch is in another stream", "model.launch(stream=stream)", "model.launch(stream=gpu.create_stream())"),
            ("launched twice for each", "        model.launch(stream=stream)\n", "        model.launch(stream=stream)\n        model.launch(stream=stream)\n"),
            ("launched once", "        model.launch(stream=stream)\n", "        if array is inputs[0]:\n            model.launch(stream=stream)\n"),
            ("computed without the graph", "        model.launch(stream=stream)\n", "", "gpu.to_host(out)[0]", "2 * gpu.to_host(array)[0]"),
            ("read when all are done", "    for array", "    read = lambda: float(gpu.to_host(out)[0])\n    for array", "answers.append(float(gpu.to_host(out)[0]))", "answers.append(read)", "return answers", "return [one() for one in answers]"),
            ("the input itself", "gpu.to_host(out)", "gpu.to_host(static)"),
            ("a new capture of nothing", "        model.launch(stream=stream)\n", "        with stream.capture() as model:\n            stream.copy(out, static)\n        model.launch(stream=stream)\n"),
        ],
        "cuda": [
            ("no join", "  cudaStreamWaitEvent(s, join);\n", ""),
            ("the join is recorded before two", "  cudaEventRecord(join, t);\n", "", "  two<<<", "  cudaEventRecord(join, t);\n  two<<<"),
            ("t does not join the capture", "  cudaStreamWaitEvent(t, fork);\n", ""),
            ("the fork is recorded before the capture", "  cudaEventRecord(fork, s);\n", "", "  cudaStreamBeginCapture", "  cudaEventRecord(fork, s);\n  cudaStreamBeginCapture"),
            ("both in s", "0, t", "0, s"),
            ("it is ended on t", "EndCapture(s,", "EndCapture(t,"),
            ("it is not ended", "  cudaStreamEndCapture(s, &graph);\n", ""),
            ("it waits in the capture", "  cudaStreamEndCapture", "  cudaStreamSynchronize(s);\n  cudaStreamEndCapture"),
            ("it launches, too", "  return", "  cudaGraphLaunch(executable, s);\n  return"),
            ("nothing is instantiated", "  cudaGraphInstantiate(&executable, graph);\n", "  executable = nullptr;\n"),
            ("two comes after one", "cudaEventRecord(fork, s);\n  cudaStreamWaitEvent(t, fork);\n  one<<<1, 32, 0, s>>>();", "one<<<1, 32, 0, s>>>();\n  cudaEventRecord(fork, s);\n  cudaStreamWaitEvent(t, fork);"),
            ("it runs at once, and an empty graph is returned", "  cudaStreamBeginCapture", "  one<<<1, 32, 0, s>>>();\n  two<<<1, 32, 0, t>>>();\n  cudaStreamBeginCapture", "  two<<<1, 32, 0, t>>>();\n  cudaEventRecord(join", "  cudaEventRecord(join"),
            ("the executable graph is destroyed", "  return", "  cudaGraphExecDestroy(executable);\n  return"),
        ],
        "pytorch": [
            ("no join", "        s.wait_stream(t)\n", ""),
            ("the join comes before two", "        one()\n", "        one()\n        s.wait_stream(t)\n", "            two()\n        s.wait_stream(t)\n", "            two()\n"),
            ("the join comes behind the block", "        s.wait_stream(t)\n", "    s.wait_stream(t)\n"),
            ("t does not join the capture", "        t.wait_stream(s)\n", ""),
            ("the fork comes before the block", "        t.wait_stream(s)\n", "", "    with torch.cuda.graph", "    t.wait_stream(s)\n    with torch.cuda.graph"),
            ("both in s", "torch.cuda.stream(t)", "torch.cuda.stream(s)"),
            ("two comes after one", "        t.wait_stream(s)\n        one()\n", "        one()\n        t.wait_stream(s)\n"),
            ("it waits in the block", "        s.wait_stream(t)\n", "        s.wait_stream(t)\n        s.synchronize()\n"),
            ("it replays, too", "    return graph", "    graph.replay()\n    return graph"),
            ("nothing is returned", "    return graph\n", ""),
            ("another graph is returned", "    return graph", "    return torch.cuda.CUDAGraph()"),
            ("one is captured twice", "            two()", "            one()"),
            ("it runs at once, and an empty graph is returned", "    graph = torch.cuda.CUDAGraph()\n", "    graph = torch.cuda.CUDAGraph()\n    with torch.cuda.stream(s):\n        one()\n    with torch.cuda.stream(t):\n        two()\n    s.wait_stream(t)\n", "        one()\n        with torch.cuda.stream(t):\n            two()\n        s", "        s"),
        ],
    },
    "09": {
        "interference": [
            ("not a number", "return float(", "return float('nan') * float("),
            ("means, which one odd value moves", "np.median", "np.mean"),
            ("the ratio", " - 1", ""),
            ("the other way round", "np.median(together_us) / np.median(alone_us)", "np.median(alone_us) / np.median(together_us)"),
            ("minima", "np.median", "np.min"),
            ("maxima", "np.median", "np.max"),
            ("the difference", "np.median(together_us) / np.median(alone_us)) - 1", "np.median(together_us) - np.median(alone_us))"),
            ("in percent", " - 1", " * 100 - 100"),
            ("never below 0", "return float(np.median(together_us) / np.median(alone_us)) - 1", "return max(0.0, float(np.median(together_us) / np.median(alone_us)) - 1)"),
            ("over together", "np.median(together_us) / np.median(alone_us)) - 1", "1 - np.median(alone_us) / np.median(together_us))"),
            ("a constant", "return", "return 0.5 or"),
            ("the median of ratios", "np.median(together_us) / np.median(alone_us)", "np.median([a / b for a, b in zip(together_us, alone_us)])"),
            ("the middle without sorting", "np.median(together_us) / np.median(alone_us)", "together_us[len(together_us) // 2] / alone_us[len(alone_us) // 2]"),
        ],
    },
    "10": {
        "range": [
            ("all kernels", "gs.analysis.range_projection(trace)[name].kernels", "len(trace.where(kind=\"kernel\"))"),
            ("what ran in the range's time", "gs.analysis.range_projection(trace)[name].kernels", "sum(a <= start < b for a, b in [next((r['start_ns'], r['end_ns']) for r in trace.where(kind='range').spans.to_pylist() if r['name'] == name)] for start in trace.where(kind='kernel').array('start_ns'))"),
            ("the first time only", "gs.analysis.range_projection(trace)[name].kernels", "next(row[\"kernels\"] for row in gs.analysis.range_projection(trace).ranges.to_pylist() if row[\"name\"] == name)"),
            ("what ran in its projection's time", "gs.analysis.range_projection(trace)[name].kernels", "sum(row['gpu_start_ns'] <= start < row['gpu_end_ns'] for row in gs.analysis.range_projection(trace).ranges.to_pylist() if row['name'] == name and row['kernels'] for start in trace.where(kind='kernel').array('start_ns'))"),
            ("a constant", "gs.analysis.range_projection(trace)[name].kernels", "10"),
            ("the lesson's trace, whatever is given", "range_projection(trace)", "range_projection(globals()['trace'])"),
            ("another range", "[name]", "[list(gs.analysis.range_projection(trace).ranges['name'].to_pylist())[0]]"),
            ("one too many", ".kernels", ".kernels + 1"),
            ("its time", ".kernels", ".host_ns"),
            ("the ranges", "gs.analysis.range_projection(trace)[name].kernels", "len(trace.where(kind='range'))"),
            ("a text", "gs.analysis.range_projection(trace)[name].kernels", "str(gs.analysis.range_projection(trace)[name].kernels)"),
            ("nothing is found", "return", "return 0 *"),
        ],
        "export": [
            ("SQLite for Perfetto", "it.json", "it.sqlite"),
            ("JSON alone", '"it.parquet"', '"it2.json"'),
            ("one file", ', gs.export(trace, folder / "it.parquet")', ","),
            ("one path", ', gs.export(trace, folder / "it.parquet")', ""),
            ("elsewhere", 'folder / "it.json"', 'Path(tempfile.mkdtemp()) / "it.json"'),
            ("a page instead of the file", "it.parquet", "it.html"),
            ("the lesson's trace, whatever is given", "gs.export(trace", "gs.export(globals()['trace']"),
            ("kernels only", 'gs.export(trace, folder / "it.parquet")', 'gs.export(trace.where(kind="kernel"), folder / "it.parquet")'),
            ("no kernels for Perfetto", 'gs.export(trace, folder / "it.json")', 'gs.export(trace.where(kind="range"), folder / "it.json")'),
            ("paths without files", "gs.export(trace, folder / \"it.json\")", "folder / \"it.json\""),
            ("three files", "    return", "    return gs.export(trace, folder / \"it.html\"),"),
            ("renamed", 'gs.export(trace, folder / "it.parquet")', 'gs.export(trace, folder / "x.json").rename(folder / "it.parquet")'),
        ],
    },
    "12": {
        "stages": [
            ("the kernel does not wait for the upload", "        compute.wait(up.record())\n", ""),
            ("the download does not wait for the kernel", "        down.wait(compute.record())\n", ""),
            ("the host waits for each upload", "compute.wait(up.record())", "up.synchronize()"),
            ("the host waits for each kernel, by an event", "down.wait(compute.record())", "compute.record().synchronize()"),
            ("all in one stream", "def in_stages(up, compute, down, batch", "def in_stages(up, compute, down, batch", "        up.copy", "        compute = down = up\n        up.copy"),
            ("kernels and downloads share a stream", "        up.copy", "        down = compute\n        up.copy"),
            ("two streams for three stages", """
def in_stages(up, compute, down, batch, on_gpu, result):
    for i in range(6):
        stream = [up, compute][i % 2]
        stream.copy(on_gpu[i], batch[i])
        process(stream, on_gpu[i], on_gpu[i])
        stream.copy(result[i], on_gpu[i])
"""),
            ("breadth first in the streams of chunks", """
def in_stages(up, compute, down, batch, on_gpu, result):
    streams = [up, compute, down] * 2
    for i in range(6):
        streams[i].copy(on_gpu[i], batch[i])
    for i in range(6):
        process(streams[i], on_gpu[i], on_gpu[i])
    for i in range(6):
        streams[i].copy(result[i], on_gpu[i])
"""),
            ("one event behind all uploads", """
def in_stages(up, compute, down, batch, on_gpu, result):
    for source, place in zip(batch, on_gpu):
        up.copy(place, source)
    compute.wait(up.record())
    for place, target in zip(on_gpu, result):
        process(compute, place, place)
        down.wait(compute.record())
        down.copy(target, place)
"""),
            ("the event is recorded before the upload", "        up.copy(place, source)\n        compute.wait(up.record())", "        early = up.record()\n        up.copy(place, source)\n        compute.wait(early)"),
            ("the next upload waits for the download", "        down.copy(target, place)", "        down.copy(target, place)\n        up.wait(down.record())"),
            ("the host waits at the end", "        down.copy(target, place)", "        down.copy(target, place)\n    down.synchronize()"),
            ("the host asks until each upload is done", "compute.wait(up.record())", "while not up.is_done:\n            pass"),
            ("the host asks until the first upload is done", "        compute.wait(up.record())", "        while source is batch[0] and not up.is_done:\n            pass\n        compute.wait(up.record())"),
            ("the host asks which events are done, and queues what is ready", """
def in_stages(up, compute, down, batch, on_gpu, result):
    uploaded, computed, downloads = [], [], 0
    for source, place in zip(batch, on_gpu):
        up.copy(place, source)
        uploaded.append(up.record())
    while downloads < 6:
        if len(computed) < 6 and uploaded[len(computed)].is_done:
            place = on_gpu[len(computed)]
            process(compute, place, place)
            computed.append(compute.record())
        if downloads < len(computed) and computed[downloads].is_done:
            down.copy(result[downloads], on_gpu[downloads])
            downloads += 1
"""),
            ("the device is waited for in between", "        up.copy", "        gpu.synchronize()\n        up.copy"),
            ("all chunks in one place on the GPU", "        up.copy", "        place = on_gpu[0]\n        up.copy"),
            ("results go to pageable memory first", "down.copy(target, place)", "plain = np.zeros(target.shape, target.dtype)\n        down.copy(plain, place)\n        target[:] = plain"),
            ("the last chunk is left out", "zip(batch, on_gpu, result)", "list(zip(batch, on_gpu, result))[:-1]"),
            ("kernels run twice", "        process(compute, place, place)", "        process(compute, place, place)\n        process(compute, place, place)"),
            ("no kernel: the host adds 1", "        process(compute, place, place)\n", "", "        up.copy", "        source += 1\n        up.copy"),
            ("the wait is in the wrong stream", "compute.wait(up.record())", "up.wait(compute.record())"),
        ],
        "feed": [
            ("the host writes what is still being uploaded", "        uploaded[b].synchronize()\n", ""),
            ("an upload overwrites what a kernel still reads", "        load.wait(computed[b])\n", ""),
            ("a kernel does not wait for its upload", "        compute.wait(uploaded[b])\n", ""),
            ("the host waits for the kernel of two chunks ago", "uploaded[b].synchronize()", "computed[b].synchronize()"),
            ("the host waits for the whole stream load", "uploaded[b].synchronize()", "load.synchronize()"),
            ("the host waits for the upload of the chunk before", "uploaded[b].synchronize()", "uploaded[1 - b].synchronize()"),
            ("the host waits for the kernel of each chunk", "        compute.record(computed[b])", "        compute.record(computed[b])\n        compute.synchronize()"),
            ("the device is waited for", "uploaded[b].synchronize()", "gpu.synchronize()"),
            ("one buffer of each", "b = i % 2", "b = 0"),
            ("one staging buffer", "staging[b][:]", "staging[0][:]", "on_gpu[b], staging[b]", "on_gpu[b], staging[0]"),
            ("one buffer on the GPU", "on_gpu[b], staging", "on_gpu[0], staging", "out[i], on_gpu[b]", "out[i], on_gpu[0]", "        load.wait(computed[b])", "        load.wait(compute.record())"),
            ("all in one stream", "        b = i % 2", "        b, compute = i % 2, load"),
            ("page-locked memory of its own for each chunk", "        uploaded[b].synchronize()\n        staging[b][:] = chunk\n", "        mine = gpu.empty_pinned(chunk.size)\n        mine[:] = chunk\n", "on_gpu[b], staging[b]", "on_gpu[b], mine"),
            ("it asks for the kernel of two chunks ago", "uploaded[b].synchronize()", "while not computed[b].is_done:\n            pass"),
            ("pageable memory, without staging", "        uploaded[b].synchronize()\n        staging[b][:] = chunk\n", "", "on_gpu[b], staging[b]", "on_gpu[b], chunk"),
            ("the event is recorded before the upload", "        load.copy(on_gpu[b], staging[b])\n        load.record(uploaded[b])", "        load.record(uploaded[b])\n        load.copy(on_gpu[b], staging[b])"),
            ("the event is recorded before the kernel", "        process(compute, out[i], on_gpu[b])\n        compute.record(computed[b])", "        compute.record(computed[b])\n        process(compute, out[i], on_gpu[b])"),
            ("the wait is behind the upload", "        load.wait(computed[b])\n        load.copy(on_gpu[b], staging[b])", "        load.copy(on_gpu[b], staging[b])\n        load.wait(computed[b])"),
            ("the host waits after it has written", "        uploaded[b].synchronize()\n        staging[b][:] = chunk", "        staging[b][:] = chunk\n        uploaded[b].synchronize()"),
            ("each event for the other buffer", "load.wait(computed[b])", "load.wait(computed[1 - b])"),
            ("the last chunk is left out", "enumerate(chunks)", "enumerate(chunks[:-1])"),
            ("kernels read the wrong buffer", "out[i], on_gpu[b]", "out[i], on_gpu[1 - b]"),
        ],
        "cuda": [
            ("the kernel does not wait for the upload", "    cudaStreamWaitEvent(compute, uploaded);\n", ""),
            ("the download does not wait for the kernel", "    cudaStreamWaitEvent(down, computed);\n", ""),
            ("the host waits for each upload", "cudaStreamWaitEvent(compute, uploaded)", "cudaEventSynchronize(uploaded)"),
            ("the host waits at the end", "  cudaEventDestroy(uploaded);", "  cudaStreamSynchronize(down);\n  cudaEventDestroy(uploaded);"),
            ("copies that are not asynchronous", "cudaMemcpyAsync(on_gpu[i], batch[i], bytes, cudaMemcpyHostToDevice, up)", "cudaMemcpy(on_gpu[i], batch[i], bytes, cudaMemcpyHostToDevice)"),
            ("all in one stream", "  size_t bytes", "  compute = down = up;\n  size_t bytes"),
            ("the next upload waits for the download", "bytes, cudaMemcpyDeviceToHost, down);\n", "bytes, cudaMemcpyDeviceToHost, down);\n    cudaEventRecord(computed, down);\n    cudaStreamWaitEvent(up, computed);\n"),
            ("all chunks in one place on the GPU", "on_gpu[i], batch[i]", "on_gpu[0], batch[i]", "(on_gpu[i], on_gpu[i]", "(on_gpu[0], on_gpu[0]", "result[i], on_gpu[i]", "result[i], on_gpu[0]"),
            ("a kernel that is cut short", "count, ns)", "count, ns / 2)"),
            ("the last chunk is left out", "i < chunks", "i < chunks - 1"),
            ("half of each chunk", "count * sizeof(float)", "count / 2 * sizeof(float)"),
            ("by way of ordinary memory", "  size_t bytes = count * sizeof(float);\n", "  size_t bytes = count * sizeof(float);\n  void* ordinary = malloc(bytes);\n", "    cudaMemcpyAsync(on_gpu[i], batch[i]", "    memcpy(ordinary, batch[i], bytes);\n    cudaMemcpyAsync(on_gpu[i], ordinary"),
            ("the wrong way", "bytes, cudaMemcpyHostToDevice", "bytes, cudaMemcpyDeviceToHost"),
            ("the host computes what the GPU should", "    process<<<grid, 1024, 0, compute>>>(on_gpu[i], on_gpu[i], count, ns);\n", "    for (int j = 0; j < count; ++j) batch[i][j] += 1;\n"),
        ],
        "pytorch": [
            ("the host waits for each upload", "tensor.copy_(source, non_blocking=True)", "tensor.copy_(source)"),
            ("the host waits for each download", "target.copy_(tensor, non_blocking=True)", "target.copy_(tensor)"),
            ("the kernel does not wait for the upload", "        compute.wait_stream(up)\n", ""),
            ("the download does not wait for the kernel", "        down.wait_stream(compute)\n", ""),
            ("the host waits for each kernel", "down.wait_stream(compute)", "compute.synchronize()"),
            ("the host waits for an event", "compute.wait_stream(up)", "up.record_event().synchronize()"),
            ("the host waits at the end", "            target.copy_(tensor, non_blocking=True)", "            target.copy_(tensor, non_blocking=True)\n    down.synchronize()"),
            ("all in one stream", "    for source", "    compute = down = up\n    for source"),
            ("kernels are outside of the blocks", "            process(tensor)", "            pass\n        process(tensor)"),
            ("the next upload waits for the download", "            target.copy_(tensor, non_blocking=True)", "            target.copy_(tensor, non_blocking=True)\n        up.wait_stream(down)"),
            ("all chunks in one tensor on the GPU", "zip(batch, on_gpu, result)", "zip(batch, on_gpu[:1] * 6, result)"),
            ("the last chunk is left out", "zip(batch, on_gpu, result)", "zip(batch[:-1], on_gpu, result)"),
            ("no kernel", "            process(tensor)", "            pass"),
            ("two kernels", "            process(tensor)", "            process(tensor)\n            process(tensor)"),
            ("the wrong way", "tensor.copy_(source, non_blocking=True)", "source.copy_(tensor, non_blocking=True)"),
            ("from host to host", "            target.copy_(tensor, non_blocking=True)", "            target.copy_(source, non_blocking=True)"),
        ],
    },
    "13": {
        "answer": [
            ("only the answer's copy is mended", "t.copy(buffer, zeros)", "legacy.copy(buffer, zeros)"),
            ("only the buffer's copy is mended", "    s.copy(page, ask.array)", "    page = np.zeros(4, \"float32\")\n    s.copy(page, ask.array)"),
            ("it waits for the device", "s.synchronize()", "gpu.synchronize()"),
            ("it waits for draft, too", "    return", "    t.synchronize()\n    return"),
            ("it waits between the launches", "    t.copy", "    s.synchronize()\n    t.copy"),
            ("it does not wait", "    s.synchronize()\n", ""),
            ("it waits for ask, not for the copy behind it", "s.synchronize()", "ask.wait()"),
            ("it waits for the wrong stream", "s.synchronize()", "t.synchronize()"),
            ("the buffer is not cleared", "    t.copy(buffer, zeros)\n", ""),
            ("the buffer is cleared behind draft", "    t.copy(buffer, zeros)\n    draft.execute(stream=t)", "    draft.execute(stream=t)\n    t.copy(buffer, zeros)"),
            ("the buffer is cleared in s, and t does not wait", "t.copy(buffer, zeros)", "s.copy(buffer, zeros)"),
            ("the buffer is cleared in s behind ask, and t waits for both", "t.copy(buffer, zeros)", "s.copy(buffer, zeros)\n    t.wait(s.record())"),
            ("another copy in its place", "t.copy(buffer, zeros)", "t.copy(x, zeros)"),
            ("all in one stream", "stream=t", "stream=s", "t.copy", "s.copy"),
            ("the answer is copied in t", "s.copy(page, ask.array)", "t.copy(page, ask.array)"),
            ("draft in a stream that waits for no copy without a stream", "    t.copy(buffer, zeros)\n    draft.execute(stream=t)\n", "    legacy.copy(buffer, zeros)\n    with gpu.create_stream() as own:\n        draft.execute(stream=own)\n"),
            ("draft is left out", "    draft.execute(stream=t)\n", ""),
            ("ask twice", "draft.execute(stream=t)", "ask.execute(stream=t)"),
            ("a short kernel of its own", "draft.execute(stream=t)", "gs.workloads.Step(gpu, 1000, name='draft').execute(stream=t)"),
            ("to_host waits for the device", "s.synchronize()\n    return float(page[0])", "return float(gpu.to_host(ask.array)[0])"),
            ("a constant", "return float(page[0])", "return 7.0"),
            ("another answer", "return float(page[0])", "return float(page[0]) + 1"),
            ("the page, not a number", "return float(page[0])", "return page"),
        ],
        "culprit": [
            ("the device is waited for at the end", """
def culprit(steps, stream):
    try:
        for step in steps:
            step.execute(stream=stream)
        stream.device.synchronize()
    except RuntimeError:
        return step.name
"""),
            ("asking does not wait", "stream.synchronize()", "stream.is_done"),
            ("an event is recorded, not waited for", "stream.synchronize()", "stream.record()"),
            ("the event is recorded before the step", "        step.execute(stream=stream)\n        try:\n            stream.synchronize()", "        event = stream.record()\n        step.execute(stream=stream)\n        try:\n            event.synchronize()"),
            ("it waits before each step: the next one is blamed", "        step.execute(stream=stream)\n        try:\n            stream.synchronize()\n        except RuntimeError:\n            return step.name", "        try:\n            stream.synchronize()\n        except RuntimeError:\n            return step.name\n        step.execute(stream=stream)"),
            ("another device is waited for", "stream.synchronize()", "gpu.synchronize()"),
            ("it goes on behind the failure", "    for step", "    found = None\n    for step", "return step.name", "found = step.name", "return None", "return found"),
            ("all are queued, and events tell later", """
def culprit(steps, stream):
    events = []
    for step in steps:
        step.execute(stream=stream)
        events.append(stream.record())
    for step, event in zip(steps, events):
        try:
            event.synchronize()
        except RuntimeError:
            return step.name
"""),
            ("nothing runs", "        step.execute(stream=stream)\n", ""),
            ("errors are swallowed", "return step.name", "pass"),
            ("the step itself", "return step.name", "return step"),
            ("the first step, always", "return step.name", "return steps[0].name"),
            ("a copy to page-locked memory does not wait", "stream.synchronize()", "stream.copy(stream.device.empty_pinned(4), step.table)"),
            ("an error is not caught", "except RuntimeError", "except ValueError"),
            ("each step runs twice", "        try:\n", "        step.execute(stream=stream)\n        try:\n"),
            ("backwards", "in steps:", "in steps[::-1]:"),
        ],
    },
    "14": {
        "admit": [
            ("prefill does not wait", "    chat.wait(copies.record())\n", ""),
            ("the copy is in chat, and the server's event is not", """
def admit(copies, chat, x, source, kv):
    chat.copy(x, source)
    prefill(chat, kv, x)
"""),
            ("the server's event stands behind the wait for prefill", """
def admit(copies, chat, x, source, kv):
    copies.copy(x, source)
    chat.wait(copies.record())
    prefill(chat, kv, x)
    copies.wait(chat.record())
"""),
            ("the copy does not wait", "    copies.wait(chat.record())\n", ""),
            ("the copy's event comes before the copy", "    copies.copy(x, source)\n    chat.wait(copies.record())\n", "    chat.wait(copies.record())\n    copies.copy(x, source)\n"),
            ("the streams wait for themselves", "copies.wait(chat.record())", "copies.wait(copies.record())"),
            ("the host waits for both", "chat.wait(copies.record())", "copies.synchronize()", "copies.wait(chat.record())", "chat.synchronize()"),
            ("the host waits at the end", "    prefill(chat, kv, x)", "    prefill(chat, kv, x)\n    chat.synchronize()"),
            ("nothing is copied", "    copies.copy(x, source)\n", ""),
            ("nothing is read", "    prefill(chat, kv, x)", "    pass"),
            ("prefill reads the host's page", "prefill(chat, kv, x)", "prefill(chat, kv, source)"),
            ("it is read twice", "    prefill(chat, kv, x)", "    prefill(chat, kv, x)\n    prefill(chat, kv, x)"),
            ("prefill writes into x", "prefill(chat, kv, x)", "prefill(chat, x, x)"),
            ("a sleep", "    chat.wait(copies.record())\n", "    import time\n    time.sleep(0.001)\n"),
        ],
        "count": [
            ("the host waits before", "    with gs.CallerStreamGuard(decode):\n        library_count(counts, state)", "    decode.synchronize()\n    library_count(counts, state)"),
            ("a guard for another stream", "gs.CallerStreamGuard(decode)", "gs.CallerStreamGuard(gpu.create_stream())"),
            ("a guard that was left", "    with gs.CallerStreamGuard(decode):\n        library_count(counts, state)", "    with gs.CallerStreamGuard(decode):\n        pass\n    library_count(counts, state)"),
            ("a guard for the legacy default stream", "gs.CallerStreamGuard(decode)", "gs.CallerStreamGuard(1)"),
            ("the thread's default stream, without a wait", "gs.CallerStreamGuard(decode)", "gs.CallerStreamGuard(2)"),
            ("nothing is counted", "library_count(counts, state)", "pass"),
            ("it counts twice", "        library_count(counts, state)", "        library_count(counts, state)\n        library_count(counts, state)"),
            ("the host counts", "        library_count(counts, state)", "        decode.copy(counts, state)"),
            ("the device is waited for", "        library_count(counts, state)", "        library_count(counts, state)\n    gpu.synchronize()"),
            ("state and counts change places", "library_count(counts, state)", "library_count(state, counts)"),
            ("a layer instead", "library_count(counts, state)", "layer(decode, counts)"),
        ],
        "stage": [
            ("nobody waits", "    read.synchronize()\n", ""),
            ("the device is waited for", "read.synchronize()", "gpu.synchronize()"),
            ("new page-locked memory each time", "    read.synchronize()\n    page[:] = prompt\n", "    page = gpu.empty_pinned(len(prompt))\n    page[:] = prompt\n"),
            ("it waits behind the write", "    read.synchronize()\n    page[:] = prompt\n", "    page[:] = prompt\n    read.synchronize()\n"),
            ("a name is no copy", "page[:] = prompt", "page = prompt"),
            ("page is filled and the prompt returned", "return page", "return prompt"),
            ("only one number is copied", "page[:] = prompt", "page[0] = prompt[0]"),
            ("an event that is recorded now", "read.synchronize()", "gpu.create_event().synchronize()"),
            ("nothing is returned", "    return page\n", ""),
            ("it asks once", "read.synchronize()", "read.is_done"),
            ("a copy of page", "return page", "return page.copy()"),
        ],
        "step": [
            ("each layer a graph", """
def make_step(decode, state, token):
    with decode.capture() as graph:
        layer(decode, state)

    def step():
        for _ in range(LAYERS):
            graph.launch(stream=decode)
        decode.copy(token, state)

    return step
"""),
            ("one layer is missing", "range(LAYERS)", "range(LAYERS - 1)"),
            ("the copy is missing", "        decode.copy(token, state)\n", ""),
            ("it is captured and never launched", "lambda: graph.launch(stream=decode)", "lambda: None"),
            ("it is launched by make_step", "    return lambda: graph.launch(stream=decode)", "    graph.launch(stream=decode)\n    return lambda: None"),
            ("the copy comes first", """
def make_step(decode, state, token):
    with decode.capture() as graph:
        decode.copy(token, state)
        for _ in range(LAYERS):
            layer(decode, state)
    return lambda: graph.launch(stream=decode)
"""),
            ("the host waits within the capture", "        decode.copy(token, state)\n", "        decode.copy(token, state)\n        decode.synchronize()\n"),
            ("it is launched in another stream", "    return lambda: graph.launch(stream=decode)", "    other = gpu.create_stream()\n    return lambda: graph.launch(stream=other)"),
            ("the graph itself is returned", "lambda: graph.launch(stream=decode)", "graph"),
            ("a state of its own", "layer(decode, state)", "layer(decode, numbers())"),
            ("it is launched twice", "lambda: graph.launch(stream=decode)", "lambda: (graph.launch(stream=decode), graph.launch(stream=decode))"),
            ("captured anew for each step, and not launched", "    with decode.capture(name=\"step\") as graph:\n        for _ in range(LAYERS):\n            layer(decode, state)\n        decode.copy(token, state)\n    return lambda: graph.launch(stream=decode)", "    def step():\n        with decode.capture():\n            layer(decode, state)\n    return step"),
        ],
        "place": [
            ("below the limit, where at most is asked for", "<= limit_us", "< limit_us"),
            ("sixteen, whatever is asked for", "\"decode\": least", "\"decode\": 16"),
            ("it is rounded down", "rounding=\"up\"", "rounding=\"down\""),
            ("it is not rounded", ", rounding=\"up\"", ""),
            ("prefill gets as many", "\"prefill\": \"rest\"", "\"prefill\": least"),
            ("the names change places", "\"decode\": least, \"prefill\": \"rest\"", "\"prefill\": least, \"decode\": \"rest\""),
            ("half of the GPU", "\"decode\": least", "\"decode\": gpu.sm_count // 2"),
            ("a plan is no partition", "gpu.carve(", "gpu.plan_carve("),
            ("the first that misses the limit", "step_us(sms) <= limit_us", "step_us(sms) > limit_us"),
            ("one SM too few", "\"decode\": least", "\"decode\": least - 8"),
            ("twice as many", "\"decode\": least", "\"decode\": 2 * least"),
            ("the partitions are closed", "    return gpu.carve({\"decode\": least, \"prefill\": \"rest\"}, rounding=\"up\")", "    with gpu.carve({\"decode\": least, \"prefill\": \"rest\"}, rounding=\"up\") as parts:\n        return parts"),
        ],
        "queues": [
            ("batch goes first", "name=\"chat\", priority=-5", "name=\"chat\"", "name=\"batch\"", "name=\"batch\", priority=-5"),
            ("both are urgent", "name=\"batch\"", "name=\"batch\", priority=-5"),
            ("a number below the range", "name=\"chat\", priority=-5", "name=\"chat\"", "name=\"batch\"", "name=\"batch\", priority=5"),
            ("a positive priority", "priority=-5", "priority=5"),
            ("outside the partition", "part.create_stream(name=\"chat\", priority=-5)", "gpu.create_stream(name=\"chat\", priority=-5)"),
            ("both outside", "part.create_stream", "gpu.create_stream"),
            ("one stream", "    return part.create_stream(name=\"chat\", priority=-5), part.create_stream(name=\"batch\")", "    chat = part.create_stream(priority=-5)\n    return chat, chat"),
            ("they change places", "    return part.create_stream(name=\"chat\", priority=-5), part.create_stream(name=\"batch\")", "    chat, batch = part.create_stream(name=\"chat\", priority=-5), part.create_stream(name=\"batch\")\n    return batch, chat"),
            ("only one is returned", ", part.create_stream(name=\"batch\")", ""),
            ("a partition within it", "part.create_stream(name=\"batch\")", "gpu.carve({\"batch\": 16})[\"batch\"].create_stream()"),
        ],
        "report": [
            ("nobody waits", "    decode.synchronize()\n", ""),
            ("the device is waited for", "decode.synchronize()", "gpu.synchronize()"),
            ("it waits before the copy", "    decode.copy(page, counts)\n    decode.synchronize()\n", "    decode.synchronize()\n    decode.copy(page, counts)\n"),
            ("in another stream, without a wait", "    decode.copy(page, counts)\n    decode.synchronize()\n", "    other = gpu.create_stream()\n    other.copy(page, counts)\n    other.synchronize()\n"),
            ("the array itself", "float(page[0])", "page"),
            ("what the operator likes", "float(page[0])", "1e9"),
            ("nothing is copied", "    decode.copy(page, counts)\n", ""),
            ("not a number", "float(page[0])", "float(\"nan\")"),
            ("asked once", "decode.synchronize()", "decode.is_done"),
            ("text", "float(page[0])", "str(page[0])"),
        ],
        "slo": [
            ("the copy races", "    copies.wait(chat.record())\n", ""),
            ("the library is in the default stream", "    with gs.CallerStreamGuard(decode):\n        library_count(counts, state)", "    library_count(counts, state)"),
            ("prompts are pageable", "    read.synchronize()\n    page[:] = prompt\n    return page\n", "    return prompt\n"),
            ("a token is thirteen calls", "    return lambda: graph.launch(stream=decode)", "\n    def step():\n        for _ in range(LAYERS):\n            layer(decode, state)\n        decode.copy(token, state)\n    return step"),
            ("no partition", "return gpu.carve({\"decode\": least, \"prefill\": \"rest\"}, rounding=\"up\")", "return None"),
            ("documents and prompts are equal", ", priority=-5", ""),
            ("a report waits for the device", "    decode.copy(page, counts)\n    decode.synchronize()\n    return float(page[0])", "    return float(gpu.to_host(counts)[0])"),
            ("prefill has too few SMs", "{\"decode\": least, \"prefill\": \"rest\"}", "{\"decode\": \"rest\", \"prefill\": 16}"),
            ("no prompt is read", "    prefill(chat, kv, x)", "    pass"),
            ("no token is made", "    return lambda: graph.launch(stream=decode)", "    return lambda: None"),
        ],
    },
}  # fmt: skip
