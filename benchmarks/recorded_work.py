"""Programs that are recorded, and who records them: one measured process of
recording_programs.py.

    python benchmarks/recorded_work.py turns PROGRAM SECONDS ROUNDS OUT MODE [MODE ...]
    python benchmarks/recorded_work.py once PROGRAM SECONDS OUT [MODE]

``turns`` runs blocks of so many seconds: each mode once a round, in an order that moves on, a bare
block before each and one behind the last; and some before anything was recorded. ``once`` runs one
block, for who records the process, or in a mode from before the program is made.
The models and their loops are Hugging Face's, with random weights.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import queue
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest import mock

DEVICE = "cuda"
TOKENS = 64
"""Of a text that is generated."""
BATCH, WORDS = 16, 64
"""Texts of a training step, and their lengths."""
CLIENTS, AT_ONCE = 8, 4
"""Of the server: who ask, and how many questions it takes together at most."""
ZEROED_BUFFERS = 5
"""CUpti_ActivityAttribute that promises CUPTI buffers of zeros, which it would fill itself."""
Block = Callable[[float], int]
"""Works for so many seconds; returns how many units it did."""


# -- programs ------------------------------------------------------------------------------
def until(step: Callable[[], int]) -> Block:
    """Return what repeats a step, which tells its units."""
    import torch

    def block(seconds: float) -> int:
        count, end_s = 0, time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            count += step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return count

    return block


def mm() -> Block:
    """``torch.mm`` of 64³; a unit is a launch."""
    import torch

    a, b, out = (torch.randn(64, 64, device=DEVICE) for _ in range(3))

    def step() -> int:
        product = torch.mm
        for _ in range(1000):
            product(a, b, out=out)
        return 1000

    return until(step)


def _decoder(layers: int) -> tuple[Any, Any]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=512,
    )
    model = LlamaForCausalLM(config).to(DEVICE).eval()
    return model.half() if DEVICE == "cuda" else model, config


def decode() -> Block:
    """``generate`` of a small Llama; a unit is a token."""
    import torch

    model, config = _decoder(6)
    prompt = torch.randint(0, config.vocab_size, (1, 16), device=DEVICE)

    @torch.no_grad()
    def step() -> int:
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            min_new_tokens=TOKENS,
            max_new_tokens=TOKENS,
            pad_token_id=0,
        )
        return TOKENS

    return until(step)


def decode_graph() -> Block:
    """A larger Llama with a static cache, a CUDA graph a token; a unit is a token."""
    import torch
    from transformers import StaticCache

    model, config = _decoder(12)
    cache = StaticCache(config=config, max_cache_len=512)
    token = torch.zeros(1, 1, dtype=torch.long, device=DEVICE)
    at = torch.full((1, 1), 16, dtype=torch.long, device=DEVICE)

    @torch.no_grad()
    def forward() -> None:
        logits = model(token, position_ids=at, past_key_values=cache, use_cache=True).logits
        token.copy_(logits[:, -1:].argmax(-1))

    for _ in range(3):
        forward()
    if DEVICE != "cuda":
        return until(lambda: forward() or 1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()

    def step() -> int:
        cache.reset()
        for _ in range(TOKENS):
            graph.replay()
            token.item()  # each token is looked at, as by who stops at the end of a text
        return TOKENS

    return until(step)


def train() -> Block:
    """Steps of a small BERT that is fine-tuned with AdamW; a unit is a step."""
    import torch

    model, config = _encoder(4)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    words = torch.randint(0, config.vocab_size, (BATCH, WORDS), device=DEVICE)
    labels = torch.randint(0, 2, (BATCH,), device=DEVICE)

    def step() -> int:
        loss = model(input_ids=words, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return 1

    return until(step)


def _encoder(layers: int) -> tuple[Any, Any]:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=8192,
        hidden_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=1024,
    )
    return BertForSequenceClassification(config).to(DEVICE), config


def server() -> Block:
    """Threads that ask, and one that answers what has come, together; a unit is an answer."""
    import torch

    model, config = _encoder(2)
    model.eval()
    questions: queue.SimpleQueue[tuple[Any, Future[int]]] = queue.SimpleQueue()

    @torch.no_grad()
    def answer() -> None:
        while True:
            asked = [questions.get()]
            while len(asked) < AT_ONCE and not questions.empty():
                asked.append(questions.get())
            words = torch.stack([text for text, _ in asked]).to(DEVICE)
            found = model(input_ids=words).logits.argmax(-1).tolist()
            for (_, future), label in zip(asked, found, strict=True):
                future.set_result(label)

    threading.Thread(target=answer, daemon=True).start()

    def block(seconds: float) -> int:
        end_s = time.perf_counter() + seconds
        counts = [0] * CLIENTS

        def ask(number: int) -> None:
            text = torch.randint(0, config.vocab_size, (WORDS,))
            while time.perf_counter() < end_s:
                future: Future[int] = Future()
                questions.put((text, future))
                future.result()
                counts[number] += 1

        clients = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        return sum(counts)

    return block


PROGRAMS: dict[str, Callable[[], Block]] = {
    "mm": mm,
    "decode": decode,
    "decode_graph": decode_graph,
    "train": train,
    "server": server,
}


# -- recorders -----------------------------------------------------------------------------
class BareCupti:
    """CUPTI's activity records in the least that a client can do: buffers are given back unread.

    Parameters
    ----------
    apis
        Whether API calls are recorded by CUPTI, too, as launch ids need.
    graphs
        Whether launches of graphs are recorded whole; only of those instantiated meanwhile.
    callback
        Whether a C function that does nothing is called around each call that gpuscope notes.
    """

    def __init__(self, *, apis: bool, graphs: bool = False, callback: bool = False) -> None:
        from gpuscope._libcupti import library_path
        from gpuscope.record.cupti import collector, layout
        from gpuscope.record.cupti import library as api

        self._c = ctypes.CDLL(str(library_path()))
        more = (layout.RUNTIME, layout.DRIVER) * apis + (layout.GRAPH,) * graphs
        self._kinds = (*collector.KINDS, *more)
        self._nbytes = collector.BUFFER_BYTES
        self._free = [ctypes.create_string_buffer(self._nbytes) for _ in range(6)]
        self._used: dict[int, Any] = {}
        self._callbacks = api.REQUESTED(self._request), api.COMPLETED(self._complete)
        self._subscription: ctypes.c_void_p | None = None
        self.records_bytes = 0
        library = api.Library()
        self.version = library.version
        self._calls = [
            (domain, number)
            for domain in ((api.RUNTIME_API, api.DRIVER_API) if callback else ())
            for number in range(1, api.LAST_CALLBACK)
            if api.role_of(library.callback_name(domain, number)) != api.OTHER
        ]

    def _request(self, buffer: Any, size: Any, most: Any) -> None:
        memory = self._free.pop() if self._free else ctypes.create_string_buffer(self._nbytes)
        address = ctypes.addressof(memory)
        self._used[address] = memory
        buffer[0], size[0], most[0] = address, self._nbytes, 0

    def _complete(self, _context: Any, _stream: int, buffer: int, _size: int, used: int) -> None:
        self.records_bytes += used
        memory = self._used.pop(buffer)
        ctypes.memset(memory, 0, used)
        self._free.append(memory)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        if self._calls:
            nothing = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p)
            self._subscription = ctypes.c_void_p()
            self._call("cuptiSubscribe", ctypes.byref(self._subscription), nothing, None)
            for domain, number in self._calls:
                self._call("cuptiEnableCallback", 1, self._subscription, domain, number)
        zeroed, size = ctypes.c_uint8(1), ctypes.c_size_t(1)
        self._call(
            "cuptiActivitySetAttribute", ZEROED_BUFFERS, ctypes.byref(size), ctypes.byref(zeroed)
        )
        self._call("cuptiActivityRegisterCallbacks", *self._callbacks)
        before = self.records_bytes
        for kind in self._kinds:
            self._call("cuptiActivityEnable", kind)
        try:
            yield
        finally:
            for kind in self._kinds:
                self._call("cuptiActivityDisable", kind)
            self._call("cuptiActivityFlushAll", 1)
            if self._subscription is not None:
                self._call("cuptiUnsubscribe", self._subscription)
                self._subscription = None
        if self.records_bytes == before:
            raise RuntimeError("CUPTI recorded nothing")

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._c, name)(*arguments):
            raise RuntimeError(f"{name}: CUPTI says {status}")


@contextlib.contextmanager
def _ours(*left_out: str, **options: Any) -> Iterator[None]:
    """Record without some of what the recording does beside CUPTI."""
    import gpuscope as gs
    from gpuscope.record import handover, sampler

    nothing = mock.Mock()
    parts = {"hand-over": (handover, "watch"), "clocks": (sampler.ClockSampler, "start")}
    with contextlib.ExitStack() as stack:
        for part in left_out:
            stack.enter_context(mock.patch.object(*parts[part], nothing))
        stack.enter_context(gs.profile(gs.open_device("cuda:0", quiet=True), **options))
        yield


@contextlib.contextmanager
def _journalled(*, every_s: float) -> Iterator[None]:
    """Record as ``gpuscope record`` does in a program's process, its journal taken so often."""
    from gpuscope.record.recorder import Recording
    from gpuscope.record.source import Options

    over = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        recording = Recording((), Options("cupti", "launches", stacks=True))
        recording.start(threads=True)
        recording.journal(Path(folder) / "journal")

        def advance() -> None:
            while not over.wait(every_s):
                recording.advance()

        thread = threading.Thread(target=advance, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            recording.stop(wait=False)


@contextlib.contextmanager
def _torch_profiler(*, cpu: bool) -> Iterator[None]:
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CUDA, *([ProfilerActivity.CPU] if cpu else [])]
    with profile(activities=kinds, acc_events=True):
        yield


@contextlib.contextmanager
def _proton() -> Iterator[None]:
    import triton.profiler as proton

    with tempfile.TemporaryDirectory() as folder:
        proton.start(str(Path(folder) / "proton"), backend="cupti")
        try:
            yield
        finally:
            proton.finalize()


def modes(names: list[str]) -> dict[str, Callable[[], contextlib.AbstractContextManager[None]]]:
    """Return name → what records a block."""
    every: dict[str, Callable[[], Any]] = {
        "CUPTI": lambda: BareCupti(apis=True).recording,
        "CUPTI, kernels": lambda: BareCupti(apis=False).recording,
        "CUPTI, kernels, empty callback": lambda: BareCupti(apis=False, callback=True).recording,
        "CUPTI, whole graphs": lambda: BareCupti(apis=False, graphs=True).recording,
        "CUPTI, whole graphs, API calls": lambda: BareCupti(apis=True, graphs=True).recording,
        "kernels": lambda: lambda: _ours(launch_ids=False, stacks=False),
        "ids": lambda: lambda: _ours(stacks=False),
        "lines": lambda: lambda: _ours(stacks=True),
        "lines, no hand-over": lambda: lambda: _ours("hand-over"),
        "lines, no clocks": lambda: lambda: _ours("clocks"),
        "ids, neither": lambda: lambda: _ours("hand-over", "clocks", stacks=False),
        "journal": lambda: lambda: _journalled(every_s=1.0),
        "journal, untaken": lambda: lambda: _journalled(every_s=1e6),
        "torch.profiler": lambda: lambda: _torch_profiler(cpu=False),
        "torch.profiler, CPU too": lambda: lambda: _torch_profiler(cpu=True),
        "Proton": lambda: _proton,
        "bare again": lambda: contextlib.nullcontext,
    }
    return {name: every[name]() for name in names}


# -- one process ---------------------------------------------------------------------------
def fastest_cpus(count: int) -> set[int]:
    """Return the CPUs that count fastest: those of a shared host differ, from moment to moment."""
    took_s: dict[int, float] = {}
    allowed = os.sched_getaffinity(0)
    for cpu in allowed:
        os.sched_setaffinity(0, {cpu})
        took_s[cpu] = min(timeit.repeat("sum(range(20_000))", number=5, repeat=5))
    os.sched_setaffinity(0, allowed)
    return {*sorted(took_s, key=took_s.__getitem__)[:count]}


def timed(block: Block, seconds: float, cpus: set[int] | None = None) -> float:
    """Return units a second; this thread stays on some CPUs meanwhile."""
    gc.collect()
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus or before)
    began_s = time.perf_counter()
    rate = block(seconds) / (time.perf_counter() - began_s)
    os.sched_setaffinity(0, before)
    return rate


def turns(program: str, seconds: float, rounds: int, names: list[str]) -> dict[str, Any]:
    """Return what bare blocks did, and mode → round → its rate and those of its bare neighbours."""
    block = PROGRAMS[program]()
    timed(block, 2 * seconds)
    cpus = fastest_cpus(6 if program == "server" else 1)
    untouched = [timed(block, seconds, cpus) for _ in range(4)]
    recorders = modes(names)
    for recorder in recorders.values():  # what begins or ends for the first time
        with recorder():
            block(0.05)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    bare = timed(block, seconds, cpus)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            with recorders[name]():
                block(0.02)
                rate = timed(block, seconds, cpus)
            behind = timed(block, seconds, cpus)
            found[name].append((bare, rate, behind))
            bare = behind
    return {"program": program, "untouched": untouched, "modes": found}


def once(program: str, seconds: float, mode: str = "bare again") -> dict[str, Any]:
    """Return the rate of one block, and when it ended."""
    with modes([mode])[mode]():
        block = PROGRAMS[program]()
        timed(block, 0.5)
        rate = timed(block, seconds, fastest_cpus(6 if program == "server" else 1))
        ended_ns = time.time_ns()
    return {"program": program, "rate": rate, "ended_ns": ended_ns}


def main() -> None:
    what, program, seconds, *rest = sys.argv[1:]
    if what == "turns":
        rounds, out, *names = rest
        found = turns(program, float(seconds), int(rounds), names)
    else:
        out, *names = rest
        found = once(program, float(seconds), *names)
    Path(out).write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
