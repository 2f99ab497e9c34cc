"""Image classification: CIFAR-10, Fashion-MNIST and MNIST, with a small network.

A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. 2009.
H. Xiao, K. Rasul, R. Vollgraf. Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms. 2017.
Y. LeCun, L. Bottou, Y. Bengio, P. Haffner. Gradient-based learning applied to document recognition. Proc. IEEE, 1998.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Unpack

import torch
from torch import nn

from tardygrad import streams
from tardygrad.constructors import constructor
from tardygrad.errors import Invalid, check_choice, check_integer
from tardygrad.tasks.data.held_out import ScoreOn, set_apart
from tardygrad.tasks.data.hub import download
from tardygrad.tasks.data.images import CLASSES, LAYOUTS, Images, Labelled, Normalize, crop_and_flip, images
from tardygrad.tasks.data.sharding import SplitSettings, shard
from tardygrad.tasks.nets import CNN, Shape, ViT, check_sizes
from tardygrad.tasks.noise import Noise
from tardygrad.tasks.torch_task import TorchTask

Model = Literal["vit", "cnn"]
"""A vision transformer, or three convolutions."""


class Source(NamedTuple):
    """A data set: its images, where to find them, and the `task` of classifying them."""

    name: str
    shape: Shape
    mean: tuple[float, ...]  # of pixels in [0, 1], per channel
    std: tuple[float, ...]
    repository: str  # on the Hugging Face hub
    folder: Path | None = None  # where a system package installs it
    fix: str = "Use"  # begins the advice in the error text, before data=FOLDER

    @constructor(passes_to=(TorchTask, shard))
    def task(
        self,
        *,
        clients: int,
        data: str | None = None,
        model: Model = "vit",
        dim: int = 32,
        depth: int = 2,
        heads: int = 4,
        patch: int = 4,
        batch_size: int = 32,
        augment: bool = False,
        noise: Noise | None = None,
        train_rows: int | None = None,
        test_rows: int | None = None,
        validation_rows: int = 0,
        score_on: ScoreOn = "test",
        cache: str | None = None,
        device: str = "cpu",
        autocast: bool = False,
        compile: bool = False,
        channels_last: bool = False,
        seed: int = 0,
        **split: Unpack[SplitSettings],
    ) -> TorchTask:
        """Image classification: a data set of ten classes, split over clients, and a network for it.

        Args:
            data: the folder with the images (layouts: see `tasks.data.images`), or "hub" to download them from
                huggingface.co. Only Fashion-MNIST has a default, the folder of Debian's dataset-fashion-mnist.
            model: "vit", a vision transformer, or "cnn", three convolutions.
            dim: width of the transformer, or channels of the first convolution.
            depth: blocks of the transformer.
            heads: attention heads of the transformer; must divide `dim`.
            patch: side of the transformer's patches in pixels; must divide the images' side.
            augment: whether to crop and flip training images at random, drawn from the job's stream.
            train_rows: how many training images to use, drawn with `seed`; None is all.
            test_rows: how many test images to use, the same for every seed; None is all.
            validation_rows: how many of the training images to set apart, the same for every seed of the run.
            score_on: evaluate on the "test" images, or on the "validation" images, to choose settings by.
            cache: the folder for decoded images; None is ~/.cache/tardygrad.
            channels_last: let images in memory have the channels innermost, in which some convolutions are faster.
            seed: draws the split and `train_rows`; x_0 depends on the seed of the run.
        """
        for key, value in (("clients", clients), ("dim", dim)):
            check_integer(key, value)
        check_choice("model", model, Model)
        if model == "vit":
            check_sizes(dim=dim, depth=depth, heads=heads, patch=patch, shape=self.shape)
        found = self.images(data, train_rows=train_rows, test_rows=test_rows, seed=seed, cache=cache)
        normalize = Normalize(self.mean, self.std, channels_last=channels_last)
        module: Callable[[], nn.Module]
        if model == "vit":
            size = {"dim": dim, "depth": depth, "heads": heads, "patch": patch}
            module = partial(ViT, **size, shape=self.shape, classes=CLASSES, normalize=normalize)
        else:
            module = partial(CNN, dim=dim, channels=self.shape[0], classes=CLASSES, normalize=normalize)
        rows, test = set_apart(found.train, found.test, validation_rows, score_on)
        return TorchTask(
            module,
            loss=nn.functional.cross_entropy,
            data=shard(rows, clients=clients, seed=seed, **split),
            test=test,
            batch_size=batch_size,
            noise=noise,
            evaluate_batch=1024,
            augment=crop_and_flip if augment else None,
            device=device,
            autocast=autocast,
            compile=compile,
        )

    def images(
        self, data: str | None, *, train_rows: int | None, test_rows: int | None, seed: int, cache: str | None
    ) -> Images:
        """The images of a folder, or samples of them; see `task`."""
        for key, value in (("train_rows", train_rows), ("test_rows", test_rows)):
            if value is not None:
                check_integer(key, value)
        train, test = images(self._find(data), self.shape, cache=cache)
        return Images(_sample("train_rows", train, train_rows, seed), _sample("test_rows", test, test_rows, 0))

    def _find(self, data: str | None) -> Path:
        """The folder with the images."""
        if data == "hub":
            return download(self.repository, ["*.parquet"], f"data='hub' needs {self.repository}", dataset=True)
        if data is not None:
            return Path(data)
        if self.folder is None or not self.folder.is_dir():
            raise Invalid(
                f"{self.name} needs its images, got no `data`. {self.fix} data=FOLDER, a folder with {LAYOUTS}; "
                "or data='hub' with an internet connection."
            )
        return self.folder


def _sample(name: str, data: Labelled, rows: int | None, seed: int) -> Labelled:
    """A sample of `rows` images, determined by the seed."""
    inputs, labels = data
    if rows is None:
        return data
    if rows > len(labels):
        raise Invalid(f"`{name}` must be at most the number of images ({len(labels)}), got {rows}.")
    drawn = streams.generator(seed, name).permutation(len(labels))[:rows]
    chosen = torch.from_numpy(drawn).sort().values
    return inputs[chosen], labels[chosen]


CIFAR10 = Source(
    "CIFAR-10",
    shape=(3, 32, 32),
    mean=(0.49139968, 0.48215841, 0.44653091),
    std=(0.24703223, 0.24348513, 0.26158784),
    repository="uoft-cs/cifar10",
)
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

cifar10, fashion, mnist = CIFAR10.task, FASHION.task, MNIST.task
