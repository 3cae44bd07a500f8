"""Lightning's Trainer fits a convolutional autoencoder to small images, with its defaults."""
# After Lightning's docs/source-pytorch/starter/introduction.rst, Apache-2.0: written anew, the
# library's API kept. Other than there: convolutions, random images.

import tempfile

import lightning as L  # noqa: N812
import torch
from _common import timed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

IMAGES, BATCH, EPOCHS = 16384, 64, 3


class Autoencoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 16),
        )
        self.decoder = nn.Sequential(
            nn.Linear(16, 64 * 7 * 7),
            nn.Unflatten(1, (64, 7, 7)),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1),
        )

    def training_step(self, batch, _batch_idx):
        (images,) = batch
        decoded = self.decoder(self.encoder(images))
        loss = nn.functional.mse_loss(decoded, images)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(0)
    loader = DataLoader(TensorDataset(torch.rand(IMAGES, 1, 28, 28)), BATCH, shuffle=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(max_epochs=EPOCHS, devices=1, default_root_dir=folder)
        with timed():
            trainer.fit(Autoencoder(), loader)


if __name__ == "__main__":
    main()
