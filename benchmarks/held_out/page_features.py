"""Extracts features from scanned pages; every lot of pages comes in the size it was scanned in."""
import argparse
import json
import random
import time

import timm
import torch

ARCH = "resnet50"
PAGES = 8
LOTS = 12
WARMUP = 2
LOW, HIGH, GRID = 256, 704, 32


def set_up(search):
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = search
    model = timm.create_model(ARCH, pretrained=False, num_classes=0)
    return model.to("cuda", dtype=torch.float16, memory_format=torch.channels_last).eval()


def page_sizes(count, seed=3):
    choices = [(h, w) for h in range(LOW, HIGH + 1, GRID) for w in range(LOW, HIGH + 1, GRID)]
    return random.Random(seed).sample(choices, count)


class Scanner:
    """Stands in for the scan archive: lots of pages of one size, already on the device."""

    def __init__(self, device):
        self.device = device
        self.gen = torch.Generator(device=device).manual_seed(1)

    def lot(self, height, width):
        pages = torch.rand(PAGES, 3, height, width, device=self.device, generator=self.gen)
        return pages.to(dtype=torch.float16, memory_format=torch.channels_last)


class Extractor:
    def __init__(self, model):
        self.model = model
        self.features = []

    @torch.inference_mode()
    def add(self, pages):
        out = self.model((pages - 0.5) / 0.25)
        self.features.append(out.float())

    def summary(self):
        stack = torch.cat(self.features)
        return stack.shape[0], stack.mean().item(), stack.std().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variant", choices=["slow", "mended"])
    variant = parser.parse_args().variant

    model = set_up(search=variant == "slow")
    extractor = Extractor(model)
    scanner = Scanner("cuda")
    sizes = page_sizes(WARMUP + LOTS)

    for height, width in sizes[:WARMUP]:
        extractor.add(scanner.lot(height, width))

    torch.cuda.synchronize()
    begin = time.perf_counter()
    for number, (height, width) in enumerate(sizes[WARMUP:], 1):
        extractor.add(scanner.lot(height, width))
        if number % 4 == 0:
            print(f"lot {number}: pages of {height} x {width}")
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin

    count, mean, std = extractor.summary()
    print(f"{count} pages, features {mean:.5f} +- {std:.5f}")
    print("RESULT " + json.dumps({
        "name": "page_features", "variant": variant, "units": LOTS, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
