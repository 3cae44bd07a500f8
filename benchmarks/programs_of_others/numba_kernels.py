"""Numba's two classics: a matrix product through shared memory, and pi by random points."""
# After numba-cuda's docs/source/user/examples.rst (matrix product) and random.rst (pi),
# BSD-2-Clause: written anew, their methods kept. Other than there: larger sizes, a few rounds.

import math

import numpy as np
from _common import timed
from numba import cuda, float32
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

TILE, SIZE, ROUNDS = 16, 2048, 100
THREADS, BLOCKS, SAMPLES = 64, 256, 20_000


@cuda.jit
def fast_matmul(a, b, c):
    a_tile = cuda.shared.array(shape=(TILE, TILE), dtype=float32)
    b_tile = cuda.shared.array(shape=(TILE, TILE), dtype=float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0.0)
    for tile in range(cuda.gridDim.x):
        a_tile[ty, tx] = 0
        b_tile[ty, tx] = 0
        if y < a.shape[0] and tx + tile * TILE < a.shape[1]:
            a_tile[ty, tx] = a[y, tx + tile * TILE]
        if x < b.shape[1] and ty + tile * TILE < b.shape[0]:
            b_tile[ty, tx] = b[ty + tile * TILE, x]
        cuda.syncthreads()
        for inner in range(TILE):
            total += a_tile[ty, inner] * b_tile[inner, tx]
        cuda.syncthreads()
    if y < c.shape[0] and x < c.shape[1]:
        c[y, x] = total


@cuda.jit
def compute_pi(states, samples, out):
    thread = cuda.grid(1)
    inside = 0
    for _ in range(samples):
        x = xoroshiro128p_uniform_float32(states, thread)
        y = xoroshiro128p_uniform_float32(states, thread)
        if x * x + y * y <= 1.0:
            inside += 1
    out[thread] = 4.0 * inside / samples


def product(a, b):
    """Return a times b, copied to the GPU and back."""
    on_a, on_b = cuda.to_device(a), cuda.to_device(b)
    on_c = cuda.device_array((a.shape[0], b.shape[1]), dtype=np.float32)
    columns, rows = (max(a.shape[axis], b.shape[axis]) for axis in (1, 0))
    blocks = math.ceil(columns / TILE), math.ceil(rows / TILE)
    fast_matmul[blocks, (TILE, TILE)](on_a, on_b, on_c)
    return on_c.copy_to_host()


def main():
    rng = np.random.default_rng(0)
    a, b = (rng.random((SIZE, SIZE), dtype=np.float32) for _ in range(2))
    with timed(cuda.synchronize):
        for number in range(ROUNDS):
            c = product(a, b)
            states = create_xoroshiro128p_states(THREADS * BLOCKS, seed=number)
            out = np.zeros(THREADS * BLOCKS, dtype=np.float32)
            compute_pi[BLOCKS, THREADS](states, SAMPLES, out)
            print("pi:", out.mean())
    np.testing.assert_allclose(c[:4], a[:4] @ b, rtol=1e-3)


if __name__ == "__main__":
    main()
