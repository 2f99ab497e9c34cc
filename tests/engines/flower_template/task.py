"""The model, the data and the training loop of a Flower app."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 16, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.fc(x.flatten(1))


@cache
def load_images():
    digits = load_digits()
    return torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)


def load_data(partition_id, num_partitions):
    images, labels = load_images()
    rows = torch.arange(len(images))
    test = rows % 5 == 0
    own = ~test & (rows % num_partitions == partition_id)
    train_set, test_set = TensorDataset(images[own], labels[own]), TensorDataset(images[test], labels[test])
    return DataLoader(train_set, batch_size=32, shuffle=True), DataLoader(test_set, batch_size=256)


def train(net, loader, epochs, lr):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net, loader):
    net.eval()
    with torch.no_grad():
        outputs = [(net(images), labels) for images, labels in loader]
    loss = sum(nn.functional.cross_entropy(out, labels).item() for out, labels in outputs) / len(outputs)
    correct = sum((out.argmax(1) == labels).sum().item() for out, labels in outputs)
    return loss, correct / len(loader.dataset)
