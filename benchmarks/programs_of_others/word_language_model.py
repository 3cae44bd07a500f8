"""An LSTM language model by truncated backpropagation through time, with SGD written by hand."""
# After pytorch/examples' word_language_model, BSD-3-Clause: written anew, its sizes and steps kept.
# Other than there: random tokens, a fraction of an epoch.

import math
import time

import torch
from _common import timed
from torch import nn

WORDS, SIZE, LAYERS, BPTT, BATCH, EVAL_BATCH = 33278, 200, 2, 35, 20, 10
TRAIN, VALID, EPOCHS, LOG_INTERVAL, CLIP = 200_000, 20_000, 2, 100, 0.25


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(WORDS, SIZE)
        self.rnn = nn.LSTM(SIZE, SIZE, LAYERS, dropout=0.2)
        self.decoder = nn.Linear(SIZE, WORDS)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        decoded = self.decoder(self.drop(output)).view(-1, WORDS)
        return nn.functional.log_softmax(decoded, dim=1), hidden

    def initial(self, batch):
        weight = next(self.parameters())
        return tuple(weight.new_zeros(LAYERS, batch, SIZE) for _ in range(2))


def batchify(tokens, batch, device):
    """Lay the text out in ``batch`` columns that follow one another."""
    rows = len(tokens) // batch
    return tokens[: rows * batch].view(batch, rows).t().contiguous().to(device)


def batch_at(source, start):
    length = min(BPTT, len(source) - 1 - start)
    return source[start : start + length], source[start + 1 : start + 1 + length].view(-1)


def main():
    torch.manual_seed(1111)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_data = batchify(torch.randint(WORDS, (TRAIN,)), BATCH, device)
    valid_data = batchify(torch.randint(WORDS, (VALID,)), EVAL_BATCH, device)
    model = LanguageModel().to(device)
    criterion = nn.NLLLoss()

    def evaluate(source):
        model.eval()
        total_loss, hidden = 0.0, model.initial(EVAL_BATCH)
        with torch.no_grad():
            for start in range(0, len(source) - 1, BPTT):
                data, targets = batch_at(source, start)
                output, hidden = model(data, hidden)
                total_loss += len(data) * criterion(output, targets).item()
        return total_loss / (len(source) - 1)

    def train(epoch, lr):
        model.train()
        total_loss, hidden, began_s = 0.0, model.initial(BATCH), time.time()
        for number, start in enumerate(range(0, len(train_data) - 1, BPTT)):
            data, targets = batch_at(train_data, start)
            model.zero_grad()
            hidden = tuple(state.detach() for state in hidden)
            output, hidden = model(data, hidden)
            loss = criterion(output, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-lr)
            total_loss += loss.item()
            if number % LOG_INTERVAL == 0 and number > 0:
                mean, took_s = total_loss / LOG_INTERVAL, time.time() - began_s
                print(
                    f"| epoch {epoch:3d} | {number:5d} batches | lr {lr:02.2f} "
                    f"| ms/batch {took_s * 1000 / LOG_INTERVAL:5.2f} | loss {mean:5.2f} "
                    f"| ppl {math.exp(mean):8.2f}"
                )
                total_loss, began_s = 0.0, time.time()

    lr, best = 20.0, math.inf
    with timed():
        for epoch in range(1, EPOCHS + 1):
            train(epoch, lr)
            loss = evaluate(valid_data)
            print(f"| end of epoch {epoch:3d} | valid loss {loss:5.2f}")
            if loss < best:
                best = loss
            else:
                lr /= 4.0


if __name__ == "__main__":
    main()
