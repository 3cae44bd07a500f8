"""Sentiment classifier for short product reviews, trained with the Hugging Face Trainer."""
import json
import os
import sys
import tempfile
import time

import numpy as np

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

MAX_LENGTH = 512
BATCH = 128
WARMUP = 4
STEPS = 28
VOCAB = 30522
LABELS = 5
HIDDEN = 768
LAYERS = 12


class Reviews(Dataset):
    """Tokenised reviews; a customer seldom writes more than a few sentences."""

    def __init__(self, count, seed=0):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(14, 100, size=count)
        self.texts = [rng.integers(1000, VOCAB, size=n) for n in lengths]
        for text in self.texts:
            text[0], text[-1] = 101, 102
        self.labels = rng.integers(0, LABELS, size=count)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return {"tokens": self.texts[index], "label": int(self.labels[index])}


class Collate:
    def __init__(self, padding):
        self.padding = padding

    def __call__(self, examples):
        if self.padding == "max_length":
            width = MAX_LENGTH
        else:
            width = max(len(e["tokens"]) for e in examples)
        ids = np.zeros((len(examples), width), dtype=np.int64)
        mask = np.zeros((len(examples), width), dtype=np.int64)
        for row, example in enumerate(examples):
            n = min(len(example["tokens"]), width)
            ids[row, :n] = example["tokens"][:n]
            mask[row, :n] = 1
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            "labels": torch.tensor([e["label"] for e in examples]),
        }


class StepClock(TrainerCallback):
    def __init__(self, first, last):
        self.first, self.last = first, last
        self.seconds = None

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.first:
            torch.cuda.synchronize()
            self.begin = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.last:
            torch.cuda.synchronize()
            self.seconds = time.perf_counter() - self.begin


def build_model():
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // 64,
        intermediate_size=4 * HIDDEN,
        max_position_embeddings=MAX_LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=LABELS,
    )
    return BertForSequenceClassification(config)


def main():
    variant = sys.argv[1]
    set_seed(13)
    total = WARMUP + STEPS
    clock = StepClock(WARMUP, total)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            max_steps=total,
            learning_rate=3e-5,
            bf16=True,
            optim="adamw_torch_fused",
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=True,
        )
        trainer = Trainer(
            model=build_model(),
            args=args,
            train_dataset=Reviews(total * BATCH),
            data_collator=Collate("max_length" if variant == "slow" else "longest"),
            callbacks=[clock],
        )
        trainer.train()
    print("RESULT " + json.dumps({
        "name": "review_trainer", "variant": variant, "units": STEPS, "seconds": round(clock.seconds, 4)}))


if __name__ == "__main__":
    main()
