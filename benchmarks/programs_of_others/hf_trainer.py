"""transformers' Trainer fine-tunes a DistilBERT classifier, as its guide to fine-tuning does."""
# After transformers' docs/source/en/training.md, Apache-2.0: written anew, the library's API kept.
# Other than there: random weights, random token ids.

import tempfile

import torch
from _common import timed
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

ROWS, TOKENS, WORDS = 2400, 128, 30522


class Reviews(Dataset):
    def __init__(self):
        self.input_ids = torch.randint(0, WORDS, (ROWS, TOKENS)).tolist()
        self.labels = torch.randint(0, 2, (ROWS,)).tolist()

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        ids = self.input_ids[index]
        return {"input_ids": ids, "attention_mask": [1] * TOKENS, "labels": self.labels[index]}


def main():
    set_seed(0)
    model = DistilBertForSequenceClassification(DistilBertConfig(vocab_size=WORDS, num_labels=2))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            learning_rate=2e-5,
            per_device_train_batch_size=16,
            num_train_epochs=1,
            weight_decay=0.01,
            logging_steps=25,
            save_strategy="no",
            report_to="none",
            seed=0,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=Reviews())
        with timed():
            trainer.train()


if __name__ == "__main__":
    main()
