"""Batched continuation of story prompts with a penalty on words a story has already used."""
import json
import logging
import sys
import time

import torch
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
)

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("story")

BATCH = 64
PROMPT_LEN = 48
NEW_TOKENS = 64
ROUNDS = 2
HIDDEN = 1024
LAYERS = 12
VOCAB = 24000


class FreshWords(LogitsProcessor):
    """Lowers the score of every token that already occurs in its own sequence."""

    def __init__(self, strength, by_story):
        self.strength = strength
        self.by_story = by_story

    def soften(self, picked):
        return torch.where(picked < 0, picked * self.strength, picked / self.strength)

    def __call__(self, input_ids, scores):
        if self.by_story:
            for row in range(input_ids.shape[0]):
                used = torch.unique(input_ids[row])
                scores[row, used] = self.soften(scores[row, used])
            return scores
        return scores.scatter(1, input_ids, self.soften(scores.gather(1, input_ids)))


def build_model():
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN * 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // 64,
        num_key_value_heads=HIDDEN // 64,
        max_position_embeddings=2048,
    )
    torch.manual_seed(11)
    model = LlamaForCausalLM(config).to(device="cuda", dtype=torch.bfloat16)
    return model.eval()


def prompts(rounds):
    gen = torch.Generator().manual_seed(5)
    for _ in range(rounds):
        yield torch.randint(10, VOCAB, (BATCH, PROMPT_LEN), generator=gen)


def continue_stories(model, batch, processors, new_tokens):
    ids = batch.to("cuda")
    settings = GenerationConfig(
        max_new_tokens=new_tokens,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,
        eos_token_id=None,
        bos_token_id=1,
    )
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=settings,
            logits_processor=processors,
        )
    return out[:, ids.shape[1]:]


def main():
    variant = sys.argv[1]
    model = build_model()
    processors = LogitsProcessorList([FreshWords(1.3, by_story=variant == "slow")])
    log.info("model with %.0f M weights", sum(p.numel() for p in model.parameters()) / 1e6)

    warm = next(prompts(1))
    continue_stories(model, warm, processors, 8)

    torch.cuda.synchronize()
    start = time.perf_counter()
    tokens = 0
    distinct = []
    for number, batch in enumerate(prompts(ROUNDS)):
        stories = continue_stories(model, batch, processors, NEW_TOKENS)
        tokens += stories.shape[1]
        distinct.append(stories.float().mean())
        log.info("round %d: %s", number, tuple(stories.shape))
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start

    log.info("mean token id %.3f", torch.stack(distinct).mean().item())
    print("RESULT " + json.dumps(
        {"name": "story_decode", "variant": variant, "units": tokens, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
