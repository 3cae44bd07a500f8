"""torch.compile speeds up the training of a small GPT-2 of transformers."""
# After PyTorch's tutorial on torch.compile (pytorch/tutorials, BSD-3-Clause): written anew, the
# API kept. Other than there: a two-layer GPT-2 with random weights, random token ids.

import torch
from _common import timed
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

LAYERS, WIDTH, BATCH, TOKENS, STEPS = 2, 768, 16, 512, 100


def main():
    set_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    config = GPT2Config(n_layer=LAYERS, n_embd=WIDTH, use_cache=False)
    model = GPT2LMHeadModel(config).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.randint(0, config.vocab_size, (4 * BATCH, TOKENS))
    batches = data.split(BATCH)
    compiled = torch.compile(model)
    with timed():
        for step in range(STEPS):
            inputs = batches[step % len(batches)].to(device)
            optimizer.zero_grad()
            loss = compiled(input_ids=inputs, labels=inputs).loss
            loss.backward()
            optimizer.step()
            if step % 25 == 0:
                print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
