"""Embeds support tickets with sentence-transformers and links each one to the nearest topic."""
import json
import random
import sys
import tempfile
import time

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

TICKETS = 768
TOPICS = 64
WARMUP = 32
HIDDEN = 384
LAYERS = 6
SYLLABLES = ["ba", "cor", "den", "fi", "gru", "hol", "im", "jat", "ken", "lo", "mur", "nes", "op", "qui"]


def make_words():
    return [a + b + c for a in SYLLABLES for b in SYLLABLES for c in SYLLABLES]


def save_transformer(folder, words):
    vocab = {t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + words)}
    core = Tokenizer(WordLevel(vocab, unk_token="[UNK]"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, model_max_length=256, pad_token="[PAD]", unk_token="[UNK]",
        cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(4)
    config = BertConfig(
        vocab_size=len(vocab), hidden_size=HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=12, intermediate_size=4 * HIDDEN)
    BertModel(config).save_pretrained(folder)


def load_encoder():
    with tempfile.TemporaryDirectory() as folder:
        save_transformer(folder, make_words())
        body = Transformer(folder, max_seq_length=256)
        pooling = Pooling(HIDDEN, pooling_mode="mean")
        return SentenceTransformer(modules=[body, pooling], device="cuda")


def write_tickets(count, seed):
    rng = random.Random(seed)
    words = make_words()
    return [" ".join(rng.choices(words, k=rng.randint(20, 60))) for _ in range(count)]


class TopicIndex:
    def __init__(self, encoder, topics, batch_size):
        self.encoder = encoder
        self.batch_size = batch_size
        self.topics = self.embed(topics)

    def embed(self, texts):
        return self.encoder.encode(
            texts,
            batch_size=self.batch_size,
            convert_to_tensor=True,
            normalize_embeddings=True,
            show_progress_bar=False,
        )

    def link(self, tickets):
        topics = []
        for first in range(0, len(tickets), self.batch_size):
            vectors = self.embed(tickets[first:first + self.batch_size])
            topics.append((vectors @ self.topics.T).argmax(dim=1))
        return torch.cat(topics)


def main():
    variant = sys.argv[1]
    batch_size = 1 if variant == "slow" else 128
    index = TopicIndex(load_encoder(), write_tickets(TOPICS, seed=100), batch_size)

    index.link(write_tickets(WARMUP, seed=1))
    tickets = write_tickets(TICKETS, seed=2)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    topics = index.link(tickets)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin

    sizes = torch.bincount(topics, minlength=TOPICS)
    print(f"{TICKETS} tickets in {int((sizes > 0).sum())} topics, largest has {int(sizes.max())}")
    print("RESULT " + json.dumps({
        "name": "ticket_index", "variant": variant, "units": TICKETS, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
