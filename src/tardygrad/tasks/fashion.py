"""Fashion-MNIST and MNIST: 60,000 images of 28 × 28 pixels to train on, 10,000 to test on, ten classes.

H. Xiao, K. Rasul, R. Vollgraf. Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms. 2017.
Y. LeCun, L. Bottou, Y. Bengio, P. Haffner. Gradient-based learning applied to document recognition. Proc. IEEE, 1998.
"""

from __future__ import annotations

from pathlib import Path

from tardygrad.tasks.image_task import Source

FASHION = Source(
    "Fashion-MNIST",
    shape=(1, 28, 28),
    mean=(0.2860,),
    std=(0.3530,),
    repository="zalando-datasets/fashion_mnist",
    folder=Path("/usr/share/datasets/fashion-mnist"),
    fix="Use apt-get install dataset-fashion-mnist on Debian or Ubuntu; or",
)
MNIST = Source("MNIST", shape=(1, 28, 28), mean=(0.1307,), std=(0.3081,), repository="ylecun/mnist")

fashion, mnist = FASHION.task, MNIST.task
