"""Random products whose operands are dropped at once, each value checked against an exact one.

    python benchmarks/memory_soak.py [--device cuda:0] [--products 100000] [--threads 4] [--seed 14]

Threads launch products of small whole numbers on streams that they share, some of partitions and
some held by a kernel that spins: by mm_out and by handles, strided and not, uploaded from
page-locked memory that is dropped too, in workloads with scratch, and captured into graphs that
are replayed after everything they were made of was dropped. Exit code 1: a value was wrong.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from facts import row, write

import gpuscope as gs
from gpuscope.workloads.spin import Spin

SIDES = (16, 48, 96)
VALUES = 24  # matrices of each size
BATCH = 200  # products between two checks
IN_GRAPH = 5


@gs.workloads.workload
def cube(ctx: Any, a: Any, b: Any) -> Any:
    """a · a · b, the first product in scratch."""
    square = ctx.scratch(a.nbytes).view(a.shape, a.dtype)
    gs.mm_out(square, a, a)
    return gs.mm_out(ctx.device.empty(a.shape, a.dtype), square, b)


class Truth:
    """Matrices, and their products as whole numbers that float32 holds exactly."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.hosts = {
            side: rng.integers(-3, 4, (VALUES, side, side)).astype(np.float32) for side in SIDES
        }
        self.products = {
            side: np.einsum("aij,bjk->abik", hosts, hosts, optimize=True)
            for side, hosts in self.hosts.items()
        }


class Worker:
    """One thread's share of the products."""

    def __init__(
        self, gpu: Any, streams: list[Any], truth: Truth, products: int, seed: int
    ) -> None:
        self.gpu = gpu
        self.streams = streams
        self.truth = truth
        self.left = products
        self.counts: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._random = np.random.default_rng(seed)
        self._spin = Spin(gpu, duration_ns=200_000, max_in_flight=len(streams))
        self._gemms = {
            side: gs.Gemm(gpu, m=side, n=side, k=side, dtype="float32", max_in_flight=2)
            for side in SIDES
        }
        self._cube = cube(gpu)
        self._outs: list[tuple[Any, np.ndarray[Any, Any]]] = []

    def run(self) -> None:
        """Do all of it; what fails is kept for who joins the thread."""
        try:
            while self.left > 0:
                self._batch()
        except BaseException as error:  # noqa: BLE001 - told by the thread that joins this one
            self.error = error
        finally:
            for handle in (self._spin, *self._gemms.values(), self._cube):
                handle.close()

    def _batch(self) -> None:
        used = set()
        while self.left > 0 and len(self._outs) < BATCH:
            stream = self.streams[self._random.integers(len(self.streams))]
            used.add(stream)
            if self._random.random() < 0.1:
                self._spin.execute(stream=stream)
            self._queue(stream)
        for stream in used:
            stream.synchronize()
        wrong = sum(not np.array_equal(self._read(out), known) for out, known in self._outs)
        self.counts["wrong"] += wrong
        self._outs.clear()

    def _read(self, out: Any) -> np.ndarray[Any, Any]:
        """Read an array whose stream was waited for, without waiting for others' work."""
        found: np.ndarray[Any, Any] = self.gpu.backend.to_host(out)
        return found

    def _queue(self, stream: Any) -> None:
        side = SIDES[self._random.integers(len(SIDES))]
        i, j = self._random.integers(VALUES, size=2)
        known = self.truth.products[side][i, j]
        kind = self._random.random()
        if kind < 0.05:
            self._capture(side)
            return
        if kind < 0.15:
            a, b = self._strided(side, i), self._uploaded(side, j)
            out = self._cube.execute(a, b, stream=stream)
            known = self.truth.products[side][i, i] @ self.truth.hosts[side][j]
            self._queued(out, known, 2)
            return
        a = self._any(side, i, stream)
        b = self._any(side, j, stream)
        out = self.gpu.empty((side, side))
        if kind < 0.5:
            self._gemms[side].execute(a, b, out, stream=stream)
        else:
            gs.mm_out(out, a, b, stream=stream)
        self._queued(out, known, 1)

    def _queued(self, out: Any, known: Any, products: int) -> None:
        self.counts["products"] += products
        self.left -= products
        self._outs.append((out, known))

    def _any(self, side: int, number: int, stream: Any) -> Any:
        which = self._random.random()
        if which < 0.3:
            return self._strided(side, number)
        if which < 0.5:
            return self._copied(side, number, stream)
        return self._uploaded(side, number)

    def _uploaded(self, side: int, number: int) -> Any:
        return self.gpu.asarray(self.truth.hosts[side][number])

    def _strided(self, side: int, number: int) -> Any:
        host = self.truth.hosts[side][number]
        return self.gpu.asarray(np.repeat(host, 2, axis=1))[:, ::2]

    def _copied(self, side: int, number: int, stream: Any) -> Any:
        """Upload in the stream's order, from page-locked memory that is dropped at once."""
        host = self.gpu.empty_pinned((side, side))
        host[...] = self.truth.hosts[side][number]
        array = self.gpu.empty((side, side))
        stream.copy(array, host)
        return array

    def _capture(self, side: int) -> None:
        """Capture products on a stream of its own, drop their operands, and replay."""
        outs = []
        with self.gpu.create_stream() as stream:
            with stream.capture() as graph:
                for _ in range(IN_GRAPH):
                    i, j = self._random.integers(VALUES, size=2)
                    out = self.gpu.empty((side, side))
                    gs.mm_out(out, self._strided(side, i), self._uploaded(side, j), stream=stream)
                    outs.append((out, self.truth.products[side][i, j]))
            self.counts["captures"] += 1
            for _ in range(2):
                others = [self._uploaded(side, 0) for _ in range(IN_GRAPH)]
                graph.launch(stream=stream)
                self.counts["replays"] += 1
                del others
            graph.close()
        for out, known in outs:
            self._queued(out, known, 2)


def load_kernels(gpu: Any, truth: Truth) -> None:
    """Launch everything once: a capture forbids that a kernel is loaded."""
    with gpu.create_stream() as stream:
        for side in SIDES:
            wide = gpu.asarray(np.repeat(truth.hosts[side][0], 2, axis=1))
            b = gpu.asarray(truth.hosts[side][0])
            for a in (wide[:, ::2], b):
                gs.mm_out(gpu.empty((side, side)), a, b, stream=stream)
    gpu.synchronize()


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description="Random products whose operands are dropped.")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--products", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--out", type=Path, help="keep the figures there")
    args = parser.parse_args()
    gpu = gs.open_device(args.device, quiet=True)
    truth = Truth(args.seed)
    load_kernels(gpu, truth)
    start = time.perf_counter()
    with gpu.carve([32, 16]) as parts:
        streams = [gpu.create_stream() for _ in range(3)]
        streams += [part.create_stream() for part in parts.values()]
        share = -(-args.products // args.threads)
        workers = [
            Worker(gpu, streams, truth, share, args.seed + 1 + index)
            for index in range(args.threads)
        ]
        threads = [threading.Thread(target=worker.run) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for stream in streams:
            stream.close()
    gpu.close()
    for worker in workers:
        if worker.error is not None:
            raise worker.error
    counts = sum((worker.counts for worker in workers), Counter())
    print(f"{gpu.name}, seed {args.seed}, {time.perf_counter() - start:.1f} s")
    for name in ("products", "wrong", "captures", "replays"):
        print(f"{name:10} {counts[name]:>9,}")
    print(f"{'threads':10} {args.threads:>9,}")
    if args.out is not None:
        what = (
            f"products by {args.threads} threads whose operands are dropped at once: wrong values"
        )
        found = row(what, "0", counts["wrong"], f"of {counts['products']:,} products",
                    met=not counts["wrong"], captures=counts["captures"],
                    replays=counts["replays"])  # fmt: skip
        write(args.out, f"python benchmarks/memory_soak.py --products {args.products}", gpu.name,
              [found], driver=gpu.info.driver)  # fmt: skip
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
