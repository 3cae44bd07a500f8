"""Regress a property of small molecules with a GIN whose nodes carry random-walk encodings."""
import json
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, global_add_pool
from torch_geometric.transforms import AddRandomWalkPE, Compose, ToUndirected

GRAPHS = 2048
BATCH = 128
WALK = 16
WIDTH = 192
LAYERS = 5
WARMUP = 4
STEPS = 40


def random_molecule(rng):
    atoms = int(rng.integers(18, 40))
    parents = np.array([rng.integers(max(0, i - 4), i) for i in range(1, atoms)])
    children = np.arange(1, atoms)
    rings = rng.integers(0, atoms, size=(2, 3))
    src = np.concatenate([parents, rings[0]])
    dst = np.concatenate([children, rings[1]])
    edges = torch.from_numpy(np.stack([src, dst])).long()
    bond = torch.from_numpy(rng.integers(0, 4, size=edges.shape[1])).long()
    return Data(
        x=torch.from_numpy(rng.integers(0, 28, size=atoms)).long(),
        edge_index=edges,
        edge_attr=F.one_hot(bond, 4).float(),
        y=torch.tensor([float(rng.normal())]),
    )


class Molecules(Dataset):
    def __init__(self, molecules, transform=None):
        self.molecules = molecules
        self.transform = transform

    def __len__(self):
        return len(self.molecules)

    def __getitem__(self, index):
        molecule = self.molecules[index]
        if self.transform is not None:
            molecule = self.transform(molecule.clone())
        return molecule


class Net(nn.Module):
    def __init__(self, width, layers, walk):
        super().__init__()
        self.atom = nn.Embedding(28, width)
        self.walk = nn.Linear(walk, width)
        self.convs = nn.ModuleList()
        self.norms = nn.ModuleList()
        for _ in range(layers):
            mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            self.convs.append(GINEConv(mlp, edge_dim=4))
            self.norms.append(nn.LayerNorm(width))
        self.out = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, data):
        x = self.atom(data.x) + self.walk(data.random_walk_pe)
        for conv, norm in zip(self.convs, self.norms):
            x = x + F.relu(norm(conv(x, data.edge_index, data.edge_attr)))
        return self.out(global_add_pool(x, data.batch, size=data.num_graphs)).squeeze(-1)


def endless(loader):
    while True:
        yield from loader


def main():
    variant = sys.argv[1]
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    molecules = [random_molecule(rng) for _ in range(GRAPHS)]
    encode = Compose([ToUndirected(), AddRandomWalkPE(walk_length=WALK)])

    if variant == "slow":
        dataset = Molecules(molecules, transform=encode)
    else:
        dataset = Molecules([encode(m.clone()) for m in molecules])
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True)

    net = Net(WIDTH, LAYERS, WALK).to("cuda")
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    total = torch.zeros((), device="cuda")

    def train(batch):
        batch = batch.to("cuda")
        loss = F.l1_loss(net(batch), batch.y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total.add_(loss.detach())

    batches = endless(loader)
    for _ in range(WARMUP):
        train(next(batches))
    total.zero_()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for step in range(1, STEPS + 1):
        train(next(batches))
        if step % 20 == 0:
            print(f"step {step}: mean absolute error {total.item() / step:.4f}")
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    print("RESULT " + json.dumps({
        "name": "molecule_gnn", "variant": variant, "units": STEPS, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
