"""Heat in a plate of uneven conductivity: explicit time steps with numba's CUDA kernels."""
import json
import math
import sys
import time

import numpy as np
from numba import cuda

SIDE = 8192
BLOCK = (32, 8)
WARMUP = 20
STEPS = 1500
REPORT = 500
DT = np.float32(0.2)
HALF = np.float32(0.5)


def build_step(rows_first):
    @cuda.jit
    def heat_step(old, new, conductivity, dt, half):
        if rows_first:
            row, col = cuda.grid(2)
        else:
            col, row = cuda.grid(2)
        rows, cols = old.shape
        if row < 1 or col < 1 or row >= rows - 1 or col >= cols - 1:
            return
        here = old[row, col]
        k = conductivity[row, col]
        north = half * (k + conductivity[row - 1, col]) * (old[row - 1, col] - here)
        south = half * (k + conductivity[row + 1, col]) * (old[row + 1, col] - here)
        west = half * (k + conductivity[row, col - 1]) * (old[row, col - 1] - here)
        east = half * (k + conductivity[row, col + 1]) * (old[row, col + 1] - here)
        new[row, col] = here + dt * (north + south + west + east)

    return heat_step


def make_plate(side):
    rng = np.random.default_rng(12)
    temperature = np.full((side, side), 20.0, dtype=np.float32)
    temperature[0, :] = 100.0
    temperature[:, -1] = 60.0
    temperature[side // 4:side // 2, side // 4:side // 2] = 90.0
    coarse = rng.uniform(0.2, 1.0, size=(64, 64)).astype(np.float32)
    conductivity = np.kron(coarse, np.ones((side // 64, side // 64), dtype=np.float32))
    return temperature, conductivity


class Plate:
    def __init__(self, step, side):
        temperature, conductivity = make_plate(side)
        self.step = step
        self.old = cuda.to_device(temperature)
        self.new = cuda.to_device(temperature)
        self.conductivity = cuda.to_device(conductivity)
        self.grid = (math.ceil(side / BLOCK[0]), math.ceil(side / BLOCK[1]))
        self.time = 0.0

    def advance(self, steps):
        for number in range(1, steps + 1):
            self.step[self.grid, BLOCK](self.old, self.new, self.conductivity, DT, HALF)
            self.old, self.new = self.new, self.old
            self.time += float(DT)
            if number % REPORT == 0:
                print(f"t = {self.time:.1f}")

    def mean(self):
        return float(self.old.copy_to_host().mean(dtype=np.float64))


def main():
    variant = sys.argv[1]
    plate = Plate(build_step(rows_first=(variant == "slow")), SIDE)

    plate.advance(WARMUP)
    cuda.synchronize()
    begin = time.perf_counter()
    plate.advance(STEPS)
    cuda.synchronize()
    seconds = time.perf_counter() - begin

    print(f"mean temperature {plate.mean():.4f}")
    print("RESULT " + json.dumps({
        "name": "heat_plate", "variant": variant, "units": STEPS, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
