"""Next-character model trained with Lightning; an averaged copy of the weights is kept for evaluation."""
import json
import sys
import time

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

WARMUP = 5
STEPS = 30
BATCH = 32
CONTEXT = 128
VOCAB = 8192
WIDTH = 1024
LAYERS = 8


class CharModel(L.LightningModule):
    def __init__(self, vocab, width, layers, lr=3e-4):
        super().__init__()
        self.lr = lr
        self.embed = nn.Embedding(vocab, width)
        self.place = nn.Parameter(torch.zeros(CONTEXT, width))
        block = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, activation="gelu",
            batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab)
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, ids):
        x = self.embed(ids) + self.place
        x = self.body(x, mask=self.mask, is_causal=True)
        return self.head(x)

    def training_step(self, batch, batch_idx):
        ids, targets = batch
        logits = self(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


class AveragedWeights(L.Callback):
    """Exponential moving average of everything in the module's state."""

    def __init__(self, decay, device):
        self.decay = decay
        self.device = torch.device(device)
        self.average = {}

    @torch.no_grad()
    def on_train_start(self, trainer, module):
        for name, value in module.state_dict().items():
            self.average[name] = value.detach().to(self.device, copy=True)

    @torch.no_grad()
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        for name, value in module.state_dict().items():
            self.average[name].lerp_(value.to(self.device), 1.0 - self.decay)

    def norm(self):
        return sum(v.double().square().sum().item() for v in self.average.values()) ** 0.5


class Clock(L.Callback):
    def __init__(self, first, last):
        self.first, self.last = first, last
        self.seconds = None

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == self.first:
            torch.cuda.synchronize()
            self.begin = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == self.last - 1:
            torch.cuda.synchronize()
            self.seconds = time.perf_counter() - self.begin


def text_loader(count):
    gen = torch.Generator().manual_seed(3)
    text = torch.randint(0, VOCAB, (count * BATCH, CONTEXT + 1), generator=gen)
    data = TensorDataset(text[:, :-1].contiguous(), text[:, 1:].contiguous())
    return DataLoader(data, batch_size=BATCH, shuffle=False, drop_last=True, pin_memory=True)


def main():
    variant = sys.argv[1]
    L.seed_everything(1, verbose=False)
    torch.set_float32_matmul_precision("high")
    total = WARMUP + STEPS

    averaged = AveragedWeights(0.999, device="cpu" if variant == "slow" else "cuda")
    clock = Clock(WARMUP, total)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=total,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[averaged, clock],
    )
    model = CharModel(VOCAB, WIDTH, LAYERS)
    trainer.fit(model, text_loader(total))

    loss = trainer.callback_metrics["train_loss"].item()
    print(f"loss {loss:.4f}, norm of the averaged weights {averaged.norm():.4f}")
    print("RESULT " + json.dumps({
        "name": "lit_average", "variant": variant, "units": STEPS, "seconds": round(clock.seconds, 4)}))


if __name__ == "__main__":
    main()
