"""Flax NNX trains a small convolutional network on digits: steps under nnx.jit, metrics kept."""
# After Flax's docs_nnx/mnist_tutorial.ipynb, Apache-2.0: written anew, the library's API kept.
# Other than there: random images, made by NumPy.

from functools import partial

import jax
import numpy as np
import optax
from _common import timed
from flax import nnx

IMAGES, BATCH, STEPS, EVAL_EVERY, TEST_BATCHES = 12800, 32, 1200, 200, 20


class CNN(nnx.Module):
    def __init__(self, *, rngs):
        self.conv1 = nnx.Conv(1, 32, kernel_size=(3, 3), rngs=rngs)
        self.norm1 = nnx.BatchNorm(32, rngs=rngs)
        self.dropout1 = nnx.Dropout(rate=0.025, rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, kernel_size=(3, 3), rngs=rngs)
        self.norm2 = nnx.BatchNorm(64, rngs=rngs)
        self.pool = partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2))
        self.linear1 = nnx.Linear(3136, 256, rngs=rngs)
        self.dropout2 = nnx.Dropout(rate=0.025, rngs=rngs)
        self.linear2 = nnx.Linear(256, 10, rngs=rngs)

    def __call__(self, x):
        x = self.pool(nnx.relu(self.norm1(self.dropout1(self.conv1(x)))))
        x = self.pool(nnx.relu(self.norm2(self.conv2(x))))
        x = x.reshape(x.shape[0], -1)
        return self.linear2(nnx.relu(self.dropout2(self.linear1(x))))


def loss_fn(model, images, labels):
    logits = model(images)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits=logits, labels=labels).mean()
    return loss, logits


@nnx.jit
def train_step(model, optimizer, metrics, images, labels):
    (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, images, labels)
    metrics.update(loss=loss, logits=logits, labels=labels)
    optimizer.update(model, grads)


@nnx.jit
def eval_step(model, metrics, images, labels):
    loss, logits = loss_fn(model, images, labels)
    metrics.update(loss=loss, logits=logits, labels=labels)


def batches(rng, number):
    images = rng.random((IMAGES, 28, 28, 1), dtype=np.float32)
    labels = rng.integers(0, 10, IMAGES, dtype=np.int32)
    for _ in range(number):
        chosen = rng.integers(0, IMAGES, BATCH)
        yield images[chosen], labels[chosen]


def main():
    rng = np.random.default_rng(0)
    model = CNN(rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(0.005, 0.9), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    test = list(batches(rng, TEST_BATCHES))
    with timed(lambda: jax.block_until_ready(nnx.state(model))):
        for step, (images, labels) in enumerate(batches(rng, STEPS)):
            model.train()
            train_step(model, optimizer, metrics, images, labels)
            if step > 0 and (step % EVAL_EVERY == 0 or step == STEPS - 1):
                trained = metrics.compute()
                metrics.reset()
                model.eval()
                for test_images, test_labels in test:
                    eval_step(model, metrics, test_images, test_labels)
                tested = metrics.compute()
                metrics.reset()
                print(f"{step} train {trained['loss']:.4f} test {tested['loss']:.4f}")


if __name__ == "__main__":
    main()
