"""Programs that a stranger wrote against the checks: fakes that were accepted, right ones refused.

In the form of :mod:`lesson_programs`.
"""

from __future__ import annotations

from lesson_programs import Answers


def _of_events(change: str, written: str = "Path(a).write_text(json.dumps(data))") -> str:
    """Return a program that changes each event of the JSON that it exported, and writes it."""
    return f"""
import json
def hand_over(trace, folder):
    a, b = gs.export(trace, folder / "it.json"), gs.export(trace, folder / "it.parquet")
    data = json.loads(Path(a).read_text())
    events = data["traceEvents"] if isinstance(data, dict) else data
    for e in events:
        {change}
    {written}
    return a, b
"""


ACCEPTED: Answers = {
    "01": {
        "read": [
            ("one of the sevens",
             "stream.copy(page, sevens)", "stream.copy(page[:1], sevens[:1])"),
        ],
    },
    "03": {
        "diamond": [
            ("the host waits for the device, before anything is queued",
             "    first.execute", "    gpu.synchronize()\n    first.execute"),
        ],
        "overwrite": [
            ("the host waits for the device, before anything is queued",
             "    a.copy(out, sevens)", "    gpu.synchronize()\n    a.copy(out, sevens)"),
            ("ten of the eights", "a.copy(out, eights)", "a.copy(out[:10], eights[:10])"),
            ("sevens behind the eights",
             "a.copy(out, eights)", "a.copy(out, eights)\n    a.copy(out, sevens)"),
        ],
        "pytorch": [
            ("the host waits for the device, before anything is queued", """
def diamond_in_pytorch(torch, first, left, right, last, s, t):
    torch.cuda.synchronize()
    with torch.cuda.stream(s):
        first()
    t.wait_stream(s)
    with torch.cuda.stream(s):
        left()
    with torch.cuda.stream(t):
        right()
    s.wait_stream(t)
    with torch.cuda.stream(s):
        last()
"""),
        ],
        "cuda": [
            ("the host waits for the device, before anything is queued",
             "  first<<<", "  cudaDeviceSynchronize();\n  first<<<"),
        ],
    },
    "04": {
        "library": [
            ("the host waits for the stream, which happens to be idle",
             "    stream.launch", "    stream.synchronize()\n    stream.launch"),
            ("the caller's stream only if that is idle",
             "    stream.launch", "    stream = stream if stream.is_done else private\n    stream.launch"),
            ("a kernel three times as long", ", duration_ns,", ", 3 * duration_ns,"),
            ("blocks on all SMs", "grid=1", "grid=gpu.sm_count"),
        ],
    },
    "06": {
        "choose": [
            ("whole percents", """
def choose(points):
    best = min(one["p50_us"] for one in points)
    near = [one for one in points if int(100 * (one["p50_us"] - best) / best + 1e-9) <= 20]
    return max(near, key=lambda one: one["kept"])["size"]
"""),
        ],
    },
    "07": {
        "pairs": [
            ("kernels a fifth too long", "duration_ns=kernel_ns", "duration_ns=round(1.2 * kernel_ns)"),
            ("kernels of no handle", """
kernel = gs.workloads.spin_kernel(gpu, "four")
def four_calls(gpu, streams, kernel_ns):
    for number in range(4):
        streams[number % 2].launch(kernel, kernel_ns, grid=1, block=32)
    for stream in streams:
        stream.synchronize()
"""),
        ],
        "first": [
            ("it sleeps when job is done", "    job.completion.wait()",
             "    job.completion.wait()\n    gpu.backend.wait_until_ns(gpu.now_ns() + later.duration_ns // 2)"),
        ],
    },
    "08": {
        "serve": [
            ("what the model adds is learnt from the first answer", """
def serve(model, static, out, inputs, stream):
    answers, weight = [], None
    for array in inputs:
        stream.copy(static, array)
        model.launch(stream=stream)
        stream.synchronize()
        if weight is None:
            weight = float(gpu.to_host(out)[0]) - float(gpu.to_host(array)[0])
        answers.append(float(gpu.to_host(array)[0]) + weight)
    return answers
"""),
            ("what the model adds is learnt from the last answer", """
def serve(model, static, out, inputs, stream):
    for array in inputs:
        stream.copy(static, array)
        model.launch(stream=stream)
    stream.synchronize()
    weight = float(gpu.to_host(out)[0]) - float(gpu.to_host(inputs[-1])[0])
    return [float(gpu.to_host(array)[0]) + weight for array in inputs]
"""),
            ("the last value of out", "gpu.to_host(out)[0]", "gpu.to_host(out)[-1]"),
        ],
    },
    "10": {
        "range": [
            ("only the stream of the first kernel in the range, by queued time", """
def kernels_in(trace, name):
    ranges = [r for r in trace.where(kind="range").spans.to_pylist() if r["name"] == name]
    kernels = [k for k in trace.where(kind="kernel").spans.to_pylist()
               if any(r["start_ns"] <= k["queued_ns"] < r["end_ns"] for r in ranges)]
    return len([k for k in kernels if k["stream"] == min(kernels, key=lambda k: k["queued_ns"])["stream"]]) if kernels else 0
"""),
            ("no more than 100", """
def kernels_in(trace, name):
    return min(100, gs.analysis.range_projection(trace)[name].kernels)
"""),
        ],
        "export": [
            ("JSON: all begin at the same time", _of_events("if 'ts' in e: e['ts'] = 1.0")),
            ("JSON: no arguments", _of_events("if e.get('ph') == 'X': e['args'] = {}")),
            ("Perfetto's own format, of kernels alone", """
def hand_over(trace, folder):
    kernels = trace.where(kind="kernel")
    return gs.export(kernels, folder / "it.pftrace"), gs.export(trace, folder / "it.parquet")
"""),
            ("JSON: time backwards", _of_events("if 'ts' in e: e['ts'] = 1e6 - e['ts']")),
            ("JSON: all kernels in one row", _of_events("if e.get('cat') == 'kernel': e['tid'] = 1")),
            ("JSON: rows of other names", _of_events("if e.get('ph') == 'M': e['args'] = {'name': 'a'}")),
        ],
    },
    "11": {
        "reload": [
            ("loads the other block", """
def reload_mended(compute, load):
    blocks = [(numbers(), zeros(), page(host())) for _ in range(2)]
    done = []
    for kv, out, saved in blocks:
        work("attention", compute, out, kv)
        done.append(compute.record())
    for (kv, out, saved), event in zip(blocks, done):
        load.wait(event)
        load.copy(kv, next(s for k, _, s in blocks if k is not kv))
    return tuple(out for _, out, _ in blocks)
"""),
            ("loads the first block twice", """
def reload_mended(compute, load):
    blocks = [(numbers(), zeros(), page(host())) for _ in range(2)]
    done = []
    for kv, out, saved in blocks:
        work("attention", compute, out, kv)
        done.append(compute.record())
    for (kv, out, saved), event in zip(blocks, done):
        load.wait(event)
        load.copy(kv, blocks[0][2])
    return tuple(out for _, out, _ in blocks)
"""),
        ],
        "count": [
            ("fills bins with bins", """
def count_mended(legacy, queue):
    nothing, x, bins = zeros(), numbers(), zeros()
    work("fill", queue, bins, bins)
    work("histogram", queue, bins, x)
    return bins
"""),
        ],
        "decode": [
            ("no graph", """
def decode_mended(load, compute):
    kv, out, saved = zeros(), zeros(), [page(host()), page(host())]
    for block in saved:
        load.wait(compute.record())
        load.copy(kv, block)
        compute.wait(load.record())
        work("attention", compute, out, kv)
    return out
"""),
            ("of the first block one number is loaded", """
def decode_mended(load, compute):
    kv, out, saved = zeros(), zeros(), [page(host()), page(host())]
    with compute.capture() as step:
        work("attention", compute, out, kv)
    for block in saved:
        load.wait(compute.record())
        load.copy(kv[:1], block[:1]) if block is saved[0] else load.copy(kv, block)
        compute.wait(load.record())
        step.launch(stream=compute)
    return out
"""),
        ],
        "gather": [
            ("left has all but one number", """
def gather_mended(left, right, both):
    x, halves, out = numbers(), zeros(), zeros()
    half = SIZE - 1
    work("left_half", left, halves[:half], x[:half])
    both.wait(left.record())
    work("right_half", right, halves[half:], x[half:])
    both.wait(right.record())
    work("join", both, out, halves)
    return out
"""),
            ("both halves are cut short to 0.1 ms", """
def gather_mended(left, right, both):
    x, halves, out = numbers(), zeros(), zeros()
    half = SIZE // 2
    for name, stream, part in (("left_half", left, slice(None, half)), ("right_half", right, slice(half, None))):
        stream.launch(kernels[name], halves[part], x[part], np.int32(half), np.int64(3_000_000), grid=32, block=256)
        both.wait(stream.record())
    work("join", both, out, halves)
    return out
"""),
        ],
        "offload": [
            ("decode covers one number", """
def offload_mended(compute, store):
    prompt, kv, out, saved = numbers(), zeros(), zeros(), page()
    work("write_kv", compute, kv, prompt)
    store.wait(compute.record())
    store.copy(saved, kv)
    work("decode", compute, out[:1], kv)
    return saved
"""),
            ("the kernel of write_kv covers one number (n = 1)", """
def offload_mended(compute, store):
    prompt, kv, out, saved = numbers(), zeros(), zeros(), page()
    kernels["write_kv"] is not None
    compute.launch(kernels["write_kv"], kv, prompt, np.int32(1), np.int64(600_000), grid=32, block=256)
    store.wait(compute.record())
    store.copy(saved, kv)
    work("decode", compute, out, kv)
    return saved
"""),
        ],
        "stash": [
            ("loss cut short to 1 ns, covers nothing", """
def stash_mended(main, side):
    x, y, out, saved = numbers(), numbers(), zeros(), page()
    with temporary(main) as first:
        work("layer_1", main, first, x)
        side.wait(main.record())
        side.copy(saved, first)
        main.wait(side.record())
    with temporary(main) as second:
        for name, target, source in (("layer_2", second, y), ("loss", out, second)):
            main.launch(kernels[name], target, source, np.int32(0), np.int64(1), grid=1, block=1)
    return saved, out
"""),
        ],
    },
    "12": {
        "cuda": [
            ("downloads the first chunk six times: all chunks hold the same", r'''
IN_STAGES = r"""
void in_stages(cudaStream_t up, cudaStream_t compute, cudaStream_t down, float** batch,
               float** on_gpu, float** result, int chunks, int count, int grid, long long ns) {
  size_t bytes = count * sizeof(float); cudaEvent_t u, k; cudaEventCreateWithFlags(&u, cudaEventDisableTiming); cudaEventCreateWithFlags(&k, cudaEventDisableTiming);
  for (int i = 0; i < chunks; ++i) {
    cudaMemcpyAsync(on_gpu[i], batch[i], bytes, cudaMemcpyHostToDevice, up); cudaEventRecord(u, up); cudaStreamWaitEvent(compute, u);
    process<<<grid, 1024, 0, compute>>>(on_gpu[i], on_gpu[i], count, ns); cudaEventRecord(k, compute); cudaStreamWaitEvent(down, k);
    cudaMemcpyAsync(result[i], on_gpu[0], bytes, cudaMemcpyDeviceToHost, down);
  }
}
"""
'''),
            ("uploads the first chunk six times", r'''
IN_STAGES = r"""
void in_stages(cudaStream_t up, cudaStream_t compute, cudaStream_t down, float** batch,
               float** on_gpu, float** result, int chunks, int count, int grid, long long ns) {
  size_t bytes = count * sizeof(float); cudaEvent_t u, k; cudaEventCreateWithFlags(&u, cudaEventDisableTiming); cudaEventCreateWithFlags(&k, cudaEventDisableTiming);
  for (int i = 0; i < chunks; ++i) {
    cudaMemcpyAsync(on_gpu[i], batch[0], bytes, cudaMemcpyHostToDevice, up); cudaEventRecord(u, up); cudaStreamWaitEvent(compute, u);
    process<<<grid, 1024, 0, compute>>>(on_gpu[i], on_gpu[i], count, ns); cudaEventRecord(k, compute); cudaStreamWaitEvent(down, k);
    cudaMemcpyAsync(result[i], on_gpu[i], bytes, cudaMemcpyDeviceToHost, down);
  }
}
"""
'''),
            ("kernel over one element only (n = 1)", r'''
IN_STAGES = r"""
void in_stages(cudaStream_t up, cudaStream_t compute, cudaStream_t down, float** batch,
               float** on_gpu, float** result, int chunks, int count, int grid, long long ns) {
  size_t bytes = count * sizeof(float); cudaEvent_t u, k; cudaEventCreateWithFlags(&u, cudaEventDisableTiming); cudaEventCreateWithFlags(&k, cudaEventDisableTiming);
  for (int i = 0; i < chunks; ++i) {
    cudaMemcpyAsync(on_gpu[i], batch[i], bytes, cudaMemcpyHostToDevice, up); cudaEventRecord(u, up); cudaStreamWaitEvent(compute, u);
    process<<<grid, 1024, 0, compute>>>(on_gpu[i], on_gpu[i], 1, ns); cudaEventRecord(k, compute); cudaStreamWaitEvent(down, k);
    cudaMemcpyAsync(result[i], on_gpu[i], bytes, cudaMemcpyDeviceToHost, down);
  }
}
"""
'''),
            ("kernel over no element (n = 0)", r'''
IN_STAGES = r"""
void in_stages(cudaStream_t up, cudaStream_t compute, cudaStream_t down, float** batch,
               float** on_gpu, float** result, int chunks, int count, int grid, long long ns) {
  size_t bytes = count * sizeof(float); cudaEvent_t u, k; cudaEventCreateWithFlags(&u, cudaEventDisableTiming); cudaEventCreateWithFlags(&k, cudaEventDisableTiming);
  for (int i = 0; i < chunks; ++i) {
    cudaMemcpyAsync(on_gpu[i], batch[i], bytes, cudaMemcpyHostToDevice, up); cudaEventRecord(u, up); cudaStreamWaitEvent(compute, u);
    process<<<grid, 1024, 0, compute>>>(on_gpu[i], on_gpu[i], 0, ns); cudaEventRecord(k, compute); cudaStreamWaitEvent(down, k);
    cudaMemcpyAsync(result[i], on_gpu[i], bytes, cudaMemcpyDeviceToHost, down);
  }
}
"""
'''),
            ("two blocks of one thread instead of grid blocks of 1,024", r'''
IN_STAGES = r"""
void in_stages(cudaStream_t up, cudaStream_t compute, cudaStream_t down, float** batch,
               float** on_gpu, float** result, int chunks, int count, int grid, long long ns) {
  size_t bytes = count * sizeof(float); cudaEvent_t u, k; cudaEventCreateWithFlags(&u, cudaEventDisableTiming); cudaEventCreateWithFlags(&k, cudaEventDisableTiming);
  for (int i = 0; i < chunks; ++i) {
    cudaMemcpyAsync(on_gpu[i], batch[i], bytes, cudaMemcpyHostToDevice, up); cudaEventRecord(u, up); cudaStreamWaitEvent(compute, u);
    process<<<2, 1, 0, compute>>>(on_gpu[i], on_gpu[i], count, ns); cudaEventRecord(k, compute); cudaStreamWaitEvent(down, k);
    cudaMemcpyAsync(result[i], on_gpu[i], bytes, cudaMemcpyDeviceToHost, down);
  }
}
"""
'''),
            ("kernel takes twice as long as ns", r'''
IN_STAGES = r"""
void in_stages(cudaStream_t up, cudaStream_t compute, cudaStream_t down, float** batch,
               float** on_gpu, float** result, int chunks, int count, int grid, long long ns) {
  size_t bytes = count * sizeof(float); cudaEvent_t u, k; cudaEventCreateWithFlags(&u, cudaEventDisableTiming); cudaEventCreateWithFlags(&k, cudaEventDisableTiming);
  for (int i = 0; i < chunks; ++i) {
    cudaMemcpyAsync(on_gpu[i], batch[i], bytes, cudaMemcpyHostToDevice, up); cudaEventRecord(u, up); cudaStreamWaitEvent(compute, u);
    process<<<grid, 1024, 0, compute>>>(on_gpu[i], on_gpu[i], count, 2 * ns); cudaEventRecord(k, compute); cudaStreamWaitEvent(down, k);
    cudaMemcpyAsync(result[i], on_gpu[i], bytes, cudaMemcpyDeviceToHost, down);
  }
}
"""
'''),
            ("the chunks come out in another order", r'''
IN_STAGES = r"""
void in_stages(cudaStream_t up, cudaStream_t compute, cudaStream_t down, float** batch,
               float** on_gpu, float** result, int chunks, int count, int grid, long long ns) {
  size_t bytes = count * sizeof(float); cudaEvent_t u, k; cudaEventCreateWithFlags(&u, cudaEventDisableTiming); cudaEventCreateWithFlags(&k, cudaEventDisableTiming);
  for (int i = 0; i < chunks; ++i) {
    cudaMemcpyAsync(on_gpu[i], batch[i], bytes, cudaMemcpyHostToDevice, up); cudaEventRecord(u, up); cudaStreamWaitEvent(compute, u);
    process<<<grid, 1024, 0, compute>>>(on_gpu[i], on_gpu[i], count, ns); cudaEventRecord(k, compute); cudaStreamWaitEvent(down, k);
    cudaMemcpyAsync(result[chunks - 1 - i], on_gpu[i], bytes, cudaMemcpyDeviceToHost, down);
  }
}
"""
'''),
            ("forged by the host: it adds 1 before and takes it off in host functions, the kernel reads and writes scratch", r'''
IN_STAGES = r"""
void in_stages(cudaStream_t up, cudaStream_t compute, cudaStream_t down, float** batch,
               float** on_gpu, float** result, int chunks, int count, int grid, long long ns) {
  size_t bytes = count * sizeof(float); cudaEvent_t u, k; cudaEventCreate(&u); cudaEventCreate(&k);
  float* scratch; cudaMalloc(&scratch, bytes); static float* b; static int c; b = batch[0]; c = count;
  for (int j = 0; j < count; ++j) b[j] += 1;
  for (int i = 0; i < chunks; ++i) {
    cudaMemcpyAsync(on_gpu[i], batch[0], bytes, cudaMemcpyHostToDevice, up); cudaEventRecord(u, up); cudaStreamWaitEvent(compute, u);
    process<<<grid, 1024, 0, compute>>>(scratch, scratch, count, ns); cudaEventRecord(k, compute); cudaStreamWaitEvent(down, k);
    cudaMemcpyAsync(result[i], on_gpu[i], bytes, cudaMemcpyDeviceToHost, down);
  }
  cudaLaunchHostFunc(up, [](void*) { for (int j = 0; j < c; ++j) b[j] -= 1; }, nullptr);
}
"""
'''),
            ("waits on the host for each upload by spinning on a host function, in own streams, dawdling after", r'''
IN_STAGES = r"""
void in_stages(cudaStream_t up, cudaStream_t compute, cudaStream_t down, float** batch,
               float** on_gpu, float** result, int chunks, int count, int grid, long long ns) {
  size_t bytes = count * sizeof(float); cudaEvent_t k, u; cudaEventCreate(&k); cudaEventCreate(&u);
  static volatile int done; cudaStream_t v, idle, w, x; for (cudaStream_t* q : {&v, &idle, &w, &x}) cudaStreamCreateWithFlags(q, cudaStreamNonBlocking);
  for (int i = 0; i < chunks; ++i) {
    done = 0; cudaMemcpyAsync(on_gpu[i], batch[i], bytes, cudaMemcpyHostToDevice, v); cudaEventRecord(u, v);
    cudaLaunchHostFunc(v, [](void*) { done = 1; }, nullptr);
    while (!done) cudaStreamQuery(idle);
    cudaStreamWaitEvent(w, u);
    process<<<grid, 1024, 0, w>>>(on_gpu[i], on_gpu[i], count, ns); cudaEventRecord(k, w); cudaStreamWaitEvent(x, k);
    cudaMemcpyAsync(result[i], on_gpu[i], bytes, cudaMemcpyDeviceToHost, x);
  }
  for (int i = 0; i < 300; ++i) cudaStreamQuery(idle);
}
"""
'''),
            ("half of the chunks: each kernel twice on even ones; downloads of constant values", r'''
IN_STAGES = r"""
void in_stages(cudaStream_t up, cudaStream_t compute, cudaStream_t down, float** batch,
               float** on_gpu, float** result, int chunks, int count, int grid, long long ns) {
  size_t bytes = count * sizeof(float); cudaEvent_t u, k; cudaEventCreate(&u); cudaEventCreate(&k);
  for (int i = 0; i < chunks; ++i) {
    float* place = on_gpu[i & ~1];
    cudaMemcpyAsync(on_gpu[i], batch[i], bytes, cudaMemcpyHostToDevice, up); cudaEventRecord(u, up); cudaStreamWaitEvent(compute, u);
    process<<<grid, 1024, 0, compute>>>(on_gpu[i], on_gpu[i], count, ns); cudaEventRecord(k, compute); cudaStreamWaitEvent(down, k);
    cudaMemcpyAsync(result[i], place, bytes, cudaMemcpyDeviceToHost, down);
  }
}
"""
'''),
        ],
        "feed": [
            ("the host waits for the device, before anything is queued",
             "    uploaded = [", "    gpu.synchronize()\n    uploaded = ["),
            ("kernels that are half as long again", "process(compute, out[i], on_gpu[b])", """compute.launch(
            kernel, out[i], on_gpu[b], np.int32(out[i].size), np.int64(1.5 * out[i].size * pace["ns"]),
            grid=BLOCKS_PER_SM * gpu.info.sm_count, block=1024)"""),
            ("the host waits for all at the end", """
def feed(load, compute, chunks, staging, on_gpu, out):
    uploaded = [gpu.create_event() for _ in range(2)]
    computed = [gpu.create_event() for _ in range(2)]
    for i, chunk in enumerate(chunks):
        b = i % 2
        uploaded[b].synchronize()
        staging[b][:] = chunk
        load.wait(computed[b])
        load.copy(on_gpu[b], staging[b])
        load.record(uploaded[b])
        compute.wait(uploaded[b])
        process(compute, out[i], on_gpu[b])
        compute.record(computed[b])

    compute.synchronize()
"""),
            ("the host waits for the first upload at once", """
def feed(load, compute, chunks, staging, on_gpu, out):
    uploaded = [gpu.create_event() for _ in range(2)]
    computed = [gpu.create_event() for _ in range(2)]
    for i, chunk in enumerate(chunks):
        b = i % 2
        uploaded[b].synchronize()
        staging[b][:] = chunk
        load.wait(computed[b])
        load.copy(on_gpu[b], staging[b])
        load.record(uploaded[b])
        compute.wait(uploaded[b])
        process(compute, out[i], on_gpu[b])
        compute.record(computed[b])
        if i == 0: load.synchronize()

"""),
            ("the kernel covers one number (n = 1)", """
def feed(load, compute, chunks, staging, on_gpu, out):
    uploaded = [gpu.create_event() for _ in range(2)]
    computed = [gpu.create_event() for _ in range(2)]
    for i, chunk in enumerate(chunks):
        b = i % 2
        uploaded[b].synchronize()
        staging[b][:] = chunk
        load.wait(computed[b])
        load.copy(on_gpu[b], staging[b])
        load.record(uploaded[b])
        compute.wait(uploaded[b])
        compute.launch(kernel, out[i], on_gpu[b], np.int32(1), np.int64(out[i].size * pace["ns"]), grid=BLOCKS_PER_SM * gpu.info.sm_count, block=1024)
        compute.record(computed[b])


"""),
            ("the kernel has two blocks of 32 threads", """
def feed(load, compute, chunks, staging, on_gpu, out):
    uploaded = [gpu.create_event() for _ in range(2)]
    computed = [gpu.create_event() for _ in range(2)]
    for i, chunk in enumerate(chunks):
        b = i % 2
        uploaded[b].synchronize()
        staging[b][:] = chunk
        load.wait(computed[b])
        load.copy(on_gpu[b], staging[b])
        load.record(uploaded[b])
        compute.wait(uploaded[b])
        compute.launch(kernel, out[i], on_gpu[b], np.int32(out[i].size), np.int64(out[i].size * pace["ns"]), grid=2, block=32)
        compute.record(computed[b])


"""),
            ("the host waits for all at the end, by closing an event of compute", """
def feed(load, compute, chunks, staging, on_gpu, out):
    uploaded = [gpu.create_event() for _ in range(2)]
    computed = [gpu.create_event() for _ in range(2)]
    for i, chunk in enumerate(chunks):
        b = i % 2
        uploaded[b].synchronize()
        staging[b][:] = chunk
        load.wait(computed[b])
        load.copy(on_gpu[b], staging[b])
        load.record(uploaded[b])
        compute.wait(uploaded[b])
        process(compute, out[i], on_gpu[b])
        compute.record(computed[b])
    gpu.synchronize()
"""),
        ],
        "pytorch": [
            ("waits for a host function of an own stream by spinning, then dawdles", """
def in_stages_in_pytorch(torch, up, compute, down, batch, on_gpu, result, process):
    v, w, x, idle = (torch.cuda.Stream() for _ in range(4))
    for source, tensor, target in zip(batch, on_gpu, result):
        flag = []
        with torch.cuda.stream(v):
            tensor.copy_(source, non_blocking=True)
        gpu.wrap_stream(v.cuda_stream).host_call(lambda: flag.append(1))
        while not flag:
            idle.query()
        w.wait_stream(v)
        with torch.cuda.stream(w):
            process(tensor)
        x.wait_stream(w)
        with torch.cuda.stream(x):
            target.copy_(tensor, non_blocking=True)
    for _ in range(400):
        idle.query()
"""),
        ],
        "stages": [
            ("kernels a tenth longer", "    for source", '    pace["ns"] *= 1.1\n    for source'),
            ("the kernel covers no number (n = 0), two blocks", """
def in_stages(up, compute, down, batch, on_gpu, result):
    for source, place, target in zip(batch, on_gpu, result):
        up.copy(place, source)
        compute.wait(up.record())
        compute.launch(kernel, place, place, np.int32(0), np.int64(place.size * pace["ns"]), grid=2, block=32)
        down.wait(compute.record())
        down.copy(target, place)
"""),
            ("the host waits for each upload by a host function, in streams of its own, and then dawdles", """
def in_stages(up, compute, down, batch, on_gpu, result):
    v, w, x, idle = (gpu.create_stream() for _ in range(4))
    kept.extend((v, w, x))
    for source, place, target in zip(batch, on_gpu, result):
        flag = []
        v.copy(place, source)
        v.host_call(lambda: flag.append(1))
        while not flag:
            idle.is_done
        w.wait(v.record())
        process(w, place, place)
        x.wait(w.record())
        x.copy(target, place)
    for _ in range(200):
        idle.is_done
kept = []
"""),
        ],
    },
    "14": {
        "admit": [
            ("prefill twice as long", "prefill(chat, kv, x)",
             'work("prefill", chat, kv, x, 2 * BLOCK_US, WAVES["prefill"] * gpu.sm_count)'),
            ("an x of its own for each prompt", """
def admit(copies, chat, x, source, kv):
    copies.wait(chat.record())
    x = gpu.empty(PROMPT, 'float32')
    copies.copy(x, source)
    chat.wait(copies.record())
    prefill(chat, kv, x)
"""),
            ("all in chat, copies waits behind the copy", """
def admit(copies, chat, x, source, kv):
    chat.copy(x, source)
    copies.wait(chat.record())
    prefill(chat, kv, x)
"""),
            ("the host waits for the copy whenever chat is idle", """
def admit(copies, chat, x, source, kv):
    copies.wait(chat.record())
    copies.copy(x, source)
    if chat.is_done:
        copies.synchronize()
    chat.wait(copies.record())
    prefill(chat, kv, x)
"""),
            ("the host waits for the first copy only", """
def admit(copies, chat, x, source, kv):
    first = chat.is_done
    copies.wait(chat.record())
    copies.copy(x, source)
    done = copies.record()
    if first:
        done.synchronize()
    chat.wait(done)
    prefill(chat, kv, x)
"""),
            ("prefill covers one number (n = 1)", """
def admit(copies, chat, x, source, kv):
    copies.wait(chat.record())
    copies.copy(x, source)
    chat.wait(copies.record())
    chat.launch(kernels["prefill"], kv, x, np.int32(1), np.int64(BLOCK_US * US), grid=BLOCKS_PER_SM * 8 * gpu.sm_count, block=1024)
"""),
            ("prefill in a stream of its own: chat does nothing, its event says nothing", """
late = gpu.create_stream(name="late")
def admit(copies, chat, x, source, kv):
    copies.wait(late.record())
    copies.copy(x, source)
    late.wait(copies.record())
    prefill(late, kv, x)
"""),
        ],
        "count": [
            ("a guard that is never left", """
def count(decode, counts, state):
    gs.CallerStreamGuard(decode).__enter__()
    library_count(counts, state)
"""),
            ("a guard that is open from one token to the next", """
guards = []
def count(decode, counts, state):
    if guards:
        guards.pop().__exit__(None, None, None)
    else:
        guards.append(gs.CallerStreamGuard(decode))
        guards[-1].__enter__()
    with gs.CallerStreamGuard(decode):
        library_count(counts, state)
"""),
            ("no library is called", """
def count(decode, counts, state):
    library_calls.append(state) if hasattr(library_calls, "append") else library_calls()
    work("count", decode, counts, state, *COUNT)
"""),
            ("the first token is counted elsewhere", """
calls = []
def count(decode, counts, state):
    calls.append(1)
    with gs.CallerStreamGuard(decode):
        library_count(counts if len(calls) % 2 == 0 else numbers(), state)
"""),
        ],
        "report": [
            ("a kernel of 1 ms first, and waits for that", """
def report(decode, counts, page):
    gs.workloads.Step(gpu, 1000, name='pad').execute(stream=decode)
    decode.copy(page, counts)
    decode.synchronize()
    return float(page[0])
"""),
            ("the state of the caller is copied, one is added; counts is not read", """
import sys
def report(decode, counts, page):
    frame = sys._getframe()
    while "state" not in frame.f_locals: frame = frame.f_back
    decode.copy(page, frame.f_locals["state"])
    decode.synchronize()
    return float(page[0]) + 1
"""),
        ],
        "slo": [
            ("prefill of one block of 1 µs, no priority",
             "prefill(chat, kv, x)", 'work("prefill", chat, kv, x, 1, 1)', ", priority=-5", ""),
            ("no library counts",
             "library_count(counts, state)", 'work("count", decode, counts, state, *COUNT)'),
            ("layers of 0 µs on 1 SM",
             "layer(decode, state)", 'work("layer", decode, state, state, 0, 1)', "least,", "8,"),
            ("reports are what the host knows; the count goes to nowhere",
             "library_count(counts, state)", "library_count(numbers(), state)",
             """
def report(decode, counts, page):
    decode.copy(page, counts)
    decode.synchronize()
    return float(page[0])
""", """
told = []
def report(decode, counts, page):
    told.append(1)
    return LAYERS * (16 * ((len(told) - 1) % 9) + 17) + 1
"""),
            ("documents are not read: batch is a stream whose launches do nothing",
             """
    return part.create_stream(name="chat", priority=-5), part.create_stream(name="batch")
""", """
    chat, batch = part.create_stream(name="chat"), part.create_stream(name="batch")
    batch.launch = lambda *a, **k: None
    return chat, batch
"""),
            ("prefill in a stream of its own behind documents: chat.record() is done at once",
             "chat.", "late[-1].", "prefill(chat,", "prefill(late[-1],", """
def queues(part):
    return part.create_stream(name="chat", priority=-5), part.create_stream(name="batch")
""", """
late = []
def queues(part):
    late.append(part.create_stream(name='late'))
    return part.create_stream(name="chat"), part.create_stream(name="batch")
"""),
            ("the prompt is copied in a stream of admit's own, and prefill is one block",
             """
    copies.wait(chat.record())
    copies.copy(x, source)
    chat.wait(copies.record())
    prefill(chat, kv, x)
""", """
    with gpu.create_stream(name='own') as own:
        own.copy(kv, source)
    work("prefill", chat, kv, kv, 1, 1)
""", ", priority=-5", ""),
        ],
        "stage": [
            ("fills from the first number", """
def stage(prompt, page, read):
    read.synchronize()
    page[:] = prompt[0]
    return page
"""),
            ("waits for the other page, too, while copies has nothing else", """
used = []
def stage(prompt, page, read):
    for event in used[-1:]:
        if len(used) % 4 != 3:
            event.synchronize()
    used.append(read)
    read.synchronize()
    page[:] = prompt
    return page
"""),
            ("waits with a time limit: goes on after 1,000 questions", """
def stage(prompt, page, read):
    for _ in range(200):
        if read.is_done: break
    page[:] = prompt
    return page
"""),
            ("sleeps instead of a wait for the second use of a page: known only by one question later", """
def stage(prompt, page, read):
    gpu.backend.wait_until_ns(gpu.now_ns() + 200_000)
    read.is_done
    page[:] = prompt
    return page
"""),
        ],
        "step": [
            ("a wait in each step",
             "graph.launch(stream=decode)", "(graph.launch(stream=decode), decode.synchronize())"),
            ("an event in each step",
             "graph.launch(stream=decode)", "(decode.record(), graph.launch(stream=decode))"),
            ("a host function in between", """
def make_step(decode, state, token):
    with decode.capture(name="step") as graph:
        for _ in range(LAYERS):
            layer(decode, state)
        decode.copy(token, state)
    return lambda: (decode.host_call(lambda: None), graph.launch(stream=decode))
"""),
            ("token copied of one number", """
def make_step(decode, state, token):
    with decode.capture(name="step") as graph:
        for _ in range(LAYERS):
            layer(decode, state)
        decode.copy(token[:1], state[:1])
    return lambda: graph.launch(stream=decode)
"""),
            ("captured anew in every other step", """
def make_step(decode, state, token):
    made = []
    def step():
        if len(made) % 2 == 0:
            with decode.capture(name="step") as graph:
                for _ in range(LAYERS):
                    layer(decode, state)
                decode.copy(token, state)
            made.append(graph)
        else:
            made.append(made[-1])
        made[-1].launch(stream=decode)
    return step
"""),
            ("a step calls the graph, and layers beside it without work", """
def make_step(decode, state, token):
    graphs = []
    def step():
        if len(graphs) < 2:
            with decode.capture(name="step") as graph:
                for _ in range(LAYERS):
                    layer(decode, state)
                decode.copy(token, state)
            graphs.append(graph)
        graphs[-1].launch(stream=decode)
    return step
"""),
            ("layers that cover no number (n = 0)", """
def make_step(decode, state, token):
    with decode.capture(name="step") as graph:
        for _ in range(LAYERS):
            decode.launch(kernels["layer"], state, state, np.int32(0), np.int64(8 * US), grid=48, block=1024)
        decode.copy(token, state)
    return lambda: graph.launch(stream=decode)
"""),
            ("layers of one block in place of 48", """
def make_step(decode, state, token):
    with decode.capture(name="step") as graph:
        for _ in range(LAYERS):
            work("layer", decode, state, state, 8, 1)
        decode.copy(token, state)
    return lambda: graph.launch(stream=decode)
"""),
        ],
    },
}  # fmt: skip

REFUSED: Answers = {
    "01": {
        "timer": [
            ("both moments since an event of another stream", """
def gpu_time_ns(stream, handle):
    with gpu.create_stream() as other:
        base = other.record()
    first = stream.record()
    handle.execute(stream=stream)
    second = stream.record()
    second.synchronize()
    return second.elapsed_ns(since=base) - first.elapsed_ns(since=base)
"""),
            ("the negative of the time back",
             "second.elapsed_ns(since=first)", "-first.elapsed_ns(since=second)"),
        ],
    },
    "02": {
        "cuda": [
            ("cudaLaunchKernelExC-free: dim3 braces and comments inside <<< >>>", r'''
LAUNCH_ALL = r"""
void launch_all(cudaStream_t s, cudaStream_t t, cudaStream_t u) {
  a<<<dim3{1}, dim3{32, 1, 1}, 0 /* shared */, s>>>();
  b <<< 1, 32, 0, t >>> ();
  c<<<
    1, 32,
    0, u
  >>>();
}
"""
'''),
            ("an array of kernels, launched with <<< >>>", r'''
LAUNCH_ALL = r"""
void launch_all(cudaStream_t s, cudaStream_t t, cudaStream_t u) {
  void (*kernels[])() = {a, b, c};
  cudaStream_t streams[] = {s, t, u};
  for (int i = 0; i < 3; ++i) kernels[i]<<<1, 32, 0, streams[i]>>>();
}
"""
'''),
            ("launch written over several lines", r'''
LAUNCH_ALL = r"""
void launch_all(cudaStream_t s, cudaStream_t t, cudaStream_t u) {
  a<<<1, 32, 0, s>>>();
  b<<<1, 32, 0, t>>>();
  c<<<
    1, 32, 0, u
  >>>();
}
"""
'''),
            ("a comment with <<< before a launch", r'''
LAUNCH_ALL = r"""
void launch_all(cudaStream_t s, cudaStream_t t, cudaStream_t u) {
  // the fourth argument of a<<<...>>> is the stream; here: (s)
  a<<<1, 32, 0, s>>>();  // not <<<1, 32>>>
  b<<<1, 32, 0, t>>>();
  /* c<<<1, 32>>>(); would be the default stream */
  c<<<1, 32, 0, u>>>();
}
"""
'''),
            ("a kernel through parentheses", r'''
LAUNCH_ALL = r"""
void launch_all(cudaStream_t s, cudaStream_t t, cudaStream_t u) {
  (a)<<<1, 32, 0, s>>>(); (*b)<<<1, 32, 0, t>>>(); c<<<1, 32, 0, u>>>();
}
"""
'''),
            ("a comment above the launches", r'''
LAUNCH_ALL = r"""
void launch_all(cudaStream_t s, cudaStream_t t, cudaStream_t u) {
  // a<<<grid, block>>> launches one kernel
  a<<<1, 32, 0, s>>>(); b<<<1, 32, 0, t>>>(); c<<<1, 32, 0, u>>>();
}
"""
'''),
            ("a struct that holds its kernel", r'''
LAUNCH_ALL = r"""
struct Job { void (*kernel)(); cudaStream_t stream; };
void launch_all(cudaStream_t s, cudaStream_t t, cudaStream_t u) {
  for (Job job : {Job{a, s}, Job{b, t}, Job{c, u}}) job.kernel<<<1, 32, 0, job.stream>>>();
}
"""
'''),
        ],
        "pytorch": [
            ("torch.cuda.Stream(priority=-1)", """
def launch_all_in_pytorch(torch, a, b, c, s, t, u):
    for function, stream in ((a, torch.cuda.Stream(priority=-1)), (b, t), (c, u)):
        with torch.cuda.stream(stream):
            function()
"""),
            ("streams as context managers (torch.Stream, PyTorch 2.7)", """
def launch_all_in_pytorch(torch, a, b, c, s, t, u):
    for function, stream in ((a, s), (b, t), (c, u)):
        with stream:
            function()
"""),
        ],
    },
    "03": {
        "pytorch": [
            ("Event(blocking=True)", """
def diamond_in_pytorch(torch, first, left, right, last, s, t):
    written, done = torch.cuda.Event(blocking=True), torch.cuda.Event(enable_timing=False, blocking=False)
    with torch.cuda.stream(s):
        first(); written.record(); left()
    with torch.cuda.stream(t):
        written.wait(); right(); done.record()
    with torch.cuda.stream(s):
        done.wait(); last()
"""),
            ("stream(None) keeps the current stream", """
def diamond_in_pytorch(torch, first, left, right, last, s, t):
    with torch.cuda.stream(s):
        with torch.cuda.stream(None): first()
        t.wait_stream(s); left()
    with torch.cuda.stream(t): right()
    s.wait_stream(t)
    with torch.cuda.stream(s): last()
"""),
        ],
    },
    "07": {
        "pairs": [
            ("two handles, a graph for each stream", """
def four_calls(gpu, streams, kernel_ns):
    four_calls.kept = kept = []
    for stream in streams:
        handle = Spin(gpu, duration_ns=kernel_ns, name="four")
        with stream.capture() as graph:
            handle.execute(stream=stream)
            handle.execute(stream=stream)
        kept.append((handle, graph, stream))
    for _, graph, stream in kept:
        graph.launch(stream=stream)
    for _, _, stream in kept:
        stream.synchronize()
    return kept[0][0]
"""),
        ],
        "first": [
            ("later is a graph", """
def first_result(job, later, stream):
    with stream.capture() as graph:
        later.execute(stream=stream)
    first_result.kept = graph
    job.execute(stream=stream)
    graph.launch(stream=stream)
    job.completion.wait()
"""),
        ],
    },
    "08": {
        "serve": [
            ("a deque of answers", "answers = []", "from collections import deque\n    answers = deque()"),
        ],
        "pytorch": [
            ("capture_error_mode, as PyTorch has it", """
def capture_both_in_pytorch(torch, one, two, s, t):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=s, capture_error_mode="thread_local"):
        t.wait_stream(s)
        one()
        with torch.cuda.stream(t):
            two()
        s.wait_stream(t)
    return graph
"""),
        ],
    },
    "10": {
        "export": [
            ("JSON: no ids, an array of events", _of_events(
                "e.get('args', {}).pop('id', None)", "Path(a).write_text(json.dumps(events))")),
            ("Perfetto's own format", """
def hand_over(trace, folder):
    return gs.export(trace, folder / "it.pftrace"), gs.export(trace, folder / "it.parquet")
"""),
        ],
    },
    "12": {
        "feed": [
            ("a stream for each buffer", """
def feed(load, compute, chunks, staging, on_gpu, out):
    read = [None, None]
    for i, chunk in enumerate(chunks):
        b = i % 2
        stream = (load, compute)[b]
        if read[b]:
            read[b].synchronize()
        staging[b][:] = chunk
        stream.copy(on_gpu[b], staging[b])
        read[b] = stream.record()
        process(stream, out[i], on_gpu[b])
"""),
            ("two chunks first, then the others", """
def feed(load, compute, chunks, staging, on_gpu, out):
    uploaded = [gpu.create_event() for _ in range(2)]
    computed = [gpu.create_event() for _ in range(2)]
    def put(i):
        b = i % 2
        staging[b][:] = chunks[i]
        load.wait(computed[b])
        load.copy(on_gpu[b], staging[b])
        load.record(uploaded[b])
    put(0)
    put(1)
    for i in range(len(chunks)):
        b = i % 2
        compute.wait(uploaded[b])
        process(compute, out[i], on_gpu[b])
        compute.record(computed[b])
        if i + 2 < len(chunks):
            uploaded[b].synchronize()
            put(i + 2)
"""),
        ],
    },
    "14": {
        "report": [
            ("a stream that waits for decode", """
reader = gpu.create_stream(name="reader")
def report(decode, counts, page):
    decode.copy(page, counts)
    reader.wait(decode.record())
    reader.synchronize()
    return float(page[0])
"""),
            ("a stream of its own, behind decode", """
own = gpu.create_stream(name="own")
def report(decode, counts, page):
    own.wait(decode.record())
    own.copy(page, counts)
    own.synchronize()
    return float(page[0])
"""),
        ],
        "admit": [
            ("the upload in two halves", """
def admit(copies, chat, x, source, kv):
    copies.wait(chat.record())
    for half in (slice(None, PROMPT // 2), slice(PROMPT // 2, None)):
        copies.copy(x[half], source[half])
    chat.wait(copies.record())
    prefill(chat, kv, x)
"""),
        ],
    },
}  # fmt: skip
