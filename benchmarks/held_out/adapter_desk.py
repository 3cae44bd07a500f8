"""Scores short customer messages with one base model and a LoRA adapter for each department."""
import argparse
import json
import random
import time

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

DEPARTMENTS = ["billing", "claims", "repairs", "sales"]
REQUESTS = 70
WARMUP = 8
BATCH = 4
LENGTH = 64
HIDDEN = 2048
LAYERS = 16
VOCAB = 32000


def load_base():
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=5504 * HIDDEN // 2048,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // 128,
        num_key_value_heads=HIDDEN // 128,
        max_position_embeddings=2048,
    )
    torch.manual_seed(2)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    return model.to(torch.bfloat16)


def add_adapters(base):
    lora = LoraConfig(
        r=16,
        lora_alpha=32,
        lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, lora, adapter_name=DEPARTMENTS[0])
    for name in DEPARTMENTS[1:]:
        model.add_adapter(name, lora)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.mul_(0.1)
    return model.eval()


class Desk:
    def __init__(self, model, fold):
        self.model = model
        self.fold = fold

    @torch.inference_mode()
    def score(self, ids):
        logits = self.model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        return loss.view(ids.shape[0], -1).mean(dim=1)

    def answer(self, department, ids):
        self.model.set_adapter(department)
        if self.fold:
            self.model.merge_adapter()
        result = self.score(ids)
        if self.fold:
            self.model.unmerge_adapter()
        return result


def request_stream(count, seed):
    rng = random.Random(seed)
    gen = torch.Generator().manual_seed(seed)
    for _ in range(count):
        ids = torch.randint(3, VOCAB, (BATCH, LENGTH), generator=gen)
        yield rng.choice(DEPARTMENTS), ids.pin_memory()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variant", choices=["slow", "mended"])
    variant = parser.parse_args().variant

    model = add_adapters(load_base())
    desk = Desk(model, fold=variant == "slow")
    warm = list(request_stream(WARMUP, seed=1))
    work = list(request_stream(REQUESTS, seed=4))

    for department, ids in warm:
        desk.answer(department, ids.to("cuda", non_blocking=True))

    torch.cuda.synchronize()
    begin = time.perf_counter()
    scores = []
    for department, ids in work:
        scores.append(desk.answer(department, ids.to("cuda", non_blocking=True)))
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin

    print(f"{len(scores)} requests, mean score {torch.cat(scores).mean().item():.4f}")
    print("RESULT " + json.dumps({
        "name": "adapter_desk", "variant": variant, "units": REQUESTS, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
