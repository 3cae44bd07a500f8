"""CuPy clusters points by k-means, with reduction kernels of its own for the centres."""
# After CuPy's examples/kmeans/kmeans.py, MIT: written anew, its method kept.
# Other than there: five clusters, no plots.

import cupy as cp
from _common import timed

POINTS, CLUSTERS, ITERATIONS, ROUNDS = 5_000_000, 5, 30, 40

distance = cp.ElementwiseKernel(
    "T x0, T x1, T c0, T c1",
    "T out",
    "out = sqrt((x0 - c0) * (x0 - c0) + (x1 - c1) * (x1 - c1))",
    "distance",
)
total = cp.ReductionKernel("T x, bool mask", "T out", "mask ? x : T(0)", "a + b", "out = a", "0",
                           "masked_sum")  # fmt: skip
count = cp.ReductionKernel("bool mask", "float32 out", "mask ? 1.0f : 0.0f", "a + b", "out = a",
                           "0.0f", "masked_count")  # fmt: skip


def fit(points, clusters, iterations):
    """Return which centre each point is nearest to, and the centres."""
    centres = points[cp.random.choice(len(points), clusters, replace=False)]
    nearest = cp.zeros(len(points), dtype=cp.int32)
    for _ in range(iterations):
        distances = distance(
            points[:, None, 0], points[:, None, 1], centres[None, :, 0], centres[None, :, 1]
        )
        now_nearest = cp.argmin(distances, axis=1).astype(cp.int32)
        if cp.all(now_nearest == nearest):
            break
        nearest = now_nearest
        masks = nearest == cp.arange(clusters, dtype=cp.int32)[:, None]
        sums = cp.stack([total(points[:, axis], masks, axis=1) for axis in range(2)], axis=1)
        centres = sums / count(masks, axis=1)[:, None]
    return nearest, centres


def main():
    cp.random.seed(0)
    middles = cp.arange(CLUSTERS, dtype=cp.float32).repeat(POINTS // CLUSTERS)
    points = cp.random.randn(len(middles), 2, dtype=cp.float32) + middles[:, None]
    with timed(cp.cuda.Device().synchronize):
        for _ in range(ROUNDS):
            _, centres = fit(points, CLUSTERS, ITERATIONS)
            print(cp.asnumpy(centres).round(3).tolist())


if __name__ == "__main__":
    main()
