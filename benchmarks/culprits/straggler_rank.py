"""Of two ranks that train with DDP the second prepares its data slowly; mended: it does not."""

import os
import time

import torch
import torch.distributed as dist
from _common import MENDED, timed
from torch.nn.parallel import DistributedDataParallel


def prepare(data):
    until_s = time.perf_counter() + 0.004
    while time.perf_counter() < until_s:
        pass
    return data


def main():
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    layers = (torch.nn.Linear(2048, 2048) for _ in range(4))
    model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), device_ids=[rank])
    data = torch.randn(256, 2048, device="cuda")

    def step(_number):
        batch = prepare(data) if rank == 1 and not MENDED else data
        model(batch).square().mean().backward()
        model.zero_grad()

    timed(step, 150)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
