"""transformers' generate continues a batch of prompts greedily with a GPT-2."""
# After transformers' docs/source/en/llm_tutorial.md, Apache-2.0: written anew, its API kept.
# Other than there: random weights, random prompts.

import torch
from _common import timed
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

PROMPTS, TOKENS, NEW_TOKENS = 8, 32, 300


def main():
    set_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = GPT2Config()
    model = GPT2LMHeadModel(config).to(device).eval()
    input_ids = torch.randint(0, config.vocab_size, (PROMPTS, TOKENS))
    inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
    with timed():
        generated = model.generate(
            **inputs,
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=config.eos_token_id,
        )
    print(tuple(generated.shape), generated.sum().item())


if __name__ == "__main__":
    main()
