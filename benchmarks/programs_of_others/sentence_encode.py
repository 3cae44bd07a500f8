"""sentence-transformers encodes sentences and finds the nearest ones of a few queries."""
# After sentence-transformers' docs/sentence_transformer/usage/custom_models.rst and its example of
# semantic search, Apache-2.0: written anew, the library's API kept. Other than there: a BERT of
# all-MiniLM-L6-v2's shape with random weights, made-up words.

import random
import tempfile
from pathlib import Path

from _common import timed
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizer, set_seed

SENTENCES, WORDS = 12000, 2000


def made(folder):
    """Save a BERT of random weights and its tokenizer, and return the words that it knows."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = sorted({"".join(random.choices(letters, k=5)) for _ in range(WORDS)})  # noqa: S311
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    BertModel(config).save_pretrained(folder)
    (Path(folder) / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizer.from_pretrained(folder).save_pretrained(folder)
    return words


def main():
    set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        words = made(folder)
        transformer = Transformer(folder, max_seq_length=256)
        pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")
        model = SentenceTransformer(modules=[transformer, pooling, Normalize()])
    sentences = [
        " ".join(random.choices(words, k=random.randint(5, 40)))  # noqa: S311
        for _ in range(SENTENCES)
    ]
    with timed():
        corpus = model.encode(sentences, convert_to_tensor=True)
        queries = model.encode(sentences[:100], convert_to_tensor=True)
        hits = util.semantic_search(queries, corpus, top_k=5)
    print(tuple(corpus.shape), hits[0][0])


if __name__ == "__main__":
    main()
