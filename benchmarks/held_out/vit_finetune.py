"""Fine-tune a timm vision transformer on a small product-photo set that fits on the card."""
import argparse
import json
import time
from dataclasses import dataclass

import timm
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed


@dataclass
class Settings:
    arch: str = "vit_base_patch16_224"
    classes: int = 100
    photos: int = 1024
    batch: int = 64
    size: int = 224
    warmup: int = 4
    steps: int = 28
    lr: float = 5e-5
    weight_decay: float = 0.05
    smoothing: float = 0.1
    log_every: int = 10
    precision: str = "bf16"


class Photos:
    """uint8 photos kept on the device; batches are cut and normalised there."""

    def __init__(self, cfg, device):
        gen = torch.Generator(device=device).manual_seed(21)
        shape = (cfg.photos, 3, cfg.size, cfg.size)
        self.images = torch.randint(0, 256, shape, dtype=torch.uint8, device=device, generator=gen)
        self.labels = torch.randint(0, cfg.classes, (cfg.photos,), device=device, generator=gen)
        self.mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(1, 3, 1, 1) * 255
        self.std = torch.tensor([0.229, 0.224, 0.225], device=device).view(1, 3, 1, 1) * 255
        self.batch = cfg.batch
        self.order = torch.randperm(cfg.photos, device=device, generator=gen)

    def get(self, step):
        n = self.order.numel() // self.batch
        part = self.order[(step % n) * self.batch:(step % n + 1) * self.batch]
        images = self.images[part].float().sub_(self.mean).div_(self.std)
        return images, self.labels[part]


class Training:
    def __init__(self, cfg):
        set_seed(7)
        self.cfg = cfg
        self.accelerator = Accelerator(mixed_precision=cfg.precision)
        model = timm.create_model(cfg.arch, pretrained=False, num_classes=cfg.classes, img_size=cfg.size)
        model = model.to(self.accelerator.device)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay, fused=True)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.photos = Photos(cfg, self.accelerator.device)
        self.running = torch.zeros((), device=self.accelerator.device)

    def step(self, number):
        images, labels = self.photos.get(number)
        logits = self.model(images)
        loss = F.cross_entropy(logits, labels, label_smoothing=self.cfg.smoothing)
        self.optimizer.zero_grad(set_to_none=True)
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.running += loss.detach()

    def run(self):
        cfg = self.cfg
        self.model.train()
        for number in range(cfg.warmup):
            self.step(number)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        self.running.zero_()
        for number in range(cfg.warmup, cfg.warmup + cfg.steps):
            self.step(number)
            done = number - cfg.warmup + 1
            if done % cfg.log_every == 0:
                self.accelerator.print(f"step {done:4d}  mean loss {self.running.item() / done:.4f}")
        torch.cuda.synchronize()
        return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("variant", choices=["slow", "mended"])
    args = parser.parse_args()

    cfg = Settings()
    if args.variant == "slow":
        cfg.precision = "no"

    training = Training(cfg)
    seconds = training.run()
    print("RESULT " + json.dumps({
        "name": "vit_finetune", "variant": args.variant, "units": cfg.steps, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
