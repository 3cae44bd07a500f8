"""torchdiffeq learns a spiral's vector field from short pieces of its path."""
# After torchdiffeq's examples/ode_demo.py, MIT: written anew, its equation, sizes and steps kept.
# Other than there: no plots, fewer iterations.

import torch
from _common import timed
from torch import nn
from torchdiffeq import odeint

POINTS, PIECE, BATCH, ITERATIONS, TEST_EVERY = 1000, 10, 20, 80, 20


class Spiral(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("matrix", torch.tensor([[-0.1, 2.0], [-2.0, -0.1]]))

    def forward(self, _t, y):
        return torch.mm(y**3, self.matrix)


class Learned(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, mean=0, std=0.1)
                nn.init.constant_(layer.bias, val=0)

    def forward(self, _t, y):
        return self.net(y**3)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    start = torch.tensor([[2.0, 0.0]]).to(device)
    times = torch.linspace(0.0, 25.0, POINTS).to(device)
    with torch.no_grad():
        path = odeint(Spiral().to(device), start, times, method="dopri5")

    def pieces():
        begins = torch.randperm(POINTS - PIECE)[:BATCH]
        targets = torch.stack([path[begins + offset] for offset in range(PIECE)])
        return path[begins].to(device), times[:PIECE], targets.to(device)

    learned = Learned().to(device)
    optimizer = torch.optim.RMSprop(learned.parameters(), lr=1e-3)
    with timed():
        for iteration in range(1, ITERATIONS + 1):
            optimizer.zero_grad()
            begin, piece_times, targets = pieces()
            predicted = odeint(learned, begin, piece_times).to(device)
            loss = torch.mean(torch.abs(predicted - targets))
            loss.backward()
            optimizer.step()
            if iteration % TEST_EVERY == 0:
                with torch.no_grad():
                    loss = torch.mean(torch.abs(odeint(learned, start, times) - path))
                    print(f"Iter {iteration:04d} | Total Loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
