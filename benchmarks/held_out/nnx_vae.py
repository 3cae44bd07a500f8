"""Variational autoencoder in flax.nnx; the weight of the KL term grows from epoch to epoch."""
import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

PIXELS = 784
HIDDEN = 1024
LATENT = 64
BATCH = 2048
BATCHES = 25
EPOCHS = 4
FINAL_WEIGHT = 0.5


class VAE(nnx.Module):
    def __init__(self, rngs):
        self.enc1 = nnx.Linear(PIXELS, HIDDEN, rngs=rngs)
        self.enc2 = nnx.Linear(HIDDEN, HIDDEN, rngs=rngs)
        self.mean = nnx.Linear(HIDDEN, LATENT, rngs=rngs)
        self.logvar = nnx.Linear(HIDDEN, LATENT, rngs=rngs)
        self.dec1 = nnx.Linear(LATENT, HIDDEN, rngs=rngs)
        self.dec2 = nnx.Linear(HIDDEN, HIDDEN, rngs=rngs)
        self.out = nnx.Linear(HIDDEN, PIXELS, rngs=rngs)

    def __call__(self, x, key):
        h = nnx.relu(self.enc2(nnx.relu(self.enc1(x))))
        mean, logvar = self.mean(h), self.logvar(h)
        z = mean + jnp.exp(0.5 * logvar) * jax.random.normal(key, mean.shape)
        h = nnx.relu(self.dec2(nnx.relu(self.dec1(z))))
        return self.out(h), mean, logvar


def elbo(model, x, key, kl_weight):
    logits, mean, logvar = model(x, key)
    rebuilt = optax.sigmoid_binary_cross_entropy(logits, x).sum(axis=-1)
    kl = -0.5 * (1 + logvar - mean ** 2 - jnp.exp(logvar)).sum(axis=-1)
    return (rebuilt + kl_weight * kl).mean()


def train_step(model, optimizer, x, key, kl_weight):
    loss, grads = nnx.value_and_grad(elbo)(model, x, key, kl_weight)
    optimizer.update(model, grads)
    return loss


def weight_for(epoch):
    return FINAL_WEIGHT * min(1.0, (epoch + 1) / (EPOCHS + 1))


def load_batches():
    rng = np.random.default_rng(0)
    centres = rng.random((32, PIXELS), dtype=np.float32)
    batches = []
    for _ in range(BATCHES):
        picks = rng.integers(0, 32, size=BATCH)
        noise = rng.random((BATCH, PIXELS), dtype=np.float32)
        batches.append(jax.device_put((centres[picks] > noise).astype(np.float32)))
    return batches


def run_epoch(step, model, optimizer, batches, keys, epoch):
    kl_weight = weight_for(epoch)
    for x, key in zip(batches, keys):
        loss = step(model, optimizer, x, key, kl_weight=kl_weight)
    return loss


def main():
    variant = sys.argv[1]
    static = ("kl_weight",) if variant == "slow" else ()
    step = nnx.jit(train_step, static_argnames=static)

    model = VAE(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    batches = load_batches()
    key = jax.random.key(17)
    schedule = []
    for _ in range(EPOCHS + 1):
        key, use = jax.random.split(key)
        schedule.append(list(jax.random.split(use, BATCHES)))

    jax.block_until_ready(run_epoch(step, model, optimizer, batches, schedule[0], 0))
    begin = time.perf_counter()
    losses = []
    for epoch in range(1, EPOCHS + 1):
        losses.append(run_epoch(step, model, optimizer, batches, schedule[epoch], epoch))
    jax.block_until_ready((losses, nnx.state(model)))
    seconds = time.perf_counter() - begin

    for epoch, loss in enumerate(losses, 1):
        print(f"epoch {epoch}: KL weight {weight_for(epoch):.2f}, loss {float(loss):.3f}")
    print("RESULT " + json.dumps({
        "name": "nnx_vae", "variant": variant, "units": EPOCHS * BATCHES, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
