"""timm trains a ResNet-50 with its own loader, augmentation, mixup, AMP and weight averaging."""
# After the essentials of timm's train.py, Apache-2.0: written anew, the library's API kept.
# Other than there: random weights, random images in memory.

import numpy as np
import timm
import timm.data
import timm.loss
import timm.optim
import timm.scheduler
import timm.utils
import torch
from _common import timed
from PIL import Image

IMAGES, BATCH, WORKERS, CLASSES, SIZE = 6400, 128, 8, 1000, (3, 224, 224)


class RandomImages(torch.utils.data.Dataset):
    """Images of which timm's loader sets the transform."""

    transform = None

    def __init__(self):
        pixels = np.random.default_rng(0).integers(0, 256, (64, 256, 256, 3), dtype=np.uint8)
        self.images = [Image.fromarray(image) for image in pixels]

    def __len__(self):
        return IMAGES

    def __getitem__(self, index):
        image = self.images[index % len(self.images)]
        return self.transform(image), index % CLASSES


def main():
    timm.utils.random_seed(42, 0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = timm.create_model("resnet50", pretrained=False, num_classes=CLASSES).to(device)
    average = timm.utils.ModelEmaV3(model, decay=0.9998)
    optimizer = timm.optim.create_optimizer_v2(model, opt="sgd", lr=0.05, weight_decay=2e-5)
    scheduler = timm.scheduler.CosineLRScheduler(optimizer, t_initial=10)
    scaler = timm.utils.NativeScaler(device=device.type)
    config = timm.data.resolve_data_config({}, model=model)
    loader = timm.data.create_loader(
        RandomImages(),
        input_size=SIZE,
        batch_size=BATCH,
        is_training=True,
        use_prefetcher=True,
        re_prob=0.25,
        auto_augment="rand-m9-mstd0.5",
        mean=config["mean"],
        std=config["std"],
        num_workers=WORKERS,
        pin_memory=True,
        device=device,
    )
    mixup = timm.data.Mixup(mixup_alpha=0.2, label_smoothing=0.1, num_classes=CLASSES)
    loss_fn = timm.loss.SoftTargetCrossEntropy()
    losses = timm.utils.AverageMeter()

    model.train()
    with timed():
        for number, (images, target) in enumerate(loader):
            mixed, soft = mixup(images, target)
            with torch.autocast(device.type):
                loss = loss_fn(model(mixed), soft)
            scaler(loss, optimizer, parameters=model.parameters())
            optimizer.zero_grad()
            average.update(model, step=number)
            if number % 10 == 0:
                losses.update(loss.item(), images.size(0))
                print(
                    f"Train: [{number}/{len(loader)}] Loss: {losses.val:#.3g} ({losses.avg:#.3g})"
                )
        scheduler.step(1)


if __name__ == "__main__":
    main()
