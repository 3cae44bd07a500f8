"""A loader with one worker, whose transform is slow; mended: eight workers."""

import torch
from _common import MENDED, timed
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 130 * 64

    def __getitem__(self, number):
        image = torch.full((3, 64, 64), number / 1000)
        for _ in range(12):
            image = image.roll(1, -1).sin()
        return image


def main():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.LazyLinear(10),
    ).cuda()  # fmt: skip
    torch.set_num_threads(1)
    loader = DataLoader(Images(), 64, num_workers=8 if MENDED else 1, pin_memory=True)
    batches = iter(loader)

    def step(_number):
        images = next(batches).cuda(non_blocking=True)
        model(images).square().mean().backward()
        model.zero_grad()

    timed(step, 100)


if __name__ == "__main__":
    main()
