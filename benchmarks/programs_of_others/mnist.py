"""A small convolutional network learns digits: Adadelta, one loader process, a test per epoch."""
# After pytorch/examples' mnist, BSD-3-Clause: written anew, its network, sizes and steps kept.
# Other than there: torchvision's FakeData, fewer images and epochs.

import torch
import torch.nn.functional as F  # noqa: N812
from _common import timed
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

TRAIN, TEST, BATCH, TEST_BATCH, EPOCHS, LOG_INTERVAL = 6400, 1000, 64, 1000, 1, 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Sequential(
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(9216, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, 10),
        )

    def forward(self, images):
        return F.log_softmax(self.head(self.convolutions(images)), dim=1)


def train(model, device, loader, optimizer, epoch):
    model.train()
    for number, batch in enumerate(loader):
        images, target = (tensor.to(device) for tensor in batch)
        optimizer.zero_grad()
        loss = F.nll_loss(model(images), target)
        loss.backward()
        optimizer.step()
        if number % LOG_INTERVAL == 0:
            print(f"Train Epoch: {epoch} [{number}/{len(loader)}]\tLoss: {loss.item():.6f}")


def test(model, device, loader):
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for batch in loader:
            images, target = (tensor.to(device) for tensor in batch)
            output = model(images)
            loss += F.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(dim=1).eq(target).sum().item()
    print(f"\nTest set: Average loss: {loss / TEST:.4f}, Accuracy: {correct}/{TEST}\n")


def main():
    torch.manual_seed(1)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    options = {"num_workers": 1, "persistent_workers": True, "pin_memory": True} if cuda else {}
    transform = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    )
    train_set = datasets.FakeData(TRAIN, (1, 28, 28), 10, transform)
    test_set = datasets.FakeData(TEST, (1, 28, 28), 10, transform, random_offset=TRAIN)
    train_loader = DataLoader(train_set, batch_size=BATCH, shuffle=True, **options)
    test_loader = DataLoader(test_set, batch_size=TEST_BATCH, shuffle=True, **options)
    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    with timed():
        for epoch in range(1, EPOCHS + 1):
            train(model, device, train_loader, optimizer, epoch)
            test(model, device, test_loader)
            scheduler.step()


if __name__ == "__main__":
    main()
