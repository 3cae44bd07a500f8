"""Small programs on a simulated GPU, each with one performance fault planted, and two with none.

``PROGRAMS[name].run(mended=False)`` records one on a fresh device and returns its trace. The line at fault
is marked ``# FAULT``; ``Program.lines`` are those lines' numbers. They were written by somebody who
knew neither the rules of ``gpuscope why`` nor its tests.
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import gpuscope as gs
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.device.ranks import Meeting, Ranks
from gpuscope.trace import Trace
from gpuscope.workloads import Collective, Copy, Softmax

SMS = 132


@dataclass(frozen=True)
class Program:
    name: str
    fault: str
    mend: str
    run: Callable[[bool], Trace]
    lines: tuple[int, ...]  # of this file, where the fault is


PROGRAMS: dict[str, Program] = {}


def program(fault: str, mend: str):
    def add(function):
        text, first = inspect.getsourcelines(function)
        lines = tuple(first + i for i, line in enumerate(text) if "# FAULT" in line)
        name = function.__name__
        PROGRAMS[name] = Program(name, fault, mend, function, lines)
        return function

    return add


def open_gpu():
    return gs.open_device("sim:h200", quiet=True)


def kernel(gpu, name, block_us, *, share=1.0):
    """A kernel whose blocks compute for so long each; a block has an SM, or a share of one."""
    model = KernelModel(
        lambda _gpu, grid, _args, _sms: KernelCost(grid, round(block_us * 1e3), share=share)
    )
    return gpu.compile(f'extern "C" __global__ void {name}() {{}}', name, model=model)


def elementwise(gpu, name, mb):
    """A kernel that memory bandwidth limits: it reads and writes so many MB."""
    model = KernelModel(lambda gpu_, _grid, _args, sms: gpu_.copy_cost(int(mb * 1e6), sms))
    return gpu.compile(f'extern "C" __global__ void {name}() {{}}', name, model=model)


def python(gpu, us):
    """What Python computes meanwhile: the simulated host's clock goes on."""
    gpu.backend.wait_until_ns(gpu.now_ns() + round(us * 1e3))


# -- the programs ---------------------------------------------------------------------------
@program(
    "The host waits for the compute stream in every step to read the loss, so that the GPU runs dry until the next launch.",
    "Read the losses once, after the last step.",
)
def finetune_small(mended):
    gpu = open_gpu()
    stream = gpu.create_stream(name="train")
    embed, adam = kernel(gpu, "embedding_gather", 19), elementwise(gpu, "fused_adam", 120)
    forward = gs.Gemm(gpu, m=3072, n=4096, k=2048, dtype="bfloat16", name="forward")
    grad_x = gs.Gemm(gpu, m=3072, n=2048, k=4096, dtype="bfloat16", name="grad_x")
    grad_w = gs.Gemm(gpu, m=4096, n=2048, k=3072, dtype="bfloat16", name="grad_w")
    for gemm in (forward, grad_x, grad_w):
        gemm.operands()
    loss, losses = gpu.empty(1), gpu.empty_pinned((60, 1))
    with gs.profile(gpu) as recording:
        for step in range(60):
            with gs.annotate(f"step {step}"):
                stream.launch(embed, grid=2 * SMS, block=512)
                forward.execute(stream=stream)
                stream.copy(losses[step], loss)
                grad_x.execute(stream=stream)
                grad_w.execute(stream=stream)
                stream.launch(adam, grid=4 * SMS, block=512)
                if not mended:
                    stream.synchronize()  # FAULT
                python(gpu, 40)  # the progress bar, in any case
        stream.synchronize()
    return recording.trace


@program(
    "Image batches are copied from pageable host memory: the copy is slow and holds the host, which launches the kernels late.",
    "Decode into page-locked memory.",
)
def classify_images(mended):
    gpu = open_gpu()
    compute, upload = gpu.create_stream(name="compute"), gpu.create_stream(name="upload")
    names = ("normalize", 35), ("conv1", 110), ("conv2", 150), ("conv3", 125), ("pool_fc", 60)
    layers = [kernel(gpu, name, us) for name, us in names]
    shape = (56, 224, 224, 3)
    if mended:
        host = [gpu.empty_pinned(shape, "uint8") for _ in range(2)]
    else:
        host = [np.zeros(shape, "uint8") for _ in range(2)]
    device = [gpu.empty(shape, "uint8") for _ in range(2)]
    free = [None, None]
    with gs.profile(gpu) as recording:
        for batch in range(36):
            slot = batch % 2
            if free[slot] is not None:
                upload.wait(free[slot])
            upload.copy(device[slot], host[slot])  # FAULT: host is pageable
            compute.wait(upload.record(timing=False))
            for layer in layers:
                compute.launch(layer, grid=SMS, block=1024)
            free[slot] = compute.record(timing=False)
    return recording.trace


@program(
    "Frames are copied up and down in the stream of the kernels, which never run beside a copy.",
    "Copy in streams of their own, with two buffers and events.",
)
def denoise_video(mended):
    gpu = open_gpu()
    compute = gpu.create_stream(name="compute")
    up, down = (
        (gpu.create_stream(name="up"), gpu.create_stream(name="down"))
        if mended
        else (compute, compute)
    )  # FAULT
    temporal, spatial = kernel(gpu, "temporal_filter", 48), kernel(gpu, "spatial_filter", 90)
    sharpen = elementwise(gpu, "sharpen", 25)
    shape = (2160, 3840, 1)
    source, result = (gpu.empty_pinned(shape, "uint8") for _ in range(2))
    frames = [(gpu.empty(shape, "uint8"), gpu.empty(shape, "uint8")) for _ in range(2)]
    computed, fetched = [None, None], [None, None]
    with gs.profile(gpu) as recording:
        for number in range(40):
            slot = number % 2
            taken, made = frames[slot]
            if mended and computed[slot]:
                up.wait(computed[slot])
                compute.wait(fetched[slot])
            up.copy(taken, source)
            if mended:
                compute.wait(up.record(timing=False))
            compute.launch(temporal, grid=3 * SMS, block=256)
            compute.launch(spatial, grid=SMS, block=1024)
            compute.launch(sharpen, grid=4 * SMS, block=512)
            if mended:
                computed[slot] = compute.record(timing=False)
                down.wait(computed[slot])
            down.copy(result, made)
            if mended:
                fetched[slot] = down.record(timing=False)
    return recording.trace


@program(
    "Kernel update_metrics runs on the legacy default stream after each model, which serialises the blocking streams of detector and tracker.",
    "Launch it on a non-blocking stream, behind an event of each model.",
)
def detect_and_track(mended):
    gpu = open_gpu()
    detector = gpu.create_stream(name="detector", blocking=True)
    tracker = gpu.create_stream(name="tracker", blocking=True)
    metrics = (
        gpu.create_stream(name="metrics") if mended else gpu.wrap_stream(1, name="legacy default")
    )
    backbone, head = kernel(gpu, "backbone", 210), kernel(gpu, "box_head", 120)
    predict, match = kernel(gpu, "kalman_predict", 140), kernel(gpu, "match_boxes", 165)
    update = kernel(gpu, "update_metrics", 8)
    with gs.profile(gpu) as recording:
        for frame in range(45):
            with gs.annotate(f"frame {frame}"):
                detector.launch(backbone, grid=72, block=512)
                detector.launch(head, grid=64, block=512)
                if mended:
                    metrics.wait(detector.record(timing=False))
                metrics.launch(update, grid=2, block=256)  # FAULT
                tracker.launch(predict, grid=40, block=512)
                tracker.launch(match, grid=52, block=256)
                if mended:
                    metrics.wait(tracker.record(timing=False))
                metrics.launch(update, grid=2, block=256)  # FAULT
    return recording.trace


@program(
    "Partition chat has 24 SMs, on which kernels of 96 thread blocks run in four waves, while most of the 108 SMs of embed idle.",
    "Give chat 96 SMs, and embed the other 36, which are enough for its 32 blocks.",
)
def chat_beside_embedding(mended):
    gpu = open_gpu()
    attention, mlp = kernel(gpu, "paged_attention", 55), kernel(gpu, "gated_mlp", 70)
    sample, encode = kernel(gpu, "sample_token", 30), kernel(gpu, "encode_text", 130)
    with gpu.carve({"chat": 96 if mended else 24, "embed": "rest"}) as parts:  # FAULT
        chat = parts["chat"].create_stream(name="chat")
        embed = parts["embed"].create_stream(name="embed")
        with gs.profile(gpu) as recording:
            for token in range(48):
                chat.launch(attention, grid=96, block=512)
                chat.launch(mlp, grid=96, block=512)
                chat.launch(sample, grid=8, block=256)
                if token % 2 == 0:
                    embed.launch(encode, grid=32, block=512)
    return recording.trace


@program(
    "The towers of users and items, neither of which fills half of the GPU, follow each other in one stream though they are independent.",
    "Run the items' tower in a second stream, and join before the scores.",
)
def rank_items(mended):
    gpu = open_gpu()
    users = gpu.create_stream(name="main")
    items = gpu.create_stream(name="items") if mended else users  # FAULT
    user_tower = [kernel(gpu, f"user_layer_{i}", us) for i, us in enumerate((95, 180, 140, 75))]
    item_tower = [kernel(gpu, f"item_layer_{i}", us) for i, us in enumerate((160, 120, 190))]
    scores = kernel(gpu, "dot_scores", 28)
    with gs.profile(gpu) as recording:
        for request in range(40):
            with gs.annotate(f"request {request}"):
                if mended:
                    items.wait(users.record(timing=False))
                for layer in user_tower:
                    users.launch(layer, grid=60, block=512)
                for layer in item_tower:
                    items.launch(layer, grid=66, block=512)
                if mended:
                    users.wait(items.record(timing=False))
                users.launch(scores, grid=SMS, block=1024)
    return recording.trace


@program(
    "Each third token's kernels wait behind prefill_chunk, which fills the GPU for 1 ms and is of no hurry: decode has no priority.",
    "Give the decode stream a higher priority, so that its blocks get the SMs that prefill's blocks leave.",
)
def decode_beside_prefill(mended):
    gpu = open_gpu()
    prefill = gpu.create_stream(name="prefill")
    decode = gpu.create_stream(name="decode", priority=-5 if mended else 0)  # FAULT
    chunk = kernel(gpu, "prefill_chunk", 50)
    attention, mlp = kernel(gpu, "decode_attention", 34), kernel(gpu, "decode_mlp", 42)
    token_id, seen = gpu.empty(8, "int32"), gpu.empty_pinned(8, "int32")
    with gs.profile(gpu) as recording:
        for token in range(60):
            if token % 3 == 0:
                prefill.launch(chunk, grid=20 * SMS, block=1024)
            decode.launch(attention, grid=16, block=256)
            decode.launch(mlp, grid=24, block=256)
            decode.copy(seen, token_id)
            decode.synchronize()  # needed: the token goes to the client, and decides what comes next
            python(gpu, 25)
    return recording.trace


@program(
    "Stream features waits for the acoustic model's latest step, though with two buffers only the step before must be done.",
    "Wait for the event of the step that last used the buffer.",
)
def transcribe(mended):
    gpu = open_gpu()
    features, acoustic = gpu.create_stream(name="features"), gpu.create_stream(name="acoustic")
    spectrum, filters = kernel(gpu, "stft", 150), kernel(gpu, "mel_filters", 120)
    encoder = [kernel(gpu, f"encoder_{i}", us) for i, us in enumerate((130, 170, 145))]
    done = deque(maxlen=2)
    with gs.profile(gpu) as recording:
        for _ in range(44):
            if len(done) == 2:
                features.wait(done[0] if mended else done[1])  # FAULT: done[0] would be enough
            features.launch(spectrum, grid=44, block=256)
            features.launch(filters, grid=36, block=512)
            acoustic.wait(features.record(timing=False))
            for layer in encoder:
                acoustic.launch(layer, grid=84, block=1024)
            done.append(acoustic.record(timing=False))
    return recording.trace


@program(
    "Each token launches 26 kernels of 3 to 12 µs one by one: the host is slower than the GPU.",
    "Capture them once, and launch the graph for each token.",
)
def decode_tiny_model(mended):
    gpu = open_gpu()
    stream = gpu.create_stream(name="decode")
    shapes = (
        ("rms_norm", 3, 4),
        ("qkv", 9, 48),
        ("rope", 3, 16),
        ("attn", 12, 32),
        ("proj", 7, 40),
        ("mlp", 11, 96),
    )
    layer = [(kernel(gpu, name, us), grid) for name, us, grid in shapes]
    logits, sample = kernel(gpu, "logits", 12), kernel(gpu, "argmax", 5)

    def token():
        for part, grid in layer * 4:
            stream.launch(part, grid=grid, block=256)  # FAULT
        stream.launch(logits, grid=120, block=256)
        stream.launch(sample, grid=1, block=512)

    token()
    if mended:
        with stream.capture(name="token") as graph:
            token()
    stream.synchronize()
    with gs.profile(gpu) as recording:
        for i in range(30):
            with gs.annotate(f"token {i}"):
                if mended:
                    graph.launch(stream=stream)
                else:
                    token()
    return recording.trace


@program(
    "Python builds statistics for 950 µs after each step's launches; the GPU has worked off all of them before and idles.",
    "Build them faster: 60 µs.",
)
def train_with_statistics(mended):
    gpu = open_gpu()
    stream = gpu.create_stream(name="train")
    gemms = [
        gs.Gemm(gpu, m=m, n=2048, k=4096, dtype="bfloat16", name=f"layer{i}")
        for i, m in enumerate((4096, 3072, 6144))
    ]
    for gemm in gemms:
        gemm.operands()
    norm, update = elementwise(gpu, "layer_norm", 140), elementwise(gpu, "sgd_update", 260)

    def statistics():
        python(gpu, 60 if mended else 950)  # FAULT

    with gs.profile(gpu) as recording:
        for _ in range(34):
            for gemm in gemms:
                gemm.execute(stream=stream)
                stream.launch(norm, grid=2 * SMS, block=512)
            stream.launch(update, grid=4 * SMS, block=512)
            statistics()
    return recording.trace


@program(
    "The host function write_log runs 420 µs in the compute stream after each step, and holds the kernels behind it.",
    "Run it in a stream of its own, behind an event.",
)
def simulate_fluid(mended):
    gpu = open_gpu()
    stream = gpu.create_stream(name="solver")
    logging = gpu.create_stream(name="log") if mended else stream  # FAULT
    advect, pressure = elementwise(gpu, "advect", 330), kernel(gpu, "pressure_jacobi", 62)
    project = elementwise(gpu, "project", 210)
    residual, on_host = gpu.empty(64), gpu.empty_pinned(64)

    def write_log():
        python(gpu, 420)

    with gs.profile(gpu) as recording:
        for step in range(30):
            with gs.annotate(f"time step {step}"):
                stream.launch(advect, grid=4 * SMS, block=512)
                for _ in range(3):
                    stream.launch(pressure, grid=2 * SMS, block=1024)
                stream.launch(project, grid=4 * SMS, block=512)
                stream.copy(on_host, residual)
                if mended:
                    logging.wait(stream.record(timing=False))
                logging.host_call(write_log)
    return recording.trace


@program(
    "Two workspaces are allocated and freed in every step as by cudaMalloc and cudaFree, each of which waits for the whole device.",
    "Allocate them once, before the loop.",
)
def solve_batches(mended):
    gpu = open_gpu()
    stream = gpu.create_stream(name="solver")
    factor, solve = kernel(gpu, "batched_lu", 105), kernel(gpu, "batched_trsm", 85)
    refine, norms = kernel(gpu, "refine", 70), elementwise(gpu, "residual_norms", 60)
    kept = [gpu.scratch(nbytes) for nbytes in (96 << 20, 24 << 20)] if mended else []
    with gs.profile(gpu) as recording:
        for batch in range(40):
            with gs.annotate(f"batch {batch}"):
                pivots = kept[0] if mended else gpu.scratch(96 << 20)  # FAULT
                stream.launch(factor, pivots.array, grid=SMS, block=1024)
                stream.launch(solve, pivots.array, grid=SMS, block=1024)
                if not mended:
                    pivots.close()  # FAULT
                rests = kept[1] if mended else gpu.scratch(24 << 20)  # FAULT
                stream.launch(refine, rests.array, grid=SMS, block=1024)
                stream.launch(norms, rests.array, grid=4 * SMS, block=512)
                if not mended:
                    rests.close()  # FAULT
    for workspace in kept:
        workspace.close()
    return recording.trace


@program(
    "Kernel segment_sum has 10 thread blocks, so that 122 of 132 SMs idle for 340 µs of every step.",
    "Sum in 132 blocks, of 26 µs each.",
)
def train_graph_network(mended):
    gpu = open_gpu()
    stream = gpu.create_stream(name="gnn")
    gather, message = elementwise(gpu, "gather_edges", 190), kernel(gpu, "message_mlp", 88)
    segment_sum = kernel(gpu, "segment_sum", 340 * 10 / SMS if mended else 340)
    update = gs.Gemm(gpu, m=8192, n=1024, k=2048, dtype="float16", name="node_update")
    update.operands()
    with gs.profile(gpu) as recording:
        for _ in range(50):
            stream.launch(gather, grid=4 * SMS, block=512)
            stream.launch(message, grid=2 * SMS, block=1024)
            stream.launch(segment_sum, grid=SMS if mended else 10, block=256)  # FAULT
            update.execute(stream=stream)
    return recording.trace


@program(
    "The vocabulary projection is a product of float32, ten times slower than one of bfloat16 as all others are.",
    "Make it bfloat16.",
)
def language_model_forward(mended):
    gpu = open_gpu()
    stream = gpu.create_stream(name="model")
    attention = kernel(gpu, "flash_attention", 140)
    up = gs.Gemm(gpu, m=2048, n=8192, k=2048, dtype="bfloat16", name="mlp_up")
    down = gs.Gemm(gpu, m=2048, n=2048, k=8192, dtype="bfloat16", name="mlp_down")
    dtype = "bfloat16" if mended else "float32"  # FAULT
    vocabulary = gs.Gemm(gpu, m=2048, n=8192, k=1024, dtype=dtype, name="vocabulary")
    for gemm in (up, down, vocabulary):
        gemm.operands()
    with gs.profile(gpu) as recording:
        for batch in range(25):
            with gs.annotate(f"batch {batch}"):
                for _ in range(2):
                    stream.launch(attention, grid=SMS, block=1024)
                    up.execute(stream=stream)
                    down.execute(stream=stream)
                vocabulary.execute(stream=stream)
    return recording.trace


@program(
    "The server polls the event of a request each 900 µs, and sees late that the answer is there.",
    "Wait for the event with synchronize().",
)
def answer_requests(mended):
    gpu = open_gpu()
    stream = gpu.create_stream(name="requests")
    encode, score, top = (
        kernel(gpu, "encode_query", 130),
        kernel(gpu, "score_passages", 185),
        kernel(gpu, "top_k", 45),
    )
    query, on_device = gpu.empty_pinned(1 << 17), gpu.empty(1 << 17)
    found, answer = gpu.empty(256), gpu.empty_pinned(256)
    with gs.profile(gpu) as recording:
        for _ in range(50):
            stream.copy(on_device, query)
            stream.launch(encode, grid=SMS, block=512)
            stream.launch(score, grid=2 * SMS, block=1024)
            stream.launch(top, grid=64, block=256)
            stream.copy(answer, found)
            answered = stream.record(timing=False)
            if mended:
                answered.synchronize()
            while not answered.is_done:
                python(gpu, 900)  # FAULT: time.sleep(0.0009)
            python(gpu, 30)  # sends the answer
    return recording.trace


@program(
    "gpu.synchronize() after each request waits for rebuild_index, too: a kernel of 2.7 ms in another stream that no answer needs.",
    "Wait for the stream of the request only.",
)
def search_while_indexing(mended):
    gpu = open_gpu()
    search, index = gpu.create_stream(name="search"), gpu.create_stream(name="index")
    probe, distances = kernel(gpu, "probe_lists", 160), kernel(gpu, "distances", 240)
    rebuild = kernel(gpu, "rebuild_index", 2700)
    with gs.profile(gpu) as recording:
        for request in range(48):
            with gs.annotate(f"request {request}"):
                if request % 6 == 0:
                    index.launch(rebuild, grid=28, block=512)
                search.launch(probe, grid=48, block=256)
                search.launch(distances, grid=100, block=512)
                if mended:
                    search.synchronize()
                else:
                    gpu.synchronize()  # FAULT
                python(gpu, 20)
    return recording.trace


@program(
    "The thread that launches makes each batch itself (augment, 1.25 ms), longer than the GPU computes: it waits for its input.",
    "Two workers make batches ahead (host functions in streams of their own).",
)
def train_on_augmented(mended):
    gpu = open_gpu()
    compute, upload = gpu.create_stream(name="compute"), gpu.create_stream(name="upload")
    workers = [gpu.create_stream(name=f"worker {i}") for i in range(2)]
    forward, backward = kernel(gpu, "conv_forward", 115), kernel(gpu, "conv_backward", 108)
    adam = elementwise(gpu, "adam", 180)
    host = [gpu.empty_pinned(1 << 20) for _ in range(4)]
    device = [gpu.empty(1 << 20) for _ in range(4)]
    copied, computed = [None] * 4, [None] * 4

    def augment():
        python(gpu, 1250)  # FAULT, as it is called by the main thread

    with gs.profile(gpu) as recording:
        for step in range(32):
            slot, worker = step % 4, workers[step % 2]
            if mended:
                if copied[slot] is not None:
                    worker.wait(copied[slot])
                worker.host_call(augment)
                upload.wait(worker.record(timing=False))
            else:
                with gs.annotate("next(batches)"):
                    if copied[slot] is not None:
                        copied[slot].synchronize()
                    augment()  # FAULT
            if computed[slot] is not None:
                upload.wait(computed[slot])
            upload.copy(device[slot], host[slot])
            copied[slot] = upload.record(timing=False)
            compute.wait(copied[slot])
            compute.launch(forward, grid=2 * SMS, block=1024)
            compute.launch(backward, grid=4 * SMS, block=1024)
            compute.launch(adam, grid=4 * SMS, block=512)
            computed[slot] = compute.record(timing=False)
    return recording.trace


@program(
    "Rank 2 gets 6144 tokens a step and the others 3072: all wait for it in each all-reduce.",
    "Share the same tokens evenly, 3840 each.",
)
def train_four_ranks(mended):
    meeting, traces = Meeting(4), [None] * 4
    tokens = [3840] * 4 if mended else [3072, 3072, 6144, 3072]  # FAULT

    def rank_main(rank):
        gpu = open_gpu()
        stream = gpu.create_stream(name="train")
        forward = gs.Gemm(gpu, m=tokens[rank], n=4096, k=4096, dtype="bfloat16", name="forward")
        backward = gs.Gemm(gpu, m=tokens[rank], n=4096, k=8192, dtype="bfloat16", name="backward")
        ranks = Ranks(rank, 4, meeting)
        reduce = Collective(
            gpu, "all_reduce", nbytes=32 << 20, dtype="bfloat16", name="gradients", ranks=ranks
        )
        adam = elementwise(gpu, "adam", 150)
        with gs.profile(gpu) as recording:
            for step in range(20):
                with gs.annotate(f"step {step}"):
                    forward.execute(stream=stream)
                    backward.execute(stream=stream)
                    reduce.execute(stream=stream)
                    stream.launch(adam, grid=4 * SMS, block=512)
        traces[rank] = recording.trace.with_metadata(
            clock="of these ranks"
        )  # Collective set them alike
        meeting.leave(rank, "has ended")

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return gs.merge(traces)


@program(
    "A batch goes to the GPU in 40 copies of 64 KiB, one for each feature: the host needs longer for them than the GPU for the step.",
    "Pack the features in one buffer, and copy it once.",
)
def predict_clicks(mended):
    gpu = open_gpu()
    stream = gpu.create_stream(name="predict")
    features = gpu.empty_pinned((40, 1 << 14))
    on_device = gpu.empty((40, 1 << 14))
    lookup, interact = elementwise(gpu, "embedding_lookup", 310), kernel(gpu, "interactions", 85)
    mlp = gs.Gemm(gpu, m=4096, n=2048, k=4096, dtype="float16", name="top_mlp")
    mlp.operands()
    with gs.profile(gpu) as recording:
        for _ in range(30):
            if mended:
                stream.copy(on_device, features)
            else:
                for i in range(40):
                    stream.copy(on_device[i], features[i])  # FAULT
            stream.launch(lookup, grid=4 * SMS, block=512)
            stream.launch(interact, grid=2 * SMS, block=1024)
            mlp.execute(stream=stream)
    return recording.trace


@program(
    "The same step of 11 kernels is captured and instantiated again for every launch of its graph.",
    "Capture once, and launch that graph.",
)
def render_views(mended):
    gpu = open_gpu()
    stream = gpu.create_stream(name="render")
    names = (
        ("project", 12, 132),
        ("sort_keys", 24, 132),
        ("bin_tiles", 9, 64),
        ("blend", 60, 264),
        ("tone_map", 14, 132),
    )
    passes = [(kernel(gpu, name, us), grid) for name, us, grid in names]

    def capture():
        with stream.capture(name="view") as graph:
            for part, grid in passes * 2:
                stream.launch(part, grid=grid, block=256)
            stream.launch(passes[-1][0], grid=132, block=256)
        return graph

    graph = capture()
    with gs.profile(gpu) as recording:
        graphs = []
        for view in range(40):
            with gs.annotate(f"view {view}"):
                if not mended:
                    graph = capture()  # FAULT
                    graphs.append(graph)
                graph.launch(stream=stream)
        stream.synchronize()
    return recording.trace


@program(
    "None: large products and well-shaped kernels keep the GPU busy throughout.",
    "Nothing to mend.",
)
def healthy_training(mended):
    del mended
    gpu = open_gpu()
    stream = gpu.create_stream(name="train")
    sizes = (8192, 4096, 2048), (8192, 2048, 4096), (8192, 6144, 2048)
    gemms = [
        gs.Gemm(gpu, m=m, n=n, k=k, dtype="bfloat16", name=f"gemm{i}")
        for i, (m, n, k) in enumerate(sizes)
    ]
    for gemm in gemms:
        gemm.operands()
    attention, adam = kernel(gpu, "flash_attention", 95), elementwise(gpu, "fused_adam", 400)
    losses, loss = gpu.empty_pinned((30, 1)), gpu.empty(1)
    with gs.profile(gpu) as recording:
        for step in range(30):
            with gs.annotate(f"step {step}"):
                for gemm in gemms:
                    gemm.execute(stream=stream)
                stream.launch(attention, grid=2 * SMS, block=1024)
                stream.copy(losses[step], loss)
                stream.launch(adam, grid=4 * SMS, block=512)
        stream.synchronize()
    return recording.trace


@program(
    "None: memory bandwidth limits the kernels, which keep the GPU busy throughout.",
    "Nothing to mend.",
)
def healthy_bandwidth(mended):
    del mended
    gpu = open_gpu()
    stream = gpu.create_stream(name="columns")
    scan = Copy(gpu, nbytes=640 << 20, name="scan")
    softmax = Softmax(gpu, rows=65536, columns=2048, name="softmax")
    scatter = Copy(gpu, nbytes=384 << 20, name="scatter")
    with gs.profile(gpu) as recording:
        for _ in range(25):
            for work in (scan, softmax, scatter):
                work.execute(stream=stream)
    return recording.trace
