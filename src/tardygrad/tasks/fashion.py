"""Fashion-MNIST and MNIST: 60,000 images of 28 × 28 pixels to train on, 10,000 to test on, ten classes.

H. Xiao, K. Rasul, R. Vollgraf. Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms. 2017.
Y. LeCun, L. Bottou, Y. Bengio, P. Haffner. Gradient-based learning applied to document recognition. Proc. IEEE, 1998.
"""

from __future__ import annotations

from pathlib import Path

from tardygrad.tasks.image_task import Model, Source, image_task
from tardygrad.tasks.noise import Noise
from tardygrad.tasks.sharding import How
from tardygrad.tasks.torch_task import TorchTask

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


def fashion(
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
    """Fashion-MNIST: clothes, in ten classes.

    Args:
        clients: N.
        data: the folder of the images, see `tardygrad.tasks.images`; "hub" fetches them from huggingface.co; None is
            where Debian's package dataset-fashion-mnist puts them.
        model: "vit", a vision transformer, or "cnn", three convolutions, from scratch; "tinyvit" or "transformers",
            pretrained.
        dim: width of the transformer, or of the first convolution.
        depth: blocks of the transformer.
        heads: of its attention; must divide `dim`.
        patch: side of its patches in pixels; must divide 28.
        batch_size: rows per local step.
        how: the split over clients, with `concentration`, `labels_per_client` and `balanced`; see `shard`.
        augment: random crops and flips of the training images, drawn from the job's stream.
        noise: added to every gradient.
        train_rows: of the training set, drawn with `seed`; None is all.
        test_rows: of the test set, the same for every seed; None is all.
        pretrained: the folder of a pretrained network, or for "transformers" its name on the hub.
        train: the "head" of a pretrained network, the "last-N" blocks and the head, or "all". What is frozen is
            computed once, but for "last-N" with `augment`. None is "head".
        resize: side in pixels of the images that a pretrained network gets; None is 64 for TinyViT, and what the
            model's configuration says for "transformers".
        cache: the folder for decoded images and features; None is ~/.cache/tardygrad.
        device: where data, vectors and the module live.
        autocast: forward passes in bfloat16 where torch thinks it safe.
        seed: of the split and of `train_rows`; x_0 depends on the seed of the run.
    """
    return image_task(FASHION, **locals())


def mnist(
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
    """MNIST: handwritten digits. The arguments are those of `fashion`; `data` must be given."""
    return image_task(MNIST, **locals())
