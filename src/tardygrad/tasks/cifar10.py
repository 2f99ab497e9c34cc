"""CIFAR-10: 50,000 images of 32 × 32 pixels in color to train on, 10,000 to test on, ten classes.

A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. 2009.
"""

from __future__ import annotations

from tardygrad.tasks.image_task import Source

CIFAR10 = Source(
    "CIFAR-10",
    shape=(3, 32, 32),
    mean=(0.49139968, 0.48215841, 0.44653091),
    std=(0.24703223, 0.24348513, 0.26158784),
    repository="uoft-cs/cifar10",
)

cifar10 = CIFAR10.task
