"""CIFAR-10: 50,000 images of 32 × 32 pixels in color to train on, 10,000 to test on, ten classes.

A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. 2009.
"""

from __future__ import annotations

from tardygrad.tasks.image_task import Model, Source, image_task
from tardygrad.tasks.noise import Noise
from tardygrad.tasks.sharding import How
from tardygrad.tasks.torch_task import TorchTask

CIFAR10 = Source(
    "CIFAR-10",
    shape=(3, 32, 32),
    mean=(0.49139968, 0.48215841, 0.44653091),
    std=(0.24703223, 0.24348513, 0.26158784),
    repository="uoft-cs/cifar10",
)


def cifar10(
    *,
    clients: int,
    data: str | None = None,
    model: Model = "vit",
    dim: int = 32,
    depth: int = 2,
    heads: int = 4,
    patch: int = 4,
    batch_size: int = 32,
    how: How | None = None,
    concentration: float | None = None,
    labels_per_client: int = 2,
    balanced: bool = True,
    augment: bool = False,
    noise: Noise | None = None,
    train_rows: int | None = None,
    test_rows: int | None = None,
    pretrained: str | None = None,
    train: str | None = None,
    resize: int | None = None,
    cache: str | None = None,
    device: str = "cpu",
    autocast: bool = False,
    seed: int = 0,
) -> TorchTask:
    """CIFAR-10: animals and vehicles. The arguments are those of `fashion`; `data` must be given.

    `patch` must divide 32.
    """
    return image_task(CIFAR10, **locals())
