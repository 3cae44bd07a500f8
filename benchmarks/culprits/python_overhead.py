"""Text is built in Python between the launches of each token; mended: once at the end."""

import torch
from _common import MENDED, timed

layers = [torch.nn.Linear(1024, 1024).cuda().half() for _ in range(6)]
state = torch.randn(8, 1024, device="cuda", dtype=torch.half)
words = [f"token {number}" for number in range(400)]


def render(count):
    text = ""
    for word in words[:count]:
        text = " ".join([text, word.title()])
    return text


@torch.no_grad()
def step(_number):
    hidden = state
    for layer in layers:
        hidden = torch.tanh(layer(hidden))
    if not MENDED:
        render(300)


timed(step, 1500)
