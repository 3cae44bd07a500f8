"""Two ranks train a ResNet-18 by DistributedDataParallel, each with a loader and its sampler."""
# After the essentials of pytorch/examples' imagenet, BSD-3-Clause: written anew, its steps kept.
# Other than there: torchvision's FakeData, as its --dummy, a smaller batch, fewer batches.

import os
import time

import torch
import torch.distributed as dist
from _common import timed
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms

IMAGES, BATCH, WORKERS, PRINT_EVERY = 8192, 64, 4, 10


class AverageMeter:
    """The last value and the mean of those so far."""

    def __init__(self, name):
        self.name, self.value, self.sum, self.count = name, 0.0, 0.0, 0

    def update(self, value, n=1):
        self.value = value
        self.sum += value * n
        self.count += n

    def __str__(self):
        return f"{self.name} {self.value:.4f} ({self.sum / self.count:.4f})"


def accuracy(output, target, topk):
    """Return how many percent have their target among the k likeliest classes, for each k."""
    with torch.no_grad():
        _, likeliest = output.topk(max(topk), 1, largest=True, sorted=True)
        correct = likeliest.t().eq(target.view(1, -1))
        return [correct[:k].reshape(-1).float().sum(0) * (100.0 / len(target)) for k in topk]


def train(loader, model, criterion, optimizer, device):
    meters = {name: AverageMeter(name) for name in ("Time", "Data", "Loss", "Acc@1", "Acc@5")}
    model.train()
    end = time.time()
    for number, batch in enumerate(loader):
        meters["Data"].update(time.time() - end)
        images, target = (tensor.to(device, non_blocking=True) for tensor in batch)
        output = model(images)
        loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        meters["Loss"].update(loss.item(), len(images))
        meters["Acc@1"].update(acc1.item(), len(images))
        meters["Acc@5"].update(acc5.item(), len(images))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meters["Time"].update(time.time() - end)
        end = time.time()
        if number % PRINT_EVERY == 0:
            print(f"[{number}/{len(loader)}]", *meters.values(), sep="\t")


def main():
    rank = int(os.environ["LOCAL_RANK"])
    torch.manual_seed(0)
    if torch.cuda.is_available():
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    model = models.resnet18().to(device)
    model = DistributedDataParallel(model, device_ids=[rank] if device.type == "cuda" else None)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    dataset = datasets.FakeData(IMAGES, (3, 224, 224), 1000, transforms.ToTensor())
    sampler = DistributedSampler(dataset)
    loader = DataLoader(
        dataset, batch_size=BATCH, num_workers=WORKERS, pin_memory=True, sampler=sampler
    )
    with timed():
        sampler.set_epoch(0)
        train(loader, model, criterion, optimizer, device)
        scheduler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
