"""One step of a decoder layer, with random weights: the two halves of serving a language model.

As workloads of an experiment, with this folder in PYTHONPATH (needs PyTorch and a GPU):

    [workloads.decode]
    kind = "python:decoder:decode"
    stream = "decode"
    args = { hidden = 4096, batch = 16 }

    [workloads.prefill]
    kind = "python:decoder:prefill"
    stream = "prefill"
    args = { hidden = 4096, tokens = 2048 }
"""

import torch
from torch import nn
from torch.nn import functional

import gpuscope as gs

HEAD = 128
"""Elements of an attention head."""


class DecoderLayer(nn.Module):
    """Attention with a KV cache and a gated feed-forward, as in Llama, without a bias."""

    def __init__(self, hidden, batch, length):
        super().__init__()
        wide = 8 * hidden // 3 // 256 * 256
        self.heads = hidden // HEAD
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.queries_keys_values = nn.Linear(hidden, 3 * hidden, bias=False)
        self.attention_out = nn.Linear(hidden, hidden, bias=False)
        self.gate_and_up = nn.Linear(hidden, 2 * wide, bias=False)
        self.down = nn.Linear(wide, hidden, bias=False)
        cache = torch.zeros(2, batch, self.heads, length, HEAD, dtype=torch.float16)
        self.register_buffer("cache", cache, persistent=False)

    def forward(self, x, position):
        """Return the hidden states of new tokens, shape (batch, tokens, hidden).

        They are the tokens from ``position`` on; all before them are in the cache. Several at a
        time are possible from position 0 only.
        """
        batch, tokens, hidden = x.shape
        heads = self.queries_keys_values(self.attention_norm(x)).view(
            batch, tokens, 3, self.heads, HEAD
        )
        query, *new = heads.permute(2, 0, 3, 1, 4)
        until = position + tokens
        for cached, values in zip(self.cache, new, strict=True):
            cached[:, :, position:until] = values
        keys, values = self.cache[:, :, :, :until]
        seen = functional.scaled_dot_product_attention(query, keys, values, is_causal=tokens > 1)
        x = x + self.attention_out(seen.transpose(1, 2).reshape(batch, tokens, hidden))
        gate, up = self.gate_and_up(self.feed_forward_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Decoder(nn.Module):
    """Some layers, one after the other."""

    def __init__(self, hidden, layers, batch, length):
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(hidden, batch, length) for _ in range(layers))

    def forward(self, x, position):
        for layer in self.layers:
            x = layer(x, position)
        return x


def decode(
    device, hidden=4096, batch=16, context=1024, layers=1, graph=True, name="decode", seed=0
):
    """Return a handle that makes one token for each of ``batch`` requests of ``context`` tokens."""
    return _step(device, hidden, batch, 1, context, layers, graph, name, seed)


def prefill(device, hidden=4096, tokens=2048, layers=1, graph=True, name="prefill", seed=0):
    """Return a handle that reads one prompt of ``tokens`` tokens."""
    return _step(device, hidden, 1, tokens, 0, layers, graph, name, seed)


def _step(device, hidden, batch, tokens, context, layers, graph, name, seed):
    if hidden % HEAD:
        raise ValueError(f"hidden is {hidden}: a multiple of {HEAD} is needed")
    torch.manual_seed(seed)
    where = {"device": f"cuda:{device.info.index}", "dtype": torch.float16}
    with torch.device(where["device"]):
        model = Decoder(hidden, layers, batch, context + tokens).to(torch.float16).eval()
        x = torch.randn(batch, tokens, hidden, dtype=torch.float16)
    weights = sum(one.numel() for one in model.parameters())
    cached = 2 * layers * batch * context * hidden
    attention = 4 * layers * batch * hidden * tokens * (context + (tokens + 1) // 2)
    return gs.TorchModule(
        model,
        (x, context),
        graph=graph,
        owner=device,
        name=name,
        flop_count=2 * batch * tokens * weights + attention,
        nbytes=2 * (weights + cached + 2 * batch * tokens * hidden),
    )
