"""Three models that need few SMs share the default stream; mended: a stream each."""

import torch
from _common import MENDED, timed

columns = [torch.randn(6_000, 16, device="cuda") for _ in range(3)]
streams = [torch.cuda.Stream() if MENDED else torch.cuda.default_stream() for _ in range(3)]


def step(_number):
    for stream, column in zip(streams, columns, strict=True):
        with torch.cuda.stream(stream):
            column.cumsum(0)


timed(step, 300)
