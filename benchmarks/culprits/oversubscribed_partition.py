"""A model gets 16 SMs while the rest of the GPU has nothing to do; mended: 96 SMs."""

import torch
from _common import MENDED, timed

import gpuscope as gs

gpu = gs.open_device("cuda:0")
partitions = gpu.carve({"model": 96 if MENDED else 16, "rest": "rest"})
stream = partitions["model"].create_stream(name="model")
weights = torch.randn(2048, 2048, device="cuda", dtype=torch.half)
data = torch.randn(4096, 2048, device="cuda", dtype=torch.half)


def step(_number):
    with gs.CallerStreamGuard(stream, bind=True):
        hidden = data
        for _ in range(4):
            hidden = torch.relu(hidden @ weights)


timed(step, 200)
