"""PyTorch Geometric classifies small graphs by a GCN, in mini-batches of its DataLoader."""
# After PyG's docs/source/get_started/introduction.rst and examples/mutag_gin.py, MIT: written anew,
# the library's API kept. Other than there: its own FakeDataset.

import torch
import torch.nn.functional as F  # noqa: N812
from _common import timed
from torch_geometric import seed_everything
from torch_geometric.datasets import FakeDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

GRAPHS, BATCH, EPOCHS = 2000, 64, 12


class GCN(torch.nn.Module):
    def __init__(self, in_channels, hidden, out_channels):
        super().__init__()
        sizes = (in_channels, hidden, hidden)
        self.convolutions = torch.nn.ModuleList(GCNConv(size, hidden) for size in sizes)
        self.classify = torch.nn.Linear(hidden, out_channels)

    def forward(self, x, edge_index, batch):
        for convolution in self.convolutions:
            x = convolution(x, edge_index).relu()
        pooled = global_mean_pool(x, batch)
        return self.classify(F.dropout(pooled, p=0.5, training=self.training))


def main():
    seed_everything(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = FakeDataset(GRAPHS, avg_num_nodes=30, avg_degree=4, num_channels=32, num_classes=4)
    split = GRAPHS * 9 // 10
    train_loader = DataLoader(dataset[:split], batch_size=BATCH, shuffle=True)
    test_loader = DataLoader(dataset[split:], batch_size=BATCH)
    model = GCN(dataset.num_features, 64, dataset.num_classes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def train():
        model.train()
        total_loss = 0
        for data in train_loader:
            batch = data.to(device)
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index, batch.batch)
            loss = F.cross_entropy(out, batch.y)
            loss.backward()
            optimizer.step()
            total_loss += float(loss) * batch.num_graphs
        return total_loss / split

    @torch.no_grad()
    def test():
        model.eval()
        correct = 0
        for data in test_loader:
            batch = data.to(device)
            pred = model(batch.x, batch.edge_index, batch.batch).argmax(dim=-1)
            correct += int((pred == batch.y).sum())
        return correct / (GRAPHS - split)

    with timed():
        for epoch in range(1, EPOCHS + 1):
            print(f"Epoch: {epoch:03d}, Loss: {train():.4f}, Test: {test():.4f}")


if __name__ == "__main__":
    main()
