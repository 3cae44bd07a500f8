"""Phase retrieval (hybrid input-output) for a stack of diffraction patterns, with CuPy."""
import json
import sys
import time

import cupy as cp
import numpy as np

STACK = 24
SIZE = 512
WARMUP = 20
ITERATIONS = 1200
BETA = 0.9
REPORT = 400


def make_patterns(stack, size):
    """Known objects inside a round support, and the moduli of their transforms."""
    rng = np.random.default_rng(9)
    y, x = np.mgrid[-1:1:size * 1j, -1:1:size * 1j]
    support = (x ** 2 + y ** 2 < 0.2).astype(np.float32)
    objects = np.empty((stack, size, size), dtype=np.float32)
    for k in range(stack):
        fx, fy = rng.uniform(3, 12, size=2)
        objects[k] = support * (1.5 + np.sin(fx * x) * np.cos(fy * y))
    moduli = np.abs(np.fft.fft2(objects)).astype(np.float32)
    return support, moduli


class Retrieval:
    def __init__(self, support, moduli, lean):
        self.inside = cp.asarray(support) > 0
        self.moduli = cp.asarray(moduli)
        self.lean = lean
        self.pool = cp.get_default_memory_pool()
        start = np.random.default_rng(1).random(moduli.shape, dtype=np.float32)
        self.image = cp.asarray(start) * self.inside
        self.error = None

    def project(self, image):
        """Keep the phases, replace the moduli by the measured ones."""
        spectrum = cp.fft.fft2(image)
        size = cp.abs(spectrum)
        self.error = cp.abs(size - self.moduli).mean()
        spectrum *= self.moduli / (size + np.float32(1e-6))
        return cp.fft.ifft2(spectrum).real

    def step(self):
        proposal = self.project(self.image)
        good = self.inside & (proposal >= 0)
        self.image = cp.where(good, proposal, self.image - proposal * np.float32(BETA))
        del proposal, good
        if self.lean:
            self.pool.free_all_blocks()

    def run(self, iterations):
        for number in range(1, iterations + 1):
            self.step()
            if number % REPORT == 0:
                print(f"iteration {number}: mean error {float(self.error):.4f}, "
                      f"pool holds {self.pool.total_bytes() / 2**20:.0f} MiB")


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in ("slow", "mended"):
        sys.exit("usage: phase_retrieval.py slow|mended")
    variant = sys.argv[1]
    support, moduli = make_patterns(STACK, SIZE)
    retrieval = Retrieval(support, moduli, lean=variant == "slow")

    retrieval.run(WARMUP)
    cp.cuda.Device().synchronize()
    begin = time.perf_counter()
    retrieval.run(ITERATIONS)
    cp.cuda.Device().synchronize()
    seconds = time.perf_counter() - begin

    print(f"final error {float(retrieval.error):.5f}")
    print("RESULT " + json.dumps({
        "name": "phase_retrieval", "variant": variant, "units": ITERATIONS, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
