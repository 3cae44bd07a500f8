"""A short job pays for torch.compile; mended: it runs as it is."""

import time

import torch
from _common import MENDED

model = torch.nn.Sequential(
    *(torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU()) for _ in range(4))
).cuda()
data = torch.randn(256, 1024, device="cuda")
model(data)
torch.cuda.synchronize()
began_s = time.perf_counter()
run = model if MENDED else torch.compile(model)
with torch.no_grad():
    for _ in range(300):
        run(data)
torch.cuda.synchronize()
print(f"loop_s {time.perf_counter() - began_s:.6f}")
