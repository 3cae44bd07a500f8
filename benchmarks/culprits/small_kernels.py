"""Hundreds of tiny element-wise kernels a step; mended: one CUDA graph."""

import torch
from _common import MENDED, timed

state = torch.randn(4096, device="cuda")


def relax(values):
    for _ in range(100):
        values = values * 0.99
        values = values + 0.01
    return values


if MENDED:
    relax(state)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = relax(state)


def step(_number):
    if MENDED:
        graph.replay()
    else:
        relax(state)


timed(step, 300)
