"""PEFT trains LoRA adapters of a T5 in a plain PyTorch loop, as its quick tour and examples do."""
# After peft's docs/source/quicktour.md and examples/conditional_generation, Apache-2.0: written
# anew, the library's API kept. Other than there: random weights, random token ids.

import torch
from _common import timed
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm
from transformers import (
    T5Config,
    T5ForConditionalGeneration,
    get_linear_schedule_with_warmup,
    set_seed,
)

ROWS, TOKENS, ANSWER, BATCH, EPOCHS = 320, 128, 16, 8, 2


def main():
    set_seed(42)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = T5Config(decoder_start_token_id=0)
    lora = LoraConfig(
        task_type=TaskType.SEQ_2_SEQ_LM,
        inference_mode=False,
        r=8,
        lora_alpha=32,
        lora_dropout=0.1,
    )
    model = get_peft_model(T5ForConditionalGeneration(config), lora)
    model.print_trainable_parameters()
    model = model.to(device)

    input_ids = torch.randint(0, config.vocab_size, (ROWS, TOKENS))
    labels = torch.randint(0, config.vocab_size, (ROWS, ANSWER))
    dataset = TensorDataset(input_ids, torch.ones_like(input_ids), labels)
    loader = DataLoader(dataset, shuffle=True, batch_size=BATCH, pin_memory=True)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=0, num_training_steps=len(loader) * EPOCHS
    )
    with timed():
        for epoch in range(EPOCHS):
            model.train()
            total_loss = 0
            for batch in tqdm(loader):
                ids, mask, answers = (tensor.to(device) for tensor in batch)
                outputs = model(input_ids=ids, attention_mask=mask, labels=answers)
                loss = outputs.loss
                total_loss += loss.detach().float()
                loss.backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            mean = total_loss / len(loader)
            print(f"epoch={epoch} train_ppl={torch.exp(mean)} train_loss={mean}")


if __name__ == "__main__":
    main()
