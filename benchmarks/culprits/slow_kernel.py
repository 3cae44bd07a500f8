"""One layer is left in float32; mended: it is bfloat16 as the others."""

import torch
from _common import MENDED, timed

narrow = [torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
wide = torch.randn(4096, 4096, device="cuda")
wide = wide.bfloat16() if MENDED else wide
data = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)


def step(_number):
    hidden = data
    for weights in narrow:
        hidden = torch.relu(hidden @ weights)
    hidden = hidden.to(wide.dtype) @ wide


timed(step, 150)
